"""The wiring: one function per stage, in the order in which the data flows."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from pyspark.sql import Observation
from pyspark.sql import functions as F

from spark_dedup import schema
from spark_dedup.config import DedupConfig
from spark_dedup.errors import StoreError
from spark_dedup.evaluation.plan import pairs_among
from spark_dedup.job import Job, Outcome, Step, checkpoint_folder, observed, open_job, worker_partitions
from spark_dedup.kernels.models import pinned
from spark_dedup.kernels.text import ISSUES
from spark_dedup.manifest import RunManifest
from spark_dedup.measuring import RECALL
from spark_dedup.progress import Progress
from spark_dedup.proposing import make_blocks
from spark_dedup.schema import EXACT_KEY, REP_ID
from spark_dedup.searching import cells_of, make_candidates, make_index
from spark_dedup.session import components_engine, get_session
from spark_dedup.source import check_ids
from spark_dedup.stages.clusters import expand_clusters, list_set_aside, split_components, whole_components
from spark_dedup.stages.components import components
from spark_dedup.stages.embed import BLOCK_ROWS, check_column, column_error, embed_texts, embeddings_from_column
from spark_dedup.stages.index_cells import centroid_similarities
from spark_dedup.stages.normalize import normalize_records
from spark_dedup.stages.representatives import assign_members, choose_representatives
from spark_dedup.stages.score import accepted_edges
from spark_dedup.stages.vectors import search_vectors
from spark_dedup.store import TableStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


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
    steps = steps_of(config)
    job = open_job(config, spark, steps, rebuild=rebuild, progress=progress)
    ahead = [step for step in steps if step.name not in job.finished]
    for step in ahead:
        job.finish(job.perform(step))
    if ahead:
        job.record(job.whole(time.monotonic() - begun))
    return job.manifest(steps, time.monotonic() - begun, did_work=bool(ahead))


def steps_of(config: DedupConfig) -> tuple[Step, ...]:
    """The stages of a run in their order."""
    return (*STEPS[:2], BLOCKS, *STEPS[2:]) if config.blocking.keys else STEPS


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
    limits = {}
    if job.config.exact.route == "bypass":
        counts["pairs_left"] = pairs_among(written - groups)
        limits["pairs_unseen"] = pairs_among(written) - counts["pairs_left"]
    return Outcome(members, written, size + members_size, counts, limits, {})


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
    counts = {"embedded": embedded, "reused": max(0, total - embedded), "bad_embedding": bad}
    notes = {"encoder": config.encoder, **({"model": config.model} if config.encoder == "sentence-transformers" else {})}
    return Outcome(total, total, size, counts, {"cut_text": cut}, notes)


def model_rows(store: TableStore, model: str) -> DataFrame:
    """EMBEDDINGS of one model."""
    return store.read(schema.EMBEDDINGS).where(F.col("model") == model)


def make_vectors(job: Job) -> Outcome:
    """REPRESENTATIVES + EMBEDDINGS -> VECTORS."""
    vectors = search_vectors(job.store.read(schema.REPRESENTATIVES), model_rows(job.store, job.model), job.config.exact)
    noted = Observation("vectors")
    heads = F.count(F.when(F.col("head_id") == F.col(REP_ID), 1)).alias("distinct_vectors")
    written, size = job.write(schema.VECTORS, vectors.observe(noted, heads), "vectors")
    return Outcome(None, written, size, {"vectors": written, **observed(noted, "distinct_vectors")}, {}, {})


def make_components(job: Job) -> Outcome:
    """CANDIDATE_PAIRS -> EDGES -> LABELS -> COMPONENTS."""
    store, config = job.store, job.config.components
    engine, reason = components_engine(job.caps, config.engine)
    vertices = store.read(schema.REPRESENTATIVES).select(REP_ID)
    edges = accepted_edges(store.read(schema.CANDIDATE_PAIRS))
    folder = None if job.caps.local else checkpoint_folder(job.spark, job.config, store, job.caps)
    noted = Observation("components")
    with components(vertices, edges, engine=engine, checkpoint_dir=folder) as labels:
        if job.config.clusters.method == "canonical":
            records, representatives = store.read(schema.RECORDS), store.read(schema.REPRESENTATIVES)
            tiles = worker_partitions(job, job.finished["candidates"].counts["edges"])
            order, near = job.source.keep_order, similarities(job)
            found = split_components(labels, edges, records, representatives, order, near, tiles=tiles)
        else:
            found = whole_components(labels)
        figures = {name: F.count(F.when(F.col(REP_ID) == F.col(f"{name[:-1]}_id"), 1)).alias(name) for name in ("components", "clusters")}
        written, size = job.write(schema.COMPONENTS, found.observe(noted, *figures.values()), "components")
    total = observed(noted, *figures)
    counts = {"components": total["components"], "absorbed": written - total["components"]}
    if job.config.clusters.method == "canonical":
        counts["split_off"] = total["clusters"] - total["components"]
    return Outcome(None, written, size, counts, {}, {"engine": engine, "engine_reason": reason})


def similarities(job: Job) -> DataFrame | None:
    """Similarity of each text with the centroid of its cell, where the keep policy asks for it."""
    if not job.source.by_centroid:
        return None
    return centroid_similarities(job.store.read(schema.VECTORS), cells_of(job.store.read(schema.INDEX_CELLS)))


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
        job.source.keep_order,
        job.run_id,
        similarities(job),
    )
    noted = Observation("clusters")
    kept = F.col("is_canonical") & (F.col("cluster_size") > 1)
    figures = {
        "clusters": F.count(F.when(kept, 1)),
        "clustered_rows": F.count(F.when(F.col("cluster_size") > 1, 1)),
        "removable_rows": F.count(F.when(~F.col("is_canonical"), 1)),
        "largest": F.max("cluster_size"),
        "indirect": F.count(F.when(~F.col("direct"), 1)),
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

BLOCKS = Step("blocks", make_blocks, (schema.BLOCK_KEYS, schema.BLOCKS), ("texts", "blocks"), after="representatives")
"""Only where there are blocking keys."""


STEPS = (
    Step("records", make_records, (schema.RECORDS,), ("rows",)),
    Step("representatives", make_representatives, (schema.REPRESENTATIVES, schema.MEMBERS), ("rows", "distinct texts"), after="records"),
    Step("embeddings", make_embeddings, (schema.EMBEDDINGS,), ("texts",), after="representatives"),
    Step("vectors", make_vectors, (schema.VECTORS,), ("vectors",), after="embeddings"),
    Step("index", make_index, (schema.INDEX_CELLS, schema.INDEX, schema.INDEX_SHARDS), ("vectors",), after="vectors"),
    Step("candidates", make_candidates, (schema.CANDIDATE_PAIRS,), ("vectors", "pairs"), after="vectors"),
    Step("components", make_components, (schema.COMPONENTS,), ("texts",), after="representatives"),
    Step("clusters", make_clusters, (schema.CLUSTERS, schema.SET_ASIDE), ("rows",), after="records"),
    RECALL,
)
