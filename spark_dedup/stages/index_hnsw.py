"""VECTORS -> INDEX_CELLS, INDEX: the HNSW shards, built on executors and kept as table rows."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from pyspark.sql import functions as F

from spark_dedup.config import SearchConfig
from spark_dedup.grouped import group_runs, spread
from spark_dedup.kernels.cells import Cells, cell_count, sample_size, shard_count, train_cells
from spark_dedup.kernels.hnsw import FILES, MANIFEST, PART_BYTES, ShardBuilder
from spark_dedup.schema import INDEX, INDEX_CELLS, INDEX_SHARDS, REP_ID, VECTORS, pa_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PARTS_AT_ONCE = 64

SAMPLE_STEPS = 1 << 20


def coarse_cells(vectors: DataFrame, heads: int, config: SearchConfig) -> DataFrame:
    """Train the coarse cells in one task, on a sample that the ids alone decide.

    Args:
        vectors: VECTORS.
        heads: Distinct vectors among them: decides the number of shards.
        config: Uses `shards`.

    Returns:
        INDEX_CELLS: one row where there is one shard, none where there is no vector.
    """
    shards = shard_count(heads, config.shards)
    first = VECTORS.conform(vectors).where(F.col("head_id") == F.col(REP_ID)).select(REP_ID, "vector")
    if shards == 1:
        least = first.agg(F.min_by("vector", REP_ID).alias("centroid")).where(F.col("centroid").isNotNull())
        return INDEX_CELLS.conform(least.select(F.lit(0).alias("cell"), F.lit(0).alias("shard"), "centroid"))
    steps = math.ceil(SAMPLE_STEPS * sample_size(cell_count(shards)) / max(heads, 1))
    sample = first.where(F.pmod(F.xxhash64(REP_ID), F.lit(SAMPLE_STEPS)) < steps)
    schema = INDEX_CELLS.arrow()

    def train(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from spark_dedup.kernels.vectors import from_binary, to_binary

        parts = [from_binary(batch.column("vector")) for batch in batches if batch.num_rows]
        if parts:
            cells = train_cells(np.concatenate(parts), shards)
            columns = [pa.array(np.arange(len(cells.shards), dtype=np.int32)), pa.array(cells.shards), to_binary(cells.centroids)]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)

    return INDEX_CELLS.conform(sample.repartition(1).sortWithinPartitions(REP_ID).mapInArrow(train, INDEX_CELLS.ddl()))


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
    settled_schema, schema = pa_schema(ddl), INDEX.arrow()

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
            with tempfile.TemporaryDirectory(prefix="spark_dedup-") as folder:
                rows = builder.write(Path(folder))
                del builder
                parts = file_parts(Path(folder), FILES, rows)
                while some := list(itertools.islice(parts, PARTS_AT_ONCE)):
                    columns = [[shard] * len(some), *zip(*some, strict=True)]
                    yield pa.RecordBatch.from_arrays([pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)], schema=schema)

    shards = max(cells.count, 1)
    placed = VECTORS.conform(vectors).mapInArrow(settle, ddl)
    ordered = spread(placed, F.col("shard"), shards, shards).sortWithinPartitions("shard", "head_id", REP_ID)
    return INDEX.conform(ordered.mapInArrow(build, INDEX.ddl()))


def file_parts(folder: Path, names: tuple[str, ...], rows: int) -> Iterator[tuple[str, int, bytes]]:
    """Cut files into parts, and add the manifest: what each file must weigh and hash to.

    Args:
        folder: Where the files are.
        names: Which files.
        rows: Distinct vectors in the shard.

    Yields:
        File name, part number from 0, and at most `PART_BYTES` bytes.
    """
    files = []
    for name in names:
        checksum, size = hashlib.sha256(), 0
        with (folder / name).open("rb") as file:
            part = 0
            while data := file.read(PART_BYTES):
                checksum.update(data)
                size += len(data)
                yield name, part, data
                part += 1
        files.append({"file": name, "rows": rows, "bytes": size, "sha256": checksum.hexdigest()})
    yield MANIFEST, 0, json.dumps(files).encode()


def index_manifest(index: DataFrame) -> DataFrame:
    """What the files of an index must weigh and hash to.

    Args:
        index: INDEX.

    Returns:
        INDEX_SHARDS: one row per file.
    """
    kind = "array<struct<file: string, rows: bigint, bytes: bigint, sha256: string>>"
    listed = INDEX.conform(index).where(F.col("file") == MANIFEST)
    files = listed.select("shard", F.explode(F.from_json(F.decode("bytes", "UTF-8"), kind)).alias("f"))
    return INDEX_SHARDS.conform(files.select("shard", "f.file", "f.rows", "f.bytes", "f.sha256"))
