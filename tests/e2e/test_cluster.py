"""The job as a separate process: under spark-submit, and on a standalone cluster with two workers."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import pyspark
import pytest
import yaml
from jobs import clusters_of, content, partition_of, save
from planted import families

from spark_dedup import schema
from spark_dedup.jars import installed, jar_folder, spark_line
from spark_dedup.session import BRIEF

ROOT = Path(__file__).parents[2]
SPARK_HOME = Path(pyspark.__file__).parent
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]  # processes and their Sparks start and stop

COMPARED = (schema.CLUSTERS, schema.CANDIDATE_PAIRS, schema.MEMBERS, schema.SET_ASIDE)


def environment(**extra):
    """The environment of a child process: this Python, and the planted encoder."""
    own = {k: v for k, v in os.environ.items() if not k.startswith(("PYSPARK_", "SPARK_")) or k == "SPARK_DEDUP_JARS"}
    path = os.pathsep.join([str(ROOT / "tests" / "data"), *filter(None, [os.environ.get("PYTHONPATH")])])
    java = {"SPARK_DAEMON_JAVA_OPTS": BRIEF, "SPARK_SUBMIT_OPTS": BRIEF}
    return {
        **own,
        **java,
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONPATH": path,
        "TZ": "UTC",
        **extra,
    }


@pytest.fixture(scope="module")
def source(spark, tmp_path_factory):
    """A source, its folder, the clusters that there are, and settings."""
    folder = tmp_path_factory.mktemp("cluster")
    rows, truth = families(500)  # 2,000 keys: enough tasks for every core of two workers
    settings = {
        "source": {"table": save(spark, rows, folder / "source"), "format": "delta", "id": "id", "text": "text"},
        "embed": {"encoder": "planted:encoder"},
        "search": {"shards": 2, "engine": "hnsw"},
    }
    return {"folder": folder, "settings": settings, "truth": {frozenset(t) for t in truth}}


def jars():
    """The jars of this Spark line, comma-separated."""
    there = installed(spark_line(), jar_folder(spark_line()))
    assert there, "run `spark-dedup jars` first"
    return ",".join(str(p) for p in there.paths)


def settings_file(source, name, sample=None, **search):
    """Settings into a store of their own."""
    store = source["folder"] / name
    settings = {
        **source["settings"],
        "store": str(store),
        "search": {**source["settings"]["search"], **search},
        "recall": {"sample": sample},
    }
    path = source["folder"] / f"{name}.yaml"
    path.write_text(yaml.safe_dump(settings))
    return path, store


@pytest.fixture(scope="module")
def submitted(spark, source):
    """What spark-submit on this machine printed, with the package as a zip file, and the tables that it made."""
    folder = source["folder"]
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(ROOT)]
    subprocess.run(build, check=True, timeout=300)
    (wheel,) = folder.glob("spark_dedup-*.whl")
    wheel = wheel.rename(folder / "spark_dedup.zip")  # Spark puts zip files on the path of the executors, wheels not
    path, store = settings_file(source, "submitted")
    command = [str(SPARK_HOME / "bin" / "spark-submit"), "--master", "local[2]", "--jars", jars(), "--py-files", str(wheel)]
    for conf in ("ui.enabled=false", "sql.shuffle.partitions=4", "driver.host=127.0.0.1", "databricks.delta.snapshotPartitions=2"):
        command += ["--conf", f"spark.{conf}"]
    command += [str(ROOT / "scripts" / "submit.py"), "run", "--config", str(path)]
    done = subprocess.run([*command, "--json"], env=environment(), cwd=folder, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    tables = {t.name: content(spark, store, t) for t in COMPARED}
    return {"command": command, "printed": done.stdout, "store": store, "tables": tables}


def test_spark_submit_with_the_wheel_finds_the_clusters_that_there_are(spark, source, submitted):
    printed = submitted["printed"]
    manifest = json.loads(printed[printed.index("{\n") :])  # spark-submit puts stderr and stdout of Python into one
    assert manifest["did_work"]
    assert partition_of(clusters_of(spark, submitted["store"])) == source["truth"]
    wrong = [*submitted["command"], "--set", "search.floor=7"]
    refused = subprocess.run(wrong, env=environment(), cwd=source["folder"], capture_output=True, text=True, timeout=300)
    assert refused.returncode != 0
    assert "search.floor must be a number in (0, 1], got 7" in refused.stdout + refused.stderr


@pytest.fixture(scope="module")
def master(tmp_path_factory):
    """A standalone master with two workers of two cores each, from the pip package."""
    folder = tmp_path_factory.mktemp("standalone")
    port, web = free_port(), free_port()
    spark_class = str(SPARK_HOME / "bin" / "spark-class")
    url = f"spark://127.0.0.1:{port}"
    started = []

    def start(name, *arguments):
        log = (folder / f"{name}.log").open("w")
        env = environment(SPARK_LOCAL_DIRS=str(folder / f"{name}-local"), SPARK_NO_DAEMONIZE="1")
        started.append((subprocess.Popen([spark_class, *arguments], env=env, stdout=log, stderr=subprocess.STDOUT, cwd=folder), log))
        return folder / f"{name}.log"

    log = start("master", "org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", str(web))
    wait_for(log, r"Starting Spark master")
    for name in ("one", "two"):
        worker = "org.apache.spark.deploy.worker.Worker"
        options = ["--host", "127.0.0.1", "--cores", "2", "--memory", "1g", "--webui-port", str(free_port())]
        log = start(name, worker, *options, "--work-dir", str(folder / name / "work"), url)
        wait_for(log, r"Successfully registered with master")
    yield url
    for process, log in reversed(started):
        process.terminate()
        process.wait(timeout=30)
        log.close()


def free_port():
    """A port that nothing listens on."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def wait_for(log, pattern, seconds=60):
    """Wait until a log says something."""
    end = time.monotonic() + seconds
    while not re.search(pattern, log.read_text(errors="replace")):
        assert time.monotonic() < end, f"{log.name} never said {pattern!r}:\n{log.read_text(errors='replace')[-2000:]}"
        time.sleep(0.2)


@pytest.mark.parametrize("placement", ["broadcast", pytest.param("partitioned", marks=pytest.mark.long)])
def test_a_standalone_cluster_gives_the_same_tables_with_one_copy_of_the_index_per_executor(spark, source, submitted, master, placement):
    path, store = settings_file(source, f"cluster-{placement}", sample=200 if placement == "broadcast" else None, placement=placement)
    job = ROOT / "tests" / "data" / "cluster_job.py"
    done = subprocess.run(
        [sys.executable, str(job), master, jars(), str(path)], env=environment(), capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout.strip().splitlines()[-1])
    assert {t.name: content(spark, store, t) for t in COMPARED} == submitted["tables"]
    assert told["executors"] == 2
    assert told["placement"] == placement
    assert told["changed_confs"] == []
    assert ("n = 200" in told["recall"]) == (placement == "broadcast")
    if spark_line() == "3.5":
        assert told["engine"] == "graphframes"
    assert not list((store / "_checkpoints").glob("*"))  # nothing is left behind
    if placement == "broadcast":
        check_one_copy(told["mapped"])


def check_one_copy(mapped):
    """Each executor has one file per shard, and its Python workers, several of them, map that same file."""
    graphs = [p for p in mapped if p.endswith("graph.faiss")]
    executors = {os.path.dirname(p) for p in graphs}
    assert executors, f"no worker had an index mapped: {mapped}"
    for folder in executors:
        names = [os.path.basename(p) for p in graphs if os.path.dirname(p) == folder]
        assert len(names) == len(set(names)) <= 2, "two shards: at most two files"
    assert max(len(mapped[p]) for p in graphs) >= 2, f"two workers of one executor should share a file: {mapped}"
