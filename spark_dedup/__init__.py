"""Near-duplicate passages in lakehouse tables, with what the search misses said out loud."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from spark_dedup import errors
from spark_dedup.config import DedupConfig
from spark_dedup.config_file import load_config
from spark_dedup.manifest import RunManifest, StageRecord

if TYPE_CHECKING:
    from spark_dedup.pipeline import run
    from spark_dedup.store import TableStore

__version__ = "0.1.0"
__all__ = ["DedupConfig", "RunManifest", "StageRecord", "TableStore", "errors", "load_config", "run"]

_NEEDS_SPARK = {"run": "spark_dedup.pipeline", "TableStore": "spark_dedup.store"}


def __getattr__(name: str) -> Any:
    """Load what needs Spark when it is first used, so that settings can be read without it."""
    if name not in _NEEDS_SPARK:
        raise AttributeError(f"module 'spark_dedup' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_NEEDS_SPARK[name]), name)
