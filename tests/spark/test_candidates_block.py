"""Blocking on Spark against brute force, what it costs, and which of its pairs are kept."""

from __future__ import annotations

import itertools
import random
import re

import numpy as np
import pytest
from case_files import case_rows

from spark_dedup.config import BlockingConfig, ExactConfig, MinHashConfig
from spark_dedup.errors import SourceError
from spark_dedup.evaluation.blocks import Block, key_costs, too_large
from spark_dedup.kernels.vectors import to_binary
from spark_dedup.schema import BLOCK_KEYS, BLOCK_PAIRS, BLOCKS, PROPOSED_PAIRS, REPRESENTATIVES, VECTORS
from spark_dedup.source import block_value
from spark_dedup.stages.candidates_block import block_keys, block_pairs, block_sizes
from spark_dedup.stages.candidates_lsh import sketch_texts
from spark_dedup.stages.score import Floors, verify_pairs

pytestmark = pytest.mark.slow


def tables(spark, rows: list[tuple[str, list[str | None]]]):
    """REPRESENTATIVES and RECORDS of texts with the values of their own keys; equal texts are one representative."""
    ids = {text: i for i, text in enumerate(dict.fromkeys(text for text, _ in rows))}
    representatives = [(i, f"{i:064x}", str(i), text, 1, True) for text, i in ids.items()]
    records = [(f"{ids[text]:064x}", values) for text, values in rows]
    return spark.createDataFrame(representatives, REPRESENTATIVES.ddl()), spark.createDataFrame(
        records, "exact_key string, blocks array<string>"
    )


def collected(df) -> list[tuple]:
    return sorted(map(tuple, df.collect()))


def test_a_key_that_is_null_or_empty_is_equal_to_no_other(spark):
    from pyspark.sql import Observation

    cases = case_rows("o19_blocking.jsonl")
    texts = list(dict.fromkeys(case["text"] for case in cases))
    config, noted = BlockingConfig(keys=("block: block",)), Observation("keys")
    keys = block_keys(*tables(spark, [(case["text"], [case["block"]]) for case in cases]), ExactConfig(), config, noted)
    ids = {case["id"]: texts.index(case["text"]) for case in cases}
    got = collected(keys.select("rep_id", "key", "label"))
    # y1 and q1 are one text, which has the keys of both; DE and de are two keys
    assert ids["y1"] == ids["q1"]
    assert got == sorted([(ids["y1"], "block", "DE"), (ids["y1"], "block", "de"), (ids["y2"], "block", "de")])
    assert noted.get == {"texts": 36, "has_block": 2}
    assert collected(block_pairs(keys, config, partitions=2)) == [(ids["y1"], ids["y2"], ["block:block"])]


TEXTS = [f"{'word ' * (n % 9)}{'tail ' * (n % 4)}{n % 3}" for n in range(60)]


def brute_force(rows: list[tuple[str, list[str | None]]]) -> list[tuple]:
    texts = list(dict.fromkeys(text for text, _ in rows))
    values = {text: {value for t, (value,) in rows if t == text and value} for text in texts}
    found = []
    for (i, a), (j, b) in itertools.combinations(enumerate(texts), 2):
        methods = ["block:first_tokens"] * (re.findall(r"\w+", a.lower()) == re.findall(r"\w+", b.lower()))
        methods += ["block:length_band"] * (100 * max(len(a), len(b)) <= 105 * min(len(a), len(b)))
        methods += ["block:own"] * bool(values[a] & values[b])
        if methods:
            found.append((i, j, methods))
    return found


def test_pairs_are_those_of_brute_force_for_any_number_of_partitions(spark):
    rng = random.Random(2)
    rows = [(rng.choice(TEXTS), [rng.choice([None, "", "a", "b", "c"])]) for _ in range(80)]
    # these two differ in case and punctuation alone, so their words are equal; their lengths are not
    rows += [("Five words are right here", [None]), ("five words are, right here!", [None])]
    wanted = brute_force(rows)
    assert {method for row in wanted for method in row[2]} == {"block:first_tokens", "block:length_band", "block:own"}
    config = BlockingConfig(keys=("length_band", "own: own", "first_tokens"))
    representatives, records = tables(spark, rows)
    keys = block_keys(representatives.repartition(3), records.repartition(3), ExactConfig(), config).cache()
    sizes = collected(block_sizes(keys, config, partitions=1))
    by_key = {key: sum(row[4] for row in sizes if row[0] == key) for key in config.expressions}
    assert by_key["length_band"] == sum("block:length_band" in row[2] for row in wanted)
    for partitions in (1, 7, 64):
        assert collected(block_pairs(keys, config, partitions=partitions)) == wanted
    assert collected(block_sizes(keys, config, partitions=7)) == sizes
    keys.unpersist()


def test_the_cost_of_each_key_is_known_with_its_largest_blocks(spark):
    rows = [("big", b, i, 100, 2**32 - 1, f"block {b}") for b in range(12) for i in range(b + 2)]
    config = BlockingConfig(keys=("big: x", "none: y"), max_block=11)
    sizes = block_sizes(spark.createDataFrame(rows, BLOCK_KEYS.ddl()), config, partitions=2)
    big, none = key_costs(sizes, config, {"big": 0, "none": 7})
    # blocks of 2 to 13 texts; 12 texts under a bound of 11 make 66 - 1 comparisons, 13 texts 78 - 1 - 2
    assert (big.blocks, big.large, big.comparisons) == (12, 2, sum(n * (n - 1) // 2 for n in range(2, 14)))
    assert big.comparisons - big.compared == 1 + 3
    assert big.largest == tuple(Block(f"block {n - 2}", n, n * (n - 1) // 2) for n in range(13, 3, -1))
    assert none.lines() == ["key none: 0 comparisons in 0 blocks; 7 texts without it"]
    assert big.lines()[:2] == [
        "key big: 364 comparisons in 12 blocks, 360 under blocking.max_block",
        "  'block 11' 13 texts, 78 comparisons",
    ]
    told = str(too_large([big], config))
    assert "blocking.max_block allows 11 texts in a block, key big has 2 larger: 'block 11' 13 texts" in told
    assert "'block 9'" not in told
    assert "blocking.large: split" in told


def test_a_pair_is_kept_by_either_floor(spark):
    base = [f"w{i}" for i in range(40)]
    texts = [
        " ".join(base),
        " ".join([*base, "x"]),  # Jaccard 36/37 with the first
        " ".join(reversed(base)),  # 0
        " ".join(base[:20]),  # 16/36 < 0.5
        " ".join([*base, "y"]),  # as the second, without a vector
    ]
    angles = {0: 0.0, 1: 1.5, 2: 0.1, 3: 1.5}
    vectors = to_binary(np.array([[np.cos(a), np.sin(a)] for a in angles.values()], dtype=np.float32)).to_pylist()
    representatives, _ = tables(spark, [(text, []) for text in texts])
    sketches = sketch_texts(representatives, ExactConfig(), MinHashConfig())
    assert {tuple(row) for row in sketches.select("shingles", "bands").collect()} == {(None, None)}, "no MinHash without MinHash"
    proposed = [(i, j, [f"block:k{i}"]) for i, j in itertools.combinations(range(5), 2)]
    searched = spark.createDataFrame([(i, i, v, b"") for i, v in zip(angles, vectors, strict=True)], VECTORS.ddl())
    pairs = spark.createDataFrame(proposed, BLOCK_PAIRS.ddl())
    kept = {tuple(row)[:2]: row for row in verify_pairs(pairs, sketches, searched, Floors(jaccard=0.5, cosine=0.85), tiles=2).collect()}
    # by words 0-1, 0-4 and 1-4; by vectors 0-2 and 1-3; 0-3, 2-3, ... by neither
    assert set(kept) == {(0, 1), (0, 4), (1, 4), (0, 2), (1, 3)}
    assert (kept[0, 2]["jaccard"], kept[0, 2]["methods"]) == (0.0, ["block:k0"])
    assert kept[0, 2]["cosine"] == pytest.approx(np.cos(0.1), abs=1e-6)
    assert kept[0, 1]["jaccard"] == 36 / 37
    assert (kept[0, 4]["cosine"], kept[1, 4]["cosine"]) == (None, None)
    by_words = verify_pairs(pairs, sketches, searched, Floors(jaccard=0.5), tiles=1).collect()
    assert {tuple(row)[:2] for row in by_words} == {(0, 1), (0, 4), (1, 4)}


def test_a_key_is_a_column_or_an_expression_of_one_value(spark):
    named = spark.createDataFrame([(1, "DE", ["a"], "x")], "`a.b` int, country string, tags array<string>, text string")
    for expression, value in (("a.b", "1"), ("lower(country)", "de"), ("tags[0]", "a"), ("nullif(country, 'DE')", None)):
        assert named.select(block_value(named, "k", expression)).first()[0] == value
    with pytest.raises(SourceError, match=r"blocking\.keys k must be a single value, got tags of type array<string>"):
        block_value(named, "k", "tags")
    with pytest.raises(SourceError, match=r"blocking\.keys k is neither a column nor an expression .*'contry'; did you mean 'country'\?"):
        block_value(named, "k", "contry")


def test_tables_are_what_they_are_declared_to_be(spark):
    config = BlockingConfig(keys=("title_trigrams", "first_tokens", "length_band", "own: own"))
    representatives, records = tables(spark, [("a text", ["v"]), ("***", [None])])
    keys = block_keys(representatives, records, ExactConfig(), config)
    for frame, table in (
        (keys, BLOCK_KEYS),
        (block_sizes(keys, config, partitions=1), BLOCKS),
        (block_pairs(keys, config, partitions=1), BLOCK_PAIRS),
    ):
        assert dict(frame.dtypes) == {c.name: c.type for c in table.columns}
    assert PROPOSED_PAIRS.names == BLOCK_PAIRS.names
    # a text without a letter has no title; its length and its only word it has
    assert collected(keys.where("rep_id = 1").select("key", "reach")) == [
        ("first_tokens", 2**32 - 1),
        ("length_band", 0),
        ("length_band", 3),
    ]
