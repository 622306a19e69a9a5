"""The wiring: one function per stage, in the order in which the data flows."""

from __future__ import annotations

import datetime
import json
import re
import time
import uuid
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql import Observation
from pyspark.sql import functions as F

from spark_dedup import errors, schema
from spark_dedup.checkpoints import check_checkpoint_dir
from spark_dedup.config import DedupConfig, absolute, as_dict, fingerprint, flatten
from spark_dedup.errors import ConfigError, EnvironmentProblem, SparkDedupError, StoreError, first_line
from spark_dedup.index_files import choose_placement, index_files
from spark_dedup.kernels.cells import Cells
from spark_dedup.kernels.encoder import encoder_identity
from spark_dedup.kernels.features import FEATURES_VERSION
from spark_dedup.kernels.models import pinned
from spark_dedup.kernels.text import ISSUES
from spark_dedup.manifest import DONE, FAILED, RUN, STARTED, RunManifest, StageRecord
from spark_dedup.progress import Progress
from spark_dedup.schema import EXACT_KEY, REP_ID, Table
from spark_dedup.session import Capabilities, components_engine, get_session, probe, require_delta
from spark_dedup.source import Source, check_ids, open_source, split_order
from spark_dedup.stages.candidates_hnsw import hnsw_candidates
from spark_dedup.stages.clusters import expand_clusters, list_set_aside
from spark_dedup.stages.components import components
from spark_dedup.stages.embed import BLOCK_ROWS, check_column, column_error, embed_texts, embeddings_from_column
from spark_dedup.stages.index_hnsw import build_index, coarse_cells, index_manifest
from spark_dedup.stages.normalize import normalize_records
from spark_dedup.stages.representatives import assign_members, choose_representatives
from spark_dedup.stages.score import accepted_edges, judge_pairs
from spark_dedup.stages.vectors import search_vectors
from spark_dedup.store import TableStore, stage_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

LAYOUT = 1
"""Version of the tables' meaning; raised whenever a store of an older version must not be continued."""


def run(config: DedupConfig, spark: SparkSession | None = None, *, rebuild: bool = False, progress: Progress | None = None) -> RunManifest:
    """Find the near-duplicates of a source and write the tables of its store.

    A second call on an unchanged source and settings does nothing; after a failure the next call goes on from
    the last finished stage.

    Args:
        config: All settings.
        spark: Session to use; it is never reconfigured. None takes the active one, else makes a local one.
        rebuild: Start over even if the store holds a run of other settings or another source. Stored embeddings
            of the same model are kept.
        progress: Where progress is shown; None shows nothing.

    Returns:
        What was done, stage by stage.

    Raises:
        ConfigError: Settings that the session or the source can not satisfy.
        SourceError: A source that can not be read, or ids that are null or repeat.
        StoreError: A store that was made from another source or by other settings.
        EnvironmentProblem: Delta, the encoder, GraphFrames or a checkpoint folder is not there.
        EmbeddingError: Vectors of a wrong length, or an encoder that breaks its contract.
    """
    begun = time.monotonic()
    spark = get_session(spark)
    progress = progress or Progress(mode="quiet")
    progress.watch(spark)
    job = prepare(config, spark, rebuild, progress)
    did_work = False
    for name, step in STEPS:
        if name not in job.finished:
            job.perform(name, step)
            did_work = True
    seconds = time.monotonic() - begun
    if did_work:
        job.close(seconds)
    return manifest_of(job, tuple(job.finished[name] for name, _ in STEPS), seconds, did_work)


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

    def lineage(self, stage: str) -> dict[str, Any]:
        """What a commit says about its origin."""
        return {
            "run_id": self.run_id,
            "stage": stage,
            "fingerprint": self.fingerprint,
            "source": self.config.source.table,
            "source_version": self.source.version,
        }

    def header(self) -> dict[str, Any]:
        """The columns that all rows of this run share in `runs`."""
        return {
            "run_id": self.run_id,
            "source": self.config.source.table,
            "source_version": self.source.version,
            "settings": json.dumps(self.settings, ensure_ascii=False),
        }

    def write(self, table: Table, df: DataFrame, stage: str, *, append: bool = False) -> tuple[int, int]:
        """Write a table of this run; gives rows and bytes."""
        written = self.store.write(table, df, self.lineage(stage), append=append)
        return written.rows, written.bytes

    def perform(self, name: str, step: Callable[[Job], Outcome]) -> None:
        """Run one step, and put on record that it is finished or that it failed."""
        begun = time.monotonic()
        total = self.expected_rows(name)
        try:
            with self.progress.stage(name, total, *UNITS[name]) as shown:
                outcome = step(self)
                shown.rows_out = outcome.rows_out
        except Exception as e:
            ours = from_worker(e)
            notes = {"error": first_line(ours or e)}
            failed = StageRecord(stage=name, fingerprint=self.fingerprint, seconds=time.monotonic() - begun, status=FAILED, notes=notes)
            self.store.record(self.header(), [failed])
            if ours:
                raise ours from e
            raise
        record = StageRecord(
            stage=name,
            fingerprint=self.fingerprint,
            rows_in=outcome.rows_in,
            rows_out=outcome.rows_out,
            counts=outcome.counts,
            caps_hit={k: v for k, v in outcome.caps_hit.items() if v},
            notes=outcome.notes,
            bytes=outcome.bytes,
            seconds=time.monotonic() - begun,
        )
        self.store.record(self.header(), [record])
        self.finished[name] = record

    def expected_rows(self, name: str) -> int | None:
        """Rows that a stage will handle, where an earlier stage has counted them."""
        before = {
            "representatives": "records",
            "embeddings": "representatives",
            "vectors": "embeddings",
            "index": "vectors",
            "candidates": "vectors",
            "components": "representatives",
            "clusters": "records",
        }
        known = self.finished.get(before.get(name, ""))
        return known.rows_out if known else None

    def close(self, seconds: float) -> None:
        """Put on record that the whole run is finished."""
        rows = self.finished["records"].rows_out
        self.store.record(
            self.header(), [StageRecord(stage=RUN, fingerprint=self.fingerprint, rows_in=rows, rows_out=rows, seconds=seconds)]
        )


def from_worker(error: Exception) -> SparkDedupError | None:
    """One of our errors that a Python worker raised, taken out of Spark's report of it; None for any other error."""
    found = re.search(r"spark_dedup\.errors\.(\w+): (.*?)(?:\nhint: (.*?))?(?:\n\s*\n|\n\tat |\Z)", str(error), re.DOTALL)
    cls = getattr(errors, found[1], None) if found else None
    if found is None or not (isinstance(cls, type) and issubclass(cls, SparkDedupError)) or cls is ConfigError:
        return None
    return cls(found[2].strip(), hint=found[3].strip() if found[3] else None)


def prepare(config: DedupConfig, spark: SparkSession, rebuild: bool, progress: Progress) -> Job:
    """Refuse before any work what can not succeed, and find out what an earlier run has finished."""
    caps = probe(spark)
    require_delta(caps)
    check_rule(spark, config.merge.rule)
    components_engine(caps, config.components.engine)
    source = open_source(spark, config)
    identity = encoder_identity(config.embed)
    if config.embed.encoder == "column":
        identity = {**identity, "source": config.source.table, "state": source.state}
    model = fingerprint(identity, {"lowercase": config.exact.lowercase, "strip_punctuation": config.exact.strip_punctuation})
    settings = {**as_dict(config), "model": model}
    whole = fingerprint(config, model, source.state, LAYOUT, FEATURES_VERSION)
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
        finished = finished_stages(store, last)
    job = Job(spark, store, config, source, caps, model, run_id, settings, whole, finished, progress)
    if not last or rebuild:
        store.record(job.header(), [StageRecord(stage=RUN, fingerprint=whole, status=STARTED)])
    return job


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
    hint = "the columns of a pair are cosine, jaccard, containment, substitution (numbers) and numbers ('same', 'contained', 'differ')"
    try:
        kind = pairs.select(F.expr(rule).alias("is_edge")).schema["is_edge"].dataType.simpleString()
    except Exception as e:
        if type(e).__name__ not in ("AnalysisException", "ParseException"):
            raise
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


def finished_stages(store: TableStore, last: list[Row]) -> dict[str, StageRecord]:
    """Stages that need not be done again: the unbroken line from the first, as long as their tables are there."""
    done = {row["stage"]: stage_of(row, reused=True) for row in last if row["status"] == DONE}
    finished: dict[str, StageRecord] = {}
    for name, _ in STEPS:
        if name not in done or not all(store.exists(table) for table in MAKES[name]):
            break
        finished[name] = done[name]
    return finished


def manifest_of(job: Job, stages: tuple[StageRecord, ...], seconds: float, did_work: bool) -> RunManifest:
    """The manifest of a run."""
    return RunManifest(
        run_id=job.run_id,
        store=job.store.where,
        source=job.config.source.table,
        source_version=job.source.version,
        fingerprint=job.fingerprint,
        settings=job.settings,
        stages=stages,
        seconds=seconds,
        did_work=did_work,
    )


def stored_manifest(store: TableStore) -> RunManifest:
    """The manifest of a store's newest run, as its `runs` table tells it.

    Raises:
        StoreError: If the store has no run.
    """
    last = store.last_run()
    if not last:
        raise StoreError(f"the store {store.where} holds no run", hint="spark-dedup run --config FILE")
    rows = {row["stage"]: row for row in last}
    stages = tuple(stage_of(rows[name], reused=True) for name, _ in STEPS if name in rows)
    whole = rows.get(RUN)
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


def make_records(job: Job) -> Outcome:
    """Rows of the source -> RECORDS."""
    seen = Observation("source")
    rows = job.source.records.observe(seen, F.count(F.lit(1)).alias("rows"))
    records = normalize_records(rows, job.config.exact, job.config.source)
    noted = Observation("records")
    has = [F.count(F.when(F.array_contains("issues", issue), 1)).alias(issue) for issue in ISSUES]
    written, size = job.write(schema.RECORDS, records.observe(noted, *has), "records")
    check_ids(job.store.read(schema.RECORDS))
    rows_in = observed(seen, "rows")["rows"]
    counts = {**observed(noted, *ISSUES), "dropped_equal": rows_in - written}
    if job.config.embed.encoder == "column":
        offenders = check_column(job.store.read(schema.RECORDS))
        error = column_error(offenders.orderBy(schema.RECORD_ID).limit(EXAMPLES).collect(), offenders.count())
        if error:
            raise error
    return Outcome(rows_in, written, size, counts, {}, {})


def make_representatives(job: Job) -> Outcome:
    """RECORDS -> REPRESENTATIVES, MEMBERS."""
    records = job.store.read(schema.RECORDS)
    noted = Observation("representatives")
    copied = F.col("group_size") > 1
    figures = {
        "with_text": F.sum("group_size"),
        "largest_group": F.max("group_size"),
        "copy_groups": F.count(F.when(copied, 1)),
        "copy_rows": F.sum(F.when(copied, F.col("group_size"))),
    }
    chosen = choose_representatives(records, job.config.exact).observe(noted, *[column.alias(name) for name, column in figures.items()])
    written, size = job.write(schema.REPRESENTATIVES, chosen, "representatives")
    representatives = job.store.read(schema.REPRESENTATIVES)
    members, members_size = job.write(schema.MEMBERS, assign_members(records, representatives), "representatives")
    found = observed(noted, *figures)
    with_text, groups = found.pop("with_text"), found["copy_groups"]
    counts = {
        "keys": written,
        **found,
        "duplicate_rows": with_text - written,
        "pairs_all": pairs_among(with_text),
        "pairs_left": pairs_among(written),
    }
    if job.config.exact.route == "bypass":
        counts["pairs_left"] = pairs_among(written - groups)
        counts["pairs_unseen"] = pairs_among(written) - counts["pairs_left"]
    return Outcome(members, written, size + members_size, counts, {}, {})


def observed(noted: Observation, *names: str) -> dict[str, int]:
    """Figures of an observation as whole numbers; 0 for those that Spark left out, as it does where a plan turns out empty."""
    try:
        found = noted.get
    except Exception as e:
        if type(e).__name__ != "Py4JJavaError" or "assertion failed" not in str(e):
            raise
        found = {}  # Spark 4 has no row to hand over where its optimizer removed the whole plan
    return {name: int(found.get(name) or 0) for name in names}


def pairs_among(n: int) -> int:
    """Unordered pairs of n things."""
    return n * (n - 1) // 2


def make_embeddings(job: Job) -> Outcome:
    """REPRESENTATIVES -> EMBEDDINGS, only what no earlier run has stored for this model."""
    config, store = pinned(job.config.embed), job.store
    stored = store.exists(schema.EMBEDDINGS)
    wanted = store.read(schema.REPRESENTATIVES).where("in_search")
    if config.encoder == "column":
        vectors = embeddings_from_column(store.read(schema.RECORDS), job.model)
        embedded, size = job.write(schema.EMBEDDINGS, vectors, "embeddings")
    else:
        slice_rows = config.rows_per_commit // BLOCK_ROWS * BLOCK_ROWS  # whole blocks only
        slice_of = F.floor(F.col(REP_ID) / slice_rows)
        keys = job.finished["representatives"].counts["keys"]
        missing, todo = wanted, [(i, min(slice_rows, keys - i * slice_rows)) for i in range(-(-keys // slice_rows))]
        if stored:
            missing = wanted.join(model_rows(store, job.model).select(EXACT_KEY), EXACT_KEY, how="left_anti")
            todo = [(row[0], row[1]) for row in missing.groupBy(slice_of.alias("slice")).count().orderBy("slice").collect()]
        embedded, size = 0, 0
        for number, rows in todo:
            part = missing.where(slice_of == number).select(REP_ID, EXACT_KEY, "text")
            vectors = embed_texts(part, config, job.config.exact, job.model, partitions=worker_partitions(job, rows))
            more, more_size = job.write(schema.EMBEDDINGS, vectors, "embeddings", append=stored)
            stored, embedded, size = True, embedded + more, size + more_size
        if not stored:
            job.write(schema.EMBEDDINGS, job.spark.createDataFrame([], schema.EMBEDDINGS.ddl()), "embeddings")
    found = (
        wanted.join(model_rows(store, job.model), EXACT_KEY, how="inner")
        .agg(F.count("*"), F.count("problem"), F.count(F.when(F.col("truncated"), 1)))
        .first()
    )
    total, bad, cut = (int(v or 0) for v in (found or (0, 0, 0)))
    counts = {"embedded": embedded, "reused": max(0, total - embedded), "bad_embedding": bad, "cut_text": cut}
    notes = {"encoder": config.encoder, **({"model": config.model} if config.encoder == "sentence-transformers" else {})}
    return Outcome(total, total, size, counts, {}, notes)


def model_rows(store: TableStore, model: str) -> DataFrame:
    """EMBEDDINGS of one model."""
    return store.read(schema.EMBEDDINGS).where(F.col("model") == model)


def worker_partitions(job: Job, rows: int) -> int:
    """Partitions for work in Python: enough to keep every core busy and even, never so many that they are empty."""
    return max(1, min(job.caps.parallelism * 4, -(-rows // 512)))


def make_vectors(job: Job) -> Outcome:
    """REPRESENTATIVES + EMBEDDINGS -> VECTORS."""
    vectors = search_vectors(job.store.read(schema.REPRESENTATIVES), model_rows(job.store, job.model), job.config.exact)
    noted = Observation("vectors")
    heads = F.count(F.when(F.col("head_id") == F.col(REP_ID), 1)).alias("heads")
    written, size = job.write(schema.VECTORS, vectors.observe(noted, heads), "vectors")
    return Outcome(None, written, size, {"vectors": written, "distinct_vectors": observed(noted, "heads")["heads"]}, {}, {})


def make_index(job: Job) -> Outcome:
    """VECTORS -> INDEX_CELLS, INDEX, INDEX_SHARDS."""
    store, config = job.store, job.config.search
    vectors = store.read(schema.VECTORS)
    heads = job.finished["vectors"].counts["distinct_vectors"]
    job.write(schema.INDEX_CELLS, coarse_cells(vectors, heads, config), "index")
    _, size = job.write(schema.INDEX, build_index(vectors, read_cells(store), config), "index")
    job.write(schema.INDEX_SHARDS, index_manifest(store.read(schema.INDEX)), "index")
    shards = {row["shard"]: row["rows"] for row in store.read(schema.INDEX_SHARDS).select("shard", "rows").collect()}
    counts = {"shards": len(shards), "largest_shard": max(shards.values(), default=0)}
    return Outcome(heads, sum(shards.values()), size, counts, {}, {})


def read_cells(store: TableStore) -> Cells:
    """INDEX_CELLS on the driver: one row per cell, a few megabytes at most."""
    return Cells.from_rows([tuple(row) for row in store.read(schema.INDEX_CELLS).select("cell", "shard", "centroid").collect()])


def make_candidates(job: Job) -> Outcome:
    """VECTORS x INDEX -> SCORED_PAIRS -> CANDIDATE_PAIRS."""
    store, search = job.store, job.config.search
    vectors, index = store.read(schema.VECTORS), store.read(schema.INDEX)
    manifest = store.read(schema.INDEX_SHARDS).collect()
    placement, reason = choose_placement(
        search.placement, sum(row["bytes"] for row in manifest), connect=job.caps.connect, max_result_bytes=job.caps.max_result_bytes
    )
    found, judged = Observation("found"), Observation("judged")
    partitions = worker_partitions(job, job.finished["vectors"].rows_out or 0)
    representatives = store.read(schema.REPRESENTATIVES)
    with index_files(index, manifest, local=job.caps.local) if placement == "broadcast" else nullcontext(index) as reachable:
        pairs = hnsw_candidates(vectors, vectors, reachable, read_cells(store), search, partitions=partitions, noted=found)
        candidates = judge_pairs(pairs, representatives, job.config.merge, job.run_id)
        edges = F.count(F.when(F.col("is_edge"), 1)).alias("edges")
        written, size = job.write(schema.CANDIDATE_PAIRS, candidates.observe(judged, edges), "candidates")
    accepted = observed(judged, "edges")["edges"]
    counts = {"pairs": written, "edges": accepted, "refused": written - accepted, **observed(found, "asked_again")}
    caps_hit = observed(found, "saturated", "copies_not_paired")
    return Outcome(None, written, size, counts, caps_hit, {"engine": search.engine, "placement": placement, "placement_reason": reason})


def make_components(job: Job) -> Outcome:
    """CANDIDATE_PAIRS -> EDGES -> COMPONENTS."""
    store, config = job.store, job.config.components
    engine, reason = components_engine(job.caps, config.engine)
    vertices = store.read(schema.REPRESENTATIVES).select(REP_ID)
    edges = accepted_edges(store.read(schema.CANDIDATE_PAIRS))
    folder = None if job.caps.local else checkpoint_folder(job.spark, job.config, store, job.caps)
    noted = Observation("components")
    with components(vertices, edges, engine=engine, checkpoint_dir=folder) as found:
        counted = found.observe(noted, F.count(F.when(F.col(REP_ID) == F.col("component_id"), 1)).alias("components"))
        written, size = job.write(schema.COMPONENTS, counted, "components")
    total = observed(noted, "components")["components"]
    counts = {"components": total, "absorbed": written - total}
    return Outcome(None, written, size, counts, {}, {"engine": engine, "engine_reason": reason})


def make_clusters(job: Job) -> Outcome:
    """RECORDS + COMPONENTS -> CLUSTERS, SET_ASIDE."""
    store = job.store
    records, embeddings = store.read(schema.RECORDS), model_rows(store, job.model)
    problems = embeddings.where(F.col("problem").isNotNull()).select(EXACT_KEY, "problem")
    clusters = expand_clusters(
        records,
        store.read(schema.REPRESENTATIVES),
        problems,
        store.read(schema.COMPONENTS),
        store.read(schema.CANDIDATE_PAIRS),
        tuple(split_order(order)[1] for order in job.config.keep.order_by),
        job.run_id,
    )
    noted = Observation("clusters")
    kept = F.col("is_canonical") & (F.col("cluster_size") > 1)
    figures = {
        "clusters": F.count(F.when(kept, 1)),
        "clustered_rows": F.count(F.when(F.col("cluster_size") > 1, 1)),
        "removable_rows": F.count(F.when(~F.col("is_canonical"), 1)),
        "largest": F.max("cluster_size"),
        **{kind: F.count(F.when(F.col("match_kind") == kind, 1)) for kind in KINDS},
    }
    written, size = job.write(schema.CLUSTERS, clusters.observe(noted, *[c.alias(n) for n, c in figures.items()]), "clusters")
    _, more = job.write(schema.SET_ASIDE, list_set_aside(records, embeddings, job.run_id), "clusters")
    rows = job.finished["records"].rows_out
    if written != rows:
        raise StoreError(f"{written} rows in clusters for {rows} records; _records has them all", hint="report this with the `runs` table")
    return Outcome(rows, written, size + more, observed(noted, *figures), {}, {})


EXAMPLES = 10
"""Offending rows that an error shows."""

KINDS = ("exact", "near", "single", "no_text", "bad_embedding")

STEPS: tuple[tuple[str, Callable[[Job], Outcome]], ...] = (
    ("records", make_records),
    ("representatives", make_representatives),
    ("embeddings", make_embeddings),
    ("vectors", make_vectors),
    ("index", make_index),
    ("candidates", make_candidates),
    ("components", make_components),
    ("clusters", make_clusters),
)

MAKES: dict[str, tuple[Table, ...]] = {
    "records": (schema.RECORDS,),
    "representatives": (schema.REPRESENTATIVES, schema.MEMBERS),
    "embeddings": (schema.EMBEDDINGS,),
    "vectors": (schema.VECTORS,),
    "index": (schema.INDEX_CELLS, schema.INDEX, schema.INDEX_SHARDS),
    "candidates": (schema.CANDIDATE_PAIRS,),
    "components": (schema.COMPONENTS,),
    "clusters": (schema.CLUSTERS, schema.SET_ASIDE),
}

UNITS: dict[str, tuple[str, ...]] = {
    "records": ("rows",),
    "representatives": ("rows", "distinct texts"),
    "embeddings": ("texts",),
    "vectors": ("vectors",),
    "index": ("vectors",),
    "candidates": ("vectors", "pairs"),
    "components": ("texts",),
    "clusters": ("rows",),
}
"""What a stage handles and, where it is something else, what comes out."""
