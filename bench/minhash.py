"""The search for shared words, from a Delta table to verified pairs on Spark, against three others over the same texts.

Beside it: MLlib's `MinHashLSH.approxSimilarityJoin` in the same session, `datasketch` in this process where it is installed, and
`text-dedup` where `peers` finds it. All look for word 5-grams at a Jaccard of 0.8. The true pairs come from comparing sets.

The two on Spark also take the corpus ten times, with other words in each of its copies, so that there are ten times as many texts and as
many similar pairs as before among each tenth of them.
"""

from __future__ import annotations

import importlib.util
import os
import re
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from exact_key import passages
from numpy.typing import NDArray
from peers import TEXT_DEDUP, closure, text_dedup

from spark_dedup.config import ExactConfig, MinHashConfig
from spark_dedup.kernels.minhash import alike_between, bands_for, shingle_sets

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = int(os.environ.get("SPARK_DEDUP_BENCH_ROWS", "200000"))
ROUNDS = int(os.environ.get("SPARK_DEDUP_BENCH_ROUNDS", "2"))
CONFIG = MinHashConfig(enabled=True)
FASTER_THAN_MLLIB = 10.0
MLLIB_TABLES = 2
"""Two hash tables bring 1 - 0.2^2 = 0.96 of the pairs at 0.8 together, our bands 0.95."""
TIMES = int(os.environ.get("SPARK_DEDUP_BENCH_TIMES", "10"))
SEED = 11
WORD = re.compile(r"\w+")

Pairs = NDArray[np.int64]


def run(spark: SparkSession) -> dict[str, Any]:
    """Seconds and recall of each side, of the corpus and of `TIMES` as many texts."""
    known = passages()
    order = np.random.default_rng(SEED).permutation(len(known))[:ROWS]
    texts = [known[i] for i in order]
    small = one_size(spark, texts, 1)
    large = one_size(spark, many(texts, TIMES), TIMES)
    ratio = large["ratio"]
    met = ratio >= FASTER_THAN_MLLIB and small.pop("faster_than_text_dedup")
    equal = small["answers_equal"] and large["answers_equal"]
    return {
        "name": "minhash",
        "ratio": ratio,
        "reach": f"ratio >= {FASTER_THAN_MLLIB} against MLlib, and faster than text-dedup at the same recall or more",
        "met": met and equal,
        "answers_equal": equal,
        "bands_and_rows": bands_for(CONFIG.threshold, CONFIG.permutations, CONFIG.band_recall),
        "corpus": small,
        f"corpus_{TIMES}_times": large,
    }


def one_size(spark: SparkSession, texts: list[str], copies: int) -> dict[str, Any]:
    """Seconds and recall of each side; `datasketch` and `text-dedup`, which run in one process, take a single copy only.

    Args:
        spark: Session.
        texts: What is compared.
        copies: As many parts of equal length, one after the other, have no word in common.
    """
    truth, peers = true_pairs(texts, len(texts) // copies), copies == 1
    rounds = ROUNDS if peers else 1
    with tempfile.TemporaryDirectory(prefix="bench-minhash-") as folder:
        stored = store_texts(spark, texts, folder)
        own_pairs(spark, stored.limit(1000), f"{folder}/warm")
        mllib_pairs(stored.limit(1000), f"{folder}/warm-mllib")
        sides = {
            "own": fastest([timed(partial(own_pairs, spark, stored, f"{folder}/own-{i}")) for i in range(rounds)]),
            "mllib": fastest([timed(partial(mllib_pairs, stored, f"{folder}/mllib-{i}")) for i in range(rounds)]),
        }
        if peers and importlib.util.find_spec("datasketch"):
            sides["datasketch"] = timed(lambda: datasketch_pairs(texts))
        if peers and TEXT_DEDUP:
            sides["text_dedup"] = timed(lambda: text_dedup(texts, Path(folder), CONFIG))
    seconds = {name: side[1] for name, side in sides.items()}
    recalls = {name: recall(found, truth, len(texts)) for name, (found, _) in sides.items() if name != "text_dedup"}
    # text-dedup gives clusters and not the pairs that it found, so it is compared by the pairs that end in one cluster.
    labels = {"own": closure(len(texts), *sides["own"][0].T)}
    labels |= {"text_dedup": sides["text_dedup"][0]} if "text_dedup" in sides else {}
    joined = {name: round(float((of[truth[:, 0]] == of[truth[:, 1]]).mean()) if len(truth) else 1.0, 5) for name, of in labels.items()}
    n = len(texts)
    sound = bool(np.isin(sides["own"][0] @ [n, 1], truth @ [n, 1]).all())
    told = {
        "ratio": round(seconds["mllib"] / seconds["own"], 2),
        "answers_equal": sound and recalls["own"] >= CONFIG.band_recall,
        "texts": n,
        "megabytes": round(sum(len(text.encode()) for text in texts) / 1e6, 1),
        "true_pairs": len(truth),
        "seconds": {name: round(x, 2) for name, x in seconds.items()},
        "recall": recalls,
        "pairs_in_one_cluster": joined,
    }
    if peers:
        slower = "text_dedup" in sides and (seconds["own"] >= seconds["text_dedup"] or joined["own"] < joined["text_dedup"])
        told["faster_than_text_dedup"] = not slower
    return told


def many(texts: list[str], times: int) -> list[str]:
    """The texts, and again with other words: every word of a further copy ends in that copy's number."""
    out = list(texts)
    for copy in range(1, times):
        ending = f"q{copy}x"
        out += [WORD.sub(lambda word, ending=ending: word[0] + ending, text) for text in texts]
    return out


def true_pairs(texts: list[str], part: int) -> Pairs:
    """Pairs of texts whose shingle sets are similar enough, found by comparing the sets of every `part` texts with each other."""
    found = []
    for start in range(0, len(texts), part):
        sets = shingle_sets(pa.array(texts[start : start + part]), CONFIG.unit, CONFIG.ngram)
        left, right, _ = alike_between(sets, sets, CONFIG.threshold)
        found.append(np.stack([left, right], axis=1)[left < right] + start)
    return np.concatenate(found)


def timed(work: Any) -> tuple[Any, float]:
    """What it gives, and its wall time."""
    begun = time.perf_counter()
    found = work()
    return found, time.perf_counter() - begun


def fastest(rounds: list[tuple[Any, float]]) -> tuple[Any, float]:
    """The round of least seconds."""
    return min(rounds, key=lambda found: found[1])


def recall(found: Pairs, truth: Pairs, n: int) -> float:
    """Share of the true pairs that were found."""
    return round(float(np.isin(truth @ [n, 1], found @ [n, 1]).mean()) if len(truth) else 1.0, 5)


def store_texts(spark: SparkSession, texts: list[str], folder: str) -> DataFrame:
    """The texts as REPRESENTATIVES, in Delta."""
    from spark_dedup.schema import REPRESENTATIVES

    n = len(texts)
    columns = {"rep_id": np.arange(n), "exact_key": [f"{i:064x}" for i in range(n)], "record_id": list(map(str, range(n)))}
    columns |= {"text": texts, "group_size": np.ones(n, dtype=np.int64), "in_search": np.ones(n, dtype=np.bool_)}
    pq.write_table(pa.table(columns), f"{folder}/texts.parquet")
    rows = REPRESENTATIVES.conform(spark.read.parquet(f"{folder}/texts.parquet"))
    rows.repartition(4 * spark.sparkContext.defaultParallelism).write.format("delta").save(f"{folder}/representatives")
    return spark.read.format("delta").load(f"{folder}/representatives")


def own_pairs(spark: SparkSession, texts: DataFrame, folder: str) -> Pairs:
    """The stages, each with its table."""
    from spark_dedup.schema import VECTORS
    from spark_dedup.stages.candidates_lsh import lsh_pairs, sketch_texts
    from spark_dedup.stages.score import Floors, verify_pairs

    def stored(name: str, rows: DataFrame) -> DataFrame:
        rows.write.format("delta").save(f"{folder}/{name}")
        return spark.read.format("delta").load(f"{folder}/{name}")

    tasks = 4 * spark.sparkContext.defaultParallelism
    sketches = stored("sketches", sketch_texts(texts, ExactConfig(), CONFIG))
    proposed = stored("proposed", lsh_pairs(sketches, CONFIG, partitions=tasks))
    no_vectors = spark.createDataFrame([], VECTORS.ddl())
    pairs = stored("pairs", verify_pairs(proposed, sketches, no_vectors, Floors(jaccard=CONFIG.threshold), tiles=tasks))
    return pairs.select("left_id", "right_id").toPandas().to_numpy(dtype=np.int64)


def mllib_pairs(texts: DataFrame, folder: str) -> Pairs:
    """MLlib's join over the same shingles, hashed into a vector of 2^20 places."""
    from pyspark.ml.feature import HashingTF, MinHashLSH, NGram, RegexTokenizer
    from pyspark.sql import functions as F

    words = RegexTokenizer(inputCol="text", outputCol="words", pattern=r"(?U)\W+").transform(texts.select("rep_id", "text"))
    grams = NGram(n=CONFIG.ngram, inputCol="words", outputCol="grams").transform(words)
    vectors = HashingTF(numFeatures=1 << 20, binary=True, inputCol="grams", outputCol="features").transform(grams)
    some = vectors.where(F.size("grams") > 0).select("rep_id", "features")
    model = MinHashLSH(inputCol="features", outputCol="hashes", numHashTables=MLLIB_TABLES, seed=SEED).fit(some)
    joined = model.approxSimilarityJoin(some, some, 1 - CONFIG.threshold + 1e-9, distCol="distance")
    left, right = F.col("datasetA.rep_id"), F.col("datasetB.rep_id")
    joined.where(left < right).select(left.alias("left_id"), right.alias("right_id")).write.format("delta").save(folder)
    return texts.sparkSession.read.format("delta").load(folder).toPandas().to_numpy(dtype=np.int64)


def datasketch_pairs(texts: list[str]) -> Pairs:
    """Datasketch with our bands and rows, its candidates verified with Python's sets."""
    from datasketch import MinHash, MinHashLSH

    bands, rows = bands_for(CONFIG.threshold, CONFIG.permutations, CONFIG.band_recall)
    sets = []
    for text in texts:
        words = re.findall(r"\w+", text.lower())
        sets.append({" ".join(words[i : i + CONFIG.ngram]) for i in range(len(words) - CONFIG.ngram + 1)} or {text})
    index = MinHashLSH(num_perm=bands * rows, params=(bands, rows))
    found = []
    for i, shingles in enumerate(sets):
        sketch = MinHash(num_perm=bands * rows)
        sketch.update_batch([shingle.encode() for shingle in shingles])
        for other in index.query(sketch):
            shared = len(shingles & sets[other])
            if shared >= CONFIG.threshold * (len(shingles) + len(sets[other]) - shared):
                found.append((other, i))
        index.insert(i, sketch, check_duplication=False)
    return np.array(found, dtype=np.int64).reshape(-1, 2)
