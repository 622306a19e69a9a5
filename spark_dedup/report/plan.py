"""A plan as text for people and as JSON for machines."""

from __future__ import annotations

import dataclasses
import json

from spark_dedup.evaluation.plan import OPENING, STAGES, Cost, PairCount, Plan
from spark_dedup.progress import duration
from spark_dedup.report.terminal import Paint, wrap

ENDS = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def render_plan(plan: Plan, *, width: int = 100, color: bool = False) -> str:
    """The plan as a page.

    Args:
        plan: What was found.
        width: Columns, at least 60.
        color: Whether escape codes may be used.
    """
    paint = Paint(color)
    c, s = plan.corpus, plan.sample
    about = "" if c.exact else "about "
    copied = f", {c.copy_rows:,} rows in {c.copy_groups:,} groups of copies, the largest of {c.largest_group:,}" if c.exact else ""
    lines = [
        paint.bold("The source"),
        *wrap(f"{c.rows:,} rows, {c.with_text:,} with text ({amount(c.text_bytes)}B); {about}{c.texts:,} distinct texts{copied}", width),
        *wrap(f"pairs of all rows: {plan.pairs_all:,}; after exact keys: {plan.pairs_left:,}", width),
        *wrap(f"candidate pairs (cosine >= {plan.floor:g}): {pairs_text(s.pairs)}, from {s.texts:,} sampled texts; their table takes "
              f"about {amount(plan.candidate_bytes)}B", width),
        "",
        paint.bold("What each engine would take"),
        *table(plan),
        "",
        paint.bold("Seconds by stage"),
        *stages(plan.costs),
        "",
        *wrap(f"auto would take {plan.auto[0]}: {plan.auto[1]}", width),
        *wrap(f"this run takes {plan.chosen}: {plan.reason}", width),
        *wrap(full_text(plan), width),
        *[line for warning in plan.warnings for line in wrap(f"warning: {warning}", width)],
        paint.dim(f"measured in {duration(plan.seconds)} on {plan.rates.tasks} tasks at once; nothing was written into the store"),
    ]  # fmt: skip
    return "\n".join(lines)


def table(plan: Plan) -> list[str]:
    """One line per engine."""
    priced = plan.price_per_hour is not None
    head = f"  {'engine':<10}{'time':>14}{'FLOPs':>10}{'shuffled':>11}{'stored':>11}{'on an executor':>16}"
    lines = [head + (f"{'money':>10}" if priced else "")]
    for cost in plan.costs:
        mark = "*" if cost.engine == plan.chosen else " "
        line = (
            f"{mark} {cost.engine:<10}{duration(cost.total):>14}{amount(cost.flops):>10}{amount(cost.shuffled) + 'B':>11}"
            f"{amount(cost.stored) + 'B':>11}{amount(cost.executor_bytes) + 'B':>16}"
        )
        lines.append(line + (f"{cost.money:>10,.2f}" if cost.money is not None else ""))
    return [*lines, "* what this run takes"]


def stages(costs: tuple[Cost, ...]) -> list[str]:
    """One line per stage, one column per engine."""
    lines = [f"  {'stage':<17}" + "".join(f"{cost.engine:>11}" for cost in costs)]
    for stage in (OPENING, *STAGES):
        lines.append(f"  {stage:<17}" + "".join(f"{cost.seconds[stage]:>11,.1f}" for cost in costs))
    return lines


def pairs_text(pairs: PairCount) -> str:
    """An estimate with its interval, or what can be said where none was seen."""
    if pairs.low == pairs.high:
        return f"{pairs.value:,.0f} (all texts compared)"
    if not pairs.seen:
        return f"none seen, at most {pairs.high:,.0f} with 95 % confidence"
    return f"about {pairs.value:,.0f} [{pairs.low:,.0f}, {pairs.high:,.0f}]"


def full_text(plan: Plan) -> str:
    """How many lists of the HNSW engine would be full."""
    (low, value, high), (_, cut, most) = plan.sample.full
    return (
        f"hnsw: about {value:,.0f} texts ({low:,.0f} to {high:,.0f}) would fill their lists and be asked again; about {cut:,.0f} (at most "
        f"{most:,.0f}) would still be cut"
    )


def plan_json(plan: Plan) -> str:
    """The plan as one JSON object."""
    told = dataclasses.asdict(plan)
    for cost, out in zip(plan.costs, told["costs"], strict=True):
        out["total_seconds"] = cost.total
    return json.dumps(told, indent=2, ensure_ascii=False)


def amount(x: float) -> str:
    """A number of bytes or operations with two or three digits: `1.35 P`, `64 `."""
    for size, letter in ENDS:
        if x >= size:
            return f"{x / size:.3g} {letter}"
    return f"{x:.0f} "
