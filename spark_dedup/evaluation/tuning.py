"""How many cells, and which margin, reach a wanted recall: decided on the true pairs of a few random texts.

The texts are compared with every vector there is, in one pass over the stored vectors: 2 x TUNED_TEXTS x n x d operations, less than
what it takes to find the cells of all vectors. Each true pair says which margin it needs, so one pass serves every margin and every
number of cells. Of the numbers tried, the one whose margin leaves the fewest products wins.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql import functions as F

from spark_dedup.evaluation.plan import cell_products
from spark_dedup.evaluation.truth import sample_rows
from spark_dedup.kernels.cell_index import MARGINS, least_margin, margin_counts, needed_margins
from spark_dedup.kernels.cells import Cells
from spark_dedup.kernels.products import near_between
from spark_dedup.kernels.vectors import from_binary
from spark_dedup.schema import REP_ID, VECTORS, pa_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

TUNED_TEXTS = 1000
"""A quarter of the products of finding the cells of ten million vectors, and twice those of 200,000, where both take a second."""

TUNING_SEED = 2**31
"""No `recall.seed` is as large: a run is never measured on the sample that it was tuned on."""

NEEDS = "`try` bigint, `margin` bigint, `pairs` bigint"
"""True pairs by the margin that they need, in hundredths, for each of the cells that are tried."""


@dataclass(frozen=True)
class Tuned:
    """What a target takes with one number of cells.

    Attributes:
        margin: The least that reaches the target on the sample.
        products: Products of a vector, with all centroids and with the vectors that it meets, on average.
    """

    margin: float
    products: float


@dataclass(frozen=True)
class Tuning:
    """What was tried for a target.

    Attributes:
        tried: One for each of the cells that were tried; empty where the sample had no true pair.
        texts: Texts of the sample.
        pairs: Entries of their true lists.
    """

    tried: tuple[Tuned, ...]
    texts: int
    pairs: int

    @property
    def best(self) -> int:
        """Which of the tried ones compares least, of several the first."""
        return min(range(len(self.tried)), key=lambda n: self.tried[n].products)


def tune_cells(vectors: DataFrame, tries: Sequence[Cells], *, texts: int, heads: int, floor: float, target: float, usual: float) -> Tuning:
    """Find the margin that each number of cells needs. Runs two jobs; what comes to the driver is the sample, and a few hundred counts.

    Args:
        vectors: VECTORS.
        tries: Trained cells, each of another number.
        texts: Rows of `vectors`.
        heads: Distinct vectors among them.
        floor: Least cosine of the pairs that are to be found.
        target: Share of them, in (0, 1].
        usual: `search.margin`.

    Returns:
        The same for any partitions and batch sizes.
    """
    rows = sorted(tuple(row) for row in sample_rows(vectors, TUNED_TEXTS, texts, TUNING_SEED).select(REP_ID, "vector").collect())
    ids, sample = np.array([row[0] for row in rows]), from_binary(pa.array([bytes(row[1]) for row in rows], pa.binary()))
    counts = np.zeros((len(tries), MARGINS + 1), dtype=np.int64)
    for n, hundredths, pairs in needed(vectors, ids, sample, tries, floor).collect():
        counts[n, hundredths] = pairs
    seen = int(counts[0].sum())
    if not seen:
        return Tuning((), len(ids), 0)
    tried = []
    for cells, needs in zip(tries, counts, strict=True):
        margin = least_margin(needs, target, usual)
        tried.append(Tuned(margin, cell_products(heads, len(cells.centroids), *cells.habits(sample, margin))))
    return Tuning(tuple(tried), len(ids), seen)


def needed(vectors: DataFrame, ids: NDArray[np.int64], sample: NDArray[np.float32], tries: Sequence[Cells], floor: float) -> DataFrame:
    """Count the true pairs of a sample by the margin that they need.

    Args:
        vectors: VECTORS, everything that could be a neighbour.
        ids: int64 (k,), rep_ids of the sample.
        sample: float32 (k, d), their vectors.
        tries: As in `tune_cells`.
        floor: See there.

    Returns:
        NEEDS; counts of 0 are left out.
    """

    def count(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        counts = np.zeros((len(tries), MARGINS + 1), dtype=np.int64)
        for batch in batches:
            if not batch.num_rows:
                continue
            others, x = batch.column(REP_ID).to_numpy(), from_binary(batch.column("vector"))
            found = [(near.left, near.right) for near in near_between(sample, x, floor)]
            if not found:
                continue
            left, right = (np.concatenate(side) for side in zip(*found, strict=True))
            different = ids[left] != others[right]
            used, j = np.unique(right[different], return_inverse=True)
            for n, cells in enumerate(tries):
                counts[n] += margin_counts(needed_margins(cells, sample, left[different], x[used], j))
        at, hundredths = np.nonzero(counts)
        columns = map(pa.array, (at, hundredths, counts[at, hundredths]))
        yield pa.RecordBatch.from_arrays([*columns], schema=pa_schema(NEEDS))

    found = VECTORS.conform(vectors).select(REP_ID, "vector").mapInArrow(count, NEEDS)
    return found.groupBy("try", "margin").agg(F.sum("pairs").alias("pairs"))
