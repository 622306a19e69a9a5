"""Other deduplicators over the same texts, each in a process of its own: their requirements exclude ours.

SPARK_DEDUP_BENCH_TEXT_DEDUP names a Python that has `text-dedup`, SPARK_DEDUP_BENCH_SEMHASH one that has `semhash`.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from spark_dedup.config import MinHashConfig
from spark_dedup.kernels.forest import least_connected
from spark_dedup.kernels.minhash import bands_for

Ints = NDArray[np.int64]

TEXT_DEDUP = os.environ.get("SPARK_DEDUP_BENCH_TEXT_DEDUP")
SEMHASH = os.environ.get("SPARK_DEDUP_BENCH_SEMHASH")

PARENTS = "import json, pickle, sys; print(json.dumps([[int(a), int(b)] for a, b in pickle.load(open(sys.argv[1], 'rb')).parent.items()]))"
"""text-dedup leaves its forest as a pickle of its own class."""

DUPLICATES = """
import json, sys
import numpy as np
from semhash import SemHash

vectors = np.load(sys.argv[1])
rows = [str(i) for i in range(len(vectors))]
found = SemHash.from_embeddings(embeddings=vectors, records=rows, model=None).self_deduplicate(threshold=float(sys.argv[2]))
print(json.dumps([[int(d.record), int(d.duplicate_of)] for d in found.filtered]))
"""


def closure(n: int, left: Ints, right: Ints) -> Ints:
    """The cluster of each of n rows after joining pairs: its least row."""
    found = np.arange(n, dtype=np.int64)
    if len(left):
        ids, least = least_connected(left, right)
        found[ids] = least
    return found


def text_dedup(texts: list[str], folder: Path, config: MinHashConfig) -> Ints:
    """Clusters of texts that share a MinHash bucket, which is a duplicate there: int64 (n,), the least row of each cluster."""
    bands, rows = bands_for(config.threshold, config.permutations, config.band_recall)
    source, out = folder / "text-dedup.parquet", folder / "text-dedup"
    pq.write_table(pa.table({"row": np.arange(len(texts)), "text": texts}), source)
    command = [str(TEXT_DEDUP), "-m", "text_dedup.minhash", "--path", "parquet", "--data_files", str(source), "--split", "train", "--debug"]
    command += ["--cache_dir", str(folder / "cache"), "--output", str(out), "--column", "text", "--idx_column", "row", "--min_length", "0"]
    command += ["--ngram", str(config.ngram), "--num_perm", str(config.permutations), "--b", str(bands), "--r", str(rows)]
    command += ["--hash_func", "xxh3", "--num_proc", str(os.cpu_count() or 1)]
    environment = {**os.environ, "HF_HOME": str(folder / "cache"), "HF_HUB_OFFLINE": "1"}
    subprocess.run(command, check=True, capture_output=True, env=environment)
    return clusters(len(texts), [str(TEXT_DEDUP), "-c", PARENTS, str(out / "uf.pkl")])


def semhash(vectors: NDArray[np.float32], folder: Path, threshold: float) -> Ints:
    """Clusters of rows that semhash calls duplicates of each other: int64 (n,), the least row of each cluster."""
    np.save(folder / "semhash.npy", vectors)
    return clusters(len(vectors), [str(SEMHASH), "-c", DUPLICATES, str(folder / "semhash.npy"), str(threshold)])


def clusters(n: int, command: list[str]) -> Ints:
    """The closure of the pairs that a command prints as JSON."""
    printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    pairs = np.array(json.loads(printed), dtype=np.int64).reshape(-1, 2)
    return closure(n, pairs[:, 0], pairs[:, 1])
