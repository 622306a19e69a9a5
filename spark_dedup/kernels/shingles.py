"""What a text consists of, as 64-bit hashes: its words, numbers, characters, tokens of code, and the n-grams of these.

The hashes are the same on every machine and Python. They lie below 2**63, so two different elements share one with a chance of
about 2**-63. Functions here take normalised texts that are not empty, at most 65,536 at once, and return hashes with their rows.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from functools import lru_cache
from itertools import chain
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from spark_dedup.kernels.ragged import edges, places

Hashes: TypeAlias = NDArray[np.uint64]
Rows: TypeAlias = NDArray[np.uint16]  # sorting by 16 bits is a radix sort

NGRAM = 5

LONGEST_NGRAM = 64

_WORD = re.compile(r"\w+")
_TOKEN = re.compile(r"\w+|[^\w\s]")
_NUMBER = re.compile(r"\d+(?:[.,:/-]\d+)*")
_ONES = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen"
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety hundred"
SPELLED = {
    **{word: str(n) for n, word in enumerate(_ONES.split(), 1)},
    **{word: str(n) for n, word in zip(range(20, 101, 10), _TENS.split(), strict=True)},
    **{"first": "1", "second": "2", "third": "3", "thousand": "1000"},
}
"""Numbers that are spelled out, in English."""

_WITHOUT_BLANKS = (  # blocks of the scripts that are written without blanks between words
    (0x0E00, 0x0EFF),  # Thai, Lao
    (0x1000, 0x109F),  # Myanmar
    (0x1780, 0x17FF),  # Khmer
    (0x2E80, 0x2FDF),  # Han radicals
    (0x3005, 0x3007),  # Han iteration mark, closing mark, zero
    (0x3021, 0x3029),  # Hangzhou numerals
    (0x3038, 0x303B),  # Hangzhou numerals, vertical iteration mark
    (0x3041, 0x30FF),  # Hiragana, Katakana
    (0x31F0, 0x31FF),  # Katakana extensions
    (0x3400, 0x4DBF),  # Han extension A
    (0x4E00, 0x9FFF),  # Han
    (0xA9E0, 0xA9FF),  # Myanmar extended B
    (0xAA60, 0xAA7F),  # Myanmar extended A
    (0xF900, 0xFAFF),  # Han compatibility
    (0x1AFF0, 0x1B16F),  # Kana extensions and supplement
    (0x20000, 0x3FFFF),  # Han extensions B and later
)


def mix(values: Hashes) -> Hashes:
    """Finalizer of SplitMix64 (Steele, Lea, Flood 2014): every input bit reaches every output bit."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_LONGEST = 64  # bytes; identifiers of 256 bits in hexadecimal just fit
_BLOCK = 8  # bytes that are hashed at once
_FIRST_BYTES: Hashes = np.array([(1 << 8 * n) - 1 for n in range(_BLOCK + 1)], dtype=np.uint64)
"""Masks that keep the first n bytes of a block."""
_GRAM: Hashes = mix(np.arange(1 << 20, (1 << 20) + LONGEST_NGRAM, dtype=np.uint64) * _GOLDEN) | np.uint64(1)
"""Odd factors, one for each place in an n-gram."""

# Bytes of UTF-8 beyond ASCII stand in joined texts only inside words and digits that a regular expression has found.
_BYTE = np.arange(256)
_IS_DIGIT: NDArray[np.bool_] = np.isin(_BYTE, list(b"0123456789")) | (_BYTE >= 0x80)
_IS_WORD: NDArray[np.bool_] = np.isin(_BYTE, list(b"abcdefghijklmnopqrstuvwxyz_")) | _IS_DIGIT
_IS_TOKEN: NDArray[np.bool_] = _IS_WORD | np.isin(_BYTE, list(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ"))
_IS_INNER: NDArray[np.bool_] = np.isin(_BYTE, list(b".,:/-"))


def word_hashes(texts: list[str]) -> tuple[Hashes, Rows]:
    r"""Every word in text order, lower-cased: `\w+`, but in scripts without blanks each letter, mark and digit by itself.

    A text without any word is its own only word.
    """
    data, text_starts = _join([text if text.isascii() else " ".join(_words(text)).lower() for text in texts])
    starts, stops = _runs(_IS_WORD[data])
    hashes, rows = _span_hashes(data, starts, stops), _rows(text_starts, starts)
    none = np.flatnonzero(np.bincount(rows, minlength=len(texts)) == 0)
    at = np.searchsorted(rows, none)
    return np.insert(hashes, at, _text_hashes(texts, none)), np.insert(rows, at, none.astype(np.uint16))


def number_hashes(texts: list[str]) -> tuple[Hashes, Rows]:
    """Every number in text order: digits, with one of `. , : / -` between digits as part of the number."""
    data, text_starts = _join([text if text.isascii() else " ".join(_NUMBER.findall(text)) for text in texts])
    inside = _IS_DIGIT[data]
    inside[1:-1] |= _IS_INNER[data[1:-1]] & inside[:-2] & inside[2:]
    starts, stops = _runs(inside)
    return _span_hashes(data, starts, stops), _rows(text_starts, starts)


def spelled_numbers(words: Hashes, rows: Rows) -> tuple[Hashes, Rows]:
    """The words that spell a number in English, as hashes of its digits: `six` counts as the number `6`.

    Args:
        words: As `word_hashes` gives them.
        rows: Rows of the words.
    """
    keys, digits, endings = _spelled_table()
    likely = np.flatnonzero(endings[words.astype(np.uint16)])
    at = np.searchsorted(keys, words[likely])
    is_key = keys[np.minimum(at, len(keys) - 1)] == words[likely]
    return digits[at[is_key]], rows[likely[is_key]]


@lru_cache(maxsize=1)
def _spelled_table() -> tuple[Hashes, Hashes, NDArray[np.bool_]]:
    """Ascending hashes of the words in `SPELLED`, those of their digits, and which 16 bits the hash of such a word ends with."""
    words, _ = word_hashes([" ".join(SPELLED)])
    digits, _ = number_hashes([" ".join(SPELLED.values())])
    order, endings = np.argsort(words), np.zeros(1 << 16, dtype=np.bool_)
    endings[words.astype(np.uint16)] = True
    return words[order], digits[order], endings


def char_hashes(texts: list[str]) -> tuple[Hashes, Rows]:
    """Every character in text order, lower-cased."""
    lower = [text.lower() for text in texts]
    points = np.frombuffer("".join(lower).encode("utf-32-le"), dtype="<u4").astype(np.uint64)
    rows = np.repeat(np.arange(len(lower), dtype=np.uint16), np.fromiter(map(len, lower), dtype=np.int64, count=len(lower)))
    return mix((points + np.uint64(1)) * _GOLDEN) >> np.uint64(1), rows


def token_hashes(texts: list[str]) -> tuple[Hashes, Rows]:
    r"""Every token in text order, as code has them: `\w+` with its case, and each other character that is not blank by itself."""
    data, text_starts = _join([text if text.isascii() else " ".join(_TOKEN.findall(text)) for text in texts], lower=False)
    inside = _IS_TOKEN[data]
    starts, stops = _runs(inside)
    marks = np.flatnonzero(~inside & (data > 0x20) & (data != 0x7F))
    order = np.argsort(np.concatenate([starts, marks]), kind="stable")
    starts, stops = np.concatenate([starts, marks])[order], np.concatenate([stops, marks + 1])[order]
    return _span_hashes(data, starts, stops), _rows(text_starts, starts)


def shingle_hashes(texts: list[str], words: Hashes, rows: Rows, ngram: int = NGRAM) -> tuple[Hashes, Rows]:
    """Every run of `ngram` words; a text with fewer is its own only shingle, case and punctuation kept.

    Args:
        texts: The texts.
        words: Their words, characters or tokens.
        rows: Rows of the words.
        ngram: In [1, `LONGEST_NGRAM`].
    """
    few = np.flatnonzero(np.bincount(rows, minlength=len(texts)) < ngram)
    runs = max(0, len(words) - ngram + 1)
    grams = np.zeros(runs, dtype=np.uint64)
    for k in range(ngram):
        grams += words[k : k + runs] * _GRAM[k]
    inside = rows[:runs] == rows[len(rows) - runs :]
    hashes = np.concatenate([mix(grams[inside]) >> np.uint64(1), _text_hashes(texts, few)])
    return hashes, np.concatenate([rows[:runs][inside], few.astype(np.uint16)])


def as_set(hashes: Hashes, rows: Rows) -> tuple[Hashes, Rows]:
    """The distinct hashes of each row, ordered by row, then hash."""
    hashes, rows, new = _sorted(hashes, rows)
    return hashes[new], rows[new]


def as_bag(hashes: Hashes, rows: Rows) -> tuple[Hashes, Rows]:
    """A multiset as a set, ordered by row, then hash: the k-th of equal hashes of a row, from 0, becomes hash + k."""
    hashes, rows, new = _sorted(hashes, rows)
    occurrence = places(np.diff(np.flatnonzero(new), append=len(hashes)))
    return hashes + occurrence.astype(np.uint64), rows


def _sorted(hashes: Hashes, rows: Rows) -> tuple[Hashes, Rows, NDArray[np.bool_]]:
    """Order by row, then hash; and whether each differs from the one before it."""
    upper = (hashes >> np.uint64(31)).astype(np.uint32)  # sorted 16 bits at a time; few texts have two hashes that differ in the rest alone
    order = np.argsort(upper.astype(np.uint16), kind="stable")
    for key in ((upper >> np.uint32(16)).astype(np.uint16), rows):
        order = order[np.argsort(key[order], kind="stable")]
    ordered, owners = hashes[order], rows[order]
    same_row = owners[1:] == owners[:-1]
    if (same_row & (ordered[1:] < ordered[:-1])).any():
        ordered = hashes[np.lexsort((hashes, rows))]
    new = np.ones(len(hashes), dtype=np.bool_)
    new[1:] = (ordered[1:] != ordered[:-1]) | ~same_row
    return ordered, owners, new


def _words(text: str) -> list[str]:
    single, word = _script_patterns()
    found: list[str] = (word if single.search(text) else _WORD).findall(text)
    return found


@lru_cache(maxsize=1)
def _script_patterns() -> tuple[re.Pattern[str], re.Pattern[str]]:
    """What is a word by itself, and every word of a text that has such."""
    spans: list[list[int]] = []
    for c in chain.from_iterable(range(first, last + 1) for first, last in _WITHOUT_BLANKS):
        if unicodedata.category(chr(c))[0] in "LMN":
            if spans and spans[-1][1] == c - 1:
                spans[-1][1] = c
            else:
                spans.append([c, c])
    single = "[" + "".join(f"{chr(first)}-{chr(last)}" for first, last in spans) + "]"
    return re.compile(single), re.compile(rf"{single}|(?:(?!{single})\w)+")


def _join(texts: list[str], *, lower: bool = True) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """UTF-8 of all texts with a blank after each text, ASCII letters lower-cased if asked, and where each text starts."""
    encoded = [text.encode() for text in texts]
    joined = b" ".join([*encoded, b""])
    data = np.frombuffer(joined.lower() if lower else joined, dtype=np.uint8)
    return data, edges(np.fromiter(map(len, encoded), dtype=np.int64, count=len(encoded)) + 1)[:-1]


def _runs(inside: NDArray[np.bool_]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Start and stop of each run of true. The last is never true, as a blank ends the data."""
    change = np.flatnonzero(np.diff(inside, prepend=False))
    return change[::2], change[1::2]


def _rows(text_starts: NDArray[np.int64], starts: NDArray[np.int64]) -> Rows:
    counts = np.diff(np.searchsorted(starts, text_starts), append=len(starts))
    return np.repeat(np.arange(len(text_starts), dtype=np.uint16), counts)


def _span_hashes(data: NDArray[np.uint8], starts: NDArray[np.int64], stops: NDArray[np.int64]) -> Hashes:
    """Hash of each span of bytes without NUL: block by block through `mix`, and BLAKE2b for long spans.

    Spans of at most eight bytes have different 64-bit hashes if they are different, of which one bit is dropped.
    """
    padded = np.append(data, np.zeros(_BLOCK, dtype=np.uint8))
    blocks: Hashes = np.ndarray(len(data) + 1, dtype="<u8", buffer=padded.data, strides=(1,))  # the block from each byte on
    sizes = stops - starts
    hashes = mix((blocks[starts] & _FIRST_BYTES[np.minimum(sizes, _BLOCK)]) + _GOLDEN)
    done, rows = _BLOCK, np.flatnonzero((sizes > _BLOCK) & (sizes <= _LONGEST))
    while len(rows):
        block = blocks[starts[rows] + done] & _FIRST_BYTES[np.minimum(sizes[rows] - done, _BLOCK)]
        hashes[rows] = mix((hashes[rows] ^ block) + _GOLDEN)
        done += _BLOCK
        rows = rows[sizes[rows] > done]
    hashes >>= np.uint64(1)
    for row in np.flatnonzero(sizes > _LONGEST).tolist():
        hashes[row] = _hash(data[starts[row] : stops[row]].tobytes())
    return hashes


def _text_hashes(texts: list[str], rows: NDArray[np.int64]) -> Hashes:
    return np.array([_hash(texts[row].encode()) for row in rows.tolist()], dtype=np.uint64)


def _hash(data: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little") >> 1
