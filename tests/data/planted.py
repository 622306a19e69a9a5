"""Small sources with known answers, and an encoder that needs no model."""

from __future__ import annotations

import random
import zlib

import numpy as np

WORDS = (
    "window carpet wallet dragon copper violin letter winter bridge market rocket garden river kettle temple museum forest orange candle "
    "saddle engine ladder pillow hammer basket ribbon castle meadow button lantern mirror feather blanket harbour tunnel orchard"
).split()


class HashedWords:
    """Counts of hashed words and word pairs, 256 dimensions: texts that share most words have a cosine near 1."""

    dimension = 256
    window = None

    def encode(self, texts: list[str]) -> np.ndarray:
        out = np.zeros((len(texts), self.dimension), dtype=np.float32)
        for row, text in zip(out, texts, strict=True):
            words = text.lower().split()
            for token in [*words, *map(" ".join, zip(words, words[1:], strict=False))]:
                row[zlib.crc32(token.encode()) % self.dimension] += 1.0
        return out


def encoder() -> HashedWords:
    """Factory for `embed.encoder: planted:encoder`."""
    return HashedWords()


def sentence(rng: random.Random, words: int = 30) -> str:
    """A sentence of random words."""
    return " ".join(rng.choice(WORDS) for _ in range(words))


def families(count: int, seed: int = 7) -> tuple[list[tuple[str, str]], list[set[str]]]:
    """Records in families of near-duplicates, and lone records.

    Each family has an original, an exact copy with other white space, the original with ten words added at its end, and a refilled
    form: the original with ten words replaced, which is similar but no copy.

    Returns:
        (record id, text) rows and, for each family, the ids that belong together.
    """
    rng = random.Random(seed)
    rows: list[tuple[str, str]] = []
    truth: list[set[str]] = []
    for i in range(count):
        original = sentence(rng, 60)
        added = f"{original} {sentence(rng, 10)}"
        words = original.split()
        refilled = " ".join([f"name{i}{j}" if j % 6 == 0 else w for j, w in enumerate(words)])
        rows += [(f"o{i:04d}", original), (f"c{i:04d}", original.replace(" ", "  ")), (f"a{i:04d}", added), (f"r{i:04d}", refilled)]
        truth += [{f"o{i:04d}", f"c{i:04d}", f"a{i:04d}"}, {f"r{i:04d}"}]
        rows.append((f"l{i:04d}", sentence(rng, 60)))
        truth.append({f"l{i:04d}"})
    return rows, truth
