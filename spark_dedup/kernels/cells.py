"""Coarse k-means cells: which shard a vector lives in, and which shards a query visits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

SHARD_ROWS = 25_000
"""Distinct vectors per shard while there are few shards: enough work for a task, small enough to build in a minute."""

FEW_SHARDS = 16
"""Up to here more vectors make more shards; beyond, shards grow, because few large shards beat many small ones."""

MAX_SHARD_ROWS = 250_000
"""Distinct vectors per shard at most: with 384 to 512 dimensions and its texts' features, a shard is then built in 1 to 2 GB."""

CELLS_PER_SHARD = 16
MAX_CELLS = 4096
SAMPLE_PER_CELL = 256
MAX_SAMPLE = 65_536
ITERATIONS = 10
SEED = 20
BLOCK = 4096


def shard_count(heads: int, wanted: int | str = "auto") -> int:
    """How many shards to build.

    Decided by the number of vectors alone, never by cores, so that a table is the same on every cluster.

    Args:
        heads: Distinct vectors, at least 0.
        wanted: `search.shards`: a number, or `auto`.

    Returns:
        At least 1.
    """
    if isinstance(wanted, int):
        return wanted
    return max(1, min(FEW_SHARDS, math.ceil(heads / SHARD_ROWS)), math.ceil(heads / MAX_SHARD_ROWS))


def cell_count(shards: int) -> int:
    """Cells to train for this many shards: one where there is one shard."""
    return 1 if shards == 1 else max(shards, min(CELLS_PER_SHARD * shards, MAX_CELLS))


def sample_size(cells: int) -> int:
    """Vectors that the training of this many cells looks at."""
    return max(2 * cells, min(SAMPLE_PER_CELL * cells, MAX_SAMPLE))


@dataclass(frozen=True)
class Cells:
    """The cells of an index.

    Attributes:
        centroids: float32 (c, d), unit rows.
        shards: int32 (c,), the shard of each cell.
    """

    centroids: NDArray[np.float32]
    shards: NDArray[np.int32]

    @classmethod
    def from_rows(cls, rows: Sequence[tuple[int, int, bytes]]) -> Cells:
        """From the rows of INDEX_CELLS: (cell, shard, centroid), in any order."""
        ordered = sorted(rows, key=lambda row: row[0])
        flat = np.frombuffer(b"".join(bytes(row[2]) for row in ordered), dtype="<f4")
        centroids = flat.reshape(len(ordered), -1) if ordered else np.empty((0, 0), dtype=np.float32)
        return cls(centroids.astype(np.float32, copy=False), np.array([row[1] for row in ordered], dtype=np.int32))

    @property
    def count(self) -> int:
        """Number of shards; 0 without vectors."""
        return int(self.shards.max()) + 1 if len(self.shards) else 0

    def home(self, vectors: NDArray[np.float32]) -> NDArray[np.int32]:
        """The shard that each vector lives in: that of its most similar cell.

        Args:
            vectors: float32 (n, d), unit rows.

        Returns:
            int32 (n,).
        """
        if self.count == 1:
            return np.zeros(len(vectors), dtype=np.int32)
        homes = [self.shards[block.argmax(axis=1)] for block in self._similarities(vectors)]
        return np.concatenate(homes) if homes else np.empty(0, dtype=np.int32)

    def visits(self, vectors: NDArray[np.float32], margin: float) -> NDArray[np.bool_]:
        """The shards that each vector searches: all with a cell at most `margin` less similar than its best one.

        Args:
            vectors: float32 (n, d), unit rows.
            margin: Cosine difference, at least 0.

        Returns:
            bool (n, shards); the home shard is always visited.
        """
        visited = np.ones((len(vectors), self.count), dtype=np.bool_)
        if self.count == 1:
            return visited
        columns = [np.flatnonzero(self.shards == shard) for shard in range(self.count)]
        start = 0
        for block in self._similarities(vectors):
            near = block >= block.max(axis=1, keepdims=True) - margin
            for shard, cells in enumerate(columns):
                visited[start : start + len(block), shard] = near[:, cells].any(axis=1)
            start += len(block)
        return visited

    def _similarities(self, vectors: NDArray[np.float32]) -> list[NDArray[np.float64]]:
        # A float32 product rounds differently with the number of rows in it, and a near tie would then send equal
        # vectors of two batches to two shards. In float64 that difference is about 1e-16.
        transposed = self.centroids.astype(np.float64).T
        return [vectors[i : i + BLOCK].astype(np.float64) @ transposed for i in range(0, len(vectors), BLOCK)]


def train_cells(sample: NDArray[np.float32], shards: int) -> Cells:
    """Spherical k-means over a sample, cells then grouped into shards. The same sample gives the same cells.

    Args:
        sample: float32 (n, d), unit rows in a fixed order.
        shards: Shards wanted, at least 1. A sample of fewer vectors than shards makes one shard per vector.

    Returns:
        The cells; none for an empty sample.
    """
    import faiss

    cells = min(cell_count(shards), len(sample))
    if cells <= 1:
        return Cells(np.array(sample[:cells], dtype=np.float32), np.zeros(cells, dtype=np.int32))
    threads = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    try:
        kmeans = faiss.Kmeans(
            sample.shape[1], cells, niter=ITERATIONS, seed=SEED, spherical=True,
            min_points_per_centroid=1, max_points_per_centroid=len(sample),
        )  # fmt: skip
        kmeans.train(np.ascontiguousarray(sample))
    finally:
        faiss.omp_set_num_threads(threads)
    trained = Cells(np.asarray(kmeans.centroids, dtype=np.float32), np.arange(cells, dtype=np.int32))
    weights = np.bincount(trained.home(sample), minlength=cells).astype(np.float64)
    return Cells(trained.centroids, group_cells(trained.centroids, weights, min(shards, cells)))


def group_cells(centroids: NDArray[np.float32], weights: NDArray[np.float64], shards: int) -> NDArray[np.int32]:
    """Group neighbouring cells into shards of similar weight, so that most probes of a query stay in one shard.

    Cells are cut in two again and again, along the direction in which their centroids spread most.

    Args:
        centroids: float32 (c, d).
        weights: float64 (c,), vectors of each cell, at least 0.
        shards: Number of shards in [1, c].

    Returns:
        int32 (c,): the shard of each cell; every shard has at least one cell.
    """
    groups = np.zeros(len(centroids), dtype=np.int32)
    pending = [(np.arange(len(centroids)), 0, shards)]
    while pending:
        cells, first, parts = pending.pop()
        if parts == 1:
            groups[cells] = first
            continue
        lower = parts // 2
        ordered = cells[np.argsort(_spread(centroids[cells], weights[cells]), kind="stable")]
        filled = np.cumsum(weights[ordered])
        cut = 1 + int(np.abs(filled - filled[-1] * lower / parts).argmin())
        cut = min(max(cut, lower), len(cells) - (parts - lower))
        pending.append((ordered[:cut], first, lower))
        pending.append((ordered[cut:], first + lower, parts - lower))
    return groups


def _spread(points: NDArray[np.float32], weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Position of each point along the principal direction; its sign is fixed, because the SVD leaves it open."""
    x = points.astype(np.float64)
    total = weights.sum()
    centred = x - (weights @ x / total if total > 0 else x.mean(axis=0))
    direction = np.linalg.svd(centred * np.sqrt(weights)[:, None] if total > 0 else centred, full_matrices=False)[2][0]
    if direction[np.abs(direction).argmax()] < 0:
        direction = -direction
    return np.asarray(centred @ direction)
