"""Switching a queue's log off: SQL has what happened before, and the last event says that it was switched off."""

from __future__ import annotations

from rq_core.connections.client import Client
from sql_audit.mirror.source import Outbox
from sql_audit.mirror.turn import Mirror, Outcome
from sql_audit.queries.history import audit_id
from sql_audit.store.database import Database


def switch_off(client: Client, database: Database, queue: str) -> None:
    """Mirror what is there, switch the log off, and mirror the event of that.

    By this event SQL knows that the log ended on purpose: else a Redis that has lost the queue later would be told as a
    loss. Raises rq_core.errors.AuditElsewhere if another database has the queue.
    """
    holder = audit_id(database)
    mirror = Mirror(Outbox(client), database, queue)
    if client.run(client.calls.delivery.handshake(queue)).audit_id == holder:
        # No more than there is now: a busy queue has always more.
        left = client.run(client.calls.reads.counts(queue)).backlog
        while left > 0 and (turn := mirror.turn()).outcome is Outcome.MIRRORED:
            left -= turn.events
    client.run(client.calls.audit.detach(queue, holder))
    mirror.finish()
