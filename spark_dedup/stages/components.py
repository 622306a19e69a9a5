"""EDGES -> LABELS. The only file that knows GraphFrames, and the only stage that runs actions: its iterations need them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from pyspark import StorageLevel
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from spark_dedup.checkpoints import Checkpoints, borrowed, context_folder
from spark_dedup.errors import ComponentsError
from spark_dedup.kernels.forest import forest_batches
from spark_dedup.schema import EDGES, LABELS, LEFT_ID, REP_ID, RIGHT_ID

COMPONENT_ID = "component_id"
ADAPTIVE = "spark.sql.adaptive.enabled"
PARTITIONS = "spark.sql.shuffle.partitions"

ENGINES = ("graphframes", "dataframe")

ONE_TASK_EDGES = 5_000_000
"""Forest edges that the DataFrame engine finishes in one task: 80 MB at 16 bytes an edge, and some ten times that while sorting."""

EDGES_PER_TASK = 100_000
"""Forest edges a task that GraphFrames gets. Its many small jobs took 22 s with Spark's default of 200 partitions where 4 took 5 s
(7,000 vertices, 2 cores), and merging the forests of small partitions first leaves it fewer rounds."""

MAX_ROUNDS = 100
"""Rounds of the DataFrame engine. They grow with the logarithm of the vertices (squared, at worst); more would be an error of ours."""


@contextmanager
def components(
    vertices: DataFrame,
    edges: DataFrame,
    *,
    engine: str,
    checkpoint_dir: str | None,
    one_task_edges: int = ONE_TASK_EDGES,
) -> Iterator[DataFrame]:
    """Find the connected component of every vertex, check the answer, and lend it for the time of the block.

    The result is stored (it can be read several times) and freed at the end of the block:
    `with components(...) as found: store.write(found)`.

    Args:
        vertices: Any frame with `rep_id` bigint, each once.
        edges: EDGES between these vertices, in any order; loops, repeated and mirrored edges do no harm.
        engine: `graphframes` or `dataframe`. Both give the same components.
        checkpoint_dir: Folder that every executor can write, for clusters; None keeps intermediate results on the
            executors, which suits one machine. Sessions without a SparkContext need a folder before Spark 4.0.
        one_task_edges: Forest edges up to which the DataFrame engine finishes in one task instead of iterating.

    Yields:
        LABELS: every vertex once, isolated ones included, with the least `rep_id` of its component.

    Raises:
        ComponentsError: If the labels contradict the input; the block is not entered.
        ValueError: If the engine is another word.
    """
    if engine not in ENGINES:
        raise ValueError(f"engine must be one of {', '.join(ENGINES)}, got {engine!r}")
    vertices = vertices.select(REP_ID)
    edges = EDGES.conform(edges)
    with Checkpoints(vertices.sparkSession, checkpoint_dir) as checkpoints:
        forest = checkpoints.cut(edges.mapInArrow(forest_batches, EDGES.ddl()))
        size = forest.count()
        with connect(forest, size, engine, one_task_edges, checkpoints) as stars:
            found = checkpoints.cut(label(vertices, stars))
        check_components(vertices, edges, found, forest_edges=size)
        yield LABELS.conform(found)


def connect(forest: DataFrame, size: int, engine: str, one_task_edges: int, checkpoints: Checkpoints) -> AbstractContextManager[DataFrame]:
    """Choose how a stored forest of `size` edges becomes stars: EDGES with the least id of the component on the left."""
    if size == 0:
        return nullcontext(forest)
    if engine == "graphframes":
        return graphframes_stars(forest, size, checkpoints)
    if size <= one_task_edges:
        return nullcontext(forest.coalesce(1).mapInArrow(forest_batches, EDGES.ddl()))
    return nullcontext(dataframe_stars(forest, checkpoints))


def label(vertices: DataFrame, stars: DataFrame) -> DataFrame:
    """Give every vertex the centre of its star, or itself where no star reaches it.

    Args:
        vertices: `rep_id`.
        stars: EDGES, the least id of a component on the left, each vertex at most once on the right.

    Returns:
        LABELS.
    """
    return vertices.join(stars, F.col(REP_ID) == F.col(RIGHT_ID), how="left").select(
        REP_ID, F.coalesce(LEFT_ID, REP_ID).alias(COMPONENT_ID)
    )


@contextmanager
def graphframes_stars(forest: DataFrame, size: int, checkpoints: Checkpoints) -> Iterator[DataFrame]:
    """Connect a stored forest with GraphFrames; only vertices that an edge touches enter the graph.

    Args:
        forest: Stored EDGES.
        size: Number of its edges.
        checkpoints: Stores what GraphFrames gets, so that it reads the same rows each time, and says where its own checkpoints go.

    Yields:
        EDGES: from the least id of each component to each of its vertices, itself included.
    """
    from graphframes import GraphFrame  # here, because only this engine needs it

    spark, folder, tasks = forest.sparkSession, checkpoints.folder, -(-size // EDGES_PER_TASK)
    forest = checkpoints.cut(forest.coalesce(tasks).mapInArrow(forest_batches, EDGES.ddl()))
    algorithm, broadcast_threshold = graphframes_dialect(spark)
    ends = forest.select(F.col(LEFT_ID).alias("id")).union(forest.select(RIGHT_ID)).distinct()
    graph = GraphFrame(ends, forest.select(F.col(LEFT_ID).alias("src"), F.col(RIGHT_ID).alias("dst")))

    def run() -> DataFrame:
        with few_partitions(spark, tasks), nullcontext() if folder is None else context_folder(spark, folder):
            labelled: DataFrame = graph.connectedComponents(
                algorithm=algorithm,
                checkpointInterval=1,
                broadcastThreshold=broadcast_threshold,
                useLabelsAsComponents=False,
                use_local_checkpoints=folder is None,
                max_iter=2**31 - 2,
                storage_level=StorageLevel.MEMORY_AND_DISK_DESER,
            )
            return labelled

    with borrowed(spark, run) as found:
        least = found.groupBy("component").agg(F.min("id").alias(LEFT_ID))
        yield found.join(least, on="component", how="inner").select(LEFT_ID, F.col("id").alias(RIGHT_ID))


@contextmanager
def few_partitions(spark: SparkSession, most: int) -> Iterator[None]:
    """Lower the shuffle partitions during the block, then put the session's settings back as they were.

    Adaptive execution is put back too: GraphFrames switches it off and leaves a setting behind where there was none.
    """
    before = {key: spark.conf.get(key, None) for key in (ADAPTIVE, PARTITIONS)}
    now = str(spark.conf.get(PARTITIONS))
    if now.isdigit():  # some platforms also know `auto`
        spark.conf.set(PARTITIONS, str(min(int(now), most)))
    try:
        yield
    finally:
        for key, value in before.items():
            if value is None:
                spark.conf.unset(key)
            else:
                spark.conf.set(key, value)


def graphframes_dialect(spark: SparkSession) -> tuple[str, int]:
    """Name of the label-propagation algorithm, and the broadcast threshold, that the loaded GraphFrames classes understand.

    A threshold of -1 leaves skew to adaptive execution from 0.11 on. In 0.10.1 it makes every vertex a hub instead: all ids come to
    the driver and go into one IN list. There the default of a million edges a hub stands.
    """
    from py4j.protocol import Py4JJavaError  # not with Spark Connect

    loader = spark.sparkContext._jvm.Thread.currentThread().getContextClassLoader()  # type: ignore[union-attr]
    try:
        loader.loadClass("org.graphframes.lib.TwoPhase$")
    except Py4JJavaError:
        return "graphframes", 1_000_000
    return "two_phase", -1


def dataframe_stars(forest: DataFrame, checkpoints: Checkpoints) -> DataFrame:
    """Connect a stored forest by alternating large-star and small-star steps until nothing moves.

    Source: Kiveris, Lattanzi, Mirrokni, Rastogi, Vassilvitskii, "Connected Components in MapReduce and Beyond", SoCC 2014.
    All edges of one vertex meet in one task, where the window spills to disk what does not fit.

    Returns:
        Stored EDGES: the least id of each component, to each of its other vertices.
    """
    edges, before = forest, fingerprint(forest)
    for _ in range(MAX_ROUNDS):
        following = checkpoints.cut(small_star(large_star(edges)))
        if edges is not forest:
            checkpoints.drop(edges)
        edges, after = following, fingerprint(following)
        if after == before:
            return edges
        before = after
    raise ComponentsError(f"large-star/small-star did not settle in {MAX_ROUNDS} rounds")


def large_star(edges: DataFrame) -> DataFrame:
    """Connect each vertex's larger neighbours to the least vertex of its neighbourhood, itself included."""
    mirrored = edges.select(F.col(RIGHT_ID).alias(LEFT_ID), F.col(LEFT_ID).alias(RIGHT_ID))
    least = F.least(LEFT_ID, F.expr(f"min({RIGHT_ID}) over (partition by {LEFT_ID})"))
    return (
        edges.union(mirrored)
        .select(LEFT_ID, RIGHT_ID, least.alias("least"))
        .where(F.col(RIGHT_ID) > F.col(LEFT_ID))
        .select(F.col("least").alias(LEFT_ID), RIGHT_ID)
        .distinct()
    )


def small_star(edges: DataFrame) -> DataFrame:
    """Connect each vertex and its smaller neighbours to the least of them; in and out, the smaller end is on the left."""
    least = F.expr(f"min({LEFT_ID}) over (partition by {RIGHT_ID})")
    ends = F.explode(F.array(LEFT_ID, RIGHT_ID))
    return (
        edges.select(LEFT_ID, RIGHT_ID, least.alias("least"))
        .select("least", ends.alias(RIGHT_ID))
        .where(F.col("least") != F.col(RIGHT_ID))
        .select(F.col("least").alias(LEFT_ID), RIGHT_ID)
        .distinct()
    )


def fingerprint(edges: DataFrame) -> Row | None:
    """Number and order-free 64-bit hash of distinct edges; equal fingerprints of two rounds mean that nothing moved."""
    return edges.agg(F.count("*"), F.expr(f"bit_xor(xxhash64({LEFT_ID}, {RIGHT_ID}))")).first()


def check_components(vertices: DataFrame, edges: DataFrame, found: DataFrame, *, forest_edges: int) -> None:
    """Refuse labels that contradict the vertices and edges they were made from.

    Args:
        vertices: `rep_id`.
        edges: All EDGES, as they were before any of them was replaced.
        found: Stored LABELS.
        forest_edges: Edges that are enough to connect everything; each joins two components at most.

    Raises:
        ComponentsError: If a vertex is lost, repeated or unknown, if an edge joins two components, if a label is not the least id
            that bears it, or if there are fewer components than the edges can explain.
    """
    counted = vertices.select(REP_ID, F.lit(1).alias("wanted"), F.lit(0).alias("labels")).union(found.select(REP_ID, F.lit(0), F.lit(1)))
    per_vertex = counted.groupBy(REP_ID).agg(F.sum("wanted").alias("wanted"), F.sum("labels").alias("labels"))
    per_component = found.groupBy(COMPONENT_ID).agg(F.min(REP_ID).alias("least"))
    left = found.select(F.col(REP_ID).alias(LEFT_ID), F.col(COMPONENT_ID).alias("left"))
    right = found.select(F.col(REP_ID).alias(RIGHT_ID), F.col(COMPONENT_ID).alias("right"))
    ends = edges.join(left, on=LEFT_ID, how="left").join(right, on=RIGHT_ID, how="left")
    report = (
        per_vertex.agg(
            F.count("*").alias("vertices"),
            F.count_if(F.col("labels") == 0).alias("lost"),
            F.count_if(F.col("wanted") == 0).alias("unknown"),
            F.count_if((F.col("wanted") > 1) | (F.col("labels") > 1)).alias("repeated"),
        )
        .crossJoin(per_component.agg(F.count("*").alias("components"), F.count_if(F.col("least") != F.col(COMPONENT_ID)).alias("high")))
        .crossJoin(ends.agg(F.count_if(~F.coalesce(F.col("left") == F.col("right"), F.lit(False))).alias("split")))
        .collect()[0]
    )
    merged = report.vertices - forest_edges - report.components
    faults = {
        "vertices without a label": report.lost,
        "labels of vertices that do not exist": report.unknown,
        "vertices that occur more than once": report.repeated,
        "components labelled with another id than their least": report.high,
        "edges between two components, or to vertices that do not exist": report.split,
        "components fewer than the edges allow": max(0, merged),
    }
    found_faults = [f"{count} {fault}" for fault, count in faults.items() if count]
    if found_faults:
        raise ComponentsError(
            f"labels of {report.vertices} vertices contradict their edges: {', '.join(found_faults)}",
            hint="check that the inputs are stored tables with unique ids; components.engine: dataframe does without GraphFrames",
        )
