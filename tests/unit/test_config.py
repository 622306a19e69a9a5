"""Settings: what is refused, how it is said, and what the fingerprint depends on."""

from __future__ import annotations

import pytest

from spark_dedup.config import PRESETS
from spark_dedup.config_file import load_config
from spark_dedup.errors import ConfigError
from spark_dedup.settings import as_dict, fingerprint, flatten

BASE = ["source.table=main.kb.chunks", "source.id=id", "source.text=text", "store=main.kb_dedup"]


def load(*overrides: str):
    return load_config(None, [*BASE, *overrides])


def test_defaults_are_the_documented_ones():
    flat = flatten(as_dict(load()))
    assert {k: flat[k] for k in ("search.neighbours", "search.floor", "search.links", "search.ef_construction", "search.ef_search")} == {
        "search.neighbours": 50,
        "search.floor": 0.85,
        "search.links": 32,
        "search.ef_construction": 200,
        "search.ef_search": 128,
    }
    assert flat["merge.preset"] is flat["merge.rule"] is None
    assert load().merge.condition == PRESETS["near"]
    assert flat["exact.route"] == "representative"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("search.floor=85", r"search\.floor must be a number in \(0, 1\], got 85"),
        ("search.floor=-0.1", r"search\.floor must be a number in \(0, 1\], got -0\.1"),
        ("search.floor=.nan", r"search\.floor must be a number in \(0, 1\], got nan"),
        ("search.floor=.inf", r"search\.floor must be a number in \(0, 1\], got inf"),
        ("search.floor='0,85'", r"search\.floor must be a number in \(0, 1\], got '0,85'"),
        ("search.floor=0", r"search\.floor must be a number in \(0, 1\], got 0"),
        ("search.floor=true", r"search\.floor must be a number in \(0, 1\], got True"),
        ("search.floor=null", r"search\.floor must be set, got None"),
        ("search.neighbours=0", r"search\.neighbours must be a whole number in \[1, 10000\], got 0"),
        ("search.neighbours=-1", r"search\.neighbours must be a whole number in \[1, 10000\], got -1"),
        ("search.neighbours=1000000000", r"search\.neighbours must be a whole number in \[1, 10000\], got 1000000000"),
        ("search.neighbours=2.5", r"search\.neighbours must be a whole number in \[1, 10000\], got 2\.5"),
        ("search.neighbours=3000", r"search\.max_neighbours must be at least search\.neighbours \(3000\), got 2000"),
        ("search.links=1", r"search\.links must be a whole number in \[2, 512\], got 1"),
        ("search.ef_search=0", r"search\.ef_search must be a whole number"),
        ("search.ef_construction=0", r"search\.ef_construction must be a whole number"),
        ("search.shards=0", r"search\.shards must be a whole number in \[1, 100000\], got 0"),
        ("search.shards=many", r"search\.shards must be one of auto or a whole number"),
        ("search.margin=-1", r"search\.margin must be a number in \[0, 2\], got -1"),
        (
            "search.placement=brodcast",
            r"search\.placement must be one of auto, broadcast, partitioned, got 'brodcast'; did you mean 'broadcast'\?",
        ),
        ("search.max_copies=0", r"search\.max_copies must be a whole number"),
        ("recall.sample=0", r"recall\.sample must be a whole number .*, got 0"),
        ("recall.sample=-1", r"recall\.sample must be a whole number .*, got -1"),
        ("recall.target=1.01", r"recall\.target must be a number in \(0, 1\], got 1\.01"),
        ("search.engine=faiss", r"search\.engine must be one of auto, hnsw, cells, semdedup, exact, pgvector, got 'faiss'"),
        ("search.treshold=0.9", r"search\.treshold is not a setting; there are .*floor"),
        ("search.flor=0.9", r"search\.flor is not a setting; did you mean 'floor'\?"),
        ("serach.floor=0.9", r"serach is not a setting; did you mean 'search'\?"),
        ("exact.lowercase=1", r"exact\.lowercase must be true or false, got 1"),
        ("exact.route=bypas", r"exact\.route must be one of representative, bypass, got 'bypas'; did you mean 'bypass'\?"),
        ("embed.batch_size=-1", r"embed\.batch_size must be a whole number in \[1, 65536\], got -1"),
        ("embed.encoder=usee", r"embed\.encoder must be .*got 'usee'; did you mean 'use'\?"),
        ("embed.encoder=column", r"embed\.column must name the source's vector column"),
        ("embed.column=v", r"embed\.column is only used when embed\.encoder is 'column'"),
        ("embed.rows_per_commit=1", r"embed\.rows_per_commit must be a whole number >= 1024, got 1"),
        ("minhash.unit=words", r"minhash\.unit must be one of word, char, token, got 'words'; did you mean 'word'\?"),
        ("minhash.threshold=0", r"minhash\.threshold must be a number in \(0, 1\], got 0"),
        ("minhash.ngram=65", r"minhash\.ngram must be a whole number in \[1, 64\], got 65"),
        ("minhash.band_recall=1", r"minhash\.band_recall must be a number in \(0, 0.999999\], got 1"),
        ("minhash.max_bucket=1", r"minhash\.max_bucket must be a whole number in \[2, 100000\], got 1"),
        ("minhash.containment=0", r"minhash\.containment must be a number in \(0, 1\], got 0"),
        ("minhash.containment=0.9", r"minhash\.containment is only used where minhash\.enabled is true, got minhash\.containment 0\.9"),
        ("minhash.threshold=0.01", r"minhash\.band_recall must be at most 0.9237, the best that minhash\.permutations 256 can give at .*"),
        ("blocking.keys=[title_trigram]", r"blocking\.keys must hold .*, got 'title_trigram'; did you mean 'title_trigrams'\?"),
        ("blocking.keys=[country]", r"blocking\.keys must hold first_tokens, .* or NAME: EXPRESSION, got 'country'\n"),
        ("blocking.keys=['a b: c']", r"blocking\.keys must hold NAME: EXPRESSION with a name of letters, digits and _ .*, got 'a b: c'"),
        ("blocking.keys=[a: ]", r"blocking\.keys must hold NAME: EXPRESSION .*, got 'a: '"),
        ("blocking.keys=[length_band: x]", r"blocking\.keys must hold NAME: EXPRESSION .* that is not a key already, got 'length_band: x'"),
        ("blocking.keys=[a: x, a: y]", r"blocking\.keys must name each key once, got 'a: x', 'a: y'"),
        ("blocking.keys=first_tokens", r"blocking\.keys must be a list of expressions, got 'first_tokens'"),
        ("blocking.keys=['']", r"blocking\.keys must be a list of expressions, got \(''"),
        (f"blocking.keys={[f'k{i}: x' for i in range(64)]}", r"blocking\.keys must hold at most 63 keys, got 64"),
        ("blocking.jaccard=0", r"blocking\.jaccard must be a number in \(0, 1\], got 0"),
        ("blocking.max_block=1", r"blocking\.max_block must be a whole number in \[2, 100000\], got 1"),
        ("blocking.large=cut", r"blocking\.large must be one of refuse, split, got 'cut'"),
        ("components.engine=spark", r"components\.engine must be one of auto, graphframes, dataframe, got 'spark'"),
        ("keep.order_by=[]", r"keep\.order_by must be a list of at least one expression"),
        ("merge.rule=''", r"merge\.rule must not be empty"),
        ("merge.preset=nere", r"merge\.preset must be one of near, copies, .*, got 'nere'; did you mean 'near'\?"),
        ("store=main.kb.chunks", r"store must not be the source itself"),
        ("source.format=csv", r"source\.format must be one of table, delta, parquet, json, got 'csv'"),
        ("source.table=/data/x", r"source\.format must be one of delta, parquet, json for a path"),
        ("source.version=-1", r"source\.version must be a whole number >= 0, got -1"),
        ("floor", r"--set takes key=value, got 'floor'"),
    ],
)
def test_nonsense_is_refused_with_key_value_and_range(override, message):
    with pytest.raises(ConfigError, match=message):
        load(override)


@pytest.mark.parametrize("engine", ["hnsw", "semdedup"])
def test_a_target_of_recall_is_refused_where_nothing_is_tuned_or_checked(engine):
    with pytest.raises(ConfigError, match=f"recall.target needs search.engine auto, cells .* or exact .*, got '{engine}'"):
        load("recall.target=0.99", f"search.engine={engine}")
    with pytest.raises(ConfigError, match=r"recall.sample must be a whole number >= 1 for recall.target 0.99 to be checked, got null"):
        load("recall.target=0.99", "recall.sample=null")
    assert [load("recall.target=0.99", f"search.engine={e}").recall.target for e in ("auto", "cells", "exact")] == [0.99] * 3


@pytest.mark.parametrize("spelling", ["file:/data/x", "file:///data/x", "/data/x/"])
def test_a_store_is_never_the_source_however_it_is_spelt(spelling):
    with pytest.raises(ConfigError, match="store must not be the source itself"):
        load("source.table=/data/x", "source.format=delta", f"store={spelling}")


def test_the_ends_of_a_range_are_allowed():
    assert load("search.floor=1.0").search.floor == 1.0
    assert load("search.floor=0.85").search.floor == 0.85


def test_all_problems_of_a_file_are_told_at_once(tmp_path):
    path = tmp_path / "bad.yaml"
    path.write_text("source: {table: a.b, id: i, txt: t}\nsearch: {floor: 2, neighbours: 0}\nmerg: {}\n")
    with pytest.raises(ConfigError) as e:
        load_config(path)
    assert len(e.value.problems) == 6
    told = "\n".join(e.value.problems)
    for word in ("source.txt", "source.text", "search.floor", "search.neighbours", "merg is not", "store must be set"):
        assert word in told


@pytest.mark.parametrize(
    ("content", "message"),
    [("- a\n- b\n", "must hold settings"), ("a: [\n", "is not YAML"), ("search: 3\n", "search must hold settings")],
)
def test_a_file_that_is_no_settings_file_is_refused(tmp_path, content, message):
    path = tmp_path / "bad.yaml"
    path.write_text(content)
    with pytest.raises(ConfigError, match=message):
        load_config(path, BASE)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match="no settings file at .*nowhere.yaml"):
        load_config(tmp_path / "nowhere.yaml")


def test_a_file_extends_another_and_overrides_win(tmp_path):
    (tmp_path / "base.yaml").write_text("source: {table: a.b, id: i, text: t}\nstore: a.c\nsearch: {floor: 0.9, neighbours: 20}\n")
    (tmp_path / "top.yaml").write_text("extends: base.yaml\nsearch: {neighbours: 30}\n")
    config = load_config(tmp_path / "top.yaml", ["search.links=16"])
    assert (config.search.floor, config.search.neighbours, config.search.links) == (0.9, 30, 16)


def test_blocking_keys_are_names_or_expressions_with_a_name_or_none_at_all(tmp_path):
    assert load().blocking.keys == load("blocking.keys=[]").blocking.keys == ()
    wanted = {"first_tokens": None, "country": "lower(country)", "year": "year(created)", "kind": "a:b.c"}
    spellings = (
        "[first_tokens, country: lower(country), year: year(created), kind: 'a:b.c']",
        "[first_tokens, {country: lower(country), year: year(created)}, 'kind : a:b.c ']",
    )
    for spelling in spellings:
        assert load(f"blocking.keys={spelling}").blocking.expressions == wanted
    path = tmp_path / "settings.yaml"
    path.write_text("blocking:\n  keys:\n    - first_tokens\n    - country: lower(country)\n")
    assert load_config(path, BASE).blocking.expressions == {"first_tokens": None, "country": "lower(country)"}


def test_fingerprint_changes_with_what_changes_tables_and_with_nothing_else():
    plain = fingerprint(load())
    same = ["search.placement=partitioned", "embed.batch_size=8", "embed.device=cpu", "components.engine=dataframe", "store=other.schema"]
    assert {fingerprint(load(s)) for s in same} == {plain}
    different = ["search.floor=0.9", "merge.rule=cosine > 0.9", "merge.preset=copies", "exact.lowercase=true", "keep.order_by=[record_id]"]
    different += ["minhash.ngram=3"]
    different += ["blocking.keys=[first_tokens]", "blocking.keys=[a: x]", "blocking.keys=[a: y]", "blocking.large=split"]
    others = {fingerprint(load(s)) for s in different}
    assert len(others) == len(different)
    assert plain not in others


def test_settings_survive_their_own_yaml(tmp_path):
    import yaml

    config = load(
        "blocking.keys=[length_band, a: x]", "keep.order_by=['updated_at desc', record_id]", r"source.text='concat_ws(\"\n\", title, body)'"
    )
    path = tmp_path / "again.yaml"
    path.write_text(yaml.safe_dump(as_dict(config)))
    assert load_config(path) == config
