"""Which method found which pairs: a Venn diagram in numbers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from spark_dedup.manifest import BLOCKING, PROPOSED_IN, RunManifest
from spark_dedup.progress import duration


@dataclass(frozen=True)
class Found:
    """Pairs that exactly these methods found.

    Attributes:
        methods: Sorted.
        pairs: How many.
        edges: Those on which the merge rule holds.
    """

    methods: tuple[str, ...]
    pairs: int
    edges: int


def seconds_of(manifest: RunManifest) -> dict[str, float]:
    """Seconds of `lsh`, of `block` (all keys together) until their pairs were proposed; of the engine the rest, with all scoring."""
    candidates = manifest.stage("candidates")
    taken = {name.removeprefix(PROPOSED_IN): float(value) for name, value in candidates.notes.items() if name.startswith(PROPOSED_IN)}
    engine = manifest.stage("index").seconds + max(0.0, candidates.seconds - sum(taken.values()))
    if BLOCKING in taken:
        taken[BLOCKING] += manifest.stage("blocks").seconds
    return {candidates.notes["engine"]: engine, **taken}


def by_method(found: Sequence[Found], name: str) -> Found:
    """Pairs that a method found, alone or with others."""
    own = [f for f in found if name in f.methods]
    return Found((name,), sum(f.pairs for f in own), sum(f.edges for f in own))


def render_methods(found: Sequence[Found], manifest: RunManifest) -> str:
    """The counts as text.

    Args:
        found: Every combination of methods that occurs.
        manifest: The run, for its seconds and its recall.
    """
    taken = seconds_of(manifest)
    names = sorted({name for f in found for name in f.methods} | (set(taken) - {BLOCKING}))
    lines = [f"  {'found by':<40}{'pairs':>12}{'merge rule holds':>18}{'seconds':>14}"]
    for name in names:
        whole = by_method(found, name)
        seconds = duration(taken[name]) if name in taken else ""
        lines.append(f"  {name:<40}{whole.pairs:>12,}{whole.edges:>18,}{seconds:>14}".rstrip())
    if BLOCKING in taken:
        lines.append(f"  {'all blocking keys':<70}{duration(taken[BLOCKING]):>14}")
    if found:
        lines += ["", "  exactly by"]
    for f in sorted(found, key=lambda f: (len(f.methods), f.methods)):
        lines.append(f"  {' + '.join(f.methods):<40}{f.pairs:>12,}{f.edges:>18,}")
    pairs, edges = sum(f.pairs for f in found), sum(f.edges for f in found)
    return "\n".join([*lines, "", f"  {'all pairs':<40}{pairs:>12,}{edges:>18,}", f"  {manifest.recall}"])


def methods_json(found: Sequence[Found], manifest: RunManifest) -> str:
    """The counts as one JSON object."""
    return json.dumps({"found": [asdict(f) for f in found], "seconds": seconds_of(manifest), "recall": manifest.recall}, indent=2)
