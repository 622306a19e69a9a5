"""One HNSW shard: build it, open it, ask it. Cosine in, cosine out.

Only distinct vectors enter the graph: copies link to each other and cut unrelated vectors off. The texts that share a vector
are kept beside it with their features, so that pairs of texts are scored where they are found.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from spark_dedup.config import SearchConfig
from spark_dedup.kernels.features import FeatureBlock
from spark_dedup.kernels.vectors import cosines_at

Ints = NDArray[np.int64]

GRAPH = "graph.faiss"
ROWS = "rows.npy"
FILES = (GRAPH, ROWS)
"""Files of a shard: the FAISS index, which holds the vectors, and everything about texts as one int64 array."""

MANIFEST = "manifest.json"
"""The shard's own list of its files, stored beside them."""

PART_BYTES = 64 << 10
"""Files are stored in parts of this size. Spark 3.5 limits Arrow batches by rows alone, and 10,000 parts must fit into one."""

ADD_ROWS = 8192
"""Vectors that enter the graph at once. FAISS shuffles within a block, so its size is part of the result."""

GRAPH_SLACK = 1e-5
"""FAISS sums float32; scores this much under the floor are still recomputed before they are refused."""

PRODUCT_SLACK = 1e-4
"""The same for a float32 matrix product, whose order of summing is not known."""

PRODUCT_ROWS_PER_NEIGHBOUR = 256
"""A walk for k neighbours costs about as much as a product with 256 k vectors, and the product misses none."""

PRODUCT_CELLS = 1 << 24


class Neighbours(NamedTuple):
    """Pairs of a query vector and a vector of the shard, at or above the floor.

    Attributes:
        query: int64 (p,), row of the query, ascending.
        base: int64 (p,), position in the shard.
        cosine: float64 (p,), recomputed from the vectors, in [floor, 1].
        asked_again: Lists that were full above the floor at first.
        saturated: Lists that `max_neighbours` cut.
    """

    query: Ints
    base: Ints
    cosine: NDArray[np.float64]
    asked_again: int
    saturated: int


class ShardBuilder:
    """Builds one shard from rows in the order (head_id, rep_id); equal rows give equal files.

    Args:
        config: Uses `links` and `ef_construction`.
    """

    def __init__(self, config: SearchConfig) -> None:
        self._config = config
        self._index: Any = None
        self._pending: list[NDArray[np.float32]] = []
        self._waiting = 0
        self._heads: list[Ints] = []
        self._members: list[Ints] = []
        self._firsts: list[NDArray[np.bool_]] = []
        self._last: int | None = None
        self._values: list[NDArray[np.uint64]] = []
        self._bounds: list[Ints] = [np.zeros(1, dtype=np.int64)]

    def add(self, rep_ids: Ints, head_ids: Ints, vectors: NDArray[np.float32], features: FeatureBlock) -> None:
        """Add rows behind those added before.

        Args:
            rep_ids: int64 (n,).
            head_ids: int64 (n,), ascending over all calls; equal ones mean equal vectors.
            vectors: float32 (n, d), unit rows.
            features: Features of the n texts.
        """
        if not len(rep_ids):
            return
        before = np.concatenate([[head_ids[0] - 1 if self._last is None else self._last], head_ids[:-1]])
        first = head_ids != before
        self._last = int(head_ids[-1])
        self._firsts.append(first)
        self._members.append(rep_ids)
        self._heads.append(head_ids[first])
        self._values.append(np.array(features.values[features.bounds[0] : features.bounds[-1]]))
        self._bounds.append(features.bounds[1:] - features.bounds[0] + self._bounds[-1][-1])
        self._pending.append(vectors[first])
        self._waiting += int(first.sum())
        if self._waiting >= ADD_ROWS:
            self._insert(self._waiting // ADD_ROWS * ADD_ROWS)

    def _insert(self, rows: int) -> None:
        import faiss

        vectors = np.concatenate(self._pending)
        if self._index is None:
            self._index = faiss.IndexHNSWFlat(vectors.shape[1], self._config.links, faiss.METRIC_INNER_PRODUCT)
            self._index.hnsw.efConstruction = self._config.ef_construction
        threads = faiss.omp_get_max_threads()
        faiss.omp_set_num_threads(1)  # several threads link in no fixed order
        try:
            for start in range(0, rows, ADD_ROWS):
                self._index.add(np.ascontiguousarray(vectors[start : min(start + ADD_ROWS, rows)]))
        finally:
            faiss.omp_set_num_threads(threads)
        self._pending = [vectors[rows:]]
        self._waiting -= rows

    def write(self, folder: Path) -> int:
        """Write the files of the shard.

        Args:
            folder: Existing folder.

        Returns:
            Number of distinct vectors, at least 1.
        """
        import faiss

        if self._waiting:
            self._insert(self._waiting)
        heads, members, firsts = (np.concatenate(x) for x in (self._heads, self._members, self._firsts))
        starts = np.append(np.flatnonzero(firsts), len(members))
        counts = np.array([len(heads), len(members)])
        faiss.write_index(self._index, str(folder / GRAPH))
        parts = [counts, heads, starts, members, *self._bounds, *(v.view(np.int64) for v in self._values)]
        file = np.lib.format.open_memmap(folder / ROWS, mode="w+", dtype=np.int64, shape=(sum(map(len, parts)),))
        end = 0
        for part in parts:
            file[end : end + len(part)] = part
            end += len(part)
        file.flush()
        return len(heads)


@dataclass(frozen=True)
class Shard:
    """An opened shard; its arrays lie in the files and are shared by every process that opens them.

    Attributes:
        index: FAISS index over the distinct vectors.
        vectors: float32 (n, d), the vectors inside the index.
        heads: int64 (n,), head_id of each vector, ascending.
        starts: int64 (n + 1,), where the texts of each vector start in `members`.
        members: int64 (m,), rep_ids, ascending within a vector.
        features: Features of the m texts.
    """

    index: Any
    vectors: NDArray[np.float32]
    heads: Ints
    starts: Ints
    members: Ints
    features: FeatureBlock

    @classmethod
    def open(cls, graph: Path, rows: Path) -> Shard:
        """Map the files of a shard into memory; nothing is read until it is used."""
        import faiss

        index: Any = faiss.read_index(str(graph), faiss.IO_FLAG_MMAP_IFC)
        flat: Any = faiss.downcast_index(index.storage)
        vectors = faiss.rev_swig_ptr(flat.get_xb(), index.ntotal * index.d).reshape(index.ntotal, index.d)
        data = np.asarray(np.load(rows, mmap_mode="r"))
        n, m = int(data[0]), int(data[1])
        heads, starts, members, bounds, values = np.split(data[2:], np.cumsum([n, n + 1, m, 3 * m + 1]))
        return cls(index, vectors, heads, starts, members, FeatureBlock(values.view(np.uint64), bounds))

    def positions(self, heads: Ints) -> Ints:
        """Position of each head_id in this shard, -1 where it is not in it."""
        at = np.minimum(np.searchsorted(self.heads, heads), len(self.heads) - 1)
        return np.where(self.heads[at] == heads, at, -1)

    def neighbours(self, queries: NDArray[np.float32], own: Ints, config: SearchConfig) -> Neighbours:
        """All vectors at or above the floor among the nearest of each query, the query itself excluded.

        Every list holds the `neighbours` nearest ones. A list that is full above the floor is asked again with four times
        as many, by an exact product where that is no dearer, up to `max_neighbours`.

        Args:
            queries: float32 (q, d), unit rows.
            own: int64 (q,), position of the query's own vector in this shard, or -1.
            config: Uses `neighbours`, `floor`, `ef_search` and `max_neighbours`.
        """
        n = len(self.heads)
        k = config.neighbours + 1  # the query finds itself
        ask = np.arange(len(queries), dtype=np.int64)
        again = saturated = 0
        found: list[tuple[Ints, Ints, NDArray[np.float64]]] = []
        while len(ask):
            if n <= (k if not again else PRODUCT_ROWS_PER_NEIGHBOUR * k):
                pairs, cut = self._by_product(queries, ask, own, config)
                found.append(pairs)
                saturated += cut
                break
            scores, ids = self._walk(queries[ask], k, config)
            full = (ids[:, -1] >= 0) & (scores[:, -1] >= config.floor - GRAPH_SLACK)
            capped = full & bool(again) & (k > config.max_neighbours)
            near = (ids >= 0) & (scores >= config.floor - GRAPH_SLACK) & (~full | capped)[:, None]
            row, column = np.nonzero(near)
            pairs, _ = self._keep(queries, ask[row], ids[row, column], own, config)
            found.append(pairs)
            saturated += int(capped.sum())
            ask = ask[full & ~capped]
            again = again or len(ask)
            k = min(4 * (k - 1), config.max_neighbours) + 1
        query, base, cosine = (np.concatenate(x) for x in zip(*found, strict=True)) if found else _nothing()
        order = np.lexsort((base, query))
        return Neighbours(query[order], base[order], cosine[order], again, saturated)

    def _walk(self, queries: NDArray[np.float32], k: int, config: SearchConfig) -> tuple[NDArray[np.float32], Ints]:
        import faiss

        # FAISS's type stubs lack this class.
        parameters = faiss.SearchParametersHNSW(efSearch=max(config.ef_search, k))  # type: ignore[attr-defined, unused-ignore]
        scores, ids = self.index.search(np.ascontiguousarray(queries), k, params=parameters)
        return scores, ids

    def _by_product(
        self, queries: NDArray[np.float32], ask: Ints, own: Ints, config: SearchConfig
    ) -> tuple[tuple[Ints, Ints, NDArray[np.float64]], int]:
        """The exact lists of the queries `ask`, and how many of them `max_neighbours` cut."""
        n, cap = len(self.heads), config.max_neighbours + 2  # the query itself, and one more to see that the list is cut
        step = max(1, min(1024, PRODUCT_CELLS // n))
        found, saturated = [], 0
        for start in range(0, len(ask), step):
            rows = ask[start : start + step]
            scores = queries[rows] @ self.vectors.T
            least = np.full(len(rows), config.floor - PRODUCT_SLACK, dtype=np.float32)
            crowded = np.flatnonzero((scores >= config.floor + PRODUCT_SLACK).sum(axis=1) > cap)
            if len(crowded):  # recompute only what can be among the best
                least[crowded] = np.partition(scores[crowded], n - cap, axis=1)[:, n - cap] - PRODUCT_SLACK
            row, base = np.nonzero(scores >= least[:, None])
            pairs, cut = self._keep(queries, rows[row], base, own, config)
            found.append(pairs)
            saturated += cut
        query, base, cosine = (np.concatenate(x) for x in zip(*found, strict=True))
        return (query, base, cosine), saturated

    def _keep(
        self, queries: NDArray[np.float32], query: Ints, base: Ints, own: Ints, config: SearchConfig
    ) -> tuple[tuple[Ints, Ints, NDArray[np.float64]], int]:
        """Recompute cosines, keep those at or above the floor, the best `max_neighbours` of each query."""
        other = base != own[query]
        query, base = query[other], base[other]
        cosine = cosines_at(queries, query, self.vectors, base)
        kept = cosine >= config.floor
        query, base, cosine = query[kept], base[kept], cosine[kept]
        order = np.lexsort((base, -cosine, query))
        query, base, cosine = query[order], base[order], cosine[order]
        first = np.flatnonzero(np.diff(query, prepend=-1))
        lengths = np.diff(first, append=len(query))
        best = np.arange(len(query)) - np.repeat(first, lengths) < config.max_neighbours
        return (query[best], base[best], cosine[best]), int((lengths > config.max_neighbours).sum())


def _nothing() -> tuple[Ints, Ints, NDArray[np.float64]]:
    return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64), np.empty(0, dtype=np.float64)
