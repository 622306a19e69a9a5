"""The engine of exact products against the machine's own rate of float32 matrix products.

From the stored table of vectors to the stored table of pairs, with Spark running and every core at work; the limit is NumPy's product of
many vectors of that dimension with as many others, on the same cores, before and after each run. The best of the runs is compared
with the best of the products, since a machine shared with others is never faster than it is. Each pair of vectors counts once, and no
two vectors are equal. The pairs of every run must be those, bit for bit, that the kernel finds in one process.
"""

from __future__ import annotations

import os
import tempfile
import time
from typing import TYPE_CHECKING, Any

import numpy as np
from growth import REAL_ROWS, store
from hnsw import SEED, passages, synthetic
from selfjoin import exact_pairs

from spark_dedup.config import SearchConfig

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

REACH = 0.8
ROWS = int(os.environ.get("SPARK_DEDUP_BENCH_ROWS", "200000"))
SIDE = 8192
"""Vectors on either side of a product that is the limit: it takes 256 MB, too much for any cache."""

PRODUCTS = 12

RUNS = int(os.environ.get("SPARK_DEDUP_BENCH_RUNS", "3"))


def run(spark: SparkSession) -> dict[str, Any]:
    """Some runs of the engine, after a small one that warms the workers."""
    from spark_dedup.stages.candidates_exact import exact_candidates

    vectors, texts, source = passages(max(ROWS, REAL_ROWS)) or synthetic(ROWS)
    first = np.sort(np.unique(vectors.view(f"V{4 * vectors.shape[1]}").ravel(), return_index=True)[1])
    first = np.sort(np.random.default_rng(SEED).permutation(first)[:ROWS])
    vectors, texts = vectors[first], [texts[i] for i in first]
    rows, dimension = vectors.shape
    config = SearchConfig(engine="exact")
    cores = spark.sparkContext.defaultParallelism

    def engine(stored: str, pairs: str, size: int) -> float:
        began = time.perf_counter()
        exact_candidates(spark.read.parquet(stored), size, config, partitions=4 * cores).write.parquet(pairs)
        return time.perf_counter() - began

    began = time.perf_counter()
    keys, cosines = exact_pairs(vectors, config.floor, cores)
    kernel = flops(rows, dimension) / (time.perf_counter() - began)
    wanted = np.argsort(keys)
    keys, cosines = keys[wanted], cosines[wanted]

    def right(folder: str) -> bool:
        pairs = spark.read.parquet(folder).select("left_id", "right_id", "cosine").toPandas()
        own = (pairs["left_id"] * rows + pairs["right_id"]).to_numpy()
        order = np.argsort(own)
        return np.array_equal(own[order], keys) and np.array_equal(pairs["cosine"].to_numpy()[order], cosines)

    with tempfile.TemporaryDirectory(prefix="bench-exact-") as folder:
        for size in (4096, rows):
            store(f"{folder}/{size}", vectors, texts, size)
        engine(f"{folder}/4096", f"{folder}/warm", 4096)
        limits, seconds = [gemm_rate(dimension, cores)], []
        for i in range(RUNS):
            seconds.append(engine(f"{folder}/{rows}", f"{folder}/pairs-{i}", rows))
            limits.append(gemm_rate(dimension, cores))
        equal = all(right(f"{folder}/pairs-{i}") for i in range(RUNS))
    limit, rate = max(limits), flops(rows, dimension) / min(seconds)
    return {
        "name": "exact",
        "ratio": round(rate / limit, 3),
        "reach": f">= {REACH:.0%} of the machine's own rate",
        "met": rate / limit >= REACH and equal,
        "answers_equal": equal,
        "rows": rows,
        "source": source,
        "seconds": [round(x, 2) for x in seconds],
        "gflops": round(rate / 1e9, 1),
        "gemm_gflops": [round(x / 1e9, 1) for x in limits],
        "kernel_gflops": round(kernel / 1e9, 1),
        "pairs": len(keys),
    }


def flops(rows: int, dimension: int) -> float:
    """Operations of the products of all pairs of different rows, each pair once."""
    return float(rows) * (rows - 1) / 2 * 2 * dimension


def gemm_rate(dimension: int, cores: int) -> float:
    """Operations a second of the fastest of some float32 products of vectors with vectors, on this many threads."""
    from threadpoolctl import threadpool_limits

    rng = np.random.default_rng(SEED)
    a, b = (rng.random((SIDE, dimension), dtype=np.float32) for _ in range(2))
    out = np.empty((SIDE, SIDE), dtype=np.float32)
    best = np.inf
    with threadpool_limits(cores):
        for _ in range(PRODUCTS):
            began = time.perf_counter()
            np.matmul(a, b.T, out=out)
            best = min(best, time.perf_counter() - began)
    return 2.0 * SIDE**2 * dimension / best
