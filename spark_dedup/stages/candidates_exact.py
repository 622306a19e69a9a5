"""VECTORS x VECTORS -> SCORED_PAIRS: products of all pairs, spread over the cluster in tiles. Nothing is indexed, nothing missed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from pyspark.sql import functions as F

from spark_dedup.asking import FOUND, found_rows, named_pairs
from spark_dedup.config import SearchConfig
from spark_dedup.grouped import spread
from spark_dedup.kernels.cell_index import CellRows, RowPairs
from spark_dedup.kernels.expand import join_copies, join_texts
from spark_dedup.kernels.features import decode
from spark_dedup.kernels.products import near_between, near_within
from spark_dedup.kernels.vectors import from_binary
from spark_dedup.schema import REP_ID, VECTORS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Observation

METHOD = "exact"

GROUP_ROWS = 50_000
"""Distinct vectors in a group at most, on average: a task holds two groups with their features, some 300 MB."""


def exact_candidates(
    vectors: DataFrame, heads: int, config: SearchConfig, *, partitions: int, noted: Observation | None = None
) -> DataFrame:
    """All pairs of texts at or above the floor, each unordered pair once.

    Vectors are dealt into groups; a tile is a pair of groups and the work of a task. Partitions, row order and batch sizes do
    not change a single bit of the result.

    Args:
        vectors: VECTORS.
        heads: Distinct vectors among them.
        config: Uses `floor` and `max_copies`.
        partitions: Tasks wanted, at least 1; there are as many tiles or more.
        noted: Receives `pairs`, and of the events: `copies_not_paired` (pairs that `max_copies` left out), `asked_again` and
            `saturated` (always 0 here).

    Returns:
        SCORED_PAIRS.
    """
    groups = group_count(heads, partitions)
    tiles = groups * (groups + 1) // 2

    def compare(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        received = [batch for batch in batches if batch.num_rows]
        if not received:
            return
        low, high = divmod_tile(received[0].column("tile")[0].as_py())
        first = rows_of(received, second=False)
        if low == high:
            sides = [first]
            near = (RowPairs(0, n.left, 0, n.right, n.cosine) for n in near_within(first.vectors, config.floor))
        else:
            sides = [first, rows_of(received, second=True)]
            near = (RowPairs(0, n.left, 1, n.right, n.cosine) for n in near_between(first.vectors, sides[1].vectors, config.floor))
        received.clear()
        yield from map(found_rows, join_texts(sides, near, config.max_copies))
        if low == high:
            yield from map(found_rows, join_copies(first, 0, len(first.heads), config.max_copies))

    group = F.pmod(F.xxhash64("head_id"), F.lit(groups)).cast("int")
    other = F.explode(F.sequence(F.lit(0), F.lit(groups - 1)))
    dealt = VECTORS.conform(vectors).select(group.alias("group"), other.alias("other"), *VECTORS.names)
    higher = F.greatest("group", "other")
    tile = (higher * (higher + 1) / 2 + F.least("group", "other")).cast("int")
    tiled = dealt.select(tile.alias("tile"), (F.col("group") > F.col("other")).alias("second"), *VECTORS.names)
    # As many partitions as tiles: each holds one tile, and NumPy brings it into order.
    return named_pairs(spread(tiled, F.col("tile"), tiles, tiles).mapInArrow(compare, FOUND), METHOD, noted)


def group_count(heads: int, tasks: int) -> int:
    """Groups that make at least this many tiles, none of them too large for a task.

    Args:
        heads: Distinct vectors.
        tasks: Tasks wanted, at least 1.

    Returns:
        At least 1. Every vector is sent to so many tasks.
    """
    return max(math.ceil((math.sqrt(8 * tasks + 1) - 1) / 2), math.ceil(heads / GROUP_ROWS))


def divmod_tile(tile: int) -> tuple[int, int]:
    """The lower and the higher group of a tile, which are numbered (0, 0), (0, 1), (1, 1), (0, 2), ..."""
    high = (math.isqrt(8 * tile + 1) - 1) // 2
    return tile - high * (high + 1) // 2, high


def rows_of(batches: list[pa.RecordBatch], *, second: bool) -> CellRows:
    """One side of a tile, as the rows of a single cell; `batches` is not empty, the side may be."""
    chosen = [(batch, batch.column("second").to_numpy(zero_copy_only=False) == second) for batch in batches]
    rep, head = (np.concatenate([batch.column(name).to_numpy()[side] for batch, side in chosen]) for name in (REP_ID, "head_id"))
    # Filled batch by batch: memory that is new to a process costs more than the copy, and this way most of it is used again.
    vectors = np.empty((len(rep), from_binary(batches[0].column("vector")).shape[1]), dtype=np.float32)
    start = 0
    for batch, side in chosen:
        part = from_binary(batch.column("vector"))[side]
        vectors[start : start + len(part)] = part
        start += len(part)
    features = pa.chunked_array([batch.column("features").filter(pa.array(side)) for batch, side in chosen])
    probes = np.arange(len(rep) + 1), np.zeros(len(rep), dtype=np.int64)
    return CellRows.of(rep, head, vectors, decode(features), *probes)
