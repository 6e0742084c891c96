"""PostgreSQL's partitions: months that are made ahead, kept, and dropped."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from sql_audit.mirror.reading import BatchLimits
from sql_audit.mirror.turn import Mirror
from sql_audit.proof.result import Verdict
from sql_audit.proof.verify import verify
from sql_audit.store.database import Database
from sql_audit.store.partitions import Month, create_ahead, month_of, partitions
from tests.audit.conftest import QUEUE
from tests.audit.pruning import days, prove, prune_at, two_seasons
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


def test_months_are_made_ahead_once(postgres: Database) -> None:
    december = Month(2026, 12)

    made = create_ahead(postgres, december.begin_ms + 1)

    assert made == [december, Month(2027, 1), Month(2027, 2)] == months(postgres)
    assert create_ahead(postgres, december.end_ms - 1) == []
    assert create_ahead(postgres, december.end_ms) == [Month(2027, 3)]


def test_a_month_that_is_in_the_default_partition_stays_there(
    postgres: Database, writer: StreamWriter, source: Any
) -> None:
    writer.life("a")
    auditlog.drain(Mirror(source, postgres, QUEUE))

    made = create_ahead(postgres, writer.now_ms)

    assert month_of(writer.now_ms) not in made
    assert len(made) == 2
    writer.life("b")
    auditlog.drain(Mirror(source, postgres, QUEUE))
    assert verify(postgres).verdict is Verdict.HOLDS


def test_an_old_month_is_dropped_but_for_what_is_kept(
    postgres: Database, writer: StreamWriter, source: Any
) -> None:
    mirror = Mirror(source, postgres, QUEUE, limits=BatchLimits(events=20))
    create_ahead(postgres, writer.now_ms)
    first = month_of(writer.now_ms)
    two_seasons(writer, mirror)
    create_ahead(postgres, writer.now_ms)
    prove(postgres)
    count = f"SELECT COUNT(*) AS n FROM {first.table}"
    before = auditlog.one(postgres, count)["n"]

    (done,) = prune_at(postgres, writer.now_ms)

    kept = auditlog.one(postgres, count)["n"]
    assert 0 < kept < before
    assert done.events >= before - kept
    assert verify(postgres).verdict is Verdict.HOLDS
    with postgres.writing() as connection:
        assert connection is not None
        for statement in (f"DELETE FROM {first.table}", f"TRUNCATE {first.table}"):
            with pytest.raises(DBAPIError, match="append-only"), connection.begin_nested():
                connection.execute(text(statement))


def test_a_month_of_which_nothing_is_kept_is_gone(
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
    prove(postgres)

    (done,) = prune_at(postgres, writer.now_ms)

    assert (done.jobs, done.kept_events) == (31, 1)
    assert months(postgres) == [Month(2027, 2), Month(2027, 3)]
    assert verify(postgres).verdict is Verdict.HOLDS


def test_a_number_is_taken_whatever_its_month(
    postgres: Database, writer: StreamWriter, source: Any
) -> None:
    """The key of a partitioned table has the time in it; the number alone must not come twice."""
    from sql_audit.errors import PlaceTaken
    from sql_audit.store.copy import EventRows

    create_ahead(postgres, writer.now_ms)
    writer.life("a")
    auditlog.drain(Mirror(source, postgres, QUEUE))
    row = (QUEUE, writer.epoch, 2, 0, "pruned", 1, "z", None, "w", None, None)

    with postgres.writing() as connection:
        assert connection is not None
        with pytest.raises(PlaceTaken, match=f"{writer.epoch}-2"):
            postgres.insert_events(connection, EventRows([row]), lambda: None)
