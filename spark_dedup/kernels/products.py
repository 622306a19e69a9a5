"""All pairs of vectors at or above a floor: blocked float32 products, compared with the floor while they are in cache.

A float32 product only proposes: its last bits depend on the shape of the block. What it proposes is computed again in float64,
so that neither a pair nor its cosine depends on how the work was cut. Nothing of size n x m is ever held.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from spark_dedup.kernels.vectors import cosines_at

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]

BLOCK_ROWS = 2048
BLOCK_COLUMNS = 512
"""A block of products takes 4 MiB and is read while it is in a cache. Of the blocks of 0.5 to 16 Mi products this is the quickest: 92
GFLOP/s on a core that reaches 95, where 512 x 1024 reaches 85."""

PAIRS_AT_ONCE = 1 << 17
"""Pairs that are computed again at once."""


class Near(NamedTuple):
    """Pairs of a row of the left side and a row of the right side.

    Attributes:
        left: int64 (p,), ascending within what one call yields.
        right: int64 (p,).
        cosine: float64 (p,), in [floor, 1]; the bits of `vectors.cosines`.
    """

    left: Ints
    right: Ints
    cosine: NDArray[np.float64]


def slack(dimension: int) -> float:
    """How far a float32 product of two unit vectors can be from their cosine.

    Args:
        dimension: Of the vectors, at least 1.

    Returns:
        Twice d u with u = 2**-24, the bound for a sum of d products in any order, with room for lengths that are 1 only
        to float32. Source: Higham, "Accuracy and Stability of Numerical Algorithms", 3.1.
    """
    return float((dimension + 8) * 2.0**-23)


def near_between(a: Floats, b: Floats, floor: float) -> Iterator[Near]:
    """Pairs of a row of `a` and a row of `b` with a cosine of at least `floor`.

    Args:
        a: float32 (n, d), unit rows.
        b: float32 (m, d), unit rows.
        floor: In (0, 1].
    """
    for left, right in proposed_between(a, b, floor):
        yield from confirmed(a, b, left, right, floor)


def near_within(a: Floats, floor: float, start: int = 0, stop: int | None = None) -> Iterator[Near]:
    """Pairs i < j of rows of `a` with a cosine of at least `floor`, for i in [start, stop): the upper triangle.

    Args:
        a: float32 (n, d), unit rows.
        floor: In (0, 1].
        start: First left row.
        stop: Left rows end here; None for all.
    """
    for left, right in proposed_within(a, floor, start, stop):
        yield from confirmed(a, a, left, right, floor)


def proposed_between(a: Floats, b: Floats, floor: float) -> Iterator[tuple[Ints, Ints]]:
    """What `near_between` computes again: every pair at or above the floor and perhaps some a little below it."""
    out = np.empty(min(BLOCK_ROWS, len(a)) * min(BLOCK_COLUMNS, len(b)), dtype=np.float32)
    transposed = b.T
    for i in range(0, len(a), BLOCK_ROWS):
        for j in range(0, len(b), BLOCK_COLUMNS):
            left, right = _proposed(a[i : i + BLOCK_ROWS], transposed[:, j : j + BLOCK_COLUMNS], floor, out)
            if len(left):
                yield left + i, right + j


def proposed_within(a: Floats, floor: float, start: int = 0, stop: int | None = None) -> Iterator[tuple[Ints, Ints]]:
    """What `near_within` computes again."""
    stop = len(a) if stop is None else stop
    out = np.empty(BLOCK_COLUMNS**2, dtype=np.float32)
    for j in range(start, stop, BLOCK_COLUMNS):
        columns = a[j : min(j + BLOCK_COLUMNS, stop)]
        # NumPy sees that this is a matrix with its own transpose and does half the work.
        left, right = _proposed(columns, columns.T, floor, out)
        above = left < right
        if above.any():
            yield left[above] + j, right[above] + j
        for left, right in proposed_between(a[start:j], columns, floor):
            yield left + start, right + j
    for left, right in proposed_between(a[start:stop], a[stop:], floor):
        yield left + start, right + stop


def confirmed(a: Floats, b: Floats, left: Ints, right: Ints, floor: float) -> Iterator[Near]:
    """Those of the proposed pairs whose cosine, computed in float64, is at least `floor`."""
    for start in range(0, len(left), PAIRS_AT_ONCE):
        i, j = left[start : start + PAIRS_AT_ONCE], right[start : start + PAIRS_AT_ONCE]
        cosine = cosines_at(a, i, b, j)
        kept = cosine >= floor
        if kept.any():
            yield Near(i[kept], j[kept], cosine[kept])


def _proposed(a: Floats, transposed: Floats, floor: float, out: Floats) -> tuple[Ints, Ints]:
    n, m = len(a), transposed.shape[1]
    products = np.matmul(a, transposed, out=out[: n * m].reshape(n, m))
    # Flat positions, because NumPy finds the few set places of a flat array ten times faster than those of a matrix.
    at = np.flatnonzero(products.ravel() >= np.float32(floor - slack(a.shape[1])))
    return at // m, at % m
