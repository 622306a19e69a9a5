"""Recall on the tables of a finished run: measured anew, or over a range of one search setting."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pyspark.sql import Observation
from pyspark.sql import functions as F

from spark_dedup import schema
from spark_dedup.checkpoints import Checkpoints
from spark_dedup.config import DedupConfig, SearchConfig
from spark_dedup.engines import ENGINES, choose_engine
from spark_dedup.errors import ConfigError, StoreError
from spark_dedup.evaluation.recall import RecallRow, quote, quoted
from spark_dedup.job import Job, checkpoint_folder, observed, open_job
from spark_dedup.manifest import RunManifest
from spark_dedup.measuring import RECALL, figures_of, sample_size, store_figures, write_truth
from spark_dedup.pipeline import steps_of
from spark_dedup.progress import Progress
from spark_dedup.report.summary import EngineView
from spark_dedup.searching import cells_of, distinct_vectors, read_cells, search_as_run, self_join
from spark_dedup.session import get_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ALL_ENGINES: dict[str, tuple[float | str, ...]] = {"engine": tuple(name for name, engine in ENGINES.items() if not engine.in_postgres)}
"""Those that need nothing beside Spark."""

RANGES: dict[str, dict[str, tuple[float | str, ...]]] = {
    "hnsw": {
        "ef_search": (16, 32, 64, 128, 256, 512),
        "neighbours": (5, 10, 20, 50, 100, 200),
        "margin": (0.0, 0.025, 0.05, 0.1, 0.2),
        "max_neighbours": (50, 100, 200, 500, 1000, 2000),
        **ALL_ENGINES,
    },
    "cells": {"margin": (0.0, 0.0125, 0.025, 0.05, 0.1, 0.2), **ALL_ENGINES},
    "semdedup": ALL_ENGINES,
    "exact": ALL_ENGINES,
    "pgvector": {
        "ef_search": (16, 32, 64, 128, 256, 512),
        "neighbours": (5, 10, 20, 50, 100, 200),
        "max_neighbours": (50, 100, 200, 500, 1000, 2000),
        **ALL_ENGINES,
    },
}
"""Settings that can be swept for each engine, the usual one first, and the values tried where none are given."""

BUILT_IN = {"hnsw": (), "cells": ("margin",), "semdedup": (), "exact": (), "pgvector": ()}
"""Swept settings that the engine's index is made for: it is built anew for each of their values, and not stored."""

KNEE = 0.001
"""Recall that the knee may lack to the best one."""

COLD_SECONDS = 60.0
"""The first search of a session also starts Python workers and compiles plans, some 15 s: below this it is repeated, so that the values
of a sweep are compared by what they take and not by their order."""


@dataclass(frozen=True)
class Point:
    """One value of a sweep.

    Attributes:
        setting: As in `search.ef_search=32`.
        figures: RECALL rows.
        seconds: Wall time of the search, its index included where it was built for this value.
        pairs: Pairs that it returned.
        saturated: Lists of neighbours that were cut.
        own: Whether it is the setting of the run itself.
    """

    setting: str
    figures: tuple[RecallRow, ...]
    seconds: float
    pairs: int
    saturated: int
    own: bool

    @property
    def recall(self) -> RecallRow:
        """The figure that is quoted."""
        return quoted(self.figures)


def measure(config: DedupConfig, spark: SparkSession | None = None, *, progress: Progress | None = None) -> RunManifest:
    """Measure the recall of a finished run anew, with the sample and the share of its seconds that `config.recall` allows.

    Args:
        config: The settings of the run; those of `recall` may differ.
        spark: As in `run`.
        progress: As in `run`.

    Returns:
        The run's manifest, with the new figure.

    Raises:
        StoreError: If the store has no finished run of these settings.
        ConfigError: If `recall.sample` is null.
    """
    begun = time.monotonic()
    job = finished_job(config, spark, progress)
    if config.recall.sample is None:
        raise ConfigError(["recall.sample must be a whole number >= 1 to measure, got null"])
    job.finish(job.perform(RECALL))
    job.record()
    return job.manifest(steps_of(config), time.monotonic() - begun, did_work=True)


def sweep(
    config: DedupConfig,
    name: str | None = None,
    values: Sequence[float | str] = (),
    spark: SparkSession | None = None,
    *,
    progress: Progress | None = None,
) -> list[Point]:
    """Search again under several values of one setting, and measure each against the same truth.

    Nothing but the `recall` and `_truth` tables is written. The truth is computed once and kept.

    Args:
        config: The settings of the run.
        name: A setting in `RANGES` without `search.`; None takes the usual one of the run's engine.
        values: Values to try; empty takes those of `RANGES`.
        spark: As in `run`.
        progress: As in `run`.

    Returns:
        One point per value, in order.

    Raises:
        StoreError: If the store has no finished run of these settings.
        ConfigError: If the engine has no such setting, or a value is out of range.
    """
    job = finished_job(config, spark, progress)
    own = search_as_run(job)
    name, settings = swept(config, own, name, values)
    measured_truth(job)
    points: list[Point] = []
    with job.progress.stage("sweep", len(settings), "values") as shown:
        for search in settings:
            found = point(job, own, search, name)
            if not points and len(settings) > 1 and found.seconds < COLD_SECONDS:
                found = point(job, own, search, name)
            points.append(found)
            shown.rows_out = len(points)
    figures = [row for p in points for row in p.figures]
    store_figures(job, figures)
    return points


def finished_job(config: DedupConfig, spark: SparkSession | None, progress: Progress | None) -> Job:
    """The finished run of these settings.

    Raises:
        StoreError: If there is none.
    """
    spark, progress = get_session(spark), progress or Progress(mode="quiet")
    progress.watch(spark)
    job = open_job(config, spark, steps_of(config), rebuild=False, progress=progress)
    missing = [step.name for step in steps_of(config) if step.name not in job.finished and step is not RECALL]
    if missing:
        raise StoreError(f"the store {config.store} has no finished run: {missing[0]} is missing", hint="spark-dedup run --config FILE")
    return job


def swept(config: DedupConfig, own: SearchConfig, name: str | None, values: Sequence[float | str]) -> tuple[str, list[SearchConfig]]:
    """The setting that is swept, and the search settings of every value.

    Args:
        config: The settings of the run.
        own: Those of its search, as run. Another engine takes none of what was tuned for this one.
        name: As in `sweep`.
        values: See there.

    Raises:
        ConfigError: Naming the engine and what can be swept for it, or the value.
    """
    ranges = RANGES[own.engine]
    name = name or next(iter(ranges))
    if name not in ranges:
        raise ConfigError([f"search.{name} can not be swept for engine {own.engine}; {', '.join(f'search.{n}' for n in ranges)} can"])
    whole = isinstance(getattr(own, name), int)
    chosen_values: list[Any] = [int(v) if whole and float(v).is_integer() else v for v in values or ranges[name]]
    # By way of all settings, so that those which do not fit together are refused; a target is that of the run alone.
    untuned = replace(config, recall=replace(config.recall, target=None))
    bases = [own if name != "engine" or v == own.engine else config.search for v in chosen_values]
    return name, [replace(untuned, search=replace(base, **{name: v})).search for base, v in zip(bases, chosen_values, strict=True)]


def measured_truth(job: Job) -> None:
    """See to it that TRUTH is that of the run's own sample, or of a new one where the run drew none."""
    texts, known = job.finished["vectors"].rows_out or 0, job.finished.get(RECALL.name)
    rows = known.counts.get("sample", 0) if known else 0
    rows = rows or (sample_size(job, job.config.recall.sample or texts) if texts else 0)
    if not rows:
        raise StoreError(
            f"recall can not be measured: {texts:,} vectors, recall.share {job.config.recall.share:g}", hint="--set recall.share=1"
        )
    write_truth(job, rows)


def point(job: Job, own: SearchConfig, search: SearchConfig, name: str) -> Point:
    """Search with one value and measure it."""
    store, value = job.store, getattr(search, name)
    setting = f"search.{name}={value if isinstance(value, str) else format(value, 'g')}"
    vectors, engine = store.read(schema.VECTORS), ENGINES[search.engine]
    folder = None if job.caps.local else checkpoint_folder(job.spark, job.config, store, job.caps)
    noted = Observation("sweep")
    with Checkpoints(job.spark, folder) as checkpoints:
        begun = time.monotonic()
        built = None
        if engine.indexed and (search.engine != own.engine or name in BUILT_IN[search.engine]):
            train, build = engine.indexed
            cells = cells_of(train(vectors, distinct_vectors(job), search))
            built = cells, checkpoints.cut(build(vectors, cells, search))
        with self_join(job, search, noted, built=built) as (found, _):
            pairs = checkpoints.cut(found)
        seconds = time.monotonic() - begun
        # No clusters are made of these pairs, so every text is its own and the figure about clusters is left out.
        alone = vectors.select(schema.REP_ID, F.col(schema.REP_ID).alias("cluster_id"))
        used = built[0] if built else read_cells(store, engine)
        rows = figures_of(job, pairs, alone, search, used, seconds=seconds, setting=setting)
    counted = observed(noted, "pairs", "saturated")
    figures = tuple(row for row in rows if row.metric != "cluster_recall")
    return Point(setting, figures, seconds, counted["pairs"], counted["saturated"], own=search == own)


def beside_auto(config: DedupConfig, manifest: RunManifest, spark: SparkSession, progress: Progress) -> tuple[EngineView, ...]:
    """The engine of a finished run beside the one that `auto` would have taken; nothing where that is the same one.

    Args:
        config: The settings of the run.
        manifest: The run.
        spark: As in `run`.
        progress: As in `run`.
    """
    own, heads = manifest.stage("candidates"), manifest.stage("vectors").counts["distinct_vectors"]
    other, _ = choose_engine("auto", heads)
    if other == own.notes["engine"]:
        return ()
    (p,) = sweep(config, "engine", [other], spark, progress=progress)
    return (
        EngineView(name=own.notes["engine"], seconds=manifest.stage("index").seconds + own.seconds, recall=manifest.recall),
        EngineView(name=f"{other} (auto)", seconds=p.seconds, recall=quote(p.figures)),
    )


def knee(points: Sequence[Point]) -> Point | None:
    """The quickest point whose recall lacks at most `KNEE` to the best one; None where no point has a recall."""
    known = [(p, p.recall.value) for p in points if p.recall.value is not None]
    if not known:
        return None
    best = max(value for _, value in known)
    return min((p for p, value in known if value >= best - KNEE), key=lambda p: p.seconds)


def sweep_text(points: Sequence[Point]) -> str:
    """The sweep as a table for people."""
    at = knee(points)
    wide = max(len(p.setting) for p in points)
    lines = [f"{'setting':<{wide}}  {'seconds':>8}  {'pairs':>12}  {'full lists':>10}  recall"]
    for p in points:
        marks = ("  <- knee" if p is at else "") + ("  (the run's own)" if p.own else "")
        lines.append(f"{p.setting:<{wide}}  {p.seconds:>8.1f}  {p.pairs:>12,}  {p.saturated:>10,}  {quote(p.figures)}{marks}")
    lines.append(f"knee: the quickest whose recall lacks at most {KNEE} to the best")
    return "\n".join(lines)


def sweep_json(points: Sequence[Point]) -> str:
    """The sweep for machines."""
    at = knee(points)
    told = [
        {
            "setting": p.setting,
            "seconds": p.seconds,
            "pairs": p.pairs,
            "saturated": p.saturated,
            "own": p.own,
            "knee": p is at,
            "figures": [row._asdict() for row in p.figures],
        }
        for p in points
    ]
    return json.dumps(told, indent=2)
