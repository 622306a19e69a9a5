"""Source rows -> RECORDS: the exact key of every text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from spark_dedup.config import ExactConfig, SourceConfig
from spark_dedup.schema import EXACT_KEY, RECORD_ID

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame


def normalize_records(source: DataFrame, exact: ExactConfig, duplicates: SourceConfig) -> DataFrame:
    """Give every source row its exact key and say what is odd about its text.

    Args:
        source: record_id, text, keep and, where the source brings vectors, embedding.
        exact: How a text is normalised.
        duplicates: Uses `duplicate_ids`.

    Returns:
        RECORDS, and `embedding` where the source has it.
    """
    from pyspark.sql.types import ArrayType, StringType, StructField, StructType

    if duplicates.duplicate_ids == "drop_equal":
        rest = [F.min(c).alias(c) for c in source.columns if c not in (RECORD_ID, "text")]
        source = source.groupBy(RECORD_ID, "text").agg(*rest).select(*source.columns)
    lowercase, strip_punctuation = exact.lowercase, exact.strip_punctuation

    def add_keys(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        from spark_dedup.kernels.text import clean_text, exact_keys, text_issues

        for batch in batches:
            at = batch.schema.get_field_index("text")
            text = clean_text(batch.column(at))
            keys = exact_keys(text, lowercase=lowercase, strip_punctuation=strip_punctuation)
            columns = [*batch.columns, keys, text_issues(text, strip_punctuation=strip_punctuation)]
            columns[at] = text
            yield pa.RecordBatch.from_arrays(columns, names=[*batch.schema.names, EXACT_KEY, "issues"])

    out = StructType([*source.schema.fields, StructField(EXACT_KEY, StringType()), StructField("issues", ArrayType(StringType()))])
    keyed = source.mapInArrow(add_keys, out)
    front = [RECORD_ID, "text", EXACT_KEY, "issues", "keep"]
    return keyed.select(*front, *[c for c in keyed.columns if c not in front])
