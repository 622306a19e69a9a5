"""Pairs of rows that lie in one bucket, with a bound on what a large bucket may cost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from spark_dedup.kernels.ragged import places, ranges, slices

Ints: TypeAlias = NDArray[np.int64]

SLICE_PAIRS = 1 << 20


@dataclass(frozen=True)
class Pairs:
    """Some pairs, and what the bound did to the buckets that they begin in.

    Args:
        left: int64 (p,), the smaller id.
        right: int64 (p,).
        split: Buckets that were split.
        left_out: Pairs of one bucket that are not among the pairs for that.
    """

    left: Ints
    right: Ints
    split: int
    left_out: int


def bucket_pairs(bucket: Ints, further: Ints, ids: Ints, most: int) -> Iterator[Pairs]:
    """All pairs of each bucket.

    A bucket of more than `most` ids is split by `further`; where a part is still too large, each of its ids is paired with the
    least one only.

    Args:
        bucket: int64 (n,).
        further: int64 (n,).
        ids: int64 (n,), distinct in a bucket.
        most: At least 2.

    Yields:
        Each pair of a bucket once, at most about a million at a time; a pair of two buckets comes twice. Nothing where there is none.
    """
    order = np.lexsort((ids, bucket))
    bucket, ids = bucket[order], ids[order]
    sizes = sizes_of(starts_of(bucket))
    whole = np.repeat(sizes, sizes)
    if (whole > most).any():
        parts = np.where(whole > most, further[order], 0)
        order = np.lexsort((ids, parts, bucket))
        bucket, parts, ids, whole = bucket[order], parts[order], ids[order], whole[order]
        new = starts_of(bucket) | starts_of(parts)
        split, all_pairs = int((sizes > most).sum()), int((sizes * (sizes - 1) // 2).sum())
        sizes = sizes_of(new)
    else:
        split, all_pairs = 0, int((sizes * (sizes - 1) // 2).sum())
    size = np.repeat(sizes, sizes)
    place = places(sizes)
    partners = np.where((size > most) & (place > 0), 0, size - 1 - place)
    left_out = all_pairs - int(partners.sum())
    for left, right in following_pairs(ids, partners):
        yield Pairs(left, right, split, left_out)
        split = left_out = 0
    if split:
        yield Pairs(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64), split, left_out)


def following_pairs(ids: Ints, partners: Ints) -> Iterator[tuple[Ints, Ints]]:
    """Pair each row with as many of those behind it as it has partners.

    Args:
        ids: int64 (n,).
        partners: int64 (n,); a row may have as many as there are rows behind it.

    Yields:
        int64 (p,) each: the ids of the rows and of their partners, at most about a million at a time; nothing where there is none.
    """
    rows = np.flatnonzero(partners)
    for part in slices(partners[rows], SLICE_PAIRS):
        first = rows[part]
        yield np.repeat(ids[first], partners[first]), ids[ranges(first + 1, partners[first])]


def starts_of(sorted_keys: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether each key differs from the one before it: bool (n,)."""
    new = np.ones(len(sorted_keys), dtype=np.bool_)
    new[1:] = sorted_keys[1:] != sorted_keys[:-1]
    return new


def sizes_of(new: NDArray[np.bool_]) -> Ints:
    """Rows of each run, from where runs start: int64 (runs,)."""
    sizes: Ints = np.diff(np.flatnonzero(new), append=len(new))
    return sizes
