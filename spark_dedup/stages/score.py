"""PROPOSED_PAIRS -> SCORED_PAIRS -> CANDIDATE_PAIRS -> EDGES: every pair's scores, and the merge rule's verdict on it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyspark.sql import functions as F

from spark_dedup.asking import SCORES, WORDS, Tile, in_tiles, tiles_of
from spark_dedup.config import MergeConfig
from spark_dedup.kernels.features import NUMBERS, decode, pair_scores
from spark_dedup.kernels.minhash import ShingleSets, is_feature
from spark_dedup.kernels.shingles import NGRAM
from spark_dedup.kernels.vectors import cosines_at, from_binary
from spark_dedup.schema import (
    CANDIDATE_PAIRS,
    EDGES,
    LEFT_ID,
    PROPOSED_PAIRS,
    RECORD_ID,
    REP_ID,
    RIGHT_ID,
    RUN_ID,
    SCORED_PAIRS,
    SKETCHES,
    VECTORS,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

Ints: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True)
class Floors:
    """What a proposed pair must reach to be kept: one of them is enough.

    Attributes:
        jaccard: Least Jaccard of the shingle sets, in (0, 1]; None where it keeps no pair.
        containment: Least share of the smaller set that the larger one holds, in (0, 1]; None where it keeps no pair.
        cosine: Least cosine, in (0, 1]; None where the cosine keeps no pair.
        unit: What a shingle is made of, as in `minhash.shingle_sets`.
        ngram: Units in a shingle.
    """

    jaccard: float | None = None
    containment: float | None = None
    cosine: float | None = None
    unit: str = "word"
    ngram: int = NGRAM


def verify_pairs(proposed: DataFrame, sketches: DataFrame, vectors: DataFrame, floors: Floors, *, tiles: int) -> DataFrame:
    """Score the proposed pairs as the engines score theirs, and keep those that reach a floor.

    Args:
        proposed: PROPOSED_PAIRS, or BLOCK_PAIRS.
        sketches: SKETCHES, with `shingles` where the floors' are not those of the features.
        vectors: VECTORS; a pair with a text that is not among them has no cosine.
        floors: Jaccard and containment are computed from the whole sets of the floors' shingles.
        tiles: At least 1; changes no row.

    Returns:
        SCORED_PAIRS.
    """

    def texts_of(needed: DataFrame) -> DataFrame:
        sketched = needed.join(SKETCHES.conform(sketches).select(REP_ID, "features", "shingles"), REP_ID, how="inner")
        return sketched.join(VECTORS.conform(vectors).select(REP_ID, "vector"), REP_ID, how="left")

    def score(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for tile in tiles_of(batches):
            yield from scored(tile, floors)

    together = in_tiles(PROPOSED_PAIRS.conform(proposed), texts_of, tiles)
    return SCORED_PAIRS.conform(together.mapInArrow(score, SCORED_PAIRS.ddl()))


def scored(tile: Tile, floors: Floors) -> Iterator[pa.RecordBatch]:
    """The pairs of one tile that reach a floor, with their scores.

    Args:
        tile: Pairs with `methods`, texts with `vector`, `features` and `shingles`.
        floors: As in `verify_pairs`.
    """
    texts, left, right = tile.texts, tile.left, tile.right
    ids, block = texts[REP_ID].to_numpy(), decode(texts["features"])
    sets = block if is_feature(floors.unit, floors.ngram) else ShingleSets.of(texts["shingles"]).block()
    shared, kept = pair_scores(sets, left, sets, right), np.zeros(len(left), dtype=np.bool_)
    if floors.jaccard is not None:
        kept |= shared.jaccard >= floors.jaccard
    if floors.containment is not None:
        kept |= shared.containment >= floors.containment
    if floors.cosine is not None:
        cosine, known = known_cosines(texts["vector"], left, right)
        kept |= known & (cosine >= floors.cosine)
    left, right = left[kept], right[kept]
    scores = pair_scores(block, left, block, right)
    cosine, known = known_cosines(texts["vector"], left, right)
    numbers = pa.array(NUMBERS).take(pa.array(scores.numbers))
    others = map(pa.array, (scores.jaccard, scores.containment, scores.substitution))
    words = map(pa.array, (scores.least_words, scores.most_words))
    methods = tile.pairs["methods"].filter(pa.array(kept))
    columns = [pa.array(ids[left]), pa.array(ids[right]), methods, pa.array(cosine, mask=~known), *others, numbers, *words]
    yield from pa.Table.from_arrays(columns, schema=SCORED_PAIRS.arrow()).to_batches()


def known_cosines(vectors: pa.ChunkedArray, left: Ints, right: Ints) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Cosines of rows that may have no vector: float64 (p,), and whether each is known, bool (p,)."""
    has_vector = pc.is_valid(vectors).to_numpy()
    known = has_vector[left] & has_vector[right]
    cosine = np.zeros(len(left))
    if known.any():
        present = np.concatenate([from_binary(chunk) for chunk in vectors.drop_null().chunks if len(chunk)])
        row = np.cumsum(has_vector) - 1
        cosine[known] = cosines_at(present, row[left[known]], present, row[right[known]])
    return cosine, known


def one_row_a_pair(*sources: DataFrame) -> DataFrame:
    """A pair that several methods found is one row with several methods.

    Args:
        sources: SCORED_PAIRS each; scores of a pair are a function of its texts, so they agree.

    Returns:
        SCORED_PAIRS.
    """
    both = sources[0]
    for source in sources[1:]:
        both = both.unionByName(source)
    scores = [F.max(name).alias(name) for name in (*SCORES, "numbers", *WORDS)]
    methods = F.array_sort(F.array_distinct(F.flatten(F.collect_list("methods")))).alias("methods")
    return SCORED_PAIRS.conform(both.groupBy(LEFT_ID, RIGHT_ID).agg(methods, *scores))


def holds(condition: str) -> Column:
    """Whether a merge rule holds on a row of SCORED_PAIRS; one that gives null does not."""
    return F.coalesce(F.expr(condition), F.lit(False))


def judge_pairs(pairs: DataFrame, representatives: DataFrame, config: MergeConfig, run_id: str) -> DataFrame:
    """Apply the merge rule and name the records that the pair's representatives stand for.

    Args:
        pairs: SCORED_PAIRS.
        representatives: REPRESENTATIVES, for the record ids.
        config: Uses `condition`.
        run_id: Run that writes the rows.

    Returns:
        CANDIDATE_PAIRS.
    """
    left = representatives.select(F.col(REP_ID).alias(LEFT_ID), F.col(RECORD_ID).alias("left_record"))
    right = representatives.select(F.col(REP_ID).alias(RIGHT_ID), F.col(RECORD_ID).alias("right_record"))
    judged = pairs.withColumn("is_edge", holds(config.condition)).withColumn(RUN_ID, F.lit(run_id))
    return CANDIDATE_PAIRS.conform(judged.join(left, LEFT_ID, how="inner").join(right, RIGHT_ID, how="inner"))


def accepted_edges(candidate_pairs: DataFrame) -> DataFrame:
    """The pairs that the merge rule accepts.

    Args:
        candidate_pairs: CANDIDATE_PAIRS.

    Returns:
        EDGES, each once.
    """
    return EDGES.conform(candidate_pairs.where("is_edge").select(LEFT_ID, RIGHT_ID))
