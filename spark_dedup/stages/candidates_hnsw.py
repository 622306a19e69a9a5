"""VECTORS x INDEX -> SCORED_PAIRS: the self-join by nearest neighbours."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql import functions as F

from spark_dedup.asking import ASKING, FOUND, Texts, asked_rows, distinct_pairs, set_threads, slices, with_copies
from spark_dedup.config import SearchConfig
from spark_dedup.grouped import spread
from spark_dedup.index_files import ShardFiles
from spark_dedup.kernels.cells import Cells
from spark_dedup.kernels.expand import ask
from spark_dedup.kernels.hnsw import FILES, Shard
from spark_dedup.kernels.vectors import from_binary
from spark_dedup.schema import INDEX, REP_ID, pa_schema
from spark_dedup.shards import ASKING_ROW, FILE_PART, served

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Observation

METHOD = "hnsw"

ROUTED = f"`shard` int, `kind` int, `file` string, `part` int, `bytes` binary, {ASKING}"


def hnsw_candidates(
    queries: DataFrame,
    base: DataFrame,
    index: DataFrame | ShardFiles,
    cells: Cells,
    config: SearchConfig,
    *,
    partitions: int,
    noted: Observation | None = None,
) -> DataFrame:
    """Pairs of a query and a text of the base at or above the floor, each unordered pair once.

    Partitions, row order, batch sizes and the placement of the index do not change a single bit of the result.

    Args:
        queries: VECTORS rows that ask; on a full run the same as `base`.
        base: VECTORS, everything that was indexed.
        index: The files brought to the executors (`broadcast`), or INDEX itself (`partitioned`).
        cells: The rows of INDEX_CELLS.
        config: Uses `neighbours`, `floor`, `ef_search`, `margin`, `max_neighbours` and `max_copies`.
        partitions: Tasks that ask, at least 1.
        noted: Receives `pairs`, and of the events: `asked_again` (lists that were full above the floor at first), `saturated`
            (lists that `max_neighbours` cut), `copies_not_paired` (pairs that `max_copies` left out).

    Returns:
        SCORED_PAIRS.
    """
    asking = with_copies(queries, base, config)
    if isinstance(index, ShardFiles):
        found = ask_files(asking.repartition(partitions, REP_ID), index, cells, config)
    else:
        found = ask_shards(asking, INDEX.conform(index), cells, config)
    return distinct_pairs(found, METHOD, noted)


def ask_files(asking: DataFrame, files: ShardFiles, cells: Cells, config: SearchConfig) -> DataFrame:
    """Ask where the queries are, with the shards opened from the executor's disk."""

    def ask(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        set_threads()
        for batch in batches:
            for texts in slices(batch, config):
                visits = cells.visits(texts.vectors, config.margin)
                for shard in np.flatnonzero(visits.any(axis=0)):
                    opened = files.open(int(shard), FILES, Shard.open)
                    if opened is not None:
                        yield from ask_shard(opened, texts, visits[:, shard], config)

    return asking.mapInArrow(ask, FOUND)


def ask_shards(asking: DataFrame, index: DataFrame, cells: Cells, config: SearchConfig) -> DataFrame:
    """Send each query to the tasks of the shards that it visits; each task writes its shard to local disk first."""
    routed_schema = pa_schema(ROUTED)

    def route(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            visits = cells.visits(from_binary(batch.column("vector")), config.margin)
            for shard in np.flatnonzero(visits.any(axis=0)):
                some = batch.take(pa.array(np.flatnonzero(visits[:, shard])))
                n = some.num_rows
                key = [pa.array(np.full(n, value, dtype=np.int32)) for value in (shard, ASKING_ROW)]
                empty = [pa.nulls(n, routed_schema.field(name).type) for name in ("file", "part", "bytes")]
                yield pa.RecordBatch.from_arrays([*key, *empty, *some.columns], schema=routed_schema)

    def serve(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        set_threads()
        for _, shard, rows in served(iter(batches), "shard", FILES, Shard.open):
            for batch in rows:
                for texts in slices(batch, config):
                    yield from ask_shard(shard, texts, np.ones(len(texts.vectors), dtype=np.bool_), config)

    queries = asking.mapInArrow(route, ROUTED)
    parts = index.select("shard", F.lit(FILE_PART).alias("kind"), "file", "part", "bytes")
    shards = max(cells.count, 1)
    together = spread(queries.unionByName(parts, allowMissingColumns=True), F.col("shard"), shards, shards)
    return together.sortWithinPartitions("shard", "kind", "file", "part", REP_ID).mapInArrow(serve, FOUND)


def ask_shard(shard: Shard, texts: Texts, visiting: NDArray[np.bool_], config: SearchConfig) -> Iterator[pa.RecordBatch]:
    """FOUND rows of one shard."""
    return asked_rows(ask(shard, texts.batch, texts.vectors, texts.features, visiting, config))
