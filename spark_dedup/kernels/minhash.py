"""MinHash: sets of shingles, signatures that agree as often as the sets overlap, and bands that bring similar texts into one bucket."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spark_dedup.errors import ConfigError
from spark_dedup.kernels.containment import least_shared
from spark_dedup.kernels.features import FeatureBlock, decode, pair_scores, visible_form
from spark_dedup.kernels.ragged import edges, ranges, slices
from spark_dedup.kernels.shingles import NGRAM, as_set, char_hashes, mix, shingle_hashes, token_hashes, word_hashes
from spark_dedup.kernels.text import Texts, normalize_pieces

Ints: TypeAlias = NDArray[np.int64]
Signatures: TypeAlias = NDArray[np.uint32]

UNITS = {"word": word_hashes, "char": char_hashes, "token": token_hashes}
"""What a shingle is made of."""

_SLICE = 1 << 16  # shingles hashed at once: 256 KiB, which stay in the processor's cache
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_STEPS = 1000  # of the integral under the S-curve
_MEETINGS = 1 << 22  # shingles that two sets have in common, looked at at once: 100 MB


@dataclass(frozen=True)
class ShingleSets:
    """Shingle sets of n texts in two flat arrays.

    Args:
        values: uint64, ascending inside each set.
        bounds: int64 (n + 1,): set i is `values[bounds[i]:bounds[i + 1]]`.
    """

    values: NDArray[np.uint64]
    bounds: Ints

    @classmethod
    def of(cls, blobs: pa.ChunkedArray) -> ShingleSets:
        """Read what `blobs` wrote."""
        array = pa.concat_arrays(blobs.cast(pa.large_binary()).chunks)
        offsets = np.frombuffer(array.buffers()[1], dtype=np.int64)[array.offset : array.offset + len(array) + 1]
        data = memoryview(array.buffers()[2])[offsets[0] : offsets[-1]]
        return cls(np.frombuffer(data, dtype="<u8").astype(np.uint64, copy=False), (offsets - offsets[0]) // 8)

    @classmethod
    def of_features(cls, block: FeatureBlock) -> ShingleSets:
        """The word 5-grams of texts whose features are there; see `is_feature`."""
        starts, sizes = block.bounds[:-1:3], np.diff(block.bounds)[::3]
        return cls(block.values[ranges(starts, sizes)], edges(sizes))

    def blobs(self) -> pa.Array:
        """Each set as little-endian uint64: binary, refused beyond 2 GiB."""
        offsets, data = pa.py_buffer(8 * self.bounds), pa.py_buffer(self.values.astype("<u8", copy=False))
        return pa.Array.from_buffers(pa.large_binary(), len(self), [None, offsets, data]).cast(pa.binary())

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def block(self) -> FeatureBlock:
        """The sets as the shingles of features that have nothing else, so that `features.pair_scores` compares them."""
        sizes = np.zeros((len(self), 3), dtype=np.int64)
        sizes[:, 0] = np.diff(self.bounds)
        return FeatureBlock(self.values, edges(sizes.ravel()))


def is_feature(unit: str, ngram: int) -> bool:
    """Whether these shingles are those of `kernels.features`."""
    return unit == "word" and ngram == NGRAM


def shingle_column(unit: str, ngram: int) -> str:
    """The column of SKETCHES that holds these shingles."""
    return "features" if is_feature(unit, ngram) else "shingles"


def stored_sets(column: pa.Array | pa.ChunkedArray, unit: str, ngram: int) -> ShingleSets:
    """Shingle sets from the column that `shingle_column` names."""
    if is_feature(unit, ngram):
        return ShingleSets.of_features(decode(column))
    return ShingleSets.of(column if isinstance(column, pa.ChunkedArray) else pa.chunked_array([column]))


def shingle_sets(texts: Texts, unit: str, ngram: int, *, lowercase: bool = False, strip_punctuation: bool = False) -> ShingleSets:
    """The shingle set of each text: a function of its exact key.

    Args:
        texts: As in `features.features`.
        unit: A name in `UNITS`.
        ngram: Units in a shingle; a text with fewer is its own only shingle.
        lowercase: As in `text.normalize`.
        strip_punctuation: As in `text.normalize`.

    Returns:
        One set per text; empty for null and for texts that are empty after normalisation.

    Raises:
        SchemaError: If `texts` holds something else than text.
    """
    values: list[NDArray[np.uint64]] = [np.zeros(0, dtype=np.uint64)]
    sizes: list[Ints] = [np.zeros(0, dtype=np.int64)]
    for piece in normalize_pieces(texts, lowercase=lowercase, strip_punctuation=strip_punctuation):
        forms = [visible_form(form) for form in piece]
        present = [form for form in forms if form]
        found, rows = as_set(*shingle_hashes(present, *UNITS[unit](present), ngram))
        size = np.zeros(len(forms), dtype=np.int64)
        size[[bool(form) for form in forms]] = np.bincount(rows, minlength=len(present))
        values.append(found)
        sizes.append(size)
    return ShingleSets(np.concatenate(values), edges(np.concatenate(sizes)))


def signatures(sets: ShingleSets, permutations: int) -> Signatures:
    """The least value of each set under each of many hash functions (Broder, "On the resemblance and containment of documents", 1997).

    Two sets agree in a place with a probability equal to their Jaccard similarity. The hash functions are x -> ax + b modulo 2**32 with
    odd a, over the upper 32 bits of shingles that are well mixed already.

    Args:
        sets: n sets.
        permutations: Hash functions, at least 1; the first k of more are the same as k.

    Returns:
        uint32 (n, permutations); 2**32 - 1 throughout for an empty set.
    """
    numbers = mix(np.arange(1, permutations + 1, dtype=np.uint64) * _GOLDEN)
    factors, shifts = (numbers >> np.uint64(32)).astype(np.uint32) | np.uint32(1), numbers.astype(np.uint32)
    found = np.full((permutations, len(sets)), np.iinfo(np.uint32).max, dtype=np.uint32)
    filled = np.flatnonzero(np.diff(sets.bounds))
    starts, points = sets.bounds[filled], (sets.values >> np.uint64(31)).astype(np.uint32)
    space = np.empty(min(_SLICE, len(points)), dtype=np.uint32)
    for at in range(0, len(points), _SLICE):
        part = points[at : at + _SLICE]
        first, stop = int(np.searchsorted(starts, at, side="right")) - 1, int(np.searchsorted(starts, at + len(part)))
        cuts, rows, hashed = np.maximum(starts[first:stop] - at, 0), filled[first:stop], space[: len(part)]
        for factor, shift, least in zip(factors, shifts, found, strict=True):
            np.multiply(part, factor, out=hashed)
            np.add(hashed, shift, out=hashed)
            least[rows] = np.minimum(least[rows], np.minimum.reduceat(hashed, cuts))
    return np.ascontiguousarray(found.T)


def s_curve(similarity: NDArray[np.float64] | float, bands: int, rows: int) -> NDArray[np.float64]:
    """Probability that texts of this Jaccard similarity share a bucket: 1 - (1 - s^rows)^bands (Leskovec, Rajaraman, Ullman, ch. 3)."""
    found: NDArray[np.float64] = 1.0 - (1.0 - np.asarray(similarity, dtype=np.float64) ** rows) ** bands
    return found


def bands_for(threshold: float, permutations: int, recall: float) -> tuple[int, int]:
    """Bands and rows that find pairs at the threshold with the wanted probability and let the fewest others through.

    Others are measured by the area under the S-curve below the threshold.

    Args:
        threshold: Jaccard similarity in (0, 1].
        permutations: bands * rows is at most this.
        recall: In (0, 1): least value of the S-curve at the threshold.

    Returns:
        (bands, rows), each at least 1.

    Raises:
        ConfigError: If there are too few permutations for any choice.
    """
    below = np.linspace(0.0, threshold, _STEPS + 1)
    best: tuple[float, int, int] | None = None
    for rows in range(1, permutations + 1):
        single = float(s_curve(threshold, 1, rows))
        bands = 1 if single >= recall else int(np.ceil(np.log1p(-recall) / np.log1p(-single))) if single > 0 else permutations + 1
        if bands * rows <= permutations:
            area = float(s_curve(below, bands, rows).mean())
            if best is None or area < best[0]:
                best = area, bands, rows
    if best is None:
        raise ConfigError(
            [f"minhash.permutations must allow a recall of {recall:g} at minhash.threshold {threshold:g}, got {permutations}"],
            hint="more permutations, a higher threshold or a lower recall",
        )
    return best[1:]


def band_hashes(found: Signatures, bands: int, rows: int) -> NDArray[np.int64]:
    """The bucket of each text in each band.

    Args:
        found: uint32 (n, at least bands * rows).
        bands: At least 1.
        rows: At least 1.

    Returns:
        int64 (n, bands): 64-bit hashes of the band's number and its part of the signature.
    """
    parts = found[:, : bands * rows].reshape(len(found), bands, rows).astype(np.uint64)
    hashes = np.broadcast_to(mix(np.arange(1, bands + 1, dtype=np.uint64) * _GOLDEN), (len(found), bands))
    for k in range(rows):
        hashes = mix((hashes ^ parts[:, :, k]) + _GOLDEN)
    return np.ascontiguousarray(hashes).view(np.int64)


def alike_between(left: ShingleSets, right: ShingleSets, threshold: float) -> tuple[Ints, Ints, NDArray[np.float64]]:
    """Every pair of a set on the left and one on the right with at least this Jaccard similarity, found exhaustively.

    Sets with a similarity of t share at least t * n of the n shingles of each. So the least shingle that they share is among the
    first n - ceil(t * n) + 1 of both, and only sets that share one of those are compared (prefix filter: Chaudhuri, Ganti, Kaushik,
    "A Primitive Operator for Similarity Joins in Data Cleaning", 2006).

    Args:
        left: n sets.
        right: m sets.
        threshold: In (0, 1].

    Returns:
        Rows on the left and on the right, int64 (p,) each, and the similarity, float64 (p,); ordered by right row, then left row.
    """
    first, other = _prefixes(left, threshold), _prefixes(right, threshold)
    order = np.argsort(first.values, kind="stable")
    keys, owner = first.values[order], np.repeat(np.arange(len(left)), np.diff(first.bounds))[order]
    low, high = np.searchsorted(keys, other.values, side="left"), np.searchsorted(keys, other.values, side="right")
    met = np.diff(edges(high - low)[other.bounds])
    sets, found = (left.block(), right.block()), [(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0))]
    for part in slices(met, _MEETINGS):
        values = slice(other.bounds[part.start], other.bounds[part.stop])
        rights = np.repeat(np.arange(part.start, part.stop), met[part])
        pairs = np.unique(rights * len(left) + owner[ranges(low[values], (high - low)[values])])
        i, k = pairs % max(1, len(left)), pairs // max(1, len(left))
        jaccard = pair_scores(sets[0], i, sets[1], k).jaccard
        alike = jaccard >= threshold
        found.append((i[alike], k[alike], jaccard[alike]))
    i, k, jaccard = (np.concatenate(column) for column in zip(*found, strict=True))
    return i, k, jaccard


def _prefixes(sets: ShingleSets, threshold: float) -> ShingleSets:
    """The least shingles of each set, one of which it shares with every set that is as similar."""
    sizes = np.diff(sets.bounds)
    kept = np.minimum(sizes, sizes - least_shared(sizes, threshold) + 1)
    return ShingleSets(sets.values[ranges(sets.bounds[:-1], kept)], edges(kept))
