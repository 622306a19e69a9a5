"""LABELS -> COMPONENTS, RECORDS + COMPONENTS -> CLUSTERS and SET_ASIDE: what a cluster is, and its records."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import Window
from pyspark.sql import functions as F

from spark_dedup.grouped import group_runs
from spark_dedup.kernels.stars import star_labels
from spark_dedup.schema import (
    CENTROID_SIMILARITY,
    CLUSTERS,
    COMPONENTS,
    EDGES,
    EXACT_KEY,
    LEFT_ID,
    RECORD_ID,
    REP_ID,
    RIGHT_ID,
    RUN_ID,
    SET_ASIDE,
    pa_schema,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def whole_components(labels: DataFrame) -> DataFrame:
    """Take every component for a cluster.

    Args:
        labels: LABELS.

    Returns:
        COMPONENTS.
    """
    return COMPONENTS.conform(labels.withColumn("cluster_id", F.col("component_id")))


def split_components(
    labels: DataFrame, edges: DataFrame, records: DataFrame, representatives: DataFrame, descending: tuple[bool, ...], *, tiles: int
) -> DataFrame:
    """Cut components so that every text has an edge to the canonical text of its cluster.

    The text of the record that the keep policy puts first takes all texts that it has an edge to; those left over are clustered
    again in the same way (`kernels.stars`). A task holds the edges of whole components: 48 bytes an edge and some 40 in work.

    Args:
        labels: LABELS.
        edges: EDGES, each once.
        records: RECORDS.
        representatives: REPRESENTATIVES of the same records.
        descending: As in `expand_clusters`.
        tiles: Tasks, at least 1; changes no row.

    Returns:
        COMPONENTS.
    """
    joined = EDGES.conform(edges).join(labels.select(F.col(REP_ID).alias(LEFT_ID), "component_id"), LEFT_ID, how="inner")
    touched = labels.join(joined.select("component_id").distinct(), "component_id", how="left_semi")
    own = records.select(RECORD_ID, EXACT_KEY, "keep").join(representatives.select(EXACT_KEY, REP_ID), EXACT_KEY, how="inner")
    place = F.row_number().over(Window.partitionBy("component_id").orderBy(*keep_order(descending)))
    placed = own.join(touched, REP_ID, how="inner").withColumn("place", place)
    ranked = placed.groupBy(REP_ID).agg(F.min("place").cast("bigint").alias("rank"))
    ends = {side: ranked.select(F.col(REP_ID).alias(side), F.col("rank").alias(f"{side}_rank")) for side in (LEFT_ID, RIGHT_ID)}
    tiled = joined.withColumn("tile", F.pmod(F.xxhash64("component_id"), F.lit(tiles)).cast("int"))
    tiled = tiled.join(ends[LEFT_ID], LEFT_ID, how="inner").join(ends[RIGHT_ID], RIGHT_ID, how="inner")
    tiled = tiled.select("tile", LEFT_ID, RIGHT_ID, f"{LEFT_ID}_rank", f"{RIGHT_ID}_rank").repartition(tiles, "tile")
    stars = tiled.sortWithinPartitions("tile").mapInArrow(_stars, STARS)
    own_id = F.coalesce("cluster_id", "component_id")
    return COMPONENTS.conform(labels.join(stars, REP_ID, how="left").withColumn("cluster_id", own_id))


STARS = f"`{REP_ID}` bigint, `cluster_id` bigint"


def _stars(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for _, tile in group_runs(batches, "tile"):
        edges = pa.Table.from_batches(list(tile))
        ids, labels = star_labels(*(edges.column(i).to_numpy() for i in range(1, 5)))
        yield pa.RecordBatch.from_arrays([pa.array(ids), pa.array(labels)], schema=pa_schema(STARS))


def fill_keep(
    records: DataFrame, representatives: DataFrame, similarities: DataFrame, by_centroid: Mapping[int, tuple[str, bool]]
) -> DataFrame:
    """Fill in the values of the keep policy that the cells of the search decide.

    Args:
        records: RECORDS.
        representatives: REPRESENTATIVES of the same records.
        similarities: rep_id, centroid_similarity of the texts that have a vector.
        by_centroid: Values of `records.keep`, from 1 on: an expression over `centroid_similarity`, and whether the larger comes first.

    Returns:
        RECORDS; by such a value a text without a vector comes last.
    """
    known = representatives.select(EXACT_KEY, REP_ID).join(similarities, REP_ID, how="inner").select(EXACT_KEY, CENTROID_SIMILARITY)
    keep = F.col("keep")
    for i, (expression, descending) in by_centroid.items():
        last = F.lit(float("-inf" if descending else "inf"))
        keep = keep.withField(f"k{i}", F.coalesce(F.expr(expression).cast("double"), last))
    return records.join(known, EXACT_KEY, how="left").withColumn("keep", keep).select(*records.columns)


def keep_order(descending: tuple[bool, ...]) -> list[Column]:
    """The keep policy over the columns of RECORDS: a total order, in which the first record of a cluster is canonical."""
    return [*(F.desc(f"keep.k{i}") if down else F.asc(f"keep.k{i}") for i, down in enumerate(descending, start=1)), F.asc(RECORD_ID)]


def expand_clusters(
    records: DataFrame,
    representatives: DataFrame,
    problems: DataFrame,
    components: DataFrame,
    candidate_pairs: DataFrame,
    descending: tuple[bool, ...],
    run_id: str,
) -> DataFrame:
    """Put every record into its cluster and choose the record that each cluster keeps.

    Args:
        records: RECORDS.
        representatives: REPRESENTATIVES of the same records.
        problems: exact_key, problem: keys whose vector can not be used.
        components: COMPONENTS of the representatives.
        candidate_pairs: CANDIDATE_PAIRS, for the scores against the canonical record.
        descending: For each value of `records.keep`, whether the larger comes first. Ties are broken by record_id.
        run_id: Run that writes the rows.

    Returns:
        CLUSTERS: every record exactly once, those without text in no cluster.
    """
    reps = representatives.select(EXACT_KEY, REP_ID, "group_size")
    own = (
        records.select(RECORD_ID, EXACT_KEY, "keep")
        .where(F.col(EXACT_KEY).isNotNull())
        .join(reps, EXACT_KEY, how="inner")
        .join(components, REP_ID, how="inner")
        .join(problems, EXACT_KEY, how="left")
    )
    cluster = Window.partitionBy("cluster_id")
    first = cluster.orderBy(*keep_order(descending)).rowsBetween(Window.unboundedPreceding, Window.unboundedFollowing)
    placed = own.select(
        RECORD_ID,
        EXACT_KEY,
        REP_ID,
        "group_size",
        "cluster_id",
        "problem",
        F.first(F.struct(RECORD_ID, EXACT_KEY, REP_ID)).over(first).alias("canonical"),
        F.count("*").over(cluster).alias("cluster_size"),
    )
    scores = candidate_pairs.select(LEFT_ID, RIGHT_ID, "cosine", "jaccard")
    is_canonical = F.col(RECORD_ID) == F.col(f"canonical.{RECORD_ID}")
    same_key = F.col(EXACT_KEY) == F.col(f"canonical.{EXACT_KEY}")
    kind = (
        F.when((F.col("cluster_size") == 1) & F.col("problem").isNotNull(), "bad_embedding")
        .when(F.col("cluster_size") == 1, "single")
        .when(is_canonical, F.when(F.col("group_size") > 1, "exact").otherwise("near"))
        .when(same_key, "exact")
        .otherwise("near")
    )
    with_text = (
        placed.withColumn(LEFT_ID, F.least(REP_ID, f"canonical.{REP_ID}"))
        .withColumn(RIGHT_ID, F.greatest(REP_ID, f"canonical.{REP_ID}"))
        .join(scores, [LEFT_ID, RIGHT_ID], how="left")
        .select(
            RECORD_ID,
            "cluster_id",
            is_canonical.alias("is_canonical"),
            F.col(f"canonical.{RECORD_ID}").alias("canonical_id"),
            "cluster_size",
            kind.alias("match_kind"),
            F.when(same_key, F.lit(1.0)).otherwise(F.col("cosine")).alias("cosine"),
            F.when(same_key, F.lit(1.0)).otherwise(F.col("jaccard")).alias("jaccard"),
            F.lit(run_id).alias(RUN_ID),
        )
    )
    without_text = records.where(F.col(EXACT_KEY).isNull()).select(
        RECORD_ID,
        F.lit(None).cast("bigint").alias("cluster_id"),
        F.lit(True).alias("is_canonical"),
        F.col(RECORD_ID).alias("canonical_id"),
        F.lit(1).cast("bigint").alias("cluster_size"),
        F.lit("no_text").alias("match_kind"),
        F.lit(None).cast("double").alias("cosine"),
        F.lit(None).cast("double").alias("jaccard"),
        F.lit(run_id).alias(RUN_ID),
    )
    return CLUSTERS.conform(with_text.unionByName(without_text))


def list_set_aside(records: DataFrame, embeddings: DataFrame, run_id: str) -> DataFrame:
    """List the rows that a step could not use as they are.

    Args:
        records: RECORDS.
        embeddings: EMBEDDINGS of the run's model.
        run_id: Run that writes the rows.

    Returns:
        SET_ASIDE: one row per record and reason.
    """
    nothing = F.lit(None).cast("string")
    issues = records.select(RECORD_ID, F.explode("issues").alias("reason"), nothing.alias("detail"))
    keyed = records.select(RECORD_ID, EXACT_KEY)
    bad = embeddings.where(F.col("problem").isNotNull()).select(
        EXACT_KEY, F.lit("bad_embedding").alias("reason"), F.col("problem").alias("detail")
    )
    cut = embeddings.where("truncated").select(
        EXACT_KEY, F.lit("cut_text").alias("reason"), F.format_string("%d tokens", F.col("tokens")).alias("detail")
    )
    found = keyed.join(bad.unionByName(cut), EXACT_KEY, how="inner").select(RECORD_ID, "reason", "detail")
    return SET_ASIDE.conform(issues.unionByName(found).withColumn(RUN_ID, F.lit(run_id)))
