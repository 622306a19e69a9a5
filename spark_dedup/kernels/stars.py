"""Stars: every vertex beside a centre that it has an edge to, where a component would chain vertices that have none."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


def star_labels(left: Ints, right: Ints, left_rank: Ints, right_rank: Ints) -> tuple[Ints, Ints]:
    """Cut components into stars around the vertices of least rank.

    The first vertex that is still free becomes a centre and takes its free neighbours, until none is free. The centres are the
    lexicographically first maximal independent set: no two of them are neighbours, and every other vertex joins the first centre
    it has an edge to.

    Args:
        left: int64 (n,), one end of each edge. Loops, repeated and mirrored edges are allowed, and any number of components.
        right: int64 (n,), the other end.
        left_rank: int64 (n,), rank of the left end; ranks of one component differ, and a vertex has one.
        right_rank: int64 (n,), rank of the right end.

    Returns:
        ids: int64 (v,), every vertex that an edge touches, ascending.
        labels: int64 (v,), the least id in the star of each.
    """
    ids, ends = np.unique(np.concatenate([left, right]), return_inverse=True)
    ends = ends.reshape(-1)
    rank = np.empty(len(ids), dtype=np.int64)
    rank[ends] = np.concatenate([left_rank, right_rank])
    others = np.concatenate([ends[len(left) :], ends[: len(left)]])
    neighbours = others[np.argsort(ends, kind="stable")]
    bounds = np.concatenate([[0], np.cumsum(np.bincount(ends, minlength=len(ids)))])
    centre = np.full(len(ids), -1, dtype=np.int64)
    for vertex in np.argsort(rank, kind="stable").tolist():
        if centre[vertex] < 0:
            near = neighbours[bounds[vertex] : bounds[vertex + 1]]
            centre[near[centre[near] < 0]] = vertex
            centre[vertex] = vertex
    least = np.full(len(ids), len(ids), dtype=np.int64)
    np.minimum.at(least, centre, np.arange(len(ids)))
    return ids, ids[least[centre]]
