"""All pairs on Spark: against whole float64 products, and the same table however the work is laid out."""

from __future__ import annotations

import itertools

import numpy as np
import pyarrow as pa
import pytest

from spark_dedup.config import SearchConfig
from spark_dedup.kernels.features import features
from spark_dedup.kernels.tiles import copies, tile_count
from spark_dedup.kernels.vectors import cosines, to_binary
from spark_dedup.schema import SCORED_PAIRS, VECTORS
from spark_dedup.stages.candidates_exact import exact_candidates, ring_tiles

TEXTS = [f"passage {i % 11} says much the same as any other passage number {i % 7}" for i in range(77)]


def unit(x: np.ndarray) -> np.ndarray:
    return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)


def crowd(seed: int, n: int, d: int = 32, centres: int = 20, noise: float = 1.1) -> np.ndarray:
    """Overlapping groups whose members have cosines on both sides of 0.85."""
    rng = np.random.default_rng(seed)
    return unit(3 * rng.normal(size=(centres, d))[rng.integers(0, centres, n)] + noise * rng.normal(size=(n, d)))


def vectors_frame(spark, x: np.ndarray):
    """VECTORS of texts 0 .. n - 1, and the number of distinct vectors."""
    heads: dict[bytes, int] = {}
    blobs = features(pa.array(TEXTS)).to_pylist()
    rows = []
    for i, row in enumerate(to_binary(x).to_pylist()):
        rows.append((i, heads.setdefault(row, i), row, blobs[i % len(TEXTS)]))
    return spark.createDataFrame(rows, VECTORS.ddl()), len(heads)


def search(vectors, heads: int, config: SearchConfig | None = None, partitions: int = 2):
    """Pairs as sorted tuples, and what was noted."""
    from pyspark.sql import Observation

    noted = Observation("pairs")
    pairs = exact_candidates(vectors, heads, config or SearchConfig(engine="exact"), partitions=partitions, noted=noted)
    assert pairs.schema.simpleString() == vectors.sparkSession.createDataFrame([], SCORED_PAIRS.ddl()).schema.simpleString()
    return sorted(map(tuple, pairs.collect())), noted.get


def exact(x: np.ndarray, floor: float = 0.85) -> list[tuple[int, int]]:
    y = x.astype(np.float64)
    y /= np.linalg.norm(y, axis=1, keepdims=True)
    return [(int(i), int(j)) for i, j in np.argwhere(np.triu(y @ y.T, 1) >= floor)]


def test_every_pair_is_found_whatever_the_layout(spark, spark_conf):
    x = np.concatenate([crowd(1, 700), crowd(1, 700)[[3, 3, 3, 90]]])
    vectors, heads = vectors_frame(spark, x)
    pairs, noted = search(vectors, heads, partitions=1)
    want = exact(x)
    assert [p[:2] for p in pairs] == want
    assert len(want) > 1000
    left, right = (np.array([p[i] for p in pairs]) for i in (0, 1))
    assert [p[3] for p in pairs] == cosines(x[left], x[right]).tolist()
    assert all(p[2] == ["exact"] for p in pairs)
    assert noted == {"pairs": len(want), "asked_again": 0, "saturated": 0, "copies_not_paired": 0}
    assert search(vectors.repartition(7).orderBy("features", "vector"), heads, partitions=7) == (pairs, noted)
    spark_conf("spark.sql.adaptive.enabled", "false")
    spark_conf("spark.sql.execution.arrow.maxRecordsPerBatch", "16")
    assert search(vectors, heads, partitions=64) == (pairs, noted)


@pytest.mark.parametrize(
    ("x", "pairs", "copies_not_paired"),
    [
        (np.empty((0, 4)), 0, 0),
        (np.ones((1, 4)), 0, 0),
        (np.array([[3.0, 4], [4, 3]]), 1, 0),  # 24/25
        (np.array([[3.0, 4], [-4, 3]]), 0, 0),
        (np.ones((5, 4)), 10, 0),
        (np.ones((10_000, 4)), 9_999, 10_000 * 9_999 // 2 - 9_999),
    ],
)
def test_small_and_degenerate_tables(spark, x, pairs, copies_not_paired):
    vectors, heads = vectors_frame(spark, unit(x))
    found, noted = search(vectors, heads, partitions=4)
    assert len({p[:2] for p in found}) == len(found) == pairs
    assert noted == {"pairs": pairs, "asked_again": 0, "saturated": 0, "copies_not_paired": copies_not_paired}


@pytest.mark.parametrize("groups", [1, 3, 4, 5, 6, 9])
def test_two_groups_meet_in_one_tile_and_each_has_one_where_it_is_first_beside_its_neighbour(spark, groups):
    sent = ring_tiles(spark.range(groups).withColumnRenamed("id", "group"), groups).select("tile", "second", "group").collect()
    tiles = {}
    for tile, second, group in sent:
        assert (tile, second) not in tiles
        tiles[tile, second] = group
    assert {tile for tile, _ in tiles} == set(range(tile_count(groups)))
    met = [tuple(sorted((tiles[tile, False], tiles[tile, True]))) for tile in range(tile_count(groups)) if groups > 1]
    assert sorted(met) == list(itertools.combinations(range(groups), 2))
    assert sorted(tiles[tile, False] for tile in range(groups)) == list(range(groups))  # where its own rows are compared
    assert len(sent) == groups * copies(groups)
