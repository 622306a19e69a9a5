"""The command line: exit codes, what goes to stdout and what to stderr."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import pytest
import yaml

from spark_dedup.cli import main

BASE = ["--set", "source.id=id", "--set", "source.text=text", "--set", "embed.encoder=planted:encoder", "--set", "source.format=delta"]


def test_wrong_usage_and_wrong_settings_leave_with_2_and_name_what_is_wrong(capsys):
    assert main(["run", "--nonsense"]) == 2
    assert "--nonsense" in capsys.readouterr().err
    assert (
        main(["run", *BASE, "--set", "store=a.b", "--set", "source.table=/x", "--set", "search.treshold=1", "--set", "search.floor=85"])
        == 2
    )
    out, err = capsys.readouterr()
    assert out == ""
    assert "search.treshold is not a setting" in err
    assert "search.floor must be a number in (0, 1], got 85" in err
    assert main(["run", "--config", "nowhere.yaml"]) == 2
    assert "no settings file at nowhere.yaml" in capsys.readouterr().err


def test_a_source_that_is_not_there_leaves_with_1(spark, tmp_path, capsys):
    assert main(["run", *BASE, "--set", f"source.table={tmp_path}/nothing", "--set", f"store={tmp_path}/store"]) == 1
    assert "can not be read as delta" in capsys.readouterr().err


def test_config_show_prints_effective_settings_and_a_fingerprint(capsys, tmp_path):
    (tmp_path / "my.yaml").write_text("source: {table: a.b, id: i, text: t}\nstore: a.c\nsearch: {floor: 0.9}\n")
    assert main(["config", "show", "--config", str(tmp_path / "my.yaml"), "--set", "search.links=16"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.split()[:3] == ["*", "search.floor", "0.9"] for line in lines)
    assert any(line.split()[:3] == ["*", "search.links", "16"] for line in lines)
    assert any(line.split()[:2] == ["search.neighbours", "50"] for line in lines)
    assert main(["config", "show", "--config", str(tmp_path / "my.yaml"), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["settings"]["search"]["floor"] == 0.9
    assert len(shown["fingerprint"]) == 64


@pytest.mark.slow
def test_a_finished_run_is_told_measured_swept_and_reported(spark, planted, tmp_path, capsys):
    shutil.copytree(planted["store"], tmp_path / "store")
    settings = {
        "source": {"table": planted["source"], "format": "delta", "id": "id", "text": "text"},
        "embed": {"encoder": "planted:encoder"},
        "search": {"engine": "hnsw", "neighbours": 1},
        "store": str(tmp_path / "store"),
    }
    path = tmp_path / "my.yaml"
    path.write_text(yaml.safe_dump(settings))
    assert main(["run", "--config", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["did_work"] is False
    assert main(["run", "--config", str(path), "--quiet"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert "nothing" in out.lower()
    assert main(["run", "--config", str(path), "--set", "merge.rule=cosine > 0.9"]) == 1
    assert "merge.rule is " in capsys.readouterr().err
    assert main(["recall", "--config", str(path), "--quiet"]) == 0
    assert "240 texts compared with all 240" in " ".join(capsys.readouterr().out.split())
    assert main(["recall", "--config", str(path), "--sweep", "search.ef_search=16,32", "--quiet"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:3]] == ["search.ef_search=16", "search.ef_search=32"]
    assert sum("<- knee" in line for line in lines) == 1
    assert all("pair recall >= 0.90: 1, all 240 texts" in line for line in lines[1:3])
    assert main(["recall", "--config", str(path), "--sweep", "ef_search=a lot"]) == 2
    assert "--sweep takes numbers" in capsys.readouterr().err
    html = tmp_path / "page.html"
    assert main(["report", "--store", str(tmp_path / "store"), "--html", str(html), "--pairs", "2"]) == 0
    out, _ = capsys.readouterr()
    # sixty families: one kept pair each, of original and the text with words added
    assert "60 clusters" in out
    assert "pair recall >= 0.90: 1, all 240 texts" in out
    assert html.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert main(["report", "--store", str(tmp_path / "elsewhere" / "x")]) == 1
    assert "holds no run" in capsys.readouterr().err


@pytest.mark.slow
def test_a_run_shows_its_progress_and_takes_relative_paths_from_the_working_folder(spark, tmp_path, monkeypatch, capsys):
    rows = [("1", "Pears cost two coins"), ("2", "Pears  cost two coins"), ("3", "Figs cost one coin")]
    spark.createDataFrame(rows, "id string, text string").write.format("delta").save(str(tmp_path / "source"))
    monkeypatch.chdir(tmp_path)
    assert main(["run", *BASE, "--set", "source.table=./source", "--set", "store=out/tables"]) == 0
    out, err = capsys.readouterr()
    assert "no such pair, all 2 texts" in " ".join(out.split())
    assert "clusters" in err  # progress, plain because this is no terminal
    assert (tmp_path / "out" / "tables" / "clusters" / "_delta_log").is_dir()


@pytest.mark.parametrize("module", ["faiss", "torch", "graphframes", "pyspark", "sentence_transformers"])
def test_importing_the_package_loads_nothing_heavy(module):
    code = f"import sys, spark_dedup; spark_dedup.load_config; sys.exit({module!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
