"""Copies of an audit database. A copy has the audit id of its original, and gets none of the original's events."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from rq_core.connections.client import Client
from sql_audit.errors import AuditCopied, QueuesElsewhere
from sql_audit.mirror import service
from sql_audit.mirror.redis_access import Outbox
from sql_audit.proof.result import LogVerdict
from sql_audit.proof.verify import verify
from sql_audit.queries.history import audit_id
from sql_audit.store.connection import database_identity
from sql_audit.store.connection.database import Database
from tests.kit import auditlog
from tests.kit.command import audit
from tests.kit.fleet import QUEUE, Fleet
from tests.kit.schemas import copied, lay_schema


def mirror(client: Client, database: Database) -> None:
    service.run_mirror(Outbox(client), database, stop=threading.Event(), once=True)


def url(database: Database) -> str:
    return database.address.render_as_string(hide_password=False)


@pytest.fixture
def fleet(client: Client, database: Database) -> Fleet:
    fleet = Fleet(client, 11)
    fleet.run(30)
    mirror(client, database)
    return fleet


@pytest.fixture
def copy(fleet: Fleet, database: Database) -> Iterator[Database]:
    with copied(database) as copy:
        yield copy


def test_the_error_of_a_copied_database_names_the_commands_fork_and_rebind(
    client: Client, database: Database, fleet: Fleet, copy: Database, valkey_url: str
) -> None:
    fleet.run(10)
    before = client.run(client.calls.reads.snapshot(QUEUE))

    refused = audit("run", "--once", "--redis", valkey_url, "--audit", url(copy))
    off = audit("off", QUEUE, "--redis", valkey_url, "--audit", url(copy))

    assert (refused.exit_code, off.exit_code) == (1, 1)
    for way in ("rq-core audit fork --audit", "rq-core audit rebind --audit"):
        assert way in refused.output
        assert way in off.output
    assert client.run(client.calls.reads.snapshot(QUEUE)) == before
    mirror(client, database)
    assert verify(database).verdict is LogVerdict.HOLDS
    assert verify(copy).verdict is LogVerdict.HOLDS


@pytest.mark.slow
def test_a_forked_database_gets_its_own_audit_id(
    client: Client, database: Database, fleet: Fleet, copy: Database
) -> None:
    forked = audit("fork", "--audit", url(copy))

    assert forked.exit_code == 0
    assert audit_id(copy) != audit_id(database)
    assert verify(copy).verdict is LogVerdict.HOLDS
    with pytest.raises(QueuesElsewhere):
        mirror(client, copy)
    fleet.run(10)
    mirror(client, database)
    assert verify(database).verdict is LogVerdict.HOLDS

    client.run(client.calls.delivery.ask([["FLUSHALL"]]))  # as staging's own server
    Fleet(client, 12).run(10)
    mirror(client, copy)
    assert verify(copy).violations == []


def test_the_log_continues_in_a_database_that_was_moved_and_rebound(
    client: Client, fleet: Fleet, copy: Database
) -> None:
    fleet.run(10)
    bound = audit("rebind", "--audit", url(copy))
    mirror(client, copy)

    assert bound.exit_code == 0
    assert auditlog.one(copy, "SELECT COUNT(*) AS n FROM mirror_epoch WHERE kind = 'gap'")["n"] == 0
    assert verify(copy).verdict is LogVerdict.HOLDS


def test_the_first_mirror_records_where_its_database_is_stored(
    client: Client, database: Database
) -> None:
    place_ = "SELECT place FROM audit_meta"
    before = auditlog.one(database, place_)["place"]
    Fleet(client, 1).run(3)
    mirror(client, database)
    mirror(client, database)

    assert before is None
    assert auditlog.one(database, place_)["place"] == database_identity.database_place(database)


def test_a_sqlite_database_whose_file_was_renamed_does_not_count_as_a_copy(
    client: Client, sqlite_url: str
) -> None:
    database = Database(sqlite_url)
    fleet = Fleet(client, 1)
    fleet.run(3)
    mirror(client, database)
    database.close()
    moved = database.path.with_name("moved.db")
    shutil.move(database.path, moved)
    fleet.run(3)

    renamed = Database(str(moved))
    mirror(client, renamed)
    renamed.close()

    shutil.copy(moved, database.path)
    with pytest.raises(AuditCopied):
        mirror(client, database)
    database.close()


def test_a_database_whose_system_identifier_is_unreadable_does_not_count_as_a_copy(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checks a mirror that starts twice. The right to read the identifier is granted or revoked between the starts."""
    database = Database(postgres_url)
    lay_schema(database)
    seen = database_identity.database_place(database)
    database_identity.check_identity(database)
    with monkeypatch.context() as revoked:
        revoked.setattr(database_identity, "_SYSTEM", text("SELECT no_such_function()"))
        assert database_identity.database_place(database).startswith("postgresql unknown/")
        database_identity.check_identity(database)
        database_identity.rebind(database)
    database_identity.check_identity(database)

    assert auditlog.one(database, "SELECT place FROM audit_meta")["place"] == seen
    with monkeypatch.context() as slow:
        slow.setattr(database_identity, "_SYSTEM", text("SELECT 1 / 0"))
        with pytest.raises(DBAPIError):
            database_identity.database_place(database)
    database.close()
