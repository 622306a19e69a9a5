"""Signatures of texts on one core: the kernel against `rensa`, and both with what has to be done before and after them.

A signature is used as an array: rensa hands out Python lists, and turning them into one counts as its work. Seconds are CPU
seconds of this process. Both estimate the Jaccard of the same pairs.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
from exact_key import passages
from numpy.typing import NDArray

from spark_dedup.config import MinHashConfig
from spark_dedup.kernels.features import pair_scores
from spark_dedup.kernels.minhash import ShingleSets, bands_for, shingle_sets, signatures

CONFIG = MinHashConfig()
LEAST_RATIO = 0.8
LEAST_MB_PER_SECOND = 40.0
MOST_BYTES = 20_000_000
ROUNDS = 5
PAIRS = 20_000


def run() -> dict[str, Any]:
    """Best of `ROUNDS` rounds of each."""
    texts, size = [], 0
    for text in passages():
        texts.append(text)
        if (size := size + len(text.encode())) > MOST_BYTES:
            break
    array, bands_rows = pa.array(texts), bands_for(CONFIG.threshold, CONFIG.permutations, CONFIG.band_recall)
    permutations = bands_rows[0] * bands_rows[1]
    shingling, sets = best(lambda: shingle_sets(array, CONFIG.unit, CONFIG.ngram))
    hashing, own = best(lambda: signatures(sets, permutations))
    peer, other = best(lambda: rensa_signatures(sets, permutations)) if has_rensa() else (None, own)
    native = best(lambda: rensa_alone(sets, permutations))[0] if has_rensa() else None
    ratio = peer / hashing if peer else 0.0
    rate = size / 1e6 / (shingling + hashing)
    equal = agrees(own, sets) and agrees(other, sets)
    return {
        "name": "sketch",
        "ratio": round(ratio, 2),
        "reach": f"ratio >= {LEAST_RATIO}, and >= {LEAST_MB_PER_SECOND:g} MB/s with shingling",
        "met": ratio >= LEAST_RATIO and rate >= LEAST_MB_PER_SECOND and equal,
        "answers_equal": equal,
        "megabytes": round(size / 1e6, 1),
        "permutations": permutations,
        "mb_per_second": round(rate, 1),
        "mb_per_second_of": {
            "shingling": round(size / 1e6 / shingling, 1),
            "signatures": round(size / 1e6 / hashing, 1),
            **({"rensa": round(size / 1e6 / peer, 1), "rensa_without_an_array": round(size / 1e6 / native, 1)} if peer and native else {}),
        },
    }


def has_rensa() -> bool:
    """Whether the peer is installed."""
    import importlib.util

    return importlib.util.find_spec("rensa") is not None


def rensa_alone(sets: ShingleSets, permutations: int) -> Any:
    """Signatures that stay inside rensa."""
    import rensa

    return rensa.RMinHash.digest_matrix_from_flat_token_hashes(sets.values, sets.bounds.astype(np.uint64), permutations, 42)


def rensa_signatures(sets: ShingleSets, permutations: int) -> NDArray[np.uint32]:
    """uint32 (n, permutations)."""
    return np.array(rensa_alone(sets, permutations).to_rows(), dtype=np.uint32)


def best(work: Callable[[], Any]) -> tuple[float, Any]:
    """Least CPU seconds of several rounds, and what the last one gave."""
    seconds = []
    for _ in range(ROUNDS):
        begun = time.process_time()
        found = work()
        seconds.append(time.process_time() - begun)
    return min(seconds), found


def agrees(found: NDArray[np.uint32], sets: ShingleSets) -> bool:
    """Whether the signatures estimate the Jaccard of neighbouring texts: the mean error of many pairs is next to none."""
    left = np.arange(min(PAIRS, len(sets) - 1))
    block = sets.block()
    jaccard = pair_scores(block, left, block, left + 1).jaccard
    estimate = (found[left] == found[left + 1]).mean(axis=1)
    deviation = np.sqrt(np.maximum(jaccard * (1 - jaccard), 1e-4) / found.shape[1])
    return bool(abs((estimate - jaccard).mean()) < 4 * np.sqrt((deviation**2).sum()) / len(left) + 1e-3)
