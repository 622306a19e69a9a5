"""REPRESENTATIVES + RECORDS -> BLOCK_KEYS -> BLOCKS and BLOCK_PAIRS: texts that share a blocking key.

A shared key is no duplicate yet: the scores decide, in `score`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F

from spark_dedup.config import BlockingConfig, ExactConfig
from spark_dedup.grouped import whole
from spark_dedup.kernels.blocking import LABEL_CHARACTERS, LONGEST, NEAR_LENGTH, Blocks, arrange, length_edges, text_keys
from spark_dedup.kernels.ragged import slices
from spark_dedup.schema import BLOCK, BLOCK_KEYS, BLOCK_PAIRS, BLOCKS, EXACT_KEY, LEFT_ID, REP_ID, REPRESENTATIVES, RIGHT_ID, pa_schema

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Observation

SLICE_BYTES = 16 << 20
"""Text that is read at once."""

TEXTS = (
    f"`{REP_ID}` bigint, `{EXACT_KEY}` string, `bytes` bigint, `first_tokens` bigint, `beginning` string, `title_trigrams` bigint, "
    "`title` string, `length_band` bigint, `lengths` string"
)
"""What blocking by the text itself needs to know of each text."""

ENTRIES = "array<struct<key: string, block: bigint, reach: bigint, label: string>>"
"""BLOCK_KEYS of one text."""


def block_keys(
    representatives: DataFrame, records: DataFrame, exact: ExactConfig, config: BlockingConfig, noted: Observation | None = None
) -> DataFrame:
    """The blocks of each text that takes part in the search.

    Args:
        representatives: REPRESENTATIVES.
        records: RECORDS, with `blocks` where keys have expressions. A text has the values of all its records.
        exact: Uses `lowercase` and `strip_punctuation`.
        config: Uses `keys`.
        noted: Receives `texts`, and under `has_NAME` the texts that have the key.

    Returns:
        BLOCK_KEYS; a key that is null, empty or blank gives no row.
    """
    own = [name for name, expression in config.expressions.items() if expression is not None]
    texts, none = described(representatives, exact, config), F.array().cast(ENTRIES)
    texts = texts.join(own_keys(records, own), EXACT_KEY, how="left") if own else texts.withColumn("own", none)
    built_in = [entry for name in config.expressions if name not in own for entry in BUILT_IN[name]()]
    entries = F.concat(F.array(*built_in).cast(ENTRIES), F.coalesce("own", none))
    listed = texts.select(REP_ID, "bytes", F.filter(entries, lambda e: e["block"].isNotNull()).alias("entries"))
    if noted is not None:
        has = [F.count(F.when(F.exists("entries", _named(name)), 1)).alias(f"has_{name}") for name in config.expressions]
        listed = listed.observe(noted, F.count(F.lit(1)).alias("texts"), *has)
    return BLOCK_KEYS.conform(listed.select(REP_ID, "bytes", F.inline("entries")))


def _named(name: str) -> Callable[[Column], Column]:
    return lambda entry: entry["key"] == name


def _entry(key: str, block: Column, reach: Column, label: Column) -> Column:
    named = {"key": F.lit(key), "block": block, "reach": reach.cast("bigint"), "label": label.cast("string")}
    return F.struct(*[column.alias(name) for name, column in named.items()])


BUILT_IN: dict[str, Callable[[], list[Column]]] = {
    "first_tokens": lambda: [_entry("first_tokens", F.col("first_tokens"), F.lit(LONGEST), F.col("beginning"))],
    "title_trigrams": lambda: [_entry("title_trigrams", F.col("title_trigrams"), F.lit(LONGEST), F.col("title"))],
    # A text stands in its own band, and as a guest in the one before, where the shorter ones find it.
    "length_band": lambda: [
        _entry("length_band", F.col("length_band"), F.expr(f"bytes * {NEAR_LENGTH} div 100"), F.col("lengths")),
        _entry("length_band", F.col("length_band") - 1, F.lit(0), F.lit(None)),
    ],
}
"""Rows of a text for each of `config.BLOCKING_KEYS`, from a row of TEXTS."""


def described(representatives: DataFrame, exact: ExactConfig, config: BlockingConfig) -> DataFrame:
    """TEXTS of the texts that take part in the search."""
    names, edges = list(config.expressions), length_edges()
    form = {"lowercase": exact.lowercase, "strip_punctuation": exact.strip_punctuation}
    spans = pa.array([f"{first:,} to {after - 1:,} bytes" for first, after in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)])

    def describe(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            sizes = pc.binary_length(batch.column("text")).to_numpy().astype(np.int64)
            for part in slices(sizes, SLICE_BYTES):
                rep, key, text = batch.slice(part.start, part.stop - part.start).columns
                known = text_keys(text, names, **form)
                band = pa.array(np.searchsorted(edges, known.column("bytes").to_numpy(), side="right") - 1)
                yield pa.RecordBatch.from_arrays([rep, key, *known.columns, band, spans.take(band)], schema=pa_schema(TEXTS))

    texts = REPRESENTATIVES.conform(representatives).where("in_search").select(REP_ID, EXACT_KEY, "text")
    return texts.mapInArrow(describe, TEXTS)


def own_keys(records: DataFrame, names: list[str]) -> DataFrame:
    """ENTRIES `own` of each exact key: the values of expressions, each distinct one once."""
    name = F.get(F.array(*map(F.lit, names)), F.col("place"))
    values = records.where(F.col(EXACT_KEY).isNotNull()).select(EXACT_KEY, F.posexplode("blocks").alias("place", "value"))
    values = values.where(F.col("value").rlike(r"(?U)\S"))
    label = F.substring("value", 1, LABEL_CHARACTERS)
    entry = F.struct(name.alias("key"), F.xxhash64("value").alias("block"), F.lit(LONGEST).alias("reach"), label.alias("label"))
    return values.groupBy(EXACT_KEY).agg(F.collect_set(entry).cast(ENTRIES).alias("own"))


def block_sizes(keys: DataFrame, config: BlockingConfig, *, partitions: int) -> DataFrame:
    """What each block costs, before any pair is made.

    Args:
        keys: BLOCK_KEYS.
        config: Uses `max_block`.
        partitions: Tasks, at least 1; each sorts its rows in memory, some 150 bytes a row. Changes no row.

    Returns:
        BLOCKS: those with at least one comparison.
    """
    schema = BLOCKS.arrow()

    def measure(key: str, rows: pa.Table, blocks: Blocks) -> Iterator[pa.RecordBatch]:
        wanted, compared = blocks.comparisons()
        some = np.flatnonzero(wanted)
        first = rows.select(["key", "block", "label"]).take(blocks.order[blocks.first[some]])
        figures = map(pa.array, (blocks.texts[some], wanted[some], compared[some]))
        yield from pa.Table.from_arrays([*first.columns, *figures], schema=schema).to_batches()

    return BLOCKS.conform(in_blocks(keys, config, measure, BLOCKS.ddl(), partitions))


def block_pairs(keys: DataFrame, config: BlockingConfig, *, partitions: int) -> DataFrame:
    """Pairs of texts that share a block.

    Args:
        keys: BLOCK_KEYS.
        config: Uses `keys` and `max_block`.
        partitions: As in `block_sizes`.

    Returns:
        BLOCK_PAIRS, each once with all its keys.
    """
    names = sorted(config.expressions)
    schema = pa_schema(FOUND)

    def propose(key: str, rows: pa.Table, blocks: Blocks) -> Iterator[pa.RecordBatch]:
        for left, right in blocks.pairs():
            yield pa.RecordBatch.from_arrays([*map(pa.array, (left, right, np.full(len(left), 1 << names.index(key))))], schema=schema)

    # Bits and not names, so that Spark can aggregate by hashing.
    found = in_blocks(keys, config, propose, FOUND, partitions).groupBy(LEFT_ID, RIGHT_ID).agg(F.bit_or("keys").alias("keys"))
    methods = [F.when(F.col("keys").bitwiseAND(F.lit(1 << i)) != 0, F.lit(BLOCK + name)) for i, name in enumerate(names)]
    return BLOCK_PAIRS.conform(found.withColumn("methods", F.array_compact(F.array(*methods))))


FOUND = f"`{LEFT_ID}` bigint, `{RIGHT_ID}` bigint, `keys` bigint"


def in_blocks(
    keys: DataFrame, config: BlockingConfig, work: Callable[[str, pa.Table, Blocks], Iterator[pa.RecordBatch]], ddl: str, partitions: int
) -> DataFrame:
    """What `work` makes of whole blocks, many of one key at a time.

    Args:
        keys: BLOCK_KEYS.
        config: Uses `max_block`.
        work: Gets the name of the key, its rows, and their blocks.
        ddl: What it gives.
        partitions: At least 1.
    """
    most = config.max_block

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for table in whole(batches):
            for key in sorted(pc.unique(table["key"]).to_pylist()):
                rows = table.filter(pc.equal(table["key"], key))
                block, length, reach, ids = (rows[name].to_numpy() for name in ("block", "bytes", "reach", REP_ID))
                yield from work(key, rows, arrange(block, length, reach, ids, most))

    return BLOCK_KEYS.conform(keys).repartition(partitions, "key", "block").mapInArrow(run, ddl)
