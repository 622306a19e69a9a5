"""The Spark session: the caller's, the launcher's, or a local one; and what it can do.

A session that already exists is never reconfigured.
"""

from __future__ import annotations

import atexit
import importlib.metadata
import importlib.util
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spark_dedup.errors import EnvironmentProblem, first_line
from spark_dedup.jars import LINES, installed, jar_folder, spark_line

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DELTA_EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"
DELTA_CATALOG = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
DELTA_CONFS = {"spark.sql.extensions": DELTA_EXTENSION, "spark.sql.catalog.spark_catalog": DELTA_CATALOG}
GRAPHFRAMES_CLASS = "org.graphframes.GraphFramePythonAPI"
CONNECT_PARALLELISM = 32
"""Spark Connect does not tell how many tasks run at once; more than one machine's, not enough to be mostly overhead."""

BRIEF = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m -XX:+UseSerialGC"
"""Java options of a process that ends before optimised code pays: starting, one table and one small run took 53 s of processor time with
them and 102 s without; from the fourth run on they gain nothing. Without the optimising compiler Java would keep 48 MB of code, which one
run fills."""

SMALL = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.databricks.delta.snapshotPartitions": "1",
}
"""Spark settings for some thousand rows, where compiling a plan takes longer than running it: a small run took 38 s with them and 52 s
without. They change no result and are wrong for large tables."""

METASPACE = "-XX:MetaspaceSize=512m"
"""Java option against collections of the whole heap, one each time that the classes Spark compiles pass a mark which starts at 21 MB."""

NO_SOURCE = ("DATA_SOURCE_NOT_FOUND", "find the data source", "find data source")
"""What Spark answers when it does not know the word `delta`."""

LAUNCHERS = ("PYSPARK_GATEWAY_PORT", "SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED", "DATABRICKS_RUNTIME_VERSION")
"""Environment variables of spark-submit, Spark Connect and Databricks: where they are set, the session is theirs to make."""


@dataclass(frozen=True)
class Capabilities:
    """What a session can do.

    Args:
        spark: Spark version.
        scala: Scala version; None behind Spark Connect.
        java: Java version of the driver; None behind Spark Connect.
        connect: Whether this is a Spark Connect session, which has no SparkContext.
        delta: Whether Delta tables can be read and written.
        delta_version: Version of Delta, where it says so.
        delta_reason: What Delta lacks; None where it is there.
        graphframes: Whether GraphFrames can run.
        graphframes_version: Version of its Python wrapper; None without one.
        graphframes_reason: What GraphFrames lacks; None where it can run.
        local: Whether driver and executors are one process.
        parallelism: Tasks that run at once, as Spark sees it.
        executors: Processes that run tasks.
        max_result_bytes: Bytes that one action may bring to the driver; 0 means no limit.
        checkpoint_dir: Checkpoint folder of the context, None where it has none.
    """

    spark: str
    scala: str | None
    java: str | None
    connect: bool
    delta: bool
    delta_version: str | None
    delta_reason: str | None
    graphframes: bool
    graphframes_version: str | None
    graphframes_reason: str | None
    local: bool
    parallelism: int
    executors: int
    max_result_bytes: int
    checkpoint_dir: str | None


def get_session(spark: SparkSession | None = None, *, java: str = "", conf: Mapping[str, str] | None = None) -> SparkSession:
    """The session to work in: the one given, else the active one, else the launcher's, else a local one.

    Args:
        spark: Session to use.
        java: Java options of a local one, such as `BRIEF`.
        conf: Spark settings of a local one, such as `SMALL`.

    Raises:
        EnvironmentProblem: If there is none and a local one can not be started.
    """
    if spark is not None:
        return spark
    active = active_session()
    if active is not None:
        return active
    if any(os.environ.get(name) for name in LAUNCHERS):
        return launched_session()
    return local_session(java=java, **(conf or {}))


def active_session() -> SparkSession | None:
    """The session that this process already has, from whichever thread; None where there is none."""
    try:
        from pyspark.errors import PySparkException
        from pyspark.sql import SparkSession
    except ImportError:
        return None
    try:
        session = SparkSession.active()
    except PySparkException:
        return None
    stopped = not is_connect(session) and getattr(session.sparkContext, "_jsc", None) is None
    return None if stopped else session


def launched_session() -> SparkSession:
    """The session of a launcher (spark-submit, Connect, Databricks), with Delta's two settings where it left both unset."""
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    builder = SparkSession.builder
    if os.environ.get("PYSPARK_GATEWAY_PORT") and not os.environ.get("DATABRICKS_RUNTIME_VERSION"):
        SparkContext._ensure_initialized()  # only now does SparkConf show what spark-submit was given
        given = SparkConf()
        jvm = SparkContext._jvm
        if jvm is not None and not any(given.contains(key) for key in DELTA_CONFS) and load_class(jvm, DELTA_EXTENSION):
            for key, value in DELTA_CONFS.items():
                builder = builder.config(key, value)
    return builder.getOrCreate()


def local_session(master: str = "local[*]", *, java: str = "", **conf: str) -> SparkSession:
    """Start a session on this machine, with Delta, and with GraphFrames where its jar was brought.

    Args:
        master: Spark master; `local[2]` is two cores of this machine.
        java: Java options beside its own, such as `BRIEF`.
        **conf: Spark settings that win over those made here: `local_session(**{"spark.driver.memory": "8g"})`.

    Raises:
        EnvironmentProblem: If PySpark or Java is missing, or this process already has a session.
    """
    line = spark_line()
    from py4j.java_gateway import java_import
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    if active_session() is not None:
        raise EnvironmentProblem("this process already has a Spark session", hint="pass it on, or stop it first: spark.stop()")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # workers must find the same packages
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    builder = SparkSession.builder.master(master).appName("spark-dedup")
    for key, value in {**local_confs(line, java), **conf}.items():
        builder = builder.config(key, value)
    try:
        spark = builder.getOrCreate()
    except (PySparkException, OSError) as e:
        raise EnvironmentProblem(f"Spark could not be started: {first_line(e)}", hint="spark-dedup doctor") from e
    # Every F.col looks this class up by its short name; unknown to the bridge, it is searched for in all of some 250 jars.
    java_import(spark.sparkContext._jvm, "org.apache.spark.sql.functions")
    return spark


def local_confs(line: str, java: str = "") -> dict[str, str]:
    """Settings of a local session, except its master."""
    folder = Path(tempfile.mkdtemp(prefix="spark-dedup-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    logging = Path(__file__).parent / "data" / "log4j2.properties"
    derby = f"-Dderby.system.home={folder}"
    confs = {
        **DELTA_CONFS,
        "spark.driver.memory": f"{driver_memory_gib()}g",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={logging.as_uri()} {derby} {METASPACE} {java}".rstrip(),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": str(2 * (os.cpu_count() or 1)),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.warehouse.dir": (folder / "warehouse").as_uri(),
        # Only read when the caller asks for a Hive catalog; keeps metastore_db out of the working folder.
        "spark.hadoop.javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={folder}/metastore_db;create=true",
        "spark.sql.codegen.cache.maxEntries": "1000",  # a run compiles some 300 plans; the default is 100
        "spark.databricks.delta.snapshotPartitions": "2",  # the default of 50 is 50 tasks for every small table
    }
    there = installed(line, jar_folder(line))
    if there:
        confs["spark.jars"] = ",".join(path.as_uri() for path in there.paths)
    else:
        confs["spark.jars.packages"] = LINES[line].delta
    return confs


def driver_memory_gib() -> int:
    """Heap of a local session: half the machine, at least 1 and at most 4 GiB; workers and indexes need the rest."""
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 8 << 30
    return max(1, min(4, pages // (2 << 30)))


def probe(spark: SparkSession) -> Capabilities:
    """Find out what a session can do; changes nothing in it."""
    version = str(spark.version)
    if is_connect(spark):
        missing = connect_delta_reason(spark)
        return Capabilities(
            spark=version,
            scala=None,
            java=None,
            connect=True,
            delta=missing is None,
            delta_version=None,
            delta_reason=missing,
            graphframes=False,
            graphframes_version=package_version("graphframes-py"),
            graphframes_reason="a Spark Connect session has no JVM to load it in",
            local=False,
            parallelism=CONNECT_PARALLELISM,
            executors=1,
            max_result_bytes=1 << 30,
            checkpoint_dir=None,
        )
    context = spark.sparkContext
    jvm: Any = context._jvm
    scala_context, master = context._jsc.sc(), str(context.master)
    one_process = master.startswith("local") and not master.startswith("local-cluster")
    delta_reason = None
    if not load_class(jvm, DELTA_EXTENSION):
        delta_reason = f"the class {DELTA_EXTENSION} can not be loaded"
    elif not is_databricks(spark) and DELTA_EXTENSION not in str(spark.conf.get("spark.sql.extensions", "")):
        delta_reason = f"spark.sql.extensions does not name {DELTA_EXTENSION}"
    graphframes_reason = None
    if not load_class(jvm, GRAPHFRAMES_CLASS):
        graphframes_reason = f"the class {GRAPHFRAMES_CLASS} can not be loaded (its jar is not with this session)"
    elif importlib.util.find_spec("graphframes") is None:
        graphframes_reason = "the Python package graphframes-py is not installed"
    checkpoints = scala_context.getCheckpointDir()
    return Capabilities(
        spark=version,
        scala=str(jvm.scala.util.Properties.versionNumberString()),
        java=str(jvm.System.getProperty("java.version")),
        connect=False,
        delta=delta_reason is None,
        delta_version=class_version(jvm, DELTA_EXTENSION),
        delta_reason=delta_reason,
        graphframes=graphframes_reason is None,
        graphframes_version=package_version("graphframes-py"),
        graphframes_reason=graphframes_reason,
        local=one_process,
        parallelism=int(context.defaultParallelism),
        executors=max(1, int(scala_context.getExecutorMemoryStatus().size()) - (not one_process)),  # the driver is among them
        max_result_bytes=int(scala_context.conf().getSizeAsBytes("spark.driver.maxResultSize", "1g")),
        checkpoint_dir=str(checkpoints.get()) if checkpoints.isDefined() else None,
    )


def require_delta(caps: Capabilities) -> None:
    """Stop before any work where Delta tables can not be read and written.

    Raises:
        EnvironmentProblem: Naming what is missing and what to type.
    """
    if not caps.delta:
        line = ".".join(caps.spark.split(".")[:2])
        coordinate = LINES[line].delta if line in LINES else "io.delta:delta-spark_..."
        raise EnvironmentProblem(
            f"this Spark session can not use Delta tables: {caps.delta_reason}",
            hint=f"start it with --packages {coordinate} "
            + " ".join(f"--conf {key}={value}" for key, value in DELTA_CONFS.items())
            + ", or pass no session and let a local one be made",
        )


def components_engine(caps: Capabilities, wanted: str) -> tuple[str, str]:
    """Decide which engine finds the connected components.

    Args:
        caps: Of the session.
        wanted: `auto`, `graphframes` or `dataframe`, as in `components.engine`.

    Returns:
        `graphframes` or `dataframe`, and the reason, one line.

    Raises:
        EnvironmentProblem: If GraphFrames is asked for by name and can not run.
    """
    if wanted == "dataframe":
        return "dataframe", "components.engine says so"
    if caps.graphframes:
        return "graphframes", "its classes can be loaded" if wanted == "auto" else "components.engine says so"
    if wanted == "auto":
        return "dataframe", f"GraphFrames can not run here: {caps.graphframes_reason}"
    raise EnvironmentProblem(
        f"components.engine is 'graphframes', but GraphFrames can not run here: {caps.graphframes_reason}",
        hint=f"{graphframes_fix(caps)}; or set components.engine to auto",
    )


def graphframes_fix(caps: Capabilities) -> str:
    """What to type so that GraphFrames can run."""
    line = ".".join(caps.spark.split(".")[:2])
    if caps.connect:
        return "use a classic session (on Databricks: dedicated access mode)"
    if caps.graphframes_reason and "graphframes-py" in caps.graphframes_reason:
        return "pip install graphframes-py"
    if caps.local and line in LINES:
        return f"spark-dedup jars, or start Spark with --packages {LINES[line].graphframes}"
    return f"start Spark with --packages {LINES[line].graphframes}" if line in LINES else "start Spark with GraphFrames' jar"


def is_connect(spark: SparkSession) -> bool:
    """Whether this is a Spark Connect session; asks the class, since asking the session could start something."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def is_databricks(spark: SparkSession) -> bool:
    """Whether this is a Databricks cluster, where Delta is built in."""
    return bool(os.environ.get("DATABRICKS_RUNTIME_VERSION")) or bool(
        spark.conf.get("spark.databricks.clusterUsageTags.sparkVersion", None)
    )


def connect_delta_reason(spark: SparkSession) -> str | None:
    """What Delta lacks behind Spark Connect: there are no classes to ask for, so a folder that can not exist is read."""
    try:
        _ = spark.read.format("delta").load("/spark-dedup-does-not-exist").schema
    except Exception as e:  # whatever it is, only its text tells
        text = str(e)
        return f"Spark answered: {first_line(e)}" if any(words in text for words in NO_SOURCE) else None
    return None


def load_class(jvm: Any, name: str) -> Any | None:
    """A class as the session would load it: jar names tell nothing on platforms that rename them."""
    try:
        return jvm.java.lang.Thread.currentThread().getContextClassLoader().loadClass(name)
    except Exception as e:  # py4j wraps every Java throwable in one type; a broken jar throws errors, not exceptions
        if "ClassNotFound" in str(e) or "NoClassDefFound" in str(e) or "LinkageError" in str(e):
            return None
        raise


def class_version(jvm: Any, name: str) -> str | None:
    """Version in the manifest of the jar that holds a class."""
    found = load_class(jvm, name)
    package = found.getPackage() if found is not None else None
    version = package.getImplementationVersion() if package is not None else None
    return str(version) if version else None


def package_version(name: str) -> str | None:
    """Version of an installed Python distribution."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
