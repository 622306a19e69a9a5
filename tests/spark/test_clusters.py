"""Pairs -> edges, and components -> clusters, on rows written by hand."""

from __future__ import annotations

import pytest
from pyspark.sql import functions as F

from spark_dedup import schema
from spark_dedup.config import MergeConfig
from spark_dedup.stages.clusters import expand_clusters, list_set_aside
from spark_dedup.stages.score import accepted_edges, judge_pairs

# Five texts: A (copies 1, 2), B (3), C (4), D (5); record 6 has no text. A-B-C are one component, B-C was never measured.
RECORDS = [(1, "A", "kA"), (2, "A", "kA"), (3, "Bbb", "kB"), (4, "C", "kC"), (5, "D", "kD"), (6, None, None)]
REPS = [(0, "kA", 1, "A", 2, True), (1, "kB", 3, "Bbb", 1, True), (2, "kC", 4, "C", 1, True), (3, "kD", 5, "D", 1, True)]
COMPONENTS = [(0, 0), (1, 0), (2, 0), (3, 3)]
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


def clusters_of(tables, descending=(True, False)):
    out = expand_clusters(
        tables["records"], tables["representatives"], tables["problems"], tables["components"], tables["pairs"], descending, "r1"
    )
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


def test_ties_of_the_keep_policy_are_broken_by_the_record_id(tables):
    got = clusters_of({**tables, "records": tables["records"].withColumn("keep", F.struct(F.lit(1).alias("k1")))}, (True,))
    assert {r["canonical_id"] for i, r in got.items() if i <= 4} == {1}
    assert {i: got[i]["match_kind"] for i in (1, 2, 3)} == {1: "exact", 2: "exact", 3: "near"}
    assert (got[2]["cosine"], got[2]["jaccard"]) == (1.0, 1.0)


def test_ten_copies_list_all_nine_others_with_their_score(spark):
    rows = [(100 + i, "same", "k1") for i in range(10)] + [(7, "other", "k2")]
    records = spark.createDataFrame(rows, "record_id bigint, text string, exact_key string")
    records = records.withColumn("issues", F.array().cast("array<string>")).withColumn("keep", F.struct(F.col("record_id").alias("k1")))
    representatives = spark.createDataFrame(
        [(0, "k1", 100, "same", 10, True), (1, "k2", 7, "other", 1, True)], schema.REPRESENTATIVES.ddl("bigint")
    )
    none = spark.createDataFrame([], "exact_key string, problem string")
    components = spark.createDataFrame([(0, 0), (1, 1)], schema.COMPONENTS.ddl())
    pairs = spark.createDataFrame([], schema.CANDIDATE_PAIRS.ddl("bigint"))
    got = {r["record_id"]: r for r in expand_clusters(records, representatives, none, components, pairs, (True,), "r1").collect()}
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
