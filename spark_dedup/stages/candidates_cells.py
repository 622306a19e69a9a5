"""INDEX -> SCORED_PAIRS, VECTORS x INDEX -> SCORED_PAIRS: exact products inside cells. One probe is SemDeDup.

The self-join of a batch finds every pair in one place; new texts that ask an index may find a pair from both sides.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from pyspark.sql import functions as F

from spark_dedup.asking import EVENTS, FOUND, Texts, asked_rows, distinct_pairs, found_rows, named_pairs, slices, with_copies
from spark_dedup.config import SearchConfig
from spark_dedup.grouped import spread
from spark_dedup.index_files import ShardFiles
from spark_dedup.kernels.cell_index import FILES, CellJoin, CellRows, Units
from spark_dedup.kernels.cells import Cells
from spark_dedup.kernels.expand import Found, ask_with, join_copies, join_texts
from spark_dedup.kernels.hnsw import Ints, Neighbours
from spark_dedup.kernels.ragged import edges, ranges
from spark_dedup.schema import INDEX, REP_ID, VECTORS, pa_schema
from spark_dedup.shards import ASKING_ROW, FILE_PART, PROBED, probed, probed_rows, reach, served

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Observation

SPLIT = "split_cells"
JOINED = f"{FOUND}, `{SPLIT}` bigint"

VISITOR_ROWS = 32_768
"""Texts that visit a shard and are compared with it at once."""

ROUTED = f"`task` int, `kind` int, `file` string, `part` int, `bytes` binary, {PROBED}"


def cells_self_join(
    vectors: DataFrame,
    index: DataFrame | ShardFiles,
    cells: Cells,
    config: SearchConfig,
    *,
    partitions: int,
    noted: Observation | None = None,
) -> DataFrame:
    """Pairs of texts at or above the floor where one vector lives in a cell that the other visits, each unordered pair once.

    Every pair is found in one place only, so nothing is shuffled afterwards. No list is capped. Partitions, row order, batch
    sizes and the placement of the index do not change a single bit of the result.

    Args:
        vectors: VECTORS, everything that was indexed.
        index: The files brought to the executors (`broadcast`: no vector moves), or INDEX itself (`partitioned`).
        cells: The rows of INDEX_CELLS.
        config: Uses `engine`, `floor`, `margin` and `max_copies`.
        partitions: Tasks that compare, at least 1.
        noted: Receives `pairs`, and of the events: `copies_not_paired` (pairs that `max_copies` left out), `split_cells` (cells
            so large that several units of work share them), `asked_again` and `saturated` (always 0 here).

    Returns:
        SCORED_PAIRS.
    """
    if isinstance(index, ShardFiles):
        found = join_files(vectors, index, cells, config, partitions)
    else:
        found = join_shards(VECTORS.conform(vectors), INDEX.conform(index), cells, config, partitions)
    return named_pairs(found, config.engine, noted, (*EVENTS, SPLIT))


def join_files(vectors: DataFrame, files: ShardFiles, cells: Cells, config: SearchConfig, partitions: int) -> DataFrame:
    """Compare where the files are: each task takes a range of the work, and opens what it needs from the executor's disk."""
    shards = cells.count

    def join(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        tasks = [task for batch in batches for task in batch.column(0).to_pylist()]
        opened = [rows for rows in (files.open(shard, FILES, CellRows.open) for shard in range(shards)) if rows is not None]
        work = CellJoin(opened)
        units = work.units()
        for task in tasks:
            yield from joined(opened, work, units, units.part(task, partitions), config)
            if task == 0:
                yield event(SPLIT, units.split)

    # A range of as many partitions as numbers puts one number into each.
    return vectors.sparkSession.range(0, partitions, 1, partitions).mapInArrow(join, JOINED)


def join_shards(vectors: DataFrame, index: DataFrame, cells: Cells, config: SearchConfig, partitions: int) -> DataFrame:
    """Send each shard, and the vectors that visit it from other shards, to tasks of its own.

    Where there are more partitions than shards, several tasks get the same shard, and each a part of what is compared there.
    """
    margin = reach(config)
    routed_schema = pa_schema(ROUTED)
    shards = max(cells.count, 1)
    copies = max(1, partitions // shards)
    tasks = shards * copies

    def route(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            bounds, visits, rows = probed(batch, cells, margin)
            row = np.repeat(np.arange(batch.num_rows), np.diff(bounds))
            home, visited = cells.shards[visits[bounds[:-1]]], cells.shards[visits]
            away = np.unique(np.stack([visited, row])[:, visited != home[row]], axis=1)
            slot = batch.column("head_id").to_numpy()[away[1]] % copies  # all texts of a vector go the same way
            task = (away[0] * copies + slot).astype(np.int32)
            some = rows.take(pa.array(away[1]))
            key = [pa.array(task), pa.array(np.full(len(task), ASKING_ROW, dtype=np.int32))]
            empty = [pa.nulls(len(task), routed_schema.field(name).type) for name in ("file", "part", "bytes")]
            yield pa.RecordBatch.from_arrays([*key, *empty, *some.columns], schema=routed_schema)

    def serve(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for task, shard, visitors in served(iter(batches), "task", FILES, CellRows.open):
            work = CellJoin([shard])
            units = work.units()
            yield from joined([shard], work, units, units.part(task % copies, copies), config)
            if task % copies == 0:
                yield event(SPLIT, units.split)
            for some in whole_vectors(visitors):
                guests = CellRows.of(*probed_rows(some))
                work = CellJoin([shard], [guests])
                units = work.units(guests_only=True)
                yield from joined([shard, guests], work, units, range(len(units.cell)), config)

    visitors = vectors.mapInArrow(route, ROUTED)
    task = F.explode(F.sequence(F.col("shard") * copies, F.col("shard") * copies + (copies - 1))).alias("task")
    parts = index.select(task, F.lit(FILE_PART).alias("kind"), "file", "part", "bytes")
    together = spread(visitors.unionByName(parts, allowMissingColumns=True), F.col("task"), tasks, tasks)
    return together.sortWithinPartitions("task", "kind", "file", "part", "head_id", REP_ID).mapInArrow(serve, JOINED)


def cells_candidates(
    queries: DataFrame,
    base: DataFrame,
    index: DataFrame | ShardFiles,
    cells: Cells,
    config: SearchConfig,
    *,
    partitions: int,
    noted: Observation | None = None,
) -> DataFrame:
    """Pairs of a query and a text of the base that a self-join over both would find, each unordered pair once.

    For few queries: every query goes to every shard, because a row there may visit its cell.

    Args:
        queries: VECTORS rows that ask, newer than what else is in the base; they may be in it. Texts with equal vectors are
            paired by the newer one.
        base: VECTORS, everything that was indexed.
        index: The files brought to the executors (`broadcast`), or INDEX itself (`partitioned`).
        cells: The rows of INDEX_CELLS.
        config: Uses `engine`, `floor`, `margin` and `max_copies`.
        partitions: Tasks that ask, at least 1.
        noted: Receives `pairs`, and of the events: `copies_not_paired`, `asked_again` and `saturated` (always 0 here).

    Returns:
        SCORED_PAIRS.
    """
    asking = with_copies(queries, base, config)
    if isinstance(index, ShardFiles):
        found = ask_files(asking.repartition(partitions, REP_ID), index, cells, config)
    else:
        found = ask_shards(asking, INDEX.conform(index), cells, config)
    return distinct_pairs(found, config.engine, noted)


def ask_files(asking: DataFrame, files: ShardFiles, cells: Cells, config: SearchConfig) -> DataFrame:
    """Ask where the queries are, with the shards opened from the executor's disk."""

    def ask(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for texts in slices(batch, config):
                for number in range(cells.count):
                    shard = files.open(number, FILES, CellRows.open)
                    if shard is not None:
                        yield from ask_shard(shard, texts, cells, config)

    return asking.mapInArrow(ask, FOUND)


def ask_shards(asking: DataFrame, index: DataFrame, cells: Cells, config: SearchConfig) -> DataFrame:
    """Send each query to the task of each shard."""
    shards = max(cells.count, 1)

    def serve(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _, shard, rows in served(iter(batches), "task", FILES, CellRows.open):
            for batch in rows:
                for texts in slices(batch, config):
                    yield from ask_shard(shard, texts, cells, config)

    task = F.explode(F.sequence(F.lit(0), F.lit(shards - 1))).alias("task")
    queries = asking.select(task, F.lit(ASKING_ROW).alias("kind"), *asking.columns)
    parts = index.select(F.col("shard").alias("task"), F.lit(FILE_PART).alias("kind"), "file", "part", "bytes")
    together = spread(queries.unionByName(parts, allowMissingColumns=True), F.col("task"), shards, shards)
    return together.sortWithinPartitions("task", "kind", "file", "part", REP_ID).mapInArrow(serve, FOUND)


def ask_shard(shard: CellRows, texts: Texts, cells: Cells, config: SearchConfig) -> Iterator[pa.RecordBatch]:
    """FOUND rows of one shard."""
    bounds, probes = cells.probes(texts.vectors, reach(config))

    def neighbours(rows: Ints, own: Ints) -> Neighbours:
        sizes = np.diff(bounds)[rows]
        return shard.neighbours(texts.vectors[rows], own, edges(sizes), probes[ranges(bounds[rows], sizes)], config.floor)

    everywhere = np.ones(len(texts.vectors), dtype=np.bool_)
    return asked_rows(ask_with(shard, texts.batch, texts.features, everywhere, neighbours))


def joined(shards: Sequence[CellRows], work: CellJoin, units: Units, numbers: range, config: SearchConfig) -> Iterator[pa.RecordBatch]:
    """JOINED rows of some units: pairs of different vectors, then pairs of texts that share one."""
    for found in join_texts(shards, work.join(units, numbers, config.floor), config.max_copies):
        yield joined_rows(found)
    for shard, first, end in work.own_rows(units, numbers):
        for found in join_copies(shards[shard], first, end, config.max_copies):
            yield joined_rows(found)


def joined_rows(found: Found) -> pa.RecordBatch:
    """JOINED rows of scored pairs."""
    rows = found_rows(found)
    return pa.RecordBatch.from_arrays([*rows.columns, pa.nulls(rows.num_rows, pa.int64())], schema=pa_schema(JOINED))


def event(name: str, count: int) -> pa.RecordBatch:
    """A JOINED row that carries a count alone."""
    return pa.RecordBatch.from_pylist([{name: count}], schema=pa_schema(JOINED))


def whole_vectors(batches: Iterable[pa.RecordBatch], rows: int = VISITOR_ROWS) -> Iterator[list[pa.RecordBatch]]:
    """Gather batches, sorted by `head_id`, to at least so many texts, never parting the texts of one vector."""
    waiting: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        if count >= rows:
            head = batch.column("head_id").to_numpy()
            same = int(np.searchsorted(head, waiting[-1].column("head_id")[-1].as_py(), side="right"))
            if same:
                waiting.append(batch.slice(0, same))
                batch = batch.slice(same)
            if batch.num_rows:
                yield waiting
                waiting, count = [], 0
        if batch.num_rows:
            waiting.append(batch)
            count += batch.num_rows
    if waiting:
        yield waiting
