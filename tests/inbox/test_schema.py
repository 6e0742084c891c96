"""The tables of the inbox, in SQLite and in PostgreSQL."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine, create_engine
from sqlalchemy.exc import IntegrityError

from sql_audit.errors import InboxForeign, InboxUnavailable, InboxUrlInvalid
from sql_audit.inbox.database import inbox_engine, inbox_url
from sql_audit.inbox.schema import (
    AGE_MS,
    COLUMNS,
    INBOX,
    PARKED,
    PLACE,
    RELAY,
    ddl,
    migrate,
    missing_tables,
)

ALL = (INBOX, PARKED, RELAY, PLACE)


@pytest.fixture
def engine(audit_url: str) -> Iterator[Engine]:
    engine = inbox_engine(inbox_url(audit_url), creates=True)
    yield engine
    engine.dispose()


def test_migrate_creates_the_tables_of_an_inbox_once(audit_url: str, engine: Engine) -> None:
    assert ALL == migrate(audit_url)
    with engine.begin() as connection:
        first = connection.exec_driver_sql("SELECT inbox_id, place FROM rqc_inbox_place").one()

    assert () == migrate(audit_url)

    with engine.begin() as connection:
        assert () == missing_tables(connection)
        again = connection.exec_driver_sql("SELECT inbox_id, place FROM rqc_inbox_place").one()
    assert (32, None) == (len(first[0]), first[1])
    assert first == again


def test_migrate_creates_a_missing_table_and_keeps_the_other_tables(
    audit_url: str, engine: Engine
) -> None:
    migrate(audit_url)
    with engine.begin() as connection:
        connection.exec_driver_sql("INSERT INTO rqc_inbox (queue, task) VALUES ('mail', 'send')")
        connection.exec_driver_sql("DROP TABLE rqc_relay")
        assert (RELAY,) == missing_tables(connection)

    assert (RELAY,) == migrate(audit_url)
    with engine.begin() as connection:
        assert 1 == connection.exec_driver_sql("SELECT count(*) FROM rqc_inbox").scalar_one()


def test_the_printed_statements_create_the_same_tables_as_migrate(
    audit_url: str, engine: Engine
) -> None:
    with engine.begin() as connection:
        for statement in ddl(audit_url):
            connection.exec_driver_sql(statement)

    assert () == migrate(audit_url)


def test_a_row_that_is_inserted_without_an_id_gets_an_id_and_a_time(
    audit_url: str, engine: Engine
) -> None:
    migrate(audit_url)
    with engine.begin() as connection:
        for _ in range(3):
            connection.exec_driver_sql("INSERT INTO rqc_inbox (queue, task) VALUES ('q', 't')")
        # All of one INSERT have one time.
        connection.exec_driver_sql(
            "INSERT INTO rqc_inbox (queue, task) VALUES ('q', 't'), ('q', 'u')"
        )
        rows = connection.exec_driver_sql(
            "SELECT id, job_id, args, options, packed, created_at FROM rqc_inbox ORDER BY id"
        ).all()
        ages = (
            connection.exec_driver_sql(f"SELECT {AGE_MS[engine.dialect.name]} FROM rqc_inbox")
            .scalars()
            .all()
        )

    assert [1, 2, 3, 4, 5] == [row.id for row in rows]
    assert 5 == len({row.job_id for row in rows})
    assert {32} == {len(row.job_id) for row in rows}
    assert {("{}", None, None)} == {(row.args, row.options, row.packed) for row in rows}
    assert rows[3].created_at == rows[4].created_at
    assert all(0 <= age < 60_000 for age in ages)


def test_the_id_of_a_deleted_row_is_not_used_again(audit_url: str, engine: Engine) -> None:
    migrate(audit_url)
    ids: list[int] = []
    for _ in range(2):
        with engine.begin() as connection:
            connection.exec_driver_sql("INSERT INTO rqc_inbox (queue, task) VALUES ('q', 't')")
            ids += connection.exec_driver_sql("SELECT id FROM rqc_inbox").scalars().all()
            connection.exec_driver_sql("DELETE FROM rqc_inbox")

    assert [1, 2] == ids


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO rqc_inbox (queue, task, job_id) VALUES ('q', 't', 'j')",
        "INSERT INTO rqc_inbox_place (one) VALUES (2)",
        "INSERT INTO rqc_inbox_place (one) VALUES (1)",
        "INSERT INTO rqc_inbox (queue) VALUES ('q')",
        "INSERT INTO rqc_inbox (task) VALUES ('t')",
        "INSERT INTO rqc_inbox (queue, task, id) VALUES ('q', 't', 0)",
    ],
)
def test_the_constraints_of_the_tables_refuse_invalid_rows(
    audit_url: str, engine: Engine, statement: str
) -> None:
    """Checks a used job id, a second row in ``rqc_inbox_place``, and a row without a queue or a task.

    Also checks a row with the id 0, which has a special meaning in a batch.
    """
    migrate(audit_url)
    with engine.begin() as connection:
        for queue in ("q", "p"):
            connection.exec_driver_sql(
                f"INSERT INTO rqc_inbox (queue, task, job_id) VALUES ('{queue}', 't', 'j')"
            )

    with pytest.raises(IntegrityError), engine.begin() as connection:
        connection.exec_driver_sql(statement)


@pytest.mark.parametrize("column", ["queue", "job_id", "task", "args", "options", "packed"])
def test_sqlite_refuses_the_insert_of_bytes(sqlite_url: str, column: str) -> None:
    """Checks bytes in each text column. No relay could read the bytes, which json.dumps(…).encode() makes."""
    migrate(sqlite_url)
    columns = {"queue": "'q'", "task": "'t'"} | {column: "x'7b7d'"}
    engine = create_engine(inbox_url(sqlite_url))
    with pytest.raises(IntegrityError, match="CHECK"), engine.begin() as connection:
        connection.exec_driver_sql(
            f"INSERT INTO rqc_inbox ({', '.join(columns)}) VALUES ({', '.join(columns.values())})"
        )
    engine.dispose()


@pytest.mark.parametrize("table", ALL)
def test_migrate_refuses_a_table_of_another_program_and_does_not_change_it(
    audit_url: str, engine: Engine, table: str
) -> None:
    with engine.begin() as connection:
        connection.exec_driver_sql(f"CREATE TABLE {table} (id integer, colour text)")

    with pytest.raises(InboxForeign, match=f"{table} .*id colour"):
        migrate(audit_url)

    with engine.begin() as connection:
        connection.exec_driver_sql(f"DROP TABLE {table}")
        assert ALL == missing_tables(connection)


def test_several_programs_may_create_the_tables_at_the_same_time(audit_url: str) -> None:
    made: list[tuple[str, ...]] = []
    threads = [threading.Thread(target=lambda: made.append(migrate(audit_url))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted([(), (), (), ALL]) == sorted(made)


def test_the_tables_have_the_columns_that_the_statements_name(
    audit_url: str, engine: Engine
) -> None:
    migrate(audit_url)
    with engine.begin() as connection:
        for table, columns in COLUMNS.items():
            found = connection.exec_driver_sql(f"SELECT * FROM {table}").keys()
            assert columns.split() == list(found)


@pytest.mark.parametrize("url", ["mysql://u@h/d", ":memory:", "sqlite://", "", "host=h dbname=d"])
def test_a_url_of_an_unsupported_database_is_refused(url: str) -> None:
    with pytest.raises(InboxUrlInvalid, match="not a database for an inbox"):
        migrate(url)


def test_the_error_of_an_unreachable_database_says_that_it_is_unavailable(tmp_path: Path) -> None:
    with pytest.raises(InboxUnavailable, match="does not answer"):
        migrate(f"sqlite:///{tmp_path}/no/where.db")
    with pytest.raises(InboxUnavailable, match="does not answer") as caught:
        migrate("postgresql://u:secret@127.0.0.1:1/d")
    assert "secret" not in str(caught.value)


def test_ddl_connects_to_no_database() -> None:
    assert 6 == len(ddl("postgresql://u@127.0.0.1:1/d"))
