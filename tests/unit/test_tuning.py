"""Whether a target of recall was met, and what is tried for it."""

from __future__ import annotations

import pytest

from spark_dedup.config import RecallConfig, SearchConfig
from spark_dedup.engines import ENGINES
from spark_dedup.errors import ConfigError
from spark_dedup.evaluation.recall import RecallRow, verdict
from spark_dedup.evaluation.tuning import TUNING_SEED, Tuned, Tuning


def rows(value, low, high, floor=0.9):
    figure = RecallRow("r", "candidates", "pair_recall", "", floor, value, low, high, 100, 1000, 50, None, 1.0)
    return [figure._replace(floor=0.85, value=0.1, low=0.1, high=0.1), figure]  # the quoted one is judged, not that at the floor


@pytest.mark.parametrize(
    ("figure", "judged"),
    [
        ((0.9995, 0.999, 1.0), "met"),  # the end of the interval counts as inside
        ((1.0, 1.0, 1.0), "met"),
        ((0.99, 0.98, 0.9989), "missed"),
        ((0.998, 0.998, 0.998), "missed"),
        ((0.9995, 0.9989, 0.9999), "not settled, as the interval reaches to both sides of it"),
        ((0.998, 0.99, 0.999), "not settled, as the interval reaches to both sides of it"),
        ((None, None, None), "not settled, as the sample holds no such pair"),
    ],
)
def test_the_interval_decides_whether_a_target_is_met(figure, judged):
    assert verdict(rows(*figure), 0.999).startswith(f"at cosine >= 0.90: {judged}")


def test_half_and_twice_the_usual_number_of_cells_are_tried_unless_it_is_set():
    tries = ENGINES["cells"].tries
    assert [s.cells for s in tries(SearchConfig(), 65_536)] == [128, 256, 512]  # the usual: 2^16 vectors, 2^8 cells
    assert [s.cells for s in tries(SearchConfig(cells=100), 65_536)] == [100]
    assert [s.cells for s in tries(SearchConfig(), 8192)] == [1]
    assert [s.cells for s in tries(SearchConfig(shards=4), 8192)] == [4]  # a shard has at least one cell
    assert [s.cells for s in tries(SearchConfig(shards=200), 65_536)] == [200, 256, 512]
    assert {name for name, engine in ENGINES.items() if engine.tries} == {"cells"}


def test_the_best_compares_least_and_no_sample_of_a_run_is_that_of_its_tuning():
    assert Tuning((Tuned(0.1, 900.0), Tuned(0.05, 700.0), Tuned(0.02, 700.0)), 10, 5).best == 1
    with pytest.raises(ConfigError, match="seed must be"):
        RecallConfig(seed=TUNING_SEED)
