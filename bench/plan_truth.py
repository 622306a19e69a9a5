"""Does a plan tell the truth? Predicted seconds and pairs against those of the run, on three corpora and two sizes.

Plan and run are processes of their own, each with a Spark of its own, as a user starts them. The engine is the one that `auto`
takes. Seconds of the run are those of its manifest; its pairs are those above the floor.
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

FACTOR = 1.5
SIZES = tuple(int(x) for x in os.environ.get("SPARK_DEDUP_BENCH_SIZES", "2000,7000").split(","))
CORPORA = ("advisories", "askubuntu_dup", "tatoeba")
SHIPPED = Path(__file__).parents[1] / "spark_dedup" / "data" / "advisories.parquet"
SEED = 3


def run() -> dict[str, Any]:
    """The largest factor between what was predicted and what it took, of all cases."""
    found = [case(corpus, size) for corpus in CORPORA for size in SIZES]
    worst = max(c["factor"] for c in found)
    held = all(c["pairs_held"] for c in found)
    return {
        "name": "plan_truth",
        "ratio": round(worst, 2),
        "reach": f"seconds within a factor {FACTOR}, pairs within the interval",
        "met": worst <= FACTOR and held,
        "answers_equal": held,
        "cases": found,
    }


def case(corpus: str, size: int) -> dict[str, Any]:
    """One plan and one run."""
    with tempfile.TemporaryDirectory(prefix="bench-plan-") as folder:
        pq.write_table(pa.table({"id": list(map(str, range(size))), "text": texts(corpus, size)}), f"{folder}/source.parquet")
        given = ["source.format=parquet", f"source.table={folder}/source.parquet", "source.id=id", "source.text=text"]
        given += [f"store={folder}/store", "embed.encoder=use"]
        plan, manifest = command("plan", given), command("run", given)
    cost = next(c for c in plan["costs"] if c["engine"] == plan["chosen"])
    seconds = {s["stage"]: round(s["seconds"], 2) for s in manifest["stages"]}
    pairs = next(s["counts"]["pairs"] for s in manifest["stages"] if s["stage"] == "candidates")
    predicted, taken = cost["total_seconds"], manifest["seconds"]
    told = plan["sample"]["pairs"]
    return {
        "corpus": corpus,
        "rows": size,
        "engine": plan["chosen"],
        "plan_seconds": round(plan["seconds"], 1),
        "predicted": round(predicted, 1),
        "taken": round(taken, 1),
        "factor": round(max(predicted / taken, taken / predicted), 2),
        "pairs": pairs,
        "pairs_predicted": [round(told[end]) for end in ("low", "value", "high")],
        "pairs_held": told["low"] <= pairs <= told["high"],
        "predicted_of": {stage: round(x, 2) for stage, x in cost["seconds"].items()},
        "taken_of": seconds,
    }


def command(name: str, given: list[str]) -> dict[str, Any]:
    """The JSON that a command of ours prints."""
    told = [part for setting in given for part in ("--set", setting)]
    done = subprocess.run([sys.executable, "-m", "spark_dedup", name, "--json", *told], capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout))


def texts(corpus: str, size: int) -> list[str]:
    """Random texts of a corpus: the shipped one, one of SPARK_DEDUP_BENCH_DATA, or made up where that is not there."""
    rng = np.random.default_rng(SEED)
    path = SHIPPED if corpus == "advisories" else Path(os.environ.get("SPARK_DEDUP_BENCH_DATA", ".")) / corpus / "passages.parquet"
    if not path.exists():
        words = np.array([f"word{i}" for i in range(3000)])
        return [" ".join(rng.choice(words, 40)) for _ in range(size)]
    all_texts = pq.read_table(path, columns=["text"])["text"].to_pylist()
    return [all_texts[i] for i in rng.permutation(len(all_texts))[:size]]
