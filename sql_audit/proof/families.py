"""Checks the results of children that durable jobs have saved (I24). The child must have succeeded with this result.

The child's success is in the log of the child's queue. No field of an event names the child: its id is computed from
the parent's box and the step's name. Nothing is proved if the child's log has gaps, or is not in this database.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection, bindparam, text

from rq_core.model.durable.children import child_id
from rq_core.model.table.machine import Event
from sql_audit.proof.event_details import facts_in
from sql_audit.store.job_rows import EventRow

MARGIN_MS: Final = 60_000
"""A missing success of a child is a fault only if the log of the child's queue is this many ms ahead of the event with
which the parent saved the result. The clocks of two servers are assumed to differ by less."""
CHUNK: Final = 500
"""Number of children that one query reads."""

_SAVED: Final = str(Event.STEP_SAVED)
_ITEM: Final = re.compile(r"(.+)=(\d+)")
_DIGEST: Final = re.compile(r"[0-9a-f]{32}")
_CHILDREN: Final = text(
    "SELECT job_id, queue, detail, type FROM job_event WHERE job_id IN :ids AND type IN ('enqueued', 'succeeded')"
).bindparams(bindparam("ids", expanding=True))
_WHOLE: Final = text(
    "SELECT c.at_ms FROM mirror_cursor c WHERE c.queue = :queue"
    " AND NOT EXISTS (SELECT 1 FROM mirror_loss l WHERE l.queue = c.queue)"
    " AND NOT EXISTS (SELECT 1 FROM mirror_prune p WHERE p.queue = c.queue)"
    " AND NOT EXISTS (SELECT 1 FROM quarantine q WHERE q.queue = c.queue)"
    " AND (SELECT COUNT(*) FROM mirror_epoch e WHERE e.queue = c.queue) = 1"
)


class SavedItem(NamedTuple):
    """An event ``step_saved`` that may have a child's result, and the result's digest."""

    row: EventRow
    digest: str


class FamilyProof:
    """Checks the children of one queue's durable jobs. Call :meth:`feed` with all events, then :meth:`wrong`."""

    def __init__(self) -> None:
        self._saved: dict[str, SavedItem] = {}
        """The events that saved results of children, by the child's id."""
        self._whole: dict[str, int | None] = {}
        """By queue: the time (Unix ms) up to which the queue's log has every event. None: the log may lack events."""

    def feed(self, events: Sequence[EventRow]) -> None:
        """Collect the events ``step_saved`` that may have results of children."""
        for row in events:
            if row[4] != _SAVED:
                continue
            facts = facts_in(row[10])
            named, digest = _ITEM.fullmatch(facts["name"]), str(facts.get("digest"))
            if named is not None and _DIGEST.fullmatch(digest):
                child = child_id(facts["life"], named[1], int(named[2]))
                self._saved[child] = SavedItem(row, digest)

    def wrong(self, connection: Connection) -> Iterator[tuple[EventRow, str]]:
        """Yield each event that saves a child's result although the child did not succeed with this result. With each
        event, yield a sentence.
        """
        ids = list(self._saved)
        for first in range(0, len(ids), CHUNK):
            chunk = ids[first : first + CHUNK]
            queues: dict[str, str] = {}
            digests: dict[str, set[Any]] = {}
            for job_id, queue, detail, kind in connection.execute(_CHILDREN, {"ids": chunk}):
                queues[job_id] = queue
                if kind == Event.SUCCEEDED:
                    digests.setdefault(job_id, set()).add(facts_in(detail).get("value_digest"))
            for child, queue in queues.items():
                row, digest = self._saved[child]
                upto_ms = self._whole_upto(connection, queue)
                if upto_ms is None or digest in digests.get(child, ()):
                    continue
                if child in digests:
                    yield row, f"saves digest {digest}, and child {child} did not succeed with it"
                elif upto_ms > row[5] + MARGIN_MS:
                    yield row, f"saves the result of child {child}, which did not succeed"

    def _whole_upto(self, connection: Connection, queue: str) -> int | None:
        if queue not in self._whole:
            self._whole[queue] = connection.execute(_WHOLE, {"queue": queue}).scalar_one_or_none()
        return self._whole[queue]
