"""LSH on Spark against the exact Jaccard of all pairs, and one row a pair."""

from __future__ import annotations

import numpy as np
import pytest
from alike import jaccards, texts_of

from spark_dedup.config import ExactConfig, MinHashConfig
from spark_dedup.kernels.minhash import bands_for, s_curve
from spark_dedup.kernels.vectors import to_binary
from spark_dedup.schema import REPRESENTATIVES, SCORED_PAIRS, SKETCHES, VECTORS
from spark_dedup.stages.candidates_lsh import lsh_pairs, sketch_texts
from spark_dedup.stages.score import Floors, one_row_a_pair, verify_pairs

pytestmark = pytest.mark.slow


def search(spark, texts: list[str], config: MinHashConfig, partitions: int, without_vector: int | None = None):
    """Proposed pairs, kept pairs and what was noted; every text has the vector (1, 0) but one."""
    from pyspark.sql import Observation

    noted = Observation("buckets")
    rows = [(i, f"{i:064x}", str(i), text, 1, True) for i, text in enumerate(texts)]
    representatives = spark.createDataFrame(rows, REPRESENTATIVES.ddl()).repartition(partitions)
    sketches = sketch_texts(representatives, ExactConfig(), config).cache()
    (vector,) = to_binary(np.array([[1, 0]], dtype=np.float32)).to_pylist()
    searched = [(i, i, vector, b"") for i in range(len(texts)) if i != without_vector]
    vectors = spark.createDataFrame(searched, VECTORS.ddl())
    proposed = lsh_pairs(sketches, config, partitions=partitions, noted=noted).cache()
    floors = Floors(jaccard=config.threshold, unit=config.unit, ngram=config.ngram)
    kept = verify_pairs(proposed, sketches, vectors, floors, tiles=partitions).collect()
    ids = sorted(tuple(row)[:2] for row in proposed.collect())
    sketches.unpersist()
    proposed.unpersist()
    return ids, sorted(map(tuple, kept)), noted.get


@pytest.mark.parametrize("unit", ["word", "char"])
def test_pairs_are_those_of_exact_jaccard_but_for_what_the_s_curve_allows(spark, unit):
    texts, config = texts_of(1), MinHashConfig(enabled=True, unit=unit, band_recall=0.9)
    proposed, kept, noted = search(spark, texts, config, partitions=3, without_vector=9)
    truth = jaccards(texts, unit)
    true = {pair: j for pair, j in truth.items() if j >= config.threshold}
    assert len(true) > 40
    found = {row[:2] for row in kept}
    assert found <= true.keys(), "a shared bucket is not enough"
    assert found == true.keys() & set(proposed)
    # Each true pair is found with the probability of the S-curve at its Jaccard. The pairs of a family hang together, so at worst
    # each family of at most 28 pairs is found or lost as one: variance <= 28 * the sum of p(1-p). Four deviations.
    p = s_curve(np.array(list(true.values())), *bands_for(config.threshold, config.permutations, config.band_recall))
    assert len(found) >= p.sum() - 4 * (28 * (p * (1 - p)).sum()) ** 0.5
    assert len(found) >= 0.9 * len(true)
    assert len(proposed) < len(truth) / 10
    words = jaccards(texts, "word")
    for left, right, methods, cosine, jaccard, *_ in kept:
        assert (methods, jaccard) == (["lsh"], words[left, right])
        assert cosine == (None if 9 in (left, right) else 1.0)
    assert noted == {"buckets_split": 0, "bucket_pairs_left_out": 0}
    if unit == "word":
        assert search(spark, texts, config, partitions=1, without_vector=9)[:2] == (proposed, kept)


def test_a_bucket_over_the_bound_is_split_and_counted(spark):
    # ten texts of one shingle set share every bucket, so every bucket ends as a star: nine pairs for 45
    texts = [f"one two three four five six{mark}" for mark in ("", *".,;:!?-_+"[:-2], "...", "!!")]
    config = MinHashConfig(enabled=True, max_bucket=4)
    bands, _ = bands_for(config.threshold, config.permutations, config.band_recall)
    proposed, kept, noted = search(spark, texts, config, partitions=2)
    assert proposed == [(0, i) for i in range(1, 10)] == [row[:2] for row in kept]
    assert noted == {"buckets_split": bands, "bucket_pairs_left_out": bands * (45 - 9)}


def test_a_pair_of_two_methods_is_one_row(spark):
    scores = (0.9, 0.8, 0.7, 0.0, "same", 8, 9)
    by_vectors = spark.createDataFrame([(1, 2, ["hnsw"], *scores), (1, 3, ["hnsw"], *scores)], SCORED_PAIRS.ddl())
    by_words = spark.createDataFrame([(1, 2, ["lsh"], *scores), (4, 5, ["lsh"], None, *scores[1:])], SCORED_PAIRS.ddl())
    got = sorted(map(tuple, one_row_a_pair(by_words, by_vectors).collect()))
    assert got == [(1, 2, ["hnsw", "lsh"], *scores), (1, 3, ["hnsw"], *scores), (4, 5, ["lsh"], None, *scores[1:])]


def test_texts_that_take_no_part_have_no_sketch(spark):
    rows = [(0, "k", "r", "a text of five words", 2, False), (1, "l", "s", "another text of five words", 1, True)]
    sketches = sketch_texts(spark.createDataFrame(rows, REPRESENTATIVES.ddl()), ExactConfig(), MinHashConfig(enabled=True))
    assert sketches.schema.simpleString() == spark.createDataFrame([], SKETCHES.ddl()).schema.simpleString()
    assert [row["rep_id"] for row in sketches.collect()] == [1]
