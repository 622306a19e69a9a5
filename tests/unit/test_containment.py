"""Which texts lie inside longer ones, against sets compared one by one."""

from __future__ import annotations

import numpy as np
import pytest

from spark_dedup.kernels.containment import least_shared, longer_texts, looked_for


def postings(sets):
    """Shingle, size, text and frequency of every shingle that two sets or more have."""
    count: dict[int, int] = {}
    for shingles in sets:
        for s in shingles:
            count[s] = count.get(s, 0) + 1
    rows = [(s, len(shingles), i, count[s]) for i, shingles in enumerate(sets) for s in shingles if count[s] > 1]
    return np.array(rows, dtype=np.int64).reshape(-1, 4).T


def found_in(sets, share, most=10**6):
    shingle, size, text, frequency = postings(sets)
    asks = looked_for(text, size, frequency, shingle, share)
    pairs, left_out = set(), 0
    for left, right, out in longer_texts(shingle, size, text, asks, most):
        pairs |= set(zip(left.tolist(), right.tolist(), strict=True))
        left_out += out
    return pairs, left_out


def contained(sets, share):
    return {
        (i, j)
        for i in range(len(sets))
        for j in range(i + 1, len(sets))
        if len(sets[i] & sets[j]) >= share * min(len(sets[i]), len(sets[j])) - 1e-12
    }


def test_least_shared():
    assert least_shared(np.array([10, 10, 3, 1, 7]), 0.7).tolist() == [7, 7, 3, 1, 5]
    assert least_shared(np.array([10, 1]), 1.0).tolist() == [10, 1]
    assert least_shared(np.array([10]), 1e-6).tolist() == [1]


@pytest.mark.parametrize("share", [0.3, 0.7, 0.9, 1.0])
def test_no_contained_set_is_missed(share):
    rng = np.random.default_rng(5)
    whole = [set(rng.integers(0, 4000, rng.integers(20, 120)).tolist()) for _ in range(60)]
    parts = []
    for shingles in whole:  # excerpts, of which up to half the shingles were replaced
        size = int(rng.integers(1, len(shingles)))
        part = list(rng.permutation(sorted(shingles))[:size])
        kept = part[: int(np.ceil(min(1.0, rng.uniform(0.5, 1.4)) * size))]
        parts.append(set(map(int, kept)) | set(range(10_000, 10_000 + size - len(kept))))
    sets = [*whole, *parts]
    true = contained(sets, share)
    pairs, left_out = found_in(sets, share)
    assert len(true) >= 15
    assert true <= pairs
    assert left_out == 0
    meet = {(i, j) for i in range(len(sets)) for j in range(i + 1, len(sets)) if sets[i] & sets[j]}
    assert pairs <= meet
    if share >= 0.7:
        assert len(pairs) < len(meet) / 3  # sharing a shingle is not enough, it must be one that is looked for


def test_a_set_with_too_many_shingles_of_its_own_looks_for_none():
    sets = [{1, 2, 3, 100, 101}, {1, 2, 3, 4, 5, 6, 7}, {4, 5, 6, 7, 8, 9, 10, 11, 12}]
    # the first lacks two of five, so it may lie in another at 0.6 but not at 0.7; the second shares four of seven with the third
    assert found_in(sets, 0.6)[0] == {(0, 1)} | found_in(sets[1:], 0.6)[0]
    assert found_in(sets, 0.7)[0] == set()
    assert (1, 2) in found_in(sets, 4 / 7)[0]


def test_the_rarest_are_looked_for():
    text, size = np.zeros(4, dtype=np.int64), np.full(4, 4)
    frequency, shingle = np.array([9, 2, 2, 5]), np.array([1, 3, 2, 4])
    assert looked_for(text, size, frequency, shingle, 1.0).tolist() == [False, False, True, False]
    assert looked_for(text, size, frequency, shingle, 0.75).tolist() == [False, True, True, False]
    # Two more shingles that no other text has take two of the places.
    assert looked_for(text, size + 2, frequency, shingle, 0.5).tolist() == [False, True, True, False]


def test_a_bound_keeps_the_next_longer_ones_and_counts_the_rest():
    sets = [{1}, *({1, *range(100 * i, 100 * i + 2 + i)} for i in range(1, 6))]
    shingle, size, text, _ = postings(sets)
    asks = text == 0
    (got,) = longer_texts(shingle, size, text, asks, 2)
    assert (got[0].tolist(), got[1].tolist(), got[2]) == ([0, 0], [1, 2], 3)
    assert found_in(sets, 1.0) == ({(0, i) for i in range(1, 6)}, 0)


def test_equal_sets_are_one_pair_and_none_is_fine():
    assert found_in([{1, 2}, {1, 2}], 1.0) == ({(0, 1)}, 0)
    empty = np.zeros(0, dtype=np.int64)
    assert list(longer_texts(empty, empty, empty, empty.astype(bool), 1)) == []
    assert looked_for(empty, empty, empty, empty, 0.5).tolist() == []
