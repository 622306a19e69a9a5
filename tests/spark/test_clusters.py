"""Pairs -> edges, and components -> clusters, on rows written by hand."""

from __future__ import annotations

import pytest
from pyspark.sql import functions as F

from spark_dedup import schema
from spark_dedup.config import MergeConfig
from spark_dedup.evaluation.cohesion import cohesion
from spark_dedup.stages.clusters import expand_clusters, list_set_aside, split_components
from spark_dedup.stages.score import accepted_edges, judge_pairs

# Five texts: A (copies 1, 2), B (3), C (4), D (5); record 6 has no text. A-B-C are one component, B-C was never measured.
RECORDS = [(1, "A", "kA"), (2, "A", "kA"), (3, "Bbb", "kB"), (4, "C", "kC"), (5, "D", "kD"), (6, None, None)]
REPS = [(0, "kA", 1, "A", 2, True), (1, "kB", 3, "Bbb", 1, True), (2, "kC", 4, "C", 1, True), (3, "kD", 5, "D", 1, True)]
COMPONENTS = [(0, 0, 0), (1, 0, 0), (2, 0, 0), (3, 3, 3)]
PAIRS = [
    (0, 1, ["hnsw"], 0.97, 0.8, 0.9, 0.0, "same", 9, 9),
    (0, 2, ["hnsw"], 0.95, 0.7, 0.9, 0.5, "differ", 9, 9),
    (1, 3, ["hnsw"], 0.9, 0.1, 0.2, None, "same", 9, 9),
]


@pytest.fixture
def tables(spark):
    records = spark.createDataFrame(RECORDS, "record_id bigint, text string, exact_key string")
    records = records.withColumn(
        "issues", F.when(F.col("text").isNull(), F.array(F.lit("no_text"))).otherwise(F.array().cast("array<string>"))
    )
    records = records.withColumn("keep", F.struct(F.length("text").alias("k1"), F.col("record_id").alias("k2")))
    representatives = spark.createDataFrame(REPS, schema.REPRESENTATIVES.ddl("bigint"))
    pairs = judge_pairs(spark.createDataFrame(PAIRS, schema.SCORED_PAIRS.ddl()), representatives, MergeConfig(), "r1")
    return {
        "records": records,
        "representatives": representatives,
        "pairs": pairs,
        "components": spark.createDataFrame(COMPONENTS, schema.COMPONENTS.ddl()),
        "problems": spark.createDataFrame([("kD", "nan")], "exact_key string, problem string"),
    }


def clusters_of(tables, order=("keep.k1 desc", "keep.k2 asc"), similarities=None):
    ways = {"desc": F.desc, "asc": F.asc, "last": F.asc_nulls_last}
    columns = [ways[way](name) for name, way in map(str.split, order)]
    known = [tables[name] for name in ("records", "representatives", "problems", "components", "pairs")]
    out = expand_clusters(*known, columns, "r1", similarities)
    return {r["record_id"]: r.asDict() for r in out.collect()}


def test_the_merge_rule_decides_and_null_refuses(tables):
    got = {(r["left_id"], r["right_id"]): r for r in tables["pairs"].collect()}
    assert {pair: r["is_edge"] for pair, r in got.items()} == {(0, 1): True, (0, 2): False, (1, 3): False}
    assert (got[(0, 1)]["left_record"], got[(0, 1)]["right_record"]) == (1, 3)
    assert [tuple(r) for r in accepted_edges(tables["pairs"]).collect()] == [(0, 1)]


def test_every_record_is_in_clusters_once_with_the_canonical_of_its_cluster(tables):
    got = clusters_of(tables)
    assert sorted(got) == [1, 2, 3, 4, 5, 6]
    # the longest text of the component is record 3
    assert {i: r["canonical_id"] for i, r in got.items()} == {1: 3, 2: 3, 3: 3, 4: 3, 5: 5, 6: 6}
    assert {i: r["cluster_id"] for i, r in got.items()} == {1: 0, 2: 0, 3: 0, 4: 0, 5: 3, 6: None}
    assert {i: r["cluster_size"] for i, r in got.items()} == {1: 4, 2: 4, 3: 4, 4: 4, 5: 1, 6: 1}
    assert [i for i, r in got.items() if r["is_canonical"]] == [3, 5, 6]


def test_match_kind_and_scores_are_against_the_canonical_record(tables):
    got = clusters_of(tables)
    assert {i: r["match_kind"] for i, r in got.items()} == {1: "near", 2: "near", 3: "near", 4: "near", 5: "bad_embedding", 6: "no_text"}
    scores = {i: (r["cosine"], r["jaccard"]) for i, r in got.items()}
    # 1 and 2 were measured against 3 (pair 0-1); 4 never was (no pair 1-2)
    assert scores == {1: (0.97, 0.8), 2: (0.97, 0.8), 3: (1.0, 1.0), 4: (None, None), 5: (1.0, 1.0), 6: (None, None)}
    # 4 came by its pair with 1 and 2, though the rule refuses that one in this table: no accepted pair joins it to 3
    assert [i for i, r in got.items() if not r["direct"]] == [4]


def test_cohesion_tells_the_weakest_pair_and_what_only_a_chain_joins(spark):
    """A chain of texts 0-1-2 with text 0 kept and copied once, a pair 3-4 kept by 4, a group of copies, and a text alone."""
    rows = [
        # record, rep, cluster, canonical, size, cosine and Jaccard with the canonical one, direct
        (10, 0, 0, 10, 4, 1.0, 1.0, True),
        (11, 0, 0, 10, 4, 1.0, 1.0, True),
        (12, 1, 0, 10, 4, 0.95, 0.7, True),
        (13, 2, 0, 10, 4, 0.88, 0.2, False),
        (14, 3, 3, 15, 2, 0.9, 0.6, True),
        (15, 4, 3, 15, 2, 1.0, 1.0, True),
        (16, 5, 5, 16, 2, 1.0, 1.0, True),
        (17, 5, 5, 16, 2, 1.0, 1.0, True),
        (18, 6, 6, 18, 1, 1.0, 1.0, True),
    ]
    clusters = spark.createDataFrame(
        [(i, c, i == k, k, n, "near", cos, jac, direct, "r1") for i, _, c, k, n, cos, jac, direct in rows], schema.CLUSTERS.ddl("bigint")
    )
    members = spark.createDataFrame([(i, f"k{rep}", rep) for i, rep, *_ in rows], schema.MEMBERS.ddl("bigint"))
    scored = [(0, 1, 0.95, 0.7, True), (1, 2, 0.93, 0.65, True), (0, 2, 0.88, 0.2, False), (3, 4, 0.9, 0.6, True), (2, 3, 0.86, 0.1, False)]
    pairs = spark.createDataFrame(
        [(a, b, a, b, ["exact"], cos, jac, 1.0, 0.0, "same", 9, 9, edge, "r1") for a, b, cos, jac, edge in scored],
        schema.CANDIDATE_PAIRS.ddl("bigint"),
    )
    found = [r.asDict() for r in cohesion(clusters, members, pairs).orderBy("cluster_id").collect()]
    assert found == [
        {"cluster_id": 0, "rows": 4, "texts": 3, "edges": 2, "weakest_cosine": 0.93, "weakest_jaccard": 0.65, "least_cosine": 0.88,
         "least_jaccard": 0.2, "indirect": 1},
        {"cluster_id": 3, "rows": 2, "texts": 2, "edges": 1, "weakest_cosine": 0.9, "weakest_jaccard": 0.6, "least_cosine": 0.9,
         "least_jaccard": 0.6, "indirect": 0},
    ]  # fmt: skip


def test_ties_of_the_keep_policy_are_broken_by_the_record_id(tables):
    got = clusters_of({**tables, "records": tables["records"].withColumn("keep", F.struct(F.lit(1).alias("k1")))}, ("keep.k1 desc",))
    assert {r["canonical_id"] for i, r in got.items() if i <= 4} == {1}
    assert {i: got[i]["match_kind"] for i in (1, 2, 3)} == {1: "exact", 2: "exact", 3: "near"}
    assert (got[2]["cosine"], got[2]["jaccard"]) == (1.0, 1.0)


def test_the_rule_of_semdedup_keeps_the_text_farthest_from_the_centroid(spark, tables):
    # Of A (0.9), B (0.7) and C (0.8) the one with the lowest similarity is B, record 3; by the highest it is A, records 1 and 2.
    near = spark.createDataFrame([(0, 0.9), (1, 0.7), (2, 0.8), (3, 1.0)], "rep_id bigint, centroid_similarity double")
    order = ("centroid_similarity last", "keep.k1 desc")
    assert {r["canonical_id"] for i, r in clusters_of(tables, order, near).items() if i <= 4} == {3}
    nearest = clusters_of(tables, ("centroid_similarity desc", "keep.k2 desc"), near)
    assert {r["canonical_id"] for i, r in nearest.items() if i <= 4} == {2}
    # A text without a vector is not the farthest.
    assert {r["canonical_id"] for i, r in clusters_of(tables, order, near.where("rep_id <> 1")).items() if i <= 4} == {4}


def test_ten_copies_list_all_nine_others_with_their_score(spark):
    rows = [(100 + i, "same", "k1") for i in range(10)] + [(7, "other", "k2")]
    records = spark.createDataFrame(rows, "record_id bigint, text string, exact_key string")
    records = records.withColumn("issues", F.array().cast("array<string>")).withColumn("keep", F.struct(F.col("record_id").alias("k1")))
    representatives = spark.createDataFrame(
        [(0, "k1", 100, "same", 10, True), (1, "k2", 7, "other", 1, True)], schema.REPRESENTATIVES.ddl("bigint")
    )
    none = spark.createDataFrame([], "exact_key string, problem string")
    components = spark.createDataFrame([(0, 0, 0), (1, 1, 1)], schema.COMPONENTS.ddl())
    pairs = spark.createDataFrame([], schema.CANDIDATE_PAIRS.ddl("bigint"))
    out = expand_clusters(records, representatives, none, components, pairs, [F.desc("keep.k1")], "r1")
    got = {r["record_id"]: r for r in out.collect()}
    assert [i for i, r in got.items() if r["is_canonical"]] and {i for i, r in got.items() if r["is_canonical"]} == {
        109,
        7,
    }  # largest id first
    removed = [r for r in got.values() if not r["is_canonical"]]
    assert len(removed) == 9
    assert {(r["canonical_id"], r["cosine"], r["match_kind"]) for r in removed} == {(109, 1.0, "exact")}
    assert got[7]["match_kind"] == "single"


def test_rows_set_aside_name_every_record_of_the_key_and_the_reason(spark, tables):
    rows = [("kA", "m", None, None, 300, True), ("kD", "m", None, "nan", None, False), ("kB", "m", None, None, 9, False)]
    embeddings = spark.createDataFrame(rows, schema.EMBEDDINGS.ddl())
    got = {(r["record_id"], r["reason"], r["detail"]) for r in list_set_aside(tables["records"], embeddings, "r1").collect()}
    assert got == {(6, "no_text", None), (1, "cut_text", "300 tokens"), (2, "cut_text", "300 tokens"), (5, "bad_embedding", "nan")}


@pytest.mark.parametrize("tiles", [1, 7])
def test_components_are_cut_around_the_text_of_the_record_that_is_kept_first(spark, tiles):
    """A chain 0-1-2-3 beside a pair 4-5, a loop that is alone (6), and a text without any edge (7)."""
    # text 2 has the longest record among its two copies, so it comes first in the chain and takes 1 and 3; 0 is left alone
    lengths = [(10, 0, 5), (11, 1, 7), (12, 2, 3), (13, 2, 9), (14, 3, 8), (15, 4, 1), (16, 5, 1), (17, 6, 1), (18, 7, 1)]
    records = spark.createDataFrame(
        [(i, f"k{rep}", (length,)) for i, rep, length in lengths], "record_id bigint, exact_key string, keep struct<k1: bigint>"
    )
    representatives = spark.createDataFrame([(rep, f"k{rep}") for rep in range(8)], "rep_id bigint, exact_key string")
    labels = spark.createDataFrame([(0, 0), (1, 0), (2, 0), (3, 0), (4, 4), (5, 4), (6, 6), (7, 7)], schema.LABELS.ddl())
    edges = spark.createDataFrame([(2, 3), (0, 1), (4, 5), (1, 2), (6, 6)], schema.EDGES.ddl())
    out = split_components(labels, edges, records.repartition(3), representatives, [F.desc("keep.k1")], tiles=tiles)
    assert sorted(map(tuple, out.collect())) == [
        (0, 0, 0),
        (1, 0, 1),
        (2, 0, 1),
        (3, 0, 1),
        (4, 4, 4),
        (5, 4, 4),
        (6, 6, 6),
        (7, 7, 7),
    ]
