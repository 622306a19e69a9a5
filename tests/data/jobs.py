"""Settings of small whole runs, and what came out of them."""

from __future__ import annotations

import json

from spark_dedup import load_config, schema
from spark_dedup.store import TableStore

ENCODER = "embed.encoder=planted:encoder"
COLUMN = ("embed.encoder=column", "embed.column=v", "merge.rule=cosine >= 0.85")


def config_of(source, store, *overrides, text="text", record_id="id", form="delta", components="dataframe", sample="null", engine="exact"):
    """Settings of one run; GraphFrames, an index and recall, which cost seconds, are for the runs whose subject they are."""
    base = [
        f"source.table={source}",
        f"source.format={form}",
        f"source.id={record_id}",
        f"source.text={text}",
        f"store={store}",
        f"components.engine={components}",
        f"recall.sample={sample}",
        f"search.engine={engine}",
    ]
    return load_config(None, [*base, *([] if any(o.startswith("embed.encoder") for o in overrides) else [ENCODER]), *overrides])


def save(spark, rows, path, columns="id string, text string"):
    spark.createDataFrame(rows, columns).write.format("delta").save(str(path))
    return str(path)


def table(spark, store, which):
    return TableStore(spark, str(store)).read(which)


def clusters_of(spark, store):
    return {r["record_id"]: r.asDict() for r in table(spark, store, schema.CLUSTERS).collect()}


def partition_of(clusters):
    """The clusters as a set of sets of record ids."""
    groups: dict[object, set[object]] = {}
    for i, r in clusters.items():
        groups.setdefault(("lone", i) if r["cluster_id"] is None else r["cluster_id"], set()).add(i)
    return {frozenset(g) for g in groups.values()}


def check_invariants(clusters, rows):
    """Nothing lost, one kept row a cluster, and every removed row names it."""
    assert len(clusters) == rows
    for i, r in clusters.items():
        kept = clusters[r["canonical_id"]]
        assert kept["is_canonical"]
        assert kept["cluster_id"] == r["cluster_id"]
        assert r["is_canonical"] == (r["canonical_id"] == i)
    for group in partition_of(clusters):
        assert [clusters[i]["is_canonical"] for i in group].count(True) == 1
        assert {clusters[i]["cluster_size"] for i in group} == {len(group)}


def planted_config(source, store, *overrides):
    """Lists of one neighbour are full for every text with a near one, so all of them are asked again."""
    return config_of(source, store, "search.neighbours=1", *overrides, components="auto", sample="200000", engine="hnsw")


def content(spark, store, which):
    """A table's rows without the run id, sorted: equal content, equal bytes."""
    return sorted(json.dumps(r.asDict(), sort_keys=True) for r in table(spark, store, which).drop("run_id").collect())
