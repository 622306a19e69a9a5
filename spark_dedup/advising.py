"""`spark-dedup plan --advise`: which question fits a corpus, from all pairs of a random sample by meaning and by shared words."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spark_dedup.asking import Tile
from spark_dedup.config import DedupConfig
from spark_dedup.errors import SourceError
from spark_dedup.evaluation.plan import PairCount, count_pairs
from spark_dedup.kernels.minhash import alike_between, shingle_sets
from spark_dedup.kernels.products import near_within
from spark_dedup.kernels.vectors import from_binary, to_binary
from spark_dedup.planning import SAMPLE_TEXTS, count, sampled_rows
from spark_dedup.progress import Progress
from spark_dedup.report.summary import PairView
from spark_dedup.schema import LEFT_ID, LSH, REP_ID, RIGHT_ID, SCORED_PAIRS
from spark_dedup.session import get_session, probe, require_delta
from spark_dedup.source import open_source
from spark_dedup.stages.score import Floors, holds, scored

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MOST_PAIRS = 200_000
"""Pairs that are scored and judged; beyond, half a sample tells as much."""

ENOUGH_EDGES = 20
"""Pairs on which the merge rule holds, without which a sample does not speak for or against a question."""

WORTH = 0.01
"""Share of these pairs that a question must add to be worth asking."""

ENCODE_SECONDS = 30.0
"""Seconds for which every task encodes sampled texts, at most."""

EXAMPLES = 3

GROUPS = ("both", "meaning", "words")
"""What finds a pair: both questions, only that of vectors, only that of shared words."""

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Group:
    """Pairs of the sample that are found in one way.

    Attributes:
        name: One of `GROUPS`.
        pairs: Seen, and estimated for the whole table.
        edges: Of these, those on which the merge rule holds.
        examples: Some of them, those on which the rule holds first.
    """

    name: str
    pairs: PairCount
    edges: PairCount
    examples: tuple[PairView, ...]


@dataclass(frozen=True)
class Advice:
    """Which question fits.

    Attributes:
        texts: In the sample.
        total: Distinct texts of the table, perhaps an estimate.
        floor: Least cosine of a pair by meaning.
        threshold: Least Jaccard of a pair by shared words.
        groups: One for each of `GROUPS`.
        setting: What to set; None where the sample does not say.
        reason: Why.
        seconds: What it took to find out.
    """

    texts: int
    total: int
    floor: float
    threshold: float
    groups: tuple[Group, ...]
    setting: str | None
    reason: str
    seconds: float


@dataclass(frozen=True)
class Texts:
    """The sample, in random order.

    Attributes:
        text: n texts.
        vectors: float32 (n, d), unit rows.
        features: n blobs.
    """

    text: list[str]
    vectors: NDArray[np.float32]
    features: list[bytes]

    def half(self) -> Texts:
        """The first half of them."""
        n = len(self.text) // 2
        return Texts(self.text[:n], self.vectors[:n], self.features[:n])


@dataclass(frozen=True)
class Pairs:
    """Pairs of sampled texts that either question finds.

    Attributes:
        left: int64 (p,).
        right: int64 (p,), larger than `left`.
        way: int8 (p,): position in `GROUPS`.
    """

    left: Ints
    right: Ints
    way: NDArray[np.int8]


def advise(config: DedupConfig, spark: SparkSession | None = None, *, progress: Progress | None = None) -> Advice:
    """Find out which question fits the corpus, without writing into its store.

    Args:
        config: Uses `search.floor`, the settings of `minhash` whether enabled or not, the merge rule, and what decides the vectors.
        spark: As in `run`.
        progress: As in `run`.

    Raises:
        SourceError: A source that can not be read, or that has no text.
    """
    begun = time.monotonic()
    spark, progress = get_session(spark), progress or Progress(mode="quiet")
    progress.watch(spark)
    caps = probe(spark)
    require_delta(caps)
    source = open_source(spark, config)
    with progress.stage("counting") as shown:
        corpus = count(source, config)
        shown.rows_out = corpus.rows
    if not corpus.texts:
        raise SourceError(f"the source {config.source.table} has no text in {corpus.rows:,} rows: there is nothing to advise on")
    with progress.stage("sample", unit="texts") as shown:
        rows = sampled_rows(spark, source, config, corpus, SAMPLE_TEXTS, caps, kept=SAMPLE_TEXTS, seconds=ENCODE_SECONDS)
        sample = shuffled(rows)
        shown.rows_out = len(sample.text)
    with progress.stage("comparing", unit="pairs") as shown:
        while (pairs := compared(sample, config)) is None:
            sample = sample.half()
        shown.rows_out = len(pairs.left)
        scores, holds = judged(spark, pairs, sample, config)
    total = max(corpus.texts, len(sample.text))
    groups = tuple(group(i, pairs, scores, holds, sample, total) for i in range(len(GROUPS)))
    setting, reason = recommended({g.name: g.edges.seen for g in groups})
    return Advice(
        texts=len(sample.text),
        total=total,
        floor=config.search.floor,
        threshold=config.minhash.threshold,
        groups=groups,
        setting=setting,
        reason=reason,
        seconds=time.monotonic() - begun,
    )


def shuffled(rows: list[Any]) -> Texts:
    """Rows of SAMPLED that have a vector, in random order."""
    usable = [row for row in rows if row["vector"] is not None]
    usable = [usable[i] for i in np.random.default_rng(0).permutation(len(usable))]
    vectors = from_binary(pa.array([bytes(row["vector"]) for row in usable], pa.large_binary())) if usable else np.zeros((0, 1), np.float32)
    return Texts([row["text"] for row in usable], vectors, [bytes(row["blob"]) for row in usable])


def compared(sample: Texts, config: DedupConfig) -> Pairs | None:
    """All pairs of a sample that either question finds; None where they are more than `MOST_PAIRS`."""
    n, near, pairs = len(sample.text), [np.zeros(0, np.int64)], 0
    for found in near_within(sample.vectors, config.search.floor):
        near.append(found.left * n + found.right)
        pairs += len(found.left)
        if pairs > MOST_PAIRS:
            return None
    form = {"lowercase": config.exact.lowercase, "strip_punctuation": config.exact.strip_punctuation}
    sets = shingle_sets(pa.array(sample.text, pa.string()), config.minhash.unit, config.minhash.ngram, **form)
    left, right, _ = alike_between(sets, sets, config.minhash.threshold)
    codes = np.concatenate(near), (left * n + right)[left < right]
    by_both = np.union1d(*codes)
    if len(by_both) > MOST_PAIRS:
        return None
    meaning, words = (np.isin(by_both, part) for part in codes)
    return Pairs(by_both // max(1, n), by_both % max(1, n), np.where(meaning & words, 0, np.where(meaning, 1, 2)).astype(np.int8))


def judged(spark: SparkSession, pairs: Pairs, sample: Texts, config: DedupConfig) -> tuple[pa.Table, NDArray[np.bool_]]:
    """SCORED_PAIRS of the sample in the order of `pairs`, with positions for ids, and whether the merge rule holds: bool (p,)."""
    if not len(pairs.left):
        return SCORED_PAIRS.arrow().empty_table(), np.zeros(0, dtype=np.bool_)
    methods = pa.array([[LSH]] * len(pairs.left), pa.list_(pa.string()))
    proposed = pa.table({LEFT_ID: pairs.left, RIGHT_ID: pairs.right, "methods": methods})
    n = len(sample.text)
    texts = {REP_ID: np.arange(n), "vector": to_binary(sample.vectors), "features": pa.array(sample.features, pa.binary())}
    scores = pa.Table.from_batches(scored(Tile.of(proposed, pa.table(texts)), Floors(jaccard=0.0)))
    rows = spark.createDataFrame([tuple(row.values()) for row in scores.to_pylist()], SCORED_PAIRS.ddl())
    verdicts = rows.select(LEFT_ID, RIGHT_ID, holds(config.merge.condition)).collect()
    held = {(row[0], row[1]) for row in verdicts if row[2]}
    return scores, np.array([pair in held for pair in zip(pairs.left.tolist(), pairs.right.tolist(), strict=True)])


def group(way: int, pairs: Pairs, scores: pa.Table, holds: NDArray[np.bool_], sample: Texts, total: int) -> Group:
    """The pairs of one of `GROUPS`."""
    own = pairs.way == way

    def counted(some: NDArray[np.bool_]) -> PairCount:
        ends = np.concatenate([pairs.left[some], pairs.right[some]])
        return count_pairs(np.bincount(ends, minlength=len(sample.text)), total)

    first = np.flatnonzero(own)
    first = first[np.argsort(~holds[first], kind="stable")][:EXAMPLES]
    return Group(
        GROUPS[way], counted(own), counted(own & holds), tuple(example(scores.slice(i, 1).to_pylist()[0], holds[i], sample) for i in first)
    )


def example(scores: dict[str, Any], holds: bool, sample: Texts) -> PairView:
    """A pair with its texts."""
    left, right = scores[LEFT_ID], scores[RIGHT_ID]
    names = ("cosine", "jaccard", "containment", "substitution", "numbers")
    return PairView(
        left_record="one text",
        right_record="the other",
        left_text=sample.text[left],
        right_text=sample.text[right],
        is_edge=bool(holds),
        **{name: scores[name] for name in names},
    )


def recommended(edges: dict[str, int]) -> tuple[str | None, str]:
    """What to set, and why.

    Args:
        edges: Pairs of the sample on which the merge rule holds, by the name of their group.
    """
    total, added = sum(edges.values()), edges["words"]
    if total < ENOUGH_EDGES:
        return None, f"the sample holds {total} pairs on which the merge rule holds: too few to choose by"
    of = f"of {total:,} pairs on which the merge rule holds"
    if added >= WORTH * total:
        return "minhash.enabled: true", f"{added:,} {of} are found by shared words alone, {edges['meaning']:,} by vectors alone"
    return "minhash.enabled: false", f"vectors find all but {added:,} {of}"
