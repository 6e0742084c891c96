"""The kinds of lies. A lie is a change that a user with all rights can make.

A lie changes the audit database, or the box of a durable job in Redis. Each kind is a function that yields lies. Most
kinds are derived from the tables and columns of the schema, and only assume that each table has rows.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from sqlalchemy import Column, Connection, LargeBinary, Table, Text, text

from sql_audit.store.schema.tables import APPEND_ONLY, EVERYDAY_INDEXES, in_dialect, metadata
from sql_audit.store.schema.triggers import triggers
from sql_audit.store.schema.views import views
from tests.rigs.lies.durable_kinds import box_forged, step_forged

Row = dict[str, Any]
QUEUE: Final = "q"
"""The queue about which the lies are."""
OTHER: Final = "held"
"""A second queue that is also mirrored."""

OTHER_WORDS: Final = {
    ("job", "state"): ("dead", "ready"),
    ("job", "priority"): ("low", "high"),
    ("job_attempt", "outcome"): ("succeeded", "lost"),
    ("claim_minute", "outcome"): ("succeeded", "lost"),
    ("claim_minute", "minute_ms"): (60_000, 120_000),
    ("mirror_epoch", "kind"): ("gap", "changed"),
    ("mirror_loss", "kind"): ("orphaned", "restated"),
    ("mirror_proof", "verdict"): ("holds", "unknown"),
    ("mirror_prune", "kind"): ("begun", "done"),
    ("quarantine", "kind"): ("refused", "sanitised"),
    ("job_event", "type"): ("promoted", "pruned"),
    ("job", "complete"): (0, 1),
}
"""Two values that the CHECK of a column allows. The second value is for rows that have the first value."""


class Lie(NamedTuple):
    """A false statement in the audit database or in a box in Redis. The function ``tell`` writes it."""

    kind: str
    about: str
    tell: Callable[[Any], None]
    in_rows: bool = True
    """True if the lie changes rows, so that the chain can be computed again to match the lie."""
    in_redis: bool = False
    """True if the lie changes a box in Redis, and nothing in SQL."""


class Log(NamedTuple):
    """The rows of the audit database before any lie, by table."""

    dialect: str
    rows: Mapping[str, Sequence[Row]]

    def of_queue(self, table: Table) -> Sequence[Row]:
        rows = self.rows[table.name]
        return [row for row in rows if row.get("queue") == QUEUE] or rows


Kind = Callable[[Log], Iterator[tuple[str, Callable[[Connection], None]]]]


def lie_about(column: Column[Any], was: Any) -> Any:
    """Return a false value for a column of a row. ``was`` is the row's true value."""
    name = (column.table.name, column.name)
    if name in OTHER_WORDS:
        one, other = OTHER_WORDS[name]
        return other if was == one else one
    if isinstance(column.type, LargeBinary):
        return b"another" if was is None else bytes(was) + b"?"
    if isinstance(column.type, Text):
        return "another" if was is None else f"{was}?"
    return 1 if was is None else was + (1_000_003 if column.primary_key else 1)


def replaced(table: Table, was: Row, new: Row) -> Callable[[Connection], None]:
    def tell(connection: Connection) -> None:
        remove(connection, table, was)
        connection.execute(table.insert(), new)

    return tell


def removed(table: Table, row: Row) -> Callable[[Connection], None]:
    return lambda connection: remove(connection, table, row)


def added(table: Table, row: Row) -> Callable[[Connection], None]:
    values = {name: value for name, value in row.items() if name != "id"}

    def tell(connection: Connection) -> None:
        connection.execute(table.insert(), values)

    return tell


def remove(connection: Connection, table: Table, row: Row) -> None:
    keys = {key.name: row[key.name] for key in table.primary_key}
    where = " AND ".join(f"{name} = :{name}" for name in keys)
    connection.execute(text(f"DELETE FROM {table.name} WHERE {where}"), keys)


def _columns(log: Log) -> Iterator[tuple[Table, Column[Any], Row]]:
    """Yield each column of each table, with a row. A row with a value in the column is preferred."""
    for table in metadata.sorted_tables:
        rows = log.of_queue(table)
        for column in table.columns:
            saying = [row for row in rows if row[column.name] is not None] or rows
            if saying:
                yield table, column, saying[len(saying) // 2]


def _of_schedules(log: Log) -> dict[str, Row]:
    """Return the last event of each type about schedules, by type."""
    rows = log.of_queue(metadata.tables["job_event"])
    return {row["type"]: row for row in rows if row["type"] in ("ticked", "schedule_changed")}


def _about(table: Table, column: Column[Any]) -> str:
    return f"{table.name}.{column.name}"


def another_value(log: Log) -> Iterator[tuple[str, Callable[[Connection], None]]]:
    for table, column, row in _columns(log):
        lie = {**row, column.name: lie_about(column, row[column.name])}
        yield _about(table, column), replaced(table, row, lie)
    table = metadata.tables["job_event"]
    for of, row in _of_schedules(log).items():
        for column in table.columns:
            lie = {**row, column.name: lie_about(column, row[column.name])}
            yield f"{_about(table, column)} of {of}", replaced(table, row, lie)


def no_value(log: Log) -> Iterator[tuple[str, Callable[[Connection], None]]]:
    for table, column, row in _columns(log):
        if column.nullable and row[column.name] is not None:
            yield _about(table, column), replaced(table, row, {**row, column.name: None})


def least_value(log: Log) -> Iterator[tuple[str, Callable[[Connection], None]]]:
    for table, column, row in _columns(log):
        least: Any = "" if isinstance(column.type, Text) else -1
        if (table.name, column.name) not in OTHER_WORDS and not isinstance(
            column.type, LargeBinary
        ):
            yield _about(table, column), replaced(table, row, {**row, column.name: least})


def largest_value(log: Log) -> Iterator[tuple[str, Callable[[Connection], None]]]:
    for table, column, row in _columns(log):
        if isinstance(column.type, Text | LargeBinary) or column.name in ("one", "complete", "id"):
            continue
        yield _about(table, column), replaced(table, row, {**row, column.name: 2**62})


def row_removed(log: Log) -> Iterator[tuple[str, Callable[[Connection], None]]]:
    for table in metadata.sorted_tables:
        rows = log.of_queue(table)
        for place, row in (
            ("first", rows[0]),
            ("middle", rows[len(rows) // 2]),
            ("last", rows[-1]),
        ):
            yield f"{table.name}, {place}", removed(table, row)
    for of, row in _of_schedules(log).items():
        yield f"job_event, last {of}", removed(metadata.tables["job_event"], row)


def row_made_up(log: Log) -> Iterator[tuple[str, Callable[[Connection], None]]]:
    """Yield lies that add a row: a copy of a true row with another key, or with a key below all true keys."""
    for table in metadata.sorted_tables:
        row = log.of_queue(table)[-1]
        for key in table.primary_key:
            if key.name == "one":
                continue
            beside = {**row, key.name: lie_about(key, row[key.name])}
            yield f"{table.name}, {key.name}", added(table, beside)
            if not isinstance(key.type, Text) and key.name != "id":
                for least in (0, -1, -(2**62)):
                    yield (
                        f"{table.name}, {key.name} {least}",
                        added(table, {**row, key.name: least}),
                    )
    table = metadata.tables["job_event"]
    for of, row in _of_schedules(log).items():
        for name in ("seq", "ordinal"):
            beside = {**row, name: row[name] + 1_000_003}
            yield f"job_event, {name} of {of}", added(table, beside)


def event_says_otherwise(log: Log) -> Iterator[tuple[str, Callable[[Connection], None]]]:
    """Yield lies that change one field of an event, for each type of event.

    Events of schedules are changed for each outcome and each state.
    """
    table = metadata.tables["job_event"]
    last: dict[str, Row] = {}
    for row in log.of_queue(table):
        said = json.loads(row["detail"] or "{}")
        last[f"{row['type']} {said.get('outcome', said.get('state', ''))}".strip()] = row
    for of, row in last.items():
        said = json.loads(row["detail"] or "{}")
        for name, value in said.items():
            other = json.dumps({**said, name: _otherwise(value)}, separators=(",", ":"))
            lie = {**row, "detail": other}
            yield f"job_event.detail, {name} of {of}", replaced(table, row, lie)


def _otherwise(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    return f"{value}?" if isinstance(value, str) else 1


def row_of_another_queue(log: Log) -> Iterator[tuple[str, Callable[[Connection], None]]]:
    for table in metadata.sorted_tables:
        if "queue" in table.columns:
            row = log.of_queue(table)[-1]
            for queue in (OTHER, "ghost", f"{QUEUE} "):
                lie = {**row, "queue": queue}
                yield f"{table.name} to {queue!r}", replaced(table, row, lie)
                yield f"{table.name} for {queue!r}", added(table, lie)


def rows_exchanged(log: Log) -> Iterator[tuple[str, Callable[[Connection], None]]]:
    """Yield lies that exchange the keys of two rows, for each table."""
    for table in metadata.sorted_tables:
        rows = log.of_queue(table)
        one, other = rows[0], rows[-1]
        keys = [key.name for key in table.primary_key]
        if one == other or all(one[name] == other[name] for name in one if name not in keys):
            continue

        def tell(connection: Connection, table=table, one=one, other=other, keys=keys) -> None:  # type: ignore[no-untyped-def]
            remove(connection, table, one)
            remove(connection, table, other)
            connection.execute(table.insert(), {**one, **{name: other[name] for name in keys}})
            connection.execute(table.insert(), {**other, **{name: one[name] for name in keys}})

        yield table.name, tell


def table_emptied(log: Log) -> Iterator[tuple[str, Callable[[Connection], None]]]:
    for table in metadata.sorted_tables:
        where = f" WHERE queue = '{QUEUE}'" if "queue" in table.columns else ""
        yield table.name, _runs(f"DELETE FROM {table.name}{where}")


def queue_removed(log: Log) -> Iterator[tuple[str, Callable[[Connection], None]]]:
    tables = [table.name for table in metadata.sorted_tables if "queue" in table.columns]
    yield QUEUE, _runs(*(f"DELETE FROM {name} WHERE queue = '{QUEUE}'" for name in tables))


def end_cut_off(log: Log) -> Iterator[tuple[str, Callable[[Connection], None]]]:
    """Yield the lie that the last batch never came. It removes the batch and its events, and sets the cursor back."""
    batches = [row for row in log.rows["mirror_batch"] if row["queue"] == QUEUE]
    last, before = batches[-1], batches[-2]
    moved = {
        "epoch": before["last_epoch"],
        "seq": before["last_seq"],
        "batch": before["batch"],
        "anchor": before["anchor"],
    }
    moved |= {"trim_jobs": before["jobs"], "trim_bytes": before["bytes"], "head": before["head"]}

    def tell(connection: Connection) -> None:
        remove(connection, metadata.tables["mirror_batch"], last)
        first = {"epoch": last["first_epoch"], "seq": last["first_seq"], "queue": QUEUE}
        later = "queue = :queue AND (epoch, seq) >= (:epoch, :seq)"
        connection.execute(text(f"DELETE FROM job_event WHERE {later}"), first)
        sets = ", ".join(f"{name} = :{name}" for name in moved)
        sums = ", ".join(
            f"{name} = {name} - {last[name]}" for name in ("entries", "events", "bytes")
        )
        at = "at_ms = (SELECT MAX(at_ms) FROM job_event WHERE queue = :queue)"
        connection.execute(
            text(f"UPDATE mirror_cursor SET {sets}, {sums}, {at} WHERE queue = :queue"),
            {**moved, "queue": QUEUE},
        )

    yield QUEUE, tell


def _runs(*statements: str) -> Callable[[Connection], None]:
    def tell(connection: Connection) -> None:
        for statement in statements:
            connection.execute(text(statement.replace(":", r"\:")))

    return tell


# Lies of the schema.


def view_changed(log: Log) -> Iterator[tuple[str, Callable[[Connection], None]]]:
    made = views(log.dialect)
    for name, statement in made.items():
        head, _, query = statement.partition(" AS ")
        lying = f"{head} AS SELECT * FROM ({query}) AS it WHERE queue <> '{QUEUE}'"
        drop = f"DROP VIEW {name}"
        if name == "orphaned_range":
            drop, lying = (
                f"DROP VIEW job_event_orphaned; {drop}",
                f"{lying}; {made['job_event_orphaned']}",
            )
        yield name, _runs(*drop.split("; "), *lying.split("; "))
        yield f"{name}, dropped", _runs(*drop.split("; "))


def trigger_removed(log: Log) -> Iterator[tuple[str, Callable[[Connection], None]]]:
    for table in (each.name for each in APPEND_ONLY):
        for statement in triggers(log.dialect, table):
            name = statement.split()[2]
            on = f" ON {table}" if log.dialect == "postgresql" else ""
            yield name, _runs(f"DROP TRIGGER {name}{on}")
            if on:
                yield f"{name}, disabled", _runs(f"ALTER TABLE {table} DISABLE TRIGGER {name}")


def trigger_added(log: Log) -> Iterator[tuple[str, Callable[[Connection], None]]]:
    for table in metadata.tables:
        does = (
            "BEGIN SELECT 1\\; END"
            if log.dialect == "sqlite"
            else "EXECUTE FUNCTION audit_refuse()"
        )
        yield (
            table,
            _runs(
                f"CREATE TRIGGER more BEFORE INSERT ON {table} FOR EACH ROW {does}".replace(
                    "\\;", ";"
                )
            ),
        )


def _indexes() -> Iterator[tuple[str, str, str]]:
    """Yield each index: its name, its table, and the statement that creates it."""
    for table in metadata.tables.values():
        for index in table.indexes:
            keys = ", ".join(column.name for column in index.columns)
            yield str(index.name), table.name, f"CREATE INDEX {index.name} ON {table.name} ({keys})"
    for statement in EVERYDAY_INDEXES:
        words = statement.split()
        yield words[2], words[4], statement


def index_removed(log: Log) -> Iterator[tuple[str, Callable[[Connection], None]]]:
    for name, _, _ in _indexes():
        yield name, _runs(f"DROP INDEX {name}")


def index_lacks_rows(log: Log) -> Iterator[tuple[str, Callable[[Connection], None]]]:
    """Yield lies that replace an index by an empty one. In the catalogue the index looks unchanged."""
    for name, table, neutral in _indexes():
        statement = in_dialect(log.dialect, neutral)
        column = "job_id" if "job_id" in metadata.tables[table].columns else "queue"
        lacking = f"{statement} {'AND' if ' WHERE ' in statement else 'WHERE'} {column} = 'none'"
        if log.dialect == "sqlite":
            yield name, _runs(
                f"DROP INDEX {name}", lacking, "PRAGMA writable_schema = ON",
                f"UPDATE sqlite_master SET sql = '{statement.replace(chr(39), chr(39) * 2)}' WHERE name = '{name}'",
            )  # fmt: skip
        elif " WHERE " not in statement:
            yield name, _runs(
                f"DROP INDEX {name}", lacking,
                "UPDATE pg_index SET indpred = NULL WHERE indexrelid IN (SELECT oid FROM pg_class WHERE relname = "
                f"'{name}' OR oid IN (SELECT inhrelid FROM pg_inherits WHERE inhparent = '{name}'::regclass))",
            )  # fmt: skip


def rows_hidden(log: Log) -> Iterator[tuple[str, Callable[[Connection], None]]]:
    if log.dialect == "postgresql":
        for table in metadata.tables:
            yield (
                f"{table}, row-level security",
                _runs(f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY"),
            )
            if table != "job_event":
                yield (
                    f"{table}, a rule",
                    _runs(f"CREATE RULE more AS ON INSERT TO {table} DO INSTEAD NOTHING"),
                )
                yield f"{table}, inherited", _runs(f"CREATE TABLE more () INHERITS ({table})")


def constraint_removed(log: Log) -> Iterator[tuple[str, Callable[[Connection], None]]]:
    if log.dialect == "postgresql":
        for table in metadata.tables.values():
            for name in dict.fromkeys(str(each.name) for each in table.constraints if each.name):
                yield name, _runs(f"ALTER TABLE {table.name} DROP CONSTRAINT {name}")


def column_removed(log: Log) -> Iterator[tuple[str, Callable[[Connection], None]]]:
    for table in metadata.tables.values():
        for column in table.columns:
            if not column.primary_key:
                yield (
                    _about(table, column),
                    _runs(f"ALTER TABLE {table.name} RENAME COLUMN {column.name} TO other"),
                )


OF_ROWS: Final[Mapping[str, Kind]] = {
    "a column has another value": another_value,
    "a column has no value": no_value,
    "a column has the least value": least_value,
    "a column has the largest value": largest_value,
    "a row is removed": row_removed,
    "a row is made up": row_made_up,
    "a row belongs to another queue": row_of_another_queue,
    "an event says something else": event_says_otherwise,
    "two rows are exchanged": rows_exchanged,
    "a queue's rows of a table are removed": table_emptied,
    "a queue is removed": queue_removed,
    "the last batch is cut off": end_cut_off,
    "an event of a durable job says something else": step_forged,
}
"""The kinds of lies in rows. To add a kind, add its function here."""

OF_SCHEMA: Final[Mapping[str, Kind]] = {
    "a view is changed or removed": view_changed,
    "a trigger is removed or disabled": trigger_removed,
    "a trigger is added": trigger_added,
    "an index is removed": index_removed,
    "an index lacks rows": index_lacks_rows,
    "rows are hidden or added (PostgreSQL)": rows_hidden,
    "a constraint is removed (PostgreSQL)": constraint_removed,
    "a column is renamed": column_removed,
}
"""The kinds of lies in the schema."""

OF_REDIS: Final[Mapping[str, Any]] = {"the box of a durable job in Redis is changed": box_forged}
"""The kinds of lies in Redis."""


def lies(log: Log) -> Iterator[Lie]:
    """Yield all lies of all kinds."""
    for kinds in (OF_ROWS, OF_SCHEMA, OF_REDIS):
        for kind, made in kinds.items():
            for about, tell in made(log):
                yield Lie(kind, about, tell, kinds is OF_ROWS, kinds is OF_REDIS)
