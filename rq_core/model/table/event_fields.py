"""The fields of each event, in order. An outbox entry has arrays with the values of these fields.

:mod:`rq_core.model.table.effects` has the effect of each event on a job's fields. This module does no I/O.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from rq_core.model.table.fields import TRAITS
from rq_core.model.table.machine import Event

_E = Event


class EventField(NamedTuple):
    """One field of an event. An outbox entry has the values of an event's fields as arrays: one array for each job, or
    one for the queue. Null values at the end of an array may be left out.
    """

    name: str
    meaning: str


_ID = EventField("id", "the job")
_FENCE = EventField(
    "fence", "the claim that it ends or concerns: the outbox id of its claimed event"
)
_SEQ = EventField(
    "seq", "place in line, given when a job first becomes ready; null while it has none"
)
_DUE = EventField("due_ms", "when it becomes ready (Unix ms); null: at once")
_FAILURES = EventField("failures", "failures so far, this one included")
_LOSSES = EventField("losses", "leases lost so far, this one included")
_ERROR = EventField("error", "object: type, message, and traceback if any; null if unknown")
_REASON = EventField("reason", "one word")
_TASK = EventField("task", "name of the task")
_PRIORITY = EventField("priority", "critical, high, normal or low")
_MAX_ATTEMPTS = EventField("max_attempts", "failures that the job survives, plus one")
_MAX_LOSSES = EventField("max_losses", "lost leases at which the job is dead")
_DIGEST = EventField(
    "digest",
    "first 32 hex digits of the SHA-256 of the arguments' JSON, and of what the job has behind it: its timeout, and the"
    " header of a fork or a child",
)
_CLAIMS = EventField("claims", "claims so far")
_FAILED = EventField("failures", "failures so far")
_LOST = EventField("losses", "leases lost so far")
_UNKNOWN = EventField("unknown", "times given back because a worker lacked the task")
_TRAITS = tuple(EventField(field.name, field.meaning) for field in TRAITS)
_EXPIRES = next(field for field in _TRAITS if field.name == "expires_ms")
_LIFE = EventField("life", "16 hex digits: the box of the durable job's entries")
_ENTRY = EventField("entry", "the entry's number in the box: 1, 2, 3…")
_STEP = EventField("name", "the step's name")
_WAITS = next(field for field in _TRAITS if field.name == "waits")
_BASE = next(field for field in _TRAITS if field.name == "base")
_LANE = EventField(
    "lane", "where it waits for its scopes: priority+scope+scope…; null: it has none"
)

JOB_EVENT_FIELDS: Final[dict[Event, tuple[EventField, ...]]] = {
    _E.ENQUEUED: (
        _ID, _SEQ, _DUE, _TASK, _PRIORITY, _MAX_ATTEMPTS, _MAX_LOSSES, _DIGEST, _LANE,
        EventField(
            "spec",
            "the job's immutable JSON, arguments included, as text; null unless its producer has"
            ' audit_payload="full" or copies a job whose JSON the log has, or if it is longer than that keeps',
        ),
        *_TRAITS,
    ),
    _E.DISCARDED: (
        _ID, _TASK, _LANE,
        EventField("scope", "the scope that was full"),
        EventField("cap", "how many jobs the scope takes"),
    ),
    _E.REPLACED: (_ID, EventField("by_job", "the job that has its name and its place now")),
    _E.EDITED: (
        _ID,
        EventField("seq", "place in line from now on; null while it has none"),
        _DUE, _PRIORITY,
        EventField("lane", "the lane that it goes to, if that is another one; null: its own"),
        _EXPIRES,
        EventField("old_due_ms", "when it would have become ready (Unix ms); null: it was ready"),
        EventField("old_priority", "its priority before"),
        EventField("old_expires_ms", "its deadline before (Unix ms); null: it had none"),
    ),
    _E.PROMOTED: (_ID, _SEQ),
    _E.CLAIMED: (
        _ID,
        EventField("claim", "1, 2, 3… per job"),
        EventField(
            "scopes",
            "[[scope, cap in force or null], …, [rate's scope, limit, window ms, burst], …], the queue's own cap"
            ' as ["queue", cap]; null: nothing counts it. If the rate counts a unit and the job has a cost in it, the'
            " cost is behind the burst",
        ),
    ),
    _E.EXPIRED: (
        _ID,
        EventField(
            "dead", "1: it had failed or lost a worker before, so it is dead; null: it is gone"
        ),
    ),
    _E.SUCCEEDED: (
        _ID, _FENCE,
        EventField(
            "value_digest",
            "first 32 hex digits of the SHA-256 of the result's JSON; null: no result is kept",
        ),
        EventField(
            "value",
            'that JSON, as text; null without audit_result="full", or while the log is at its bound',
        ),
    ),
    _E.RETRIED: (_ID, _FENCE, _DUE, _FAILURES, _ERROR),
    _E.DIED: (_ID, _FENCE, _REASON, _FAILURES, _ERROR),
    _E.ROLLED_BACK: (
        _ID, _FENCE, _DUE, _REASON, _UNKNOWN,
        EventField("lane", "the lane that it goes to, if that is another one; null: its own"),
    ),
    _E.PARKED: (
        _ID, _FENCE,
        EventField("due_ms", "the first moment that it waits for (Unix ms); null: it waits only for signals"),
        _WAITS,
    ),
    _E.WOKEN: (
        _ID,
        EventField("cause", "the entry for which it is woken, since a signal came; null: a moment has come"),
    ),
    _E.LEASE_EXPIRED: (
        _ID, _FENCE,
        EventField("worker", "the worker whose lease expired"),
        _LOSSES,
        EventField("target", "ready or dead"),
    ),
    _E.CANCEL_REQUESTED: (_ID, _FENCE),
    _E.CANCELLED: (_ID, _FENCE),
    _E.REQUEUED: (_ID, _SEQ),
    _E.PRUNED: (_ID,),
    _E.RESTORED: (
        _ID, _SEQ, _DUE,
        EventField("target", "ready, scheduled or dead"),
        _TASK, _PRIORITY, _MAX_ATTEMPTS, _MAX_LOSSES, _DIGEST,
        EventField("enqueued_ms", "when it was enqueued (Unix ms); null if it is not known"),
        _CLAIMS, _FAILED, _LOST, _UNKNOWN, _REASON, _LANE,
        *_TRAITS,
    ),
    _E.REMOVED: (
        _ID,
        EventField("reason", "the event that had ended it, and that Redis forgot"),
    ),
    _E.FREED: (_ID, EventField("unique_name", "the name that the job held, and that is free now")),
    _E.BASELINE: (
        _ID,
        EventField("state", "the job's state in Redis; null: Redis does not have the job"),
        _TASK, _PRIORITY, _MAX_ATTEMPTS, _MAX_LOSSES, _SEQ, _DUE,
        _CLAIMS, _FAILED, _LOST, _UNKNOWN, _FENCE,
        EventField("worker", "the worker that holds the claim in force"),
        EventField("since_ms", "when it entered its state (Unix ms)"),
        _REASON, _LANE, *_TRAITS,
    ),
    _E.SETTLEMENT_REFUSED: (
        _ID, _FENCE,
        EventField("outcome", "what the worker presented: complete, fail, rollback or park"),
        EventField("reason", "gone: Redis has no such job; stale: that claim is not in force"),
    ),
    _E.STEP_BEGUN: (
        _ID, _FENCE, _LIFE, _ENTRY, _STEP,
        EventField("kind", "wait: it waits for a signal; sleep: for a moment; null: a step begins"),
        EventField("until_ms", "until when it waits (Unix ms); null: without end, or a step begins"),
    ),
    _E.STEP_SAVED: (
        _ID, _FENCE, _LIFE, _ENTRY, _STEP,
        EventField("bytes", "the size of what the step returned, as JSON; null: that is not kept"),
        EventField(
            "digest",
            "first 32 hex digits of the SHA-256 of that JSON; if it is not kept, why: too_large or not_json; over: it"
            " waited until its moment",
        ),
        EventField(
            "value",
            'that JSON, as text; null without audit_result="full", or while the log is at its bound',
        ),
        _BASE,
        EventField("message", "the number of the signal that a wait has taken; null: none"),
    ),
    _E.SIGNALLED: (
        _ID, _LIFE,
        EventField("message", "the signal's number among those of the job: 1, 2, 3…"),
        EventField("name", "the signal's name"),
        EventField("key", "by which the sender repeats it without sending it twice; null: it gave none"),
        EventField("bytes", "the size of what it brings, as JSON"),
        EventField("digest", "first 32 hex digits of the SHA-256 of that JSON"),
        EventField(
            "value",
            'that JSON, as text; null unless the sender has audit_payload="full", or if it is longer than that keeps',
        ),
    ),
    _E.SIGNAL_LOST: (
        _ID, _LIFE,
        EventField(
            "message",
            "the number of a signal that Redis had lost, and that a restore could not put back: its sender must send it"
            " again",
        ),
    ),
    _E.COST_SETTLED: (
        _ID, _FENCE,
        EventField(
            "taken",
            "what the job has really taken, by its worker: tokens:1800,points:3. Its rates that count these units are"
            " corrected by the difference to what the claim took",
        ),
    ),
    _E.SCOPE_PAUSED: (
        _ID, _FENCE,
        EventField(
            "scope",
            "the rate or the breaker of the job that is paused, by its handler or by its failure: the last one that"
            " the breaker allows, or that of a probe",
        ),
        EventField("until_ms", "no job of the scope is claimed before this moment (Unix ms)"),
    ),
    _E.TICKED: (
        EventField("id", "tick-SCHEDULE-INSTANT: the job of the instant, if it has one"),
        EventField("name", "the schedule"),
        EventField("version", "the schedule's version"),
        EventField("nominal_ms", "the instant (Unix ms)"),
        EventField("due_ms", "when it was due: later by the schedule's part of spread (Unix ms)"),
        EventField("next_ms", "the schedule's next instant (Unix ms); null: it has none, since it is not on"),
        EventField(
            "outcome",
            "fired; skipped: held_by kept the job out; duplicate: there is a job of that id; missed: it was too late;"
            " undeclared: no code declares the schedule any more; run or not_run: an operator asked for it, beside all"
            " instants",
        ),
        EventField("missed", "how many instants were passed over, up to 10,000; of a missed one, with itself"),
        EventField("held_by", "the job or the scope that kept the job out; null: none did"),
    ),
}  # fmt: skip
"""The fields of events about jobs. The field ``jobs`` of an outbox entry has one array for each job; the array's values
are in this order."""

QUEUE_EVENT_FIELDS: Final[dict[Event, tuple[EventField, ...]]] = {
    _E.PAUSED: (),
    _E.RESUMED: (),
    _E.POLICY_CHANGED: (
        EventField("field", "what was changed"),
        EventField("old", "its value before, as text; null if it had none"),
        EventField("new", "its value now, as text"),
    ),
    _E.CAP_CHANGED: (
        EventField(
            "scope",
            "what it counts: queue, task=…, a family of keys, or one key; weight=… for a fair queue",
        ),
        EventField(
            "old",
            "the limit before: a number, none, or limit/window/burst; null: no limit was stored",
        ),
        EventField("new", "the limit now; null: a key has none of its own any more"),
        EventField("version", "1, 2, 3… per scope, from 1 again after null"),
    ),
    _E.PAUSE_CHANGED: (
        EventField("scope", "the scope that an operator has paused or resumed"),
        EventField(
            "until_ms",
            "no job of the scope begins before this moment (Unix ms); null: it is resumed",
        ),
    ),
    _E.SCHEDULE_CHANGED: (
        EventField("name", "the schedule"),
        EventField("state", "on, paused, undeclared or removed"),
        EventField("old", "its rule before, as JSON text; null for a new one"),
        EventField("new", "its rule now, as JSON text; null: it is forgotten"),
        EventField("version", "1, 2, 3… per schedule, from 1 again after null"),
        EventField("next_ms", "its next instant (Unix ms); null: it is forgotten"),
        EventField(
            "source",
            "code; live: an operator; released: an operator gave a live rule back to code",
        ),
        EventField(
            "pack",
            "its job as Redis keeps it, arguments included; null: it stays as it was, or arguments are not logged",
        ),
        EventField(
            "job_digest",
            "first 32 hex digits of the SHA-1 of its job as Redis keeps it; null: the job stays as it was",
        ),
    ),
    _E.EPOCH_STARTED: (
        EventField("reason", "created, replid_changed, outbox_lost, attached or behind"),
        EventField("old_epoch", "the epoch before, null if none is known"),
        EventField("old_replid", "the history that the server had, null if none is known"),
        EventField("replid", "the history that it has now"),
        EventField("last", "outbox id of the last entry before, null if none is known"),
        EventField(
            "went_on",
            "whether the server says that it went on from old_replid, as a promoted replica does; null: not asked",
        ),
    ),
    _E.QUEUE_DELETED: (),
}
"""The fields of events about the queue. The field ``data`` of an outbox entry is an array of values in this order."""
