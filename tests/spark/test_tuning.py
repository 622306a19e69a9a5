"""What a target of recall takes: the counts of Spark against those of all pairs at once, whatever the layout."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from spark_dedup.evaluation import tuning
from spark_dedup.evaluation.tuning import tune_cells
from spark_dedup.kernels.cell_index import least_margin, margin_counts, needed_margins
from spark_dedup.kernels.cells import train_cells
from spark_dedup.kernels.features import features
from spark_dedup.kernels.vectors import cosines, to_binary
from spark_dedup.schema import VECTORS

pytestmark = pytest.mark.slow

ROWS, FLOOR = 500, 0.85


def crowd() -> np.ndarray:
    """Overlapping groups whose members have cosines on both sides of the floor."""
    rng = np.random.default_rng(9)
    x = 3 * rng.normal(size=(20, 32))[rng.integers(0, 20, ROWS)] + 1.1 * rng.normal(size=(ROWS, 32))
    return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)


X = crowd()
TRIES = [train_cells(X[:256], 1, cells=number) for number in (32, 64)]


@pytest.fixture(scope="module")
def vectors(spark):
    (blob,) = features(pa.array(["a text"])).to_pylist()
    return spark.createDataFrame([(i, i, v, blob) for i, v in enumerate(to_binary(X).to_pylist())], VECTORS.ddl()).localCheckpoint()


def tuned(vectors, target=0.9):
    return tune_cells(vectors, TRIES, texts=ROWS, heads=ROWS, floor=FLOOR, target=target, usual=0.1)


def test_the_sample_of_all_texts_gives_the_margins_of_all_pairs(vectors):
    i, j = (a.ravel() for a in np.indices((ROWS, ROWS)))
    near = (cosines(X[i], X[j]) >= FLOOR) & (i != j)
    i, j = i[near], j[near]  # every pair in both orders, as it is in two lists
    found = tuned(vectors)
    assert (found.texts, found.pairs) == (ROWS, len(i))
    wanted = [least_margin(margin_counts(needed_margins(cells, X, i, X, j)), 0.9, 0.1) for cells in TRIES]
    assert [t.margin for t in found.tried] == wanted
    assert 0 < min(wanted) < 0.1
    for cells, t in zip(TRIES, found.tried, strict=True):
        bounds, visits = cells.probes(X, t.margin)
        sizes = np.bincount(visits[bounds[:-1]], minlength=len(cells.centroids))
        mean_size = float((sizes * (sizes - 1)).sum()) / (ROWS * (ROWS - 1)) * ROWS
        assert t.products == pytest.approx(len(cells.centroids) + mean_size * (len(visits) / ROWS - 0.5))


def test_no_layout_changes_what_is_tuned_and_a_higher_target_never_narrows(vectors, spark_conf, monkeypatch):
    monkeypatch.setattr(tuning, "TUNED_TEXTS", 120)
    found = tuned(vectors)
    assert found.texts == 120
    assert tuned(vectors, 0.999).tried[0].margin >= found.tried[0].margin
    spark_conf("spark.sql.execution.arrow.maxRecordsPerBatch", "16")
    assert tuned(vectors.repartition(7)) == tuned(vectors.coalesce(1)) == found


def test_a_sample_without_a_pair_tunes_nothing(vectors):
    apart = tune_cells(vectors.limit(1), TRIES, texts=1, heads=1, floor=FLOOR, target=0.9, usual=0.1)
    assert (apart.tried, apart.texts, apart.pairs) == ((), 1, 0)
