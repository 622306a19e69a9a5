"""REPRESENTATIVES x EMBEDDINGS -> VECTORS: what the search reads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Window
from pyspark.sql import functions as F

from spark_dedup.config import ExactConfig
from spark_dedup.kernels.ragged import slices
from spark_dedup.schema import EMBEDDINGS, EXACT_KEY, REP_ID, REPRESENTATIVES, VECTORS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SLICE_BYTES = 64 << 20
"""Text of which features are made at once: they take up to 12 times as much, and an Arrow array holds 2 GiB."""


def search_vectors(representatives: DataFrame, embeddings: DataFrame, exact: ExactConfig) -> DataFrame:
    """Usable vectors of the representatives that take part in the search, with the features of their texts.

    The text leaves the plan here: from now on features stand for it.

    Args:
        representatives: REPRESENTATIVES.
        embeddings: EMBEDDINGS of one model.
        exact: Uses `lowercase` and `strip_punctuation`, so that features are a function of the exact key.

    Returns:
        VECTORS: one row per representative with a vector.
    """
    texts = REPRESENTATIVES.conform(representatives).where("in_search").select(REP_ID, EXACT_KEY, "text")
    usable = EMBEDDINGS.conform(embeddings).where(F.col("vector").isNotNull()).select(EXACT_KEY, "vector")
    # The hash comes first, because the sort then compares eight bytes instead of whole vectors.
    equal = Window.partitionBy(F.xxhash64("vector"), "vector")
    joined = texts.join(usable, [EXACT_KEY], how="inner").select(REP_ID, F.min(REP_ID).over(equal).alias("head_id"), "vector", "text")
    lowercase, strip_punctuation = exact.lowercase, exact.strip_punctuation
    schema = VECTORS.arrow()

    def add_features(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from spark_dedup.kernels.features import features

        for batch in batches:
            sizes = pc.binary_length(batch.column("text")).to_numpy().astype(np.int64)
            for part in slices(sizes, SLICE_BYTES):
                rep, head, vector, text = batch.slice(part.start, part.stop - part.start).columns
                found = features(text, lowercase=lowercase, strip_punctuation=strip_punctuation)
                yield pa.RecordBatch.from_arrays([rep, head, vector, found], schema=schema)

    return VECTORS.conform(joined.mapInArrow(add_features, VECTORS.ddl()))
