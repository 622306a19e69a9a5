"""SKETCHES -> CONTAINED_PAIRS: texts of which most shingles stand in a longer text, however much longer that is.

No pair is missed but those that a limit leaves out, which are counted. The exact containment is computed in `score`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from pyspark.sql import functions as F

from spark_dedup.config import MinHashConfig
from spark_dedup.grouped import whole
from spark_dedup.kernels.containment import frequencies, longer_texts, looked_for
from spark_dedup.kernels.minhash import shingle_column, stored_sets
from spark_dedup.schema import CONTAINED_PAIRS, CONTAINMENT, LEFT_ID, REP_ID, RIGHT_ID, SKETCHES, pa_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Observation

LEFT_OUT = "contained_pairs_left_out"

POSTINGS = f"`shingle` bigint, `{REP_ID}` bigint, `size` bigint"
SHARED = f"{POSTINGS}, `frequency` bigint"
ASKED = f"{POSTINGS}, `asks` boolean"
FOUND = f"`{LEFT_ID}` bigint, `{RIGHT_ID}` bigint, `{LEFT_OUT}` bigint"


def contained_pairs(sketches: DataFrame, config: MinHashConfig, *, partitions: int, noted: Observation | None = None) -> DataFrame:
    """Pairs of a text and a longer one that holds at least `containment` of its shingles, and others that share a rare one.

    Args:
        sketches: SKETCHES.
        config: Uses `containment`, `unit`, `ngram` and `max_bucket`.
        partitions: Tasks, at least 1; each sorts its share of all shingles in memory, some 60 bytes each. Changes no row.
        noted: Receives `contained_pairs_left_out`: a text is paired with the `max_bucket` - 1 next longer texts of each shingle that it
            looks for, and these are the further ones; another shingle may bring them together.

    Returns:
        CONTAINED_PAIRS, each once.

    Raises:
        ValueError: If `containment` is null.
    """
    if config.containment is None:
        raise ValueError("minhash.containment must be a number in (0, 1], got None")
    share, longer = config.containment, config.max_bucket - 1
    column, unit, ngram = shingle_column(config.unit, config.ngram), config.unit, config.ngram

    def post(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if not batch.num_rows:
                continue
            sets, ids = stored_sets(batch.column(column), unit, ngram), batch.column(REP_ID).to_numpy()
            sizes = np.diff(sets.bounds)
            columns = [sets.values.view(np.int64), np.repeat(ids, sizes), np.repeat(sizes, sizes)]
            yield pa.RecordBatch.from_arrays(list(map(pa.array, columns)), schema=pa_schema(POSTINGS))

    def count(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for table in whole(batches):
            frequency = frequencies(table["shingle"].to_numpy())
            shared = table.append_column("frequency", pa.array(frequency)).filter(pa.array(frequency > 1))
            yield from shared.cast(pa_schema(SHARED)).to_batches()

    def ask(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for table in whole(batches):
            text, size, frequency, shingle = (table[name].to_numpy() for name in (REP_ID, "size", "frequency", "shingle"))
            asks = pa.array(looked_for(text, size, frequency, shingle, share))
            yield from table.drop_columns("frequency").append_column("asks", asks).cast(pa_schema(ASKED)).to_batches()

    def propose(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for table in whole(batches):
            shingle, size, text, asks = (table[name].to_numpy() for name in ("shingle", "size", REP_ID, "asks"))
            for left, right, left_out in longer_texts(shingle, size, text, asks, longer):
                pairs = np.unique(np.stack([left, right], axis=1), axis=0)
                counted = np.zeros(len(pairs), dtype=np.int64)
                counted[0] = left_out
                yield pa.RecordBatch.from_arrays([*map(pa.array, (*pairs.T, counted))], schema=pa_schema(FOUND))

    postings = SKETCHES.conform(sketches).select(REP_ID, column).mapInArrow(post, POSTINGS)
    shared = postings.repartition(partitions, "shingle").mapInArrow(count, SHARED)
    asked = shared.repartition(partitions, REP_ID).mapInArrow(ask, ASKED)
    found = asked.repartition(partitions, "shingle").mapInArrow(propose, FOUND)
    if noted is not None:
        found = found.observe(noted, F.coalesce(F.sum(LEFT_OUT), F.lit(0)).alias(LEFT_OUT))
    pairs = found.select(LEFT_ID, RIGHT_ID).distinct()
    return CONTAINED_PAIRS.conform(pairs.withColumn("methods", F.array(F.lit(CONTAINMENT))))
