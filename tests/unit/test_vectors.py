"""Normalisation, exact cosines and conversion of vectors."""

from __future__ import annotations

import struct

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from case_files import CASES

from spark_dedup.errors import EmbeddingError
from spark_dedup.kernels.vectors import SLICE_ROWS, cosines, from_binary, normalize_rows, to_binary


def f32(*rows):
    return np.array(rows, dtype=np.float32)


def test_rows_get_length_one():
    unit, problems = normalize_rows(f32([3, 4], [0, -2]))
    assert unit.dtype == np.float32
    assert unit.tolist() == f32([0.6, 0.8], [0, -1]).tolist()
    assert problems == [None, None]


def test_rows_without_a_direction_are_zero_and_say_why():
    unit, problems = normalize_rows(f32([0, 0], [np.nan, 1], [np.inf, 1], [-np.inf, np.nan], [1, 0]))
    assert problems == ["zero", "nan", "infinite", "nan", None]
    assert unit.tolist() == [[0, 0], [0, 0], [0, 0], [0, 0], [1, 0]]


def test_no_columns_is_empty_and_no_rows_is_nothing():
    assert normalize_rows(np.zeros((2, 0), np.float32))[1] == ["empty", "empty"]
    unit, problems = normalize_rows(np.zeros((0, 3), np.float32))
    assert (unit.shape, problems) == ((0, 3), [])


@pytest.mark.parametrize("scale", [1e-45, 1e-30, 1.0, 1e30, 3e38])
def test_the_largest_and_smallest_float32_keep_their_direction(scale):
    unit, problems = normalize_rows(f32([scale, scale, 0]))
    assert problems == [None]
    assert unit.tolist() == [[np.float32(np.sqrt(0.5)), np.float32(np.sqrt(0.5)), 0]]


@pytest.mark.parametrize("scale", [5e-324, 1e300])
def test_the_largest_and_smallest_float64_keep_their_direction(scale):
    unit, _ = normalize_rows(np.array([[-scale, 0.0]]))
    assert unit.tolist() == [[-1.0, 0.0]]


def test_what_is_not_a_matrix_of_floats_is_refused():
    with pytest.raises(EmbeddingError, match=r"matrix of floats, got int64 of shape \(1, 2\)"):
        normalize_rows(np.array([[1, 2]]))
    with pytest.raises(EmbeddingError, match=r"got float32 of shape \(2,\)"):
        normalize_rows(np.ones(2, dtype=np.float32))


def test_unusual_vectors_get_the_cosines_of_their_directions():
    table = pq.read_table(CASES / "o11_bad_vectors.parquet").to_pydict()
    rows = {i: v for i, v in zip(table["id"], table["embedding"], strict=True) if v is not None and len(v) == 4 and None not in v}
    unit, problems = normalize_rows(np.array(list(rows.values()), dtype=np.float32))
    row = dict(zip(rows, unit[:, None], strict=True))
    wanted = {"zero1": "zero", "zero2": "zero", "nan1": "nan", "nan2": "nan", "inf1": "infinite"}
    assert {i: p for i, p in zip(rows, problems, strict=True) if p} == wanted
    assert row["tiny"].tobytes() == row["ok1"].tobytes()
    assert cosines(row["ok1"], row["ok2"])[0] == pytest.approx(0.95, abs=1e-7)
    # huge lies at 45 degrees: (0.95 + 0.31225) / sqrt(2)
    assert cosines(row["huge"], row["ok2"])[0] == pytest.approx(1.26225 / np.sqrt(2), abs=1e-7)


def test_cosine_by_hand():
    # (1,2,2).(2,1,2) = 8, both of length 3; orthogonal; opposite; length does not matter.
    a = f32([1, 2, 2], [1, 0, 0], [1, 2, 3], [1, 2, 2])
    b = f32([2, 1, 2], [0, 5, 0], [-1, -2, -3], [20, 10, 20])
    assert cosines(a, b).tolist() == [8 / 9, 0.0, -1.0, 8 / 9]


def test_equal_rows_have_cosine_one_exactly_and_nothing_exceeds_it():
    rng = np.random.default_rng(7)
    a = rng.standard_normal((3000, 61)).astype(np.float32)
    assert (cosines(a, a) == 1.0).all()
    assert (cosines(a, -a) == -1.0).all()
    nearly = np.nextafter(a, np.float32(9))
    assert (cosines(a, nearly) <= 1.0).all()


def test_cosines_agree_with_exact_arithmetic():
    rng = np.random.default_rng(8)
    a, b = rng.standard_normal((2, 200, 33)).astype(np.float32)
    wide = [v.astype(np.longdouble) for v in (a, b)]
    want = (wide[0] * wide[1]).sum(1) / np.sqrt((wide[0] ** 2).sum(1) * (wide[1] ** 2).sum(1))
    assert np.abs(cosines(a, b) - want).max() < 33 * 2**-52  # at most d roundings in each sum


def test_cosines_have_the_same_bits_from_either_side_and_in_any_batch():
    rng = np.random.default_rng(9)
    a, b = rng.standard_normal((2, SLICE_ROWS + 77, 50)).astype(np.float32)
    whole = cosines(a, b)
    assert cosines(b, a).tobytes() == whole.tobytes()
    assert cosines(a[::-1], b[::-1])[::-1].tobytes() == whole.tobytes()
    assert cosines(np.asfortranarray(a), b).tobytes() == whole.tobytes()
    rows = [0, 1, 5, SLICE_ROWS - 1, SLICE_ROWS, SLICE_ROWS + 76]
    assert [cosines(a[i : i + 1], b[i : i + 1])[0] for i in rows] == whole[rows].tolist()


def test_normalisation_has_the_same_bits_in_any_batch():
    x = np.random.default_rng(10).standard_normal((SLICE_ROWS + 77, 50)).astype(np.float32)
    whole, _ = normalize_rows(x)
    assert normalize_rows(x[::-1])[0][::-1].tobytes() == whole.tobytes()
    assert normalize_rows(np.asfortranarray(x))[0].tobytes() == whole.tobytes()
    for i in (0, 1, SLICE_ROWS - 1, SLICE_ROWS):
        assert normalize_rows(x[i : i + 1])[0].tobytes() == whole[i].tobytes()


def test_cosines_refuse_rows_without_a_direction_and_other_shapes():
    with pytest.raises(EmbeddingError, match="zero or non-finite row"):
        cosines(f32([0, 0]), f32([1, 0]))
    with pytest.raises(EmbeddingError, match="zero or non-finite row"):
        cosines(f32([1, 0]), f32([np.nan, 0]))
    with pytest.raises(EmbeddingError, match=r"\(1, 2\) and \(2, 2\)"):
        cosines(f32([1, 0]), f32([1, 0], [1, 0]))
    assert cosines(np.zeros((0, 4), np.float32), np.zeros((0, 4), np.float32)).tolist() == []


def test_binary_is_little_endian_float32_and_comes_back():
    x = f32([1.5, -2], [0, 3e38])
    array = to_binary(x)
    assert array.to_pylist() == [struct.pack("<2f", 1.5, -2), struct.pack("<2f", 0, 3e38)]
    assert from_binary(array).tolist() == x.tolist()
    assert from_binary(array, dimension=2).dtype == np.float32


def test_binary_does_not_copy():
    x = f32([1, 2], [3, 4])
    assert np.shares_memory(from_binary(to_binary(x)), x)


def test_rows_that_are_not_valid_become_null():
    array = to_binary(f32([1], [2], [3]), np.array([True, False, True]))
    assert array.to_pylist() == [struct.pack("<f", 1), None, struct.pack("<f", 3)]


def test_slices_large_binaries_and_odd_offsets_come_back():
    x = f32([1, 2], [3, 4], [5, 6])
    assert from_binary(to_binary(x).slice(1, 2)).tolist() == [[3, 4], [5, 6]]
    assert from_binary(to_binary(x).cast(pa.large_binary()).slice(2)).tolist() == [[5, 6]]
    after_three_bytes = pa.array([b"abc", *to_binary(x).to_pylist()]).slice(1)
    assert from_binary(after_three_bytes).tolist() == x.tolist()


def test_no_rows_come_back_with_the_expected_dimension():
    assert from_binary(pa.array([], pa.binary()), dimension=5).shape == (0, 5)
    assert from_binary(to_binary(np.zeros((0, 4), np.float32))).shape == (0, 0)


def test_binaries_of_other_lengths_and_nulls_are_refused():
    array = pa.array([bytes(8), bytes(8), bytes(12)])
    with pytest.raises(EmbeddingError, match="must have 2 float32 values, got 12 bytes in row 2 of 3"):
        from_binary(array)
    with pytest.raises(EmbeddingError, match="must have 4 float32 values, got 8 bytes in row 0 of 2"):
        from_binary(array.slice(0, 2), dimension=4)
    with pytest.raises(EmbeddingError, match="got 5 bytes in row 0"):
        from_binary(pa.array([bytes(5)]))
    with pytest.raises(EmbeddingError, match="1 nulls in 2 rows"):
        from_binary(pa.array([bytes(8), None]))
