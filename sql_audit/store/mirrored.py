"""Which queues a log goes on for, whether Redis still has them or not.

A Redis that lost everything lists no queue, and the loss would not be told: so the queues that are mirrored are those
of Redis and those of SQL. Not among them are queues that were deleted, or whose log was switched off (`rq-core audit
off`): the event that says so is in the last batch, since no mirror goes on behind it.
"""

# ruff: noqa: S608 - statements are joined from the model's own words; values are bound

from __future__ import annotations

import json
from typing import Final

from sqlalchemy import Connection, text

from rq_core.model.machine import Event
from rq_core.model.reasons import Began

_CURSORS: Final = text(
    "SELECT queue, epoch, seq, batch FROM mirror_cursor WHERE epoch IS NOT NULL ORDER BY queue"
)
_BATCH: Final = text(
    # The record of a prune is a batch without entries.
    "SELECT first_epoch, first_seq FROM mirror_batch WHERE queue = :queue AND batch <= :batch AND entries > 0 "
    "ORDER BY batch DESC LIMIT 1"
)
_SWITCHED: Final = text(
    "SELECT type, detail FROM job_event WHERE queue = :queue AND (epoch, seq) >= (:epoch, :seq)"
    f" AND type IN ('{Event.POLICY_CHANGED}', '{Event.EPOCH_STARTED}', '{Event.QUEUE_DELETED}')"
    " ORDER BY epoch DESC, seq DESC"
)


def mirrored(connection: Connection) -> list[str]:
    """Return the queues of which the log is to go on, by name."""
    rows = connection.execute(_CURSORS).all()
    return [
        row.queue
        for row in rows
        if not given_up(connection, row.queue, row.batch, row.epoch, row.seq)
    ]


def given_up(connection: Connection, queue: str, batch: int, epoch: int, seq: int) -> bool:
    """Return whether a queue was deleted, or its log switched off, and no mirror went on since.

    ``epoch`` and ``seq`` are its last entry.
    """
    first = connection.execute(_BATCH, {"queue": queue, "batch": batch}).one_or_none()
    # A prune may have removed the batch, and only then.
    at = (epoch, seq) if first is None else (first.first_epoch, first.first_seq)
    asked = {"queue": queue, "epoch": at[0], "seq": at[1]}
    for kind, detail in connection.execute(_SWITCHED, asked):
        if kind == Event.QUEUE_DELETED:
            return True
        facts = json.loads(detail or "{}")
        if facts.get("reason") == Began.ATTACHED:
            return False
        if facts.get("field") == "audit":
            return bool(facts.get("new") == "off")
    return False
