"""Wake tokens for relays: a program pushes a token after each commit, and at no other time.

Other tests check what handles report about a job in the inbox.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from rq_core import App, RqCoreError, WaitTimeout
from rq_core.app import waking
from rq_core.app.handles import awaiting
from rq_core.connections.client import Client
from rq_core.worker import Worker, WorkerOptions
from sql_audit.inbox.service import run_relay
from tests.inbox.conftest import prepared
from tests.kit.servers import RedisServer
from tests.kit.wait import wait_until


@pytest.fixture
def path(sqlite_url: str) -> str:
    return prepared(sqlite_url)


@pytest.fixture
def app(valkey: RedisServer, path: str) -> Iterator[App]:
    with App(valkey.url, inbox=path) as app:

        @app.task(queue="mail", keep_result=True)
        def send(order_id: int) -> int:
            return order_id

        yield app


@pytest.fixture
def tokens(valkey: RedisServer) -> Iterator[Callable[[], int]]:
    with valkey.client() as control:
        yield lambda: int(control.llen("rqc:inbox"))


def pushed(app: App) -> None:
    """Wait until no thread pushes a wake token."""
    wait_until(lambda: not app.connections.waker.is_busy, "the end of the thread")


def test_a_commit_pushes_a_wake_token_and_a_rollback_pushes_no_token(
    app: App, path: str, tokens: Callable[[], int], valkey: RedisServer
) -> None:
    send = app.tasks["send"]
    engine = create_engine(path)
    with Session(engine) as session:
        send.within(session).enqueue(1)
        session.rollback()
        session.execute(text("INSERT INTO orders VALUES (1)"))
        session.commit()  # nothing was enqueued in it
        pushed(app)
        assert 0 == tokens()

        app.within(session).enqueue_many(send.job(n) for n in range(3))
        send.within(session).enqueue(4)
        pushed(app)
        assert 0 == tokens()
        session.commit()
        wait_until(lambda: tokens() == 1, "a token")
        with valkey.client() as control:
            assert [b"mail"] == control.lrange("rqc:inbox", 0, -1)
        session.execute(text("INSERT INTO orders VALUES (2)"))
        session.commit()
        pushed(app)
        assert 1 == tokens()
    engine.dispose()


def test_the_end_of_a_savepoint_pushes_no_wake_token(
    app: App, path: str, tokens: Callable[[], int]
) -> None:
    send = app.tasks["send"]
    engine = create_engine(path)
    with Session(engine) as session, session.begin():
        session.execute(text("INSERT INTO orders VALUES (1)"))
        with session.begin_nested():
            send.within(session).enqueue(1)
        pushed(app)
        assert 0 == tokens()
    wait_until(lambda: tokens() == 1, "a token")
    engine.dispose()


async def test_the_commit_of_an_async_session_pushes_a_wake_token(
    app: App, path: str, tokens: Callable[[], int]
) -> None:
    engine = create_async_engine(path.replace("sqlite:", "sqlite+aiosqlite:"))
    async with AsyncSession(engine) as session:
        await app.tasks["send"].within(session).enqueue_async(1)
        await session.rollback()
        pushed(app)
        assert 0 == tokens()
        await app.tasks["send"].within(session).enqueue_async(1)
        await session.commit()
    await engine.dispose()
    wait_until(lambda: tokens() == 1, "a token")


def test_the_number_of_wake_tokens_is_bounded_while_no_relay_takes_them(
    app: App, tokens: Callable[[], int]
) -> None:
    for _ in range(3 * waking.TOKENS_MAX):
        app.wake_relay()
        pushed(app)

    assert waking.TOKENS_MAX == tokens()


def test_a_redis_server_that_does_not_answer_delays_no_commit(path: str) -> None:
    """Checks a server that never answers, and a port without a server."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        with App(f"redis://127.0.0.1:{port}") as app:
            began = time.monotonic()
            for _ in range(100):
                app.wake_relay()
            took = time.monotonic() - began
            wait_until(lambda: not app.connections.waker.is_busy, "the end of the thread")
    with App(f"redis://127.0.0.1:{port}") as app:
        app.wake_relay()
        wait_until(lambda: not app.connections.waker.is_busy, "the end of the thread")

    assert took < 0.5


def test_a_client_whose_creation_failed_is_created_again_for_the_next_commit(
    app: App, tokens: Callable[[], int]
) -> None:
    made: list[bool] = []

    def make() -> Client:
        made.append(True)
        if len(made) == 1:
            raise OSError("too many open files")
        return Client(app.redis_url, prefix=app.prefix)

    waker = waking.Waker(make)
    for _ in range(2):
        waker.wake()
        wait_until(lambda: not waker.is_busy, "the end of the thread")
    waker.close()

    assert (len(made), tokens()) == (2, 1)


def test_a_forked_child_pushes_wake_tokens_in_its_own_thread(
    app: App, tokens: Callable[[], int]
) -> None:
    app.wake_relay()
    pushed(app)
    if not (child := os.fork()):
        status = 1
        try:
            app.wake_relay()
            wait_until(lambda: not app.connections.waker.is_busy, "the end of the thread")
            status = 0
        finally:
            os._exit(status)
    assert (child, 0) == os.waitpid(child, 0)

    assert 2 == tokens()


# --- Handles --------------------------------------------------------------------------------------


def handed_over(app: App, path: str) -> None:
    run_relay(app.redis_url, app.prefix, path, stop=threading.Event(), once=True)


def enqueued(app: App, path: str) -> Any:
    engine = create_engine(path)
    with Session(engine) as session, session.begin():
        handle = app.tasks["send"].within(session).enqueue(7)
    engine.dispose()
    return handle


def test_a_job_has_the_state_inbox_until_a_relay_hands_it_over(app: App, path: str) -> None:
    engine = create_engine(path)
    with Session(engine) as session, session.begin():
        handle = app.tasks["send"].within(session).enqueue(7)
        assert "gone" == handle.state()
    engine.dispose()

    assert "inbox" == handle.state()
    assert "inbox" == app.handle_by_id("mail", handle.id).state()
    handed_over(app, path)
    assert "ready" == handle.state()


async def test_state_async_returns_inbox_for_a_job_in_the_inbox(app: App, path: str) -> None:
    handle = enqueued(app, path)

    assert "inbox" == await handle.state_async()
    await app.aclose()
    await asyncio.get_running_loop().shutdown_default_executor()


def test_a_job_whose_row_is_parked_has_the_state_parked(app: App, path: str) -> None:
    engine = create_engine(path)
    with engine.begin() as connection:
        connection.execute(
            text("INSERT INTO rqc_inbox (queue, task, job_id, args) VALUES ('mail', 't', 'j', '[')")
        )
    engine.dispose()
    handed_over(app, path)
    handle = app.handle_by_id("mail", "j")

    assert "parked" == handle.state()
    with pytest.raises(WaitTimeout, match="its row is parked"):
        handle.wait(0.1)


def test_a_wait_for_a_job_in_the_inbox_continues_in_its_queue(app: App, path: str) -> None:
    """Checks that the wait reads the inbox, too. A job in the inbox does not count as gone."""
    handle = enqueued(app, path)
    with pytest.raises(WaitTimeout, match="still in the inbox: check that a relay runs"):
        handle.result(0.1)

    found: list[Any] = []
    waiting = threading.Thread(target=lambda: found.append(handle.result(20)))
    waiting.start()
    handed_over(app, path)
    asyncio.run(Worker(app, WorkerOptions(queues=("mail",), burst=True)).run())
    waiting.join()

    assert [7] == found


def test_a_wait_for_a_job_in_the_inbox_ends_at_its_timeout(
    app: App, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checks that a wait gets no extra time for a slow database after it has read the inbox."""
    monkeypatch.setattr(awaiting, "GRACE_S", 20.0)
    handle = enqueued(app, path)
    began = time.monotonic()
    with pytest.raises(WaitTimeout, match="still in the inbox"):
        handle.wait(0)
    with pytest.raises(WaitTimeout, match="still in the inbox"):
        handle.wait(0.1)

    assert time.monotonic() - began < 20


async def test_a_wait_in_an_event_loop_also_reads_the_inbox(app: App, path: str) -> None:
    handle = enqueued(app, path)
    with pytest.raises(WaitTimeout, match="still in the inbox"):
        await handle.wait_async(0.1)
    await app.aclose()


@pytest.mark.parametrize("exists", [True, False])
def test_the_error_of_an_inbox_without_tables_names_the_command_that_creates_them(
    valkey: RedisServer, tmp_path: Path, exists: bool
) -> None:
    empty = tmp_path / "typo.db"
    if exists:
        empty.touch()
    with App(valkey.url, inbox=str(empty)) as app:
        handle = app.handle_by_id("mail", "a")
        with pytest.raises(RqCoreError, match=f"`rq-core inbox migrate {empty}`"):
            handle.state()
        # Missing tables end the wait at once; a missing file may come back.
        with pytest.raises(RqCoreError, match=f"`rq-core inbox migrate {empty}`"):
            handle.wait(timeout=0.3)
    assert empty.exists() == exists


def test_a_wait_for_a_job_that_never_existed_ends_at_once(app: App) -> None:
    outcome = app.handle_by_id("mail", "nobody").wait(20)

    assert "gone" == type(outcome).__name__.lower()
