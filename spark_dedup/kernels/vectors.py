"""Vectors as matrices and as Arrow binaries: normalisation, exact cosines, conversion.

All of it row by row: no result depends on which rows stand beside it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from spark_dedup.errors import EmbeddingError

SLICE_ROWS = 4096
"""Rows that are widened to float64 at once."""

COSINE_ROWS = 256
"""The same where two rows meet: with 512 dimensions both sides then stay in a processor's cache."""


def normalize_rows(x: NDArray[Any]) -> tuple[NDArray[np.float32], list[str | None]]:
    """Scale every row to length 1.

    Norms are taken in float64 after division by the row's largest magnitude, so neither 1e-30 nor 3e38 is lost.

    Args:
        x: float16, float32 or float64 (n, d), any finite or non-finite values.

    Returns:
        float32 (n, d) unit rows, and for each row None or why it has no direction: `empty` (d = 0), `nan`, `infinite`,
        `zero`. Such rows are all zeros and must not be used.

    Raises:
        EmbeddingError: If `x` is not a matrix of floats.
    """
    if x.ndim != 2 or x.dtype.kind != "f":
        raise EmbeddingError(f"vectors must be a matrix of floats, got {x.dtype} of shape {x.shape}")
    unit = np.zeros(x.shape, dtype=np.float32)
    problems: list[str | None] = [None] * len(x)
    for start in range(0, len(x), SLICE_ROWS):
        part = x[start : start + SLICE_ROWS].astype(np.float64)
        peak = np.abs(part).max(axis=1, initial=0.0)
        good = np.isfinite(peak) & (peak > 0)
        scaled = part[good] / peak[good, None]
        unit[start : start + SLICE_ROWS][good] = scaled / np.sqrt((scaled * scaled).sum(axis=1))[:, None]
        for i in np.flatnonzero(~good):
            problems[start + i] = _problem(peak[i], x.shape[1])
    return unit, problems


def _problem(peak: float, dimension: int) -> str:
    if dimension == 0:
        return "empty"
    if np.isnan(peak):
        return "nan"
    return "infinite" if np.isinf(peak) else "zero"


def cosines(a: NDArray[np.float32], b: NDArray[np.float32]) -> NDArray[np.float64]:
    """Cosine of each row of `a` with the same row of `b`.

    Args:
        a: float32 (p, d), no zero rows; need not be normalised.
        b: float32 (p, d), no zero rows.

    Returns:
        float64 (p,) in [-1, 1]: products and sums in float64. The same bits whichever side a row stands on and whatever
        rows stand beside it; exactly 1 for equal rows.

    Raises:
        EmbeddingError: If the shapes differ, or a row has no direction.
    """
    if a.ndim != 2 or a.shape != b.shape:
        raise EmbeddingError(f"cosines need two matrices of one shape, got {a.shape} and {b.shape}")
    rows = np.arange(len(a))
    return cosines_at(a, rows, b, rows)


def cosines_at(a: NDArray[np.float32], i: NDArray[np.int64], b: NDArray[np.float32], j: NDArray[np.int64]) -> NDArray[np.float64]:
    """Cosine of row `i[p]` of `a` with row `j[p]` of `b`, for each p.

    Every row's length is taken once, however many pairs it is in.

    Args:
        a: float32 (n, d), no zero rows among those used.
        i: int64 (p,).
        b: float32 (m, d), no zero rows among those used.
        j: int64 (p,).

    Returns:
        float64 (p,), the same bits as `cosines(a[i], b[j])`.

    Raises:
        EmbeddingError: If a row that is used has no direction.
    """
    left_squares, right_squares = _squares(a, i), _squares(b, j)
    out = np.empty(len(i), dtype=np.float64)
    for start in range(0, len(i), COSINE_ROWS):
        part = slice(start, start + COSINE_ROWS)
        products = a[i[part]].astype(np.float64, order="C")
        products *= b[j[part]]
        # One root of the product, not a product of roots: sqrt(s * s) is exactly s, so equal rows give exactly 1.
        out[part] = products.sum(axis=1) / np.sqrt(left_squares[i[part]] * right_squares[j[part]])
    return np.clip(out, -1.0, 1.0, out=out)


def _squares(x: NDArray[np.float32], used: NDArray[np.int64]) -> NDArray[np.float64]:
    """Square of the length of each row of `x` that is used, 0 for the others."""
    is_used = np.zeros(len(x), dtype=np.bool_)
    is_used[used] = True
    rows = np.flatnonzero(is_used)
    squares = np.zeros(len(x), dtype=np.float64)
    for start in range(0, len(rows), COSINE_ROWS):
        part = rows[start : start + COSINE_ROWS]
        wide = x[part].astype(np.float64, order="C")
        wide *= wide
        squares[part] = wide.sum(axis=1)
    found = squares[rows]
    if not np.all((found > 0) & np.isfinite(found)):
        raise EmbeddingError("cosines need rows with a direction, got a zero or non-finite row")
    return squares


def to_binary(x: NDArray[np.float32], valid: NDArray[np.bool_] | None = None) -> pa.BinaryArray:
    """Rows as Arrow binaries of little-endian float32, without a Python object per row.

    Args:
        x: float32 (n, d); at most 2 GiB in all, the limit of an Arrow binary array.
        valid: bool (n,); rows that are False become null. None keeps all.

    Returns:
        n binaries of 4 * d bytes. Shares memory with `x` where nothing becomes null.

    Raises:
        EmbeddingError: If the rows need more than 2 GiB.
    """
    n, d = x.shape
    if n * d * 4 > np.iinfo(np.int32).max:
        raise EmbeddingError(f"one Arrow array holds at most 2 GiB, got {n} vectors of dimension {d}", hint="convert fewer rows at once")
    data = np.ascontiguousarray(x, dtype="<f4")
    offsets = np.arange(n + 1, dtype=np.int32) * np.int32(4 * d)
    array = pa.Array.from_buffers(pa.binary(), n, [None, pa.py_buffer(offsets), pa.py_buffer(data)])
    if valid is None or valid.all():
        return array
    return pc.if_else(pa.array(valid), array, pa.scalar(None, pa.binary()))


def from_binary(array: pa.BinaryArray | pa.LargeBinaryArray, dimension: int | None = None) -> NDArray[np.float32]:
    """Arrow binaries back to a matrix: the flat buffer reshaped.

    Args:
        array: n binaries of little-endian float32, none null.
        dimension: Expected d; None takes that of the first row.

    Returns:
        float32 (n, d), read-only, sharing memory with `array`; (0, d) where it is empty.

    Raises:
        EmbeddingError: If a row is null or has another length.
    """
    if array.null_count:
        raise EmbeddingError(f"vectors must not be null, got {array.null_count} nulls in {len(array)} rows")
    kind = np.int64 if pa.types.is_large_binary(array.type) else np.int32
    _, offset_buffer, data = array.buffers()
    if len(array) == 0 or offset_buffer is None:
        return np.zeros((0, dimension or 0), dtype=np.float32)
    offsets = np.frombuffer(offset_buffer, dtype=kind)[array.offset : array.offset + len(array) + 1]
    sizes = np.diff(offsets)
    want = int(sizes[0]) if dimension is None else 4 * dimension
    wrong = np.flatnonzero(sizes != want)
    if want % 4 or len(wrong):
        row = int(wrong[0]) if len(wrong) else 0
        raise EmbeddingError(f"vectors must have {want / 4:g} float32 values, got {int(sizes[row])} bytes in row {row} of {len(array)}")
    if want == 0:
        return np.zeros((len(array), 0), dtype=np.float32)
    flat = np.frombuffer(data, dtype="<f4", count=len(array) * want // 4, offset=int(offsets[0]))
    return np.require(flat, dtype=np.float32, requirements="A").reshape(len(array), want // 4)
