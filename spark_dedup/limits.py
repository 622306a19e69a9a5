"""Every place where a run limits something: the names under `runs.caps_hit`, and what each of them means."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limit:
    """One limit.

    Attributes:
        stage: Stage that counts how often it was reached.
        name: As in `runs.caps_hit`.
        counted: What is counted.
        setting: Setting that moves it; empty where none does.
        effect: What that means for the result.
    """

    stage: str
    name: str
    counted: str
    setting: str
    effect: str


LIMITS = (
    Limit(
        "representatives",
        "pairs_unseen",
        "pairs of texts of which one has exact copies, kept out of the search",
        "exact.route",
        "they are not among the pairs; `loss_routing` where it can be measured",
    ),
    Limit(
        "blocks",
        "blocks_split",
        "blocks that were split",
        "blocking.max_block",
        "their texts are compared with those of the next greater lengths alone",
    ),
    Limit(
        "blocks",
        "block_pairs_left_out",
        "pairs of blocks left out",
        "blocking.max_block",
        "they are found where another key or the vectors bring them together",
    ),
    Limit(
        "embeddings",
        "cut_text",
        "texts longer than the model reads",
        "embed.encoder",
        "only the beginning of each decided its vector; recall is of these vectors and does not see it",
    ),
    Limit(
        "index",
        "not_in_table",
        "vectors not found in the table of Postgres",
        "pgvector.table",
        "pairs of these texts are not found by vectors",
    ),
    Limit(
        "candidates",
        "saturated",
        "neighbour lists that were still full",
        "search.max_neighbours",
        "further neighbours of these texts are not among the pairs; part of `loss_cap`",
    ),
    Limit(
        "candidates",
        "copies_not_paired",
        "pairs of texts with equal vectors left out",
        "search.max_copies",
        "each text is still paired with the first of its kind; part of `loss_cap`",
    ),
    Limit(
        "candidates",
        "split_cells",
        "cells so large that several tasks share them",
        "search.cells",
        "no pair is lost; they take longer than other cells",
    ),
    Limit(
        "candidates",
        "buckets_split",
        "MinHash buckets that were split",
        "minhash.max_bucket",
        "pairs whose texts came into two parts need another bucket in common",
    ),
    Limit(
        "candidates",
        "bucket_pairs_left_out",
        "pairs of MinHash buckets left out",
        "minhash.max_bucket",
        "they are found where another band brings them together",
    ),
    Limit(
        "candidates",
        "contained_pairs_left_out",
        "pairs of a text and a longer one left out",
        "minhash.max_bucket",
        "the longer ones of many texts that share a shingle; found where a rarer shingle brings them together",
    ),
    Limit(
        "recall",
        "texts_not_sampled",
        "texts that the measurement was to look at and could not afford",
        "recall.share",
        "no pair is lost; the intervals of recall are wider",
    ),
)
"""In the order of the stages."""
