"""The reference pages say what the code says."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SPEC = importlib.util.spec_from_file_location("make_reference", ROOT / "docs" / "make_reference.py")
make_reference = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(make_reference)


@pytest.mark.parametrize("file", sorted(make_reference.PAGES))
def test_a_reference_page_is_up_to_date(file):
    assert (ROOT / "docs" / "reference" / file).read_text(encoding="utf-8") == make_reference.PAGES[file](), "run `make docs`"
