"""Reads the queues of an audit database: the Redis from which each queue comes, and whether the queue is still being
mirrored.

If Redis loses everything, it lists no queue. So the mirror works on the queues that Redis lists and on the queues that
SQL has, and can record such a loss. It leaves out queues that were deleted, or whose log was switched off (`rq-core
audit off`). The mirror stops there, so the last batch of such a queue has the event of the deletion or of the switch.
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
    """The Redis from which a queue is mirrored, according to SQL: the prefix of its keys, and the queue's stamp (random
    mark).
    """

    prefix: str | None
    """The prefix of the queue's keys in Redis; None if any Redis may be mirrored, because the database was forked."""
    stamp: str | None
    """The random mark that the queue has in Redis. None: the next Redis in which a mirror attaches the queue, under
    this prefix, is taken as the queue's Redis."""
    goes_on: bool
    """True if the queue's log is still being mirrored: the log has entries, the queue was not deleted, and the log was
    not switched off."""
    is_free: bool
    """True if any Redis may be mirrored as the queue's Redis: the database was forked, or an operator deleted the
    queue."""


def origins(connection: Connection, queue: str | None = None) -> dict[str, Origin]:
    """Return the Redis from which each queue, or only ``queue``, is mirrored, by the queue's name."""
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
    """Return the names of the queues with this key prefix whose log is still being mirrored."""
    found = origins(connection)
    return [name for name, each in found.items() if each.goes_on and each.prefix == prefix]


def says_deleted(connection: Connection, queue: str, at: OutboxId) -> bool:
    """Return whether an operator deleted the queue with the event at ``at``, the queue's last entry in SQL.

    If so, Redis has not lost the queue.
    """
    which = {"queue": queue, "epoch": at.epoch, "seq": at.seq}
    return connection.execute(_TYPE_AT, which).scalar() == Event.QUEUE_DELETED


def given_up(connection: Connection, queue: str, batch: int, epoch: int, seq: int) -> bool:
    """Return whether the queue was deleted, or its log was switched off, and the log has not continued since.

    ``epoch``-``seq`` is the queue's last entry; ``batch`` is the number of its last batch.
    """
    first = connection.execute(_BATCH, {"queue": queue, "batch": batch}).one_or_none()
    # Only a prune can have removed the last batch with entries.
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
