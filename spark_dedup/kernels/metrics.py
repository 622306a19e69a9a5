"""Recall from a random sample of rows, with intervals that hold when pairs come in families.

A row (a text) is drawn, never a pair: all pairs of a row come together, and the rows of one family of near-copies resemble each
other. So the interval counts rows, weighted by their pairs, and not pairs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spark_dedup.errors import StoreError

TAIL = 0.025
"""Probability left out on each side of an interval."""

NORMAL_QUANTILE = 1.959964
"""Of 1 - TAIL."""

WORST_SHARE = 0.1
"""Share of the rows that `worst_decile` looks at."""


@dataclass(frozen=True)
class Estimate:
    """A share in the whole table, estimated from a sample of its rows.

    Attributes:
        value: In [0, 1]; None where no sampled row has a true pair.
        low: Lower end of the 95 % interval, at most `value`; None with it.
        high: Upper end of the 95 % interval, at least `value`; None with it.
        rows: Rows in the sample.
        pairs: True pairs in the lists of these rows; for a figure per row, the rows that count.
        unseen: Where `value` is None: share of the table's rows that have a true pair, at most, with 95 % confidence.
    """

    value: float | None
    low: float | None
    high: float | None
    rows: int
    pairs: int
    unseen: float | None = None


def ratio(found: NDArray[Any], true: NDArray[Any], *, rows: int, total: int) -> Estimate:
    """Estimate sum(found) / sum(true) over all rows of a table from a simple random sample without replacement.

    The variance is that of a ratio of two means, linearised (Cochran, "Sampling Techniques", 6.3). It is turned into the number
    of independent rows that would have the same one, and that into an exact binomial interval (Korn and Graubard, "Confidence
    Intervals for Proportions with Small Expected Number of Positive Counts Estimated from Survey Data", 1998). Where few or no
    losses were seen the variance says little, and many small ones do not tell of a family that was not drawn and is lost as a
    whole. So the number is at most Kish's sum(true)^2 / sum(true^2): that of a table in which each row's pairs are found or lost as one.

    Args:
        found: Numbers (k,), 0 <= found <= true: true pairs of a row that were found.
        true: Numbers (k,): true pairs of a row. Rows without any may be left out.
        rows: Rows in the sample, at least k.
        total: Rows in the table. With a sample of all rows the figure is exact.

    Returns:
        The estimate; its interval covers the true value in at least 93 % of samples (docs/recall.md has the measurement).

    Raises:
        StoreError: If more was found than there is, or there are more rows than the sample has.
    """
    found, true = checked(found, true)
    if len(true) > rows:
        raise StoreError(f"a sample of {rows} rows can not have pairs in {len(true)} rows", hint="measure again: these are two samples")
    pairs = float(true.sum())
    if pairs == 0:
        return Estimate(None, None, None, rows, 0, unseen=none_seen(rows, total))
    value = float(found.sum()) / pairs
    if rows >= total:
        return Estimate(value, value, value, rows, round(pairs))
    missed = float((true - found).sum()) / pairs
    low, high = binomial_interval(missed, effective_rows(found, true, rows, total))
    return Estimate(value, min(1 - high, value), max(1 - low, value), rows, round(pairs))


def effective_rows(found: NDArray[np.float64], true: NDArray[np.float64], rows: int, total: int) -> float:
    """Independent rows, each with the same number of pairs, that would tell as much as the sample does.

    Args:
        found: As in `ratio`.
        true: As in `ratio`, not all 0.
        rows: As in `ratio`, less than `total`.
        total: As in `ratio`.
    """
    share = rows / total
    pairs = true.sum()
    # A sample of nearly all rows can overlook nearly nothing: m lost rows are all overlooked with probability (1 - share)^m.
    kish = float(pairs**2 / (true**2).sum()) * -math.log1p(-share) / share
    value = found.sum() / pairs
    residuals = float(((found - value * true) ** 2).sum())
    if residuals == 0 or rows == 1:
        return kish
    variance = (1 - share) * rows / (rows - 1) * residuals / pairs**2
    return min(kish, float(value * (1 - value) / variance))


def query_mean(found: NDArray[Any], true: NDArray[Any], *, rows: int, total: int) -> Estimate:
    """Estimate the mean of found / true over the rows of a table that have a true pair; arguments as in `ratio`."""
    shares = row_shares(found, true)
    return ratio(shares, np.ones(len(shares)), rows=rows, total=total)


def worst_decile(found: NDArray[Any], true: NDArray[Any], *, rows: int, total: int) -> Estimate:
    """Estimate the mean of found / true over the tenth of the rows that has the lowest ones; arguments as in `ratio`.

    With c the largest value in that tenth, its mean is c - mean(max(c - x, 0)) / 0.1, and any other c gives less (Rockafellar and
    Uryasev, "Optimization of Conditional Value-at-Risk", 2000). So the interval is that of a mean, stretched. Its upper end also
    tries the c at the upper end of its own interval.
    """
    shares = np.sort(row_shares(found, true))
    m = len(shares)
    if m == 0:
        return ratio(shares, shares, rows=rows, total=total)
    worst = math.ceil(WORST_SHARE * m)
    value = float(shares[:worst].mean())
    if rows >= total:
        return Estimate(value, value, value, rows, m)
    upper_rank = math.ceil(worst + NORMAL_QUANTILE * math.sqrt(worst * (1 - worst / m)))
    low, high = value, value
    for rank in (worst, min(upper_rank, m)):
        c = float(shares[rank - 1])
        if c > 0:
            part = ratio(np.minimum(shares / c, 1), np.ones(m), rows=rows, total=total)
            ends = [c * (1 - (1 - end) * m / worst) for end in (part.low, part.high) if end is not None]
            low, high = (min(low, ends[0]) if rank == worst else low), max(high, ends[1])
    return Estimate(value, max(low, 0.0), min(high, 1.0), rows, m)


def row_shares(found: NDArray[Any], true: NDArray[Any]) -> NDArray[np.float64]:
    """Shares found / true of the rows that have a true pair: float64, as many as there are such rows."""
    found, true = checked(found, true)
    return found[true > 0] / true[true > 0]


def checked(found: NDArray[Any], true: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Both as float64.

    Raises:
        StoreError: If a row has found more than there is.
    """
    found, true = np.asarray(found, dtype=np.float64), np.asarray(true, dtype=np.float64)
    wrong = np.flatnonzero(~((found >= 0) & (found <= true)))
    if len(wrong):
        raise StoreError(
            f"{found[wrong[0]]:g} of {true[wrong[0]]:g} true pairs of a row can not have been found ({len(wrong)} such rows)",
            hint="measure again: the true pairs and the pairs found are of different tables",
        )
    return found, true


def none_seen(rows: int, total: int) -> float:
    """Share of a table's rows that can have a property which no sampled row has, with 95 % confidence: 1 - 0.05^(1 / rows)."""
    if rows >= total:
        return 0.0
    return 1 - 0.05 ** (1 / rows) if rows else 1.0


def binomial_interval(share: float, trials: float) -> tuple[float, float]:
    """95 % interval of a probability after `share * trials` successes, which need not be whole numbers.

    Args:
        share: In [0, 1].
        trials: Above 0.

    Returns:
        Lower and upper end. Source: Clopper and Pearson, "The use of confidence or fiducial limits", 1934.
    """
    hits = share * trials
    misses = trials - hits
    low = beta_quantile(TAIL, hits, misses + 1) if hits > 0 else 0.0
    high = beta_quantile(1 - TAIL, hits + 1, misses) if misses > 0 else 1.0
    return low, high


def beta_quantile(probability: float, a: float, b: float) -> float:
    """Where the distribution function of Beta(a, b) reaches `probability`, by bisection to 1e-10 of its value."""
    low, high = 0.0, 1.0
    while high - low > 1e-10 * high and high > 1e-300:
        middle = (low + high) / 2
        if beta_cdf(middle, a, b) < probability:
            low = middle
        else:
            high = middle
    return high


def beta_cdf(x: float, a: float, b: float) -> float:
    """Distribution function of Beta(a, b), a and b > 0, at x in (0, 1).

    Source: the continued fraction of the NIST Digital Library of Mathematical Functions, 8.17.22, from the front
    (Lentz, "Generating Bessel functions in Mie scattering calculations using continued fractions", 1976).
    """
    if x > (a + 1) / (a + b + 2):  # where it converges slowly
        return 1 - beta_cdf(1 - x, b, a)
    scale = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)) / a
    tiny = 1e-300
    c, d, fraction = 1.0, 0.0, 1.0
    for i in range(10_000):
        m = i // 2
        if i == 0:
            term = 1.0
        elif i % 2 == 0:
            term = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        else:
            term = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        d = 1 / (1 + term * d or tiny)
        c = 1 + term / c or tiny
        fraction *= c * d
        if i and abs(c * d - 1) < 1e-14:
            break
    return scale * (fraction - 1)


def told(value: float | None, low: float | None, high: float | None, n: int, texts: int, unseen: float | None = None) -> str:
    """A figure with its interval and sample; nothing is rounded up to 1, or down to 0.

    Args:
        value: In [0, 1], or None.
        low: Lower end of its interval.
        high: Upper end.
        n: Sampled texts.
        texts: Texts that the sample was drawn from.
        unseen: As in RECALL.
    """
    sample = f"n = {n:,}" if n < texts else f"all {texts:,} texts"
    if value is None or low is None or high is None:
        most = f"; at most {digits(unseen, up=True)} of the texts have one" if unseen else ""
        return f"no such pair, {sample}{most}"
    return f"{digits(value)}{interval(low, high)}, {sample}"


def interval(low: float, high: float) -> str:
    """An interval in brackets behind a blank; nothing where the figure is exact."""
    return "" if low == high else f" [{digits(low)}, {digits(high, up=True)}]"


def digits(share: float, *, up: bool = False) -> str:
    """A share with four digits, rounded away from certainty: down, or `up`; 0 and 1 only where it is exactly that."""
    scaled = share * 10_000
    whole = math.ceil(scaled - 1e-9) if up else math.floor(scaled + 1e-9)
    exact = share in (0.0, 1.0)
    return f"{share:.0f}" if exact else f"{min(max(whole, 1), 9_999) / 10_000:.4f}"
