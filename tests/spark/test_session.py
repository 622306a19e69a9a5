"""Sessions: an existing one stays as it is, a launched one gets only what it lacks, and what a probe says is true."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from spark_dedup.errors import EnvironmentProblem
from spark_dedup.jars import installed, jar_folder, spark_line
from spark_dedup.session import DELTA_CONFS, DELTA_EXTENSION, get_session, load_class, local_session, probe, require_delta

HERE = Path(__file__).parent


def settings(spark) -> tuple[dict[str, str], dict[str, str]]:
    """All settings of the session and of its context."""
    return {row.key: row.value for row in spark.sql("SET").collect()}, dict(spark.sparkContext.getConf().getAll())


def test_an_existing_session_is_taken_and_left_as_it_is(spark, spark_conf):
    spark_conf("spark.sql.shuffle.partitions", "3")  # a user's own choice
    spark_conf("spark.sql.session.timeZone", "Asia/Tokyo")
    before = settings(spark)
    assert get_session(spark) is spark
    assert get_session() is spark
    require_delta(probe(spark))
    assert settings(spark) == before


def test_the_session_of_another_thread_is_taken(spark):
    got: list[object] = []
    thread = threading.Thread(target=lambda: got.append(get_session()))
    thread.start()
    thread.join()
    assert got == [spark]


def test_a_second_local_session_is_refused(spark):
    with pytest.raises(EnvironmentProblem, match="already has a Spark session"):
        local_session("local[1]")


def test_probe_tells_what_is_there(spark):
    import pyspark

    caps = probe(spark)
    assert caps.spark == pyspark.__version__
    assert (caps.connect, caps.local, caps.parallelism, caps.executors) == (False, True, 2, 1)
    assert caps.scala is not None and caps.scala.startswith("2.12." if caps.spark.startswith("3.5") else "2.13.")
    assert caps.java is not None and caps.java.split(".")[0] in ("11", "17", "21")
    assert caps.delta and caps.delta_reason is None
    assert caps.delta_version == ("3.3.2" if caps.spark.startswith("3.5") else "4.4.0")
    assert caps.max_result_bytes == 1 << 30  # Spark's default of 1g
    assert caps.checkpoint_dir is None


def test_probe_reads_the_limit_of_results_in_any_unit(spark, tmp_path):
    # A context's settings are fixed once it runs, so a process of its own.
    code = (
        "from spark_dedup.session import local_session, probe\n"
        "s = local_session('local[1]', **{'spark.driver.maxResultSize': '64m'})\n"
        f"s.sparkContext.setCheckpointDir({str(tmp_path)!r})\n"
        "c = probe(s)\n"
        "print('ANSWER', c.max_result_bytes, c.checkpoint_dir)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    answer = next(line for line in done.stdout.splitlines() if line.startswith("ANSWER"))
    assert answer.split()[1] == str(64 << 20)
    assert str(tmp_path) in answer.split()[2]
    assert not [p.name for p in tmp_path.iterdir() if p.name in ("spark-warehouse", "metastore_db", "derby.log")]


def test_graphframes_is_found_exactly_where_its_classes_can_be_loaded(spark):
    caps = probe(spark)
    loadable = load_class(spark.sparkContext._jvm, "org.graphframes.GraphFramePythonAPI") is not None
    assert caps.graphframes is loadable
    assert (caps.graphframes_reason is None) is loadable
    assert load_class(spark.sparkContext._jvm, "org.graphframes.NoSuchClass") is None


def test_graphframes_found_means_that_it_runs(spark, graphframes_available):
    from graphframes import GraphFrame

    vertices = spark.createDataFrame([(1,), (2,), (3,)], "id long")
    edges = spark.createDataFrame([(1, 2)], "src long, dst long")
    assert GraphFrame(vertices, edges).degrees.count() == 2


def submit(tmp_path: Path, *confs: str) -> dict[str, object]:
    """What `get_session` makes of a session that spark-submit launches with the given settings."""
    script = tmp_path / "main.py"
    script.write_text(
        "import json, os\n"
        "from spark_dedup.session import get_session, probe\n"
        "spark = get_session()\n"
        "keys = ['spark.sql.extensions', 'spark.sql.catalog.spark_catalog', 'spark.app.name', 'spark.sql.shuffle.partitions']\n"
        "out = {k: spark.conf.get(k, None) for k in keys}\n"
        "print('ANSWER' + json.dumps({**out, 'delta': probe(spark).delta}))\n"
    )
    import pyspark

    command = [str(Path(pyspark.__file__).parent / "bin" / "spark-submit"), "--master", "local[1]", "--name", "users-own"]
    for conf in ("spark.ui.enabled=false", "spark.driver.host=127.0.0.1", "spark.driver.bindAddress=127.0.0.1", *confs):
        command += ["--conf", conf]
    environment = {**os.environ, "SPARK_HOME": ""}
    done = subprocess.run([*command, str(script)], capture_output=True, text=True, check=False, cwd=tmp_path, env=environment)
    answers = [line for line in done.stdout.splitlines() if line.startswith("ANSWER")]
    assert answers, done.stderr[-2000:]
    return dict(json.loads(answers[0].removeprefix("ANSWER")))


def delta_jars() -> str:
    line = spark_line()
    there = installed(line, jar_folder(line))
    assert there is not None
    return "spark.jars=" + ",".join(str(path) for path in there.paths)


def test_under_spark_submit_delta_is_switched_on_and_nothing_else_changed(tmp_path):
    answer = submit(tmp_path, delta_jars(), "spark.sql.shuffle.partitions=7")
    assert answer == {**DELTA_CONFS, "spark.app.name": "users-own", "spark.sql.shuffle.partitions": "7", "delta": True}


def test_under_spark_submit_the_users_extensions_win(tmp_path):
    answer = submit(tmp_path, delta_jars(), "spark.sql.extensions=io.delta.sql.DeltaSparkSessionExtension,made.up.Extension")
    assert answer["spark.sql.extensions"] == f"{DELTA_EXTENSION},made.up.Extension"
    assert answer["spark.sql.catalog.spark_catalog"] != DELTA_CONFS["spark.sql.catalog.spark_catalog"]
