"""The mirror's position in a queue: the queue's row of ``mirror_cursor``, its lock, and the last mirrored entry."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from sqlalchemy import Connection

from rq_core.model.events import OutboxId
from sql_audit.store.connection.database import Database
from sql_audit.store.connection.statements import LOCKED_CURSOR
from sql_audit.store.migrate import refuse_other


class Anchor(NamedTuple):
    """The last outbox entry that SQL has: its number and its fingerprint (SHA-256).

    The mirror leaves this entry in the outbox, and the next read checks that it is unchanged. Otherwise Redis has lost
    data.
    """

    at: OutboxId
    fingerprint: str


@dataclass(slots=True)
class Cursor:
    """A queue's row of ``mirror_cursor``: the mirror's position in the outbox, and the sums over all mirrored
    batches.
    """

    queue: str
    epoch: int | None
    seq: int | None
    at_ms: int | None
    anchor: str | None
    """The fingerprint (SHA-256) of the last mirrored entry."""
    batch: int
    head: str
    entries: int
    events: int
    bytes: int
    quarantined: int
    gaps: int
    trim_jobs: int
    trim_bytes: int
    prefix: str | None
    stamp: str | None
    """A random mark of the queue in Redis, with a copy in SQL. An equal stamp shows that the queue still comes from the
    same Redis."""

    @property
    def position(self) -> OutboxId | None:
        """The number of the last mirrored entry; None if nothing is mirrored."""
        if self.epoch is None or self.seq is None:
            return None
        return OutboxId(self.epoch, self.seq)

    @property
    def last(self) -> Anchor | None:
        """The last mirrored entry: its number and its fingerprint (SHA-256). None if nothing is mirrored."""
        position = self.position
        return None if position is None else Anchor(position, self.anchor or "")


def lock_cursor(connection: Connection, database: Database, queue: str) -> Cursor | None:
    """Lock a queue's cursor, read it, and return it. Return None if another mirror has locked it.

    Raise SchemaAhead or SchemaBehind if the schema is not that of this release: an operator upgraded or replaced
    the database while this mirror ran. No operator can upgrade the database while the cursor is locked.
    """
    row = connection.execute(LOCKED_CURSOR, {"queue": queue}).one_or_none()
    if row is None:
        return None
    *values, version = row
    refuse_other(database, version)
    return Cursor(*values)
