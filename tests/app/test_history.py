"""The state and the history of a job that has left Redis, with and without an audit database."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rq_core import App
from rq_core.app.task import Task
from rq_core.protocol.calls import claims
from sql_audit.mirror.redis_access import Outbox
from sql_audit.mirror.service import Service
from sql_audit.store.connection.database import Database
from tests.kit.schemas import lay_schema


@pytest.fixture
def app(redis_url: str, sqlite_url: str) -> Iterator[App]:
    with App(redis_url, sqlite_url) as made:
        yield made


@pytest.fixture
def task(app: App) -> Task[[], None]:
    @app.task(queue="notes")
    def note() -> None: ...

    return note


@pytest.fixture
def mirror(app: App, sqlite_url: str) -> Iterator[Callable[[], Any]]:
    database = Database(sqlite_url)
    lay_schema(database)
    yield lambda: Service(Outbox(app.client), database).run(threading.Event(), once=True)
    database.close()


def finish(app: App) -> None:
    client = app.client
    claimed = client.run(claims.claim("notes", "w-1", 10))
    client.run(claims.complete("notes", "w-1", [(j.id, j.fence) for j in claimed.jobs]))


def test_a_handle_reads_the_state_from_sql_once_the_job_has_left_redis(
    app: App, task: Task[[], None], mirror: Callable[[], Any]
) -> None:
    done, cancelled = task.enqueue(), task.enqueue()
    cancelled.cancel()
    mirror()
    finish(app)

    behind = [done.state(), cancelled.state()]
    mirror()

    assert behind == ["gone", "cancelled"]
    assert [done.state(), cancelled.state()] == ["succeeded", "cancelled"]


async def test_history_returns_the_events_of_a_job_in_order(
    app: App, task: Task[[], None], mirror: Callable[[], Any]
) -> None:
    handle = await task.enqueue_async()
    finish(app)
    mirror()

    history = await handle.history_async()
    await app.aclose()
    await asyncio.get_running_loop().shutdown_default_executor()

    assert [event.type for event in history] == ["enqueued", "claimed", "succeeded"]
    assert [event.type for event in handle.history()] == ["enqueued", "claimed", "succeeded"]


def test_history_leaves_out_events_of_a_job_with_the_same_id_in_another_queue(
    app: App, task: Task[[], None], mirror: Callable[[], Any]
) -> None:
    one = task.with_options(id="same").enqueue()
    other = task.with_options(id="same", queue="other").enqueue()
    finish(app)
    mirror()

    assert (one.state(), other.state()) == ("succeeded", "ready")
    assert [event.type for event in other.history()] == ["enqueued"]


def test_history_is_empty_before_the_mirror_has_copied_the_job(
    app: App, task: Task[[], None], mirror: Callable[[], Any]
) -> None:
    mirror()
    handle = task.enqueue()
    finish(app)

    assert (handle.history(), handle.state()) == ([], "gone")
