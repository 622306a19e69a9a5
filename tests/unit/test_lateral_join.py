"""The self-join in a real Postgres, without Spark: its pairs against brute force, restarts, refusals."""

from __future__ import annotations

import signal
import struct
import subprocess
import sys
import types

import numpy as np
import pytest
from pgvector_server import PASSWORD

from spark_dedup.config import PgvectorConfig, SearchConfig
from spark_dedup.config_file import load_config
from spark_dedup.errors import ConfigError, EnvironmentProblem
from spark_dedup.kernels.pgcopy import pair_rows, vector_rows
from spark_dedup.lateral_join import LateralJoin, Work, plan_by_index
from spark_dedup.postgres import Login, Server, connect, log_in, server

N, DIMENSION = 400, 16
IDS = np.arange(N, dtype=np.int64) * 7 + 3  # as ids of distinct vectors are: ascending, with gaps


def crowd(seed: int = 1) -> np.ndarray:
    """Groups whose members have cosines on both sides of 0.85."""
    rng = np.random.default_rng(seed)
    x = 3 * rng.normal(size=(40, DIMENSION))[rng.integers(0, 40, N)] + 0.9 * rng.normal(size=(N, DIMENSION))
    return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)


VECTORS = crowd()
COSINES = np.where(np.eye(N, dtype=bool), -1.0, VECTORS.astype(np.float64) @ VECTORS.T.astype(np.float64))


def pairs_above(floor: float) -> set[tuple[int, int]]:
    return {(int(IDS[i]), int(IDS[j])) for i, j in np.argwhere(np.triu(COSINES, 1) >= floor)}


SEARCH = SearchConfig(engine="pgvector", ef_search=1000)
"""A search as wide as the table: it walks through the whole graph."""


@pytest.fixture
def join_of(postgres):
    """Makes a join with its vectors loaded and indexed; what it leaves in Postgres is dropped."""
    made = []

    def make(vectors=VECTORS, kind="vector", tag="test", load=True, can=None, **settings):
        login = Login(PgvectorConfig(**postgres.settings(type=kind, batch_rows=64, **settings)))
        with connect(login) as connection:
            join = LateralJoin(login, can or server(connection, login), Work.of("spark_dedup", tag), "these vectors")
            if load:
                join.load(
                    connection, vectors.shape[1], [vector_rows(IDS[:250], vectors[:250], kind), vector_rows(IDS[250:], vectors[250:], kind)]
                )
                join.build_index(connection, SEARCH)
        made.append(join)
        return join

    yield make
    with postgres.admin() as admin:
        for join in made:
            join.drop(admin)


def rows(join) -> list[tuple[int, int]]:
    """All pairs on record, a pair as often as it was found."""
    with connect(join.login) as connection:
        return sorted(map(tuple, np.concatenate([np.empty((0, 2), dtype=np.int64), *join.pairs(connection)]).tolist()))


def tables(postgres) -> set[str]:
    with postgres.admin() as admin:
        found = admin.execute("SELECT relname FROM pg_class JOIN pg_namespace n ON n.oid = relnamespace WHERE nspname = 'spark_dedup'")
        return {row[0] for row in found.fetchall()}


def test_rows_are_laid_out_as_copy_wants_them():
    one = struct.pack(">hiqihh2f", 2, 8, 7, 12, 2, 0, 1.0, -2.0)
    half = struct.pack(">hiqihh2e", 2, 8, -1, 8, 2, 0, 0.5, 3.0)
    assert vector_rows(np.array([7]), np.array([[1.0, -2.0]], dtype=np.float32), "vector") == one
    assert vector_rows(np.array([-1]), np.array([[0.5, 3.0]], dtype=np.float32), "halfvec") == half
    assert vector_rows(np.array([], dtype=np.int64), np.empty((0, 3), dtype=np.float32), "vector") == b""
    assert pair_rows(struct.pack(">hiqiqhiqiq", 2, 8, 1, 8, 2, 2, 8, 3, 8, 2**40)).tolist() == [[1, 2], [3, 2**40]]


@pytest.mark.parametrize(("kind", "slack"), [("vector", 2e-4), ("halfvec", 1.2e-3)])
def test_every_pair_comes_and_none_far_below_the_floor(join_of, kind, slack):
    join = join_of(kind=kind)
    asked = join.ask(SEARCH)
    found = set(rows(join))
    assert found >= pairs_above(0.85)
    assert found <= pairs_above(0.85 - 2 * slack)
    assert len(found) > 500
    assert (asked.batches, asked.reused, asked.reconnected, asked.saturated) == (7, 0, 0, 0)  # 400 / 64


def test_batches_and_connections_change_no_pair(join_of, postgres):
    join = join_of()
    join.ask(SEARCH)
    want = rows(join)
    for batch_rows, connections in ((1000, 1), (17, 3)):
        login = Login(PgvectorConfig(**postgres.settings(batch_rows=batch_rows) | {"connections": connections}))
        other = LateralJoin(login, join.server, join.work, join.made_for)
        other.ask(SEARCH)
        assert rows(other) == want


def test_full_lists_are_asked_again_until_they_are_not_full(join_of):
    join = join_of()
    lengths = (COSINES >= 0.85 - 2e-4).sum(axis=1)
    asked = join.ask(SearchConfig(engine="pgvector", ef_search=1000, neighbours=2))
    assert set(rows(join)) >= pairs_above(0.85)
    assert (asked.asked_again, asked.saturated) == (int((lengths >= 2).sum()), 0)
    cut = join.ask(SearchConfig(engine="pgvector", ef_search=1000, neighbours=2, max_neighbours=3))
    assert (cut.asked_again, cut.saturated) == (int((lengths >= 2).sum()), int((lengths >= 3).sum()))
    assert len(rows(join)) == int(np.minimum(lengths, 3).sum())


def test_a_server_without_iterative_scan_answers_within_its_width(join_of):
    join = join_of(can=Server("16.1", (0, 7, 4)))
    with pytest.raises(EnvironmentProblem, match="search.max_neighbours 2000 needs pgvector 0.8") as e:
        join.ask(SEARCH)
    assert "max_neighbours=999" in str(e.value.hint)
    join.ask(SearchConfig(engine="pgvector", ef_search=1000, max_neighbours=999))
    assert set(rows(join)) >= pairs_above(0.85)


def test_the_index_is_asked_and_no_plan_compares_all_pairs(join_of):
    from psycopg.sql import SQL

    join = join_of()

    def plan(connection) -> str:
        text = SQL("EXPLAIN ") + join.round_sql(SQL("q.id >= 3 AND q.id < 451"), N - 1, SEARCH, keep_full=True)
        return "\n".join(row[0] for row in connection.execute(text).fetchall())

    with connect(join.login) as connection, connection.transaction():
        join._open_batches(connection, SEARCH)
        assert "Sort" in plan(connection)  # left alone, the planner compares all pairs for lists as long as the table
        plan_by_index(connection)
        planned = plan(connection)
    assert f"Index Scan using hnsw_{join.work.tag}" in planned
    assert "Seq Scan" not in planned
    assert "Sort" not in planned


def test_the_index_has_the_settings_of_the_search(join_of, postgres):
    join = join_of(build_memory="64MB", build_workers=0)
    with connect(join.login) as connection:
        options = connection.execute("SELECT reloptions FROM pg_class WHERE relname = %s", [f"hnsw_{join.work.tag}"]).fetchone()[0]
        assert options == ["m=32", "ef_construction=200"]
        size, _ = join.build_index(connection, SEARCH)  # there already
        assert size > 0
        # The server says itself that a graph does not fit into its memory.
        small = LateralJoin(Login(PgvectorConfig(**postgres.settings(build_memory="1MB", build_workers=0))), join.server, join.work, "more")
        many = np.random.default_rng(0).normal(size=(1500, DIMENSION)).astype(np.float32)
        small.load(connection, DIMENSION, [vector_rows(np.arange(1500), many, "vector")])
        _, said = small.build_index(connection, SearchConfig(engine="pgvector", ef_construction=64))
    assert any("maintenance_work_mem" in line for line in said)


@pytest.mark.parametrize("reconnects", [0, 2])
def test_after_a_lost_connection_only_unfinished_batches_are_asked(join_of, postgres, reconnects):
    join = join_of(reconnects=reconnects)
    join.ask(SEARCH)
    want = rows(join)
    with connect(join.login) as connection:
        join.forget_pairs(connection)
    one = LateralJoin(
        Login(PgvectorConfig(**postgres.settings(batch_rows=64, reconnects=reconnects) | {"connections": 1})),
        *list(vars(join).values())[1:],
    )
    finished = []

    def cut_off(done: int, of: int) -> None:
        finished.append(done)
        if done == 3:
            assert postgres.kill() == 1

    if reconnects:
        asked = one.ask(SEARCH, cut_off)
        assert (asked.reused, asked.reconnected) == (0, 1)
    else:
        with pytest.raises(EnvironmentProblem, match="connection to Postgres was lost while asking for neighbours") as e:
            one.ask(SEARCH, cut_off)
        assert "run again" in str(e.value.hint)
        assert finished == [1, 2, 3]
        asked = one.ask(SEARCH)
        assert (asked.reused, asked.reconnected) == (3, 0)
    assert rows(one) == want


KILLED = """
import os, signal, sys
from spark_dedup.config import PgvectorConfig, SearchConfig
from spark_dedup.lateral_join import LateralJoin, Work
from spark_dedup.postgres import Login, connect, server

login = Login(PgvectorConfig(host=sys.argv[1], user="owner", database="vectors", batch_rows=64, connections=1))
with connect(login) as connection:
    join = LateralJoin(login, server(connection, login), Work("spark_dedup", sys.argv[2]), "these vectors")
join.ask(SearchConfig(engine="pgvector", ef_search=1000), lambda done, of: done == 3 and os.kill(os.getpid(), signal.SIGKILL))
"""


def test_after_a_killed_process_only_unfinished_batches_are_asked(join_of, postgres):
    join = join_of()
    join.ask(SEARCH)
    want = rows(join)
    with connect(join.login) as connection:
        join.forget_pairs(connection)
    done = subprocess.run([sys.executable, "-c", KILLED, postgres.host, join.work.tag], capture_output=True, timeout=120, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert join.ask(SEARCH).reused == 3
    assert rows(join) == want


def test_a_batch_that_another_run_finished_is_not_asked_again(join_of):
    join = join_of()
    join.ask(SEARCH)
    want = rows(join)
    with connect(join.login) as connection:
        join.forget_pairs(connection)

    def come_between(done: int, of: int) -> None:
        if done == 2:
            join.ask(SEARCH)

    join.ask(SEARCH, come_between)
    assert rows(join) == want


def test_another_search_starts_over_and_another_store_stands_apart(join_of):
    join, other = join_of(), join_of(tag="other")
    join.ask(SEARCH)
    want = rows(join)
    assert other.ask(SEARCH).reused == 0
    assert join.ask(SEARCH).reused == 7
    assert join.ask(SearchConfig(engine="pgvector", ef_search=1000, floor=0.95)).reused == 0
    assert set(rows(join)) < set(want)


def test_a_broken_load_leaves_nothing(join_of, postgres):
    join = join_of(load=False)
    before = tables(postgres)

    def breaks():
        yield vector_rows(IDS, VECTORS, "vector")
        raise RuntimeError("Spark stopped")

    def is_cut_off():
        yield vector_rows(IDS, VECTORS, "vector")
        postgres.kill()
        for _ in range(1000):
            yield vector_rows(IDS, VECTORS, "vector")

    with connect(join.login) as connection:
        with pytest.raises(RuntimeError, match="Spark stopped"):
            join.load(connection, DIMENSION, breaks())
        assert not join.is_loaded(connection)
        with pytest.raises(EnvironmentProblem, match="lost while loading the vectors"):
            join.load(connection, DIMENSION, is_cut_off())
    assert tables(postgres) == before


@pytest.fixture
def passages(postgres):
    """A table of texts and vectors that someone else owns: ids as text, two further rows, and one without a vector."""
    with postgres.admin() as admin:
        admin.execute("CREATE TABLE passages (chunk text, embedding extensions.halfvec(16), other real[])")
        values = [(f"c{i}", str(v.tolist()), v.tolist()) for i, v in zip(IDS, VECTORS, strict=True)]
        values[5] = ("c38", None, None)
        values += [("x", str(VECTORS[0].tolist()), [1.0]), ("y", str(VECTORS[1].tolist()), None)]
        with admin.cursor() as cursor:
            cursor.executemany("INSERT INTO passages VALUES (%s, %s::extensions.halfvec, %s)", values)
        admin.execute("GRANT SELECT ON passages TO owner")
    yield {"table": "passages", "id_column": "chunk", "vector_column": "embedding"}
    with postgres.admin() as admin:
        admin.execute("DROP TABLE passages")


RECORDS = [(int(i), f"c{i}") for i in IDS]


def test_vectors_that_are_there_already_are_copied_within_the_server(join_of, passages):
    join = join_of(load=False, **passages)
    with connect(join.login) as connection:
        join.load_from_table(connection, RECORDS)
        assert join.vectors(connection) == N - 1
        join.build_index(connection, SEARCH)
        join.ask(SEARCH)
        assert connection.execute("SELECT count(*) FROM passages").fetchone() == (N + 2,)
    without = {pair for pair in pairs_above(0.85 + 2e-3) if 38 not in pair}
    assert without <= set(rows(join)) <= pairs_above(0.85 - 3e-3)


@pytest.mark.parametrize(
    ("changed", "records", "message"),
    [
        ({"table": "nowhere"}, RECORDS, 'relation "nowhere" does not exist'),
        ({"vector_column": "vector"}, RECORDS, 'column "vector" does not exist'),
        ({"vector_column": "chunk"}, RECORDS, "invalid input syntax for type vector"),
        ({"vector_column": "other"}, [*RECORDS, (1, "x")], "expected 16 dimensions, not 1"),
        ({}, [(1, "nobody"), (2, "none")], "no text of the run has a vector in pgvector.table passages"),
        ({}, [*RECORDS, RECORDS[0]], "an id stands more than once"),
    ],
)
def test_a_table_that_does_not_fit_is_refused(join_of, passages, changed, records, message):
    join = join_of(load=False, **passages | changed)
    with connect(join.login) as connection:
        with pytest.raises(ConfigError, match=message):
            join.load_from_table(connection, records)
        assert not join.is_loaded(connection)


@pytest.mark.parametrize(
    ("kind", "dimension", "hint"), [("vector", 2001, "pgvector.type=halfvec"), ("vector", 4001, "cells"), ("halfvec", 4001, "cells")]
)
def test_too_many_dimensions_are_refused_with_the_limits(join_of, kind, dimension, hint):
    join = join_of(load=False, kind=kind)
    with (
        connect(join.login) as connection,
        pytest.raises(ConfigError, match=f"2,000 for vector, 4,000 for halfvec.*got {dimension:,}") as e,
    ):
        join.load(connection, dimension, [])
    assert hint in str(e.value.hint)


def test_the_largest_dimensions_are_taken(join_of):
    for kind, dimension in (("vector", 2000), ("halfvec", 4000)):
        wide = np.random.default_rng(0).normal(size=(3, dimension)).astype(np.float32)
        join = join_of(load=False, kind=kind, tag=kind)
        with connect(join.login) as connection:
            join.load(connection, dimension, [vector_rows(IDS[:3], wide, kind)])
            join.build_index(connection, SEARCH)
        assert join.ask(SearchConfig(engine="pgvector", floor=0.5)).batches == 1


def refusal(config: PgvectorConfig) -> EnvironmentProblem:
    """What logging in and looking round ends with."""
    with pytest.raises(EnvironmentProblem) as e:
        login = log_in(config)
        with connect(login) as connection:
            server(connection, login)
    return e.value


def test_a_wrong_password_is_told_without_it(postgres, monkeypatch):
    monkeypatch.setenv("PGPASSWORD", "open sesame")
    problem = refusal(PgvectorConfig(**postgres.settings("guarded")))
    assert "refuses the log-in" in problem.message
    assert "guarded" in problem.message
    assert "PGPASSWORD" in str(problem.hint)
    assert "open sesame" not in str(problem)
    monkeypatch.delenv("PGPASSWORD")
    assert "refuses the log-in" in refusal(PgvectorConfig(**postgres.settings("guarded"))).message


def test_the_password_comes_from_the_environment_a_file_a_service_or_a_secret(postgres, monkeypatch, tmp_path):
    config = PgvectorConfig(**postgres.settings("guarded"))

    def user(config) -> str:
        with connect(log_in(config)) as connection:
            return connection.execute("SELECT current_user").fetchone()[0]

    with monkeypatch.context() as m:
        m.setenv("PGPASSWORD", PASSWORD)
        assert user(config) == "guarded"
    with monkeypatch.context() as m:
        (tmp_path / "pass").write_text(f"*:*:*:guarded:{PASSWORD}\n")
        (tmp_path / "pass").chmod(0o600)
        m.setenv("PGPASSFILE", str(tmp_path / "pass"))
        assert user(config) == "guarded"
    with monkeypatch.context() as m:
        (tmp_path / "services").write_text(f"[kb]\nhost={postgres.host}\ndbname=vectors\nuser=guarded\npassword={PASSWORD}\n")
        m.setenv("PGSERVICEFILE", str(tmp_path / "services"))
        assert user(PgvectorConfig(dsn="service=kb")) == "guarded"

    class DBUtils:
        """What Databricks' PySpark has."""

        def __init__(self, spark) -> None:
            self.secrets = self

        def get(self, scope: str, key: str) -> str:
            if (scope, key) != ("kb", "postgres"):
                raise RuntimeError("Secret does not exist")
            return PASSWORD

    from dataclasses import replace

    assert "no Databricks cluster" in refusal(replace(config, secret="kb/postgres")).message
    monkeypatch.setitem(sys.modules, "pyspark.dbutils", types.SimpleNamespace(DBUtils=DBUtils))
    assert user(replace(config, secret="kb/postgres")) == "guarded"
    assert PASSWORD not in repr(log_in(replace(config, secret="kb/postgres")))
    assert "kb/other can not be read: Secret does not exist" in refusal(replace(config, secret="kb/other")).message


@pytest.mark.parametrize(
    ("changed", "message", "hint"),
    [
        ({"host": "/nowhere"}, "no connection to Postgres", "whether the server runs"),
        ({"host": "127.0.0.1", "port": 1, "connect_timeout": 2}, "no connection to Postgres", "pgvector.host"),
        ({"database": "nowhere"}, 'database "nowhere" does not exist', "database"),
        ({"user": "nobody"}, 'role "nobody" does not exist', "user"),
        ({"database": "bare"}, "the database bare has no extension vector: the server has it", "CREATE EXTENSION vector"),
    ],
)
def test_a_server_that_will_not_do_is_told(postgres, changed, message, hint):
    problem = refusal(PgvectorConfig(**postgres.settings(**changed)))
    assert message in problem.message
    assert hint in str(problem.hint)


def test_a_connection_string_that_can_not_be_read_is_not_shown():
    problem = refusal(PgvectorConfig(dsn="host=here hunter2"))
    assert "pgvector.dsn is not a connection string" in problem.message
    assert "hunter2" not in str(problem)


def test_doctor_names_the_server_or_what_is_wrong_with_it(postgres):
    from spark_dedup.doctor import attempt, postgres_check

    good, bare = (PgvectorConfig(**postgres.settings(database=name)) for name in ("vectors", "bare"))
    check = attempt("Postgres", lambda: postgres_check(good, None))
    assert check.ok
    assert "pgvector 0." in check.found
    check = attempt("Postgres", lambda: postgres_check(bare, None))
    assert check.ok is False
    assert "CREATE EXTENSION vector" in str(check.fix)


def test_a_role_without_rights_is_told_what_to_grant(postgres, join_of):
    login = Login(PgvectorConfig(**postgres.settings("guest", schema="of_guest")))
    with connect(login) as connection:
        join = LateralJoin(login, server(connection, login), Work.of("of_guest", "x"), "mine")
        with pytest.raises(EnvironmentProblem, match="permission denied for database vectors") as e:
            join.load(connection, DIMENSION, [])
    assert "GRANT CREATE" in str(e.value.hint)


def test_a_schema_of_another_role_is_refused(join_of, postgres):
    join_of()
    login = Login(PgvectorConfig(**postgres.settings("guest")))
    with connect(login) as connection:
        join = LateralJoin(login, server(connection, login), Work.of("spark_dedup", "test"), "mine")
        with pytest.raises(EnvironmentProblem, match="permission denied for schema spark_dedup") as e:
            join.is_loaded(connection)
    assert "log in as another role" in str(e.value.hint)


def test_a_role_with_rights_on_the_schema_alone_can_work_there(postgres):
    with postgres.admin() as admin:
        admin.execute("CREATE SCHEMA for_guest AUTHORIZATION guest")
    login = Login(PgvectorConfig(**postgres.settings("guest", schema="for_guest")))
    with connect(login) as connection:
        join = LateralJoin(login, server(connection, login), Work.of("for_guest", "x"), "mine")
        join.load(connection, DIMENSION, [vector_rows(IDS, VECTORS, "vector")])
        join.drop(connection)
    with postgres.admin() as admin:
        admin.execute("DROP SCHEMA for_guest")


SOURCE = ["source.table=a.b", "source.id=i", "source.text=t", "store=a.c", "search.engine=pgvector"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["pgvector.dsn=postgresql://me:hunter2@host/db"], r"pgvector\.dsn must not hold a password"),
        (["pgvector.dsn=postgresql://host/db?password=hunter2"], r"pgvector\.dsn must not hold a password"),
        (["pgvector.dsn=postgresql://host/db?p%61ssword=hunter2"], r"pgvector\.dsn must not hold a password"),
        (["pgvector.dsn='host=h password = hunter2'"], r"pgvector\.dsn must not hold a password"),
        (["pgvector.host=postgresql://me:hunter2@host/db"], r"pgvector\.host must not hold a password"),
        (["pgvector.dsn=[hunter2]"], r"pgvector\.dsn must be a text, got a value that is not shown"),
        (["pgvector.secret=hunter2"], r"pgvector\.secret must be scope/key"),
        (["pgvector.password=hunter2"], r"pgvector\.password is not a setting"),
        (["pgvector.dsn=service=kb", "pgvector.user=me"], r"pgvector\.dsn must stand alone, got pgvector\.user"),
        (["pgvector.table=a.b.c"], r"pgvector\.table must be name or schema\.name, got 'a\.b\.c'"),
        (["pgvector.build_memory=lots"], r"pgvector\.build_memory must be a number with kB, MB, GB or TB"),
        (["search.links=101", "search.ef_construction=300"], r"search\.links must be at most 100 for search\.engine pgvector, got 101"),
        (["search.ef_search=1001"], r"search\.ef_search must be at most 1000"),
        (["search.ef_construction=50"], r"search\.ef_construction must be at least 2 \* search\.links \(64\)"),
    ],
)
def test_settings_that_do_not_fit_are_refused_and_no_secret_is_shown(settings, message):
    with pytest.raises(ConfigError, match=message) as e:
        load_config(None, [*SOURCE, *settings])
    assert "hunter2" not in str(e.value)


@pytest.mark.parametrize(
    "dsn", ["postgresql://me@host:5432/db", "postgresql://me:@host/db", "host=h dbname=d passfile=/run/pgpass", "service=kb"]
)
def test_connection_strings_without_password_are_taken(dsn):
    assert (
        load_config(None, {"source": {"table": "a.b", "id": "i", "text": "t"}, "store": "a.c", "pgvector": {"dsn": dsn}}).pgvector.dsn
        == dsn
    )


def test_without_the_package_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "psycopg", None)
    problem = refusal(PgvectorConfig())
    assert "pip install 'spark-dedup[pgvector]'" in str(problem.hint)
