"""RECORDS + COMPONENTS -> CLUSTERS and SET_ASIDE: components expanded to records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F

from spark_dedup.schema import CLUSTERS, EXACT_KEY, LEFT_ID, RECORD_ID, REP_ID, RIGHT_ID, RUN_ID, SET_ASIDE

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def expand_clusters(
    records: DataFrame,
    representatives: DataFrame,
    problems: DataFrame,
    components: DataFrame,
    candidate_pairs: DataFrame,
    order: Sequence[Column],
    run_id: str,
    similarities: DataFrame | None = None,
) -> DataFrame:
    """Put every record into its cluster and choose the record that each cluster keeps.

    Args:
        records: RECORDS.
        representatives: REPRESENTATIVES of the same records.
        problems: exact_key, problem: keys whose vector can not be used.
        components: COMPONENTS of the representatives.
        candidate_pairs: CANDIDATE_PAIRS, for the scores against the canonical record.
        order: The keep policy, over `records.keep` and `centroid_similarity`. Ties are broken by record_id.
        run_id: Run that writes the rows.
        similarities: rep_id, centroid_similarity of the texts that have a vector; None where the order does without.

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
    if similarities is not None:
        own = own.join(similarities, REP_ID, how="left")
    cluster = Window.partitionBy("component_id")
    first = cluster.orderBy(*order, RECORD_ID).rowsBetween(Window.unboundedPreceding, Window.unboundedFollowing)
    placed = own.select(
        RECORD_ID,
        EXACT_KEY,
        REP_ID,
        "group_size",
        "component_id",
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
            F.col("component_id").alias("cluster_id"),
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
