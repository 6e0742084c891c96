"""What the log in SQL says of a queue itself, its settings and limits: Redis' outbox is trimmed of most of that."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from sqlalchemy import Connection, text

from rq_core.doctor import told
from rq_core.doctor.finding import Finding
from rq_core.doctor.log import Log, forget, note
from rq_core.doctor.view import View
from rq_core.model.event_fields import QUEUE_EVENT_FIELDS
from rq_core.model.events import Entry, OutboxId, decode
from rq_core.model.machine import Event
from sql_audit.proof.details import facts_in
from sql_audit.store import orphans

_EVENTS: Final = text(
    "SELECT epoch, seq, type, at_ms, detail FROM job_event "
    "WHERE job_id IS NULL AND queue = :queue ORDER BY epoch, seq, ordinal"
)
_BREAKS: Final = text(
    "SELECT epoch, seq FROM mirror_epoch WHERE queue = :queue AND kind IN ('gap', 'joined')"
)
_OF_QUEUES: Final = frozenset(map(str, QUEUE_EVENT_FIELDS))


def log_of(connection: Connection, queue: str, upto: OutboxId) -> Log:
    """The settings and limits of a queue by the last event about each, up to an entry, without what Redis forgot."""
    log, of = Log(), {"queue": queue}
    orphaned = orphans.ranges(connection, queue)
    breaks = sorted(OutboxId(*row) for row in connection.execute(_BREAKS, of))
    for epoch, seq, kind, at_ms, detail in connection.execute(_EVENTS, of):
        at = OutboxId(epoch, seq)
        if at > upto:
            break
        while breaks and breaks[0] <= at:
            del breaks[0]
            forget(log)
        if any(at in each for each in orphaned):
            continue
        if kind in _OF_QUEUES:
            note(log, Entry(at, Event(kind), at_ms, "", data=dict(facts_in(detail))))
        else:
            forget(log)  # It is in quarantine.
    if breaks and breaks[0] <= upto:
        forget(log)
    return log


def differences(log: Log, redis: View, after: OutboxId) -> Iterator[Finding]:
    """What Redis has otherwise than ``log`` says, and the entries behind ``after`` that SQL does not have yet; but what
    its own outbox tells otherwise as well is the doctor's to say."""
    for entry_id, raw in redis.snapshot["outbox"]:
        if OutboxId.parse(entry_id) > after:
            note(log, decode(entry_id, raw))
    known = {finding.says for finding in told.findings(redis)}
    return (finding for finding in told.unlike(redis, log) if finding.says not in known)
