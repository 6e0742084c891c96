"""Finds the ids and names that Redis must keep after their jobs have ended, so that those that it has forgotten can be
restored.

Redis remembers an id until a time that the job's producer set, its window. A unique name may be held until a fixed time
(Throttle). A job's row has both times. If Redis forgot the job's end, the end is in the job's events
(:func:`sql_audit.upkeep.lost.job_logs`).

An id without a job cannot be found: if a call gets the job that holds the unique name, the call's own id is in no
event.
"""

# ruff: noqa: S608 - a statement is joined from the schema's own words; values are bound

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from sqlalchemy import Connection, text

from rq_core.model.events import OutboxId
from rq_core.model.idempotency import result_line
from rq_core.model.table.machine import Event
from rq_core.model.unique_names import read_stands
from rq_core.protocol.calls.audit import Restoration, remember, stand_again
from sql_audit.store.schema.tables import UNTIL, UNTIL_ZEROS
from sql_audit.store.storable_text import read_details

OUTCOMES: Final = {
    Event.SUCCEEDED: "succeeded",
    Event.CANCELLED: "cancelled",
    Event.EXPIRED: "expired",
    Event.PRUNED: "dead",
}
"""By type of the event with which a job left Redis: the outcome that Redis' key ``results`` has for the job."""

_ENDED: Final = text(
    "SELECT job_id, state, claims, once_ms, call_digest, COALESCE(finished_at_ms, since_ms) AS at_ms FROM job "
    "WHERE queue = :queue AND once_ms > :now AND last_epoch > :deleted AND (claims > 0 OR state = 'removed') "
    # In the order of their ends: results that are put back together then come from few batches of the log.
    "AND state IN ('succeeded', 'cancelled', 'expired', 'pruned', 'removed') ORDER BY at_ms, job_id"
)
_NAMED: Final = text(
    "SELECT job_id, unique_name, name_stands FROM job "
    # A job with an instant always has a name. With a condition on the name, SQLite would use the index of all names.
    f"WHERE queue = :queue AND name_stands LIKE 'until:%' AND {UNTIL} > :now AND last_epoch > :deleted "
    "AND state IN ('succeeded', 'cancelled', 'expired', 'pruned', 'removed') "
    "ORDER BY enqueued_at_ms DESC, job_id"
)
_DELETED: Final = text(
    "SELECT MAX(e.epoch) FROM (SELECT DISTINCT epoch FROM mirror_epoch WHERE queue = :queue) e "
    "WHERE (SELECT type FROM job_event j WHERE j.queue = :queue AND j.epoch = e.epoch "
    "ORDER BY j.seq DESC, j.ordinal DESC LIMIT 1) = :event"
)
"""A query for the last epoch that ended because an operator deleted the queue. Ids and names up to this epoch are not
restored."""
_REMOVED: Final = text(
    "SELECT epoch, seq, detail FROM job_event WHERE queue = :queue AND job_id = :job AND type = 'removed' "
    "ORDER BY epoch DESC, seq DESC LIMIT 1"
)


def in_force(connection: Connection, queue: str, now_ms: int) -> Iterator[Restoration]:
    """Yield a record for each id of an ended job that the queue must remember after ``now_ms`` (Unix ms).

    Raise RowDamaged if an event cannot be read.
    """
    of_queue: dict[str, Any] = {"queue": queue}
    asked = {**of_queue, "now": now_ms, "deleted": _deleted(connection, queue)}
    for row in connection.execute(_ENDED, asked).all():
        event = row.state
        if event == Event.REMOVED:
            told = connection.execute(_REMOVED, {**of_queue, "job": row.job_id}).one_or_none()
            event = told and read_details(told.detail, queue, OutboxId(*told[:2])).get("reason")
        record = forgotten(
            row.job_id, event, row.at_ms, row.once_ms, row.call_digest, claimed=row.claims > 0
        )
        if record is not None:
            yield record


def names_in_force(connection: Connection, queue: str, now_ms: int) -> dict[str, Restoration]:
    """Return, by unique name, a record for each name that an ended job holds until a fixed time after ``now_ms`` (Unix
    ms).

    If several jobs had the name, the last of these jobs holds it.
    """
    found: dict[str, Restoration] = {}
    asked = {
        "queue": queue,
        "deleted": _deleted(connection, queue),
        "now": f"{now_ms:0{len(UNTIL_ZEROS)}}",
    }
    for row in connection.execute(_NAMED, asked):
        record = name_restoration(row.job_id, row.unique_name, row.name_stands, now_ms)
        if record is not None:
            found.setdefault(row.unique_name, record)
    return found


def name_restoration(
    job_id: str, name: str | None, stands: str | None, now_ms: int
) -> Restoration | None:
    """Return the record that gives an ended job its unique name again.

    Return None if the job has no name, or does not hold it until an instant after ``now_ms`` (Unix ms).
    """
    if name is None:
        return None
    how, until_ms = read_stands(stands)
    if how != "until" or until_ms is None or until_ms <= now_ms:
        return None
    return stand_again(job_id, name, until_ms)


def _deleted(connection: Connection, queue: str) -> int:
    asked = {"queue": queue, "event": str(Event.QUEUE_DELETED)}
    found = connection.execute(_DELETED, asked).scalar()
    return -1 if found is None else int(found)


def forgotten(
    job_id: str,
    event: str | None,
    at_ms: int | None,
    once_ms: int | None,
    call: str | None,
    *,
    claimed: bool,
    fence: str | None = None,
) -> Restoration | None:
    """Return the record that makes Redis remember the id of an ended job; None if the id is free.

    ``event`` ended the job at ``at_ms``, and the id is remembered until ``once_ms`` (both Unix ms). ``call`` is the
    digest of the call. ``claimed`` is True if the job was ever claimed; this matters only for cancelled and expired
    jobs.
    """
    outcome = OUTCOMES.get(Event(event)) if event in set(Event) else None
    if once_ms is None or outcome is None:
        return None
    if not claimed and outcome in ("cancelled", "expired"):
        return None
    line = result_line(outcome, at_ms or 0, once_ms, fence=fence, call=call)
    return remember(job_id, once_ms, line)
