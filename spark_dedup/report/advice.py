"""Advice as text for people and as JSON for machines."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING

from spark_dedup.report.plan import pairs_text
from spark_dedup.report.render import pair_lines
from spark_dedup.report.terminal import Paint, wrap

if TYPE_CHECKING:
    from spark_dedup.advising import Advice

FOUND_BY = {"both": "vectors and shared words", "meaning": "vectors alone", "words": "shared words alone"}


def render_advice(advice: Advice, *, width: int = 100, color: bool = False) -> str:
    """The advice as a page.

    Args:
        advice: What was found.
        width: Columns, at least 60.
        color: Whether escape codes may be used.
    """
    paint = Paint(color)
    compared = f"all pairs of {advice.texts:,} of {advice.total:,} distinct texts were compared, by vectors (cosine >= {advice.floor:g}) "
    lines = [
        paint.bold("Which question fits"),
        *wrap(f"{compared}and by shared words (Jaccard >= {advice.threshold:g})", width),
        "",
        f"  {'found by':<26}{'in the sample':>14}{'rule holds':>12}   in the whole table",
    ]
    for g in advice.groups:
        lines.append(f"  {FOUND_BY[g.name]:<26}{g.pairs.seen:>14,}{g.edges.seen:>12,}   {pairs_text(g.pairs)}")
    for g in advice.groups:
        if g.name != "both" and g.examples:
            lines += ["", paint.bold(f"Found by {FOUND_BY[g.name]}")]
            for number, pair in enumerate(g.examples, start=1):
                verdict = "the merge rule holds" if pair.is_edge else "the merge rule refuses it"
                lines += pair_lines(number, pair, width, paint, verdict)
    told = f"set {advice.setting}: {advice.reason}" if advice.setting else f"no advice: {advice.reason}"
    return "\n".join([*lines, "", *wrap(told, width)])


def advice_json(advice: Advice) -> str:
    """The advice as one JSON object."""
    return json.dumps(dataclasses.asdict(advice), indent=2, ensure_ascii=False)
