"""The self-join on Spark: against a float64 product of all vectors, and the same pairs however the work is laid out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from case_files import CASES, case_rows

from spark_dedup.asking import FOUND, distinct_pairs
from spark_dedup.config import SearchConfig
from spark_dedup.errors import EnvironmentProblem, StoreError
from spark_dedup.index_files import choose_placement, index_files
from spark_dedup.kernels.cells import Cells
from spark_dedup.kernels.features import NUMBERS, decode, features, pair_scores
from spark_dedup.kernels.vectors import to_binary
from spark_dedup.schema import INDEX, INDEX_SHARDS, SCORED_PAIRS, VECTORS
from spark_dedup.shards import index_manifest
from spark_dedup.stages.candidates_hnsw import hnsw_candidates
from spark_dedup.stages.index_hnsw import build_index, coarse_cells

TEXTS = [f"passage {i % 11} says much the same as any other passage number {i % 7}" for i in range(77)]


def unit(x: np.ndarray) -> np.ndarray:
    return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)


def planted(seed: int = 0, others: int = 1200, family: int = 120, near: int = 100, d: int = 32) -> np.ndarray:
    """Unrelated vectors, a family larger than the list of 50, near pairs of cosine 0.95 to 0.999."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(others, d))
    return unit(np.concatenate([x, x[:1] + 0.1 * rng.normal(size=(family, d)), x[1 : 1 + near] + 0.2 * rng.normal(size=(near, d))]))


def vectors_frame(spark, x: np.ndarray):
    """VECTORS of texts 0 .. n - 1."""
    heads: dict[bytes, int] = {}
    blobs = features(pa.array(TEXTS)).to_pylist()
    rows = []
    for i, row in enumerate(to_binary(x).to_pylist()):
        rows.append((i, heads.setdefault(row, i), row, blobs[i % len(TEXTS)]))
    return spark.createDataFrame(rows, VECTORS.ddl()), len(heads)


def indexed(vectors, heads: int, config: SearchConfig):
    """Cells and stored index."""
    cells = Cells.from_rows(coarse_cells(vectors, heads, config).collect())
    return cells, vectors.sparkSession.createDataFrame(build_index(vectors, cells, config).collect(), INDEX.ddl())


def search(vectors, cells: Cells, index, config: SearchConfig, *, place: str, partitions: int = 2):
    """Pairs as sorted tuples, and what was noted. The place `brought` is `broadcast` as on a cluster."""
    from pyspark.sql import Observation

    noted = Observation("pairs")
    if place == "partitioned":
        pairs = hnsw_candidates(vectors, vectors, index, cells, config, partitions=partitions, noted=noted).collect()
    else:
        with index_files(index, index_manifest(index).collect(), local=place == "broadcast") as files:
            pairs = hnsw_candidates(vectors, vectors, files, cells, config, partitions=partitions, noted=noted).collect()
    return sorted(map(tuple, pairs)), noted.get


def run(spark, x: np.ndarray, config: SearchConfig, *, place: str = "partitioned"):
    """From vectors to pairs, and what was noted."""
    vectors, heads = vectors_frame(spark, x)
    return search(vectors, *indexed(vectors, heads, config), config, place=place)


def exact(x: np.ndarray, floor: float) -> dict[tuple[int, int], float]:
    """Unordered pairs at or above the floor, from float64 products of all vectors."""
    y = x.astype(np.float64)
    y /= np.linalg.norm(y, axis=1, keepdims=True)
    similar = np.triu(y @ y.T, 1)
    return {(int(a), int(b)): similar[a, b] for a, b in zip(*np.nonzero(similar >= floor), strict=True)}


def test_pairs_and_scores_are_those_of_brute_force(spark):
    x = planted()
    pairs, noted = run(spark, x, SearchConfig(), place="broadcast")
    want = exact(x, 0.85)
    assert len(want) > 120 * 119 / 2
    assert [(a, b) for a, b, *_ in pairs] == sorted(want)
    np.testing.assert_allclose([p[3] for p in pairs], [want[p[:2]] for p in pairs], atol=1e-12)
    block = decode(features(pa.array(TEXTS)))
    left, right = (np.array([p[i] % len(TEXTS) for p in pairs]) for i in (0, 1))
    scores = pair_scores(block, left, block, right)
    want_scores = (x.tolist() for x in (scores.jaccard, scores.containment, scores.substitution))
    assert [p[4:7] for p in pairs] == list(zip(*want_scores, strict=True))
    assert [p[7] for p in pairs] == [NUMBERS[code] for code in scores.numbers]
    assert [p[8:10] for p in pairs] == list(zip(scores.least_words.tolist(), scores.most_words.tolist(), strict=True))
    assert all(p[2] == ["hnsw"] for p in pairs)
    assert noted == {"pairs": len(want), "asked_again": 121, "saturated": 0, "copies_not_paired": 0}


@pytest.mark.parametrize("shards", [pytest.param(1, marks=pytest.mark.long), 3])
def test_placement_partitions_row_order_and_batch_size_do_not_change_the_pairs(spark, spark_conf, shards):
    vectors, heads = vectors_frame(spark, planted(1, others=300, family=60, near=40))
    config = SearchConfig(shards=shards)
    stored = indexed(vectors, heads, config)
    want = search(vectors, *stored, config, place="broadcast", partitions=1)
    assert len(want[0]) >= 61 * 60 / 2 + 40
    shuffled = vectors.repartition(7).orderBy("features", "vector")
    for place in ("brought", "partitioned"):
        assert search(shuffled, *stored, config, place=place, partitions=7) == want
    spark_conf("spark.sql.adaptive.enabled", "false")
    spark_conf("spark.sql.execution.arrow.maxRecordsPerBatch", "16")
    assert search(vectors, *stored, config, place="broadcast", partitions=64) == want
    assert search(vectors, *stored, config, place="partitioned") == want


def test_the_stored_index_is_the_same_whatever_the_layout_of_its_input(spark, spark_conf):
    frame, heads = vectors_frame(spark, planted(2, others=300, family=60, near=40))
    config = SearchConfig(shards=3)

    def stored(df):
        cells = coarse_cells(df, heads, config).collect()
        rows = build_index(df, Cells.from_rows(cells), config).collect()
        return sorted(map(tuple, cells)), sorted(map(tuple, rows))

    one = stored(frame.repartition(1).orderBy("vector"))
    assert {row[0] for row in one[1]} == {0, 1, 2}
    spark_conf("spark.sql.execution.arrow.maxRecordsPerBatch", "50")
    assert stored(frame.repartition(7)) == one


def test_several_shards_find_what_one_shard_finds(spark):
    x = planted(3)
    one, _ = run(spark, x, SearchConfig(shards=1))
    four, _ = run(spark, x, SearchConfig(shards=4))
    found, routed = {p[:2]: p for p in one}, {p[:2]: p for p in four}
    assert set(routed) <= set(found)
    assert all(found[pair] == p for pair, p in routed.items())
    # Planted pairs have cosine >= 0.93. A pair is lost only where neither side comes within 0.1 of a cell of the other's shard.
    close = [pair for pair, p in found.items() if p[3] >= 0.9]
    assert len(close) > 7000
    assert sum(pair in routed for pair in close) >= 0.99 * len(close)


def test_copies_of_one_vector_do_not_hide_the_near_pairs(spark):
    table = pq.read_table(CASES / "o09_copies.parquet")
    ids = table["id"].to_pylist()
    pairs, noted = run(spark, unit(np.array(table["embedding"].to_pylist())), SearchConfig(max_copies=64), place="broadcast")
    named = [(ids[p[0]], ids[p[1]], p[3]) for p in pairs]
    found = {frozenset(p[:2]) for p in named}
    assert all(frozenset((f"a{i:03d}", f"b{i:03d}")) in found for i in range(300))
    copies = [p for p in named if p[0][0] == "c" and p[1][0] == "c"]
    assert len(copies) == 799
    assert {cosine for *_, cosine in copies} == {1.0}
    assert noted["copies_not_paired"] >= 800 * 799 // 2 - 799
    assert noted["pairs"] == len(pairs)


@pytest.mark.parametrize("place", ["broadcast", "partitioned"])
@pytest.mark.parametrize("shards", ["auto", 2])
def test_three_vectors_give_one_pair_once_and_never_a_missing_neighbour(spark, place, shards):
    rows = case_rows("o10_small_shard.jsonl")
    x = unit(np.array([row["embedding"] for row in rows]))
    # A margin of 2 sends every vector to every shard, so each pair is found from both sides.
    pairs, noted = run(spark, x, SearchConfig(neighbours=50, shards=shards, margin=2.0), place=place)
    assert [p[:3] for p in pairs] == [(0, 1, ["hnsw"])]
    assert pairs[0][3] == pytest.approx(0.96, abs=1e-6)
    assert noted == {"pairs": 1, "asked_again": 0, "saturated": 0, "copies_not_paired": 0}


@pytest.mark.parametrize("place", ["broadcast", "brought", "partitioned"])
@pytest.mark.parametrize("rows", [0, 1])
def test_no_vector_and_one_vector_give_no_pair(spark, place, rows):
    pairs, noted = run(spark, unit(np.ones((3, 4)))[:rows], SearchConfig(), place=place)
    assert pairs == []
    assert noted["pairs"] == 0


def test_a_pair_found_twice_with_different_last_bits_keeps_the_higher_score(spark):
    twice = [(10, 729, cosine, 0.5, 0.5, 0.25, 1, 4, 5, 0, None, None) for cosine in (0.96, 0.96000004)]
    found = [*twice, (*[None] * 10, 4, 1)]  # the last row carries counts only
    pairs = distinct_pairs(spark.createDataFrame(found, FOUND), "hnsw", None)
    assert pairs.schema.simpleString() == spark.createDataFrame([], SCORED_PAIRS.ddl()).schema.simpleString()
    assert list(map(tuple, pairs.collect())) == [(10, 729, ["hnsw"], 0.96000004, 0.5, 0.5, 0.25, "contained", 4, 5)]


def test_limits_that_were_reached_are_counted(spark):
    x = planted(4, others=300, family=99, near=0)
    pairs, noted = run(spark, x, SearchConfig(neighbours=10, max_neighbours=40))
    # The family is 100 vectors with vector 0, which is its centre; every list is cut at 40 of 99.
    assert noted["saturated"] == noted["asked_again"] == 100
    assert 100 * 40 / 2 <= len(pairs) <= 100 * 40


def test_a_damaged_file_is_refused_in_both_placements(spark):
    x = planted(5, others=100, family=10, near=0)
    vectors, heads = vectors_frame(spark, x)
    config = SearchConfig()
    cells, stored = indexed(vectors, heads, config)
    rows = [tuple(row) for row in stored.collect()]
    damaged = [(s, f, p, bytes(b[:-1]) + bytes([b[-1] ^ 1]) if (f, p) == ("rows.npy", 0) else bytes(b)) for s, f, p, b in rows]
    index = spark.createDataFrame(damaged, INDEX.ddl())
    manifest = index_manifest(index)
    assert manifest.schema.simpleString() == spark.createDataFrame([], INDEX_SHARDS.ddl()).schema.simpleString()
    for local in (True, False):
        with pytest.raises(StoreError, match=r"file rows\.npy of shard 0 is damaged"), index_files(index, manifest.collect(), local=local):
            pass
    with pytest.raises(Exception, match="the stored index is damaged"):
        hnsw_candidates(vectors, vectors, index, cells, config, partitions=1).collect()


@pytest.mark.parametrize("local", [True, False])
def test_executors_hold_one_copy_that_goes_when_the_search_is_over(spark, local):
    from pyspark import SparkFiles

    x = planted(6, others=100, family=10, near=0)
    _, index = indexed(*vectors_frame(spark, x), SearchConfig())
    with index_files(index, index_manifest(index).collect(), local=local) as files:
        folder = Path(files.folder or SparkFiles.getRootDirectory())
        where = [folder / files.name(shard, file) for shard, file in files.sizes]
        assert [path.stat().st_size for path in where] == list(files.sizes.values())
    assert not any(path.exists() for path in where)


@pytest.mark.parametrize(
    ("wanted", "size", "connect", "limit", "placement", "why"),
    [
        ("auto", 100 << 20, False, 1 << 30, "broadcast", "100.0 MiB of index fit"),
        ("auto", 100 << 20, False, 0, "broadcast", "fit"),
        ("auto", 100 << 20, False, 4 << 20, "partitioned", "maxResultSize is below 64 MiB"),
        ("auto", 3 << 30, False, 0, "partitioned", "more than 2 GiB"),
        ("auto", 1, True, 0, "partitioned", "Spark Connect"),
        ("partitioned", 1, False, 0, "partitioned", "set by search.placement"),
        ("broadcast", 9 << 30, False, 0, "broadcast", "set by search.placement"),
    ],
)
def test_placement_is_decided_by_bytes_and_says_why(wanted, size, connect, limit, placement, why):
    got, reason = choose_placement(wanted, size, connect=connect, max_result_bytes=limit)
    assert got == placement
    assert why in reason


def test_broadcast_without_a_context_is_refused():
    with pytest.raises(EnvironmentProblem, match="needs a SparkContext"):
        choose_placement("broadcast", 1, connect=True, max_result_bytes=0)
