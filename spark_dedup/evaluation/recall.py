"""TRUTH x CANDIDATE_PAIRS -> RECALL: what the search found of the pairs that are truly there.

Texts are sampled, not pairs. In the whole table every pair is in the lists of exactly two texts, so the entries of all lists that were
found, over all entries, are the pairs that were found, over all pairs. A sampled text brings its whole list; a pair of two sampled
texts is an entry of both lists and counts in both. That is no double count: the chance that an entry is looked at is the chance that
its own text is sampled, the same for all, so the ratio over the sample estimates the ratio over the table.

The numerator counts entries of the truth, never rows of the candidate table, and which pairs count is decided by the cosine of the
truth alone, which is bit for bit the one that the search stores. So no order, tie, repeated pair or self pair can lift a figure above 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql import functions as F

from spark_dedup.errors import StoreError
from spark_dedup.kernels.cells import Cells
from spark_dedup.kernels.metrics import Estimate, query_mean, ratio, told, worst_decile
from spark_dedup.kernels.vectors import from_binary
from spark_dedup.schema import BLOCK, CONTAINMENT, LEFT_ID, LSH, REP_ID, RIGHT_ID, TRUTH, VECTORS
from spark_dedup.stages.score import holds

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

QUOTED = 0.90
"""The threshold whose figure is quoted beside every figure about pairs; the floor where that is higher."""

THRESHOLDS = (0.90, 0.95)
"""Beside the floor: what is quoted with figures about pairs."""

CAUSES = ("routing", "cap", "border", "graph")
"""Why a pair was missed; the first that applies, in the order in which a setting would have to change."""

Reach = Callable[[NDArray[np.float32]], tuple[NDArray[np.int32], NDArray[np.bool_]]]
"""For float32 vectors (n, d): int32 (n,), the part of the index that each lives in, and bool (n, parts), the parts that it visits."""


class RecallRow(NamedTuple):
    """One row of RECALL."""

    run_id: str
    stage: str
    metric: str
    setting: str
    floor: float
    value: float | None
    low: float | None
    high: float | None
    n: int
    texts: int
    pairs: int
    unseen: float | None
    seconds: float | None


@dataclass(frozen=True)
class Limits:
    """Where the engine may have lost pairs.

    Attributes:
        neighbours: Longest list of a vector, `search.max_neighbours`; None for an engine whose lists are not cut.
        copies: Texts of one vector that are all paired, `search.max_copies`; None for an engine that pairs all.
        reach: Parts of the index that vectors live in and visit; None for an engine that looks everywhere.
    """

    neighbours: int | None = None
    copies: int | None = None
    reach: Reach | None = None


def shard_reach(cells: Cells, margin: float) -> Reach:
    """The shards of an HNSW index.

    Args:
        cells: The rows of INDEX_CELLS.
        margin: `search.margin`.
    """

    def reach(vectors: NDArray[np.float32]) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
        return cells.home(vectors), cells.visits(vectors, margin)

    return reach


def recall_rows(
    truth: DataFrame,
    candidates: DataFrame,
    components: DataFrame,
    searched: DataFrame,
    limits: Limits,
    *,
    rule: str,
    floor: float,
    texts: int,
    run_id: str,
    stage: str = "candidates",
    setting: str = "",
    seconds: float | None = None,
    routing: bool = True,
    keys: bool = False,
) -> list[RecallRow]:
    """Measure the pairs of one search against the truth. Runs two jobs; what comes to the driver is a row per sampled text with neighbours.

    Args:
        truth: TRUTH, made at `floor` or below.
        candidates: CANDIDATE_PAIRS or SCORED_PAIRS: what the search returned, any number of times.
        components: COMPONENTS that were made from these pairs; holds every text of the truth.
        searched: VECTORS that took part in the search. A text of the truth that is not among them was kept out by `exact.route: bypass`.
        limits: What the engine may have cut.
        rule: `merge.rule`.
        floor: Least cosine of the pairs that count.
        texts: Texts that the sample was drawn from.
        run_id: Run that is measured.
        stage: Stage that is measured.
        setting: Settings that differ from the run's own.
        seconds: Wall time of the search.
        routing: False where the truth's base lacks the texts that routing kept out, as they have no vectors: then all figures are about
            the other texts, and `loss_routing` has no value.
        keys: Whether there are blocking keys, whose share is measured too.

    Returns:
        RECALL rows. `pair_recall` at the floor, 0.90 and 0.95; at the floor also `pair_recall_rule` (of the pairs on which the merge rule
        holds, those found directly), `cluster_recall` (of the same pairs, those whose ends are in one cluster), `query_recall_mean`,
        `query_recall_worst_decile`, and `loss_*` of CAUSES, shares of the true pairs that add up to what `pair_recall` lacks to 1; with
        `keys` also `key_recall`, the true pairs that a blocking key brought together, and `loss_keys`, the others, whether or not vectors
        found them.

    Raises:
        StoreError: If the truth was made for several samples.
    """
    truth = TRUTH.conform(truth)
    made_for, rows = sampled(truth)
    if made_for > 1:
        raise StoreError(f"the truth was made for {made_for} different samples", hint="make it anew")
    thresholds = sorted({floor, *(t for t in THRESHOLDS if t > floor)})
    lists = query_lists(truth, candidates, components, searched, limits, rule, floor, thresholds)

    def row(metric: str, figure: Estimate, at: float = floor) -> RecallRow:
        e = figure
        return RecallRow(run_id, stage, metric, setting, at, e.value, e.low, e.high, rows, texts, e.pairs, e.unseen, seconds)

    def share(part: str, whole: str) -> Estimate:
        return ratio(lists[part], lists[whole], rows=rows, total=texts)

    out = [row("pair_recall", share(f"found_{i}", f"true_{i}"), at) for i, at in enumerate(thresholds)]
    out.append(row("pair_recall_rule", share("rule_found", "rule_true")))
    out.append(row("cluster_recall", share("rule_joined", "rule_true")))
    out.append(row("query_recall_mean", query_mean(lists["found_0"], lists["true_0"], rows=rows, total=texts)))
    out.append(row("query_recall_worst_decile", worst_decile(lists["found_0"], lists["true_0"], rows=rows, total=texts)))
    for cause in CAUSES:
        lost = share(cause, "true_0")
        if cause == "routing" and not routing:
            lost = Estimate(None, None, None, rows, lost.pairs)
        out.append(row(f"loss_{cause}", lost))
    if keys:
        out += [row("key_recall", share("by_keys", "true_0")), row("loss_keys", share("beside_keys", "true_0"))]
    return out


def sampled(truth: DataFrame) -> tuple[int, int]:
    """Samples that a truth was made for, and texts in them."""
    marks = truth.where(F.col("other_id").isNull()).agg(F.countDistinct("fingerprint"), F.count("*")).first()
    return (int(marks[0]), int(marks[1])) if marks else (0, 0)


def query_lists(
    truth: DataFrame,
    candidates: DataFrame,
    components: DataFrame,
    searched: DataFrame,
    limits: Limits,
    rule: str,
    floor: float,
    thresholds: list[float],
) -> dict[str, NDArray[np.int64]]:
    """For each sampled text with a true neighbour: how many it has, how many were found, and why the others were not.

    Args:
        truth: As in `recall_rows`, as the five below.
        candidates: See there.
        components: See there.
        searched: See there.
        limits: See there.
        rule: See there.
        floor: See there.
        thresholds: Ascending; the first is the floor.

    Returns:
        int64 (k,) each: `true_i` and `found_i` for threshold i; `rule_true`, `rule_found`, `rule_joined`; each of CAUSES; `by_keys` and
        `beside_keys`, those that share a blocking key and those that do not.
    """
    keyed = F.exists("methods", lambda method: method.startswith(BLOCK)).alias("by_keys")
    stored = candidates.select(F.least(LEFT_ID, RIGHT_ID).alias(LEFT_ID), F.greatest(LEFT_ID, RIGHT_ID).alias(RIGHT_ID), keyed)
    by_vectors = F.exists("methods", lambda method: ~method.isin(LSH, CONTAINMENT) & ~method.startswith(BLOCK))
    listed = candidates.where(by_vectors).select(LEFT_ID, RIGHT_ID)
    facts = text_facts(truth, listed, components, searched, limits)
    entries = with_facts(with_facts(truth_entries(truth, stored, rule, floor), facts, "other"), facts, "query")
    border = ~F.array_contains("query_visited", F.col("other_home")) & ~F.array_contains("other_visited", F.col("query_home"))
    cause = (
        F.when(F.col("found"), F.lit(None))
        .when(F.col("query_home").isNull() | F.col("other_home").isNull(), F.lit("routing"))
        .when(F.col("query_cut") | F.col("other_cut"), F.lit("cap"))
        .when(border, F.lit("border"))
        .otherwise(F.lit("graph"))
    )
    judged = entries.withColumn("cause", cause).withColumn("joined", F.col("query_cluster_id") == F.col("other_cluster_id"))
    found, holds = F.col("found"), F.col("rule")
    figures: dict[str, Column] = {}
    for i, at in enumerate(thresholds):
        counts = F.col("cosine") >= at
        figures |= {f"true_{i}": counts, f"found_{i}": counts & found}
    figures |= {"rule_true": holds, "rule_found": holds & found, "rule_joined": holds & F.col("joined")}
    figures |= {name: F.col("cause") == name for name in CAUSES}
    figures |= {"by_keys": F.col("by_keys"), "beside_keys": ~F.col("by_keys")}
    by_query = judged.groupBy("query_id").agg(*[F.count(F.when(column, 1)).alias(name) for name, column in figures.items()])
    rows = np.array([tuple(row) for row in by_query.drop("query_id").collect()], dtype=np.int64).reshape(-1, len(figures))
    # Sums of floats depend on their order.
    ordered = rows[np.lexsort(rows.T)]
    return {name: ordered[:, i] for i, name in enumerate(figures)}


def truth_entries(truth: DataFrame, stored: DataFrame, rule: str, floor: float) -> DataFrame:
    """Entries of the true lists at or above the floor: query_id, other_id, cosine, whether `rule` holds, whether `found`, and `by_keys`.

    Args:
        truth: TRUTH.
        stored: Pairs that the search returned, left_id < right_id, and whether a blocking key brought them together, `by_keys`. A pair
            that stands there twice counts once.
        rule: `merge.rule`.
        floor: Least cosine.
    """
    pairs = truth.where(F.col("other_id").isNotNull() & (F.col("cosine") >= floor))
    # The rule may name any column of a scored pair.
    ordered = pairs.withColumns(
        {LEFT_ID: F.least("query_id", "other_id"), RIGHT_ID: F.greatest("query_id", "other_id"), "methods": F.array(F.lit("exact"))}
    )
    ruled = ordered.select("query_id", "other_id", LEFT_ID, RIGHT_ID, "cosine", holds(rule).alias("rule"))
    joined = ruled.join(stored.withColumn("found", F.lit(True)), [LEFT_ID, RIGHT_ID], how="left")
    known = [F.coalesce(F.bool_or(name), F.lit(False)).alias(name) for name in ("found", "by_keys")]
    return joined.groupBy("query_id", "other_id", "cosine", "rule").agg(*known)


def text_facts(truth: DataFrame, stored: DataFrame, components: DataFrame, searched: DataFrame, limits: Limits) -> DataFrame:
    """What became of each text that stands in a true list, and what limited its search.

    A list that was cut is told by what was kept: a text with as many pairs as a list may hold. (The other text's list is not in
    the truth unless that text was sampled too, so counting true neighbours would judge the two ends of a pair differently.)

    Args:
        truth: TRUTH.
        stored: Pairs that the search by vectors returned, each once.
        components: COMPONENTS.
        searched: VECTORS that took part in the search.
        limits: What the engine may have cut.

    Returns:
        rep_id, `cluster_id`, `home` int and `visited` array of int: parts of the index, null for a text that took no part; `cut`:
        whether the list was full, or the text is one of too many with its vector.
    """
    searched = VECTORS.conform(searched)
    ends = truth.where(F.col("other_id").isNotNull()).select(F.explode(F.array("query_id", "other_id")).alias(REP_ID)).distinct()
    taking_part = searched.join(ends, REP_ID, how="left_semi")
    placed = taking_part.select(REP_ID, "head_id", "vector").mapInArrow(placing(limits.reach), PLACED)
    cut = F.lit(False)
    if limits.copies is not None:
        # `kernels.expand`: of more texts than that only the first is paired with texts of other vectors.
        crowds = searched.groupBy("head_id").count().where(F.col("count") > limits.copies)
        placed = placed.join(crowds.select("head_id", F.lit(True).alias("crowded")), "head_id", how="left")
        cut = cut | (F.coalesce("crowded", F.lit(False)) & (F.col("head_id") != F.col(REP_ID)))
    if limits.neighbours is not None:
        lists = stored.select(F.explode(F.array(LEFT_ID, RIGHT_ID)).alias(REP_ID)).groupBy(REP_ID).count()
        full = lists.where(F.col("count") >= limits.neighbours).select(REP_ID, F.lit(True).alias("full"))
        placed = placed.join(full, REP_ID, how="left")
        cut = cut | F.coalesce("full", F.lit(False))
    return components.select(REP_ID, "cluster_id").join(placed.select(REP_ID, "home", "visited", cut.alias("cut")), REP_ID, how="left")


PLACED = f"`{REP_ID}` bigint, `head_id` bigint, `home` int, `visited` array<int>"


def placing(reach: Reach | None) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function that places a stream of (rep_id, head_id, vector); without `reach` there is one part, which all visit."""

    def place(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            n = batch.num_rows
            home, visits = np.zeros(n, dtype=np.int32), np.ones((n, 1), dtype=np.bool_)
            if reach is not None and n:
                home, visits = reach(from_binary(batch.column("vector")))
            offsets = np.concatenate([[0], np.cumsum(visits.sum(axis=1))]).astype(np.int32)
            visited = pa.ListArray.from_arrays(pa.array(offsets), pa.array(np.nonzero(visits)[1].astype(np.int32)))
            columns = [batch.column(REP_ID), batch.column("head_id"), pa.array(home, pa.int32()), visited]
            yield pa.RecordBatch.from_arrays(columns, names=[REP_ID, "head_id", "home", "visited"])

    return place


def with_facts(entries: DataFrame, facts: DataFrame, end: str) -> DataFrame:
    """Put the facts of one end beside each entry, their names behind that of the end."""
    named = facts.select(F.col(REP_ID).alias(f"{end}_id"), *[F.col(name).alias(f"{end}_{name}") for name in facts.columns[1:]])
    return entries.join(named, f"{end}_id", how="left")


def quoted(rows: Iterable[RecallRow]) -> RecallRow:
    """The one figure that stands beside every figure about pairs: pair recall at `QUOTED`, or at the floor where that is higher.

    Args:
        rows: What `recall_rows` gave, of one setting.
    """
    found = sorted((row for row in rows if row.metric == "pair_recall"), key=lambda row: row.floor)
    return next((row for row in found if row.floor >= QUOTED), found[-1])


def quote(rows: Iterable[RecallRow]) -> str:
    """`quoted` in words."""
    row = quoted(rows)
    return f"pair recall >= {row.floor:.2f}: {told(row.value, row.low, row.high, row.n, row.texts, row.unseen)}"


def verdict(rows: Iterable[RecallRow], target: float) -> str:
    """Whether a target of recall was met, as far as the interval of the quoted figure tells.

    Args:
        rows: As in `quoted`.
        target: `recall.target`.
    """
    row = quoted(rows)
    if row.low is None or row.high is None:
        judged = "not settled, as the sample holds no such pair"
    elif row.low >= target:
        judged = "met"
    elif row.high < target:
        judged = "missed"
    else:
        judged = "not settled, as the interval reaches to both sides of it; a larger sample may tell (recall.sample, recall.share)"
    return f"at cosine >= {row.floor:.2f}: {judged}"
