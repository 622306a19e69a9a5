"""What the doctor says of things that are missing or wrong, without starting Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_dedup import doctor
from spark_dedup.config_file import load_config
from spark_dedup.doctor import Check, checks, free_bytes, java_major, render, run_doctor

BASE = {"source.table": "a.b", "source.id": "id", "source.text": "text", "store": "a.c", "embed.encoder": "use"}


def settings(**more: object):
    return load_config(None, [f"{k}={v}" for k, v in {**BASE, **{k.replace("__", "."): v for k, v in more.items()}}.items()])


def found(list_of_checks: list[Check]) -> dict[str, Check]:
    return {check.name: check for check in list_of_checks}


@pytest.fixture
def nothing_launched(monkeypatch: pytest.MonkeyPatch):
    """As in a fresh shell: no session in this process, none announced by a launcher."""
    pytest.importorskip("pyspark")
    monkeypatch.setattr(doctor, "active_session", lambda: None)
    for name in doctor.LAUNCHERS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("JAVA_HOME", raising=False)


def fake_java(folder: Path, version: str) -> Path:
    folder.mkdir(parents=True)
    java = folder / "java"
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-01-01' >&2\n")
    java.chmod(0o755)
    return folder


@pytest.mark.parametrize(
    ("text", "major"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "1.8.0_402"', 8),
        ('openjdk version "21" 2023-09-19', 21),
        ("what?", None),
    ],
)
def test_java_version_is_read_from_what_it_says(text, major):
    assert java_major(text) == major


def test_without_java_the_doctor_says_so_and_looks_at_the_rest(nothing_launched, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    got = found(checks(settings()))
    assert got["Java"].ok is False
    assert got["Java"].found == "not found: no java on PATH, and JAVA_HOME is not set"
    assert "openjdk-17-jre-headless" in str(got["Java"].fix)
    assert (got["Spark"].ok, got["Spark"].found) == (None, "not started, because of Java")
    assert got["Delta"].ok is got["GraphFrames"].ok is None
    assert got["Python"].ok is got["faiss"].ok is got["encoder"].ok is True
    assert "512 dimensions" in got["encoder"].found
    text, healthy = run_doctor(settings())
    assert not healthy
    assert "Traceback" not in text and text.endswith("1 of 8 checks failed.")


def test_java_home_wins_over_the_path_as_it_does_for_spark(nothing_launched, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(fake_java(tmp_path / "good", "17.0.1")))
    assert doctor.java_check(None) == Check("Java", True, f"17 ({tmp_path / 'good' / 'java'})")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "gone"))
    got = doctor.java_check(None)
    assert got.ok is False and f"JAVA_HOME={tmp_path / 'gone'} does not run" in got.found


def test_a_java_that_this_spark_does_not_support_is_named_with_the_ones_that_will_do(nothing_launched, monkeypatch, tmp_path):
    monkeypatch.setattr(doctor, "spark_line", lambda: "4.1")
    monkeypatch.setenv("PATH", str(fake_java(tmp_path / "old", "11.0.2")))
    got = doctor.java_check(None)
    assert got.ok is False
    assert got.found == f"11 ({tmp_path / 'old' / 'java'}); Spark 4.1 needs 17 or 21"


def test_an_encoder_that_can_not_be_loaded_is_a_finding_not_a_crash():
    got = doctor.attempt("encoder", lambda: doctor.encoder_check(settings(embed__encoder="no_such_module:make")))
    assert got.ok is False
    assert "no_such_module" in got.found


def test_vectors_from_a_column_need_no_encoder():
    config = settings(embed__encoder="column", embed__column="v")
    assert doctor.encoder_check(config) == Check("encoder", None, "not needed: vectors come from the column 'v'")


def test_an_error_of_any_kind_is_told_in_one_line():
    def look() -> Check:
        raise RuntimeError("first\nsecond")

    assert doctor.attempt("x", look) == Check("x", False, "first")


def test_page_shows_the_way_out_only_where_one_is_needed():
    page = render([Check("a", True, "fine", "unneeded"), Check("long name", False, "bad", "type this"), Check("c", None, "skipped")])
    assert page.splitlines() == [
        "ok     a          fine",
        "WRONG  long name  bad",
        "                  -> type this",
        "-      c          skipped",
        "",
        "1 of 3 checks failed.",
    ]


def machine(root: Path, available_kb: int, **groups: str) -> str:
    (root / "proc").mkdir()
    (root / "proc" / "meminfo").write_text(f"MemTotal: 99999999 kB\nMemAvailable:   {available_kb} kB\n")
    for name, text in groups.items():
        path = root / "sys" / "fs" / "cgroup" / name.replace("__", "/").replace("DOT", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return str(root)


@pytest.mark.parametrize(
    ("groups", "free"),
    [
        ({}, 1000 << 10),
        ({"memoryDOTmax": "max", "memoryDOTcurrent": "5"}, 1000 << 10),
        ({"memoryDOTmax": "600000", "memoryDOTcurrent": "100000"}, 500000),
        ({"memoryDOTmax": "600000", "memoryDOTcurrent": "700000"}, 0),
        ({"memory__memoryDOTlimit_in_bytes": "300000", "memory__memoryDOTusage_in_bytes": "1"}, 299999),
    ],
)
def test_free_memory_is_the_machines_or_the_containers_whichever_is_less(tmp_path, groups, free):
    assert free_bytes(machine(tmp_path, 1000, **groups)) == free
