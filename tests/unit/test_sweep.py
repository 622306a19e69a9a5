"""The knee of a sweep, from recall and seconds alone."""

from __future__ import annotations

from spark_dedup.evaluation.recall import RecallRow
from spark_dedup.sweep import Point, knee, sweep_text


def point(name: str, recall: float | None, seconds: float) -> Point:
    figure = RecallRow("r", "candidates", "pair_recall", name, 0.9, recall, recall, recall, 100, 10, 100, None, 1.0)
    return Point(name, (figure,), seconds, pairs=7, saturated=0, own=False)


def test_the_knee_is_the_quickest_of_those_that_lack_at_most_a_thousandth():
    quick, good, best, slow = point("a", 0.9979, 1.0), point("b", 0.9991, 2.0), point("c", 1.0, 3.0), point("d", 1.0, 9.0)
    assert knee([slow, best, good, quick]) is good  # 1 - 0.9991 <= 0.001 < 1 - 0.9979
    assert knee([slow, best, quick]) is best  # of two with the same recall the quicker
    assert knee([slow]) is slow


def test_points_without_a_figure_have_no_knee():
    nothing = point("a", None, 1.0)
    assert knee([nothing]) is None
    assert knee([nothing, point("b", 0.5, 2.0)]).setting == "b"
    assert "<-" not in sweep_text([nothing])
