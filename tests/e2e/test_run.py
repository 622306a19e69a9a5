"""Whole runs over small sources with known answers, from table to tables."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from jobs import check_invariants, clusters_of, config_of, content, partition_of, planted_config, save, table
from planted import families

from spark_dedup import run, schema
from spark_dedup.errors import ConfigError, StoreError
from spark_dedup.kernels.cells import Cells
from spark_dedup.store import TableStore
from spark_dedup.sweep import point, sweep

NOT_BY_DEFAULT = {"_sketches", "_proposed_pairs", "_contained_pairs", "_block_keys", "_blocks", "_block_pairs", "_neighbour_pairs"}


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
def test_a_sweep_measures_every_value_against_the_same_truth_and_keeps_the_figures(spark, planted, monkeypatch):
    settings, searched = planted_config(planted["source"], planted["store"]), []

    def noting(job, own, search, name):
        searched.append(getattr(search, name))
        return point(job, own, search, name)

    monkeypatch.setattr("spark_dedup.sweep.point", noting)
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
    assert searched == [1, 1, 2000, "cells", "cells", "exact"]  # the first of each sweep twice, as a session may be cold
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


@pytest.mark.slow
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
    wanted = {t: content(spark, planted["store"], t) for t in (schema.CANDIDATE_PAIRS, schema.CLUSTERS, schema.MEMBERS)}
    for name, adaptive, partitions, placement in (("a", "false", 1, "partitioned"), ("b", "true", 33, "broadcast")):
        spark_conf("spark.sql.adaptive.enabled", adaptive)
        spark_conf("spark.sql.shuffle.partitions", "7")
        spark_conf("spark.sql.execution.arrow.maxRecordsPerBatch", "37")
        df = spark.createDataFrame(rows, "id string, text string").repartition(partitions)
        df.write.format("delta").save(str(tmp_path / name))
        run(config_of(tmp_path / name, tmp_path / f"{name}-store", f"search.placement={placement}", engine="hnsw"), spark)
        assert {t: content(spark, tmp_path / f"{name}-store", t) for t in wanted} == wanted


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
def test_bypass_states_how_many_pairs_it_can_not_see(spark, tmp_path):
    rows, _ = families(5)
    source = save(spark, rows, tmp_path / "source")
    manifest = run(config_of(source, tmp_path / "store", "exact.route=bypass"), spark)
    # 20 keys, 5 of them groups of copies: pairs among 20 minus pairs among 15
    assert manifest.stage("representatives").caps_hit == {"pairs_unseen": 190 - 105}
    assert manifest.stage("embeddings").counts["embedded"] == 15
    clusters = clusters_of(spark, tmp_path / "store")
    assert {frozenset(("o0000", "c0000")), frozenset(("a0000",))} <= partition_of(clusters)
