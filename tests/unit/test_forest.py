"""Spanning forests against SciPy and NetworkX."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pyarrow as pa
import pytest
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components

from spark_dedup.kernels import forest
from spark_dedup.kernels.forest import forest_batches, least_connected, spanning_forest

SCHEMA = pa.schema([("left_id", pa.int64()), ("right_id", pa.int64())])


def scipy_labels(left: np.ndarray, right: np.ndarray) -> dict[int, int]:
    """Least connected id of each touched vertex, found by SciPy."""
    if not len(left):
        return {}
    size = int(max(left.max(), right.max())) + 1
    count, component = connected_components(coo_matrix((np.ones(len(left), bool), (left, right)), shape=(size, size)), directed=False)
    least = np.full(count, size)
    np.minimum.at(least, component, np.arange(size))
    return {int(v): int(least[component[v]]) for v in np.union1d(left, right)}


def networkx_labels(left: np.ndarray, right: np.ndarray) -> dict[int, int]:
    """Least connected id of each touched vertex, found by NetworkX."""
    graph = nx.Graph(zip(left.tolist(), right.tolist(), strict=True))
    return {v: min(c) for c in nx.connected_components(graph) for v in c}


def labels(left: np.ndarray, right: np.ndarray) -> dict[int, int]:
    ids, least = least_connected(left, right)
    return dict(zip(ids.tolist(), least.tolist(), strict=True))


def ends(pairs: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    both = np.array(pairs, np.int64).reshape(-1, 2)
    return both[:, 0], both[:, 1]


def batches(left: np.ndarray, right: np.ndarray, rows: int) -> list[pa.RecordBatch]:
    return [
        pa.RecordBatch.from_arrays([pa.array(left[i : i + rows]), pa.array(right[i : i + rows])], schema=SCHEMA)
        for i in range(0, len(left), rows)
    ]


def edges_of(found: list[pa.RecordBatch]) -> tuple[np.ndarray, np.ndarray]:
    table = pa.Table.from_batches(found, schema=SCHEMA)
    return table["left_id"].to_numpy(), table["right_id"].to_numpy()


@pytest.mark.parametrize("edges_per_vertex", [0.2, 0.5, 0.7, 2.0])
def test_random_graphs_get_the_labels_of_scipy_and_networkx(edges_per_vertex):
    seed = int(np.random.SeedSequence().entropy) % 2**32
    random = np.random.default_rng(seed)
    for vertices in (2, 10, 300, 3000):
        left, right = random.integers(0, vertices, (2, int(vertices * edges_per_vertex)))
        assert labels(left, right) == scipy_labels(left, right) == networkx_labels(left, right), f"seed {seed}"


@pytest.mark.parametrize("order", ["shuffled", "ascending", "zigzag"])
def test_a_path_of_5000_vertices_is_one_component(order):
    ids = np.arange(5000)
    if order == "shuffled":
        ids = np.random.default_rng(7).permutation(ids)
    elif order == "zigzag":  # every second vertex has only larger neighbours
        ids = np.stack([ids[:2500], ids[:2499:-1]], axis=1).reshape(-1)
    assert labels(ids[:-1], ids[1:]) == dict.fromkeys(range(5000), 0)


@pytest.mark.parametrize("centre", [0, 500, 999])
def test_a_star_is_one_component_wherever_its_centre_lies_among_the_ids(centre):
    leaves = np.delete(np.arange(1000), centre)
    assert labels(np.full(999, centre), leaves) == dict.fromkeys(range(1000), 0)


def test_the_forest_of_a_clique_is_a_star_on_its_least_id():
    left, right = np.triu_indices(60, 1)
    least, vertex = spanning_forest(left + 100, right + 100)
    assert least.tolist() == [100] * 59
    assert vertex.tolist() == list(range(101, 160))


def test_doubled_and_mirrored_edges_and_loops_change_nothing():
    pairs = [(5, 3), (3, 5), (5, 3), (9, 5), (7, 7), (2, 8)]
    assert labels(*ends(pairs)) == {2: 2, 3: 3, 5: 3, 7: 7, 8: 2, 9: 3}
    least, vertex = spanning_forest(*ends(pairs))
    assert list(zip(least.tolist(), vertex.tolist(), strict=True)) == [(3, 5), (2, 8), (3, 9)]


def test_ids_use_all_64_bits():
    low, high = -(2**63), 2**63 - 1
    assert labels(*ends([(high, low), (high, 0)])) == {low: low, 0: low, high: low}


def test_no_edges_give_no_forest():
    empty = np.empty(0, np.int64)
    assert labels(empty, empty) == {}
    assert list(forest_batches([])) == []
    assert list(forest_batches(batches(*ends([(4, 4)]), rows=10))) == []


@pytest.mark.parametrize("rows", [1, 37, 5000])
def test_a_stream_of_batches_gives_the_forest_of_all_its_edges(monkeypatch, rows):
    monkeypatch.setattr(forest, "MERGE_EDGES", 64)  # many merges for few edges
    left, right = np.random.default_rng(11).integers(0, 2000, (2, 1600))
    got = edges_of(list(forest_batches(batches(left, right, rows))))
    want = spanning_forest(left, right)
    assert got[0].tolist() == want[0].tolist()
    assert got[1].tolist() == want[1].tolist()
    touched = scipy_labels(left, right)
    assert len(got[1]) == len(touched) - len(set(touched.values()))  # a spanning forest: vertices minus components


def test_a_stream_never_holds_more_than_two_edges_a_vertex(monkeypatch):
    monkeypatch.setattr(forest, "MERGE_EDGES", 64)
    sizes = []
    merge = forest.merge

    def watched(kept, waiting):
        sizes.append(len(kept[0]) + sum(len(w[0]) for w in waiting))
        return merge(kept, waiting)

    monkeypatch.setattr(forest, "merge", watched)
    left, right = np.random.default_rng(12).integers(0, 500, (2, 40_000))
    list(forest_batches(batches(left, right, 10)))
    assert sum(sizes) >= 40_000
    assert max(sizes) < 2 * 500 + 10  # forest and waiting edges are below one edge a vertex each, plus the last batch


def test_an_edge_without_an_end_is_refused():
    batch = pa.RecordBatch.from_arrays([pa.array([1, None], pa.int64()), pa.array([2, 3], pa.int64())], schema=SCHEMA)
    with pytest.raises(pa.ArrowInvalid):
        list(forest_batches([batch]))
