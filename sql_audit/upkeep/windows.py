"""Ids that are remembered after their jobs' ends, as the log tells it, for a Redis that has forgotten them.

An id is known by its job's row. Where Redis forgot how a job had ended, that is told by its events
(:func:`sql_audit.upkeep.lost.tell`). What the log does not have is that an id stands for a unique job: such a call is
no event.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

from sqlalchemy import Connection, text

from rq_core.model.machine import Event
from rq_core.model.remembered import result_line
from rq_core.protocol.audit import Restoration, remember

OUTCOMES: Final = {
    Event.SUCCEEDED: "succeeded",
    Event.CANCELLED: "cancelled",
    Event.EXPIRED: "expired",
    Event.PRUNED: "dead",
}
"""What ``results`` says of a job, by the event with which it left."""

_ENDED: Final = text(
    "SELECT job_id, state, claims, once_ms, call_digest, COALESCE(finished_at_ms, since_ms) AS at_ms FROM job "
    "WHERE queue = :queue AND once_ms > :now AND last_epoch > :deleted AND (claims > 0 OR state = 'removed') "
    "AND state IN ('succeeded', 'cancelled', 'expired', 'pruned', 'removed') ORDER BY once_ms, job_id"
)
_DELETED: Final = text(
    "SELECT MAX(e.epoch) FROM (SELECT DISTINCT epoch FROM mirror_epoch WHERE queue = :queue) e "
    "WHERE (SELECT type FROM job_event j WHERE j.queue = :queue AND j.epoch = e.epoch "
    "ORDER BY j.seq DESC, j.ordinal DESC LIMIT 1) = :event"
)
"""The last epoch that ended with the deletion of the queue: what was remembered before is to be forgotten."""
_REMOVED: Final = text(
    "SELECT detail FROM job_event WHERE queue = :queue AND job_id = :job AND type = 'removed' "
    "ORDER BY epoch DESC, seq DESC LIMIT 1"
)


def in_force(connection: Connection, queue: str, now_ms: int) -> Iterator[Restoration]:
    """What makes Redis remember each id of the queue whose job has ended, and whose moment lies after ``now_ms``."""
    of_queue: dict[str, Any] = {"queue": queue}
    deleted = connection.execute(_DELETED, {**of_queue, "event": str(Event.QUEUE_DELETED)}).scalar()
    asked = {**of_queue, "now": now_ms, "deleted": -1 if deleted is None else deleted}
    for row in connection.execute(_ENDED, asked).all():
        event = row.state
        if event == Event.REMOVED:
            detail = connection.execute(_REMOVED, {**of_queue, "job": row.job_id}).scalar()
            event = json.loads(detail or "{}").get("reason")
        record = forgotten(
            row.job_id, event, row.at_ms, row.once_ms, row.call_digest, claimed=row.claims > 0
        )
        if record is not None:
            yield record


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
    """What makes Redis remember the id of a job that ended by this event; None if its id is free. ``claimed``: the job
    was claimed before; one that succeeded, or had died, was."""
    outcome = OUTCOMES.get(Event(event)) if event in set(Event) else None
    if once_ms is None or outcome is None:
        return None
    if not claimed and outcome in ("cancelled", "expired"):
        return None
    line = result_line(outcome, at_ms or 0, once_ms, fence=fence, call=call)
    return remember(job_id, once_ms, line)
