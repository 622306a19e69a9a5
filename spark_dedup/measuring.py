"""VECTORS + CANDIDATE_PAIRS -> TRUTH -> RECALL: what the search of a run missed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from spark_dedup import schema
from spark_dedup.config import SearchConfig
from spark_dedup.engines import ENGINES
from spark_dedup.evaluation.recall import RecallRow, quote, recall_rows, verdict
from spark_dedup.evaluation.shared_words import alike_pairs, quote_shared, shared_recall, sketch_rows, sketch_sample
from spark_dedup.evaluation.truth import (
    CONNECT_BYTES,
    budgeted_sample,
    is_truth_of,
    product_rate,
    sample_rows,
    true_pairs,
    truth_cost,
    truth_fingerprint,
    truth_seconds,
)
from spark_dedup.job import Job, Outcome, Step
from spark_dedup.kernels.cells import Cells
from spark_dedup.manifest import RECALL_NOT_MEASURED
from spark_dedup.searching import read_cells, search_as_run

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SLOW_CORE = 1e9
"""FLOP/s of a core, at least; work of less than a second at this rate is not worth a measurement."""


def make_recall(job: Job) -> Outcome:
    """VECTORS -> TRUTH; TRUTH x CANDIDATE_PAIRS -> RECALL: what the search missed, on a sample that the run can afford."""
    store, config = job.store, job.config
    if config.recall.sample is None:
        return Outcome(None, 0, 0, {}, {}, {})
    texts = job.finished["vectors"].rows_out or 0
    rows = sample_size(job, config.recall.sample) if texts else 0
    figures: list[RecallRow] = []
    counts: dict[str, int] = {}
    notes: dict[str, str] = {}
    size = 0
    limits = {"texts_not_sampled": min(config.recall.sample, texts) - rows}
    if rows:
        size = write_truth(job, rows)
        search = search_as_run(job)
        figures = figures_of(
            job,
            store.read(schema.CANDIDATE_PAIRS),
            store.read(schema.COMPONENTS),
            search,
            read_cells(store, ENGINES[search.engine]),
            seconds=job.finished["index"].seconds + job.finished["candidates"].seconds,
            keys=bool(config.blocking.keys),
        )
        counts = {"sample": rows, "true_pairs": next(row.pairs for row in figures if row.metric == "pair_recall")}
        notes["recall"] = quote(figures)
    else:
        why = f"recall.share {config.recall.share:g} of the run's seconds is too little" if texts else "no vectors"
        notes["recall"] = f"{RECALL_NOT_MEASURED} ({why})"
    if config.recall.target is not None:
        checked = verdict(figures, config.recall.target) if figures else "not checked"
        notes["target"] = f"recall.target {config.recall.target:g} {checked}"
    if config.minhash.enabled:
        shared = words_recall(job, config.recall.sample)
        figures, notes["recall"] = [*figures, *shared], f"{notes['recall']}; {quote_shared(shared)}"
    if figures:
        size += store_figures(job, figures)
    return Outcome(texts, len(figures), size, counts, limits, notes)


def words_recall(job: Job, wanted: int) -> list[RecallRow]:
    """SKETCHES x CANDIDATE_PAIRS -> RECALL."""
    sketches, config = job.store.read(schema.SKETCHES), job.config.minhash
    texts = job.finished["embeddings"].rows_out or 0  # all that take part, those without a usable vector too
    pairs = alike_pairs(sketch_sample(sketches, wanted, texts, job.config.recall.seed), sketches, config)
    return shared_recall(
        pairs,
        job.store.read(schema.CANDIDATE_PAIRS),
        config.threshold,
        rows=sketch_rows(wanted, texts),
        texts=texts,
        run_id=job.run_id,
        seconds=job.finished["candidates"].seconds,
    )


def figures_of(
    job: Job,
    pairs: DataFrame,
    components: DataFrame,
    search: SearchConfig,
    cells: Cells,
    *,
    seconds: float,
    setting: str = "",
    keys: bool = False,
) -> list[RecallRow]:
    """The recall of a search of the stored vectors, against the stored truth.

    Args:
        job: With a TRUTH.
        pairs: CANDIDATE_PAIRS or SCORED_PAIRS that it returned.
        components: COMPONENTS that were made of them.
        search: Its settings, `auto` replaced.
        cells: The rows of INDEX_CELLS that it used.
        seconds: What it took.
        setting: As in `recall_rows`.
        keys: Whether these pairs are also those of blocking keys.
    """
    return recall_rows(
        job.store.read(schema.TRUTH),
        pairs,
        components,
        job.store.read(schema.VECTORS),
        ENGINES[search.engine].limits(search, cells),
        rule=job.config.merge.condition,
        floor=job.config.search.floor,
        texts=job.finished["vectors"].rows_out or 0,
        run_id=job.run_id,
        setting=setting,
        seconds=seconds,
        routing=job.config.exact.route == "representative",
        keys=keys,
    )


def write_truth(job: Job, rows: int) -> int:
    """VECTORS -> TRUTH for a sample of so many texts, unless that is what is stored; gives the bytes written."""
    store, floor, seed = job.store, job.config.search.floor, job.config.recall.seed
    made_for = truth_fingerprint(job.fingerprint, floor, rows, seed)
    if RECALL.name in job.finished and store.exists(schema.TRUTH) and is_truth_of(store.read(schema.TRUTH), made_for, rows):
        return 0
    vectors = store.read(schema.VECTORS)
    sample = sample_rows(vectors, rows, job.finished["vectors"].rows_out or 0, seed)
    return job.write(schema.TRUTH, true_pairs(sample, vectors, floor, made_for), "recall")[1]


def store_figures(job: Job, figures: Sequence[RecallRow]) -> int:
    """Put RECALL rows into the table, in place of older ones of the same run and settings; gives the bytes written."""
    settings = {(row.run_id, row.setting) for row in figures}
    rows: list[tuple[Any, ...]] = [tuple(row) for row in figures]
    if job.store.exists(schema.RECALL):
        rows += [tuple(row) for row in job.store.read(schema.RECALL).collect() if (row["run_id"], row["setting"]) not in settings]
    return job.write(schema.RECALL, job.spark.createDataFrame(rows, schema.RECALL.ddl()).coalesce(1), "recall")[1]


def sample_size(job: Job, wanted: int) -> int:
    """Texts for which the measurement costs at most `recall.share` of the run so far."""
    begun = time.monotonic()
    first = job.store.read(schema.VECTORS).select(F.length("vector")).first()
    if not first:
        return 0
    dimension, texts, pairs = first[0] // 4, job.finished["vectors"].rows_out or 0, job.finished["candidates"].rows_out or 0
    tasks, products = job.caps.parallelism, 2.0 * texts * texts * dimension
    row_bytes = max(4.0 * dimension, job.finished["vectors"].bytes / texts)
    rate = product_rate(job.spark, dimension, tasks) if products > SLOW_CORE else SLOW_CORE * tasks
    cost = truth_cost(texts, dimension=dimension, row_bytes=row_bytes, neighbours=2 * pairs / texts, rate=rate, tasks=tasks)
    seconds = {name: record.seconds for name, record in job.finished.items() if name != RECALL.name}
    # Figures join the truth with pairs and components and are stored, which takes about as long as the stage that made these.
    figures = time.monotonic() - begun + seconds["components"]
    paid = truth_seconds(job.config.recall.share, sum(seconds.values()), figures)
    most = CONNECT_BYTES / row_bytes if job.caps.connect else float("inf")
    return budgeted_sample(wanted, texts, cost, paid, most)


RECALL = Step("recall", make_recall, (), ("texts", "figures"), after="vectors")
