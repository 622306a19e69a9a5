"""Where the tables live: a catalog schema or a folder. The only file that knows Delta."""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from spark_dedup import schema
from spark_dedup.config import absolute, looks_like_path
from spark_dedup.errors import StoreError, first_line
from spark_dedup.manifest import StageRecord
from spark_dedup.schema import RUNS, Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession


@dataclass(frozen=True)
class Written:
    """What one commit wrote, from Delta's own commit metrics."""

    rows: int
    bytes: int


@dataclass(frozen=True)
class TableStore:
    """The tables of one store.

    Args:
        spark: Session to read and write with.
        where: A catalog schema (`main.kb_dedup`) or a folder (anything with a slash).
    """

    spark: SparkSession
    where: str

    @property
    def is_folder(self) -> bool:
        """Whether the tables are folders; else they are names in a catalog schema."""
        return looks_like_path(self.where)

    def location(self, table: Table) -> str:
        """Path or back-ticked name of one table, as SQL and people write it."""
        if self.is_folder:
            return f"{absolute(self.where).rstrip('/')}/{table.name}"
        return ".".join(quoted(part) for part in [*name_parts(self.where), table.name])

    def identifier(self, table: Table) -> str:
        """The table as a SQL identifier."""
        location = self.location(table)
        return f"delta.{quoted(location)}" if self.is_folder else location

    def prepare(self) -> None:
        """Make the schema if the store is one and it is not there.

        Raises:
            StoreError: If it can not be made.
        """
        if self.is_folder:
            return
        name = ".".join(quoted(part) for part in name_parts(self.where))
        try:
            self.spark.sql(f"CREATE SCHEMA IF NOT EXISTS {name}")
        except Exception as e:
            raise StoreError(
                f"the schema {name} does not exist and can not be made: {first_line(e)}",
                hint="set `store` to a schema in which you may create tables, or to a folder",
            ) from e

    def exists(self, table: Table) -> bool:
        """Whether the table has been written."""
        if not self.is_folder:
            return bool(self.spark.catalog.tableExists(self.location(table)))
        try:
            self.spark.read.format("delta").load(self.location(table))
        except Exception as e:
            if is_missing_table(e):
                return False
            raise
        return True

    def read(self, table: Table) -> DataFrame:
        """The newest version of a table.

        Raises:
            StoreError: If it has not been written.
        """
        try:
            if self.is_folder:
                return self.spark.read.format("delta").load(self.location(table))
            return self.spark.table(self.location(table))
        except Exception as e:
            if not is_missing_table(e):
                raise
            raise StoreError(f"the store {self.where} has no table {table.name}", hint="run `spark-dedup run` on this store first") from e

    def write(self, table: Table, df: DataFrame, lineage: dict[str, Any], *, append: bool = False) -> Written:
        """Write a table in one commit: all of it, or nothing.

        Args:
            table: Which one; its columns are checked before anything runs.
            df: Rows; columns beyond the declared ones are refused by `conform` of the caller.
            lineage: Run id, stage and fingerprint, kept in the commit's user metadata.
            append: Add rows instead of replacing the table.
        """
        self._commit(table, df, lineage, append)
        found = self._newest_commit(table)["operationMetrics"] or {}
        return Written(rows=int(found.get("numOutputRows", 0)), bytes=int(found.get("numOutputBytes", 0)))

    def _commit(self, table: Table, df: DataFrame, lineage: dict[str, Any], append: bool) -> None:
        writer = df.write.format("delta").option("userMetadata", json.dumps(lineage))
        location = self.location(table)
        if self.is_folder:
            # A new table is appended to as well: "overwrite" would first list the files that are to go.
            if append or not self.exists(table):
                writer.mode("append").save(location)
            else:
                writer.mode("overwrite").option("overwriteSchema", "true").save(location)
        else:
            # Not one saveAsTable: it loses the observations of the frame, and Delta 3.3 can not replace a table on the newest Spark 3.5.
            exists = self.exists(table)
            if exists and not append and self.spark.table(location).dtypes != df.dtypes:
                self.spark.sql(f"DROP TABLE {location}")
                exists = False
            if not exists:
                self.spark.createDataFrame([], df.schema).write.format("delta").saveAsTable(location)
            writer.mode("append" if append else "overwrite").insertInto(location)

    def _newest_commit(self, table: Table) -> Row:
        # Collected as it is: a column picked from it would cost another Spark job.
        return self.spark.sql(f"DESCRIBE HISTORY {self.identifier(table)} LIMIT 1").collect()[0]

    def record(self, run: dict[str, Any], stages: Iterable[StageRecord]) -> None:
        """Append finished stages to the `runs` table, in one commit.

        Args:
            run: run_id, source, source_version and settings (JSON), the same for all rows of a run.
            stages: What to append.
        """
        rows = []
        for s in stages:
            own = {
                "stage": s.stage,
                "fingerprint": s.fingerprint,
                "rows_in": s.rows_in,
                "rows_out": s.rows_out,
                "caps_hit": s.caps_hit,
                "counts": s.counts,
                "notes": s.notes,
                "bytes": s.bytes,
                "seconds": round(s.seconds, 3),
                "status": s.status,
                "finished_at": s.finished_at,
            }
            rows.append(tuple({**run, **own}[name] for name in RUNS.names))
        self._commit(RUNS, self.spark.createDataFrame(rows, RUNS.ddl()).coalesce(1), {"run_id": run["run_id"]}, append=True)

    def last_run(self) -> list[Row]:
        """Rows of the newest run, the newest row of each stage, oldest first; empty for an empty store.

        Raises:
            StoreError: If the `runs` table was written by another layout of this package.
        """
        if not self.exists(RUNS):
            return []
        runs = self.read(RUNS)
        missing = [c for c in RUNS.names if c not in runs.columns]
        if missing:
            raise StoreError(
                f"the store {self.where} was written by another version of spark_dedup: its table runs has no {', '.join(missing)}",
                hint="set `store` to another schema or folder, or remove this one",
            )
        newest = runs.select(F.max(schema.RUN_ID)).first()
        rows = runs.where(F.col(schema.RUN_ID) == newest[0]).orderBy("finished_at").collect() if newest else []
        latest = {row["stage"]: row for row in rows}
        return sorted(latest.values(), key=lambda row: row["finished_at"])


def stage_of(row: Row, *, reused: bool = False) -> StageRecord:
    """A row of `runs` as a stage record."""
    return StageRecord(
        stage=row["stage"],
        fingerprint=row["fingerprint"],
        rows_in=row["rows_in"],
        rows_out=row["rows_out"],
        counts=dict(row["counts"] or {}),
        caps_hit=dict(row["caps_hit"] or {}),
        notes=dict(row["notes"] or {}),
        bytes=row["bytes"] or 0,
        seconds=row["seconds"] or 0.0,
        status=row["status"],
        finished_at=row["finished_at"].astimezone(datetime.timezone.utc),  # collected without zone, in that of the process
        reused=reused,
    )


def quoted(part: str) -> str:
    """One part of a name in back-ticks."""
    return "`" + part.replace("`", "``") + "`"


def name_parts(name: str) -> list[str]:
    """Split a catalog name at dots outside back-ticks: ``a.`b.c` `` gives a and b.c.

    Raises:
        StoreError: If the name is not one to three parts.
    """
    parts = re.findall(r"`((?:[^`]|``)*)`|([^.`]+)", name)
    names = [ticked.replace("``", "`") if ticked else plain for ticked, plain in parts]
    if not 1 <= len(names) <= 3 or ".".join(quoted(n) if f"`{n.replace('`', '``')}`" in name else n for n in names) != name:
        raise StoreError(
            f"not a catalog name of one to three parts: {name!r}",
            hint="write parts with dots or blanks in back-ticks, or give a path and its format",
        )
    return names


def is_missing_table(error: Exception) -> bool:
    """Whether Spark says that there is no Delta table at a path."""
    text = str(error)
    return any(
        word in text
        for word in (
            "DELTA_TABLE_NOT_FOUND",
            "TABLE_OR_VIEW_NOT_FOUND",
            "is not a Delta table",
            "PATH_NOT_FOUND",
            "DELTA_MISSING_DELTA_TABLE",
        )
    )
