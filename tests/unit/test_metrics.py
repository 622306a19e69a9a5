"""Recall from a sample of rows: exact answers, edge cases, and intervals that hold the true value as often as they say."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from spark_dedup.errors import StoreError
from spark_dedup.kernels.metrics import (
    Estimate,
    beta_cdf,
    binomial_interval,
    effective_rows,
    none_seen,
    query_mean,
    ratio,
    told,
    worst_decile,
)

FIGURES = (ratio, query_mean, worst_decile)


def figures(found, true, rows, total):
    return [figure(np.array(found), np.array(true), rows=rows, total=total) for figure in FIGURES]


@pytest.mark.parametrize("rows", [4, 9])
def test_a_sample_of_the_whole_table_is_exact(rows):
    # Rows find 1 of 1, 1 of 4, 0 of 3; one row has no pair. Pairs: 2 / 8. Queries: (1 + 1/4 + 0) / 3. Worst tenth of 3 rows: one row, 0.
    got = figures([1, 1, 0, 0], [1, 4, 3, 0], rows, 4)
    assert got == [
        Estimate(0.25, 0.25, 0.25, rows, 8),
        Estimate(pytest.approx(1.25 / 3), pytest.approx(1.25 / 3), pytest.approx(1.25 / 3), rows, 3),
        Estimate(0.0, 0.0, 0.0, rows, 3),
    ]
    assert got[1].low == got[1].high == got[1].value


def test_all_found_and_none_found():
    for got in figures([3] * 50, [3] * 50, 100, 1000):
        assert (got.value, got.high) == (1.0, 1.0)
        assert 0 < got.low < 1
    for got in figures([0] * 50, [3] * 50, 100, 1000):
        assert (got.value, got.low) == (0.0, 0.0)
    assert 0 < ratio(np.zeros(50), np.full(50, 3), rows=100, total=1000).high < 1


def test_no_loss_among_equal_rows_is_the_binomial_bound():
    # 30 rows of equal weight, none with a loss, a sample too small against the table to correct for: 1 - 0.025^(1 / 30) can be lost.
    got = ratio(np.full(30, 7), np.full(30, 7), rows=30, total=10**9)
    assert got.low == pytest.approx(0.025 ** (1 / 30), rel=1e-6)


def test_without_a_true_pair_there_is_no_figure_but_a_bound():
    for got in figures([0, 0], [0, 0], 100, 10_000):
        assert got == Estimate(None, None, None, 100, 0, unseen=pytest.approx(1 - 0.05**0.01))
    assert figures([], [], 100, 100) == [Estimate(None, None, None, 100, 0, unseen=0.0)] * 3
    assert none_seen(0, 5) == 1.0
    assert none_seen(0, 0) == 0.0
    # The rule of three: about 3 / n.
    assert none_seen(1000, 10**6) == pytest.approx(3 / 1000, rel=0.01)


def test_rows_without_pairs_may_be_left_out_and_order_does_not_matter():
    rng = np.random.default_rng(0)
    true = rng.integers(0, 5, 200)
    found = rng.binomial(true, 0.8)
    some, shuffled = true > 0, rng.permutation(200)
    for figure in FIGURES:
        want = figure(found, true, rows=200, total=1000)
        assert figure(found[some], true[some], rows=200, total=1000) == want
        got = figure(found[shuffled], true[shuffled], rows=200, total=1000)
        np.testing.assert_allclose((got.value, got.low, got.high), (want.value, want.low, want.high), rtol=1e-12)


def test_impossible_counts_are_refused():
    for figure in (ratio, query_mean, worst_decile):
        with pytest.raises(StoreError, match="3 of 2 true pairs"):
            figure(np.array([1, 3]), np.array([1, 2]), rows=2, total=9)
    with pytest.raises(StoreError, match="-1 of 2"):
        ratio(np.array([-1]), np.array([2]), rows=2, total=9)
    with pytest.raises(StoreError, match="of 1 true pairs"):
        ratio(np.array([np.nan]), np.array([1]), rows=2, total=9)
    with pytest.raises(StoreError, match="a sample of 2 rows can not have pairs in 3 rows"):
        ratio(np.ones(3), np.ones(3), rows=2, total=9)


def test_losses_that_come_together_count_as_few_rows():
    true = np.full(100, 10.0)
    scattered = true - (np.arange(100) % 10 == 0)  # ten rows lose one pair each
    together = true - 10 * (np.arange(100) == 0)  # one row loses all ten
    a, b = (ratio(x, true, rows=100, total=10**6) for x in (scattered, together))
    assert a.value == b.value == 0.99
    assert b.low < a.low
    # Kish: (sum t)^2 / sum t^2. One row of 100 pairs beside 100 rows of one pair counts as 200^2 / (100^2 + 100) = 3.96 rows.
    uneven = np.array([100.0] + [1.0] * 100)
    assert effective_rows(uneven, uneven, 101, 10**9) == pytest.approx(200**2 / 10_100, rel=1e-6)
    # A single pair lost among many is no reason to trust the variance: still 3.96 rows.
    assert effective_rows(uneven - (np.arange(101) == 5), uneven, 101, 10**9) == pytest.approx(200**2 / 10_100, rel=1e-6)


def test_effective_rows_by_hand():
    # Half of six pairs lost, all of one row. Residuals found - true / 2 are -1.5, 0.5, 0.5, 0.5, their squares 3. A quarter of the
    # table: variance (1 - 1/4) * 4/3 * 3 / 6^2 = 1/12; 1/2 * 1/2 / (1/12) = 3. Kish: 36 / 12 * -log(3/4) * 4 = 3.45.
    found, true = np.array([0.0, 1, 1, 1]), np.array([3.0, 1, 1, 1])
    assert effective_rows(found, true, 4, 16) == pytest.approx(3)
    assert effective_rows(true, true, 4, 16) == pytest.approx(12 * np.log(4 / 3))


def test_a_larger_part_of_the_table_tells_more():
    true = np.full(100, 2.0)
    found = true - (np.arange(100) < 5)
    lows = [ratio(found, true, rows=100, total=total).low for total in (10**6, 400, 150, 101)]
    assert lows == sorted(lows)
    assert lows[0] < lows[-1]


def test_worst_decile_by_hand():
    # 20 rows of two pairs: one finds none, three find one of two, 16 both. The worst two of 20: (0 + 1/2) / 2.
    found = np.array([0] + [1] * 3 + [2] * 16)
    got = worst_decile(found, np.full(20, 2), rows=20, total=1000)
    assert got.value == 0.25
    assert got.low == 0.0
    assert 0.25 < got.high <= 1.0


def test_the_interval_is_that_of_scipy():
    for share, trials in [(0.0, 50), (0.3, 10), (0.013, 4000.5), (0.5, 200_000), (1.0, 7.5), (1e-7, 100)]:
        hits, misses = share * trials, trials - share * trials
        want = (stats.beta.ppf(0.025, hits, misses + 1) if hits else 0.0, stats.beta.ppf(0.975, hits + 1, misses) if misses else 1.0)
        assert binomial_interval(share, trials) == pytest.approx(want, rel=1e-7, abs=1e-12)
    for a, b in [(0.5, 0.5), (2, 3), (1e5, 3), (3, 1e6)]:
        for x in (1e-9, 0.01, 0.5, 0.999, a / (a + b)):
            assert beta_cdf(x, a, b) == pytest.approx(stats.beta.cdf(x, a, b), abs=1e-9)


def planted(rng: np.random.Generator, rows: int = 20_000) -> tuple[np.ndarray, np.ndarray]:
    """Family of each row: nine of ten rows are alone, the others in families of 2 to 500, few of them large."""
    u, v = rng.random(rows), rng.random(rows)
    sizes = np.where(u < 0.9, 1, np.minimum(500, np.floor(2 * (1 - v) ** (-1 / 1.2)))).astype(int)
    family = np.repeat(np.arange(rows), sizes)[:rows]
    return family, np.bincount(family)[family] - 1


@pytest.mark.parametrize("loss", ["pairs", "families", "cap"])
def test_intervals_hold_the_true_value_in_93_of_100_samples(loss):
    # 200 fresh tables with a sample of 1,000 rows each. A method of true coverage 0.95 falls below 0.93 here in one of 12 seeds;
    # the seed is fixed, and docs/recall.md has the coverage over many cases.
    rng = np.random.default_rng(2)
    held = np.zeros((200, len(FIGURES)), dtype=bool)
    for trial in range(len(held)):
        family, true = planted(rng)
        if loss == "pairs":
            found = rng.binomial(true, 0.97)
        elif loss == "families":
            found = np.where((rng.random(len(true)) < 0.05)[family], 0, true)
        else:
            found = np.minimum(true, 100)
        sample = rng.permutation(len(true))[:1000]
        for i, figure in enumerate(FIGURES):
            exact = figure(found, true, rows=len(true), total=len(true)).value
            got = figure(found[sample], true[sample], rows=1000, total=len(true))
            held[trial, i] = got.low - 1e-9 <= exact <= got.high + 1e-9
    assert held.mean(axis=0).min() >= 0.93, held.mean(axis=0)


@pytest.mark.parametrize(
    ("figure", "words"),
    [
        ((0.98765, 0.98, 0.991234, 500, 6000), "0.9876 [0.9800, 0.9913], n = 500"),
        ((0.99999, 0.99, 1.0, 500, 6000), "0.9999 [0.9900, 1], n = 500"),
        ((0.3, 0.3, 0.3, 6000, 6000), "0.3000, all 6,000 texts"),
        ((1.0, 1.0, 1.0, 6000, 6000), "1, all 6,000 texts"),
        ((0.0, 0.0, 0.00001, 10, 20), "0 [0, 0.0001], n = 10"),
        ((None, None, None, 200, 6000, 0.01487), "no such pair, n = 200; at most 0.0149 of the texts have one"),
        ((None, None, None, 7, 7, 0.0), "no such pair, all 7 texts"),
    ],
)
def test_figures_are_told_without_rounding_to_certainty(figure, words):
    assert told(*figure) == words
