"""VECTORS -> TRUTH: the true neighbours of a random sample of texts, from products with all vectors there are."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql import functions as F

from spark_dedup.kernels.features import NUMBERS, FeatureBlock, PairScores, decode, pair_scores
from spark_dedup.kernels.hnsw import Ints
from spark_dedup.kernels.products import BLOCK_COLUMNS, BLOCK_ROWS, near_between, proposed_between
from spark_dedup.kernels.vectors import from_binary
from spark_dedup.schema import REP_ID, TRUTH, VECTORS, pa_schema
from spark_dedup.settings import fingerprint

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

TRUTH_VERSION = 1
"""Changes whenever the same vectors, floor and sample would give other rows."""

BLOCK_BYTES = 64 << 20
"""Vectors and features of the sample that a worker holds at once; a larger sample is several passes over the base."""

CONNECT_BYTES = 64 << 20
"""Largest sample on Spark Connect, where it travels inside the plan, and a server takes 128 MiB by default."""

LEAST_TRUTH = 1 / 3
"""Of the measurement's share of the run."""

READ_BYTES_PER_SECOND = 100e6
"""What one core reads and hands to Python: 590 MB of vectors and features in 2.7 s on two cores."""

ENTRY_SECONDS = 3e-5
"""Time of one task for an entry of a true list: to recompute its cosine, score and store it, and to look it up when recall is measured."""

MEASURE_SECONDS = 0.15

FOUND = ", ".join(f"`{c.name}` {c.type}" for c in TRUTH.columns if c.name != "fingerprint")


def sample_rows(vectors: DataFrame, wanted: int, total: int, seed: int = 0) -> DataFrame:
    """A simple random sample without replacement: the texts whose hashed ids are least.

    The ids and the seed alone decide it; ties of the hash go by id.

    Args:
        vectors: VECTORS.
        wanted: Texts wanted, at least 1.
        total: Number of rows of `vectors`.
        seed: Which sample.

    Returns:
        VECTORS: min(wanted, total) rows.
    """
    return VECTORS.conform(drawn(vectors, wanted, total, seed))


def drawn(texts: DataFrame, wanted: int, total: int, seed: int) -> DataFrame:
    """Rows of `wanted` of the `total` texts with a `rep_id`, each once; see `sample_rows`."""
    if wanted >= total:
        return texts
    key = F.xxhash64(F.lit(seed), REP_ID)  # not the hash that chooses the training sample of the cells
    # More than 10 standard deviations above what is needed, so that only about `wanted` ids are sorted, not all.
    share = (wanted + 10 * wanted**0.5 + 100) / total
    few = texts.select(REP_ID, key.alias("key")).where(hash_drawn(F.col("key"), share))
    chosen = few.orderBy("key", REP_ID).limit(wanted).select(REP_ID)
    return texts.join(F.broadcast(chosen), REP_ID, how="left_semi")


def hash_drawn(key: Column, share: float) -> Column:
    """Whether a 64-bit hash is among the least ones, which hold about this share, in [0, 1] or above, of all hashes."""
    return key <= min(int((share - 0.5) * 2.0**64), 2**63 - 1)


def truth_fingerprint(vectors: str, floor: float, rows: int, seed: int) -> str:
    """What a truth was made for: it must not be used for anything else.

    Args:
        vectors: Fingerprint of everything that decides VECTORS.
        floor: Least cosine.
        rows: Rows in the sample.
        seed: As in `sample_rows`.
    """
    return fingerprint("truth", TRUTH_VERSION, vectors, floor, rows, seed)


def is_truth_of(truth: DataFrame, wanted: str, rows: int) -> bool:
    """Whether a stored truth is the whole of the one wanted. Runs one small job.

    Args:
        truth: TRUTH.
        wanted: From `truth_fingerprint`.
        rows: Rows in the sample.
    """
    marks = truth.where(F.col("other_id").isNull() & (F.col("fingerprint") == wanted)).count()
    return marks == rows and truth.where(F.col("fingerprint") != wanted).limit(1).count() == 0


def true_pairs(sample: DataFrame, base: DataFrame, floor: float, made_for: str, *, partitions: int | None = None) -> DataFrame:
    """All texts of the base at or above the floor, for every text of the sample.

    The sample passes through the driver, block by block, and each block is one pass over the base in which every task holds it. Spark
    brings such a block to each executor once, as it does with any large closure, on Connect inside the plan; the base, which is
    far larger, is never shuffled and nothing is as large as sample times base. Files mapped into memory, as the index has them,
    would save a copy per worker and do not exist on Connect; a block is small enough to do without.

    Args:
        sample: VECTORS from `sample_rows`. Read here, in jobs of its own.
        base: VECTORS, everything that could be a neighbour, `sample` included.
        floor: Least cosine, in (0, 1]. Decided by the cosine of `kernels.vectors.cosines`, as in the search.
        made_for: From `truth_fingerprint`.
        partitions: Spread the base over this many tasks first; None leaves it as it lies.

    Returns:
        TRUTH: each text of the sample once without a neighbour, and each pair of it with another text. Texts of equal vectors
        are true neighbours of each other. The same rows for any partitions, block and batch sizes.
    """
    base = VECTORS.conform(base).select(REP_ID, "vector", "features")
    if partitions is not None:
        base = base.repartition(partitions, REP_ID)
    nothing = [F.lit(None).cast(c.type).alias(c.name) for c in TRUTH.columns[1:-1]]
    rows = VECTORS.conform(sample).select(F.col(REP_ID).alias("query_id"), *nothing)
    for block in sample_blocks(sample):
        rows = rows.unionByName(base.mapInArrow(neighbours_of(block, floor), FOUND))
    return TRUTH.conform(rows.withColumn("fingerprint", F.lit(made_for)))


def neighbours_of(block: Block, floor: float) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function that finds the neighbours of one block in a stream of the base."""

    def find(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        schema, words = pa_schema(FOUND), pa.array(NUMBERS)
        for batch in batches:
            if batch.num_rows:
                ids, vectors = batch.column(REP_ID).to_numpy(), from_binary(batch.column("vector"))
                for query, other, cosine, s in block.neighbours(ids, vectors, decode(batch.column("features")), floor):
                    columns = [query, other, cosine, s.jaccard, s.containment, s.substitution]
                    numbers = words.take(pa.array(s.numbers))
                    words_of = map(pa.array, (s.least_words, s.most_words))
                    yield pa.RecordBatch.from_arrays([*map(pa.array, columns), numbers, *words_of], schema=schema)

    return find


@dataclass(frozen=True)
class Block:
    """Part of the sample.

    Attributes:
        rep_ids: int64 (n,).
        vectors: float32 (n, d), unit rows.
        features: Features of the n texts.
    """

    rep_ids: Ints
    vectors: NDArray[np.float32]
    features: FeatureBlock

    def neighbours(
        self, ids: Ints, vectors: NDArray[np.float32], features: FeatureBlock, floor: float
    ) -> Iterator[tuple[Ints, Ints, NDArray[np.float64], PairScores]]:
        """Pairs of a text of this block and another text at or above the floor, scored.

        Args:
            ids: int64 (m,), rep_ids.
            vectors: float32 (m, d), unit rows.
            features: Features of the m texts.
            floor: Least cosine.

        Yields:
            rep_id of the text of the block, rep_id of the other, their cosine, their other scores.
        """
        for near in near_between(self.vectors, vectors, floor):
            different = self.rep_ids[near.left] != ids[near.right]
            if different.any():
                row, column = near.left[different], near.right[different]
                yield self.rep_ids[row], ids[column], near.cosine[different], pair_scores(self.features, row, features, column)


def sample_blocks(sample: DataFrame) -> Iterator[Block]:
    """Read a sample of VECTORS into blocks."""
    for rows in row_blocks(sample.select(REP_ID, "vector", "features")):
        ids, vectors, features = zip(*rows, strict=True)
        yield Block(np.array(ids, dtype=np.int64), from_binary(pa.array(vectors, pa.large_binary())), decode(features))


def row_blocks(rows: DataFrame) -> Iterator[list[tuple[Any, ...]]]:
    """Read rows into blocks of at most about `BLOCK_BYTES`; a partition at a time passes the driver's limits on results.

    Args:
        rows: An id, and columns of type binary.
    """
    block: list[tuple[Any, ...]] = []
    size = 0
    for row in rows.toLocalIterator(prefetchPartitions=True):
        block.append((row[0], *(None if blob is None else bytes(blob) for blob in row[1:])))
        size += sum(len(blob or b"") for blob in block[-1][1:])
        if size >= BLOCK_BYTES:
            yield block
            block, size = [], 0
    if block:
        yield block


def product_rate(spark: SparkSession, dimension: int, tasks: int) -> float:
    """FLOP/s that all tasks reach together in blocks of products, measured in one small job of less than half a second.

    Args:
        spark: Session.
        dimension: Of the vectors, at least 1.
        tasks: Tasks that run at once.
    """

    def measure(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            pass
        yield pa.RecordBatch.from_arrays([pa.array([tile_rate(dimension)])], names=["rate"])

    found = spark.range(0, tasks, 1, tasks).mapInArrow(measure, "rate double").agg(F.sum("rate")).first()
    return float(found[0]) if found else 0.0


def tile_rate(dimension: int) -> float:
    """FLOP/s of this process in blocks of products with a threshold that nothing reaches, after one block to warm up."""
    a, b = (np.full((n, dimension), 0.5 / dimension**0.5, dtype=np.float32) for n in (BLOCK_ROWS, BLOCK_COLUMNS))
    list(proposed_between(a, b, 2.0))
    begun, done = time.perf_counter(), 0
    while (passed := time.perf_counter() - begun) < MEASURE_SECONDS or not done:
        list(proposed_between(a, b, 2.0))
        done += 1
    return done * 2.0 * len(a) * len(b) * dimension / passed


def truth_cost(total: float, *, dimension: int, row_bytes: float, neighbours: float, rate: float, tasks: int) -> tuple[float, float]:
    """Seconds to find the true neighbours of a sample: of one pass over the base, and of each text.

    A text costs a product with every row of the base, 2 * total * dimension operations, and what its neighbours take; each block
    costs one pass over the base.

    Args:
        total: Rows of the base.
        dimension: Of the vectors.
        row_bytes: Vector and features of a text on average.
        neighbours: True neighbours of a text on average, or what is known of them: twice the pairs found, over the texts.
        rate: From `product_rate`.
        tasks: Tasks that run at once.
    """
    one_pass = total * row_bytes / (READ_BYTES_PER_SECOND * tasks)
    return one_pass, 2.0 * total * dimension / rate + one_pass * row_bytes / BLOCK_BYTES + neighbours * ENTRY_SECONDS / tasks


def truth_seconds(share: float, others: float, figures: float) -> float:
    """Seconds that finding true neighbours may take, so that all of the measurement costs no more than its share of the run.

    Args:
        share: `recall.share`.
        others: What the other stages took.
        figures: What the measurement takes beside the truth. Where that would leave little, as in small runs, which are hardly more than
            overhead, the truth gets `LEAST_TRUTH` of the share all the same: a figure that costs a little more is better than none.
    """
    return max(LEAST_TRUTH * share * others, share * others - figures)


def budgeted_sample(
    wanted: int,
    total: int,
    cost: tuple[float, float],
    seconds: float,
    most: float = float("inf"),
) -> int:
    """Texts whose true neighbours can be found without costing more than a share of the run.

    Args:
        wanted: `recall.sample`, at least 1.
        total: Rows of the base.
        cost: From `truth_cost`.
        seconds: What measuring may cost.
        most: Texts that can be brought to the base.

    Returns:
        In [0, min(wanted, total)]; 0 where not even one pass over the base can be paid.
    """
    one_pass, per_text = cost
    affordable = (seconds - one_pass) / per_text if per_text else float(wanted)
    return max(0, int(min(wanted, total, affordable, most)))
