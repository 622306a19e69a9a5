"""VECTORS -> INDEX_CELLS, INDEX: vectors in the order of their cells, and which cells each of them visits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from pyspark.sql import functions as F

from spark_dedup.config import SearchConfig
from spark_dedup.grouped import spread
from spark_dedup.kernels.cell_index import FILES, CellRows
from spark_dedup.kernels.cells import FINE_ITERATIONS, FINE_SAMPLE_PER_CELL, ONE_CELL_ROWS, Cells, cell_shards, fine_cell_count
from spark_dedup.kernels.vectors import cosines_at, from_binary
from spark_dedup.schema import CENTROID_SIMILARITY, INDEX, REP_ID, VECTORS, pa_schema
from spark_dedup.shards import PROBED, probed, probed_rows, reach, sampled_cells, shard_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def fine_cells(vectors: DataFrame, heads: int, config: SearchConfig) -> DataFrame:
    """Train the cells in one task, on a sample that the ids alone decide.

    Args:
        vectors: VECTORS.
        heads: Distinct vectors among them: decides the numbers of cells and shards.
        config: Uses `cells` and `shards`.

    Returns:
        INDEX_CELLS.
    """
    shards, cells = cell_shards(heads, config.shards), fine_cell_count(heads, config.cells, config.shards)
    per_cell = FINE_SAMPLE_PER_CELL if cells > 1 else ONE_CELL_ROWS
    return sampled_cells(vectors, heads, shards, cells, per_cell=per_cell, iterations=FINE_ITERATIONS)


def centroid_similarities(vectors: DataFrame, cells: Cells) -> DataFrame:
    """How near each text lies to the centroid of its cell.

    Args:
        vectors: VECTORS.
        cells: The rows of INDEX_CELLS.

    Returns:
        rep_id, centroid_similarity: a cosine, in float64.
    """

    def compare(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            x = from_binary(batch.column("vector"))
            near = cosines_at(x, np.arange(len(x)), cells.centroids, cells.probes(x, None)[1])
            yield pa.RecordBatch.from_arrays([batch.column(REP_ID), pa.array(near)], names=[REP_ID, CENTROID_SIMILARITY])

    return VECTORS.conform(vectors).select(REP_ID, "vector").mapInArrow(compare, f"`{REP_ID}` bigint, `{CENTROID_SIMILARITY}` double")


def build_cell_index(vectors: DataFrame, cells: Cells, config: SearchConfig) -> DataFrame:
    """Bring every shard into cell order in a task of its own; the files come out as rows.

    Equal vectors give equal files, whatever the partitions, the row order and the number of executors.

    Args:
        vectors: VECTORS.
        cells: The rows of INDEX_CELLS.
        config: Uses `engine` and `margin`.

    Returns:
        INDEX: the files of each shard that has a vector, in parts, with a manifest of them.
    """
    margin = reach(config)
    ddl = f"`shard` int, {PROBED}"
    settled_schema = pa_schema(ddl)

    def settle(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            bounds, visits, rows = probed(batch, cells, margin)
            shard = cells.shards[visits[bounds[:-1]]]
            yield pa.RecordBatch.from_arrays([pa.array(shard), *rows.columns], schema=settled_schema)

    def build(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        received = [batch for batch in batches if batch.num_rows]
        if received:
            shard = received[0].column("shard")[0].as_py()
            rows = [probed_rows(received)]
            received.clear()

            def write(folder: Path) -> int:
                ordered = CellRows.of(*rows.pop())
                ordered.write(folder)
                return len(ordered.heads)

            yield from shard_rows(shard, write, FILES)

    shards = max(cells.count, 1)
    placed = VECTORS.conform(vectors).mapInArrow(settle, ddl)
    # As many partitions as shards: each holds one shard, and NumPy brings it into order.
    return INDEX.conform(spread(placed, F.col("shard"), shards, shards).mapInArrow(build, INDEX.ddl()))
