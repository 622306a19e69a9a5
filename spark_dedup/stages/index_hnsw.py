"""VECTORS -> INDEX_CELLS, INDEX: the HNSW shards, built on executors and kept as table rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as F

from spark_dedup.config import SearchConfig
from spark_dedup.grouped import group_runs, spread
from spark_dedup.kernels.cells import Cells, cell_count, graph_shards
from spark_dedup.kernels.hnsw import FILES, ShardBuilder
from spark_dedup.schema import INDEX, REP_ID, VECTORS, pa_schema
from spark_dedup.shards import sampled_cells, shard_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def coarse_cells(vectors: DataFrame, heads: int, config: SearchConfig) -> DataFrame:
    """Train the coarse cells in one task, on a sample that the ids alone decide.

    Args:
        vectors: VECTORS.
        heads: Distinct vectors among them: decides the number of shards.
        config: Uses `shards`.

    Returns:
        INDEX_CELLS: one row where there is one shard, none where there is no vector.
    """
    shards = graph_shards(heads, config.shards)
    return sampled_cells(vectors, heads, shards, cell_count(shards))


def build_index(vectors: DataFrame, cells: Cells, config: SearchConfig) -> DataFrame:
    """Build every shard in a task of its own; the files come out as rows.

    Equal vectors give equal files, whatever the partitions, the row order and the number of executors.

    Args:
        vectors: VECTORS.
        cells: The rows of INDEX_CELLS.
        config: Uses `links` and `ef_construction`.

    Returns:
        INDEX: the files of each shard in parts, with a manifest of them.
    """
    ddl = f"`shard` int, {VECTORS.ddl()}"
    settled_schema = pa_schema(ddl)

    def settle(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from spark_dedup.kernels.vectors import from_binary

        for batch in batches:
            shard = pa.array(cells.home(from_binary(batch.column("vector"))))
            yield pa.RecordBatch.from_arrays([shard, *batch.columns], schema=settled_schema)

    def build(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from spark_dedup.kernels.features import decode
        from spark_dedup.kernels.vectors import from_binary

        for shard, run in group_runs(iter(batches), "shard"):
            builder = ShardBuilder(config)
            for batch in run:
                rep, head = (batch.column(name).to_numpy() for name in (REP_ID, "head_id"))
                builder.add(rep, head, from_binary(batch.column("vector")), decode(batch.column("features")))
            yield from shard_rows(shard, builder.write, FILES)

    shards = max(cells.count, 1)
    placed = VECTORS.conform(vectors).mapInArrow(settle, ddl)
    ordered = spread(placed, F.col("shard"), shards, shards).sortWithinPartitions("shard", "head_id", REP_ID)
    return INDEX.conform(ordered.mapInArrow(build, INDEX.ddl()))
