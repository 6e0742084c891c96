"""Outcomes that a wait reads from the audit log, after Redis has forgotten the job."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from rq_core import App, Failed, Gone, Succeeded, WaitTimeout
from rq_core.app.handles import awaiting
from sql_audit.queries.endings import IDS_CHUNK, LogEndings
from tests.app.waiting.conftest import QUEUE, fail, position, succeed, take
from tests.kit.forked import forked

Mirror = Callable[[], Any]


def test_a_wait_returns_the_outcome_in_the_log_after_redis_lost_everything(
    app: App, audited: Mirror
) -> None:
    """Checks that the wait reads the log, although Redis has lost the fact that a mirror copies the queue."""
    handle = app.tasks["note"].enqueue(1)
    succeed(app, *take(app))
    audited()
    app.client.run(app.client.calls.delivery.ask([["FLUSHALL"]]))

    assert Succeeded is type(handle.wait(5))


def test_a_wait_for_a_job_that_neither_redis_nor_the_log_has_returns_gone_at_once(
    app: App, audited: Mirror
) -> None:
    app.client.run(app.client.calls.delivery.ask([["FLUSHALL"]]))

    assert Gone is type(app.handle_by_id(QUEUE, "never").wait(5))
    assert Gone is type(app.handle_by_id("unheard-of", "never").wait(5))


def test_the_log_still_gives_the_outcome_of_an_earlier_job_whose_id_was_used_again(
    app: App, audited: Mirror, sqlite_url: str
) -> None:
    """Checks an id whose row in SQL is about a later job. The later job still lives, or has another outcome."""
    task = app.tasks["note"].with_options(id="again", max_attempts=1)
    task.enqueue(1)
    succeed(app, *take(app))
    audited()
    at = position(app)
    task.enqueue(2)
    audited()
    reader = LogEndings(sqlite_url)
    alive = reader.read(QUEUE, {"again": at})
    fail(app, *take(app))
    audited()
    dead = reader.read(QUEUE, {"again": at})
    later = reader.read(QUEUE, {"again": position(app)})
    reader.close()

    assert [Succeeded, Succeeded, Failed] == [type(each["again"]) for each in (alive, dead, later)]


def test_a_wait_reads_the_outcomes_of_more_jobs_from_the_log_than_one_statement_can_name(
    audited: Mirror, sqlite_url: str
) -> None:
    """Checks a wait that needs three statements. A statement has at most IDS_CHUNK ids, fewer than the 65,535
    parameters that PostgreSQL accepts."""
    reader = LogEndings(sqlite_url)
    asked = {f"j-{n}": (0, 0) for n in range(2 * IDS_CHUNK + 1)}
    found = reader.read(QUEUE, asked)
    reader.close()

    assert asked.keys() == found.keys()
    assert IDS_CHUNK < 65_535


@pytest.mark.slow
def test_a_forked_child_opens_its_own_reader_of_the_log(
    app: App, audited: Mirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checks that the child process neither uses nor closes the parent's reader."""
    made: list[LogEndings] = []
    closed: list[LogEndings] = []
    make, close = LogEndings.__init__, LogEndings.close

    def made_here(reader: LogEndings, url: str) -> None:
        made.append(reader)
        make(reader, url)

    def closed_here(reader: LogEndings) -> None:
        closed.append(reader)
        close(reader)

    monkeypatch.setattr(LogEndings, "__init__", made_here)
    monkeypatch.setattr(LogEndings, "close", closed_here)
    handles = [app.tasks["note"].enqueue(n) for n in range(2)]
    ended = app.as_completed(handles, 5)
    first, second = take(app, 2)
    succeed(app, first)
    audited()
    next(ended)
    succeed(app, second)
    audited()

    def leave() -> str:
        ended.close()  # type: ignore[attr-defined]  # it is a generator
        return f"{len(made)} {len(closed)}"

    def go_on() -> str:
        return (
            f"{[handle.id for handle in ended]} {len(made)} {len(closed)} {made[-1] is closed[-1]}"
        )

    assert "1 0" == forked(leave)
    assert f"{[second.id]} 2 1 True" == forked(go_on)
    assert [second.id] == [handle.id for handle in ended]
    assert made == closed


@pytest.mark.slow
def test_a_fork_waits_for_a_read_of_an_sqlite_log(
    app: App, audited: Mirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checks that no process forks while SQLite holds internal locks, for which the child would wait forever."""
    reads, goes_on, read = threading.Event(), threading.Event(), LogEndings.read

    def slow(reader: LogEndings, *asked: Any) -> Any:
        reads.set()
        goes_on.wait(30)
        return read(reader, *asked)

    monkeypatch.setattr(LogEndings, "read", slow)
    with ThreadPoolExecutor(2) as pool:
        ended = pool.submit(app.handle_by_id(QUEUE, "never").wait, 30)
        assert reads.wait(30)
        child = pool.submit(
            forked, lambda: type(app.handle_by_id(QUEUE, "never").wait(30)).__name__
        )
        with pytest.raises(TimeoutError):
            child.result(0.1)
        goes_on.set()

        assert "Gone" == child.result(60)
        assert Gone is type(ended.result(30))


@pytest.fixture
def silent(app: App, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Give the app an audit database that accepts connections and never answers."""
    monkeypatch.setattr(awaiting, "GRACE_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server:
        app.audit_url = f"postgresql://user@127.0.0.1:{server.getsockname()[1]}/audit"
        yield


def test_a_database_that_does_not_answer_delays_no_wait_beyond_its_timeout(
    app: App, silent: None
) -> None:
    """Checks a wait of 0.5 s. A connection to PostgreSQL may take 10 s."""
    began = time.monotonic()
    with pytest.raises(WaitTimeout, match="the audit database has not answered"):
        app.handle_by_id(QUEUE, "gone").wait(0.5)

    assert time.monotonic() - began < 5


def test_an_event_loop_does_not_wait_for_a_database_that_does_not_answer(
    app: App, silent: None
) -> None:
    """Checks that the event loop can be closed while a thread still waits for the database."""
    began = time.monotonic()
    with pytest.raises(WaitTimeout, match="the audit database has not answered"):
        asyncio.run(app.handle_by_id(QUEUE, "gone").wait_async(0.5))

    assert time.monotonic() - began < 5


def test_a_cancelled_wait_leaves_no_reader_of_the_log_open(
    app: App, audited: Mirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads, goes_on, closed = threading.Event(), threading.Event(), threading.Event()
    read, close = LogEndings.read, LogEndings.close

    def read_slowly(reader: LogEndings, *asked: Any) -> Any:
        reads.set()
        assert goes_on.wait(10)
        return read(reader, *asked)

    def closed_here(reader: LogEndings) -> None:
        assert goes_on.is_set()
        close(reader)
        closed.set()

    monkeypatch.setattr(LogEndings, "read", read_slowly)
    monkeypatch.setattr(LogEndings, "close", closed_here)

    async def give_up() -> None:
        task = asyncio.ensure_future(app.handle_by_id(QUEUE, "gone").wait_async(60))
        assert await asyncio.to_thread(reads.wait, 10)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(give_up())
    goes_on.set()

    assert closed.wait(10)
