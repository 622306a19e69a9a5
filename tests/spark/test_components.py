"""Both engines against SciPy and NetworkX, the check that guards them, and what they leave behind."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from case_files import CASES
from pyspark.sql import functions as F
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components

from spark_dedup import schema
from spark_dedup.checkpoints import check_checkpoint_dir
from spark_dedup.errors import ComponentsError, EnvironmentProblem
from spark_dedup.schema import EDGES
from spark_dedup.stages import components as stage
from spark_dedup.stages.components import check_components, components

WAYS = ["graphframes", "dataframe, one task", "dataframe, rounds"]
"""The three ways to the components; the last is what a graph of more than five million forest edges takes."""


@pytest.fixture(params=WAYS)
def way(request, monkeypatch):
    if request.param == "graphframes":
        request.getfixturevalue("graphframes_available")
        monkeypatch.setattr(stage, "EDGES_PER_TASK", 1500)  # several tasks, so that GraphFrames has something left to connect
    engine, _, how = request.param.partition(", ")
    return {"engine": engine, "one_task_edges": 0 if how == "rounds" else stage.ONE_TASK_EDGES}


def frames(spark, vertices, edges, partitions=2):
    v = spark.createDataFrame([(int(i),) for i in vertices], "rep_id bigint")
    e = spark.createDataFrame([(int(left), int(right)) for left, right in edges], EDGES.ddl())
    return v.repartition(partitions), e.repartition(partitions)


def rows_of(frame):
    return sorted(map(tuple, frame.collect()))


def by_networkx(vertices, edges):
    graph = nx.Graph(edges)
    graph.add_nodes_from(vertices)
    return sorted((v, min(c)) for c in nx.connected_components(graph) for v in c)


def by_scipy(vertices, edges):
    ids = np.sort(vertices)
    left, right = np.searchsorted(ids, np.asarray(edges)).T
    count, component = connected_components(coo_matrix((np.ones(len(left), bool), (left, right)), shape=(len(ids),) * 2), directed=False)
    least = np.full(count, len(ids))
    np.minimum.at(least, component, np.arange(len(ids)))
    return list(zip(ids.tolist(), ids[least[component]].tolist(), strict=True))


def stored(spark):
    return len(spark.sparkContext._jsc.getPersistentRDDs())


@pytest.fixture(scope="module")
def menagerie():
    """A path of 5,000 vertices in random order, a star, a clique, loops, doubled and mirrored edges, lone vertices, random edges."""
    seed = int(np.random.SeedSequence().entropy) % 2**32
    random = np.random.default_rng(seed)
    path = random.permutation(5000)
    clique = np.stack(np.triu_indices(30, 1), axis=1) + 7000
    scattered = random.integers(8000, 9000, (600, 2))
    far = 2**62  # sums of such ids leave 64 bits
    edges = [
        *zip(path[:-1], path[1:], strict=True),
        *((5500, leaf) for leaf in range(5000, 6000) if leaf != 5500),
        *clique,
        *scattered,
        *scattered[:50],
        *scattered[:50, ::-1],
        *((7500, 7500), (8000, 8000), (far + 2, far + 1), (far + 5, far + 1), (far + 9, far + 8)),
    ]
    edges = random.permutation(np.array(edges, np.int64))
    vertices = random.permutation(np.concatenate([np.arange(9500), far + np.arange(12)]))
    want = by_networkx(vertices.tolist(), edges.tolist())
    assert want == by_scipy(vertices, edges), f"seed {seed}"
    return vertices, edges, want, seed


@pytest.mark.parametrize(("partitions", "adaptive", "ansi"), [(1, "true", "false"), (7, "false", "true")])
def test_every_way_gives_the_components_of_scipy_and_networkx(spark, spark_conf, menagerie, way, partitions, adaptive, ansi):
    vertices, edges, want, seed = menagerie
    spark_conf("spark.sql.adaptive.enabled", adaptive)
    spark_conf("spark.sql.ansi.enabled", ansi)
    v, e = frames(spark, vertices, edges, partitions)
    with components(v, e, checkpoint_dir=None, **way) as found:
        assert found.schema.simpleString() == "struct<rep_id:bigint,component_id:bigint>"
        assert rows_of(found) == want, f"seed {seed}"


@pytest.mark.parametrize(("partitions", "adaptive"), [(1, "true"), (7, "false"), (200, "true")])
def test_edges_that_are_a_view_over_joins_on_string_ids_give_the_true_components(spark, spark_conf, tmp_path, way, partitions, adaptive):
    spark_conf("spark.sql.adaptive.enabled", adaptive)
    spark_conf("spark.sql.shuffle.partitions", str(partitions))
    named = pq.read_table(CASES / "o17_vertices.parquet").sort_by("id")  # so that the least number is the least string
    pq.write_table(named.append_column("rep_id", pa.array(range(len(named)))), tmp_path / "mapping.parquet")
    ids = spark.read.parquet((tmp_path / "mapping.parquet").as_uri())
    names = spark.read.parquet((CASES / "o17_edges.parquet").as_uri())
    edges = (
        names.join(ids.select(F.col("id").alias("src"), F.col("rep_id").alias("left_id")), on="src", how="inner")
        .join(ids.select(F.col("id").alias("dst"), F.col("rep_id").alias("right_id")), on="dst", how="inner")
        .select("left_id", "right_id")
    )
    with components(ids, edges, checkpoint_dir=None, **way) as found:
        numbers, least = zip(*rows_of(found), strict=True)
    assert numbers == tuple(range(1270))
    assert len(set(least)) == 494
    assert named["id"].take(list(least)).to_pylist() == named["expected_min_id"].to_pylist()


def test_without_edges_every_vertex_is_its_own_component(spark, way):
    v, e = frames(spark, [4, 7, 9], [])
    with components(v, e, checkpoint_dir=None, **way) as found:
        assert rows_of(found) == [(4, 4), (7, 7), (9, 9)]
    v, e = frames(spark, [], [])
    with components(v, e, checkpoint_dir=None, **way) as found:
        assert rows_of(found) == []


@pytest.mark.parametrize("on_folder", [False, True])
def test_nothing_stays_behind_neither_stored_blocks_nor_files_nor_settings(spark, tmp_path, way, on_folder):
    folder = tmp_path / "checkpoints" if on_folder else None
    context = spark.sparkContext._jsc.sc()
    settings = spark._jsparkSession.conf().getAll().toString()
    before = stored(spark), context.getCheckpointDir().toString(), settings
    v, e = frames(spark, range(50), [(i, i + 1) for i in range(0, 48, 2)])
    for _ in range(2):
        with components(v, e, checkpoint_dir=None if folder is None else str(folder), **way) as found:
            assert found.count() == 50
            assert on_folder or stored(spark) > before[0]
    assert (stored(spark), context.getCheckpointDir().toString(), spark._jsparkSession.conf().getAll().toString()) == before
    if folder is not None:
        assert list(folder.iterdir()) == []


def test_a_failure_of_the_reader_leaves_nothing_behind_either(spark, tmp_path, way):
    before = stored(spark)
    v, e = frames(spark, range(9), [(1, 2), (2, 3)])
    with pytest.raises(RuntimeError, match="disk full"), components(v, e, checkpoint_dir=str(tmp_path), **way):
        raise RuntimeError("disk full")
    assert stored(spark) == before
    assert list(tmp_path.iterdir()) == []


def test_the_contexts_own_checkpoint_folder_is_given_back(spark, tmp_path, graphframes_available):
    context = spark.sparkContext._jsc.sc()
    before = context.getCheckpointDir()
    spark.sparkContext.setCheckpointDir(str(tmp_path / "theirs"))
    theirs = context.getCheckpointDir().toString()
    v, e = frames(spark, range(9), [(1, 2), (2, 3)])
    with components(v, e, engine="graphframes", checkpoint_dir=str(tmp_path / "ours")) as found:
        assert found.where("component_id = 1").count() == 3
    try:
        assert context.getCheckpointDir().toString() == theirs
        assert len(list((tmp_path / "theirs").iterdir())) == 1
    finally:
        getattr(context, "checkpointDir_$eq")(before)


# Vertices 0 to 5; 0-1-2 and 3-4 are connected, 5 is alone: three edges, so three components.
VERTICES, PAIRS, LABELS = range(6), [(0, 1), (1, 2), (0, 1), (3, 4)], [(0, 0), (1, 0), (2, 0), (3, 3), (4, 3), (5, 5)]


def checked(spark, labels, vertices=VERTICES, edges=PAIRS):
    v, e = frames(spark, vertices, edges)
    check_components(v, e, spark.createDataFrame(labels, schema.LABELS.ddl()), forest_edges=3)


def test_the_check_accepts_the_right_labels(spark):
    checked(spark, LABELS)


@pytest.mark.parametrize(
    ("labels", "fault"),
    [
        (LABELS[:-1], "1 vertices without a label"),
        ([*LABELS, (6, 6)], "1 labels of vertices that do not exist"),
        ([*LABELS, (5, 5)], "1 vertices that occur more than once"),
        ([*LABELS[:2], (2, 2), *LABELS[3:]], "1 edges between two components"),
        ([*LABELS[:3], (3, 4), (4, 4), (5, 5)], "1 components labelled with another id than their least"),
        ([*LABELS[:5], (5, 3)], "1 components fewer than the edges allow"),
    ],
    ids=["lost", "unknown", "doubled", "split", "not the least id", "merged"],
)
def test_the_check_refuses_wrong_labels(spark, labels, fault):
    with pytest.raises(ComponentsError, match=fault):
        checked(spark, labels)


def test_an_edge_to_a_vertex_that_does_not_exist_is_refused(spark, way):
    v, e = frames(spark, range(3), [(0, 1), (1, 77)])
    with pytest.raises(ComponentsError, match="vertices that do not exist"), components(v, e, checkpoint_dir=None, **way):
        pytest.fail("labels were handed out")


def test_repeated_vertices_are_refused(spark):
    v, e = frames(spark, [0, 1, 1, 2], [(0, 1)])
    with pytest.raises(ComponentsError, match="1 vertices that occur more than once"):
        with components(v, e, engine="dataframe", checkpoint_dir=None):
            pytest.fail("labels were handed out")


def test_a_wrong_answer_of_an_engine_is_never_handed_out(spark, monkeypatch):
    monkeypatch.setattr(stage, "dataframe_stars", lambda forest, checkpoints: forest.where("right_id != 4"))
    v, e = frames(spark, VERTICES, PAIRS, partitions=1)
    before = stored(spark)
    with pytest.raises(ComponentsError, match="1 edges between two components"):
        with components(v, e, engine="dataframe", checkpoint_dir=None, one_task_edges=0):
            pytest.fail("labels were handed out")
    assert stored(spark) == before


def test_another_engine_is_refused(spark):
    v, e = frames(spark, [1], [])
    with pytest.raises(ValueError, match="one of graphframes, dataframe, got 'auto'"), components(v, e, engine="auto", checkpoint_dir=None):
        pass


def test_a_checkpoint_folder_that_works_is_made_and_left_empty(spark, tmp_path):
    folder = tmp_path / "new" / "checkpoints"
    check_checkpoint_dir(spark, str(folder))
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("folder", ["{file}/below", "nosuchscheme://place/folder"])
def test_a_checkpoint_folder_that_cannot_be_written_is_refused_by_its_setting_in_one_sentence(spark, tmp_path, folder):
    file = tmp_path / "file"
    file.write_text("in the way")
    folder = folder.format(file=file)
    with pytest.raises(EnvironmentProblem) as caught:
        check_checkpoint_dir(spark, folder)
    assert caught.value.message.startswith(f"components.checkpoint_dir: '{folder}' cannot be used for checkpoints: ")
    assert "\n" not in caught.value.message
    assert "components.checkpoint_dir" in str(caught.value.hint)
    assert file.read_text() == "in the way"
