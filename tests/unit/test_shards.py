"""Shards that come to a task as rows."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from spark_dedup.errors import StoreError
from spark_dedup.shards import ASKING_ROW, FILE_PART, served, shard_rows


def parts_of(shard: int, content: bytes) -> list[dict]:
    """The rows of a shard of one file, sorted as they come."""

    def write(folder: Path) -> int:
        (folder / "a").write_bytes(content)
        return 1

    rows = [row for batch in shard_rows(shard, write, ("a",)) for row in batch.to_pylist()]
    return sorted((row | {"kind": FILE_PART} for row in rows), key=lambda row: (row["file"], row["part"]))


def come(rows: list[dict], step: int) -> list[tuple[int, bytes, list[int]]]:
    table = pa.Table.from_pylist([{"x": None, **row} for row in rows])
    batches = [batch.slice(i, step) for batch in table.to_batches() for i in range(0, batch.num_rows, step)]
    found = []
    for shard, content, rows_after in served(batches, "shard", ("a",), lambda path: path.read_bytes()):
        found.append((shard, content, [x for batch in rows_after for x in batch.column("x").to_pylist()]))
    return found


def asking(shard: int, *values: int) -> list[dict]:
    return [{"shard": shard, "kind": ASKING_ROW, "file": None, "part": None, "bytes": None, "x": x} for x in values]


@pytest.mark.parametrize("step", [1, 2, 100])
def test_each_shard_comes_with_the_rows_behind_it_and_rows_without_a_shard_are_passed_over(step):
    rows = [*asking(0, 7, 8), *parts_of(1, b"one"), *parts_of(2, b"two" * 40_000), *asking(2, 5, 6, 9)]
    assert come(rows, step) == [(1, b"one", []), (2, b"two" * 40_000, [5, 6, 9])]
    assert come(asking(3, 1), step) == []


def test_a_damaged_shard_is_refused():
    rows = parts_of(1, b"one")
    next(row for row in rows if row["file"] == "a")["bytes"] = b"oen"
    with pytest.raises(StoreError, match="the stored index is damaged"):
        come(rows, 1)
