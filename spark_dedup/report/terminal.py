"""Text with marked words, measured, wrapped and painted for a terminal."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from spark_dedup.report.pairs import Span, visible

BOLD, DIM, MARK, RESET = "\x1b[1m", "\x1b[2m", "\x1b[1;35m", "\x1b[0m"


@dataclass(frozen=True)
class Paint:
    """How emphasis looks: colours, or plain text with marked words in brackets.

    Attributes:
        color: Whether escape codes may be used.
        brackets: What stands before and after a marked stretch where they may not.
    """

    color: bool
    brackets: tuple[str, str] = ("[", "]")

    def bold(self, text: str) -> str:
        """A heading."""
        return f"{BOLD}{text}{RESET}" if self.color else text

    def dim(self, text: str) -> str:
        """An aside."""
        return f"{DIM}{text}{RESET}" if self.color else text

    def mark(self, text: str) -> str:
        """A stretch that differs."""
        return f"{MARK}{text}{RESET}" if self.color else text


def plain(text: str) -> str:
    """The text on one line: white space folded, and nothing in it that a terminal would obey."""
    return " ".join(visible(text).split())


def cells(text: str) -> int:
    """Columns that a text takes: two for wide East Asian characters, none for combining marks and joiners."""
    if text.isascii():
        return len(text)
    return sum(0 if unicodedata.category(c) in ("Mn", "Me", "Cf") else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def wrap(text: str, width: int) -> list[str]:
    """Lines of at most `width` columns, broken between words, and inside words that are longer than a line."""
    return [line for line, _ in wrap_spans([Span(text, False)], width, Paint(color=False))]


def wrap_spans(spans: Iterable[Span], width: int, paint: Paint) -> list[tuple[str, int]]:
    """Wrap marked text.

    Args:
        spans: The text.
        width: Columns of a line, at least 2.
        paint: How marked words look.

    Returns:
        Lines as they are to be printed, each with the columns it takes; at least one.
    """
    lines: list[tuple[str, int]] = []
    line: list[Span] = []
    used = 0
    for blank, word in _words(spans, paint):
        length = sum(cells(s.text) for s in word)
        if line and used + (1 if blank else 0) + length > width:
            lines.append((_painted(line, paint), used))
            line, used, blank = [], 0, None
        if blank and line:
            line.append(blank)
            used += 1
        for part in word:
            for char in part.text if used + length > width else [part.text]:
                if used + cells(char) > width:
                    lines.append((_painted(line, paint), used))
                    line, used = [], 0
                line.append(Span(char, part.changed))
                used += cells(char)
    if line or not lines:
        lines.append((_painted(line, paint), used))
    return lines


def _words(spans: Iterable[Span], paint: Paint) -> Iterator[tuple[Span | None, list[Span]]]:
    """Words as runs of parts, each with the blank before it; a blank inside a marked stretch is marked too."""
    opening, closing = ("", "") if paint.color else paint.brackets
    word: list[Span] = []
    blank: Span | None = None
    for span in spans:
        text = visible(span.text)
        marked = f"{opening}{text}{closing}" if span.changed else text
        for n, part in enumerate(re.split(r"(\s+)", marked)):
            if n % 2:  # white space
                if word:
                    yield blank, word
                    word = []
                blank = Span(" ", span.changed)
            elif part:
                word.append(Span(part, span.changed))
    if word:
        yield blank, word


def _painted(line: list[Span], paint: Paint) -> str:
    """One line, neighbours of one kind painted together."""
    out: list[str] = []
    run = ""
    for n, span in enumerate(line):
        run += span.text
        if n + 1 == len(line) or line[n + 1].changed != span.changed:
            out.append(paint.mark(run) if span.changed else run)
            run = ""
    return "".join(out)


def columns(left: list[tuple[str, int]], right: list[tuple[str, int]], width: int, between: str) -> list[str]:
    """Two blocks of lines beside each other; `width` columns for the left one."""
    height = max(len(left), len(right))
    left, right = (side + [("", 0)] * (height - len(side)) for side in (left, right))
    return [f"{a}{' ' * (width - used)}{between}{b}".rstrip() for (a, used), (b, _) in zip(left, right, strict=True)]
