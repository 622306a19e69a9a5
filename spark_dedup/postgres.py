"""Postgres with pgvector: logging in, what the server can do, and its errors in our words.

Only the driver connects. A password comes from the environment (PGPASSWORD, PGPASSFILE, a service), which libpq reads by itself, or
from a secret scope; it is in no setting, and taken out of every message.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from spark_dedup.config import PgvectorConfig
from spark_dedup.errors import ConfigError, EnvironmentProblem, SparkDedupError, first_line

if TYPE_CHECKING:
    import psycopg
    from pyspark.sql import SparkSession

    Connection = psycopg.Connection[tuple[Any, ...]]

MOST_DIMENSIONS = {"vector": 2000, "halfvec": 4000}
"""What an HNSW index of pgvector takes."""

LEAST_PGVECTOR = {"vector": (0, 5, 0), "halfvec": (0, 7, 0)}
"""First versions with an HNSW index of each type."""

ITERATIVE_SCAN = (0, 8, 0)
"""First version of pgvector that goes on searching where `hnsw.ef_search` was not enough."""


UNFIT = ("42P01", "42703", "42809", "42846")
"""No such table, no such column, no table, no conversion; with those that start with 22, data that do not fit. Source: PostgreSQL manual,
Error Codes, as for the codes below."""


@dataclass(frozen=True)
class Login:
    """How to reach the server.

    Attributes:
        config: The settings.
        password: From a secret scope; None leaves it to libpq's own ways.
    """

    config: PgvectorConfig
    password: str | None = field(default=None, repr=False)

    def scrubbed(self, text: str) -> str:
        """A text without any password that is known here."""
        for secret in filter(None, (self.password, os.environ.get("PGPASSWORD"))):
            text = text.replace(secret, "***")
        return text


@dataclass(frozen=True)
class Server:
    """What a server can do.

    Attributes:
        postgres: Its version.
        pgvector: Version of its extension, as (0, 8, 0).
    """

    postgres: str
    pgvector: tuple[int, ...]

    @property
    def iterative_scan(self) -> bool:
        """Whether a search goes on until its list is full."""
        return self.pgvector >= ITERATIVE_SCAN

    def __str__(self) -> str:
        return f"Postgres {self.postgres}, pgvector {'.'.join(map(str, self.pgvector))}"


def log_in(config: PgvectorConfig, spark: SparkSession | None = None) -> Login:
    """The log-in of these settings, with the password of the secret scope where one is named.

    Args:
        config: The settings.
        spark: Session of a Databricks cluster, for `pgvector.secret`.

    Raises:
        EnvironmentProblem: If the secret can not be read.
    """
    return Login(config, secret(spark, config.secret) if config.secret else None)


def secret(spark: SparkSession | None, name: str) -> str:
    """A secret of Databricks.

    Args:
        spark: Session of a Databricks cluster.
        name: `scope/key`.

    Raises:
        EnvironmentProblem: If this is no Databricks cluster, or the secret is not there.
    """
    scope, _, key = name.partition("/")
    try:
        from pyspark.dbutils import DBUtils  # only Databricks' own PySpark has it
    except ImportError:
        raise EnvironmentProblem(
            "pgvector.secret names a Databricks secret, and this is no Databricks cluster",
            hint="leave it out and put the password into PGPASSWORD, a file named by PGPASSFILE, or a service",
        ) from None
    try:
        return str(DBUtils(spark).secrets.get(scope=scope, key=key))
    except Exception as e:  # of the Java side, of whichever class
        raise EnvironmentProblem(
            f"the Databricks secret {name} can not be read: {first_line(e)}", hint="databricks secrets list-secrets SCOPE"
        ) from None


def driver() -> Any:
    """The module psycopg.

    Raises:
        EnvironmentProblem: If it is not installed.
    """
    try:
        import psycopg
    except ImportError as e:  # no package, or one without libpq
        raise EnvironmentProblem(
            f"search.engine pgvector needs psycopg, which can not be loaded: {first_line(e)}", hint="pip install 'spark-dedup[pgvector]'"
        ) from None
    return psycopg


def connect(login: Login) -> Connection:
    """A connection that commits every statement outside a transaction, and finds the types of pgvector in whichever schema they are.

    Raises:
        EnvironmentProblem: If the server does not answer, refuses the log-in, or has no pgvector.
    """
    psycopg, c = driver(), login.config
    given = {"host": c.host, "port": c.port, "dbname": c.database, "user": c.user, "password": login.password}
    given = {key: value for key, value in given.items() if value is not None}
    try:
        connection: Connection = psycopg.connect(
            c.dsn or "",
            **given,
            connect_timeout=c.connect_timeout,
            keepalives_idle=60,  # while an index is built for hours nothing else is sent
            autocommit=True,
            prepare_threshold=None,
            fallback_application_name="spark_dedup",
        )
    except psycopg.ProgrammingError:  # libpq quotes what it can not read
        raise EnvironmentProblem(
            "pgvector.dsn is not a connection string of Postgres", hint="write host=... dbname=... user=..., or service=NAME, no password"
        ) from None
    except psycopg.Error as e:
        raise log_in_problem(login, e) from None
    try:
        with postgres_errors(login, "looking for the extension vector", connection):
            connection.execute("SET statement_timeout = 0")
            connection.execute(
                "SELECT set_config('search_path', concat_ws(', ', current_setting('search_path'), quote_ident(nspname)), false) "
                "FROM pg_extension JOIN pg_namespace ON pg_namespace.oid = extnamespace WHERE extname = 'vector'"
            )
    except SparkDedupError:
        connection.close()
        raise
    return connection


def log_in_problem(login: Login, error: Exception) -> EnvironmentProblem:
    """Why no connection came about: one line for each address that was tried."""
    text = login.scrubbed("; ".join(dict.fromkeys(line.strip() for line in str(error).splitlines() if line.strip())))
    if re.search(r"password|authentication|no pg_hba\.conf entry", text):
        hint = "put the password into PGPASSWORD, a file named by PGPASSFILE, a service, or pgvector.secret; pgvector.user names the role"
        return EnvironmentProblem(f"Postgres refuses the log-in: {text}", hint=hint)
    return EnvironmentProblem(
        f"no connection to Postgres: {text}", hint="see pgvector.host, port, database and user (or dsn), and whether the server runs"
    )


def server(connection: Connection, login: Login) -> Server:
    """What the server can do.

    Raises:
        EnvironmentProblem: If the database has no pgvector, or one that is too old for `pgvector.type`.
    """
    with postgres_errors(login, "looking for the extension vector", connection):
        found = connection.execute(
            "SELECT current_setting('server_version'), (SELECT extversion FROM pg_extension WHERE extname = 'vector'), "
            "current_database(), EXISTS (SELECT FROM pg_available_extensions WHERE name = 'vector')"
        ).fetchone()
    version, extension, database, installed = found or ("", None, "", False)
    if extension is None:
        there = "the server has it, the database does not" if installed else "the server does not have it"
        way = "CREATE EXTENSION vector, as a role that may" if installed else "install pgvector on the server, then CREATE EXTENSION vector"
        raise EnvironmentProblem(f"the database {database} has no extension vector: {there}", hint=way)
    can = Server(version.split()[0], tuple(int(part) for part in re.findall(r"\d+", extension)))
    least = LEAST_PGVECTOR[login.config.type]
    if can.pgvector < least:
        raise EnvironmentProblem(
            f"pgvector.type {login.config.type} needs pgvector {'.'.join(map(str, least))} or newer, the database has {extension}",
            hint="ALTER EXTENSION vector UPDATE, after the server's packages",
        )
    return can


@contextmanager
def postgres_errors(login: Login, doing: str, connection: Connection | None = None) -> Iterator[None]:
    """Say errors of Postgres in our words.

    Args:
        login: Whose passwords no message may show.
        doing: What is done inside, as `building the index`.
        connection: The one that is used inside, to know whether it was lost.

    Raises:
        EnvironmentProblem: What the server refuses or lacks, or that the connection was lost.
        ConfigError: A table or column of `pgvector.table` that is not there or does not fit.
    """
    psycopg = driver()
    try:
        yield
    except psycopg.Error as e:
        raise in_our_words(login, doing, e, lost=connection is not None and connection.broken) from None


def in_our_words(login: Login, doing: str, error: Any, *, lost: bool) -> SparkDedupError:
    """One error of Postgres as one of ours."""
    code = error.sqlstate or ""
    text = login.scrubbed(error.diag.message_primary or first_line(error))
    if lost:
        hint = "run again: what was finished is kept, nothing is half-written"
        return EnvironmentProblem(f"the connection to Postgres was lost while {doing}: {text}", hint=hint)
    if code in UNFIT or code.startswith("22"):
        return ConfigError([f"Postgres can not go on with {doing}: {text}"], hint="see pgvector.table, id_column and vector_column")
    if code == "23505":
        return ConfigError([f"an id stands more than once in pgvector.table: {text}"], hint="name a table with one row for each id")
    if code == "42501":
        return EnvironmentProblem(
            f"Postgres does not let the role do this ({doing}): {text}",
            hint="GRANT CREATE on the database or on pgvector.schema, and SELECT on pgvector.table, or log in as another role",
        )
    if code.startswith(("53", "54")):
        hint = "see pgvector.connections, build_memory and build_workers, and the room on the server's disk"
        return EnvironmentProblem(f"Postgres has no room for {doing}: {text}", hint=hint)
    return EnvironmentProblem(f"Postgres failed at {doing}: {text}", hint="the server's log says more; what was finished is kept")
