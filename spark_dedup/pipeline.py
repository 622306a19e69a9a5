"""The wiring: one function per stage, in the order in which the data flows."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from pyspark.sql import Observation
from pyspark.sql import functions as F

from spark_dedup import schema
from spark_dedup.config import DedupConfig, SearchConfig
from spark_dedup.engines import ENGINES, Engine, SelfJoin, choose_engine, chosen
from spark_dedup.errors import StoreError
from spark_dedup.evaluation.plan import pairs_among
from spark_dedup.evaluation.recall import RecallRow, quote, recall_rows
from spark_dedup.evaluation.truth import budgeted_sample, is_truth_of, product_rate, sample_rows, true_pairs, truth_fingerprint
from spark_dedup.index_files import ShardFiles, choose_placement, index_files
from spark_dedup.job import Job, Outcome, Step, checkpoint_folder, open_job
from spark_dedup.kernels.cells import Cells
from spark_dedup.kernels.minhash import bands_for, s_curve
from spark_dedup.kernels.models import pinned
from spark_dedup.kernels.text import ISSUES
from spark_dedup.manifest import RECALL_NOT_MEASURED, RunManifest
from spark_dedup.progress import Progress
from spark_dedup.schema import EXACT_KEY, REP_ID
from spark_dedup.session import components_engine, get_session
from spark_dedup.shards import index_manifest
from spark_dedup.source import check_ids, split_order
from spark_dedup.stages.candidates_lsh import EVENTS as LSH_EVENTS
from spark_dedup.stages.candidates_lsh import lsh_pairs, sketch_texts
from spark_dedup.stages.clusters import expand_clusters, list_set_aside
from spark_dedup.stages.components import components
from spark_dedup.stages.embed import BLOCK_ROWS, check_column, column_error, embed_texts, embeddings_from_column
from spark_dedup.stages.normalize import normalize_records
from spark_dedup.stages.representatives import assign_members, choose_representatives
from spark_dedup.stages.score import accepted_edges, judge_pairs, one_row_a_pair, verify_pairs
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
    job = open_job(config, spark, STEPS, rebuild=rebuild, progress=progress)
    ahead = [step for step in STEPS if step.name not in job.finished]
    for step in ahead:
        job.finish(job.perform(step))
    if ahead:
        job.record(job.whole(time.monotonic() - begun))
    return job.manifest(STEPS, time.monotonic() - begun, did_work=bool(ahead))


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
    heads = F.count(F.when(F.col("head_id") == F.col(REP_ID), 1)).alias("distinct_vectors")
    written, size = job.write(schema.VECTORS, vectors.observe(noted, heads), "vectors")
    return Outcome(None, written, size, {"vectors": written, **observed(noted, "distinct_vectors")}, {}, {})


def make_index(job: Job) -> Outcome:
    """VECTORS -> INDEX_CELLS, INDEX, INDEX_SHARDS; nothing for an engine that needs no index."""
    store, heads = job.store, distinct_vectors(job)
    search = chosen(job.config.search, heads)
    notes = dict(zip(("engine", "engine_reason"), choose_engine(job.config.search.engine, heads), strict=True))
    indexed, vectors = ENGINES[search.engine].indexed, store.read(schema.VECTORS)
    if indexed is None:
        return Outcome(heads, 0, 0, {}, {}, notes)
    train, build = indexed
    job.write(schema.INDEX_CELLS, train(vectors, heads, search), "index")
    _, size = job.write(schema.INDEX, build(vectors, read_cells(store, ENGINES[search.engine]), search), "index")
    job.write(schema.INDEX_SHARDS, index_manifest(store.read(schema.INDEX)), "index")
    shards = {row["shard"]: row["rows"] for row in store.read(schema.INDEX_SHARDS).select("shard", "rows").collect()}
    counts = {"shards": len(shards), "largest_shard": max(shards.values(), default=0)}
    return Outcome(heads, sum(shards.values()), size, counts, {}, notes)


def distinct_vectors(job: Job) -> int:
    """Vectors that differ from each other."""
    return job.finished["vectors"].counts["distinct_vectors"]


def read_cells(store: TableStore, engine: Engine) -> Cells:
    """INDEX_CELLS on the driver: one row per cell, a few megabytes at most; none for an engine without index."""
    return cells_of(store.read(schema.INDEX_CELLS)) if engine.indexed else Cells.from_rows([])


def cells_of(rows: DataFrame) -> Cells:
    """INDEX_CELLS on the driver."""
    return Cells.from_rows([tuple(row) for row in rows.select("cell", "shard", "centroid").collect()])


def make_candidates(job: Job) -> Outcome:
    """VECTORS x INDEX -> SCORED_PAIRS -> CANDIDATE_PAIRS."""
    representatives = job.store.read(schema.REPRESENTATIVES)
    found, judged = Observation("found"), Observation("judged")
    alike, limits, more, design = shared_words(job) if job.config.minhash.enabled else ((), {}, {}, {})
    with self_join(job, job.config.search, found) as (pairs, notes):
        candidates = judge_pairs(one_row_a_pair(pairs, *alike) if alike else pairs, representatives, job.config.merge, job.run_id)
        edges = F.count(F.when(F.col("is_edge"), 1)).alias("edges")
        written, size = job.write(schema.CANDIDATE_PAIRS, candidates.observe(judged, edges), "candidates")
    accepted = observed(judged, "edges")["edges"]
    counts = {"pairs": written, "edges": accepted, "refused": written - accepted, **observed(found, "asked_again"), **more}
    return Outcome(None, written, size, counts, observed(found, *ENGINES[notes["engine"]].events) | limits, notes | design)


def shared_words(job: Job) -> tuple[tuple[DataFrame, ...], dict[str, int], dict[str, int], dict[str, str]]:
    """REPRESENTATIVES -> SKETCHES -> PROPOSED_PAIRS -> SCORED_PAIRS, with limits reached, further figures, and the recall of the bands."""
    store, config = job.store, job.config.minhash
    texts, _ = job.write(schema.SKETCHES, sketch_texts(store.read(schema.REPRESENTATIVES), job.config.exact, config), "candidates")
    sketches, noted = store.read(schema.SKETCHES), Observation("buckets")
    bands, rows = bands_for(config.threshold, config.permutations, config.band_recall)
    tasks = max(worker_partitions(job, texts), -(-texts * bands // TASK_BUCKET_ROWS))
    proposed, _ = job.write(schema.PROPOSED_PAIRS, lsh_pairs(sketches, config, partitions=tasks, noted=noted), "candidates")
    tiles = max(worker_partitions(job, proposed), -(-texts // TILE_TEXTS))
    scored = verify_pairs(store.read(schema.PROPOSED_PAIRS), sketches, store.read(schema.VECTORS), config, tiles=tiles)
    design = f"{float(s_curve(config.threshold, bands, rows)):.3f} of the pairs at Jaccard {config.threshold:g} by design, not measured"
    counts = {"lsh_proposed": proposed, "bands": bands, "band_rows": rows}
    return (scored,), observed(noted, *LSH_EVENTS), counts, {"lsh_recall": design}


TASK_BUCKET_ROWS = 4_000_000
"""Texts times bands that a task sorts at once: some 100 MB."""

TILE_TEXTS = 20_000
"""Texts for which pairs are verified by a task, on average at most."""


@contextmanager
def self_join(
    job: Job, config: SearchConfig, noted: Observation | None = None, *, built: tuple[Cells, DataFrame] | None = None
) -> Iterator[tuple[DataFrame, dict[str, str]]]:
    """The pairs of the stored vectors with each other, by way of the stored index.

    Args:
        job: With finished stages up to `index`.
        config: The settings of the search; those that the index was built with must be the job's own.
        noted: Receives the events of the engine.
        built: Cells and INDEX to use in place of the stored ones.

    Yields:
        SCORED_PAIRS, to be read inside the block, and what was decided.
    """
    store, heads = job.store, distinct_vectors(job)
    name, reason = choose_engine(config.engine, heads)
    engine, vectors, notes = ENGINES[name], store.read(schema.VECTORS), {"engine": name, "engine_reason": reason}
    bringing: AbstractContextManager[DataFrame | ShardFiles | None] = nullcontext()
    if engine.indexed:
        manifest = (index_manifest(built[1]) if built else store.read(schema.INDEX_SHARDS)).collect()
        index = built[1] if built else store.read(schema.INDEX)
        size = sum(row["bytes"] for row in manifest)
        placement, why = choose_placement(config.placement, size, connect=job.caps.connect, max_result_bytes=job.caps.max_result_bytes)
        notes |= {"placement": placement, "placement_reason": why}
        bringing = index_files(index, manifest, local=job.caps.local) if placement == "broadcast" else nullcontext(index)
    partitions = worker_partitions(job, job.finished["vectors"].rows_out or 0)
    cells = built[0] if built else read_cells(store, engine)
    with bringing as reachable:
        yield engine.join(SelfJoin(vectors, reachable, cells, chosen(config, heads), heads, partitions, noted)), notes


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


def make_recall(job: Job) -> Outcome:
    """VECTORS -> TRUTH; TRUTH x CANDIDATE_PAIRS -> RECALL: what the search missed, on a sample that the run can afford."""
    store, config = job.store, job.config
    if config.recall.sample is None:
        return Outcome(None, 0, 0, {}, {}, {})
    texts = job.finished["vectors"].rows_out or 0
    vectors, rows = store.read(schema.VECTORS), sample_size(job, config.recall.sample) if texts else 0
    if not rows:
        why = f"recall.share {config.recall.share:g} of the run's seconds is too little" if texts else "no vectors"
        return Outcome(texts, 0, 0, {}, {}, {"recall": f"{RECALL_NOT_MEASURED} ({why})"})
    size = write_truth(job, rows)
    search = chosen(config.search, distinct_vectors(job))
    engine = ENGINES[search.engine]
    figures = recall_rows(
        store.read(schema.TRUTH),
        store.read(schema.CANDIDATE_PAIRS),
        store.read(schema.COMPONENTS),
        vectors,
        engine.limits(search, read_cells(store, engine)),
        rule=config.merge.condition,
        floor=config.search.floor,
        texts=texts,
        run_id=job.run_id,
        seconds=job.finished["index"].seconds + job.finished["candidates"].seconds,
        routing=config.exact.route == "representative",
    )
    more = store_figures(job, figures)
    true = next(row.pairs for row in figures if row.metric == "pair_recall")
    return Outcome(texts, len(figures), size + more, {"sample": rows, "true_pairs": true}, {}, {"recall": quote(figures)})


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
    """Texts whose true neighbours cost at most `recall.share` of the run so far."""
    first = job.store.read(schema.VECTORS).select(F.length("vector")).first()
    if not first:
        return 0
    dimension, texts, pairs = first[0] // 4, job.finished["vectors"].rows_out or 0, job.finished["candidates"].rows_out or 0
    tasks, products = job.caps.parallelism, 2.0 * texts * texts * dimension
    return budgeted_sample(
        wanted,
        texts,
        dimension=dimension,
        row_bytes=max(4.0 * dimension, job.finished["vectors"].bytes / texts),
        neighbours=2 * pairs / texts,
        seconds=sum(record.seconds for name, record in job.finished.items() if name != RECALL.name),
        share=job.config.recall.share,
        rate=product_rate(job.spark, dimension, tasks) if products > SLOW_CORE else SLOW_CORE * tasks,
        tasks=tasks,
        connect=job.caps.connect,
    )


SLOW_CORE = 1e9
"""FLOP/s of a core, at least; work of less than a second at this rate is not worth a measurement."""

EXAMPLES = 10
"""Offending rows that an error shows."""

KINDS = ("exact", "near", "single", "no_text", "bad_embedding")

RECALL = Step("recall", make_recall, (), ("texts", "figures"), after="vectors")

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
