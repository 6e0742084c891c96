"""Finds in the log the results of ended jobs, so that a restore can give them back to Redis with the ids of the jobs.

The log has a result if the task has ``audit_result="full"``. Without its result, a child that has succeeded would have
no value for its parent.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection, bindparam, text

from rq_core.connections.client import Client
from rq_core.model.events import OutboxId
from rq_core.model.idempotency import read_result, with_words
from rq_core.model.lib.text import bytes_of
from rq_core.model.table.machine import Event
from rq_core.model.unique_names import digest_of
from rq_core.protocol.calls.audit import Restoration
from sql_audit.proof.trusted_batches import TrustedBatches
from sql_audit.store.connection.database import Database
from sql_audit.store.storable_text import read_details

CHUNK: Final = 500
"""Maximum number of jobs that one SQL statement reads."""
LEFT_MS: Final = 60_000
"""Minimum milliseconds for which Redis must still keep a result; otherwise the result is not put back."""

_BEGUN: Final = (Event.ENQUEUED, Event.RESTORED, Event.BASELINE)
"""Types of events that say for how long Redis keeps a job's result."""
_EVENTS: Final = text(
    # Without the cast, SQLite would read all events of the queue (see rebuild.py).
    "SELECT type, job_id, epoch, seq, at_ms, task, detail FROM job_event "
    "WHERE CAST(queue AS TEXT) = :queue AND job_id IN :ids AND type IN :types ORDER BY epoch, seq, ordinal"
).bindparams(bindparam("ids", expanding=True), bindparam("types", expanding=True))


class _Logged(NamedTuple):
    """A job's success, with its result, from the log."""

    at: OutboxId
    fence: str
    task: str
    until_ms: int
    """The time (Unix ms) until which the result is kept."""
    value: str


def with_results(
    client: Client, database: Database, queue: str, records: Sequence[Restoration]
) -> list[Restoration]:
    """Return the records of a restore, with the results of ended jobs added to the records of the kind ``remember``.

    A result is added if the log has it, Redis must still keep it, and its event was not changed (I7). Raise RowDamaged
    if an event cannot be read.
    """
    if not any(_may_have_result(record) for record in records):
        return list(records)
    found: list[Restoration] = []
    with database.readers.connect() as connection:
        batches = TrustedBatches(database, connection, queue, None)
        for begin in range(0, len(records), CHUNK):
            chunk = records[begin : begin + CHUNK]
            ids = [record.id for record in chunk if _may_have_result(record)]
            logged = _logged(connection, queue, ids)
            now_ms = _now_ms(client) if logged else 0
            for record in chunk:
                success = None
                if _may_have_result(record):
                    at_ms = read_result(record.id, record.line).at_ms
                    success = logged.get((record.id, at_ms))
                if (
                    success is None
                    or success.until_ms <= now_ms + LEFT_MS
                    or batches.why_not([success.at]) is not None
                ):
                    found.append(record)
                else:
                    found.append(_with_result(record, success))
    return found


def _may_have_result(record: Restoration) -> bool:
    return record.kind == "remember" and record.line.startswith("succeeded ")


def _logged(
    connection: Connection, queue: str, ids: Sequence[str]
) -> dict[tuple[str, int | None], _Logged]:
    """Return the successes whose result the log has, by the job's id and the time (Unix ms) of the success."""
    if not ids:
        return {}
    asked = {"queue": queue, "ids": list(ids), "types": [*map(str, _BEGUN), str(Event.SUCCEEDED)]}
    keep_ms: dict[str, Any] = {}
    found: dict[tuple[str, int | None], _Logged] = {}
    for row in connection.execute(_EVENTS, asked):
        at = OutboxId(row.epoch, row.seq)
        facts = read_details(row.detail, queue, at)
        if row.type != Event.SUCCEEDED:
            keep_ms[row.job_id] = facts.get("keep_ms")
            continue
        value, kept_ms = facts.get("value"), keep_ms.get(row.job_id)
        if not isinstance(value, str) or not isinstance(kept_ms, int):
            continue
        if digest_of(value) == facts.get("value_digest"):
            fence, until_ms = str(facts["fence"]), row.at_ms + kept_ms
            found[row.job_id, row.at_ms] = _Logged(at, fence, row.task, until_ms, value)
    return found


def _with_result(record: Restoration, success: _Logged) -> Restoration:
    """Return the record with the job's result added, and with the result's data in the line that Redis stores for the
    job.
    """
    words = {
        "fence": success.fence,
        "task": success.task,
        "audit": "full",
        "until": str(success.until_ms),
        "bytes": str(len(bytes_of(success.value))),
    }
    line = with_words(record.line, "succeeded", words)
    return record._replace(due_ms=success.until_ms, line=line, spec=success.value)


def _now_ms(client: Client) -> int:
    """Return the time of Redis' clock (Unix ms)."""
    ((seconds, micros),) = client.run(client.calls.delivery.ask([["TIME"]]))
    return int(seconds) * 1000 + int(micros) // 1000
