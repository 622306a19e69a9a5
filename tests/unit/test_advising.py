"""Which question finds which pairs of a sample, and what that says."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from spark_dedup.advising import MOST_PAIRS, Texts, compared, recommended
from spark_dedup.config_file import load_config
from spark_dedup.kernels.features import features

PAIRS = "pairs on which the merge rule holds"
WORDS = [f"w{i}" for i in range(40)]


def config(*overrides):
    return load_config(None, ["source.table=a.b", "source.id=i", "source.text=t", "store=a.c", *overrides])


def sample(texts, vectors):
    unit = np.array(vectors, dtype=np.float32)
    return Texts(texts, unit / np.linalg.norm(unit, axis=1, keepdims=True), features(pa.array(texts)).to_pylist())


def test_every_pair_is_found_by_both_questions_or_by_one():
    one, near, other = " ".join(WORDS), " ".join([*WORDS[:-1], "x"]), "something else altogether in these few words"
    # 0 and 1: 35 of 37 shingles shared and equal vectors; 0 and 3, 1 and 3: the same words, vectors apart; 0 and 2, 1 and 2: vectors alone
    found = compared(sample([one, near, other, one + " y"], [[1, 0], [1, 0.1], [1, 0.2], [0, 1]]), config())
    ways = dict(zip(zip(found.left.tolist(), found.right.tolist(), strict=True), found.way.tolist(), strict=True))
    assert ways == {(0, 1): 0, (0, 2): 1, (1, 2): 1, (0, 3): 2, (1, 3): 2}


def test_nothing_in_common_gives_no_pair():
    assert len(compared(sample(["one text", "another one"], [[1, 0], [0, 1]]), config()).left) == 0
    assert len(compared(Texts([], np.zeros((0, 2), np.float32), []), config()).left) == 0


def test_too_many_pairs_ask_for_a_smaller_sample():
    n = int((2 * MOST_PAIRS) ** 0.5) + 2
    many = Texts([f"text {i} of its own words {i * 7} and {i * 11}" for i in range(n)], np.tile(np.float32([1, 0]), (n, 1)), [b""] * n)
    assert compared(many, config()) is None
    assert len(many.half().text) == n // 2


@pytest.mark.parametrize(
    ("both", "meaning", "words", "setting", "reason"),
    [
        (10, 5, 4, None, "the sample holds 19 pairs on which the merge rule holds: too few to choose by"),
        (90, 9, 1, "minhash.enabled: true", f"1 of 100 {PAIRS} are found by shared words alone, 9 by vectors alone"),
        (99, 0, 1, "minhash.enabled: true", f"1 of 100 {PAIRS} are found by shared words alone, 0 by vectors alone"),
        (100, 1, 1, "minhash.enabled: false", "vectors find all but 1 of 102 pairs on which the merge rule holds"),
        (100, 0, 0, "minhash.enabled: false", "vectors find all but 0 of 100 pairs on which the merge rule holds"),
    ],
)  # fmt: skip
def test_a_question_is_worth_asking_from_one_pair_in_a_hundred_on(both, meaning, words, setting, reason):
    assert recommended({"both": both, "meaning": meaning, "words": words}) == (setting, reason)
