"""The search engines: which stages each is made of, and where it may lose pairs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from spark_dedup.config import SearchConfig
from spark_dedup.evaluation.recall import Limits, shard_reach
from spark_dedup.kernels.cells import ONE_CELL_ROWS, Cells, cell_shards, fine_cell_count
from spark_dedup.shards import reach
from spark_dedup.stages.candidates_cells import cells_self_join
from spark_dedup.stages.candidates_exact import exact_candidates
from spark_dedup.stages.candidates_hnsw import hnsw_candidates
from spark_dedup.stages.candidates_pgvector import pgvector_candidates
from spark_dedup.stages.index_cells import build_cell_index, fine_cells
from spark_dedup.stages.index_hnsw import build_index, coarse_cells

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Observation


@dataclass(frozen=True)
class SelfJoin:
    """A batch whose pairs with itself are wanted.

    Attributes:
        vectors: VECTORS, everything that was indexed.
        index: The files brought to the executors (`ShardFiles`), or INDEX itself; what Postgres answered (`Neighbours`), where it was
            asked; None for an engine without index.
        cells: The rows of INDEX_CELLS; none for an engine without index.
        config: The engine's settings.
        heads: Distinct vectors.
        partitions: Tasks wanted, at least 1.
        noted: Receives `pairs` and the engine's events.
    """

    vectors: DataFrame
    index: Any
    cells: Cells
    config: SearchConfig
    heads: int
    partitions: int
    noted: Observation | None


@dataclass(frozen=True)
class Engine:
    """One way to find candidate pairs.

    Attributes:
        indexed: How its index is made: the cells, and the shards made of them; None for an engine without index.
        join: SCORED_PAIRS of a batch with itself, each unordered pair once.
        limits: Where it may lose pairs.
        events: Limits that it counts while it searches.
        tries: The settings that are tried for `recall.target`, from the distinct vectors; None for an engine that is not tuned.
        in_postgres: Whether Postgres holds its index and is asked.
    """

    indexed: tuple[Callable[[DataFrame, int, SearchConfig], DataFrame], Callable[[DataFrame, Cells, SearchConfig], DataFrame]] | None
    join: Callable[[SelfJoin], DataFrame]
    limits: Callable[[SearchConfig, Cells], Limits]
    events: tuple[str, ...]
    tries: Callable[[SearchConfig, int], list[SearchConfig]] | None = None
    in_postgres: bool = False


def choose_engine(wanted: str, heads: int) -> tuple[str, str]:
    """Decide which engine searches; by the number of vectors alone, so that a table is the same on every cluster.

    Args:
        wanted: `search.engine`.
        heads: Distinct vectors.

    Returns:
        A name in `ENGINES`, and the reason in one line.
    """
    if wanted != "auto":
        return wanted, "set by search.engine"
    if heads <= ONE_CELL_ROWS:
        return "exact", f"{heads:,} distinct vectors: the products of all pairs take about a second"
    return "cells", f"{heads:,} distinct vectors: products inside cells miss next to nothing and need no graph"


def chosen(config: SearchConfig, heads: int) -> SearchConfig:
    """The settings with `auto` replaced by the engine that it stands for."""
    return replace(config, engine=choose_engine(config.engine, heads)[0])


def _cell_limits(config: SearchConfig, cells: Cells) -> Limits:
    def placed(vectors: NDArray[np.float32]) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
        bounds, visits = cells.probes(vectors, reach(config))
        visited = np.zeros((len(vectors), len(cells.centroids)), dtype=np.bool_)
        visited[np.repeat(np.arange(len(vectors)), np.diff(bounds)), visits] = True
        return visits[bounds[:-1]].astype(np.int32), visited

    return Limits(None, config.max_copies, placed)


def _cell_numbers(config: SearchConfig, heads: int) -> list[SearchConfig]:
    shards, usual = cell_shards(heads, config.shards), fine_cell_count(heads, config.cells, shards=1)
    numbers = (usual,) if usual == 1 or isinstance(config.cells, int) else (usual // 2, usual, 2 * usual)
    return [replace(config, cells=number) for number in sorted({max(shards, number) for number in numbers})]


_CELLS = Engine(
    (fine_cells, build_cell_index),
    lambda j: cells_self_join(j.vectors, j.index, j.cells, j.config, partitions=j.partitions, noted=j.noted),
    _cell_limits,
    ("copies_not_paired", "split_cells"),
)

ENGINES = {
    "hnsw": Engine(
        (coarse_cells, build_index),
        lambda j: hnsw_candidates(j.vectors, j.vectors, j.index, j.cells, j.config, partitions=j.partitions, noted=j.noted),
        lambda config, cells: Limits(config.max_neighbours, config.max_copies, shard_reach(cells, config.margin)),
        ("saturated", "copies_not_paired"),
    ),
    "cells": replace(_CELLS, tries=_cell_numbers),
    "semdedup": _CELLS,
    "exact": Engine(
        None,
        lambda j: exact_candidates(j.vectors, j.heads, j.config, partitions=j.partitions, noted=j.noted),
        lambda config, cells: Limits(None, config.max_copies, None),
        ("copies_not_paired",),
    ),
    "pgvector": Engine(
        None,
        lambda j: pgvector_candidates(j.index, j.vectors, j.config, tiles=j.partitions, noted=j.noted),
        lambda config, cells: Limits(config.max_neighbours, config.max_copies, None),
        ("saturated", "copies_not_paired"),
        in_postgres=True,
    ),
}
