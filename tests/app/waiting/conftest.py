"""Fixtures: an app whose jobs the test claims and settles, an audit database, and a mirror that the test runs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from rq_core import App, JobHandle
from rq_core.model.job import Claim
from rq_core.protocol.calls import claims
from sql_audit.mirror.redis_access import Outbox
from sql_audit.mirror.service import Service
from sql_audit.store.connection.database import Database
from tests.kit.schemas import lay_schema

QUEUE = "notes"


@pytest.fixture
def app(redis_url: str) -> Iterator[App]:
    with App(redis_url) as made:
        made.task(queue=QUEUE)(note)
        yield made


def note(n: int = 0) -> int:
    return n


@pytest.fixture
def audited(app: App, sqlite_url: str) -> Iterator[Callable[[], Any]]:
    """Give the app an audit database. Yield a function that mirrors the new events of the app's queue."""
    database = Database(sqlite_url)
    lay_schema(database)
    app.audit_url = sqlite_url

    def mirror() -> Any:
        return Service(Outbox(app.client), database).run(threading.Event(), once=True)

    app.client.run(app.client.calls.delivery.handshake(QUEUE))
    mirror()
    yield mirror
    database.close()


def take(app: App, limit: int = 1) -> list[Claim]:
    return list(app.client.run(claims.claim(QUEUE, "w-1", limit)).jobs)


def succeed(app: App, *held: Claim, values: Mapping[int, str] = claims.NO_VALUES) -> None:
    app.client.run(claims.complete(QUEUE, "w-1", [(job.id, job.fence) for job in held], values))


def fail(app: App, held: Claim) -> None:
    error = '{"type": "ValueError", "message": "no such user"}'
    app.client.run(claims.fail(QUEUE, "w-1", [(held.id, held.fence, "final", 0, "gave_up", error)]))


def succeeds(app: App, handle: JobHandle[Any]) -> None:
    succeed(app, *take(app))


def dies(app: App, handle: JobHandle[Any]) -> None:
    fail(app, *take(app))


def is_cancelled(app: App, handle: JobHandle[Any]) -> None:
    handle.cancel()


def position(app: App) -> tuple[int, int]:
    """Return the id of the last entry of the outbox."""
    latest = ["XREVRANGE", f"rqc:{{{QUEUE}}}:outbox", "+", "-", "COUNT", "1"]
    (entries,) = app.client.run(app.client.calls.delivery.ask([latest]))
    epoch, seq = entries[0][0].split("-")
    return int(epoch), int(seq)
