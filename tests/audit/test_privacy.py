"""Secrets in arguments reach no event, table or log line. A redactor
also removes secrets from errors.

Real workers and a mirror run the real scripts, and log at the level DEBUG.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from sqlalchemy import select

from rq_core.app.app import App
from rq_core.connections.client import Client
from rq_core.model.keys import queue_keys
from sql_audit.mirror.redis_access import Outbox
from sql_audit.mirror.turn import Mirror
from sql_audit.store.connection.database import Database
from sql_audit.store.schema.tables import metadata
from tests.kit import auditlog, crew
from tests.kit.crew import worker_process
from tests.kit.secrets import SECRET
from tests.kit.wait import wait_until

REDACT = "tests.kit.secrets:redact"


@pytest.fixture
def witness(tmp_path: Path) -> crew.Witness:
    return crew.Witness(tmp_path / "witness.jsonl")


@pytest.fixture
def app(valkey_url: str) -> Iterator[App]:
    crew.app.connect_to(valkey_url)
    yield crew.app
    crew.app.close()


@pytest.fixture
def stranger(valkey_url: str) -> Iterator[App]:
    """Yield an app without the tasks' code. This app cannot validate arguments."""
    with App(valkey_url) as stranger:
        yield stranger


@pytest.fixture
def server(valkey_url: str) -> Iterator[Any]:
    with redis.Redis.from_url(valkey_url) as server:
        yield server


def contents(server: Any) -> dict[str, str]:
    """Return all data that Redis has, by key."""
    readers: dict[bytes, Callable[[bytes], Any]] = {
        b"hash": server.hgetall,
        b"list": lambda key: server.lrange(key, 0, -1),
        b"zset": lambda key: server.zrange(key, 0, -1, withscores=True),
        b"set": server.smembers,
        b"stream": server.xrange,
        b"string": server.get,
    }
    return {key.decode(): repr(readers[server.type(key)](key)) for key in server.scan_iter()}


def tables(database: Database) -> dict[str, str]:
    with database.readers.connect() as connection:
        return {
            name: repr([tuple(row) for row in connection.execute(select(table))])
            for name, table in metadata.tables.items()
        }


def files(database: Database) -> bytes:
    """Return all bytes in the files of a SQLite database, including bytes of deleted data."""
    if database.dialect != "sqlite":
        return b""
    found = database.path.parent.glob(database.path.name + "*")
    return b"".join(path.read_bytes() for path in found)


def test_a_secret_argument_is_stored_only_with_the_waiting_job(
    app: App,
    stranger: App,
    server: Any,
    witness: crew.Witness,
    database: Database,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    for name in ("sqlalchemy", "rq_core", "sql_audit", "alembic"):
        caplog.set_level(logging.DEBUG, logger=name)
    client: Client = app.client
    mirror = Mirror(Outbox(client), database, "crew")
    done = crew.coroutine.enqueue(n=1)
    # Its arguments are the secret, and its error says them, in the message and in the traceback.
    fails = crew.failing.enqueue(SECRET)
    # Its arguments cannot be read by the worker: the message is the library's own.
    odd = stranger.enqueue("crew", "function", {"n": SECRET})
    waits = crew.failing.with_options(delay=3600).enqueue(SECRET)
    unknown = stranger.enqueue("crew", "nobody_knows", {"token": SECRET})
    mirror.attach()
    options = ("--log-level", "debug", "--redact", REDACT)
    with worker_process(app.redis_url, witness, *options) as process:
        wait_until(
            lambda: (done.state(), fails.state()) == ("gone", "dead")
            and odd.state() == unknown.state() == "scheduled",
            "each has come to what it comes to",
            timeout=30,
        )  # fmt: skip
        events = repr(server.xrange(queue_keys("crew")("outbox")))
        auditlog.drain(mirror)
        process.terminate()
        assert process.wait(60) == 0
    auditlog.drain(mirror)

    assert waits.state() == "scheduled"
    assert "unknown_arguments" in events
    assert "unknown_task" in events
    assert SECRET not in events
    # The arguments of a job that may run (again) are in Redis, in one hash, until it is forgotten.
    assert [key for key, value in contents(server).items() if SECRET in value] == [
        queue_keys("crew")("jobs")
    ]
    told = tables(database)
    assert "…" in told["job_attempt"], "the errors are there, redacted"
    assert "ValueError" in told["job"]
    assert [name for name, rows in told.items() if SECRET in rows] == []
    assert SECRET.encode() not in files(database)
    log = witness.log()
    assert "job failed: ValueError: …" in log
    assert "Traceback (most recent call last)" in log
    assert SECRET not in log
    assert "INSERT" in caplog.text, "statements and their values were logged"
    assert SECRET not in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize(
    "task",
    [crew.retried_unsurely, crew.retried_unsurely_in_thread, crew.retried_unsurely_apart],
    ids=lambda task: task.name,
)
def test_the_traceback_of_a_broken_backoff_function_hides_the_handlers_error(
    app: App, witness: crew.Witness, task: Any
) -> None:
    """Checks an error of the backoff function, whose context is the handler's error. No redactor has seen that
    context."""
    fails = task.enqueue(SECRET)
    with worker_process(app.redis_url, witness, "--redact", REDACT) as process:
        wait_until(lambda: fails.state() == "dead", "it has failed twice", timeout=30)
        process.terminate()
        assert process.wait(60) == 0

    log = witness.log()
    assert "job failed: ValueError: …" in log
    assert "Traceback (most recent call last)" in log
    assert "ZeroDivisionError: 1" in log
    assert SECRET not in log


@pytest.mark.parametrize("redact", [None, "tests.kit.secrets:broken"])
def test_a_job_is_settled_without_the_text_of_its_error_if_the_redactor_fails(
    redact: str | None, app: App, server: Any, witness: crew.Witness
) -> None:
    fails = crew.failing.enqueue(SECRET)
    options = () if redact is None else ("--redact", redact)
    with worker_process(app.redis_url, witness, "--log-level", "debug", *options) as process:
        wait_until(lambda: fails.state() == "dead", "it has failed three times", timeout=30)
        process.terminate()
        assert process.wait(60) == 0

    events = repr(server.xrange(queue_keys("crew")("outbox")))
    log = witness.log()
    assert (SECRET in events) is (SECRET in log) is (redact is None)
    assert ("left out: the redactor raised ValueError" in events) is (redact is not None)
