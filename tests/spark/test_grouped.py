"""Groups land where they are sent, on a real Spark."""

from __future__ import annotations

import numpy as np
import pytest
from pyspark.sql import functions as F

from spark_dedup.grouped import group_runs, murmur3, spread


def test_murmur3_is_the_hash_function_of_spark(spark):
    keys = [*range(-500, 500), 2**31 - 1, -(2**31)]
    rows = spark.createDataFrame([(k,) for k in keys], "k int").select("k", F.hash("k").alias("h")).collect()
    assert [r.h for r in rows] == murmur3(np.array([r.k for r in rows], dtype=np.int32)).tolist()


@pytest.mark.parametrize(("groups", "partitions"), [(1, 1), (6, 6), (3, 7), (20, 7)])
@pytest.mark.parametrize("kind", ["int", "bigint"])
def test_every_group_lies_in_its_own_partition(spark, groups, partitions, kind):
    df = spark.range(0, 5 * groups, 1, 3).select("id", (F.col("id") % groups).cast(kind).alias("g"))
    placed = spread(df, F.col("g"), groups, partitions).select("id", "g", F.spark_partition_id().alias("p"))
    rows = placed.collect()
    assert placed.columns == ["id", "g", "p"]
    assert placed.rdd.getNumPartitions() == partitions
    assert sorted(r.id for r in rows) == list(range(5 * groups))
    assert {(r.g, r.p) for r in rows} == {(g, g % partitions) for g in range(groups)}


def test_sorted_partitions_are_cut_into_whole_groups(spark, spark_conf):
    spark_conf("spark.sql.execution.arrow.maxRecordsPerBatch", "3")  # groups of 10 rows lie across batches

    def count(batches):
        import pyarrow as pa

        for key, pieces in group_runs(batches, "g"):
            sizes = [p.num_rows for p in pieces]
            yield pa.RecordBatch.from_pydict({"g": [key], "rows": [sum(sizes)], "pieces": [len(sizes)]})

    df = spark.range(0, 200, 1, 4).select((F.col("id") % 20).alias("g"))
    rows = spread(df, F.col("g"), 20, 7).sortWithinPartitions("g").mapInArrow(count, "g long, rows long, pieces long").collect()
    assert sorted((r.g, r.rows) for r in rows) == [(g, 10) for g in range(20)]
    assert all(r.pieces >= 4 for r in rows)
