"""Table declarations agree with each other and with the documentation."""

from __future__ import annotations

import pyarrow as pa
import pytest

from spark_dedup.errors import SchemaError
from spark_dedup.schema import CANDIDATE_PAIRS, CLUSTERS, RECORDS, TABLES


def test_names_are_unique_and_keys_are_columns():
    assert len({t.name for t in TABLES}) == len(TABLES)
    for table in TABLES:
        assert set(table.key) <= set(table.names), table.name


def test_the_id_takes_the_type_of_the_source():
    assert CLUSTERS.ddl("bigint").startswith("`record_id` bigint, `cluster_id` bigint")
    assert CANDIDATE_PAIRS.arrow("int").field("left_record").type == pa.int32()
    assert CANDIDATE_PAIRS.arrow("string").field("left_record").type == pa.string()


def test_a_table_with_free_types_has_no_ddl():
    with pytest.raises(SchemaError, match="_records"):
        RECORDS.ddl()
