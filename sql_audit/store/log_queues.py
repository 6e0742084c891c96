"""The queues of a log: where each comes from, and for which it goes on, whether Redis still has them or not.

A Redis that lost everything lists no queue, and the loss would not be recorded: so the queues that are mirrored are
those of Redis and those of SQL. Not among them are queues that were deleted, or whose log was switched off (`rq-core
audit off`): the event that says so is in the last batch, since no mirror goes on behind it.
"""

# ruff: noqa: S608 - statements are joined from the model's own words; values are bound

from __future__ import annotations

from typing import Final, NamedTuple

from sqlalchemy import Connection, text

from rq_core.model.events import OutboxId
from rq_core.model.table.machine import Event
from rq_core.model.table.reasons import Began
from sql_audit.store.storable_text import read_json

_CURSORS: Final = text(
    "SELECT queue, prefix, stamp, epoch, seq, batch FROM mirror_cursor "
    "WHERE queue = COALESCE(:queue, queue) ORDER BY queue"
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


_TYPE_AT: Final = text(
    "SELECT type FROM job_event WHERE queue = :queue AND epoch = :epoch AND seq = :seq AND ordinal = 0"
)


class Origin(NamedTuple):
    """The source of a queue, by SQL."""

    prefix: str | None
    """None: from nowhere, since the database is a fork."""
    stamp: str | None
    """The mark that Redis keeps. None: the next Redis of that prefix may take the queue."""
    goes_on: bool
    """Whether the log is to go on."""
    is_free: bool
    """Whether any Redis may take the queue: it has no source, or an operator deleted it."""


def origins(connection: Connection, queue: str | None = None) -> dict[str, Origin]:
    """Return where each queue comes from, or one, by name."""
    found = {}
    for row in connection.execute(_CURSORS, {"queue": queue}).all():
        begun = row.epoch is not None
        ended = begun and given_up(connection, row.queue, row.batch, row.epoch, row.seq)
        free = row.prefix is None or (
            ended and says_deleted(connection, row.queue, OutboxId(row.epoch, row.seq))
        )
        found[row.queue] = Origin(row.prefix, row.stamp, begun and not ended, free)
    return found


def mirrored(connection: Connection, prefix: str) -> list[str]:
    """Return the queues of a prefix whose log must go on, by name."""
    found = origins(connection)
    return [name for name, each in found.items() if each.goes_on and each.prefix == prefix]


def says_deleted(connection: Connection, queue: str, at: OutboxId) -> bool:
    """Return whether an operator deleted a queue, by its last entry: then Redis has lost nothing."""
    which = {"queue": queue, "epoch": at.epoch, "seq": at.seq}
    return connection.execute(_TYPE_AT, which).scalar() == Event.QUEUE_DELETED


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
        facts = read_json(detail, dict)
        if facts.get("reason") == Began.ATTACHED:
            return False
        if facts.get("field") == "audit":
            return bool(facts.get("new") == "off")
    return False
