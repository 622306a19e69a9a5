"""`spark-dedup plan` beside what the run takes and finds."""

from __future__ import annotations

import json
import shutil

import pytest

from spark_dedup import planning
from spark_dedup.cli import main
from spark_dedup.evaluation.plan import OPENING, PLANNED, STAGES
from spark_dedup.report.plan import render_plan


@pytest.mark.slow
def test_a_plan_tells_what_a_run_does_and_writes_nothing(spark, planted, tmp_path, monkeypatch, capsys):
    plan_of = planning.plan
    given = [f"source.table={planted['source']}", "source.format=delta", "source.id=id", "source.text=text", f"store={tmp_path}/store",
             "embed.encoder=planted:encoder"]  # fmt: skip
    told = [part for setting in given for part in ("--set", setting)]
    made = []

    def kept(*arguments, **more):
        made.append(plan_of(*arguments, **more))
        return made[-1]

    monkeypatch.setattr(planning, "plan", kept)
    assert main(["plan", *told, "--json", "--price-per-hour", "36"]) == 0
    monkeypatch.undo()
    plan = json.loads(capsys.readouterr().out)
    assert not list(tmp_path.iterdir())
    # 60 families of original, copy, added, refilled and a lone record: 300 rows, 240 texts
    assert (plan["corpus"]["rows"], plan["corpus"]["texts"], plan["corpus"]["copy_groups"]) == (300, 240, 60)
    assert (plan["pairs_all"], plan["pairs_left"]) == (300 * 299 // 2, 240 * 239 // 2)
    assert (plan["chosen"], plan["auto"][0]) == ("exact", "exact")
    assert [cost["engine"] for cost in plan["costs"]] == list(PLANNED)
    for cost in plan["costs"]:
        assert set(cost["seconds"]) == {OPENING, *STAGES}
        assert cost["money"] == 36 * cost["total_seconds"] / 3600
    ran = planted["manifest"].stage("candidates").counts
    found = ran["pairs"]
    pairs = plan["sample"]["pairs"]
    assert found > 0
    assert pairs["low"] <= found <= pairs["high"]
    page = render_plan(made[0])
    assert f"{found:,} (all texts compared)" in page
    assert "auto would take exact: 240 distinct vectors" in page
    # stored vectors are used, compared by both questions: what vectors find is what the run found
    shutil.copytree(planted["store"], tmp_path / "store")
    assert main(["plan", *told, "--advise", "--json"]) == 0
    advice = json.loads(capsys.readouterr().out)
    seen = {g["name"]: g["pairs"]["seen"] for g in advice["groups"]}
    assert seen["both"] + seen["meaning"] == found
    assert sum(g["edges"]["seen"] for g in advice["groups"] if g["name"] != "words") == ran["edges"]
    assert all(len(g["examples"]) == min(3, g["pairs"]["seen"]) for g in advice["groups"])
    assert main(["plan", *told, "--price-per-hour", "nan"]) == 2
    assert "--price-per-hour must be a number >= 0" in capsys.readouterr().err
