"""One Spark session for the whole run, made only when a test asks for it: `tests/unit` needs no JVM."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

HERE = Path(__file__).parent
JARS = HERE.parent / ".jars"

# Before pyspark is imported: workers must be this Python and find the package and the modules in tests/data.
os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE.parent), str(HERE / "data"), *filter(None, [os.environ.get("PYTHONPATH")])])
if JARS.is_dir():
    os.environ.setdefault("SPARK_DEDUP_JARS", str(JARS))  # also for processes that tests start elsewhere
os.environ["TZ"] = "UTC"
time.tzset()
sys.path.insert(0, str(HERE / "data"))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory):
    """A session on two cores, with Delta, whose scratch files lie in pytest's folder."""
    from spark_dedup.session import SMALL, local_session

    scratch = tmp_path_factory.mktemp("spark")
    # The quick suite looks for what depends on the Spark line, not on whether plans are compiled; a fifth less time.
    quick = {**SMALL, "spark.sql.adaptive.enabled": "true"} if os.environ.get("QUICK") else {}
    session = local_session(
        "local[2]",
        # A sixth less processor time than with G1, on two cores; and room for the code of all the plans that are compiled.
        java="-XX:+UseSerialGC -XX:ReservedCodeCacheSize=512m",
        **{
            "spark.driver.memory": "4g",
            # Hundreds of runs: what Spark remembers of finished queries would fill the heap.
            "spark.ui.retainedJobs": "20",
            "spark.ui.retainedStages": "20",
            "spark.sql.ui.retainedExecutions": "20",
            "spark.sql.shuffle.partitions": "4",
            "spark.databricks.delta.snapshotPartitions": "1",
            "spark.local.dir": str(scratch / "local"),
            "spark.sql.warehouse.dir": (scratch / "warehouse").as_uri(),
            **quick,
        },
    )
    yield session
    session.stop()


@pytest.fixture
def spark_conf(spark):
    """A function that sets one setting of the session; the old values come back when the test ends."""
    before: dict[str, str | None] = {}

    def put(key: str, value: str) -> None:
        before.setdefault(key, spark.conf.get(key, None))
        spark.conf.set(key, value)

    yield put
    for key, value in before.items():
        if value is None:
            spark.conf.unset(key)
        else:
            spark.conf.set(key, value)


@pytest.fixture(scope="session")
def graphframes_available(spark):
    """Skips where GraphFrames' classes are not to be had; on Spark 3.5 they must be there, so that line fails instead."""
    from spark_dedup.session import probe

    caps = probe(spark)
    if not caps.graphframes:
        if caps.spark.startswith("3.5"):
            pytest.fail(f"GraphFrames must run on Spark 3.5: {caps.graphframes_reason}")
        pytest.skip(f"no GraphFrames on Spark {caps.spark}: {caps.graphframes_reason}")


@pytest.fixture(scope="session")
def postgres():
    """Settings of a Postgres server with pgvector, which `admin` reaches as its superuser; the role `guarded` needs a password."""
    import pgvector_server

    with pgvector_server.running() as server:
        yield server


@pytest.fixture
def store_dir(tmp_path: Path) -> str:
    """An empty folder for the tables of one run."""
    folder = tmp_path / "store"
    folder.mkdir()
    return str(folder)
