"""One whole run that several tests look at."""

from __future__ import annotations

import pytest
from jobs import planted_config, save
from planted import families

from spark_dedup import run


@pytest.fixture(scope="session")
def planted(spark, tmp_path_factory):
    """60 families, run once; whoever adds to the store works on a copy."""
    folder = tmp_path_factory.mktemp("planted")
    rows, truth = families(60)
    source = save(spark, rows, folder / "source")
    manifest = run(planted_config(source, folder / "store"), spark)
    return {"folder": folder, "rows": rows, "truth": truth, "source": source, "store": str(folder / "store"), "manifest": manifest}
