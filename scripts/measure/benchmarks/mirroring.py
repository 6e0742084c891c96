"""Measures the events per second of one mirror process, and the floor for comparison: the same rows written by plain
executemany or COPY.

The log comes from real calls (enqueue, claim, complete) in a real Redis, in entries of many jobs and of few. The floor
writes the mirror's rows again, into empty tables of another database, in transactions of the size of a full batch of
the mirror. It reads, compares and hashes nothing. `by_row` mirrors with one event per transaction.

PostgreSQL and SQLite wait for the disk at each COMMIT.
"""

# ruff: noqa: S608 - statements are joined from the schema's own names

from __future__ import annotations

import argparse
import json
import logging
import statistics
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[3]))

from rq_core.connections.client import Client
from rq_core.embedded import server
from rq_core.model.job import NewJob, profile
from rq_core.protocol.calls import claims
from sql_audit.mirror import service
from sql_audit.mirror.reading import BatchLimits
from sql_audit.mirror.redis_access import Outbox
from sql_audit.queries import history
from sql_audit.store import migrate
from sql_audit.store.connection.copy import copy_text
from sql_audit.store.connection.database import Database
from sql_audit.store.connection.statements import POSTGRESQL, SQLITE
from sql_audit.store.schema.tables import ATTEMPT_COLUMNS, EVENT_COLUMNS, JOB_COLUMNS
from tests.kit.servers import DurablePostgres, PostgresServer

ARGS = '{"number":12345,"text":"0123456789012345678901234567890123456789"}'
SHAPES = {"": (100,), "_small": (1, 2, 5, 10, 7)}
"""Ending of a figure's name → the numbers of jobs per entry of the log."""
BY_ROW = 300
"""The number of jobs that are mirrored with one event per transaction."""

Rows = Sequence[tuple[Any, ...]]


class Databases:
    """Makes a new audit database for each measurement."""

    def __init__(self, place: Path, postgres: PostgresServer | None) -> None:
        self.place = place
        self.postgres = postgres
        self.dialects = ("sqlite", "postgres") if postgres else ("sqlite",)
        self._made = 0

    def fresh(self, dialect: str) -> Database:
        self._made += 1
        if dialect == "sqlite":
            database = Database(str(self.place / f"audit-{self._made}.db"))
        else:
            assert self.postgres is not None
            database = Database(self.postgres.url(self.postgres.create_database()))
        migrate.upgrade_schema(database)
        return database

    def drop(self, database: Database) -> None:
        database.close()
        if database.dialect == "sqlite":
            for path in self.place.glob(f"{database.path.name}*"):
                path.unlink()
        else:
            assert self.postgres is not None
            self.postgres.drop_database(str(database.address.database))


def fill(client: Client, queue: str, jobs: int, sizes: Sequence[int]) -> None:
    """Run ``jobs`` jobs from enqueue to success. ``sizes``: the numbers of jobs per call, which are used
    alternately."""
    made = 0
    while made < jobs:
        for size in sizes:
            new = [
                NewJob(f"01a1fc7cba24{made + n:019d}", queue, profile("send"), ARGS)
                for n in range(size)
            ]
            client.run(client.calls.enqueue.many(new))
            claimed = client.run(claims.claim(queue, "w-29020-e5b73040c5d1", size)).jobs
            pairs = [(c.id, c.fence) for c in claimed]
            client.run(claims.complete(queue, "w-29020-e5b73040c5d1", pairs))
            made += size


def mirror(
    client: Client, database: Database, queue: str, limits: BatchLimits | None = None
) -> int:
    """Mirror a queue until no entry of its outbox is left. Return the number of events."""
    with service.rare_collections():
        done = service.run_mirror(
            Outbox(client),
            database,
            stop=threading.Event(),
            queues=[queue],
            once=True,
            limits=limits,
        )
    return done.events


def blocks(database: Database, events: int) -> Iterator[tuple[Rows, Rows, Rows]]:
    """Yield all mirrored rows in blocks of about ``events`` events. Each block has the rows of these events, of jobs
    and of claims."""
    with database.readers.connect() as connection:
        log = _all(
            connection,
            f"SELECT {', '.join(EVENT_COLUMNS)} FROM job_event ORDER BY epoch, seq, ordinal",
        )
        jobs = _all(
            connection, f"SELECT {', '.join(JOB_COLUMNS)} FROM job ORDER BY last_epoch, last_seq"
        )
        claims = _all(
            connection,
            f"SELECT {', '.join('a.' + name for name in ATTEMPT_COLUMNS)} FROM job_attempt a JOIN job j "
            "ON j.job_id = a.job_id AND j.queue = a.queue ORDER BY j.last_epoch, j.last_seq",
        )
    count = max(1, len(log) // events)
    for n in range(count):
        yield tuple(  # type: ignore[misc]
            rows[len(rows) * n // count : len(rows) * (n + 1) // count]
            for rows in (log, jobs, claims)
        )


def _all(connection: Any, statement: str) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in connection.exec_driver_sql(statement)]


def write_plainly(database: Database, parts: Sequence[tuple[Rows, Rows, Rows]]) -> None:
    """Write the rows without a mirror, one transaction per block. This is the floor, with which the mirror is
    compared."""
    for part in parts:
        with database.writing() as connection:
            assert connection is not None
            if database.dialect == "sqlite":
                for statement, rows in zip(PLAIN, part, strict=True):
                    connection.exec_driver_sql(statement, rows)
            else:
                driver: Any = connection.connection.driver_connection
                for statement, rows in zip(COPIES, part, strict=True):
                    with driver.cursor() as cursor, cursor.copy(statement) as copy:
                        copy.write(copy_text(rows))
            connection.commit()


PLAIN = tuple(
    statement.partition(" ON CONFLICT")[0]
    for statement in (SQLITE.INSERT_EVENTS, SQLITE.UPSERT_JOBS, SQLITE.UPSERT_ATTEMPTS)
)
COPIES = (POSTGRESQL.COPY_EVENTS, POSTGRESQL.COPY_JOBS, POSTGRESQL.COPY_ATTEMPTS)


def measure(
    client: Client, databases: Databases, jobs: int, repeats: int, *, shapes: bool = True
) -> dict[str, list[float]]:
    """Measure each figure once in each repeat, so that a slow moment of the machine affects all of them.

    Without ``shapes``, only entries of 100 jobs are measured.
    """
    figures: dict[str, list[float]] = defaultdict(list)
    for repeat in range(repeats):
        for dialect in databases.dialects:
            name = f"mirror_{dialect}"
            for end, sizes in SHAPES.items() if shapes else [("", SHAPES[""])]:
                database = databases.fresh(dialect)
                rate = mirrored(client, database, f"mirror-{dialect}{end}-{repeat}", jobs, sizes)
                figures[f"{name}{end}_per_s"].append(rate)
                if not end:
                    floor = floor_of(databases, database)
                    figures[f"{name}_floor_per_s"].append(floor)
                    figures[f"{name}_percent_of_floor"].append(100 * rate / floor)
                databases.drop(database)
            if not shapes:
                continue
            database = databases.fresh(dialect)
            few, one = min(jobs, BY_ROW), BatchLimits(events=1)
            rate = mirrored(client, database, f"mirror-{dialect}-row-{repeat}", few, (1,), one)
            figures[f"{name}_by_row_per_s"].append(rate)
            databases.drop(database)
    return figures


def mirrored(
    client: Client,
    database: Database,
    queue: str,
    jobs: int,
    sizes: Sequence[int],
    limits: BatchLimits | None = None,
) -> float:
    """Return the events per second of a mirror that starts when all jobs have ended."""
    fill(client, queue, 1, (1,))
    mirror(client, database, queue)
    fill(client, queue, jobs, sizes)
    started = time.perf_counter()
    events = mirror(client, database, queue, limits)
    rate = events / (time.perf_counter() - started)
    client.run(client.calls.audit.detach(queue, history.audit_id(database)))
    return rate


def floor_of(databases: Databases, database: Database) -> float:
    """Return the events per second at which the same rows are written without a mirror."""
    parts = list(blocks(database, BatchLimits().events))
    again = databases.fresh("sqlite" if database.dialect == "sqlite" else "postgres")
    started = time.perf_counter()
    write_plainly(again, parts)
    spent = time.perf_counter() - started
    databases.drop(again)
    return sum(len(events) for events, _, _ in parts) / spent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=40_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path, default=None)
    options = parser.parse_args()
    # What a mirror says of its lag is not wanted here.
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory(prefix="rq-core-bench-") as name:
        place = Path(name)
        url = server.ensure_server(place / "server")
        postgres = DurablePostgres().start()
        try:
            with Client(url) as client:
                figures = measure(client, Databases(place, postgres), options.jobs, options.repeats)
        finally:
            postgres.stop()
            server.stop_server(place / "server")
    for figure, values in figures.items():
        print(
            f"{figure:36} {statistics.median(values):>10,.0f}  ({min(values):,.0f} to {max(values):,.0f})"
        )
    if options.json:
        medians = {figure: round(statistics.median(v), 1) for figure, v in figures.items()}
        options.json.write_text(json.dumps(medians, indent=2) + "\n")


if __name__ == "__main__":
    main()
