"""Postgres' binary COPY format: vectors going in, pairs of ids coming out."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
"""Signature, no flags, no extension. Source: PostgreSQL manual, COPY, Binary Format."""

TRAILER = b"\xff\xff"
"""A row of -1 fields."""

FLOATS = {"vector": ">f4", "halfvec": ">f2"}
"""pgvector's types and the big-endian floats that each sends."""

PAIR = np.dtype([("fields", ">i2"), ("left_bytes", ">i4"), ("left", ">i8"), ("right_bytes", ">i4"), ("right", ">i8")])
"""A row of two bigints."""


def vector_rows(ids: NDArray[np.int64], vectors: NDArray[np.float32], kind: str) -> bytes:
    """COPY rows (id bigint, embedding).

    Args:
        ids: int64 (n,).
        vectors: float32 (n, d), d below 32,768.
        kind: One of `FLOATS`; numbers beyond its range become infinite, which Postgres refuses.

    Returns:
        n rows, without header and trailer. A vector is its dimension and an unused 0, two bytes each, then its floats.
    """
    n, d = vectors.shape
    value = np.dtype(FLOATS[kind])
    head = [("fields", ">i2"), ("id_bytes", ">i4"), ("id", ">i8"), ("bytes", ">i4"), ("dim", ">i2"), ("unused", ">i2")]
    rows = np.zeros(n, dtype=np.dtype([*head, ("v", value, (d,))]))
    rows["fields"], rows["id_bytes"], rows["id"] = 2, 8, ids
    rows["bytes"], rows["dim"], rows["v"] = 4 + value.itemsize * d, d, vectors
    return rows.tobytes()


def pair_rows(data: bytes | bytearray) -> NDArray[np.int64]:
    """Ids of whole COPY rows (bigint, bigint), none null.

    Args:
        data: n rows, without header and trailer.

    Returns:
        int64 (n, 2).
    """
    rows = np.frombuffer(data, dtype=PAIR)
    return np.stack([rows["left"], rows["right"]], axis=1).astype(np.int64)
