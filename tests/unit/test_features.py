from __future__ import annotations

import dataclasses
import hashlib
import re
import struct
import sys
import unicodedata
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from case_files import case_rows
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_dedup.errors import SchemaError, StoreError
from spark_dedup.kernels.features import FEATURES_VERSION, NUMBERS, FeatureBlock, decode, features, pair_scores
from spark_dedup.kernels.ragged import edges, ranges, slices
from spark_dedup.kernels.shingles import as_bag, as_set, word_hashes
from spark_dedup.kernels.text import normalize

BY_CHARACTER = (  # first words of character names
    *(
        "CJK UNIFIED",
        "CJK COMPATIBILITY",
        "IDEOGRAPHIC ITERATION",
        "IDEOGRAPHIC CLOSING",
        "IDEOGRAPHIC NUMBER",
        "VERTICAL IDEOGRAPHIC",
        "HANGZHOU",
        "HIRAGANA",
        "KATAKANA",
        "HENTAIGANA",
    ),
    *("COMBINING KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR"),
)
ENGLISH = {"one": "1", "two": "2", "three": "3", "four": "4", "five": "5", "six": "6", "twenty": "20", "hundred": "100", "first": "1"}
WORDS = ["alpha", "Six", "twenty"]
WORDS += ["Beta", "beta", "1", "1.5", "2024-01-02", "naïve", "NAÏVE", "猫", "犬が", "สวัสดี", "don't", "-", "v2", "x" * 70, "y" * 70]


# --- the oracle: plain Python sets and counters -----------------------------------------------------------------------


HIDDEN = re.compile("[\u00ad\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u2064\u2066-\u2069\ufe00-\ufe0f\ufeff]")


def oracle_text(text: str) -> str:
    form = normalize(text)
    return re.sub(" +", " ", HIDDEN.sub("", form)).strip() or form


def oracle_words(text: str) -> list[str]:
    text = oracle_text(text)
    words, run = [], ""
    for c in [*text, " "]:
        alone = unicodedata.category(c)[0] in "LMN" and unicodedata.name(c, "").startswith(BY_CHARACTER)
        if not alone and (c.isalnum() or c == "_"):
            run += c
            continue
        words += [run] if run else []
        words += [c] if alone else []
        run = ""
    return [word.lower() for word in words] or [text]


def oracle_sets(text: str) -> tuple[set, Counter, Counter]:
    words = oracle_words(text)
    shingles = set(zip(*(words[k:] for k in range(5)), strict=False)) or {oracle_text(text)}
    numbers = re.findall(r"\d+(?:[.,:/-]\d+)*", oracle_text(text)) + [ENGLISH[word] for word in words if word in ENGLISH]
    return shingles, Counter(words), Counter(numbers)


def oracle_scores(left: str, right: str) -> tuple[float, float, float, str]:
    (a, words_a, numbers_a), (b, words_b, numbers_b) = oracle_sets(left), oracle_sets(right)
    least_words = min(words_a.total(), words_b.total())
    if numbers_a == numbers_b:
        numbers = "same"
    elif (numbers_a and numbers_a <= numbers_b) or (numbers_b and numbers_b <= numbers_a):
        numbers = "contained"
    elif not numbers_a or not numbers_b:
        numbers = "missing"
    else:
        numbers = "differ"
    return (
        len(a & b) / len(a | b),
        len(a & b) / min(len(a), len(b)),
        min((words_a - words_b).total(), (words_b - words_a).total()) / max(1, least_words),
        numbers,
    )


def rows_of(*rows: int) -> np.ndarray:
    return np.array(rows, dtype=np.int64)


def scores(left: str, right: str) -> tuple[float, float, float, str]:
    block = decode(features(pa.array([left, right])))
    got = pair_scores(block, rows_of(0), block, rows_of(1))
    return got.jaccard[0], got.containment[0], got.substitution[0], NUMBERS[got.numbers[0]]


def same_bits(one, two) -> bool:
    return all(getattr(one, name).tobytes() == getattr(two, name).tobytes() for name in (f.name for f in dataclasses.fields(one)))


# --- worked by hand ---------------------------------------------------------------------------------------------------


def test_a_text_and_its_copy_with_other_blanks_share_everything():
    assert scores("the cat sat on the mat", "the  cat sat\ton the mat ") == (1.0, 1.0, 0.0, "same")


def test_texts_without_a_common_word_share_nothing():
    assert scores("one two three four five six", "red green blue white black grey") == (0.0, 0.0, 1.0, "missing")


def test_an_excerpt_is_contained_and_substitutes_nothing():
    # a b c d e f g h has 4 shingles, a b c d e f has 2 of them; all 6 words of the excerpt stand in the text.
    assert scores("a b c d e f g h", "a b c d e f") == (2 / 4, 2 / 2, 0.0, "same")


def test_one_word_replaced_in_the_middle():
    # 10 words, 6 shingles each; the 6th word stands in 5 of them, so 1 is shared of 6 + 6 - 1; one word of ten is replaced.
    assert scores("a b c d e f g h i j", "a b c d e X g h i j") == (1 / 11, 1 / 6, 1 / 10, "same")


def test_words_count_as_often_as_they_occur():
    # left has "no" twice and nothing that right lacks beside the second "no"; right has "yes" which left lacks.
    assert scores("no no never maybe", "no yes never maybe")[2] == 1 / 4
    assert scores("no no no never", "no never")[2] == 0.0  # only left has words of its own


def test_shingles_count_once_however_often_they_occur():
    # a b a b a b a: shingles ababa, babab; a b a b a b: the same two.
    assert scores("a b a b a b a", "a b a b a b")[:2] == (1.0, 1.0)


def test_words_and_long_texts_ignore_case_and_punctuation():
    assert scores("The cat, the dog; and THE cow.", "the cat the dog and the cow") == (1.0, 1.0, 0.0, "same")
    assert scores("Ärger im BÜRO, ÓŁÓW am Hof", "ärger im büro, ółów am hof") == (1.0, 1.0, 0.0, "same")


@pytest.mark.parametrize(
    ("left", "right", "want"),
    [
        ("no number", "none here", "same"),
        ("item 7", "thing 7", "same"),
        ("7 and 8", "8 and 7", "same"),
        ("7 and 7", "7", "contained"),
        ("7", "7 and 8", "contained"),
        ("7", "8", "differ"),
        ("7 and 9", "7 and 8", "differ"),
        ("no number", "item 7", "missing"),
        ("at 10:30 on 2024-01-02", "at 10 on 2024-01-02", "differ"),  # 10:30 is one number, not 10 and 30
        ("version v1.2", "version 1.2", "same"),
        ("six per cent", "6 per cent", "same"),
        ("at six", "at seven", "differ"),
        ("Twenty-One", "20 or 1", "same"),
        ("the first", "the last", "missing"),
        ("someone", "none", "same"),
        ("7.", "7", "same"),
        ("1..2", "1.2", "differ"),  # 1 and 2 against 1.2
        ("١٢ pages", "see ١٢", "same"),
        ("१२,५", "१२", "differ"),
    ],
)
def test_numbers_are_compared_as_bags(left, right, want):
    assert scores(left, right)[3] == scores(right, left)[3] == want


def test_scripts_without_blanks_are_compared_character_by_character():
    # 6 characters have 2 shingles; the longer text has 3; both shingles of the shorter are shared.
    assert scores("一二三四五六七", "一二三四五六") == (2 / 3, 1.0, 0.0, "same")
    assert scores("中文abc中文", "中文 abc 中文")[:3] == (1.0, 1.0, 0.0)
    assert scores("สวัสดีชาวโลก", "สวัสดีชาวโลกา")[1:3] == (1.0, 0.0)  # vowel signs count, which are no \w


def test_short_texts_are_their_own_shingle():
    case = case_rows("o06_short.jsonl")
    ids, block = [row["id"] for row in case], decode(features(pa.array([row["text"] for row in case])))
    left, right = np.triu_indices(len(case), k=1)
    got = pair_scores(block, left, block, right)
    equal = [(ids[a], ids[b]) for a, b, jaccard in zip(left, right, got.jaccard, strict=True) if jaccard == 1.0]
    assert equal == [("h00", "h02"), ("h07", "h08"), ("h11", "h13")]
    assert sorted(set(got.jaccard)) == [0.0, 1.0]


def test_a_text_without_a_word_is_its_own_word():
    assert scores("!!! ???", "!!!  ???") == (1.0, 1.0, 0.0, "same")
    assert scores("!!!", "???") == (0.0, 0.0, 1.0, "same")


def test_null_and_blank_texts_have_no_features_and_score_nothing():
    blobs = features(pa.array([None, "", " \u3000", "a b"]))
    assert blobs.is_null().to_pylist() == [True, True, True, False]
    block = decode(blobs)
    got = pair_scores(block, rows_of(0, 0), block, rows_of(1, 3))
    assert [*got.jaccard, *got.containment, *got.substitution] == [0.0] * 6


def test_options_of_the_key_change_the_features():
    blobs = [features(pa.array(["Ok.", "ok"]), **options).to_pylist() for options in ({}, {"lowercase": True, "strip_punctuation": True})]
    assert blobs[0][0] != blobs[0][1]
    assert blobs[1][0] == blobs[1][1] == blobs[0][1]


# --- against the oracle -----------------------------------------------------------------------------------------------

TEXT = st.lists(st.sampled_from(WORDS), min_size=1, max_size=14).map(" ".join) | st.text(min_size=1, max_size=30).filter(normalize)


@settings(deadline=None, max_examples=300)
@given(texts=st.lists(TEXT, min_size=1, max_size=6))
def test_scores_equal_those_of_python_sets_and_do_not_depend_on_the_side(texts):
    block = decode(features(pa.array(texts)))
    left, right = (rows.ravel() for rows in np.indices((len(texts), len(texts))))
    got = pair_scores(block, left, block, right)
    want = [oracle_scores(texts[a], texts[b]) for a, b in zip(left, right, strict=True)]
    names = [NUMBERS[code] for code in got.numbers]
    assert list(zip(got.jaccard, got.containment, got.substitution, names, strict=True)) == want
    words = [len(oracle_words(text)) for text in texts]
    assert got.least_words.tolist() == [min(words[a], words[b]) for a, b in zip(left, right, strict=True)]
    assert got.most_words.tolist() == [max(words[a], words[b]) for a, b in zip(left, right, strict=True)]
    assert same_bits(got, pair_scores(block, right, block, left))


@settings(deadline=None, max_examples=300)
@given(texts=st.lists(TEXT, min_size=1, max_size=6))
def test_sizes_equal_those_of_python_sets(texts):
    got = decode(features(pa.array(texts))).sizes(np.arange(len(texts)))
    assert got.tolist() == [[len(shingles), words.total(), numbers.total()] for shingles, words, numbers in map(oracle_sets, texts)]


def test_every_character_is_cut_into_words_as_the_oracle_does():
    characters = [c for c in map(chr, range(sys.maxunicode + 1)) if unicodedata.category(c) not in ("Cn", "Co", "Cs", "Cc")]
    blocks = ["".join(f"x{c}y{c}{c} " for c in characters[i : i + 16]) for i in range(0, len(characters), 16)]
    got = decode(features(pa.array(blocks))).sizes(np.arange(len(blocks)))[:, 1]
    wrong = [block for block, n in zip(blocks, got, strict=True) if n != len(oracle_words(block))]
    assert wrong == []


def test_many_pairs_of_long_texts_equal_those_of_python_sets():
    # 3,000 pairs of about 300 values are several slices; seeded, so a failure can be repeated.
    rng = np.random.default_rng(5)
    vocabulary = [f"w{i}" for i in range(60)]
    texts = [" ".join(rng.choice(vocabulary, size=rng.integers(1, 300))) for _ in range(60)]
    texts += [text[: len(text) // 2] for text in texts]
    block = decode(features(pa.array(texts)))
    left, right = rng.integers(0, len(texts), size=(2, 3_000))
    got = pair_scores(block, left, block, right)
    want = [oracle_scores(texts[a], texts[b]) for a, b in zip(left, right, strict=True)]
    assert list(zip(got.jaccard, got.containment, got.substitution, [NUMBERS[c] for c in got.numbers], strict=True)) == want
    order = np.argsort(left)
    sorted_got = pair_scores(block, left[order], block, right[order])
    assert sorted_got.jaccard.tolist() == got.jaccard[order].tolist()


CROWDED = st.sets(st.integers(0, 40).map(lambda i: i << 20) | st.integers(0, 40), max_size=30)


@settings(deadline=None)
@given(left=st.lists(CROWDED, min_size=3, max_size=9), right=st.lists(CROWDED, min_size=3, max_size=9))
def test_values_that_crowd_into_one_slot_are_all_found(left, right):
    blocks = []
    for sets in (left, right):
        sets = sets[: len(sets) // 3 * 3]
        blocks.append(
            FeatureBlock(np.array([v for s in sets for v in sorted(s)], dtype=np.uint64), edges(np.array([len(s) for s in sets])))
        )
    a, b = (rows.ravel() for rows in np.indices((len(blocks[0]), len(blocks[1]))))
    got = pair_scores(blocks[0], a, blocks[1], b)
    for i, (x, y) in enumerate(zip(a.tolist(), b.tolist(), strict=True)):
        shingles, words = [left[3 * x + s] & right[3 * y + s] for s in range(2)]
        assert got.jaccard[i] == len(shingles) / max(1, len(left[3 * x] | right[3 * y]))
        least = min(len(left[3 * x + 1]), len(right[3 * y + 1]))
        assert got.substitution[i] == (least - len(words)) / max(1, least)


# --- the stored form ---------------------------------------------------------------------------------------------------


def test_features_are_the_same_on_every_machine_and_python():
    # Changes only together with FEATURES_VERSION: stored features of another version must not be compared with new ones.
    texts = ["The pump, serviced on 2024-01-02, was returned to the yard.", "naïve 猫 café at Nine", "ok.", "!", "z" * 65]
    digest = hashlib.sha256(b"".join(features(pa.array(texts)).to_pylist())).hexdigest()
    assert (FEATURES_VERSION, digest) == (3, "3ac0f6c1dfbea4e67ea1300f04d0cd32d36ea4d11e6726c35466436705b27a18")


def test_words_are_hashed_by_all_their_bytes_and_nothing_else():
    # Blocks of eight bytes: words that end inside one, at its end and behind it, and beyond 64 bytes; each differs in its last byte.
    words = [("q" * (size - 1)) + last for size in (1, 2, 7, 8, 9, 15, 16, 17, 63, 64, 65, 130) for last in "ab"]
    hashes, rows = word_hashes([" ".join(words), *words])
    assert len(set(hashes.tolist())) == len(words)
    assert hashes[: len(words)].tolist() == hashes[len(words) :].tolist()
    assert rows.tolist() == [0] * len(words) + list(range(1, len(words) + 1))


def test_hashes_that_differ_in_their_lowest_bits_alone_are_ordered():
    # Three of row 1 that share their upper 32 of 63 bits, and one of them twice.
    hashes = np.array([7, (5 << 31) + 3, (5 << 31) + 1, 9 << 40, (5 << 31) + 3, (5 << 31) + 2], dtype=np.uint64)
    rows = np.array([1, 1, 1, 0, 1, 1], dtype=np.uint16)
    got, owners = as_set(hashes, rows)
    assert got.tolist() == [9 << 40, 7, (5 << 31) + 1, (5 << 31) + 2, (5 << 31) + 3]
    assert owners.tolist() == [0, 1, 1, 1, 1]
    bag, owners = as_bag(hashes, rows)
    assert bag.tolist() == [9 << 40, 7, (5 << 31) + 1, (5 << 31) + 2, (5 << 31) + 3, (5 << 31) + 4]
    assert owners.tolist() == [0, 1, 1, 1, 1, 1]


def test_a_blob_is_a_header_and_three_ascending_sets():
    (blob,) = features(pa.array(["to be or not to be 1 2 1"])).to_pylist()
    assert struct.unpack("<4I", blob[:16]) == (FEATURES_VERSION, 5, 9, 3)
    values = np.frombuffer(blob, dtype="<u8", offset=16)
    for part in (values[:5], values[5:14], values[14:]):
        assert (np.diff(part.astype(object)) > 0).all()
    assert values.max() < 2**63


def test_features_depend_on_the_text_alone():
    texts = ["a b c d e f", "", "x 1", None, "猫 is a cat", "a b c d e f"]
    together = features(pa.array(texts)).to_pylist()
    assert together == [features(pa.array([text], pa.string())).to_pylist()[0] for text in texts]
    assert features(pa.chunked_array([texts[:2], texts[2:]])).to_pylist() == together
    assert features(pa.array(texts, pa.large_string())[2:]).to_pylist() == together[2:]


def test_more_texts_than_one_row_number_of_16_bits_can_tell_apart_keep_their_rows():
    texts = [str(i % 7) for i in range(70_000)]
    block = decode(features(pa.array(texts)))
    assert block.values.tolist() == decode(features(pa.array(texts[:7]))).take(np.arange(70_000) % 7).values.tolist()


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()])
def test_every_way_to_hand_over_blobs_decodes_to_the_same_block(kind):
    blobs = features(pa.array(["a b c d e f", None, "x 1", "猫"])).cast(kind)
    want = decode(blobs)
    assert want.sizes(np.arange(4)).tolist() == [[2, 6, 0], [0, 0, 0], [1, 2, 1], [1, 1, 0]]
    for same in (pa.chunked_array([blobs[:1], blobs[1:]]), blobs.to_pylist(), [b and memoryview(b) for b in blobs.to_pylist()]):
        got = decode(same)
        assert got.values.tolist() == want.values.tolist() and got.bounds.tolist() == want.bounds.tolist()
    part = decode(blobs[2:])
    assert part.values.tolist() == want.take(np.array([2, 3])).values.tolist()
    assert len(decode(blobs[:0])) == len(decode([])) == 0


def test_take_repeats_and_reorders_rows():
    block = decode(features(pa.array(["a b", "c 1", "d e f g h i"])))
    taken = block.take(np.array([2, 0, 2]))
    assert taken.sizes(np.arange(3)).tolist() == [[2, 6, 0], [1, 2, 0], [2, 6, 0]]
    assert taken.values.tolist() == [*block.values[-8:], *block.values[:3], *block.values[-8:]]


def test_blocks_read_from_memory_mapped_files_score_the_same(tmp_path):
    block = decode(features(pa.array(["a b c d e f 1", "a b c d e f 2"])))
    block.values.tofile(tmp_path / "values")
    block.bounds.tofile(tmp_path / "bounds")
    mapped = FeatureBlock(np.memmap(tmp_path / "values", np.uint64, "r"), np.memmap(tmp_path / "bounds", np.int64, "r"))
    assert same_bits(pair_scores(mapped, rows_of(0), mapped, rows_of(1)), pair_scores(block, rows_of(0), block, rows_of(1)))


@pytest.mark.parametrize(
    "damage", [lambda b: b[:-8], lambda b: b[:-1], lambda b: b"", lambda b: b"\x01" + b[1:], lambda b: b[:4] + b"\xff" * 12 + b[16:]]
)
def test_damaged_blobs_and_those_of_another_version_are_refused(damage):
    good = features(pa.array(["a b c d e f"])).to_pylist()[0]
    with pytest.raises(StoreError, match=r"row 1: \d+ bytes that are no features of version 3"):
        decode([good, damage(good)])


def test_bounds_that_do_not_fit_are_refused():
    for bounds in ([0], [0, 1, 2], [0, 1, 1, 3], [1, 1, 2, 2]):
        if len(bounds) == 1:
            FeatureBlock(np.zeros(0, np.uint64), np.array(bounds))  # no text is a block too
            continue
        with pytest.raises(StoreError, match="do not cut 2 values into 3 sets"):
            FeatureBlock(np.zeros(2, np.uint64), np.array(bounds))


def test_something_else_than_text_is_refused():
    with pytest.raises(SchemaError, match="got double"):
        features(pa.array([1.5]))


def test_no_pairs_give_no_scores():
    block = decode(features(pa.array(["a"])))
    assert [len(part) for part in vars(pair_scores(block, rows_of(), block, rows_of())).values()] == [0] * 6


# --- ragged arrays ------------------------------------------------------------------------------------------------------


def test_ragged_rows_are_laid_out_one_after_the_other():
    sizes = np.array([2, 0, 3])
    assert edges(sizes).tolist() == [0, 2, 2, 5]
    assert ranges(np.array([10, 50, 20]), sizes).tolist() == [10, 11, 20, 21, 22]


@settings(deadline=None)
@given(sizes=st.lists(st.integers(0, 9), max_size=30), most=st.integers(1, 12))
def test_slices_cover_all_rows_and_exceed_the_limit_only_with_a_single_row(sizes, most):
    parts = [range(part.start, part.stop) for part in slices(np.array(sizes, dtype=np.int64), most)]
    assert [row for part in parts for row in part] == list(range(len(sizes)))
    assert all(len(part) == 1 or sum(sizes[row] for row in part) <= most for part in parts)


def test_characters_that_show_nothing_make_no_difference():
    plain = "customers may return the blue kettle within thirty days"
    hidden = [
        "customers may return the blue\u200b kettle within thirty days",
        "\ufeffcustomers may return the blue ket\u00adtle within thirty days",
    ]
    blobs = features(pa.array([plain, *hidden, "\u200b", "\u200b\u2060"])).to_pylist()
    assert blobs[1] == blobs[2] == blobs[0]
    assert blobs[3] != blobs[4]  # a text of such characters alone is its own only word
