"""The batch kernel of the exact key against its definition, the plain three lines, on one core.

The three lines start from Python strings that are already there; the kernel starts from the Arrow array that Spark hands over.
Seconds are CPU seconds of this process, so other work on the machine counts less.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import time
import unicodedata
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from spark_dedup.kernels.text import exact_keys

LEAST_RATIO = 3.0
LEAST_MB_PER_SECOND = 100.0
LEAST_RATIO_OF_OTHER_KINDS = 0.95  # 1, less the noise of a short measurement
ROUNDS = 5
SAMPLE = Path(__file__).parents[1] / "spark_dedup" / "data" / "advisories.parquet"
WORDS = "kettle orbit lantern meadow copper thirty violin harbour ginger ladder summit pocket".split()
ACCENTED = "naïve café Zürich señor façade smörgåsbord déjà über coöperate jalapeño".split()


def plain(texts: list[str]) -> list[str]:
    """The definition."""
    keys = []
    for text in texts:
        t = unicodedata.normalize("NFKC", text)
        t = re.sub(r"\s+", " ", t).strip()
        keys.append(hashlib.sha256(t.encode()).hexdigest())
    return keys


def passages() -> list[str]:
    """Ordinary passages, 100 to 2,000 characters: the shipped sample, and every set in the folder SPARK_DEDUP_BENCH_DATA."""
    files = [SAMPLE] if SAMPLE.is_file() else []
    if folder := os.environ.get("SPARK_DEDUP_BENCH_DATA"):
        files += sorted(Path(folder).glob("*/passages.parquet"))
    texts = [text for file in files for text in pq.read_table(file, columns=["text"]).column("text").to_pylist()]
    return [text for text in texts if text and 100 <= len(text) <= 2000] or words_of(WORDS, 20_000, 20, 200)


def words_of(vocabulary: list[str], texts: int, least: int, most: int, between: str = " ") -> list[str]:
    """Made-up texts of `least` to `most` words each."""
    rng = random.Random(5)
    return [between.join(rng.choices(vocabulary, k=rng.randint(least, most))) for _ in range(texts)]


def other_kinds() -> dict[str, list[str]]:
    """Texts that the kernel is not made for and must not be slower on."""
    return {
        "cjk": words_of([chr(c) for c in range(0x4E00, 0x5E00)] + ["。", ","], 5_000, 20, 400, between=""),
        "accents": words_of(ACCENTED, 5_000, 5, 60),
        "decomposed accents": words_of([unicodedata.normalize("NFD", word) for word in ACCENTED], 5_000, 5, 60),
        "no-break spaces": words_of(ACCENTED, 5_000, 5, 60, between="\u00a0"),
        "very short": words_of(list("abcxyz19é猫 "), 100_000, 1, 3, between=""),
        "runs of blanks": words_of(WORDS, 5_000, 20, 100, between="\n    "),
        "very long": words_of(WORDS, 2, 400_000, 500_000),
        "very long accents": words_of(ACCENTED, 2, 400_000, 500_000),
    }


def race(texts: list[str]) -> tuple[float, float, bool]:
    """Best seconds of the plain lines and of the kernel, run in turn, and whether all keys are equal."""
    array = pa.array(texts)
    plain_seconds, kernel_seconds = [], []
    want: list[str] = []
    got = pa.array([], pa.string())
    for _ in range(ROUNDS):
        start = time.process_time()
        want = plain(texts)
        middle = time.process_time()
        got = exact_keys(array)
        kernel_seconds.append(time.process_time() - middle)
        plain_seconds.append(middle - start)
    no_text = hashlib.sha256(b"").hexdigest()
    return min(plain_seconds), min(kernel_seconds), got.to_pylist() == [None if key == no_text else key for key in want]


def run() -> dict[str, Any]:
    """Race on ordinary passages and on each other kind of text."""
    texts = passages()
    plain_seconds, kernel_seconds, equal = race(texts)
    ratio = plain_seconds / kernel_seconds
    speed = sum(len(text.encode()) for text in texts) / kernel_seconds / 1e6
    kinds = {}
    for kind, made in other_kinds().items():
        seconds, seconds_of_kernel, equal_here = race(made)
        kinds[kind] = round(seconds / seconds_of_kernel, 2)
        equal = equal and equal_here
    return {
        "name": "exact_key",
        "texts": len(texts),
        "ratio": round(ratio, 2),
        "mb_per_second": round(speed, 1),
        "ratio_of_other_kinds": kinds,
        "reach": f"ratio >= {LEAST_RATIO:g} and >= {LEAST_MB_PER_SECOND:g} MB/s, other kinds >= {LEAST_RATIO_OF_OTHER_KINDS:g}",
        "met": ratio >= LEAST_RATIO and speed >= LEAST_MB_PER_SECOND and min(kinds.values()) >= LEAST_RATIO_OF_OTHER_KINDS,
        "answers_equal": equal,
    }


if __name__ == "__main__":
    print(json.dumps(run()))
