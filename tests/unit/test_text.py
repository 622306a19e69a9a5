from __future__ import annotations

import hashlib
import re
import sys
import unicodedata

import pyarrow as pa
import pytest
from case_files import case_rows
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_dedup.errors import SchemaError
from spark_dedup.kernels import text as kernel
from spark_dedup.kernels.text import INVISIBLE, clean, clean_text, exact_key, exact_keys, normalize, normalize_all, text_issues

EVERY_CHARACTER = [chr(c) for c in range(sys.maxunicode + 1)]
EVERY_ASSIGNED = [c for c in EVERY_CHARACTER if unicodedata.category(c) not in ("Cn", "Co")]
SURROGATES = re.compile("[\ud800-\udfff]")
OPTIONS = [{}, {"lowercase": True}, {"strip_punctuation": True}, {"lowercase": True, "strip_punctuation": True}]
ANY_TEXT = st.text(st.characters(categories=None)) | st.text("a B.\t\n\u00a0\u0301\u0130\u03a3\ufb01\ud800\u200b\u732b", max_size=20)
LONG = "Seven  plates were sent\tback to the works. " * 9_000


def rows(name: str) -> dict[str, dict]:
    return {row["id"]: row for row in case_rows(name)}


def plain(text: str) -> str:
    """The definition, written out; only lone surrogates have to be replaced first, as no encoder takes them."""
    t = unicodedata.normalize("NFKC", SURROGATES.sub("\ufffd", text))
    t = re.sub(r"\s+", " ", t).strip()
    return hashlib.sha256(t.encode()).hexdigest()


def plain_key(text: str | None) -> str | None:
    key = None if text is None else plain(text)
    return None if key == plain("") else key


def utf8(texts: list[str | None], kind: pa.DataType | None = None) -> pa.Array:
    """Texts as bytes, lone surrogates too (the way some writers encode them)."""
    return pa.array([None if t is None else t.encode("utf-8", "surrogatepass") for t in texts], kind or pa.binary())


# --- the key ---------------------------------------------------------------------------------------------------------


def test_every_character_gets_the_key_of_the_definition_at_the_start_inside_and_at_the_end():
    texts = [f"{c} x{c}y{c}" for c in EVERY_CHARACTER]
    assert exact_keys(utf8(texts)).to_pylist() == [plain(text) for text in texts]


def test_every_character_alone_has_a_key_unless_it_is_white_space():
    keys = exact_keys(utf8(EVERY_CHARACTER)).to_pylist()
    assert [c for c, key in zip(EVERY_CHARACTER, keys, strict=True) if key is None] == [c for c in EVERY_CHARACTER if c.isspace()]


@pytest.mark.parametrize("options", OPTIONS)
def test_normalising_twice_changes_nothing_for_any_character(options):
    for start in range(0, len(EVERY_ASSIGNED), 64):
        block = EVERY_ASSIGNED[start : start + 64]
        text = " ".join(f"{c} x{c}y {c}\u0316 A.{c}\u0301" for c in block)
        once = normalize(text, **options)
        assert normalize(once, **options) == once


@pytest.mark.parametrize("options", OPTIONS)
@settings(deadline=None)
@given(text=ANY_TEXT)
def test_normalising_twice_changes_nothing_for_any_text(options, text):
    once = normalize(text, **options)
    assert normalize(once, **options) == once


@settings(deadline=None, max_examples=300)
@given(texts=st.lists(st.none() | ANY_TEXT, max_size=30))
def test_a_batch_of_any_texts_gets_the_keys_of_the_definition(texts):
    want = [plain_key(text) for text in texts]
    assert exact_keys(utf8(texts)).to_pylist() == want
    assert [None if text is None else exact_key(text) for text in texts] == want


@pytest.mark.parametrize("options", OPTIONS)
@settings(deadline=None)
@given(texts=st.lists(st.none() | ANY_TEXT, max_size=30))
def test_a_batch_equals_one_text_at_a_time_under_every_option(options, texts):
    assert exact_keys(utf8(texts), **options).to_pylist() == [None if t is None else exact_key(t, **options) for t in texts]
    assert normalize_all(utf8(texts), **options) == [None if t is None else normalize(t, **options) for t in texts]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary(), pa.large_binary()])
def test_slices_chunks_and_nulls_of_every_arrow_type_get_the_same_keys(kind):
    texts = ["dropped", None, "a  b", "", "é \u00a0 ü", " \t", LONG, "caf\u0065\u0301 " * 40_000, "last \n"]
    whole = utf8(texts, kind) if kind in (pa.binary(), pa.large_binary()) else pa.array(texts, kind)
    want = [plain_key(text) for text in texts]
    assert exact_keys(whole[1:]).to_pylist() == want[1:]
    assert exact_keys(pa.chunked_array([whole[1:3], whole[3:3], whole[3:]])).to_pylist() == want[1:]
    assert exact_keys(pa.chunked_array([], kind)).to_pylist() == []


def test_blanks_at_the_border_of_two_texts_belong_to_their_own_text():
    texts = ["a ", " b", " ", "  ", "", "c\t", "\n", None, " d  e "]
    assert normalize_all(pa.array(texts)) == ["a", "b", "", "", "", "c", "", None, "d e"]


def test_the_bytes_under_a_null_do_not_count():
    under = pa.array(["a b", "no  te", "c"])
    texts = pa.Array.from_buffers(pa.string(), 3, [pa.array([True, False, True]).buffers()[1], *under.buffers()[1:]])
    assert exact_keys(texts).to_pylist() == [plain("a b"), None, plain("c")]


def test_something_else_than_text_is_refused():
    for make in (exact_keys, clean_text, text_issues):
        with pytest.raises(SchemaError, match="must be string, large_string, binary or large_binary, got int64"):
            make(pa.array([1, 2]))


def test_white_space_is_the_same_set_for_every_function_and_the_documented_one():
    documented = [
        *range(0x09, 0x0E),
        *range(0x1C, 0x21),
        0x85,
        0xA0,
        0x1680,
        *range(0x2000, 0x200B),
        0x2028,
        0x2029,
        0x202F,
        0x205F,
        0x3000,
    ]
    assert [ord(c) for c in EVERY_CHARACTER if re.match(r"\s", c)] == documented
    assert [ord(c) for c in EVERY_CHARACTER if normalize(f"a{c}b") == "a b"] == documented


def test_one_sentence_under_any_white_space_has_one_key():
    case = rows("o01_whitespace.jsonl").values()
    keys = exact_keys(pa.array([row["text"] for row in case])).to_pylist()
    assert keys == [row["ref_key"] for row in case]
    assert len({key for row, key in zip(case, keys, strict=True) if row["group"] == "A"}) == 1
    assert len(set(keys)) == 2  # the control lacks one blank


def test_compatible_forms_share_a_key_and_case_does_not():
    case = rows("o02_nfkc.jsonl")
    keys = dict(zip(case, exact_keys(pa.array([row["text"] for row in case.values()])).to_pylist(), strict=True))
    assert keys == {name: row["ref_key"] for name, row in case.items()}
    pairs: dict[str, set[str]] = {}
    for name, row in case.items():
        pairs.setdefault(row["pair"], set()).add(keys[name])
    assert {pair: len(found) for pair, found in pairs.items()} == {pair: 2 if pair.endswith("must_differ") else 1 for pair in pairs}
    assert len(pairs) == 14


def test_blanks_that_nfkc_makes_are_folded_too():
    assert normalize("x  \u00a8") == "x \u0308"  # U+00A8 becomes a blank and U+0308
    assert normalize("3\u00bd") == "31\u20442"


def test_lower_casing_follows_no_locale_and_stays_normalised():
    assert normalize("\u0130STANBUL", lowercase=True) == "i\u0307stanbul"
    assert normalize("\u0130\u0316", lowercase=True) == "i\u0316\u0307"  # lower() leaves these two marks in another order
    assert normalize("Straße", lowercase=True) == "straße"


def test_stripping_punctuation_joins_what_it_separated():
    assert normalize("«Well», he said - e.\u0301 no_more!", strip_punctuation=True) == "Well he said \u00e9 nomore"
    assert normalize("1 + 1 = $2", strip_punctuation=True) == "1 + 1 = $2"  # symbols are no punctuation
    assert exact_keys(pa.array(["...", "\u2026", "?"]), strip_punctuation=True).to_pylist() == [None] * 3


def test_invisible_characters_keep_keys_apart():
    case = rows("o03_invisible.jsonl").values()
    keys = exact_keys(pa.array([row["text"] for row in case])).to_pylist()
    assert keys == [row["ref_key"] for row in case]
    assert len(set(keys)) == 8


def test_lone_surrogates_count_as_the_replacement_character_and_nul_as_itself():
    texts = {name: row["text"] for name, row in rows("o04_surrogates.jsonl").items()}
    keys = {name: exact_key(text) for name, text in texts.items()}
    assert keys["s1"] == keys["s2"] == keys["s5"] == plain("value \ufffd tail of the sentence")
    assert len(set(keys.values())) == 5  # the pair of surrogates is one emoji; NUL, U+FFFF and "?" stand for themselves
    assert keys["s4"] == hashlib.sha256(b"value \x00 tail of the sentence").hexdigest()
    assert exact_keys(utf8(list(texts.values()))).to_pylist() == list(keys.values())


def test_null_empty_and_blank_texts_have_no_key():
    case = rows("o05_empty.jsonl")
    keys = dict(zip(case, exact_keys(pa.array([row["text"] for row in case.values()])).to_pylist(), strict=True))
    assert [name for name, key in keys.items() if key is None] == ["e0", "e1", "e2", "e3", "e4", "e5", "e6", "e7", "e8"]
    assert keys["e12"] == keys["e13"] and keys["t1"] == keys["t2"]
    assert len({key for key in keys.values() if key}) == 6  # U+200B, ".", "-", "n/a" and two sentences


def test_short_texts_are_exact_copies_only_of_equal_ones():
    case = rows("o06_short.jsonl")
    groups: dict[str, list[str]] = {}
    for name, key in zip(case, exact_keys(pa.array([row["text"] for row in case.values()])).to_pylist(), strict=True):
        groups.setdefault(key, []).append(name)
    assert [group for group in groups.values() if len(group) > 1] == [["h00", "h02"], ["h07", "h08"], ["h11", "h13"]]


# --- bytes that are not UTF-8 ----------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=300)
@given(raw=st.lists(st.binary(max_size=12) | st.just(b"\xed\xa0\x80") | st.just("é ".encode())).map(b"".join))
def test_any_bytes_get_the_key_of_their_cleaned_text(raw):
    cleaned = clean_text(pa.array([raw])).to_pylist()[0]
    assert exact_keys(pa.array([raw])).to_pylist() == [plain_key(cleaned)]
    if not re.search(rb"\xed[\xa0-\xbf][\x80-\xbf]", raw):
        assert cleaned == raw.decode(errors="replace")


def test_an_encoded_surrogate_becomes_one_replacement_character_by_every_way_in():
    assert clean("a\ud800b") == "a\ufffdb"
    assert clean_text(pa.array([b"a\xed\xa0\x80b", b"\xed\xa0\xbd\xed\xb8\x80", b"\xff", None])).to_pylist() == [
        "a\ufffdb",
        "\ufffd\ufffd",
        "\ufffd",
        None,
    ]
    assert exact_keys(pa.array([b"a\xed\xa0\x80b"])).to_pylist() == [exact_key("a\ud800b")] == [exact_key("a\ufffdb")]


def test_valid_texts_are_cleaned_without_a_copy():
    for kind, want in [(pa.string(), pa.string()), (pa.binary(), pa.string()), (pa.large_string(), pa.large_string())]:
        texts = pa.array(["dropped", "é", None, "\ud7ff\ue000"], pa.large_string()).cast(kind)[1:]
        cleaned = clean_text(texts)
        assert cleaned.type == want
        assert cleaned.to_pylist() == ["é", None, "\ud7ff\ue000"]
        assert cleaned.buffers()[2].address == texts.buffers()[2].address
    assert clean_text(pa.array([], pa.string())).to_pylist() == []


# --- issues ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strip", [False, True])
def test_every_character_gets_the_issues_of_its_definition(strip):
    invisible = {chr(c) for first, last in INVISIBLE for c in range(first, last + 1)}
    blank = exact_keys(utf8(EVERY_ASSIGNED), strip_punctuation=strip).is_null().to_pylist()
    want = [
        [
            *["no_text"] * is_blank,
            *["invalid_characters"] * (c == "\ufffd" or "\ud800" <= c <= "\udfff"),
            *["invisible_characters"] * (c in invisible),
        ]
        for c, is_blank in zip(EVERY_ASSIGNED, blank, strict=True)
    ]
    assert text_issues(utf8(EVERY_ASSIGNED), strip_punctuation=strip).to_pylist() == want


def test_one_text_can_have_several_issues_and_most_have_none():
    texts = [b"plain", None, b"", "a\u200bb".encode(), b"\xff\xe2\x80\x8b", "\ufffd".encode(), " \u3000".encode(), "é".encode()]
    got = text_issues(pa.array(texts, pa.binary()))
    assert got.type == pa.list_(pa.string())
    both = ["invalid_characters", "invisible_characters"]
    assert got.to_pylist() == [[], ["no_text"], ["no_text"], both[1:], both, both[:1], ["no_text"], []]
    assert text_issues(pa.array(texts, pa.binary())[3:5]).to_pylist() == [both[1:], both]


def test_rows_with_invisible_characters_are_found_and_the_clean_one_is_not():
    case = rows("o03_invisible.jsonl").values()
    issues = text_issues(pa.array([row["text"] for row in case])).to_pylist()
    assert issues == [[] if row["variant"] == "clean" else ["invisible_characters"] for row in case]


def test_texts_larger_than_a_piece_and_more_texts_than_a_piece_keep_their_order():
    texts = [LONG, "x", LONG + "é", *(f"row  {i}" for i in range(kernel._PIECE_ROWS + 10)), LONG]
    assert exact_keys(pa.array(texts)).to_pylist() == [plain(text) for text in texts]
