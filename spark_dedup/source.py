"""Reading the source: a catalog table, a Delta or Parquet path, or JSON lines."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import functions as F

from spark_dedup.config import DedupConfig, KeepConfig, SourceConfig, absolute
from spark_dedup.errors import ConfigError, SourceError, first_line
from spark_dedup.schema import CENTROID_SIMILARITY, ID_TYPES, RECORD_ID
from spark_dedup.store import name_parts, quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


@dataclass(frozen=True)
class Source:
    """What a run reads.

    Attributes:
        records: record_id, text, keep (struct k1, k2, ...) and, for stored vectors, embedding; not yet read.
        by_centroid: Values of `keep` that the cells of the search decide, from 1 on: an expression over `centroid_similarity`, and
            whether the larger comes first. They are null in `records`.
        version: Delta version that was pinned; None for other formats.
        state: Changes whenever the content may have changed.
    """

    records: DataFrame
    by_centroid: Mapping[int, tuple[str, bool]]
    version: int | None
    state: str


def open_source(spark: SparkSession, config: DedupConfig) -> Source:
    """Find the source, pin its version, pick the columns, and refuse what can not be read.

    Raises:
        SourceError: No such table, column or version; an id column of a type that can not be an id.
        ConfigError: An expression of `keep.order_by` that Spark can not resolve, or that needs cells which the engine has not.
    """
    table, version = load(spark, config.source)
    record_id = pick(table, config.source.id, "source.id")
    text = pick(table, config.source.text, "source.text")
    id_type = table.select(record_id.alias(RECORD_ID)).schema[0].dataType.simpleString()
    if id_type not in ID_TYPES:
        raise SourceError(
            f"source.id must be a column of type {', '.join(ID_TYPES)}, got {config.source.id} of type {id_type}",
            hint=f"source.id: cast({config.source.id} as string)",
        )
    text_type = table.select(text.alias("text")).schema[0].dataType.simpleString()
    if text_type != "string":
        raise SourceError(
            f"source.text must be of type string, got {config.source.text} of type {text_type}",
            hint=f"source.text: cast({config.source.text} as string)",
        )
    named = table.withColumn(RECORD_ID, record_id).withColumn("text", text)
    keep, by_centroid = keep_values(named, config.keep)
    if by_centroid and config.search.engine not in CELL_ENGINES:
        raise ConfigError(
            [f"keep.order_by uses {CENTROID_SIMILARITY}, which engines of cells have, got search.engine {config.search.engine!r}"],
            hint=f"search.engine: {' or '.join(CELL_ENGINES)}",
        )
    columns = [F.col(RECORD_ID), F.col("text"), keep.alias("keep")]
    if config.embed.encoder == "column" and config.embed.column:
        vector = pick(table, config.embed.column, "embed.column")
        kind = table.select(vector.alias("v")).schema[0].dataType.simpleString()
        if kind not in ("array<float>", "array<double>"):
            raise SourceError(f"embed.column must be of type array<float> or array<double>, got {config.embed.column} of type {kind}")
        columns.append(F.transform(vector, lambda x: x.cast("double")).alias("embedding"))
    records = named.select(*columns)
    state = f"version {version}" if version is not None else content_hash(records)
    return Source(records=records, by_centroid=by_centroid, version=version, state=state)


def load(spark: SparkSession, config: SourceConfig) -> tuple[DataFrame, int | None]:
    """The source as a DataFrame, pinned to one version where it is Delta."""
    try:
        if config.format == "table":
            return load_table(spark, config)
        path = absolute(config.table)
        if config.format == "delta":
            version = config.version if config.version is not None else newest_version(spark, f"delta.{quoted(path)}")
            return spark.read.format("delta").option("versionAsOf", version).load(path), version
        return spark.read.format(config.format).load(path), None
    except SourceError:
        raise
    except Exception as e:
        # Some of Delta's refusals come as errors of the bridge to Java, which is not there behind Spark Connect.
        if not isinstance(e, PySparkException) and type(e).__name__ != "Py4JJavaError":
            raise
        raise SourceError(
            f"the source {config.table} can not be read as {config.format}: {first_line(e)}",
            hint="check source.table, source.format (table, delta, parquet, json) and source.version",
        ) from e


def load_table(spark: SparkSession, config: SourceConfig) -> tuple[DataFrame, int | None]:
    """A catalog table or view; Delta tables are pinned to a version."""
    name = ".".join(quoted(part) for part in name_parts(config.table))
    if not spark.catalog.tableExists(name):
        raise SourceError(
            f"the catalog has no table {config.table}", hint="write the whole name, such as main.kb.chunks, or give a path and its format"
        )
    try:
        detail = spark.sql(f"DESCRIBE DETAIL {name}").select("format").first()
        is_delta = detail is not None and detail[0] == "delta"
    except AnalysisException:
        is_delta = False  # views and tables of other formats have no detail
    if not is_delta:
        if config.version is not None:
            raise SourceError(f"source.version needs a Delta table, and {config.table} is none")
        return spark.table(name), None
    version = config.version if config.version is not None else newest_version(spark, name)
    return spark.sql(f"SELECT * FROM {name} VERSION AS OF {version}"), version


def newest_version(spark: SparkSession, identifier: str) -> int:
    """The newest version of a Delta table."""
    rows = spark.sql(f"DESCRIBE HISTORY {identifier} LIMIT 1").collect()
    if not rows:
        raise SourceError(f"{identifier} has no history and can not be pinned to a version")
    return int(rows[0]["version"])


def pick(table: DataFrame, wanted: str, setting: str) -> Column:
    """A column by its exact name, else a SQL expression; an exact name wins over a struct path.

    Raises:
        SourceError: If it is neither.
    """
    if wanted in table.columns:
        return F.col(quoted(wanted))
    try:
        column = F.expr(wanted)
        table.select(column).schema  # noqa: B018 - resolves the expression
    except AnalysisException as e:
        near = difflib.get_close_matches(wanted, table.columns, n=1)
        also = f"; did you mean {near[0]!r}?" if near else ""
        raise SourceError(
            f"{setting} is neither a column nor an expression over the columns: {wanted!r}{also}",
            hint=f"the columns are {', '.join(table.columns)}",
        ) from e
    return column


ORDER = re.compile(r"^(?P<expr>.*?)(?:\s+(?P<way>asc|desc))?$", re.IGNORECASE | re.DOTALL)


CELL_ENGINES = ("cells", "semdedup")
"""Engines whose cells the keep policy can ask for."""


def keep_values(named: DataFrame, config: KeepConfig) -> tuple[Column, dict[int, tuple[str, bool]]]:
    """The keep policy's expressions on the source's own columns.

    Returns:
        Struct k1, k2, ...; and `Source.by_centroid`.

    Raises:
        ConfigError: Naming the expression that can not be resolved, or whose type has no order.
    """
    values, by_centroid = [], {}
    cells = named.sparkSession.createDataFrame([], f"`{CENTROID_SIMILARITY}` double")
    for i, order in enumerate(config.order_by, start=1):
        expression, descending = split_order(order)
        problem, column = why_unusable(named, expression), F.expr(expression)
        if problem and why_unusable(cells, expression) is None:
            by_centroid[i], column = (expression, descending), F.lit(None).cast("double")
        elif problem:
            raise ConfigError(
                [f"keep.order_by has an expression that can not be used: {order!r}: {problem}"],
                hint=f"the columns are {', '.join(named.columns)}; an expression over {CENTROID_SIMILARITY} can use no other column",
            )
        values.append(column.alias(f"k{i}"))
    return F.struct(*values), by_centroid


def why_unusable(rows: DataFrame, expression: str) -> str | None:
    """Why rows can not be ordered by an expression; None where they can."""
    try:
        rows.select(F.expr(expression).alias("k")).orderBy("k").schema  # noqa: B018 - resolves the expression and its order
    except AnalysisException as e:
        return first_line(e)
    return None


def split_order(order: str) -> tuple[str, bool]:
    """`length(text) desc` as its expression and whether it descends."""
    match = ORDER.match(order.strip())
    expression, way = (match["expr"], match["way"]) if match else (order, None)
    return expression.strip(), (way or "asc").lower() == "desc"


def content_hash(records: DataFrame) -> str:
    """A hash of all rows, whatever their order, for sources that have no versions. Reads the source once."""
    row = (
        records.select(F.xxhash64(*records.columns).alias("h"))
        .agg(F.count("*"), F.bit_xor("h"), F.sum(F.col("h").cast("decimal(38,0)")))
        .first()
    )
    return f"content {row[0]}:{row[1]}:{row[2]}" if row else "content 0"


def check_ids(records: DataFrame, examples: int = 10) -> None:
    """Refuse ids that are null or repeat.

    Args:
        records: RECORDS as written; only the id column is read.
        examples: How many ids the message shows.

    Raises:
        SourceError: "4 rows share 2 ids; 1 null id", with examples and the ways out.
    """
    repeated = records.groupBy(RECORD_ID).agg(F.count("*").alias("rows")).where(F.col(RECORD_ID).isNull() | (F.col("rows") > 1))
    known = F.col(RECORD_ID).isNotNull()
    total = repeated.agg(F.sum(F.when(known, F.col("rows"))), F.count(F.when(known, 1)), F.sum(F.when(~known, F.col("rows")))).first()
    rows, ids, nulls = (total[0] or 0, total[1] or 0, total[2] or 0) if total else (0, 0, 0)
    if not ids and not nulls:
        return
    problems = []
    if ids:
        shown = [str(r[0]) for r in repeated.where(known).orderBy(RECORD_ID).select(RECORD_ID).limit(examples).collect()]
        problems.append(f"{rows} rows share {ids} id{'s' * (ids != 1)} ({', '.join(shown)}{', ...' if ids > len(shown) else ''})")
    if nulls:
        problems.append(f"{nulls} null id{'s' * (nulls != 1)}")
    raise SourceError(
        "; ".join(problems),
        hint="choose another source.id, or set source.duplicate_ids: drop_equal to keep one of several rows with equal id and text",
    )
