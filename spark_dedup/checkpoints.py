"""Cutting the lineage of iterated DataFrames, and leaving nothing behind: no stored block, no file."""

from __future__ import annotations

import logging
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from spark_dedup.errors import EnvironmentProblem, first_line

SETTING = "components.checkpoint_dir"

PROBE_TASKS = 16
"""Tasks that try a checkpoint folder: enough to reach several executors, few enough to take a second."""

_log = logging.getLogger(__name__)


class Checkpoints:
    """Stores DataFrames during a block and frees all of them at its end.

    Local checkpoints live on the executors and die with them; they suit one machine. With a folder, every checkpoint is a
    Parquet file in a new folder below it, which the end of the block deletes. Parquet instead of Spark's own reliable
    checkpoints because it also works without a SparkContext, computes its input once, and knows its size.

    Args:
        spark: The session of the frames.
        folder: Folder that every executor can write and read, or None for local checkpoints.
    """

    def __init__(self, spark: SparkSession, folder: str | None) -> None:
        self._spark = spark
        self.folder = None if folder is None else f"{folder.rstrip('/')}/{uuid.uuid4().hex}"
        self._stored: list[tuple[DataFrame, str | None]] = []
        self._written = 0

    def __enter__(self) -> Checkpoints:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for frame, _ in list(self._stored):
            self.drop(frame)
        if self.folder is not None:
            delete_folder(self._spark, self.folder)

    def cut(self, frame: DataFrame) -> DataFrame:
        """Compute a frame now and return it without its lineage."""
        path = None
        if self.folder is None:
            stored = frame.localCheckpoint(eager=True)
        else:
            path = f"{self.folder}/{self._written}"
            self._written += 1
            frame.write.parquet(path)
            stored = self._spark.read.schema(frame.schema).parquet(path)
        self._stored.append((stored, path))
        return stored

    def drop(self, frame: DataFrame) -> None:
        """Free a frame that `cut` returned and that nothing reads any more."""
        for stored, path in [s for s in self._stored if s[0] is frame]:
            self._stored.remove((stored, path))
            if path is not None:
                delete_folder(self._spark, path)
            elif _jvm(self._spark) is not None:  # without a JVM the server frees the blocks together with the frame
                stored._jdf.queryExecution().logical().rdd().unpersist(False)


@contextmanager
def context_folder(spark: SparkSession, folder: str) -> Iterator[None]:
    """Point the SparkContext's own checkpoints to a folder for the time of the block, and back afterwards.

    Args:
        spark: A session with a SparkContext.
        folder: Where the context makes a folder of its own; the caller deletes it.
    """
    context = spark.sparkContext._jsc.sc()
    before = context.getCheckpointDir()
    spark.sparkContext.setCheckpointDir(folder)
    try:
        yield
    finally:
        getattr(context, "checkpointDir_$eq")(before)  # setCheckpointDir would make yet another folder below the old one


@contextmanager
def borrowed(spark: SparkSession, call: Callable[[], DataFrame]) -> Iterator[DataFrame]:
    """Lend the frame that a library call returns; then free it and every block that the call stored and forgot.

    Blocks that other threads store meanwhile are not touched: a call site, which belongs to the thread, marks the call's own.

    Args:
        spark: A session with a SparkContext.
        call: Makes the frame.
    """
    context = spark.sparkContext._jsc
    mark = f"spark_dedup {uuid.uuid4().hex}"
    try:
        context.setCallSite(mark)
        try:
            frame = call()
        finally:
            context.clearCallSite()
        yield frame
        frame.unpersist()
    finally:
        for rdd in context.getPersistentRDDs().values():
            if rdd.rdd().getCreationSite() == mark:
                rdd.unpersist(False)


def check_checkpoint_dir(spark: SparkSession, folder: str) -> None:
    """Write, read back and delete a few rows in a folder, as a run's checkpoints will.

    Args:
        spark: The session that is to use the folder.
        folder: Path in any file system that Spark knows; it is made if it is missing.

    Raises:
        EnvironmentProblem: If the folder cannot be made, written or read, or is not one and the same for all executors.
    """
    hint = f"set {SETTING} to a folder that every executor can write and read, such as one on HDFS, S3 or a volume"
    probe = f"{folder.rstrip('/')}/{uuid.uuid4().hex}"
    try:
        _make_folder(spark, probe)
        try:
            rows = spark.range(0, PROBE_TASKS, 1, PROBE_TASKS)
            rows.write.mode("overwrite").parquet(probe)
            found = sorted(r[0] for r in spark.read.schema(rows.schema).parquet(probe).collect())
        finally:
            delete_folder(spark, probe)
    except Exception as e:
        raise EnvironmentProblem(f"{SETTING}: {folder!r} cannot be used for checkpoints: {first_line(e)}", hint=hint) from None
    if found != list(range(PROBE_TASKS)):
        raise EnvironmentProblem(
            f"{SETTING}: {folder!r} is not shared: {PROBE_TASKS} tasks wrote a row each, {len(found)} can be read back", hint=hint
        )


def delete_folder(spark: SparkSession, path: str) -> None:
    """Delete a folder and all in it, if it is there."""
    jvm = _jvm(spark)
    if jvm is not None:
        fs, where = _file_system(spark, path)
        fs.delete(where, True)
    elif path.startswith("/"):
        shutil.rmtree(path, ignore_errors=True)  # volumes are mounted where the driver's Python runs
    else:
        _log.warning("checkpoint files remain in %s: this session offers no way to delete them", path)


def _make_folder(spark: SparkSession, path: str) -> None:
    # Before any task runs, because Spark logs a stack trace for every task that cannot write.
    if _jvm(spark) is not None:
        fs, where = _file_system(spark, path)
        if not fs.mkdirs(where):
            raise OSError("the folder cannot be made")


def _file_system(spark: SparkSession, path: str) -> tuple[Any, Any]:
    where = _jvm(spark).org.apache.hadoop.fs.Path(path)
    conf = spark._jsparkSession.sessionState().newHadoopConf()  # the session's own credentials included
    return where.getFileSystem(conf), where


def _jvm(spark: SparkSession) -> Any:
    return getattr(spark, "_jvm", None)  # Spark Connect has none and raises an AttributeError
