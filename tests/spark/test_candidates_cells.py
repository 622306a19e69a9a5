"""The self-join by cells on Spark: against whole float64 products, and the same table however the work is laid out."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from case_files import CASES

from spark_dedup.config import SearchConfig
from spark_dedup.index_files import index_files
from spark_dedup.kernels.cells import Cells
from spark_dedup.kernels.features import NUMBERS, decode, features, pair_scores
from spark_dedup.kernels.vectors import cosines, to_binary
from spark_dedup.schema import INDEX, SCORED_PAIRS, VECTORS
from spark_dedup.shards import index_manifest
from spark_dedup.stages.candidates_cells import cells_candidates, cells_self_join, whole_vectors
from spark_dedup.stages.index_cells import build_cell_index, centroid_similarities, fine_cells

TEXTS = [f"passage {i % 11} says much the same as any other passage number {i % 7}" for i in range(77)]
QUIET = {"asked_again": 0, "saturated": 0, "copies_not_paired": 0, "split_cells": 0}


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


def indexed(vectors, heads: int, config: SearchConfig):
    """Cells and stored index."""
    cells = Cells.from_rows(fine_cells(vectors, heads, config).collect())
    return cells, vectors.sparkSession.createDataFrame(build_cell_index(vectors, cells, config).collect(), INDEX.ddl())


def search(vectors, cells: Cells, index, config: SearchConfig, *, place: str, partitions: int = 2):
    """Pairs as sorted tuples, and what was noted. The place `brought` is `broadcast` as on a cluster."""
    from pyspark.sql import Observation

    noted = Observation("pairs")
    if place == "partitioned":
        pairs = cells_self_join(vectors, index, cells, config, partitions=partitions, noted=noted).collect()
    else:
        with index_files(index, index_manifest(index).collect(), local=place == "broadcast") as files:
            pairs = cells_self_join(vectors, files, cells, config, partitions=partitions, noted=noted).collect()
    return sorted(map(tuple, pairs)), noted.get


def similarities(x: np.ndarray) -> np.ndarray:
    """Upper triangle of float64 cosines."""
    y = x.astype(np.float64)
    y /= np.linalg.norm(y, axis=1, keepdims=True)
    return np.triu(y @ y.T, 1)


def meeting(x: np.ndarray, cells: Cells, margin: float) -> list[tuple[int, int]]:
    """Pairs at or above 0.85 where one lives in a cell that the other visits."""
    near = x.astype(np.float64) @ cells.centroids.astype(np.float64).T
    visits = near >= near.max(axis=1, keepdims=True) - margin
    meets = visits[:, near.argmax(axis=1)]
    return [(int(i), int(j)) for i, j in np.argwhere((similarities(x) >= 0.85) & (meets | meets.T))]


@pytest.fixture(scope="module")
def crowded(spark):
    """A crowd with copies, its frame, its cells in three shards, and its stored index."""
    x = np.concatenate([crowd(1, 700), crowd(1, 700)[[3, 3, 3, 90]]])
    vectors, heads = vectors_frame(spark, x)
    config = SearchConfig(engine="cells", cells=24, shards=3)
    return x, vectors, *indexed(vectors, heads, config), config


def test_pairs_and_scores_are_those_of_brute_force(spark, crowded):
    x, vectors, cells, index, config = crowded
    pairs, noted = search(vectors, cells, index, config, place="broadcast")
    want = meeting(x, cells, config.margin)
    assert [p[:2] for p in pairs] == want
    assert 1000 < len(want) <= (similarities(x) >= 0.85).sum()
    left, right = (np.array([p[i] for p in pairs]) for i in (0, 1))
    assert [p[3] for p in pairs] == cosines(x[left], x[right]).tolist()
    block = decode(features(pa.array(TEXTS)))
    scores = pair_scores(block, left % len(TEXTS), block, right % len(TEXTS))
    wanted = (s.tolist() for s in (scores.jaccard, scores.containment, scores.substitution))
    assert [p[4:7] for p in pairs] == list(zip(*wanted, strict=True))
    assert [p[7] for p in pairs] == [NUMBERS[code] for code in scores.numbers]
    assert [p[8:10] for p in pairs] == list(zip(scores.least_words.tolist(), scores.most_words.tolist(), strict=True))
    assert all(p[2] == ["cells"] for p in pairs)
    assert noted == {"pairs": len(want), **QUIET}


def test_placement_partitions_row_order_and_batch_size_do_not_change_the_pairs(spark, spark_conf, crowded):
    _, vectors, cells, index, config = crowded
    want = search(vectors, cells, index, config, place="broadcast", partitions=1)
    shuffled = vectors.repartition(7).orderBy("features", "vector")
    assert search(shuffled, cells, index, config, place="brought", partitions=7) == want
    assert search(shuffled, cells, index, config, place="partitioned", partitions=7) == want
    spark_conf("spark.sql.adaptive.enabled", "false")
    spark_conf("spark.sql.execution.arrow.maxRecordsPerBatch", "16")
    assert search(vectors, cells, index, config, place="broadcast", partitions=64) == want
    assert search(vectors, cells, index, config, place="partitioned", partitions=1) == want


def test_the_stored_index_is_the_same_whatever_the_layout_of_its_input(spark, spark_conf, crowded):
    _, vectors, cells, index, config = crowded
    one = sorted(map(tuple, index.collect()))
    assert {row[0] for row in one} == {0, 1, 2}
    spark_conf("spark.sql.execution.arrow.maxRecordsPerBatch", "50")
    again = build_cell_index(vectors.repartition(7).orderBy("vector"), cells, config)
    assert sorted(map(tuple, again.collect())) == one


def test_one_probe_finds_the_pairs_inside_cells(spark, crowded):
    x, vectors, cells, *_ = crowded
    config = SearchConfig(engine="semdedup", cells=24, shards=3)
    index = build_cell_index(vectors, cells, config)
    pairs, _ = search(vectors, cells, index, config, place="broadcast")
    assert [p[:2] for p in pairs] == meeting(x, cells, 0.0)
    assert len(pairs) < len(meeting(x, cells, 0.1))
    assert all(p[2] == ["semdedup"] for p in pairs)


@pytest.mark.parametrize("place", ["broadcast", "partitioned"])
def test_texts_that_ask_find_what_the_self_join_finds(spark, crowded, place):
    from pyspark.sql import Observation

    _, vectors, cells, index, config = crowded
    want, _ = search(vectors, cells, index, config, place="broadcast")
    some = vectors.where("rep_id >= 550")  # copies are paired by the newer text
    noted = Observation("asked")
    with index_files(index, index_manifest(index).collect(), local=True) as files:
        reachable = files if place == "broadcast" else index
        pairs = cells_candidates(some, vectors, reachable, cells, config, partitions=3, noted=noted).collect()
    assert sorted(map(tuple, pairs)) == [p for p in want if p[1] >= 550]
    assert noted.get == {"pairs": len(pairs), "asked_again": 0, "saturated": 0, "copies_not_paired": 0}


def test_copies_of_one_vector_do_not_hide_the_near_pairs(spark):
    table = pq.read_table(CASES / "o09_copies.parquet")
    ids = table["id"].to_pylist()
    config = SearchConfig(engine="cells", max_copies=64)
    vectors, heads = vectors_frame(spark, unit(np.array(table["embedding"].to_pylist())))
    pairs, noted = search(vectors, *indexed(vectors, heads, config), config, place="broadcast")
    named = [(ids[p[0]], ids[p[1]], p[3]) for p in pairs]
    found = {frozenset(p[:2]) for p in named}
    assert all(frozenset((f"a{i:03d}", f"b{i:03d}")) in found for i in range(300))
    copies = [p for p in named if p[0][0] == "c" and p[1][0] == "c"]
    assert len(copies) == 799
    assert {cosine for *_, cosine in copies} == {1.0}
    assert noted["copies_not_paired"] >= 800 * 799 // 2 - 799
    assert noted["pairs"] == len(pairs)


@pytest.mark.parametrize(
    ("x", "pairs", "copies_not_paired"),
    [
        (np.empty((0, 4)), 0, 0),
        (np.ones((1, 4)), 0, 0),
        (np.array([[3.0, 4], [4, 3]]), 1, 0),  # 24/25
        (np.array([[3.0, 4], [-4, 3]]), 0, 0),
        (np.ones((5, 4)), 10, 0),  # one distinct point
        (np.ones((10_000, 4)), 9_999, 10_000 * 9_999 // 2 - 9_999),
        (np.ones((200, 8)) + 0.01 * np.arange(200)[:, None] * np.eye(8)[0], 200 * 199 // 2, 0),  # all in one cell
    ],
)
def test_small_and_degenerate_tables(spark, x, pairs, copies_not_paired):
    config = SearchConfig(engine="cells", cells=3, shards=2)
    vectors, heads = vectors_frame(spark, unit(x))
    stored = indexed(vectors, heads, config)
    for place in ("broadcast", "partitioned"):
        found, noted = search(vectors, *stored, config, place=place, partitions=3)
        assert len({p[:2] for p in found}) == len(found) == pairs
        assert noted == {**QUIET, "pairs": pairs, "copies_not_paired": copies_not_paired}


def test_the_table_has_the_schema_of_scored_pairs(spark, crowded):
    _, vectors, cells, index, config = crowded
    pairs = cells_self_join(vectors, index, cells, config, partitions=2)
    assert pairs.schema.simpleString() == spark.createDataFrame([], SCORED_PAIRS.ddl()).schema.simpleString()


@pytest.mark.parametrize("step", [1, 2, 3, 100])
def test_visitors_are_gathered_without_parting_the_texts_of_a_vector(step):
    heads = np.array([1, 1, 2, 3, 3, 3, 3, 3, 3, 8, 9, 9, 10])
    batches = [pa.record_batch({"head_id": heads[i : i + step]}) for i in range(0, len(heads), step)]
    groups = [np.concatenate([b.column("head_id").to_numpy() for b in group]).tolist() for group in whole_vectors(batches, 3)]
    assert sum(groups, []) == heads.tolist()
    assert not any(set(a) & set(b) for a, b in zip(groups, groups[1:], strict=False))
    assert len(groups) > 1 or step == 100


def test_a_text_is_held_against_the_centroid_of_its_own_cell(spark):
    x = np.array([[0.8, 0.6], [0.6, 0.8], [1.0, 0.0], [-0.8, 0.6]], dtype=np.float32)
    cells = Cells(np.eye(2, dtype=np.float32), np.zeros(2, dtype=np.int32))
    found = dict(map(tuple, centroid_similarities(vectors_frame(spark, x)[0], cells).collect()))
    assert found == {0: pytest.approx(0.8), 1: pytest.approx(0.8), 2: 1.0, 3: pytest.approx(0.6)}
