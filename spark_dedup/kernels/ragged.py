"""Arithmetic of ragged arrays: rows of different length, one after the other in a flat array."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray


def edges(sizes: NDArray[np.integer]) -> NDArray[np.int64]:
    """Where each row starts, and after them where the last one stops: int64 (n + 1,) from sizes (n,)."""
    found = np.zeros(len(sizes) + 1, dtype=np.int64)
    np.cumsum(sizes, out=found[1:])
    return found


def ranges(starts: NDArray[np.int64], sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """The numbers start, start + 1, ... of every row, one row after the other: int64 (sum of sizes,)."""
    at = edges(sizes)
    return np.repeat(starts - at[:-1], sizes) + np.arange(at[-1])


def places(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """The place of every element in its row, from 0: int64 (sum of sizes,)."""
    return ranges(np.zeros(len(sizes), dtype=np.int64), sizes)


def slices(sizes: NDArray[np.int64], most: int) -> Iterator[slice]:
    """Cut consecutive rows into slices of at most `most` elements; a larger row is a slice of its own."""
    at = edges(sizes)
    start = 0
    while start < len(sizes):
        stop = max(start + 1, int(np.searchsorted(at, at[start] + most, side="right")) - 1)
        yield slice(start, stop)
        start = stop
