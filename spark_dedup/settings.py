"""What a setting is: its declaration, what is wrong with a value, and settings as plain values and as a fingerprint."""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import json
import math
import types
import typing
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field
from typing import Any

from spark_dedup.errors import ConfigError

REQUIRED = dataclasses.MISSING


def setting(
    default: Any,
    doc: str,
    *,
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
    choices: tuple[str, ...] | None = None,
    result: bool = True,
    private: bool = False,
) -> Any:
    """Declare one setting.

    Args:
        default: Its default, or `REQUIRED`.
        doc: What it does, one sentence; the reference page is made from these.
        low: Least allowed number; of a list, least number of entries.
        high: Largest allowed number.
        above: Numbers must be larger than this.
        choices: Allowed words, beside numbers where the type allows both.
        result: Whether it can change the tables. Only such settings enter the fingerprint.
        private: Whether a wrong value may be a secret, so that no message shows it.
    """
    metadata = {"doc": doc, "low": low, "high": high, "above": above, "choices": choices, "result": result, "private": private}
    if default is REQUIRED:
        return field(metadata=metadata)
    if isinstance(default, tuple):
        return field(default_factory=lambda: default, metadata=metadata)
    return field(default=default, metadata=metadata)


class Section:
    """Base of all sections: checks types and ranges of every field when an instance is made."""

    def __post_init__(self) -> None:
        problems = list(field_problems(self, ""))
        if problems:
            raise ConfigError(problems)


def settings_of(section: type) -> Iterator[tuple[dataclasses.Field[Any], Any]]:
    """The settings of a section, or of all without one, each with its type; sections are none themselves."""
    hints = typing.get_type_hints(section)
    return ((f, hints[f.name]) for f in dataclasses.fields(section) if not dataclasses.is_dataclass(hints[f.name]))


def field_problems(section: Any, prefix: str) -> Iterable[str]:
    """Say what is wrong with each setting of one section: its type, its range, NaN."""
    for f, hint in settings_of(type(section)):
        problem = value_problem(getattr(section, f.name), hint, f.metadata)
        if problem:
            yield f"{prefix}{f.name} {problem}"


def value_problem(value: Any, hint: Any, rule: Mapping[str, Any]) -> str | None:
    """What is wrong with one value, as `must be ..., got ...`; None where nothing is."""
    kinds = set(typing.get_args(hint)) if isinstance(hint, types.UnionType) else {hint}
    got = "got a value that is not shown" if rule.get("private") else f"got {value!r}"
    if value is None:
        return None if types.NoneType in kinds else f"must be set, {got}"
    if typing.get_origin(hint) is tuple:
        least = rule.get("low") or 0
        if isinstance(value, tuple) and len(value) >= least and all(isinstance(v, str) and v.strip() for v in value):
            return None
        return f"must be a list of {'at least one expression' if least else 'expressions'}, {got}"
    if bool in kinds:
        return None if isinstance(value, bool) else f"must be true or false, {got}"
    if isinstance(value, str):
        if str not in kinds:
            return f"must be {range_text(rule, kinds)}, {got}"
        choices = rule.get("choices")
        if choices and value not in choices:
            near = difflib.get_close_matches(value, choices, n=1)
            also = f"; did you mean {near[0]!r}?" if near else ""
            numbers = f" or {range_text(rule, kinds)}" if kinds & {int, float} else ""
            return f"must be one of {', '.join(choices)}{numbers}, {got}{also}"
        return None if value.strip() else f"must not be empty, {got}"
    number = float in kinds or int in kinds
    whole = isinstance(value, int) and not isinstance(value, bool)
    if not number or isinstance(value, bool) or not (whole or (float in kinds and isinstance(value, float))):
        return f"must be {range_text(rule, kinds)}, {got}"
    low, high, above = rule.get("low"), rule.get("high"), rule.get("above")
    if (
        not math.isfinite(value)
        or (low is not None and value < low)
        or (high is not None and value > high)
        or (above is not None and value <= above)
    ):
        return f"must be {range_text(rule, kinds)}, {got}"
    return None


def range_text(rule: Mapping[str, Any], kinds: set[Any]) -> str:
    """The allowed values of a field, in words."""
    if not kinds & {int, float}:
        return "a text"
    word = "a number" if float in kinds else "a whole number"
    low, high, above = rule.get("low"), rule.get("high"), rule.get("above")
    if above is not None:
        return f"{word} in ({above:g}, {high:g}]"
    if low is not None and high is not None:
        return f"{word} in [{low:g}, {high:g}]"
    return f"{word} >= {low:g}" if low is not None else word


def as_dict(config: Any, *, results_only: bool = False) -> dict[str, Any]:
    """The settings as nested plain values, in declared order.

    Args:
        config: `DedupConfig` or one section.
        results_only: Leave out settings that cannot change the tables, and where the store is.
    """
    out: dict[str, Any] = {}
    for f in dataclasses.fields(config):
        value = getattr(config, f.name)
        if isinstance(value, Section):
            out[f.name] = as_dict(value, results_only=results_only)
        elif not results_only or (f.metadata.get("result", True) and f.name != "store"):
            out[f.name] = list(value) if isinstance(value, tuple) else value
    return out


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings as `section.key` -> value."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            flat.update(flatten(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def fingerprint(*parts: Any) -> str:
    """SHA-256 of settings and other plain values, as 64 hexadecimal digits.

    The Unicode table of the running Python is part of it, because exact keys depend on it.
    """
    plain = [as_dict(p, results_only=True) if isinstance(p, Section) else p for p in parts]
    text = json.dumps([unicodedata.unidata_version, plain], sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()
