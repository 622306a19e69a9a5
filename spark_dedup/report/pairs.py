"""Two texts side by side: which words differ, and why the merge rule refused the pair."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, replace
from difflib import SequenceMatcher

from spark_dedup.config import DEFAULT_RULE
from spark_dedup.report.summary import PairView

_NUMBER = re.compile(r"\d+(?:[.,:/-]\d+)*")
_WORD = re.compile(r"\w+")
_NO_BLANKS = r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_MARKS = r"\u0300-\u036f\u0591-\u05c7\u064b-\u065f\u0670\u0900-\u0dff\u200c\u200d"
_LETTER = rf"[^\W{_NO_BLANKS}]"
_TOKEN = re.compile(rf"{_LETTER}*\d\w*(?:[.,:/-]\d\w*)*|[{_NO_BLANKS}]|{_LETTER}[{_MARKS}]*(?:{_LETTER}[{_MARKS}]*)*|[^\w\s]")
"""A number or version, one letter of a script without blanks, a word with its combining marks, or one other character."""

_INVISIBLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u00ad\u180e\u200b\u202a-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff]")
"""Characters that a page would hide or obey: controls, direction overrides, zero widths. Joiners belong to scripts and stay."""

MAX_MATCHES = 100_000
"""Equal token pairs that an alignment may weigh: its time grows faster than these, and this many take at most about a second."""

MIN_CONTEXT = 16
"""Characters of equal text kept beside a difference when room is short."""

MIN_WIDTH = 180
"""Narrower than this there is no room for a difference, its context and the count of the others."""


@dataclass(frozen=True)
class Span:
    """A stretch of text, and whether it differs from the other text."""

    text: str
    changed: bool


@dataclass(frozen=True)
class _Piece:
    """A stretch of both texts: equal words, or a difference (one side may be empty)."""

    sides: tuple[str, str]
    changed: bool


def mark_differences(left: str, right: str, width: int | None = None) -> tuple[list[Span], list[Span]]:
    """Align two texts word by word and mark what differs. White space is not compared.

    Args:
        left: One text.
        right: The other.
        width: Characters that each side may take (at least `MIN_WIDTH` are used); None keeps everything.

    Returns:
        Spans of the left and of the right text. Where everything is kept they join to the text itself. Where they are
        shortened, equal words give way to an ellipsis first; differences that still find no room are counted in words
        at the end of both sides, and a long difference says how many characters it lacks.
    """
    pieces, uncompared = _align(left, right)
    notes = [_uncompared_note(n) for n in uncompared]
    if width is None or max(len(left), len(right)) <= width:
        shown = pieces
    else:
        shown, more = _shorten(pieces, max(width, MIN_WIDTH) - max(map(len, notes)))
        if more:
            notes = [f" \u2026 and {more:,} more difference{'s' if more > 1 else ''}{note}" for note in notes]
    return _spans(shown, 0, notes[0]), _spans(shown, 1, notes[1])


def _uncompared_note(tokens: int) -> str:
    return f" \u2026 {tokens:,} more words not compared" if tokens else ""


def _align(left: str, right: str) -> tuple[list[_Piece], tuple[int, int]]:
    """Pieces that partition both texts, and how many tokens at the end of each were left out of the comparison."""
    texts = (left, right)
    tokens = [list(_TOKEN.finditer(t)) for t in texts]
    words = [[t.group() for t in side] for side in tokens]
    start = _common(words[0], words[1])
    tail = _common(words[0][start:][::-1], words[1][start:][::-1])
    length = _length_to_align(words[0][start : len(words[0]) - tail], words[1][start : len(words[1]) - tail])
    stops = [min(start + length, len(w) - tail) for w in words]
    complete = all(stop == len(w) - tail for stop, w in zip(stops, words, strict=True))
    uncompared = (0, 0) if complete else (len(words[0]) - stops[0], len(words[1]) - stops[1])
    ends = [len(text) if complete or stop == len(t) else t[stop].start() for text, t, stop in zip(texts, tokens, stops, strict=True)]

    matcher = SequenceMatcher(None, words[0][start : stops[0]], words[1][start : stops[1]], autojunk=False)
    pieces: list[_Piece] = []
    done = [0, 0]
    for tag, i1, i2, j1, j2 in matcher.get_opcodes():
        if tag == "equal":
            continue
        equal, changed = ["", ""], ["", ""]
        for s, first, last in ((0, start + i1, start + i2), (1, start + j1, start + j2)):
            begin = tokens[s][first].start() if first < len(tokens[s]) else ends[s]
            end = tokens[s][last - 1].end() if last > first else begin
            equal[s], changed[s] = texts[s][done[s] : begin], texts[s][begin:end]
            done[s] = end
        pieces += [_Piece((equal[0], equal[1]), False), _Piece((changed[0], changed[1]), True)]
    pieces.append(_Piece((left[done[0] : ends[0]], right[done[1] : ends[1]]), False))
    return pieces, uncompared


def _common(left: list[str], right: list[str]) -> int:
    """How many tokens two lists share at the beginning."""
    shorter = min(len(left), len(right))
    return next((i for i in range(shorter) if left[i] != right[i]), shorter)


def _length_to_align(left: list[str], right: list[str]) -> int:
    """How many tokens of both texts can be aligned within `MAX_MATCHES`."""
    length = max(len(left), len(right))
    while length > 1:
        counts = Counter(left[:length]), Counter(right[:length])
        if sum(n * counts[1][word] for word, n in counts[0].items()) <= MAX_MATCHES:
            break
        length //= 2
    return length


def _shorten(pieces: list[_Piece], width: int) -> tuple[list[_Piece], int]:
    """Fit the pieces into `width` characters a side; also says how many differences found no room."""
    cut = [_cut_difference(p, width // 4) if p.changed else p for p in pieces]
    for context in range(width // 2, MIN_CONTEXT - 1, -8):
        shown = _cut_equal(cut, context)
        if _width(shown) <= width:
            return shown, 0
    differences = sum(p.changed for p in cut)
    note = len(f" \u2026 and {differences:,} more differences")
    keep = differences
    while keep > 1 and _width(shown) > width - note:
        keep -= 1
        shown = _cut_equal(cut[: 2 * keep + 1], MIN_CONTEXT, open_end=True)
    return shown, differences - keep


def _width(pieces: list[_Piece]) -> int:
    return max(sum(len(p.sides[s]) for p in pieces) for s in (0, 1))


def _cut_difference(piece: _Piece, room: int) -> _Piece:
    """Keep both ends of a long difference and say how many characters lie between them."""

    def cut(text: str) -> str:
        if len(text) <= room + 30:
            return text
        head, tail = _head(text, room // 2), _tail(text, room // 2)
        return f"{head} \u2026 {len(text) - len(head) - len(tail):,} more characters \u2026 {tail}"

    return replace(piece, sides=(cut(piece.sides[0]), cut(piece.sides[1])))


def _cut_equal(pieces: list[_Piece], context: int, *, open_end: bool = False) -> list[_Piece]:
    """Keep `context` characters of equal text beside each difference; an open end goes on with a note that brings its own ellipsis."""
    out = []
    for n, piece in enumerate(pieces):
        if piece.changed:
            out.append(piece)
            continue
        first, last = n == 0, n == len(pieces) - 1
        sides = []
        for text in piece.sides:
            head = "" if first else _head(text, context)
            tail = "" if last else _tail(text, context)
            if len(head) + len(tail) + 3 >= len(text):
                sides.append(text)
            elif last:
                sides.append(head if open_end else f"{head} \u2026")
            else:
                sides.append(f"\u2026 {tail}" if first else f"{head} \u2026 {tail}")
        out.append(_Piece((sides[0], sides[1]), False))
    return out


def _head(text: str, room: int) -> str:
    """The beginning of a text, cut between words where there are any."""
    if len(text) <= room:
        return text
    blank = re.search(r"\s\S*\Z", text[: room + 1])
    return text[: blank.start()] if blank and text[: blank.start()].strip() else text[:room]


def _tail(text: str, room: int) -> str:
    """The end of a text, cut between words where there are any."""
    if len(text) <= room:
        return text
    rest = text[-room - 1 :]
    blank = re.search(r"\s", rest)
    return rest[blank.end() :] if blank and rest[blank.end() :].strip() else rest[1:]


def _spans(pieces: list[_Piece], side: int, note: str) -> list[Span]:
    """One side of the pieces as spans, neighbours of one kind joined."""
    spans: list[Span] = []
    for text, changed in [*((p.sides[side], p.changed) for p in pieces), (note, False)]:
        if text and spans and spans[-1].changed == changed:
            spans[-1] = Span(spans[-1].text + text, changed)
        elif text:
            spans.append(Span(text, changed))
    return spans


def visible(text: str) -> str:
    """The text with characters that would be hidden or obeyed written as their code, such as ``\u27e8U+200B\u27e9``."""
    return _INVISIBLE.sub(lambda m: f"\u27e8U+{ord(m.group()):04X}\u27e9", text)


def refusal_reason(pair: PairView, rule: str = DEFAULT_RULE) -> str:
    """Say in plain words why the merge rule refused a pair, from its scores.

    Args:
        pair: The pair.
        rule: The merge rule. Only scores that it names are given as reasons; one that is within the rule's strictest limit for
            a substitution, or beyond its loosest for another score, is none.

    Returns:
        Such as `4 of 31 words replaced (substitution 0.13), numbers differ: 2.4.1 against 2.7.2`.
    """
    named = set(re.findall(r"[a-z]+", rule.lower()))
    reasons = []
    if "substitution" in named and pair.substitution and _over(rule, pair.substitution):
        reasons.append(_replaced(pair))
    if "numbers" in named and pair.numbers in ("missing", "differ"):
        reasons.append("numbers differ" + _numbers(pair))
    for name, word in (("cosine", "cosine"), ("jaccard", "Jaccard"), ("containment", "containment")):
        value = getattr(pair, name)
        if name in named and value is not None and not _reaches(rule, name, value):
            reasons.append(f"{word} {value:.3f}")
    return ", ".join(reasons) or "its scores do not satisfy the rule"


def _over(rule: str, substitution: float) -> bool:
    """Whether a substitution is above the strictest limit that the rule sets for it."""
    limits = [float(x) for x in re.findall(r"substitution\s*<=?\s*(\d*\.?\d+)", rule.lower())]
    return substitution > min(limits, default=0.0)


def _reaches(rule: str, name: str, value: float) -> bool:
    """Whether a score reaches the loosest limit that the rule sets for it; False where it sets none."""
    limits = [float(x) for x in re.findall(rf"\b{name}\s*>=?\s*(\d*\.?\d+)", rule.lower())]
    return bool(limits) and value >= min(limits)


def _replaced(pair: PairView) -> str:
    """The substitution in words; the count of words only where it agrees with the stored score."""
    left, right = (Counter(_WORD.findall(t.lower())) for t in (pair.left_text, pair.right_text))
    replaced = min((left - right).total(), (right - left).total())
    words = max(1, min(left.total(), right.total()))
    score = f"substitution {pair.substitution:.2f}"
    if pair.substitution is None or abs(replaced / words - pair.substitution) > 0.005:
        return f"words replaced ({score})"
    return f"{replaced:,} of {words:,} words replaced ({score})"


def _numbers(pair: PairView) -> str:
    """The first numbers that stand in one text only."""
    left, right = (Counter(_NUMBER.findall(t)) for t in (pair.left_text, pair.right_text))
    sides = [list(left - right), list(right - left)]
    if not any(sides):
        return ""
    named = [", ".join(s[:2]) + (", \u2026" if len(s) > 2 else "") if s else "none" for s in sides]
    return f": {named[0]} against {named[1]}"
