"""REPRESENTATIVES -> SCORED_PAIRS without vectors: what MinHash and blocking keys propose beside the engine."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pyspark.sql import Observation
from pyspark.sql import functions as F

from spark_dedup import schema
from spark_dedup.evaluation.blocks import key_costs, too_large
from spark_dedup.job import Job, Outcome, observed, worker_partitions
from spark_dedup.kernels.minhash import bands_for, s_curve, shingle_column
from spark_dedup.manifest import BLOCKING, PROPOSED_IN
from spark_dedup.schema import CONTAINMENT, LSH
from spark_dedup.stages.candidates_block import block_keys, block_pairs, block_sizes
from spark_dedup.stages.candidates_containment import LEFT_OUT, contained_pairs
from spark_dedup.stages.candidates_lsh import EVENTS as LSH_EVENTS
from spark_dedup.stages.candidates_lsh import lsh_pairs, sketch_texts
from spark_dedup.stages.score import Floors, verify_pairs

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

TASK_KEY_ROWS = 1_000_000
"""Rows of BLOCK_KEYS that a task sorts at once: some 150 MB."""

TASK_BUCKET_ROWS = 4_000_000
"""Texts times bands that a task sorts at once: some 100 MB."""

TASK_SHINGLE_BYTES = 32 << 20
"""Stored shingles, of eight bytes each, that a task sorts at once: some 250 MB."""

TILE_TEXTS = 20_000
"""Texts for which pairs are verified by a task, on average at most."""


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


def proposals(job: Job) -> list[Proposals]:
    """REPRESENTATIVES -> SKETCHES, and what each source beside the engine makes of them."""
    minhash = job.config.minhash
    known = (
        (LSH, minhash.enabled, shared_words),
        (CONTAINMENT, minhash.containment is not None, contained_words),
        (BLOCKING, job.config.blocking.keys, shared_keys),
    )
    sources = {name: source for name, wanted, source in known if wanted}
    if not sources:
        return []
    begun, out = time.monotonic(), []  # the sketches count for the first source, which needs most of them
    sketches = sketch_texts(job.store.read(schema.REPRESENTATIVES), job.config.exact, minhash)
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
    floors = Floors(jaccard=config.threshold, unit=config.unit, ngram=config.ngram)
    design = f"{float(s_curve(config.threshold, bands, rows)):.3f} of the pairs at Jaccard {config.threshold:g} by design"
    counts = {"lsh_proposed": proposed, "bands": bands, "band_rows": rows}
    return Proposals(
        verified(job, schema.PROPOSED_PAIRS, proposed, texts, floors), observed(noted, *LSH_EVENTS), counts, {"lsh_recall": design}
    )


def contained_words(job: Job, texts: int) -> Proposals:
    """SKETCHES -> CONTAINED_PAIRS -> SCORED_PAIRS: texts that lie inside longer ones."""
    store, config, noted = job.store, job.config.minhash, Observation("containment")
    sketches = store.read(schema.SKETCHES)
    size = sketches.agg(F.sum(F.octet_length(shingle_column(config.unit, config.ngram)))).collect()[0][0] or 0
    tasks = max(worker_partitions(job, texts), -(-size // TASK_SHINGLE_BYTES))
    proposed, _ = job.write(schema.CONTAINED_PAIRS, contained_pairs(sketches, config, partitions=tasks, noted=noted), "candidates")
    floors = Floors(containment=config.containment, unit=config.unit, ngram=config.ngram)
    scored = verified(job, schema.CONTAINED_PAIRS, proposed, texts, floors)
    return Proposals(scored, observed(noted, LEFT_OUT), {"contained_proposed": proposed}, {})


def shared_keys(job: Job, texts: int) -> Proposals:
    """BLOCK_KEYS -> BLOCK_PAIRS -> SCORED_PAIRS, by blocking keys."""
    config, rows = job.config.blocking, job.finished["blocks"].counts["key_rows"]
    pairs = block_pairs(job.store.read(schema.BLOCK_KEYS), config, partitions=block_tasks(job, rows))
    proposed, _ = job.write(schema.BLOCK_PAIRS, pairs, "candidates")
    floors = Floors(jaccard=config.jaccard, cosine=job.config.search.floor)
    return Proposals(verified(job, schema.BLOCK_PAIRS, proposed, texts, floors), {}, {"block_proposed": proposed}, {})


def verified(job: Job, table: schema.Table, pairs: int, texts: int, floors: Floors) -> DataFrame:
    """SCORED_PAIRS of a stored table of proposed pairs."""
    tiles = max(worker_partitions(job, pairs), -(-texts // TILE_TEXTS))
    store = job.store
    return verify_pairs(store.read(table), store.read(schema.SKETCHES), store.read(schema.VECTORS), floors, tiles=tiles)


def block_tasks(job: Job, rows: int) -> int:
    """Partitions for work on blocks of so many rows altogether."""
    return max(worker_partitions(job, rows), -(-rows // TASK_KEY_ROWS))
