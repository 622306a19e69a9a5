"""How the time and memory of the self-join by cells grow with the rows.

Real vectors as far as they go, then families of four near-copies round blends of two real vectors: copies of the real ones would multiply
the pairs of their families, and the bench would measure pairs. From the stored table of vectors to the stored table of pairs, with
Spark running. At each size the pairs of some rows are checked against products with all rows.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from hnsw import SEED, Floats, passages, synthetic, write_vectors
from selfjoin import LEAST_RECALL, THRESHOLD, stages

from spark_dedup.config import SearchConfig

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXPONENT = 1.2
MEMORY_EXPONENT = 0.2
"""Of the largest worker's own memory over the rows: 1.7 times as much for 16 times the rows is called flat."""

REAL_ROWS = 200_000
SIZES = tuple(int(x) for x in os.environ.get("SPARK_DEDUP_BENCH_SIZES", "50000,100000,200000,400000,800000").split(","))
FAMILY = 4
NOISE = 0.3
"""Length of what sets a member of a family apart: two of them have a cosine of about 1 / 1.09."""

SLICE = 8192
CHECKED_ROWS = 500


def run(spark: SparkSession) -> dict[str, Any]:
    """One run of each size, the smallest first, after a small one that warms the workers."""
    real = min(REAL_ROWS, max(SIZES))
    vectors, texts, source = passages(real) or synthetic(real)
    config = SearchConfig(engine="cells")
    found = []
    for size in SIZES:
        with tempfile.TemporaryDirectory(prefix="bench-growth-") as folder:
            heads = store(f"{folder}/vectors", vectors, texts, size)
            stored = spark.read.parquet(f"{folder}/vectors")
            if not found:
                stages(spark, stored.limit(9000), 9000, config, f"{folder}/warm")
            begun = time.perf_counter()
            with worker_memory() as peak:
                parts = stages(spark, stored, heads, config, f"{folder}/run")
            seconds = time.perf_counter() - begun
            recall, true = check(spark, f"{folder}/run/pairs", vectors, size, config)
        told = {name: parts[name] for name in ("seconds_of", "cells", "shards")}
        pairs = parts["events"]["pairs"]
        found.append(
            {
                "rows": size,
                "seconds": round(seconds, 2),
                "worker_mb": round(peak[0] / 1e6),
                "pairs": pairs,
                "recall": recall,
                "true": true,
                **told,
            }
        )
        print(found[-1], flush=True)
    exponent, memory = (slope(found, name) for name in ("seconds", "worker_mb"))
    right = all(x["recall"] >= LEAST_RECALL and x["true"] for x in found)
    return {
        "name": "growth",
        "ratio": round(exponent, 3),
        "reach": f"seconds grow with rows^{EXPONENT} at most, a worker's memory with rows^{MEMORY_EXPONENT}",
        "met": exponent <= EXPONENT and memory <= MEMORY_EXPONENT and right,
        "answers_equal": right,
        "memory_exponent": round(memory, 3),
        "source": source,
        "sizes": found,
    }


def slope(found: list[dict[str, Any]], name: str) -> float:
    """Exponent of a figure over the rows, by least squares of the logarithms; 0 of one size."""
    rows, values = (np.log([max(x[key], 1e-9) for x in found]) for key in ("rows", name))
    return float(np.polyfit(rows, values, 1)[0]) if len(found) > 1 else 0.0


def rows_from(vectors: Floats, start: int, size: int) -> Floats:
    """Rows start to start + SLICE of the table: real ones, then families; the same for any size."""
    stop, real = min(start + SLICE, size), len(vectors)
    out = [vectors[start : min(stop, real)]]
    first = max(start, real)
    if first < stop:
        families = np.arange(first, stop) // FAMILY
        seeds, member = np.unique(families, return_inverse=True)
        blends = np.stack([vectors[np.random.default_rng((SEED, int(f))).integers(0, real, 2)].sum(axis=0) for f in seeds])
        blends /= np.linalg.norm(blends, axis=1, keepdims=True)
        noise = np.stack([np.random.default_rng((SEED, 1, row)).normal(size=vectors.shape[1]) for row in range(first, stop)])
        x = blends[member] + NOISE * noise / np.linalg.norm(noise, axis=1, keepdims=True)
        out.append((x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32))
    return np.concatenate(out)


def store(path: str, vectors: Floats, texts: list[str], size: int) -> int:
    """Write the table; gives its distinct vectors. A planted row has the text of a real one, with a word of its family."""
    first: dict[int, int] = {}
    heads, distinct = np.arange(size), size
    used = vectors[:size]
    for row, key in enumerate(used.view(f"V{4 * used.shape[1]}").ravel()):
        heads[row] = first.setdefault(hash(bytes(key)), row)
    distinct = len(np.unique(heads))
    for start in range(0, size, SLICE):
        x = rows_from(vectors, start, size)
        ids = range(start, start + len(x))
        words = [texts[i] if i < len(texts) else f"{texts[(i // FAMILY) % len(texts)]} family {i // FAMILY}" for i in ids]
        write_vectors(path, start, heads[start : start + len(x)], x, words)
    return distinct


@contextmanager
def worker_memory() -> Iterator[list[int]]:
    """The most memory of its own, in bytes, that one Python worker of this process's Spark had inside the block."""
    peak, ended = [0], threading.Event()

    def look() -> None:
        while not ended.wait(0.05):
            parents = {int(p.name): stat(p) for p in Path("/proc").iterdir() if p.name.isdigit()}
            for pid, (_, is_worker) in parents.items():
                if is_worker and descends(pid, parents):
                    peak[0] = max(peak[0], anonymous(pid))

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    yield peak
    ended.set()
    thread.join()


def stat(process: Path) -> tuple[int, bool]:
    """Parent of a process, and whether it is a PySpark worker or the daemon that forks them; (0, False) once it is gone."""
    try:
        parent = int((process / "stat").read_text().rpartition(")")[2].split()[1])
        return parent, b"pyspark.daemon" in (process / "cmdline").read_bytes()
    except (OSError, ValueError, IndexError):
        return 0, False


def descends(pid: int, parents: dict[int, tuple[int, bool]]) -> bool:
    """Whether a process was started by this one."""
    while pid and pid != os.getpid():
        pid = parents.get(pid, (0, False))[0]
    return pid != 0


def anonymous(pid: int) -> int:
    """Bytes of memory that a process shares with no file; 0 once it is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("RssAnon")), 0)


def check(spark: SparkSession, pairs: str, vectors: Floats, size: int, config: SearchConfig) -> tuple[float, bool]:
    """Recall at THRESHOLD of the pairs of some rows, and whether all their stored pairs are true ones with the right cosine."""
    from pyspark.sql import functions as F

    from spark_dedup.kernels.products import near_between

    asked = np.sort(np.random.default_rng(SEED).permutation(size)[:CHECKED_ROWS])
    x = np.concatenate([rows_from(vectors, row // SLICE * SLICE, size)[row % SLICE][None] for row in asked.tolist()])
    true: dict[tuple[int, int], float] = {}
    for start in range(0, size, SLICE):
        for near in near_between(x, rows_from(vectors, start, size), config.floor):
            left, right = asked[near.left], near.right + start
            true |= {(int(min(a, b)), int(max(a, b))): float(c) for a, b, c in zip(left, right, near.cosine, strict=True) if a != b}
    wanted = spark.createDataFrame([(int(row),) for row in asked], "id bigint")
    stored = spark.read.parquet(pairs).select("left_id", "right_id", "cosine")
    ends = [stored.join(F.broadcast(wanted), stored[end] == wanted["id"], how="left_semi") for end in ("left_id", "right_id")]
    got = {(row[0], row[1]): row[2] for row in ends[0].unionByName(ends[1]).collect()}
    high = [pair for pair, cosine in true.items() if cosine >= THRESHOLD]
    recall = sum(pair in got for pair in high) / len(high) if high else 1.0
    return round(recall, 5), all(true.get(pair) == cosine for pair, cosine in got.items())
