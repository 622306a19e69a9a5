"""The report's aggregates and examples, from tables written by hand."""

from __future__ import annotations

import pytest

from spark_dedup import schema
from spark_dedup.manifest import RunManifest, StageRecord
from spark_dedup.report.collect import BANDS, collect, cosine_bands, example_rows
from spark_dedup.report.summary import CopyGroup, RecallView, SizeBand

pytestmark = pytest.mark.slow

MANIFEST = RunManifest(
    run_id="r1",
    store="s",
    source="t",
    source_version=None,
    fingerprint="f",
    settings={"search": {"floor": 0.8}},
    stages=(StageRecord(stage="recall", fingerprint="f", rows_out=3, notes={"recall": "pair recall >= 0.90: 0.9, n = 5"}),),
    seconds=1.0,
    did_work=True,
)

# Records 0 to 39, one representative each but for 36 to 39, which are three more copies of 0 and one of 1.
# Pairs (0, 1), (2, 3), ... (10, 11) are edges of clusters of their own; (12, 13) ... (34, 35) were refused.
EDGES = [(2 * n, 2 * n + 1, round(0.805 + 0.03 * n, 3)) for n in range(6)]  # 0.805, 0.835, ... 0.955
REFUSED = [(12 + 2 * n, 13 + 2 * n, round(0.817 + 0.015 * n, 3)) for n in range(12)]  # 0.817 ... 0.982
TEXTS = {n: f"opening{n} of a text that goes on with word{n}" for n in range(36)}


class Store:
    """Tables in memory."""

    def __init__(self, tables):
        self.tables = tables

    def read(self, table):
        return self.tables[table.name]

    def location(self, table):
        return f"place/{table.name}"


@pytest.fixture(scope="module")
def store(spark):
    copies = {36: 0, 37: 0, 38: 0, 39: 1}
    records = [(n, TEXTS[copies.get(n, n)]) for n in range(40)]
    sizes = {n: 1 for n in range(12, 36)} | {n: 2 for n in range(2, 12)} | dict.fromkeys((0, 1, 36, 37, 38, 39), 6)
    cluster = {n: copies.get(n, n) // 2 * 2 if n < 12 or n > 35 else n for n in range(40)}
    clusters = [(n, cluster[n], cluster[n] == n, cluster[n], sizes[n], "near", 1.0, 1.0, True, "r1") for n in range(40)]
    pairs = [
        (a, b, a, b, ["hnsw"], cosine, 0.5, 0.6, 0.0 if edge else 0.5, "same", 9, 9, edge, "r1")
        for edge, of in ((True, EDGES), (False, REFUSED))
        for a, b, cosine in of
    ]
    groups = {0: 4, 1: 2}
    representatives = [(n, f"k{n}", n, TEXTS[n], groups.get(n, 1), True) for n in range(36)]

    def table(rows, ddl):
        return spark.createDataFrame(rows, ddl).coalesce(1)

    return Store(
        {
            "_records": table(records, "record_id bigint, text string"),
            "_representatives": table(representatives, schema.REPRESENTATIVES.ddl("bigint")),
            "clusters": table(clusters, schema.CLUSTERS.ddl("bigint")),
            "recall": table(
                [
                    ("r1", "candidates", "pair_recall", "", 0.9, 0.9, 0.8, 1.0, 5, 36, 10, None, None),
                    ("r1", "candidates", "cluster_recall", "", 0.8, None, None, None, 5, 36, 0, 0.5, None),
                    ("r1", "candidates", "pair_recall", "search.ef_search=16", 0.9, 0.5, 0.4, 0.6, 5, 36, 10, None, 1.0),
                    ("r0", "candidates", "pair_recall", "", 0.9, 0.1, 0.0, 0.2, 5, 36, 10, None, None),
                ],
                schema.RECALL.ddl(),
            ),
            "candidate_pairs": table(pairs, schema.CANDIDATE_PAIRS.ddl("bigint")),
        }
    )


@pytest.fixture(scope="module")
def summary(store):
    return collect(store, MANIFEST, pairs=6, next_steps=["one", "two"])


def test_every_pair_is_counted_in_the_band_of_its_cosine(summary):
    bands = summary.cosine_bands
    assert len(bands) == BANDS == 20  # of 0.01 from 0.80 to 1
    assert bands[0].low == 0.8 and bands[-1].high == pytest.approx(1.0)
    for verdict, pairs in (("edges", EDGES), ("refused", REFUSED)):
        expected = [sum(band.low <= c < band.high for _, _, c in pairs) for band in bands]
        assert [getattr(band, verdict) for band in bands] == expected
        assert sum(expected) == len(pairs)


def test_a_cosine_of_one_is_in_the_last_band_and_a_floor_of_one_has_bands_too(spark):
    row = (0, 1, 0, 1, ["hnsw"], 1.0, 1.0, 1.0, 0.0, "same", 9, 9, True, "r1")
    pairs = spark.createDataFrame([row], schema.CANDIDATE_PAIRS.ddl("bigint"))
    assert cosine_bands(example_rows(pairs, 0.8), 0.8)[-1].edges == 1
    assert sum(band.edges for band in cosine_bands(example_rows(pairs, 1.0), 1.0)) == 1


def test_accepted_examples_come_from_different_clusters_and_carry_their_texts(summary):
    assert sorted((p.left_record, p.right_record) for p in summary.found) == sorted((str(a), str(b)) for a, b, _ in EDGES)
    for p in summary.found:
        assert p.is_edge
        assert (p.left_text, p.right_text) == (TEXTS[int(p.left_record)], TEXTS[int(p.right_record)])
        assert p.cluster_size == (6 if p.left_record == "0" else 2)
        assert p.cosine == {str(a): c for a, _, c in EDGES}[p.left_record]


def test_one_pair_of_a_cluster_is_shown_even_where_it_has_many(spark, store):
    of = [(0, 1, 0.9), (2, 3, 0.95), (2, 4, 0.95), (3, 4, 0.97)]
    rows = [(a, b, a, b, ["hnsw"], cosine, 0.5, 1.0, 0.0, "same", 9, 9, True, "r1") for a, b, cosine in of]
    one = [(n, 2 if n in (3, 4) else n, True, 0, 3, "near", 1.0, 1.0, True, "r1") for n in range(5)]
    other = Store(
        {
            **store.tables,
            "candidate_pairs": spark.createDataFrame(rows, schema.CANDIDATE_PAIRS.ddl("bigint")),
            "clusters": spark.createDataFrame(one, schema.CLUSTERS.ddl("bigint")),
        }
    )
    found = collect(other, MANIFEST).found
    assert len(found) == 2 and "0" in {p.left_record for p in found}


def test_refused_examples_begin_with_the_most_similar(store):
    refused = collect(store, MANIFEST, pairs=3).refused
    assert {p.cosine for p in refused} == {0.952, 0.967, 0.982}  # exactly the three at or above 0.95
    assert not any(p.is_edge or p.cluster_size for p in refused)


def test_pairs_whose_words_differ_are_preferred(spark, store):
    rows = [(a, b, a, b, ["hnsw"], 0.9, 1.0 if a < 8 else 0.5, 1.0, 0.0, "same", 9, 9, True, "r1") for a, b, _ in EDGES]
    other = Store({**store.tables, "candidate_pairs": spark.createDataFrame(rows, schema.CANDIDATE_PAIRS.ddl("bigint"))})
    assert {p.left_record for p in collect(other, MANIFEST, pairs=2).found} == {"8", "10"}


def test_the_same_tables_give_the_same_report_whatever_their_partitions(store, summary):
    shuffled = Store({name: df.repartition(3) for name, df in store.tables.items()})
    assert collect(shuffled, MANIFEST, pairs=6, next_steps=["one", "two"]) == summary


def test_the_largest_groups_of_copies_come_first(summary):
    assert summary.copies == (CopyGroup(record="0", text=TEXTS[0], rows=4), CopyGroup(record="1", text=TEXTS[1], rows=2))


def test_clusters_of_two_or_more_are_counted_by_size(summary):
    assert summary.size_bands == (SizeBand(low=2, high=2, clusters=5, records=10), SizeBand(low=5, high=9, clusters=1, records=6))


def test_public_tables_are_named_with_their_places(summary):
    assert [(t.name, t.location) for t in summary.tables] == [(t.name, f"place/{t.name}") for t in schema.TABLES if t.public]


def test_no_pairs_are_asked_for_or_there_are_none(store):
    none = collect(store, MANIFEST, pairs=0)
    assert (none.found, none.refused) == ((), ()) and none.cosine_bands
    empty = Store({**store.tables, "candidate_pairs": store.tables["candidate_pairs"].limit(0)})
    bare = collect(empty, MANIFEST)
    assert (bare.found, bare.refused, bare.cosine_bands) == ((), (), ())


def test_only_the_runs_own_recall_is_taken(summary):
    assert summary.measured == (
        RecallView(metric="cluster_recall", floor=0.8, value=None, low=None, high=None, n=5, pairs=0),
        RecallView(metric="pair_recall", floor=0.9, value=0.9, low=0.8, high=1.0, n=5, pairs=10),
    )


def test_next_steps_and_recall_are_taken_over(summary):
    assert (summary.next_steps, summary.recall, summary.manifest) == (("one", "two"), "pair recall >= 0.90: 0.9, n = 5", MANIFEST)
