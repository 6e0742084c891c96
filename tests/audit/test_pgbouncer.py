"""The audit database behind PgBouncer in transaction mode, in which each transaction may use another connection.

The pool has only one connection to the server, which all clients share.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from rq_core.connections.client import Client
from sql_audit.mirror.redis_access import Outbox
from sql_audit.mirror.turn import Mirror
from sql_audit.proof.result import LogVerdict
from sql_audit.proof.verify import verify
from sql_audit.queries import history, reports
from sql_audit.store import migrate, partitions
from sql_audit.store.connection.database import Database
from tests.kit import auditlog
from tests.kit.fleet import QUEUE, Fleet
from tests.kit.pgbouncer import pgbouncer
from tests.kit.servers import PostgresServer

SETTINGS = (
    "default_transaction_read_only", "idle_in_transaction_session_timeout", "lock_timeout",
    "client_min_messages", "TimeZone", "statement_timeout",
)  # fmt: skip


@pytest.fixture
def pooled(postgres_server: PostgresServer, postgres_url: str) -> Iterator[Database]:
    """Yield an audit database that is reached through the pool."""
    with pgbouncer(postgres_server.port) as port:
        database = Database(postgres_url.replace(f":{postgres_server.port}/", f":{port}/"))
        yield database
        database.close()


def session(database: Database) -> dict[str, Any]:
    """Return the settings of the shared connection, read by another client of the pool."""
    url = database.address.set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(url) as connection:
        found: dict[str, Any] = {
            name: connection.execute(f"SHOW {name}").fetchone() for name in SETTINGS
        }
        temporary = "SELECT relname FROM pg_class WHERE relpersistence = 't'"
        found["temporary"] = connection.execute(temporary).fetchall()
        found["prepared"] = connection.execute("SELECT name FROM pg_prepared_statements").fetchall()
        connection.execute("CREATE TABLE written (n INTEGER)")
        connection.rollback()
    return found


def mirrored_rounds(
    client: Client, database: Database, *, seed: int, rounds: int
) -> Iterator[None]:
    """Run several rounds: producers and workers work, and then a mirror copies their events."""
    fleet = Fleet(client, seed)
    mirror = Mirror(Outbox(client), database, QUEUE)
    for _ in range(rounds):
        fleet.run(20)
        auditlog.drain(mirror)
        yield


def test_no_session_state_remains_on_a_pooled_connection(
    client: Client, pooled: Database, postgres_url: str
) -> None:
    fresh = session(pooled)
    migrate.upgrade_schema(pooled)
    for _ in mirrored_rounds(client, pooled, seed=7, rounds=12):
        reports.report(pooled.readers, QUEUE)
    partitions.create_ahead(pooled, 4_000_000_000_000)
    pooled.end_stalled()

    assert session(pooled) == fresh
    direct = Database(postgres_url)  # verify reads through two connections at once
    assert verify(direct).verdict is LogVerdict.HOLDS
    direct.close()


def test_a_mirror_and_readers_can_share_one_pooled_connection(
    client: Client, pooled: Database
) -> None:
    migrate.upgrade_schema(pooled)
    fleet = Fleet(client, 8)
    mirror = Mirror(Outbox(client), pooled, QUEUE)
    reader = Database(pooled.address)

    for _ in range(5):
        fleet.run(20)
        reports.report(reader.readers, QUEUE)
        auditlog.drain(mirror)

    (mark,) = history.watermarks(reader.readers, QUEUE)
    last = auditlog.one(pooled, "SELECT MAX(seq) AS n FROM job_event")["n"]
    assert mark.number == last
    reader.close()


def test_readers_are_read_only_and_writers_have_an_idle_timeout(pooled: Database) -> None:
    migrate.upgrade_schema(pooled)

    with pooled.readers.connect() as connection:
        assert connection.exec_driver_sql("SHOW transaction_read_only").scalar_one() == "on"
    with pooled.writing() as connection:
        assert connection is not None
        idle = connection.exec_driver_sql("SHOW idle_in_transaction_session_timeout")
        assert idle.scalar_one() == "30s"


def test_no_temporary_table_outlives_its_transaction(client: Client, postgres_url: str) -> None:
    """Checks that no temporary table of the mirror's connection holds back datfrozenxid."""
    database = Database(postgres_url)
    migrate.upgrade_schema(database)
    for _ in mirrored_rounds(client, database, seed=9, rounds=3):
        pass

    assert auditlog.rows(database, "SELECT relname FROM pg_class WHERE relpersistence = 't'") == []
    database.close()
