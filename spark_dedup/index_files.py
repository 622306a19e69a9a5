"""Brings the HNSW shards from the store to every executor, once each: the per-executor broadcast.

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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from spark_dedup.errors import EnvironmentProblem, StoreError
from spark_dedup.kernels.hnsw import FILES, MANIFEST, PART_BYTES, Shard

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row

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
    """

    token: str
    sizes: dict[tuple[int, str], int]

    def name(self, shard: int, file: str) -> str:
        """Name under which Spark knows a file."""
        return f"spark_dedup-{self.token}-{shard}-{file}"

    def open(self, shard: int) -> Shard | None:
        """Open a shard on an executor, once per worker process; None for a shard without vectors.

        Raises:
            StoreError: If a file is not as long as the manifest says.
        """
        if (shard, FILES[0]) not in self.sizes:
            return None
        if any(token != self.token for token, _ in _opened):
            _opened.clear()
        if (self.token, shard) not in _opened:
            _opened[self.token, shard] = Shard.open(*(self._fetched(shard, file) for file in FILES))
        return _opened[self.token, shard]

    def _fetched(self, shard: int, file: str) -> Path:
        from pyspark import SparkFiles

        path = Path(SparkFiles.get(self.name(shard, file)))
        found = path.stat().st_size
        if found != self.sizes[shard, file]:
            raise StoreError(f"file {file} of shard {shard} has {found} bytes on this executor, want {self.sizes[shard, file]}")
        return path


_opened: dict[tuple[str, int], Shard] = {}


@contextmanager
def index_files(index: DataFrame, manifest: Sequence[Row]) -> Iterator[ShardFiles]:
    """Bring the shards to every executor for as long as the context lasts.

    Args:
        index: INDEX, of a session with a SparkContext.
        manifest: All rows of INDEX_SHARDS.

    Yields:
        What the workers need to open them.

    Raises:
        StoreError: If the stored files are not what the manifest says.
    """
    from pyspark import SparkFiles

    context = index.sparkSession.sparkContext
    files = ShardFiles(uuid.uuid4().hex[:12], {(row["shard"], row["file"]): row["bytes"] for row in manifest})
    folder = Path(tempfile.mkdtemp(prefix="spark_dedup-"))
    names = [files.name(*key) for key in files.sizes]
    try:
        write_files(index, files, folder)
        for row in manifest:
            check_file(folder / files.name(row["shard"], row["file"]), row)
        for name in names:
            context.addFile(str(folder / name))
        yield files
        # An executor that joins later still asks for every file that was ever added, so they stay, emptied.
        for name in names:
            os.truncate(folder / name, 0)
            with suppress(FileNotFoundError):
                os.unlink(SparkFiles.get(name))
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def write_files(index: DataFrame, files: ShardFiles, folder: Path) -> None:
    """Write every shard file to the driver's disk, a few MiB at a time."""
    jobs = math.ceil(sum(files.sizes.values()) / FETCH_BYTES)
    if not jobs:
        return
    parts = index.where(F.col("file") != MANIFEST).repartition(jobs, "shard", "file", "part")
    for key in files.sizes:
        (folder / files.name(*key)).touch()
    for row in parts.toLocalIterator(prefetchPartitions=True):
        with (folder / files.name(row["shard"], row["file"])).open("r+b") as file:
            file.seek(row["part"] * PART_BYTES)
            file.write(row["bytes"])


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
