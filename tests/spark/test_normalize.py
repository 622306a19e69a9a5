"""Source rows -> RECORDS -> REPRESENTATIVES and MEMBERS."""

from __future__ import annotations

import hashlib
import re
import unicodedata

import pytest
from case_files import CASES, case_rows
from pyspark.sql import functions as F

from spark_dedup.config import ExactConfig, SourceConfig
from spark_dedup.stages.normalize import normalize_records
from spark_dedup.stages.representatives import assign_members, choose_representatives

SOURCE = SourceConfig(table="t", id="id", text="text")


def plain_key(text: str) -> str:
    """The definition of the exact key, as the design states it."""
    return hashlib.sha256(re.sub(r"\s+", " ", unicodedata.normalize("NFKC", text)).strip().encode()).hexdigest()


def source_of(spark, rows):
    df = spark.createDataFrame(rows, "record_id string, text string")
    return df.withColumn("keep", F.struct(F.length("text").alias("k1")))


def records_of(spark, rows, source=SOURCE, **exact):
    return normalize_records(source_of(spark, rows), ExactConfig(**exact), source)


@pytest.mark.parametrize("name", ["o01_whitespace.jsonl", "o02_nfkc.jsonl", "o03_invisible.jsonl"])
def test_keys_from_spark_equal_the_reference_keys(spark, name):
    rows = case_rows(name)
    got = records_of(spark, [(r["id"], r["text"]) for r in rows]).select("record_id", "exact_key", "text").collect()
    assert {r["record_id"]: r["exact_key"] for r in got} == {r["id"]: r["ref_key"] for r in rows}
    assert {r["record_id"]: r["text"] for r in got} == {r["id"]: r["text"] for r in rows}  # the original text, never the normalised one


def test_every_white_space_variant_has_one_key_and_the_control_another(spark):
    rows = case_rows("o01_whitespace.jsonl")
    got = {r["record_id"]: r["exact_key"] for r in records_of(spark, [(r["id"], r["text"]) for r in rows]).collect()}
    keys = {g: {got[r["id"]] for r in rows if r["group"] == g} for g in "AB"}
    assert len(keys["A"]) == 1
    assert not keys["A"] & keys["B"]


def test_texts_without_content_have_no_key_and_are_not_copies_of_each_other(spark):
    rows = [(r["id"], r["text"]) for r in case_rows("o05_empty.jsonl")]
    records = records_of(spark, rows)
    got = {r["record_id"]: r for r in records.collect()}
    empty = {f"e{i}" for i in range(9)}
    assert {i for i, r in got.items() if r["exact_key"] is None} == empty
    assert {i for i, r in got.items() if "no_text" in r["issues"]} == empty
    assert got["e12"]["exact_key"] == got["e13"]["exact_key"]
    assert "invisible_characters" in got["e9"]["issues"]
    members = {r["record_id"]: r["rep_id"] for r in assign_members(records, choose_representatives(records, ExactConfig())).collect()}
    assert len(members) == len(rows)
    assert {i for i, rep in members.items() if rep is None} == empty


def test_nul_and_lone_surrogates_never_cut_or_stop_a_text(spark, tmp_path):
    rows = case_rows("o04_surrogates.jsonl")
    (tmp_path / "in.jsonl").write_text((CASES / "o04_surrogates.jsonl").read_text(encoding="utf-8"), encoding="utf-8")
    source = (
        spark.read.json(str(tmp_path / "in.jsonl"))
        .select(F.col("id").alias("record_id"), "text")
        .withColumn("keep", F.struct(F.lit(1).alias("k1")))
    )
    got = {r["record_id"]: r for r in normalize_records(source, ExactConfig(), SOURCE).collect()}
    assert set(got) == {r["id"] for r in rows}
    assert got["s4"]["exact_key"] == plain_key("value \x00 tail of the sentence")
    assert got["s6"]["exact_key"] == plain_key("value \uffff tail of the sentence")
    assert got["s3"]["exact_key"] == plain_key("value \U0001f600 tail of the sentence")
    assert "invalid_characters" in got["s5"]["issues"]


def test_equal_rows_are_dropped_only_when_asked(spark):
    rows = [("r1", "North"), ("r1", "South"), ("r3", "East"), ("r3", "East")]
    assert records_of(spark, rows).count() == 4
    lenient = SourceConfig(table="t", id="id", text="text", duplicate_ids="drop_equal")
    assert sorted(r["record_id"] for r in records_of(spark, rows, lenient).collect()) == ["r1", "r1", "r3"]


@pytest.mark.parametrize("partitions", [1, 7, 64])
def test_rep_ids_are_dense_in_key_order_whatever_the_partitioning(spark, partitions):
    texts = [f"text {i % 300}" for i in range(500)]
    source = source_of(spark, [(f"id{i:03d}", t) for i, t in enumerate(texts)]).repartition(partitions)
    got = choose_representatives(normalize_records(source, ExactConfig(), SOURCE), ExactConfig()).orderBy("rep_id").collect()
    keys = sorted({plain_key(t) for t in texts})
    assert [(r["rep_id"], r["exact_key"]) for r in got] == list(enumerate(keys))
    size = {plain_key(t): texts.count(t) for t in set(texts)}
    first = {plain_key(t): f"id{texts.index(t):03d}" for t in set(texts)}
    assert all(r["group_size"] == size[r["exact_key"]] and r["record_id"] == first[r["exact_key"]] for r in got)
    assert all(r["in_search"] for r in got)


def test_bypass_keeps_groups_of_copies_out_of_the_search(spark):
    rows = [("a", "same"), ("b", "same"), ("c", "other")]
    records = records_of(spark, rows)
    got = {r["text"]: r["in_search"] for r in choose_representatives(records, ExactConfig(route="bypass")).collect()}
    assert got == {"same": False, "other": True}


def test_lower_case_and_punctuation_options_merge_what_they_say(spark):
    rows = [("a", "Hello, World"), ("b", "hello world"), ("c", "hello, world")]

    def keys(**exact):
        got = {r["record_id"]: r["exact_key"] for r in records_of(spark, rows, **exact).collect()}
        return {frozenset(i for i in got if got[i] == k) for k in got.values()}

    assert keys() == {frozenset("a"), frozenset("b"), frozenset("c")}
    assert keys(lowercase=True) == {frozenset("ac"), frozenset("b")}
    assert keys(lowercase=True, strip_punctuation=True) == {frozenset("abc")}
