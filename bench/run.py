"""Run the benches: `python bench/run.py [NAME]`, or `make bench [NAME=hnsw]`.

Each prints a ratio against something run beside it and checks the answers, and leaves `bench/out/<name>.json`. Vectors and texts
come from the sample and, where SPARK_DEDUP_BENCH_DATA names a folder of */passages.parquet, from there too; their vectors are kept in
bench/cache, or where SPARK_DEDUP_BENCH_CACHE says. SPARK_DEDUP_BENCH_ROWS and SPARK_DEDUP_BENCH_SIZES (with commas; growth, plan_truth)
make a bench smaller. `peers` says how text-dedup is found, for `minhash`.
"""

from __future__ import annotations

import importlib
import inspect
import json
import os
import platform
import sys
from pathlib import Path
from typing import Any

NAMES = (
    "exact_key",
    "overhead",
    "embed",
    "hnsw",
    "exact",
    "selfjoin",
    "growth",
    "recall_cost",
    "plan_truth",
    "pgvector",
    "components",
    "sketch",
    "minhash",
)
OUT = Path(__file__).parent / "out"


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    model = "unknown"
    info = Path("/proc/cpuinfo")
    if info.exists():
        model = next((line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")), model)
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
    }


def bench(name: str) -> dict[str, Any]:
    """Run one bench, with a Spark session if it takes one."""
    call = importlib.import_module(name).run
    if "spark" not in inspect.signature(call).parameters:
        return dict(call())
    from spark_dedup.session import get_session

    return dict(call(get_session()))


def main(argv: list[str]) -> int:
    """Run the named benches, or all; 1 if one misses its mark."""
    unknown = [name for name in argv if name not in NAMES]
    if unknown:
        sys.stderr.write(f"no bench {unknown[0]!r}; there are {', '.join(NAMES)}\n")
        return 2
    OUT.mkdir(exist_ok=True)
    sys.stdout.write(f"{'bench':<12} {'ratio':>7}  {'met':<4} {'answers':<8} reach\n")
    met = True
    for name in argv or NAMES:
        result = {**bench(name), "machine": machine()}
        (OUT / f"{name}.json").write_text(json.dumps(result, indent=2) + "\n")
        told = ("yes" if result["met"] else "no", "equal" if result["answers_equal"] else "DIFFER")
        sys.stdout.write(f"{name:<12} {result['ratio']:>7.2f}  {told[0]:<4} {told[1]:<8} {result['reach']}\n")
        sys.stdout.flush()
        met &= bool(result["met"])
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
