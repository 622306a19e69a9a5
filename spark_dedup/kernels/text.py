"""The exact key of a text: what counts as the same text, and its hash.

`normalize` is the definition; the batch functions give the same answers over Arrow buffers. The white space that is folded
is what Python's `str.isspace` accepts: U+0009-000D, U+001C-0020, U+0085, U+00A0, U+1680, U+2000-200A, U+2028, U+2029, U+202F,
U+205F and U+3000. Known losses of NFKC: superscripts, fractions, ligatures and widths ("25 m²" and "25 m2" share a key).
"""

from __future__ import annotations

import hashlib
import re
import sys
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from spark_dedup.errors import SchemaError

Texts: TypeAlias = "pa.Array | pa.ChunkedArray"

NO_TEXT = "no_text"
INVALID_CHARACTERS = "invalid_characters"
INVISIBLE_CHARACTERS = "invisible_characters"
ISSUES = (NO_TEXT, INVALID_CHARACTERS, INVISIBLE_CHARACTERS)

INVISIBLE = (
    (0x00AD, 0x00AD),  # soft hyphen
    (0x061C, 0x061C),  # Arabic letter mark
    (0x180E, 0x180E),  # Mongolian vowel separator
    (0x200B, 0x200F),  # zero-width space, joiners, direction marks
    (0x202A, 0x202E),  # direction embeddings and overrides
    (0x2060, 0x2064),  # word joiner, invisible operators
    (0x2066, 0x2069),  # direction isolates
    (0xFE00, 0xFE0F),  # variation selectors
    (0xFEFF, 0xFEFF),  # byte order mark
)
"""Code points (first, last) that show nothing and that NFKC keeps. Texts that hold one are counted; their keys stay apart."""

_REPLACEMENT = "\ufffd"
_SURROGATE = re.compile("[\ud800-\udfff]")
_SURROGATE_BYTES = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]")
_INVISIBLE_RE2 = "[" + "".join(f"\\x{{{first:X}}}-\\x{{{last:X}}}" for first, last in INVISIBLE) + "]"

_PIECE_BYTES = 1 << 18  # a piece and its masks stay in the processor's cache
_PIECE_ROWS = 1 << 16
_BLANK = 0x20
_KEY_CHARACTERS = 64
_ASCII_SPACE = bytes(c for c in range(128) if chr(c).isspace())
_ASCII_FOLD = bytes.maketrans(_ASCII_SPACE, b" " * len(_ASCII_SPACE))
_ASCII_PUNCTUATION: NDArray[np.bool_] = np.array([c < 128 and unicodedata.category(chr(c)).startswith("P") for c in range(256)])


def clean(text: str) -> str:
    """The text with U+FFFD in place of each lone surrogate, which no UTF-8 can hold."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return _SURROGATE.sub(_REPLACEMENT, text)
    return text


def normalize(text: str, *, lowercase: bool = False, strip_punctuation: bool = False) -> str:
    """The form of a text that is compared: NFKC, then every run of white space to one blank, then strip.

    Normalising twice changes nothing, whatever the options. To that end NFKC is applied again after each of them: `lower` turns
    U+0130 into two characters, and removing a character can bring a letter and an accent together.

    Args:
        text: Any `str`; lone surrogates count as U+FFFD, NUL is a character like others.
        lowercase: Also apply `str.lower`, which no locale can change.
        strip_punctuation: Also remove the characters of the Unicode categories P*.
    """
    return _fold(clean(text), lowercase, strip_punctuation)


def exact_key(text: str, *, lowercase: bool = False, strip_punctuation: bool = False) -> str | None:
    """SHA-256 of the normalised text as 64 hexadecimal digits, or None where nothing is left to hash."""
    normal = normalize(text, lowercase=lowercase, strip_punctuation=strip_punctuation)
    return hashlib.sha256(normal.encode()).hexdigest() if normal else None


def exact_keys(texts: Texts, *, lowercase: bool = False, strip_punctuation: bool = False) -> pa.Array:
    """`exact_key` of every text at once.

    Args:
        texts: string, large_string, binary or large_binary. Bytes that are not UTF-8 count as U+FFFD, see `clean_text`.
        lowercase: As in `normalize`.
        strip_punctuation: As in `normalize`.

    Returns:
        string: 64 hexadecimal digits; null for null and for texts that are empty after normalisation.

    Raises:
        SchemaError: If `texts` holds something else than text.
    """
    parts = [_keys(piece, lowercase, strip_punctuation) for piece in _pieces(texts)]
    return pa.concat_arrays(parts) if parts else pa.array([], pa.string())


def normalize_all(texts: Texts, *, lowercase: bool = False, strip_punctuation: bool = False) -> list[str | None]:
    """`normalize` of every text at once; None for null. Arguments and errors as in `exact_keys`."""
    return [form for piece in normalize_pieces(texts, lowercase=lowercase, strip_punctuation=strip_punctuation) for form in piece]


def normalize_pieces(texts: Texts, *, lowercase: bool = False, strip_punctuation: bool = False) -> Iterator[list[str | None]]:
    """`normalize_all` piece by piece: at most 65,536 consecutive texts and about 256 KiB, or one longer text."""
    for piece in _pieces(texts):
        ascii_forms, starts, stops = _ascii_forms(piece, lowercase, strip_punctuation)
        whole = ascii_forms.decode("latin-1")  # holds the bytes of other texts too, but none of the slices taken here does
        forms: list[str | None] = [whole[a:b] for a, b in zip(starts, stops, strict=True)]
        for row, text, _ in piece.others():
            forms[row] = _fold(text, lowercase, strip_punctuation)
        for row in np.flatnonzero(piece.null).tolist():
            forms[row] = None
        yield forms


def clean_text(texts: Texts) -> pa.Array:
    """The texts as valid UTF-8: each encoded surrogate, and each other stretch that no decoder accepts, becomes U+FFFD.

    Args:
        texts: As in `exact_keys`.

    Returns:
        string, or large_string for inputs with 64-bit offsets; the same buffers where nothing is wrong.

    Raises:
        SchemaError: If `texts` holds something else than text.
    """
    array = _one_array(texts)
    kind = pa.large_string() if array.type in (pa.large_string(), pa.large_binary()) else pa.string()
    viewed = _view(array, kind)
    try:
        viewed.validate(full=True)
    except pa.ArrowInvalid:
        return pa.array([None if raw is None else _decode(raw) for raw in array.cast(pa.large_binary()).to_pylist()], kind)
    return viewed


def text_issues(texts: Texts, *, strip_punctuation: bool = False) -> pa.Array:
    """What is odd about each text.

    Args:
        texts: As in `exact_keys`.
        strip_punctuation: As in `normalize`; punctuation alone is then no text.

    Returns:
        list<string>, never null, with zero or more of `ISSUES` in that order. `no_text`: `exact_keys` gives null.
        `invalid_characters`: U+FFFD stands in the cleaned text, put there by `clean_text` or by whoever wrote the source.
        `invisible_characters`: holds one of `INVISIBLE`.

    Raises:
        SchemaError: If `texts` holds something else than text.
    """
    cleaned = clean_text(texts)
    has_issue = np.zeros((len(cleaned), len(ISSUES)), dtype=np.bool_)
    # A letter or a digit survives every option, so only the other texts have to be looked at one by one.
    bare = _rows(pc.invert(pc.match_substring_regex(pc.fill_null(cleaned, ""), r"[\pL\pN]")))
    for row, text in zip(bare.tolist(), cleaned.take(pa.array(bare)).to_pylist(), strict=True):
        has_issue[row, 0] = text is None or not normalize(text, strip_punctuation=strip_punctuation)
    other = _rows(pc.invert(pc.string_is_ascii(cleaned)))
    held = cleaned.take(pa.array(other))
    has_issue[other, 1] = _mask(pc.match_substring(held, _REPLACEMENT))
    has_issue[other, 2] = _mask(pc.match_substring_regex(held, _INVISIBLE_RE2))
    offsets = np.zeros(len(cleaned) + 1, dtype=np.int32)
    np.cumsum(has_issue.sum(axis=1), out=offsets[1:])
    names = pa.array(ISSUES, pa.string()).take(pa.array(np.nonzero(has_issue)[1]))
    return pa.ListArray.from_arrays(pa.array(offsets), names)


@dataclass(frozen=True)
class _Piece:
    """Consecutive texts as one run of bytes: row i is `data[offsets[i]:offsets[i + 1]]`."""

    data: NDArray[np.uint8]
    offsets: NDArray[np.int64]
    null: NDArray[np.bool_]
    other: NDArray[np.bool_]  # present, and not ASCII throughout

    def others(self) -> Iterator[tuple[int, str, bytes]]:
        """Row number, text and UTF-8 of those that are not ASCII."""
        rows = np.flatnonzero(self.other)
        raw = self.data.tobytes() if len(rows) else b""
        for row, a, b in zip(rows.tolist(), self.offsets[rows].tolist(), self.offsets[rows + 1].tolist(), strict=True):
            text = _decode(utf8 := raw[a:b])
            yield row, text, text.encode() if _REPLACEMENT in text else utf8


def _pieces(texts: Texts) -> Iterator[_Piece]:
    """Cut the texts at `_PIECE_BYTES` and `_PIECE_ROWS`; a longer text is a piece of its own."""
    array = _one_array(texts).cast(pa.large_binary())
    if not len(array):
        return
    _, offset_buffer, data_buffer = array.buffers()
    offsets = np.frombuffer(offset_buffer, dtype=np.int64)[array.offset : array.offset + len(array) + 1]
    data = np.frombuffer(data_buffer or b"", dtype=np.uint8)
    null = _mask(array.is_null())
    other = ~_mask(pc.string_is_ascii(_view(array, pa.large_string()))) & ~null
    row = 0
    while row < len(array):
        full = int(np.searchsorted(offsets, offsets[row] + _PIECE_BYTES, side="right")) - 1
        end = max(row + 1, min(full, row + _PIECE_ROWS))
        at = offsets[row : end + 1]
        yield _Piece(data[at[0] : at[-1]], at - at[0], null[row:end], other[row:end])
        row = end


def _ascii_forms(piece: _Piece, lowercase: bool, strip_punctuation: bool) -> tuple[bytes, list[int], list[int]]:
    """Normal forms of the ASCII texts of a piece: bytes, and where each text starts and stops in them (equal for all others)."""
    aside = piece.null | piece.other
    if aside.all():
        return b"", [0] * len(aside), [0] * len(aside)
    folded = piece.data.tobytes().translate(_ASCII_FOLD)
    flat = np.frombuffer(folded.lower() if lowercase else folded, dtype=np.uint8)
    offsets = piece.offsets
    if strip_punctuation:
        flat, offsets = _without(flat, offsets, _ASCII_PUNCTUATION[flat])
    repeated = np.zeros(len(flat), dtype=np.bool_)
    blank = flat == _BLANK
    np.logical_and(blank[1:], blank[:-1], out=repeated[1:])
    # A run that crosses into the next text keeps its first blank only: what the next text loses would be stripped anyway.
    flat, offsets = _without(flat, offsets, repeated)
    starts = offsets[:-1].copy()
    stops = np.where(aside, starts, offsets[1:])
    full = np.flatnonzero(stops > starts)
    starts[full] += flat[starts[full]] == _BLANK
    full = full[stops[full] > starts[full]]
    stops[full] -= flat[stops[full] - 1] == _BLANK
    return flat.tobytes(), starts.tolist(), stops.tolist()


def _without(flat: NDArray[np.uint8], offsets: NDArray[np.int64], drop: NDArray[np.bool_]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Take the marked bytes out and move the offsets along."""
    dropped = np.flatnonzero(drop)
    if not len(dropped):
        return flat, offsets
    return flat[~drop], offsets - np.searchsorted(dropped, offsets)


def _keys(piece: _Piece, lowercase: bool, strip_punctuation: bool) -> pa.Array:
    sha256 = hashlib.sha256
    ascii_forms, starts, stops = _ascii_forms(piece, lowercase, strip_punctuation)
    view = memoryview(ascii_forms)
    digests = [sha256(view[a:b]).digest() if a < b else b"" for a, b in zip(starts, stops, strict=True)]
    for row, text, utf8 in piece.others():
        if normal := _fold(text, lowercase, strip_punctuation):
            digests[row] = sha256(utf8 if normal == text else normal.encode()).digest()
    present = np.fromiter(map(len, digests), dtype=np.int32, count=len(digests)) > 0
    offsets = np.zeros(len(digests) + 1, dtype=np.int32)
    np.cumsum(present * np.int32(_KEY_CHARACTERS), out=offsets[1:])
    buffers = [pa.array(present).buffers()[1], pa.py_buffer(offsets), pa.py_buffer(b"".join(digests).hex().encode())]
    return pa.Array.from_buffers(pa.string(), len(digests), buffers)


def _fold(text: str, lowercase: bool, strip_punctuation: bool) -> str:
    text = unicodedata.normalize("NFKC", text)
    if lowercase:
        text = unicodedata.normalize("NFKC", text.lower())
    if strip_punctuation:
        text = unicodedata.normalize("NFKC", text.translate(_punctuation()))
    return " ".join(text.split())  # splits at exactly the characters that `\s` matches in a str


@lru_cache(maxsize=1)
def _punctuation() -> dict[int, None]:
    return {c: None for c in range(sys.maxunicode + 1) if unicodedata.category(chr(c)).startswith("P")}


def _decode(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:  # an encoded surrogate counts once, as in `clean`; plain "replace" would count its three bytes
        return _SURROGATE_BYTES.sub(_REPLACEMENT.encode(), raw).decode(errors="replace")


def _one_array(texts: Texts) -> pa.Array:
    if texts.type not in (pa.string(), pa.large_string(), pa.binary(), pa.large_binary()):
        raise SchemaError(f"texts must be string, large_string, binary or large_binary, got {texts.type}")
    if isinstance(texts, pa.Array):
        return texts
    return pa.concat_arrays(texts.chunks) if texts.num_chunks else pa.array([], texts.type)


def _view(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """The same buffers under another type of equal layout; unlike a cast this does not look at the bytes."""
    return pa.Array.from_buffers(kind, len(array), array.buffers(), array.null_count, array.offset)


def _mask(found: pa.Array) -> NDArray[np.bool_]:
    return np.asarray(found.fill_null(False).to_numpy(zero_copy_only=False), dtype=np.bool_)


def _rows(found: pa.Array) -> NDArray[np.int64]:
    return np.flatnonzero(_mask(found))
