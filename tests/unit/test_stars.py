"""Stars inside components: by hand, against the definition, and independent of the order of edges."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_dedup.kernels.stars import star_labels


def stars(edges: list[tuple[int, int]], rank: dict[int, int]) -> dict[int, int]:
    left, right = (np.array([e[i] for e in edges], dtype=np.int64) for i in (0, 1))
    ids, labels = star_labels(left, right, *(np.array([rank[v] for v in ends.tolist()], dtype=np.int64) for ends in (left, right)))
    return dict(zip(ids.tolist(), labels.tolist(), strict=True))


@pytest.mark.parametrize(
    ("edges", "rank", "wanted"),
    [
        # a chain 0-1-2-3-4: 0 takes 1, then 2 takes 3, and 4 is left alone
        ([(0, 1), (1, 2), (2, 3), (3, 4)], [0, 1, 2, 3, 4], [0, 0, 2, 2, 4]),
        # the same chain with its middle first: 2 takes 1 and 3, and the ends are alone
        ([(0, 1), (1, 2), (2, 3), (3, 4)], [3, 2, 0, 4, 1], [0, 1, 1, 1, 4]),
        # a star keeps together only if its centre comes first
        ([(0, 3), (1, 3), (2, 3)], [1, 2, 3, 0], [0, 0, 0, 0]),
        ([(0, 3), (1, 3), (2, 3)], [0, 1, 2, 3], [0, 1, 2, 0]),
        # a clique is one star whoever comes first
        ([(a, b) for a in range(4) for b in range(a)], [2, 3, 0, 1], [0, 0, 0, 0]),
        # two components whose ranks are equal do not disturb each other; loops, repeated and mirrored edges change nothing
        ([(0, 1), (1, 0), (0, 0), (2, 3), (2, 3)], [0, 1, 1, 0], [0, 0, 2, 2]),
        ([], [], []),
    ],
)
def test_worked_by_hand(edges, rank, wanted):
    assert stars(edges, dict(enumerate(rank))) == dict(enumerate(wanted))


@settings(max_examples=200, deadline=None)
@given(st.sets(st.tuples(st.integers(0, 12), st.integers(0, 12)), max_size=40), st.permutations(range(13)), st.randoms())
def test_centres_are_the_first_independent_set_and_every_other_text_joins_its_first_neighbour_among_them(edges, rank, random):
    edges = list(edges)
    touched = {v for e in edges for v in e}
    near = {v: {a + b - v for a, b in edges if v in (a, b)} - {v} for v in touched}
    centres: list[int] = []
    for v in sorted(touched, key=rank.__getitem__):
        if not near[v] & set(centres):
            centres.append(v)
    # `centres` is in the order of the ranks, so the first neighbour in it is the one that takes the text
    centre = {v: v if v in centres else next(c for c in centres if c in near[v]) for v in touched}
    wanted = {v: min(u for u in touched if centre[u] == centre[v]) for v in touched}
    random.shuffle(edges)
    assert stars(edges, dict(enumerate(rank))) == wanted
