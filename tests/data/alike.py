"""Texts whose shingle sets lie on both sides of a threshold, and their exact Jaccard similarities from Python's sets."""

from __future__ import annotations

import itertools
import random
import re

WORDS = [f"w{i}" for i in range(3000)]


def texts_of(seed: int) -> list[str]:
    """20 families of 8: one text, and copies with so many words replaced that their Jaccard lies on both sides of the threshold."""
    rng = random.Random(seed)
    texts = []
    for _ in range(20):
        words = rng.choices(WORDS, k=120)
        texts.append(" ".join(words))
        for changed in (1, 2, 3, 4, 6, 9, 14):
            copy = list(words)
            for place in rng.sample(range(120), changed):
                copy[place] = rng.choice(WORDS)
            texts.append(" ".join(copy))
    return [*texts, "short", "shor t"]


def shingles(text: str, unit: str) -> set[object]:
    parts = re.findall(r"\w+", text) if unit == "word" else list(text)
    return {tuple(parts[i : i + 5]) for i in range(len(parts) - 4)} or {text}


def jaccards(texts: list[str], unit: str) -> dict[tuple[int, int], float]:
    sets = [shingles(text, unit) for text in texts]
    return {(i, j): len(sets[i] & sets[j]) / len(sets[i] | sets[j]) for i, j in itertools.combinations(range(len(texts)), 2)}
