"""VECTORS x VECTORS -> SCORED_PAIRS: products of all pairs, spread over the cluster in tiles. Nothing is indexed, nothing missed."""

from __future__ import annotations

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
from spark_dedup.kernels.tiles import group_count, tile_count
from spark_dedup.kernels.vectors import from_binary
from spark_dedup.schema import REP_ID, VECTORS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Observation

METHOD = "exact"


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
        partitions: Tasks wanted, at least 1; see `tiles.group_count` for how many there are.
        noted: Receives `pairs`, and of the events: `copies_not_paired` (pairs that `max_copies` left out), `asked_again` and
            `saturated` (always 0 here).

    Returns:
        SCORED_PAIRS.
    """
    groups = group_count(heads, partitions)
    tiles = tile_count(groups)

    def compare(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        received = [batch for batch in batches if batch.num_rows]
        if not received:
            return
        tile = received[0].column("tile")[0].as_py()
        sides = [rows_of(received, second=side) for side in ((False, True) if groups > 1 else (False,))]
        received.clear()
        yield from map(found_rows, join_texts(sides, near(sides, within=tile < groups), config.max_copies))
        if tile < groups:
            yield from map(found_rows, join_copies(sides[0], 0, len(sides[0].heads), config.max_copies))

    def near(sides: list[CellRows], *, within: bool) -> Iterator[RowPairs]:
        first, *second = (side.vectors for side in sides)
        if within:
            yield from (RowPairs(0, n.left, 0, n.right, n.cosine) for n in near_within(first, config.floor))
        for other in second:
            yield from (RowPairs(0, n.left, 1, n.right, n.cosine) for n in near_between(first, other, config.floor))

    dealt = VECTORS.conform(vectors).withColumn("group", F.pmod(F.xxhash64("head_id"), F.lit(groups)))
    tiled = ring_tiles(dealt, groups).select("tile", "second", *VECTORS.names)
    # As many partitions as tiles: each holds one tile, and NumPy brings it into order.
    return named_pairs(spread(tiled, F.col("tile"), tiles, tiles).mapInArrow(compare, FOUND), METHOD, noted)


def ring_tiles(dealt: DataFrame, groups: int) -> DataFrame:
    """Every row once for each tile that its group is part of, see `tiles`.

    Args:
        dealt: With `group` bigint in [0, groups).
        groups: 1, or at least 3.

    Returns:
        The columns of `dealt` with `tile` int, in [0, tile_count(groups)), and `second` boolean, the group's side in that tile.
    """
    steps = F.explode(F.sequence(F.lit(1), F.lit(max(1, groups // 2))))
    sides = F.explode(F.array(*map(F.lit, (False, True)[: min(groups, 2)])))
    first = F.when(F.col("second"), F.pmod(F.col("group") - F.col("steps"), F.lit(groups))).otherwise(F.col("group"))
    tile = ((F.col("steps") - 1) * groups + first).cast("int")
    every = dealt.withColumn("steps", steps).withColumn("second", sides).withColumn("tile", tile).drop("steps")
    # Where the number of groups is even, those farthest apart have each other on both ways round.
    return every.where(F.col("tile") < tile_count(groups))


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
