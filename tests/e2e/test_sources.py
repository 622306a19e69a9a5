"""Runs over sources of every kind: what is read, what is refused, and by which name."""

from __future__ import annotations

import pytest
from case_files import CASES, case_rows
from jobs import clusters_of, config_of, save, table
from planted import families
from pyspark.sql import functions as F

from spark_dedup import run, schema
from spark_dedup.errors import ConfigError, SourceError, StoreError


@pytest.mark.long
def test_number_ids_keep_their_type_in_every_table(spark, tmp_path):
    rows = [(-5, "one and the same text"), (2**31 - 1, "one and the same text"), (7, "another text altogether")]
    source = save(spark, rows, tmp_path / "source", "id int, text string")
    run(config_of(source, tmp_path / "store", "keep.order_by=[record_id]"), spark)
    for which, column in ((schema.CLUSTERS, "canonical_id"), (schema.MEMBERS, "record_id"), (schema.CANDIDATE_PAIRS, "left_record")):
        assert dict(table(spark, tmp_path / "store", which).dtypes)[column] == "int"
    clusters = clusters_of(spark, tmp_path / "store")
    assert clusters[2**31 - 1]["canonical_id"] == -5
    assert table(spark, tmp_path / "store", schema.REPRESENTATIVES).where("group_size = 2").first()["record_id"] == -5


def test_an_id_of_another_type_is_refused_with_the_cast_to_write(spark, tmp_path):
    source = save(spark, [(1.5, "text")], tmp_path / "source", "id double, text string")
    with pytest.raises(SourceError, match=r"source\.id must be .* got id of type double") as e:
        run(config_of(source, tmp_path / "store"), spark)
    assert e.value.hint == "source.id: cast(id as string)"


@pytest.mark.parametrize(
    ("name", "store"),
    [
        ("`2024_kb`.`select`", "dedup_out"),
        pytest.param("spark_catalog.`2024_kb`.`select`", "spark_catalog.dedup_out", marks=pytest.mark.long),
    ],
)
def test_catalog_names_expressions_and_back_ticks(spark, name, store):
    spark.sql("CREATE SCHEMA IF NOT EXISTS `2024_kb`")
    rows = [("1", "Pears", "cost two coins"), ("2", "Pears", "cost two coins"), ("3", "Figs", "cost one coin")]
    try:
        spark.createDataFrame(rows, "id string, title string, body string").write.format("delta").saveAsTable("`2024_kb`.`select`")
        settings = config_of(name, store, text=r"concat_ws('\n', title, body)", form="table")
        manifest = run(settings, spark)
        assert manifest.source_version == 0
        clusters = {r["record_id"]: r["cluster_size"] for r in spark.table(f"{store}.clusters").collect()}
        assert clusters == {"1": 2, "2": 2, "3": 1}
        assert not run(settings, spark).did_work
    finally:
        for s in ("`2024_kb`", "dedup_out"):
            spark.sql(f"DROP SCHEMA IF EXISTS {s} CASCADE")


@pytest.mark.parametrize("form", ["parquet", pytest.param("json", marks=pytest.mark.long)])
@pytest.mark.slow
def test_files_without_versions_are_watched_by_their_content(spark, tmp_path, form):
    rows = [("1", "Pears cost two coins"), ("2", "Pears  cost two coins"), ("3", "Figs cost one coin")]
    frame = spark.createDataFrame(rows, "id string, text string")
    frame.write.format(form).save(str(tmp_path / "source"))
    settings = config_of(tmp_path / "source", tmp_path / "store", form=form)
    assert run(settings, spark).source_version is None
    assert {i: r["cluster_size"] for i, r in clusters_of(spark, tmp_path / "store").items()} == {"1": 2, "2": 2, "3": 1}
    assert not run(settings, spark).did_work
    frame.limit(1).write.format(form).mode("append").save(str(tmp_path / "source"))
    with pytest.raises(StoreError, match="has changed since"):
        run(settings, spark)


@pytest.mark.slow
def test_column_names_with_dots_blanks_and_back_ticks(spark, tmp_path):
    odd = spark.read.parquet(str(CASES / "o24_names.parquet"))
    odd.write.format("delta").option("delta.columnMapping.mode", "name").save(str(tmp_path / "odd"))
    run(config_of(tmp_path / "odd", tmp_path / "s1", "keep.order_by=['`a``b` desc']", record_id="doc.id", text="doc.text"), spark)
    clusters = clusters_of(spark, tmp_path / "s1")
    assert {i: (r["cluster_size"], r["canonical_id"]) for i, r in clusters.items()} == {"1": (2, "2"), "2": (2, "2"), "3": (1, "3")}
    # the same words as a struct path, where no column has that exact name
    struct = odd.select(F.struct(F.col("`doc.id`").alias("id"), F.col("`doc.text`").alias("text")).alias("doc"))
    struct.write.format("delta").save(str(tmp_path / "struct"))
    run(config_of(tmp_path / "struct", tmp_path / "s2", record_id="doc.id", text="doc.text"), spark)
    assert {i: r["cluster_size"] for i, r in clusters_of(spark, tmp_path / "s2").items()} == {"1": 2, "2": 2, "3": 1}


def test_a_column_that_is_not_there_is_named_with_the_nearest(spark, tmp_path):
    source = save(spark, [("1", "x")], tmp_path / "source")
    with pytest.raises(
        SourceError, match=r"source\.text is neither a column nor an expression over the columns: 'texts'; did you mean 'text'"
    ):
        run(config_of(source, tmp_path / "store", text="texts"), spark)
    with pytest.raises(SourceError, match="can not be read as delta"):
        run(config_of(tmp_path / "nothing", tmp_path / "store"), spark)
    with pytest.raises(SourceError, match="the catalog has no table no_such_table"):
        run(config_of("no_such_table", tmp_path / "store", form="table"), spark)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("merge.rule=cosin > 0.9", r"merge\.rule can not be used: 'cosin > 0\.9'"),
        ("merge.rule=cosine +", r"merge\.rule can not be used"),
        ("merge.rule=cosine + 1", r"merge\.rule must be a condition that is true or false, got 'cosine \+ 1' of type double"),
        (
            "keep.order_by=[centroid_similarity]",
            r"keep\.order_by uses centroid_similarity, which engines of cells have, got search\.engine 'exact'",
        ),
        ("keep.order_by=[centroid_similarity + length(text)]", r"keep\.order_by has an expression that can not be used: .*"),
        ("keep.order_by=[no_such_column desc]", r"keep\.order_by has an expression that can not be used: 'no_such_column desc'"),
    ],
)
def test_expressions_are_checked_before_any_work(spark, tmp_path, setting, message):
    source = save(spark, [("1", "x")], tmp_path / "source")
    with pytest.raises(ConfigError, match=message):
        run(config_of(source, tmp_path / "store", setting), spark)
    assert not (tmp_path / "store").exists()


@pytest.mark.slow
def test_null_and_repeated_ids_are_refused_with_examples_before_heavy_work(spark, tmp_path):
    rows = case_rows("o20_duplicate_ids.jsonl")
    source = save(spark, [(r["id"], r["text"]) for r in rows], tmp_path / "source")
    with pytest.raises(SourceError, match=r"4 rows share 2 ids \(r1, r3\); 1 null id") as e:
        run(config_of(source, tmp_path / "store"), spark)
    assert "drop_equal" in e.value.hint
    assert not (tmp_path / "store" / "_embeddings").exists()
    # lenient: equal rows collapse, the same id with two texts is still an error
    with pytest.raises(SourceError, match=r"2 rows share 1 id \(r1\); 1 null id"):
        run(config_of(source, tmp_path / "store", "source.duplicate_ids=drop_equal"), spark, rebuild=True)
    good = save(spark, [(r["id"], r["text"]) for r in rows if r["id"] in ("r2", "r3")], tmp_path / "good")
    manifest = run(config_of(good, tmp_path / "store2", "source.duplicate_ids=drop_equal"), spark)
    assert manifest.stage("records").counts["dropped_equal"] == 1
    assert sorted(clusters_of(spark, tmp_path / "store2")) == ["r2", "r3"]


@pytest.mark.slow
def test_a_changed_source_is_refused_and_a_rebuild_keeps_the_embeddings(spark, tmp_path):
    rows, _ = families(4)
    source = save(spark, rows, tmp_path / "source")
    settings = config_of(source, tmp_path / "store")
    first = run(settings, spark)
    assert (first.source_version, first.stage("embeddings").counts["embedded"]) == (0, 16)
    spark.createDataFrame([("new", "a text that nobody has seen before")], "id string, text string").write.format("delta").mode(
        "append"
    ).save(source)
    with pytest.raises(StoreError, match="changed since .* version 0 then, version 1 now"):
        run(settings, spark)
    # the old version is still there to be read
    pinned = config_of(source, tmp_path / "store", "source.version=0")
    with pytest.raises(StoreError, match=r"source\.version is None there and 0 now"):
        run(pinned, spark)
    second = run(settings, spark, rebuild=True)
    assert second.run_id != first.run_id
    counts = second.stage("embeddings").counts
    assert (counts["embedded"], counts["reused"]) == (1, 16)
    assert len(clusters_of(spark, tmp_path / "store")) == 21
