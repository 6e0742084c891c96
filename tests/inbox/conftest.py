"""Fixtures: databases with the tables of an inbox, and an app that enqueues jobs into an inbox."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import create_engine, text

from rq_core import App
from sql_audit.inbox.database import inbox_url
from sql_audit.inbox.schema import INBOX, PARKED, RELAY, migrate
from tests.app.conftest import as_, control  # noqa: F401 - fixtures
from tests.kit.inbox import Stage
from tests.kit.servers import PostgresServer


@pytest.fixture(scope="session")
def _pg_database(postgres_server: PostgresServer) -> Iterator[str]:
    name = postgres_server.create_database()
    yield prepared(postgres_server.url(name))
    postgres_server.drop_database(name)


@pytest.fixture
def pg_url(_pg_database: str) -> str:
    """Return the URL of a PostgreSQL database with the tables of an inbox and an application's table.

    All tables but `rqc_inbox_place` are empty.
    """
    engine = create_engine(inbox_url(_pg_database))
    with engine.begin() as connection:
        for table in (INBOX, PARKED, RELAY, "orders"):
            connection.execute(text(f"DELETE FROM {table}"))
    engine.dispose()
    return _pg_database


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest) -> str:
    """Return the URL of a database with the tables of an inbox. The test runs once per kind of database."""
    if request.param == "sqlite":
        return prepared(request.getfixturevalue("sqlite_url"))
    found: str = request.getfixturevalue("pg_url")
    return found


def prepared(url: str) -> str:
    migrate(url)
    engine = create_engine(inbox_url(url))
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE orders (id integer)"))
    engine.dispose()
    return url


def committed(url: str) -> list[Any]:
    """Return the committed rows of the inbox, ordered by place in line."""
    engine = create_engine(inbox_url(url))
    with engine.connect() as connection:
        rows = connection.execute(text("SELECT * FROM rqc_inbox ORDER BY id")).all()
    engine.dispose()
    return list(rows)


def orders(url: str) -> list[int]:
    engine = create_engine(inbox_url(url))
    with engine.connect() as connection:
        found = list(connection.execute(text("SELECT id FROM orders ORDER BY id")).scalars())
    engine.dispose()
    return found


@pytest.fixture
def app() -> Iterator[App]:
    """Return an app without a reachable Redis. An enqueue into an inbox calls no Redis."""
    with App("redis://127.0.0.1:1") as app:

        @app.task(queue="mail")
        def send(order_id: int, text: str = "") -> str:
            return text

        yield app


@pytest.fixture
def stage(sqlite_url: str, valkey_url: str) -> Iterator[Stage]:
    made = Stage(sqlite_url, valkey_url)
    yield made
    made.close()


@pytest.fixture
def on_postgres(pg_url: str, valkey_url: str) -> Iterator[Stage]:
    made = Stage(pg_url, valkey_url)
    yield made
    made.close()
