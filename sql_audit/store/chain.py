"""Computes the chain of batches. A batch is what the mirror wrote in one transaction, or the record of a prune. Its
hash covers its contents and the hash of the preceding batch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection, select

from rq_core.model.events import OutboxId
from sql_audit.store.connection.copy import copy_text
from sql_audit.store.schema.tables import mirror_epoch, mirror_loss, mirror_prune, quarantine

FOUND: Final = (mirror_epoch, mirror_loss, quarantine, mirror_prune)
"""The tables, apart from ``job_event``, whose rows a batch's hash covers: what the mirror recorded about epochs, losses
and quarantine, and the records of prunes."""

NOTHING_FOUND: Final = hashlib.sha256(b"").hexdigest()


class Link(NamedTuple):
    """The values that a batch's hash covers: the batch's row of ``mirror_batch`` without the hash itself."""

    prev: str
    queue: str
    batch: int
    first: OutboxId
    last: OutboxId
    entries: int
    events: int
    jobs: int
    bytes: int
    anchor: str
    digest: str
    found: str

    @property
    def head(self) -> str:
        """The batch's hash: the SHA-256 (hex) of all values, joined by spaces. It is the head of the chain until the
        next batch.
        """
        return hashlib.sha256(" ".join(map(str, self)).encode()).hexdigest()

    @property
    def row(self) -> dict[str, Any]:
        """The batch's row of ``mirror_batch``, as a dict from column to value."""
        facts = self._asdict()
        for name in ("first", "last"):
            facts[f"{name}_epoch"], facts[f"{name}_seq"] = facts.pop(name)
        return facts | {"head": self.head}

    @classmethod
    def of(cls, row: Mapping[Any, Any]) -> Link:
        """Make a Link from a row of ``mirror_batch``."""
        facts: dict[str, Any] = {
            name: OutboxId(row[f"{name}_epoch"], row[f"{name}_seq"]) for name in ("first", "last")
        }
        facts |= {name: row[name] for name in cls._fields if name not in facts}
        return cls(**facts)


def genesis(audit_id: str, queue: str) -> str:
    """Return the hash with which a queue's chain begins, before any batch: a SHA-256 (hex)."""
    return hashlib.sha256(f"rq-core audit {audit_id} {queue}".encode()).hexdigest()


def rows_digest(text: str) -> str:
    """Return the SHA-256 (hex) of ``text``, a batch's rows of ``job_event``.

    :func:`sql_audit.store.connection.copy.copy_text` makes the text. PostgreSQL makes the same text: ``COPY (SELECT …
    ORDER BY epoch, seq, ordinal) TO STDOUT``.
    """
    return hashlib.sha256(text.encode()).hexdigest()


def found_text(connection: Connection, queue: str, batches: range) -> Iterator[str]:
    """Yield the rows of the tables FOUND that belong to some batches, as lines in PostgreSQL's COPY format.

    The lines are ordered by table, then by id. They do not have the ids.
    """
    for table in FOUND:
        columns = [column for column in table.columns if column.name != "id"]
        rows = connection.execute(
            select(*columns)
            .where(table.c.queue == queue)
            .where(table.c.batch >= batches.start)
            .where(table.c.batch < batches.stop)
            .order_by(table.c.id)
        )
        for row in rows:
            yield copy_text([[_plain(value) for value in row]])


def _plain(value: object) -> object:
    return f"\\x{value.hex()}" if isinstance(value, bytes) else value


def found_digest(connection: Connection, queue: str, batch: int) -> str:
    """Return the SHA-256 (hex) of the rows of the tables FOUND that belong to a batch."""
    sha = hashlib.sha256()
    for line in found_text(connection, queue, range(batch, batch + 1)):
        sha.update(line.encode())
    return sha.hexdigest()
