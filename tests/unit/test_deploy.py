"""The containers, the settings files and the versions that are stated in more than one place agree with each other."""

from __future__ import annotations

import re
import shlex
import sys
import zipfile
from pathlib import Path

import pytest
import yaml

from spark_dedup.config_file import load_config
from spark_dedup.jars import LINES

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
DOCKERFILE = (ROOT / "docker" / "Dockerfile").read_text(encoding="utf-8")
COMPOSE = yaml.safe_load((ROOT / "docker" / "compose.yaml").read_text(encoding="utf-8"))
SERVICES = COMPOSE["services"]


def pins(extra: str) -> dict[str, str]:
    return dict(re.findall(r"^([\w-]+)==([\w.]+)$", "\n".join(EXTRAS[extra]), re.M))


@pytest.mark.parametrize("line", LINES)
def test_jars_are_those_of_the_pinned_python_packages(line):
    pinned = pins("spark" + line.replace(".", ""))
    assert pinned["pyspark"].startswith(line + ".")
    assert LINES[line].delta.rsplit(":", 1)[1] == pinned["delta-spark"]
    # The newest wrapper of a line may be a patch ahead of its newest jar, never a minor version.
    assert LINES[line].graphframes.rsplit(":", 1)[1].split(".")[:2] == pinned["graphframes-py"].split(".")[:2]


def test_every_line_has_an_extra_and_the_extra_is_the_only_place_that_pulls_spark():
    assert {"spark" + line.replace(".", "") for line in LINES} <= set(EXTRAS)
    assert not [d for d in PROJECT["dependencies"] if d.startswith(("pyspark", "delta", "graphframes"))]


def test_the_image_takes_its_versions_from_the_project():
    extras = dict(re.findall(r"^ARG (\w+_EXTRA)=(\w+)$", DOCKERFILE, re.M))
    assert extras.keys() == {"SPARK_EXTRA", "ENCODER_EXTRA"} and set(extras.values()) <= set(EXTRAS)
    assert not re.findall(r"==[\d.]+", DOCKERFILE)
    python = tuple(map(int, re.findall(r"^FROM python:(\d+)\.(\d+)-", DOCKERFILE, re.M)[0]))
    low, high = (tuple(map(int, v.split("."))) for v in re.findall(r"\d+\.\d+", PROJECT["requires-python"]))
    assert low <= python < high


def test_everything_that_the_image_copies_is_in_the_project():
    copied = [word for line in re.findall(r"^COPY (.+)$", DOCKERFILE, re.M) for word in line.split()[:-1]]
    assert "spark_dedup" in copied
    assert [name for name in copied if not (ROOT / name).exists()] == []


def test_containers_are_a_master_two_workers_and_one_that_submits_all_of_one_image():
    assert set(SERVICES) == {"master", "worker-1", "worker-2", "submit"}
    assert {service["image"] for service in SERVICES.values()} == {f"spark-dedup:{PROJECT['version']}"}
    for service in SERVICES.values():
        build = service["build"]
        assert (ROOT / "docker" / build["context"] / build["dockerfile"]).resolve() == ROOT / "docker" / "Dockerfile"
        assert set(build["args"].values()) <= set(EXTRAS)
        assert [volume.split(":")[0] for volume in service["volumes"]] == list(COMPOSE["volumes"]) == ["data"]


def test_a_container_waits_only_for_containers_that_tell_their_health():
    for service in SERVICES.values():
        for name, wait in service.get("depends_on", {}).items():
            assert wait == {"condition": "service_healthy"} and "healthcheck" in SERVICES[name]
    assert set(SERVICES["submit"]["depends_on"]) == {"worker-1", "worker-2"}
    assert set(SERVICES["worker-1"]["depends_on"]) == {"master"}


def test_health_is_asked_at_the_port_that_the_process_opens():
    for name in ("master", "worker-1", "worker-2"):
        command = SERVICES[name]["command"]
        port = command[command.index("--webui-port") + 1]
        assert f"http://localhost:{port}'" in SERVICES[name]["healthcheck"]["test"][-1]


def test_master_and_workers_run_classes_that_spark_has_and_meet_at_one_address():
    pyspark = pytest.importorskip("pyspark")
    core = next((Path(pyspark.__file__).parent / "jars").glob("spark-core_*.jar"))
    classes = set(zipfile.ZipFile(core).namelist())
    for name in ("master", "worker-1", "worker-2"):
        program, main, *arguments = SERVICES[name]["command"]
        assert program == "spark-class" and main.replace(".", "/") + ".class" in classes
        assert all(isinstance(word, str) for word in arguments)
    command = SERVICES["master"]["command"]
    address = f"spark://{command[command.index('--host') + 1]}:{command[command.index('--port') + 1]}"
    assert SERVICES["master"]["hostname"] == "master"
    assert SERVICES["worker-1"]["command"][2] == SERVICES["worker-2"]["command"][2] == address
    assert f"MASTER:-{address}}}" in (ROOT / "docker" / "submit.sh").read_text(encoding="utf-8")


def test_the_submitting_container_runs_the_script_that_the_image_holds():
    *_, shell, script = SERVICES["submit"]["entrypoint"]
    assert shell == "/bin/sh"
    assert script == "/opt/spark_dedup/docker/submit.sh" and "COPY docker/submit.sh ./docker/submit.sh" in DOCKERFILE
    words = shlex.split((ROOT / "docker" / "submit.sh").read_text(encoding="utf-8").replace("\\\n", " "), comments=True)
    assert "spark-submit" in words and "spark.sql.extensions=io.delta.sql.DeltaSparkSessionExtension" in words


@pytest.mark.parametrize("name", ["base", "demo", "databricks", "emr"])
def test_every_settings_file_can_be_used_as_it_is(name):
    config = load_config(ROOT / "conf" / f"{name}.yaml")
    assert config.components.engine == "auto"
    assert config.embed.encoder == ("use" if name in ("demo", "emr") else "sentence-transformers")


def test_settings_for_platforms_name_a_checkpoint_folder_that_all_machines_share():
    for name, start in [("databricks", "/Volumes/"), ("emr", "hdfs:///")]:
        assert str(load_config(ROOT / "conf" / f"{name}.yaml").components.checkpoint_dir).startswith(start)
