"""The doctor with a running Spark: a good set-up, a folder that can not be written, shards that do not fit."""

from __future__ import annotations

import pytest

from spark_dedup import doctor
from spark_dedup.config_file import load_config
from spark_dedup.doctor import checks, run_doctor
from spark_dedup.schema import INDEX_SHARDS


def settings(store: str, **more: object):
    base = {"source.table": "a.b", "source.id": "id", "source.text": "text", "store": store, "embed.encoder": "use", **more}
    return load_config(None, [f"{k}={v}" for k, v in base.items()])


def test_a_good_set_up_passes_every_check(spark, store_dir, tmp_path):
    config = settings(store_dir, **{"components.checkpoint_dir": str(tmp_path / "checkpoints")})
    got = {check.name: check for check in checks(config, spark)}
    assert set(got) == {"Python", "Java", "Spark", "Scala", "Delta", "GraphFrames", "faiss", "encoder", "checkpoints", "memory"}
    assert {name for name, check in got.items() if check.ok is False} == set()
    assert got["Spark"].found.startswith(f"{spark.version} (local, 2 tasks at once, Java ")
    assert "can be written and read by the executors" in got["checkpoints"].found
    assert "for each of 2 workers; no index yet" in got["memory"].found
    assert got["GraphFrames"].ok is (True if spark.version.startswith("3.5") else None)
    assert run_doctor(config, spark)[1] is True


def test_a_checkpoint_folder_that_can_not_be_written_is_named_with_its_setting(spark, store_dir, tmp_path):
    in_the_way = tmp_path / "file"
    in_the_way.write_text("a file, no folder")
    text, healthy = run_doctor(settings(store_dir, **{"components.checkpoint_dir": f"{in_the_way}/below"}), spark)
    assert healthy is False
    line = next(line for line in text.splitlines() if "checkpoints" in line)
    assert line.startswith("WRONG") and "components.checkpoint_dir" in line and f"{in_the_way}/below" in line
    assert text.count("WRONG") == 1


def test_the_biggest_shard_is_the_sum_of_its_files(spark, store_dir):
    rows = [(0, "index", 10, 600, "x"), (0, "members", 10, 50, "x"), (1, "index", 9, 640, "x")]
    spark.createDataFrame(rows, INDEX_SHARDS.ddl()).write.format("delta").save(f"{store_dir}/{INDEX_SHARDS.name}")
    assert doctor.biggest_shard(spark, settings(store_dir)) == 650


@pytest.mark.parametrize(("size", "ok"), [(1 << 20, True), (1 << 50, False)])
def test_memory_of_a_worker_is_held_against_the_biggest_shard(spark, store_dir, size, ok):
    spark.createDataFrame([(0, "index", 10, size, "x")], INDEX_SHARDS.ddl()).write.format("delta").save(f"{store_dir}/{INDEX_SHARDS.name}")
    got = {check.name: check for check in checks(settings(store_dir), spark)}["memory"]
    assert got.ok is ok
    assert f"the biggest shard has {doctor.gib(size)}" in got.found
