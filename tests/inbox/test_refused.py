"""Enqueues into an inbox that are refused before an INSERT, and rows of jobs with names, caps and windows."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import psycopg.rows
import pytest
from sqlalchemy import create_engine, make_url, text
from sqlalchemy.orm import Session

from rq_core import (
    App,
    ArgumentsInvalid,
    Cap,
    Debounce,
    InvalidName,
    InvalidOption,
    NewJob,
    PayloadTooLarge,
    Unique,
)
from rq_core.model.packed_job import unpack
from tests.inbox.conftest import committed, prepared
from tests.inbox.test_within import driver_url


@pytest.fixture
def path(sqlite_url: str) -> str:
    return prepared(sqlite_url)


@pytest.fixture
def connection(path: str) -> Iterator[sqlite3.Connection]:
    opened = sqlite3.connect(path.removeprefix("sqlite:///"))
    yield opened
    opened.close()


@pytest.fixture
def rich() -> Iterator[App]:
    """Yield an app whose tasks have caps, unique names, a debounce or kept results."""
    with App("redis://127.0.0.1:1", max_payload=1_000) as app:

        @app.task(
            queue="mail", caps=[Cap(3, per="tenant"), Cap(2, on_full="discard")], keep_result=60
        )
        def limited(tenant: str) -> str:
            return tenant

        @app.task(caps=[Cap(3, on_full="reject")])
        def rejecting() -> None: ...

        @app.task(caps=[Cap(3, max_waiting=5)])
        def bounded() -> None: ...

        @app.task(unique=Unique("tenant", on_duplicate="reject"))
        def strict(tenant: str) -> None: ...

        @app.task(unique=Unique("tenant"))
        def once(tenant: str) -> None: ...

        @app.task(unique=Debounce(5, per="tenant"))
        def calm(tenant: str) -> None: ...

        yield app


REFUSED: dict[str, tuple[type[Exception], Callable[[App, Any], Any]]] = {
    "arguments": (ArgumentsInvalid, lambda app, c: app.tasks["once"].within(c).enqueue(7)),
    "a missing argument": (ArgumentsInvalid, lambda app, c: app.tasks["once"].within(c).enqueue()),
    "too many bytes": (
        PayloadTooLarge,
        lambda app, c: app.tasks["once"].within(c).enqueue("x" * 10_000_000),
    ),
    "too many bytes by name": (
        PayloadTooLarge,
        lambda app, c: app.within(c).enqueue("q", "unknown", {"a": "x" * 10_000_000}),
    ),
    "a queue that is no name": (InvalidName, lambda app, c: app.within(c).enqueue("a b", "t")),
    "a queue with a quote": (
        InvalidName,
        lambda app, c: app.within(c).enqueue("'; DROP TABLE rqc_inbox; --", "t"),
    ),
    "a task that is no name": (InvalidName, lambda app, c: app.within(c).enqueue("q", "t\n")),
    "an id that is no name": (
        InvalidName,
        lambda app, c: app.tasks["once"].with_options(id="'); --").within(c).enqueue("a"),
    ),
    "an id that is no name by name": (
        InvalidName,
        lambda app, c: app.within(c).enqueue("q", "t", id="a\0b"),
    ),
    "an option": (InvalidOption, lambda app, c: app.within(c).enqueue("q", "t", delay=-1)),
    "an option that is unknown": (TypeError, lambda app, c: app.within(c).enqueue("q", "t", colour=1)),
    "keys that are no texts": (
        InvalidOption,
        lambda app, c: app.within(c).enqueue("q", "t", keys={"tenant": 7}),
    ),
    "arguments by name": (
        ArgumentsInvalid,
        lambda app, c: app.within(c).enqueue("q", "t", {"a": object()}),
    ),
    "no jobs": (InvalidOption, lambda app, c: app.within(c).enqueue_many(["job"])),
    "a cap that rejects": (InvalidOption, lambda app, c: app.tasks["rejecting"].within(c).enqueue()),
    "max_waiting": (InvalidOption, lambda app, c: app.tasks["bounded"].within(c).enqueue()),
    "a cap that rejects by name": (
        InvalidOption,
        lambda app, c: app.within(c).enqueue("default", "rejecting"),
    ),
    "a name that rejects": (InvalidOption, lambda app, c: app.tasks["strict"].within(c).enqueue("a")),
    "one of many": (
        InvalidOption,
        lambda app, c: app.within(c).enqueue_many(
            [app.tasks["once"].job("a"), app.tasks["rejecting"].job()]
        ),
    ),
    "a key that is no text": (
        ArgumentsInvalid,
        lambda app, c: app.tasks["limited"].within(c).enqueue("\ud800"),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("error", "use"), REFUSED.values(), ids=REFUSED)
def test_an_enqueue_checks_all_jobs_before_it_inserts_a_row(
    rich: App,
    connection: sqlite3.Connection,
    error: type[Exception],
    use: Callable[[App, Any], Any],
) -> None:
    sent: list[str] = []
    connection.set_trace_callback(sent.append)

    with pytest.raises(error):
        use(rich, connection)

    assert [] == sent
    assert not connection.in_transaction


def test_an_option_that_an_inbox_cannot_have_is_refused_with_an_alternative(
    rich: App, connection: sqlite3.Connection
) -> None:
    with pytest.raises(InvalidOption, match='on_full="wait" or "discard"'):
        rich.tasks["rejecting"].within(connection).enqueue()
    with pytest.raises(InvalidOption, match='Say "keep" or "replace"'):
        rich.tasks["strict"].within(connection).enqueue("a")


def jobs_of(path: str) -> list[NewJob]:
    return [
        unpack(r.packed, queue=r.queue, job_id=r.job_id, task=r.task, args=r.args)
        for r in committed(path)
    ]


def test_rows_store_every_option_of_their_jobs(
    rich: App, connection: sqlite3.Connection, path: str
) -> None:
    tasks = rich.tasks
    at = datetime(2100, 1, 1, tzinfo=UTC)
    made = [
        tasks["limited"].with_options(idempotency_key="k", headers={"a": "é"}).job("a b"),
        tasks["once"].with_options(expires=60, delay=5, priority="low").job("acme"),
        tasks["once"].with_options(at=at, id="order-1", remember=timedelta(days=2)).job("b"),
        tasks["calm"].with_options(max_attempts=9, timeout=3).job("c"),
    ]  # fmt: skip
    assert tuple(job.id for job in made) == rich.within(connection).enqueue_many(made)
    connection.commit()

    assert made == jobs_of(path)


def test_an_enqueue_of_an_id_that_is_already_in_the_inbox_inserts_no_row(
    rich: App, connection: sqlite3.Connection, path: str
) -> None:
    once = rich.tasks["once"]
    for tenant in ("a", "b"):
        handle = once.with_options(id="order-1").within(connection).enqueue(tenant)
        assert "order-1" == handle.id
    connection.commit()

    assert ['{"tenant":"a"}'] == [row.args for row in committed(path)]


def test_an_id_may_be_used_in_two_queues_of_one_inbox(
    rich: App, connection: sqlite3.Connection, path: str
) -> None:
    """Checks that an id is unique within its queue, as in Redis."""
    for queue in ("a", "b", "a"):
        rich.tasks["once"].with_options(id="j", queue=queue).within(connection).enqueue("x")
    connection.commit()

    assert ["a", "b"] == [row.queue for row in committed(path)]


def test_the_documented_rights_of_a_database_role_suffice_and_none_is_superfluous(
    pg_url: str, rich: App
) -> None:
    url = make_url(pg_url)
    with psycopg.connect(driver_url(pg_url), autocommit=True) as owner:
        owner.execute("DROP ROLE IF EXISTS clerk")
        owner.execute("CREATE ROLE clerk LOGIN")
        try:
            owner.execute("GRANT INSERT ON rqc_inbox TO clerk")
            with psycopg.connect(driver_url(str(url.set(username="clerk")))) as clerk:
                handle = rich.tasks["once"].with_options(id="j").within(clerk).enqueue("a")
                rich.tasks["once"].with_options(id="j").within(clerk).enqueue("a")
                clerk.commit()
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    rich.within(clerk).cancel(handle)
                clerk.rollback()
                owner.execute("GRANT SELECT, UPDATE, DELETE ON rqc_inbox TO clerk")
                owner.execute("GRANT SELECT ON rqc_relay TO clerk")
                assert "cancelled" == rich.within(clerk).cancel(handle)
                clerk.commit()
        finally:
            owner.execute("DROP OWNED BY clerk")
            owner.execute("DROP ROLE clerk")


def test_enqueue_and_cancel_work_in_a_pipeline_of_psycopg(pg_url: str, rich: App) -> None:
    """Checks that rq-core does not use psycopg's row count. In a pipeline the count is unknown until the rows are
    fetched."""
    with (
        psycopg.connect(driver_url(pg_url), row_factory=psycopg.rows.dict_row) as connection,
        connection.pipeline(),
    ):
        within = rich.within(connection)
        handle = rich.tasks["once"].within(connection).enqueue("a")
        assert "gone" == within.cancel(rich.handle_by_id("default", "other"))
        assert "cancelled" == within.cancel(handle)
        assert "gone" == within.cancel(handle)
        rich.tasks["once"].within(connection).enqueue("b")
        connection.commit()

    assert ['{"tenant":"b"}'] == [row.args for row in committed(pg_url)]


def test_a_row_that_was_enqueued_by_name_stores_the_given_options(
    rich: App, connection: sqlite3.Connection, path: str
) -> None:
    within = rich.within(connection)
    at = datetime(2100, 1, 1, tzinfo=UTC)
    within.enqueue("q", "t")
    within.enqueue(
        "q", "t", {"when": at}, keys={"tenant": "a"}, delay=timedelta(minutes=1), timeout=2, id="j-1",
        headers={"a": "b"}, keep_result=True, remember=60,
    )  # fmt: skip
    keyed = within.enqueue("q", "t", idempotency_key="order 7", at=at, expires=at + timedelta(1))
    connection.commit()

    first, second, third = committed(path)
    assert (None, None, "{}") == (first.options, first.packed, first.args)
    assert ("j-1", '{"when":"2100-01-01T00:00:00Z"}') == (second.job_id, second.args)
    assert json.loads(second.options) == {
        "delay": 60, "timeout": 2, "headers": {"a": "b"}, "keep_result": True, "remember": 60,
        "keys": {"tenant": "a"},
    }  # fmt: skip
    assert keyed.id == third.job_id
    assert json.loads(third.options) == {
        "at": "2100-01-01T00:00:00+00:00", "expires": "2100-01-02T00:00:00+00:00", "remember": 86400,
    }  # fmt: skip


def test_a_job_that_is_enqueued_by_name_is_packed_if_the_app_knows_its_task(
    rich: App, connection: sqlite3.Connection, path: str
) -> None:
    handle = rich.within(connection).enqueue("mail", "limited", {"tenant": "a"}, priority="high")
    connection.commit()

    (job,) = jobs_of(path)
    assert job == rich.tasks["limited"].with_options(id=handle.id, priority="high").job("a")


WRONG = [7, object(), sqlite3, None]


@pytest.mark.parametrize("thing", WRONG)
def test_within_refuses_an_object_that_is_no_database_connection(rich: App, thing: Any) -> None:
    for within in (rich.within, rich.tasks["once"].within):
        with pytest.raises(InvalidOption, match="must be a Session or a Connection of SQLAlchemy"):
            within(thing)


def test_within_refuses_a_database_that_can_have_no_inbox(rich: App) -> None:
    """Checks a MySQL connection without a server. ``within`` sends no statement."""
    from sqlalchemy.dialects import mysql

    engine = create_engine("sqlite://")
    with engine.connect() as connection:
        connection.dialect = mysql.dialect()
        with pytest.raises(InvalidOption, match="must be of PostgreSQL or SQLite, not of mysql"):
            rich.tasks["once"].within(connection).enqueue("a")
    engine.dispose()


def test_within_refuses_a_url_and_does_not_show_its_password(rich: App) -> None:
    with pytest.raises(InvalidOption, match="must be a Session") as caught:
        rich.within("postgresql://shop:secret@localhost/shop")
    assert "secret" not in str(caught.value)


def test_the_error_of_an_async_method_on_a_blocking_connection_names_the_blocking_method(
    rich: App, connection: sqlite3.Connection
) -> None:
    for blocking in (rich.within(connection), rich.tasks["once"].within(connection)):
        for name in ("enqueue", "enqueue_many", "cancel"):
            with pytest.raises(InvalidOption, match=rf"blocks: call {name}\(…\), without await"):
                getattr(blocking, f"{name}_async")
        with pytest.raises(AttributeError, match="no attribute 'flush'"):
            getattr(blocking, "flush")  # noqa: B009


async def test_the_error_of_a_blocking_method_on_an_async_connection_names_the_async_method(
    rich: App,
) -> None:
    from sqlalchemy.ext.asyncio import AsyncSession

    async with AsyncSession() as session:
        for waiting in (rich.within(session), rich.tasks["once"].within(session)):
            for name in ("enqueue", "enqueue_many", "cancel"):
                with pytest.raises(InvalidOption, match=rf"asynchronous: await {name}_async\(…\)"):
                    getattr(waiting, name)
            with pytest.raises(AttributeError, match="no attribute 'flush'"):
                getattr(waiting, "flush")  # noqa: B009


def test_a_fork_of_the_process_inside_a_transaction_does_not_affect_the_row_of_the_parent_process(
    url: str, rich: App
) -> None:
    """Checks that the child process can enqueue over its own connection, and never uses its parent's."""
    engine = create_engine(url)
    with Session(engine) as session, session.begin():
        rich.tasks["once"].within(session).enqueue("parent")
        if not (child := os.fork()):
            status = 1
            try:
                session.get_bind().dispose(close=False)  # type: ignore[union-attr]
                # SQLite has one writer at a time, and the parent is it.
                if not url.startswith("sqlite"):
                    with Session(create_engine(url)) as own, own.begin():
                        rich.tasks["once"].within(own).enqueue("child")
                status = 0
            finally:
                os._exit(status)
        assert (child, 0) == os.waitpid(child, 0)
    engine.dispose()

    there = ["parent"] if url.startswith("sqlite") else ["parent", "child"]
    assert sorted(there) == sorted(json.loads(row.args)["tenant"] for row in committed(url))


def test_an_error_of_the_database_is_raised_unchanged(path: str, rich: App) -> None:
    engine = create_engine(path)
    with engine.begin() as connection:
        connection.execute(
            text(
                "CREATE TRIGGER no BEFORE INSERT ON rqc_inbox BEGIN SELECT raise(ABORT, 'no'); END"
            )
        )
    with Session(engine) as session, pytest.raises(Exception, match="no") as caught:
        rich.tasks["once"].within(session).enqueue("a")
    assert "sqlalchemy" in type(caught.value).__module__
    engine.dispose()
