"""RECORDS -> REPRESENTATIVES and MEMBERS: one row stands for all records with one exact key."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F

from spark_dedup.config import ExactConfig
from spark_dedup.schema import EXACT_KEY, MEMBERS, RECORD_ID, REP_ID, REPRESENTATIVES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PREFIX_DIGITS = 3
"""Hexadecimal digits of the key that number the keys in parallel: 4,096 groups, whose counts fit in one task."""


def choose_representatives(records: DataFrame, config: ExactConfig) -> DataFrame:
    """Choose one record per exact key and number the keys densely in their order, from 0.

    SHA-256 spreads keys evenly over prefixes, so keys are numbered within a prefix in parallel and prefixes are
    offset by running totals: the same ids for any partitioning.

    Args:
        records: RECORDS; rows without a key take no part.
        config: Uses `route`.

    Returns:
        REPRESENTATIVES.
    """
    groups = (
        records.where(F.col(EXACT_KEY).isNotNull())
        .groupBy(EXACT_KEY)
        .agg(F.min(F.struct(RECORD_ID, "text")).alias("first"), F.count("*").alias("group_size"))
        .withColumn("prefix", F.substring(EXACT_KEY, 1, PREFIX_DIGITS))
    )
    counts = records.where(F.col(EXACT_KEY).isNotNull()).select(EXACT_KEY).distinct()
    counts = counts.groupBy(F.substring(EXACT_KEY, 1, PREFIX_DIGITS).alias("prefix")).agg(F.count("*").alias("keys"))
    before = Window.orderBy("prefix").rowsBetween(Window.unboundedPreceding, -1)
    offsets = counts.select("prefix", F.coalesce(F.sum("keys").over(before), F.lit(0)).alias("offset"))
    within = F.row_number().over(Window.partitionBy("prefix").orderBy(EXACT_KEY)) - 1
    in_search = F.lit(True) if config.route == "representative" else F.col("group_size") == 1
    numbered = groups.join(F.broadcast(offsets), "prefix", how="inner").select(
        (F.col("offset") + within).cast("bigint").alias(REP_ID),
        EXACT_KEY,
        F.col(f"first.{RECORD_ID}").alias(RECORD_ID),
        F.col("first.text").alias("text"),
        "group_size",
        in_search.alias("in_search"),
    )
    return REPRESENTATIVES.conform(numbered)


def assign_members(records: DataFrame, representatives: DataFrame) -> DataFrame:
    """Say which representative stands for each record.

    Args:
        records: RECORDS.
        representatives: REPRESENTATIVES of the same records.

    Returns:
        MEMBERS: every record once; rep_id is null where there is no text.
    """
    reps = representatives.select(EXACT_KEY, REP_ID)
    return MEMBERS.conform(records.select(RECORD_ID, EXACT_KEY).join(reps, EXACT_KEY, how="left"))
