"""What measuring costs, as a share of the run, and whether the interval that it gives holds the true recall.

A whole run in a process of its own, over real passages with their vectors as a column of the source: without an encoder the run is
as short as it gets. The true recall comes from products of all vectors.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from hnsw import Floats, passages, synthetic
from selfjoin import THRESHOLD, exact_pairs

from spark_dedup.config import RecallConfig, SearchConfig

SHARE = 0.10
ROWS = int(os.environ.get("SPARK_DEDUP_BENCH_ROWS", "200000"))


def run() -> dict[str, Any]:
    """One run with `search.engine: cells` and the default settings of `recall`."""
    vectors, texts, source = passages(ROWS) or synthetic(ROWS)
    with tempfile.TemporaryDirectory(prefix="bench-recall-") as folder:
        write_source(f"{folder}/source", vectors, texts)
        manifest = measured_run(folder)
        stages = {record["stage"]: record for record in manifest["stages"]}
        true = true_recall(Path(folder) / "store", vectors)
        figures = pq.read_table(f"{folder}/store/recall").to_pylist()
    seconds = {name: round(record["seconds"], 2) for name, record in stages.items()}
    share = seconds["recall"] / manifest["seconds"]
    quoted = next((row for row in figures if row["metric"] == "pair_recall" and row["floor"] == THRESHOLD), None)
    holds = quoted is not None and quoted["value"] is not None and quoted["low"] <= true <= quoted["high"]
    return {
        "name": "recall_cost",
        "ratio": round(share, 4),
        "reach": f"measuring <= {SHARE:.0%} of the run's seconds, and its interval holds the true recall",
        "met": share <= SHARE and holds,
        "answers_equal": holds,
        "rows": len(vectors),
        "source": source,
        "sample": stages["recall"]["counts"].get("sample", 0),
        "wanted": RecallConfig().sample,
        "recall": manifest_recall(stages),
        "true_recall": round(true, 6),
        "seconds": round(manifest["seconds"], 1),
        "seconds_of": seconds,
    }


def write_source(path: str, vectors: Floats, texts: list[str]) -> None:
    """Rows id, text, v in files of 16,384 rows."""
    Path(path).mkdir()
    for start in range(0, len(texts), 16_384):
        part = vectors[start : start + 16_384]
        offsets = np.arange(len(part) + 1, dtype=np.int32) * np.int32(part.shape[1])
        lists = pa.ListArray.from_arrays(pa.array(offsets), pa.array(np.ascontiguousarray(part).ravel()))
        ids = pa.array(np.arange(start, start + len(part)))
        table = pa.table({"id": ids, "text": pa.array(texts[start : start + len(part)]), "v": lists})
        pq.write_table(table, f"{path}/part-{start:08d}.parquet")


def measured_run(folder: str) -> dict[str, Any]:
    """The manifest of `spark-dedup run`."""
    given = [f"source.table={folder}/source", "source.format=parquet", "source.id=id", "source.text=text", f"store={folder}/store"]
    given += ["embed.encoder=column", "embed.column=v", "search.engine=cells"]
    settings = [part for setting in given for part in ("--set", setting)]
    command = [sys.executable, "-m", "spark_dedup", "run", "--json", *settings]
    return dict(json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout))


def manifest_recall(stages: dict[str, Any]) -> str:
    """The figure that the run quotes."""
    return str(stages["recall"]["notes"].get("recall", "not measured"))


def true_recall(store: Path, vectors: Floats) -> float:
    """Share of the true pairs of representatives at THRESHOLD that the run stored; 1 where there is none."""
    truth, cosine = exact_pairs(vectors, SearchConfig().floor, os.cpu_count() or 1)
    standing = np.zeros(len(vectors), dtype=np.bool_)
    standing[pq.read_table(store / "_representatives", columns=["record_id"])["record_id"].to_numpy()] = True
    wanted = truth[(cosine >= THRESHOLD) & standing[truth // len(vectors)] & standing[truth % len(vectors)]]
    table = pq.read_table(store / "candidate_pairs", columns=["left_record", "right_record"])
    left, right = (table[name].to_numpy() for name in ("left_record", "right_record"))
    found = np.minimum(left, right) * len(vectors) + np.maximum(left, right)
    return float(np.isin(wanted, found).mean()) if len(wanted) else 1.0
