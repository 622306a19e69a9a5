"""The shards of an index as table rows, and the cells that they are made of."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql import functions as F

from spark_dedup.config import SearchConfig
from spark_dedup.errors import StoreError
from spark_dedup.grouped import group_runs
from spark_dedup.kernels.cells import ITERATIONS, SAMPLE_PER_CELL, Cells, sample_size, train_cells
from spark_dedup.kernels.features import FeatureBlock, decode
from spark_dedup.kernels.hnsw import MANIFEST, PART_BYTES
from spark_dedup.kernels.vectors import from_binary, to_binary
from spark_dedup.schema import INDEX, INDEX_CELLS, INDEX_SHARDS, REP_ID, VECTORS, pa_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


S = TypeVar("S")

Ints = NDArray[np.int64]

PARTS_AT_ONCE = 64

SAMPLE_STEPS = 1 << 20

FILE_PART, ASKING_ROW = 0, 1
"""Kinds of rows that come to the task of a shard, in this order."""

PROBED = f"`probes` binary, {VECTORS.ddl()}"
"""VECTORS with the cells that each vector visits, as little-endian int32, its home first."""


def sampled_cells(
    vectors: DataFrame, heads: int, shards: int, cells: int, *, per_cell: int = SAMPLE_PER_CELL, iterations: int = ITERATIONS
) -> DataFrame:
    """Train cells in one task, on a sample that the ids alone decide.

    Args:
        vectors: VECTORS.
        heads: Distinct vectors among them.
        shards: Shards that the cells are grouped into, at least 1.
        cells: Cells wanted, at least `shards`; fewer where the sample is smaller.
        per_cell: Sampled vectors for a cell.
        iterations: Rounds of k-means.

    Returns:
        INDEX_CELLS: one row where there is one cell, none where there is no vector.
    """
    first = VECTORS.conform(vectors).where(F.col("head_id") == F.col(REP_ID)).select(REP_ID, "vector")
    steps = math.ceil(SAMPLE_STEPS * sample_size(cells, per_cell) / max(heads, 1))
    sample = first.where(F.pmod(F.xxhash64(REP_ID), F.lit(SAMPLE_STEPS)) < steps)
    schema = INDEX_CELLS.arrow()

    def train(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        parts = [from_binary(batch.column("vector")) for batch in batches if batch.num_rows]
        if parts:
            trained = train_cells(np.concatenate(parts), shards, cells, iterations)
            columns = [pa.array(np.arange(len(trained.shards), dtype=np.int32)), pa.array(trained.shards), to_binary(trained.centroids)]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)

    return INDEX_CELLS.conform(sample.repartition(1).sortWithinPartitions(REP_ID).mapInArrow(train, INDEX_CELLS.ddl()))


def reach(config: SearchConfig) -> float | None:
    """The margin of an engine of cells; None where a vector visits its home alone.

    Args:
        config: Uses `engine` and `margin`.
    """
    return None if config.engine == "semdedup" else config.margin


def probed(batch: pa.RecordBatch, cells: Cells, margin: float | None) -> tuple[Ints, Ints, pa.RecordBatch]:
    """PROBED rows of a batch of VECTORS rows, with what `Cells.probes` gives for them."""
    bounds, visits = cells.probes(from_binary(batch.column("vector")), margin)
    offsets, data = pa.py_buffer((4 * bounds).astype(np.int32)), pa.py_buffer(visits.astype("<i4"))
    blobs = pa.Array.from_buffers(pa.binary(), batch.num_rows, [None, offsets, data])
    return bounds, visits, pa.RecordBatch.from_arrays([blobs, *batch.columns], schema=pa_schema(PROBED))


def probed_rows(batches: list[pa.RecordBatch]) -> tuple[Ints, Ints, NDArray[np.float32], FeatureBlock, Ints, Ints]:
    """What `CellRows.of` takes, from batches with the columns of PROBED."""
    table = pa.Table.from_batches(batches)
    probes = table.column("probes").cast(pa.large_binary()).combine_chunks()
    _, offsets, data = probes.buffers()
    at = np.frombuffer(offsets, dtype=np.int64)[probes.offset : probes.offset + len(probes) + 1]
    visits = np.frombuffer(data, dtype="<i4", count=int(at[-1]) // 4)[at[0] // 4 :].astype(np.int64)
    rep, head = (table.column(name).to_numpy() for name in (REP_ID, "head_id"))
    vectors = np.concatenate([from_binary(batch.column("vector")) for batch in batches])
    return rep, head, vectors, decode(table.column("features")), (at - at[0]) // 4, visits


def shard_rows(shard: int, write: Callable[[Path], int], names: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
    """INDEX rows of one shard: its files in parts, and their manifest.

    Args:
        shard: Its number.
        write: Writes the files into a folder and gives the number of distinct vectors.
        names: The files.
    """
    schema = INDEX.arrow()
    with tempfile.TemporaryDirectory(prefix="spark_dedup-") as folder:
        parts = file_parts(Path(folder), names, write(Path(folder)))
        while some := list(itertools.islice(parts, PARTS_AT_ONCE)):
            columns = [[shard] * len(some), *zip(*some, strict=True)]
            yield pa.RecordBatch.from_arrays([pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)], schema=schema)


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


def receive(batches: Iterable[pa.RecordBatch], folder: Path, names: tuple[str, ...], opened: Callable[..., S]) -> S:
    """Write a shard's parts, which come in order, to local disk and open it.

    Args:
        batches: INDEX rows of one shard.
        folder: Empty.
        names: Its files.
        opened: Opens it, from the paths of the files.

    Raises:
        StoreError: If a file is not what the shard's manifest says.
    """
    manifest: list[dict[str, str | int]] = []
    found = {name: (0, hashlib.sha256()) for name in names}
    for batch in batches:
        for name, data in zip(batch.column("file").to_pylist(), batch.column("bytes"), strict=True):
            if name == MANIFEST:
                manifest = json.loads(data.as_py())
                continue
            view = memoryview(data.as_buffer())
            with (folder / name).open("ab") as file:
                file.write(view)
            found[name][1].update(view)
            found[name] = (found[name][0] + len(view), found[name][1])
    want = {str(entry["file"]): (entry["bytes"], entry["sha256"]) for entry in manifest}
    have = {name: (size, checksum.hexdigest()) for name, (size, checksum) in found.items()}
    if want != have:
        raise StoreError(
            f"the stored index is damaged: files (bytes, sha256) are {have}, want {want}",
            hint="build the index anew: spark-dedup run --rebuild",
        )
    return opened(*(folder / name for name in names))


def served(
    batches: Iterable[pa.RecordBatch], key: str, names: tuple[str, ...], opened: Callable[..., S]
) -> Iterator[tuple[int, S, Iterator[pa.RecordBatch]]]:
    """The shards that come to a task, one after the other, each on local disk until the next one is asked for.

    Args:
        batches: Sorted by `key` and `kind`: the parts of a shard, of the kind `FILE_PART`, then what is to be held against it.
        key: Column whose value tells the shards apart.
        names: Files of a shard.
        opened: Opens it, from the paths of the files.

    Yields:
        The key, the shard, and the rows that follow its parts. Rows for a shard without vectors, which has no parts, are passed over.

    Raises:
        StoreError: If a file is not what the shard's manifest says.
    """
    for number, run in group_runs(batches, key):
        with tempfile.TemporaryDirectory(prefix="spark_dedup-", dir=local_folder()) as folder:
            kinds = group_runs(run, "kind")
            kind, parts = next(kinds)
            if kind == FILE_PART:
                shard = receive(parts, Path(folder), names, opened)
                yield number, shard, (batch for _, rows in kinds for batch in rows)


def local_folder() -> str | None:
    """Disk of the executor: what Spark uses for shuffles, else the system's temporary folder."""
    folders = os.environ.get("SPARK_LOCAL_DIRS") or os.environ.get("LOCAL_DIRS") or ""
    first = folders.split(",")[0]
    return first if first and os.access(first, os.W_OK) else None
