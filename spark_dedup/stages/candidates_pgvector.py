"""VECTORS -> COPY rows -> (Postgres) -> NEIGHBOUR_PAIRS x VECTORS -> SCORED_PAIRS: the two ends of the self-join in Postgres."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from pyspark.sql import Window
from pyspark.sql import functions as F

from spark_dedup.asking import FOUND, Tile, found_rows, in_tiles, named_pairs, tiles_of, with_copies
from spark_dedup.config import SearchConfig
from spark_dedup.kernels.expand import Found
from spark_dedup.kernels.features import decode, pair_scores
from spark_dedup.kernels.pgcopy import vector_rows
from spark_dedup.kernels.vectors import cosines_at, from_binary
from spark_dedup.schema import LEFT_ID, NEIGHBOUR_PAIRS, RECORD_ID, REP_ID, REPRESENTATIVES, RIGHT_ID, VECTORS, pa_schema

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Observation

METHOD = "pgvector"

BLOCK_ROWS = 1024
"""Vectors in a block of COPY rows: 3 MB with 768 dimensions."""

BLOCK = "`block` binary"


@dataclass(frozen=True)
class Neighbours:
    """What Postgres found.

    Attributes:
        pairs: NEIGHBOUR_PAIRS.
        asked_again: Lists that were full above the floor at first.
        saturated: Lists that `search.max_neighbours` cut.
        told: How the search went, in words.
    """

    pairs: DataFrame
    asked_again: int
    saturated: int
    told: str = ""


def copy_blocks(vectors: DataFrame, kind: str) -> DataFrame:
    """Every distinct vector once, as Postgres takes it in.

    Args:
        vectors: VECTORS.
        kind: `pgvector.type`.

    Returns:
        `block` binary: rows (head_id, vector) of a binary COPY, without header and trailer.
    """

    def encode(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for start in range(0, batch.num_rows, BLOCK_ROWS):
                part = batch.slice(start, BLOCK_ROWS)
                rows = vector_rows(part.column(REP_ID).to_numpy(), from_binary(part.column("vector")), kind)
                yield pa.RecordBatch.from_arrays([pa.array([rows], pa.binary())], schema=pa_schema(BLOCK))

    return heads(vectors).select(REP_ID, "vector").mapInArrow(encode, BLOCK)


def head_records(vectors: DataFrame, representatives: DataFrame) -> DataFrame:
    """The record that each distinct vector belongs to.

    Args:
        vectors: VECTORS.
        representatives: REPRESENTATIVES.

    Returns:
        rep_id, and record_id as string.
    """
    records = REPRESENTATIVES.conform(representatives).select(REP_ID, F.col(RECORD_ID).cast("string").alias(RECORD_ID))
    return heads(vectors).select(REP_ID).join(records, REP_ID, how="inner")


def heads(vectors: DataFrame) -> DataFrame:
    """VECTORS rows that stand for all with an equal vector."""
    return VECTORS.conform(vectors).where(F.col("head_id") == F.col(REP_ID))


def pair_blocks(blocks: DataFrame) -> DataFrame:
    """NEIGHBOUR_PAIRS out of blocks of little-endian int64 pairs."""

    def decode_pairs(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for block in batch.column("block").to_pylist():
                ids = np.frombuffer(block, dtype="<i8").reshape(-1, 2)
                yield pa.RecordBatch.from_arrays([pa.array(ids[:, 0]), pa.array(ids[:, 1])], schema=NEIGHBOUR_PAIRS.arrow())

    return NEIGHBOUR_PAIRS.conform(blocks.mapInArrow(decode_pairs, NEIGHBOUR_PAIRS.ddl()))


def pgvector_candidates(
    found: Neighbours, vectors: DataFrame, config: SearchConfig, *, tiles: int, noted: Observation | None = None
) -> DataFrame:
    """The pairs of texts that Postgres' pairs of vectors stand for, scored as every engine scores them, each unordered pair once.

    Args:
        found: Pairs of distinct vectors; those below the floor are refused here.
        vectors: VECTORS, everything that was searched.
        config: Uses `floor` and `max_copies`.
        tiles: At least 1; changes no row.
        noted: Receives `pairs` and the events.

    Returns:
        SCORED_PAIRS.
    """
    vectors = VECTORS.conform(vectors)

    def texts_of(needed: DataFrame) -> DataFrame:
        return needed.join(vectors.select(REP_ID, "vector", "features"), REP_ID, how="inner")

    def score(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for tile in tiles_of(batches):
            yield scored(tile, config.floor)

    scores = in_tiles(text_pairs(found.pairs, vectors, config), texts_of, tiles).mapInArrow(score, FOUND)
    asked = vectors.sparkSession.createDataFrame([(found.asked_again, found.saturated)], "`asked_again` bigint, `saturated` bigint")
    return named_pairs(scores.unionByName(asked, allowMissingColumns=True), METHOD, noted)


def text_pairs(neighbours: DataFrame, vectors: DataFrame, config: SearchConfig) -> DataFrame:
    """From pairs of vectors to pairs of texts, by the rule of `kernels.expand`.

    Args:
        neighbours: NEIGHBOUR_PAIRS, a pair any number of times.
        vectors: VECTORS.
        config: Uses `max_copies`.

    Returns:
        left_id < right_id, each pair once, and `left_out`, further pairs that this one stands for.
    """
    texts = with_copies(vectors, vectors, config).select(REP_ID, "head_id", "copies")
    standing = texts.where((F.col("copies") == 1) | (F.col(REP_ID) == F.col("head_id")))
    sides = [
        standing.select(F.col(REP_ID).alias(f"{end}_rep"), F.col("head_id").alias(f"{end}_id"), F.col("copies").alias(f"{end}_copies"))
        for end in ("left", "right")
    ]
    near = NEIGHBOUR_PAIRS.conform(neighbours).distinct().join(sides[0], LEFT_ID, how="inner").join(sides[1], RIGHT_ID, how="inner")
    across = paired(near, "left_rep", "right_rep", F.col("left_copies") * F.col("right_copies") - 1)

    younger = texts.where(F.col(REP_ID) != F.col("head_id")).select("head_id", F.col(REP_ID).alias("younger"))
    older = texts.where(F.col("copies") == 1).select("head_id", F.col(REP_ID).alias("older"))
    twins = older.join(younger, "head_id", how="inner").where(F.col("older") < F.col("younger"))
    same = paired(twins, "older", "younger", F.lit(0))

    # A crowd's texts are each paired with its first one; left out are the pairs with the texts between the two.
    place = F.row_number().over(Window.partitionBy("head_id").orderBy(REP_ID))
    crowd = texts.where(F.col("copies") > 1).withColumn("place", place).where(F.col("place") > 1)
    return across.unionByName(same).unionByName(paired(crowd, "head_id", REP_ID, F.col("place") - 2))


def paired(rows: DataFrame, one: str, other: str, left_out: Column) -> DataFrame:
    """left_id, right_id and left_out of two columns of ids, in either order."""
    ids = F.least(one, other).alias(LEFT_ID), F.greatest(one, other).alias(RIGHT_ID)
    return rows.select(*ids, left_out.cast("bigint").alias("left_out"))


def scored(tile: Tile, floor: float) -> pa.RecordBatch:
    """FOUND rows of one tile: the pairs at or above the floor.

    Args:
        tile: Pairs with `left_out`, texts with `vector` and `features`.
        floor: Least cosine.
    """
    texts, left, right = tile.texts, tile.left, tile.right
    ids, block = texts[REP_ID].to_numpy(), decode(texts["features"])
    vectors = np.concatenate([from_binary(chunk) for chunk in texts["vector"].chunks if len(chunk)])
    cosine = cosines_at(vectors, left, vectors, right)
    near = cosine >= floor
    left, right = left[near], right[near]
    scores = pair_scores(block, left, block, right)
    return found_rows(Found(ids[left], ids[right], cosine[near], scores, tile.pairs["left_out"].to_numpy()[near]))
