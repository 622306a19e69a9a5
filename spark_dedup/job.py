"""One run in progress: what it may continue, what it refuses to continue, and what it puts on record."""

from __future__ import annotations

import datetime
import json
import re
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pyspark.errors import AnalysisException
from pyspark.sql import Observation
from pyspark.sql import functions as F

from spark_dedup import errors, schema
from spark_dedup.checkpoints import check_checkpoint_dir
from spark_dedup.config import DedupConfig, absolute
from spark_dedup.errors import ConfigError, EnvironmentProblem, SparkDedupError, StoreError, first_line
from spark_dedup.kernels.encoder import encoder_identity
from spark_dedup.kernels.features import FEATURES_VERSION
from spark_dedup.manifest import DONE, FAILED, RUN, STARTED, RunManifest, StageRecord
from spark_dedup.postgres import connect, log_in, server
from spark_dedup.progress import Progress
from spark_dedup.schema import Table
from spark_dedup.session import Capabilities, components_engine, probe, require_delta
from spark_dedup.settings import as_dict, fingerprint, flatten
from spark_dedup.source import Source, open_source
from spark_dedup.store import TableStore, stage_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

RECORD_SECONDS = 15.0
"""Work that a killed process may lose: a finished stage goes on record with those after it once they took this long together."""

LAYOUT = 2
"""Version of the tables' meaning; raised whenever a store of an older version must not be continued."""


@dataclass(frozen=True)
class Outcome:
    """What a step reports of itself."""

    rows_in: int | None
    rows_out: int
    bytes: int
    counts: dict[str, int]
    caps_hit: dict[str, int]
    notes: dict[str, str]


@dataclass(frozen=True)
class Step:
    """One stage of the pipeline.

    Attributes:
        name: As in the `runs` table.
        make: Does the work.
        tables: What it writes, if it writes anything.
        units: What it handles and, where it is something else, what comes out.
        after: Earlier stage whose `rows_out` are the rows that this one handles.
    """

    name: str
    make: Callable[[Job], Outcome]
    tables: tuple[Table, ...]
    units: tuple[str, ...]
    after: str | None = None


@dataclass(frozen=True)
class Job:
    """One run in progress: what every step needs, and the stages that are finished."""

    spark: SparkSession
    store: TableStore
    config: DedupConfig
    source: Source
    caps: Capabilities
    model: str
    run_id: str
    settings: dict[str, Any]
    fingerprint: str
    finished: dict[str, StageRecord]
    progress: Progress
    unrecorded: list[StageRecord] = field(default_factory=list)

    def lineage(self, stage: str) -> dict[str, Any]:
        """What a commit says about its origin."""
        return {
            "run_id": self.run_id,
            "stage": stage,
            "fingerprint": self.fingerprint,
            "source": self.config.source.table,
            "source_version": self.source.version,
        }

    def write(self, table: Table, df: DataFrame, stage: str, *, append: bool = False) -> tuple[int, int]:
        """Write a table of this run; gives rows and bytes."""
        written = self.store.write(table, df, self.lineage(stage), append=append)
        return written.rows, written.bytes

    def perform(self, step: Step) -> StageRecord:
        """Run one step; if it fails, put that on record. Success is for the caller to `finish`."""
        begun = time.monotonic()
        before = self.finished.get(step.after) if step.after else None
        try:
            with self.progress.stage(step.name, before.rows_out if before else None, *step.units) as shown:
                outcome = step.make(self)
                shown.rows_out = outcome.rows_out
        except Exception as e:
            ours = from_worker(e)
            self.record(
                StageRecord(
                    stage=step.name,
                    fingerprint=self.fingerprint,
                    seconds=time.monotonic() - begun,
                    status=FAILED,
                    notes={"error": first_line(ours or e)},
                )
            )
            if ours:
                raise ours from e
            raise
        return StageRecord(
            stage=step.name,
            fingerprint=self.fingerprint,
            rows_in=outcome.rows_in,
            rows_out=outcome.rows_out,
            counts=outcome.counts,
            caps_hit={k: v for k, v in outcome.caps_hit.items() if v},
            notes=outcome.notes,
            bytes=outcome.bytes,
            seconds=time.monotonic() - begun,
        )

    def finish(self, record: StageRecord) -> None:
        """Let later steps build on a stage, and put it on record once `RECORD_SECONDS` would be lost without it."""
        self.finished[record.stage] = record
        self.unrecorded.append(record)
        if sum(r.seconds for r in self.unrecorded) >= RECORD_SECONDS:
            self.record()

    def record(self, *records: StageRecord) -> None:
        """Append to `runs` whatever is finished and not there yet, and these records, in one commit."""
        header = {
            "run_id": self.run_id,
            "source": self.config.source.table,
            "source_version": self.source.version,
            "settings": json.dumps(self.settings, ensure_ascii=False),
        }
        self.store.record(header, [*self.unrecorded, *records])
        self.unrecorded.clear()

    def whole(self, seconds: float) -> StageRecord:
        """The record that stands for the whole run, once every stage is finished."""
        rows = self.finished["records"].rows_out
        return StageRecord(stage=RUN, fingerprint=self.fingerprint, rows_in=rows, rows_out=rows, seconds=seconds)

    def manifest(self, steps: Sequence[Step], seconds: float, did_work: bool) -> RunManifest:
        """What was done."""
        return RunManifest(
            run_id=self.run_id,
            store=self.store.where,
            source=self.config.source.table,
            source_version=self.source.version,
            fingerprint=self.fingerprint,
            settings=self.settings,
            stages=tuple(self.finished[step.name] for step in steps),
            seconds=seconds,
            did_work=did_work,
        )


def open_job(config: DedupConfig, spark: SparkSession, steps: Sequence[Step], *, rebuild: bool, progress: Progress) -> Job:
    """Refuse before any work what can not succeed, and find out what an earlier run has finished.

    Raises:
        ConfigError: Settings that the session or the source can not satisfy.
        SourceError: A source that can not be read.
        StoreError: A store that was made from another source or by other settings.
        EnvironmentProblem: Delta, the encoder, GraphFrames or a checkpoint folder is not there.
    """
    caps = probe(spark)
    require_delta(caps)
    check_rule(spark, config.merge.condition)
    components_engine(caps, config.components.engine)
    source = open_source(spark, config)
    model = model_fingerprint(config, source)
    settings = {**as_dict(config), "model": model}
    whole = fingerprint(config, config.merge.condition, model, source.state, LAYOUT, FEATURES_VERSION)
    store = TableStore(spark, config.store)
    store.prepare()
    if not caps.local:
        check_checkpoint_dir(spark, checkpoint_folder(spark, config, store, caps))
    last = store.last_run()
    finished: dict[str, StageRecord] = {}
    run_id = new_run_id()
    if last and not rebuild:
        refuse_other(last, settings, whole, config, source)
        run_id = last[0]["run_id"]
        finished = finished_stages(store, last, steps)
    if config.search.engine == "pgvector" and not {"index", "candidates"} <= finished.keys():
        login = log_in(config.pgvector, spark)
        with connect(login) as connection:
            server(connection, login)
    job = Job(spark, store, config, source, caps, model, run_id, settings, whole, finished, progress)
    if last and rebuild:  # from here on the store no longer holds the earlier run
        job.record(StageRecord(stage=RUN, fingerprint=whole, status=STARTED))
    return job


def model_fingerprint(config: DedupConfig, source: Source) -> str:
    """What decides the vector of a text: stored vectors are used again where it is the same.

    Raises:
        EnvironmentProblem: If the encoder is not there.
    """
    identity = encoder_identity(config.embed)
    if config.embed.encoder == "column":
        identity = {**identity, "source": config.source.table, "state": source.state}
    return fingerprint(identity, {"lowercase": config.exact.lowercase, "strip_punctuation": config.exact.strip_punctuation})


def new_run_id() -> str:
    """An id that sorts by time and never repeats."""
    now = datetime.datetime.now(datetime.timezone.utc)
    return f"{now:%Y%m%dT%H%M%S.%f}Z-{uuid.uuid4().hex[:8]}"


def check_rule(spark: SparkSession, rule: str) -> None:
    """Refuse a merge rule that is not a condition over the columns of a scored pair.

    Raises:
        ConfigError: Naming the rule, what is wrong, and the columns that there are.
    """
    pairs = spark.createDataFrame([], schema.SCORED_PAIRS.ddl())
    hint = (
        "the columns of a pair are cosine, jaccard, containment, substitution (numbers), least_words, most_words (whole numbers) and "
        "numbers ('same', 'contained', 'missing', 'differ')"
    )
    try:
        kind = pairs.select(F.expr(rule).alias("is_edge")).schema["is_edge"].dataType.simpleString()
    except AnalysisException as e:
        raise ConfigError([f"merge.rule can not be used: {rule!r}: {first_line(e)}"], hint=hint) from e
    if kind != "boolean":
        raise ConfigError([f"merge.rule must be a condition that is true or false, got {rule!r} of type {kind}"], hint=hint)


def checkpoint_folder(spark: SparkSession, config: DedupConfig, store: TableStore, caps: Capabilities) -> str:
    """Where checkpoints go on a cluster.

    Raises:
        EnvironmentProblem: If nothing says where.
    """
    folder = config.components.checkpoint_dir or caps.checkpoint_dir
    if folder:
        return folder
    if store.is_folder:
        return f"{absolute(store.where).rstrip('/')}/_checkpoints"
    raise EnvironmentProblem(
        "components.checkpoint_dir must name a folder that every executor can write, got nothing, and the store is a catalog schema",
        hint="--set components.checkpoint_dir=PATH on storage that all machines share",
    )


def refuse_other(last: list[Row], settings: dict[str, Any], whole: str, config: DedupConfig, source: Source) -> None:
    """Refuse to continue a store that other settings or another state of the source have made.

    Raises:
        StoreError: Naming each setting that differs with both values, or the two states of the source.
    """
    stored = last[0]
    if stored["fingerprint"] == whole:
        return
    way_out = "set `store` to a new schema or folder, or start this one over with --rebuild"
    old = flatten({**json.loads(stored["settings"])})
    new = flatten(settings)
    deciding = {*flatten(as_dict(config, results_only=True)), "model"}
    differ = sorted(k for k in deciding if old.get(k) != new.get(k))
    if "model" in differ and any(k.startswith(("embed.", "exact.")) for k in differ if k != "model"):
        differ.remove("model")
    if differ:
        told = "; ".join(f"{k} is {old.get(k)!r} there and {new.get(k)!r} now" for k in differ)
        raise StoreError(
            f"the store {config.store} was made by other settings: {told}", hint=f"use the settings of the store, or {way_out}"
        )
    then = stored["source_version"]
    versions = f": version {then} then, version {source.version} now" if then is not None else ""
    raise StoreError(f"the source {config.source.table} has changed since the store {config.store} was made{versions}", hint=way_out)


def finished_stages(store: TableStore, last: list[Row], steps: Sequence[Step]) -> dict[str, StageRecord]:
    """Stages that need not be done again: the unbroken line from the first, as long as their tables are there."""
    done = {row["stage"]: stage_of(row, reused=True) for row in last if row["status"] == DONE}
    finished: dict[str, StageRecord] = {}
    for step in steps:
        # What wrote nothing, such as the index of an engine that needs none, has no tables.
        if step.name not in done or (done[step.name].bytes and not all(store.exists(table) for table in step.tables)):
            break
        finished[step.name] = done[step.name]
    return finished


def stored_manifest(store: TableStore) -> RunManifest:
    """The manifest of a store's newest run, as its `runs` table tells it.

    Raises:
        StoreError: If the store has no run.
    """
    last = store.last_run()
    if not last:
        raise StoreError(f"the store {store.where} holds no run", hint="spark-dedup run --config FILE")
    stages = tuple(stage_of(row, reused=True) for row in last if row["stage"] != RUN)
    whole = next((row for row in last if row["stage"] == RUN and row["status"] == DONE), None)
    return RunManifest(
        run_id=last[0]["run_id"],
        store=store.where,
        source=last[0]["source"],
        source_version=last[0]["source_version"],
        fingerprint=last[0]["fingerprint"],
        settings=json.loads(last[0]["settings"]),
        stages=stages,
        seconds=whole["seconds"] if whole else sum(s.seconds for s in stages),
        did_work=False,
    )


def from_worker(error: Exception) -> SparkDedupError | None:
    """One of our errors that a Python worker raised, taken out of Spark's report of it; None for any other error."""
    found = re.search(r"spark_dedup\.errors\.(\w+): (.*?)(?:\nhint: (.*?))?(?:\n\s*\n|\n\tat |\Z)", str(error), re.DOTALL)
    cls = getattr(errors, found[1], None) if found else None
    if found is None or not (isinstance(cls, type) and issubclass(cls, SparkDedupError)) or cls is ConfigError:
        return None
    return cls(found[2].strip(), hint=found[3].strip() if found[3] else None)


def observed(noted: Observation, *names: str) -> dict[str, int]:
    """Figures of an observation as whole numbers; 0 for those that Spark left out, as it does where a plan turns out empty."""
    try:
        found = noted.get
    except Exception as e:
        if type(e).__name__ != "Py4JJavaError" or "assertion failed" not in str(e):
            raise
        found = {}  # Spark 4 has no row to hand over where its optimizer removed the whole plan
    return {name: int(found.get(name) or 0) for name in names}


def worker_partitions(job: Job, rows: int) -> int:
    """Partitions for work in Python: enough to keep every core busy and even, never so many that they are empty."""
    return max(1, min(job.caps.parallelism * 4, -(-rows // 512)))
