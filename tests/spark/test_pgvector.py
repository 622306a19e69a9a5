"""The two ends of the self-join in Postgres, and whole runs against a real server."""

from __future__ import annotations

import numpy as np
import pytest
from pgvector_server import PASSWORD
from planted import families

from spark_dedup import load_config, run, schema
from spark_dedup.config import SearchConfig
from spark_dedup.errors import EnvironmentProblem
from spark_dedup.kernels.features import features
from spark_dedup.kernels.pgcopy import vector_rows
from spark_dedup.kernels.vectors import to_binary
from spark_dedup.schema import NEIGHBOUR_PAIRS, SCORED_PAIRS, VECTORS
from spark_dedup.stages.candidates_exact import exact_candidates
from spark_dedup.stages.candidates_pgvector import Neighbours, copy_blocks, head_records, pair_blocks, pgvector_candidates
from spark_dedup.store import TableStore
from spark_dedup.sweep import sweep

pytestmark = pytest.mark.slow

TEXTS = [f"passage {i % 11} says much the same as any other passage number {i % 7}" for i in range(77)]
ROWS = 300


@pytest.fixture(scope="module")
def table(spark):
    """VECTORS of groups on both sides of 0.85, with two groups of copies: of three texts, and of six."""
    import pyarrow as pa

    rng = np.random.default_rng(5)
    x = 3 * rng.normal(size=(20, 16))[rng.integers(0, 20, ROWS)] + 0.9 * rng.normal(size=(ROWS, 16))
    x[[10, 20]] = x[3]
    x[[50, 60, 70, 80, 90]] = x[4]
    x = (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)
    heads: dict[bytes, int] = {}
    blobs = features(pa.array(TEXTS)).to_pylist()
    rows = [(i, heads.setdefault(row, i), row, blobs[i % len(TEXTS)]) for i, row in enumerate(to_binary(x).to_pylist())]
    return x, np.array(sorted(heads.values())), spark.createDataFrame(rows, VECTORS.ddl())


def test_pairs_of_vectors_become_the_pairs_that_all_products_give(spark, table):
    from pyspark.sql import Observation

    x, heads, vectors = table
    config = SearchConfig(engine="pgvector", max_copies=4)
    # As Postgres gives them: some below the floor, some twice.
    near = [(int(heads[i]), int(heads[j])) for i, j in np.argwhere(np.triu(x[heads] @ x[heads].T, 1) >= 0.8)]
    given = spark.createDataFrame(near + near[::2], NEIGHBOUR_PAIRS.ddl())
    want_noted, noted, again = Observation("want"), Observation("pairs"), Observation("again")
    want = exact_candidates(vectors, len(heads), config, partitions=1, noted=want_noted).collect()
    pairs = pgvector_candidates(Neighbours(given, 7, 2), vectors, config, tiles=1, noted=noted)
    assert pairs.schema.simpleString() == spark.createDataFrame([], SCORED_PAIRS.ddl()).schema.simpleString()
    got = sorted(map(tuple, pairs.collect()))
    assert got == sorted((*row[:2], ["pgvector"], *row[3:]) for row in map(tuple, want))
    assert len(got) > 500
    assert noted.get == want_noted.get | {"asked_again": 7, "saturated": 2}
    assert noted.get["copies_not_paired"] > 10  # 15 pairs of six copies, of which 5 are kept, and pairs with other texts
    spread = pgvector_candidates(Neighbours(given.repartition(7), 7, 2), vectors.repartition(5), config, tiles=16, noted=again)
    assert sorted(map(tuple, spread.collect())) == got
    assert again.get == noted.get


def test_no_neighbours_are_no_pairs(spark, table):
    none = spark.createDataFrame([], NEIGHBOUR_PAIRS.ddl())
    pairs = pgvector_candidates(Neighbours(none, 0, 0), table[2].where("rep_id = head_id"), SearchConfig(engine="pgvector"), tiles=2)
    assert pairs.collect() == []


def test_distinct_vectors_go_out_once_and_pairs_come_back(spark, table):
    x, heads, vectors = table
    sent = b"".join(bytes(row[0]) for row in copy_blocks(vectors.coalesce(1).orderBy("rep_id"), "vector").collect())
    assert sent == vector_rows(heads, x[heads], "vector")
    blocks = [(np.array(pairs, dtype="<i8").tobytes(),) for pairs in ([(1, 2), (3, 2**40)], [(5, 6)])]
    assert sorted(map(tuple, pair_blocks(spark.createDataFrame(blocks, "block binary")).collect())) == [(1, 2), (3, 2**40), (5, 6)]
    reps = spark.createDataFrame([(i, "k", 1000 + i, "t", 1, True) for i in range(ROWS)], schema.REPRESENTATIVES.ddl("bigint"))
    assert sorted(map(tuple, head_records(vectors, reps).collect())) == [(int(i), str(1000 + i)) for i in heads]


@pytest.fixture(scope="module")
def source(spark, tmp_path_factory):
    """20 families."""
    folder = tmp_path_factory.mktemp("pgvector")
    rows, truth = families(20)
    spark.createDataFrame(rows, "id string, text string").write.format("delta").save(str(folder / "source"))
    return folder, truth


def settings(folder, postgres, store, *more, user="guarded", **pgvector):
    given = {**postgres.settings(user), "batch_rows": 32, **pgvector}
    return load_config(
        None,
        [
            f"source.table={folder / 'source'}",
            "source.format=delta",
            "source.id=id",
            "source.text=text",
            f"store={folder / store}",
            "embed.encoder=planted:encoder",
            "components.engine=dataframe",
            "search.engine=pgvector",
            "search.ef_search=1000",  # wider than the table: nothing is lost
            *(f"pgvector.{key}={value}" for key, value in given.items()),
            *more,
        ],
    )


def test_a_whole_run_finds_its_pairs_in_postgres(spark, postgres, source, monkeypatch, capfd):
    folder, truth = source
    config = settings(folder, postgres, "store")
    monkeypatch.setenv("PGPASSWORD", "wrong one")
    with pytest.raises(EnvironmentProblem, match="refuses the log-in"):
        run(config, spark)
    assert not (folder / "store").exists()  # refused before any work
    monkeypatch.setenv("PGPASSWORD", PASSWORD)

    # The connections are cut once the vectors are loaded and two batches of three are finished.
    import spark_dedup.lateral_join as lateral_join

    ask_batch, asked = lateral_join.LateralJoin._ask_batch, []

    def cut_after_two(self, connection, first, end, search) -> None:
        if len(asked) == 2:
            postgres.kill()
        ask_batch(self, connection, first, end, search)
        asked.append(first)

    broken = settings(folder, postgres, "store", connections=1, reconnects=0)
    with monkeypatch.context() as m:
        m.setattr(lateral_join.LateralJoin, "_ask_batch", cut_after_two)
        with pytest.raises(EnvironmentProblem, match="connection to Postgres was lost while asking"):
            run(broken, spark)
        assert not TableStore(spark, str(folder / "store")).exists(schema.CANDIDATE_PAIRS)
        asked.append(-1)
        manifest = run(config, spark)
    assert [i for i in asked if i >= 0] == sorted({*asked} - {-1})  # no batch was asked twice
    assert len(asked) == 1 + 3  # 80 texts

    assert manifest.stage("index").notes["postgres"].startswith("Postgres 1")
    assert manifest.stage("index").reused
    assert manifest.recall == "pair recall >= 0.90: 1, all 80 texts"
    clusters: dict[int, set[str]] = {}
    for row in TableStore(spark, str(folder / "store")).read(schema.CLUSTERS).collect():
        clusters.setdefault(row["cluster_id"], set()).add(row["record_id"])
    assert sorted(map(sorted, clusters.values())) == sorted(map(sorted, truth))

    # Neither a table nor a line of output has the password, though the settings are there.
    store = TableStore(spark, str(folder / "store"))
    told = [str(row) for table in schema.TABLES if store.exists(table) for row in store.read(table).collect()]
    assert any("guarded" in line for line in told)
    told += [path.read_text() for path in (folder / "store").rglob("_delta_log/*.json")]
    assert not any(PASSWORD in line for line in [*told, *capfd.readouterr()])
    assert not run(config, spark).did_work


@pytest.mark.long
def test_a_run_and_a_sweep_over_vectors_that_are_in_postgres(spark, postgres, source):
    import planted

    folder, _ = source
    rows = [row for row in families(20)[0] if row[0] != "c0000"]  # the record that stands for its text and for its copy's
    vectors = planted.encoder().encode([text for _, text in rows])
    with postgres.admin() as admin, admin.cursor() as cursor:
        cursor.execute("CREATE TABLE chunks (id text, embedding extensions.vector(256))")
        cursor.executemany("INSERT INTO chunks VALUES (%s, %s)", [(row[0], str(v.tolist())) for row, v in zip(rows, vectors, strict=True)])
        cursor.execute("GRANT SELECT ON chunks TO owner")
    config = settings(folder, postgres, "there", "recall.share=1000", user="owner", schema="of_owner", table="chunks", keep_index="false")
    manifest = run(config, spark)
    assert manifest.stage("index").caps_hit == {"not_in_table": 1}
    pairs = TableStore(spark, str(folder / "there")).read(schema.CANDIDATE_PAIRS).select("left_record", "right_record").collect()
    found = {frozenset(row) for row in pairs}
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    names = np.array([row[0] for row in rows])
    searched = np.flatnonzero([name[0] != "o" for name in names])  # originals are copies of the c's
    near = np.triu(unit[searched] @ unit[searched].T, 1) >= 0.85
    assert found == {frozenset(map(str, names[searched[[i, j]]])) for i, j in np.argwhere(near)}
    assert len(found) == len(pairs) > 19
    (point,) = sweep(config, "ef_search", [999], spark)
    assert (point.setting, point.pairs, point.own) == ("search.ef_search=999", len(found), False)
    with postgres.admin() as admin:
        left = admin.execute("SELECT count(*) FROM pg_tables WHERE schemaname = 'of_owner'").fetchone()
        admin.execute("DROP TABLE chunks")
    assert left == (0,)
