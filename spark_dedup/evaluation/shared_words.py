"""SKETCHES x CANDIDATE_PAIRS -> RECALL: what was found of the pairs that share their words, on a random sample of texts.

The truth are all pairs of a sampled text and another one whose shingle sets are alike, found by comparing sets and not by buckets.
As in `recall`, texts are sampled and not pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql import functions as F

from spark_dedup.config import MinHashConfig
from spark_dedup.evaluation.recall import RecallRow
from spark_dedup.evaluation.truth import drawn, row_blocks
from spark_dedup.kernels.metrics import ratio, told
from spark_dedup.kernels.minhash import Ints, ShingleSets, alike_between, bands_for, s_curve, shingle_column, stored_sets
from spark_dedup.schema import LEFT_ID, LSH, REP_ID, RIGHT_ID, SKETCHES, pa_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SAMPLE_TEXTS = 10_000
"""Most texts of a sample: each costs a look at all texts that share one of its first shingles, common phrases among them."""

PAIRS = "`query_id` bigint, `other_id` bigint, `jaccard` double, `design` double"


def sketch_sample(sketches: DataFrame, wanted: int, total: int, seed: int = 0) -> DataFrame:
    """A simple random sample without replacement, drawn as `truth.sample_rows` draws.

    Args:
        sketches: SKETCHES.
        wanted: Texts wanted, at least 1; more than `SAMPLE_TEXTS` are never drawn.
        total: Number of rows of `sketches`.
        seed: Which sample.

    Returns:
        SKETCHES: `sketch_rows(wanted, total)` rows.
    """
    return SKETCHES.conform(drawn(sketches, sketch_rows(wanted, total), total, seed))


def sketch_rows(wanted: int, total: int) -> int:
    """Texts in the sample."""
    return min(wanted, total, SAMPLE_TEXTS)


def alike_pairs(sample: DataFrame, base: DataFrame, config: MinHashConfig) -> DataFrame:
    """All texts of the base whose shingle sets are like that of a text of the sample.

    The sample passes through the driver in blocks, each one pass over the base.

    Args:
        sample: SKETCHES from `sketch_sample`. Read here, in jobs of its own.
        base: SKETCHES, everything that could be alike, `sample` included.
        config: Uses `unit`, `ngram`, `threshold`, `permutations` and `band_recall`.

    Returns:
        `query_id` of a sampled text, `other_id` of another text, `jaccard` at least `threshold`, and `design`, the chance of sharing a
        bucket at that Jaccard; each pair of two sampled texts twice.
    """
    shingles = shingle_column(config.unit, config.ngram)
    base, found = SKETCHES.conform(base).select(REP_ID, shingles), None
    for rows in row_blocks(sample.select(REP_ID, shingles)):
        ids, blobs = zip(*rows, strict=True)
        sets = stored_sets(pa.array(blobs, pa.large_binary()), config.unit, config.ngram)
        block = base.mapInArrow(alike_with(np.array(ids, dtype=np.int64), sets, shingles, config), PAIRS)
        found = block if found is None else found.unionByName(block)
    return base.sparkSession.createDataFrame([], PAIRS) if found is None else found


def alike_with(
    ids: Ints, sets: ShingleSets, shingles: str, config: MinHashConfig
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function that finds the texts of a stream whose sets are like one of these, themselves excluded."""
    bands, rows = bands_for(config.threshold, config.permutations, config.band_recall)

    def find(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if batch.num_rows:
                others = batch.column(REP_ID).to_numpy()
                left, right, jaccard = alike_between(sets, stored_sets(batch.column(shingles), config.unit, config.ngram), config.threshold)
                different = ids[left] != others[right]
                jaccard = jaccard[different]
                columns = [ids[left[different]], others[right[different]], jaccard, s_curve(jaccard, bands, rows)]
                yield pa.RecordBatch.from_arrays([pa.array(column) for column in columns], schema=pa_schema(PAIRS))

    return find


def shared_recall(
    pairs: DataFrame, candidates: DataFrame, threshold: float, *, rows: int, texts: int, run_id: str, seconds: float | None = None
) -> list[RecallRow]:
    """Measure what was found of the pairs that share their words. Runs one job; a row per sampled text with such a pair is collected.

    Args:
        pairs: From `alike_pairs`.
        candidates: CANDIDATE_PAIRS.
        threshold: `minhash.threshold`.
        rows: Texts in the sample.
        texts: Texts that the sample was drawn from.
        run_id: Run that is measured.
        seconds: Wall time of the search.

    Returns:
        RECALL rows at `threshold`, of the pairs that are alike: `shared_recall`, those found by any method; `shared_recall_bands`, those
        that their buckets brought together; `shared_recall_design`, those that buckets bring together on average, by the S-curve at
        each pair's own Jaccard; `loss_bands`, those not found by any method.
    """
    stored = candidates.select(LEFT_ID, RIGHT_ID, F.array_contains("methods", LSH).alias("by_bands"))
    ordered = pairs.withColumns({LEFT_ID: F.least("query_id", "other_id"), RIGHT_ID: F.greatest("query_id", "other_id")})
    # Decimals, because sums of floats depend on their order.
    figures = {
        "true": F.count("*"),
        "shared_recall": F.count("by_bands"),
        "shared_recall_bands": F.count(F.when(F.col("by_bands"), 1)),
        "shared_recall_design": F.sum(F.col("design").cast("decimal(18,15)")).cast("double"),
    }
    judged = ordered.join(stored, [LEFT_ID, RIGHT_ID], how="left")
    by_query = judged.groupBy("query_id").agg(*[figure.alias(name) for name, figure in figures.items()]).drop("query_id")
    lists = np.array([tuple(row) for row in by_query.collect()], dtype=np.float64).reshape(-1, len(figures))
    lists = lists[np.lexsort(lists.T)]
    true = lists[:, 0]

    def row(metric: str, part: NDArray[np.float64]) -> RecallRow:
        e = ratio(np.minimum(part, true), true, rows=rows, total=texts)  # a sum of chances may end a rounding above the count
        return RecallRow(run_id, "candidates", metric, "", threshold, e.value, e.low, e.high, rows, texts, e.pairs, e.unseen, seconds)

    out = [row(name, lists[:, i]) for i, name in enumerate(figures) if i]
    return [*out, row("loss_bands", true - lists[:, 1])]


def quote_shared(rows: Iterable[RecallRow]) -> str:
    """The figure about shared words, in the words that stand beside figures about pairs."""
    row = next(row for row in rows if row.metric == "shared_recall")
    return f"of pairs at Jaccard >= {row.floor:.2f}: {told(row.value, row.low, row.high, row.n, row.texts, row.unseen)}"
