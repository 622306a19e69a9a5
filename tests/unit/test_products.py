"""Blocked products with a floor, against float64 products of all vectors."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import numpy as np
import pytest

from spark_dedup.evaluation import truth
from spark_dedup.evaluation.truth import tile_rate
from spark_dedup.kernels import products
from spark_dedup.kernels.products import Near, near_between, near_within, proposed_between, slack
from spark_dedup.kernels.vectors import cosines


def unit(x: np.ndarray) -> np.ndarray:
    return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)


def crowd(seed: int, n: int, d: int = 48, centres: int = 9) -> np.ndarray:
    """Groups whose members have cosines on both sides of 0.85."""
    rng = np.random.default_rng(seed)
    return unit(3 * rng.normal(size=(centres, d))[rng.integers(0, centres, n)] + 1.25 * rng.normal(size=(n, d)))


def similarities(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """float64 cosines, one pair of rows at a time as far as the result is concerned."""
    left, right = a.astype(np.float64), b.astype(np.float64)
    return (left @ right.T) / np.sqrt((left * left).sum(axis=1)[:, None] * (right * right).sum(axis=1)[None, :])


def found(parts: list[Near]) -> dict[tuple[int, int], float]:
    pairs = [(i, j, c) for part in parts for i, j, c in zip(*(x.tolist() for x in part), strict=True)]
    assert len(pairs) == len({p[:2] for p in pairs}), "a pair came twice"
    return {(i, j): c for i, j, c in pairs}


@pytest.fixture(params=[(512, 1024), (7, 13), (64, 32), (1, 1)])
def blocks(request, monkeypatch):
    monkeypatch.setattr(products, "BLOCK_ROWS", request.param[0])
    monkeypatch.setattr(products, "BLOCK_COLUMNS", request.param[1])


@pytest.mark.usefixtures("blocks")
def test_pairs_of_two_sets_are_those_of_brute_force() -> None:
    a, b = crowd(1, 90), crowd(1, 130)[30:]
    similar = similarities(a, b)
    got = found(list(near_between(a, b, 0.85)))
    assert set(got) == {(int(i), int(j)) for i, j in np.argwhere(similar >= 0.85)}
    assert 100 < len(got) < a.shape[0] * b.shape[0] / 2
    np.testing.assert_allclose(list(got.values()), [similar[pair] for pair in got], atol=1e-14)


@pytest.mark.usefixtures("blocks")
def test_the_upper_triangle_holds_every_unordered_pair_once() -> None:
    a = crowd(2, 120)
    similar = similarities(a, a)
    got = found(list(near_within(a, 0.85)))
    assert set(got) == {(int(i), int(j)) for i, j in np.argwhere(similar >= 0.85) if i < j}
    assert len(got) > 100


@pytest.mark.parametrize("cuts", [[0, 120], [0, 1, 119, 120], [0, 40, 40, 77, 120]])
def test_ranges_of_left_rows_make_up_the_triangle(cuts: list[int]) -> None:
    a = crowd(3, 120)
    parts = [near for low, high in zip(cuts, cuts[1:], strict=False) for near in near_within(a, 0.85, low, high)]
    assert found(parts) == found(list(near_within(a, 0.85)))


def test_cosines_have_the_bits_of_the_one_definition_whatever_the_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    a = crowd(4, 300, d=129)
    want = found(list(near_within(a, 0.8)))
    left, right = (np.array(x) for x in zip(*want, strict=True))
    assert list(want.values()) == cosines(a[left], a[right]).tolist()
    monkeypatch.setattr(products, "BLOCK_ROWS", 11)
    monkeypatch.setattr(products, "PAIRS_AT_ONCE", 3)
    assert found(list(near_within(a, 0.8))) == want


def test_a_cosine_at_the_floor_is_kept_and_one_below_it_is_not() -> None:
    # 24/25 in float32 rows is a float64 number near 0.96: the floor is set to just that number, and to the next one above.
    a = unit(np.array([[3.0, 4.0]]))
    b = unit(np.array([[4.0, 3.0], [-4.0, 3.0]]))
    cosine = float(cosines(a, b[:1])[0])
    assert cosine == pytest.approx(0.96, abs=1e-7)
    assert found(list(near_between(a, b, cosine))) == {(0, 0): cosine}
    assert found(list(near_between(a, b, float(np.nextafter(cosine, 1))))) == {}


def test_what_float32_puts_below_the_floor_is_still_computed_again() -> None:
    rng = np.random.default_rng(5)
    for d in (3, 64, 512, 2048):
        a, b = unit(rng.normal(size=(64, d))), unit(rng.normal(size=(64, d)))
        # Every pair is asked for with its own cosine as the floor: rounding puts about half of the products below it.
        similar = similarities(a, b)
        proposed = (a @ b.T).astype(np.float64)
        assert (proposed < similar).mean() > 0.2
        assert np.abs(proposed - similar).max() < slack(d)
        for i, j in [(0, 0), (5, 9), (63, 63)]:
            if similar[i, j] > 0:
                pairs = [set(zip(x.tolist(), y.tolist(), strict=True)) for x, y in proposed_between(a, b, similar[i, j])]
                assert (i, j) in set().union(*pairs)


def test_equal_rows_have_a_cosine_of_one() -> None:
    a = np.repeat(crowd(6, 1), 700, axis=0)
    pairs = found(list(near_within(a, 1.0)))
    assert len(pairs) == 700 * 699 / 2
    assert set(pairs.values()) == {1.0}


@pytest.mark.parametrize(("rows", "columns"), [(0, 0), (0, 5), (5, 0), (1, 0)])
def test_nothing_has_no_pair(rows: int, columns: int) -> None:
    a = crowd(7, 10)
    assert list(near_between(a[:rows], a[:columns], 0.1)) == []
    assert list(near_within(a[:rows][:1], 0.1)) == []


def test_the_rate_of_products_counts_those_that_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def counted(a: np.ndarray, b: np.ndarray, floor: float):
        made.append(2.0 * len(a) * len(b) * a.shape[1])
        return proposed_between(a, b, floor)

    ticks = itertools.count()
    monkeypatch.setattr(truth, "proposed_between", counted)
    monkeypatch.setattr(truth, "time", SimpleNamespace(perf_counter=lambda: next(ticks) / 16))
    # The clock is read after 1, 2 and 3 sixteenths of a second, of which the third is past the 0.15 s; the first block is the warming one.
    rate = tile_rate(24)
    assert len(made) == 3
    assert rate == sum(made[1:]) / (3 / 16)
