"""Differing words of two texts, and the reasons of the merge rule."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_dedup.report.pairs import MAX_MATCHES, Span, mark_differences, refusal_reason, visible
from spark_dedup.report.summary import PairView


def same(text: str) -> Span:
    return Span(text, False)


def changed(text: str) -> Span:
    return Span(text, True)


def joined(spans: list[Span]) -> str:
    return "".join(s.text for s in spans)


def pair(left: str, right: str, **scores) -> PairView:
    return PairView(left_record="a", right_record="b", left_text=left, right_text=right, is_edge=False, **scores)


def test_a_replaced_word_is_marked_on_both_sides():
    left, right = mark_differences("The red fox runs.", "The brown fox runs.")
    assert left == [same("The "), changed("red"), same(" fox runs.")]
    assert right == [same("The "), changed("brown"), same(" fox runs.")]


def test_an_added_word_is_marked_where_it_stands_and_nothing_on_the_other_side():
    left, right = mark_differences("opencv-python before 4.8", "opencv-python-headless before 4.8")
    assert left == [same("opencv-python before 4.8")]
    assert right == [same("opencv-python"), changed("-headless"), same(" before 4.8")]


def test_a_version_is_one_word():
    left, right = mark_differences("fixed in v1.10.3, now", "fixed in v1.10.4, now")
    assert left == [same("fixed in "), changed("v1.10.3"), same(", now")]
    assert right == [same("fixed in "), changed("v1.10.4"), same(", now")]


def test_scripts_without_blanks_are_compared_letter_by_letter():
    left, right = mark_differences("東京都に住む", "京都に住む")
    assert left == [changed("東"), same("京都に住む")]
    assert right == [same("京都に住む")]


def test_combining_marks_stay_with_their_letter():
    left, _ = mark_differences("हिन्दी भाषा", "हिन्दी भाषी")
    assert left == [same("हिन्दी "), changed("भाषा")]


def test_white_space_alone_is_no_difference_and_is_kept():
    assert mark_differences("a  b\nc", "a b c") == ([same("a  b\nc")], [same("a b c")])


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        ("", "", ([], [])),
        ("", "all new", ([], [changed("all new")])),
        (" gone ", "", ([same(" "), changed("gone"), same(" ")], [])),
        ("one two", "three four", ([changed("one two")], [changed("three four")])),  # one difference, the blank included
    ],
)
def test_texts_with_nothing_in_common(left, right, expected):
    assert mark_differences(left, right) == expected


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet="ab .,-1\u4e00\u0301\n", max_size=60), st.text(alphabet="ab .,-1\u4e00\u0301\n", max_size=60))
def test_without_a_width_the_spans_join_to_the_texts_and_unmarked_words_are_equal(left, right):
    spans = mark_differences(left, right)
    assert (joined(spans[0]), joined(spans[1])) == (left, right)
    unmarked = ["".join(s.text for s in side if not s.changed).split() for side in spans]
    assert "".join(unmarked[0]) == "".join(unmarked[1])


def test_equal_words_far_from_the_difference_give_way_to_an_ellipsis():
    before, after = "start " + "word " * 100, " word" * 100 + " end"
    left, right = mark_differences(before + "old" + after, before + "new" + after, width=200)
    for spans, word in ((left, "old"), (right, "new")):
        assert [s.text for s in spans if s.changed] == [word]
        assert len(spans) == 3
        assert spans[0].text.startswith("\u2026 word")
        assert spans[2].text.endswith("word \u2026")
        assert len(joined(spans)) <= 200


def test_both_texts_are_kept_whole_when_they_fit():
    assert joined(mark_differences("x " * 100, "x " * 99 + "y", width=200)[0]) == "x " * 100


def test_differences_without_room_are_counted():
    words = [f"filler{i} " * 6 for i in range(40)]
    left = "".join(f"{w}left{i} " for i, w in enumerate(words))
    right = "".join(f"{w}right{i} " for i, w in enumerate(words))
    for spans, side in zip(mark_differences(left, right, width=300), ("left", "right"), strict=True):
        shown = [s.text for s in spans if s.changed]
        assert shown == [f"{side}{i}" for i in range(len(shown))]  # the first ones, none left out between
        assert 5 <= len(shown) < 40  # each takes at most 7 + 3 + 2 * 16 characters, beside the first ellipsis and the note
        assert joined(spans).endswith(f"\u2026 and {40 - len(shown)} more differences")
        assert len(joined(spans)) <= 300


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(["a", "b", "longer", "x" * 400, "\n", "."]), max_size=80), st.integers(0, 99), st.integers(180, 400))
def test_a_width_is_kept_whatever_the_texts(words, seed, width):
    other = [w for n, w in enumerate(words) if (n * seed) % 7 != 3]
    for spans in mark_differences(" ".join(words), " ".join(reversed(other)), width):
        assert len(joined(spans)) <= width


def test_a_difference_longer_than_the_page_says_how_much_of_it_is_left_out():
    added = " ".join(f"extra{i}" for i in range(200))
    _, right = mark_differences("begin end", f"begin {added} end", width=300)
    [marked] = [s.text for s in right if s.changed]
    head, count, tail = marked.split(" \u2026 ")
    assert added.startswith(head) and added.endswith(tail)
    assert count == f"{len(added) - len(head) - len(tail):,} more characters"
    assert len(joined(right)) <= 300


def test_words_that_were_not_compared_are_counted():
    # Every word equals every word of the other text, so n words have n * n matches and only some can be weighed.
    n = 4 * int(MAX_MATCHES**0.5)
    begun = time.monotonic()
    left, right = mark_differences("x " + "a " * n, "y " + "a " * (n - 1) + "z")
    assert time.monotonic() - begun < 20  # all of them would take minutes
    for spans in (left, right):
        note = spans[-1].text.rsplit(" \u2026 ", 1)[1]
        count = int(note.removesuffix(" more words not compared").replace(",", ""))
        assert count > 0
        compared = joined(spans).rsplit(" \u2026 ", 1)[0]
        assert len(compared.split()) + count == n + 1


def test_hidden_characters_are_written_as_their_code():
    assert visible("a\u200bb\x1b[31m\u202ec\u00ad") == "a\u27e8U+200B\u27e9b\u27e8U+001B\u27e9[31m\u27e8U+202E\u27e9c\u27e8U+00AD\u27e9"
    assert visible("tab\tline\nनमस्ते क्‍ष") == "tab\tline\nनमस्ते क्‍ष"


def test_replaced_words_are_counted_against_the_shorter_text():
    # words of a: the fix is in 2 4 1 (7); of b: the fix is in 2 7 2 now (8); only a: 4, 1; only b: 7, 2, now -> 2 of 7 replaced
    told = refusal_reason(pair("The fix is in 2.4.1", "The fix is in 2.7.2 now", substitution=2 / 7, numbers="differ"))
    assert told == "2 of 7 words replaced (substitution 0.29), numbers differ: 2.4.1 against 2.7.2"


def test_a_count_that_contradicts_the_stored_score_is_not_told():
    told = refusal_reason(pair("one two three four", "one two three five", substitution=0.5, numbers="same"))
    assert told == "words replaced (substitution 0.50)"


@pytest.mark.parametrize(
    ("rule", "scores", "expected"),
    [
        ("substitution <= 0.02 and numbers = 'same'", {"substitution": 0.02, "numbers": "missing"}, "numbers differ: 1 against none"),
        ("substitution <= 0.02 and numbers = 'same'", {"substitution": 0.0, "numbers": "contained"}, "its scores do not satisfy the rule"),
        ("cosine >= 0.95 and jaccard > 0.5", {"cosine": 0.9, "jaccard": 0.75, "substitution": 0.9}, "cosine 0.900"),
        ("containment > 0.5", {}, "its scores do not satisfy the rule"),
    ],
)
def test_only_scores_that_the_rule_names_are_reasons(rule, scores, expected):
    assert refusal_reason(pair("a 1", "a", **scores), rule) == expected
