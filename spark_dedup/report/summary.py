"""What the report shows: plain values, so that pages can be made and tested without Spark."""

from __future__ import annotations

from dataclasses import dataclass

from spark_dedup.manifest import RunManifest


@dataclass(frozen=True, kw_only=True)
class PairView:
    """One candidate pair with its texts.

    Attributes:
        left_record: Record id, as text.
        right_record: Record id, as text.
        left_text: Text as the source has it.
        right_text: Text as the source has it.
        is_edge: Whether the merge rule holds.
        cosine: In [-1, 1]; this and the other scores are None where they were not measured.
        jaccard: In [0, 1].
        containment: In [0, 1].
        substitution: At least 0.
        numbers: `same`, `contained` or `differ`.
        cluster_size: Records in the cluster that holds the pair; None for pairs that the rule refused.
    """

    left_record: str
    right_record: str
    left_text: str
    right_text: str
    is_edge: bool
    cosine: float | None = None
    jaccard: float | None = None
    containment: float | None = None
    substitution: float | None = None
    numbers: str | None = None
    cluster_size: int | None = None


@dataclass(frozen=True, kw_only=True)
class CopyGroup:
    """Rows with one exact key: the record that stands for them, its text, and how many there are."""

    record: str
    text: str
    rows: int


@dataclass(frozen=True, kw_only=True)
class CosineBand:
    """Pairs with a cosine in [low, high), the last band with 1 included."""

    low: float
    high: float
    edges: int
    refused: int


@dataclass(frozen=True, kw_only=True)
class SizeBand:
    """Clusters of low to high records, both included; high is None for the band without an upper end."""

    low: int
    high: int | None
    clusters: int
    records: int

    @property
    def label(self) -> str:
        """The band in words: `2`, `5 to 9`, `100 or more`."""
        if self.high is None:
            return f"{self.low:,} or more"
        return f"{self.low:,}" if self.low == self.high else f"{self.low:,} to {self.high:,}"


@dataclass(frozen=True, kw_only=True)
class LooseCluster:
    """A cluster that only a chain of pairs holds together; its columns are those of COHESION."""

    cluster_id: int
    rows: int
    texts: int
    indirect: int
    weakest_cosine: float | None
    least_cosine: float | None


@dataclass(frozen=True, kw_only=True)
class RecallView:
    """A row of the `recall` table.

    Attributes:
        metric: As in the table.
        floor: Least cosine of the pairs that count.
        value: In [0, 1]; None where it can not be known, as are the two below.
        low: Lower end of the 95 % interval.
        high: Its upper end.
        n: Sampled texts.
        pairs: True pairs that they have.
    """

    metric: str
    floor: float
    value: float | None
    low: float | None
    high: float | None
    n: int
    pairs: int


@dataclass(frozen=True, kw_only=True)
class EngineView:
    """One search engine on the run's vectors: its name, the seconds of index and search, and what is known of its recall."""

    name: str
    seconds: float
    recall: str


@dataclass(frozen=True, kw_only=True)
class TableView:
    """A table and where it lies."""

    name: str
    location: str
    doc: str


@dataclass(frozen=True, kw_only=True)
class Summary:
    """Everything that the report shows.

    Attributes:
        manifest: The run, with counts, limits reached and seconds of every stage.
        found: Some pairs that the merge rule accepted.
        refused: Some very similar pairs that it refused.
        copies: The largest groups of exact copies.
        cosine_bands: All candidate pairs by cosine.
        size_bands: All clusters of two or more records by size.
        loose: The clusters with most records that only a chain joins to the canonical one.
        engines: Search engines side by side, the run's own first; empty where only that one ran.
        tables: The public tables.
        next_steps: Commands worth typing next, one a line, each with its purpose.
        measured: What the search found of the pairs that are truly there; empty where that was not measured.
    """

    manifest: RunManifest
    found: tuple[PairView, ...] = ()
    refused: tuple[PairView, ...] = ()
    copies: tuple[CopyGroup, ...] = ()
    cosine_bands: tuple[CosineBand, ...] = ()
    size_bands: tuple[SizeBand, ...] = ()
    loose: tuple[LooseCluster, ...] = ()
    engines: tuple[EngineView, ...] = ()
    tables: tuple[TableView, ...] = ()
    next_steps: tuple[str, ...] = ()
    measured: tuple[RecallView, ...] = ()

    @property
    def recall(self) -> str:
        """What is known about the pairs that the search missed; stands beside every figure about pairs."""
        return self.manifest.recall
