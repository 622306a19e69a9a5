"""Connected components of edges that fit in memory, and the spanning forest that stands for many edges."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

MERGE_EDGES = 1 << 18
"""Edges to gather before they are merged into the forest: 4 MiB. Merging each small batch would sort the forest every time."""

Ids = NDArray[np.int64]


def least_connected(left: Ids, right: Ids) -> tuple[Ids, Ids]:
    """Find the least id that each vertex is connected to.

    Each round hooks every root to its least neighbouring root and then shortens all paths to one step. Two rounds leave
    at most half of the roots of a component, so rounds grow with the logarithm of its size, whatever the order of ids.

    Args:
        left: int64 (n,), one end of each edge. Loops, repeated and mirrored edges are allowed.
        right: int64 (n,), the other end.

    Returns:
        ids: int64 (v,), every vertex that an edge touches, ascending.
        labels: int64 (v,), the least id in the component of each.
    """
    ids, positions = np.unique(np.concatenate([left, right]), return_inverse=True)
    positions = positions.reshape(-1)
    a, b = positions[: len(left)], positions[len(left) :]
    root = np.arange(len(ids))
    while True:
        a, b = root[a], root[b]
        apart = a != b
        if not apart.any():
            return ids, ids[root]
        a, b = a[apart], b[apart]
        np.minimum.at(root, np.maximum(a, b), np.minimum(a, b))
        while True:
            shorter = root[root]
            if np.array_equal(shorter, root):
                break
            root = shorter


def spanning_forest(left: Ids, right: Ids) -> tuple[Ids, Ids]:
    """Replace edges by stars with the same components: one edge from the least id to each other vertex.

    Args:
        left: int64 (n,), one end of each edge.
        right: int64 (n,), the other end.

    Returns:
        least: int64 (m,), the least id of the component; m is the number of vertices minus the number of components.
        vertex: int64 (m,), ascending, each once, always larger than `least`.
    """
    ids, labels = least_connected(left, right)
    inner = labels != ids
    return labels[inner], ids[inner]


def forest_batches(batches: Iterable[Any]) -> Iterator[Any]:
    """Replace a stream of edges by its spanning forest, holding two edges a vertex and `MERGE_EDGES` at most.

    Args:
        batches: Arrow record batches of two int64 columns without nulls, the ends of each edge.

    Yields:
        At most one record batch of the same schema: `spanning_forest` of all edges.

    Raises:
        pyarrow.ArrowInvalid: If an end is null.
    """
    schema: Any = None
    forest = (np.empty(0, np.int64), np.empty(0, np.int64))
    waiting: list[tuple[Ids, Ids]] = []
    rows = 0
    for batch in batches:
        schema = batch.schema
        waiting.append((batch.column(0).to_numpy(), batch.column(1).to_numpy()))
        rows += batch.num_rows
        if rows >= max(MERGE_EDGES, len(forest[0])):
            forest = merge(forest, waiting)
            waiting, rows = [], 0
    if waiting:
        forest = merge(forest, waiting)
    if len(forest[0]):
        yield pa.RecordBatch.from_arrays([pa.array(ends) for ends in forest], schema=schema)


def merge(forest: tuple[Ids, Ids], edges: list[tuple[Ids, Ids]]) -> tuple[Ids, Ids]:
    """Spanning forest of a forest and further edges."""
    parts = [forest, *edges]
    return spanning_forest(np.concatenate([p[0] for p in parts]), np.concatenate([p[1] for p in parts]))
