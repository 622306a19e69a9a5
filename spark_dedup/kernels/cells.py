"""K-means cells: which cell and shard a vector lives in, and which ones a query visits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from spark_dedup.kernels.products import slack
from spark_dedup.kernels.vectors import cosines_at

Ints = NDArray[np.int64]

SHARD_ROWS = 25_000
"""Distinct vectors per shard: enough work for a task, small enough to build in a minute and to hold beside others."""

FEW_GRAPHS = 16
"""Up to here more vectors make more graphs; beyond, graphs grow, because a query searches few large ones faster than many small ones."""

MAX_GRAPH_ROWS = 250_000
"""Distinct vectors per graph at most: with 384 to 512 dimensions and its texts' features, it is then built in 1 to 2 GB."""

CELLS_PER_SHARD = 16
MAX_CELLS = 4096
SAMPLE_PER_CELL = 256
MAX_SAMPLE = 65_536
ITERATIONS = 10

FINE_SAMPLE_PER_CELL = 32
FINE_ITERATIONS = 4
"""Cells inside which products do the search need not be good ones: 200,000 passages in 512 cells found 0.9999 of their pairs at
or above 0.85 with these, as with four times the sample and ten rounds, which took seven times as long to train."""

SEED = 20
BLOCK = 4096

ONE_CELL_ROWS = 8192
"""Distinct vectors up to which the engine of cells has one cell: all their products take a second."""

PROBE_ROWS = 1024


def graph_shards(heads: int, wanted: int | str = "auto") -> int:
    """How many shards to build where each is a graph.

    Decided by the number of vectors alone, never by cores, so that a table is the same on every cluster.

    Args:
        heads: Distinct vectors, at least 0.
        wanted: `search.shards`: a number, or `auto`.

    Returns:
        At least 1.
    """
    if isinstance(wanted, int):
        return wanted
    return max(1, min(FEW_GRAPHS, math.ceil(heads / SHARD_ROWS)), math.ceil(heads / MAX_GRAPH_ROWS))


def cell_shards(heads: int, wanted: int | str = "auto") -> int:
    """How many shards to build where each is some cells: they stay equally large, as a query visits cells, not shards.

    Args:
        heads: Distinct vectors, at least 0.
        wanted: `search.shards`: a number, or `auto`.

    Returns:
        At least 1.
    """
    return wanted if isinstance(wanted, int) else max(1, math.ceil(heads / SHARD_ROWS))


def cell_count(shards: int) -> int:
    """Cells to train for this many shards: one where there is one shard."""
    return 1 if shards == 1 else max(shards, min(CELLS_PER_SHARD * shards, MAX_CELLS))


def fine_cell_count(heads: int, wanted: int | str = "auto", shards: int | str = "auto") -> int:
    """Cells to train where products inside cells do the search: a power of two near the root of the number of vectors.

    With n vectors and c cells, finding the cells of all takes n c products and comparing inside them some n^2 / c.

    Args:
        heads: Distinct vectors, at least 0.
        wanted: `search.cells`: a number, or `auto`.
        shards: `search.shards`: a number, or `auto`.

    Returns:
        At least one for each of `cell_shards`.
    """
    usual = 1 if heads <= ONE_CELL_ROWS else int(2 ** round(math.log2(heads) / 2))
    return max(cell_shards(heads, shards), wanted if isinstance(wanted, int) else usual)


def sample_size(cells: int, per_cell: int = SAMPLE_PER_CELL) -> int:
    """Vectors that the training of this many cells looks at."""
    return max(2 * cells, min(per_cell * cells, MAX_SAMPLE))


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

    def probes(self, vectors: NDArray[np.float32], margin: float | None) -> tuple[Ints, Ints]:
        """The cells that each vector visits: its home, then all that are at most `margin` less similar than it, ascending.

        No answer depends on the vectors that stand beside it: what a float32 product leaves open is decided in float64.

        Args:
            vectors: float32 (n, d), unit rows.
            margin: Cosine difference, at least 0; None visits the home alone.

        Returns:
            int64 (n + 1,) bounds, and the cells of vector i at `cells[bounds[i]:bounds[i + 1]]`.
        """
        if len(self.centroids) <= 1:
            return np.arange(len(vectors) + 1), np.zeros(len(vectors), dtype=np.int64)
        sizes, cells = [np.zeros(1, dtype=np.int64)], [np.empty(0, dtype=np.int64)]
        for start in range(0, len(vectors), PROBE_ROWS):
            row, cell = self._probe(vectors[start : start + PROBE_ROWS], margin)
            sizes.append(np.bincount(row, minlength=len(vectors[start : start + PROBE_ROWS])))
            cells.append(cell)
        return np.cumsum(np.concatenate(sizes)), np.concatenate(cells)

    def habits(self, vectors: NDArray[np.float32], margin: float | None) -> tuple[float, float]:
        """How many cells a vector visits, and how unevenly cells are filled, as far as a random sample tells.

        Args:
            vectors: float32 (n, d), unit rows.
            margin: As in `probes`.

        Returns:
            Cells that a vector visits on average, its own included; mean size of the cell that a vector lives in, over the mean size
            of the cells, at least 1.
        """
        n, cells = len(vectors), len(self.centroids)
        if n < 2 or cells < 2:
            return 1.0, 1.0
        bounds, visits = self.probes(vectors, margin)
        filled = np.bincount(visits[bounds[:-1]], minlength=cells).astype(np.float64)
        return len(visits) / n, max(1.0, float(cells * (filled * (filled - 1)).sum() / (n * (n - 1))))

    def _probe(self, vectors: NDArray[np.float32], margin: float | None) -> tuple[Ints, Ints]:
        """Rows, ascending, and the cells that they visit, home first."""
        reach = margin or 0.0
        doubt = 2 * slack(vectors.shape[1])  # how much the difference of two float32 products can be off
        rough = vectors @ self.centroids.T
        count = rough.shape[1]
        near = np.flatnonzero(rough >= (rough.max(axis=1) - np.float32(reach + doubt))[:, None])
        row, cell = near // count, near % count
        similarity = rough.ravel()[near].astype(np.float64)
        first = np.flatnonzero(np.diff(row, prepend=-1))  # every row is near its own best cell
        behind = np.maximum.reduceat(similarity, first)[row] - similarity
        open_rows = np.zeros(len(vectors), dtype=np.bool_)
        open_rows[row[np.abs(behind - reach) <= doubt]] = True  # inside the margin or not
        rivals = np.bincount(row[behind <= doubt], minlength=len(vectors))
        open_rows[rivals > 1] = True  # which one is the home
        unsure = open_rows[row]
        similarity[unsure] = cosines_at(vectors, row[unsure], self.centroids, cell[unsure])
        behind = np.maximum.reduceat(similarity, first)[row] - similarity
        kept = behind <= reach
        row, cell, behind = row[kept], cell[kept], behind[kept]
        order = np.lexsort((cell, behind > 0, row))
        row, cell = row[order], cell[order]
        if margin is None:
            first = np.flatnonzero(np.diff(row, prepend=-1))
            return row[first], cell[first]
        return row, cell

    def _similarities(self, vectors: NDArray[np.float32]) -> list[NDArray[np.float64]]:
        # A float32 product rounds differently with the number of rows in it, and a near tie would then send equal
        # vectors of two batches to two shards. In float64 that difference is about 1e-16.
        transposed = self.centroids.astype(np.float64).T
        return [vectors[i : i + BLOCK].astype(np.float64) @ transposed for i in range(0, len(vectors), BLOCK)]


def train_cells(sample: NDArray[np.float32], shards: int, cells: int | None = None, iterations: int = ITERATIONS) -> Cells:
    """Spherical k-means over a sample, cells then grouped into shards. The same sample gives the same cells.

    Args:
        sample: float32 (n, d), unit rows in a fixed order.
        shards: Shards wanted, at least 1. A sample of fewer vectors than shards makes one shard per vector.
        cells: Cells wanted, at least `shards`; None takes `cell_count(shards)`.
        iterations: Rounds of k-means.

    Returns:
        The cells; none for an empty sample.
    """
    import faiss

    cells = min(cells or cell_count(shards), len(sample))
    if cells <= 1:
        return Cells(_middle(sample)[:cells], np.zeros(cells, dtype=np.int32))
    threads = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    try:
        kmeans = faiss.Kmeans(
            sample.shape[1], cells, niter=iterations, seed=SEED, spherical=True,
            min_points_per_centroid=1, max_points_per_centroid=len(sample),
        )  # fmt: skip
        kmeans.train(np.ascontiguousarray(sample))
    finally:
        faiss.omp_set_num_threads(threads)
    trained = Cells(np.asarray(kmeans.centroids, dtype=np.float32), np.arange(cells, dtype=np.int32))
    weights = np.bincount(trained.probes(sample, None)[1], minlength=cells).astype(np.float64)
    return Cells(trained.centroids, group_cells(trained.centroids, weights, min(shards, cells)))


def _middle(sample: NDArray[np.float32]) -> NDArray[np.float32]:
    """The direction of the mean: float32 (1, d), or (0, d) for no vectors; the first vector where opposite ones leave none."""
    mean = sample.sum(axis=0, dtype=np.float64, keepdims=True)
    length = float(np.linalg.norm(mean))
    return (mean / length).astype(np.float32) if length else sample[:1].copy()


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
