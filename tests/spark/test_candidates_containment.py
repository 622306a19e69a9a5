"""Texts inside longer ones on Spark, against Python's sets of all pairs."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
from alike import WORDS, shingles
from pyspark.sql import Observation

from spark_dedup.config import ExactConfig, MinHashConfig
from spark_dedup.kernels.vectors import to_binary
from spark_dedup.schema import REPRESENTATIVES, VECTORS
from spark_dedup.stages.candidates_containment import LEFT_OUT, contained_pairs
from spark_dedup.stages.candidates_lsh import sketch_texts
from spark_dedup.stages.score import Floors, verify_pairs

pytestmark = pytest.mark.slow


def search(spark, texts: list[str], config: MinHashConfig, partitions: int):
    """Proposed pairs, kept pairs with their containment, and what was noted."""
    noted = Observation("containment")
    rows = [(i, f"{i:064x}", str(i), text, 1, True) for i, text in enumerate(texts)]
    representatives = spark.createDataFrame(rows, REPRESENTATIVES.ddl()).repartition(partitions)
    sketches = sketch_texts(representatives, ExactConfig(), config).cache()
    (vector,) = to_binary(np.array([[1, 0]], dtype=np.float32)).to_pylist()
    vectors = spark.createDataFrame([(i, i, vector, b"") for i in range(len(texts))], VECTORS.ddl())
    proposed = contained_pairs(sketches, config, partitions=partitions, noted=noted).cache()
    floors = Floors(containment=config.containment, unit=config.unit, ngram=config.ngram)
    kept = sorted(map(tuple, verify_pairs(proposed, sketches, vectors, floors, tiles=partitions).collect()))
    ids = sorted(tuple(row)[:2] for row in proposed.collect())
    sketches.unpersist()
    proposed.unpersist()
    return ids, kept, noted.get


@pytest.mark.parametrize("unit", ["word", "char"])
def test_every_excerpt_is_found_and_nothing_else_is_kept(spark, unit):
    rng = random.Random(3)
    texts = []
    for _ in range(15):
        words = rng.choices(WORDS, k=150)
        texts.append(" ".join(words))
        for size, changed in ((12, 0), (40, 1), (40, 3), (90, 2)):
            first = rng.randrange(150 - size)
            part = words[first : first + size]
            for place in rng.sample(range(size), changed):
                part[place] = rng.choice(WORDS)
            texts.append(" ".join(part))
    config = MinHashConfig(enabled=True, unit=unit, containment=0.7)
    sets = [shingles(text, unit) for text in texts]
    shared = {(i, j): len(sets[i] & sets[j]) / min(len(sets[i]), len(sets[j])) for i, j in itertools.combinations(range(len(sets)), 2)}
    true = {pair for pair, containment in shared.items() if containment >= 0.7}
    assert len(true) > 30
    proposed, kept, noted = search(spark, texts, config, partitions=3)
    assert {row[:2] for row in kept} == true
    assert len(proposed) < len(shared) / 2
    assert noted == {LEFT_OUT: 0}
    assert {tuple(row[2]) for row in kept} == {("containment",)}
    if unit == "word":
        assert {row[:2]: row[5] for row in kept} == {pair: shared[pair] for pair in true}
        assert search(spark, texts, config, partitions=1)[:2] == (proposed, kept)


def test_a_phrase_of_many_texts_is_bounded_and_counted(spark):
    phrase = "this is the phrase that every text has"
    texts = [phrase, *(f"{phrase} {' '.join(WORDS[i : i + 4 + i])}" for i in range(0, 60, 10))]
    config = MinHashConfig(enabled=True, containment=1.0, max_bucket=4)
    proposed, kept, noted = search(spark, texts, config, partitions=2)
    assert proposed == [(0, 1), (0, 2), (0, 3)] == [row[:2] for row in kept]
    assert noted == {LEFT_OUT: 3}
