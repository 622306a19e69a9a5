"""The engine `pgvector`: between a run's tables and Postgres. All of it on the driver, so that no executor needs a log-in or a way there.

Vectors go through the driver as blocks of COPY rows made on the executors, a partition at a time, and pairs come back as blocks of ids.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from spark_dedup import schema
from spark_dedup.config import SearchConfig
from spark_dedup.job import Job, Outcome
from spark_dedup.lateral_join import LateralJoin, Work
from spark_dedup.postgres import connect, log_in, server
from spark_dedup.stages.candidates_pgvector import BLOCK, Neighbours, copy_blocks, head_records, pair_blocks

if TYPE_CHECKING:
    from spark_dedup.postgres import Connection

BLOCK_PAIRS = 1 << 16
"""Pairs in a block: 1 MiB."""


def index_in_postgres(job: Job, config: SearchConfig, heads: int, notes: dict[str, str]) -> Outcome:
    """VECTORS -> a table of Postgres with an HNSW index."""
    if not heads:
        return Outcome(heads, 0, 0, {}, {}, notes)
    join = lateral_join(job)
    with connect(join.login) as connection:
        rows, size, said = prepare(job, join, connection, config)
    notes = notes | {"postgres": str(join.server)} | ({"postgres_said": "; ".join(said)} if said else {})
    return Outcome(heads, rows, 0, {"postgres_bytes": size}, {"not_in_table": heads - rows}, notes)


@contextmanager
def neighbours_in_postgres(job: Job, config: SearchConfig, heads: int) -> Iterator[Neighbours]:
    """Ask Postgres for every vector's neighbours; on leaving well, what Postgres need not keep is dropped."""
    if not heads:
        yield Neighbours(job.spark.createDataFrame([], schema.NEIGHBOUR_PAIRS.ddl()), 0, 0)
        return
    join = lateral_join(job)
    with connect(join.login) as connection:
        prepare(job, join, connection, config)
    asked = join.ask(config, lambda done, of: job.progress.say(f"{done:,} of {of:,} batches in Postgres"))
    with connect(join.login) as connection:
        store_pairs(job, join, connection)
    told = f"{asked.batches:,} batches, {asked.reused:,} of them by an earlier try; {asked.reconnected:,} connections made again"
    yield Neighbours(job.store.read(schema.NEIGHBOUR_PAIRS), asked.asked_again, asked.saturated, told)
    with connect(join.login) as connection:
        if join.login.config.keep_index:
            join.forget_pairs(connection)
        else:
            join.drop(connection)


def lateral_join(job: Job) -> LateralJoin:
    """The self-join of a run; what an earlier try of the same run has left in Postgres is taken up."""
    login = log_in(job.config.pgvector, job.spark)
    with connect(login) as connection:
        can = server(connection, login)
    return LateralJoin(
        login, can, Work.of(login.config.schema, job.store.location(schema.VECTORS)), f"spark_dedup {job.fingerprint} {job.run_id}"
    )


def prepare(job: Job, join: LateralJoin, connection: Connection, config: SearchConfig) -> tuple[int, int, tuple[str, ...]]:
    """See to it that vectors and index are in Postgres.

    Returns:
        Vectors, bytes of the index, and what the server had to say about it.
    """
    if not join.is_loaded(connection):
        vectors = job.store.read(schema.VECTORS)
        if join.login.config.table:
            records = head_records(vectors, job.store.read(schema.REPRESENTATIVES))
            join.load_from_table(connection, ((row[0], row[1]) for row in records.toLocalIterator()))
        else:
            first = vectors.select(F.length("vector")).first()
            blocks = copy_blocks(vectors, join.login.config.type)
            join.load(connection, first[0] // 4 if first else 0, (bytes(row[0]) for row in blocks.toLocalIterator()))
    size, said = join.build_index(connection, config)
    return join.vectors(connection), size, said


def store_pairs(job: Job, join: LateralJoin, connection: Connection) -> None:
    """The pairs in Postgres -> NEIGHBOUR_PAIRS."""
    append = False
    for ids in join.pairs(connection):
        blocks = [(ids[start : start + BLOCK_PAIRS].astype("<i8").tobytes(),) for start in range(0, len(ids), BLOCK_PAIRS)]
        job.write(schema.NEIGHBOUR_PAIRS, pair_blocks(job.spark.createDataFrame(blocks, BLOCK)), "candidates", append=append)
        append = True
    if not append:
        job.write(schema.NEIGHBOUR_PAIRS, job.spark.createDataFrame([], schema.NEIGHBOUR_PAIRS.ddl()), "candidates")
