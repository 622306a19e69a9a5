"""What a run did, in sentences that the terminal page and the HTML page share. Figures that a run lacks are left out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from spark_dedup.config import MergeConfig
from spark_dedup.limits import LIMITS, Limit
from spark_dedup.manifest import RunManifest, StageRecord
from spark_dedup.progress import quantity
from spark_dedup.report.summary import LooseCluster, PairView, RecallView, Summary

TITLES = {
    "records": "Read the rows",
    "representatives": "Fold exact copies",
    "blocks": "Sort texts into blocks",
    "embeddings": "Turn texts into vectors",
    "vectors": "Gather the vectors",
    "index": "Build the search index",
    "candidates": "Find similar pairs",
    "components": "Join pairs into groups",
    "clusters": "Write the clusters",
    "recall": "Measure what was missed",
}

WORDS = {
    "exact copies": "rows whose text is the same, apart from white space and Unicode spelling",
    "cosine": "how near two texts lie by their vectors; 1 is the same direction",
    "Jaccard": "share of all five-word sequences that both texts have",
    "containment": "share of the shorter text's five-word sequences that the other text has too",
    "substitution": "words replaced, as a share of the shorter text; 0 where one text only adds or cuts",
    "numbers": "same, contained (one text has all numbers of the other) or differ",
    "merge rule": "condition on these scores that makes two texts copies of each other",
    "cluster": "rows joined by exact copies and accepted pairs; one of them, the canonical row, is kept",
    "recall": "share of the truly similar pairs that the search found",
}
"""Every term that a page uses, explained once."""

NOTHING_REMOVED = "No row was removed: the tables say which row each one repeats."


@dataclass(frozen=True)
class Step:
    """One stage as a page shows it: what it is, its main result, details, and what it cost."""

    number: int
    stage: str
    title: str
    result: str
    details: tuple[str, ...]
    seconds: float
    state: str


def percent(part: int, whole: int) -> str:
    """A share in percent that says neither 0 nor 100 unless it is exactly that."""
    share = 100 * part / whole if whole else 0.0
    if 0 < share < 0.1:
        return "under 0.1 %"
    if 99.9 < share < 100:
        return "over 99.9 %"
    return f"{share:.1f} %"


def setting(settings: Mapping[str, Any], section: str, name: str) -> Any:
    """One effective setting; None where the run's record lacks it."""
    part = settings.get(section)
    return part.get(name) if isinstance(part, Mapping) else None


def figure(manifest: RunManifest, stage: str, name: str) -> int | None:
    """One count of one stage; None where the run has no such stage or count."""
    return next((s.counts.get(name) for s in manifest.stages if s.stage == stage), None)


def merge_rule(summary: Summary) -> str:
    """The rule that the run used."""
    named = (setting(summary.manifest.settings, "merge", name) for name in ("preset", "rule"))
    return MergeConfig(**dict(zip(("preset", "rule"), named, strict=True))).condition


def scores(pair: PairView) -> list[tuple[str, str]]:
    """The scores of a pair that were measured: name and value."""
    named = [
        ("cosine", pair.cosine, 3),
        ("Jaccard", pair.jaccard, 2),
        ("containment", pair.containment, 2),
        ("substitution", pair.substitution, 2),
    ]
    told = [(name, f"{value:.{digits}f}") for name, value, digits in named if value is not None]
    return told + ([("numbers", pair.numbers)] if pair.numbers else [])


def timing(manifest: RunManifest) -> str:
    """How long the run took, or that there was nothing to do."""
    if manifest.did_work:
        return f"Run {manifest.run_id} took {manifest.seconds:,.1f} s."
    return f"Run {manifest.run_id} had finished every step before; nothing was done now."


def row_count(manifest: RunManifest) -> int | None:
    """Rows of the source that took part."""
    counted = figure(manifest, "records", "rows")
    return next((s.rows_out for s in manifest.stages if s.stage == "records"), None) if counted is None else counted


def source_line(manifest: RunManifest) -> str:
    """What was read."""
    version = f", Delta version {manifest.source_version}" if manifest.source_version is not None else ""
    return f"{manifest.source}{version}"


def headline(summary: Summary) -> str:
    """The run in one sentence."""
    m = summary.manifest
    rows, removable = row_count(m), figure(m, "clusters", "removable_rows")
    if rows is None or removable is None:
        return "The run has no complete counts."
    copies = figure(m, "representatives", "duplicate_rows")
    if copies is None or copies > removable:
        return f"{removable:,} of {quantity(rows, 'row')} repeat another row ({summary.recall})."
    return (
        f"{removable:,} of {quantity(rows, 'row')} repeat another row: {quantity(copies, 'exact copy', 'exact copies')} "
        f"and {quantity(removable - copies, 'near duplicate')} ({summary.recall})."
    )


def tiles(summary: Summary) -> list[tuple[str, str]]:
    """The few figures that stand on top: value and words."""
    m = summary.manifest
    found = [
        (row_count(m), "rows read"),
        (figure(m, "representatives", "keys"), "distinct texts"),
        (figure(m, "candidates", "pairs"), f"similar pairs found; {summary.recall}"),
        (figure(m, "candidates", "edges"), f"of them accepted by the merge rule; {summary.recall}"),
        (figure(m, "clusters", "clusters"), f"clusters of two or more rows; {summary.recall}"),
        (figure(m, "clusters", "removable_rows"), f"rows that repeat another row; {summary.recall}"),
    ]
    return [(f"{value:,}", words) for value, words in found if value is not None]


def steps(summary: Summary) -> list[Step]:
    """All stages of the run in their order."""
    m = summary.manifest
    out = []
    for number, record in enumerate(m.stages, start=1):
        sentences = _SENTENCES[record.stage](record, m, summary.recall)
        rest = [s for s in sentences if s]
        state = "kept from an earlier run" if record.reused and m.did_work else "" if record.status == "done" else record.status
        result, details = (rest[0], tuple(rest[1:])) if rest else (_rows(record), ())
        out.append(Step(number, record.stage, TITLES[record.stage], result, details, record.seconds, state))
    return out


def _rows(s: StageRecord) -> str:
    return quantity(s.rows_out, "row") + " written" if s.rows_out is not None else "done"


def _if(value: int | None, text: str) -> str:
    """The text where there is something to tell, else nothing."""
    return text if value else ""


def _records(s: StageRecord, m: RunManifest, recall: str) -> list[str]:
    c, rows = s.counts.get, row_count(m)
    return [
        quantity(rows, "row") if rows is not None else "",
        _if(c("no_text"), f"{quantity(c('no_text', 0), 'row')} without text: set aside"),
        _if(c("invalid_characters"), f"{quantity(c('invalid_characters', 0), 'row')} with broken characters, which were replaced"),
        _if(c("invisible_characters"), f"{quantity(c('invisible_characters', 0), 'row')} with invisible characters"),
        _if(c("dropped_equal"), f"{quantity(c('dropped_equal', 0), 'row')} dropped: same id and same text as another"),
    ]


def _representatives(s: StageRecord, m: RunManifest, recall: str) -> list[str]:
    c = s.counts.get
    rows, copies, groups = row_count(m), c("duplicate_rows"), c("copy_groups")
    pairs, left = c("pairs_all"), c("pairs_left")
    told = ""
    if copies and groups:
        told = f"{quantity(copies, 'row')} {'is an exact copy' if copies == 1 else 'are exact copies'} of another row"
        told += f" ({percent(copies, rows)} of all)" if rows else ""
        told += f", in {quantity(groups, 'group')}"
        told += f"; the largest holds {c('largest_group', 0):,} rows" if c("largest_group") else ""
    return [
        quantity(c("keys", 0), "distinct text") if "keys" in s.counts else "",
        told or ("no exact copies" if copies == 0 else ""),
        f"so {percent(pairs - left, pairs)} of all {pairs:,} pairs of rows need no comparison" if pairs and left is not None else "",
    ]


def _blocks(s: StageRecord, m: RunManifest, recall: str) -> list[str]:
    compared = {name.partition(":")[2]: n for name, n in s.counts.items() if name.startswith("comparisons:")}
    lines = [f"{quantity(sum(compared.values()), 'comparison')} in {quantity(s.rows_out or 0, 'block')}"]
    for key, n in compared.items():
        without, largest = s.counts.get(f"without_key:{key}"), s.notes.get(f"blocks:{key}", "").partition("\n")[0]
        told = f"key {key}: {quantity(n, 'comparison')}" + (f"; largest block {largest}" if largest else "")
        lines.append(told + (f"; {quantity(without, 'text')} without it, which it compares with none" if without else ""))
    return lines


def _embeddings(s: StageRecord, m: RunManifest, recall: str) -> list[str]:
    c = s.counts.get
    encoder, model = s.notes.get("encoder"), s.notes.get("model")
    by = f" by {encoder}" if encoder else ""
    by += f", model {model}" if encoder == "sentence-transformers" and model else ""  # the other encoders do not read that setting
    return [
        f"{quantity(c('embedded', 0), 'text')} encoded{by}" if "embedded" in s.counts else "",
        _if(c("reused"), f"{quantity(c('reused', 0), 'vector')} taken from an earlier run"),
        _if(c("bad_embedding"), f"{quantity(c('bad_embedding', 0), 'text')} without a usable vector: set aside"),
    ]


def _vectors(s: StageRecord, m: RunManifest, recall: str) -> list[str]:
    vectors, distinct = s.counts.get("vectors"), s.counts.get("distinct_vectors")
    return [
        quantity(vectors, "vector") if vectors is not None else "",
        f"{distinct:,} of them differ; equal ones are searched once" if distinct is not None and distinct != vectors else "",
    ]


def _index(s: StageRecord, m: RunManifest, recall: str) -> list[str]:
    shards = s.counts.get("shards")
    of = f" of {quantity(s.rows_out, 'vector')}" if s.rows_out is not None else ""
    size = f", {s.bytes / 1e6:,.1f} MB" if s.bytes else ""
    kind = _INDEXES.get(s.notes.get("engine", "hnsw"))
    told = f"{kind} in {quantity(shards, 'shard')}{of}{size}" if kind and shards is not None else "none needed"
    if "postgres" in s.notes:
        told = f"HNSW graph in {s.notes['postgres']}{of}, {s.counts.get('postgres_bytes', 0) / 1e6:,.1f} MB"
    return [
        told,
        f"the server said: {s.notes['postgres_said']}" if "postgres_said" in s.notes else "",
        _decision(s, "engine", "search engine"),
        f"tuning: {s.notes['tuning']}" if "tuning" in s.notes else "",
    ]


_INDEXES = {"hnsw": "HNSW graph", "cells": "k-means cells", "semdedup": "k-means cells"}


def _candidates(s: StageRecord, m: RunManifest, recall: str) -> list[str]:
    c = s.counts.get
    floor = setting(m.settings, "search", "floor")
    least = f" with cosine >= {floor:g}" if floor is not None else ""
    floors = [("minhash", "threshold")] * (c("lsh_proposed") is not None) + [("blocking", "jaccard")] * (c("block_proposed") is not None)
    if floors:
        least += f" or Jaccard >= {min(m.settings[section][name] for section, name in floors):g}"
    if c("contained_proposed") is not None:
        least += f" or containment >= {setting(m.settings, 'minhash', 'containment'):g}"
    pairs, edges, refused = c("pairs"), c("edges"), c("refused")
    verdict = ""
    if edges is not None and refused is not None:
        verdict = f"the merge rule accepts {edges:,} and refuses {refused:,} of them ({recall})"
    return [
        f"{quantity(pairs, 'pair')}{least} ({recall})" if pairs is not None else "",
        verdict,
        _if(c("asked_again"), f"{quantity(c('asked_again', 0), 'full list')} asked again for more neighbours"),
        _if(c("lsh_proposed"), f"{quantity(c('lsh_proposed', 0), 'pair')} shared a MinHash bucket and had their Jaccard verified"),
        _if(
            c("contained_proposed"),
            f"{quantity(c('contained_proposed', 0), 'pair')} share a rare shingle and had their containment computed",
        ),
        _if(c("block_proposed"), f"{quantity(c('block_proposed', 0), 'pair')} shared a blocking key and had their scores computed"),
        f"recall of the buckets: {s.notes['lsh_recall']}" if "lsh_recall" in s.notes else "",
        f"Postgres: {s.notes['postgres']}" if s.notes.get("postgres") else "",
        _decision(s, "placement", "index placement"),
    ]


def _components(s: StageRecord, m: RunManifest, recall: str) -> list[str]:
    absorbed = s.counts.get("absorbed")
    return [
        f"{quantity(absorbed, 'distinct text')} joined to another one ({recall})" if absorbed is not None else "",
        _decision(s, "engine", "components engine"),
    ]


def _clusters(s: StageRecord, m: RunManifest, recall: str) -> list[str]:
    c = s.counts.get
    clusters, inside, removable = c("clusters"), c("clustered_rows"), c("removable_rows")
    told = ""
    if clusters is not None:
        told = quantity(clusters, "cluster") + " of two or more rows"
        told += f", {quantity(inside, 'row')} in them" if inside is not None else ""
        told += f" ({recall})"
    kinds = [("exact", "exact"), ("near", "near"), ("single", "alone"), ("no_text", "without text"), ("bad_embedding", "without a vector")]
    split = ", ".join(f"{s.counts[k]:,} {word}" for k, word in kinds if s.counts.get(k))
    return [
        told,
        f"{quantity(removable, 'row')} can go, one row of each cluster stays" if removable else "",
        f"rows by kind of match: {split}" if split else "",
        f"largest cluster: {quantity(c('largest', 0), 'row')}" if clusters and c("largest") else "",
        _if(
            c("indirect"),
            f"{quantity(c('indirect', 0), 'row')} joined to the canonical row by a chain of others alone (clusters.method)",
        ),
    ]


def loose_words(cluster: LooseCluster) -> str:
    """A loose cluster in one line."""
    cosines = [(cluster.weakest_cosine, "weakest accepted pair"), (cluster.least_cosine, "least with the canonical row")]
    measured = ", ".join(f"{words} at cosine {value:.3f}" for value, words in cosines if value is not None)
    return f"{quantity(cluster.rows, 'row')}, {cluster.indirect:,} by a chain alone" + (f"; {measured}" if measured else "")


def _decision(s: StageRecord, name: str, words: str) -> str:
    """A decision that the run took, and why."""
    value, reason = s.notes.get(name), s.notes.get(f"{name}_reason")
    return f"{words}: {value}" + (f" ({reason})" if reason else "") if value else ""


def _recall(s: StageRecord, m: RunManifest, recall: str) -> list[str]:
    sample, true = s.counts.get("sample"), s.counts.get("true_pairs")
    seen = f"{quantity(sample, 'text')} compared with all {s.rows_in:,}" if sample and s.rows_in else ""
    return [recall, s.notes.get("target", ""), f"{seen}: {quantity(true or 0, 'true neighbour')}" if seen else ""]


_SENTENCES = {
    "records": _records,
    "representatives": _representatives,
    "blocks": _blocks,
    "embeddings": _embeddings,
    "vectors": _vectors,
    "index": _index,
    "candidates": _candidates,
    "components": _components,
    "clusters": _clusters,
    "recall": _recall,
}

_MEASURED = {
    "pair_recall": "of the pairs with cosine >= {floor:.2f}, found",
    "pair_recall_rule": "of the pairs that the merge rule accepts, found directly",
    "cluster_recall": "of these, joined in one cluster in the end",
    "query_recall_mean": "of a text's neighbours, found on average",
    "query_recall_worst_decile": "of a text's neighbours, found on average in the worst tenth of the texts",
    "loss_routing": "of all pairs, lost because exact.route kept texts out of the search",
    "loss_cap": "of all pairs, lost because a list of neighbours or copies was cut",
    "loss_border": "of all pairs, lost at borders of the index",
    "loss_graph": "of all pairs, lost on the way through the graph",
    "key_recall": "of all pairs, brought together by blocking keys",
    "loss_keys": "of all pairs, not brought together by blocking keys, be they found by vectors or not",
    "shared_recall": "of the pairs with Jaccard >= {floor:.2f}, found",
    "shared_recall_bands": "of these, brought together by their MinHash buckets",
    "shared_recall_design": "of these, brought together by buckets on average, by design",
    "loss_bands": "of these, lost because no bucket brought them together",
}
"""What each metric of the `recall` table is a share of, in the order in which they are shown."""


def measured_how(summary: Summary) -> str:
    """How the figures of recall came about, in a few words."""
    figures = [r for _, r in recall_figures(summary)]
    n, exact = quantity(figures[0].n, "text"), all(r.low == r.high for r in figures)
    target = next((s.notes["target"] for s in summary.manifest.stages if "target" in s.notes), "")
    how = f"measured on all {n}, exact" if exact else f"measured on {n}, intervals of 95 %"
    return how + (f"; {target}" if target else "")


def recall_figures(summary: Summary) -> list[tuple[str, RecallView]]:
    """The figures of recall with their words; losses that did not occur are left out."""
    order = list(_MEASURED)
    shown = [r for r in summary.measured if r.value is not None and (r.value > 0 or not r.metric.startswith("loss_"))]
    return [(_MEASURED[r.metric].format(floor=r.floor), r) for r in sorted(shown, key=lambda r: (order.index(r.metric), r.floor))]


@dataclass(frozen=True)
class Reached:
    """A limit that was reached: by which stage, how often, what is counted, the setting with its value, and what it means."""

    stage: str
    count: int
    counted: str
    setting: str
    effect: str


def limits(summary: Summary) -> list[Reached]:
    """Every limit that was reached."""
    m, known = summary.manifest, {limit.name: limit for limit in LIMITS}
    out = []
    for record in m.stages:
        for name, hits in record.caps_hit.items():
            limit = known.get(name) or Limit(record.stage, name, name, "", "")
            value = setting(m.settings, *limit.setting.split(".")) if limit.setting else None
            shown = f"{value:,}" if isinstance(value, int) else value
            moved_by = limit.setting if value is None else f"{limit.setting} = {shown}"
            out.append(Reached(record.stage, hits, limit.counted, moved_by, limit.effect.replace("`", "")))
    return out
