"""The truth against a float64 product of all vectors, and recall worked by hand."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from case_files import case_rows

from spark_dedup.config import SearchConfig
from spark_dedup.engines import ENGINES, SelfJoin
from spark_dedup.errors import StoreError
from spark_dedup.evaluation import truth as truth_module
from spark_dedup.evaluation.recall import Limits, RecallRow, recall_rows, shard_reach
from spark_dedup.evaluation.truth import (
    budgeted_sample,
    is_truth_of,
    product_rate,
    sample_rows,
    true_pairs,
    truth_cost,
    truth_fingerprint,
    truth_seconds,
)
from spark_dedup.kernels.cells import Cells
from spark_dedup.kernels.features import NUMBERS, decode, features, pair_scores
from spark_dedup.kernels.vectors import cosines, to_binary
from spark_dedup.schema import COMPONENTS, INDEX, RECALL, SCORED_PAIRS, TRUTH, VECTORS
from spark_dedup.stages.candidates_hnsw import hnsw_candidates
from spark_dedup.stages.index_hnsw import build_index, coarse_cells

pytestmark = pytest.mark.slow

TEXTS = [f"passage {i % 11} says much the same as any other passage number {i % 7}" for i in range(77)]
RULE = "substitution <= 0.02 and numbers in ('same', 'contained')"
SCORES = ("pair_recall", "pair_recall_rule", "cluster_recall", "query_recall_mean", "query_recall_worst_decile")
LOSSES = ("loss_routing", "loss_cap", "loss_border", "loss_graph")


def unit(x: np.ndarray) -> np.ndarray:
    return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)


def planted() -> np.ndarray:
    """Unrelated vectors, a family, near pairs, and twelve copies of one vector."""
    rng = np.random.default_rng(5)
    x = rng.normal(size=(90, 16))
    family, near = x[:1] + 0.2 * rng.normal(size=(30, 16)), x[1:21] + 0.2 * rng.normal(size=(20, 16))
    return unit(np.concatenate([x, family, near, np.repeat(x[30:31], 11, axis=0)]))


X = planted()


@pytest.fixture(scope="module")
def vectors(spark):
    """VECTORS of X; text i has the id 10 i."""
    blobs = features(pa.array(TEXTS)).to_pylist()
    heads: dict[bytes, int] = {}
    rows = [(10 * i, heads.setdefault(v, 10 * i), v, blobs[i % len(TEXTS)]) for i, v in enumerate(to_binary(X).to_pylist())]
    return spark.createDataFrame(rows, VECTORS.ddl()).localCheckpoint()


def tuples(df) -> list[tuple]:
    return sorted(map(tuple, df.collect()), key=repr)


def exact(floor: float) -> dict[tuple[int, int], float]:
    """Ordered pairs of different texts at or above the floor."""
    left, right = (a.ravel() for a in np.indices((len(X), len(X))))
    cosine = cosines(X[left], X[right])
    return {(int(a), int(b)): c for a, b, c in zip(left, right, cosine, strict=True) if a != b and c >= floor}


def test_a_sample_has_the_wanted_size_and_depends_on_ids_and_seed_alone(vectors):
    def ids(df):
        return sorted(row[0] for row in df.select("rep_id").collect())

    seven = ids(sample_rows(vectors.repartition(7), 40, len(X)))
    assert len(set(seven)) == 40
    assert ids(sample_rows(vectors.coalesce(1), 40, len(X))) == seven
    assert set(ids(sample_rows(vectors, 12, len(X)))) < set(seven)
    assert ids(sample_rows(vectors, 40, len(X), seed=1)) != seven
    assert ids(sample_rows(vectors, len(X) + 5, len(X))) == [10 * i for i in range(len(X))]


def test_the_truth_is_that_of_brute_force_for_any_layout(vectors, spark_conf, monkeypatch):
    sample = sample_rows(vectors, 50, len(X)).localCheckpoint()
    drawn = {row[0] for row in sample.select("rep_id").collect()}
    pairs = exact(0.8)
    lists = sorted(c for (a, _), c in pairs.items() if 10 * a in drawn)
    floor = lists[len(lists) // 3]  # the cosine of a pair of the sample, which counts
    assert 0.8 < floor < 1
    wanted = {pair: c for pair, c in pairs.items() if c >= floor}
    assert sum(c == 1.0 for c in wanted.values()) == 12 * 11  # copies, both orders
    made_for = truth_fingerprint("vectors", floor, 50, 0)
    got = true_pairs(sample, vectors, floor, made_for).localCheckpoint()
    marks = got.where("other_id is null").collect()
    assert {row[0] for row in marks} == drawn
    assert len(marks) == 50
    want = {(10 * a, 10 * b): c for (a, b), c in wanted.items() if 10 * a in drawn}
    found = [row for row in got.collect() if row["other_id"] is not None]
    assert len(found) == len(want) > 100
    assert {(row["query_id"], row["other_id"]): row["cosine"] for row in found} == want
    assert min(want.values()) == floor
    block = decode(features(pa.array(TEXTS)))
    left, right = (np.array([row[i] // 10 % len(TEXTS) for row in found]) for i in (0, 1))
    scores = pair_scores(block, left, block, right)
    assert [row["jaccard"] for row in found] == scores.jaccard.tolist()
    assert [row["containment"] for row in found] == scores.containment.tolist()
    assert [row["substitution"] for row in found] == scores.substitution.tolist()
    assert [row["numbers"] for row in found] == [NUMBERS[code] for code in scores.numbers]
    assert [row["most_words"] for row in found] == scores.most_words.tolist()
    assert {row["fingerprint"] for row in found} == {made_for}

    assert is_truth_of(got, made_for, 50)
    assert not is_truth_of(got, made_for, 51)
    assert not is_truth_of(got, truth_fingerprint("vectors", 0.85, 50, 0), 50)

    spark_conf("spark.sql.execution.arrow.maxRecordsPerBatch", "16")
    monkeypatch.setattr(truth_module, "BLOCK_BYTES", 20 * len(features(pa.array(TEXTS[:1])).to_pylist()[0]))
    for partitions in (1, 7):
        assert tuples(true_pairs(sample, vectors.repartition(3), floor, made_for, partitions=partitions)) == tuples(got)


def truth_frame(spark, lists: dict[int, list[tuple]], made_for: str = "f"):
    """TRUTH of lists of (other, cosine, whether the merge rule holds)."""
    rows = []
    for query, others in lists.items():
        rows.append((query, None, None, None, None, None, None, None, None, made_for))
        for other, cosine, holds in others:
            rows.append((query, other, cosine, 0.5, 0.5, 0.0 if holds else 0.5, "same", 9, 9, made_for))
    return spark.createDataFrame(rows, TRUTH.ddl())


def pairs_frame(spark, pairs: list[tuple[int, int]], methods: tuple[str, ...] = ("hnsw", "lsh")):
    rows = [(a, b, list(methods), 0.99, 1.0, 1.0, 0.0, "same", 9, 9) for a, b in pairs]
    return spark.createDataFrame(rows, SCORED_PAIRS.ddl())


def measure(spark, truth, pairs, components, searched, limits=None, **more):
    labels = spark.createDataFrame([(text, label, label) for text, label in components.items()], COMPONENTS.ddl())
    options = {"rule": RULE, "floor": 0.85, "run_id": "r", "texts": 10, **more}
    return {(row.metric, row.floor): row for row in recall_rows(truth, pairs, labels, searched, limits or Limits(), **options)}


@pytest.fixture(scope="module")
def few(spark):
    """VECTORS of texts 1 to 4 and 6; text 5 was kept out of the search. Text 3 lies elsewhere."""
    x = unit(np.array([[1, 0], [1, 0.1], [0, 1], [1, 0.2], [1, 0.3]]))
    rows = [(i, i, v, None) for i, v in zip((1, 2, 3, 4, 6), to_binary(x).to_pylist(), strict=True)]
    return spark.createDataFrame(rows, VECTORS.ddl())


LISTS = {
    1: [(2, 0.99, True), (3, 0.92, True), (4, 0.90, False), (5, 0.86, True)],
    2: [(1, 0.99, True), (3, 0.95, True), (6, 0.88, False)],
    3: [(1, 0.92, True), (2, 0.95, True)],
    7: [],
}
TWO_PARTS = shard_reach(Cells(np.eye(2, dtype=np.float32), np.arange(2, dtype=np.int32)), 0.1)


@pytest.mark.parametrize("partitions", [1, 7])
def test_recall_worked_by_hand(spark, few, partitions):
    # Stored, each by two methods: 1-2, 1-4, and 5-6, which is not in the lists. Of the nine entries 1-2, 1-4 and 2-1 are found.
    truth = truth_frame(spark, LISTS).repartition(partitions)
    pairs = pairs_frame(spark, [(1, 2), (1, 4), (5, 6)]).repartition(partitions)
    components = {1: 1, 2: 1, 3: 1, 4: 4, 5: 5, 6: 5, 7: 7}
    limits = Limits(neighbours=2, copies=9, reach=TWO_PARTS)
    got = measure(spark, truth, pairs, components, few, limits, setting="search.ef_search=32", seconds=1.5)
    assert {key: (row.value, row.pairs) for key, row in got.items()} == {
        ("pair_recall", 0.85): (3 / 9, 9),
        ("pair_recall", 0.90): (3 / 7, 7),  # 1-4 lies on the threshold
        ("pair_recall", 0.95): (2 / 4, 4),  # 2-3 and 3-2 lie on the threshold
        ("pair_recall_rule", 0.85): (2 / 7, 7),
        ("cluster_recall", 0.85): (6 / 7, 7),  # 1, 2 and 3 are together, 5 is not
        ("query_recall_mean", 0.85): (pytest.approx((2 / 4 + 1 / 3 + 0) / 3), 3),
        ("query_recall_worst_decile", 0.85): (0.0, 3),
        ("loss_routing", 0.85): (1 / 9, 9),  # 1-5
        ("loss_cap", 0.85): (2 / 9, 9),  # 1-3 and 3-1: the list of 1 holds two pairs
        ("loss_border", 0.85): (2 / 9, 9),  # 2-3 and 3-2
        ("loss_graph", 0.85): (1 / 9, 9),  # 2-6
    }
    for row in got.values():
        assert row[:2] + row[3:4] == ("r", "candidates", "search.ef_search=32")
        assert (row.n, row.texts, row.unseen, row.seconds) == (4, 10, None, 1.5)
        assert 0 <= row.low <= row.value <= row.high <= 1
    assert got["pair_recall", 0.85].low < 3 / 9 < got["pair_recall", 0.85].high
    assert spark.createDataFrame(list(got.values()), RECALL.ddl()).count() == len(got)


def test_what_blocking_keys_bring_together(spark, few):
    truth, components = truth_frame(spark, LISTS), {i: i for i in range(1, 8)}
    by_both, by_vectors = pairs_frame(spark, [(1, 2), (1, 4)], ("block:title", "hnsw")), pairs_frame(spark, [(1, 3)])
    # Of nine entries 1-2, 2-1 and 1-4 share a key; 1-3 and 3-1 were found by vectors alone, and the others not at all.
    got = measure(spark, truth, by_both.union(by_vectors), components, few, keys=True)
    assert [(got[name, 0.85].value, got[name, 0.85].pairs) for name in ("pair_recall", "key_recall", "loss_keys")] == [
        (5 / 9, 9),
        (3 / 9, 9),
        (6 / 9, 9),
    ]
    none = measure(spark, truth, by_vectors, components, few, keys=True)
    assert (none["key_recall", 0.85].value, none["loss_keys", 0.85].value) == (0.0, 1.0)
    everything = pairs_frame(spark, [(1, 2), (1, 3), (1, 4), (1, 5), (2, 3), (2, 6)], ("block:a", "block:b"))
    every = measure(spark, truth, everything, components, few, keys=True)
    assert (every["key_recall", 0.85].value, every["loss_keys", 0.85].value) == (1.0, 0.0)
    assert ("key_recall", 0.85) not in measure(spark, truth, by_both, components, few)


def test_columns_are_those_of_the_table():
    assert list(RecallRow._fields) == RECALL.names


def test_all_found_none_found_and_none_there(spark, few):
    truth = truth_frame(spark, LISTS)
    everything = pairs_frame(spark, [(1, 2), (1, 3), (1, 4), (1, 5), (2, 3), (2, 6)])
    full = measure(spark, truth, everything, dict.fromkeys(range(1, 8), 1), few, Limits(), texts=4)
    nothing = measure(spark, truth, pairs_frame(spark, [(3, 4)]), {i: i for i in range(1, 8)}, few, Limits(), texts=4)
    for metric in SCORES:
        assert full[metric, 0.85][5:8] == (1.0, 1.0, 1.0)
        assert nothing[metric, 0.85][5:8] == (0.0, 0.0, 0.0)
    assert all(full[loss, 0.85].value == 0 for loss in LOSSES)
    assert [nothing[loss, 0.85].value for loss in LOSSES] == [1 / 9, 0.0, 0.0, 8 / 9]  # no limits known: all but routing is the graph's
    none = measure(spark, truth_frame(spark, {1: [], 2: []}), everything, {1: 1}, few, floor=0.92, texts=100)
    assert sorted({row.floor for row in none.values()}) == [0.92, 0.95]
    assert {row[5:8] for row in none.values()} == {(None, None, None)}
    assert {(row.n, row.pairs, row.unseen) for row in none.values()} == {(2, 0, 1 - 0.05**0.5)}


def test_recall_counts_unordered_pairs_once_and_never_exceeds_1(spark, few):
    def rows(name):
        return [tuple("abcde".index(row[end]) + 1 for end in ("id_a", "id_b")) for row in case_rows(name)]

    true = {tuple(sorted(pair)) for pair in rows("o28_truth_pairs.jsonl")}
    assert true == {(1, 2), (2, 3), (4, 5)}
    lists = {i: [(a + b - i, 0.9, True) for a, b in sorted(true) if i in (a, b)] for i in range(1, 6)}
    found = rows("o28_found_pairs.jsonl")
    assert sorted(found) == [(1, 1), (1, 2), (2, 1), (4, 5), (4, 5)]
    got = measure(spark, truth_frame(spark, lists), pairs_frame(spark, found), {i: i for i in range(1, 6)}, few)
    # a-b and d-e were found, b-c was not: two pairs of three, each counted from both of its ends
    assert (got["pair_recall", 0.85].value, got["pair_recall", 0.85].pairs) == (2 / 3, 6)
    assert got["query_recall_mean", 0.85].value == pytest.approx((1 + 1 / 2 + 0 + 1 + 1) / 5)


@pytest.mark.parametrize(
    ("engine", "setting", "values"),
    [("hnsw", "ef_search", (4, 16, 256)), ("hnsw", "margin", (0.0, 0.1, 2.0)), ("cells", "margin", (0.0, 0.1, 2.0))],
)
def test_searching_wider_never_lowers_the_recall_of_the_same_truth(spark, engine, setting, values):
    # A graph of few links, built in haste, of blurred families that shards and cells cut: every narrow search loses something.
    rng = np.random.default_rng(11)
    x = unit(rng.normal(size=(60, 24))[rng.integers(0, 60, 1500)] + 0.3 * rng.normal(size=(1500, 24)))
    blob = features(pa.array(TEXTS[:1])).to_pylist()[0]
    vectors = spark.createDataFrame([(i, i, v, blob) for i, v in enumerate(to_binary(x).to_pylist())], VECTORS.ddl()).localCheckpoint()
    truth = true_pairs(vectors, vectors, 0.9, "f").localCheckpoint()
    shards = 1 if setting == "ef_search" else 4
    usual = SearchConfig(engine=engine, neighbours=4, links=2, ef_construction=8, shards=shards, cells=16, floor=0.9)
    train, build = ENGINES[engine].indexed
    cells = Cells.from_rows(train(vectors, len(x), usual).collect())

    def recall(value):
        config = replace(usual, **{setting: value})
        index = spark.createDataFrame(build(vectors, cells, config).collect(), INDEX.ddl())
        pairs = ENGINES[engine].join(SelfJoin(vectors, index, cells, config, len(x), 2, None))
        return measure(spark, truth, pairs, {i: i for i in range(len(x))}, vectors, floor=0.9, texts=100 * len(x))["pair_recall", 0.9]

    rows = [recall(value) for value in values]
    assert rows[0].value < rows[-1].value
    for narrow, wide in itertools.pairwise(rows):
        assert wide.value >= narrow.low
    if setting == "margin" and engine == "cells":
        assert rows[-1].value == 1.0


def test_what_can_not_be_known_has_no_value_and_a_mixed_truth_is_refused(spark, few):
    got = measure(spark, truth_frame(spark, LISTS), pairs_frame(spark, [(1, 2)]), {i: i for i in range(1, 8)}, few, routing=False)
    assert got["loss_routing", 0.85][5:8] == (None, None, None)
    mixed = truth_frame(spark, LISTS).union(truth_frame(spark, {8: []}, "g"))
    with pytest.raises(StoreError, match="made for 2 different samples"):
        measure(spark, mixed, pairs_frame(spark, [(1, 2)]), {1: 1}, few)


def test_losses_of_a_real_search_have_the_causes_that_were_made_for_them(spark, vectors):
    # 31 vectors of the family with lists of 8, 12 copies with at most 4 paired, shards that are visited without margin.
    config = SearchConfig(neighbours=8, max_neighbours=8, max_copies=4, shards=3, margin=0.0, floor=0.8)
    cells = Cells.from_rows(coarse_cells(vectors, 140, config).collect())
    index = spark.createDataFrame(build_index(vectors, cells, config).collect(), INDEX.ddl())
    pairs = hnsw_candidates(vectors, vectors, index, cells, config, partitions=2).localCheckpoint()
    truth = true_pairs(vectors, vectors, 0.8, "f").localCheckpoint()
    components = {10 * i: 10 * i for i in range(len(X))}

    def run(limits):
        return measure(spark, truth, pairs, components, vectors, limits, floor=0.8, texts=len(X))

    got = run(Limits(neighbours=8, copies=4, reach=shard_reach(cells, 0.0)))
    true = exact(0.8)
    stored = {(row[0] // 10, row[1] // 10) for row in pairs.collect()}
    found = [pair for pair in true if tuple(sorted(pair)) in stored]
    assert got["pair_recall", 0.8].value == len(found) / len(true) < 0.9
    assert sum(got[loss, 0.8].value for loss in LOSSES) == pytest.approx(1 - got["pair_recall", 0.8].value, abs=1e-12)
    # Of 12 copies the first is paired with all others: 11 of 66 pairs are stored.
    assert got["loss_cap", 0.8].value >= 2 * 55 / len(true)
    home, visits = cells.home(X), cells.visits(X, 0.0)
    beyond = [(a, b) for a, b in true if not visits[a, home[b]] and not visits[b, home[a]]]
    assert not set(beyond) & set(found)
    assert 0 < got["loss_border", 0.8].value <= len(beyond) / len(true)
    without = run(Limits(reach=shard_reach(cells, 0.0)))
    assert without["loss_cap", 0.8].value == 0
    assert without["loss_border", 0.8].value == len(beyond) / len(true)


def test_the_sample_is_what_the_budget_pays(spark):
    # 100 s at 10 % are 10 s. One pass: 60,000 rows of 1,000 bytes at 100 MB/s take 0.6 s, so 9.4 s are left. A text costs
    # 2 * 60,000 * 100 / 12e6 = 1 s of products and 1,000 / 2^26 of a pass; with 40,000 neighbours 1.2 s more.
    base = {"dimension": 100, "row_bytes": 1000.0, "neighbours": 0.0, "rate": 12e6, "tasks": 1}
    cost = truth_cost(60_000, **base)
    assert budgeted_sample(10**6, 60_000, cost, 10.0) == 9
    assert budgeted_sample(5, 60_000, cost, 10.0) == 5
    assert budgeted_sample(10**6, 60_000, truth_cost(60_000, **{**base, "neighbours": 40_000.0}), 10.0) == 4  # 9.4 / 2.2
    assert budgeted_sample(10**6, 60_000, cost, 1e6) == 60_000
    assert budgeted_sample(10**6, 60_000, cost, 0.5) == 0
    assert budgeted_sample(10**6, 60_000, cost, 1e6, most=10_001.3) == 10_001
    assert product_rate(spark, 64, 2) > 1e8


def test_the_truth_gets_what_the_figures_leave_of_the_share_and_a_third_of_it_at_least():
    assert truth_seconds(0.1, 100.0, 0.0) == 10.0
    assert truth_seconds(0.1, 100.0, 4.0) == 6.0
    assert truth_seconds(0.1, 100.0, 9.0) == truth_seconds(0.1, 100.0, 50.0) == pytest.approx(10 / 3)
    assert truth_seconds(0.1, 0.0, 1.0) == 0.0
