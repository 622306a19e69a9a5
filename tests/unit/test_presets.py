"""The merge rules that have a name: which pairs each must accept, and which it must refuse.

SQLite judges the conditions here: what they use of SQL means the same there and in Spark.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pytest

from spark_dedup.config import PRESETS, MergeConfig
from spark_dedup.config_file import load_config
from spark_dedup.errors import ConfigError
from spark_dedup.kernels.features import NUMBERS, decode, features, pair_scores

BASE = ["source.table=main.kb.chunks", "source.id=id", "source.text=text", "store=main.kb_dedup"]


def accepts(name: str, left: str, right: str, cosine: float | None = None) -> bool:
    """Whether a preset accepts a pair of texts."""
    block = decode(features(pa.array([left, right])))
    s = pair_scores(block, np.array([0]), block, np.array([1]))
    scores: dict[str, float | str | None] = {"cosine": cosine, "numbers": NUMBERS[s.numbers[0]]}
    for column in ("jaccard", "containment", "substitution", "least_words", "most_words"):
        scores[column] = getattr(s, column)[0].item()
    return holds(PRESETS[name], scores)


def holds(condition: str, scores: Mapping[str, float | str | None]) -> bool:
    columns = ", ".join(f":{name} as {name}" for name in scores)
    (verdict,) = sqlite3.connect(":memory:").execute(f"select {condition} from (select {columns})", dict(scores)).fetchone()
    return verdict == 1


def text(words: int, *replaced: int, before: str = "") -> str:
    """`words` different words, those in the places `replaced` taken from another list."""
    return before + " ".join(f"other{'x' * (i + 1)}" if i in replaced else f"word{'x' * (i + 1)}" for i in range(words))


STORY = "The company said it will pay a dividend of 20 cents on April 16 to holders of record. " + text(20)
TEMPLATE = STORY.replace("20 cents", "21 cents")


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_accepts_a_text_with_other_punctuation(name):
    assert accepts(name, STORY, STORY.replace(".", ";"), cosine=0.999)


@pytest.mark.parametrize("name", ["near", "copies", "ocr", "paraphrase"])
def test_a_form_with_another_number_is_refused(name):
    assert not accepts(name, STORY, TEMPLATE, cosine=0.999)
    assert not accepts(name, STORY.replace("20", "two"), STORY.replace("20", "three"), cosine=0.999)  # spelled out


def test_near_accepts_an_excerpt_and_a_text_that_was_added_to():
    assert accepts("near", text(60), text(30))
    assert accepts("near", text(60), text(60) + " and a closing remark")


def test_near_accepts_four_words_replaced_in_eighty_and_no_more():
    assert accepts("near", text(80), text(80, 10, 30, 50, 70))
    assert not accepts("near", text(80), text(80, 10, 20, 30, 50, 70))
    assert not accepts("near", text(79), text(79, 10))


def test_near_wants_runs_of_words_in_common_and_not_words_alone():
    # every second word of a long text: all its words stand there, but no five in a row
    assert not accepts("near", text(40), " ".join(text(40).split()[::2]))
    assert accepts("near", "Call us today!", "call us, today")  # equally many words, too few for a run of five


def test_near_lets_an_excerpt_lose_all_numbers_but_not_a_rewritten_text():
    # the excerpt shares all its runs; with a run of words put elsewhere, 45 of 56 do: the 11 that cross its two old and new ends do not
    assert accepts("near", text(60) + " in 1987", text(60))
    words = text(60).split()
    moved = " ".join([*words[:20], *words[40:50], *words[20:40], *words[50:]])
    assert not accepts("near", text(60) + " in 1987", moved)


def test_copies_refuses_an_excerpt_and_a_replaced_word():
    # 96 of 100 runs of five words are kept when four words are cut at the end: 96 / 100 >= 0.8
    assert accepts("copies", text(104), text(100))
    assert not accepts("copies", text(104), text(60))
    assert not accepts("copies", text(104), text(104, 50))


def test_ocr_accepts_misspelt_words_up_to_a_fifth():
    assert accepts("ocr", text(20), text(20, 3, 8, 13, 18))
    assert not accepts("ocr", text(20), text(20, 3, 6, 8, 13, 18))


def test_paraphrase_asks_the_cosine_and_refuses_a_pair_without_one():
    assert accepts("paraphrase", "How do I boil an egg?", "What is the best way to boil eggs?", cosine=0.88)
    assert not accepts("paraphrase", "How do I boil an egg?", "What is the best way to boil eggs?", cosine=0.87)
    assert not accepts("paraphrase", "How do I boil an egg?", "How do I boil an egg", cosine=None)
    assert not accepts("paraphrase", "Who won in 2014?", "Who won in 2015?", cosine=0.99)
    assert accepts("paraphrase", "Who won in 2014?", "Who won that year?", cosine=0.9)


def test_code_accepts_another_constant_and_refuses_a_short_part():
    body = "def retry(self, total): " + " ".join(f"step{i}a = call{i}a(self)" for i in range(10))
    assert accepts("code", f"{body}\nreturn 3", f"{body}\nreturn 5")  # 1 of 36 words replaced
    assert not accepts("code", body, " ".join(body.split()[:14]))  # an inner function of an outer one
    assert not accepts("code", body, body.replace("call", "load"))


def test_near_is_the_default_and_a_rule_of_ones_own_takes_its_place():
    assert MergeConfig().condition == MergeConfig(preset="near").condition == PRESETS["near"]
    assert MergeConfig(preset="ocr").condition == PRESETS["ocr"]
    assert MergeConfig(rule="cosine > 0.9").condition == "cosine > 0.9"


def test_a_preset_and_a_rule_together_are_refused():
    with pytest.raises(ConfigError, match=r"merge\.preset and merge\.rule cannot both be given, got 'near' and 'cosine > 0\.9'"):
        load_config(None, [*BASE, "merge.preset=near", "merge.rule=cosine > 0.9"])
