"""Rights in PostgreSQL: each role can do its work with the rights that `rq-core audit grants ROLE` prints.

The error about a missing right names the right.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import psycopg
import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from rq_core.connections.client import Client
from sql_audit.errors import SchemaUnseen
from sql_audit.mirror import service
from sql_audit.mirror.redis_access import Outbox
from sql_audit.mirror.turn import Mirror
from sql_audit.proof.result import LogVerdict
from sql_audit.proof.verify import verify
from sql_audit.store import migrate
from sql_audit.store.connection import database_identity
from sql_audit.store.connection.database import Database
from tests.kit import auditlog
from tests.kit.command import audit
from tests.kit.fleet import QUEUE, Fleet
from tests.kit.servers import PostgresServer

SCHEMA = "the log"
As = Callable[[str], Database]


@pytest.fixture
def superuser(postgres_url: str) -> Iterator[psycopg.Connection]:
    url = postgres_url.replace("+psycopg", "")
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f'CREATE SCHEMA "{SCHEMA}"')
        yield connection


@pytest.fixture
def as_(superuser: psycopg.Connection, postgres_url: str) -> Iterator[As]:
    """Yield a function that creates a role with the printed rights. The function returns a database opened as this
    role."""
    made: list[tuple[str, Database]] = []
    name = postgres_url.rpartition("/")[2]

    def make(role: str) -> Database:
        user = f"rq-core-{role}-{name}"
        superuser.execute(f'CREATE ROLE "{user}" LOGIN')
        given = ["--user", user, "--database", name, "--schema", SCHEMA]
        result = audit("grants", role, *given)
        assert result.exit_code == 0, result.output
        superuser.execute(result.output)
        database = Database(postgres_url)
        database = Database(database.address.set(username=user))
        made.append((user, database))
        return database

    yield make
    for user, database in made:
        database.close()
        superuser.execute(f'DROP OWNED BY "{user}" CASCADE')
        superuser.execute(f'DROP ROLE "{user}"')


@pytest.fixture
def owner(as_: As, superuser: psycopg.Connection) -> Database:
    """Revoke the default rights of PUBLIC, and return the database as its owner sees it. The owner has created the
    tables.
    """
    superuser.execute("REVOKE ALL ON SCHEMA public FROM PUBLIC")
    superuser.execute(f"REVOKE ALL ON DATABASE {superuser.info.dbname} FROM PUBLIC")
    owner = as_("owner")
    url = owner.address.render_as_string(hide_password=False)
    assert audit("migrate", "--audit", url).exit_code == 0
    return owner


def run(client: Client, database: Database) -> None:
    service.run_mirror(Outbox(client), database, stop=threading.Event(), once=True)


def test_each_role_can_do_its_work_with_its_grants(
    client: Client, owner: Database, as_: As
) -> None:
    mirror, reader, verifier = as_("mirror"), as_("reader"), as_("verifier")
    fleet = Fleet(client, 3)
    for _ in range(3):
        fleet.run(40)
        run(client, mirror)
    outbox = f"rqc:{{{QUEUE}}}:outbox"
    client.run(client.calls.delivery.ask([["DEL", outbox]]))
    fleet.run(20)
    run(client, mirror)
    client.run(client.calls.delivery.ask([["FLUSHALL"]]))
    run(client, mirror)
    fleet.held.clear()
    fleet.run(20)
    run(client, mirror)

    for database in (reader, verifier):
        url = database.address.render_as_string(hide_password=False)
        assert audit("verify", "--audit", url).exit_code == 0
        assert audit("report", "--audit", url).exit_code == 0
        with database.writing() as connection, pytest.raises(DBAPIError, match="denied"):
            assert connection is not None
            connection.execute(text("UPDATE mirror_cursor SET seq = 0"))
    proven = auditlog.one(owner, "SELECT COUNT(*) AS n FROM mirror_proof")["n"]
    assert proven == 1, "the verifier's; a reader's is not recorded"
    assert verify(owner).verdict is LogVerdict.HOLDS
    with mirror.writing() as connection, pytest.raises(DBAPIError, match="denied"):
        assert connection is not None
        connection.execute(text("DELETE FROM job_event"))


def test_a_role_without_write_access_cannot_switch_a_log_on_or_off(
    client: Client, valkey_url: str, owner: Database, as_: As
) -> None:
    """Checks that `audit off` changes nothing in Redis if the role lacks the right in SQL."""
    mirror, reader = as_("mirror"), as_("reader")
    Fleet(client, 3).run(5)

    def switched(command: str, database: Database) -> bool:
        url = database.address.render_as_string(hide_password=False)
        done = audit(command, QUEUE, "--redis", valkey_url, "--audit", url)
        if database is reader:
            assert (done.exit_code, done.output.count("\n")) == (1, 1), done.output
            assert "permission denied" in done.output
        return client.run(client.calls.reads.counts(QUEUE)).audit

    database_identity.check_identity(owner)
    assert not switched("on", reader), "it has no cursor yet"
    assert switched("on", mirror)
    run(client, mirror)
    assert switched("off", reader)
    assert not switched("off", mirror)
    assert not switched("on", reader), "its cursor is there"
    assert auditlog.events(owner, QUEUE)[-1]["type"] == "policy_changed"


@pytest.mark.slow
def test_a_mirror_that_does_not_own_the_tables_logs_that_it_creates_no_partitions(
    client: Client, owner: Database, as_: As, caplog: pytest.LogCaptureFixture
) -> None:
    mirror = as_("mirror")
    with owner.writing() as connection:
        assert connection is not None
        tables = connection.execute(text("SELECT inhrelid::regclass FROM pg_inherits"))
        for name in tables.scalars():
            if "default" not in name and "pkey" not in name and "idx" not in name:
                connection.execute(text(f"DROP TABLE IF EXISTS {name}"))
        connection.commit()
    Fleet(client, 3).run(5)

    run(client, mirror)

    said = [record.message for record in caplog.records if "no partition" in record.message]
    assert len(said) == 3
    assert all("permission denied" in each and "rq-core audit migrate" in each for each in said)
    url = owner.address.render_as_string(hide_password=False)
    assert audit("migrate", "--audit", url).exit_code == 0
    assert auditlog.one(owner, "SELECT COUNT(*) AS n FROM job_event_default")["n"] == 0
    assert verify(owner).verdict is LogVerdict.HOLDS


def test_the_error_for_a_role_that_cannot_see_the_schema_names_the_schema(
    client: Client, owner: Database, as_: As, superuser: psycopg.Connection
) -> None:
    """Checks that the mirror does not begin a second log in another schema."""
    stranger = as_("reader")
    user, name = stranger.address.username, superuser.info.dbname
    superuser.execute("GRANT ALL ON SCHEMA public TO PUBLIC")
    superuser.execute(f'ALTER ROLE "{user}" IN DATABASE {name} RESET search_path')
    Fleet(client, 3).run(5)

    with pytest.raises(SchemaUnseen, match=f"is in schema {SCHEMA}"):
        run(client, stranger)
    with pytest.raises(SchemaUnseen, match="grants"):
        migrate.check_current(stranger)


def test_the_append_only_trigger_works_with_any_search_path(
    client: Client, owner: Database, superuser: psycopg.Connection
) -> None:
    Fleet(client, 3).run(5)
    run(client, owner)

    for statement in ("DELETE FROM", "UPDATE", "TRUNCATE"):
        rest = " SET seq = 0" if statement == "UPDATE" else ""
        with pytest.raises(psycopg.Error, match="append-only"):
            superuser.execute(f'{statement} "{SCHEMA}".job_event{rest}')


def test_the_mirror_reconnects_after_postgres_closed_an_idle_connection(
    client: Client,
    postgres_server: PostgresServer,
    postgres_url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Checks a connection that PostgreSQL ends, as after idle_session_timeout."""
    monkeypatch.setattr("sql_audit.store.connection.database.PAUSE_S", 0.0)
    database = Database(postgres_url)
    migrate.upgrade_schema(database)
    fleet = Fleet(client, 3)
    mirror = Mirror(Outbox(client), database, QUEUE)
    fleet.run(5)
    auditlog.drain(mirror)
    with psycopg.connect(postgres_url.replace("+psycopg", "")) as other:
        ended = other.execute(
            "SELECT COUNT(pg_terminate_backend(pid, 5000)) FROM pg_stat_activity "
            "WHERE application_name = 'rq-core audit' AND datname = current_database()"
        ).fetchone()
    fleet.run(5)

    auditlog.drain(mirror)

    assert ended is not None
    assert ended[0] >= 2, "the writer's and the reader's"
    assert verify(database).verdict is LogVerdict.HOLDS
    database.close()
