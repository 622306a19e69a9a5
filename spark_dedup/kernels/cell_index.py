"""Vectors in the order of their cells, and exact products inside cells: the index without a graph.

A row is a distinct vector; the texts that share it are kept beside it with their features. A row lives in one cell and visits
others, so two rows meet where one lives in a cell that the other visits. Every pair that meets is compared, none is capped.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from spark_dedup.kernels.cells import Cells
from spark_dedup.kernels.features import FeatureBlock
from spark_dedup.kernels.hnsw import Neighbours
from spark_dedup.kernels.products import confirmed, proposed_between, proposed_within
from spark_dedup.kernels.ragged import edges, ranges
from spark_dedup.kernels.vectors import cosines_at

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]

VECTORS_FILE = "vectors.npy"
ROWS_FILE = "rows.npy"
FILES = (VECTORS_FILE, ROWS_FILE)
"""Files of a shard: the vectors in cell order, and everything else as one int64 array."""

UNIT_PRODUCTS = 1 << 25
"""Products that one unit of work computes at most, unless one row alone has more."""

GATHER_ROWS = 1024
"""Visitors that are brought together for one product."""


class RowPairs(NamedTuple):
    """Pairs of rows at or above the floor.

    Attributes:
        left_shard: Number of the shard of the left rows.
        left: int64 (p,), row in that shard.
        right_shard: Number of the shard of the right rows.
        right: int64 (p,).
        cosine: float64 (p,), in [floor, 1].
    """

    left_shard: int
    left: Ints
    right_shard: int
    right: Ints
    cosine: NDArray[np.float64]


@dataclass(frozen=True)
class CellRows:
    """The rows of some cells; its arrays may lie in files and are then shared by every process that opens them.

    Attributes:
        vectors: float32 (n, d), unit rows in the order (cell, head_id).
        heads: int64 (n,), head_id of each row.
        starts: int64 (n + 1,), where the texts of each row start in `members`.
        members: int64 (m,), rep_ids, ascending within a row.
        features: Features of the m texts.
        cells: int64 (c,), the cells that have rows, ascending.
        bounds: int64 (c + 1,), where the rows of each of them start.
        visit_bounds: int64 (n + 1,).
        visits: int64 (v,), the other cells that row i visits at `visits[visit_bounds[i]:visit_bounds[i + 1]]`, ascending.
    """

    vectors: Floats
    heads: Ints
    starts: Ints
    members: Ints
    features: FeatureBlock
    cells: Ints
    bounds: Ints
    visit_bounds: Ints
    visits: Ints

    @classmethod
    def of(cls, rep_ids: Ints, head_ids: Ints, vectors: Floats, features: FeatureBlock, probe_bounds: Ints, probes: Ints) -> CellRows:
        """Bring texts into the order of their cells. The same texts in any order give the same rows.

        Args:
            rep_ids: int64 (m,), distinct.
            head_ids: int64 (m,), equal ones mean equal vectors.
            vectors: float32 (m, d), unit rows.
            features: Features of the m texts.
            probe_bounds: int64 (m + 1,).
            probes: int64, the cells of each text as `Cells.probes` gives them.
        """
        homes = probes[probe_bounds[:-1]]
        order = np.lexsort((rep_ids, head_ids, homes))
        firsts = np.flatnonzero(np.diff(head_ids[order], prepend=-1))
        rows = order[firsts]
        others = probe_bounds[rows + 1] - probe_bounds[rows] - 1
        cells, first_rows = np.unique(homes[rows], return_index=True)
        return cls(
            vectors=vectors[rows],
            heads=head_ids[rows],
            starts=np.append(firsts, len(order)),
            members=rep_ids[order],
            features=features.take(order),
            cells=cells,
            bounds=np.append(first_rows, len(rows)),
            visit_bounds=edges(others),
            visits=probes[ranges(probe_bounds[rows] + 1, others)],
        )

    def write(self, folder: Path) -> None:
        """Write `FILES` into an existing folder; equal rows give equal files."""
        np.save(folder / VECTORS_FILE, self.vectors)
        counts = np.array([len(self.heads), len(self.members), len(self.cells), len(self.visits)])
        parts = [counts, self.heads, self.starts, self.members, self.cells, self.bounds, self.visit_bounds, self.visits]
        parts += [self.features.bounds, self.features.values.view(np.int64)]
        file = np.lib.format.open_memmap(folder / ROWS_FILE, mode="w+", dtype=np.int64, shape=(sum(map(len, parts)),))
        end = 0
        for part in parts:
            file[end : end + len(part)] = part
            end += len(part)
        file.flush()

    @classmethod
    def open(cls, vectors: Path, rows: Path) -> CellRows:
        """Map the files of a shard into memory; nothing is read until it is used."""
        data = np.asarray(np.load(rows, mmap_mode="r"))
        n, m, c, v = data[:4].tolist()
        cuts = np.cumsum([n, n + 1, m, c, c + 1, n + 1, v, 3 * m + 1])
        heads, starts, members, cells, bounds, visit_bounds, visits, feature_bounds, values = np.split(data[4:], cuts)
        features = FeatureBlock(values.view(np.uint64), feature_bounds)
        mapped = np.asarray(np.load(vectors, mmap_mode="r"))
        return cls(mapped, heads, starts, members, features, cells, bounds, visit_bounds, visits)

    @cached_property
    def homes(self) -> Ints:
        """The cell of each row: int64 (n,)."""
        return np.repeat(self.cells, np.diff(self.bounds))

    @cached_property
    def visitors(self) -> tuple[Ints, Ints, Ints]:
        """The other way round: cells that rows visit, ascending; bounds; and the rows that visit each of them, ascending."""
        rows = np.repeat(np.arange(len(self.heads)), np.diff(self.visit_bounds))
        order = np.argsort(self.visits, kind="stable")
        visited, first = np.unique(self.visits[order], return_index=True)
        return visited, np.append(first, len(order)), rows[order]

    def positions(self, heads: Ints) -> Ints:
        """Row of each head_id, -1 where it is not here."""
        if not len(self.heads):
            return np.full(len(heads), -1, dtype=np.int64)
        order = self._by_head
        at = order[np.minimum(np.searchsorted(self.heads, heads, sorter=order), len(order) - 1)]
        return np.where(self.heads[at] == heads, at, -1)

    @cached_property
    def _by_head(self) -> Ints:
        return np.argsort(self.heads)

    def visiting(self, cell: int) -> Ints:
        """Rows of other cells that visit a cell, ascending."""
        visited, bounds, rows = self.visitors
        at = int(np.searchsorted(visited, cell))
        if at == len(visited) or visited[at] != cell:
            return rows[:0]
        return rows[bounds[at] : bounds[at + 1]]

    def neighbours(self, queries: Floats, own: Ints, probe_bounds: Ints, probes: Ints, floor: float) -> Neighbours:
        """All rows at or above the floor that meet a query, the query itself excluded.

        They meet as two rows of a self-join do: the query visits the row's cell, or the row that of the query.

        Args:
            queries: float32 (q, d), unit rows.
            own: int64 (q,), the query's own row here, or -1.
            probe_bounds: int64 (q + 1,).
            probes: int64, the cells of each query as `Cells.probes` gives them; those that are not here are passed over.
            floor: In (0, 1].
        """
        asking = np.repeat(np.arange(len(queries)), np.diff(probe_bounds))
        homes = probes[probe_bounds[:-1]]
        width = 1 + int(max(probes.max(initial=0), self.cells.max(initial=0)))
        asked = np.sort(asking * width + probes)
        found = [(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64), np.empty(0))]

        def compare(some: Ints, rows: Ints, *, is_guest: bool) -> None:
            vectors, these = queries[some], self.vectors[rows]
            for left, right in proposed_between(vectors, these, floor):
                query, base = some[left], rows[right]
                other = base != own[query]
                if is_guest:  # the query has met those already whose cell it visits
                    other &= ~_holds(asked, query * width + self.homes[base])
                for near in confirmed(vectors, these, left[other], right[other], floor):
                    found.append((some[near.left], rows[near.right], near.cosine))

        order = np.argsort(probes, kind="stable")
        for cell in np.intersect1d(probes, self.cells):
            low, high = np.searchsorted(probes[order], [cell, cell + 1])
            c = int(np.searchsorted(self.cells, cell))
            compare(asking[order[low:high]], np.arange(self.bounds[c], self.bounds[c + 1]), is_guest=False)
        for cell in np.intersect1d(homes, self.visits):
            compare(np.flatnonzero(homes == cell), self.visiting(int(cell)), is_guest=True)
        query, base, cosine = (np.concatenate(x) for x in zip(*found, strict=True))
        by_query = np.lexsort((base, query))
        return Neighbours(query[by_query], base[by_query], cosine[by_query], 0, 0)


@dataclass(frozen=True)
class Units:
    """Units of work of a self-join: cells, each cut into ranges of the rows that ask in it.

    In a cell first its own rows ask, each those that follow it; then the visitors, shard by shard, all of its rows.

    Attributes:
        shard: int64 (u,), number of the shard.
        cell: int64 (u,), position in `CellRows.cells`.
        start: int64 (u,), first of the rows that ask.
        stop: int64 (u,).
        products: int64 (u,), pairs of rows that are compared.
        split: Cells whose own rows alone are more than one unit.
    """

    shard: Ints
    cell: Ints
    start: Ints
    stop: Ints
    products: Ints
    split: int

    def part(self, number: int, parts: int) -> range:
        """Units of one of several tasks: consecutive, and in all tasks about the same number of products."""
        filled = np.cumsum(self.products)
        total = int(filled[-1]) if len(filled) else 0
        cuts = np.searchsorted(filled, [total * number / parts, total * (number + 1) / parts], side="left")
        return range(int(cuts[0]), len(filled) if number + 1 == parts else int(cuts[1]))


class CellJoin:
    """The self-join over shards: each unordered pair of rows that meets, exactly once.

    A pair in one cell is found there. A pair of two cells is found in the cell that the other row visits; if each row visits the
    other's cell, it is found in the higher one.

    Args:
        shards: The rows.
        guests: Of these shards only the visitors take part, not what is in their cells.
    """

    def __init__(self, shards: Sequence[CellRows], guests: Sequence[CellRows] = ()) -> None:
        self._shards = [*shards, *guests]
        self._served = len(shards)

    def units(self, most: int = UNIT_PRODUCTS, *, guests_only: bool = False) -> Units:
        """Cut the work; the rows alone decide how.

        Args:
            most: Products in a unit, unless one row alone has more.
            guests_only: Only the visitors from the guests, where another join does the rest.
        """
        columns: list[tuple[int, int, int, int, int]] = []
        split = 0
        for s, shard in enumerate(self._shards[: self._served]):
            own = np.diff(shard.bounds)
            visitors = np.zeros((len(self._shards), len(shard.cells)), dtype=np.int64)
            for o, other in enumerate(self._shards):
                visited, bounds, _ = other.visitors
                _, here, there = np.intersect1d(shard.cells, visited, assume_unique=True, return_indices=True)
                visitors[o, here] = np.diff(bounds)[there]
            first = own + visitors[: self._served].sum(axis=0) if guests_only else np.zeros_like(own)
            for c, (n, low, high) in enumerate(zip(own.tolist(), first.tolist(), (own + visitors.sum(axis=0)).tolist(), strict=True)):
                cuts = _cuts(n, low, high, most)
                columns += [(s, c, a, b, _products(n, b) - _products(n, a)) for a, b in zip(cuts, cuts[1:], strict=False)]
                split += n * (n - 1) // 2 > most
        shards, cells, starts, stops, products = np.array(columns, dtype=np.int64).reshape(-1, 5).T
        return Units(shards, cells, starts, stops, products, split)

    def own_rows(self, units: Units, numbers: range) -> Iterator[tuple[int, int, int]]:
        """Shard, first and end of the rows that ask in their own cell, in some units: over all units each row once."""
        last: tuple[int, int, int] | None = None
        for u in numbers:
            s, c = int(units.shard[u]), int(units.cell[u])
            first, end = (int(x) for x in self._shards[s].bounds[c : c + 2])
            low, high = min(first + int(units.start[u]), end), min(first + int(units.stop[u]), end)
            if last and last[0] == s and last[2] == low:
                last = (s, last[1], high)
            else:
                if last:
                    yield last
                last = (s, low, high)
        if last:
            yield last

    def join(self, units: Units, numbers: range, floor: float) -> Iterator[RowPairs]:
        """Pairs that some units find.

        Args:
            units: From `units`.
            numbers: Which of them.
            floor: In (0, 1].
        """
        for u in numbers:
            s, c, start, stop = (int(column[u]) for column in (units.shard, units.cell, units.start, units.stop))
            shard = self._shards[s]
            first, end = int(shard.bounds[c]), int(shard.bounds[c + 1])
            rows, own = shard.vectors[first:end], end - first
            for left, right in proposed_within(rows, floor, min(start, own), min(stop, own)):
                for near in confirmed(rows, rows, left, right, floor):
                    yield RowPairs(s, near.left + first, s, near.right + first, near.cosine)
            if stop > own:
                yield from self._visits(s, c, max(start, own) - own, stop - own, floor)

    def _visits(self, s: int, c: int, start: int, stop: int, floor: float) -> Iterator[RowPairs]:
        """Pairs of the visitors start .. stop of a cell with its rows."""
        shard = self._shards[s]
        cell, first, end = int(shard.cells[c]), int(shard.bounds[c]), int(shard.bounds[c + 1])
        rows = shard.vectors[first:end]
        lengths = np.diff(shard.visit_bounds[first : end + 1])
        width = 1 + int(max((other.cells[-1] for other in self._shards if len(other.cells)), default=0))
        back = np.repeat(np.arange(end - first), lengths) * width + shard.visits[shard.visit_bounds[first] : shard.visit_bounds[end]]
        lists = [other.visiting(cell) for other in self._shards]
        at = edges(np.array([len(x) for x in lists]))
        for low in range(start, stop, GATHER_ROWS):
            high = min(low + GATHER_ROWS, stop)
            cuts = np.clip(at, low, high)
            asking = [x[cuts[o] - at[o] : cuts[o + 1] - at[o]] for o, x in enumerate(lists)]
            vectors = np.concatenate([other.vectors[x] for other, x in zip(self._shards, asking, strict=True) if len(x)])
            homes = np.concatenate([other.homes[x] for other, x in zip(self._shards, asking, strict=True) if len(x)])
            for left, right in proposed_between(vectors, rows, floor):
                once = (homes[left] < cell) | ~_holds(back, right * width + homes[left])
                for near in confirmed(vectors, rows, left[once], right[once], floor):
                    shard_cuts = np.searchsorted(near.left, cuts - low)
                    for o in np.flatnonzero(np.diff(shard_cuts)):
                        part = slice(shard_cuts[o], shard_cuts[o + 1])
                        yield RowPairs(int(o), asking[o][near.left[part] - (cuts[o] - low)], s, near.right[part] + first, near.cosine[part])


def needed_margins(cells: Cells, left: Floats, i: Ints, right: Floats, j: Ints) -> NDArray[np.float64]:
    """The least margin with which each pair meets: one of its rows then visits the cell that the other lives in.

    No answer depends on the vectors that stand beside it, as with `Cells.probes`.

    Args:
        cells: The cells.
        left: float32 (n, d), unit rows.
        i: int64 (p,), the left row of each pair.
        right: float32 (m, d), unit rows.
        j: int64 (p,), the right row.

    Returns:
        float64 (p,), at least 0; 0 where both rows live in one cell.
    """
    sides = [(left, i, cells.probes(left, None)[1]), (right, j, cells.probes(right, None)[1])]
    needs = []
    for (rows, at, home), (_, other_at, other_home) in (sides, sides[::-1]):
        best = cosines_at(rows, np.arange(len(rows)), cells.centroids, home)
        needs.append(best[at] - cosines_at(rows, at, cells.centroids, other_home[other_at]))
    return np.maximum(np.minimum(*needs), 0.0)


MARGINS = 200
"""Margins that are told apart, in hundredths: cosines differ by 2 at most."""


FEW_MISSES = 5
"""Of 50,000 real passages in 128 cells, margins that rested on one miss of a sample reached 0.999 on the table in 7 of 10 samples."""


def margin_counts(needs: NDArray[np.float64]) -> Ints:
    """Pairs by the margin that they need: int64 (MARGINS + 1,), in hundredths, rounded up."""
    return np.bincount(np.ceil(needs * 100).astype(np.int64).clip(0, MARGINS), minlength=MARGINS + 1)


def least_margin(counts: Ints, target: float, usual: float) -> float:
    """The margin that finds a share of the true pairs of a sample.

    A sample of pairs is not the table: the margin may miss half of what the target allows, and where that is fewer than `FEW_MISSES`
    pairs of the sample, which then says little about so high a target, it is no smaller than the usual one.

    Args:
        counts: From `margin_counts`, of at least one pair.
        target: Share of the pairs to be found, in (0, 1].
        usual: At least 0.

    Returns:
        A multiple of 0.01, or `usual`.
    """
    missed = int((1.0 - target) / 2 * counts.sum())
    beyond = counts.sum() - np.cumsum(counts)
    least = float(np.argmax(beyond <= missed)) / 100
    return least if missed >= FEW_MISSES else max(least, usual)


def _products(own: int, asking: int) -> int:
    """Products of the first `asking` rows that ask in a cell of `own` rows."""
    inside = min(asking, own)
    return inside * (own - inside) + inside * (inside - 1) // 2 + (asking - inside) * own


def _cuts(own: int, first: int, end: int, most: int) -> list[int]:
    """Where the rows first .. end that ask in a cell are cut, so that no range has more than `most` products, or is one row."""
    cuts = [first]
    while cuts[-1] < end:
        low, high = cuts[-1] + 1, end
        done = _products(own, cuts[-1])
        while low < high:
            middle = (low + high + 1) // 2
            if _products(own, middle) - done <= most:
                low = middle
            else:
                high = middle - 1
        cuts.append(low)
    return cuts


def _holds(ascending: Ints, wanted: Ints) -> NDArray[np.bool_]:
    """Whether each wanted value is among the ascending ones."""
    if not len(ascending):
        return np.zeros(len(wanted), dtype=np.bool_)
    at = np.minimum(np.searchsorted(ascending, wanted), len(ascending) - 1)
    return np.asarray(ascending[at] == wanted)
