"""Switches a queue's log off. Afterwards SQL has all events up to the event of the switch."""

from __future__ import annotations

from typing import Final

from sqlalchemy.exc import SQLAlchemyError

from rq_core.connections.client import Client
from rq_core.model.events import OutboxId
from rq_core.model.table.machine import Event
from sql_audit.errors import AuditRefused
from sql_audit.mirror.batch import EventBatch
from sql_audit.mirror.cursor import Anchor, Cursor
from sql_audit.mirror.intake import fingerprint, take
from sql_audit.mirror.reading import SWITCHED_OFF, Taken
from sql_audit.mirror.redis_access import Outbox
from sql_audit.mirror.turn import Mirror, TurnOutcome
from sql_audit.queries.history import audit_id
from sql_audit.store.connection.database import Database
from sql_audit.store.connection.driver_errors import describe_error
from sql_audit.store.connection.statements import CURSOR

ROUNDS_MAX: Final = 10
"""Maximum number of times that a queue's waiting events are counted and mirrored before its log is switched off."""
FEW: Final = 200
"""Number of events that may still wait for the mirror when the log is switched off."""


def switch_off(client: Client, database: Database, queue: str) -> None:
    """Mirror the remaining entries, switch the log off, and mirror the event of the switch.

    The event shows that the log ended on purpose. Without the event, the queue would count as lost when Redis no longer
    has the queue. So the log stays on if SQL cannot store the event.

    Raise AuditRefused if SQL cannot store the event. Raise rq_core.errors.AuditElsewhere if another database mirrors
    the queue.
    """
    holder = audit_id(database)
    mirror = Mirror(Outbox(client), database, queue)
    rehearse(mirror)
    if client.run(client.calls.delivery.handshake(queue)).audit_id == holder:
        # A busy queue always has new events. After the switch Redis keeps few events, so few should be left then. An
        # epoch may begin among a few events, and could not be mirrored afterwards. The backlog does not count events
        # from before the log was switched on. So each round makes at least one turn.
        for _ in range(ROUNDS_MAX):
            found = left = client.run(client.calls.reads.counts(queue)).backlog
            while (turn := mirror.turn()).outcome is TurnOutcome.MIRRORED and left > turn.events:
                left -= turn.events
            if found <= FEW:
                break
    client.run(client.calls.audit.detach(queue, holder))
    try:
        mirror.finish()
    except SQLAlchemyError as error:
        again = f"the log of queue {queue} is off, and does not say so yet: run this again"
        raise AuditRefused(why=f"{describe_error(error)}; {again}") from error


def rehearse(mirror: Mirror) -> None:
    """Check that SQL can store one more event: write an event as a mirror does, and roll the transaction back.

    Do nothing if SQL does not have the queue, or if a mirror has locked the queue's cursor. Raise AuditRefused if the
    event cannot be written.
    """
    try:
        with mirror.database.readers.connect() as reader:
            known = reader.execute(CURSOR, {"queue": mirror.queue}).one_or_none()
        if known is None:
            return
        with mirror.database.writing(wait=True) as connection:
            assert connection is not None
            cursor = mirror.lock(connection)
            if (
                cursor is not None
            ):  # otherwise a mirror has locked the cursor, so SQL can be written
                batch = EventBatch(cursor, _one_more(cursor), None, [])
                projection = mirror.insert_events(connection, batch)
                mirror.project(connection, batch, projection)
                mirror.chain(connection, batch, projection)
                mirror.advance(connection, batch, projection)
    except SQLAlchemyError as error:
        raise AuditRefused(why=f"{describe_error(error)}; nothing was changed") from error


def _one_more(cursor: Cursor) -> Taken:
    """Return a batch with one entry, right after the cursor: the event with which a log is switched off."""
    last = cursor.position or OutboxId(1, 0)
    at = OutboxId(last.epoch, last.seq + 1)
    raw = {"type": str(Event.POLICY_CHANGED), "at": "0", "by": "-", "data": SWITCHED_OFF}
    return Taken(
        [(at, raw)],
        [take(at, raw)],
        more_follow=False,
        begins_epoch=False,
        completes_baseline=False,
        last=Anchor(at, fingerprint(raw)),
    )
