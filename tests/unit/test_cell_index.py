"""The self-join by cells against brute force in float64: every pair that meets, once, whatever the cuts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from spark_dedup.config import SearchConfig
from spark_dedup.kernels.cell_index import FILES, CellJoin, CellRows, least_margin, margin_counts, needed_margins
from spark_dedup.kernels.cells import Cells, train_cells
from spark_dedup.kernels.expand import join_copies, join_texts
from spark_dedup.kernels.features import decode, features, pair_scores
from spark_dedup.kernels.vectors import cosines

FLOOR = 0.85
BLOB = features(pa.array([f"a text with number {i % 13} in it and {i % 5} others" for i in range(65)]))


def unit(x: np.ndarray) -> np.ndarray:
    return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)


def crowd(seed: int, n: int, d: int = 32, centres: int = 20, noise: float = 1.1) -> np.ndarray:
    """Overlapping groups whose members have cosines on both sides of 0.85."""
    rng = np.random.default_rng(seed)
    return unit(3 * rng.normal(size=(centres, d))[rng.integers(0, centres, n)] + noise * rng.normal(size=(n, d)))


def blobs(n: int):
    return decode(BLOB.take(pa.array(np.arange(n) % len(BLOB))))


def heads_of(x: np.ndarray) -> np.ndarray:
    seen: dict[bytes, int] = {}
    return np.array([seen.setdefault(row.tobytes(), i) for i, row in enumerate(x)], dtype=np.int64)


def index(x: np.ndarray, cells: Cells, margin: float | None, shuffle: int | None = None) -> list[CellRows]:
    """One `CellRows` per shard, of texts 0 .. n - 1."""
    home = cells.shards[cells.probes(x, None)[1]]
    heads, shards = heads_of(x), []
    for s in range(cells.count):
        rows = np.flatnonzero(home == s)
        if shuffle is not None:
            rows = np.random.default_rng(shuffle).permutation(rows)
        if len(rows):
            shards.append(CellRows.of(rows, heads[rows], x[rows], blobs(len(x)).take(rows), *cells.probes(x[rows], margin)))
    return shards


def joined(
    shards: list[CellRows], guests: tuple[CellRows, ...] = (), *, parts: int = 1, most: int = 1 << 25, guests_only: bool = False
) -> dict[tuple[int, int], float]:
    """Pairs of heads with their cosines, from all parts."""
    got: dict[tuple[int, int], float] = {}
    join = CellJoin(shards, guests)
    units = join.units(most, guests_only=guests_only)
    rows = [*shards, *guests]
    for number in range(parts):
        for p in join.join(units, units.part(number, parts), FLOOR):
            a, b = rows[p.left_shard].heads[p.left], rows[p.right_shard].heads[p.right]
            for i, j, c in zip(a.tolist(), b.tolist(), p.cosine.tolist(), strict=True):
                key = (min(i, j), max(i, j))
                assert i != j and key not in got, "a pair came twice"
                got[key] = c
    return got


def similarities(x: np.ndarray) -> np.ndarray:
    y = x.astype(np.float64)
    y /= np.linalg.norm(y, axis=1, keepdims=True)
    return y @ y.T


def meeting(x: np.ndarray, cells: Cells, margin: float | None) -> dict[tuple[int, int], float]:
    """Pairs at or above the floor where one lives in a cell that the other visits, from whole float64 matrices."""
    near = x.astype(np.float64) @ cells.centroids.astype(np.float64).T
    home = near.argmax(axis=1)
    visits = near >= near.max(axis=1, keepdims=True) - (0 if margin is None else margin)
    similar = similarities(x)
    meets = visits[:, home]  # [i, j]: i visits the home of j
    return {(int(i), int(j)): similar[i, j] for i, j in np.argwhere((similar >= FLOOR) & (meets | meets.T)) if i < j}


@pytest.mark.parametrize("margin", [None, 0.0, 0.05, 0.2, 2.0])
@pytest.mark.parametrize("shards", [1, 3])
def test_the_join_finds_every_pair_that_meets_once(margin: float | None, shards: int) -> None:
    x = crowd(1, 1500)
    cells = train_cells(x[:600], shards, cells=24)
    want = meeting(x, cells, margin)
    got = joined(index(x, cells, margin))
    assert set(got) == set(want)
    assert len(want) > 1000
    np.testing.assert_allclose([got[p] for p in want], list(want.values()), atol=1e-12)


def test_a_margin_that_visits_everything_is_the_exact_search() -> None:
    x = crowd(2, 900)
    similar = np.triu(similarities(x), 1)
    got = joined(index(x, train_cells(x, 2, cells=16), 2.0))
    assert set(got) == {(int(i), int(j)) for i, j in np.argwhere(similar >= FLOOR)}
    single = joined(index(x, train_cells(x, 1, cells=1), 0.1))
    assert got == single


def test_parts_and_cuts_of_cells_do_not_change_a_bit() -> None:
    x = crowd(3, 500, centres=5)
    cells = train_cells(x[:300], 3, cells=9)
    shards = index(x, cells, 0.1)
    want = joined(shards)
    assert joined(shards, parts=7) == want
    assert joined(shards, parts=5, most=1000) == want
    assert joined(shards, parts=50, most=1) == want
    assert joined(index(x, cells, 0.1, shuffle=9)) == want
    assert CellJoin(shards).units().split == 0
    assert CellJoin(shards).units(1000).split > 0


def test_visitors_may_come_from_guests() -> None:
    x = crowd(4, 1200)
    shards = index(x, train_cells(x[:500], 4, cells=24), 0.1)
    whole, apart = {}, {}
    for s in range(len(shards)):
        guests = (*shards[:s], *shards[s + 1 :])
        some = joined([shards[s]], guests)
        assert not set(some) & set(whole)
        whole |= some
        own, foreign = joined([shards[s]]), [joined([shards[s]], (guest,), guests_only=True) for guest in guests]
        for part in (own, *foreign):
            assert not set(part) & set(apart)
            apart |= part
    assert whole == apart == joined(shards)


def test_own_rows_of_all_parts_are_all_rows_once() -> None:
    x = crowd(13, 400)
    shards = index(x, train_cells(x, 3, cells=9), 0.1)
    join = CellJoin(shards)
    for most in (50, 1 << 25):
        units = join.units(most)
        rows = [(s, r) for part in range(4) for s, low, high in join.own_rows(units, units.part(part, 4)) for r in range(low, high)]
        assert sorted(rows) == [(s, r) for s, shard in enumerate(shards) for r in range(len(shard.heads))]
    assert list(join.own_rows(units, range(len(units.cell)))) == [(s, 0, len(shard.heads)) for s, shard in enumerate(shards)]


def test_no_unit_is_larger_than_asked_and_together_they_are_the_work() -> None:
    # One cell of 200 rows and no visitor: 200 * 199 / 2 products.
    x = crowd(5, 200)
    units = CellJoin(index(x, train_cells(x, 1, cells=1), 0.1)).units(1000)
    assert units.products.sum() == 200 * 199 // 2
    assert units.products.max() <= 1000
    assert units.split == 1
    assert len(units.products) >= 20
    ranges = [units.part(i, 7) for i in range(7)]
    assert [u for r in ranges for u in r] == list(range(len(units.products)))
    shares = [sum(units.products[u] for u in r) for r in ranges]
    assert max(shares) <= 200 * 199 / 2 / 7 + 1000


def test_files_hold_the_rows_and_equal_rows_make_equal_files(tmp_path: Path) -> None:
    x = np.concatenate([crowd(6, 300), crowd(6, 300)[:40]])
    cells = train_cells(x, 1, cells=8)
    (one,) = index(x, cells, 0.1)
    (other,) = index(x, cells, 0.1, shuffle=3)
    for name, rows in (("one", one), ("other", other)):
        (tmp_path / name).mkdir()
        rows.write(tmp_path / name)
    opened = CellRows.open(*(tmp_path / "one" / file for file in FILES))
    for field in ("vectors", "heads", "starts", "members", "cells", "bounds", "visit_bounds", "visits"):
        assert getattr(opened, field).tobytes() == getattr(one, field).tobytes(), field
    assert opened.features.values.tobytes() == one.features.values.tobytes()
    assert all((tmp_path / "one" / f).read_bytes() == (tmp_path / "other" / f).read_bytes() for f in FILES)
    assert len(opened.heads) == 300
    assert opened.positions(np.array([opened.heads[7], 320, -3])).tolist() == [7, -1, -1]
    assert joined([opened]) == joined([one])


def test_queries_from_outside_find_what_they_would_meet_in_a_self_join() -> None:
    x, q = crowd(7, 800), crowd(7, 900)[800:]
    cells = train_cells(x, 2, cells=24)
    both = meeting(np.concatenate([x, q]), cells, 0.02)
    want = sorted((j - 800, i) for i, j in both if i < 800 <= j)
    bounds, probes = cells.probes(q, 0.02)
    found = []
    for rows in index(x, cells, 0.02):
        near = rows.neighbours(q, np.full(len(q), -1), bounds, probes, FLOOR)
        assert near.cosine.tolist() == cosines(q[near.query], rows.vectors[near.base]).tolist()
        found += zip(near.query.tolist(), rows.heads[near.base].tolist(), strict=True)
    assert sorted(found) == want
    assert len(want) > 100
    visited = {(i, c) for i in range(len(q)) for c in probes[bounds[i] : bounds[i + 1]].tolist()}
    homes = cells.probes(x, None)[1]
    assert any((i, homes[j]) not in visited for i, j in want), "no pair needs the visit of the row"


def test_rows_that_ask_find_the_self_join_from_both_sides() -> None:
    x = crowd(7, 800)
    cells = train_cells(x, 1, cells=16)
    (rows,) = index(x, cells, 0.1)
    own = rows.neighbours(rows.vectors, np.arange(800), *cells.probes(rows.vectors, 0.1), FLOOR)
    assert not (own.query == own.base).any()
    pairs = set(zip(rows.heads[own.query].tolist(), rows.heads[own.base].tolist(), strict=True))
    want = joined([rows])
    assert pairs == set(want) | {(b, a) for a, b in want}
    assert len(own.query) == 2 * len(want)


def texts_of(shards: list[CellRows], max_copies: int) -> dict[tuple[int, int], tuple[float, int]]:
    """Pairs of texts with cosine and the pairs left out."""
    join = CellJoin(shards)
    units = join.units()
    parts = [*join_texts(shards, join.join(units, range(len(units.cell)), FLOOR), max_copies)]
    for s in shards:
        parts += join_copies(s, 0, len(s.heads), max_copies)
    rows = [r for p in parts for r in zip(p.left.tolist(), p.right.tolist(), p.cosine.tolist(), p.left_out.tolist(), strict=True)]
    assert len({r[:2] for r in rows}) == len(rows)
    return {(a, b): (c, left_out) for a, b, c, left_out in rows}


@pytest.mark.parametrize("max_copies", [1, 3, 64])
def test_texts_that_share_a_vector_follow_the_cap_of_copies(max_copies: int) -> None:
    x = crowd(8, 60, centres=4)
    copies = np.concatenate([np.arange(60), np.repeat([3, 17, 30], [2, 1, 7])])  # groups of 3, 2 and 8
    y = x[copies]
    got = texts_of(index(y, train_cells(y, 2, cells=4), 2.0), max_copies)
    similar = np.maximum(similarities(x), np.eye(60))
    size = np.bincount(copies)
    every = {(i, j) for i in range(70) for j in range(i + 1, 70) if similar[copies[i], copies[j]] >= FLOOR}
    stands = [size[copies[i]] <= max_copies or i == copies[i] for i in range(70)]
    first = {(i, j) for i, j in every if copies[i] == copies[j] and (size[copies[i]] <= max_copies or i == copies[i])}
    want = first | {(i, j) for i, j in every if copies[i] != copies[j] and stands[i] and stands[j]}
    assert set(got) == want
    assert sum(left_out for _, left_out in got.values()) == len(every) - len(want)
    assert (max_copies == 64) == (len(every) == len(want))
    assert {got[pair][0] for pair in first} == {1.0}


def test_scores_are_those_of_the_texts() -> None:
    x = crowd(9, 200)
    shards = index(x, train_cells(x, 3, cells=9), 0.2)
    join = CellJoin(shards)
    units = join.units()
    block = blobs(200)
    seen = 0
    for found in join_texts(shards, join.join(units, range(len(units.cell)), FLOOR), 64):
        want = pair_scores(block, found.left, block, found.right)
        for name in ("jaccard", "containment", "substitution", "numbers", "least_words", "most_words"):
            assert getattr(found.scores, name).tolist() == getattr(want, name).tolist()
        assert found.cosine.tolist() == cosines(x[found.left], x[found.right]).tolist()
        seen += len(found.left)
    assert seen > 100


def test_ten_thousand_copies_of_one_vector_are_a_star() -> None:
    x = np.repeat(crowd(10, 1), 10_000, axis=0)
    (rows,) = index(x, Cells(x[:1], np.zeros(1, dtype=np.int32)), 0.1)
    (found,) = join_copies(rows, 0, 1, SearchConfig().max_copies)
    assert found.left.tolist() == [0] * 9999
    assert found.right.tolist() == list(range(1, 10_000))
    assert len(found.right) + found.left_out.sum() == 10_000 * 9999 // 2
    assert joined([rows]) == {}


def test_no_row_and_one_row() -> None:
    assert joined([]) == {}
    x = crowd(11, 1)
    assert joined(index(x, Cells(x, np.zeros(1, dtype=np.int32)), 0.1)) == {}


def mirrored() -> tuple[np.ndarray, Cells, tuple[np.ndarray, np.ndarray], np.ndarray]:
    """Cells along three axes. Four rows live in cell 0 at angles 45 - a from it, and one row of cell 1 mirrors each of them: such a
    pair needs the margin cos(45 - a) - sin(45 - a) = 0.0247, 0.0494, 0.0740, 0.0987."""
    angles = np.deg2rad(45 - np.array([1.0, 2, 3, 4]))
    low = np.stack([np.cos(angles), np.sin(angles), 0 * angles], axis=1)
    x = np.concatenate([low, low[:, [1, 0, 2]]]).astype(np.float32)
    pairs = (np.arange(4), np.arange(4, 8))
    return x, Cells(np.eye(3, dtype=np.float32), np.zeros(3, dtype=np.int32)), pairs, np.cos(angles) - np.sin(angles)


def test_the_margin_that_a_pair_needs() -> None:
    x, cells, (left, right), needs = mirrored()
    assert needs.round(4).tolist() == [0.0247, 0.0494, 0.074, 0.0987]
    assert needed_margins(cells, x, left, x, right) == pytest.approx(needs, abs=1e-7)
    assert needed_margins(cells, x, left, x, left).tolist() == [0.0] * 4  # one cell
    # Of a row on the axis and one off it, the nearer to the border decides: 0.0247 and 1.
    axis = np.eye(3, dtype=np.float32)[1:2]
    assert needed_margins(cells, x, left[:1], axis, np.zeros(1, dtype=np.int64)) == pytest.approx(needs[:1], abs=1e-7)
    assert needed_margins(Cells(axis, np.zeros(1, dtype=np.int32)), x, left, x, right).tolist() == [0.0] * 4


def test_the_needed_margin_is_where_the_pair_begins_to_meet() -> None:
    x = crowd(12, 400)
    cells = train_cells(x[:300], 1, cells=16)
    left, right = np.nonzero(np.triu(similarities(x), 1) >= FLOOR)
    needs = needed_margins(cells, x, left, x, right)
    for margin in (0.0, 0.03, 0.1):
        assert set(joined(index(x, cells, margin))) == {(a, b) for a, b, n in zip(left, right, needs, strict=True) if n <= margin}


def test_the_least_margin_leaves_half_of_the_misses() -> None:
    counts = margin_counts(np.array([0.0247, 0.0494, 0.074, 0.0987]))
    assert np.flatnonzero(counts).tolist() == [3, 5, 8, 10]  # hundredths, rounded up
    assert least_margin(counts, 0.5, 0.0) == 0.08  # two of four may be missed, so one is
    assert least_margin(counts, 0.75, 0.0) == 0.1  # half a pair may be missed, so none is
    assert least_margin(counts, 0.5, 0.2) == 0.2  # and four pairs are no ground to go below the usual one
    assert least_margin(counts, 0.5, 0.02) == 0.08
    assert least_margin(counts * 5, 0.5, 0.2) == 0.08  # of twenty pairs five are missed
    assert least_margin(counts * 5, 0.51, 0.2) == 0.2  # four
    assert least_margin(margin_counts(np.zeros(1000)), 0.9, 0.1) == 0.0
    assert margin_counts(np.array([2.0, 1.9999])).nonzero()[0].tolist() == [200]


def test_a_tuned_margin_reaches_its_target_on_the_sample() -> None:
    x = crowd(12, 1500)
    cells = train_cells(x[:700], 1, cells=32)
    left, right = np.nonzero(np.triu(similarities(x), 1) >= FLOOR)
    needs = margin_counts(needed_margins(cells, x, left, x, right))
    for target in (0.9, 0.99, 1.0):
        margin = least_margin(needs, target, 0.0)
        assert len(joined(index(x, cells, margin))) >= target * len(left)
    assert len(joined(index(x, cells, None))) < 0.9 * len(left)
