"""VECTORS: who takes part, which vectors are equal, features instead of text."""

from __future__ import annotations

import struct

from spark_dedup.config import ExactConfig
from spark_dedup.kernels.features import features
from spark_dedup.schema import EMBEDDINGS, REPRESENTATIVES, VECTORS
from spark_dedup.stages.vectors import search_vectors


def vector(*values: float) -> bytes:
    return struct.pack(f"<{len(values)}f", *values)


def test_usable_vectors_of_searched_texts_with_the_least_id_of_equal_ones(spark):
    import pyarrow as pa

    texts = {1: "one", 2: "two 2", 5: "five", 7: "seven", 8: "not searched", 9: "no vector"}
    reps = [(i, f"k{i}", f"r{i}", text, 1, i != 8) for i, text in texts.items()]
    vectors = {1: vector(1, 0), 2: vector(0, 1), 5: vector(1, 0), 7: vector(1, -0.0), 8: vector(1, 0), 9: None}
    embeddings = [(f"k{i}", "m", v, None if v else "nan", None, None) for i, v in vectors.items()]
    got = search_vectors(
        spark.createDataFrame(reps, REPRESENTATIVES.ddl("string")), spark.createDataFrame(embeddings, EMBEDDINGS.ddl()), ExactConfig()
    )
    assert got.schema.simpleString() == spark.createDataFrame([], VECTORS.ddl()).schema.simpleString()
    rows = sorted((r["rep_id"], r["head_id"], bytes(r["vector"]), bytes(r["features"])) for r in got.collect())
    heads = {1: 1, 2: 2, 5: 1, 7: 7}  # 0.0 and -0.0 are different bits
    want = features(pa.array([texts[i] for i in heads])).to_pylist()
    assert rows == [(i, head, vectors[i], f) for (i, head), f in zip(heads.items(), want, strict=True)]


def test_features_are_the_same_however_few_bytes_are_taken_at_once(spark, monkeypatch):
    from spark_dedup.stages import vectors as stage

    monkeypatch.setattr(stage, "SLICE_BYTES", 5)  # shipped to the workers with the function: every text is a slice of its own
    test_usable_vectors_of_searched_texts_with_the_least_id_of_equal_ones(spark)


def test_features_follow_the_settings_of_the_exact_key(spark):
    reps = [(1, "a", "r1", "Ten Green Bottles, hanging!", 1, True), (2, "b", "r2", "ten green bottles hanging", 1, True)]
    embeddings = [(k, "m", vector(1, 0), None, None, None) for k in "ab"]
    frames = (spark.createDataFrame(reps, REPRESENTATIVES.ddl("string")), spark.createDataFrame(embeddings, EMBEDDINGS.ddl()))
    plain = search_vectors(*frames, ExactConfig()).select("features").distinct().collect()
    folded = search_vectors(*frames, ExactConfig(lowercase=True, strip_punctuation=True)).select("features").distinct().collect()
    assert (len(plain), len(folded)) == (2, 1)
