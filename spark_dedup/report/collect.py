"""Small aggregates and a few example pairs from the tables of a store. Text is read for the chosen examples alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from pyspark.sql import functions as F

from spark_dedup import schema
from spark_dedup.evaluation.cohesion import cohesion
from spark_dedup.manifest import RunManifest
from spark_dedup.report.methods import Found
from spark_dedup.report.pairs import mark_differences
from spark_dedup.report.story import setting
from spark_dedup.report.summary import CopyGroup, CosineBand, LooseCluster, PairView, RecallView, SizeBand, Summary, TableView

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row

BANDS = 20
"""Bands of the cosine between the floor and 1."""

SLOTS = 64
"""Examples kept of each band and verdict: the pair with the least hash of each slot."""

POOL = 3
"""Texts are read for this many times the pairs wanted, to choose examples that differ from each other."""

HIGH_COSINE = 0.95
"""Refused pairs from here on are shown first: these are the ones that cosine alone would merge."""

COPY_GROUPS = 3
"""Groups of exact copies shown."""

LOOSE = 5
"""Loose clusters shown."""

LONG_TEXT = 1_200
"""Characters beyond which a text makes a tiring example."""

SIZE_STARTS = (2, 3, 4, 5, 10, 20, 50, 100, 1_000)
"""Where the bands of cluster sizes begin."""


class Tables(Protocol):
    """What is needed of a store."""

    def read(self, table: schema.Table) -> DataFrame:
        """The table's rows."""
        ...

    def location(self, table: schema.Table) -> str:
        """Where the table lies."""
        ...


def collect(store: Tables, manifest: RunManifest, pairs: int = 6, next_steps: Iterable[str] = ()) -> Summary:
    """Gather what the report shows: a few small Spark jobs, whatever the size of the tables.

    Args:
        store: The finished run's tables.
        manifest: The finished run.
        pairs: Pairs of each kind to show, accepted and refused.
        next_steps: Commands worth typing next, one a line.

    Returns:
        The same for the same tables: examples are chosen by hashes of their ids.
    """
    floor = float(setting(manifest.settings, "search", "floor") or 0.0)
    rows = example_rows(store.read(schema.CANDIDATE_PAIRS), floor)
    found, refused = chosen_pairs(store, rows, pairs)
    return Summary(
        manifest=manifest,
        found=found,
        refused=refused,
        copies=largest_copies(store.read(schema.REPRESENTATIVES)),
        cosine_bands=cosine_bands(rows, floor),
        size_bands=size_bands(store.read(schema.CLUSTERS)),
        loose=loose_clusters(store, manifest),
        tables=tuple(TableView(name=t.name, location=store.location(t), doc=t.doc) for t in schema.TABLES if t.public),
        next_steps=tuple(next_steps),
        measured=measured(store, manifest),
    )


def measured(store: Tables, manifest: RunManifest) -> tuple[RecallView, ...]:
    """The run's own figures of recall; none where it did not measure."""
    if not any(s.stage == "recall" and s.rows_out for s in manifest.stages):
        return ()
    own = (F.col(schema.RUN_ID) == manifest.run_id) & (F.col("setting") == "")
    names = [field.name for field in dataclasses.fields(RecallView)]
    rows = store.read(schema.RECALL).where(own).select(*names).orderBy("metric", "floor").collect()
    return tuple(RecallView(**row.asDict()) for row in rows)


def loose_clusters(store: Tables, manifest: RunManifest) -> tuple[LooseCluster, ...]:
    """The clusters with most records that only a chain joins to the canonical one; no job where the run counted none."""
    if not any(s.counts.get("indirect") for s in manifest.stages):
        return ()
    found = cohesion(store.read(schema.CLUSTERS), store.read(schema.MEMBERS), store.read(schema.CANDIDATE_PAIRS))
    names = [field.name for field in dataclasses.fields(LooseCluster)]
    rows = found.where("indirect > 0").orderBy(F.desc("indirect"), "cluster_id").limit(LOOSE).select(*names).collect()
    return tuple(LooseCluster(**row.asDict()) for row in rows)


def methods_found(store: Tables) -> tuple[Found, ...]:
    """How many pairs each combination of methods found, and on how many of them the merge rule holds."""
    counted = store.read(schema.CANDIDATE_PAIRS).groupBy("methods").agg(F.count("*"), F.count(F.when(F.col("is_edge"), 1)))
    return tuple(sorted((Found(tuple(row[0]), row[1], row[2]) for row in counted.collect()), key=lambda f: f.methods))


def example_rows(pairs: DataFrame, floor: float) -> list[Row]:
    """Counts and one example for each band of the cosine, verdict and slot: at most 2 x BANDS x SLOTS rows.

    Args:
        pairs: CANDIDATE_PAIRS.
        floor: Least cosine of a stored pair.
    """
    width = (1.0 - floor) / BANDS
    band = F.floor((F.col("cosine") - floor) / F.lit(width)) if width > 0 else F.lit(0)
    order = F.xxhash64(schema.LEFT_ID, schema.RIGHT_ID)
    same_words = F.coalesce(F.col("jaccard") >= 1.0, F.lit(False))
    names = ("left_record", "right_record", "cosine", "jaccard", "containment", "substitution", "numbers")
    return (
        pairs.select(
            F.greatest(F.lit(0), F.least(F.lit(BANDS - 1), F.coalesce(band, F.lit(0)))).cast("int").alias("band"),
            "is_edge",
            F.pmod(order, F.lit(SLOTS)).cast("int").alias("slot"),
            F.struct(
                same_words.alias("same_words"), order.alias("order"), F.col(schema.LEFT_ID), F.col(schema.RIGHT_ID), *map(F.col, names)
            ).alias("pair"),
        )
        .groupBy("band", "is_edge", "slot")
        .agg(F.count(F.lit(1)).alias("pairs"), F.min("pair").alias("pair"))
        .collect()
    )


def cosine_bands(rows: Sequence[Row], floor: float) -> tuple[CosineBand, ...]:
    """Pairs by cosine; nothing where there are no pairs."""
    if not rows:
        return ()
    counts = {(n, edge): 0 for n in range(BANDS) for edge in (True, False)}
    for row in rows:
        counts[row["band"], bool(row["is_edge"])] += row["pairs"]
    width = (1.0 - floor) / BANDS
    return tuple(
        CosineBand(low=floor + n * width, high=floor + (n + 1) * width, edges=counts[n, True], refused=counts[n, False])
        for n in range(BANDS)
    )


def chosen_pairs(store: Tables, rows: Sequence[Row], wanted: int) -> tuple[tuple[PairView, ...], tuple[PairView, ...]]:
    """The examples: accepted pairs of different clusters and cosines, and refused pairs, the very similar ones first."""
    edges = [row["pair"] for row in spread(r for r in rows if r["is_edge"])]
    others = [row["pair"] for row in spread(r for r in rows if not r["is_edge"])]
    others.sort(key=lambda pair: (pair["cosine"] or 0.0) < HIGH_COSINE)  # stable: both parts stay spread
    edges = edges[: 10 * POOL * wanted]  # enough to meet as many clusters as are wanted
    clusters = clusters_of(store.read(schema.CLUSTERS), [pair["left_record"] for pair in edges])
    of_cluster: dict[int, Row] = {}
    for pair in edges:
        if pair["left_record"] in clusters:
            of_cluster.setdefault(clusters[pair["left_record"]][0], pair)
    pools = [list(of_cluster.values())[: POOL * wanted], others[: POOL * wanted]]
    texts = texts_of(store.read(schema.RECORDS), [p[side] for pool in pools for p in pool for side in ("left_record", "right_record")])
    found, refused = ([view(p, edge, texts, clusters) for p in pool] for pool, edge in zip(pools, (True, False), strict=True))
    return varied(found, wanted), varied(refused, wanted)


def spread(rows: Iterable[Row]) -> list[Row]:
    """Rows so that the first few come from different bands, each with differing words where there is such a pair.

    Bands take turns, beginning with the highest; a multiple of 7 visits all 20 of them in an order that jumps.
    """
    by_band: dict[int, list[Row]] = {}
    for row in sorted(rows, key=lambda r: (r["pair"]["same_words"], r["pair"]["order"])):
        by_band.setdefault(row["band"], []).append(row)
    turns = [(place, 7 * (BANDS - 1 - band) % BANDS, row) for band, of in by_band.items() for place, row in enumerate(of)]
    turns.sort(key=lambda t: (t[2]["pair"]["same_words"], t[0], t[1]))
    return [row for _, _, row in turns]


def clusters_of(clusters: DataFrame, records: Sequence[Any]) -> dict[Any, tuple[int, int]]:
    """Cluster id and size of some records."""
    if not records:
        return {}
    rows = clusters.where(F.col(schema.RECORD_ID).isin(sorted(set(records)))).select(schema.RECORD_ID, "cluster_id", "cluster_size")
    return {row[0]: (row[1], row[2]) for row in rows.collect()}


def texts_of(records: DataFrame, ids: Sequence[Any]) -> dict[Any, str]:
    """Texts of some records."""
    if not ids:
        return {}
    rows = records.where(F.col(schema.RECORD_ID).isin(sorted(set(ids)))).select(schema.RECORD_ID, "text")
    return {row[0]: row[1] or "" for row in rows.collect()}


def view(pair: Row, is_edge: bool, texts: dict[Any, str], clusters: dict[Any, tuple[int, int]]) -> PairView:
    """A pair with its texts."""
    left, right = pair["left_record"], pair["right_record"]
    return PairView(
        left_record=str(left),
        right_record=str(right),
        left_text=texts.get(left, ""),
        right_text=texts.get(right, ""),
        is_edge=is_edge,
        cosine=pair["cosine"],
        jaccard=pair["jaccard"],
        containment=pair["containment"],
        substitution=pair["substitution"],
        numbers=pair["numbers"],
        cluster_size=clusters[left][1] if is_edge and left in clusters else None,
    )


def varied(pool: Sequence[PairView], wanted: int) -> tuple[PairView, ...]:
    """The most telling of a pool, in the pool's order: no text twice, unlike openings first, short texts before long ones."""
    openings: set[str] = set()
    records: set[str] = set()
    ranked: list[tuple[int, int]] = []
    for n, pair in enumerate(pool):
        opening = " ".join(pair.left_text.lower().split()[:3])
        sides = mark_differences(pair.left_text, pair.right_text)
        told = any(span.changed for side in sides for span in side)
        faults = 8 * bool(records & {pair.left_record, pair.right_record}) + 4 * (opening in openings)
        faults += 2 * (max(len(pair.left_text), len(pair.right_text)) > LONG_TEXT) + (not told)
        openings.add(opening)
        records |= {pair.left_record, pair.right_record}
        ranked.append((faults, n))
    return tuple(pool[n] for n in sorted(n for _, n in sorted(ranked)[:wanted]))


def largest_copies(representatives: DataFrame) -> tuple[CopyGroup, ...]:
    """The largest groups of exact copies."""
    rows = (
        representatives.where(F.col("group_size") > 1)
        .orderBy(F.col("group_size").desc(), schema.REP_ID)
        .limit(COPY_GROUPS)
        .select(schema.RECORD_ID, "text", "group_size")
        .collect()
    )
    return tuple(CopyGroup(record=str(row[0]), text=row[1] or "", rows=row[2]) for row in rows)


def size_bands(clusters: DataFrame) -> tuple[SizeBand, ...]:
    """Clusters of two or more records by size; bands without clusters are left out."""
    start = F.lit(SIZE_STARTS[0])
    for low in SIZE_STARTS[1:]:
        start = F.when(F.col("cluster_size") >= low, F.lit(low)).otherwise(start)
    rows = (
        clusters.where(F.col("cluster_size") > 1)
        .groupBy(start.alias("low"))
        .agg(F.count(F.when(F.col("is_canonical"), 1)).alias("clusters"), F.count(F.lit(1)).alias("records"))
        .collect()
    )
    ends: dict[int, int | None] = {low: after - 1 for low, after in zip(SIZE_STARTS, SIZE_STARTS[1:], strict=False)}
    return tuple(
        SizeBand(low=row["low"], high=ends.get(row["low"]), clusters=row["clusters"], records=row["records"])
        for row in sorted(rows, key=lambda r: int(r["low"]))
    )
