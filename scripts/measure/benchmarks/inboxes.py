"""Measures an inbox (a database table into which programs insert jobs): the jobs per second that one relay passes to
Redis, and the time from a COMMIT to the handler.

For jobs per second, ``enqueue_many`` inserts the rows. For the time, each transaction enqueues one job. SQLite is in
WAL mode, as in applications with several processes. PostgreSQL has its default settings. Each COMMIT waits for the
disk.

For comparison, two simpler operations are measured first: plain INSERTs into the same table, each with its own COMMIT,
and bare EVALSHAs.
"""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from contender import TEXT, Tally
from mirroring import Databases
from sqlalchemy import Connection, Engine
from sqlalchemy.orm import Session
from stage import OURS, Failed, Stage
from throughput import percentile

from rq_core import App
from sql_audit.inbox.database import inbox_engine, inbox_url
from sql_audit.inbox.schema import migrate
from sql_audit.inbox.service import run_relay
from sql_audit.mirror.service import rare_collections

CHUNK = 1_000
PARTS_OF_ROWS = 100
"""Number of rows passed by a relay for each plain INSERT and bare EVALSHA that is measured for comparison."""
PACE_S = 0.004
POLL_S = 0.5
"""The time (s) between two polls of PostgreSQL by the relay. If a COMMIT does not wake the relay, it comes at a random
moment between two polls."""
WARM = 5
PATIENCE_S = 10.0


class Inboxes:
    """Makes a new database with an inbox for each measurement."""

    def __init__(self, databases: Databases) -> None:
        self._place, self._postgres = databases.place, databases.postgres
        self.dialects = databases.dialects
        self._made = 0

    @contextlib.contextmanager
    def fresh(self, dialect: str) -> Iterator[tuple[str, Engine]]:
        self._made += 1
        name = ""
        if dialect == "sqlite":
            url = str(self._place / f"inbox-{self._made}.db")
        else:
            assert self._postgres is not None
            name = self._postgres.create_database()
            url = self._postgres.url(name)
        migrate(url)
        engine = inbox_engine(inbox_url(url))
        try:
            if dialect == "sqlite":
                with engine.connect() as connection:
                    driver: Any = connection.connection.driver_connection
                    driver.execute("PRAGMA journal_mode = WAL")
            yield url, engine
        finally:
            engine.dispose()
            if self._postgres is not None and name:
                self._postgres.drop_database(name)
            for path in self._place.glob(f"inbox-{self._made}.db*"):
                path.unlink()


def relayed(stage: Stage, inboxes: Inboxes, dialect: str, rows: int) -> dict[str, float]:
    """Return the jobs per second that a relay passes from an inbox to Redis, and those of plain INSERTs and bare
    EVALSHAs for comparison."""
    stage.empty()
    with inboxes.fresh(dialect) as (url, engine), App(stage.url) as app:
        noop = _noop(app)
        with engine.connect() as connection:
            singles = max(20, rows // PARTS_OF_ROWS)
            inserts = _insert(connection, singles)
            evalshas = _evalsha(stage, singles)
            for at in range(0, rows, CHUNK):
                with connection.begin():
                    numbers = range(at, min(at + CHUNK, rows))
                    jobs = (noop.job(number=n, text=TEXT) for n in numbers)
                    app.within(connection).enqueue_many(jobs)
        with rare_collections():
            began = time.perf_counter()
            run_relay(stage.url, app.prefix, url, stop=threading.Event(), once=True)
            took = time.perf_counter() - began
        with engine.connect() as connection:
            left = connection.exec_driver_sql("SELECT count(*) FROM rqc_inbox").scalar()
            counted = connection.exec_driver_sql("SELECT sum(relayed) FROM rqc_relay").scalar()
    if left or counted != rows:
        raise Failed(f"{left} of {rows} rows are left in the inbox, and {counted} were counted")
    return {
        f"inbox_{dialect}_per_s": rows / took,
        f"inbox_{dialect}_inserts_per_s": inserts,
        f"inbox_{dialect}_evalshas_per_s": evalshas,
    }


def latency(
    stage: Stage, inboxes: Inboxes, dialect: str, jobs: int, *, hooked: bool
) -> dict[str, float]:
    """Return percentiles of the time (ms) from the end of the COMMIT to the start of the handler. Also return the
    COMMIT's median time (ms).

    Relay and worker are idle before each job. With ``hooked``, the job is enqueued in an SQLAlchemy Session, which
    wakes the relay after the COMMIT. Otherwise the job is enqueued on a driver's connection, which does not wake the
    relay.
    """
    stage.empty()
    path = stage.tally(jobs + WARM)
    tally = Tally(path)
    with (
        inboxes.fresh(dialect) as (url, engine),
        App(stage.url) as app,
        stage.working(OURS, path, concurrency=10) as workers,
        _relaying(stage, url),
    ):
        noop = _noop(app)
        commits = []
        draw = random.Random(7)  # noqa: S311 - a pace, no secret
        with engine.connect() as connection:
            for number in range(jobs + WARM):
                commits.append(_commit(noop, connection, number, hooked=hooked))
                tally.sent[number] = time.monotonic()
                _await(tally, number, workers)
                time.sleep(PACE_S + draw.random() * (PACE_S if hooked else POLL_S))
    took = [1e3 * (b - s) for b, s in zip(tally.began, tally.sent, strict=True)][WARM:]
    name = f"inbox_{dialect}_{'hook' if hooked else 'poll'}"
    return {
        f"{name}_p50_ms": percentile(sorted(took), 0.5),
        f"{name}_p99_ms": percentile(sorted(took), 0.99),
        f"{name}_commit_ms": percentile(sorted(commits[WARM:]), 0.5),
    }


def _noop(app: App) -> Any:
    """Return a task to enqueue. The worker of the module OURS has a task of the same name, and runs the jobs."""

    @app.task(queue="async", name="async")
    async def noop(number: int, text: str) -> None:
        """Do nothing. This task never runs here."""

    return noop


def _commit(noop: Any, connection: Connection, number: int, *, hooked: bool) -> float:
    """Enqueue a job in a transaction. Return the duration of the COMMIT (ms)."""
    if hooked:
        with Session(connection) as session:
            noop.within(session).enqueue(number=number, text=TEXT)
            began = time.perf_counter()
            session.commit()
            return 1e3 * (time.perf_counter() - began)
    driver: Any = connection.connection.driver_connection
    driver.execute("BEGIN")
    noop.within(driver).enqueue(number=number, text=TEXT)
    began = time.perf_counter()
    driver.execute("COMMIT")
    return 1e3 * (time.perf_counter() - began)


def _await(tally: Tally, number: int, workers: list[subprocess.Popen[str]]) -> None:
    patience = time.monotonic() + PATIENCE_S + (OURS.part_s if not number else 0)
    while not tally.began[number]:
        if time.monotonic() > patience or any(each.poll() is not None for each in workers):
            raise Failed(f"job {number} of the inbox has not begun")
        # Asleep, so that relay and worker have the cores to themselves.
        time.sleep(0.0005)


@contextlib.contextmanager
def _relaying(stage: Stage, url: str) -> Iterator[None]:
    """Run a relay, in its own process, during the block."""
    command = [sys.executable, "-m", "rq_core.cli", "inbox", "run", "--until-stdin-ends", url]
    log = Path(stage.place / "relay.log")
    with (
        log.open("ab") as sink,
        subprocess.Popen(
            [*command, "--redis", stage.url], env=dict(os.environ),
            stdin=subprocess.PIPE, stdout=sink, stderr=sink,
        ) as process,
    ):  # fmt: skip
        try:
            yield
        finally:
            process.terminate()


def _insert(connection: Connection, count: int) -> float:
    """Return the plain INSERTs per second, each with its own COMMIT. Then delete the rows."""
    statement = f"INSERT INTO rqc_inbox (queue, task, args) VALUES ('floor', 'noop', '{_ARGS}')"  # noqa: S608
    began = time.perf_counter()
    for _ in range(count):
        with connection.begin():
            connection.exec_driver_sql(statement)
    took = time.perf_counter() - began
    with connection.begin():
        connection.exec_driver_sql("DELETE FROM rqc_inbox WHERE queue = 'floor'")
    return count / took


_ARGS = f'{{"number":1,"text":"{TEXT}"}}'


def _evalsha(stage: Stage, count: int) -> float:
    sha = stage.control.script_load("return {'ok'}")
    began = time.perf_counter()
    for _ in range(count):
        stage.control.evalsha(sha, 0)
    return count / (time.perf_counter() - began)
