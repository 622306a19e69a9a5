"""Brings the shards of an index from the store to every executor, once each: the per-executor broadcast.

A Python broadcast would be unpickled by every worker process. Files are fetched once per executor by Spark and mapped into
memory, so all workers there share one copy.
"""

from __future__ import annotations

import hashlib
import math
import os
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
from pyspark.sql import functions as F

from spark_dedup.errors import EnvironmentProblem, StoreError
from spark_dedup.kernels.hnsw import MANIFEST, PART_BYTES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row

S = TypeVar("S")

BROADCAST_BYTES = 2 << 30
"""Largest index that `auto` brings to every executor: what a worker machine surely has beside its work."""

FETCH_BYTES = 16 << 20
"""Bytes that one small job brings to the driver."""

LEAST_RESULT_BYTES = 4 * FETCH_BYTES


def choose_placement(wanted: str, index_bytes: int, *, connect: bool, max_result_bytes: int) -> tuple[str, str]:
    """Decide where the index lies while it is asked.

    Args:
        wanted: `search.placement`.
        index_bytes: Size of all shard files.
        connect: Whether the session has no SparkContext.
        max_result_bytes: `spark.driver.maxResultSize`, 0 for no limit.

    Returns:
        `broadcast` or `partitioned`, and the reason in one line.

    Raises:
        EnvironmentProblem: If `broadcast` is wanted where it can not be.
    """
    size = f"{index_bytes / 2**20:.1f} MiB of index"
    if connect:
        if wanted == "broadcast":
            raise EnvironmentProblem(
                "search.placement 'broadcast' needs a SparkContext, got a Spark Connect session",
                hint="--set search.placement=auto; both placements give the same pairs",
            )
        return "partitioned", f"{size}; a Spark Connect session can not bring files to executors"
    if wanted != "auto":
        return wanted, f"{size}; set by search.placement"
    if index_bytes > BROADCAST_BYTES:
        return "partitioned", f"{size} are more than {BROADCAST_BYTES / 2**30:g} GiB"
    if 0 < max_result_bytes < LEAST_RESULT_BYTES:
        return "partitioned", f"{size}; spark.driver.maxResultSize is below {LEAST_RESULT_BYTES >> 20} MiB"
    return "broadcast", f"{size} fit beside the work of every executor"


@dataclass(frozen=True)
class ShardFiles:
    """Where the workers of any executor find the shards.

    Attributes:
        token: Makes file names unique within the application.
        sizes: Bytes of each file, by shard and file name.
        folder: Where they are if driver and executors share a disk; None where Spark has brought them.
    """

    token: str
    sizes: dict[tuple[int, str], int]
    folder: str | None

    def name(self, shard: int, file: str) -> str:
        """Name under which Spark knows a file."""
        return f"spark_dedup-{self.token}-{shard}-{file}"

    def open(self, shard: int, names: tuple[str, ...], opened: Callable[..., S]) -> S | None:
        """Open a shard on an executor, once per worker process; None for a shard without vectors.

        Args:
            shard: Its number.
            names: Its files.
            opened: Opens it, from the paths of the files.

        Raises:
            StoreError: If a file is not as long as the manifest says.
        """
        if (shard, names[0]) not in self.sizes:
            return None
        if any(token != self.token for token, _ in _opened):
            _opened.clear()
        if (self.token, shard) not in _opened:
            _opened[self.token, shard] = opened(*(self._fetched(shard, name) for name in names))
        found: S = _opened[self.token, shard]
        return found

    def _fetched(self, shard: int, file: str) -> Path:
        from pyspark import SparkFiles

        name = self.name(shard, file)
        path = Path(SparkFiles.get(name) if self.folder is None else os.path.join(self.folder, name))
        found = path.stat().st_size
        if found != self.sizes[shard, file]:
            raise StoreError(f"file {file} of shard {shard} has {found} bytes on this executor, want {self.sizes[shard, file]}")
        return path


_opened: dict[tuple[str, int], Any] = {}


@contextmanager
def index_files(index: DataFrame, manifest: Sequence[Row], *, local: bool = False) -> Iterator[ShardFiles]:
    """Bring the shards to every executor for as long as the context lasts.

    Args:
        index: INDEX, of a session with a SparkContext.
        manifest: All rows of INDEX_SHARDS.
        local: Whether driver and executors are one machine, so that nothing has to be brought anywhere.

    Yields:
        What the workers need to open them.

    Raises:
        StoreError: If the stored files are not what the manifest says.
    """
    folder = Path(tempfile.mkdtemp(prefix="spark_dedup-"))
    sizes = {(row["shard"], row["file"]): row["bytes"] for row in manifest}
    files = ShardFiles(uuid.uuid4().hex[:12], sizes, str(folder) if local else None)
    paths = {key: folder / files.name(*key) for key in sizes}
    keep = False
    try:
        for path in paths.values():
            path.touch()
        wanted = index.where(F.col("file") != MANIFEST)
        if local:
            write_from_tasks(wanted, paths)
        else:
            write_from_driver(wanted, paths, sum(sizes.values()))
        for row in manifest:
            check_file(paths[row["shard"], row["file"]], row)
        if not local:
            keep = True
            for path in paths.values():
                index.sparkSession.sparkContext.addFile(str(path))
        yield files
    finally:
        if keep:
            withdraw(paths.values())
        else:
            shutil.rmtree(folder, ignore_errors=True)


def write_from_tasks(parts: DataFrame, paths: dict[tuple[int, str], Path]) -> None:
    """Write every shard file where the tasks run, which is here."""
    names = {key: str(path) for key, path in paths.items()}

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            shard, file, part = (batch.column(name).to_pylist() for name in ("shard", "file", "part"))
            for key, n, data in zip(zip(shard, file, strict=True), part, batch.column("bytes"), strict=True):
                write_part(names[key], n, data.as_buffer())
        yield from ()

    parts.mapInArrow(write, "`none` int").collect()


def write_from_driver(parts: DataFrame, paths: dict[tuple[int, str], Path], total: int) -> None:
    """Write every shard file to the driver's disk; a few MiB at a time pass its memory."""
    jobs = max(1, math.ceil(total / FETCH_BYTES))
    for row in parts.repartition(jobs, "shard", "file", "part").toLocalIterator(prefetchPartitions=True):
        write_part(paths[row["shard"], row["file"]], row["part"], row["bytes"])


def write_part(path: str | Path, part: int, data: bytes | pa.Buffer) -> None:
    """Put one part into its place; parts may come in any order."""
    with open(path, "r+b") as file:
        file.seek(part * PART_BYTES)
        file.write(data)


def withdraw(paths: Iterable[Path]) -> None:
    """Free the disk of files that Spark knows.

    An executor that joins later still asks the driver for every file that was ever added, so they stay, emptied.
    """
    from pyspark import SparkFiles

    for path in paths:
        os.truncate(path, 0)
        with suppress(FileNotFoundError):
            os.unlink(SparkFiles.get(path.name))


def check_file(path: Path, row: Row) -> None:
    """Compare a file with its row of INDEX_SHARDS.

    Raises:
        StoreError: Naming the file, and what was found and wanted.
    """
    checksum = hashlib.sha256()
    with path.open("rb") as file:
        while data := file.read(FETCH_BYTES):
            checksum.update(data)
    size, found = path.stat().st_size, checksum.hexdigest()
    if (size, found) != (row["bytes"], row["sha256"]):
        raise StoreError(
            f"file {row['file']} of shard {row['shard']} is damaged: {size} bytes, sha256 {found}, "
            f"want {row['bytes']} bytes, sha256 {row['sha256']}",
            hint="build the index anew: spark-dedup run --rebuild",
        )
