"""The settings: defaults, allowed values, and what contradicts what. The only place where a default is stated."""

from __future__ import annotations

import difflib
import os
import re
import urllib.parse
from collections.abc import Iterable
from dataclasses import dataclass, field

from spark_dedup.errors import ConfigError
from spark_dedup.settings import REQUIRED, Section, field_problems, setting

FORMATS = ("table", "delta", "parquet", "json")

_SAME_NUMBERS = "(numbers in ('same', 'contained') or numbers = 'missing' and containment >= 0.9)"
_SHARED_RUNS = "(containment >= 0.2 or least_words = most_words)"
PRESETS = {
    "near": (
        "(substitution = 0 or least_words >= 80 and substitution * least_words < 4.5) "  # at most four words, which are whole numbers
        f"and {_SAME_NUMBERS} and {_SHARED_RUNS}"
    ),
    "copies": "substitution = 0 and numbers = 'same' and jaccard >= 0.8",
    "ocr": f"substitution <= 0.2 and {_SAME_NUMBERS}",
    "paraphrase": "cosine >= 0.88 and numbers <> 'differ'",
    "code": f"substitution <= 0.05 and (least_words >= 0.6 * most_words or least_words >= 100) and {_SHARED_RUNS}",
}
"""Merge rules by name. docs/merge-rules.md has what each is for, which other settings belong to it, and its measured figures."""

DEFAULT_RULE = PRESETS["near"]
"""Accepts additions and cuts, refuses replacements: cosine alone merges filled-in copies of one form."""


@dataclass(frozen=True, kw_only=True)
class SourceConfig(Section):
    """Where the texts come from."""

    table: str = setting(REQUIRED, "Catalog name of one to three parts (back-ticks allowed), or a path together with `format`.")
    format: str = setting("table", "`table` for a catalog name; `delta`, `parquet` or `json` (lines) for a path.", choices=FORMATS)
    id: str = setting(REQUIRED, "Column that identifies a row: string, int or bigint; unique and never null.")
    text: str = setting(REQUIRED, "Column with the text, or a SQL expression such as `concat_ws('\\n', title, body)`.")
    version: int | None = setting(None, "Delta version to read; null reads the newest and records which one it was.", low=0)
    duplicate_ids: str = setting(
        "refuse",
        "`refuse` stops when an id repeats; `drop_equal` keeps one of several rows with the same id and the same text, "
        "and still stops where the texts differ.",
        choices=("refuse", "drop_equal"),
    )


@dataclass(frozen=True, kw_only=True)
class ExactConfig(Section):
    """The exact key, and where groups of exact copies go."""

    lowercase: bool = setting(False, "Lower-case the text before hashing (Python `str.lower`, the same in every locale).")
    strip_punctuation: bool = setting(False, "Remove characters of the Unicode categories P* before hashing.")
    route: str = setting(
        "representative",
        "`representative` sends one text of each group of copies into the search; `bypass` keeps such groups out of it, "
        "and the run then states how many pairs it can not see.",
        choices=("representative", "bypass"),
    )


@dataclass(frozen=True, kw_only=True)
class EmbedConfig(Section):
    """How texts become vectors."""

    encoder: str = setting(
        "sentence-transformers",
        "`sentence-transformers`, `use`, `column`, or `package.module:factory` for an object of your own with the method "
        "`encode(list[str]) -> float32 (n, d)`.",
    )
    model: str = setting(
        "sentence-transformers/all-MiniLM-L6-v2",
        "Model name or folder for `sentence-transformers`; `package:NAME` is the folder that a Python package ships.",
    )
    revision: str | None = setting(None, "Model revision (commit or tag) for `sentence-transformers`; null takes the newest.")
    column: str | None = setting(None, "Source column of type array<float> or array<double> for `encoder: column`.")
    batch_size: int = setting(64, "Texts that the model sees at once.", low=1, high=65536, result=False)
    device: str = setting("auto", "`auto`, or a torch device such as `cpu` or `cuda:0`.", result=False)
    rows_per_commit: int = setting(
        65536, "Vectors stored by one commit: what a crash in the middle can cost at most.", low=1024, result=False
    )


@dataclass(frozen=True, kw_only=True)
class SearchConfig(Section):
    """The self-join by nearest neighbours."""

    engine: str = setting(
        "auto",
        "`hnsw`: FAISS HNSW shards, at most `max_neighbours` for each vector; `cells`: exact products inside k-means cells; `semdedup`: "
        "the same where every vector visits its own cell only; `exact`: products of all pairs; `pgvector`: an HNSW index in Postgres; "
        "`auto`: `exact` or `cells`, by the number of vectors alone.",
        choices=("auto", "hnsw", "cells", "semdedup", "exact", "pgvector"),
    )
    neighbours: int = setting(50, "Neighbours that every vector asks for, itself excluded (m).", low=1, high=10_000)
    floor: float = setting(0.85, "Loose cosine floor; pairs below it are not stored. In (0, 1].", above=0.0, high=1.0)
    links: int = setting(32, "Links of a vector in the HNSW graph (M).", low=2, high=512)
    ef_construction: int = setting(200, "Width of the search while the graph is built.", low=8, high=100_000)
    ef_search: int = setting(128, "Width of the search while it is asked; never used below the neighbours asked for.", low=1, high=100_000)
    shards: int | str = setting(
        "auto", "Number of shards; `auto` decides by the number of vectors alone.", low=1, high=100_000, choices=("auto",)
    )
    cells: int | str = setting(
        "auto",
        "Number of cells of `cells` and `semdedup`; `auto` decides by the number of vectors alone.",
        low=1,
        high=65_536,
        choices=("auto",),
    )
    margin: float = setting(
        0.1,
        "A vector visits every cell (`cells`), or shard with a cell (`hnsw`), whose centroid is at most this much less similar than its "
        "best one.",
        low=0.0,
        high=2.0,
    )
    placement: str = setting(
        "auto",
        "`broadcast` brings every shard once to each executor; `partitioned` sends vectors to the shard's task; "
        "`auto` decides by bytes. Both give the same pairs.",
        choices=("auto", "broadcast", "partitioned"),
        result=False,
    )
    max_neighbours: int = setting(
        2000,
        "Full lists are asked again with more neighbours up to this many; lists that are still full are counted.",
        low=1,
        high=1_000_000,
    )
    max_copies: int = setting(
        64,
        "Texts whose vectors are equal bit for bit: all their pairs are stored up to this many texts, beyond it each text "
        "is paired with the first one only, and the pairs left out are counted.",
        low=1,
        high=100_000,
    )


@dataclass(frozen=True, kw_only=True)
class PgvectorConfig(Section):
    """The Postgres server that `search.engine: pgvector` works in. Passwords are no settings: see docs/pgvector.md."""

    dsn: str | None = setting(
        None,
        "Connection string or `service=NAME`, without password, in place of the four settings below.",
        result=False,
        private=True,
    )
    host: str | None = setting(None, "Host or socket folder; null leaves this and the next three to PGHOST and the like.", result=False)
    port: int | None = setting(None, "Port.", low=1, high=65_535, result=False)
    database: str | None = setting(None, "Database.", result=False)
    user: str | None = setting(None, "Role to log in as.", result=False)
    secret: str | None = setting(
        None,
        "Databricks secret with the password, as `scope/key`; null leaves it to PGPASSWORD, PGPASSFILE or a service.",
        result=False,
        private=True,
    )
    connect_timeout: int = setting(10, "Seconds to wait for the server.", low=1, high=3600, result=False)
    schema: str = setting("spark_dedup", "Schema for the run's own tables; made where it is not there.", result=False)
    table: str | None = setting(
        None, "Table of the server that has the vectors, `name` or `schema.name`; null loads those that the run has stored."
    )
    id_column: str = setting("id", "Its column with the ids of the source.")
    vector_column: str = setting("embedding", "Its column with the vectors: `vector`, `halfvec` or an array of real.")
    type: str = setting(
        "vector",
        "`vector`: float32, at most 2,000 dimensions; `halfvec`: float16, at most 4,000, half the index. Kept cosines are float64 of the "
        "stored vectors all the same.",
        choices=("vector", "halfvec"),
    )
    batch_rows: int = setting(8192, "Vectors that ask in one transaction: what a lost connection can cost.", low=1, result=False)
    connections: int = setting(4, "Batches that are asked at once, each over a connection of its own.", low=1, high=256, result=False)
    reconnects: int = setting(3, "Times that a batch is tried again after its connection was lost.", low=0, high=100, result=False)
    build_memory: str | None = setting(
        None, "`maintenance_work_mem` while the index is built, such as `8GB`; null leaves it to the server.", result=False
    )
    build_workers: int | None = setting(
        None, "`max_parallel_maintenance_workers` while the index is built; null leaves it to the server.", low=0, high=1024, result=False
    )
    keep_index: bool = setting(True, "Leave vectors and index in Postgres after the run, for `recall --sweep`.", result=False)


@dataclass(frozen=True, kw_only=True)
class MinHashConfig(Section):
    """The self-join by shared shingles: MinHash buckets propose pairs, their exact Jaccard decides."""

    enabled: bool = setting(False, "Also look for pairs that share their words, whatever their vectors say.")
    unit: str = setting(
        "word",
        "What a shingle is made of: `word`; `char`, characters; `token`, words with their case and every other mark, as in code.",
        choices=("word", "char", "token"),
    )
    ngram: int = setting(5, "Units in a shingle; a text with fewer is its own only shingle.", low=1, high=64)
    threshold: float = setting(0.8, "Least Jaccard similarity of a stored pair's shingle sets. In (0, 1].", above=0.0, high=1.0)
    permutations: int = setting(256, "Hash functions of a signature.", low=1, high=4096)
    band_recall: float = setting(
        0.95, "Share of the pairs at the threshold that must meet in a bucket; bands and rows follow from it.", above=0.0, high=0.999999
    )
    containment: float | None = setting(
        None,
        "Also keep pairs where so large a share of the shorter text's shingles stand in the longer one, whatever their Jaccard: "
        "excerpts. In (0, 1]; null looks for none.",
        above=0.0,
        high=1.0,
    )
    max_bucket: int = setting(
        1000,
        "Texts of a bucket that are all paired; a larger bucket is split by a further hash. Where so many texts share a shingle, "
        "containment pairs each with the next longer ones. Pairs left out are counted.",
        low=2,
        high=100_000,
    )


BLOCKING_KEYS = ("first_tokens", "title_trigrams", "length_band")
"""Blocking keys that need no expression."""

MOST_KEYS = 63
"""Which of them proposed a pair are bits of one number."""


@dataclass(frozen=True, kw_only=True)
class BlockingConfig(Section):
    """The self-join by blocking keys: texts with an equal key are compared, and their scores decide."""

    keys: tuple[str, ...] = setting(
        (),
        "Any of `first_tokens` (the first 64 words), `title_trigrams` (the first line but for case, blanks and punctuation), `length_band` "
        "(at most 5 % longer, in bytes), and `NAME: EXPRESSION` with a SQL expression over the source's columns, `text` and `record_id`. A "
        "key that is null or empty is equal to no other; an empty list blocks nothing.",
    )
    jaccard: float = setting(
        0.5,
        "A compared pair is stored if its `jaccard` is at least this, or its cosine at least `search.floor`. In (0, 1].",
        above=0.0,
        high=1.0,
    )
    max_block: int = setting(1000, "Texts of a block that are all compared.", low=2, high=100_000)
    large: str = setting(
        "refuse",
        "What becomes of a larger block: `refuse` stops before texts are encoded; `split` compares each text with the `max_block` - 1 next "
        "longer ones of the block, at most 5 % longer, and counts the pairs left out.",
        choices=("refuse", "split"),
    )

    @property
    def expressions(self) -> dict[str, str | None]:
        """The SQL expression of each key by its name; None for one of `BLOCKING_KEYS`."""
        named = [key.partition(":") for key in self.keys]
        return {name.strip(): expression.strip() if colon else None for name, colon, expression in named}


@dataclass(frozen=True, kw_only=True)
class MergeConfig(Section):
    """What makes a candidate pair an edge."""

    preset: str | None = setting(
        None,
        "A rule whose figures on labelled texts are in docs/merge-rules.md; null takes `near` where no `merge.rule` is given.",
        choices=tuple(PRESETS),
    )
    rule: str | None = setting(
        None,
        "SQL condition over cosine, jaccard, containment, substitution, numbers, least_words and most_words, in place of a preset.",
    )

    @property
    def condition(self) -> str:
        """The SQL condition in force."""
        return self.rule or PRESETS[self.preset or "near"]


@dataclass(frozen=True, kw_only=True)
class ComponentsConfig(Section):
    """How edges become clusters."""

    engine: str = setting(
        "auto",
        "`graphframes`, `dataframe`, or `auto`: GraphFrames where its classes can be loaded. All give the same components.",
        choices=("auto", "graphframes", "dataframe"),
        result=False,
    )
    checkpoint_dir: str | None = setting(
        None, "Folder that every executor can write, for clusters of machines; null uses a folder beside the store.", result=False
    )


@dataclass(frozen=True, kw_only=True)
class ClustersConfig(Section):
    """What a cluster is."""

    method: str = setting(
        "components",
        "`components`: all texts that edges connect, be it through a chain of others; `canonical`: only texts that have an edge to the "
        "canonical text itself, and those left over are clustered again among themselves.",
        choices=("components", "canonical"),
    )


@dataclass(frozen=True, kw_only=True)
class KeepConfig(Section):
    """Which record a cluster keeps."""

    order_by: tuple[str, ...] = setting(
        ("length(text) desc", "record_id"),
        "SQL expressions over the source's columns, `text` and `record_id`, each with optional asc or desc; the first "
        "record in this order is canonical, and `record_id` breaks all ties. With engine `cells` or `semdedup` also over "
        "`centroid_similarity`, the cosine with the centroid of the text's cell: ascending it is the rule of SemDeDup.",
        low=1,
    )


@dataclass(frozen=True, kw_only=True)
class RecallConfig(Section):
    """How a run measures what its search missed."""

    sample: int | None = setting(
        200_000,
        "Texts whose true neighbours are found exhaustively, at most; a number above the size of the table measures exactly; "
        "null measures nothing.",
        low=1,
        result=False,
    )
    share: float = setting(
        0.1,
        "Most of the run's own seconds that measuring may cost, as a share of them; the sample shrinks to fit.",
        above=0.0,
        high=1000.0,
        result=False,
    )
    seed: int = setting(0, "Which random sample is drawn.", low=0, high=2**31 - 1, result=False)
    target: float | None = setting(
        None,
        "Pair recall at cosine 0.90, or at `search.floor` where that is higher, for which `cells` tunes `search.margin` and an automatic "
        "number of cells on a sample of its own; the measurement says whether it was met; null tunes nothing.",
        above=0.0,
        high=1.0,
    )


@dataclass(frozen=True, kw_only=True)
class DedupConfig(Section):
    """All settings of a run."""

    source: SourceConfig = field(metadata={"doc": SourceConfig.__doc__})
    store: str = setting(REQUIRED, "Where the tables go: a catalog schema such as `main.kb_dedup`, or a folder (a path with a slash).")
    exact: ExactConfig = field(default_factory=ExactConfig)
    embed: EmbedConfig = field(default_factory=EmbedConfig)
    search: SearchConfig = field(default_factory=SearchConfig)
    pgvector: PgvectorConfig = field(default_factory=PgvectorConfig)
    minhash: MinHashConfig = field(default_factory=MinHashConfig)
    blocking: BlockingConfig = field(default_factory=BlockingConfig)
    merge: MergeConfig = field(default_factory=MergeConfig)
    components: ComponentsConfig = field(default_factory=ComponentsConfig)
    clusters: ClustersConfig = field(default_factory=ClustersConfig)
    keep: KeepConfig = field(default_factory=KeepConfig)
    recall: RecallConfig = field(default_factory=RecallConfig)

    def __post_init__(self) -> None:
        problems = [*field_problems(self, ""), *contradictions(self)]
        if problems:
            raise ConfigError(problems)


SECTIONS: dict[str, type[Section]] = {
    "source": SourceConfig,
    "exact": ExactConfig,
    "embed": EmbedConfig,
    "search": SearchConfig,
    "pgvector": PgvectorConfig,
    "minhash": MinHashConfig,
    "blocking": BlockingConfig,
    "merge": MergeConfig,
    "components": ComponentsConfig,
    "clusters": ClustersConfig,
    "keep": KeepConfig,
    "recall": RecallConfig,
}


def contradictions(config: DedupConfig) -> Iterable[str]:
    """Settings that are each allowed but do not fit together."""
    source, embed, search, minhash, merge = config.source, config.embed, config.search, config.minhash, config.merge
    recall = config.recall
    if source.format == "table" and looks_like_path(source.table):
        yield f"source.format must be one of delta, parquet, json for a path, got 'table' for source.table {source.table!r}"
    if source.version is not None and source.format not in ("table", "delta"):
        yield f"source.version needs a Delta source, got source.format {source.format!r}"
    if same_place(source.table, config.store):
        yield f"store must not be the source itself, got {config.store!r} for both"
    if embed.encoder == "column" and not embed.column:
        yield "embed.column must name the source's vector column when embed.encoder is 'column', got None"
    if embed.encoder != "column" and embed.column:
        yield f"embed.column is only used when embed.encoder is 'column', got embed.encoder {embed.encoder!r}"
    if embed.encoder not in ("sentence-transformers", "use", "column") and not re.fullmatch(r"[\w.]+:[\w.]+", embed.encoder):
        near = difflib.get_close_matches(embed.encoder, ("sentence-transformers", "use", "column"), n=1)
        also = f"; did you mean {near[0]!r}?" if near else ""
        yield f"embed.encoder must be sentence-transformers, use, column or package.module:factory, got {embed.encoder!r}{also}"
    # Bands of one row each let the most through.
    if (best := 1 - (1 - minhash.threshold) ** minhash.permutations) < minhash.band_recall:
        yield (
            f"minhash.band_recall must be at most {best:.4g}, the best that minhash.permutations {minhash.permutations} can give at "
            f"minhash.threshold {minhash.threshold:g}, got {minhash.band_recall:g}"
        )
    if minhash.containment is not None and not minhash.enabled:
        yield f"minhash.containment is only used where minhash.enabled is true, got minhash.containment {minhash.containment:g}"
    yield from key_problems(config.blocking)
    if merge.preset and merge.rule:
        yield f"merge.preset and merge.rule cannot both be given, got {merge.preset!r} and {merge.rule!r}; leave one out"
    if search.max_neighbours < search.neighbours:
        yield (f"search.max_neighbours must be at least search.neighbours ({search.neighbours}), got {search.max_neighbours}")
    yield from pgvector_contradictions(search, config.pgvector)
    if recall.target is not None and search.engine in UNTUNED:
        yield (
            f"recall.target needs search.engine auto, cells (tuned for it) or exact (compares all pairs), got {search.engine!r}, which "
            f"is not tuned; leave recall.target out and compare settings with `spark-dedup recall --sweep`"
        )
    if recall.target is not None and recall.sample is None:
        yield f"recall.sample must be a whole number >= 1 for recall.target {recall.target:g} to be checked, got null"


UNTUNED = ("hnsw", "semdedup", "pgvector")
"""Engines that no target of recall is tuned for."""


def key_problems(blocking: BlockingConfig) -> Iterable[str]:
    """What is wrong with the blocking keys, each by itself and together."""
    for name, expression in blocking.expressions.items():
        if expression is None and name not in BLOCKING_KEYS:
            near = difflib.get_close_matches(name, BLOCKING_KEYS, n=1)
            also = f"; did you mean {near[0]!r}?" if near else ""
            yield f"blocking.keys must hold {', '.join(BLOCKING_KEYS)} or NAME: EXPRESSION, got {name!r}{also}"
        elif expression is not None and (not re.fullmatch(r"[A-Za-z_]\w*", name) or name in BLOCKING_KEYS or not expression):
            got = f"{name}: {expression}"
            yield f"blocking.keys must hold NAME: EXPRESSION with a name of letters, digits and _ that is not a key already, got {got!r}"
    if len(blocking.expressions) < len(blocking.keys):
        yield f"blocking.keys must name each key once, got {', '.join(map(repr, blocking.keys))}"
    if len(blocking.keys) > MOST_KEYS:
        yield f"blocking.keys must hold at most {MOST_KEYS} keys, got {len(blocking.keys)}"


def pgvector_contradictions(search: SearchConfig, pgvector: PgvectorConfig) -> Iterable[str]:
    """What pgvector does not allow, and passwords that stand where they would be stored."""
    for name in ("dsn", "host"):
        if has_password(getattr(pgvector, name) or ""):
            yield (
                f"pgvector.{name} must not hold a password, got one that is not shown: settings are stored; "
                "use PGPASSWORD, PGPASSFILE, a service or pgvector.secret"
            )
    apart = [name for name in ("host", "port", "database", "user") if getattr(pgvector, name) is not None]
    if pgvector.dsn and apart:
        yield f"pgvector.dsn must stand alone, got pgvector.{apart[0]} beside it"
    if pgvector.secret and not re.fullmatch(r"[^/\s]+/[^/\s]+", pgvector.secret):
        yield "pgvector.secret must be scope/key, got a value that is not shown"
    if pgvector.table and not re.fullmatch(r"[^.]+(\.[^.]+)?", pgvector.table):
        yield f"pgvector.table must be name or schema.name, got {pgvector.table!r}"
    if pgvector.build_memory and not re.fullmatch(r"\d+ ?(kB|MB|GB|TB)", pgvector.build_memory):
        yield f"pgvector.build_memory must be a number with kB, MB, GB or TB, got {pgvector.build_memory!r}"
    if search.engine != "pgvector":
        return
    for name, most in (("links", 100), ("ef_construction", 1000), ("ef_search", 1000)):
        if getattr(search, name) > most:
            yield f"search.{name} must be at most {most} for search.engine pgvector, got {getattr(search, name)}"
    if search.ef_construction < 2 * search.links:
        yield (
            f"search.ef_construction must be at least 2 * search.links ({2 * search.links}) for search.engine pgvector, "
            f"got {search.ef_construction}"
        )


def has_password(dsn: str) -> bool:
    """Whether a Postgres connection string, a URI or `key=value` words, holds a password."""
    plain = urllib.parse.unquote(dsn)
    return bool(re.search(r"password\s*=", plain, re.IGNORECASE) or re.search(r"://[^@]*:[^@]+@", plain))


def looks_like_path(name: str) -> bool:
    """Whether a name is a path by its syntax: a slash outside back-ticks, or a scheme."""
    return "/" in re.sub(r"`[^`]*`", "", name)


def absolute(path: str) -> str:
    """A path that means the same in every working folder: Delta's SQL knows no relative ones. Paths with a scheme stay as they are."""
    return path if re.match(r"[A-Za-z][\w+.-]*:", path) else os.path.abspath(path)


def same_place(source: str, store: str) -> bool:
    """Whether source and store are one folder, whatever its spelling."""
    if not looks_like_path(source) or not looks_like_path(store):
        return source == store
    plain = [absolute(re.sub(r"^file:(//)?(?=/)", "", p)).rstrip("/") for p in (source, store)]
    return plain[0] == plain[1]
