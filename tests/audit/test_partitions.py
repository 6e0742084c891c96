"""Partitions of PostgreSQL, one for each month. Mirrors create a partition in advance, and an operator drops old
ones."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError

from sql_audit.mirror import service
from sql_audit.mirror.reading import BatchLimits
from sql_audit.mirror.turn import Mirror
from sql_audit.proof.result import LogVerdict
from sql_audit.proof.verify import verify
from sql_audit.store.connection.database import Database
from sql_audit.store.partitions import Month, create_ahead, month_of, partitions
from tests.audit.conftest import QUEUE
from tests.audit.pruning import days, prune_at, two_seasons
from tests.kit import auditlog
from tests.kit.outbox import StreamWriter
from tests.kit.schemas import lay_schema


@pytest.fixture
def postgres(postgres_url: str) -> Any:
    database = Database(postgres_url)
    lay_schema(database)
    yield database
    database.close()


def months(database: Database) -> list[Month]:
    with database.readers.connect() as connection:
        return partitions(connection)


def test_each_partition_is_created_once_and_before_its_month_begins(postgres: Database) -> None:
    december = Month(2026, 12)

    made = create_ahead(postgres, december.begin_ms + 1).made

    assert made == [december, Month(2027, 1), Month(2027, 2)] == months(postgres)
    assert create_ahead(postgres, december.end_ms - 1) == ([], {})
    assert create_ahead(postgres, december.end_ms).made == [Month(2027, 3)]


def test_mirrors_that_start_together_create_partitions_without_a_warning(
    postgres: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checks a slower mirror whose missing partition another mirror has created meanwhile."""
    all_looked, first = threading.Barrier(3), threading.local()

    def look(connection: Connection) -> list[Month]:
        found = partitions(connection)
        if not hasattr(first, "done"):
            first.done = all_looked.wait(10) >= 0
        return found

    monkeypatch.setattr("sql_audit.store.partitions.partitions", look)
    with ThreadPoolExecutor(3) as pool:
        made = list(pool.map(lambda _: create_ahead(postgres, Month(2026, 12).begin_ms), range(3)))

    assert [ahead.left for ahead in made] == [{}, {}, {}]
    assert len(months(postgres)) == 3


def in_default(database: Database) -> int:
    count: int = auditlog.one(database, "SELECT COUNT(*) AS n FROM job_event_default")["n"]
    return count


def test_rows_in_the_default_partition_move_to_the_partition_of_their_month(
    postgres: Database, writer: StreamWriter, source: Any
) -> None:
    writer.life("a")
    auditlog.drain(Mirror(source, postgres, QUEUE))
    before = auditlog.events(postgres, QUEUE)
    assert in_default(postgres) == len(before)

    made, left = create_ahead(postgres, writer.now_ms)

    assert month_of(writer.now_ms) in made
    assert left == {}
    assert in_default(postgres) == 0
    assert auditlog.events(postgres, QUEUE) == before
    writer.life("b")
    auditlog.drain(Mirror(source, postgres, QUEUE))
    assert verify(postgres).verdict is LogVerdict.HOLDS
    for table in ("job_event", "job_event_default", month_of(writer.now_ms).table):
        with postgres.writing() as connection, pytest.raises(DBAPIError, match="append-only"):
            assert connection is not None
            connection.execute(text(f"TRUNCATE {table}"))


def test_a_mirror_leaves_a_large_default_partition_to_the_audit_migrate_command(
    postgres: Database, writer: StreamWriter, source: Any
) -> None:
    writer.life("a")
    auditlog.drain(Mirror(source, postgres, QUEUE))
    rows = in_default(postgres)

    ahead = create_ahead(postgres, writer.now_ms, moved_max=rows - 1)

    assert "rq-core audit migrate" in ahead.left[month_of(writer.now_ms)]
    assert in_default(postgres) == rows
    assert create_ahead(postgres, writer.now_ms, moved_max=None).left == {}
    assert in_default(postgres) == 0


@pytest.mark.slow
def test_a_mirror_that_cannot_create_a_partition_because_of_a_reader_logs_it_once_and_tries_again(
    postgres: Database, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "PARTITIONS_AGAIN_S", 0.0)
    caplog.set_level("INFO", "rq_core.audit")
    working = service.Service(None, postgres)  # type: ignore[arg-type] - it asks Redis nothing here
    with postgres.readers.connect() as reader:
        reader.execute(text("SELECT COUNT(*) FROM job_event"))
        working._make_partitions()
        working._make_partitions()
    said = [record.message for record in caplog.records]
    assert len(said) == len(set(said)) == 3, "each once, however often it is tried"
    assert all("no partition: canceling statement due to lock timeout" in each for each in said)

    working._make_partitions()

    assert len(months(postgres)) == 3
    assert caplog.records[-1].message.endswith("has its partition")


@pytest.mark.slow
def test_dropping_an_old_month_keeps_the_rows_that_are_still_needed(
    postgres: Database, writer: StreamWriter, source: Any
) -> None:
    mirror = Mirror(source, postgres, QUEUE, limits=BatchLimits(events=20))
    create_ahead(postgres, writer.now_ms)
    first = month_of(writer.now_ms)
    two_seasons(writer, mirror)
    create_ahead(postgres, writer.now_ms)
    count = f"SELECT COUNT(*) AS n FROM {first.table}"
    before = auditlog.one(postgres, count)["n"]

    (done,) = prune_at(postgres, writer.now_ms)

    kept = auditlog.one(postgres, count)["n"]
    assert 0 < kept < before
    assert done.events >= before - kept
    assert verify(postgres).verdict is LogVerdict.HOLDS
    with postgres.writing() as connection:
        assert connection is not None
        for statement in (f"DELETE FROM {first.table}", f"TRUNCATE {first.table}"):
            with pytest.raises(DBAPIError, match="append-only"), connection.begin_nested():
                connection.execute(text(statement))


def test_a_month_is_dropped_once_none_of_its_rows_is_needed(
    postgres: Database, writer: StreamWriter, source: Any
) -> None:
    mirror = Mirror(source, postgres, QUEUE, limits=BatchLimits(events=20))
    writer.life("begins")  # the epoch's beginning is kept for ever, in the default partition
    auditlog.drain(mirror)
    writer.now_ms = Month(2027, 1).begin_ms
    create_ahead(postgres, writer.now_ms)
    writer.life(*(f"{n}" for n in range(30)))
    auditlog.drain(mirror)
    days(writer, 130)
    writer.life("later")
    auditlog.drain(mirror)
    writer.life("last")
    auditlog.drain(mirror)

    (done,) = prune_at(postgres, writer.now_ms)

    assert (done.jobs, done.kept_events) == (31, 1)
    assert months(postgres) == [Month(2027, 2), Month(2027, 3)]
    assert verify(postgres).verdict is LogVerdict.HOLDS


def test_an_event_is_refused_if_its_entry_number_exists_in_another_month(
    postgres: Database, writer: StreamWriter, source: Any
) -> None:
    """Checks an event with a used number and another time. The table's own key includes the time, and would allow the
    event."""
    from sql_audit.errors import PlaceTaken
    from sql_audit.store.connection.copy import EventRows

    create_ahead(postgres, writer.now_ms)
    writer.life("a")
    auditlog.drain(Mirror(source, postgres, QUEUE))
    row = (QUEUE, writer.epoch, 2, 0, "pruned", 1, "z", None, "w", None, None)

    with postgres.writing() as connection:
        assert connection is not None
        with pytest.raises(PlaceTaken, match=f"{writer.epoch}-2"):
            postgres.insert_events(connection, EventRows([row]), lambda: None)
