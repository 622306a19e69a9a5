"""VECTORS -> INDEX -> CANDIDATE_PAIRS: the index of the engine, the self-join, and one row for each pair, whatever found it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.sql import Observation
from pyspark.sql import functions as F

from spark_dedup import schema
from spark_dedup.config import SearchConfig
from spark_dedup.engines import ENGINES, Engine, SelfJoin, choose_engine, chosen
from spark_dedup.evaluation.recall import QUOTED
from spark_dedup.evaluation.tuning import tune_cells
from spark_dedup.index_files import ShardFiles, choose_placement, index_files
from spark_dedup.job import Job, Outcome, observed, worker_partitions
from spark_dedup.kernels.cells import Cells
from spark_dedup.pgvector import index_in_postgres, neighbours_in_postgres
from spark_dedup.proposing import proposals
from spark_dedup.shards import index_manifest
from spark_dedup.stages.candidates_pgvector import Neighbours
from spark_dedup.stages.score import judge_pairs, one_row_a_pair
from spark_dedup.store import TableStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def make_index(job: Job) -> Outcome:
    """VECTORS -> INDEX_CELLS, INDEX, INDEX_SHARDS; nothing for an engine that needs no index."""
    store, heads = job.store, distinct_vectors(job)
    search = chosen(job.config.search, heads)
    notes = dict(zip(("engine", "engine_reason"), choose_engine(job.config.search.engine, heads), strict=True))
    engine, vectors = ENGINES[search.engine], store.read(schema.VECTORS)
    if engine.in_postgres:
        return index_in_postgres(job, search, heads, notes)
    if engine.indexed is None:
        return Outcome(heads, 0, 0, {}, {}, notes)
    train, build = engine.indexed
    search, tuning = tuned(job, search)
    job.write(schema.INDEX_CELLS, train(vectors, heads, search), "index")
    _, size = job.write(schema.INDEX, build(vectors, read_cells(store, engine), search), "index")
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
