"""The recall of pairs that share their words, against the exact Jaccard of all pairs and by hand."""

from __future__ import annotations

import pytest
from alike import jaccards, texts_of

from spark_dedup.config import ExactConfig, MinHashConfig
from spark_dedup.evaluation.shared_words import alike_pairs, quote_shared, shared_recall, sketch_sample
from spark_dedup.kernels.minhash import bands_for, s_curve
from spark_dedup.schema import REPRESENTATIVES, SCORED_PAIRS
from spark_dedup.stages.candidates_lsh import sketch_texts

pytestmark = pytest.mark.slow

TEXTS = texts_of(3)


def sketched(spark, config):
    rows = [(i, f"{i:064x}", str(i), text, 1, True) for i, text in enumerate(TEXTS)]
    return sketch_texts(spark.createDataFrame(rows, REPRESENTATIVES.ddl()).repartition(3), ExactConfig(), config)


@pytest.mark.parametrize("unit", ["word", "char"])
def test_every_alike_pair_of_a_sampled_text_is_in_the_truth(spark, unit):
    config = MinHashConfig(enabled=True, unit=unit)
    sketches = sketched(spark, config).cache()
    sample = sketch_sample(sketches, 40, len(TEXTS), seed=2)
    ids = {r["rep_id"] for r in sample.collect()}
    assert len(ids) == 40
    truth = {pair: j for pair, j in jaccards(TEXTS, unit).items() if j >= 0.8}
    want = {(q, o): j for pair, j in truth.items() for q, o in (pair, pair[::-1]) if q in ids}
    found = alike_pairs(sample, sketches.repartition(7), config).collect()
    sketches.unpersist()
    assert len(found) == len(want) > 20
    assert {(r["query_id"], r["other_id"]): r["jaccard"] for r in found} == want
    bands, rows = bands_for(0.8, config.permutations, config.band_recall)
    assert [r["design"] for r in found] == [s_curve(r["jaccard"], bands, rows) for r in found]


def measured(spark, found, rows=4, texts=4):
    """Three pairs that are alike, 0-1, 0-2 and 1-2, seen from all four texts; what was found is given with its methods."""
    chances = {(0, 1): 0.5, (0, 2): 0.75, (1, 2): 1.0}
    lists = [(q, o, 0.9, chance) for pair, chance in chances.items() for q, o in (pair, pair[::-1])]
    pairs = spark.createDataFrame(lists, "query_id bigint, other_id bigint, jaccard double, design double")
    scored = [(*pair, methods, None, 0.9, 0.9, 0.0, "same", 9, 9) for pair, methods in found.items()]
    out = shared_recall(pairs, spark.createDataFrame(scored, SCORED_PAIRS.ddl()), 0.8, rows=rows, texts=texts, run_id="r")
    assert {(row.floor, row.n, row.texts, row.pairs) for row in out} == {(0.8, rows, texts, 6)}
    return {row.metric: row.value for row in out}, quote_shared(out)


def test_recall_that_is_1_and_0_and_worked_by_hand(spark):
    design = {"shared_recall_design": 0.75}  # (0.5 + 0.75 + 1) / 3
    everything = {(0, 1): ["lsh"], (0, 2): ["exact", "lsh"], (1, 2): ["lsh"]}
    assert measured(spark, everything) == (
        {"shared_recall": 1.0, "shared_recall_bands": 1.0, "loss_bands": 0.0, **design},
        "of pairs at Jaccard >= 0.80: 1, all 4 texts",
    )
    figures, _ = measured(spark, {(2, 3): ["lsh"], (0, 3): ["exact"]})
    assert figures == {"shared_recall": 0.0, "shared_recall_bands": 0.0, "loss_bands": 1.0, **design}
    # one of three by its buckets, one by its vectors alone, one not at all
    figures, told = measured(spark, {(0, 1): ["lsh"], (1, 2): ["cells"]}, rows=4, texts=400)
    assert figures == pytest.approx({"shared_recall": 2 / 3, "shared_recall_bands": 1 / 3, "loss_bands": 1 / 3, **design})
    assert told.startswith("of pairs at Jaccard >= 0.80: 0.6666 [")
    assert told.endswith(", n = 4")


def test_without_alike_pairs_nothing_is_claimed(spark):
    config = MinHashConfig(enabled=True)
    sketches = sketched(spark, config).where("rep_id % 8 = 0")
    pairs = alike_pairs(sketch_sample(sketches, 5, 21), sketches, config)
    out = shared_recall(pairs, spark.createDataFrame([], SCORED_PAIRS.ddl()), 0.8, rows=5, texts=21, run_id="r")
    assert {row.value for row in out} == {None}
    # 1 - 0.05^(1/5), rounded up
    assert quote_shared(out) == "of pairs at Jaccard >= 0.80: no such pair, n = 5; at most 0.4508 of the texts have one"
