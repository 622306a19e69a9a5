"""CLUSTERS x CANDIDATE_PAIRS -> COHESION: how well each cluster hangs together.

Accepted pairs chain: a joins b, b joins c, and a and c need not resemble each other. What a chain has joined shows here, in the weakest
pair that holds a cluster together and in the records that have no accepted pair with the one that is kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from spark_dedup.schema import COHESION, LEFT_ID, RECORD_ID, REP_ID, RIGHT_ID

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def cohesion(clusters: DataFrame, members: DataFrame, candidate_pairs: DataFrame) -> DataFrame:
    """Measure every cluster of two or more different texts.

    Args:
        clusters: CLUSTERS.
        members: MEMBERS of the same run.
        candidate_pairs: CANDIDATE_PAIRS of the same run.

    Returns:
        COHESION, in no order.
    """
    placed = clusters.where("cluster_size > 1").join(members.select(RECORD_ID, REP_ID), RECORD_ID, how="inner")
    rows = placed.groupBy("cluster_id").agg(
        F.count("*").alias("rows"),
        F.countDistinct(REP_ID).alias("texts"),
        F.count(F.when(~F.col("direct"), 1)).alias("indirect"),
        F.min("cosine").alias("least_cosine"),
        F.min("jaccard").alias("least_jaccard"),
    )
    of_text = placed.select(REP_ID, "cluster_id").distinct()
    edges = candidate_pairs.where("is_edge").join(of_text.withColumnRenamed(REP_ID, LEFT_ID), LEFT_ID, how="inner")
    edges = edges.join(of_text.withColumnRenamed(REP_ID, RIGHT_ID), [RIGHT_ID, "cluster_id"], how="inner")
    weakest = edges.groupBy("cluster_id").agg(
        F.count("*").alias("edges"), F.min("cosine").alias("weakest_cosine"), F.min("jaccard").alias("weakest_jaccard")
    )
    return COHESION.conform(rows.join(weakest, "cluster_id", how="inner"))
