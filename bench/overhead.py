"""What the demo costs besides its encoder and its search, against an empty job that reads and writes the same tables.

Both sides are whole processes, from the start of Python to its end, each with a Spark of its own. The encoder is the stage
`embeddings`; the search is the stages `index` and `candidates`.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

REACH_SECONDS = 25.0
ROUNDS = 2
ROWS, KEYS = 7641, 6908
"""What the shipped sample must give."""

COPY_ALL_TABLES = """
import sys
from pathlib import Path
from spark_dedup.session import local_session
spark = local_session()
for table in sorted(Path(sys.argv[1]).iterdir()):
    if (table / "_delta_log").is_dir():
        spark.read.format("delta").load(str(table)).write.format("delta").save(f"{sys.argv[2]}/{table.name}")
print(spark.read.format("delta").load(f"{sys.argv[2]}/clusters").count())
"""


def run() -> dict[str, Any]:
    """The better of two rounds of each side."""
    whole, other, empty, equal = float("inf"), 0.0, float("inf"), True
    for _ in range(ROUNDS):
        with tempfile.TemporaryDirectory(prefix="bench-overhead-") as folder:
            seconds, out = timed([sys.executable, "-m", "spark_dedup", "demo", "--json", "--folder", f"{folder}/demo"])
            manifest = json.loads(out)
            stages = {s["stage"]: s for s in manifest["stages"]}
            outside = seconds - sum(stages[name]["seconds"] for name in ("embeddings", "index", "candidates"))
            if outside < other or not other:
                whole, other = seconds, outside
            copied, out = timed([sys.executable, "-c", COPY_ALL_TABLES, f"{folder}/demo/tables", f"{folder}/copy"])
            empty = min(empty, copied)
            equal &= int(out) == stages["clusters"]["rows_out"] == ROWS and stages["representatives"]["counts"]["keys"] == KEYS
    return {
        "name": "overhead",
        "ratio": round(other / empty, 2),
        "reach": f"demo minus encoder and search <= {REACH_SECONDS:g} s",
        "met": other <= REACH_SECONDS and equal,
        "answers_equal": equal,
        "seconds": round(other, 1),
        "whole_demo_seconds": round(whole, 1),
        "empty_job_seconds": round(empty, 1),
    }


def timed(command: list[str]) -> tuple[float, str]:
    """Wall seconds of a process and what it printed."""
    begun = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[1])
    return time.perf_counter() - begun, done.stdout.strip()
