"""The report's pages: what they say equals the summary, whatever the texts hold."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from spark_dedup.config_file import load_config
from spark_dedup.engines import ENGINES
from spark_dedup.limits import LIMITS
from spark_dedup.manifest import RunManifest, StageRecord
from spark_dedup.progress import quantity
from spark_dedup.report.pairs import Span
from spark_dedup.report.render import render_html, render_run, render_text
from spark_dedup.report.story import headline, limits, percent, steps, tiles
from spark_dedup.report.summary import CopyGroup, CosineBand, EngineView, PairView, RecallView, SizeBand, Summary, TableView
from spark_dedup.report.terminal import Paint, cells, wrap, wrap_spans
from spark_dedup.settings import as_dict, flatten
from spark_dedup.stages.candidates_lsh import EVENTS

CONFIG = load_config(
    None, {"source.table": "main.kb.chunks", "source.id": "id", "source.text": "text", "store": "main.kb_dedup", "embed.encoder": "use"}
)


def stage(name: str, seconds: float = 1.0, **more) -> StageRecord:
    return StageRecord(stage=name, fingerprint="f", seconds=seconds, **more)


STAGES = (
    stage("records", 2.25, rows_out=7641, counts={"rows": 7641, "no_text": 3, "invisible_characters": 1}),
    stage(
        "representatives",
        rows_out=6905,
        counts={"keys": 6905, "copy_groups": 420, "duplicate_rows": 733, "largest_group": 11, "pairs_all": 1000, "pairs_left": 817},
    ),
    stage("embeddings", counts={"embedded": 6900, "reused": 5}, caps_hit={"cut_text": 2}, notes={"encoder": "use", "model": "never-read"}),
    stage("vectors", counts={"vectors": 6905, "distinct_vectors": 6901}),
    stage("index", rows_out=6901, bytes=19_100_000, counts={"shards": 1}),
    stage(
        "candidates",
        counts={"pairs": 24233, "edges": 58, "refused": 24175, "asked_again": 296},
        caps_hit={"saturated": 17},
        notes={"placement": "broadcast", "placement_reason": "it fits"},
    ),
    stage("components", counts={"components": 6853, "absorbed": 55}, notes={"engine": "dataframe", "engine_reason": "no jar"}),
    stage("clusters", counts={"clusters": 443, "clustered_rows": 1231, "removable_rows": 788, "largest": 13, "exact": 1094, "near": 137}),
)
MANIFEST = RunManifest(
    run_id="r1",
    store="main.kb_dedup",
    source="main.kb.chunks",
    source_version=7,
    fingerprint="f",
    settings=as_dict(CONFIG),
    stages=STAGES,
    seconds=34.5,
    did_work=True,
)
FOUND = PairView(
    left_record="L1",
    right_record="R1",
    left_text="The red fox",
    right_text="The brown fox",
    is_edge=True,
    cosine=0.98765,
    jaccard=0.5,
    containment=0.75,
    substitution=0.0,
    numbers="same",
    cluster_size=3,
)
REFUSED = replace(
    FOUND,
    left_record="L2",
    left_text="version 1",
    right_text="version 2",
    is_edge=False,
    substitution=0.5,
    numbers="differ",
    cluster_size=None,
)
SUMMARY = Summary(
    manifest=MANIFEST,
    found=(FOUND,),
    refused=(REFUSED,),
    copies=(CopyGroup(record="C1", text="All rights reserved", rows=11),),
    cosine_bands=(CosineBand(low=0.85, high=0.925, edges=15, refused=24000), CosineBand(low=0.925, high=1.0, edges=43, refused=175)),
    size_bands=(SizeBand(low=2, high=2, clusters=400, records=800), SizeBand(low=5, high=None, clusters=43, records=431)),
    tables=(TableView(name="clusters", location="`main`.`kb_dedup`.`clusters`", doc="Every row."),),
    next_steps=("spark-dedup doctor",),
)


class Page(HTMLParser):
    """Text and tags of a page; unclosed and stray tags are kept as problems."""

    VOID = ("meta", "br")

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.marked: list[str] = []
        self.texts: list[str] = []
        self.ids: set[str] = set()
        self.links: set[str] = set()
        self.open: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.add(value)
            if name in ("href", "src"):
                self.links.add(value)
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open and self.open.pop() == tag, f"stray </{tag}>"

    def handle_data(self, data):
        if "style" not in self.open:
            self.texts.append(data)
            if self.open and self.open[-1] == "mark":
                self.marked.append(data)

    @property
    def text(self) -> str:
        return " ".join("".join(self.texts).split())


def test_the_headline_splits_what_can_go_into_copies_and_near_duplicates():
    # 788 removable rows, 733 of them exact copies: 55 near duplicates
    assert headline(SUMMARY) == "788 of 7,641 rows repeat another row: 733 exact copies and 55 near duplicates (recall not measured)."


def test_every_step_is_told_with_its_figures_and_decisions():
    told = {s.stage: (s.result, *s.details) for s in steps(SUMMARY)}
    assert told["records"] == ("7,641 rows", "3 rows without text: set aside", "1 row with invisible characters")
    assert told["representatives"] == (
        "6,905 distinct texts",
        "733 rows are exact copies of another row (9.6 % of all), in 420 groups; the largest holds 11 rows",
        "so 18.3 % of all 1,000 pairs of rows need no comparison",
    )
    assert told["embeddings"] == (
        "6,900 texts encoded by use",
        "5 vectors taken from an earlier run",
    )
    assert told["vectors"] == ("6,905 vectors", "6,901 of them differ; equal ones are searched once")
    assert told["index"] == ("HNSW graph in 1 shard of 6,901 vectors, 19.1 MB",)
    assert told["candidates"] == (
        "24,233 pairs with cosine >= 0.85 (recall not measured)",
        "the merge rule accepts 58 and refuses 24,175 of them (recall not measured)",
        "296 full lists asked again for more neighbours",
        "index placement: broadcast (it fits)",
    )
    assert told["components"] == (
        "55 distinct texts joined to another one (recall not measured)",
        "components engine: dataframe (no jar)",
    )
    assert told["clusters"][:2] == (
        "443 clusters of two or more rows, 1,231 rows in them (recall not measured)",
        "788 rows can go, one row of each cluster stays",
    )


def test_limits_are_a_table_with_counts_and_the_setting_that_moves_them():
    cut, full = limits(SUMMARY)
    assert (cut.stage, cut.count, cut.counted) == ("embeddings", 2, "texts longer than the model reads")
    assert cut.setting == "embed.encoder = use"
    assert (full.stage, full.count, full.setting) == ("candidates", 17, "search.max_neighbours = 2,000")
    assert full.effect == "further neighbours of these texts are not among the pairs; part of loss_cap"
    text = [line.split() for line in render_text(SUMMARY, width=200).splitlines()]
    assert ["candidates", "17", "neighbour", "lists"] in [line[:4] for line in text]
    assert ["embeddings", "2", "texts", "longer"] in [line[:4] for line in text]
    page = Page(render_html(SUMMARY)).text
    for part in (cut, full):
        assert all(word in page for word in (part.counted, part.setting, part.effect))
    other = replace(MANIFEST, stages=(stage("clusters", caps_hit={"new_limit": 2}),))
    assert [(r.stage, r.count, r.counted) for r in limits(Summary(manifest=other))] == [("clusters", 2, "new_limit")]
    none = Summary(manifest=replace(MANIFEST, stages=(stage("clusters"),)))
    assert "Limits reached\n  none" in render_text(none) and "None: nothing was cut off" in Page(render_html(none)).text


def test_every_limit_that_is_counted_has_its_row():
    counted = {*EVENTS, *(name for engine in ENGINES.values() for name in engine.events)}
    assert counted <= {limit.name for limit in LIMITS if limit.stage == "candidates"}
    known = flatten(as_dict(CONFIG))
    assert {limit.setting for limit in LIMITS} <= set(known)


def test_blocking_is_told_with_its_cost_and_what_it_could_not_compare():
    blocks = stage(
        "blocks",
        rows_out=12,
        counts={"comparisons:country": 1780, "comparisons:length_band": 0, "without_key:country": 2, "without_key:length_band": 0},
        caps_hit={"blocks_split": 1, "block_pairs_left_out": 40},
        notes={"blocks:country": "'de; at' 40 texts, 780 comparisons\n'fr' 30 texts, 435 comparisons", "blocks:length_band": ""},
    )
    found = stage("candidates", counts={"pairs": 5, "edges": 5, "refused": 0, "block_proposed": 1700})
    summary = Summary(manifest=replace(MANIFEST, stages=(blocks, found)))
    told = {s.stage: (s.result, *s.details) for s in steps(summary)}
    assert told["blocks"] == (
        "1,780 comparisons in 12 blocks",
        "key country: 1,780 comparisons; largest block 'de; at' 40 texts, 780 comparisons; 2 texts without it, which it compares with none",
        "key length_band: 0 comparisons",
    )
    assert told["candidates"][0] == "5 pairs with cosine >= 0.85 or Jaccard >= 0.5 (recall not measured)"
    assert "1,700 pairs shared a blocking key and had their scores computed" in told["candidates"]
    assert [(r.stage, r.count, r.counted, r.setting) for r in limits(summary)] == [
        ("blocks", 1, "blocks that were split", "blocking.max_block = 1,000"),
        ("blocks", 40, "pairs of blocks left out", "blocking.max_block = 1,000"),
    ]


def test_a_search_in_postgres_is_told_with_what_the_server_said():
    index = stage(
        "index",
        rows_out=6900,
        counts={"postgres_bytes": 19_100_000},
        caps_hit={"not_in_table": 1},
        notes={"postgres": "Postgres 18.4, pgvector 0.8.5", "postgres_said": "the graph no longer fits"},
    )
    asked = stage("candidates", notes={"postgres": "7 batches"})
    manifest = replace(MANIFEST, settings={**MANIFEST.settings, "pgvector": {"table": "chunks"}}, stages=(index, asked))
    told = [line for s in steps(Summary(manifest=manifest)) for line in (s.result, *s.details)]
    assert "HNSW graph in Postgres 18.4, pgvector 0.8.5 of 6,900 vectors, 19.1 MB" in told
    assert "the server said: the graph no longer fits" in told
    assert "Postgres: 7 batches" in told
    (reached,) = limits(Summary(manifest=manifest))
    assert (reached.count, reached.counted, reached.setting) == (1, "vectors not found in the table of Postgres", "pgvector.table = chunks")


@pytest.mark.parametrize(
    ("part", "whole", "told"),
    [(0, 5, "0.0 %"), (0, 0, "0.0 %"), (5, 5, "100.0 %"), (1, 3, "33.3 %"), (1, 10_000, "under 0.1 %"), (9_999, 10_000, "over 99.9 %")],
)
def test_a_share_is_all_or_nothing_only_when_it_is(part, whole, told):
    assert percent(part, whole) == told


def test_counts_carry_their_noun():
    assert [quantity(n, "copy", "copies") for n in (0, 1, 1234)] == ["0 copies", "1 copy", "1,234 copies"]


@pytest.mark.parametrize("page", [render_text(SUMMARY), Page(render_html(SUMMARY)).text])
def test_both_pages_show_the_figures_of_the_summary(page):
    for value, _ in tiles(SUMMARY):
        assert value in page
    place = "`main`.`kb_dedup`.`clusters`"
    for part in (headline(SUMMARY)[:40], "24,175", "cosine 0.988", "Jaccard 0.50", "cluster of 3 rows", place, "spark-dedup doctor"):
        assert part in " ".join(page.split())
    assert "main.kb.chunks, Delta version 7" in page
    assert "1 of 2 words replaced (substitution 0.50), numbers differ: 1 against 2" in page
    assert "400" in page and "800" in page and "5 or more" in page  # clusters by size


def test_the_histogram_of_the_page_has_every_count():
    rows = re.findall(r"<tr><td>(\S+) to (\S+)</td><td class=\"n\">([\d,]+)</td><td class=\"n\">([\d,]+)</td></tr>", render_html(SUMMARY))
    assert rows == [("0.8500", "0.9250", "15", "24,000"), ("0.9250", "1.0000", "43", "175")]


def test_bars_are_in_proportion_to_their_counts():
    bars = re.findall(r'<rect class="edge" x="[\d.]+" y="[\d.]+" width="40.00" height="([\d.]+)">', render_html(SUMMARY))
    heights = [float(h) for h in bars]
    assert heights == pytest.approx([100 * 15 / 43, 100], abs=0.01)


def test_what_is_known_of_recall_stands_beside_every_figure_about_pairs():
    known = "pair recall 0.97 to 0.99"
    measured = stage("recall", rows_out=1, rows_in=6905, counts={"sample": 500, "true_pairs": 70}, notes={"recall": known})
    summary = replace(SUMMARY, manifest=replace(MANIFEST, stages=(*STAGES, measured)))
    for page in (render_text(summary, width=2000), Page(render_html(summary)).text):
        assert "recall not measured" not in page
        assert "500 texts compared with all 6,905: 70 true neighbours" in page
        for part in ("24,233 pairs with cosine >= 0.85", "accepts 58 and refuses 24,175 of them", "1,231 rows in them"):
            assert f"{part} ({known})" in page
    text = render_text(summary, width=2000).splitlines()
    for heading in ("Similar pairs by cosine", "Near duplicates that were found", "Alike, but refused", "Clusters by size"):
        assert known in next(line for line in text if line.startswith(heading))


def test_what_the_search_missed_is_shown_with_intervals_and_losses_that_occurred():
    rows = [
        RecallView(metric="loss_cap", floor=0.85, value=0.02, low=0.01, high=0.03, n=500, pairs=70),
        RecallView(metric="loss_graph", floor=0.85, value=0.0, low=0.0, high=0.01, n=500, pairs=70),
        RecallView(metric="loss_routing", floor=0.85, value=None, low=None, high=None, n=500, pairs=70),
        RecallView(metric="pair_recall", floor=0.95, value=1.0, low=0.9871, high=1.0, n=500, pairs=9),
        RecallView(metric="pair_recall", floor=0.85, value=0.98, low=0.97, high=0.99, n=500, pairs=70),
    ]
    engines = (EngineView(name="hnsw", seconds=12.3, recall="pair recall 0.9"), EngineView(name="exact (auto)", seconds=1, recall="1"))
    summary = replace(SUMMARY, measured=tuple(rows), engines=engines)
    text = render_text(summary, width=200)
    assert "hnsw            12.3 s  pair recall 0.9" in text
    block = text[text.index("What the search missed") :].splitlines()[1:4]
    assert [line.split()[:3] for line in block] == [
        ["0.9800", "[0.9700,", "0.9900]"],
        ["1", "[0.9871,", "1]"],
        ["0.0200", "[0.0100,", "0.0300]"],
    ]
    assert "measured on 500 texts, intervals of 95 %" in text
    page = Page(render_html(summary)).text
    assert "The lighter part of a bar is the 95 % interval" in page
    assert "lost because a list of neighbours or copies was cut" in page
    assert "through the graph" not in page
    assert "exact (auto)" in page
    assert "recall" not in Page(render_html(SUMMARY)).ids


def test_figures_of_all_texts_are_called_exact_and_a_target_is_judged_beside_them():
    exact = RecallView(metric="pair_recall", floor=0.9, value=0.98, low=0.98, high=0.98, n=6905, pairs=70)
    judged = "recall.target 0.999 at cosine >= 0.90: missed"
    measured = stage("recall", notes={"recall": "pair recall >= 0.90: 0.98, all 6,905 texts", "target": judged})
    summary = replace(SUMMARY, measured=(exact,), manifest=replace(MANIFEST, stages=(*STAGES, measured)))
    for page in (render_text(summary, width=200), Page(render_html(summary)).text):
        assert f"measured on all 6,905 texts, exact; {judged}" in page
        assert "95 %" not in page
    assert judged in steps(summary)[-1].details


def test_markup_in_texts_and_ids_is_shown_and_never_obeyed():
    evil = '<script>alert("x")</script><img src=x onerror=alert(1)>'
    dirty = replace(FOUND, left_record=evil, left_text=f"{evil} red", right_text=f"{evil} brown", numbers=evil)
    stages = (*STAGES, stage("recall", caps_hit={evil: 1}, notes={"recall": evil}))
    summary = replace(
        SUMMARY,
        manifest=replace(MANIFEST, source=evil, run_id=evil, settings={"merge": {"rule": evil}}, stages=stages),
        found=(dirty,),
        refused=(replace(dirty, is_edge=False),),
        copies=(CopyGroup(record=evil, text=evil, rows=2),),
        tables=(TableView(name=evil, location=evil, doc=evil),),
        next_steps=(evil,),
    )
    source = render_html(summary)
    page = Page(source)
    assert not {"script", "img"} & set(page.tags)
    assert evil in page.text
    assert page.marked == ["marked", *["red", "brown"] * 2]  # the first is the legend


def test_the_page_is_whole_and_loads_nothing():
    source = render_html(SUMMARY)
    page = Page(source)
    assert page.open == []
    assert all(link.startswith("#") and link[1:] in page.ids for link in page.links)
    assert not re.search(r"url\(|@import|https?://", source)
    assert {"what-happened", "exact-copies", "near-duplicates", "refused", "clusters", "limits", "settings", "tables"} <= page.ids


def test_a_run_without_pairs_or_counts_still_makes_pages():
    bare = Summary(manifest=replace(MANIFEST, stages=(stage("records"),), settings={}))
    assert "no complete counts" in render_text(bare)
    page = Page(render_html(bare))
    assert page.open == [] and "near-duplicates" not in page.ids
    assert Page(render_html(Summary(manifest=replace(MANIFEST, stages=())))).open == []


def test_the_page_of_a_run_alone_tells_its_steps_and_where_its_tables_are():
    text = render_run(MANIFEST)
    assert "24,233 pairs" in text and "main.kb_dedup" in text and "Near duplicates that were found" not in text


def test_a_run_that_did_nothing_says_so():
    idle = replace(MANIFEST, did_work=False, stages=tuple(replace(s, reused=True) for s in STAGES))
    for page in (render_text(Summary(manifest=idle), width=200), Page(render_html(Summary(manifest=idle))).text):
        assert "Run r1 had finished every step before; nothing was done now." in page
        assert "kept from an earlier run" not in page


def test_steps_that_an_earlier_run_had_finished_are_named_where_others_were_done():
    resumed = replace(MANIFEST, stages=(replace(STAGES[0], reused=True), *STAGES[1:]))
    assert [s.stage for s in steps(Summary(manifest=resumed)) if s.state == "kept from an earlier run"] == ["records"]


@pytest.mark.parametrize("width", [60, 89, 90, 100, 140])
def test_lines_keep_to_the_width_except_paths_and_commands_which_stay_whole(width):
    long = replace(FOUND, left_text="word " * 60 + "x" * 200, right_text="東京都" * 50, left_record="i" * 150)
    page = render_text(replace(SUMMARY, found=(FOUND, long), next_steps=()), width)
    assert max(cells(line) for line in page.splitlines()) <= width


def test_without_colour_there_is_no_escape_code_even_if_a_text_holds_one():
    dirty = replace(FOUND, left_text="a \x1b[31mred\x1b[0m word\r\x07", left_record="\x1b]0;title\x07")
    plain = render_text(replace(SUMMARY, found=(dirty,), next_steps=()), color=False)
    assert "\x1b" not in plain and "\x07" not in plain and "\r" not in plain
    assert "\u27e8U+001B\u27e9[31mred" in plain


def test_without_colour_differing_words_stand_in_brackets():
    page = render_text(SUMMARY)
    assert "The [red] fox" in page and "The [brown] fox" in page
    assert "Words that differ are in [brackets]" in page


def test_brackets_are_doubled_where_a_text_has_its_own():
    page = render_text(replace(SUMMARY, found=(replace(FOUND, left_text="The [1] red fox"),)))
    assert "[[1] red]]" in page or "[[[1] red]]" in page
    assert "Words that differ are in [[brackets]]" in page


def test_with_colour_differing_words_are_coloured_and_have_no_brackets():
    page = render_text(SUMMARY, color=True)
    assert "The \x1b[1;35mred\x1b[0m fox" in page and "[red]" not in page


def test_fewer_pairs_can_be_asked_for():
    many = replace(SUMMARY, found=(FOUND,) * 5, refused=(REFUSED,) * 5)
    page = render_text(many, pairs=2)
    assert page.count("L1") == 2 and page.count("L2") == 2
    assert "2 of 58" in page and "2 of 24,175" in page


def test_wrapping_breaks_between_words_and_inside_words_that_are_longer_than_a_line():
    assert wrap("one two three", 7) == ["one two", "three"]
    assert wrap("abcdefghij k", 4) == ["abcd", "efgh", "ij k"]
    assert wrap("", 10) == [""]
    assert wrap("東京都", 4) == ["東京", "都"]  # two columns each


def test_a_marked_stretch_is_painted_line_by_line():
    spans = [Span("a ", False), Span("bb cc", True), Span(".", False)]
    assert wrap_spans(spans, 4, Paint(color=False)) == [("a", 1), ("[bb", 3), ("cc].", 4)]
    mark, reset = "\x1b[1;35m", "\x1b[0m"
    assert wrap_spans(spans, 4, Paint(color=True)) == [(f"a {mark}bb{reset}", 4), (f"{mark}cc{reset}.", 3)]
