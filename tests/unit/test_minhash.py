"""Shingle sets of every unit, signatures against exact Jaccard, the S-curve, bands and buckets."""

from __future__ import annotations

import itertools
import re

import numpy as np
import pyarrow as pa
import pytest

from spark_dedup.errors import ConfigError
from spark_dedup.kernels.buckets import bucket_pairs
from spark_dedup.kernels.features import decode, features, pair_scores
from spark_dedup.kernels.minhash import ShingleSets, alike_between, band_hashes, bands_for, s_curve, shingle_sets, signatures
from spark_dedup.kernels.ragged import edges


def sets_of(*sets):
    rows = [np.array(sorted(s), dtype=np.uint64) for s in sets]
    return ShingleSets(np.concatenate([np.zeros(0, dtype=np.uint64), *rows]), edges(np.array([len(r) for r in rows])))


def jaccards(sets):
    left, right = (np.array(x) for x in zip(*itertools.combinations(range(len(sets)), 2), strict=True))
    return pair_scores(sets.block(), left, sets.block(), right).jaccard


UNITS = {
    "word": lambda text: re.findall(r"\w+", text.lower()),
    "char": lambda text: list(text.lower()),
    "token": lambda text: re.findall(r"\w+|[^\w\s]", text),
}
TEXTS = [
    "def f(x, y): return x+y",
    "def f(x,y):   return x + y",
    "def F(x, y): return X+y",
    "Größe übt = maß + „x“",
    "Größe übt=maß+ x",
    "a b",
    "A b",
]


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("ngram", [1, 3, 64])
def test_shingles_are_the_n_grams_of_the_unit(unit, ngram):
    def grams(text):
        parts = UNITS[unit](" ".join(text.split()))
        if len(parts) < ngram:
            return {text}  # case and punctuation kept
        return {tuple(parts[i : i + ngram]) for i in range(len(parts) - ngram + 1)}

    want = [len(grams(a) & grams(b)) / len(grams(a) | grams(b)) for a, b in itertools.combinations([" ".join(t.split()) for t in TEXTS], 2)]
    sets = shingle_sets(pa.array(TEXTS), unit, ngram)
    assert np.diff(sets.bounds).tolist() == [len(grams(" ".join(t.split()))) for t in TEXTS]
    assert jaccards(sets).tolist() == want
    assert ngram == 64 or any(want), "some pair must share shingles"


def test_word_5_grams_are_the_shingles_of_the_features():
    texts = pa.array([*TEXTS, "one two three four five six", "one two three four five seven"])
    block, sets = decode(features(texts)), shingle_sets(texts, "word", 5)
    of_features = np.concatenate([block.values[block.bounds[3 * i] : block.bounds[3 * i + 1]] for i in range(len(block))])
    assert of_features.tolist() == sets.values.tolist()
    read = ShingleSets.of_features(block)
    assert (read.values.tolist(), read.bounds.tolist()) == (sets.values.tolist(), sets.bounds.tolist())


def test_nulls_and_empty_texts_have_no_shingle():
    sets = shingle_sets(pa.array([None, "", "  ", "!", None]), "char", 3)
    assert np.diff(sets.bounds).tolist() == [0, 0, 0, 1, 0]
    found = signatures(sets, 8)
    assert (found[[0, 1, 2, 4]] == 2**32 - 1).all()
    assert len(shingle_sets(pa.array([], pa.string()), "word", 5)) == 0
    assert signatures(sets_of(), 8).shape == (0, 8)


def random_pair(rng, shared, only):
    """Two sets with `shared` common elements and `only` of their own each."""
    values = rng.integers(2**63 - 1, size=shared + 2 * only, dtype=np.uint64)  # all differ, but for one run in 10**13
    return {*values[: shared + only].tolist()}, {*values[:shared].tolist(), *values[shared + only :].tolist()}


@pytest.mark.parametrize(("shared", "only"), [(200, 25), (60, 60), (10, 90)])
def test_signatures_agree_as_often_as_the_sets_overlap(shared, only):
    rng = np.random.default_rng(3)
    pairs, permutations, j = 400, 256, shared / (shared + 2 * only)
    found = signatures(sets_of(*itertools.chain.from_iterable(random_pair(rng, shared, only) for _ in range(pairs))), permutations)
    agree = (found[::2] == found[1::2]).mean(axis=1)
    # Each place agrees with probability j. A mean of pairs * permutations places has a deviation of sqrt(j(1-j)/(pairs*permutations));
    # five of them are overstepped once in two million.
    deviation = (j * (1 - j) / permutations) ** 0.5
    assert abs(agree.mean() - j) < 5 * deviation / pairs**0.5
    # Independent places give a variance of deviation**2 over the pairs; a variance estimated from n normal values has a relative
    # deviation of sqrt(2/(n-1)), here 0.07.
    assert abs(agree.var(ddof=1) / deviation**2 - 1) < 5 * (2 / (pairs - 1)) ** 0.5


def test_equal_sets_agree_everywhere_and_disjoint_ones_nowhere():
    rng = np.random.default_rng(5)
    a, b = random_pair(rng, 0, 300)
    one, same, other = signatures(sets_of(a, a, b), 256)
    assert (one == same).all()
    assert not (one == other).any()


def test_signatures_do_not_hang_on_batches():
    rng = np.random.default_rng(7)
    sets = [set(rng.integers(2**63 - 1, size=n, dtype=np.uint64).tolist()) for n in (1, 0, 5000, 3, 0, 0, 2047, 2048, 2049, 1)]
    whole = signatures(sets_of(*sets), 32)
    assert (whole == np.concatenate([signatures(sets_of(s), 32) for s in sets])).all()
    assert (whole == signatures(sets_of(*sets), 64)[:, :32]).all()
    # the least value by definition, from single elements
    assert (whole[2] == np.min([signatures(sets_of({x}), 32)[0] for x in sets[2]], axis=0)).all()


def test_s_curve_by_hand():
    assert s_curve(0.5, 2, 2) == 1 - (1 - 0.25) ** 2 == 0.4375
    assert s_curve(np.array([0.0, 1.0]), 20, 5).tolist() == [0.0, 1.0]
    # Leskovec, Rajaraman, Ullman, figure 3.8: bands of five rows, twenty of them
    assert np.round(s_curve(np.array([0.2, 0.5, 0.8]), 20, 5), 4).tolist() == [0.0064, 0.4701, 0.9996]


@pytest.mark.parametrize(("threshold", "permutations", "recall"), [(0.8, 256, 0.95), (0.5, 128, 0.99), (0.9, 10, 0.5), (1.0, 16, 0.9)])
def test_bands_reach_the_recall_with_the_fewest_candidates(threshold, permutations, recall):
    bands, rows = bands_for(threshold, permutations, recall)
    assert bands * rows <= permutations
    assert s_curve(threshold, bands, rows) >= recall
    below = np.linspace(0, threshold, 501)
    least = min(
        float(s_curve(below, b, r).sum())
        for r in range(1, permutations + 1)
        for b in range(1, permutations // r + 1)
        if s_curve(threshold, b, r) >= recall
    )
    assert s_curve(below, bands, rows).sum() == pytest.approx(least, rel=1e-3)


def test_too_few_permutations_are_refused():
    with pytest.raises(ConfigError, match=r"minhash.permutations must allow a recall of 0.95 at minhash.threshold 0.1, got 16"):
        bands_for(0.1, 16, 0.95)


def test_bands_are_equal_where_their_part_of_the_signature_is():
    one = np.arange(12, dtype=np.uint32)[None]
    other = one.copy()
    other[0, 4] += 1
    a, b = band_hashes(one, 4, 3)[0], band_hashes(other, 4, 3)[0]
    assert (a == b).tolist() == [True, False, True, True]
    assert len(set(band_hashes(np.zeros((1, 12), dtype=np.uint32), 4, 3)[0].tolist())) == 4, "a band's number is part of its hash"
    assert band_hashes(one, 1, 3)[0, 0] != band_hashes(one[:, [1, 0, 2]], 1, 3)[0, 0], "places matter"


def pairs_of(bucket, further, ids, most):
    parts = list(bucket_pairs(*(np.array(x, dtype=np.int64) for x in (bucket, further, ids)), most))
    pairs = [pair for p in parts for pair in zip(p.left.tolist(), p.right.tolist(), strict=True)]
    return sorted(pairs), sum(p.split for p in parts), sum(p.left_out for p in parts)


def test_small_buckets_give_all_their_pairs():
    assert pairs_of([5, 9, 5, 5, 9, 7], [0] * 6, [3, 1, 2, 8, 4, 6], 3) == ([(1, 4), (2, 3), (2, 8), (3, 8)], 0, 0)
    assert pairs_of([], [], [], 3) == ([], 0, 0)
    assert pairs_of([1], [1], [1], 3) == ([], 0, 0)


def test_a_large_bucket_is_split_and_what_is_still_large_becomes_a_star():
    # bucket 0 has six ids: parts of two and four; bucket 1 is small, so its further hashes do not matter
    bucket, further, ids = [0, 0, 0, 0, 0, 0, 1, 1], [1, 2, 1, 2, 2, 2, 3, 4], [1, 2, 3, 4, 5, 6, 7, 8]
    pairs, split, left_out = pairs_of(bucket, further, ids, 3)
    assert pairs == [(1, 3), (2, 4), (2, 5), (2, 6), (7, 8)]
    assert (split, left_out) == (1, 15 - 4)
    assert pairs_of([0] * 3, [1, 2, 3], [1, 2, 3], 2) == ([], 1, 3)


@pytest.mark.parametrize("threshold", [0.05, 0.5, 0.8, 1.0])
def test_alike_sets_are_found_exhaustively(threshold, monkeypatch):
    rng = np.random.default_rng(11)
    seeds = [set(rng.choice(200, size=n, replace=False).tolist()) for n in (1, 2, 12, 40)]
    near = [{v for v in s if rng.random() > 0.1} | {int(rng.integers(200))} for s in seeds for _ in range(15)]
    sample, base = [set(), *seeds, *near[::4]], [*near, set(), *seeds]
    monkeypatch.setattr("spark_dedup.kernels.minhash._MEETINGS", 7)  # many small slices
    left, right, jaccard = alike_between(sets_of(*sample), sets_of(*base), threshold)
    want = {(i, k): len(a & b) / len(a | b) for i, a in enumerate(sample) for k, b in enumerate(base) if a and b}
    want = {pair: value for pair, value in want.items() if value >= threshold}
    assert len(want) > 4
    assert dict(zip(zip(left.tolist(), right.tolist(), strict=True), jaccard.tolist(), strict=True)) == want
    assert len(left) == len(want), "each pair once"


def test_no_set_is_like_an_empty_one():
    for sample, base in ((sets_of(), sets_of({1})), (sets_of(set()), sets_of(set())), (sets_of({1}), sets_of())):
        assert [len(column) for column in alike_between(sample, base, 0.5)] == [0, 0, 0]
