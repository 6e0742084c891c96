"""Database sessions as dependencies, on a real PostgreSQL, while workers are killed. No connection stays open.

`scripts/prove/live sessions` is the longer form.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from rq_core.app.app import App
from rq_core.model.job import NewJob
from rq_core.model.lib.url import REDIS_URL_VARIABLE
from tests.kit import sessions
from tests.kit.wait import wait_until
from tests.rigs.stage import WORKER, workers

JOBS = int(os.environ.get("RQ_CORE_SESSIONS_JOBS", "240"))
KILL_EVERY = 80
"""Number of jobs that are enqueued between two kills of a worker. A kill comes when fewer than half of the earlier jobs
are left and the next jobs have been enqueued."""
PROCESSES = 2
CONCURRENCY = 4


@pytest.fixture
def app(valkey_url: str) -> Iterator[App]:
    sessions.app.connect_to(valkey_url)
    yield sessions.app
    sessions.app.close()


@pytest.fixture
def database(postgres_url: str) -> Iterator[psycopg.Connection[Any]]:
    url = postgres_url.replace("postgresql+psycopg", "postgresql")
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE TABLE ran (n integer, claim integer, kind text)")
        yield connection


def connections(database: psycopg.Connection[Any], state: str = "%") -> int:
    """Return how many connections handlers have to PostgreSQL, in total or in this state."""
    (count,) = database.execute(
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s AND coalesce(state, '') LIKE %s",
        (sessions.NAME, state),
    ).fetchone() or (0,)
    return int(count)


def job(n: int) -> NewJob:
    """Return job number ``n``. Ten of each 200 jobs run in separate processes. The remaining jobs are async or sync, in
    turns of ten.

    Some jobs of each kind fail or end too late.
    """
    if n // 10 % 20 == 0:
        return sessions.insert_apart.job(n)
    return (sessions.insert_async, sessions.insert)[(n // 10 + n // 200) % 2].job(n)


@pytest.mark.timeout(1_800)
@pytest.mark.slow
def test_jobs_that_fail_or_time_out_or_are_killed_leave_no_database_connection(
    app: App, valkey_url: str, postgres_url: str, database: psycopg.Connection[Any], tmp_path: Path
) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")  # noqa: T201 - for who repeats it
    rng = random.Random(seed)
    variables = {sessions.DATABASE: postgres_url, REDIS_URL_VARIABLE: valkey_url}
    # Each worker has two engines, and each process of an isolated handler one.
    most = PROCESSES * (2 + CONCURRENCY) * sessions.POOL_MAX
    seen = 0

    def left() -> int:
        nonlocal seen
        seen = max(seen, connections(database))
        counts = app.client.run(app.client.calls.reads.counts("sessions"))
        return sum(counts.ready.values()) + counts.scheduled + counts.running

    kills = 0
    options = ("--concurrency", str(CONCURRENCY))
    with workers(
        tmp_path, "tests.kit.sessions:app", ["sessions"], valkey_url, *options,
        count=PROCESSES, variables=variables,
    ) as crew:  # fmt: skip
        for first in range(0, JOBS, KILL_EVERY):
            app.enqueue_many(job(n) for n in range(first, min(first + KILL_EVERY, JOBS)))
            if first:
                crew.kill(crew.of(WORKER, rng))
                crew.start()
                kills += 1
            wait_until(lambda: left() < KILL_EVERY // 2, "half of the jobs have ended", timeout=600)
        wait_until(lambda: left() == 0, "all jobs have ended", timeout=600)
        # Sessions were given back to their pools, whatever became of their jobs.
        wait_until(
            lambda: connections(database) == connections(database, "idle"),
            "no handler's connection is in a transaction",
            timeout=30,
        )
        kept = connections(database)
        assert crew.stop(WORKER) == [0] * PROCESSES
    wait_until(lambda: connections(database) == 0, "no connection is left")

    print(  # noqa: T201 - the figures of a longer run
        f"{JOBS} jobs, {kills} kills, at most {seen} connections, {kept} in pools at the end"
    )
    assert kills == (JOBS - 1) // KILL_EVERY
    assert seen <= most
    assert crew.said().count("left with 0 connections out") >= PROCESSES
    assert crew.said().count("left with") == crew.said().count("left with 0 connections out")
    assert app.client.run(app.client.calls.reads.dead("sessions", 10)).total == 0
    rows = database.execute("SELECT n, claim FROM ran").fetchall()
    assert {n for n, _ in rows} == set(range(JOBS)), "every job has committed"
    spoiled = [(n, c) for n, c in rows if c == 1 and (sessions.fails(n) or sessions.is_late(n))]
    assert spoiled == [], "what an attempt that failed wrote was rolled back"
