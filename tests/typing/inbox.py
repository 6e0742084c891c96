"""Calls of ``within`` that type checkers must accept or refuse. Only mypy and pyright read this file.

The type of the connection decides which method enqueues.
"""

import sqlite3
from typing import Any, assert_type

import psycopg
from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import Session, scoped_session

from rq_core import App, JobHandle

app = App(inbox="postgresql://shop@localhost/shop")


@app.task(queue="mail")
def send(order_id: int, to: str = "") -> float:
    return 1.0


def blocking(
    session: Session,
    scoped: scoped_session[Session],
    connection: Connection,
    driver: psycopg.Connection,
    file: sqlite3.Connection,
) -> None:
    assert_type(send.within(session).enqueue(1, to="a"), JobHandle[float])
    assert_type(send.within(scoped).enqueue(1), JobHandle[float])
    assert_type(send.within(connection).enqueue(1), JobHandle[float])
    assert_type(send.within(driver).enqueue(1), JobHandle[float])
    assert_type(send.within(file).enqueue(1), JobHandle[float])
    assert_type(send.within("default").enqueue(1), JobHandle[float])
    assert_type(send.with_options(delay=60).within(file).enqueue(1), JobHandle[float])
    assert_type(app.within(session).enqueue("mail", "send", delay=5), JobHandle[Any])
    assert_type(app.within(session).enqueue_many([send.job(1)]), tuple[str, ...])
    assert_type(app.within(session).cancel(send.within(session).enqueue(1)), str)

    send.within(session).enqueue("one")  # type: ignore[arg-type]
    send.within(session).enqueue_async(1)  # type: ignore[attr-defined]
    app.within(connection).enqueue_many_async([])  # type: ignore[attr-defined]
    app.within(7)  # type: ignore[call-overload]


async def asynchronous(
    session: AsyncSession, connection: AsyncConnection, driver: psycopg.AsyncConnection
) -> None:
    assert_type(await send.within(session).enqueue_async(1, to="a"), JobHandle[float])
    assert_type(await send.within(connection).enqueue_async(1), JobHandle[float])
    assert_type(await send.within(driver).enqueue_async(1), JobHandle[float])
    assert_type(await app.within(session).enqueue_async("mail", "send"), JobHandle[Any])
    assert_type(await app.within(session).enqueue_many_async([send.job(1)]), tuple[str, ...])
    assert_type(await app.within(session).cancel_async(send.enqueue(1)), str)

    await send.within(session).enqueue_async("one")  # type: ignore[arg-type]
    send.within(session).enqueue(1)  # type: ignore[attr-defined]
    app.within(driver).enqueue_many([])  # type: ignore[attr-defined]
