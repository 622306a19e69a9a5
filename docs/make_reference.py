"""Write docs/reference from the code: `python docs/make_reference.py` (or `make docs`)."""

from __future__ import annotations

import dataclasses
import inspect
from pathlib import Path

from spark_dedup import errors, schema
from spark_dedup.config import SECTIONS, DedupConfig
from spark_dedup.limits import LIMITS
from spark_dedup.settings_page import default_of, plain, rows

FOLDER = Path(__file__).parent / "reference"


def cell(text: str) -> str:
    """Text that can stand in a table cell."""
    return " ".join(text.split()).replace("|", "\\|")


def settings() -> str:
    """The page of all settings."""
    out = [
        "# Settings",
        "",
        "Made from `spark_dedup/config.py`. Every setting but `source.table`, `source.id`, `source.text` and `store` has a default.",
        "Settings with *no* in the last column can not change a table, so they may differ between runs on one store; all others are",
        "part of the fingerprint, and a store refuses to be continued under another value.",
    ]
    docs = {"": DedupConfig.__doc__, **{name: cls.__doc__ for name, cls in SECTIONS.items()}}
    section = None
    for key, field, allowed in rows():
        head = key.rpartition(".")[0]
        if head != section:
            out += ["", f"## {head or 'Top level'}", "", docs[head] or "", ""]
            out += ["| key | default | allowed | what it does | decides results |", "|---|---|---|---|---|"]
            section = head
        default = default_of(field)
        shown = "*required*" if default is dataclasses.MISSING else f"`{plain(default)}`"
        decides = "yes" if field.metadata["result"] and key != "store" else "no"
        out.append("| " + " | ".join(cell(c) for c in (f"`{key}`", shown, allowed, field.metadata["doc"], decides)) + " |")
    return "\n".join(out) + "\n"


def tables() -> str:
    """The page of all tables."""
    out = [
        "# Tables",
        "",
        "Made from `spark_dedup/schema.py`. All are Delta tables in the schema or folder that `store` names. Tables with a leading",
        "underscore are internal: they may change with any version. `<id>` is the type of the id column in the source.",
    ]
    for table in schema.TABLES:
        out += ["", f"## {table.name}", "", table.doc, "", f"Key: {', '.join(f'`{k}`' for k in table.key)}.", ""]
        out += ["| column | type | meaning |", "|---|---|---|"]
        for c in table.columns:
            kind = "any" if c.type == schema.ANY else c.type
            out.append("| " + " | ".join(cell(x) for x in (f"`{c.name}`", f"`{kind}`", c.doc)) + " |")
    return "\n".join(out) + "\n"


def error_classes() -> str:
    """The page of all errors."""
    out = [
        "# Errors",
        "",
        "Made from `spark_dedup/errors.py`. Each message says what was wrong, what was found, what is allowed, and the next step",
        "(`hint:`). The command line leaves with exit code 2 for `ConfigError` and wrong usage, and with 1 for all others.",
        "",
        "| error | also a | raised for |",
        "|---|---|---|",
    ]
    for name, cls in inspect.getmembers(errors, inspect.isclass):
        if issubclass(cls, errors.SparkDedupError):
            builtin = next(
                (b.__name__ for b in cls.__mro__ if b.__module__ == "builtins" and b not in (Exception, BaseException, object)), "Exception"
            )
            out.append(f"| `{name}` | `{builtin}` | {cell((cls.__doc__ or '').split('Args:')[0])} |")
    return "\n".join(out) + "\n"


def limits() -> str:
    """The page of all limits."""
    out = [
        "# Limits",
        "",
        "Made from `spark_dedup/limits.py`. Every place where a run limits something: how often it did is in `runs.caps_hit` under this",
        "name, and on the pages of `spark-dedup run` and `report`. Where pairs are lost, `docs/recall.md` says which figure measures it.",
        "",
        "| stage | name | what is counted | setting | what it means |",
        "|---|---|---|---|---|",
    ]
    for x in LIMITS:
        out.append("| " + " | ".join(cell(c) for c in (f"`{x.stage}`", f"`{x.name}`", x.counted, f"`{x.setting}`", x.effect)) + " |")
    return "\n".join(out) + "\n"


PAGES = {"settings.md": settings, "tables.md": tables, "errors.md": error_classes, "limits.md": limits}

if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for file, page in PAGES.items():
        (FOLDER / file).write_text(page(), encoding="utf-8")
