"""Blocking keys against plain definitions of them, and pairs of blocks against brute force."""

from __future__ import annotations

import itertools
import random
import re

import numpy as np
import pyarrow as pa
import pytest

from spark_dedup.kernels.blocking import LONGEST, arrange, first_tokens, length_edges, text_keys, title, title_trigrams


def pairs_of(blocks) -> list[tuple[int, int]]:
    """All pairs of all blocks, repeats included."""
    return sorted((a, b) for left, right in blocks.pairs() for a, b in zip(left.tolist(), right.tolist(), strict=True))


def whole(block: list[int], length: list[int], most: int = 1000):
    """Blocks of texts that may be compared whatever their lengths; ids are their places."""
    n = len(block)
    return arrange(np.array(block), np.array(length), np.full(n, LONGEST), np.arange(n), most)


def banded(lengths: list[int], most: int = 10_000):
    """Blocks of length bands: every text in its own band, and as a guest in the band before."""
    length = np.array(lengths)
    band = np.searchsorted(length_edges(), length, side="right") - 1
    ids = np.arange(len(length))
    return arrange(
        np.concatenate([band, band - 1]),
        np.tile(length, 2),
        np.concatenate([length * 105 // 100, np.zeros_like(length)]),
        np.tile(ids, 2),
        most,
    )


def test_first_tokens_are_equal_where_the_first_64_words_are_and_nowhere_else():
    words = [f"w{i}" for i in range(70)]
    texts = [
        " ".join(words),
        " ".join([*words[:64], "other", "end"]),
        ", ".join(words[:64]).upper() + "!",
        " ".join([*words[:63], "other"]),
        " ".join([words[1], words[0], *words[2:64]]),
        " ".join(words[:63]),
        "...",
        "!!!",
    ]
    keys = first_tokens(texts).tolist()
    assert keys[0] == keys[1] == keys[2]
    assert len(set(keys)) == 6, "a word replaced, two exchanged, one missing, and two texts without words differ from all"


def test_titles_are_the_first_line_with_a_letter_or_digit():
    assert title("\n -- \r\n  The Title: a study \nand so on") == "The Title: a study"
    assert title("one line") == "one line"
    assert title("___\n...") is None
    assert title("x" * 1000) == "x" * 128


def test_title_trigrams_ignore_case_blanks_punctuation_and_repeats_and_nothing_else():
    same = ["Annual Report, 2023", "annual  report 2023!", "ANNUALREPORT2023", "Annual-Report (2023)", "\uff21nnual report 2023"]
    other = ["Annual Report 2024", "Annual Reports 2023", "2023", "ab", "ba"]
    assert len(set(title_trigrams(same).tolist())) == 1
    assert len(set(title_trigrams([*same, *other]).tolist())) == 1 + len(other)
    assert len(set(title_trigrams(["banana", "bananana"]).tolist())) == 1, "the trigrams ban, ana, nan, however often"


def test_keys_of_a_text_follow_its_normal_form():
    texts = ["Title\n\nbody  of\u00a0it", "title\r\nbody of it", "Ti\u00adtle body of it", "...\n...", "d\u00e9j\u00e0 vu"]
    keys = text_keys(pa.array(texts), ["first_tokens", "title_trigrams"]).to_pydict()
    assert keys["bytes"] == [16, 16, 16, 7, 9]  # blanks folded, the soft hyphen gone, two bytes for each accented letter
    assert keys["first_tokens"][0] == keys["first_tokens"][1] == keys["first_tokens"][2]
    assert keys["title_trigrams"][0] == keys["title_trigrams"][1] != keys["title_trigrams"][2]
    assert (keys["title"][0], keys["title_trigrams"][3], keys["title"][3]) == ("Title", None, None)
    assert keys["beginning"][0] == "Title body of it"


def test_only_the_keys_that_are_wanted_are_computed():
    keys = text_keys(pa.array(["some text"]), ["length_band"]).to_pydict()
    assert keys == {"bytes": [9], "first_tokens": [None], "beginning": [None], "title_trigrams": [None], "title": [None]}
    assert text_keys(pa.array([], pa.string()), ["first_tokens", "title_trigrams"]).num_rows == 0


def test_all_pairs_of_each_block_once():
    rng = random.Random(5)
    block = [rng.randrange(20) - 10 for _ in range(200)]
    got = whole(block, [rng.randrange(1, 50) for _ in block])
    wanted = [(i, j) for i, j in itertools.combinations(range(200), 2) if block[i] == block[j]]
    assert pairs_of(got) == wanted
    sizes = {b: block.count(b) for b in sorted(set(block))}
    assert got.texts.tolist() == list(sizes.values())
    assert got.comparisons()[0].tolist() == [n * (n - 1) // 2 for n in sizes.values()] == got.comparisons()[1].tolist()


@pytest.mark.parametrize("longest", [60, 700])
def test_length_bands_lose_no_pair_at_a_border_and_compare_none_twice(longest):
    # every length up to the longest, so every border of a band is crossed by pairs at exactly 5 % and one byte beyond
    lengths = list(range(1, longest + 1))
    random.Random(3).shuffle(lengths)
    got = banded(lengths)
    pairs = itertools.combinations(range(len(lengths)), 2)
    wanted = [(i, j) for i, j in pairs if 100 * max(lengths[i], lengths[j]) <= 105 * min(lengths[i], lengths[j])]
    assert pairs_of(got) == wanted
    assert got.comparisons()[0].sum() == len(wanted)


def test_texts_of_equal_length_are_compared_once_and_guests_with_nobody():
    assert pairs_of(banded([100, 100, 100])) == [(0, 1), (0, 2), (1, 2)]
    assert pairs_of(banded([100, 105, 106])) == [(0, 1), (1, 2)]
    # the band before holds two guests and no text of its own
    assert sorted(banded([100, 100]).texts.tolist()) == [0, 2]


def test_a_text_within_reach_lies_in_the_same_band_or_the_next_whatever_its_length():
    edges = length_edges()
    assert edges[0] == 1
    assert edges[-1] > LONGEST
    longest = np.minimum((edges[1:] - 1) * 105 // 100, LONGEST)  # within reach of the longest text of each band
    assert (np.searchsorted(edges, longest, side="right") - 1 <= np.arange(1, len(edges))).all()


def test_a_large_block_compares_its_texts_with_the_next_longer_ones():
    # six texts of a block of at most three: each with the next two, none more than 5 % longer; 200 has nobody
    got = whole([7] * 6, [100, 101, 102, 103, 200, 106], most=3)
    assert pairs_of(got) == [(0, 1), (0, 2), (1, 2), (1, 3), (2, 3), (2, 5), (3, 5)]
    assert [c.tolist() for c in got.comparisons()] == [[15], [7]]
    assert got.texts.tolist() == [6]
    # a block of exactly the bound is whole
    assert len(pairs_of(whole([7] * 6, [100, 101, 102, 103, 200, 106], most=6))) == 15


def test_texts_of_one_length_in_a_large_block_follow_each_other_by_id():
    got = arrange(np.zeros(4, int), np.full(4, 10), np.full(4, LONGEST), np.array([8, 2, 6, 4]), 2)
    assert pairs_of(got) == [(2, 4), (4, 6), (6, 8)]


def test_the_bound_counts_texts_and_not_guests():
    # four texts of 100 bytes and many guests: the block is not large
    got = banded([100] * 4 + [105] * 4, most=4)
    assert len(pairs_of(got)) == 28
    assert len(pairs_of(banded([100] * 5 + [105] * 4, most=4))) < 36


def test_rows_in_any_order_give_the_same_pairs():
    rng = np.random.default_rng(11)
    block, length, ids = rng.integers(0, 4, 300), rng.integers(90, 120, 300), np.arange(300)
    order = rng.permutation(300)
    one = arrange(block, length, np.full(300, LONGEST), ids, 20)
    other = arrange(block[order], length[order], np.full(300, LONGEST), ids[order], 20)
    assert pairs_of(one) == pairs_of(other)
    assert len(set(pairs_of(one))) == len(pairs_of(one))


def test_nothing_gives_nothing():
    empty = np.zeros(0, dtype=np.int64)
    got = arrange(empty, empty, empty, empty, 5)
    assert pairs_of(got) == []
    assert [len(c) for c in got.comparisons()] == [0, 0]


def test_words_of_a_text_are_those_of_a_plain_definition():
    rng = random.Random(9)
    words = ["alpha", "Beta", "ALPHA", "\u6f22\u5b57", "caf\u00e9"]
    short = [" ".join(rng.choices(words, k=rng.randrange(1, 4))) for _ in range(100)]
    long = [" ".join(["x"] * rng.choice([62, 63, 64]) + rng.choices(words, k=3)) for _ in range(100)]

    def plain(text: str) -> tuple[str, ...]:
        return tuple(re.findall(r"[\u6f22\u5b57]|[^\W\u6f22\u5b57]+", text.lower())[:64])

    texts = [*short, *long]
    keys = first_tokens(texts).tolist()
    pairs = list(itertools.combinations(range(len(texts)), 2))
    same = [keys[i] == keys[j] for i, j in pairs]
    assert same == [plain(texts[i]) == plain(texts[j]) for i, j in pairs]
    assert 100 < sum(same) < len(pairs) / 2
