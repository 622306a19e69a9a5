"""What a run did: one record per stage, as the `runs` table stores it and `run()` returns it."""

from __future__ import annotations

import dataclasses
import datetime
import json
from dataclasses import dataclass, field
from typing import Any

RECALL_NOT_MEASURED = "recall not measured"

BLOCKING = "block"
"""All blocking keys together, where a source of candidates is named."""

PROPOSED_IN = "seconds:"
"""Before a source of candidates beside the engine, among the notes of the stage `candidates`: what it took to propose its pairs."""

RUN = "run"
"""Stage name of the row that stands for the whole run."""

DONE, STARTED, FAILED = "done", "started", "failed"


@dataclass(frozen=True, kw_only=True)
class StageRecord:
    """One finished stage.

    Attributes:
        stage: Its name, or `RUN`.
        fingerprint: SHA-256 of the settings and inputs that decide the stage's result.
        rows_in: Rows read, or None where the stage does not count them.
        rows_out: Rows written.
        counts: Further figures, such as `copy_groups`, `embedded`, `pairs`, `edges`.
        caps_hit: Limits that were reached and how often, such as `saturated`. Only limits that were reached.
        notes: Decisions and their reasons, such as `engine` and `engine_reason`.
        bytes: Bytes written.
        seconds: Wall time.
        status: `done`, `failed` or `started`.
        finished_at: When that was, UTC.
        reused: True if an earlier run had already finished the stage and nothing was done now (not stored).
    """

    stage: str
    fingerprint: str
    rows_in: int | None = None
    rows_out: int | None = None
    counts: dict[str, int] = field(default_factory=dict)
    caps_hit: dict[str, int] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    bytes: int = 0
    seconds: float = 0.0
    status: str = DONE
    finished_at: datetime.datetime = field(default_factory=lambda: datetime.datetime.now(datetime.timezone.utc), compare=False)
    reused: bool = False


@dataclass(frozen=True, kw_only=True)
class RunManifest:
    """One whole run.

    Attributes:
        run_id: Its id, sortable by time.
        store: Where the tables are.
        source: Catalog name or path that was read.
        source_version: Delta version that was read; None for other formats.
        fingerprint: SHA-256 of all settings that can change a table, and of the source version.
        settings: Effective settings, nested.
        stages: One record per stage, in order.
        seconds: Wall time of this call.
        did_work: False if every stage had been finished before.
    """

    run_id: str
    store: str
    source: str
    source_version: int | None
    fingerprint: str
    settings: dict[str, Any]
    stages: tuple[StageRecord, ...]
    seconds: float
    did_work: bool

    def stage(self, name: str) -> StageRecord:
        """The record of one stage.

        Raises:
            KeyError: If the run has no such stage.
        """
        for record in self.stages:
            if record.stage == name:
                return record
        raise KeyError(name)

    @property
    def recall(self) -> str:
        """What is known about the pairs that the search missed; stands beside every figure about pairs."""
        return next((s.notes["recall"] for s in self.stages if s.stage == "recall" and "recall" in s.notes), RECALL_NOT_MEASURED)

    def to_json(self) -> str:
        """The manifest as one JSON object, for machines."""
        return json.dumps(dataclasses.asdict(self), indent=2, ensure_ascii=False, default=datetime.datetime.isoformat)
