"""Cells and shards: how many, the same for the same vectors, and every near pair meets in some shard."""

from __future__ import annotations

import numpy as np
import pytest

from spark_dedup.kernels.cells import Cells, cell_count, cell_shards, fine_cell_count, graph_shards, group_cells, sample_size, train_cells
from spark_dedup.kernels.vectors import cosines


def unit(x: np.ndarray) -> np.ndarray:
    return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)


def blobs(seed: int, n: int, d: int = 24, centres: int = 12) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return unit(4 * rng.normal(size=(centres, d))[rng.integers(0, centres, n)] + rng.normal(size=(n, d)))


@pytest.mark.parametrize(
    ("heads", "graphs", "shards"),
    [
        (0, 1, 1),
        (1, 1, 1),
        (25_000, 1, 1),
        (25_001, 2, 2),
        (200_000, 8, 8),
        (400_000, 16, 16),
        (800_000, 16, 32),
        (4_000_000, 16, 160),
        (4_000_001, 17, 161),
    ],
)
def test_shards_follow_the_number_of_vectors(heads: int, graphs: int, shards: int) -> None:
    assert (graph_shards(heads), cell_shards(heads)) == (graphs, shards)


def test_a_set_number_of_shards_is_taken_as_it_is() -> None:
    assert (graph_shards(10, 7), cell_shards(10, 7)) == (7, 7)


def test_one_shard_needs_no_more_than_one_cell() -> None:
    assert cell_count(1) == 1
    assert [cell_count(s) for s in (2, 16, 256, 1000, 5000)] == [32, 256, 4096, 4096, 5000]
    assert [sample_size(c) for c in (32, 256, 4096, 50_000)] == [8192, 65_536, 65_536, 100_000]


def test_the_same_sample_gives_the_same_cells_bit_for_bit() -> None:
    a, b = train_cells(blobs(1, 3000), 4), train_cells(blobs(1, 3000), 4)
    assert a.centroids.tobytes() == b.centroids.tobytes()
    assert a.shards.tolist() == b.shards.tolist()


def test_centroids_are_unit_vectors_and_every_shard_has_a_cell() -> None:
    cells = train_cells(blobs(2, 3000), 5)
    assert cells.count == 5
    assert sorted(set(cells.shards.tolist())) == [0, 1, 2, 3, 4]
    np.testing.assert_allclose(np.linalg.norm(cells.centroids, axis=1), 1, atol=1e-5)


@pytest.mark.parametrize(("rows", "shards"), [(0, 0), (1, 1), (2, 2), (3, 3)])
def test_fewer_vectors_than_shards_make_at_most_one_shard_per_vector(rows: int, shards: int) -> None:
    assert train_cells(blobs(3, 50)[:rows], 8).count == shards


def test_the_home_of_a_vector_does_not_depend_on_the_vectors_beside_it() -> None:
    x = blobs(4, 9000)
    cells = train_cells(x[:4000], 4)
    whole = cells.home(x)
    assert whole.tolist() == np.concatenate([cells.home(part) for part in np.array_split(x, 37)]).tolist()


def test_home_is_the_shard_of_the_most_similar_centroid() -> None:
    cells = Cells(np.eye(3, dtype=np.float32), np.array([1, 0, 1], dtype=np.int32))
    x = unit(np.array([[9, 1, 0], [0, 5, 1], [1, 0, 8]], dtype=np.float64))
    assert cells.home(x).tolist() == [1, 0, 1]


def test_a_vector_visits_the_shards_within_the_margin_of_its_best_cell() -> None:
    cells = Cells(np.eye(3, dtype=np.float32), np.array([0, 1, 2], dtype=np.int32))
    x = unit(np.array([[1.0, 0.9, 0.0]]))  # similarities 0.743, 0.669, 0: 0.074 apart, and 0.743
    assert cells.visits(x, 0.0).tolist() == [[True, False, False]]
    assert cells.visits(x, 0.073).tolist() == [[True, False, False]]
    assert cells.visits(x, 0.075).tolist() == [[True, True, False]]
    assert cells.visits(x, 2.0).tolist() == [[True, True, True]]


@pytest.mark.parametrize(
    ("heads", "cells"), [(0, 1), (8192, 1), (8193, 128), (50_000, 256), (200_000, 512), (800_000, 1024), (10_000_000, 4096)]
)
def test_fine_cells_are_a_power_of_two_near_the_root(heads: int, cells: int) -> None:
    assert fine_cell_count(heads) == cells
    assert fine_cell_count(heads, 33, 1) == 33
    assert fine_cell_count(heads, 33, 50) == 50


def test_probes_are_the_home_and_the_cells_within_the_margin_in_order() -> None:
    cells = Cells(np.eye(4, dtype=np.float32), np.zeros(4, dtype=np.int32))
    x = unit(np.array([[0.9, 0.0, 1.0, 0.85], [0, 1, 0, 0]]))  # similarities 0.566, 0, 0.628, 0.534: behind by 0.063, 0.628, 0, 0.094

    def probed(margin: float | None) -> list[list[int]]:
        bounds, found = cells.probes(x, margin)
        return [found[a:b].tolist() for a, b in zip(bounds, bounds[1:], strict=False)]

    assert probed(None) == probed(0.0) == [[2], [1]]
    assert probed(0.07) == [[2, 0], [1]]
    assert probed(0.1) == [[2, 0, 3], [1]]
    assert probed(2.0) == [[2, 0, 1, 3], [1, 0, 2, 3]]


def test_equal_centroids_share_a_home_and_none_is_lost() -> None:
    cells = Cells(np.eye(3, dtype=np.float32)[[2, 1, 1]], np.zeros(3, dtype=np.int32))
    bounds, found = cells.probes(np.eye(3, dtype=np.float32)[[1]], 0.0)
    assert (bounds.tolist(), found.tolist()) == ([0, 2], [1, 2])
    assert cells.probes(np.eye(3, dtype=np.float32)[[1]], None)[1].tolist() == [1]


@pytest.mark.parametrize("margin", [None, 0.0, 0.1])
def test_probes_do_not_depend_on_the_vectors_beside_them(margin: float | None) -> None:
    x = blobs(8, 5000)
    cells = train_cells(x[:2000], 1, cells=100)
    bounds, found = cells.probes(x, margin)
    parts = [cells.probes(part, margin) for part in np.array_split(x, 61)]
    assert found.tolist() == np.concatenate([p[1] for p in parts]).tolist()
    assert np.diff(bounds).tolist() == np.concatenate([np.diff(p[0]) for p in parts]).tolist()
    exact = x.astype(np.float64) @ cells.centroids.astype(np.float64).T
    assert found[bounds[:-1]].tolist() == exact.argmax(axis=1).tolist()
    if margin is not None:
        assert np.diff(bounds).tolist() == (exact >= exact.max(axis=1, keepdims=True) - margin).sum(axis=1).tolist()


@pytest.mark.parametrize("margin", [None, 0.0, 4e-9, 0.1])
def test_what_float32_can_not_tell_apart_is_decided_in_float64(margin: float | None) -> None:
    rng = np.random.default_rng(9)
    centre = rng.normal(size=64)
    centroids = unit(centre + 1e-7 * rng.normal(size=(20, 64)))  # a last bit of float32 or two apart
    x = unit(centre + 0.3 * rng.normal(size=(300, 64)))
    similar = cosines(np.repeat(x, 20, axis=0), np.tile(centroids, (300, 1))).reshape(300, 20)
    behind = similar.max(axis=1, keepdims=True) - similar
    bounds, found = Cells(centroids, np.zeros(20, dtype=np.int32)).probes(x, margin)
    assert found[bounds[:-1]].tolist() == similar.argmax(axis=1).tolist()
    assert (similar.argmax(axis=1) != (x @ centroids.T).argmax(axis=1)).mean() > 0.1
    got = [set(found[a:b].tolist()) for a, b in zip(bounds, bounds[1:], strict=False)]
    near = behind <= (margin or 0.0)
    assert got == [set(np.flatnonzero(row)[: 1 if margin is None else None].tolist()) for row in near]
    assert margin != 4e-9 or 0.1 < near.mean() < 0.9


def test_every_vector_visits_its_home() -> None:
    x = blobs(5, 3000)
    cells = train_cells(x, 6)
    assert cells.visits(x, 0.0)[np.arange(len(x)), cells.home(x)].all()


def test_cells_come_back_from_table_rows_in_any_order() -> None:
    cells = train_cells(blobs(6, 500), 2)
    rows = [(i, int(s), c.astype("<f4").tobytes()) for i, (s, c) in enumerate(zip(cells.shards, cells.centroids, strict=True))]
    back = Cells.from_rows(rows[::-1])
    assert back.centroids.tobytes() == cells.centroids.tobytes()
    assert back.shards.tolist() == cells.shards.tolist()
    assert Cells.from_rows([]).count == 0


def test_groups_are_neighbours_of_equal_weight() -> None:
    # Twelve cells on a half circle, equal weights: four shards must be the four arcs of three.
    angles = np.linspace(0, np.pi, 12)
    points = np.stack([np.sin(angles), np.cos(angles)], axis=1).astype(np.float32)
    groups = group_cells(points, np.ones(12), 4)
    arcs = [groups[i : i + 3].tolist() for i in range(0, 12, 3)]
    assert all(len(set(arc)) == 1 for arc in arcs)
    assert sorted(arc[0] for arc in arcs) == [0, 1, 2, 3]


def test_one_heavy_cell_is_a_shard_of_its_own() -> None:
    points = np.array([[0.0, 0], [1, 0], [2, 0], [3, 0]], dtype=np.float32)
    groups = group_cells(points, np.array([1.0, 1, 1, 97]), 2)
    assert groups[:3].tolist() == [groups[0]] * 3
    assert groups[3] != groups[0]


def test_cells_without_any_vector_are_still_grouped() -> None:
    assert sorted(group_cells(np.eye(3, dtype=np.float32), np.zeros(3), 3).tolist()) == [0, 1, 2]


def test_shards_of_a_clustered_set_are_balanced_and_most_vectors_visit_few() -> None:
    x = blobs(7, 12_000, centres=64)
    cells = train_cells(x[:8192], 4)
    sizes = np.bincount(cells.home(x), minlength=4)
    # 64 cells of about 190 vectors: a cut is at most one cell away from the ideal at each of two levels.
    assert sizes.min() > 12_000 / 4 - 3 * sizes.sum() / 64
    assert cells.visits(x, 0.1).sum(axis=1).mean() < 2


def test_the_centroid_of_one_cell_is_the_direction_of_the_mean() -> None:
    x = np.array([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]], dtype=np.float32)
    # The sum is (1.6, 1.8), of length 2.408.
    assert train_cells(x, 1, cells=1).centroids.tolist() == [pytest.approx([1.6 / 5.8**0.5, 1.8 / 5.8**0.5])]
    assert train_cells(np.array([[1.0, 0.0], [-1.0, 0.0]], dtype=np.float32), 1, cells=1).centroids.tolist() == [[1.0, 0.0]]
    assert train_cells(x[:0], 1, cells=1).centroids.shape == (0, 2)
