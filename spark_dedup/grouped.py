"""Grouped work in Python: send each group to a known partition, then cut the partition's stream at group changes.

`spread` + `sortWithinPartitions` + `mapInArrow` over `group_runs` streams, keeps vectors in Arrow buffers and runs on
every supported Spark, which `applyInPandas` (one object per row) and `applyInArrow` (whole groups, Spark 4 only) do not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

SPARK_SEED = 42
"""Seed of Spark's `hash` function."""


def murmur3(keys: NDArray[np.int32]) -> NDArray[np.int32]:
    """Spark's `hash(key)` for int keys: 32-bit Murmur3 of the four bytes.

    Args:
        keys: int32 (n,).

    Returns:
        int32 (n,). Source: Austin Appleby, MurmurHash3_x86_32, with Spark's seed.
    """
    k = keys.astype(np.uint32) * np.uint32(0xCC9E2D51)
    h = np.uint32(SPARK_SEED) ^ (_rotate(k, 15) * np.uint32(0x1B873593))
    h = _rotate(h, 13) * np.uint32(5) + np.uint32(0xE6546B64)
    h ^= np.uint32(4)  # length of the key in bytes
    h = (h ^ (h >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    h = (h ^ (h >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return (h ^ (h >> np.uint32(16))).view(np.int32)


def _rotate(x: NDArray[np.uint32], bits: int) -> NDArray[np.uint32]:
    return (x << np.uint32(bits)) | (x >> np.uint32(32 - bits))


def spread_keys(groups: int, partitions: int) -> list[int]:
    """Keys that Spark's hash partitioning sends where we want them.

    Hashing the group numbers themselves puts several groups into one partition and none into another, so that a few
    tasks do the work of all.

    Args:
        groups: Number of groups, at least 1.
        partitions: Number of partitions, at least 1.

    Returns:
        For each group g an int key k with pmod(hash(k), partitions) = g % partitions.
    """
    needed = min(groups, partitions)
    found: dict[int, int] = {}
    start, step = 0, 8 * partitions + 64
    while len(found) < needed:
        keys = np.arange(start, start + step, dtype=np.int32)
        places, first = np.unique(np.mod(murmur3(keys).astype(np.int64), partitions), return_index=True)
        for place, i in zip(places.tolist(), first.tolist(), strict=True):
            if place < needed:
                found.setdefault(place, start + i)
        start += step
    return [found[g % partitions] for g in range(groups)]


def spread(df: DataFrame, group: Column, groups: int, partitions: int) -> DataFrame:
    """Repartition so that group g lies in exactly partition g % partitions.

    Args:
        df: Any frame.
        group: Group of each row: int or bigint in [0, groups).
        groups: Number of groups, at least 1; a number that is too large costs nothing.
        partitions: Number of partitions, at least 1.

    Returns:
        The same rows and columns in `partitions` partitions, in no order.
    """
    from pyspark.sql import functions as F

    keys = spread_keys(min(groups, partitions), partitions)
    table = F.expr(f"array({', '.join(map(str, keys))})")
    return df.repartition(partitions, F.get(table, F.pmod(group, F.lit(partitions))))


def group_runs(batches: Iterable[pa.RecordBatch], key: str) -> Iterator[tuple[Any, Iterator[pa.RecordBatch]]]:
    """Cut a stream that is sorted by one column where that column changes.

    Args:
        batches: Record batches, equal keys side by side, also across batches.
        key: Name of an int or string column.

    Yields:
        Each key as a Python value, and a lazy stream of zero-copy slices with its rows. As with `itertools.groupby`,
        a group's stream must be read before the next group is asked for; what is left of it is skipped.
    """
    for value, runs in groupby(_runs(batches, key), key=itemgetter(0)):
        yield value, (piece for _, piece in runs)


def _runs(batches: Iterable[pa.RecordBatch], key: str) -> Iterator[tuple[Any, pa.RecordBatch]]:
    for batch in batches:
        runs = pc.run_end_encode(batch.column(key))
        start = 0
        for value, end in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
            yield value, batch.slice(start, end - start)
            start = end


def whole(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """All rows of a task as one table; nothing where it has no rows."""
    received = [batch for batch in batches if batch.num_rows]
    if received:
        yield pa.Table.from_batches(received)
