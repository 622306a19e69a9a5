"""`spark-dedup plan`: what a run would take, from a rehearsal on a few rows and some seconds of measurement on this cluster.

The rehearsal is the run itself, on the first rows of the source, into a folder of its own: its seconds are what every stage costs
whatever its rows. Everything else is measured on a random sample of the texts. Nothing is written into the store.
"""

from __future__ import annotations

import tempfile
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql import functions as F

from spark_dedup import schema
from spark_dedup.checkpoints import delete_folder
from spark_dedup.config import DedupConfig, SearchConfig, absolute
from spark_dedup.engines import choose_engine
from spark_dedup.errors import SourceError
from spark_dedup.evaluation.plan import (
    OPENING,
    PAIR_BYTES,
    STAGES,
    Corpus,
    Growth,
    Plan,
    Rates,
    Sample,
    Search,
    costs,
    count_pairs,
    crowd_size,
    long_lists,
    pairs_among,
    warnings,
)
from spark_dedup.evaluation.truth import hash_drawn, product_rate
from spark_dedup.job import checkpoint_folder, model_fingerprint
from spark_dedup.kernels.cells import FINE_ITERATIONS, FINE_SAMPLE_PER_CELL, fine_cell_count, train_cells
from spark_dedup.kernels.encoder import shared_encoder
from spark_dedup.kernels.features import decode, features, pair_scores
from spark_dedup.kernels.models import pinned
from spark_dedup.kernels.products import near_within
from spark_dedup.kernels.text import exact_keys, normalize_all
from spark_dedup.kernels.vectors import cosines_at, from_binary, normalize_rows, to_binary
from spark_dedup.pipeline import model_rows, run
from spark_dedup.progress import Progress
from spark_dedup.schema import EXACT_KEY
from spark_dedup.session import Capabilities, get_session, probe, require_delta
from spark_dedup.source import Source, load, open_source
from spark_dedup.store import TableStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

REHEARSED_ROWS = 128
"""Enough for every stage to have something to do, few enough to be next to nothing for any encoder."""

EXACT_BYTES = 256e6
"""Text up to which all exact keys are computed; beyond, distinct raw texts are counted by a sketch in one pass, because that pass
would cost what the run's first stage costs."""

SKETCH_ERROR = 0.01
SAMPLE_TEXTS = 20_000
SAMPLE_BYTES = 64 << 20
"""The sample is compared with itself on the driver: all its pairs in a few seconds."""

SAMPLE_PAIRS = 3_000_000
"""Pairs at or above the floor beyond which half a sample tells as much."""

ENCODE_SECONDS = 5.0
"""Seconds for which every task encodes sampled texts, at most."""

BLOCK_TEXTS = 128
GRAPH_ROWS = 3000
SCORED = 256
"""Texts whose pairs are scored to see what that takes, and whose features travel for it."""

MOVED = ((1, 0), (200_000, 0), (40_000, 1024))
"""Rows, and random bytes in each, that are shuffled and written to see what that takes."""

SEED = 1
SAMPLED = (
    "vector binary, blob binary, text string, feature_bytes int, bytes int, encoded boolean, normalise double, features double, "
    "encode double"
)


@dataclass(frozen=True)
class Sampled:
    """What the tasks made of the sample.

    Attributes:
        vectors: float32 (n, d), unit rows, in random order.
        blobs: Features of some of the texts.
        feature_bytes: Mean of all.
        stored: Share of the texts whose vectors were in the store.
        usable: Share of the texts whose vectors can be used.
        whole: Whether every text of the table is in it.
        normalise: Seconds of one task for a byte.
        features: Seconds of one task for a byte.
        encode: Seconds of one task for a text.
    """

    vectors: NDArray[np.float32]
    blobs: list[bytes]
    feature_bytes: float
    stored: float
    usable: float
    whole: bool
    normalise: float
    features: float
    encode: float


def plan(
    config: DedupConfig, spark: SparkSession | None = None, *, price_per_hour: float | None = None, progress: Progress | None = None
) -> Plan:
    """Say what a run of these settings would do and take, without writing into its store.

    Args:
        config: The settings of the run.
        spark: As in `run`.
        price_per_hour: Of the cluster.
        progress: As in `run`.

    Returns:
        The plan.

    Raises:
        SourceError: A source that can not be read, or that has no text.
        SparkDedupError: Whatever would stop the run before its end on these rows.
    """
    begun = time.monotonic()
    spark, progress = get_session(spark), progress or Progress(mode="quiet")
    progress.watch(spark)
    caps = probe(spark)
    require_delta(caps)
    with rehearsal_folder(spark, config, caps) as folder:
        with progress.stage("rehearsal", REHEARSED_ROWS):
            stages = rehearse(config, spark, folder)
        source = open_source(spark, config)
        with progress.stage("counting") as shown:
            corpus = count(source, config)
            shown.rows_out = corpus.rows
        if not corpus.texts:
            raise SourceError(f"the source {config.source.table} has no text in {corpus.rows:,} rows: there is nothing to plan")
        with progress.stage("sample", unit="texts") as shown:
            dimension = max(1, int(stages["dimension"]))
            drawn = draw(spark, source, config, corpus, dimension, caps)
            shown.rows_out = len(drawn.vectors)
            searched = searched_texts(corpus, drawn, config)
            sample = look(drawn, searched, config.search)
        with progress.stage("rates"):
            rates = measure(spark, config, caps, stages, drawn, folder)
    search = settings(config)
    chosen, reason = choose_engine(config.search.engine, searched)
    return Plan(
        corpus=corpus,
        sample=sample,
        rates=rates,
        searched=searched,
        floor=config.search.floor,
        pairs_all=pairs_among(corpus.with_text),
        pairs_left=pairs_among(searched),
        wanted=config.search.engine,
        chosen=chosen,
        reason=reason,
        auto=choose_engine("auto", searched),
        costs=costs(corpus, sample, rates, search, searched, price_per_hour),
        candidate_bytes=sample.pairs.value * rates.pair_bytes,
        warnings=warnings(chosen, sample, search, searched),
        price_per_hour=price_per_hour,
        seconds=time.monotonic() - begun,
    )


def settings(config: DedupConfig) -> Search:
    """The settings that decide the costs of a search."""
    s = config.search
    return Search(
        neighbours=s.neighbours,
        max_neighbours=s.max_neighbours,
        max_copies=s.max_copies,
        links=s.links,
        ef_search=s.ef_search,
        ef_construction=s.ef_construction,
        shards=s.shards,
        cells=s.cells,
        recall_sample=config.recall.sample or 0,
        recall_share=config.recall.share,
    )


@contextmanager
def rehearsal_folder(spark: SparkSession, config: DedupConfig, caps: Capabilities) -> Iterator[str]:
    """A folder that every executor can write, gone at the end: a temporary one, beside the store, or where checkpoints go."""
    if caps.local:
        with tempfile.TemporaryDirectory(prefix="spark-dedup-plan-") as folder:
            yield folder
        return
    store, name = TableStore(spark, config.store), f"plan-{uuid.uuid4().hex}"
    folder = f"{absolute(store.where).rstrip('/')}.{name}" if store.is_folder else f"{checkpoint_folder(spark, config, store, caps)}/{name}"
    try:
        yield folder
    finally:
        delete_folder(spark, folder)


def rehearse(config: DedupConfig, spark: SparkSession, folder: str) -> dict[str, float]:
    """Run on the first rows, with an index and a measured recall.

    Returns:
        Seconds by stage; `rows`; `texts` that were encoded; `dimension`; `vector_bytes` and `pair_bytes` of a stored row.
    """
    table, _ = load(spark, config.source)
    table.limit(REHEARSED_ROWS).write.parquet(f"{folder}/source")
    small = replace(
        config,
        source=replace(config.source, table=f"{folder}/source", format="parquet", version=None),
        store=f"{folder}/tables",
        search=replace(config.search, engine="cells"),
        recall=replace(config.recall, share=1000.0),
    )
    manifest = run(small, spark)
    found = {record.stage: record.seconds for record in manifest.stages}
    vectors, pairs = manifest.stage("vectors"), manifest.stage("candidates")
    first = TableStore(spark, small.store).read(schema.VECTORS).select(F.length("vector")).first()
    return {
        **found,
        OPENING: max(0.0, manifest.seconds - sum(found.values())),
        "rows": manifest.stage("records").rows_out or 0,
        "texts": manifest.stage("embeddings").rows_out or 0,
        "dimension": first[0] // 4 if first else 0,
        "vector_bytes": vectors.bytes / max(1, vectors.rows_out or 0),
        "pair_bytes": pairs.bytes / pairs.rows_out if pairs.rows_out and pairs.rows_out >= 1000 else PAIR_BYTES,
    }


def keyed(rows: DataFrame, config: DedupConfig) -> DataFrame:
    """Put the exact key before the columns of rows with a text."""
    form = {"lowercase": config.exact.lowercase, "strip_punctuation": config.exact.strip_punctuation}
    kinds = ", ".join(f"`{f.name}` {f.dataType.simpleString()}" for f in rows.schema.fields)

    def add(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            keys = exact_keys(batch.column("text"), **form)
            yield pa.RecordBatch.from_arrays([keys, *batch.columns], names=[EXACT_KEY, *batch.schema.names])

    return rows.mapInArrow(add, f"`{EXACT_KEY}` string, {kinds}").where(F.col(EXACT_KEY).isNotNull())


def count(source: Source, config: DedupConfig) -> Corpus:
    """Rows, bytes and distinct texts: one pass, and a second one for exact keys where the text is small."""
    text = F.col("text")
    seen = source.records.agg(
        F.count(F.lit(1)),
        F.count(F.when(F.trim(text) != "", 1)),
        F.sum(F.octet_length(text)),
        F.approx_count_distinct(F.when(F.trim(text) != "", F.xxhash64(text)), SKETCH_ERROR),
    ).collect()[0]
    rows, with_text, size, texts = (int(v or 0) for v in seen)
    if size > EXACT_BYTES:
        return Corpus(rows=rows, with_text=with_text, text_bytes=size, texts=min(texts, with_text), exact=False)
    copied, groups = F.col("count") > 1, keyed(source.records.select("text"), config).groupBy(EXACT_KEY).count()
    figures = [F.sum("count"), F.count("*"), F.count(F.when(copied, 1)), F.sum(F.when(copied, F.col("count"))), F.max("count")]
    with_text, texts, copy_groups, copy_rows, largest = (int(v or 0) for v in groups.agg(*figures).collect()[0])
    return Corpus(
        rows=rows,
        with_text=with_text,
        text_bytes=size,
        texts=texts,
        exact=True,
        copy_groups=copy_groups,
        copy_rows=copy_rows,
        largest_group=largest,
    )


def searched_texts(corpus: Corpus, drawn: Sampled, config: DedupConfig) -> int:
    """Texts that take part in the search: those with a vector, under `exact.route: bypass` without groups of copies."""
    left_out = (corpus.copy_groups or 0) if config.exact.route == "bypass" else 0
    return max(len(drawn.vectors), round((corpus.texts - left_out) * drawn.usable)) if not drawn.whole else len(drawn.vectors)


def draw(spark: SparkSession, source: Source, config: DedupConfig, corpus: Corpus, dimension: int, caps: Capabilities) -> Sampled:
    """A random sample of the distinct texts with their vectors: stored ones, those of the source, or made by the encoder."""
    wanted = min(SAMPLE_TEXTS, SAMPLE_BYTES // (4 * dimension))
    found = sampled_rows(spark, source, config, corpus, wanted, caps)
    return gathered(found, whole=wanted >= corpus.texts and corpus.exact and len(found) == corpus.texts, dimension=dimension)


def sampled_rows(
    spark: SparkSession,
    source: Source,
    config: DedupConfig,
    corpus: Corpus,
    wanted: int,
    caps: Capabilities,
    *,
    kept: int = SCORED,
    seconds: float = ENCODE_SECONDS,
) -> list[Any]:
    """SAMPLED of distinct texts.

    Args:
        spark: Session.
        source: What is read.
        config: Settings that decide keys and vectors.
        corpus: Its counts.
        wanted: Texts wanted.
        caps: Of the session.
        kept: Texts of each task whose features and text are kept.
        seconds: Seconds for which every task encodes.
    """
    share = min(1.0, wanted / corpus.texts)
    columns = ["text", *(["embedding"] if "embedding" in source.records.columns else [])]
    rows = source.records.select(*columns)
    lottery = F.xxhash64(F.lit(SEED), F.col(EXACT_KEY) if corpus.exact else F.col("text"))
    drawn = hash_drawn(lottery, share)
    some = keyed(rows, config).where(drawn) if corpus.exact else keyed(rows.where(drawn), config)
    texts = some.groupBy(EXACT_KEY).agg(*[F.min_by(c, F.xxhash64("text")).alias(c) for c in columns])
    store, model = TableStore(spark, config.store), model_fingerprint(config, source)
    if store.exists(schema.EMBEDDINGS):
        stored = model_rows(store, model).where(F.col("vector").isNotNull()).select(EXACT_KEY, F.col("vector").alias("stored"))
        texts = texts.join(stored, EXACT_KEY, how="left")
    else:
        texts = texts.withColumn("stored", F.lit(None).cast("binary"))
    tasks = caps.parallelism
    return texts.repartition(tasks, EXACT_KEY).mapInArrow(sampler(config, model, kept, seconds), SAMPLED).collect()


def sampler(config: DedupConfig, model: str, kept_texts: int, seconds: float) -> Any:
    """The function that gives sampled texts their vectors and features, and says how long that took, until its time is up."""
    embed = pinned(config.embed)
    form = {"lowercase": config.exact.lowercase, "strip_punctuation": config.exact.strip_punctuation}

    def work(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        ended, blobs_left = None, kept_texts
        for batch in batches:
            if ended is None and batch.num_rows:  # what the first call loads is no part of a rate
                exact_keys(batch.column("text").slice(0, 1), **form)
                features(batch.column("text").slice(0, 1), **form)
            for start in range(0, batch.num_rows, BLOCK_TEXTS):
                if ended is not None and time.perf_counter() > ended:
                    return
                block = batch.slice(start, BLOCK_TEXTS)
                text, stored, n = block.column("text"), block.column("stored"), block.num_rows
                clock = [time.perf_counter()]
                exact_keys(text, **form)
                clock.append(time.perf_counter())
                blobs = features(text, **form)
                clock.append(time.perf_counter())
                missing = stored.is_null()
                new = n if "embedding" in block.schema.names else missing.to_numpy(zero_copy_only=False).sum()
                encode = 0.0
                if "embedding" in block.schema.names:
                    vectors = [_unit(v) for v in block.column("embedding").to_pylist()]
                elif new:
                    forms = normalize_all(text.filter(missing), **form)
                    encoder = shared_encoder(embed, 1, model)
                    if ended is None:
                        encoder.encode([forms[0] or ""])
                    begun = time.perf_counter()
                    unit, problems = normalize_rows(encoder.encode([form or "" for form in forms]))
                    encode = time.perf_counter() - begun
                    made = iter(to_binary(unit, np.array([p is None for p in problems])).to_pylist())
                    vectors = [next(made) if v is None else v for v in stored.to_pylist()]
                else:
                    vectors = stored.to_pylist()
                if ended is None:  # from here on, because a model may take long to load
                    ended = time.perf_counter() + seconds
                sizes = pa.compute.binary_length(blobs)
                kept = blobs.to_pylist()[:blobs_left]
                blobs_left -= len(kept)
                timed = [[clock[1] - clock[0]], [clock[2] - clock[1]], [encode]]
                yield pa.RecordBatch.from_arrays(
                    [
                        pa.array(vectors, pa.binary()),
                        pa.array(kept + [None] * (n - len(kept)), pa.binary()),
                        pa.array(text.slice(0, len(kept)).to_pylist() + [None] * (n - len(kept)), pa.string()),
                        sizes.cast(pa.int32()),
                        pa.compute.binary_length(text).cast(pa.int32()),
                        missing,
                        *[pa.array(t + [0.0] * (n - 1)) for t in timed],
                    ],
                    names=["vector", "blob", "text", "feature_bytes", "bytes", "encoded", "normalise", "features", "encode"],
                )

    return work


def _unit(values: list[float] | None) -> bytes | None:
    """A vector of the source at length 1, None where it has no direction."""
    unit, problems = normalize_rows(np.array([values], dtype=np.float64) if values else np.zeros((1, 1)))
    return None if problems[0] else unit[0].astype("<f4").tobytes()


def gathered(rows: list[Any], *, whole: bool, dimension: int) -> Sampled:
    """Rows of SAMPLED as arrays and rates."""
    usable = [bytes(row["vector"]) for row in rows if row["vector"] is not None]
    vectors = from_binary(pa.array(usable, pa.large_binary()), dimension) if usable else np.zeros((0, dimension), dtype=np.float32)
    order = np.random.default_rng(SEED).permutation(len(vectors))
    size, n = max(1, sum(row["bytes"] for row in rows)), max(1, len(rows))
    encoded = sum(row["encoded"] for row in rows)
    return Sampled(
        vectors=np.ascontiguousarray(vectors[order]),
        blobs=[bytes(row["blob"]) for row in rows if row["blob"] is not None][:SCORED],
        feature_bytes=sum(row["feature_bytes"] or 0 for row in rows) / n,
        stored=1 - encoded / n,
        usable=len(usable) / n,
        whole=whole,
        normalise=sum(row["normalise"] for row in rows) / size,
        features=sum(row["features"] for row in rows) / size,
        encode=sum(row["encode"] for row in rows) / max(1, encoded),
    )


def look(drawn: Sampled, searched: int, config: SearchConfig) -> Sample:
    """Pairs, families and cells of a sample."""
    vectors, degrees = drawn.vectors, None
    while degrees is None:
        degrees = degrees_within(vectors, config.floor)
        if degrees is None:
            vectors = vectors[: len(vectors) // 2]
    n, dimension = vectors.shape
    _, sizes = np.unique(vectors.view(f"V{4 * dimension}"), return_counts=True) if n else (None, np.ones(1, dtype=np.int64))
    cells = fine_cell_count(searched, config.cells, config.shards)
    visits, crowding = 1.0, 1.0
    cells_tried = min(cells, n // 8)
    if cells_tried > 1:
        trained = train_cells(vectors[: FINE_SAMPLE_PER_CELL * cells_tried], 1, cells_tried, FINE_ITERATIONS)
        visits, crowding = trained.habits(vectors, config.margin)
    return Sample(
        texts=n,
        dimension=dimension,
        feature_bytes=drawn.feature_bytes,
        stored=drawn.stored,
        pairs=count_pairs(degrees, searched),
        full=(long_lists(degrees, searched, config.neighbours), long_lists(degrees, searched, config.max_neighbours)),
        crowd=crowd_size(int(sizes.max()), min(1.0, n / searched)),
        visits=visits,
        crowding=crowding,
    )


def degrees_within(vectors: NDArray[np.float32], floor: float) -> NDArray[np.int64] | None:
    """Neighbours of each vector among the others at or above the floor: int64 (n,); None beyond `SAMPLE_PAIRS` pairs."""
    degrees, pairs = np.zeros(len(vectors), dtype=np.int64), 0
    for near in near_within(vectors, floor):
        degrees += np.bincount(near.left, minlength=len(vectors)) + np.bincount(near.right, minlength=len(vectors))
        pairs += len(near.left)
        if pairs > SAMPLE_PAIRS:
            return None
    return degrees


def measure(spark: SparkSession, config: DedupConfig, caps: Capabilities, stages: dict[str, float], drawn: Sampled, folder: str) -> Rates:
    """What this cluster does in a second."""
    tasks = caps.parallelism
    alone, thin, wide = (move_seconds(spark, rows, size, tasks, f"{folder}/moved-{i}") for i, (rows, size) in enumerate(MOVED))
    move_row = max(0.0, thin - alone) / MOVED[1][0]
    move_byte = max(0.0, wide - alone - MOVED[2][0] * move_row) / (MOVED[2][0] * MOVED[2][1])
    kernel = kernel_rates(spark, drawn, config.search, tasks)
    sizes = graph_sizes(len(drawn.vectors))
    fixed = {stage: stages.get(stage, 0.0) for stage in (OPENING, *STAGES)}
    fixed["embeddings"] = max(0.0, fixed["embeddings"] - stages["texts"] * drawn.encode)
    return Rates(
        tasks=tasks,
        executors=caps.executors,
        rehearsed=int(stages["rows"]),
        fixed=fixed,
        normalise=drawn.normalise,
        features=drawn.features,
        encode=drawn.encode,
        product=product_rate(spark, max(1, drawn.vectors.shape[1]), tasks),
        move_row=move_row,
        move_byte=move_byte,
        pair=kernel["pair"],
        build=Growth.through((sizes[0], kernel["build_0"]), (sizes[1], kernel["build_1"])),
        ask=Growth.through((sizes[0], kernel["ask_0"]), (sizes[1], kernel["ask_1"])),
        distances=kernel["distances"],
        pair_bytes=stages["pair_bytes"],
        vector_bytes=stages["vector_bytes"],
    )


def move_seconds(spark: SparkSession, rows: int, size: int, tasks: int, folder: str) -> float:
    """Seconds to make rows of random bytes in Python, shuffle and write them."""

    def fill(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            data = np.random.default_rng(SEED).bytes(batch.num_rows * size)
            offsets = np.arange(batch.num_rows + 1, dtype=np.int32) * np.int32(size)
            blobs = pa.Array.from_buffers(pa.binary(), batch.num_rows, [None, pa.py_buffer(offsets), pa.py_buffer(data)])
            yield pa.RecordBatch.from_arrays([batch.column(0), blobs], names=["id", "data"])

    begun = time.perf_counter()
    spark.range(0, rows, 1, tasks).mapInArrow(fill, "id bigint, data binary").repartition(tasks, "id").write.parquet(folder)
    return time.perf_counter() - begun


def graph_sizes(n: int) -> tuple[int, int]:
    """Vectors of the two graphs that are built to see how the cost of one vector grows."""
    large = min(n, GRAPH_ROWS)
    return max(1, large // 3), max(1, large)


def kernel_rates(spark: SparkSession, drawn: Sampled, config: SearchConfig, tasks: int) -> dict[str, float]:
    """Seconds of a task for a vector in two graphs (`build_i`, `ask_i`) and for a `pair`, and `distances` of a query; all tasks at once."""
    sizes = graph_sizes(len(drawn.vectors))
    vectors, blobs = drawn.vectors[: sizes[1]], drawn.blobs

    def work(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            pass
        rates = {**graph_rates(vectors, sizes, config), "pair": pair_rate(vectors, blobs)}
        yield pa.RecordBatch.from_arrays([pa.array([rates[name]]) for name in names], names=names)

    names = ["build_0", "ask_0", "build_1", "ask_1", "distances", "pair"]
    found = spark.range(0, tasks, 1, tasks).mapInArrow(work, ", ".join(f"{name} double" for name in names))
    return dict(zip(names, found.agg(*[F.avg(name) for name in names]).collect()[0], strict=True))


def graph_rates(vectors: NDArray[np.float32], sizes: tuple[int, int], config: SearchConfig) -> dict[str, float]:
    """Seconds of a vector that enters and that asks graphs of two sizes, and the distances of a query in the larger one."""
    import faiss

    faiss.omp_set_num_threads(1)
    out: dict[str, float] = {}
    for i, n in enumerate(sizes):
        if not len(vectors):
            out |= {f"build_{i}": 0.0, f"ask_{i}": 0.0, "distances": 0.0}
            continue
        begun = time.perf_counter()
        index = faiss.IndexHNSWFlat(vectors.shape[1], config.links, faiss.METRIC_INNER_PRODUCT)
        index.hnsw.efConstruction = config.ef_construction
        index.add(vectors[:n])
        out[f"build_{i}"] = (time.perf_counter() - begun) / n
        index.hnsw.efSearch = max(config.ef_search, config.neighbours + 1)
        stats: Any = faiss.cvar  # FAISS's type stubs lack its statistics
        stats.hnsw_stats.reset()
        begun = time.perf_counter()
        index.search(vectors[:n], config.neighbours + 1)
        out[f"ask_{i}"] = (time.perf_counter() - begun) / n
        out["distances"] = stats.hnsw_stats.ndis / n
    return out


def pair_rate(vectors: NDArray[np.float32], blobs: list[bytes]) -> float:
    """Seconds to recompute the cosine of a pair and to score its texts."""
    n = min(len(vectors), len(blobs))
    if n < 2:
        return 0.0
    left, right = np.triu_indices(n, 1)
    block = decode(list(blobs[:n]))
    begun = time.perf_counter()
    cosines_at(vectors, left, vectors, right)
    pair_scores(block, left, block, right)
    return (time.perf_counter() - begun) / len(left)
