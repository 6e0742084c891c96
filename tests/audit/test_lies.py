"""`audit verify` finds a false value in every column that people read.

The tests take the tables and columns from the schema.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import pytest
from sqlalchemy import Column, Table, text

from sql_audit.mirror.reading import BatchLimits
from sql_audit.mirror.turn import Mirror
from sql_audit.proof.result import LogVerdict
from sql_audit.proof.verify import verify
from sql_audit.store.connection.database import Database
from sql_audit.store.schema.tables import metadata
from tests.kit import auditlog
from tests.kit.liar import lying
from tests.kit.outbox import StreamWriter
from tests.kit.story import Story
from tests.rigs.lies.kinds import lie_about

PROVED: Final = (
    "job", "job_attempt", "claim_minute", "mirror_cursor", "mirror_epoch", "mirror_loss",
    "mirror_batch", "quarantine", "job_event",
)  # fmt: skip
"""The tables in which every column is proved, except for the columns in WITHOUT_PROOF."""

ELSEWHERE: Final = {
    "audit_meta": "the name of the database: every chain begins with its hash",
    "mirror_proof": "what verify itself wrote, for people: nothing else goes by it",
    "mirror_prune": "a prune's own record; its cut and what it left are compared: test_prune.py",
}

WITHOUT_PROOF: Final = {
    ("mirror_epoch", "id"): "the order of rows; what order they have is proved",
    ("mirror_loss", "id"): "the order of rows; what order they have is proved",
    ("quarantine", "id"): "the order of rows; what order they have is proved",
    ("mirror_cursor", "prefix"): "Redis knows it: with another one the mirror and --redis refuse: test_sources.py",
    ("mirror_cursor", "stamp"): "Redis has the same: with another one the mirror and --redis refuse: test_sources.py",
}  # fmt: skip
"""The columns in which verify finds no false value, each with the reason."""

COLUMNS: Final = [
    (table, column)
    for table in (metadata.tables[name] for name in PROVED)
    for column in table.columns
    if (table.name, column.name) not in WITHOUT_PROOF
]


@dataclass
class Log:
    """A log with rows in each table. Its writes bypass the protections of the schema."""

    database: Database
    poison: Callable[[], None]
    """A function that makes the mirror put an entry into quarantine."""

    def rows(self, table: Table) -> list[dict[str, Any]]:
        key = ", ".join(column.name for column in table.primary_key)
        return auditlog.rows(self.database, f"SELECT * FROM {table.name} ORDER BY {key}")

    def put(self, table: Table, row: dict[str, Any]) -> None:
        """Insert a row without checks by the database."""
        self.run(table.insert(), row)

    def remove(self, table: Table, row: dict[str, Any]) -> None:
        values = {f"is_{column.name}": row[column.name] for column in table.primary_key}
        condition = " AND ".join(f"{name[3:]} = :{name}" for name in values)
        self.run(text(f"DELETE FROM {table.name} WHERE {condition}"), values)

    def run(self, statement: Any, values: dict[str, Any]) -> None:
        with lying(self.database) as connection:
            connection.execute(statement, values)

    def verdict(self) -> LogVerdict:
        return verify(self.database).verdict


@pytest.fixture
def log(writer: StreamWriter, make_mirror: Callable[..., Mirror], database: Database) -> Log:
    """Return a log with caps, failures, running claims, and a loss of all data in Redis."""
    mirror = make_mirror(limits=BatchLimits(events=25))
    Story(writer, seed=7).run(120)
    auditlog.drain(mirror)
    writer.source.redis.delete(writer.keys("outbox"))
    writer.begin(writer.epoch + 1_000, "created")
    Story(writer, seed=8).run(150)
    auditlog.drain(mirror)

    def poison() -> None:
        writer.raw({"type": "unheard of", "by": "w-1"})
        auditlog.drain(mirror)

    return Log(database, poison)


def lies(rows: list[dict[str, Any]], column: Column[Any]) -> Iterator[tuple[dict[str, Any], Any]]:
    """Yield rows, each with a copy that has a false value in the column.

    If any row has a value in the column, rows without a value are left out.
    """
    saying = [row for row in rows if row[column.name] is not None] or rows
    names = [key.name for key in column.table.primary_key]
    keys = {tuple(row[name] for name in names) for row in rows}
    for row in saying[len(saying) // 2 :] + saying:
        lie = {**row, column.name: lie_about(column, row[column.name])}
        if not column.primary_key or tuple(lie[name] for name in names) not in keys:
            yield row, lie


@pytest.mark.parametrize("name", PROVED)
def test_verify_finds_a_changed_value_in_any_column(log: Log, name: str) -> None:
    table = metadata.tables[name]
    if name == "quarantine":
        log.poison()
    honest = log.verdict()
    assert honest is not LogVerdict.VIOLATED
    rows = log.rows(table)
    assert rows, f"{name} is empty: a lie about nothing proves nothing"

    for column in (column for of, column in COLUMNS if of is table):
        row, lie = next(lies(rows, column))
        log.remove(table, row)
        log.put(table, lie)
        assert log.verdict() is LogVerdict.VIOLATED, f"{name}.{column.name}: {lie}"
        log.remove(table, lie)
        log.put(table, row)
    assert log.verdict() is honest


@pytest.mark.parametrize("name", PROVED)
def test_verify_finds_a_removed_or_added_row(log: Log, name: str) -> None:
    table = metadata.tables[name]
    if name == "quarantine":
        log.poison()
    row = log.rows(table)[-1]
    keys = sorted(table.primary_key.columns.values(), key=lambda column: column.name == "queue")
    there = {tuple(each[key.name] for key in keys) for each in log.rows(table)}
    lies = ({**row, key.name: lie_about(key, row[key.name])} for key in keys)
    made_up = next(lie for lie in lies if tuple(lie[key.name] for key in keys) not in there)

    log.remove(table, row)
    assert log.verdict() is LogVerdict.VIOLATED
    log.put(table, row)
    log.put(table, made_up)
    assert log.verdict() is LogVerdict.VIOLATED


def test_every_table_is_proven_by_verify_or_is_exempt_with_a_reason() -> None:
    assert {*PROVED, *ELSEWHERE} == set(metadata.tables)
    assert {name for name, _ in WITHOUT_PROOF} <= set(PROVED)
