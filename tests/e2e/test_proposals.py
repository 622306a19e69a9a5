"""Runs whose pairs come from words and keys beside the vectors."""

from __future__ import annotations

import io
import random

import pytest
from jobs import clusters_of, config_of, partition_of, save, table
from planted import sentence

from spark_dedup import run, schema
from spark_dedup.errors import ConfigError
from spark_dedup.progress import Progress
from spark_dedup.store import TableStore


def evidence(spark, store):
    """Methods, cosine and verdict of each stored pair, by its two records."""
    rows = table(spark, store, schema.CANDIDATE_PAIRS).collect()
    return {tuple(sorted((r["left_record"], r["right_record"]))): (r["methods"], r["cosine"], r["is_edge"]) for r in rows}


@pytest.mark.slow
def test_pairs_that_only_share_words_are_found_by_their_words_alone(spark, tmp_path):
    """Texts of nearly the same words whose vectors disagree, two whose vectors agree too, one without a vector; one and its excerpt."""
    rng = random.Random(17)
    long, other = sentence(rng, 200), sentence(rng, 200)
    x, y = [1.0, 0.0], [0.0, 1.0]
    rows = [
        ("a", long, x),
        ("b", f"{long} and so on", y),  # only their words bring them together
        ("c", f"{long} and more", x),  # by words and vectors with a, by words with b
        ("d", f"{long} without", [0.0, 0.0]),
        ("e", other, [0.6, 0.8]),
        ("f", " ".join(other.split()[50:110]), [0.8, -0.6]),  # three tenths of e's words: its Jaccard is far below the threshold
    ]
    source = save(spark, rows, tmp_path / "source", "id string, text string, v array<float>")
    extra = ("embed.encoder=column", "embed.column=v", "minhash.enabled=true", "minhash.containment=0.9")
    manifest = run(config_of(source, tmp_path / "store", *extra, sample="200000"), spark)
    pairs = evidence(spark, tmp_path / "store")
    assert pairs == {
        ("a", "b"): (["containment", "lsh"], 0.0, True),
        ("a", "c"): (["containment", "exact", "lsh"], 1.0, True),
        ("a", "d"): (["containment", "lsh"], None, True),
        # b, c and d differ from each other in the words at the end: replaced, yet at most 3 of 202 words
        ("b", "c"): (["containment", "lsh"], 0.0, True),
        ("b", "d"): (["containment", "lsh"], None, True),
        ("c", "d"): (["containment", "lsh"], None, True),
        ("e", "f"): (["containment"], 0.0, True),
    }
    assert partition_of(clusters_of(spark, tmp_path / "store")) == {frozenset("abcd"), frozenset("ef")}
    counts = manifest.stage("candidates").counts
    assert (counts["lsh_proposed"], counts["contained_proposed"]) == (6, 7)
    # 21 bands of 9 rows: 1 - (1 - 0.8^9)^21
    assert manifest.stage("candidates").notes["lsh_recall"] == "0.952 of the pairs at Jaccard 0.8 by design"
    assert manifest.recall == "pair recall >= 0.90: 1, all 5 texts; of pairs at Jaccard >= 0.80: 1, all 6 texts"
    assert manifest.stage("candidates").caps_hit == {}


@pytest.mark.slow
def test_pairs_that_share_a_blocking_key_are_found_and_a_large_block_stops_the_run_before_the_encoder(spark, tmp_path):
    rng = random.Random(19)
    long, other = sentence(rng, 80), sentence(rng, 80)
    x, y = [1.0, 0.0], [0.0, 1.0]
    rows = [
        ("a", long, "de", x),
        ("b", f"{long} and so on", "DE", y),  # only keys bring it to a, and it is kept for its words
        ("c", other, "de", x),  # the same vector as a, other words: kept for its cosine; with b neither
        ("d", f"{long} without", None, [0.0, 0.0]),  # no vector, no country
        ("e", sentence(rng, 80), "", y),  # only b's vector
    ]
    source = save(spark, rows, tmp_path / "source", "id string, text string, country string, v array<float>")
    extra = ("embed.encoder=column", "embed.column=v", "blocking.keys=[first_tokens, country: lower(country), length_band]")
    out = io.StringIO()
    manifest = run(config_of(source, tmp_path / "store", *extra), spark, progress=Progress(out, mode="plain"))
    pairs = evidence(spark, tmp_path / "store")
    lengths = {i: len(text) for i, text, *_ in rows}
    band = {pair: ["block:length_band"] * (100 * max(n := [lengths[i] for i in pair]) <= 105 * min(n)) for pair in pairs}
    assert pairs == {
        ("a", "b"): (["block:country", "block:first_tokens", *band["a", "b"]], 0.0, True),
        ("a", "c"): (["block:country", *band["a", "c"], "exact"], 1.0, False),
        ("a", "d"): (["block:first_tokens", *band["a", "d"]], None, True),
        ("b", "d"): (["block:first_tokens", *band["b", "d"]], None, True),
        ("b", "e"): ([*band["b", "e"], "exact"], 1.0, False),
    }
    blocks = manifest.stage("blocks")
    assert {name: blocks.counts[name] for name in blocks.counts if name.split(":")[0] == "without_key"} == {
        "without_key:first_tokens": 0,
        "without_key:country": 2,
        "without_key:length_band": 0,
    }
    assert (blocks.counts["comparisons:country"], blocks.counts["comparisons:first_tokens"], blocks.caps_hit) == (3, 3, {})
    lines = [line.strip() for line in out.getvalue().splitlines()]
    assert "key country: 3 comparisons in 1 block; 2 texts without it" in lines
    assert "'de' 3 texts, 3 comparisons" in lines

    refused = config_of(source, tmp_path / "refused", *extra, "blocking.max_block=2")
    with pytest.raises(ConfigError, match=r"blocking\.max_block allows 2 texts in a block, key country has 1 larger: 'de' 3 texts, 3 comp"):
        run(refused, spark)
    assert not TableStore(spark, str(tmp_path / "refused")).exists(schema.EMBEDDINGS)
    # a finished run is not done again, and its manifest has the stage
    again = run(config_of(source, tmp_path / "store", *extra), spark)
    assert (again.did_work, again.stage("blocks").reused) == (False, True)


@pytest.mark.long
def test_a_block_that_is_split_is_in_the_ledger_with_the_pairs_left_out(spark, tmp_path):
    text = sentence(random.Random(23), 80)
    vectors = ([1.0, 0.0], [0.0, 1.0], [0.0, 0.0])
    rows = [(f"t{i}", text + " and" * i, vector) for i, vector in enumerate(vectors)]
    source = save(spark, rows, tmp_path / "source", "id string, text string, v array<float>")
    extra = ("embed.encoder=column", "embed.column=v", "blocking.keys=[first_tokens]", "blocking.max_block=2", "blocking.large=split")
    manifest = run(config_of(source, tmp_path / "store", *extra), spark)
    # three texts of one block, each compared with the next longer one
    found = table(spark, tmp_path / "store", schema.CANDIDATE_PAIRS).select("left_record", "right_record", "methods").collect()
    assert {(frozenset(r[:2]), tuple(r[2])) for r in found} == {
        (frozenset({"t0", "t1"}), ("block:first_tokens",)),
        (frozenset({"t1", "t2"}), ("block:first_tokens",)),
    }
    blocks = manifest.stage("blocks")
    assert (blocks.counts["comparisons:first_tokens"], blocks.caps_hit) == (2, {"blocks_split": 1, "block_pairs_left_out": 1})
