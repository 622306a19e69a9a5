"""From pairs of vectors to pairs of texts: every text that has the one vector with every text that has the other.

A vector of more than `max_copies` texts takes part with its first text only, and its other texts are paired with that one.
The rule looks the same from both sides, so it does not matter which side finds a pair.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from spark_dedup.config import SearchConfig
from spark_dedup.kernels.cell_index import CellRows, RowPairs
from spark_dedup.kernels.features import FeatureBlock, PairScores, pair_scores
from spark_dedup.kernels.hnsw import Ints, Neighbours, Shard
from spark_dedup.kernels.ragged import ranges

TextRows: TypeAlias = Shard | CellRows
"""Distinct vectors with all their texts: `heads`, `starts`, `members`, `features`."""

SLICE_PAIRS = 1 << 20
"""Pairs of texts held at once."""

WAITING_PAIRS = 1 << 17
"""Pairs of vectors of two shards that are collected before their texts are scored, so that there is enough to do at once."""


class TextPairs(NamedTuple):
    """Pairs of a text of the batch and a text of the shard.

    Attributes:
        query: int64 (p,), row in the batch.
        member: int64 (p,), position in the shard's `members`.
        cosine: float64 (p,).
        left_out: int64 (p,), further pairs that this one stands for because of `max_copies`.
    """

    query: Ints
    member: Ints
    cosine: NDArray[np.float64]
    left_out: Ints


class Found(NamedTuple):
    """Scored pairs of texts, left_id < right_id.

    Attributes:
        left: int64 (p,), smaller rep_id.
        right: int64 (p,), larger rep_id.
        cosine: float64 (p,).
        scores: Of the texts.
        left_out: int64 (p,), as in `TextPairs`.
    """

    left: Ints
    right: Ints
    cosine: NDArray[np.float64]
    scores: PairScores
    left_out: Ints


@dataclass(frozen=True)
class Batch:
    """Texts that ask, and the distinct vectors among them.

    Attributes:
        rep_ids: int64 (n,).
        heads: int64 (u,), distinct head_ids, ascending.
        inverse: int64 (n,), the text's row in `heads`.
        copies: int64 (n,), texts that have the text's vector.
        max_copies: At least 1.
    """

    rep_ids: Ints
    heads: Ints
    inverse: Ints
    copies: Ints
    max_copies: int

    @classmethod
    def of(cls, rep_ids: Ints, head_ids: Ints, copies: Ints, max_copies: int) -> tuple[Batch, Ints]:
        """The batch, and for each distinct vector a row that has it."""
        heads, first, inverse = np.unique(head_ids, return_index=True, return_inverse=True)
        return cls(rep_ids, heads, inverse.reshape(-1), copies, max_copies), first

    @property
    def stands(self) -> NDArray[np.bool_]:
        """Whether each text is paired with texts of other vectors: bool (n,)."""
        return np.asarray((self.copies <= self.max_copies) | (self.rep_ids == self.heads[self.inverse]))

    @property
    def asks(self) -> NDArray[np.bool_]:
        """Whether any text of each vector is paired with texts of other vectors: bool (u,)."""
        asks = np.zeros(len(self.heads), dtype=np.bool_)
        asks[self.inverse[self.stands]] = True
        return asks

    def expand(self, shard: TextRows, found: Neighbours) -> Iterator[TextPairs]:
        """Pairs of texts with different vectors.

        Args:
            shard: Where the neighbours were found.
            found: Pairs of vectors; `query` counts rows of `heads`.
        """
        rows = np.flatnonzero(self.stands)
        rows = rows[np.argsort(self.inverse[rows], kind="stable")]
        first = np.searchsorted(self.inverse[rows], np.arange(len(self.heads) + 1))
        left, width = first[found.query], np.diff(first)[found.query]
        right, height, size = self._members(shard, found.base)
        for pair, q, member in _products(left, width, right, height):
            query = rows[q]
            copies = self.copies[query]
            weight = np.where(copies > self.max_copies, copies, 1) * np.where(size > self.max_copies, size, 1)[pair]
            yield TextPairs(query, member, found.cosine[pair], weight - 1)

    def copies_of(self, shard: TextRows, own: Ints) -> Iterator[TextPairs]:
        """Pairs of texts with the same vector, each from the side of the larger rep_id.

        Args:
            shard: Where to look.
            own: int64 (u,), position of each vector in the shard, or -1.
        """
        rows = np.flatnonzero(own[self.inverse] >= 0)
        position = own[self.inverse[rows]]
        right, height, size = self._members(shard, position)
        ones = np.ones(len(rows), dtype=np.int64)
        for pair, q, member in _products(np.arange(len(rows)), ones, right, height):
            older = shard.members[member] < self.rep_ids[rows[q]]
            pair, member = pair[older], member[older]
            query, base = rows[pair], position[pair]
            left_out = np.zeros(len(pair), dtype=np.int64)
            for i in np.flatnonzero(size[pair] > self.max_copies):
                others = shard.members[shard.starts[base[i]] : shard.starts[base[i] + 1]]
                left_out[i] = np.searchsorted(others, self.rep_ids[query[i]]) - 1  # pairs with the texts between the two
            yield TextPairs(query, member, np.ones(len(pair)), left_out)

    def _members(self, shard: TextRows, base: Ints) -> tuple[Ints, Ints, Ints]:
        """Where the texts that take part start in `members`, how many they are, and how many have the vector."""
        start = shard.starts[base]
        size = shard.starts[base + 1] - start
        first_is_here = (shard.members[start] == shard.heads[base]).astype(np.int64)
        return start, np.where(size > self.max_copies, first_is_here, size), size


@dataclass(frozen=True)
class Asked:
    """What one batch found in one shard.

    Attributes:
        pairs: Lazily scored.
        asked_again: As in `Neighbours`.
        saturated: As in `Neighbours`.
    """

    pairs: Iterator[Found]
    asked_again: int
    saturated: int


def ask(
    shard: Shard,
    batch: Batch,
    vectors: NDArray[np.float32],
    features: FeatureBlock,
    visiting: NDArray[np.bool_],
    config: SearchConfig,
) -> Asked:
    """Find and score the pairs of a batch with the texts of one HNSW shard.

    Args:
        shard: Where to search.
        batch: The texts.
        vectors: float32 (u, d), one row per distinct vector of the batch.
        features: Features of the n texts.
        visiting: bool (u,), the vectors that visit this shard.
        config: As `Shard.neighbours` uses it.
    """
    return ask_with(shard, batch, features, visiting, lambda rows, own: shard.neighbours(vectors[rows], own, config))


def ask_with(
    shard: TextRows,
    batch: Batch,
    features: FeatureBlock,
    visiting: NDArray[np.bool_],
    neighbours: Callable[[Ints, Ints], Neighbours],
) -> Asked:
    """Find and score the pairs of a batch with the texts of one shard.

    Args:
        shard: Where to search.
        batch: The texts.
        features: Features of the n texts.
        visiting: bool (u,), the vectors that visit this shard.
        neighbours: Gives the neighbours of some of the u vectors, from their rows and their own positions in the shard or -1.
    """
    own = np.where(visiting, shard.positions(batch.heads), -1)
    rows = np.flatnonzero(visiting & batch.asks)
    near = neighbours(rows, own[rows])
    near = near._replace(query=rows[near.query])

    def scored() -> Iterator[Found]:
        for pairs in itertools.chain(batch.expand(shard, near), batch.copies_of(shard, own)):
            if len(pairs.query):
                a, b = batch.rep_ids[pairs.query], shard.members[pairs.member]
                scores = pair_scores(features, pairs.query, shard.features, pairs.member)
                yield Found(np.minimum(a, b), np.maximum(a, b), pairs.cosine, scores, pairs.left_out)

    return Asked(scored(), near.asked_again, near.saturated)


def join_texts(shards: Sequence[TextRows], pairs: Iterable[RowPairs], max_copies: int) -> Iterator[Found]:
    """Pairs of texts with different vectors, scored, from the pairs of rows of a self-join.

    Args:
        shards: What the numbers in `pairs` count.
        pairs: Each unordered pair once.
        max_copies: At least 1.
    """
    waiting: defaultdict[tuple[int, int], list[RowPairs]] = defaultdict(list)
    sizes: defaultdict[tuple[int, int], int] = defaultdict(int)
    for some in pairs:
        key = (some.left_shard, some.right_shard)
        waiting[key].append(some)
        sizes[key] += len(some.left)
        if sizes[key] >= WAITING_PAIRS:
            yield from _joined(shards[key[0]], shards[key[1]], waiting.pop(key), max_copies)
            del sizes[key]
    for key, rest in waiting.items():
        yield from _joined(shards[key[0]], shards[key[1]], rest, max_copies)


def join_copies(rows: TextRows, first: int, end: int, max_copies: int) -> Iterator[Found]:
    """Pairs of texts with the same vector, for the vectors first .. end."""
    start = rows.starts[first:end]
    size = rows.starts[first + 1 : end + 1] - start
    several = np.flatnonzero(size > 1)
    start, size = start[several], size[several]
    # Each text but the first comes with those before it, or with the first one alone.
    younger = ranges(start + 1, size - 1)
    base, many = np.repeat(start, size - 1), np.repeat(size > max_copies, size - 1)
    for pair, q, member in _products(younger, np.ones(len(younger), dtype=np.int64), base, np.where(many, 1, younger - base)):
        left_out = np.where(many[pair], younger[pair] - base[pair] - 1, 0)
        scores = pair_scores(rows.features, q, rows.features, member)
        yield Found(rows.members[member], rows.members[q], np.ones(len(pair)), scores, left_out)


def _joined(left: TextRows, right: TextRows, pairs: Sequence[RowPairs], max_copies: int) -> Iterator[Found]:
    a, b, cosine = (np.concatenate(x) for x in zip(*[(p.left, p.right, p.cosine) for p in pairs], strict=True))
    order = np.argsort(a, kind="stable")  # features are fastest where pairs of one left text stand together
    a, b, cosine = a[order], b[order], cosine[order]
    (a_start, a_width, a_weight), (b_start, b_width, b_weight) = (_standing(x, y, max_copies) for x, y in ((left, a), (right, b)))
    for pair, q, member in _products(a_start, a_width, b_start, b_width):
        one, other = left.members[q], right.members[member]
        scores = pair_scores(left.features, q, right.features, member)
        left_out = (a_weight * b_weight)[pair] - 1
        yield Found(np.minimum(one, other), np.maximum(one, other), cosine[pair], scores, left_out)


def _standing(rows: TextRows, at: Ints, max_copies: int) -> tuple[Ints, Ints, Ints]:
    """Where the texts that take part start, how many they are, and how many each of them stands for."""
    start = rows.starts[at]
    size = rows.starts[at + 1] - start
    many = size > max_copies
    return start, np.where(many, 1, size), np.where(many, size, 1)


def _products(left: Ints, width: Ints, right: Ints, height: Ints) -> Iterator[tuple[Ints, Ints, Ints]]:
    """All of [left, left + width) with all of [right, right + height), row by row, in slices.

    Yields:
        The row each pair comes from, and the pair.
    """
    totals = np.cumsum(width * height)
    start = 0
    while start < len(totals):
        done = totals[start - 1] if start else 0
        stop = max(start + 1, int(np.searchsorted(totals, done + SLICE_PAIRS, side="right")))
        area = (width * height)[start:stop]
        pair = np.repeat(np.arange(start, stop), area)
        nth = np.arange(len(pair)) - np.repeat(np.cumsum(area) - area, area)
        yield pair, left[pair] + nth // height[pair], right[pair] + nth % height[pair]
        start = stop
