"""Reads an audit database for tests, and asserts that its rows are right."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy import text

from rq_core.model.events import OutboxId, decode
from rq_core.model.table.event_fields import JOB_EVENT_FIELDS, QUEUE_EVENT_FIELDS
from rq_core.model.table.machine import Event
from sql_audit.mirror.turn import Mirror, TurnOutcome
from sql_audit.queries.history import audit_id
from sql_audit.store.chain import Link, found_digest, genesis, rows_digest
from sql_audit.store.connection.copy import copy_text
from sql_audit.store.connection.database import Database
from sql_audit.store.schema.tables import EVENT_COLUMNS


def drain(mirror: Mirror, turns: int = 1000) -> int:
    """Let the mirror copy entries until none is left. Return the number of copied events."""
    events = 0
    for _ in range(turns):
        turn = mirror.turn()
        events += turn.events
        if turn.outcome is TurnOutcome.IDLE:
            return events
    raise AssertionError(f"not idle after {turns} turns")


def rows(database: Database, statement: str, **values: Any) -> list[dict[str, Any]]:
    """Return the rows of a query as dicts."""
    with database.readers.connect() as connection:
        return [dict(row) for row in connection.execute(text(statement), values).mappings()]


def one(database: Database, statement: str, **values: Any) -> dict[str, Any]:
    (row,) = rows(database, statement, **values)
    return row


def events(database: Database, queue: str) -> list[dict[str, Any]]:
    columns = ", ".join(EVENT_COLUMNS)
    return rows(
        database,
        f"SELECT {columns} FROM job_event WHERE queue = :q ORDER BY epoch, seq, ordinal",
        q=queue,
    )


Told = tuple[str, str, int, str, str | None, tuple[tuple[str, Any], ...]]
"""The content of an event: the id of its entry, the event, its time, actor and reason, and its fields."""


def told_by_stream(log: Iterable[tuple[str, Mapping[str, bytes]]]) -> list[Told]:
    """Return the events of these stream entries, decoded by rq_core.model.events."""
    told: list[Told] = []
    for entry_id, raw in log:
        entry = decode(entry_id, {name: value.decode() for name, value in raw.items()})
        facts = [event.fields for event in entry.jobs] or [entry.data]
        told += [
            (entry_id, str(entry.event), entry.at_ms, entry.by, entry.why, _frozen(fields))
            for fields in facts
        ]
    return told


def told_by_sql(database: Database, queue: str) -> list[Told]:
    """Return the events of a queue in SQL, in the same form as `told_by_stream`."""
    told: list[Told] = []
    for row in events(database, queue):
        event = Event(row["type"])
        detail = json.loads(row["detail"] or "{}")
        why = detail.pop("why", None)
        names = (JOB_EVENT_FIELDS.get(event) or QUEUE_EVENT_FIELDS[event]) if event else ()
        fields = {field.name: detail.pop(field.name, None) for field in names}
        assert not detail, f"fields that the event does not have: {detail}"
        if event in JOB_EVENT_FIELDS:
            fields["id"] = row["job_id"]
        if event is Event.CLAIMED:
            fields["claim"] = row["claim"]
        if event in (Event.ENQUEUED, Event.BASELINE):
            fields["task"] = row["task"]
        entry_id = str(OutboxId(row["epoch"], row["seq"]))
        told.append((entry_id, str(event), row["at_ms"], row["worker"], why, _frozen(fields)))
    return told


def _frozen(fields: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    return tuple(sorted((name, json.dumps(value)) for name, value in fields.items()))


def assert_minutes_hold(database: Database) -> None:
    """Assert that each row of the table claim_minute has the counts and times of the claims that ended in its
    minute."""
    key = "outcome, minute_ms, queue, task, worker, error_type"
    counted = rows(database, f"SELECT * FROM claim_minute ORDER BY {key}")
    there = rows(
        database,
        "SELECT outcome, ended_at_ms - ended_at_ms % 60000 AS minute_ms, queue, "
        "COALESCE(task, '') AS task, COALESCE(worker, '') AS worker, "
        "COALESCE(error_type, '') AS error_type, COUNT(*) AS claims, "
        "CAST(COALESCE(SUM(waited_ms), 0) AS BIGINT) AS waited_ms, "
        "COALESCE(MAX(waited_ms), 0) AS waited_max_ms, "
        "CAST(COALESCE(SUM(ran_ms), 0) AS BIGINT) AS ran_ms, "
        "COALESCE(MAX(ran_ms), 0) AS ran_max_ms FROM job_attempt "
        f"WHERE outcome IS NOT NULL GROUP BY 1, 2, 3, 4, 5, 6 ORDER BY {key}",
    )

    assert counted == there


def rows_of(batch: dict[str, Any], log: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """Return the events of a batch, in the form from which the batch's digest is computed."""
    first = OutboxId(batch["first_epoch"], batch["first_seq"])
    last = OutboxId(batch["last_epoch"], batch["last_seq"])
    return [
        tuple(row[name] for name in EVENT_COLUMNS)
        for row in log
        if first <= (row["epoch"], row["seq"]) <= last
    ]


def assert_chain_holds(database: Database, queue: str) -> None:
    """Assert that the digest of each batch is right, and that each batch has the chain head of the batch before."""
    log = events(database, queue)
    head = genesis(audit_id(database), queue)
    batches = rows(database, "SELECT * FROM mirror_batch WHERE queue = :q ORDER BY batch", q=queue)
    for number, batch in enumerate(batches, start=1):
        link = Link.of(batch)
        mine = rows_of(batch, log)
        with database.readers.connect() as connection:
            found = found_digest(connection, queue, number)

        assert (rows_digest(copy_text(mine)), found) == (link.digest, link.found)
        assert (head, number, len(mine)) == (link.prev, link.batch, link.events)
        assert link.head == batch["head"]
        head = link.head
    cursor = one(database, "SELECT * FROM mirror_cursor WHERE queue = :q", q=queue)
    assert (head, len(batches), len(log)) == (cursor["head"], cursor["batch"], cursor["events"])
    assert_minutes_hold(database)
