"""Cutting sorted streams into groups, and keys that place groups."""

from __future__ import annotations

import itertools

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_dedup.grouped import group_runs, murmur3, spread_keys


def batch(keys, kind="int64"):
    return pa.RecordBatch.from_arrays([pa.array(keys, type=kind), pa.array(range(len(keys)))], names=["k", "row"])


def as_lists(batches):
    return [(key, [piece.column("k").to_pylist() for piece in pieces]) for key, pieces in group_runs(batches, "k")]


def test_cuts_where_the_key_changes_and_joins_over_batch_borders():
    got = as_lists(iter([batch([1, 1, 2]), batch([2, 2]), batch([2, 3])]))
    assert got == [(1, [[1, 1]]), (2, [[2], [2, 2], [2]]), (3, [[3]])]


def test_empty_streams_and_empty_batches_have_no_groups():
    assert as_lists(iter([])) == []
    assert as_lists(iter([batch([]), batch([5]), batch([]), batch([5])])) == [(5, [[5], [5]])]


def test_takes_text_keys_and_nulls_as_keys():
    got = as_lists(iter([batch([None, None, "a"], "string"), batch(["a", "b"], "string")]))
    assert got == [(None, [[None, None]]), ("a", [["a"], ["a"]]), ("b", [["b"]])]


def test_cuts_slices_that_start_in_the_middle_of_a_batch():
    assert as_lists(iter([batch([0, 1, 1, 2, 2]).slice(2, 2)])) == [(1, [[1]]), (2, [[2]])]


def test_unread_groups_are_skipped():
    assert [key for key, _ in group_runs(iter([batch([1, 1, 2]), batch([2]), batch([3])]), "k")] == [1, 2, 3]


def test_reads_no_further_than_the_group_asked_for():
    read = []

    def stream():
        for keys in ([1], [1], [2], [3]):
            read.append(keys)
            yield batch(keys)

    groups = group_runs(stream(), "k")
    key, pieces = next(groups)
    next(pieces)
    assert (key, read) == (1, [[1]])


@given(st.lists(st.lists(st.integers(0, 3), max_size=6), max_size=6))
def test_groups_are_those_of_the_joined_stream(parts):
    keys = sorted(itertools.chain.from_iterable(parts))
    cuts = itertools.accumulate(map(len, parts), initial=0)
    batches = [batch(keys[a:b]) for a, b in itertools.pairwise(cuts)]
    got = [(key, list(itertools.chain.from_iterable(lists))) for key, lists in as_lists(iter(batches))]
    assert got == [(key, list(run)) for key, run in itertools.groupby(keys)]


def test_murmur3_gives_the_values_of_spark():
    # select hash(0), hash(1), hash(-1), hash(2147483647), hash(int(-2147483648))
    keys = np.array([0, 1, -1, 2147483647, -2147483648], dtype=np.int32)
    assert murmur3(keys).tolist() == [933211791, -559580957, -1604776387, 133916647, 723455942]


@pytest.mark.parametrize(("groups", "partitions"), [(1, 1), (5, 5), (3, 7), (20, 7), (1, 1000), (1000, 1000)])
def test_keys_hash_to_the_partition_of_their_group(groups, partitions):
    keys = spread_keys(groups, partitions)
    hashes = murmur3(np.array(keys, dtype=np.int32)).astype(np.int64)
    assert np.mod(hashes, partitions).tolist() == [g % partitions for g in range(groups)]
