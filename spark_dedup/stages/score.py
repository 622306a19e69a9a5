"""SCORED_PAIRS -> CANDIDATE_PAIRS -> EDGES: the merge rule's verdict on every pair."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from spark_dedup.config import MergeConfig
from spark_dedup.schema import CANDIDATE_PAIRS, EDGES, LEFT_ID, RECORD_ID, REP_ID, RIGHT_ID, RUN_ID

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def judge_pairs(pairs: DataFrame, representatives: DataFrame, config: MergeConfig, run_id: str) -> DataFrame:
    """Apply the merge rule and name the records that the pair's representatives stand for.

    Args:
        pairs: SCORED_PAIRS.
        representatives: REPRESENTATIVES, for the record ids.
        config: Uses `rule`; a rule that gives null refuses the pair.
        run_id: Run that writes the rows.

    Returns:
        CANDIDATE_PAIRS.
    """
    left = representatives.select(F.col(REP_ID).alias(LEFT_ID), F.col(RECORD_ID).alias("left_record"))
    right = representatives.select(F.col(REP_ID).alias(RIGHT_ID), F.col(RECORD_ID).alias("right_record"))
    judged = pairs.withColumn("is_edge", F.coalesce(F.expr(config.rule), F.lit(False))).withColumn(RUN_ID, F.lit(run_id))
    return CANDIDATE_PAIRS.conform(judged.join(left, LEFT_ID, how="inner").join(right, RIGHT_ID, how="inner"))


def accepted_edges(candidate_pairs: DataFrame) -> DataFrame:
    """The pairs that the merge rule accepts.

    Args:
        candidate_pairs: CANDIDATE_PAIRS.

    Returns:
        EDGES, each once.
    """
    return EDGES.conform(candidate_pairs.where("is_edge").select(LEFT_ID, RIGHT_ID).distinct())
