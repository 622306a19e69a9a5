"""BLOCKS -> what each blocking key costs, before anything is compared."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql import Window
from pyspark.sql import functions as F

from spark_dedup.config import BlockingConfig
from spark_dedup.errors import ConfigError
from spark_dedup.progress import quantity
from spark_dedup.schema import BLOCKS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

LARGEST = 10
"""Blocks of a key that are shown."""


class Block(NamedTuple):
    """One block: a value of its key, the texts that have it, and their pairs."""

    label: str
    texts: int
    comparisons: int

    def __str__(self) -> str:
        return f"{self.label!r} {quantity(self.texts, 'text')}, {quantity(self.comparisons, 'comparison')}"


@dataclass(frozen=True)
class KeyCost:
    """What one blocking key costs.

    Attributes:
        key: Its name.
        blocks: Blocks with something to compare.
        comparisons: Pairs of all its blocks; a pair of two blocks counts twice.
        compared: Those that are compared under `blocking.max_block`.
        large: Blocks over that bound.
        without: Texts without the key, which it compares with none.
        largest: The blocks with the most comparisons, at most `LARGEST`.
    """

    key: str
    blocks: int
    comparisons: int
    compared: int
    large: int
    without: int
    largest: tuple[Block, ...]

    def lines(self) -> list[str]:
        """The cost in words, and a line for each of the largest blocks."""
        told = f"key {self.key}: {quantity(self.comparisons, 'comparison')} in {quantity(self.blocks, 'block')}"
        told += f", {self.compared:,} under blocking.max_block" if self.compared < self.comparisons else ""
        told += f"; {quantity(self.without, 'text')} without it" if self.without else ""
        return [told, *(f"  {block}" for block in self.largest)]


def key_costs(blocks: DataFrame, config: BlockingConfig, without: Mapping[str, int]) -> list[KeyCost]:
    """Sum up the blocks of each key. Runs two jobs; a row per key and its largest blocks come to the driver.

    Args:
        blocks: BLOCKS, as stored.
        config: Uses `keys` and `max_block`.
        without: Texts without each key.

    Returns:
        One for each key, in the order of the setting.
    """
    blocks = BLOCKS.conform(blocks)
    large = F.count(F.when(F.col("texts") > config.max_block, 1))
    sums = blocks.groupBy("key").agg(F.count("*"), F.sum("comparisons"), F.sum("compared"), large).collect()
    totals = {row[0]: (int(row[1]), int(row[2]), int(row[3]), int(row[4])) for row in sums}
    rank = F.row_number().over(Window.partitionBy("key").orderBy(F.desc("comparisons"), F.desc("texts"), "block"))
    top = blocks.withColumn("rank", rank).where(F.col("rank") <= LARGEST).orderBy("key", "rank")
    largest = [(row["key"], Block(row["label"], row["texts"], row["comparisons"])) for row in top.collect()]
    return [
        KeyCost(key, *totals.get(key, (0, 0, 0, 0)), without[key], tuple(block for name, block in largest if name == key))
        for key in config.expressions
    ]


def too_large(costs: Iterable[KeyCost], config: BlockingConfig) -> ConfigError:
    """The error for blocks over the bound that are not to be split."""
    problems = []
    for cost in costs:
        examples = "; ".join(str(block) for block in cost.largest if block.texts > config.max_block)
        more = "; ..." if cost.large > LARGEST else ""
        problems.append(
            f"blocking.max_block allows {config.max_block:,} texts in a block, key {cost.key} has {cost.large:,} larger: {examples}{more}"
        )
    return ConfigError(
        problems, hint="a narrower key, a larger blocking.max_block, or blocking.large: split; then start the store over with --rebuild"
    )
