"""One HNSW shard against a float64 product of all vectors; then from vectors to texts."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from case_files import CASES, case_rows

from spark_dedup.config import SearchConfig
from spark_dedup.kernels.expand import Batch, ask
from spark_dedup.kernels.features import NUMBERS, decode, features, pair_scores
from spark_dedup.kernels.hnsw import FILES, Shard, ShardBuilder


def unit(x: np.ndarray) -> np.ndarray:
    return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)


def texts_of(n: int) -> list[str]:
    return [f"a text with number {i} in it" for i in range(n)]


def build(folder: Path, vectors: np.ndarray, heads: np.ndarray | None = None, *, step: int = 1000) -> Shard:
    """A shard of texts 0 .. n - 1; `heads` are ascending."""
    folder.mkdir(exist_ok=True, parents=True)
    n = len(vectors)
    reps = np.arange(n, dtype=np.int64)
    heads = reps if heads is None else heads
    builder = ShardBuilder(SearchConfig())
    blobs = features(pa.array(texts_of(n)))
    for start in range(0, n, step):
        part = slice(start, start + step)
        builder.add(reps[part], heads[part], vectors[part], decode(blobs[start : start + step]))
    builder.write(folder)
    return Shard.open(*(folder / name for name in FILES))


def exact(vectors: np.ndarray, floor: float) -> dict[tuple[int, int], float]:
    """Ordered pairs at or above the floor, from float64 products of all vectors."""
    x = vectors.astype(np.float64)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    similar = x @ x.T
    np.fill_diagonal(similar, -1)
    return {(int(a), int(b)): similar[a, b] for a, b in zip(*np.nonzero(similar >= floor), strict=True)}


def family(seed: int, size: int, others: int, d: int = 32, noise: float = 0.02) -> np.ndarray:
    """`size` vectors round one centre, then `others` anywhere."""
    rng = np.random.default_rng(seed)
    centre = rng.normal(size=d)
    return unit(np.concatenate([centre + noise * rng.normal(size=(size, d)), rng.normal(size=(others, d))]))


def found_by(shard: Shard, vectors: np.ndarray, config: SearchConfig) -> dict[tuple[int, int], float]:
    near = shard.neighbours(vectors, np.arange(len(vectors)), config)
    return dict(zip(zip(near.query.tolist(), near.base.tolist(), strict=True), near.cosine.tolist(), strict=True))


def test_cosine_is_the_one_worked_by_hand(tmp_path: Path) -> None:
    x = unit(np.array([[3, 4], [4, 3], [-4, 3]], dtype=np.float64))  # 24/25; (-12 + 12)/25; (-16 + 9)/25
    pairs = found_by(build(tmp_path, x), x, SearchConfig(floor=0.9))
    assert list(pairs) == [(0, 1), (1, 0)]
    assert pairs[0, 1] == pytest.approx(0.96, abs=1e-7)
    assert pairs[0, 1] == pairs[1, 0]


def test_fewer_vectors_than_neighbours_give_no_pair_with_a_missing_one(tmp_path: Path) -> None:
    rows = case_rows("o10_small_shard.jsonl")
    x = unit(np.array([row["embedding"] for row in rows]))
    shard = build(tmp_path, x)
    near = shard.neighbours(x, np.arange(3), SearchConfig(neighbours=50))
    assert [(rows[a]["id"], rows[b]["id"]) for a, b in zip(near.query, near.base, strict=True)] == [("p1", "p2"), ("p2", "p1")]
    np.testing.assert_allclose(near.cosine, 0.96, atol=1e-6)
    assert (near.asked_again, near.saturated) == (0, 0)


def test_one_vector_has_no_neighbour_and_no_query_no_answer(tmp_path: Path) -> None:
    x = unit(np.ones((1, 4)))
    shard = build(tmp_path, x)
    assert len(shard.neighbours(x, np.array([0]), SearchConfig()).query) == 0
    assert len(shard.neighbours(x[:0], np.array([], dtype=np.int64), SearchConfig()).query) == 0


def test_a_query_that_is_not_in_the_shard_keeps_its_nearest(tmp_path: Path) -> None:
    x = unit(np.eye(4))
    near = build(tmp_path, x).neighbours(x[2:3], np.array([-1]), SearchConfig())
    assert near.base.tolist() == [2]
    assert near.cosine.tolist() == [1.0]


def test_vectors_lie_in_the_file_unchanged(tmp_path: Path) -> None:
    x = family(1, 10, 500)
    shard = build(tmp_path, x)
    assert shard.vectors.tobytes() == x.tobytes()
    assert shard.positions(np.array([0, 509, 510, -5])).tolist() == [0, 509, -1, -1]


def test_all_pairs_of_a_family_larger_than_the_list_are_found(tmp_path: Path) -> None:
    x = family(2, 500, 1500)
    config = SearchConfig(neighbours=50)
    shard = build(tmp_path, x)
    near = shard.neighbours(x, np.arange(len(x)), config)
    want = exact(x, config.floor)
    # 2,000 vectors are fewer than 256 x 201, so full lists are answered by an exact product: nothing may be missing.
    assert set(zip(near.query.tolist(), near.base.tolist(), strict=True)) == set(want)
    assert len(want) >= 500 * 499
    assert near.asked_again == 500
    assert near.saturated == 0
    np.testing.assert_allclose(near.cosine, [want[pair] for pair in zip(near.query.tolist(), near.base.tolist(), strict=True)], atol=1e-12)


def test_near_pairs_among_unrelated_vectors_are_found(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    x = rng.normal(size=(3300, 32))
    x[3000:] = x[:300] + 0.1 * rng.normal(size=(300, 32))
    x = unit(x)
    pairs = found_by(build(tmp_path, x), x, SearchConfig())
    want = exact(x, 0.85)
    assert set(pairs) <= set(want)
    found = {frozenset(pair) for pair in pairs}
    # Either side may find a pair. efSearch 128 on 3,300 vectors misses at most about 1 in 1,000.
    assert len(found) >= 0.99 * len({frozenset(pair) for pair in want})


def test_growth_by_the_graph_alone_finds_the_family_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_dedup.kernels.hnsw.PRODUCT_ROWS_PER_NEIGHBOUR", 0)
    x = family(4, 300, 1700)
    near = build(tmp_path, x).neighbours(x, np.arange(len(x)), SearchConfig(neighbours=20))
    want = exact(x, 0.85)
    assert set(zip(near.query.tolist(), near.base.tolist(), strict=True)) <= set(want)
    assert len(near.query) >= 0.99 * len(want)
    assert (near.asked_again, near.saturated) == (300, 0)


@pytest.mark.parametrize("by_graph", [False, True])
def test_lists_stop_at_the_limit_with_the_best_and_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_graph: bool) -> None:
    if by_graph:
        monkeypatch.setattr("spark_dedup.kernels.hnsw.PRODUCT_ROWS_PER_NEIGHBOUR", 0)
    x = family(5, 200, 800)
    config = SearchConfig(neighbours=10, max_neighbours=60)
    near = build(tmp_path, x).neighbours(x, np.arange(len(x)), config)
    assert near.saturated == 200
    assert near.asked_again == 200
    assert np.bincount(near.query).tolist()[:200] == [60] * 200
    if not by_graph:
        want = exact(x, 0.85)
        for q in range(200):
            best = sorted((-cosine, b) for (a, b), cosine in want.items() if a == q)[:60]
            assert set(near.base[near.query == q]) == {b for _, b in best}


@pytest.mark.parametrize(("limit", "saturated"), [(58, 60), (59, 0), (60, 0)])
def test_a_list_that_ends_exactly_at_the_limit_is_not_counted_as_cut(tmp_path: Path, limit: int, saturated: int) -> None:
    x = family(6, 60, 400)  # each of the family has 59 others
    near = build(tmp_path, x).neighbours(x, np.arange(len(x)), SearchConfig(neighbours=10, max_neighbours=limit))
    assert near.saturated == saturated


def fan(degrees: np.ndarray) -> np.ndarray:
    """Unit vectors of the plane at these angles: the cosine of two is that of the angle between them."""
    return unit(np.stack([np.cos(np.radians(degrees)), np.sin(np.radians(degrees))], axis=1))


def test_a_cut_list_holds_the_nearest_ones_and_no_other(tmp_path: Path) -> None:
    x = fan(np.arange(50) * 1.1 + np.arange(50) ** 2 * 0.001)  # no two neighbours of a vector are equally far
    near = build(tmp_path, x).neighbours(x, np.arange(50), SearchConfig(neighbours=5, floor=0.5, max_neighbours=20))
    want = exact(x, 0.5)
    for q in range(50):
        assert near.base[near.query == q].tolist() == sorted(sorted((b for a, b in want if a == q), key=lambda b: -want[q, b])[:20])
    assert near.saturated == 50


@pytest.mark.parametrize("neighbours", [1, 50])
def test_the_floor_is_exact(tmp_path: Path, neighbours: int) -> None:
    # One neighbour is asked of the graph, fifty (of three vectors) are a product.
    above, below = np.degrees(np.arccos([0.85 + 2e-6, 0.85 - 2e-6]))
    x = fan(np.array([0.0, above, -below]))
    assert set(found_by(build(tmp_path, x), x, SearchConfig(neighbours=neighbours))) == {(0, 1), (1, 0)}


def test_a_floor_of_one_keeps_what_is_equal_and_nothing_else(tmp_path: Path) -> None:
    x = family(7, 20, 200)
    heads = np.arange(len(x), dtype=np.int64)
    x[1], heads[1] = x[0], 0
    got = pairs_of(build(tmp_path, x, heads), x, heads, SearchConfig(floor=1.0))
    assert [(a, b, cosine) for (a, b), (cosine, _) in got.items()] == [(0, 1, 1.0)]


def test_answers_do_not_depend_on_the_queries_beside_or_on_how_rows_arrived(tmp_path: Path) -> None:
    x = family(8, 150, 850)
    one, other = build(tmp_path / "a", x, step=1000), build(tmp_path / "b", x, step=13)
    assert [(tmp_path / "a" / f).read_bytes() for f in FILES] == [(tmp_path / "b" / f).read_bytes() for f in FILES]
    config = SearchConfig()
    whole = found_by(one, x, config)
    parts: dict[tuple[int, int], float] = {}
    for rows in np.array_split(np.random.default_rng(9).permutation(len(x)), 23):
        near = other.neighbours(x[rows], rows, config)
        parts.update(zip(zip(rows[near.query].tolist(), near.base.tolist(), strict=True), near.cosine.tolist(), strict=True))
    assert parts == whole


@pytest.mark.parametrize("threads", [2, 8])
def test_threads_do_not_change_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threads: int) -> None:
    import faiss

    monkeypatch.setattr("spark_dedup.kernels.hnsw.ADD_ROWS", 512)
    x = family(10, 100, 1400)
    before = faiss.omp_get_max_threads()
    try:
        for name, n in (("one", 1), ("many", threads)):
            faiss.omp_set_num_threads(n)
            build(tmp_path / name, x)
            assert faiss.omp_get_max_threads() == n
    finally:
        faiss.omp_set_num_threads(before)
    assert [(tmp_path / "one" / f).read_bytes() for f in FILES] == [(tmp_path / "many" / f).read_bytes() for f in FILES]


def pairs_of(
    shard: Shard, vectors: np.ndarray, heads: np.ndarray, config: SearchConfig, step: int = 10**6
) -> dict[tuple[int, int], tuple[float, int]]:
    """Unordered pairs of all texts with one another -> (cosine, pairs left out), each from whichever side finds it."""
    n = len(heads)
    copies = np.unique(heads, return_counts=True)[1][np.unique(heads, return_inverse=True)[1]]
    found: dict[tuple[int, int], tuple[float, int]] = {}
    for start in range(0, n, step):
        rows = np.arange(start, min(start + step, n))
        batch, first = Batch.of(rows, heads[rows], copies[rows], config.max_copies)
        block = decode(features(pa.array([texts_of(n)[i] for i in rows])))
        asked = ask(shard, batch, vectors[rows][first], block, np.ones(len(first), dtype=np.bool_), config)
        for part in asked.pairs:
            for a, b, cosine, left_out in zip(*(x.tolist() for x in (part.left, part.right, part.cosine, part.left_out)), strict=True):
                assert a < b
                assert found.setdefault((a, b), (cosine, left_out)) == (cosine, left_out), "both sides must say the same"
    return dict(sorted(found.items()))


def test_copies_do_not_hide_near_pairs_and_are_paired_with_the_first_one(tmp_path: Path) -> None:
    table = pq.read_table(CASES / "o09_copies.parquet")
    ids = table["id"].to_pylist()
    x = unit(np.array(table["embedding"].to_pylist()))
    first: dict[bytes, int] = {}
    heads = np.array([first.setdefault(v.tobytes(), i) for i, v in enumerate(x)])
    order = np.argsort(heads, kind="stable")
    heads = np.searchsorted(heads[order], heads[order])  # numbers of the rows after sorting
    ids, x = [ids[i] for i in order], x[order]
    got = pairs_of(build(tmp_path, x, heads), x, heads, SearchConfig(max_copies=64), step=333)
    named = {frozenset((ids[a], ids[b])) for a, b in got}
    assert all(frozenset((f"a{i:03d}", f"b{i:03d}")) in named for i in range(300))
    copies = [(a, b) for a, b in got if ids[a].startswith("c") and ids[b].startswith("c")]
    assert len(copies) == 799
    assert len({a for a, _ in copies}) == 1
    assert sum(got[pair][1] for pair in copies) == 800 * 799 // 2 - 799


def test_every_text_of_one_vector_is_paired_with_every_text_of_a_near_one(tmp_path: Path) -> None:
    x = unit(np.array([[3, 4]] * 3 + [[4, 3]] * 2 + [[-1, 0]], dtype=np.float64))
    heads = np.array([0, 0, 0, 3, 3, 5])
    got = pairs_of(build(tmp_path, x, heads), x, heads, SearchConfig(floor=0.9))
    across = {pair for pair, (cosine, _) in got.items() if cosine < 1}
    assert across == {(a, b) for a in (0, 1, 2) for b in (3, 4)}
    assert {pair for pair, (cosine, _) in got.items() if cosine == 1} == {(0, 1), (0, 2), (1, 2), (3, 4)}
    assert all(left_out == 0 for _, left_out in got.values())


@pytest.mark.parametrize("step", [1, 3, 100])
@pytest.mark.parametrize("sizes", [(3, 2), (5, 2), (2, 5), (5, 6)])
def test_many_copies_are_paired_by_their_first_text_whichever_side_finds_them(tmp_path: Path, sizes: tuple[int, int], step: int) -> None:
    limit = 3
    g, h = sizes
    x = unit(np.array([[3, 4]] * g + [[4, 3]] * h, dtype=np.float64))
    heads = np.array([0] * g + [g] * h)
    got = pairs_of(build(tmp_path, x, heads), x, heads, SearchConfig(floor=0.9, max_copies=limit), step)
    members = {0: list(range(g)), g: list(range(g, g + h))}
    standing = {head: m if len(m) <= limit else m[:1] for head, m in members.items()}
    want = set(itertools.product(standing[0], standing[g]))
    for m in members.values():
        want |= set(itertools.combinations(m, 2)) if len(m) <= limit else {(m[0], b) for b in m[1:]}
    assert set(got) == want
    assert len(got) + sum(left_out for _, left_out in got.values()) == (g + h) * (g + h - 1) // 2


def test_scores_are_those_of_the_two_texts(tmp_path: Path) -> None:
    x = family(11, 6, 30)
    shard = build(tmp_path, x)
    rows = np.arange(len(x))
    batch, _ = Batch.of(rows, rows, np.ones(len(x), dtype=np.int64), 64)
    block = decode(features(pa.array(texts_of(len(x)))))
    parts = list(ask(shard, batch, x, block, np.ones(len(x), dtype=np.bool_), SearchConfig()).pairs)
    assert sum(len(p.left) for p in parts) == 30
    for part in parts:
        want = pair_scores(block, part.left, block, part.right)
        assert part.scores.jaccard.tolist() == want.jaccard.tolist()
        assert part.scores.substitution.tolist() == want.substitution.tolist()
        assert set(part.scores.numbers.tolist()) == {NUMBERS.index("differ")}  # "number 3" against "number 5"
