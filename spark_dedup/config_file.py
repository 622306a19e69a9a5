"""Settings from a YAML file and `key=value` overrides: all problems at once, each with its key, its value and what is allowed."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from spark_dedup.config import SECTIONS, DedupConfig
from spark_dedup.errors import ConfigError
from spark_dedup.settings import Section


def load_config(path: str | Path | None = None, overrides: Iterable[str] | Mapping[str, Any] = ()) -> DedupConfig:
    """Read settings from a YAML file and put overrides on top.

    Args:
        path: YAML file; None starts from nothing but the overrides. A top-level `extends: FILE` is read first.
        overrides: `section.key=value` strings, values in YAML, or a mapping with dotted or nested keys.

    Raises:
        ConfigError: With every problem of the file and the overrides at once.
    """
    problems: list[str] = []
    tree = read_yaml(Path(path)) if path is not None else {}
    if isinstance(overrides, Mapping):
        pairs: Iterable[tuple[str, Any]] = overrides.items()
    else:
        pairs = [parse_override(text, problems) for text in overrides]
    for key, value in pairs:
        put(tree, key, value, problems)
    config = build(tree, problems)
    if problems or config is None:
        raise ConfigError(problems, hint="`spark-dedup config show` prints every setting with its allowed values")
    return config


def read_yaml(path: Path) -> dict[str, Any]:
    """Read one settings file, and the one it extends first.

    Raises:
        ConfigError: If the file is missing or is not a YAML mapping.
    """
    import yaml

    try:
        tree = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError([f"no settings file at {path}"], hint="give the path of a YAML file with --config") from None
    except (yaml.YAMLError, UnicodeDecodeError) as e:
        raise ConfigError([f"{path} is not YAML: {e}"]) from None
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise ConfigError([f"{path} must hold settings as `section: {{key: value}}`, got {type(tree).__name__}"])
    parent = tree.pop("extends", None)
    if parent is None:
        return tree
    base = read_yaml(path.parent / str(parent))
    for section, value in tree.items():
        if isinstance(value, dict) and isinstance(base.get(section), dict):
            base[section].update(value)
        else:
            base[section] = value
    return base


def parse_override(text: str, problems: list[str]) -> tuple[str, Any]:
    """Split `key=value`; the value is YAML, so numbers, lists and null mean what they look like."""
    import yaml

    key, sign, value = text.partition("=")
    if not sign:
        problems.append(f"--set takes key=value, got {text!r}")
        return "", None
    try:
        return key.strip(), yaml.safe_load(value)
    except yaml.YAMLError:
        return key.strip(), value


def put(tree: dict[str, Any], key: str, value: Any, problems: list[str]) -> None:
    """Set `section.key` in a nested mapping."""
    if not key:
        return
    section, dot, name = key.partition(".")
    if not dot:
        tree[section] = value
        return
    inner = tree.setdefault(section, {})
    if isinstance(inner, dict):
        inner[name] = value
    else:
        problems.append(f"{section} must hold settings as key: value, got {inner!r}")


def build(tree: Mapping[str, Any], problems: list[str]) -> DedupConfig | None:
    """Make the settings from a nested mapping, adding every problem found to `problems`."""
    top = {f.name for f in dataclasses.fields(DedupConfig)}
    values: dict[str, Any] = {}
    for name, value in tree.items():
        if name not in top:
            problems.append(unknown_key(str(name), top))
        elif name in SECTIONS:
            values[name] = build_section(name, SECTIONS[name], value, problems)
        else:
            values[name] = value
    for name in ("source", "store"):
        if name not in tree:
            problems.append(f"{name} must be set, got nothing")
    if problems:
        return None
    try:
        return DedupConfig(**values)
    except ConfigError as e:
        problems.extend(e.problems)
        return None


def build_section(name: str, cls: type[Section], value: Any, problems: list[str]) -> Section | None:
    """Make one section, adding every problem found to `problems`."""
    if not isinstance(value, Mapping):
        problems.append(f"{name} must hold settings as key: value, got {value!r}")
        return None
    fields = {f.name: f for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
    given: dict[str, Any] = {}
    for key, v in value.items():
        if key in fields:
            given[key] = tuple(entries(v)) if isinstance(v, list) else v
        else:
            problems.append(f"{name}.{unknown_key(str(key), fields)}")
    missing = [
        k for k, f in fields.items() if k not in given and f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
    ]
    if missing:
        problems.extend(f"{name}.{k} must be set, got nothing" for k in missing)
        return None
    try:
        return cls(**given)
    except ConfigError as e:
        problems.extend(f"{name}.{p}" for p in e.problems)
        return None


def entries(values: list[Any]) -> Iterable[Any]:
    """The entries of a list; YAML reads `name: expression` as a mapping, and here it is that text again."""
    for value in values:
        if isinstance(value, Mapping):
            yield from (f"{name}: {'' if expression is None else expression}" for name, expression in value.items())
        else:
            yield value


def unknown_key(key: str, known: Iterable[str]) -> str:
    """The message for a key that does not exist."""
    known = sorted(known)
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
    return f"{key} is not a setting" + (f"; did you mean {near[0]!r}?" if near else f"; there are {', '.join(known)}")
