"""Blocking keys of texts, and the pairs that share one, with a bound on what a large block may cost."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spark_dedup.kernels.buckets import following_pairs, starts_of
from spark_dedup.kernels.features import visible_form
from spark_dedup.kernels.ragged import edges, places, ranges
from spark_dedup.kernels.shingles import as_set, char_hashes, mix, shingle_hashes, word_hashes
from spark_dedup.kernels.text import Texts, normalize_pieces

Ints: TypeAlias = NDArray[np.int64]

FIRST_TOKENS = 64

TITLE_CHARACTERS = 128
"""Of the first line; a longer one is a paragraph."""

LABEL_CHARACTERS = 60

TEXT_KEYS = ("bytes", "first_tokens", "beginning", "title_trigrams", "title")
"""Columns of `text_keys`."""

NEAR_LENGTH = 105
"""Per cent of its own length that a text may be compared with."""

LONGEST = 2**32 - 1
"""Bytes; no text is longer."""

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_NOT_IN_TITLE = re.compile(r"[\W_]+")
_TITLE = re.compile(r"[^\W_][^\r\n]*")


def text_keys(texts: Texts, names: Collection[str], *, lowercase: bool = False, strip_punctuation: bool = False) -> pa.RecordBatch:
    """What blocking by the text itself needs to know of each text.

    Args:
        texts: Texts that are not null and not empty after normalisation, as in `features.features`.
        names: Those of `first_tokens` and `title_trigrams` that are wanted; the columns of the others are null.
        lowercase: As in `text.normalize`.
        strip_punctuation: As in `text.normalize`.

    Returns:
        `bytes`: int64, length of the normalised text; `first_tokens`: int64, and `beginning`: string; `title_trigrams`: int64, and `title`:
        string, both null where no line has a letter or digit. The strings are for people: at most `LABEL_CHARACTERS`.
    """
    columns: list[list[Any]] = [[], [], [], [], []]
    for piece in normalize_pieces(texts, lowercase=lowercase, strip_punctuation=strip_punctuation):
        start = len(columns[0])
        forms = [visible_form(form) or "" for form in piece]
        columns[0] += [len(form.encode()) for form in forms]
        if "first_tokens" in names:
            columns[1] += first_tokens(forms).tolist()
            columns[2] += [form[:LABEL_CHARACTERS] for form in forms]
        if "title_trigrams" in names:
            lines = [title(text) for text in texts.slice(start, len(forms)).to_pylist()]
            found = iter(title_trigrams([line for line in lines if line]).tolist())
            columns[3] += [next(found) if line else None for line in lines]
            columns[4] += [line[:LABEL_CHARACTERS] if line else None for line in lines]
    whole = len(columns[0])
    kinds = (pa.int64(), pa.int64(), pa.string(), pa.int64(), pa.string())
    arrays = [pa.array(column or [None] * whole, kind) for column, kind in zip(columns, kinds, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, names=list(TEXT_KEYS))


def first_tokens(forms: list[str]) -> Ints:
    """A hash of the first `FIRST_TOKENS` words of each text, in their order: equal for texts that begin with the same words.

    Words are those of `shingles.word_hashes`: lower-cased, and in scripts without blanks single characters. A text with fewer words
    has the hash of all of them.

    Args:
        forms: Normalised texts that are not empty, at most 65,536 at once.

    Returns:
        int64 (n,).
    """
    words, rows = word_hashes(forms)
    counts = np.bincount(rows, minlength=len(forms))
    sizes = np.minimum(counts, FIRST_TOKENS)
    place = places(sizes).astype(np.uint64)
    return _sums(mix(words[ranges(edges(counts)[:-1], sizes)] + (place + np.uint64(1)) * _GOLDEN), sizes)


def title(text: str) -> str | None:
    """The first line with a letter or digit, from that on and cut at `TITLE_CHARACTERS`; None where there is none."""
    found = _TITLE.search(text)
    return found[0].strip()[:TITLE_CHARACTERS] if found else None


def title_trigrams(lines: list[str]) -> Ints:
    """A hash of the set of character trigrams of each title: equal for titles that differ in case, blanks or punctuation.

    The n-gram fingerprint of tools that clean data (OpenRefine, "Clustering in depth"): only letters and digits count, and neither how
    often nor in which order the trigrams come.

    Args:
        lines: Titles with a letter or digit, at most 65,536 at once.

    Returns:
        int64 (n,).
    """
    plain = [_NOT_IN_TITLE.sub("", unicodedata.normalize("NFKC", line)).lower() for line in lines]
    grams, rows = as_set(*shingle_hashes(plain, *char_hashes(plain), 3))
    return _sums(mix(grams), np.bincount(rows, minlength=len(lines)))


def _sums(hashes: NDArray[np.uint64], sizes: Ints) -> Ints:
    """Sum of each row's hashes, of which there is at least one."""
    return np.add.reduceat(hashes, edges(sizes)[:-1]).view(np.int64) if len(sizes) else np.zeros(0, dtype=np.int64)


def length_edges() -> Ints:
    """Where the bands of lengths begin: bytes, ascending from 1 to beyond `LONGEST`.

    A text at most 5 % longer than another lies in its band or in the next: where the next band starts at f, the one behind it starts at
    floor(1.05 f) + 1, and a text that is shorter than f has no partner of that length.
    """
    found = [1]
    while found[-1] <= LONGEST:
        found.append(found[-1] * NEAR_LENGTH // 100 + 1)
    return np.array(found, dtype=np.int64)


@dataclass(frozen=True)
class Blocks:
    """Rows in the order of block, length and id; each is compared with some of those that follow it in its block.

    Args:
        ids: int64 (n,).
        first: int64 (b,): where each block starts.
        texts: int64 (b,): rows of the block that are there in their own right, see `arrange`.
        wanted: int64 (n,): rows behind each one that it would be compared with.
        partners: int64 (n,): those that it is compared with under the bound, the nearest ones.
        order: int64 (n,): where the rows stood before.
    """

    ids: Ints
    first: Ints
    texts: Ints
    wanted: Ints
    partners: Ints
    order: Ints

    def comparisons(self) -> tuple[Ints, Ints]:
        """Comparisons of each block, without and with the bound: int64 (b,) each."""
        if not len(self.first):
            return self.first, self.first
        return np.add.reduceat(self.wanted, self.first), np.add.reduceat(self.partners, self.first)

    def pairs(self) -> Iterator[tuple[Ints, Ints]]:
        """The pairs under the bound, some million at a time: smaller id, larger id. A pair of two blocks comes twice."""
        for one, other in following_pairs(self.ids, self.partners):
            yield np.minimum(one, other), np.maximum(one, other)


def arrange(block: Ints, length: Ints, reach: Ints, ids: Ints, most: int) -> Blocks:
    """Sort rows into their blocks and bound the comparisons of large ones.

    A block of more than `most` texts is split by the lengths of its texts: each is compared with the `most` - 1 next longer ones alone, and
    with none more than 5 % longer (the sorted neighbourhood of Hernandez and Stolfo, "The merge/purge problem", 1995).

    Args:
        block: int64 (n,).
        length: int64 (n,), bytes in [1, `LONGEST`].
        reach: int64 (n,): length of the longest text that a row is compared with. 0 for a guest, a longer text of the next band that stands
            here only to be found.
        ids: int64 (n,), distinct in a block.
        most: At least 2.
    """
    order = np.lexsort((ids, length, block))
    block, length, reach, ids = block[order], length[order], np.minimum(reach[order], LONGEST), ids[order]
    new = starts_of(block)
    first, group = np.flatnonzero(new), np.cumsum(new) - 1
    texts = np.add.reduceat((reach >= length).astype(np.int64), first) if len(first) else first
    place = (group << 32) | length

    def behind(longest: Ints) -> Ints:
        found: Ints = np.searchsorted(place, (group << 32) | longest, side="right") - 1 - np.arange(len(ids))
        return np.maximum(found, 0)

    wanted = behind(reach)
    near = np.minimum(behind(np.minimum(reach, length * NEAR_LENGTH // 100)), most - 1)
    return Blocks(ids, first, texts, wanted, np.where(texts[group] > most, near, wanted), order)
