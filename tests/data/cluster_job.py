"""Runs on a standalone cluster, and reports which processes map which index file: `cluster_job.py MASTER JARS CONFIG`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from spark_dedup import load_config, run
from spark_dedup.session import BRIEF


def mapped_files() -> dict[str, list[int]]:
    """Index files that Python workers of this machine have mapped into memory, with the processes that map them."""
    found: dict[str, list[int]] = {}
    for maps in Path("/proc").glob("[0-9]*/maps"):
        try:
            lines = maps.read_text().splitlines()
        except OSError:
            continue  # the process ended, or belongs to somebody else
        for path in {line.split(maxsplit=5)[-1] for line in lines if "spark_dedup-" in line and "/work/" in line}:
            found.setdefault(path, []).append(int(maps.parent.name))
    return found


def settings(spark: SparkSession) -> dict[str, str]:
    """Every setting of the context and of the session."""
    session = {row["key"]: row["value"] for row in spark.sql("SET").collect()}
    session.pop("spark.databricks.delta.lastCommitVersionInSession", None)  # Delta's own memory, written by every commit
    return {**dict(spark.sparkContext.getConf().getAll()), **session}


def main() -> None:
    """Run the job and print what is asked for as the last line."""
    master, jars, config = sys.argv[1:]
    builder = SparkSession.builder.master(master).appName("cluster test")
    confs = {
        "spark.jars": jars,
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.executor.extraJavaOptions": BRIEF,
        "spark.executor.cores": "2",
        "spark.executor.memory": "768m",
        "spark.sql.shuffle.partitions": "4",
        "spark.databricks.delta.snapshotPartitions": "2",
    }
    for key, value in confs.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    before = settings(spark)
    manifest = run(load_config(config), spark)
    executors = spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() - 1
    sys.stdout.write(
        json.dumps(
            {
                "mapped": mapped_files(),
                "executors": executors,
                "engine": manifest.stage("components").notes["engine"],
                "placement": manifest.stage("candidates").notes["placement"],
                "recall": manifest.recall,
                "changed_confs": sorted(set(settings(spark).items()) ^ set(before.items())),
            }
        )
    )
    spark.stop()


if __name__ == "__main__":
    main()
