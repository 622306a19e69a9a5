"""REPRESENTATIVES -> SKETCHES -> PROPOSED_PAIRS: texts whose MinHash signatures agree in a whole band.

A shared bucket is no duplicate yet: the exact Jaccard of the shingle sets decides, in `score`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F

from spark_dedup.config import ExactConfig, MinHashConfig
from spark_dedup.grouped import whole
from spark_dedup.kernels.buckets import bucket_pairs
from spark_dedup.kernels.features import decode, features
from spark_dedup.kernels.minhash import ShingleSets, band_hashes, bands_for, is_feature, shingle_sets, signatures
from spark_dedup.kernels.ragged import slices
from spark_dedup.schema import LEFT_ID, LSH, PROPOSED_PAIRS, REP_ID, REPRESENTATIVES, RIGHT_ID, SKETCHES, pa_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Observation

SLICE_BYTES = 16 << 20
"""Text that is sketched at once: features and shingles take up to 20 times as much."""

EVENTS = ("buckets_split", "bucket_pairs_left_out")

FOUND = ", ".join([f"`{LEFT_ID}` bigint, `{RIGHT_ID}` bigint", *(f"`{name}` bigint" for name in EVENTS)])


def sketch_texts(representatives: DataFrame, exact: ExactConfig, config: MinHashConfig) -> DataFrame:
    """Features, shingles and buckets of the texts that take part in the search; without MinHash the features alone.

    Args:
        representatives: REPRESENTATIVES.
        exact: Uses `lowercase` and `strip_punctuation`, so that a sketch is a function of the exact key.
        config: Uses `enabled`, `unit`, `ngram`, `permutations`, `threshold` and `band_recall`.

    Returns:
        SKETCHES.
    """
    bands, rows = bands_for(config.threshold, config.permutations, config.band_recall) if config.enabled else (0, 0)
    schema, own = SKETCHES.arrow(), is_feature(config.unit, config.ngram)
    form = {"lowercase": exact.lowercase, "strip_punctuation": exact.strip_punctuation}

    def sketch(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            sizes = pc.binary_length(batch.column("text")).to_numpy().astype(np.int64)
            for part in slices(sizes, SLICE_BYTES):
                rep, text = batch.slice(part.start, part.stop - part.start).columns
                blobs = features(text, **form)
                if not bands:
                    none = [pa.nulls(len(rep), schema.field(name).type) for name in ("shingles", "bands")]
                    yield pa.RecordBatch.from_arrays([rep, blobs, *none], schema=schema)
                    continue
                sets = ShingleSets.of_features(decode(blobs)) if own else shingle_sets(text, config.unit, config.ngram, **form)
                hashes = band_hashes(signatures(sets, bands * rows), bands, rows)
                offsets = pa.array(np.arange(len(rep) + 1, dtype=np.int32) * bands)
                buckets = pa.ListArray.from_arrays(offsets, pa.array(hashes.ravel()))
                shingles = pa.nulls(len(rep), pa.binary()) if own else sets.blobs()
                yield pa.RecordBatch.from_arrays([rep, blobs, shingles, buckets], schema=schema)

    texts = REPRESENTATIVES.conform(representatives).where("in_search").select(REP_ID, "text")
    return SKETCHES.conform(texts.mapInArrow(sketch, SKETCHES.ddl()))


def lsh_pairs(sketches: DataFrame, config: MinHashConfig, *, partitions: int, noted: Observation | None = None) -> DataFrame:
    """Pairs of texts that share a bucket.

    Args:
        sketches: SKETCHES of texts with at least one shingle, as all texts of REPRESENTATIVES have.
        config: Uses `max_bucket`.
        partitions: Tasks, at least 1; each sorts its buckets in memory, 24 bytes a text and band. Changes no row.
        noted: Receives `buckets_split` (buckets of more than `max_bucket` texts), `bucket_pairs_left_out` (their pairs that no part of
            them proposes; another band may).

    Returns:
        PROPOSED_PAIRS, each once.
    """

    def propose(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for table in whole(batches):
            bucket, further, ids = (c.to_numpy() for c in table.columns)
            for pairs in bucket_pairs(bucket, further, ids, config.max_bucket):
                if len(pairs.left):
                    distinct = np.unique(np.stack([pairs.left, pairs.right], axis=1), axis=0)
                    yield pa.RecordBatch.from_pydict(
                        {LEFT_ID: distinct[:, 0], RIGHT_ID: distinct[:, 1], **dict.fromkeys(EVENTS, pa.nulls(len(distinct), pa.int64()))},
                        schema=pa_schema(FOUND),
                    )
                if pairs.split:
                    yield pa.RecordBatch.from_pylist(
                        [dict(zip(EVENTS, (pairs.split, pairs.left_out), strict=True))], schema=pa_schema(FOUND)
                    )

    buckets = SKETCHES.conform(sketches).select(REP_ID, F.posexplode("bands").alias("band", "bucket"), "bands")
    # The band after this one, and after the last the first, splits what is too large.
    further = F.get("bands", F.pmod(F.col("band") + 1, F.size("bands")))
    found = buckets.select("bucket", further.alias("further"), REP_ID).repartition(partitions, "bucket").mapInArrow(propose, FOUND)
    if noted is not None:
        found = found.observe(noted, *[F.coalesce(F.sum(name), F.lit(0)).alias(name) for name in EVENTS])
    pairs = found.where(F.col(LEFT_ID).isNotNull()).select(LEFT_ID, RIGHT_ID).distinct()
    return PROPOSED_PAIRS.conform(pairs.withColumn("methods", F.array(F.lit(LSH))))
