"""The report: in the terminal here, as one HTML file in `page.py`. No Spark."""

from __future__ import annotations

from dataclasses import replace

from spark_dedup.kernels.metrics import digits, interval
from spark_dedup.manifest import RunManifest
from spark_dedup.progress import quantity
from spark_dedup.report.page import render_html
from spark_dedup.report.pairs import mark_differences, refusal_reason
from spark_dedup.report.story import (
    NOTHING_REMOVED,
    WORDS,
    Step,
    figure,
    headline,
    limits,
    loose_words,
    measured_how,
    merge_rule,
    recall_figures,
    scores,
    source_line,
    steps,
    timing,
)
from spark_dedup.report.summary import CosineBand, PairView, Summary
from spark_dedup.report.terminal import Paint, cells, columns, plain, wrap, wrap_spans

__all__ = ["render_html", "render_run", "render_text"]

MIN_WIDTH = 60
SIDE_BY_SIDE = 90
"""From this width on two texts stand beside each other, below it one above the other."""

TEXT_LENGTH = 330
"""Characters of each text of a pair."""


def render_run(manifest: RunManifest, width: int = 100, color: bool = False) -> str:
    """The page of a run alone, without a look into its tables."""
    return render_text(Summary(manifest=manifest), width, color)


def render_text(summary: Summary, width: int = 100, color: bool = False, pairs: int | None = None) -> str:
    """The report for a terminal.

    Args:
        summary: What to show; parts that it lacks are left out.
        width: Columns to use, at least `MIN_WIDTH`.
        color: Whether escape codes may be used; without them differing words stand in brackets.
        pairs: Pairs to show of each kind at most; None shows all that the summary has.

    Returns:
        Lines without a newline at the end.
    """
    width = max(width, MIN_WIDTH)
    if pairs is not None:
        summary = replace(summary, found=summary.found[:pairs], refused=summary.refused[:pairs])
    texts = (text for p in (*summary.found, *summary.refused) for text in (p.left_text, p.right_text))
    double = any("[" in text or "]" in text for text in texts)
    paint = Paint(color, ("[[", "]]") if double else ("[", "]"))
    parts = [
        _top(summary, width, paint),
        _steps(steps(summary), width, paint),
        _bands(summary, width, paint),
        _found(summary, width, paint),
        _refused(summary, width, paint),
        _sizes(summary, width, paint),
        _recall(summary, width, paint),
        _engines(summary, width, paint),
        _limits(summary, width, paint),
        _tables(summary, width, paint),
        _words(summary, width, paint),
        _next(summary, width, paint),
    ]
    return "\n\n".join("\n".join(part) for part in parts if part)


def _indent(text: str, width: int, first: str = "  ", rest: str | None = None) -> list[str]:
    """A wrapped paragraph."""
    rest = " " * cells(first) if rest is None else rest
    return [(first if n == 0 else rest) + line for n, line in enumerate(wrap(plain(text), width - max(cells(first), cells(rest))))]


def _heading(title: str, aside: str, width: int, paint: Paint) -> list[str]:
    """A heading with an aside, on the same line where it fits."""
    if cells(title) + cells(aside) + 2 <= width:
        return [f"{paint.bold(title)}  {paint.dim(aside)}"]
    return [paint.bold(title), *[paint.dim(line) for line in _indent(aside, width)]]


def _top(summary: Summary, width: int, paint: Paint) -> list[str]:
    m = summary.manifest
    return [
        paint.bold("\u2500\u2500 spark-dedup " + "\u2500" * (width - 15)),
        *[paint.bold(line) for line in _indent(headline(summary), width, "")],
        *_indent(f"Read from {source_line(m)}. {timing(m)} {NOTHING_REMOVED}", width, ""),
    ]


def _steps(done: list[Step], width: int, paint: Paint) -> list[str]:
    if not done:
        return []
    lead = 32
    lines = [paint.bold("What happened, step by step") + paint.dim("seconds".rjust(width - 27))]
    for step in done:
        body = wrap(plain(step.result), width - lead - 9)
        head = f"{step.number:2d}  {step.title}".ljust(lead)
        lines.append(head + body[0].ljust(width - lead - 8) + f"{step.seconds:8.1f}")
        lines += [" " * lead + line for line in body[1:]]
        for detail in (*step.details, *([step.state] if step.state else [])):
            lines += [paint.dim(line) for line in _indent(detail, width - 9, " " * lead, " " * (lead + 2))]
    return lines


def _bands(summary: Summary, width: int, paint: Paint) -> list[str]:
    merged = merge_bands(summary.cosine_bands, 4)
    most = max((b.edges + b.refused for b in merged), default=0)
    if not most:
        return []
    lines = _heading("Similar pairs by cosine", f"\u2588 accepted by the merge rule, \u2591 refused; {summary.recall}", width, paint)
    room = width - 52
    for b in merged:
        full, light = bar(b.edges, most, room), bar(b.edges + b.refused, most, room)
        drawn = "\u2588" * full + "\u2591" * max(light - full, 1 if b.refused else 0)
        lines.append(f"  {b.low:.3f} to {b.high:.3f}  {b.edges + b.refused:>10,}, {b.edges:>9,} accepted  {drawn}".rstrip())
    return lines


def merge_bands(bands: tuple[CosineBand, ...], by: int) -> list[CosineBand]:
    """Neighbouring bands put together, `by` at a time."""
    groups = [bands[i : i + by] for i in range(0, len(bands), by)]
    return [CosineBand(low=g[0].low, high=g[-1].high, edges=sum(b.edges for b in g), refused=sum(b.refused for b in g)) for g in groups]


def bar(value: int, most: int, room: int) -> int:
    """Length of a bar: proportional, but never nothing for something."""
    return max(round(room * value / most), 1) if value else 0


def _found(summary: Summary, width: int, paint: Paint) -> list[str]:
    if not summary.found:
        return []
    edges = figure(summary.manifest, "candidates", "edges")
    of = f"{len(summary.found)} of {edges:,}; " if edges is not None else ""
    lines = [
        *_heading("Near duplicates that were found", f"{of}{summary.recall}", width, paint),
        *_indent(_legend(paint), width, ""),
    ]
    for number, pair in enumerate(summary.found, start=1):
        lines += ["", *pair_lines(number, pair, width, paint)]
    return lines


def _legend(paint: Paint) -> str:
    how = "coloured" if paint.color else f"in {paint.brackets[0]}brackets{paint.brackets[1]}"
    return f"Words that differ are {how}; \u2026 stands for text left out."


def _refused(summary: Summary, width: int, paint: Paint) -> list[str]:
    if not summary.refused:
        return []
    refused = figure(summary.manifest, "candidates", "refused")
    of = f"{len(summary.refused)} of {refused:,}; " if refused is not None else ""
    rule = merge_rule(summary)
    lines = [
        *_heading("Alike, but refused by the merge rule", f"{of}{summary.recall}", width, paint),
        *_indent(f"Rule: {rule}", width, ""),
    ]
    for number, pair in enumerate(summary.refused, start=1):
        lines += ["", *pair_lines(number, pair, width, paint, f"refused: {refusal_reason(pair, rule)}")]
    return lines


def pair_lines(number: int, pair: PairView, width: int, paint: Paint, verdict: str = "") -> list[str]:
    """A pair with its scores and its texts side by side, what differs marked."""
    told = " \u00b7 ".join(f"{name} {value}" for name, value in scores(pair) if name != "containment")
    if pair.cluster_size is not None:
        told += f" \u00b7 cluster of {quantity(pair.cluster_size, 'row')}"
    lines = _indent(told, width, f"{number:3d}  ")
    if verdict:
        lines += _indent(verdict, width, "     ", "       ")
    lines = [paint.dim(line) for line in lines]
    sides = mark_differences(pair.left_text, pair.right_text, TEXT_LENGTH)
    names = (plain(pair.left_record), plain(pair.right_record))
    if not any(span.changed for side in sides for span in side):
        lines.append("     only white space differs")
    if width >= SIDE_BY_SIDE:
        room = (width - 8) // 2
        blocks = [
            [(paint.bold(line), cells(line)) for line in wrap(name, room)] + wrap_spans(side, room, paint)
            for name, side in zip(names, sides, strict=True)
        ]
        return lines + ["     " + line for line in columns(blocks[0], blocks[1], room, paint.dim(" \u2502 "))]
    for name, side in zip(names, sides, strict=True):
        lines += [f"     {paint.bold(line)}" for line in wrap(name, width - 5)]
        lines += [f"       {line}" for line, _ in wrap_spans(side, width - 7, paint)]
    return lines


def _sizes(summary: Summary, width: int, paint: Paint) -> list[str]:
    if not summary.size_bands:
        return []
    most = max(b.clusters for b in summary.size_bands)
    lines = _heading("Clusters by size", f"exact copies and near duplicates together; {summary.recall}", width, paint)
    for b in summary.size_bands:
        drawn = "\u2588" * bar(b.clusters, most, width - 50)
        clusters = quantity(b.clusters, "cluster")
        lines.append(f"  {b.label + ' rows':<17}{clusters:>15}{b.records:>9,} rows  {drawn}".rstrip())
    for loose in summary.loose:
        lines += _indent(f"cluster {loose.cluster_id} is loose: {loose_words(loose)}", width)
    return lines


def _recall(summary: Summary, width: int, paint: Paint) -> list[str]:
    figures = recall_figures(summary)
    if not figures:
        return []
    lines = _heading("What the search missed", measured_how(summary), width, paint)
    for words, r in figures:
        head = f"  {digits(r.value or 0.0) + interval(r.low or 0.0, r.high or 0.0):<26}"
        lines += _indent(words, width, head, " " * len(head))
    return lines


def _engines(summary: Summary, width: int, paint: Paint) -> list[str]:
    if not summary.engines:
        return []
    lines = _heading("Search engines side by side", "seconds of index and search", width, paint)
    return lines + [f"  {plain(e.name):<12}{e.seconds:>8.1f} s  {plain(e.recall)}" for e in summary.engines]


def _limits(summary: Summary, width: int, paint: Paint) -> list[str]:
    if not summary.manifest.stages:
        return []
    lines = [paint.bold("Limits reached")]
    for r in limits(summary):
        told = f"{r.counted}{f' ({r.setting})' if r.setting else ''}{f': {r.effect}' if r.effect else ''}"
        lines += _indent(told, width, f"  {plain(r.stage):<16}{r.count:>12,}  ")
    return lines if len(lines) > 1 else [*lines, "  none"]


def _tables(summary: Summary, width: int, paint: Paint) -> list[str]:
    if not summary.tables:
        return [paint.bold("Where the tables lie"), f"  {plain(summary.manifest.store)}"]
    longest = max(len(t.name) for t in summary.tables)
    return [paint.bold("Where the tables lie"), *[f"  {t.name.ljust(longest)}  {plain(t.location)}" for t in summary.tables]]


def _words(summary: Summary, width: int, paint: Paint) -> list[str]:
    if not (summary.found or summary.refused):
        return []
    lines = [paint.bold("Words")]
    for word, meaning in WORDS.items():
        lines += _indent(f"{word}: {meaning}", width, "  ", "    ")
    return lines


def _next(summary: Summary, width: int, paint: Paint) -> list[str]:
    return [paint.bold("What to type next"), *[f"  {step}" for step in summary.next_steps]] if summary.next_steps else []
