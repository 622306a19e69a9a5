"""Texts that lie inside longer ones: which shingles of each must be looked for, and the longer texts that hold one of them.

If a share t of a text's n shingles stand in a longer text, at most n - ceil(t n) do not, so of any n - ceil(t n) + 1 of them the longer
text holds one (a prefix filter: Chaudhuri, Ganti, Kaushik, "A Primitive Operator for Similarity Joins in Data Cleaning", 2006). The
rarest ones bring the fewest texts together, and those of no other text bring none.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from spark_dedup.kernels.buckets import Ints, following_pairs, sizes_of, starts_of
from spark_dedup.kernels.ragged import places

ROUNDING = 1e-9
"""0.7 * 10 must be 7, not a little more."""


def least_shared(sizes: Ints, share: float) -> Ints:
    """Shingles of each text that must stand in the longer one.

    Args:
        sizes: int64 (n,), shingles of each text.
        share: In (0, 1].

    Returns:
        int64 (n,).
    """
    least: Ints = np.ceil(share * sizes - ROUNDING).astype(np.int64)
    return least


def frequencies(shingle: Ints) -> Ints:
    """How often each shingle occurs among all: int64 (p,) each."""
    order = np.argsort(shingle)
    counts = sizes_of(starts_of(shingle[order]))
    out = np.empty(len(shingle), dtype=np.int64)
    out[order] = np.repeat(counts, counts)
    return out


def looked_for(text: Ints, size: Ints, frequency: Ints, shingle: Ints, share: float) -> NDArray[np.bool_]:
    """Which shingles of each text are looked for in longer ones.

    Args:
        text: int64 (p,), for each shingle that two texts or more have, and each text that has it.
        size: int64 (p,), all shingles of the text, those of no other text too.
        frequency: int64 (p,), texts that have the shingle.
        shingle: int64 (p,), decides between equally rare ones.
        share: Least share of a text's shingles that a longer one must hold, in (0, 1].

    Returns:
        bool (p,). None of a text that has too many shingles of its own to lie in another.
    """
    order = np.lexsort((shingle, frequency, text))
    counts = sizes_of(starts_of(text[order]))
    own = size[order] - np.repeat(counts, counts)
    wanted = np.zeros(len(text), dtype=np.bool_)
    wanted[order] = places(counts) + own <= size[order] - least_shared(size[order], share)
    return wanted


def longer_texts(shingle: Ints, size: Ints, text: Ints, asks: NDArray[np.bool_], most: int) -> Iterator[tuple[Ints, Ints, int]]:
    """Each text that looks for a shingle with the longer texts that have it; of two equally long ones the larger id counts as longer.

    Args:
        shingle: int64 (p,), for each shingle and text that has it.
        size: int64 (p,), shingles of the text.
        text: int64 (p,), its id.
        asks: bool (p,), whether the text looks for the shingle.
        most: Longer texts that a shingle gives a text at most, at least 1: the next longer ones.

    Yields:
        Smaller and larger id of pairs, int64 (k,) each, at most about a million at a time, and the pairs that `most` left out, counted
        once in all. A pair comes once for each shingle that brings it together. Nothing where there is neither.
    """
    order = np.lexsort((text, size, shingle))
    counts = sizes_of(starts_of(shingle[order]))
    behind = np.repeat(counts, counts) - 1 - places(counts)
    wanted = np.where(asks[order], behind, 0)
    partners = np.minimum(wanted, most)
    left_out = int((wanted - partners).sum())
    for one, other in following_pairs(text[order], partners):
        yield np.minimum(one, other), np.maximum(one, other), left_out
        left_out = 0
