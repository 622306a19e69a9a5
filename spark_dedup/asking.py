"""Texts that ask and pairs that are found, as rows between Spark and the kernels of every search engine."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyspark.sql import functions as F

from spark_dedup.config import SearchConfig
from spark_dedup.grouped import group_runs
from spark_dedup.kernels.expand import Asked, Batch, Found
from spark_dedup.kernels.features import NUMBERS, FeatureBlock, decode
from spark_dedup.kernels.vectors import from_binary
from spark_dedup.schema import LEFT_ID, REP_ID, RIGHT_ID, SCORED_PAIRS, VECTORS, pa_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Observation

SCORES = ("cosine", "jaccard", "containment", "substitution")
WORDS = ("least_words", "most_words")
EVENTS = ("copies_not_paired", "asked_again", "saturated")
FOUND = ", ".join(
    [
        f"`{LEFT_ID}` bigint, `{RIGHT_ID}` bigint",
        *(f"`{s}` double" for s in SCORES),
        *(f"`{n}` int" for n in ("numbers", *WORDS)),
        *(f"`{e}` bigint" for e in EVENTS),
    ]
)
"""Pairs as workers give them; rows without ids carry the events that belong to no pair."""


ASKING = f"{VECTORS.ddl()}, `copies` bigint"
"""Texts that ask. Copies: the texts that have the same vector where they are more than `max_copies`, else 1."""

SLICE_ROWS = 4096
"""Texts that a worker asks for at once, whatever the size of Arrow batches."""


def with_copies(queries: DataFrame, base: DataFrame, config: SearchConfig) -> DataFrame:
    """ASKING rows of the texts that ask.

    Args:
        queries: VECTORS rows that ask.
        base: VECTORS, everything that was indexed.
        config: Uses `max_copies`.
    """
    # Sizes above the cap only: at most one row for every `max_copies` texts.
    sizes = VECTORS.conform(base).groupBy("head_id").agg(F.count("*").alias("copies")).where(F.col("copies") > config.max_copies)
    joined = VECTORS.conform(queries).join(F.broadcast(sizes), ["head_id"], how="left")
    return joined.select(*VECTORS.names, F.coalesce("copies", F.lit(1).cast("bigint")).alias("copies"))


@dataclass(frozen=True)
class Texts:
    """Texts that ask: the batch, its distinct vectors, and the features of every text."""

    batch: Batch
    vectors: NDArray[np.float32]
    features: FeatureBlock


def slices(batch: pa.RecordBatch, config: SearchConfig) -> Iterator[Texts]:
    """Cut an ASKING batch into slices of bounded size."""
    for start in range(0, batch.num_rows, SLICE_ROWS):
        part = batch.slice(start, SLICE_ROWS)
        rep, head, copies = (part.column(name).to_numpy() for name in (REP_ID, "head_id", "copies"))
        texts, first = Batch.of(rep, head, copies, config.max_copies)
        yield Texts(texts, from_binary(part.column("vector").take(pa.array(first))), decode(part.column("features")))


def found_rows(found: Found) -> pa.RecordBatch:
    """FOUND rows of scored pairs."""
    s = found.scores
    columns = [found.left, found.right, found.cosine, s.jaccard, s.containment, s.substitution, s.numbers.astype(np.int32)]
    columns += [s.least_words, s.most_words]
    none = pa.nulls(len(found.left), pa.int64())
    return pa.RecordBatch.from_arrays([*map(pa.array, columns), pa.array(found.left_out), none, none], schema=pa_schema(FOUND))


def asked_rows(asked: Asked) -> Iterator[pa.RecordBatch]:
    """FOUND rows of what a batch found in a shard: the pairs, then the events where there were any."""
    yield from map(found_rows, asked.pairs)
    if asked.asked_again or asked.saturated:
        yield pa.RecordBatch.from_pylist([{"asked_again": asked.asked_again, "saturated": asked.saturated}], schema=pa_schema(FOUND))


def named_pairs(found: DataFrame, method: str, noted: Observation | None, events: tuple[str, ...] = EVENTS) -> DataFrame:
    """Pairs that came once, as a table; events go to `noted`.

    Args:
        found: FOUND rows, perhaps with further events; each unordered pair once.
        method: Engine that found them.
        noted: Receives the sums of the events and the number of pairs.
        events: Columns that are summed.

    Returns:
        SCORED_PAIRS.
    """
    if noted is not None:
        sums = [F.coalesce(F.sum(name), F.lit(0)).alias(name) for name in events]
        found = found.observe(noted, F.count(LEFT_ID).alias("pairs"), *sums)
    words = F.array(*[F.lit(name) for name in NUMBERS])
    told = {"methods": F.array(F.lit(method)), "numbers": F.get(words, F.col("numbers"))}
    named = found.where(F.col(LEFT_ID).isNotNull()).withColumns(told)
    return SCORED_PAIRS.conform(named)


def distinct_pairs(found: DataFrame, method: str, noted: Observation | None) -> DataFrame:
    """Each unordered pair once, with the higher scores should two findings differ; events go to `noted`.

    Args:
        found: FOUND rows; a pair may come more than once.
        method: Engine that found them.
        noted: Receives the sums of the events and the number of pairs.

    Returns:
        SCORED_PAIRS.
    """
    # Numbers stay codes until here: a string among the aggregates would make Spark sort instead of hash.
    best = [F.max(name).alias(name) for name in (*SCORES, "numbers", *WORDS, "copies_not_paired")]
    pairs = found.groupBy(LEFT_ID, RIGHT_ID).agg(*best, *[F.sum(name).alias(name) for name in ("asked_again", "saturated")])
    return named_pairs(pairs, method, noted)


@dataclass(frozen=True)
class Tile:
    """Pairs that one task scores, with their texts.

    Attributes:
        pairs: With `left_id` and `right_id`, in their order.
        texts: With `rep_id`, in its order: every text of the pairs once.
        left: int64 (p,): row of each pair's left text.
        right: int64 (p,): row of its right text.
    """

    pairs: pa.Table
    texts: pa.Table
    left: NDArray[np.int64]
    right: NDArray[np.int64]

    @classmethod
    def of(cls, pairs: pa.Table, texts: pa.Table) -> Tile:
        """From pairs and texts in any order."""
        pairs, texts = pairs.sort_by([(LEFT_ID, "ascending"), (RIGHT_ID, "ascending")]), texts.sort_by(REP_ID)
        ids = texts[REP_ID].to_numpy()
        left, right = (np.searchsorted(ids, pairs[name].to_numpy()) for name in (LEFT_ID, RIGHT_ID))
        return cls(pairs, texts, left, right)


def in_tiles(pairs: DataFrame, texts_of: Callable[[DataFrame], DataFrame], tiles: int) -> DataFrame:
    """Bring pairs and what is known of their texts together, for `tiles_of` in `mapInArrow`.

    A tile holds pairs with equal hashes of `left_id` and is the work of a task; each text comes into a tile once, however many of
    its pairs need it.

    Args:
        pairs: With `left_id` and `right_id`.
        texts_of: Joins further columns to rows of `tile` and `rep_id`.
        tiles: At least 1.
    """
    tiled = pairs.withColumn("tile", F.pmod(F.xxhash64(LEFT_ID), F.lit(tiles)).cast("int"))
    needed = tiled.select("tile", F.explode(F.array(LEFT_ID, RIGHT_ID)).alias(REP_ID)).distinct()
    together = tiled.unionByName(texts_of(needed), allowMissingColumns=True)
    return together.repartition(tiles, "tile").sortWithinPartitions("tile")


def tiles_of(batches: Iterable[pa.RecordBatch]) -> Iterator[Tile]:
    """The tiles in a stream of rows of `in_tiles`."""
    for _, runs in group_runs(batches, "tile"):
        rows = pa.Table.from_batches(list(runs))
        yield Tile.of(rows.filter(pc.is_valid(rows[LEFT_ID])), rows.filter(pc.is_valid(rows[REP_ID])))


def set_threads() -> None:
    """Let FAISS use the threads that Spark gives a worker, as many as a task has cores; NumPy's products do so by themselves."""
    import faiss

    faiss.omp_set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
