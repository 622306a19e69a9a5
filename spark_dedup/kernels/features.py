"""Compact features of a text, and the scores of a pair of texts computed from them.

A text becomes three sets of 64-bit hashes: its word 5-gram shingles, the bag of its words, the bag of its numbers, in digits or
spelled out (`shingles` says what each is). A bag is a set too: the second "the" of a text is another element than the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spark_dedup.errors import StoreError
from spark_dedup.kernels.ragged import edges, ranges, slices
from spark_dedup.kernels.shingles import as_bag, as_set, number_hashes, shingle_hashes, spelled_numbers, word_hashes
from spark_dedup.kernels.text import INVISIBLE, Texts, normalize_pieces

FEATURES_VERSION = 3
"""Changes whenever the same text would get other features. The first number of every blob, and part of the stored fingerprint."""

NUMBERS = ("same", "contained", "missing", "differ")
"""Names of the codes in `PairScores.numbers`."""

UInts: TypeAlias = NDArray[np.uint64]
Ints: TypeAlias = NDArray[np.int64]

_SHOWS_NOTHING = dict.fromkeys(c for first, last in INVISIBLE for c in range(first, last + 1))
_SETS = 3  # shingles, words, numbers
_HEADER = np.dtype([("version", "<u4"), ("counts", "<u4", (_SETS,))])
_HEADER_WORDS = _HEADER.itemsize // 8
_EMPTY = np.uint64(2**64 - 1)  # no value: all are below 2**63 plus the length of a text
_FACTOR = np.uint64(0xD6E8FEB86659FD93)  # any odd number with well mixed bits
_SLICE_VALUES = 1 << 18  # looked up at once, so that the arrays stay in the processor's cache


@dataclass(frozen=True)
class FeatureBlock:
    """Features of n texts in two flat arrays, which may be memory-mapped.

    Args:
        values: uint64: for each text its shingles, then its words, then its numbers; distinct inside each set.
        bounds: int64 (3n + 1,), ascending from 0 to len(values): set s of text i is `values[bounds[3 * i + s]:bounds[3 * i + s + 1]]`.

    Raises:
        StoreError: If the two arrays cannot belong together.
    """

    values: UInts
    bounds: Ints

    def __post_init__(self) -> None:
        if len(self.bounds) % _SETS != 1 or self.bounds[0] != 0 or self.bounds[-1] != len(self.values):
            raise StoreError(f"features: {len(self.bounds)} bounds do not cut {len(self.values)} values into {_SETS} sets a text")

    def __len__(self) -> int:
        return (len(self.bounds) - 1) // _SETS

    def sizes(self, rows: Ints) -> Ints:
        """Number of shingles, words and numbers of each row: int64 (len(rows), 3)."""
        at: Ints = self.bounds[_SETS * rows[:, None] + np.arange(_SETS + 1)]
        return at[:, 1:] - at[:, :-1]

    def take(self, rows: Ints) -> FeatureBlock:
        """The block of these rows, in this order; a row may come more than once."""
        sizes = self.sizes(rows)
        return FeatureBlock(self.values_of(rows, sizes.sum(axis=1)), edges(sizes.ravel()))

    def values_of(self, rows: Ints, totals: Ints) -> UInts:
        """All values of these rows, one row after the other; `totals` is the sum over the sets of `sizes(rows)`."""
        return self.values[ranges(self.bounds[_SETS * rows], totals)]


@dataclass(frozen=True)
class PairScores:
    """Scores of p pairs, equal bit for bit when left and right change places.

    Args:
        jaccard: float64 (p,) in [0, 1]: shared shingles / all shingles of the two texts.
        containment: float64 (p,) in [0, 1]: shared shingles / shingles of the text that has fewer.
        substitution: float64 (p,) in [0, 1]: words that only one text has, of the text with fewer such / words of the shorter text.
        numbers: int8 (p,) codes of `NUMBERS`: the bags are equal; one that is not empty lies inside the other; only one of the texts has
            numbers; none of these.
        least_words: int32 (p,): words of the text with fewer.
        most_words: int32 (p,): words of the other text.
    """

    jaccard: NDArray[np.float64]
    containment: NDArray[np.float64]
    substitution: NDArray[np.float64]
    numbers: NDArray[np.int8]
    least_words: NDArray[np.int32]
    most_words: NDArray[np.int32]


def features(texts: Texts, *, lowercase: bool = False, strip_punctuation: bool = False) -> pa.Array:
    """Compact features of each text: a function of its exact key.

    Args:
        texts: string, large_string, binary or large_binary; normalised first, see `text.normalize`, and then read without
            the characters of `text.INVISIBLE`.
        lowercase: As in `text.normalize`.
        strip_punctuation: As in `text.normalize`.

    Returns:
        binary, null for null and for texts that are empty after normalisation. Little-endian: four uint32 (`FEATURES_VERSION`,
        number of shingles, of words, of numbers), then the three sets as ascending uint64. Some 3 bytes for a byte of English
        prose, at most 12 for long texts, and one array holds 2 GiB: pass at most some 100 MiB of text at once.

    Raises:
        SchemaError: If `texts` holds something else than text.
    """
    pieces = normalize_pieces(texts, lowercase=lowercase, strip_punctuation=strip_punctuation)
    parts = [_blobs([visible_form(form) for form in piece]) for piece in pieces]
    return pa.concat_arrays(parts) if parts else pa.array([], pa.binary())


def visible_form(form: str | None) -> str | None:
    """A normalised text without characters that show nothing, so that a soft hyphen does not make two words of one."""
    if form is None or form.isascii():
        return form
    return " ".join(form.translate(_SHOWS_NOTHING).split()) or form


def decode(blobs: pa.Array | pa.ChunkedArray | Sequence[bytes | memoryview | None]) -> FeatureBlock:
    """Read what `features` wrote; a null becomes three empty sets.

    Raises:
        StoreError: If a blob was not written by this version of `features`, naming its row.
    """
    array = (blobs if isinstance(blobs, (pa.Array, pa.ChunkedArray)) else pa.array(blobs, pa.binary())).cast(pa.large_binary())
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], array.type)
    if array.null_count:
        array = array.fill_null(np.array([(FEATURES_VERSION, (0, 0, 0))], dtype=_HEADER).tobytes())
    if not len(array):
        return FeatureBlock(np.zeros(0, dtype=np.uint64), np.zeros(1, dtype=np.int64))
    _, offset_buffer, data_buffer = array.buffers()
    offsets = np.frombuffer(offset_buffer, dtype=np.int64)[array.offset : array.offset + len(array) + 1]
    lengths = np.diff(offsets)
    _refuse(lengths, (lengths % 8 != 0) | (lengths < _HEADER.itemsize))
    words = np.frombuffer(memoryview(data_buffer)[offsets[0] : offsets[-1]], dtype="<u8").astype(np.uint64, copy=False)
    at = (offsets[:-1] - offsets[0]) // 8
    headers = words[at[:, None] + np.arange(_HEADER_WORDS)].astype("<u8").view(_HEADER)[:, 0]
    counts = headers["counts"].astype(np.int64)
    _refuse(lengths, (headers["version"] != FEATURES_VERSION) | (_HEADER.itemsize + 8 * counts.sum(axis=1) != lengths))
    is_value = np.ones(len(words), dtype=np.bool_)
    is_value[at[:, None] + np.arange(_HEADER_WORDS)] = False
    return FeatureBlock(words[is_value], edges(counts.ravel()))


def pair_scores(left: FeatureBlock, left_rows: Ints, right: FeatureBlock, right_rows: Ints) -> PairScores:
    """Score each pair i: row `left_rows[i]` of `left` with row `right_rows[i]` of `right`.

    Fastest where pairs that share a left row stand together. A score whose denominator would be zero is 0. Two texts
    without any number have the same numbers.

    Args:
        left: Features of the left texts.
        left_rows: int64 (p,).
        right: Features of the right texts; may be `left`.
        right_rows: int64 (p,).
    """
    a, b = left.sizes(left_rows), right.sizes(right_rows)
    shared = np.empty_like(b)
    for part in slices((a + b).sum(axis=1), _SLICE_VALUES):
        shared[part] = _shared(left, left_rows[part], right, right_rows[part], b[part])
    least, most = np.minimum(a, b), np.maximum(a, b)
    is_same = (shared == most)[:, 2]
    is_contained = ((shared == least) & (least > 0))[:, 2]
    is_missing = least[:, 2] == 0
    return PairScores(
        jaccard=shared[:, 0] / np.maximum(1, (a + b - shared)[:, 0]),
        containment=shared[:, 0] / np.maximum(1, least[:, 0]),
        substitution=(least - shared)[:, 1] / np.maximum(1, least[:, 1]),
        numbers=np.select([is_same, is_contained, is_missing], [0, 1, 2], 3).astype(np.int8),
        least_words=least[:, 1].astype(np.int32),
        most_words=most[:, 1].astype(np.int32),
    )


def _blobs(texts: list[str | None]) -> pa.Array:
    """Features of at most 65,536 normalised texts."""
    present = [text for text in texts if text]
    words, word_rows = word_hashes(present)
    digits, spelled = number_hashes(present), spelled_numbers(words, word_rows)
    numbers = as_bag(np.concatenate([digits[0], spelled[0]]), np.concatenate([digits[1], spelled[1]]))
    sets = [as_set(*shingle_hashes(present, words, word_rows)), as_bag(words, word_rows), numbers]

    headers = np.zeros(len(present), dtype=_HEADER)
    headers["version"] = FEATURES_VERSION
    for s, (_, rows) in enumerate(sets):
        headers["counts"][:, s] = np.bincount(rows, minlength=len(present))
    counts = headers["counts"].astype(np.int64)
    sizes = _HEADER_WORDS + counts.sum(axis=1)
    at = edges(sizes)
    data = np.empty(at[-1], dtype="<u8")
    data[at[:-1, None] + np.arange(_HEADER_WORDS)] = headers.view("<u8").reshape(-1, _HEADER_WORDS)
    first = at[:-1] + _HEADER_WORDS
    for s, (values, _) in enumerate(sets):
        data[ranges(first, counts[:, s])] = values
        first = first + counts[:, s]

    is_present = np.array([bool(text) for text in texts], dtype=np.bool_)
    lengths = np.zeros(len(texts), dtype=np.int64)
    lengths[is_present] = 8 * sizes
    offsets = pa.py_buffer(edges(lengths))
    large = pa.Array.from_buffers(pa.large_binary(), len(texts), [pa.array(is_present).buffers()[1], offsets, pa.py_buffer(data)])
    return large.cast(pa.binary())  # refuses what 32-bit offsets cannot hold


def _refuse(lengths: Ints, bad: NDArray[np.bool_]) -> None:
    if bad.any():
        row = int(np.flatnonzero(bad)[0])
        raise StoreError(
            f"row {row}: {int(lengths[row])} bytes that are no features of version {FEATURES_VERSION}",
            hint="make the features anew: these are damaged or were written by another version",
        )


def _shared(left: FeatureBlock, left_rows: Ints, right: FeatureBlock, right_rows: Ints, right_sizes: Ints) -> Ints:
    """Shared values of each pair and set, int64 (p, 3): right values are looked up in hash tables of the left sets."""
    used, group = np.unique(left_rows, return_inverse=True)
    block = left.take(used)
    sets = np.repeat(np.arange(_SETS * len(used)), np.diff(block.bounds))
    wanted_sets = np.repeat((_SETS * group[:, None] + np.arange(_SETS)).ravel(), right_sizes.ravel())
    wanted = right.values_of(right_rows, right_sizes.sum(axis=1))
    found = np.flatnonzero(_lookup(_SETS * len(used), sets, block.values, wanted_sets, wanted))
    return np.diff(np.searchsorted(found, edges(right_sizes.ravel()))).reshape(-1, _SETS)


def _lookup(n_sets: int, sets: Ints, values: UInts, wanted_sets: Ints, wanted: UInts, level: int = 0) -> NDArray[np.bool_]:
    """Whether `wanted[i]` is one of the `values` of set `wanted_sets[i]`.

    Every set has a hash table of its own, at most a quarter full, one value a slot. Values that lose their slot go to the
    next level, where a wanted value is looked up only if it met another one here. Each level keeps at least one value.
    """
    sizes = np.bincount(sets, minlength=n_sets)
    slots = np.int64(1) << np.ceil(np.log2(np.maximum(1, 4 * sizes))).astype(np.int64)
    base, mask = edges(slots)[:-1], (slots - 1).astype(np.uint64)

    def slot(of: Ints, value: UInts) -> Ints:
        spread = value if level == 0 else (value * (_FACTOR + np.uint64(2 * level))) >> np.uint64(29)
        return base[of] + (spread & mask[of]).astype(np.int64)

    table = np.full(int(slots.sum()), _EMPTY)
    at = slot(sets, values)
    table[at] = values
    held = table[slot(wanted_sets, wanted)]
    found: NDArray[np.bool_] = held == wanted
    lost = np.flatnonzero(table[at] != values)
    if len(lost):
        again = np.flatnonzero((held != _EMPTY) & ~found)
        found[again] = _lookup(n_sets, sets[lost], values[lost], wanted_sets[again], wanted[again], level + 1)
    return found
