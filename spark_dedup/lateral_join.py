"""The self-join in SQL: vectors in a table of Postgres, an HNSW index on them, and a lateral sub-query that asks it for every vector.

Three tables for each store: the vectors, the pairs found so far, and the batches that are finished. A batch puts its pairs and itself
on record in one transaction, so whatever breaks, a later call goes on behind the last finished batch. What a table was made for is its
comment, set in the transaction that makes it: a table with another comment is made anew.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from spark_dedup.config import SearchConfig
from spark_dedup.errors import ConfigError, EnvironmentProblem
from spark_dedup.kernels.pgcopy import HEADER, PAIR, TRAILER, pair_rows
from spark_dedup.postgres import MOST_DIMENSIONS, Login, Server, connect, postgres_errors
from spark_dedup.settings import fingerprint

if TYPE_CHECKING:
    from psycopg.sql import Composable, Composed

    from spark_dedup.postgres import Connection

MOST_EF = 1000
"""Largest `hnsw.ef_search`."""

SLACK = {"vector": 2e-4, "halfvec": 1.2e-3}
"""Pairs this much under the floor are still fetched, and refused once their cosine is recomputed. A float32 sum of 2,000 products is off
by at most 2,000 * 2**-24; rounding both vectors to float16 moves a cosine by at most 2 * 2**-11, and 4,000 products sum up as above."""

READ_ROWS = 1 << 20
"""Pairs that come back at once: 16 MiB."""


@dataclass(frozen=True)
class Work:
    """The tables of one store.

    Attributes:
        schema: `pgvector.schema`.
        tag: Stands for the store in the names.
    """

    schema: str
    tag: str

    @classmethod
    def of(cls, schema: str, store: str) -> Work:
        """The tables that belong to a store."""
        return cls(schema, hashlib.sha256(store.encode()).hexdigest()[:12])

    def name(self, which: str) -> Composable:
        """`vectors`, `pairs`, `batches`, or the index `hnsw`, as an identifier."""
        from psycopg.sql import Identifier

        return Identifier(self.schema, f"{which}_{self.tag}")


@dataclass(frozen=True)
class Asked:
    """Counts of a finished search.

    Attributes:
        batches: All of them.
        reused: Those that an earlier call had finished.
        reconnected: Connections that were lost and made again.
        asked_again: Lists that were full above the floor at first.
        saturated: Lists that `search.max_neighbours` cut.
    """

    batches: int
    reused: int
    reconnected: int
    asked_again: int
    saturated: int


@dataclass(frozen=True)
class LateralJoin:
    """One store's self-join on one server.

    Attributes:
        login: How to reach the server.
        server: What it can do.
        work: The tables.
        made_for: What the vectors belong to: the same text means the same vectors.
    """

    login: Login
    server: Server
    work: Work
    made_for: str

    def sql(self, text: str, **parts: Any) -> Composed:
        """A statement: `{vectors}`, `{pairs}`, `{batches}` and `{hnsw}` are the tables and the index, other names are literals or SQL."""
        from psycopg.sql import SQL, Composable, Literal

        names = {which: self.work.name(which) for which in ("vectors", "pairs", "batches", "hnsw") if f"{{{which}}}" in text}
        told = {key: part if isinstance(part, Composable) else Literal(part) for key, part in parts.items()}
        return SQL(text).format(**names, **told)

    def comment(self, connection: Connection, which: str) -> str | None:
        """What a table was made for; None where it is not there."""
        name = self.work.name(which).as_string(connection)
        row = connection.execute("SELECT obj_description(to_regclass(%s), 'pg_class')", [name]).fetchone()
        return row[0] if row else None

    def is_loaded(self, connection: Connection) -> bool:
        """Whether the vectors are there."""
        with postgres_errors(self.login, "looking for vectors", connection):
            return self.comment(connection, "vectors") == self.made_for

    def load(self, connection: Connection, dimension: int, blocks: Iterable[bytes]) -> None:
        """Make the table of vectors from COPY rows, all or nothing.

        Raises:
            ConfigError: If the vectors have more dimensions than the index takes.
        """
        check_dimension(dimension, self.login.config.type)
        with postgres_errors(self.login, "loading the vectors", connection), connection.transaction():
            self._new_vectors(connection, dimension)
            with connection.cursor().copy(self.sql("COPY {vectors} FROM STDIN (FORMAT BINARY)")) as copy:
                copy.write(HEADER)
                for block in blocks:
                    copy.write(block)
                copy.write(TRAILER)
            self._seal(connection)

    def load_from_table(self, connection: Connection, records: Iterable[tuple[int, str]]) -> None:
        """Make the table of vectors from `pgvector.table`, all or nothing.

        Args:
            connection: To use.
            records: Id of each vector, and the id that its row has in that table, as text.

        Raises:
            ConfigError: If the table or a column is not there, an id repeats, or vectors are of several or too many dimensions.
        """
        from psycopg.sql import SQL, Identifier

        c = self.login.config
        parts = {
            "source": Identifier(*(c.table or "").split(".")),
            "id": Identifier(c.id_column),
            "vector": Identifier(c.vector_column),
            "type": SQL(c.type),
        }
        with postgres_errors(self.login, f"reading vectors from {c.table}", connection), connection.transaction():
            first = connection.execute(
                self.sql("SELECT vector_dims({vector}::vector) FROM {source} WHERE {vector} IS NOT NULL LIMIT 1", **parts)
            ).fetchone()
            if first is None:
                raise ConfigError([f"pgvector.table {c.table} has no vector in {c.vector_column}"])
            check_dimension(first[0], c.type)
            self._new_vectors(connection, first[0])
            connection.execute("CREATE TEMPORARY TABLE wanted (id bigint, record text) ON COMMIT DROP")
            with connection.cursor().copy("COPY wanted FROM STDIN") as copy:
                for record in records:
                    copy.write_row(record)
            connection.execute(
                self.sql(
                    "INSERT INTO {vectors} SELECT w.id, s.{vector}::{type} FROM wanted w JOIN {source} s ON s.{id}::text = w.record "
                    "WHERE s.{vector} IS NOT NULL",
                    **parts,
                )
            )
            self._seal(connection)
            if not self.vectors(connection):
                raise ConfigError([f"no text of the run has a vector in pgvector.table {c.table}, whose ids are in {c.id_column}"])

    def _new_vectors(self, connection: Connection, dimension: int) -> None:
        from psycopg.sql import SQL, Identifier

        self.drop(connection)
        row = connection.execute("SELECT to_regnamespace(%s)", [Identifier(self.work.schema).as_string(connection)]).fetchone()
        if row is None or row[0] is None:  # IF NOT EXISTS asks for the right to make one even where it is there
            connection.execute(SQL("CREATE SCHEMA {}").format(Identifier(self.work.schema)))
        kind = SQL(f"{self.login.config.type}({int(dimension)})")
        connection.execute(self.sql("CREATE TABLE {vectors} (id bigint, embedding {kind})", kind=kind))
        # In the row, not beside it: every neighbour's distance would have to be fetched from elsewhere. A page holds the largest of them.
        connection.execute(self.sql("ALTER TABLE {vectors} ALTER COLUMN embedding SET STORAGE PLAIN"))

    def _seal(self, connection: Connection) -> None:
        connection.execute(self.sql("ALTER TABLE {vectors} ADD PRIMARY KEY (id)"))
        connection.execute(self.sql("COMMENT ON TABLE {vectors} IS {made_for}", made_for=self.made_for))
        connection.execute(self.sql("ANALYZE {vectors}"))

    def vectors(self, connection: Connection) -> int:
        """Vectors that are loaded."""
        with postgres_errors(self.login, "counting vectors", connection):
            row = connection.execute(self.sql("SELECT count(*) FROM {vectors}")).fetchone()
        return int(row[0]) if row else 0

    def build_index(self, connection: Connection, config: SearchConfig) -> tuple[int, tuple[str, ...]]:
        """Build the HNSW index unless it is there; gives its bytes, and what the server had to say about it."""
        c = self.login.config
        said: list[str] = []

        def note(notice: Any) -> None:
            said.append(notice.message_primary)

        connection.add_notice_handler(note)
        try:
            with postgres_errors(self.login, "building the index", connection), connection.transaction():
                if c.build_memory is not None:
                    connection.execute(self.sql("SET LOCAL maintenance_work_mem = {size}", size=c.build_memory.replace(" ", "")))
                if c.build_workers is not None:
                    connection.execute(self.sql("SET LOCAL max_parallel_maintenance_workers = {n}", n=c.build_workers))
                if not self.has_index(connection):
                    connection.execute(
                        self.sql(
                            f"CREATE INDEX {{index}} ON {{vectors}} USING hnsw (embedding {c.type}_cosine_ops) "
                            "WITH (m = {links}, ef_construction = {width})",
                            index=self.index_name,
                            links=config.links,
                            width=config.ef_construction,
                        )
                    )
                index = self.work.name("hnsw").as_string(connection)
                row = connection.execute("SELECT pg_relation_size(to_regclass(%s))", [index]).fetchone()
        finally:
            connection.remove_notice_handler(note)
        return int(row[0] or 0) if row else 0, tuple(dict.fromkeys(said))

    @property
    def index_name(self) -> Composable:
        """The index's name without its schema, as CREATE INDEX wants it."""
        from psycopg.sql import Identifier

        return Identifier(f"hnsw_{self.work.tag}")

    def has_index(self, connection: Connection) -> bool:
        """Whether the index on the vectors is there."""
        row = connection.execute("SELECT to_regclass(%s) IS NOT NULL", [self.work.name("hnsw").as_string(connection)]).fetchone()
        return bool(row and row[0])

    def ask(self, config: SearchConfig, told: Callable[[int, int], None] = lambda done, of: None) -> Asked:
        """Ask for the neighbours of every vector, batch by batch; the pairs stay in Postgres until `pairs` reads them.

        Args:
            config: Uses `neighbours`, `floor`, `ef_search` and `max_neighbours`.
            told: Called with the finished and all batches after each.

        Raises:
            EnvironmentProblem: If connections were lost more often than `pgvector.reconnects` allows, or the server is too old for
                `search.max_neighbours`. Finished batches are kept.
        """
        self._check_lists(config)
        with connect(self.login) as connection:
            firsts, done = self._open_batches(connection, config)
        bounds = list(zip(firsts, [*firsts[1:], None], strict=True))
        todo = iter([bound for bound in bounds if bound[0] not in done])
        lock, stop, counts = threading.Lock(), threading.Event(), {"done": len(done), "reconnected": 0}

        def work() -> None:
            """Batches over one connection until there are none left or another thread has failed."""
            own: Connection | None = None
            try:
                while not stop.is_set():
                    with lock:
                        bound = next(todo, None)
                    if bound is None:
                        return
                    for attempt in range(self.login.config.reconnects + 1):
                        try:
                            own = own or connect(self.login)
                            with postgres_errors(self.login, "asking for neighbours", own):
                                self._ask_batch(own, bound[0], bound[1], config)
                            break
                        except EnvironmentProblem:
                            if own is not None and not own.broken or attempt == self.login.config.reconnects:
                                raise
                            own = None
                            with lock:
                                counts["reconnected"] += 1
                            stop.wait(min(2.0**attempt, 30.0))
                    with lock:
                        counts["done"] += 1
                        told(counts["done"], len(bounds))
            except BaseException:
                stop.set()
                raise
            finally:
                if own is not None:
                    own.close()

        workers = max(1, min(self.login.config.connections, len(bounds) - len(done)))
        with ThreadPoolExecutor(workers, thread_name_prefix="pgvector") as pool:
            try:
                for future in [pool.submit(work) for _ in range(workers)]:
                    future.result()
            finally:
                stop.set()
        with connect(self.login) as connection, postgres_errors(self.login, "counting", connection):
            sums = "SELECT coalesce(sum(asked_again), 0)::bigint, coalesce(sum(saturated), 0)::bigint FROM {batches}"
            again, saturated = connection.execute(self.sql(sums)).fetchone() or (0, 0)
        return Asked(len(bounds), len(done), counts["reconnected"], again, saturated)

    def _check_lists(self, config: SearchConfig) -> None:
        if not self.server.iterative_scan and config.max_neighbours >= MOST_EF:
            raise EnvironmentProblem(
                f"search.max_neighbours {config.max_neighbours} needs pgvector 0.8 or newer; {self.server} finds at most {MOST_EF - 1}",
                hint=f"--set search.max_neighbours={MOST_EF - 1}, or ALTER EXTENSION vector UPDATE",
            )

    def _open_batches(self, connection: Connection, config: SearchConfig) -> tuple[list[int], set[int]]:
        """Where batches start, and which of them are finished; tables of another search are made anew."""
        c = self.login.config
        asking = (config.neighbours, config.max_neighbours, config.floor, config.ef_search, c.batch_rows)
        made_for = fingerprint(self.made_for, list(asking))
        with postgres_errors(self.login, "preparing the batches", connection), connection.transaction():
            if self.comment(connection, "batches") != made_for:
                connection.execute(self.sql("DROP TABLE IF EXISTS {pairs}"))
                connection.execute(self.sql("DROP TABLE IF EXISTS {batches}"))
                connection.execute(self.sql("CREATE TABLE {pairs} (left_id bigint NOT NULL, right_id bigint NOT NULL)"))
                connection.execute(self.sql("CREATE TABLE {batches} (first bigint PRIMARY KEY, asked_again bigint, saturated bigint)"))
                connection.execute(self.sql("COMMENT ON TABLE {batches} IS {made_for}", made_for=made_for))
            firsts = connection.execute(
                self.sql(
                    "SELECT id FROM (SELECT id, row_number() OVER (ORDER BY id) - 1 AS place FROM {vectors}) AS placed "
                    "WHERE place % {rows} = 0 ORDER BY id",
                    rows=c.batch_rows,
                )
            ).fetchall()
            done = connection.execute(self.sql("SELECT first FROM {batches}")).fetchall()
        return [row[0] for row in firsts], {row[0] for row in done}

    def _ask_batch(self, connection: Connection, first: int, end: int | None, config: SearchConfig) -> None:
        """Put the pairs of the vectors first .. end on record, with the batch itself."""
        from psycopg.sql import SQL

        with connection.transaction():
            claim = "INSERT INTO {batches} VALUES ({first}, 0, 0) ON CONFLICT DO NOTHING"
            if not connection.execute(self.sql(claim, first=first)).rowcount:
                return  # finished before the connection was lost, or by another run
            plan_by_index(connection)
            upper = self.sql(" AND q.id < {end}", end=end) if end is not None else SQL("")
            limit, again, saturated = config.neighbours, 0, 0
            asking: Composable = self.sql("q.id >= {first}{upper}", first=first, upper=upper)
            while True:
                last = limit >= config.max_neighbours
                full = self._ask_round(connection, asking, limit, config, keep_full=last)
                if last or not full:
                    saturated = len(full)
                    break
                again = again or len(full)
                limit, asking = min(4 * limit, config.max_neighbours), self.sql("q.id = ANY({full})", full=full)
            update = "UPDATE {batches} SET asked_again = {again}, saturated = {saturated} WHERE first = {first}"
            connection.execute(self.sql(update, again=again, saturated=saturated, first=first))

    def _ask_round(self, connection: Connection, asking: Composable, limit: int, config: SearchConfig, *, keep_full: bool) -> list[int]:
        """Ask once for lists of at most `limit`, put the pairs on record, and give the ids whose lists are full.

        Pairs of full lists are only put on record where nobody will ask again.
        """
        from psycopg.sql import SQL

        connection.execute(self.sql("SET LOCAL hnsw.ef_search = {width}", width=min(max(config.ef_search, limit + 1), MOST_EF)))
        if self.server.iterative_scan:
            connection.execute(SQL("SET LOCAL hnsw.iterative_scan = relaxed_order"))
            connection.execute(self.sql("SET LOCAL hnsw.max_scan_tuples = {most}", most=max(20_000, 20 * limit)))
        return [row[0] for row in connection.execute(self.round_sql(asking, limit, config, keep_full=keep_full)).fetchall()]

    def round_sql(self, asking: Composable, limit: int, config: SearchConfig, *, keep_full: bool) -> Composed:
        """The lateral join. Distances beyond any number, of vectors without a direction, are not `<=` and fall out."""
        from psycopg.sql import SQL

        return self.sql(
            """
            WITH near AS MATERIALIZED (
              SELECT q.id AS query, n.id AS other
              FROM {vectors} AS q
              CROSS JOIN LATERAL (
                SELECT b.id, b.embedding <=> q.embedding AS distance
                FROM {vectors} AS b
                WHERE b.id <> q.id
                ORDER BY b.embedding <=> q.embedding
                LIMIT {limit}
              ) AS n
              WHERE {asking} AND n.distance <= {farthest}
            ), complete AS MATERIALIZED (
              SELECT query FROM near GROUP BY query HAVING count(*) >= {limit}
            ), kept AS (
              INSERT INTO {pairs} SELECT least(query, other), greatest(query, other) FROM near {kept}
            )
            SELECT query FROM complete
            """,
            asking=asking,
            limit=limit,
            farthest=1.0 - config.floor + SLACK[self.login.config.type],
            kept=SQL("") if keep_full else SQL("WHERE query NOT IN (SELECT query FROM complete)"),
        )

    def pairs(self, connection: Connection) -> Iterator[NDArray[np.int64]]:
        """What was found so far: int64 (k, 2) of ids, smaller first, `READ_ROWS` at once; a pair may come twice."""
        with postgres_errors(self.login, "reading the pairs", connection), connection.cursor() as cursor:
            with cursor.copy(self.sql("COPY {pairs} TO STDOUT (FORMAT BINARY)")) as copy:
                held = bytearray()
                start = len(HEADER)
                for data in copy:
                    held += data
                    if len(held) - start >= READ_ROWS * PAIR.itemsize:
                        yield pair_rows(held[start : start + READ_ROWS * PAIR.itemsize])
                        held, start = held[start + READ_ROWS * PAIR.itemsize :], 0
            if len(held) - start > len(TRAILER):
                yield pair_rows(held[start : -len(TRAILER)])

    def forget_pairs(self, connection: Connection) -> None:
        """Drop pairs and batches, once they are stored elsewhere."""
        with postgres_errors(self.login, "dropping the pairs", connection), connection.transaction():
            connection.execute(self.sql("DROP TABLE IF EXISTS {pairs}"))
            connection.execute(self.sql("DROP TABLE IF EXISTS {batches}"))

    def drop(self, connection: Connection) -> None:
        """Drop everything of this store."""
        with postgres_errors(self.login, "dropping the tables", connection), connection.transaction():
            for which in ("pairs", "batches", "vectors"):
                connection.execute(self.sql("DROP TABLE IF EXISTS {" + which + "}"))


def plan_by_index(connection: Connection) -> None:
    """For this transaction, have the index asked whatever the planner thinks: a plan that sorts compares all pairs."""
    from psycopg.sql import SQL

    for name in ("enable_seqscan", "enable_sort", "jit"):
        connection.execute(SQL("SET LOCAL " + name + " = off"))


def check_dimension(dimension: int, kind: str) -> None:
    """Refuse vectors that pgvector's HNSW can not index.

    Raises:
        ConfigError: With the limits.
    """
    if dimension <= MOST_DIMENSIONS[kind]:
        return
    limits = ", ".join(f"{most:,} for {name}" for name, most in MOST_DIMENSIONS.items())
    if dimension <= MOST_DIMENSIONS["halfvec"]:
        hint = "--set pgvector.type=halfvec"
    else:
        hint = "set search.engine to cells, which has no such limit, or take an encoder with fewer dimensions"
    problem = f"an HNSW index of pgvector takes at most so many dimensions: {limits}; pgvector.type is {kind}, got {dimension:,}"
    raise ConfigError([problem], hint=hint)
