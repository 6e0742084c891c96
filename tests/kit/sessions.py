"""Async and sync handlers with SQLAlchemy sessions, as in docs/how-to/handlers.md."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Iterator
from typing import Annotated, Any, Final

from sqlalchemy import Engine, create_engine, text
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from rq_core import App, Depends, RetryPolicy, current_job

log = logging.getLogger(__name__)

DATABASE: Final = "RQ_CORE_TEST_DATABASE"
"""The environment variable with the URL of the database."""
NAME: Final = "rq-core-sessions"
"""The name by which PostgreSQL knows the connections of the handlers in this module."""
POOL_MAX: Final = 4
LEASE_S: Final = 1.0
TIMEOUT_S: Final = 3.0
"""The timeout of a job, in seconds. The first job of a process, which also creates the engine, has the same timeout."""
TIMEOUT_APART_S: Final = 12.0
"""The timeout (s) of an isolated job. Its process imports SQLAlchemy first, which takes seconds on a busy machine."""

app = App()
app.queue("sessions", lease=LEASE_S)
# On a busy machine a process may need longer to start than its timeout, several times.
RETRY: Final = RetryPolicy(max_attempts=50, backoff="fixed", base=0.05, jitter=False)
INSERT: Final = text("INSERT INTO ran (n, claim, kind) VALUES (:n, :claim, :kind)")
SLEEP: Final = text(f"SELECT pg_sleep({2 * TIMEOUT_S})")
SLEEP_APART: Final = text(f"SELECT pg_sleep({TIMEOUT_APART_S + 3})")
"""Both statements take longer than the timeout of the job, but only by seconds: PostgreSQL notices that a client was
killed only when the statement ends."""
OPTIONS: Final[dict[str, Any]] = {
    "pool_size": POOL_MAX,
    "max_overflow": 0,
    "connect_args": {"application_name": NAME},
}


async def async_engine() -> AsyncIterator[AsyncEngine]:
    engine = create_async_engine(os.environ[DATABASE], **OPTIONS)
    yield engine
    log.warning("left with %d connections out", engine.pool.checkedout())  # type: ignore[attr-defined]
    await engine.dispose()


async def async_session(
    engine: Annotated[AsyncEngine, Depends(async_engine, scope="process")],
) -> AsyncIterator[AsyncSession]:
    async with AsyncSession(engine) as session, session.begin():
        yield session


def engine() -> Iterator[Engine]:
    engine = create_engine(os.environ[DATABASE], **OPTIONS)
    yield engine
    log.warning("left with %d connections out", engine.pool.checkedout())  # type: ignore[attr-defined]
    engine.dispose()


def session(engine: Annotated[Engine, Depends(engine, scope="process")]) -> Iterator[Session]:
    with Session(engine) as session, session.begin():
        yield session


def fails(n: int) -> bool:
    """Return whether job number ``n`` fails in its first attempt, after it has written to the database."""
    return n % 10 == 0


def is_late(n: int) -> bool:
    """Return whether job number ``n`` exceeds its timeout in its first attempt, after it has written to the
    database."""
    return n % 100 == 7


@app.task(queue="sessions", retry=RETRY, timeout=TIMEOUT_S, max_losses=100)
async def insert_async(n: int, session: Annotated[AsyncSession, Depends(async_session)]) -> None:
    claim = current_job().claim
    await session.execute(INSERT, {"n": n, "claim": claim, "kind": "async"})
    if claim == 1 and is_late(n):
        await session.execute(SLEEP)
    if claim == 1 and fails(n):
        raise ValueError(n)
    await asyncio.sleep(0)


@app.task(queue="sessions", retry=RETRY, timeout=TIMEOUT_S, max_losses=100)
def insert(n: int, session: Annotated[Session, Depends(session)]) -> None:
    job = current_job()
    session.execute(INSERT, {"n": n, "claim": job.claim, "kind": "thread"})
    if job.claim == 1 and is_late(n):
        # A thread goes on beyond its time; this one looks.
        job.wait_cancelled(60)
        job.raise_if_cancelled()
    if job.claim == 1 and fails(n):
        raise ValueError(n)


@app.task(
    queue="sessions", retry=RETRY, timeout=TIMEOUT_APART_S, max_losses=100, isolation="process"
)
async def insert_apart(n: int, session: Annotated[AsyncSession, Depends(async_session)]) -> None:
    claim = current_job().claim
    await session.execute(INSERT, {"n": n, "claim": claim, "kind": "process"})
    if claim == 1 and is_late(n):
        await session.execute(SLEEP_APART)
    if claim == 1 and fails(n):
        raise ValueError(n)
