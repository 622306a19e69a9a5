"""REPRESENTATIVES (or vectors of the source) -> EMBEDDINGS."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F

from spark_dedup.config import EmbedConfig, ExactConfig
from spark_dedup.errors import EmbeddingError, SchemaError
from spark_dedup.grouped import group_runs, spread
from spark_dedup.kernels.encoder import shared_encoder
from spark_dedup.kernels.text import normalize_all
from spark_dedup.kernels.vectors import normalize_rows, to_binary
from spark_dedup.schema import EMBEDDINGS, EXACT_KEY, RECORD_ID, REP_ID

BLOCK_ROWS = 512
"""Consecutive rep_ids that are encoded by one call. An encoder's last bits depend on which texts share a call, so the
blocks are fixed by the ids alone and the vectors are the same for any partitioning."""

BLOCK = "block"
EMBEDDING = "embedding"


def embed_texts(missing: DataFrame, config: EmbedConfig, exact: ExactConfig, model: str, partitions: int) -> DataFrame:
    """Encode each text once.

    The encoder sees the text as the exact key sees it, so that a vector is a function of the key, whichever of the records
    with that key stands for them.

    Args:
        missing: rep_id bigint, exact_key string, text string: one row per key that has no vector yet.
        config: Names the encoder; it is loaded once per Python worker, on the executors.
        exact: Uses `lowercase` and `strip_punctuation`.
        model: Fingerprint of the encoder, stored with every row.
        partitions: Number of tasks, at least 1. Changes no result.

    Returns:
        EMBEDDINGS: one row per row of `missing`.
    """
    rows = missing.select(F.expr(f"{REP_ID} div {BLOCK_ROWS}").alias(BLOCK), REP_ID, EXACT_KEY, "text")
    placed = spread(rows, F.col(BLOCK), partitions, partitions).sortWithinPartitions(BLOCK, REP_ID)
    encode = partial(_encode_blocks, config=config, exact=exact, model=model)
    return EMBEDDINGS.conform(placed.mapInArrow(encode, EMBEDDINGS.ddl()))


def _encode_blocks(batches: Iterable[pa.RecordBatch], *, config: EmbedConfig, exact: ExactConfig, model: str) -> Iterator[pa.RecordBatch]:
    threads = int((os.environ.get("OMP_NUM_THREADS") or "1").split(",")[0])  # Spark sets it to spark.task.cpus
    for _, pieces in group_runs(batches, BLOCK):
        encoder = shared_encoder(config, threads, model)
        table = pa.Table.from_batches(list(pieces))
        forms = normalize_all(table.column("text"), lowercase=exact.lowercase, strip_punctuation=exact.strip_punctuation)
        texts = [form or "" for form in forms]
        try:
            vectors = encoder.encode(texts)
            tokens = encoder.count_tokens(texts)
        except Exception as e:  # any encoder, any error: say which texts it was given
            first, last = table.column(REP_ID)[0].as_py(), table.column(REP_ID)[-1].as_py()
            raise EmbeddingError(f"the encoder failed on the texts with rep_id {first} to {last}: {type(e).__name__}: {e}") from e
        cut = np.zeros(len(texts), dtype=bool) if tokens is None or encoder.window is None else tokens > encoder.window
        yield _embeddings(table.column(EXACT_KEY).combine_chunks(), model, *_unit(vectors), tokens, cut)


def _unit(vectors: NDArray[Any]) -> tuple[pa.Array, pa.Array]:
    """Vectors as binaries, null where unusable, and why."""
    unit, problems = normalize_rows(vectors)
    reasons = pa.array(problems, pa.string())
    return to_binary(unit, reasons.is_null().to_numpy(zero_copy_only=False)), reasons


def _embeddings(
    keys: pa.Array, model: str, vectors: pa.Array, problems: pa.Array, tokens: NDArray[np.int32] | None, cut: NDArray[np.bool_]
) -> pa.RecordBatch:
    n = len(keys)
    count = pa.nulls(n, pa.int32()) if tokens is None else pa.array(tokens, pa.int32())
    columns = [keys, pa.repeat(pa.scalar(model, pa.string()), n), vectors, problems, count, pa.array(cut)]
    return pa.RecordBatch.from_arrays(columns, schema=EMBEDDINGS.arrow())


def embeddings_from_column(records: DataFrame, model: str) -> DataFrame:
    """Take vectors that the source already has.

    Args:
        records: exact_key string, record_id, embedding array<float> or array<double>; rows with a null key are left out.
            `check_column` has found nothing.
        model: Fingerprint stored with every row.

    Returns:
        EMBEDDINGS: one row per key, with the vector of the least record id that has a usable one; where none has, the
        problem of the least record id.

    Raises:
        SchemaError: If `embedding` is of another type.
    """
    kinds = {f.name: f.dataType.simpleString() for f in records.schema.fields}
    if kinds[EMBEDDING] not in ("array<float>", "array<double>"):
        raise SchemaError(f"the vector column must be array<float> or array<double>, got {kinds[EMBEDDING]}")
    rows = records.where(F.col(EXACT_KEY).isNotNull()).select(EXACT_KEY, RECORD_ID, EMBEDDING)
    units = rows.mapInArrow(_normalize_column, f"{EXACT_KEY} string, {RECORD_ID} {kinds[RECORD_ID]}, vector binary, problem string")
    best = F.min_by(F.struct("vector", "problem"), F.struct(F.col("problem").isNotNull(), F.col(RECORD_ID)))
    chosen = units.groupBy(EXACT_KEY).agg(best.alias("best"))
    return EMBEDDINGS.conform(
        chosen.select(
            EXACT_KEY,
            F.lit(model).alias("model"),
            "best.vector",
            "best.problem",
            F.lit(None).cast("int").alias("tokens"),
            F.lit(False).alias("truncated"),
        )
    )


def _normalize_column(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        lists, ids = batch.column(EMBEDDING), batch.column(RECORD_ID)
        valid = lists.is_valid()
        full = lists.filter(valid)
        flat, lengths = full.flatten(), full.value_lengths().unique().to_pylist()
        if len(lengths) > 1 or flat.null_count:
            raise EmbeddingError(
                f"vectors of one length without nulls are needed, got lengths {lengths} and {flat.null_count} null elements"
            )
        vectors, problems = _unit(flat.to_numpy(zero_copy_only=False).reshape(len(full), lengths[0] if lengths else 0))
        present = valid.to_numpy(zero_copy_only=False)
        place = pa.array(np.cumsum(present) - 1, pa.int64(), mask=~present)  # among the rows that have a vector
        reasons = pc.if_else(valid, problems.take(place), "missing")
        yield pa.RecordBatch.from_arrays(
            [batch.column(EXACT_KEY), ids, vectors.take(place), reasons], names=[EXACT_KEY, RECORD_ID, "vector", "problem"]
        )


def check_column(records: DataFrame) -> DataFrame:
    """Vectors of the source that no setting can repair: another length than most, or a null inside.

    Args:
        records: record_id, embedding array<float> or array<double>. A null vector is no offence, an empty one is.

    Returns:
        One row per offender: record_id, found int (its length), nulls int (null elements), expected int (the most
        frequent length above 0, of two equally frequent ones the larger; null where there is none). No rows where all is well.
    """
    sizes = records.where(F.col(EMBEDDING).isNotNull()).select(
        RECORD_ID, F.size(EMBEDDING).alias("found"), (F.size(EMBEDDING) - F.size(F.array_compact(EMBEDDING))).alias("nulls")
    )
    counts = sizes.where(F.col("found") > 0).groupBy("found").count()
    usual = counts.agg(F.max_by("found", F.struct("count", "found")).alias("expected"))
    wrong = F.coalesce(F.col("found") != F.col("expected"), F.lit(True)) | (F.col("nulls") > 0)
    return sizes.join(F.broadcast(usual), how="cross").where(wrong)


def column_error(offenders: Sequence[Row], total: int | None = None) -> EmbeddingError | None:
    """The error for rows of `check_column`; None where there are none.

    Args:
        offenders: Some or all rows of `check_column`.
        total: How many there are, where `offenders` are only the first.
    """
    if not offenders:
        return None
    lines = [
        f"  {RECORD_ID} {r[RECORD_ID]!r}: expected {r['expected'] or 'some'} elements, found {r['found']}"
        + (f", {r['nulls']} of them null" if r["nulls"] else "")
        for r in offenders
    ]
    count = total if total is not None else len(offenders)
    some = f", the first {len(offenders)}" if count > len(offenders) else ""
    return EmbeddingError(
        f"{count} rows have a vector of the wrong length or with a null inside{some}:\n" + "\n".join(lines),
        hint="repair these rows in the source, set their vector to null (they are then counted as missing), or leave them out",
    )
