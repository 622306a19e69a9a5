"""The report as one HTML file: no scripts, nothing loaded from elsewhere. No Spark."""

from __future__ import annotations

import html
import json
from collections.abc import Iterable
from string import Template

from spark_dedup.kernels.metrics import digits, interval
from spark_dedup.progress import quantity
from spark_dedup.report.pairs import Span, mark_differences, refusal_reason, visible
from spark_dedup.report.story import (
    NOTHING_REMOVED,
    WORDS,
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
    tiles,
    timing,
)
from spark_dedup.report.style import CSS
from spark_dedup.report.summary import PairView, RecallView, SizeBand, Summary
from spark_dedup.settings import flatten

TEXT_LENGTH = 900
"""Characters of each text of a pair."""

COPY_LENGTH = 280
"""Characters of the text of a group of exact copies."""

_PAGE = Template(
    """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>$title</title>
<style>$css</style>
</head>
<body>
<header>
<p class="over">spark-dedup report</p>
<h1>$headline</h1>
<p class="lead">$lead</p>
$tiles
</header>
<nav aria-label="Sections"><ul>$links</ul></nav>
<main>
$sections
</main>
<footer>$footer</footer>
</body>
</html>
"""
)


def render_html(summary: Summary) -> str:
    """The report as one self-contained page.

    Args:
        summary: What to show; sections for which it has nothing are left out.
    """
    m = summary.manifest
    made = [
        ("what-happened", "What happened", _steps(summary)),
        ("exact-copies", "Exact copies", _copies(summary)),
        ("near-duplicates", "Near duplicates", _found(summary)),
        ("refused", "Refused by the merge rule", _refused(summary)),
        ("clusters", "Clusters", _clusters(summary)),
        ("recall", "What the search missed", _recall(summary)),
        ("limits", "Limits reached", _limits(summary)),
        ("settings", "Settings", _settings(summary)),
        ("tables", "Tables", _tables(summary)),
        ("words", "Words", _words()),
    ]
    shown = [(key, title, body) for key, title, body in made if body]
    return _PAGE.substitute(
        title=_text(f"spark-dedup: {m.source}"),
        css=CSS,
        headline=_text(headline(summary)),
        lead=f"Read from <code>{_text(source_line(m))}</code>. {_text(timing(m))} {NOTHING_REMOVED}",
        tiles=_tiles(tiles(summary)),
        links="".join(f'<li><a href="#{key}">{title}</a></li>' for key, title, _ in shown),
        sections="\n".join(f'<section id="{key}"><h2>{title}</h2>\n{body}</section>' for key, title, body in shown),
        footer=f"Fingerprint of settings and source: <code>{_text(m.fingerprint)}</code>",
    )


def _text(text: str) -> str:
    """Text from outside, safe inside elements and quoted attributes, with nothing hidden in it."""
    return html.escape(visible(text))


def _tiles(figures: list[tuple[str, str]]) -> str:
    if not figures:
        return ""
    return '<dl class="tiles">' + "".join(f"<div><dt>{_text(words)}</dt><dd>{value}</dd></div>" for value, words in figures) + "</dl>"


def _table(head: Iterable[str], rows: Iterable[str], kind: str) -> str:
    columns = "".join(f'<th scope="col"{" class=n" if name.startswith(">") else ""}>{_text(name.lstrip(">"))}</th>' for name in head)
    return f'<table class="{kind}"><thead><tr>{columns}</tr></thead><tbody>{"".join(rows)}</tbody></table>\n'


def _steps(summary: Summary) -> str:
    done = steps(summary)
    if not done:
        return ""
    most = max(s.seconds for s in done)
    rows = []
    for s in done:
        details = "".join(f"<li>{_text(d)}</li>" for d in (*s.details, *([s.state] if s.state else [])))
        bar = f'<svg aria-hidden="true">{_rect(0, 100)}{_rect(0, 100 * s.seconds / most, "edge")}</svg>' if most else ""
        rows.append(
            f'<tr><th scope="row">{s.number}. {_text(s.title)}<small>{_text(s.stage)}</small></th>'
            f'<td>{_text(s.result)}{f"<ul>{details}</ul>" if details else ""}</td><td class="n time">{s.seconds:,.1f}{bar}</td></tr>'
        )
    return _table(["Step", "What it found", ">Seconds"], rows, "steps")


def _rect(start: float, width: float, kind: str = "track") -> str:
    return f'<rect class="{kind}" x="{start:.2f}%" width="{width:.2f}%" height="100%"/>'


def _copies(summary: Summary) -> str:
    m = summary.manifest
    copies, groups = figure(m, "representatives", "duplicate_rows"), figure(m, "representatives", "copy_groups")
    told = ""
    if copies is not None and groups is not None:
        told = (
            f"<p>{quantity(copies, 'row')} can go because another row has the same text, apart from white space and Unicode spelling: "
            f"{quantity(groups, 'group')} of copies. The search sees each such text once.</p>"
        )
    cards = []
    for c in summary.copies:
        rest = len(c.text) - COPY_LENGTH
        short = c.text if rest <= 60 else f"{c.text[:COPY_LENGTH]} \u2026 {rest:,} more characters"
        cards.append(
            f'<div class="card copy"><div class="count">{c.rows:,}<small>rows</small></div>'
            f'<div><p class="id"><code>{_text(c.record)}</code></p><p class="text" dir="auto">{_text(short)}</p></div></div>'
        )
    heading = '<h3 class="soft">The largest groups</h3>' if cards else ""
    return told + heading + "".join(cards)


def _found(summary: Summary) -> str:
    if not summary.found and not summary.cosine_bands:
        return ""
    edges = figure(summary.manifest, "candidates", "edges")
    told = f"{len(summary.found)} of {edges:,} accepted pairs" if edges is not None else "Accepted pairs"
    intro = f"<p>{told}, from different clusters and not only the most alike ({_text(summary.recall)}). {_LEGEND}</p>"
    return _histogram(summary) + (intro if summary.found else "") + "".join(map(_pair, summary.found))


_LEGEND = "Words that differ are <mark>marked</mark>; \u2026 stands for text left out."


def _histogram(summary: Summary) -> str:
    """Accepted pairs upwards, refused ones downwards, each to its own scale: there are often a hundred times more of the latter."""
    bands = summary.cosine_bands
    if not any(b.edges + b.refused for b in bands):
        return ""
    edges, refused = [b.edges for b in bands], [b.refused for b in bands]
    rows = [f'<tr><td>{b.low:.4f} to {b.high:.4f}</td><td class="n">{b.edges:,}</td><td class="n">{b.refused:,}</td></tr>' for b in bands]
    figures = _table(["Cosine", ">Accepted", ">Refused"], rows, "plain")
    ticks = [bands[n * len(bands) // 5].low for n in range(5)] if len(bands) >= 5 else [bands[0].low]
    axis = "".join(f"<span>{t:.2f}</span>" for t in [*ticks, bands[-1].high])
    return (
        '<figure class="card">'
        f"<figcaption>Similar pairs by cosine: how near their vectors lie, 1 is the same direction ({_text(summary.recall)}).</figcaption>"
        f'<p class="key">{quantity(sum(edges), "pair")} accepted by the merge rule; the highest bar is {max(edges):,}</p>'
        f'{_bars(edges, "edge")}<div class="axis" aria-hidden="true">{axis}</div>{_bars(refused, "refused")}'
        f'<p class="key r">{quantity(sum(refused), "pair")} refused; the highest bar is {max(refused):,}</p>'
        f'<details><summary>The figures</summary><div class="scroll">{figures}</div></details>'
        "</figure>"
    )


def _bars(values: list[int], kind: str) -> str:
    """Bars in a box of 100 by 100: edges stand, refused ones hang."""
    step, most = 100 / len(values), max(values) or 1
    bars = []
    for n, value in enumerate(values):
        height = max(100 * value / most, 1.0) if value else 0.0
        top = 100 - height if kind == "edge" else 0.0
        bars.append(
            f'<rect class="{kind}" x="{(n + 0.1) * step:.2f}" y="{top:.2f}" width="{0.8 * step:.2f}" height="{height:.2f}">'
            f"<title>{value:,}</title></rect>"
        )
    word = "Accepted" if kind == "edge" else "Refused"
    return (
        f'<svg class="plot" viewBox="0 0 100 100" preserveAspectRatio="none" role="img" '
        f'aria-label="{word} pairs by cosine; the figures are in the table below">{"".join(bars)}</svg>'
    )


def _refused(summary: Summary) -> str:
    if not summary.refused:
        return ""
    rule = merge_rule(summary)
    refused = figure(summary.manifest, "candidates", "refused")
    told = f"{len(summary.refused)} of {refused:,} refused pairs" if refused is not None else "Refused pairs"
    intro = (
        f"<p>{told}, very alike by their vectors and still no copies of each other ({_text(summary.recall)}). "
        f"The rule: <code>{_text(rule)}</code></p>"
    )
    return intro + "".join(_pair(p, refusal_reason(p, rule)) for p in summary.refused)


def _pair(pair: PairView, reason: str = "") -> str:
    told = "".join(f'<span class="score">{_text(name)} <b>{_text(value)}</b></span>' for name, value in scores(pair))
    if pair.cluster_size is not None:
        told += f'<span class="score">in a cluster of <b>{quantity(pair.cluster_size, "row")}</b></span>'
    sides = mark_differences(pair.left_text, pair.right_text, TEXT_LENGTH)
    why = f'<p class="why">Refused: {_text(reason)}</p>' if reason else ""
    if not any(span.changed for side in sides for span in side):
        why += '<p class="soft">Only white space differs.</p>'
    texts = "".join(
        f'<div><p class="id"><code>{_text(record)}</code></p><p class="text" dir="auto">{_spans(side)}</p></div>'
        for record, side in zip((pair.left_record, pair.right_record), sides, strict=True)
    )
    name = f"{_text(pair.left_record)} and {_text(pair.right_record)}"
    return f'<article class="pair" aria-label="{name}"><div>{told}{why}</div><div class="texts">{texts}</div></article>\n'


def _spans(spans: list[Span]) -> str:
    return "".join(f"<mark>{_text(s.text)}</mark>" if s.changed else _text(s.text) for s in spans)


def _clusters(summary: Summary) -> str:
    if not summary.size_bands:
        return ""
    most = max(b.clusters for b in summary.size_bands)

    def row(b: SizeBand) -> str:
        return (
            f'<tr><th scope="row">{b.label} rows</th><td class="n">{b.clusters:,}</td><td class="n">{b.records:,}</td>'
            f'<td class="draw"><svg aria-hidden="true">{_rect(0, max(100 * b.clusters / most, 0.5), "edge")}</svg></td></tr>'
        )

    return (
        f"<p>Clusters of two or more rows, exact copies and near duplicates together ({_text(summary.recall)}). "
        "One row of each is canonical: the one to keep.</p>"
        + _table(["Size", ">Clusters", ">Rows in them", ""], map(row, summary.size_bands), "sizes")
        + "".join(f"<p>Cluster {loose.cluster_id} is loose: {_text(loose_words(loose))}.</p>" for loose in summary.loose)
    )


def _recall(summary: Summary) -> str:
    figures = recall_figures(summary)
    if not figures:
        return ""

    def row(words: str, r: RecallView) -> str:
        value, low, high = r.value or 0.0, r.low or 0.0, r.high or 0.0
        drawn = (
            f'<svg aria-hidden="true">{_rect(0, 100)}{_rect(0, 100 * value, "edge")}{_rect(100 * low, 100 * (high - low), "refused")}</svg>'
        )
        return (
            f'<tr><td class="n">{digits(value)}</td><td>{interval(low, high).strip() or "exact"}</td>'
            f'<td>{_text(words)}{drawn}</td><td class="n">{r.pairs:,}</td></tr>'
        )

    drawn = "" if all(r.low == r.high for _, r in figures) else " The lighter part of a bar is the 95 % interval."
    return (
        "<p>What no search returns does not exist for anything after it. So texts were compared with every other one, whatever "
        f"the search had found, and this is the share that it had: {_text(measured_how(summary))}.{drawn}</p>"
        + _table([">Share", "Interval", "Of what", ">True neighbours"], [row(*f) for f in figures], "sizes")
        + _engines(summary)
    )


def _engines(summary: Summary) -> str:
    rows = [
        f'<tr><th scope="row">{_text(e.name)}</th><td class="n">{e.seconds:,.1f}</td><td>{_text(e.recall)}</td></tr>'
        for e in summary.engines
    ]
    told = "<h3>Search engines side by side</h3>" + _table(["Engine", ">Seconds of index and search", "Recall"], rows, "sizes")
    return told if rows else ""


def _limits(summary: Summary) -> str:
    if not summary.manifest.stages:
        return ""
    rows = [
        f'<tr><th scope="row">{_text(r.stage)}</th><td class="n">{r.count:,}</td><td>{_text(r.counted)}</td>'
        f"<td><code>{_text(r.setting)}</code></td><td>{_text(r.effect)}</td></tr>"
        for r in limits(summary)
    ]
    if not rows:
        return "<p>None: nothing was cut off or left out.</p>"
    return _table(["Stage", ">Count", "Of what", "Setting", "What it means"], rows, "sizes")


def _settings(summary: Summary) -> str:
    flat = flatten(summary.manifest.settings)
    rows = [
        f'<tr><th scope="row"><code>{_text(key)}</code></th><td><code>{_text(json.dumps(value, ensure_ascii=False))}</code></td></tr>'
        for key, value in flat.items()
    ]
    if not rows:
        return ""
    return f"<details><summary>All {len(rows)} settings of this run</summary>{_table(['Setting', 'Value'], rows, 'tables')}</details>"


def _tables(summary: Summary) -> str:
    rows = [
        f'<tr><th scope="row"><code>{_text(t.name)}</code></th><td>{_text(t.doc)}<br><code>{_text(t.location)}</code></td></tr>'
        for t in summary.tables
    ]
    body = _table(["Table", "What it holds, and where"], rows, "tables") if rows else f"<p><code>{_text(summary.manifest.store)}</code></p>"
    if summary.next_steps:
        commands = "\n".join(_text(step) for step in summary.next_steps)
        body += f'<h3 style="margin-top:1.5rem">What to type next</h3><pre>{commands}</pre>'
    return body


def _words() -> str:
    return '<dl class="words">' + "".join(f"<dt>{_text(w)}</dt><dd>{_text(meaning)}</dd>" for w, meaning in WORDS.items()) + "</dl>"
