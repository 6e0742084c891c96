"""The calls of the mirror and the doctor, and the calls that restore jobs after a loss of Redis."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from rq_core.model.durable.boxes import members_of_signals
from rq_core.model.events import NUMBER_MAX, JobRecord, OutboxId
from rq_core.model.keys import check_name, queue_keys
from rq_core.model.state_line import fields_of, write_line
from rq_core.model.table.event_fields import JOB_EVENT_FIELDS
from rq_core.model.table.machine import (
    DEFAULT_MAX_ATTEMPTS,
    DEFAULT_MAX_LOSSES,
    DEFAULT_PRIORITY,
    Event,
    State,
)
from rq_core.protocol.engine.delivery import Delivery
from rq_core.protocol.engine.plan import Call, Plan, pairs_of, parse_nothing, parse_pairs
from rq_core.scripts.plain import plain_text

BASELINE_CHUNK: Final = 1_000
"""Approximate number of jobs whose present states one call writes into a baseline event. One event has at most this
number of jobs."""
# The most that `lua/plain/strike.lua` copies.
STRIKE_ENTRIES_MAX: Final = 20_000
STRIKE_BYTES_MAX: Final = 16 * 1024 * 1024

_TARGETS: Final = {
    State.READY: State.READY,
    State.RUNNING: State.READY,
    State.SCHEDULED: State.SCHEDULED,
    State.PARKED: State.READY,
    State.DEAD: State.DEAD,
}
"""A job's last state in the audit log → the state that a restore gives to the job. A job that was asked to stop is not
restored. A job that was parked runs again, and parks again if its wait is not over."""

PUT_BACK: Final = frozenset(_TARGETS)
"""The states of jobs that a restore can put back into Redis: a job's last state in the audit log must be one of
them."""

_TOLD: Final = tuple(field.name for field in JOB_EVENT_FIELDS[Event.RESTORED])[4:]
"""The fields of the event ``restored`` for which the caller of a restore passes values. The Lua script adds the four
fields before these."""


class Restoration(NamedTuple):
    """One record of a call that restores lost data from the audit log: what restore.lua must do for one job."""

    id: str
    kind: str
    """The kind of work:

    - restore: put back a job.
    - missing: put back a job that is live in the log.
    - remove: remove a job that has ended in the log.
    - remember: remember the id of an ended job.
    - name: let an ended job hold its unique name again.
    - entry: put back an entry or a signal of a durable job's box.
    - lost: keep the number of a signal that cannot be put back; its sender must send it again."""
    due_ms: int
    line: str
    """A line whose meaning depends on the kind.

    - restore, missing: the job's new value in the key ``state``, without the fields ``seq``, ``due`` and ``since``.
    - remove: the job's present value in the key ``state``.
    - remember: the job's value in the key ``results``.
    - name: the job's unique name, and the instant until which the job holds the name.
    - entry, lost: the id (life) of a box, and the numbers of the box's header."""
    detail: str
    """The remaining fields of the event ``restored``, as JSON. For remove: the event with which the job had ended, as
    JSON. For entry and lost: the name of a member of the job's box (saved steps and signals), for example ``|3`` (entry
    3) or ``>2`` (signal 2). The box's id (life) at the beginning of the name is left out."""
    spec: str = ""
    """The job's JSON, or the value of a member of the job's box (saved steps and signals). For remember: the job's
    result, as JSON; empty: only the id is remembered."""


class Restored(NamedTuple):
    """The outcome of one restore call."""

    last: str
    """The id of this restore, which the next restore passes as ``after``."""
    outcomes: dict[str, str]
    """The outcome by job id: restored, removed, remembered, named, kept, known, held, gone, or the state of a job that
    was not changed. If the outcome of a record that should restore a job is ``remembered``, the job was not restored:
    another job with the same id has ended after the loss. If several records have one id, the outcome is that of the
    last one."""
    by_record: tuple[str, ...] = ()
    """The outcome of each record, in the order of the records."""


class Audit:
    """The calls that maintain the audit log, restore lost jobs, and repair a queue."""

    def __init__(self, delivery: Delivery) -> None:
        self._delivery = delivery

    def attach(self, queue: str, audit_id: str, known: int = 0, stamp: str = "") -> Plan[None]:
        """Switch the queue's audit log on, for this audit database. Raises AuditElsewhere if another database mirrors
        the queue.

        If the outbox (the queue's stream of events) lacks a part of the queue's history, the call writes a baseline:
        events that record the present state of all live jobs.

        ``known`` is an epoch of the queue that the database already has. An epoch is the number of one unbroken history
        of the queue in Redis. If the queue's epoch is lower than ``known``, the queue starts a new epoch above
        ``known``, with a baseline. Each epoch that this client starts later is above ``known``, too.

        ``stamp`` is the text by which the database recognizes the queue. A queue without a stamp gets this one. If the
        queue has another stamp, AuditStampDiffers is raised. With an empty ``stamp``, any stamp is accepted.
        """
        self._delivery.set_floor(queue, known)
        answer = yield from self._attach(queue, audit_id, "on", known, stamp)
        if answer != "baseline":
            return
        cursor = "0"
        while True:
            cursor = yield from self._baseline(queue, cursor)
            if cursor == "0":
                return

    def detach(self, queue: str, audit_id: str) -> Plan[None]:
        """Switch the audit log off. From then on, the outbox holds only recent events."""
        yield from self._attach(queue, audit_id, "off")

    def _attach(
        self, queue: str, audit_id: str, mode: str, known: int = 0, stamp: str = ""
    ) -> Plan[str]:
        args = {
            "by": self._delivery.name,
            "audit_id": check_name("audit", audit_id),
            "stamp": stamp,
            "mode": mode,
            "known": known,
        }
        return (
            yield from self._delivery.call(Call("attach", queue, args, lambda reply: str(reply[0])))
        )

    def _baseline(self, queue: str, cursor: str) -> Plan[str]:
        """Write events that record the present state of some live jobs, from ``cursor`` on. Returns the cursor for the
        next jobs, or "0" after the last jobs.
        """
        args = {"by": self._delivery.name, "cursor": cursor, "most": BASELINE_CHUNK}
        return (
            yield from self._delivery.call(
                Call("baseline", queue, args, lambda reply: str(reply[0]))
            )
        )

    def read_outbox(
        self, queue: str, start: str, count: int
    ) -> Plan[list[tuple[str, dict[str, str]]]]:
        """Return at most ``count`` undecoded entries of the outbox (the queue's stream of events) whose ids are
        ``start`` or later, in order. If ``start`` is "-", the first entry is the oldest one of the outbox.
        """
        keys = queue_keys(queue, self._delivery.prefix)
        (entries,) = yield from self._delivery.ask(
            [["XRANGE", keys("outbox"), start, "+", "COUNT", count]], queue
        )
        return [(entry_id, pairs_of(flat)) for entry_id, flat in entries]

    def read_outbox_back(
        self, queue: str, before: str, count: int
    ) -> Plan[list[tuple[str, dict[str, str]]]]:
        """Return at most ``count`` undecoded entries of the outbox (the queue's stream of events) that come before the
        entry ``before``, newest first.
        """
        keys = queue_keys(queue, self._delivery.prefix)
        (entries,) = yield from self._delivery.ask(
            [["XREVRANGE", keys("outbox"), f"({before}", "-", "COUNT", count]], queue
        )
        return [(entry_id, pairs_of(flat)) for entry_id, flat in entries]

    def trim(self, queue: str, audit_id: str, upto: str, jobs: int, size: int) -> Plan[None]:
        """Remove the entries of the outbox that come before the entry ``upto``. The mirror has committed all entries up
        to ``upto`` to SQL. The entry ``upto`` itself stays, so that the mirror's next read can check that it is
        unchanged. If Redis has lost this entry, nothing is removed.

        ``jobs`` is the number of jobs in the events that were mirrored since the last trim; an event about the queue
        counts as one job. ``size`` is the number of bytes of the events' fields: type, jobs or data, and why.
        """
        OutboxId.parse(upto)
        args = {"audit_id": audit_id, "upto": upto, "jobs": jobs, "size": size}
        yield from self._delivery.call(Call("trim", queue, args, parse_nothing))

    def restore(
        self,
        queue: str,
        records: Sequence[Restoration],
        *,
        after: str,
        by: str | None = None,
        why: str = "",
    ) -> Plan[Restored]:
        """Restore lost jobs from the audit log, and remove jobs that are in Redis although they have ended in the log.

        ``records`` has at most BATCH_MAX records. ``after`` is the id of the last restore that Redis had carried out
        before the caller read the log: the field ``restored`` of the queue's ``meta``, or ``last`` of the previous
        :class:`Restored`.

        Raises AuditBacklogFull, QueueFull, or RestoredMeanwhile if Redis has carried out another restore since
        ``after``.
        """
        args = {"by": check_name("actor", by or self._delivery.name), "why": why, "after": after}
        ids = tuple(check_name("job", record.id) for record in records)
        return (
            yield from self._delivery.call(
                Call("restore", queue, args, parse_restored, records, ids)
            )
        )

    def repair(
        self, queue: str, records: Sequence[tuple[int, str, str, str, str]], *, by: str
    ) -> Plan[int]:
        """Correct single members of the queue's keys that the doctor has found to be wrong. Returns the number of
        repaired findings.

        A record is (number of the finding, key, member, value that the doctor read, new value).
        """
        call = Call("repair", queue, {"by": by}, lambda r: int(r[0]), records)
        return (yield from self._delivery.call(call))

    def strike(self, queue: str) -> Plan[None]:
        """Remove entries of the outbox that no script has written: their ids are higher than any id that a script
        assigns. If no entry remains, a new epoch (history of the queue in Redis) begins.

        Raises ServerUnsuitable and changes nothing if more than STRIKE_ENTRIES_MAX entries or STRIKE_BYTES_MAX bytes
        would remain.
        """
        outbox = queue_keys(queue, self._delivery.prefix)("outbox")
        bounds = (STRIKE_ENTRIES_MAX, STRIKE_BYTES_MAX)
        yield from self._delivery.ask(
            [["EVAL", plain_text("strike", NUMBER_MAX=NUMBER_MAX), 1, outbox, *bounds]], queue
        )


def put_back(
    record: JobRecord,
    spec: str,
    digest: str,
    *,
    enqueued_ms: int | None = None,
    missing: bool = False,
) -> Restoration:
    """Build the record that restores a job. The job's last state in the log decides its new state: see _TARGETS.

    The job keeps its counters of attempts and losses. Its claim, if it had one, is dropped, and counts as neither a
    failure nor a loss. ``spec`` is the job's immutable JSON. ``missing`` is true if the log has the job as live, and
    Redis lacks it. Raises KeyError if the job's last state is not in PUT_BACK.
    """
    assert record.state is not None
    target = _TARGETS[record.state]
    kept = replace(
        record,
        state=target,
        priority=record.priority or DEFAULT_PRIORITY,
        max_attempts=record.max_attempts or DEFAULT_MAX_ATTEMPTS,
        max_losses=record.max_losses or DEFAULT_MAX_LOSSES,
        waits=None,
        reason=record.reason if target is State.DEAD else None,
        seq=None,
        due_ms=None,
        since_ms=None,
        fence=None,
        worker=None,
    )
    of_event: dict[str, Any] = {"digest": digest, "enqueued_ms": enqueued_ms}
    told = [of_event[name] if name in of_event else getattr(kept, name) for name in _TOLD]
    return Restoration(
        record.id,
        "missing" if missing else "restore",
        record.due_ms or 0,
        write_line(target, fields_of(kept)),
        json.dumps(told, separators=(",", ":"))[1:-1],
        spec,
    )


def entries_again(
    job_id: str,
    life: str,
    entries: Sequence[str],
    signals: Sequence[str] = (),
    lost: Collection[int] = (),
) -> list[Restoration]:
    """Build the records that put back a durable job's lost box, which has the job's saved steps and signals. ``life``
    is the id of the box. ``entries`` and ``signals`` are the texts of its contents, in order.

    The records of the entries come last, in order. The record of the last signal comes directly before them. With this
    order, no worker continues the job before the last record is written, and no new signal changes the box.

    ``lost`` has the numbers of the signals that cannot be put back: their senders must send them again.
    """
    texts = (*entries, *signals)
    size = sum(len(text.partition("\n")[2].encode()) for text in texts)
    line = f"entry life={life} entries={len(entries)} bytes={size}"
    line += f" mail={len(signals)}" if signals else ""
    members = members_of_signals(dict(enumerate(signals, 1)))
    if signals:
        last = f">{len(signals)}"
        members[last] = members.pop(last)
    members |= {f"|{number}": text for number, text in enumerate(entries, 1)}
    again = {f">{number}" for number in lost}
    return [
        Restoration(job_id, "lost" if rest in again else "entry", 0, line, rest, text)
        for rest, text in members.items()
    ]


def take_out(job_id: str, line: str, ended: str) -> Restoration:
    """Build the record that removes an ended job from Redis. The job is removed only if its state line is still
    ``line``. ``ended`` is the event with which the job had ended.
    """
    return Restoration(job_id, "remove", 0, line, json.dumps(ended))


def remember(job_id: str, until_ms: int, line: str) -> Restoration:
    """Build the record that makes Redis remember an ended job's id until ``until_ms`` (Unix ms). ``line`` is the job's
    value in the key ``results``.
    """
    return Restoration(job_id, "remember", until_ms, line, "null")


def stand_again(job_id: str, name: str, until_ms: int) -> Restoration:
    """Build the record that lets an ended job hold its unique name again, until ``until_ms`` (Unix ms). This is needed
    if the name must be held until a fixed time, even if the job ends before.
    """
    line = " ".join(("ended", f"unique={name}", f"stands=until:{until_ms}"))
    return Restoration(job_id, "name", until_ms, line, "null")


def parse_restored(reply: Sequence[Any]) -> Restored:
    return Restored(reply[0], parse_pairs(reply[1:]), tuple(reply[2::2]))
