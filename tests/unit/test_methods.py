"""Which method found which pairs, in numbers worked by hand."""

from __future__ import annotations

import json

from spark_dedup.manifest import RunManifest, StageRecord
from spark_dedup.report.methods import Found, by_method, methods_json, render_methods, seconds_of

FOUND = (
    Found(("cells",), 100, 10),
    Found(("cells", "lsh"), 40, 30),
    Found(("block:title", "cells", "lsh"), 5, 5),
    Found(("block:title",), 7, 0),
)


def manifest(**notes: str) -> RunManifest:
    stages = (
        StageRecord(stage="blocks", fingerprint="f", seconds=3.0),
        StageRecord(stage="index", fingerprint="f", seconds=20.0),
        StageRecord(stage="candidates", fingerprint="f", seconds=50.0, notes={"engine": "cells", **notes}),
    )
    known = {"store": "s", "source": "t", "source_version": None, "fingerprint": "f", "settings": {}, "seconds": 80.0, "did_work": True}
    return RunManifest(run_id="r", stages=stages, **known)


def test_a_method_has_the_pairs_of_every_combination_that_it_is_part_of():
    assert by_method(FOUND, "cells") == Found(("cells",), 145, 45)
    assert by_method(FOUND, "lsh") == Found(("lsh",), 45, 35)
    assert by_method(FOUND, "block:title") == Found(("block:title",), 12, 5)
    assert by_method(FOUND, "exact") == Found(("exact",), 0, 0)


def test_the_engine_takes_what_the_others_leave():
    told = manifest(**{"seconds:lsh": "15.0", "seconds:block": "5.0"})
    assert seconds_of(told) == {"cells": 20 + 50 - 20, "lsh": 15.0, "block": 5.0 + 3.0}
    assert seconds_of(manifest()) == {"cells": 70.0}


def test_the_page_counts_each_method_and_each_combination():
    lines = [line.split() for line in render_methods(FOUND, manifest(**{"seconds:lsh": "15.0", "seconds:block": "5.0"})).splitlines()]
    assert ["cells", "145", "45", "50.0", "s"] in lines
    assert ["lsh", "45", "35", "15.0", "s"] in lines
    assert ["block:title", "12", "5"] in lines
    assert ["all", "blocking", "keys", "8.0", "s"] in lines
    assert ["block:title", "+", "cells", "+", "lsh", "5", "5"] in lines
    assert ["all", "pairs", "152", "45"] in lines
    assert lines[-1] == ["recall", "not", "measured"]


def test_an_engine_that_found_nothing_is_still_named():
    assert ["cells", "0", "0", "70.0", "s"] in [line.split() for line in render_methods((), manifest()).splitlines()]


def test_json_has_the_combinations_and_the_seconds():
    told = json.loads(methods_json(FOUND, manifest()))
    assert told["found"][1] == {"methods": ["cells", "lsh"], "pairs": 40, "edges": 30}
    assert told["seconds"] == {"cells": 70.0}
