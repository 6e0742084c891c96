"""The schema, and how connections are set up."""

import re
import sqlite3
import threading
from pathlib import Path
from typing import Any, cast

import psycopg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import inspect, text
from sqlalchemy.exc import DBAPIError

from sql_audit import migrate, schema
from sql_audit.database import Database, copy_text, normalise
from sql_audit.errors import (
    AuditEmpty,
    AuditUnavailable,
    AuditUrlInvalid,
    SchemaAhead,
    SchemaBehind,
    SchemaForeign,
)
from tests.support import auditlog

SQLITE_OBJECTS = (
    "SELECT type, name, tbl_name, sql FROM sqlite_master "
    f"WHERE tbl_name <> '{migrate.VERSION_TABLE}' ORDER BY type, name"
)
POSTGRES_OBJECTS = (
    "SELECT 'view' AS kind, viewname AS name, definition AS what FROM pg_views "
    "WHERE schemaname = 'public' UNION ALL "
    "SELECT 'trigger', tgname, pg_get_triggerdef(oid) FROM pg_trigger WHERE NOT tgisinternal "
    "UNION ALL SELECT 'index', indexname, indexdef FROM pg_indexes WHERE schemaname = 'public' "
    "UNION ALL SELECT 'constraint', conname, pg_get_constraintdef(oid) FROM pg_constraint "
    "WHERE conrelid > 16383 UNION ALL "
    "SELECT 'function', proname, prosrc FROM pg_proc WHERE proname LIKE 'audit_refuse%' "
    "UNION ALL SELECT 'column', table_name || '.' || column_name, "
    "ordinal_position || data_type || is_nullable || COALESCE(column_default, '') "
    "FROM information_schema.columns WHERE table_schema = 'public' ORDER BY 1, 2, 3"
)


def objects(database: Database) -> list[dict[str, list[str]]]:
    """Everything that the schema is made of, as the database itself tells it."""
    found = auditlog.rows(
        database, SQLITE_OBJECTS if database.dialect == "sqlite" else POSTGRES_OBJECTS
    )
    return [
        {name: _parts(str(value)) for name, value in row.items()}
        for row in found
        if migrate.VERSION_TABLE not in str(row)
    ]


def _parts(said: str) -> list[str]:
    """Words without their layout; the constraints of a table stand in any order."""
    plain = " ".join(said.split()).replace(" ) WITHOUT ROWID", ", WITHOUT ROWID").removesuffix(" )")
    head, *constraints = re.split(r", (?=CONSTRAINT|CHECK|PRIMARY KEY|WITHOUT)", plain)
    return [head, *sorted(constraints)]


def test_migrations_make_the_schema(audit_url: str) -> None:
    """What new databases get by migrating is what schema.py says: tables, CHECKs, triggers, views."""
    database = Database(audit_url)
    with database.writing() as connection:
        assert connection is not None
        schema.metadata.create_all(connection)
        connection.commit()
    expected = objects(database)
    with database.writing() as connection:
        assert connection is not None
        made = schema.views(database.dialect) | schema.everyday_views(database.dialect)
        for view in reversed(made | schema.loss_views()):
            connection.execute(text(f"DROP VIEW {view}"))
        schema.metadata.drop_all(connection)
        connection.commit()

    migrate.upgrade(database)

    with database.readers.connect() as connection:
        options = {
            "version_table": migrate.VERSION_TABLE,
            "compare_type": True,
            "include_name": lambda name, *_: not str(name).startswith("job_event_default"),
        }
        context = MigrationContext.configure(connection, opts=options)
        assert compare_metadata(context, schema.metadata) == []
    assert objects(database) == expected
    database.close()


def test_downgrade_leaves_nothing_and_upgrade_comes_back(audit_url: str) -> None:
    database = Database(audit_url)
    migrate.upgrade(database)
    expected = objects(database)

    migrate.downgrade(database)
    with database.readers.connect() as connection:
        left = set(inspect(connection).get_table_names()) - {migrate.VERSION_TABLE}
    migrate.upgrade(database)

    assert left == set()
    assert objects(database) == expected
    database.close()


def test_a_log_survives_a_new_schema_and_the_way_back(audit_url: str) -> None:
    """Rows stay as they are; an event that the old schema does not know keeps its place."""
    event = {
        "queue": "q", "epoch": 1, "seq": 0, "ordinal": 0, "type": "paused", "at_ms": 5,
        "job_id": None, "claim": None, "worker": "w", "task": None, "detail": '{"why":"x"}',
    }  # fmt: skip
    insert = (
        f"INSERT INTO job_event ({', '.join(schema.EVENT_COLUMNS)}) "
        f"VALUES ({', '.join(':' + name for name in schema.EVENT_COLUMNS)})"
    )
    columns = (
        "job_id, queue, state, claims, failures, losses, unknown, complete, last_epoch, last_seq"
    )
    job = f"INSERT INTO job ({columns}) VALUES (:id, 'q', :state, 1, 0, 0, 0, 1, 1, 0)"
    attempt = "INSERT INTO job_attempt (job_id, queue, fence) VALUES ('a', 'q', '1-0')"
    database = Database(audit_url)

    def write(*statements: tuple[str, dict[str, object]]) -> None:
        with database.writing() as connection:
            assert connection is not None
            for statement, values in statements:
                connection.execute(text(statement), values)
            connection.commit()

    migrate.upgrade(database, "0001")
    write((insert, event), (job, {"id": "a", "state": "running"}), (attempt, {}))
    migrate.upgrade(database, "0002")
    assert auditlog.events(database, "q") == [event]
    assert auditlog.one(database, "SELECT claims, lane FROM job") == {"claims": 1, "lane": None}
    assert auditlog.one(database, "SELECT fence, scopes FROM job_attempt")["fence"] == "1-0"

    write(
        (insert, {**event, "seq": 1, "type": "cap_changed"}),
        (insert, {**event, "seq": 2, "type": "discarded"}),
        (job, {"id": "b", "state": "discarded"}),
    )
    migrate.downgrade(database, "0001")
    types = [row["type"] for row in auditlog.events(database, "q")]
    assert types == ["paused", "quarantined", "quarantined"]
    assert [row["job_id"] for row in auditlog.rows(database, "SELECT job_id FROM job")] == ["a"]
    for revision in ("0001", "0002"):
        migrate.upgrade(database, revision)
        for change in ("UPDATE job_event SET at_ms = 1", "DELETE FROM job_event"):
            with pytest.raises(DBAPIError, match="append-only"):
                write((change, {}))
    assert len(auditlog.events(database, "q")) == 3
    database.close()


def test_the_words_in_the_checks_are_the_tables(database: Database) -> None:
    row = {
        "queue": "q", "epoch": 1, "seq": 0, "ordinal": 0, "at_ms": 1,
        "type": "finished", "job_id": None, "claim": None, "worker": None, "task": None,
        "detail": None,
    }  # fmt: skip
    refused = (DBAPIError, psycopg.errors.CheckViolation)
    rows = [tuple(row[name] for name in schema.EVENT_COLUMNS)]
    with database.writing() as connection:
        assert connection is not None
        with pytest.raises(refused):
            database.insert_events(connection, rows, copy_text(rows))


def test_a_new_database_has_a_name_of_its_own(database: Database, tmp_path: Path) -> None:
    other = Database(str(tmp_path / "other.db"))
    migrate.upgrade(other)

    names = [
        auditlog.one(d, "SELECT audit_id FROM audit_meta")["audit_id"] for d in (database, other)
    ]
    assert len(set(names)) == 2
    assert all(len(name) == 32 for name in names)
    other.close()


def test_a_schema_that_is_behind_says_what_to_run(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migrate, "needed", lambda: "0099")

    with pytest.raises(SchemaBehind, match="rq-core audit migrate --audit"):
        migrate.check_current(database)


def test_a_schema_from_the_future_is_refused(database: Database) -> None:
    with database.writing() as connection:
        assert connection is not None
        connection.execute(text(f"UPDATE {migrate.VERSION_TABLE} SET version_num = '9999'"))
        connection.commit()

    for check in (migrate.check_current, migrate.upgrade):
        with pytest.raises(SchemaAhead, match="9999"):
            check(database)


def test_tables_of_somebody_else_are_left_alone(audit_url: str) -> None:
    database = Database(audit_url)
    with database.writing() as connection:
        assert connection is not None
        connection.execute(text("CREATE TABLE job (mine INTEGER)"))
        connection.commit()

    with pytest.raises(SchemaForeign, match="job"):
        migrate.ensure(database)
    database.close()


def test_an_empty_database_is_told_from_none(audit_url: str) -> None:
    database = Database(audit_url)
    with pytest.raises(AuditEmpty, match="audit run"):
        migrate.check_current(database)
    if database.dialect == "sqlite":
        assert not database.path.exists()

    migrate.ensure(database)

    migrate.check_current(database)
    database.close()


def test_two_mirrors_may_meet_a_new_database(audit_url: str) -> None:
    failures: list[BaseException] = []
    gate = threading.Barrier(3)

    def begin() -> None:
        database = Database(audit_url)
        try:
            gate.wait()
            migrate.ensure(database)
        except BaseException as error:
            failures.append(error)
        finally:
            database.close()

    threads = [threading.Thread(target=begin) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert failures == []


# Addresses.


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("audit.db", "sqlite:///audit.db"),
        ("./a b/audit.db", "sqlite:///./a b/audit.db"),
        ("/var/audit.db", "sqlite:////var/audit.db"),
        ("sqlite:///audit.db", "sqlite:///audit.db"),
        ("postgres://u@h/d", "postgresql+psycopg://u@h/d"),
        (
            "postgresql://u:p%40@h:5/d?sslmode=require",
            "postgresql+psycopg://u:p%40@h:5/d?sslmode=require",
        ),
    ],
)
def test_addresses_as_people_write_them(said: str, meant: str) -> None:
    assert normalise(said).render_as_string(hide_password=False) == meant


@pytest.mark.parametrize("said", ["", "mysql://h/d", "sqlite://", "sqlite:///:memory:", "://x"])
def test_other_addresses_are_refused(said: str) -> None:
    with pytest.raises(AuditUrlInvalid, match="Use a path"):
        Database(said)


def test_a_password_is_never_shown() -> None:
    database = Database("postgresql://u:secret@127.0.0.1:1/d")
    with pytest.raises(AuditUnavailable) as caught:
        migrate.check_current(database)

    assert "secret" not in str(caught.value)
    assert "127.0.0.1" in str(caught.value)


# Connections.


@pytest.fixture
def sqlite_database(sqlite_url: str) -> Any:
    database = Database(sqlite_url)
    migrate.upgrade(database)
    yield database
    database.close()


def test_begin_immediate_is_really_issued(sqlite_database: Database) -> None:
    """The driver's own BEGIN would be DEFERRED: two mirrors would both read, then one fail to write."""
    traced: list[str] = []
    with sqlite_database.writing() as connection:
        assert connection is not None
        driver = cast(sqlite3.Connection, connection.connection.driver_connection)
        assert driver.in_transaction
    driver.set_trace_callback(traced.append)
    with sqlite_database.writing() as connection:
        assert connection is not None
        assert connection.connection.driver_connection is driver
        connection.execute(text("UPDATE audit_meta SET audit_id = audit_id"))
        connection.commit()
    driver.set_trace_callback(None)

    assert [line for line in traced if "BEGIN" in line] == ["BEGIN IMMEDIATE"]
    assert [line for line in traced if "COMMIT" in line] == ["COMMIT"]


def test_begin_immediate_takes_the_lock_at_once(sqlite_database: Database) -> None:
    with sqlite_database.writing() as connection:
        assert connection is not None
        other = sqlite3.connect(sqlite_database.path, timeout=0, isolation_level=None)
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            other.execute("BEGIN IMMEDIATE")
        other.close()


def test_who_writes_to_sqlite_is_careful(sqlite_database: Database) -> None:
    def pragmas(connection: Any) -> dict[str, Any]:
        names = ("journal_mode", "synchronous", "wal_autocheckpoint", "query_only", "busy_timeout")
        return {n: connection.exec_driver_sql(f"PRAGMA {n}").scalar_one() for n in names}

    with sqlite_database.writing() as connection:
        writing = pragmas(connection)
    with sqlite_database.readers.connect() as connection:
        reading = pragmas(connection)

    assert writing == {
        "journal_mode": "wal", "synchronous": 2, "wal_autocheckpoint": 4000, "query_only": 0,
        "busy_timeout": 5000,
    }  # fmt: skip
    assert (reading["wal_autocheckpoint"], reading["query_only"]) == (0, 1)


def test_nobody_else_writes_or_checkpoints_meanwhile(sqlite_database: Database) -> None:
    other = Database(sqlite_database.address)
    with sqlite_database.writing() as mine, other.writing() as theirs:
        assert mine is not None
        assert theirs is None
    with other.writing() as theirs:
        assert theirs is not None
    other.close()


def test_postgres_ends_a_transaction_that_idles(postgres_url: str) -> None:
    database = Database(postgres_url)
    with database.writing() as connection:
        assert connection is not None
        timeout = connection.exec_driver_sql("SHOW idle_in_transaction_session_timeout")
        assert timeout.scalar_one() == "30s"
    with database.readers.connect() as connection, pytest.raises(DBAPIError, match="read-only"):
        connection.exec_driver_sql("CREATE TABLE x (y INTEGER)")
    database.close()


def test_copy_text_is_what_postgres_says(postgres_url: str) -> None:
    rows: list[tuple[Any, ...]] = [
        (1, "plain", None),
        (2, "tab\tnewline\nreturn\rback\\slash", "\\N"),
        (3, "", "ü \U0001f40d"),
        (4, "\\", "\\\\n"),
        (5, "\x01", "\x08\x0b\x0c\x7f"),
        (6, None, "\x1f"),
    ] + [(n, "many", None) for n in range(7, 300)]
    rows[200] = (rows[200][0], "a\\N", "\t")
    with psycopg.connect(postgres_url.replace("+psycopg", "")) as connection:
        connection.execute("CREATE TEMPORARY TABLE t (n INTEGER, a TEXT, b TEXT)")
        with connection.cursor() as cursor, cursor.copy("COPY t FROM STDIN") as copy:
            copy.write(copy_text(rows))

        assert connection.execute("SELECT * FROM t ORDER BY n").fetchall() == rows
        out = "COPY (SELECT * FROM t ORDER BY n) TO STDOUT"
        with connection.cursor() as cursor, cursor.copy(out) as copy:
            assert b"".join(bytes(part) for part in copy).decode() == copy_text(rows)
