"""Every table: its name, key, columns and types. Nothing here needs Spark until a Spark type is asked for.

The record id keeps the type that it has in the source, so tables that carry one declare it as `ID` and take
the real type when they are used (`table.ddl("bigint")`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from spark_dedup.errors import SchemaError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

ID = "<id>"
"""Type placeholder: the type of the id column in the source, one of `ID_TYPES`."""

ANY = "<any>"
"""Type placeholder: any type, taken over as it is (the values that the keep policy orders by)."""

ID_TYPES = ("string", "int", "bigint")


@dataclass(frozen=True)
class Column:
    """One column: its name, Spark SQL type (or placeholder) and meaning."""

    name: str
    type: str
    doc: str


@dataclass(frozen=True)
class Table:
    """One table of the store. Names with a leading underscore are internal and may change between versions."""

    name: str
    key: tuple[str, ...]
    doc: str
    columns: tuple[Column, ...]

    @property
    def names(self) -> list[str]:
        """Column names in order."""
        return [c.name for c in self.columns]

    @property
    def public(self) -> bool:
        """Whether the table is part of the contract with users."""
        return not self.name.startswith("_")

    def ddl(self, id_type: str = "string") -> str:
        """The schema as a DDL string, as `mapInArrow` and `createDataFrame` take it.

        Raises:
            SchemaError: If the table has a column of any type, which no DDL can state.
        """
        if any(c.type == ANY for c in self.columns):
            raise SchemaError(f"table '{self.name}' has a column of any type and no fixed schema")
        return ", ".join(f"`{c.name}` {id_type if c.type == ID else c.type}" for c in self.columns)

    def arrow(self, id_type: str = "string") -> pa.Schema:
        """The schema as Arrow types, exactly as Spark expects them back from `mapInArrow`."""
        return pa_schema(self.ddl(id_type))

    def conform(self, df: DataFrame) -> DataFrame:
        """Select this table's columns in order; refuse a frame that lacks one or holds another type.

        Raises:
            SchemaError: Naming every column that is missing or has the wrong type, wanted and found.
        """
        found = {f.name: f.dataType.simpleString() for f in df.schema.fields}
        problems = []
        for c in self.columns:
            if c.name not in found:
                problems.append(f"{c.name}: missing")
            elif c.type == ID and found[c.name] not in ID_TYPES:
                problems.append(f"{c.name}: want one of {', '.join(ID_TYPES)}, got {found[c.name]}")
            elif c.type not in (ID, ANY) and found[c.name] != c.type:
                problems.append(f"{c.name}: want {c.type}, got {found[c.name]}")
        if problems:
            raise SchemaError(f"not a '{self.name}' table: " + "; ".join(problems))
        return df.select(*self.names)


def pa_schema(ddl: str) -> pa.Schema:
    """Arrow schema of a DDL string made of the types that the tables here use."""
    import pyarrow as pa

    types = {
        "string": pa.string(),
        "int": pa.int32(),
        "bigint": pa.int64(),
        "double": pa.float64(),
        "boolean": pa.bool_(),
        "binary": pa.binary(),
        "array<string>": pa.list_(pa.string()),
        "array<bigint>": pa.list_(pa.int64()),
    }
    fields = []
    for part in ddl.split(", "):
        name, kind = part.rsplit(" ", 1)
        fields.append(pa.field(name.strip("`"), types[kind]))
    return pa.schema(fields)


# Column names that appear in several tables.
RECORD_ID = "record_id"
EXACT_KEY = "exact_key"
REP_ID = "rep_id"
LEFT_ID = "left_id"
RIGHT_ID = "right_id"
RUN_ID = "run_id"

CENTROID_SIMILARITY = "centroid_similarity"
"""What the keep policy can order by where the engine has cells: cosine of a text's vector with the centroid of its cell."""

LSH = "lsh"
"""Method of pairs that share a MinHash bucket."""

CONTAINMENT = "containment"
"""Method of pairs of which one text lies inside the other."""

BLOCK = "block:"
"""Method of pairs that share a blocking key; the name of the key follows."""

_record_id = Column(RECORD_ID, ID, "id of the source row, in the type it has there")
_exact_key = Column(EXACT_KEY, "string", "SHA-256 of the normalised text, 64 hexadecimal digits; null where there is no text")
_rep_id = Column(REP_ID, "bigint", "id of the representative: dense, older is smaller")
_run_id = Column(RUN_ID, "string", "run that wrote the row")
_left = Column(LEFT_ID, "bigint", "smaller rep_id of the pair")
_right = Column(RIGHT_ID, "bigint", "larger rep_id of the pair")

_methods = Column(
    "methods",
    "array<string>",
    "what found the pair, sorted: `hnsw`, `cells`, `semdedup`, `exact` or `pgvector` by vectors, `lsh` by shared shingles, `containment` "
    "where one text lies inside the other, `block:NAME` by a blocking key",
)

_scores = (
    Column("cosine", "double", "cosine of the stored vectors, recomputed in float64, in [-1, 1]; null where a text has no vector"),
    Column("jaccard", "double", "shared share of all word 5-gram shingles of the two texts, in [0, 1]"),
    Column("containment", "double", "shared share of the shingles of the text that has fewer, in [0, 1]"),
    Column("substitution", "double", "words replaced, against the shorter text: 0 for an excerpt, large for a refilled form"),
    Column("numbers", "string", "`same`, `contained`, `missing` (one text has none) or `differ`: how the numbers of the two texts compare"),
    Column("least_words", "int", "words of the text with fewer"),
    Column("most_words", "int", "words of the other text"),
)

RECORDS = Table(
    "_records",
    (RECORD_ID,),
    "Source rows with their exact key. Text leaves the plan after this table and `_representatives`.",
    (
        _record_id,
        Column("text", "string", "text as the source has it, lone surrogates replaced by U+FFFD"),
        _exact_key,
        Column("issues", "array<string>", "`no_text`, `invalid_characters`, `invisible_characters`; empty for most rows"),
        Column("keep", ANY, "struct k1, k2, ...: values of the keep policy's expressions"),
    ),
)
"""NORMALIZED in the diagram. With `embed.encoder: column` it also carries the source's vectors as `embedding`, and with blocking keys of
one's own their values as the struct `blocks`."""

REPRESENTATIVES = Table(
    "_representatives",
    (REP_ID,),
    "One row per exact key.",
    (
        _rep_id,
        Column(EXACT_KEY, "string", "SHA-256 of the normalised text, 64 hexadecimal digits"),
        Column(RECORD_ID, ID, "least record id that has the key"),
        Column("text", "string", "text of that record"),
        Column("group_size", "bigint", "records with this key, at least 1"),
        Column("in_search", "boolean", "false for groups that `exact.route: bypass` keeps out of the search"),
    ),
)

MEMBERS = Table(
    "members",
    (RECORD_ID,),
    "Which representative stands for each source row.",
    (_record_id, _exact_key, Column(REP_ID, "bigint", "id of the representative; null where there is no text")),
)

EMBEDDINGS = Table(
    "_embeddings",
    (EXACT_KEY, "model"),
    "One vector per exact key and model; survives `--rebuild`.",
    (
        Column(EXACT_KEY, "string", "key of the text that was encoded"),
        Column("model", "string", "fingerprint of the encoder: name, revision, window, dimension, versions"),
        Column("vector", "binary", "L2-normalised little-endian float32; null where the encoder gave nothing usable"),
        Column("problem", "string", "why the vector is null: `missing`, `empty`, `nan`, `infinite`, `zero`; else null"),
        Column("tokens", "int", "length of the text in the encoder's tokens; null where the encoder has no window"),
        Column("truncated", "boolean", "whether the encoder's window was shorter than the text"),
    ),
)

VECTORS = Table(
    "_vectors",
    (REP_ID,),
    "What the search reads: usable vectors of representatives that take part, with the features of their texts.",
    (
        _rep_id,
        Column("head_id", "bigint", "least rep_id among representatives whose vectors are equal bit for bit"),
        Column("vector", "binary", "L2-normalised little-endian float32"),
        Column("features", "binary", "hashed shingles, words and numbers of the text (kernels/features.py)"),
    ),
)

INDEX = Table(
    "_index",
    ("shard", "file", "part"),
    "Files of the index shards, cut into parts, so that they live wherever the store lives.",
    (
        Column("shard", "int", "shard number from 0"),
        Column("file", "string", "file name inside the shard"),
        Column("part", "int", "part number from 0"),
        Column("bytes", "binary", "at most 64 KiB of the file"),
    ),
)

INDEX_SHARDS = Table(
    "_index_shards",
    ("shard", "file"),
    "Manifest of the shards: what each file must weigh and hash to.",
    (
        Column("shard", "int", "shard number from 0"),
        Column("file", "string", "file name inside the shard"),
        Column("rows", "bigint", "distinct vectors in the shard"),
        Column("bytes", "bigint", "size of the file"),
        Column("sha256", "string", "checksum of the file"),
    ),
)

INDEX_CELLS = Table(
    "_index_cells",
    ("cell",),
    "K-means cells and the shard that each belongs to.",
    (
        Column("cell", "int", "cell number from 0"),
        Column("shard", "int", "shard that holds the cell's vectors"),
        Column("centroid", "binary", "unit little-endian float32"),
    ),
)

SKETCHES = Table(
    "_sketches",
    (REP_ID,),
    "What the search by shared words and blocking keys reads; written only where `minhash.enabled` is true or there are `blocking.keys`.",
    (
        _rep_id,
        Column("features", "binary", "as in `_vectors`, also for texts without a vector"),
        Column("shingles", "binary", "ascending little-endian uint64; null where they are the shingles of the features"),
        Column("bands", "array<bigint>", "bucket of the text in each band; null without MinHash"),
    ),
)

PROPOSED_PAIRS = Table(
    "_proposed_pairs",
    (LEFT_ID, RIGHT_ID),
    "Pairs that share a bucket, before their Jaccard is known; written only where `minhash.enabled` is true.",
    (_left, _right, _methods),
)

CONTAINED_PAIRS = Table(
    "_contained_pairs",
    (LEFT_ID, RIGHT_ID),
    "Pairs of which one text may lie inside the other, before that is known; written only where `minhash.containment` is a number.",
    (_left, _right, _methods),
)

BLOCK_KEYS = Table(
    "_block_keys",
    ("key", "block", REP_ID),
    "Blocks of every text; written only where there are `blocking.keys`. Two texts are compared if they share a block and the shorter "
    "one's `reach` is at least the longer one's `bytes`.",
    (
        Column("key", "string", "name of the blocking key"),
        Column("block", "bigint", "hash of the key's name and value; for `length_band` the number of the band"),
        _rep_id,
        Column("bytes", "bigint", "length of the normalised text in UTF-8"),
        Column("reach", "bigint", "bytes of the longest text that it is compared with; 0 where the text only waits for shorter ones"),
        Column("label", "string", "the key's value, shortened"),
    ),
)

BLOCKS = Table(
    "_blocks",
    ("key", "block"),
    "Blocks with something to compare; written only where there are `blocking.keys`.",
    (
        Column("key", "string", "name of the blocking key"),
        Column("block", "bigint", "as in `_block_keys`"),
        Column("label", "string", "the key's value, shortened"),
        Column("texts", "bigint", "texts in the block"),
        Column("comparisons", "bigint", "pairs of its texts"),
        Column("compared", "bigint", "pairs that are compared under `blocking.max_block`"),
    ),
)

BLOCK_PAIRS = Table(
    "_block_pairs",
    (LEFT_ID, RIGHT_ID),
    "Pairs that share a block, before their scores are known; written only where there are `blocking.keys`.",
    (_left, _right, _methods),
)

NEIGHBOUR_PAIRS = Table(
    "_neighbour_pairs",
    (LEFT_ID, RIGHT_ID),
    "Pairs of distinct vectors as Postgres gave them, perhaps twice, before their cosine is recomputed; written only by `pgvector`.",
    (_left, _right),
)

SCORED_PAIRS = Table(
    "_scored_pairs",
    (LEFT_ID, RIGHT_ID),
    "Candidate pairs with their scores, as the search returns them (not stored; see `candidate_pairs`).",
    (_left, _right, _methods, *_scores),
)

CANDIDATE_PAIRS = Table(
    "candidate_pairs",
    (LEFT_ID, RIGHT_ID),
    "Every pair that was found, once, with all its scores and the merge rule's verdict.",
    (
        _left,
        _right,
        Column("left_record", ID, "record that stands for left_id"),
        Column("right_record", ID, "record that stands for right_id"),
        _methods,
        *_scores,
        Column("is_edge", "boolean", "whether the merge rule holds"),
        _run_id,
    ),
)

EDGES = Table("_edges", (LEFT_ID, RIGHT_ID), "Pairs that the merge rule accepts (not stored).", (_left, _right))

LABELS = Table(
    "_labels",
    (REP_ID,),
    "Connected component of every representative (not stored; see `_components`).",
    (_rep_id, Column("component_id", "bigint", "least rep_id of the component")),
)

COMPONENTS = Table(
    "_components",
    (REP_ID,),
    "Connected component and cluster of every representative.",
    (
        _rep_id,
        Column("component_id", "bigint", "least rep_id of the component"),
        Column("cluster_id", "bigint", "least rep_id of the cluster: the whole component, unless `clusters.method` is `canonical`"),
    ),
)

CLUSTERS = Table(
    "clusters",
    (RECORD_ID,),
    "Every source row exactly once, with its cluster.",
    (
        _record_id,
        Column("cluster_id", "bigint", "least rep_id of the cluster; null for rows without text, which are in no cluster"),
        Column("is_canonical", "boolean", "whether the cluster keeps this record; exactly one in each cluster"),
        Column("canonical_id", ID, "record that the cluster keeps"),
        Column("cluster_size", "bigint", "records in the cluster, this one included"),
        Column(
            "match_kind",
            "string",
            "`exact`: same key as the canonical record (for the canonical itself: as another record); "
            "`near`: joined by near-duplicate pairs; `single`: alone; `no_text`; `bad_embedding`: alone for want of a vector",
        ),
        Column("cosine", "double", "against the canonical record; 1 for exact copies; null where the pair was not measured"),
        Column("jaccard", "double", "against the canonical record; 1 for exact copies; null where the pair was not measured"),
        Column(
            "direct",
            "boolean",
            "whether the record is canonical, a copy of the canonical one, or in an accepted pair with it; false where only a chain of "
            "other records joins them",
        ),
        _run_id,
    ),
)

COHESION = Table(
    "cohesion",
    ("cluster_id",),
    "How well a cluster of two or more different texts hangs together (not stored; `spark_dedup.evaluation.cohesion`).",
    (
        Column("cluster_id", "bigint", "as in `clusters`"),
        Column("rows", "bigint", "records in the cluster"),
        Column("texts", "bigint", "different texts among them"),
        Column("edges", "bigint", "accepted pairs of these texts"),
        Column("weakest_cosine", "double", "least cosine of an accepted pair inside the cluster"),
        Column("weakest_jaccard", "double", "least Jaccard of an accepted pair inside the cluster"),
        Column("least_cosine", "double", "least cosine of a record with the canonical one, where that pair was measured"),
        Column("least_jaccard", "double", "least Jaccard of a record with the canonical one, where that pair was measured"),
        Column("indirect", "bigint", "records without an accepted pair with the canonical one: only a chain joins them"),
    ),
)

SET_ASIDE = Table(
    "set_aside",
    (RECORD_ID, "reason"),
    "Rows that a step could not use as they are, and why: counted, never lost.",
    (
        _record_id,
        Column(
            "reason",
            "string",
            "`no_text`, `bad_embedding`, `cut_text`, `invalid_characters`, `invisible_characters`",
        ),
        Column("detail", "string", "what was found; null where the reason says it all"),
        _run_id,
    ),
)

RUNS = Table(
    "runs",
    (RUN_ID, "stage"),
    "One row per finished stage of every run: the state from which a broken run goes on.",
    (
        _run_id,
        Column("stage", "string", "stage name; `run` for the whole run"),
        Column("source", "string", "catalog name or path of the source"),
        Column("source_version", "bigint", "Delta version that was read; null for other formats"),
        Column("settings", "string", "effective settings, JSON"),
        Column("fingerprint", "string", "SHA-256 of the settings and inputs that decide the stage's result"),
        Column("rows_in", "bigint", "rows read"),
        Column("rows_out", "bigint", "rows written"),
        Column("caps_hit", "map<string,bigint>", "limits that were reached and how often"),
        Column("counts", "map<string,bigint>", "further figures of the stage"),
        Column("notes", "map<string,string>", "what was decided and why: placement of the index, components engine"),
        Column("bytes", "bigint", "bytes written"),
        Column("seconds", "double", "wall time of the stage"),
        Column("status", "string", "`started` (the `run` row only), `done` or `failed`"),
        Column("finished_at", "timestamp", "UTC"),
    ),
)

TRUTH = Table(
    "_truth",
    ("query_id", "other_id"),
    "True neighbours of a random sample of texts, found exhaustively: a row per neighbour, and one without neighbour per sampled text.",
    (
        Column("query_id", "bigint", "rep_id of the sampled text"),
        Column("other_id", "bigint", "rep_id of another text at or above the floor; null in the row that names the sampled text"),
        *_scores,
        Column("fingerprint", "string", "SHA-256 of the vectors, the floor and the sample that the rows were made for"),
    ),
)

RECALL = Table(
    "recall",
    (RUN_ID, "stage", "metric", "setting", "floor"),
    "What the search found of the pairs that are truly there, measured on a random sample of texts.",
    (
        _run_id,
        Column("stage", "string", "stage that is measured: `candidates`"),
        Column(
            "metric",
            "string",
            "`pair_recall`, `pair_recall_rule`, `query_recall_mean`, `query_recall_worst_decile`, `cluster_recall`, `loss_routing`, "
            "`loss_cap`, `loss_border`, `loss_graph`; `key_recall`, `loss_keys`; `shared_recall`, `shared_recall_bands`, "
            "`shared_recall_design`, `loss_bands` (docs/recall.md)",
        ),
        Column("setting", "string", "settings that differ from the run's own, as in `search.ef_search=32`; empty for the run itself"),
        Column("floor", "double", "least cosine of the pairs that count; least Jaccard for the last four metrics"),
        Column("value", "double", "in [0, 1]; null where the sample holds no true pair, or where the figure can not be known"),
        Column("low", "double", "lower end of the 95 % interval; null with the value"),
        Column("high", "double", "upper end of the 95 % interval; null with the value"),
        Column("n", "bigint", "sampled texts"),
        Column("texts", "bigint", "texts that the sample was drawn from; the figure is exact where n is the same"),
        Column("pairs", "bigint", "true pairs in the lists of the sampled texts; a pair of two sampled texts is in two lists"),
        Column("unseen", "double", "with no true pair in the sample: share of texts that can have one, with 95 % confidence; else null"),
        Column("seconds", "double", "wall time of the search that is measured; null where it is not known"),
    ),
)

TABLES = (
    CLUSTERS,
    CANDIDATE_PAIRS,
    MEMBERS,
    RECALL,
    SET_ASIDE,
    RUNS,
    RECORDS,
    REPRESENTATIVES,
    EMBEDDINGS,
    VECTORS,
    INDEX,
    INDEX_SHARDS,
    INDEX_CELLS,
    SKETCHES,
    PROPOSED_PAIRS,
    CONTAINED_PAIRS,
    BLOCK_KEYS,
    BLOCKS,
    BLOCK_PAIRS,
    NEIGHBOUR_PAIRS,
    COMPONENTS,
    TRUTH,
)
"""Every table of the store, public ones first."""
