"""The chain of batches: what is hashed, and how each batch is tied to the one before."""

from __future__ import annotations

import hashlib

from rq_core.model.events import OutboxId


def genesis(audit_id: str, queue: str) -> str:
    """The head of a queue's chain before its first batch: SHA-256 in hex."""
    return hashlib.sha256(f"rq-core audit {audit_id} {queue}".encode()).hexdigest()


def rows_digest(text: str) -> str:
    """SHA-256 in hex of a batch's rows of job_event, as :func:`sql_audit.store.copy.copy_text` says them.

    PostgreSQL says the same: ``COPY (SELECT … ORDER BY epoch, seq, ordinal) TO STDOUT``.
    """
    return hashlib.sha256(text.encode()).hexdigest()


def chain(
    prev: str, queue: str, batch: int, first: OutboxId, last: OutboxId, events: int, digest: str
) -> str:
    """The head after a batch: SHA-256 in hex."""
    link = f"{prev} {queue} {batch} {first} {last} {events} {digest}"
    return hashlib.sha256(link.encode()).hexdigest()
