"""Measures how many rows per second jobs store in SQLite: with one commit per job, and as a batch task.

    scripts/measure/once/run batch-rows [--jobs N] [--size N] [--rounds N]

Each round enqueues the same jobs twice, and one worker drains them. First, each job's handler inserts a row and
commits. Then a batch task's handler inserts the rows of a batch and commits once. Both handlers use one connection on
the event loop (WAL, synchronous=FULL). For comparison, plain INSERTs with a commit each are measured, too.

It fails if the batch task stores less than five times as many rows per second as single jobs (median of the rounds).
"""

from __future__ import annotations

import argparse
import asyncio
import sqlite3
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from rq_core import App, Batch, Job, NewJob
from rq_core.worker import Worker, WorkerOptions
from tests.kit import servers
from tests.kit.servers import RedisServer

TIMES_MIN = 5.0


@dataclass
class Event:
    """The arguments of a job: one row."""

    table: str
    n: int


class Store:
    """An app whose jobs insert rows into an SQLite database."""

    def __init__(self, url: str, file: Path, size: int) -> None:
        self.app = App(url)
        self.database = sqlite3.connect(file, isolation_level=None)
        self.database.execute("PRAGMA journal_mode=WAL")
        self.database.execute("PRAGMA synchronous=FULL")
        self.database.execute("CREATE TABLE event (name TEXT, n INTEGER)")

        @self.app.task(queue="single")
        async def single(table: str, n: int) -> None:
            self.insert([(table, n)])

        @self.app.task(queue="batch", batch=Batch(size, linger=0.1))
        async def batch(jobs: list[Job[Event]]) -> None:
            self.insert([(job.args.table, job.args.n) for job in jobs])

        self.single = single
        self.batch = batch

    def insert(self, rows: list[tuple[str, int]]) -> None:
        """Insert rows in one transaction."""
        self.database.execute("BEGIN")
        self.database.executemany("INSERT INTO event VALUES (?, ?)", rows)
        self.database.execute("COMMIT")

    def drain(self, queue: str, jobs: list[NewJob]) -> float:
        """Enqueue jobs, run a worker until all have ended, and return the rows stored per second."""
        self.database.execute("DELETE FROM event")
        self.app.enqueue_many(jobs)
        began = time.perf_counter()
        asyncio.run(self._work(queue))
        took = time.perf_counter() - began
        (stored,) = self.database.execute("SELECT count(*) FROM event").fetchone()
        assert stored == len(jobs), f"{stored} rows of {len(jobs)} jobs"
        return len(jobs) / took

    async def _work(self, queue: str) -> None:
        await Worker(self.app, WorkerOptions(queues=(queue,), burst=True)).run()
        await self.app.connections.aclose()


def measure(store: Store, count: int, rounds: int) -> list[float]:
    """Return, for each round, the batch task's rows per second divided by those of single jobs."""
    ratios = []
    for n in range(rounds):
        began = time.perf_counter()
        for row in range(1_000):
            store.insert([("plain", row)])
        plain = 1_000 / (time.perf_counter() - began)
        single = store.drain("single", [store.single.job("t", row) for row in range(count)])
        batch = store.drain("batch", [store.batch.job(Event("t", row)) for row in range(count)])
        ratios.append(batch / single)
        print(
            f"round {n + 1}: single jobs {single:,.0f} rows/s, batch task {batch:,.0f} rows/s,"
            f" {batch / single:.1f} times; plain INSERTs {plain:,.0f}/s"
        )
    return ratios


def main() -> int:
    """Measure on one engine. Return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--size", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        server = RedisServer(servers.engines()[0], Path(directory)).start()
        try:
            store = Store(server.url, Path(directory) / "rows.db", given.size)
            ratios = measure(store, given.jobs, given.rounds)
            store.database.close()
        finally:
            server.stop()
    middle = statistics.median(ratios)
    print(f"Batch({given.size}): {middle:.1f} times ({min(ratios):.1f} to {max(ratios):.1f})")
    return int(middle < TIMES_MIN)


if __name__ == "__main__":
    sys.exit(main())
