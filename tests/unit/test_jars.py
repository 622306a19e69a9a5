"""Which classes are taken from an archive, what counts as a finished folder, and where the folder is looked for."""

from __future__ import annotations

import io
import json
import os
import zipfile
from pathlib import Path

import pytest

from spark_dedup import jars
from spark_dedup.errors import EnvironmentProblem

WANTED = {
    "org/graphframes/GraphFramePythonAPI.class": b"api",
    "org/graphframes/lib/ConnectedComponents$.class": b"cc",
    "org/apache/spark/graphframes/graphx/Graph.class": b"graphx",
    "org/apache/spark/sql/graphframes/expressions/KMinSampling.class": b"sql",
}
OTHERS = {
    "zingg/Main.class": b"main",
    "org/graphframesque/Other.class": b"a longer folder name",
    "org/apache/spark/sql/Dataset.class": b"spark's own",
    "org/apache/spark/graphx/Graph.class": b"spark's own",
    "META-INF/maven/pom.xml": b"<pom/>",
}


def archive(entries: dict[str, bytes]) -> zipfile.ZipFile:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as out:
        out.writestr("org/graphframes/", b"")  # a folder entry
        for name, content in entries.items():
            out.writestr(name, content)
    return zipfile.ZipFile(data)


def test_takes_graphframes_classes_unchanged_and_nothing_else(tmp_path: Path):
    target = tmp_path / "classes.jar"
    assert jars.select_classes(archive({**OTHERS, **WANTED}), target, "made-up==1") == len(WANTED)
    with zipfile.ZipFile(target) as made:
        names = set(made.namelist())
        assert names == {*WANTED, "META-INF/MANIFEST.MF", "META-INF/NOTICE"}
        assert {n: made.read(n) for n in WANTED} == WANTED
        assert b"made-up==1" in made.read("META-INF/NOTICE")
        assert b"Apache License, Version 2.0" in b" ".join(made.read("META-INF/NOTICE").split())


def test_the_same_classes_give_the_same_file_whatever_their_order(tmp_path: Path):
    one, two = tmp_path / "one.jar", tmp_path / "two.jar"
    jars.select_classes(archive(WANTED), one, "made-up==1")
    jars.select_classes(archive(dict(reversed(WANTED.items()))), two, "made-up==1")
    assert one.read_bytes() == two.read_bytes()


@pytest.mark.parametrize(
    ("jar", "name"),
    [
        ("hadoop-client-api-3.3.4.jar", "hadoop-client-api"),
        ("spark-core_2.12-3.5.9.jar", "spark-core_2.12"),
        ("zstd-jni-1.5.7-3.jar", "zstd-jni"),
        ("log4j-1.2-api-2.20.0.jar", "log4j"),  # ambiguous by name alone; nothing that is fetched is called so
        ("no-version.jar", "no-version"),
    ],
)
def test_artifact_is_the_name_without_version(jar: str, name: str):
    assert jars.artifact(jar) == name


def fill(root: Path, line: str = "3.5") -> Path:
    folder = root / line
    folder.mkdir(parents=True)
    incoming = root / "in"
    incoming.mkdir()
    for name in ("b.jar", "a.jar"):
        (incoming / name).write_bytes(name.encode())
    jars.install(line, folder, incoming.glob("*.jar"), "somewhere", lambda _: None)
    return folder


def test_a_filled_folder_is_found_with_its_archives_in_order(tmp_path: Path):
    folder = fill(tmp_path)
    found = jars.installed("3.5", folder)
    assert found == jars.Jars((folder / "a.jar", folder / "b.jar"), "somewhere")


def damage_content(folder: Path) -> None:
    (folder / "a.jar").write_bytes(b"x.jar")


def lose_a_file(folder: Path) -> None:
    (folder / "b.jar").unlink()


def lose_the_manifest(folder: Path) -> None:
    (folder / jars.MANIFEST).unlink()


def cut_the_manifest(folder: Path) -> None:
    (folder / jars.MANIFEST).write_text((folder / jars.MANIFEST).read_text()[:40])


def be_of_another_version(folder: Path) -> None:
    manifest = json.loads((folder / jars.MANIFEST).read_text())
    (folder / jars.MANIFEST).write_text(json.dumps({**manifest, "delta": "io.delta:delta-spark_2.12:3.0.0"}))


@pytest.mark.parametrize("harm", [damage_content, lose_a_file, lose_the_manifest, cut_the_manifest, be_of_another_version])
def test_a_folder_that_is_not_whole_is_not_taken_for_a_finished_one(tmp_path: Path, harm):
    folder = fill(tmp_path)
    harm(folder)
    assert jars.installed("3.5", folder) is None


def test_resolving_into_a_finished_folder_starts_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = fill(tmp_path)
    monkeypatch.setenv("PATH", "")  # neither Spark nor pip could be started
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    said: list[str] = []
    assert jars.resolve("3.5", tmp_path, said.append) == jars.installed("3.5", folder)
    assert said == [f"Spark 3.5: 2 jars in {folder}"]


def spark_home(root: Path, script: str) -> Path:
    """A Spark distribution whose `spark-submit` does what the script says."""
    home = root / "home"
    (home / "bin").mkdir(parents=True)
    (home / "jars").mkdir()
    (home / "jars" / "hadoop-client-api-3.3.4.jar").touch()
    submit = home / "bin" / "spark-submit"
    submit.write_text(f"#!/bin/sh\n{script}\n")
    submit.chmod(0o755)
    return home


FETCH = """
for a; do case "$a" in
  spark.jars.ivy=*) ivy="${a#*=}";;
  spark.jars.packages=*) wanted="${a#*=}";;
  spark.jars.excludes=*) echo "${a#*=}" > "$(dirname "$0")/excludes";;
esac; done
case "$wanted" in *graphframes*) echo ":: unresolved dependency: $wanted: not found" >&2; exit 1;; esac
mkdir -p "$ivy/jars"; echo "$wanted" > "$ivy/jars/delta.jar"
"""


def test_without_graphframes_the_rest_is_installed_and_one_line_says_what_serves_instead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("pyspark")
    home = spark_home(tmp_path, FETCH)
    monkeypatch.setenv("SPARK_HOME", str(home))
    said: list[str] = []
    found = jars.resolve("4.1", tmp_path / "out", said.append)
    assert found == jars.Jars((tmp_path / "out" / "4.1" / "delta.jar",), None)
    assert found.paths[0].read_text().strip() == jars.LINES["4.1"].delta
    assert (home / "bin" / "excludes").read_text().strip() == "*:hadoop-client-api"  # what Spark ships is not fetched
    assert said.count("Spark 4.1: no GraphFrames; the DataFrame engine will find the components") == 1
    assert sorted(p.name for p in (tmp_path / "out" / "4.1").iterdir()) == ["delta.jar", jars.MANIFEST]  # no scratch left


def test_a_repository_that_can_not_be_reached_is_an_error_that_names_the_coordinate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("pyspark")
    monkeypatch.setenv("SPARK_HOME", str(spark_home(tmp_path, "echo 'unresolved dependency: io.delta#x' >&2; exit 1")))
    with pytest.raises(EnvironmentProblem, match=r"io\.delta:delta-spark_2\.12:3\.3\.2 could not be fetched: unresolved dependency") as e:
        jars.resolve("3.5", tmp_path / "out")
    assert "ivySettings" in str(e.value.hint)
    assert jars.installed("3.5", tmp_path / "out" / "3.5") is None


def test_a_repository_that_does_not_answer_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("pyspark")
    monkeypatch.setenv("SPARK_HOME", str(spark_home(tmp_path, "exec sleep 60")))
    with pytest.raises(EnvironmentProblem, match="a:b:1 could not be fetched within 1 s"):
        jars.ivy("a:b:1", tmp_path / "scratch", 1)


def test_folder_is_the_named_one_else_the_nearest_filled_one_else_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("SPARK_DEDUP_JARS", raising=False)
    inside = tmp_path / "project" / "notebooks"
    inside.mkdir(parents=True)
    monkeypatch.chdir(inside)
    assert jars.jar_folder("3.5") == tmp_path / "cache" / "spark_dedup" / "jars" / "3.5"
    folder = fill(tmp_path / "project" / ".jars")
    assert jars.jar_folder("3.5") == folder
    assert jars.jar_folder("4.1") == tmp_path / "cache" / "spark_dedup" / "jars" / "4.1"  # filled for the other line only
    monkeypatch.setenv("SPARK_DEDUP_JARS", os.fspath(tmp_path / "named"))
    assert jars.jar_folder("3.5") == tmp_path / "named" / "3.5"


def test_the_reason_is_the_telling_line_of_a_long_log():
    log = "loading settings\n\tat org.apache.X\nJAVA_HOME is not set\nmore\n"
    assert jars.reason(log) == "JAVA_HOME is not set"
    assert jars.reason("a\n[unresolved dependency: g#a;1: not found]\n\tat x") == "unresolved dependency: g#a;1: not found"
    assert jars.reason("") == "no output"
