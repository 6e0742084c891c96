"""Reads the events of durable jobs' children from the logs of their queues, and says which logs lack no event."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from sqlalchemy import Connection, bindparam, text

from rq_core.model.table.effects import target
from rq_core.model.table.machine import Event, State
from rq_core.model.table.reasons import Began
from sql_audit.proof.event_details import facts_in

MARGIN_MS: Final = 60_000
"""Assumed maximum difference in ms between the clocks of two Redis servers.

A child's log may lack an event that must come before an event of its parent. This is a fault only if the child's log
continues for more than this many ms after the parent's event."""

_ENDS: Final = ("succeeded", "died", "cancelled", "expired", "pruned", "removed", "replaced")
_CHILDREN: Final = text(
    "SELECT job_id, queue, type, at_ms, detail FROM job_event WHERE job_id IN :ids AND type IN :types"
    " ORDER BY queue, epoch, seq, ordinal"
).bindparams(
    bindparam("ids", expanding=True),
    bindparam("types", ("enqueued", "requeued", "lease_expired", *_ENDS), expanding=True),
)
_WHOLE: Final = text(
    "SELECT c.at_ms FROM mirror_cursor c WHERE c.queue = :queue"
    " AND NOT EXISTS (SELECT 1 FROM mirror_loss l WHERE l.queue = c.queue)"
    " AND NOT EXISTS (SELECT 1 FROM mirror_prune p WHERE p.queue = c.queue)"
    " AND NOT EXISTS (SELECT 1 FROM quarantine q WHERE q.queue = c.queue)"
    " AND (SELECT COUNT(*) FROM mirror_epoch e WHERE e.queue = c.queue) = 1"
    " AND EXISTS (SELECT 1 FROM mirror_epoch e WHERE e.queue = c.queue AND e.kind = 'started' AND e.reason = :created)"
)
_DELETED: Final = text(
    "SELECT 1 FROM job_event WHERE job_id IS NULL AND queue = :queue AND type = 'queue_deleted'"
    " AND at_ms BETWEEN :since_ms AND :upto_ms LIMIT 1"
)
_LAST: Final = text("SELECT COALESCE(MAX(at_ms), 0) FROM job_event WHERE queue = :queue")
_SET_BACK: Final = text(
    "SELECT 1 FROM (SELECT at_ms, LAG(at_ms) OVER (ORDER BY epoch, seq, ordinal) AS before_ms FROM job_event"
    " WHERE queue = :queue) AS events WHERE at_ms < before_ms - :margin LIMIT 1"
)


@dataclass(slots=True)
class ChildLog:
    """The events of one child in the log of one queue."""

    queue: str
    enqueued_ms: int | None = None
    """Unix ms at which the child was first enqueued; None: the log does not have this event."""
    begun: int = 0
    """Number of times that the child was enqueued or requeued."""
    ends: list[int] = field(default_factory=list)
    """Unix ms of each end of the child."""
    succeeded: int = 0
    """Number of the ends in ``ends`` that are successes."""
    digests: dict[Any, int] = field(default_factory=dict)
    """The Unix ms at which the child first succeeded with a result, by the digest of the result."""

    def add(self, kind: str, at_ms: int, detail: str | None) -> None:
        """Add an event of the child."""
        if kind in (Event.ENQUEUED, Event.REQUEUED):
            self.begun += 1
            if kind == Event.ENQUEUED and self.enqueued_ms is None:
                self.enqueued_ms = at_ms
        elif kind == Event.SUCCEEDED:
            self.ends.append(at_ms)
            self.succeeded += 1
            self.digests.setdefault(facts_in(detail).get("value_digest"), at_ms)
        elif target(Event(kind), facts_in(detail)) in (None, State.DEAD):
            self.ends.append(at_ms)

    def has(self, digest: str | None) -> bool:
        """Return whether the child has succeeded with the result that has this digest. None: with any result."""
        return bool(self.succeeded) if digest is None else digest in self.digests

    @property
    def first_success_ms(self) -> int | None:
        """Unix ms of the child's first success; None if it has not succeeded."""
        return min(self.digests.values(), default=None)

    @property
    def ended_once_ms(self) -> int | None:
        """Unix ms of the child's end. None if it has not ended, has ended more than once, or was requeued."""
        return self.ends[0] if self.begun == len(self.ends) == 1 else None


def logs_of(connection: Connection, ids: Sequence[str]) -> dict[str, dict[str, ChildLog]]:
    """Return the events of the jobs with these ids, by the id and then by the queue."""
    found: dict[str, dict[str, ChildLog]] = {}
    for job_id, queue, kind, at_ms, detail in connection.execute(_CHILDREN, {"ids": ids}):
        by_queue = found.setdefault(job_id, {})
        log = by_queue.get(queue)
        if log is None:
            log = by_queue[queue] = ChildLog(queue)
        with suppress(KeyError, ValueError, TypeError, AttributeError, RecursionError):
            # The replay of the child's queue reports an event that cannot be read.
            log.add(kind, at_ms, detail)
    return found


def was_deleted(connection: Connection, queue: str, since_ms: int, upto_ms: int) -> bool:
    """Return whether the queue was deleted between two times of another server's clock, in Unix ms."""
    values = {"queue": queue, "since_ms": since_ms - MARGIN_MS, "upto_ms": upto_ms + MARGIN_MS}
    return connection.execute(_DELETED, values).scalar_one_or_none() is not None


class WholeLogs:
    """Knows which queues' logs lack no event, and which clocks were set back. Each log is read once."""

    def __init__(self) -> None:
        self._upto: dict[str, int | None] = {}
        self._last: dict[str, int] = {}
        self._set_back: dict[str, bool] = {}

    def whole_upto(self, connection: Connection, queue: str) -> int | None:
        """Return the time (Unix ms) up to which SQL has every event of the queue, from the queue's first one on. Return
        None if SQL may lack events.
        """
        if queue not in self._upto:
            values = {"queue": queue, "created": Began.CREATED}
            self._upto[queue] = connection.execute(_WHOLE, values).scalar_one_or_none()
        return self._upto[queue]

    def last_ms(self, connection: Connection, queue: str) -> int:
        """Return the greatest time (Unix ms) of the queue's events. It is not that of the last event if a clock was set
        back, or if SQL was changed. This reads the log.
        """
        if queue not in self._last:
            self._last[queue] = connection.execute(_LAST, {"queue": queue}).scalar_one()
        return self._last[queue]

    def clocks_agree(self, connection: Connection, *queues: str) -> bool:
        """Return whether the times of the events in these queues can be compared: no clock of their Redis servers was
        set back by more than MARGIN_MS.

        This reads the logs, so it is called only to confirm a violation.
        """
        for queue in queues:
            if queue not in self._set_back:
                values = {"queue": queue, "margin": MARGIN_MS}
                found = connection.execute(_SET_BACK, values).scalar_one_or_none()
                self._set_back[queue] = found is not None
        return not any(self._set_back[queue] for queue in queues)
