"""Jobs that programs enqueue in transactions, with each supported library, on both kinds of databases."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import asyncpg
import psycopg
import pytest
from sqlalchemy import create_engine, make_url, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from rq_core import App, InboxIdsUsed, InboxMissing, NotInTransaction
from rq_core.model.packed_job import unpack
from tests.inbox.conftest import committed, orders
from tests.kit.pgbouncer import pgbouncer
from tests.kit.servers import PostgresServer

SYNC = ["session", "scoped", "connection", "driver"]
ASYNC = ["async session", "async connection", "driver", "asyncpg"]


def driver_url(url: str) -> str:
    return url.replace("+psycopg", "")


class Scene:
    """A connection of any library, with methods that are the same for all libraries."""

    def __init__(
        self, connection: Any, execute: Callable[[str], Any], commit: Any, back: Any
    ) -> None:
        self.connection = connection
        self.execute = execute
        self.commit = commit
        self.rollback = back


@contextlib.contextmanager
def opened(kind: str, url: str, **options: Any) -> Iterator[Scene]:
    """Open a connection of a blocking library. ``options`` are for the engine or the driver."""
    if kind == "driver":
        if url.startswith("sqlite"):
            raw: Any = sqlite3.connect(url.removeprefix("sqlite:///"), **options)
        else:
            raw = psycopg.connect(driver_url(url), **options)
        with contextlib.closing(raw):
            yield Scene(raw, raw.execute, raw.commit, raw.rollback)
        return
    engine = create_engine(url, **options)
    made: Any = {
        "session": lambda: Session(engine),
        "scoped": lambda: scoped_session(sessionmaker(engine)),
        "connection": engine.connect,
    }[kind]()
    yield Scene(made, lambda sql: made.execute(text(sql)), made.commit, made.rollback)
    made.close()
    engine.dispose()


@contextlib.asynccontextmanager
async def opened_async(kind: str, url: str, **options: Any) -> AsyncIterator[Scene]:
    """Open a connection of an async library. ``options`` are for the engine or psycopg."""
    if kind == "driver":
        async with await psycopg.AsyncConnection.connect(driver_url(url), **options) as raw:
            yield Scene(raw, raw.execute, raw.commit, raw.rollback)
            await raw.rollback()
        return
    if kind == "asyncpg":
        connection = await asyncpg.connect(driver_url(url))
        transaction = connection.transaction()
        await transaction.start()
        yield Scene(connection, connection.execute, transaction.commit, transaction.rollback)
        await connection.close()
        return
    library = "sqlite+aiosqlite" if url.startswith("sqlite") else "postgresql+asyncpg"
    engine = create_async_engine(f"{library}:{url.partition(':')[2]}", **options)
    made: Any = AsyncSession(engine) if kind == "async session" else engine.connect()
    async with made:
        yield Scene(made, lambda sql: made.execute(text(sql)), made.commit, made.rollback)
    await engine.dispose()


def may_be(kind: str, url: str) -> bool:
    return not url.startswith("sqlite") or kind in ("async session", "async connection")


# --- Blocking libraries ---------------------------------------------------------------------------


@pytest.mark.parametrize("kind", SYNC)
def test_a_row_is_committed_or_rolled_back_with_the_order(kind: str, url: str, app: App) -> None:
    send = app.tasks["send"]
    with opened(kind, url) as scene:
        scene.execute("INSERT INTO orders VALUES (1)")
        handle = send.within(scene.connection).enqueue(order_id=1, text="é \"'\\ \x00 %s ? $1 🎈")
        assert [] == committed(url)
        scene.commit()
        (row,) = committed(url)
        scene.execute("INSERT INTO orders VALUES (2)")
        send.within(scene.connection).enqueue(order_id=2)
        scene.rollback()

    assert [row] == committed(url)
    assert [1] == orders(url)
    assert (handle.id, handle.queue, handle.task) == (row.job_id, row.queue, row.task)
    job = unpack(row.packed, queue="mail", job_id=row.job_id, task="send", args=row.args)
    assert job == send.with_options(id=handle.id).job(order_id=1, text="é \"'\\ \x00 %s ? $1 🎈")


@pytest.mark.parametrize("kind", SYNC)
def test_enqueue_many_inserts_many_rows_in_order_with_one_statement(
    kind: str, url: str, app: App
) -> None:
    send = app.tasks["send"]
    with opened(kind, url) as scene:
        ids = app.within(scene.connection).enqueue_many(send.job(n) for n in range(300))
        assert () == app.within(scene.connection).enqueue_many([])
        send.within(scene.connection).enqueue_many([send.job(300)])
        scene.commit()

    rows = committed(url)
    assert list(ids) == [row.job_id for row in rows][:300]
    assert [f'{{"order_id":{n}}}' for n in range(301)] == [row.args for row in rows]
    assert 1 == len({row.created_at for row in rows[:300]})


@pytest.mark.parametrize("kind", SYNC)
def test_the_rollback_to_a_savepoint_deletes_later_rows(kind: str, url: str, app: App) -> None:
    send = app.tasks["send"]
    with opened(kind, url) as scene:
        scene.execute("INSERT INTO orders VALUES (1)")
        send.within(scene.connection).enqueue(1)
        scene.execute("SAVEPOINT a")
        send.within(scene.connection).enqueue(2)
        scene.execute("ROLLBACK TO SAVEPOINT a")
        send.within(scene.connection).enqueue(3)
        scene.execute("SAVEPOINT b")
        send.within(scene.connection).enqueue(4)
        scene.execute("RELEASE SAVEPOINT b")
        scene.commit()

    assert [1, 3, 4] == [int(row.args[12:13]) for row in committed(url)]


@pytest.mark.parametrize("kind", SYNC)
def test_an_enqueue_under_autocommit_is_refused(kind: str, url: str, app: App) -> None:
    send = app.tasks["send"]
    options: dict[str, Any] = {"isolation_level": "AUTOCOMMIT"}
    if kind == "driver":
        options = {"isolation_level": None} if url.startswith("sqlite") else {"autocommit": True}
    with opened(kind, url, **options) as scene:
        uses: list[Callable[[], Any]] = [
            lambda: send.within(scene.connection).enqueue(1),
            lambda: app.within(scene.connection).enqueue_many([send.job(1)]),
            lambda: app.within(scene.connection).cancel(app.handle_by_id("mail", "j")),
        ]
        for use in uses:
            with pytest.raises(NotInTransaction, match="Begin a transaction first"):
                use()
        if kind == "driver":
            # A program may begin and end its transactions by itself.
            scene.execute("BEGIN")
            send.within(scene.connection).enqueue(2)
            scene.execute("COMMIT")

    assert (kind == "driver") == len(committed(url))


@pytest.mark.parametrize("kind", SYNC)
def test_the_error_of_a_database_without_the_tables_names_the_command_that_creates_them(
    kind: str, audit_url: str, app: App
) -> None:
    with opened(kind, audit_url) as scene:
        with pytest.raises(InboxMissing, match="`rq-core inbox migrate URL`"):
            app.tasks["send"].within(scene.connection).enqueue(1)
        scene.rollback()


def test_the_error_for_missing_tables_prints_the_inbox_url_without_the_password(
    sqlite_url: str,
) -> None:
    app = App("redis://127.0.0.1:1", inbox="postgresql://shop:secret@db/shop")
    with opened("session", sqlite_url) as scene, pytest.raises(InboxMissing) as caught:
        app.within(scene.connection).enqueue("mail", "send")

    assert "inbox migrate postgresql://shop@db/shop" in str(caught.value)
    assert "set PGPASSWORD" in str(caught.value)
    assert "secret" not in str(caught.value)


def ids_begin_at(url: str, number: int) -> None:
    """Set the sequence of ids to this number, as in a logical replica that took over."""
    engine = create_engine(url)
    with engine.begin() as connection:
        setval = f"SELECT setval(pg_get_serial_sequence('rqc_inbox', 'id'), {number}, false)"
        connection.execute(text(setval))
    engine.dispose()


def use_ids(url: str, app: App, count: int) -> None:
    """Commit ``count`` rows, and set the sequence of ids back to the first row's id."""
    with opened("connection", url) as scene:
        app.within(scene.connection).enqueue_many(app.tasks["send"].job(n) for n in range(count))
        scene.commit()
    ids_begin_at(url, committed(url)[0].id)


@pytest.mark.parametrize("kind", SYNC)
def test_an_enqueue_raises_an_error_if_existing_rows_have_the_row_ids_that_it_would_get(
    kind: str, pg_url: str, app: App
) -> None:
    use_ids(pg_url, app, 10)
    with opened(kind, pg_url) as scene:
        with pytest.raises(InboxIdsUsed, match=r"did not take 1 of the rows.*setval"):
            app.tasks["send"].within(scene.connection).enqueue(1)
        scene.rollback()
        ids_begin_at(pg_url, committed(pg_url)[-1].id + 1)
        app.tasks["send"].within(scene.connection).enqueue(1)
        scene.commit()

    assert 11 == len(committed(pg_url))


def test_an_enqueue_succeeds_though_the_sequence_of_row_ids_is_a_little_behind(
    pg_url: str, app: App
) -> None:
    send = app.tasks["send"]
    use_ids(pg_url, app, 2)
    again = send.with_options(id="again")
    with opened("session", pg_url) as scene:
        again.within(scene.connection).enqueue(1)
        again.within(scene.connection).enqueue(1)
        app.within(scene.connection).enqueue_many([again.job(1), send.job(2), again.job(1)])
        scene.commit()

    assert [0, 1, 1, 2] == [int(row.args[12:13]) for row in committed(pg_url)]


# --- Asynchronous libraries -----------------------------------------------------------------------


@pytest.mark.parametrize("kind", ASYNC)
async def test_an_async_transaction_commits_or_rolls_back_a_row_with_the_order(
    kind: str, url: str, app: App
) -> None:
    if not may_be(kind, url):
        return
    send = app.tasks["send"]
    async with opened_async(kind, url) as scene:
        await scene.execute("INSERT INTO orders VALUES (1)")
        handle = await send.within(scene.connection).enqueue_async(order_id=1, text="é🎈")
        ids = await app.within(scene.connection).enqueue_many_async(
            send.job(n) for n in range(2, 5)
        )
        await send.within(scene.connection).enqueue_many_async([])
        assert [] == committed(url)
        await scene.commit()
    rows = committed(url)
    async with opened_async(kind, url) as scene:
        await scene.execute("INSERT INTO orders VALUES (2)")
        await app.within(scene.connection).enqueue_async("mail", "send", {"order_id": 9})
        await scene.rollback()

    assert rows == committed(url)
    assert [1] == orders(url)
    assert [handle.id, *ids] == [row.job_id for row in rows]
    assert '{"order_id":1,"text":"é🎈"}' == rows[0].args


@pytest.mark.parametrize("kind", ASYNC)
async def test_an_enqueue_under_autocommit_is_refused_in_an_event_loop(
    kind: str, url: str, app: App
) -> None:
    if not may_be(kind, url):
        return
    options: dict[str, Any] = {"isolation_level": "AUTOCOMMIT"}
    if kind == "driver":
        options = {"autocommit": True}
    send = app.tasks["send"]
    async with opened_async(kind, url, **({} if kind == "asyncpg" else options)) as scene:
        if kind == "asyncpg":
            await scene.rollback()
        with pytest.raises(NotInTransaction):
            await send.within(scene.connection).enqueue_async(1)

    assert [] == committed(url)


@pytest.mark.parametrize("kind", ASYNC)
async def test_missing_tables_are_reported_in_an_event_loop(
    kind: str, audit_url: str, app: App
) -> None:
    if not may_be(kind, audit_url):
        return
    async with opened_async(kind, audit_url) as scene:
        with pytest.raises(InboxMissing):
            await app.tasks["send"].within(scene.connection).enqueue_async(1)
        await scene.rollback()


@pytest.mark.parametrize("kind", ASYNC)
async def test_enqueue_async_raises_an_error_if_existing_rows_have_the_row_ids_that_it_would_get(
    kind: str, pg_url: str, app: App
) -> None:
    use_ids(pg_url, app, 10)
    async with opened_async(kind, pg_url) as scene:
        with pytest.raises(InboxIdsUsed):
            await app.tasks["send"].within(scene.connection).enqueue_async(1)
        await scene.rollback()

    assert 10 == len(committed(pg_url))


async def test_the_session_that_run_sync_passes_is_used_like_a_blocking_session(
    url: str, app: App
) -> None:
    async with opened_async("async session", url) as scene:
        session: AsyncSession = scene.connection
        await session.run_sync(lambda inner: app.tasks["send"].within(inner).enqueue(1))
        await session.commit()
        connection: AsyncConnection = await session.connection()
        await connection.run_sync(lambda inner: app.tasks["send"].within(inner).enqueue(2))
        await session.commit()

    assert 2 == len(committed(url))


async def test_an_enqueue_works_through_a_pooler_of_transactions(
    pg_url: str, postgres_server: PostgresServer, app: App
) -> None:
    """Checks two clients that take turns on one connection to the server."""
    send = app.tasks["send"]
    with pgbouncer(postgres_server.port) as port:
        url = make_url(pg_url).set(port=port).render_as_string()
        engine = create_engine(url, connect_args={"prepare_threshold": None})
        other = await asyncpg.connect(driver_url(url), statement_cache_size=0)
        with Session(engine) as session:
            for n in range(7):
                handle = send.within(session).enqueue(n)
                assert "cancelled" == send.within(session).cancel(handle)
                send.within(session).enqueue(n)
                session.commit()
                async with other.transaction():
                    await send.within(other).enqueue_async(n)
        await other.close()
        engine.dispose()

    assert 14 == len(committed(pg_url))


async def test_within_accepts_a_connection_of_an_asyncpg_pool(pg_url: str, app: App) -> None:
    async with (
        asyncpg.create_pool(driver_url(pg_url), min_size=1) as pool,
        pool.acquire() as connection,
    ):
        async with connection.transaction():
            await app.tasks["send"].within(connection).enqueue_async(1)
        # Programs often have asyncpg encode JSON by itself.
        await connection.set_type_codec("json", encoder=repr, decoder=repr, schema="pg_catalog")
        async with connection.transaction():
            await app.tasks["send"].within(connection).enqueue_async(2)

    assert 2 == len(committed(pg_url))
