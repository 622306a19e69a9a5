"""What a run will take, from figures that were measured beforehand: arithmetic alone.

Seconds of a stage are those of a rehearsal on next to nothing, which is overhead, and what its texts, products and bytes take at
measured rates. Pairs are estimated from a random sample of texts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from spark_dedup.evaluation.truth import budgeted_sample, truth_cost, truth_seconds
from spark_dedup.kernels.cells import (
    FINE_ITERATIONS,
    FINE_SAMPLE_PER_CELL,
    ITERATIONS,
    cell_count,
    fine_cell_count,
    graph_shards,
    sample_size,
)
from spark_dedup.kernels.metrics import TAIL, binomial_interval
from spark_dedup.kernels.tiles import copies, group_count

STAGES = ("records", "representatives", "embeddings", "vectors", "index", "candidates", "components", "clusters", "recall")
OPENING = "opening"
"""What a run does before, between and after its stages."""

PLANNED = ("exact", "cells", "semdedup", "hnsw")

TRIALS = 1e9
"""A binomial of so many trials stands for a Poisson variable."""

MOST_EVENTS = 1e6
"""Independent events that an interval counts at most; with more of them it is a quarter of a percent wide."""

ID_BYTES = 16
"""Of rep_id and head_id."""

PAIR_BYTES = 48
"""Of a candidate pair in Parquet where the rehearsal found too few to tell: two ids twice, four scores and words, compressed."""

ENTRY_BYTES = 60
"""Of a scored pair in a shuffle."""

LINK_BYTES = 4
LEVEL_BYTES = 12
"""FAISS keeps a link of the graph in four bytes, 2 M of them on the lowest level, and a level and an offset for every vector."""

PASSES = 8
"""Passes over rows that components and clusters make, each a join or a grouping."""


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """What the source holds.

    Attributes:
        rows: Rows.
        with_text: Rows with a text.
        text_bytes: UTF-8 bytes of all texts.
        texts: Distinct texts: exact keys.
        exact: Whether the keys were computed; else `texts` counts distinct raw texts within 2 %, and what follows is not known.
        copy_groups: Keys that several rows share.
        copy_rows: Rows in these groups.
        largest_group: Rows of the largest one.
    """

    rows: int
    with_text: int
    text_bytes: int
    texts: int
    exact: bool
    copy_groups: int | None = None
    copy_rows: int | None = None
    largest_group: int | None = None


@dataclass(frozen=True, kw_only=True)
class PairCount:
    """A number in the whole table, estimated from a sample.

    Attributes:
        value: The estimate; 0 where the sample has none.
        low: Lower end of the 95 % interval.
        high: Its upper end; where the sample has none, at most so many with 95 % confidence.
        seen: Pairs inside the sample.
    """

    value: float
    low: float
    high: float
    seen: int


@dataclass(frozen=True, kw_only=True)
class Sample:
    """What a random sample of the texts shows.

    Attributes:
        texts: Texts in it.
        dimension: Of their vectors.
        feature_bytes: Of a text on average.
        stored: Share of them whose vectors are in the store already.
        pairs: Pairs at or above the floor in the whole table.
        full: Texts with more than `search.neighbours` of them, and with more than `search.max_neighbours`: low, value, high of each.
        crowd: Texts in the largest group of equal vectors, at least; 1 where all vectors differ.
        visits: Cells that a vector visits, its own included.
        crowding: Mean size of the cell that a vector lives in, over the mean size of the cells; at least 1.
    """

    texts: int
    dimension: int
    feature_bytes: float
    stored: float
    pairs: PairCount
    full: tuple[tuple[float, float, float], tuple[float, float, float]]
    crowd: float
    visits: float
    crowding: float


@dataclass(frozen=True)
class Growth:
    """Seconds of one vector in a graph of n: `base + slope * ln n`."""

    base: float
    slope: float

    @classmethod
    def through(cls, small: tuple[int, float], large: tuple[int, float]) -> Growth:
        """Through two measurements: vectors, and seconds of one of them. Where the larger graph was not slower, it stays as it is."""
        slope = (large[1] - small[1]) / math.log(large[0] / small[0]) if large[0] > small[0] else 0.0
        slope = max(slope, 0.0)
        return cls(large[1] - slope * math.log(max(large[0], 1)), slope)

    def at(self, n: float) -> float:
        """Seconds of one vector in a graph of n, at least 1."""
        return max(0.0, self.base + self.slope * math.log(max(n, 1.0)))


@dataclass(frozen=True, kw_only=True)
class Rates:
    """What this cluster was measured to do.

    Attributes:
        tasks: Tasks that run at once.
        executors: Processes that run them.
        rehearsed: Rows of the rehearsal.
        fixed: Its seconds by stage, with `OPENING`.
        normalise: Seconds of one task for the exact key of a byte of text.
        features: Seconds of one task for the features of a byte of text.
        encode: Seconds of one task for the vector of a text; 0 where the source brings vectors.
        product: FLOP/s of all tasks together in float32 products.
        move_row: Seconds of the cluster to shuffle and write a row.
        move_byte: Seconds of the cluster to shuffle and write a byte.
        pair: Seconds of one task to recompute and score a pair.
        build: Of one task, for a vector that enters an HNSW graph.
        ask: Of one task, for a vector that asks it.
        distances: Vectors that a query of an HNSW graph is compared with.
        pair_bytes: Of a stored candidate pair.
        vector_bytes: Of a stored row of vectors.
    """

    tasks: int
    executors: int
    rehearsed: int
    fixed: Mapping[str, float]
    normalise: float
    features: float
    encode: float
    product: float
    move_row: float
    move_byte: float
    pair: float
    build: Growth
    ask: Growth
    distances: float
    pair_bytes: float
    vector_bytes: float

    def moved(self, rows: float, row_bytes: float) -> float:
        """Seconds to shuffle and write rows."""
        return rows * (self.move_row + row_bytes * self.move_byte)


@dataclass(frozen=True, kw_only=True)
class Search:
    """The settings that decide the costs of a search.

    Attributes:
        neighbours: `search.neighbours`.
        max_neighbours: `search.max_neighbours`.
        max_copies: `search.max_copies`.
        links: `search.links`.
        ef_search: `search.ef_search`.
        ef_construction: `search.ef_construction`.
        shards: `search.shards`.
        cells: `search.cells`.
        recall_sample: `recall.sample`; 0 where nothing is measured.
        recall_share: `recall.share`.
    """

    neighbours: int
    max_neighbours: int
    max_copies: int
    links: int
    ef_search: int
    ef_construction: int
    shards: int | str
    cells: int | str
    recall_sample: int
    recall_share: float


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What one engine would take.

    Attributes:
        engine: Its name.
        flops: Float operations of index and search, in products or distances.
        shuffled: Bytes that index and search send between tasks, or bring to executors.
        index_bytes: Size of its index.
        executor_bytes: Of it, what each executor holds at once.
        stored: Bytes of all tables of the run.
        seconds: By stage, `OPENING` first.
        money: For the whole run; None without a price.
    """

    engine: str
    flops: float
    shuffled: float
    index_bytes: float
    executor_bytes: float
    stored: float
    seconds: Mapping[str, float]
    money: float | None

    @property
    def total(self) -> float:
        """Seconds of the whole run."""
        return sum(self.seconds.values())


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a run would do and take.

    Attributes:
        corpus: The source.
        sample: What a sample of it shows.
        rates: What the cluster was measured to do.
        searched: Texts that take part in the search.
        floor: `search.floor`.
        pairs_all: Pairs of all rows with a text.
        pairs_left: Pairs of the texts that are searched.
        wanted: `search.engine`.
        chosen: The engine that a run takes.
        reason: Why.
        auto: What `auto` takes, and why.
        costs: Of each engine.
        candidate_bytes: Size of the table of candidate pairs.
        warnings: Limits that will bite, each with the setting to change.
        price_per_hour: What the cluster costs.
        seconds: What planning took.
    """

    corpus: Corpus
    sample: Sample
    rates: Rates
    searched: int
    floor: float
    pairs_all: int
    pairs_left: int
    wanted: str
    chosen: str
    reason: str
    auto: tuple[str, str]
    costs: tuple[Cost, ...]
    candidate_bytes: float
    warnings: tuple[str, ...]
    price_per_hour: float | None
    seconds: float

    def cost(self, engine: str) -> Cost:
        """The costs of one engine."""
        return next(cost for cost in self.costs if cost.engine == engine)


def pairs_among(n: int) -> int:
    """Unordered pairs of n things."""
    return n * (n - 1) // 2


def pair_flops(n: float, dimension: int) -> float:
    """Float operations of the products of all pairs of n vectors: a multiplication and an addition for each dimension."""
    return n * (n - 1) / 2 * 2.0 * dimension


def count_pairs(degrees: NDArray[np.int64], total: int) -> PairCount:
    """Estimate the pairs of a table from those inside a simple random sample of its texts.

    A pair is inside the sample with chance p^2 (p: share of the texts), two pairs with a common text with p^3. So the variance is
    T (1 / p^2 - 1) + 2 W (1 / p - 1), T being the pairs and W the pairs of pairs with a common text, both estimated from the
    sample (Sarndal, Swensson, Wretman, "Model Assisted Survey Sampling", 2.8: Horvitz-Thompson). It is turned into a number of
    independent events with the same relative variance, and that into an exact Poisson interval. On top of its upper end come the
    pairs of the largest family that a sample overlooks with a chance of 2.5 %: what was seen says nothing about it.

    Args:
        degrees: int64 (n,), for each sampled text the others in the sample with which it makes a pair.
        total: Texts in the table, at least n. With a sample of all the figure is exact.
    """
    n, seen = len(degrees), int(degrees.sum()) // 2
    if n >= total:
        return PairCount(value=seen, low=seen, high=seen, seen=seen)
    most = pairs_among(total)
    if n < 2:
        return PairCount(value=0, low=0, high=most, seen=0)
    share = n / total
    if not seen:
        return PairCount(value=0, low=0, high=min(most, overlooked(share, 2 * TAIL)), seen=0)
    both = n * (n - 1) / (total * (total - 1))
    value = seen / both
    linked = float((degrees * (degrees - 1.0)).sum()) / 2 / share**3
    variance = value * (1 / both - 1) + 2 * linked * (1 / share - 1)
    events = min(value * value / variance, MOST_EVENTS)
    low, high = (TRIALS * end / events for end in binomial_interval(events / TRIALS, TRIALS))
    return PairCount(
        value=value,
        low=max(seen, value * min(low, 1.0)),
        high=min(most, value * max(high, 1.0) + overlooked(share, TAIL)),
        seen=seen,
    )


def overlooked(share: float, chance: float) -> int:
    """Pairs of the largest family of which a sample holds at most one member with this chance.

    Args:
        share: Of the table that is in the sample, in (0, 1].
        chance: In (0, 1).

    Returns:
        m (m - 1) / 2 for the largest m with (1 - share)^m + m share (1 - share)^(m - 1) >= chance.
    """

    def missed(m: int) -> float:
        return (1 - share) ** m + m * share * (1 - share) ** (m - 1)

    low, high = 1, 2
    while missed(high) >= chance:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if missed(middle) >= chance else (low, middle)
    return pairs_among(low)


def long_lists(degrees: NDArray[np.int64], total: int, cap: int) -> tuple[float, float, float]:
    """Texts of a table with more than `cap` neighbours, as far as a sample can tell.

    A text with k neighbours has about k p of them in the sample (p: share of the texts).

    Args:
        degrees: As in `count_pairs`.
        total: Texts in the table.
        cap: At least 1.

    Returns:
        Texts that have more by any doubt of 2.5 %, that likely have more, and that might have. All the same where the sample is the table.
    """
    n = len(degrees)
    if not n:
        return 0.0, 0.0, float(total)
    share = min(1.0, n / total)
    if share == 1.0:
        exact = float((degrees > cap).sum())
        return exact, exact, exact
    expected = cap * share
    counts = np.arange(int(degrees.max()) + 2)
    logs = counts * math.log(expected) - expected - np.array([math.lgamma(k + 1) for k in counts.tolist()])
    at_most = np.cumsum(np.exp(logs))
    above = 1 - np.concatenate([[0.0], at_most[:-1]])  # chance of so many or more, of a list at the cap
    sure, likely, perhaps = above[degrees] < TAIL, degrees > expected, at_most[degrees] > TAIL
    return tuple(float(x.sum()) / share for x in (sure, likely & (degrees > 1), perhaps))  # type: ignore[return-value]


def crowd_size(seen: int, share: float) -> float:
    """Texts of a table that share one vector, at least, with 97.5 % confidence; 1 where the sample can not tell.

    Args:
        seen: Texts of the sample that share it.
        share: Of the table that is in the sample, in (0, 1].
    """
    if share >= 1 or seen < 2:
        return float(max(seen, 1))
    return max(1.0, TRIALS * binomial_interval(seen / TRIALS, TRIALS)[0] / share)


def cell_products(n: float, cells: int, visits: float, crowding: float) -> float:
    """Products of a vector on average: with every centroid, half of its own cell, and all of every other cell that it visits."""
    return (cells if cells > 1 else 0) + n / cells * crowding * (visits - 0.5)


def index_bytes(engine: str, n: float, dimension: int, feature_bytes: float, visits: float, links: int) -> float:
    """Size of an engine's index: vectors, ids, features, and the cells that each visits or the links of the graph."""
    plain = 4.0 * dimension + feature_bytes + 3 * 8
    own = {"exact": 0.0, "cells": plain + 8 * visits, "semdedup": plain + 8, "hnsw": plain + 2 * links * LINK_BYTES + LEVEL_BYTES}[engine]
    return n * own


def costs(corpus: Corpus, sample: Sample, rates: Rates, search: Search, searched: int, price: float | None) -> tuple[Cost, ...]:
    """What each engine would take.

    Args:
        corpus: The source.
        sample: What a sample shows.
        rates: What the cluster does.
        search: Settings.
        searched: Texts that take part in the search.
        price: Of the cluster for an hour; None where it is not known.
    """
    return tuple(engine_cost(engine, corpus, sample, rates, search, searched, price) for engine in PLANNED)


def engine_cost(engine: str, corpus: Corpus, sample: Sample, rates: Rates, search: Search, searched: int, price: float | None) -> Cost:
    """What one engine would take; arguments as in `costs`."""
    n, d, tasks = float(searched), sample.dimension, rates.tasks
    text = corpus.text_bytes / max(corpus.with_text, 1)
    row = 4.0 * d + sample.feature_bytes + ID_BYTES
    pairs = sample.pairs.value
    work = stage_work(engine, n, d, row, sample, rates, search)
    texts = corpus.texts
    new = texts * (1 - sample.stored)
    more = {
        "records": corpus.text_bytes * rates.normalise / tasks + rates.moved(corpus.rows, text),
        "representatives": rates.moved(corpus.rows, text) + rates.moved(texts, text),
        "embeddings": new * rates.encode / tasks + rates.moved(new, text + 4.0 * d),
        "vectors": n * text * rates.features / tasks + rates.moved(n, text + row) + rates.moved(n, 4.0 * d),
        "index": work.index,
        "candidates": work.search + pairs * rates.pair / tasks + rates.moved(pairs, ENTRY_BYTES),
        "components": PASSES * rates.moved(texts + pairs, ID_BYTES),
        "clusters": PASSES * rates.moved(corpus.rows, ID_BYTES),
    }
    beyond = max(0.0, 1 - rates.rehearsed / max(corpus.rows, 1))  # what the rehearsal did is in its seconds
    fixed = {**rates.fixed, **({"index": 0.0} if engine == "exact" else {})}
    seconds = {OPENING: fixed[OPENING], **{stage: fixed[stage] + beyond * extra for stage, extra in more.items()}}
    seconds["recall"] = recall_seconds(n, d, row, pairs, rates, search, seconds)
    stored = 2 * corpus.text_bytes + texts * 4.0 * d + n * rates.vector_bytes + work.index_bytes + pairs * rates.pair_bytes
    return Cost(
        engine=engine,
        flops=work.flops,
        shuffled=work.shuffled,
        index_bytes=work.index_bytes,
        executor_bytes=work.index_bytes if engine != "exact" else 2 * row * n / exact_groups(n, tasks) * tasks / rates.executors,
        stored=stored,
        seconds=seconds,
        money=None if price is None else price * sum(seconds.values()) / 3600,
    )


@dataclass(frozen=True)
class Work:
    """Index and search of one engine: their seconds, without pairs, and what they do."""

    index: float
    search: float
    flops: float
    shuffled: float
    index_bytes: float


def stage_work(engine: str, n: float, d: int, row: float, sample: Sample, rates: Rates, search: Search) -> Work:
    """Index and search of one engine.

    Args:
        engine: Its name.
        n: Vectors.
        d: Dimension.
        row: Bytes of a row of vectors.
        sample: What a sample shows.
        rates: What the cluster does.
        search: Settings.
    """
    size = index_bytes(engine, n, d, sample.feature_bytes, sample.visits, search.links)
    if engine == "exact":
        sent, flops = copies(exact_groups(n, rates.tasks)) * n, pair_flops(n, d)
        return Work(0.0, flops / rates.product + rates.moved(sent, row), flops, sent * row, 0.0)
    written, brought = 2 * rates.moved(n, row), size * rates.move_byte
    if engine == "hnsw":
        shards = graph_shards(int(n), search.shards)
        cells = cell_count(shards)
        training = 2.0 * d * sample_size(cells) * cells * ITERATIONS if cells > 1 else 0.0
        asked = min(float(shards), sample.visits)
        inside = n / shards
        build, ask = n * rates.build.at(inside), n * asked * rates.ask.at(inside)
        again = 1 + 4 * sample.full[0][1] / max(n, 1)  # a full list is asked again for four times as many
        distances = n * rates.distances * (asked * again + search.ef_construction / max(search.ef_search, search.neighbours + 1))
        index = training / (rates.product / rates.tasks) + build / min(rates.tasks, shards) + written
        return Work(index, ask * again / rates.tasks + brought + rates.moved(n, row), 2.0 * d * distances, n * row + size, size)
    cells = fine_cell_count(int(n), search.cells, search.shards)
    visits = 1.0 if engine == "semdedup" or cells == 1 else sample.visits
    training = 2.0 * d * sample_size(cells, FINE_SAMPLE_PER_CELL) * cells * FINE_ITERATIONS if cells > 1 else 0.0
    probing = 2.0 * d * n * cells if cells > 1 else 0.0
    joining = 2.0 * d * n * cell_products(n, cells, visits, sample.crowding if cells > 1 else 1.0) - probing
    index = training / (rates.product / rates.tasks) + probing / rates.product + written
    return Work(index, joining / rates.product + brought, training + probing + joining, n * row + size, size)


def exact_groups(n: float, tasks: int) -> int:
    """Groups into which vectors are dealt for the products of all pairs."""
    return group_count(n, max(1, min(tasks * 4, math.ceil(n / 512))))


def recall_seconds(n: float, d: int, row: float, pairs: float, rates: Rates, search: Search, seconds: Mapping[str, float]) -> float:
    """Seconds to measure recall on the sample that a run would take, which is what its share of the other stages' `seconds` pays for."""
    if not search.recall_sample or not n:
        return 0.0
    cost = truth_cost(n, dimension=d, row_bytes=row, neighbours=2 * pairs / n, rate=rates.product, tasks=rates.tasks)
    others = sum(seconds.values()) - seconds[OPENING]
    paid = truth_seconds(search.recall_share, others, seconds["components"])  # as in a run, see `measuring.sample_size`
    sample = budgeted_sample(search.recall_sample, int(n), cost, paid)
    return rates.fixed["recall"] + (cost[0] + sample * cost[1] if sample else 0.0)


def warnings(engine: str, sample: Sample, search: Search, searched: int) -> tuple[str, ...]:
    """Limits that will bite, each with the setting to change.

    Args:
        engine: The one that a run takes.
        sample: What a sample shows.
        search: Settings.
        searched: Texts that take part in the search.
    """
    out = []
    (_, again, _), (least_cut, cut, _) = sample.full
    if engine == "hnsw" and again >= 1:
        out.append(
            f"about {again:,.0f} texts have more than search.neighbours = {search.neighbours} neighbours above the floor: they are asked "
            f"again, up to search.max_neighbours; raise search.neighbours, or set search.engine: cells, which has no such limit"
        )
    if engine == "hnsw" and cut >= 1:
        out.append(
            f"about {cut:,.0f} texts (at least {least_cut:,.0f}) have more than search.max_neighbours = {search.max_neighbours:,}: their "
            f"lists will be cut; raise search.max_neighbours, or set search.engine: cells"
        )
    if sample.crowd > search.max_copies:
        out.append(
            f"at least {sample.crowd:,.0f} texts share one vector: beyond search.max_copies = {search.max_copies} each of them is paired "
            f"with the first one only; raise search.max_copies"
        )
    if engine == "pgvector":
        out.append("what index and search take in Postgres is not planned: its machine was not measured")
    if engine == "semdedup" and fine_cell_count(searched, search.cells) > 1:
        out.append("search.engine semdedup compares no pair across the border of two cells; set search.engine: cells")
    return tuple(out)
