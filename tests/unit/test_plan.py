"""The arithmetic of a plan, by hand; and its intervals, on tables whose pairs are known."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from spark_dedup.evaluation.plan import (
    OPENING,
    STAGES,
    Corpus,
    Growth,
    PairCount,
    Rates,
    Sample,
    Search,
    costs,
    count_pairs,
    crowd_size,
    long_lists,
    overlooked,
    pair_flops,
    pairs_among,
    warnings,
)
from spark_dedup.progress import duration
from spark_dedup.report.plan import amount

SEARCH = Search(
    neighbours=50, max_neighbours=2000, max_copies=64, links=32, ef_search=128, ef_construction=200, shards="auto", cells="auto",
    recall_sample=0, recall_share=0.1,
)  # fmt: skip
NONE = PairCount(value=0, low=0, high=0, seen=0)


def sample(**changed):
    same = {"texts": 1000, "dimension": 500, "feature_bytes": 0.0, "stored": 0.0, "pairs": NONE, "full": ((0, 0, 0), (0, 0, 0)),
            "crowd": 1.0, "visits": 1.0, "crowding": 1.0}  # fmt: skip
    return Sample(**{**same, **changed})


def rates(**changed):
    same = {"tasks": 2, "executors": 1, "rehearsed": 0, "fixed": dict.fromkeys((OPENING, *STAGES), 1.0), "normalise": 0.0, "features": 0.0,
            "encode": 0.0, "product": 2e9, "move_row": 0.0, "move_byte": 0.0, "pair": 0.0, "build": Growth(0.0, 0.0),
            "ask": Growth(0.0, 0.0), "distances": 0.0, "pair_bytes": 40.0, "vector_bytes": 2000.0}  # fmt: skip
    return Rates(**{**same, **changed})


def corpus(rows, size=0):
    return Corpus(rows=rows, with_text=rows, text_bytes=size, texts=rows, exact=True, copy_groups=0, copy_rows=0, largest_group=1)


def cost_of(engine, rows, size=0, price=None, search=SEARCH, of=None, **changed):
    found = costs(corpus(rows, size), of or sample(), rates(**changed), search, rows, price)
    return next(cost for cost in found if cost.engine == engine)


def test_products_of_all_pairs_by_hand():
    # 1,000 vectors: 499,500 pairs x 1,000 operations = 4.995e8, at 2e9 a second 0.24975 s
    cost = cost_of("exact", 1000)
    assert cost.flops == 499_500 * 1000
    assert cost.seconds["candidates"] == pytest.approx(1.0 + 0.24975)
    assert cost.seconds["index"] == 0.0  # an engine without index
    # opening, seven stages with a second each; recall is not measured
    assert cost.total == pytest.approx(8 + 0.24975)


def test_text_is_normalised_and_encoded_by_all_tasks():
    # 1,000 texts of 100 bytes: 100,000 bytes x 1e-5 s / 2 tasks = 0.5 s; 1,000 x 0.01 s / 2 = 5 s; half of them stored: 2.5 s
    assert cost_of("exact", 1000, 100_000, normalise=1e-5).seconds["records"] == pytest.approx(1.5)
    assert cost_of("exact", 1000, 100_000, encode=0.01).seconds["embeddings"] == pytest.approx(6.0)
    assert cost_of("exact", 1000, 100_000, encode=0.01, of=sample(stored=0.5)).seconds["embeddings"] == pytest.approx(3.5)


def test_what_the_rehearsal_did_is_not_counted_twice():
    # half of the rows were rehearsed, so half of 5 s comes on top
    assert cost_of("exact", 1000, 100_000, encode=0.01, rehearsed=500).seconds["embeddings"] == pytest.approx(3.5)


def test_pairs_cost_scoring_and_space():
    pairs = PairCount(value=10_000, low=9_000, high=11_000, seen=100)
    # 10,000 pairs x 1e-3 s / 2 tasks
    cost = cost_of("exact", 1000, of=sample(pairs=pairs), pair=1e-3, product=1e30)
    assert cost.seconds["candidates"] == pytest.approx(1.0 + 5.0)
    assert cost.stored == 1000 * 4 * 500 + 1000 * 2000 + 10_000 * 40


def test_cells_by_hand():
    # 65,536 vectors: 256 cells, 256 to a cell; each visits 2: half of its own, all of the other = 1.5 x 256 products of 1,000 operations
    cost = cost_of("cells", 65_536, of=sample(visits=2.0))
    joining, probing, training = 65_536 * 384 * 1000, 65_536 * 256 * 1000, 8192 * 256 * 1000 * 4
    assert cost.flops == joining + probing + training
    assert cost.seconds["candidates"] == pytest.approx(1 + joining / 2e9)
    assert cost.seconds["index"] == pytest.approx(1 + probing / 2e9 + training / 1e9)  # one of two tasks trains
    one_probe = cost_of("semdedup", 65_536, of=sample(visits=2.0))
    assert cost.flops - one_probe.flops == 65_536 * 256 * 1000


def test_a_graph_is_built_by_no_more_tasks_than_it_has_shards():
    growth = Growth.through((1000, 0.001), (2000, 0.001))
    one = cost_of("hnsw", 20_000, build=growth, tasks=8)  # one shard
    assert one.seconds["index"] == pytest.approx(1 + 20.0)
    four = cost_of("hnsw", 100_000, build=growth, tasks=8, product=1e30)  # four shards of 25,000
    assert four.seconds["index"] == pytest.approx(1 + 25.0)


def test_the_cost_of_a_vector_grows_with_the_logarithm():
    growth = Growth.through((1000, 1e-3), (10_000, 2e-3))
    assert growth.at(100_000) == pytest.approx(3e-3)
    assert Growth.through((1000, 2e-3), (10_000, 1e-3)).at(1e9) == pytest.approx(1e-3)  # noise is not extrapolated downwards


def test_recall_takes_its_share_of_the_other_stages_at_most():
    measured = Search(**{**SEARCH.__dict__, "recall_sample": 1000})
    # One pass over 1,000 rows of 2,016 bytes at 2 x 100 MB/s takes 0.01008 s; 1,000 x 1,000 products of 1,000 operations 0.5 s; the
    # sample is 0.03 of a block and passes no second time. Three tenths of the others' 7 s, less 1 s for the figures, is more.
    ample = Search(**{**measured.__dict__, "recall_share": 0.3})
    assert cost_of("exact", 1000, search=ample).seconds["recall"] == pytest.approx(1 + 0.01008 + 0.5 + 0.01008 * 2_016_000 / 2**26)
    slow = cost_of("exact", 1000, search=measured, product=2e7)  # 50 s, a text 0.05 s; the others take 7 + 24.975
    assert slow.seconds["recall"] == pytest.approx(0.1 * (7 + 24.975), abs=0.05)  # the 1 s of the figures and what that leaves
    assert slow.seconds["recall"] <= 0.1 * (7 + 24.975)
    none = cost_of("exact", 1000, search=Search(**{**measured.__dict__, "recall_share": 0.001}))
    assert none.seconds["recall"] == 1.0  # 0.007 s do not pay for one pass


def test_money_is_the_price_of_the_hours():
    cost = cost_of("exact", 1000, price=3600.0)
    assert cost.money == pytest.approx(cost.total)
    assert cost_of("exact", 1000).money is None


def test_pairs_of_a_sample_that_is_the_table_are_exact():
    degrees = np.array([2, 2, 2, 1, 1, 0])  # a triangle, a pair, one alone
    assert count_pairs(degrees, 6) == PairCount(value=4, low=4, high=4, seen=4)
    assert count_pairs(np.zeros(6, dtype=np.int64), 6).high == 0


def test_pairs_are_scaled_by_the_share_of_all_pairs():
    # 10 of 100 texts hold 45 of 4,950 pairs: one of 110
    found = count_pairs(np.array([1, 1] + [0] * 8), 100)
    assert found.value == pytest.approx(110)
    assert found.low < 110 < found.high


def test_a_sample_without_pairs_gives_a_bound_and_never_zero():
    # With a share of 1 in 1,000 a family is overlooked with 5 % where m / 1000 = 4.744 ((1 + x) exp(-x) = 0.05): 11.25e6 pairs
    found = count_pairs(np.zeros(1000, dtype=np.int64), 1_000_000)
    assert (found.value, found.low) == (0, 0)
    assert found.high == pytest.approx(11.25e6, rel=0.01)
    assert overlooked(1.0, 0.05) == 0
    assert count_pairs(np.zeros(1, dtype=np.int64), 10).high == 45


FAMILIES = {
    "pairs": lambda rng: np.full(10_000, 2),
    "power law": lambda rng: np.minimum(500, 2 / (1 - rng.random(20_000))).astype(np.int64),
    "mostly alone": lambda rng: np.where(rng.random(20_000) < 0.9, 1, np.minimum(500, 2 * rng.random(20_000) ** (-1 / 1.2))).astype(int),
    "three large": lambda rng: np.concatenate([[300, 150, 80], np.where(rng.random(20_000) < 0.8, 1, 2)]),
}


@pytest.mark.parametrize("kind", FAMILIES)
@pytest.mark.parametrize("size", [200, 1000, 5000])
def test_the_interval_holds_the_pairs_of_families_of_very_unequal_size(kind, size):
    rng, held, rows = np.random.default_rng(5), 0, 20_000
    for _ in range(200):
        family = np.repeat(np.arange(20_003)[: len(sizes := FAMILIES[kind](rng))], sizes)[:rows]
        whole = np.bincount(family)
        true = int((whole * (whole - 1) // 2).sum())
        inside = family[rng.permutation(rows)[:size]]
        found = count_pairs(np.bincount(inside, minlength=len(whole))[inside] - 1, rows)
        held += found.low <= true <= found.high
    assert held >= 186  # 93 %


def test_long_lists():
    degrees = np.array([60, 51, 50, 3, 0])
    assert long_lists(degrees, 5, 50) == (2.0, 2.0, 2.0)
    # One in ten sampled: a list of 50 shows 5. Twelve are more than chance (P(Poisson(5) >= 12) = 0.005), six are not, none is not fewer
    # than chance would let through only below 2 (P(Poisson(5) <= 1) = 0.04).
    low, value, high = long_lists(np.array([12, 6, 2, 0, 0]), 50, 50)
    assert (low, value) == (10.0, 20.0)
    assert high == 30.0
    assert long_lists(np.zeros(5, dtype=np.int64), 5000, 10)[:2] == (0.0, 0.0)


def test_copies_of_one_vector():
    assert crowd_size(80, 1.0) == 80
    assert crowd_size(1, 0.01) == 1
    # two of a sample of one in a hundred: at least 0.2422 / 0.01 with 97.5 % confidence (chi-squared with 4 degrees, halved)
    assert crowd_size(2, 0.01) == pytest.approx(24.22, abs=0.01)


def test_warnings_name_the_setting():
    bitten = sample(full=((5, 10, 20), (1, 3, 5)), crowd=100.0)
    told = " ".join(warnings("hnsw", bitten, SEARCH, 100_000))
    for name in ("search.neighbours = 50", "search.max_neighbours = 2,000", "search.max_copies = 64", "search.engine: cells"):
        assert name in told
    assert warnings("hnsw", sample(), SEARCH, 100_000) == ()
    assert "border" in warnings("semdedup", sample(), SEARCH, 100_000)[0]
    assert warnings("semdedup", sample(), SEARCH, 1000) == ()


def test_the_worked_example_of_the_docs():
    page = (Path(__file__).parents[2] / "docs" / "plan.md").read_text(encoding="utf-8")
    for rows in (100_000, 1_000_000, 4_200_000, 42_000_000):
        flops = pair_flops(rows, 768)
        server, gpu = duration(flops / 200e9), duration(flops / 12e12)
        assert f"| {rows:,} | {pairs_among(rows):.3g} | {amount(flops)} | {server} | {gpu} |" in page


def test_the_quadratic_by_hand():
    # 5e9 pairs x 1,536 operations = 7.68e12; at 200 GFLOP/s 38.4 s
    assert pair_flops(100_000, 768) == pytest.approx(7.68e12, rel=1e-4)
    assert duration(38.4) == "38.4 s"
    assert duration(7.68e14 / 200e9) == "64 min 00 s"
    assert duration(1.35e16 / 200e9) == "18 h 45 min"
    assert duration(1.35e18 / 200e9) == "78 days"
