"""Compares an inbox with the audit log: each row that became a job has one ``enqueued`` event whose actor is the inbox.

Relays and mirrors work during the comparison, so the right number of events lies between two bounds. The lower bound is
the inbox's count before the log is read. The upper bound is the count after the read, plus the rows of the batch that
is being sent.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

from sqlalchemy import Engine, func, select

from sql_audit.inbox.admin import QueueState, states
from sql_audit.inbox.place import compare_place
from sql_audit.inbox.session import Session
from sql_audit.store.schema.tables import job_event, mirror_prune

MIRROR_WAIT_S: Final = 10.0
"""Seconds for which the comparison waits for missing events: the mirror may be behind."""
LOOK_EVERY_S: Final = 0.25
LESS: Final = (
    "the log has fewer events than rows were handed over: the counts or the log were altered, the mirror is behind, or"
    " Redis lost jobs before they were mirrored (`rq-core audit restore` lists those)"
)
MORE: Final = (
    "the log has more events than rows were handed over: the inbox was set back to an older state and rows were handed"
    " over again, or its counts were altered"
)
AGAIN: Final = (
    "{} events are of jobs that the inbox had handed over before: a row was put back by hand, or a program inserted the"
    " id of an ended job again"
)
PRUNED: Final = "events of the queue were pruned, so that only too many of them can be noticed"


class Events(NamedTuple):
    """The number of ``enqueued`` events in a queue's log that came from the inbox."""

    total: int = 0
    again: int = 0
    """Number of these events whose job the inbox had already enqueued before, according to the log."""


NONE: Final = Events()


@dataclass(frozen=True, slots=True)
class Comparison:
    """How many jobs of one queue came from the inbox: as the inbox counts them, and as the log counts them."""

    queue: str
    relayed: int
    """Number of rows that became jobs, as the inbox counts them."""
    events: int
    """Number of ``enqueued`` events in the log that came from the inbox."""
    finding: str | None
    """A sentence about the difference; None if inbox and log agree."""
    notes: tuple[str, ...] = ()
    """Remarks that do not count as differences."""


def compare_with_log(
    session: Session,
    log: Engine,
    *,
    wait_s: float = MIRROR_WAIT_S,
    sleep: Callable[[float], None] = time.sleep,
) -> list[Comparison]:
    """Compare each queue's count in the inbox with the events of the audit log, and return the comparisons.

    Queues that only the log has are included. Raise InboxError, or the errors of the log's driver.
    """
    by = f"inbox:{compare_place(session)}"
    before = {each.queue: each for each in states(session)}
    until = time.monotonic() + wait_s
    while True:
        events, pruned = _events(log, by)
        behind = [q for q, each in before.items() if events.get(q, NONE).total < each.relayed]
        if not set(behind) - pruned or time.monotonic() > until:
            break
        sleep(LOOK_EVERY_S)
    after = {each.queue: each for each in states(session)}
    return [
        _judge(name, before.get(name), after.get(name), events.get(name, NONE), name in pruned)
        for name in sorted(before.keys() | events.keys())
    ]


def _judge(
    queue: str, before: QueueState | None, after: QueueState | None, events: Events, pruned: bool
) -> Comparison:
    least = before.relayed if before else 0
    damage = (before and before.damage) or (after and after.damage)
    if damage:
        return Comparison(queue, least, events.total, damage)
    most = after.relayed + after.sending if after else 0
    finding = None
    if events.total > most:
        finding = MORE
    elif events.total < least and not pruned:
        finding = LESS
    notes = [AGAIN.format(events.again)] if events.again else []
    notes += [PRUNED] if pruned else []
    return Comparison(queue, least, events.total, finding, tuple(notes))


def _events(log: Engine, by: str) -> tuple[dict[str, Events], set[str]]:
    """Count the ``enqueued`` events of the actor ``by`` in the log. Return the counts by queue, and the queues whose
    log was pruned.
    """
    enqueued = (job_event.c.type == "enqueued") & (job_event.c.worker == by)
    again = func.count() - func.count(job_event.c.job_id.distinct())
    columns = (job_event.c.queue, func.count(), again)
    counts = select(*columns).where(enqueued).group_by(job_event.c.queue)
    with log.connect() as connection:
        found = {row[0]: Events(row[1], row[2]) for row in connection.execute(counts)}
        pruned = {queue for (queue,) in connection.execute(select(mirror_prune.c.queue).distinct())}
    return found, pruned
