"""Every setting in words, made from `config.py`: for `config show` and the reference page."""

from __future__ import annotations

import dataclasses
import typing
from typing import Any

from spark_dedup.config import SECTIONS, DedupConfig
from spark_dedup.settings import as_dict, fingerprint, flatten, range_text, settings_of


def allowed_text(field: dataclasses.Field[Any], hint: Any) -> str:
    """What a setting may be."""
    kinds = set(typing.get_args(hint)) or {hint}
    optional = " or null" if type(None) in kinds else ""
    if typing.get_origin(hint) is tuple:
        return "a list of expressions"
    if kinds == {bool}:
        return "true or false"
    choices = field.metadata.get("choices")
    numbers = range_text(field.metadata, kinds) if kinds & {int, float} else ""
    words = ", ".join(choices) if choices else "" if numbers else "text"
    return " or ".join(part for part in (words, numbers) if part) + optional


def rows() -> list[tuple[str, dataclasses.Field[Any], str]]:
    """Key, field and allowed values of every setting, in declared order."""
    sections: dict[str, type] = {"": DedupConfig, **SECTIONS}
    return [
        (f"{name}.{f.name}".lstrip("."), f, allowed_text(f, hint)) for name, section in sections.items() for f, hint in settings_of(section)
    ]


def default_of(field: dataclasses.Field[Any]) -> Any:
    """The default, or the word required."""
    if field.default is not dataclasses.MISSING:
        return field.default
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return dataclasses.MISSING


def plain(value: Any) -> str:
    """A value as YAML would show it on one line."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(f'"{v}"' for v in value) + "]"
    return str(value)


def settings_text(config: DedupConfig) -> str:
    """The effective settings, what is allowed, which ones differ from the default, and the fingerprint."""
    flat = flatten(as_dict(config))
    lines = []
    section = None
    for key, field, allowed in rows():
        head = key.rpartition(".")[0]
        if head != section:
            lines.append("" if section is None and not head else f"\n{head}:" if head else "")
            section = head
        value = flat[key]
        default = default_of(field)
        changed = default is dataclasses.MISSING or plain(value) != plain(default)
        mark = "*" if changed else " "
        lines.append(f"{mark} {key:<28} {plain(value):<44} {allowed}")
    lines.append("\n* set by you; all else is the default")
    lines.append(f"fingerprint of the settings that can change a table: {fingerprint(config)}")
    return "\n".join(lines).strip("\n")
