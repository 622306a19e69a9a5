"""The wiring: one function per stage, in the order in which the data flows."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pyspark.sql import Observation
from pyspark.sql import functions as F

from spark_dedup import schema
from spark_dedup.config import DedupConfig, SearchConfig
from spark_dedup.engines import ENGINES, Engine, SelfJoin, choose_engine, chosen
from spark_dedup.errors import StoreError
from spark_dedup.evaluation.blocks import key_costs, too_large
from spark_dedup.evaluation.plan import pairs_among
from spark_dedup.evaluation.recall import QUOTED, RecallRow, quote, recall_rows, verdict
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
)
from spark_dedup.evaluation.tuning import tune_cells
from spark_dedup.index_files import ShardFiles, choose_placement, index_files
from spark_dedup.job import Job, Outcome, Step, checkpoint_folder, open_job
from spark_dedup.kernels.cells import Cells
from spark_dedup.kernels.minhash import bands_for, s_curve
from spark_dedup.kernels.models import pinned
from spark_dedup.kernels.text import ISSUES
from spark_dedup.manifest import PROPOSED_IN, RECALL_NOT_MEASURED, RunManifest
from spark_dedup.pgvector import index_in_postgres, neighbours_in_postgres
from spark_dedup.progress import Progress
from spark_dedup.schema import EXACT_KEY, LSH, REP_ID
from spark_dedup.session import components_engine, get_session
from spark_dedup.shards import index_manifest
from spark_dedup.source import check_ids
from spark_dedup.stages.candidates_block import block_keys, block_pairs, block_sizes
from spark_dedup.stages.candidates_lsh import EVENTS as LSH_EVENTS
from spark_dedup.stages.candidates_lsh import lsh_pairs, sketch_texts
from spark_dedup.stages.candidates_pgvector import Neighbours
from spark_dedup.stages.clusters import expand_clusters, list_set_aside, split_components, whole_components
from spark_dedup.stages.components import components
from spark_dedup.stages.embed import BLOCK_ROWS, check_column, column_error, embed_texts, embeddings_from_column
from spark_dedup.stages.index_cells import centroid_similarities
from spark_dedup.stages.normalize import normalize_records
from spark_dedup.stages.representatives import assign_members, choose_representatives
from spark_dedup.stages.score import Floors, accepted_edges, judge_pairs, one_row_a_pair, verify_pairs
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


def observed(noted: Observation, *names: str) -> dict[str, int]:
    """Figures of an observation as whole numbers; 0 for those that Spark left out, as it does where a plan turns out empty."""
    try:
        found = noted.get
    except Exception as e:
        if type(e).__name__ != "Py4JJavaError" or "assertion failed" not in str(e):
            raise
        found = {}  # Spark 4 has no row to hand over where its optimizer removed the whole plan
    return {name: int(found.get(name) or 0) for name in names}


def make_blocks(job: Job) -> Outcome:
    """REPRESENTATIVES + RECORDS -> BLOCK_KEYS -> BLOCKS: what blocking will cost, told before anything is compared.

    Raises:
        ConfigError: If a block is too large and `blocking.large` is `refuse`.
    """
    store, config, noted = job.store, job.config.blocking, Observation("keys")
    keys = block_keys(store.read(schema.REPRESENTATIVES), store.read(schema.RECORDS), job.config.exact, config, noted)
    rows, size = job.write(schema.BLOCK_KEYS, keys, "blocks")
    sizes = block_sizes(store.read(schema.BLOCK_KEYS), config, partitions=block_tasks(job, rows))
    written, more = job.write(schema.BLOCKS, sizes, "blocks")
    known = observed(noted, "texts", *(f"has_{name}" for name in config.expressions))
    costs = key_costs(store.read(schema.BLOCKS), config, {name: known["texts"] - known[f"has_{name}"] for name in config.expressions})
    job.progress.tell([line for cost in costs for line in cost.lines()])
    large = [cost for cost in costs if cost.large]
    if large and config.large == "refuse":
        raise too_large(large, config)
    counts = {"key_rows": rows} | {f"comparisons:{c.key}": c.compared for c in costs} | {f"without_key:{c.key}": c.without for c in costs}
    caps_hit = {"blocks_split": sum(c.large for c in costs), "block_pairs_left_out": sum(c.comparisons - c.compared for c in costs)}
    notes = {f"blocks:{c.key}": "\n".join(map(str, c.largest)) for c in costs}
    return Outcome(known["texts"], written, size + more, counts, caps_hit, notes)


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
    if ENGINES[search.engine].in_postgres:
        return index_in_postgres(job, search, heads, notes)
    if indexed is None:
        return Outcome(heads, 0, 0, {}, {}, notes)
    train, build = indexed
    search, tuning = tuned(job, search)
    job.write(schema.INDEX_CELLS, train(vectors, heads, search), "index")
    _, size = job.write(schema.INDEX, build(vectors, read_cells(store, ENGINES[search.engine]), search), "index")
    job.write(schema.INDEX_SHARDS, index_manifest(store.read(schema.INDEX)), "index")
    shards = {row["shard"]: row["rows"] for row in store.read(schema.INDEX_SHARDS).select("shard", "rows").collect()}
    counts = {"shards": len(shards), "largest_shard": max(shards.values(), default=0)}
    return Outcome(heads, sum(shards.values()), size, counts, {}, notes | tuning)


def tuned(job: Job, search: SearchConfig) -> tuple[SearchConfig, dict[str, str]]:
    """The settings with which an engine reaches `recall.target`, and what is to be known of them; the same ones without a target."""
    engine, target, heads = ENGINES[search.engine], job.config.recall.target, distinct_vectors(job)
    if target is None or engine.indexed is None or engine.tries is None or not heads:
        return search, {}
    tries = engine.tries(search, heads)
    if [s.cells for s in tries] == [1]:
        return search, {"tuning": "none needed: with one cell all pairs are compared"}
    vectors, texts, floor = job.store.read(schema.VECTORS), job.finished["vectors"].rows_out or 0, max(QUOTED, search.floor)
    cells = [cells_of(engine.indexed[0](vectors, heads, s)) for s in tries]
    found = tune_cells(vectors, cells, texts=texts, heads=heads, floor=floor, target=target, usual=search.margin)
    if not found.tried:
        return search, {"tuning": f"nothing to tune for: {found.texts:,} texts have no neighbour with cosine >= {floor:.2f}"}
    best = replace(tries[found.best], margin=found.tried[found.best].margin)
    tried = [f"{s.cells:,} cells within {t.margin:g}: {t.products:,.0f}" for s, t in zip(tries, found.tried, strict=True)]
    reason = (
        f"for recall {target:g} of the {found.pairs:,} true neighbours of {found.texts:,} texts with cosine >= {floor:.2f}; "
        f"products of a vector with {', with '.join(tried)}"
    )
    return best, {"cells": str(best.cells), "margin": str(best.margin), "tuning": reason}


def search_as_run(job: Job) -> SearchConfig:
    """The settings of the search with what `auto` and `recall.target` made of them."""
    search, notes = chosen(job.config.search, distinct_vectors(job)), job.finished["index"].notes
    return replace(search, cells=int(notes["cells"]), margin=float(notes["margin"])) if "margin" in notes else search


def distinct_vectors(job: Job) -> int:
    """Vectors that differ from each other."""
    return job.finished["vectors"].counts["distinct_vectors"]


def read_cells(store: TableStore, engine: Engine) -> Cells:
    """INDEX_CELLS on the driver: one row per cell, a few megabytes at most; none for an engine without index."""
    return cells_of(store.read(schema.INDEX_CELLS)) if engine.indexed else Cells.from_rows([])


def cells_of(rows: DataFrame) -> Cells:
    """INDEX_CELLS on the driver."""
    return Cells.from_rows([tuple(row) for row in rows.select("cell", "shard", "centroid").collect()])


@dataclass(frozen=True)
class Proposals:
    """What a source of candidates beside the engine has found.

    Attributes:
        scored: SCORED_PAIRS.
        caps_hit: Limits that were reached.
        counts: Further figures.
        notes: What was decided, and what its design says of its recall.
    """

    scored: DataFrame
    caps_hit: dict[str, int]
    counts: dict[str, int]
    notes: dict[str, str]


def make_candidates(job: Job) -> Outcome:
    """VECTORS x INDEX -> SCORED_PAIRS -> CANDIDATE_PAIRS."""
    representatives = job.store.read(schema.REPRESENTATIVES)
    found, judged = Observation("found"), Observation("judged")
    others = proposals(job)
    with self_join(job, search_as_run(job), found) as (pairs, notes):
        together = one_row_a_pair(pairs, *(other.scored for other in others)) if others else pairs
        candidates = judge_pairs(together, representatives, job.config.merge, job.run_id)
        edges = F.count(F.when(F.col("is_edge"), 1)).alias("edges")
        written, size = job.write(schema.CANDIDATE_PAIRS, candidates.observe(judged, edges), "candidates")
    accepted = observed(judged, "edges")["edges"]
    counts = {"pairs": written, "edges": accepted, "refused": written - accepted, **observed(found, "asked_again")}
    caps_hit = observed(found, *ENGINES[notes["engine"]].events)
    for other in others:
        counts, caps_hit, notes = counts | other.counts, caps_hit | other.caps_hit, notes | other.notes
    return Outcome(None, written, size, counts, caps_hit, notes)


def proposals(job: Job) -> list[Proposals]:
    """REPRESENTATIVES -> SKETCHES, and what each source beside the engine makes of them."""
    known = ((LSH, job.config.minhash.enabled, shared_words), ("block", job.config.blocking.keys, shared_keys))
    sources = {name: source for name, wanted, source in known if wanted}
    if not sources:
        return []
    begun, out = time.monotonic(), []  # the sketches count for the first source, which needs most of them
    sketches = sketch_texts(job.store.read(schema.REPRESENTATIVES), job.config.exact, job.config.minhash)
    texts, _ = job.write(schema.SKETCHES, sketches, "candidates")
    for name, source in sources.items():
        found = source(job, texts)
        now = time.monotonic()
        out.append(replace(found, notes=found.notes | {f"{PROPOSED_IN}{name}": f"{now - begun:.1f}"}))
        begun = now
    return out


def shared_words(job: Job, texts: int) -> Proposals:
    """SKETCHES -> PROPOSED_PAIRS -> SCORED_PAIRS, by MinHash."""
    store, config, noted = job.store, job.config.minhash, Observation("buckets")
    bands, rows = bands_for(config.threshold, config.permutations, config.band_recall)
    tasks = max(worker_partitions(job, texts), -(-texts * bands // TASK_BUCKET_ROWS))
    pairs = lsh_pairs(store.read(schema.SKETCHES), config, partitions=tasks, noted=noted)
    proposed, _ = job.write(schema.PROPOSED_PAIRS, pairs, "candidates")
    floors = Floors(config.threshold, unit=config.unit, ngram=config.ngram)
    design = f"{float(s_curve(config.threshold, bands, rows)):.3f} of the pairs at Jaccard {config.threshold:g} by design"
    counts = {"lsh_proposed": proposed, "bands": bands, "band_rows": rows}
    return Proposals(
        verified(job, schema.PROPOSED_PAIRS, proposed, texts, floors), observed(noted, *LSH_EVENTS), counts, {"lsh_recall": design}
    )


def shared_keys(job: Job, texts: int) -> Proposals:
    """BLOCK_KEYS -> BLOCK_PAIRS -> SCORED_PAIRS, by blocking keys."""
    config, rows = job.config.blocking, job.finished["blocks"].counts["key_rows"]
    pairs = block_pairs(job.store.read(schema.BLOCK_KEYS), config, partitions=block_tasks(job, rows))
    proposed, _ = job.write(schema.BLOCK_PAIRS, pairs, "candidates")
    floors = Floors(config.jaccard, job.config.search.floor)
    return Proposals(verified(job, schema.BLOCK_PAIRS, proposed, texts, floors), {}, {"block_proposed": proposed}, {})


def verified(job: Job, table: schema.Table, pairs: int, texts: int, floors: Floors) -> DataFrame:
    """SCORED_PAIRS of a stored table of proposed pairs."""
    tiles = max(worker_partitions(job, pairs), -(-texts // TILE_TEXTS))
    store = job.store
    return verify_pairs(store.read(table), store.read(schema.SKETCHES), store.read(schema.VECTORS), floors, tiles=tiles)


def block_tasks(job: Job, rows: int) -> int:
    """Partitions for work on blocks of so many rows altogether."""
    return max(worker_partitions(job, rows), -(-rows // TASK_KEY_ROWS))


TASK_KEY_ROWS = 1_000_000
"""Rows of BLOCK_KEYS that a task sorts at once: some 150 MB."""

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
        config: The settings of the search, `auto` replaced; those that the index was built with must be as run.
        noted: Receives the events of the engine.
        built: Cells and INDEX to use in place of the stored ones.

    Yields:
        SCORED_PAIRS, to be read inside the block, and what was decided.
    """
    store = job.store
    engine, vectors, notes = ENGINES[config.engine], store.read(schema.VECTORS), {"engine": config.engine}
    bringing: AbstractContextManager[DataFrame | ShardFiles | Neighbours | None] = nullcontext()
    if engine.indexed:
        manifest = (index_manifest(built[1]) if built else store.read(schema.INDEX_SHARDS)).collect()
        index = built[1] if built else store.read(schema.INDEX)
        size = sum(row["bytes"] for row in manifest)
        placement, why = choose_placement(config.placement, size, connect=job.caps.connect, max_result_bytes=job.caps.max_result_bytes)
        notes |= {"placement": placement, "placement_reason": why}
        bringing = index_files(index, manifest, local=job.caps.local) if placement == "broadcast" else nullcontext(index)
    if engine.in_postgres:
        bringing = neighbours_in_postgres(job, config, distinct_vectors(job))
    partitions = worker_partitions(job, job.finished["vectors"].rows_out or 0)
    cells = built[0] if built else read_cells(store, engine)
    with bringing as reachable:
        if isinstance(reachable, Neighbours):
            notes["postgres"] = reachable.told
        yield engine.join(SelfJoin(vectors, reachable, cells, config, distinct_vectors(job), partitions, noted)), notes


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
    texts = sketches.count()
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
    job: Job, pairs: DataFrame, components: DataFrame, search: SearchConfig, cells: Cells, *, seconds: float, setting: str = ""
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
    """Texts whose true neighbours cost at most `recall.share` of the run so far."""
    first = job.store.read(schema.VECTORS).select(F.length("vector")).first()
    if not first:
        return 0
    dimension, texts, pairs = first[0] // 4, job.finished["vectors"].rows_out or 0, job.finished["candidates"].rows_out or 0
    tasks, products = job.caps.parallelism, 2.0 * texts * texts * dimension
    row_bytes = max(4.0 * dimension, job.finished["vectors"].bytes / texts)
    rate = product_rate(job.spark, dimension, tasks) if products > SLOW_CORE else SLOW_CORE * tasks
    cost = truth_cost(texts, dimension=dimension, row_bytes=row_bytes, neighbours=2 * pairs / texts, rate=rate, tasks=tasks)
    seconds = sum(record.seconds for name, record in job.finished.items() if name != RECALL.name)
    most = CONNECT_BYTES / row_bytes if job.caps.connect else float("inf")
    return budgeted_sample(wanted, texts, cost, job.config.recall.share * seconds, most)


SLOW_CORE = 1e9
"""FLOP/s of a core, at least; work of less than a second at this rate is not worth a measurement."""

EXAMPLES = 10
"""Offending rows that an error shows."""

KINDS = ("exact", "near", "single", "no_text", "bad_embedding")

BLOCKS = Step("blocks", make_blocks, (schema.BLOCK_KEYS, schema.BLOCKS), ("texts", "blocks"), after="representatives")
"""Only where there are blocking keys."""

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
