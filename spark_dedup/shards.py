"""What the stages of every search engine share: training cells, shards as table rows, and pairs as workers give them."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql import functions as F

from spark_dedup.config import SearchConfig
from spark_dedup.errors import StoreError
from spark_dedup.kernels.cells import Cells, sample_size, train_cells
from spark_dedup.kernels.expand import Asked, Batch, Found
from spark_dedup.kernels.features import NUMBERS, FeatureBlock, decode
from spark_dedup.kernels.hnsw import MANIFEST, PART_BYTES
from spark_dedup.kernels.vectors import from_binary, to_binary
from spark_dedup.schema import INDEX, INDEX_CELLS, INDEX_SHARDS, LEFT_ID, REP_ID, RIGHT_ID, SCORED_PAIRS, VECTORS, pa_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Observation


S = TypeVar("S")

Ints = NDArray[np.int64]

PARTS_AT_ONCE = 64

SAMPLE_STEPS = 1 << 20

SCORES = ("cosine", "jaccard", "containment", "substitution")
EVENTS = ("copies_not_paired", "asked_again", "saturated")
FOUND = ", ".join(
    [f"`{LEFT_ID}` bigint, `{RIGHT_ID}` bigint", *(f"`{s}` double" for s in SCORES), "`numbers` int", *(f"`{e}` bigint" for e in EVENTS)]
)
"""Pairs as workers give them; rows without ids carry the events that belong to no pair."""


ASKING = f"{VECTORS.ddl()}, `copies` bigint"
"""Texts that ask, with the number of texts that have the same vector where that is more than `max_copies`."""

SLICE_ROWS = 4096
"""Texts that a worker asks for at once, whatever the size of Arrow batches."""

PROBED = f"`probes` binary, {VECTORS.ddl()}"
"""VECTORS with the cells that each vector visits, as little-endian int32, its home first."""


def sampled_cells(vectors: DataFrame, heads: int, shards: int, cells: int) -> DataFrame:
    """Train cells in one task, on a sample that the ids alone decide.

    Args:
        vectors: VECTORS.
        heads: Distinct vectors among them.
        shards: Shards that the cells are grouped into, at least 1.
        cells: Cells wanted, at least `shards`; fewer where the sample is smaller.

    Returns:
        INDEX_CELLS: one row where there is one cell, none where there is no vector.
    """
    first = VECTORS.conform(vectors).where(F.col("head_id") == F.col(REP_ID)).select(REP_ID, "vector")
    if cells == 1:
        least = first.agg(F.min_by("vector", REP_ID).alias("centroid")).where(F.col("centroid").isNotNull())
        return INDEX_CELLS.conform(least.select(F.lit(0).alias("cell"), F.lit(0).alias("shard"), "centroid"))
    steps = math.ceil(SAMPLE_STEPS * sample_size(cells) / max(heads, 1))
    sample = first.where(F.pmod(F.xxhash64(REP_ID), F.lit(SAMPLE_STEPS)) < steps)
    schema = INDEX_CELLS.arrow()

    def train(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        parts = [from_binary(batch.column("vector")) for batch in batches if batch.num_rows]
        if parts:
            trained = train_cells(np.concatenate(parts), shards, cells)
            columns = [pa.array(np.arange(len(trained.shards), dtype=np.int32)), pa.array(trained.shards), to_binary(trained.centroids)]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)

    return INDEX_CELLS.conform(sample.repartition(1).sortWithinPartitions(REP_ID).mapInArrow(train, INDEX_CELLS.ddl()))


def with_copies(queries: DataFrame, base: DataFrame, config: SearchConfig) -> DataFrame:
    """ASKING rows of the texts that ask.

    Args:
        queries: VECTORS rows that ask.
        base: VECTORS, everything that was indexed.
        config: Uses `max_copies`.
    """
    # Sizes above the cap only: at most one row for every `max_copies` texts.
    sizes = VECTORS.conform(base).groupBy("head_id").agg(F.count("*").alias("copies")).where(F.col("copies") > config.max_copies)
    joined = VECTORS.conform(queries).join(F.broadcast(sizes), ["head_id"], how="left")
    return joined.select(*VECTORS.names, F.coalesce("copies", F.lit(1).cast("bigint")).alias("copies"))


@dataclass(frozen=True)
class Texts:
    """Texts that ask: the batch, its distinct vectors, and the features of every text."""

    batch: Batch
    vectors: NDArray[np.float32]
    features: FeatureBlock


def slices(batch: pa.RecordBatch, config: SearchConfig) -> Iterator[Texts]:
    """Cut an ASKING batch into slices of bounded size."""
    for start in range(0, batch.num_rows, SLICE_ROWS):
        part = batch.slice(start, SLICE_ROWS)
        rep, head, copies = (part.column(name).to_numpy() for name in (REP_ID, "head_id", "copies"))
        texts, first = Batch.of(rep, head, copies, config.max_copies)
        yield Texts(texts, from_binary(part.column("vector").take(pa.array(first))), decode(part.column("features")))


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


def local_folder() -> str | None:
    """Disk of the executor: what Spark uses for shuffles, else the system's temporary folder."""
    folders = os.environ.get("SPARK_LOCAL_DIRS") or os.environ.get("LOCAL_DIRS") or ""
    first = folders.split(",")[0]
    return first if first and os.access(first, os.W_OK) else None


def found_rows(found: Found) -> pa.RecordBatch:
    """FOUND rows of scored pairs."""
    s = found.scores
    columns = [found.left, found.right, found.cosine, s.jaccard, s.containment, s.substitution, s.numbers.astype(np.int32)]
    none = pa.nulls(len(found.left), pa.int64())
    return pa.RecordBatch.from_arrays([*map(pa.array, columns), pa.array(found.left_out), none, none], schema=pa_schema(FOUND))


def asked_rows(asked: Asked) -> Iterator[pa.RecordBatch]:
    """FOUND rows of what a batch found in a shard: the pairs, then the events where there were any."""
    yield from map(found_rows, asked.pairs)
    if asked.asked_again:
        yield pa.RecordBatch.from_pylist([{"asked_again": asked.asked_again, "saturated": asked.saturated}], schema=pa_schema(FOUND))


def named_pairs(found: DataFrame, method: str, noted: Observation | None, events: tuple[str, ...] = EVENTS) -> DataFrame:
    """Pairs that came once, as a table; events go to `noted`.

    Args:
        found: FOUND rows, perhaps with further events; each unordered pair once.
        method: Engine that found them.
        noted: Receives the sums of the events and the number of pairs.
        events: Columns that are summed.

    Returns:
        SCORED_PAIRS.
    """
    if noted is not None:
        sums = [F.coalesce(F.sum(name), F.lit(0)).alias(name) for name in events]
        found = found.observe(noted, F.count(LEFT_ID).alias("pairs"), *sums)
    words = F.array(*[F.lit(name) for name in NUMBERS])
    named = found.where(F.col(LEFT_ID).isNotNull()).withColumns({"method": F.lit(method), "numbers": F.get(words, F.col("numbers"))})
    return SCORED_PAIRS.conform(named)


def distinct_pairs(found: DataFrame, method: str, noted: Observation | None) -> DataFrame:
    """Each unordered pair once, with the higher scores should two findings differ; events go to `noted`.

    Args:
        found: FOUND rows; a pair may come more than once.
        method: Engine that found them.
        noted: Receives the sums of the events and the number of pairs.

    Returns:
        SCORED_PAIRS.
    """
    # Numbers stay codes until here: a string among the aggregates would make Spark sort instead of hash.
    best = [F.max(name).alias(name) for name in (*SCORES, "numbers", "copies_not_paired")]
    pairs = found.groupBy(LEFT_ID, RIGHT_ID).agg(*best, *[F.sum(name).alias(name) for name in ("asked_again", "saturated")])
    return named_pairs(pairs, method, noted)


def set_threads() -> None:
    """Use the threads that Spark gives a worker: as many as a task has cores."""
    import faiss

    faiss.omp_set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
