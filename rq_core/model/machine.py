"""The one table: states, events, transitions, and the fields that each event carries.

Everything that must agree about a job's life is derived from here: the Lua constants and the header
check of every script, ``docs/reference/states.md``, the SQL CHECK constraints, the legality of
:mod:`rq_core.model.events`, and the matrix of states and scripts of the tests. Only what an event does to
a job's fields stands elsewhere, in :mod:`rq_core.model.effects`. Nothing here does I/O.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple


class State(StrEnum):
    """Where a live job stands. A job that is in none of these has left Redis; SQL remembers it."""

    SCHEDULED = "scheduled"
    """Waits for a moment: a delay, a retry's back-off, or a worker that knows its task."""
    READY = "ready"
    """May be claimed now."""
    RUNNING = "running"
    """One claim is in force, until it is settled or its lease expires."""
    CANCELLING = "cancelling"
    """Running, and asked to stop. It ends as cancelled, unless it succeeds first."""
    DEAD = "dead"
    """Stopped for good, kept for people to look at and requeue."""


CLAIMED_STATES: Final = frozenset({State.RUNNING, State.CANCELLING})
"""The states in which a claim is in force."""


class Event(StrEnum):
    """What can happen, as a past participle. Each is emitted by the script that makes it true."""

    ENQUEUED = "enqueued"
    DISCARDED = "discarded"
    REPLACED = "replaced"
    EDITED = "edited"
    PROMOTED = "promoted"
    CLAIMED = "claimed"
    EXPIRED = "expired"
    SUCCEEDED = "succeeded"
    RETRIED = "retried"
    DIED = "died"
    ROLLED_BACK = "rolled_back"
    LEASE_EXPIRED = "lease_expired"
    CANCEL_REQUESTED = "cancel_requested"
    CANCELLED = "cancelled"
    REQUEUED = "requeued"
    PRUNED = "pruned"
    RESTORED = "restored"
    REMOVED = "removed"
    FREED = "freed"
    BASELINE = "baseline"
    SETTLEMENT_REFUSED = "settlement_refused"
    PAUSED = "paused"
    RESUMED = "resumed"
    POLICY_CHANGED = "policy_changed"
    CAP_CHANGED = "cap_changed"
    EPOCH_STARTED = "epoch_started"
    QUEUE_DELETED = "queue_deleted"


class Transition(NamedTuple):
    """One legal arrow. ``None`` as source or target means: not in Redis."""

    source: State | None
    event: Event
    target: State | None
    script: str
    when: str = ""

    def __str__(self) -> str:
        return f"{self.source or 'none'} -{self.event}-> {self.target or 'none'}"


_S, _E = State, Event

_REPLACED_WHEN: Final = "a job of its name takes its place, and it was never claimed"
_ASKED_FOR: Final = "its deadline is over, and another job of its id comes"
_EXPIRED_AFTER_A_FAILURE: Final = "its deadline is over, and it had failed or lost a worker before"

_ALONE: Final[tuple[Transition, ...]] = (
    Transition(None, _E.ENQUEUED, _S.READY, "enqueue"),
    Transition(None, _E.ENQUEUED, _S.SCHEDULED, "enqueue", "a delay was asked for"),
    Transition(None, _E.DISCARDED, None, "enqueue", "a scope is full, and its cap says discard"),
    Transition(_S.READY, _E.REPLACED, None, "enqueue", _REPLACED_WHEN),
    Transition(_S.SCHEDULED, _E.REPLACED, None, "enqueue", _REPLACED_WHEN),
    Transition(_S.READY, _E.EXPIRED, None, "enqueue", _ASKED_FOR),
    Transition(_S.SCHEDULED, _E.EXPIRED, None, "enqueue", _ASKED_FOR),
    Transition(_S.SCHEDULED, _E.PROMOTED, _S.READY, "claim", "its due time has come"),
    Transition(_S.READY, _E.CLAIMED, _S.RUNNING, "claim"),
    Transition(_S.RUNNING, _E.LEASE_EXPIRED, _S.READY, "claim", "the lease is over"),
    Transition(
        _S.RUNNING, _E.LEASE_EXPIRED, _S.DEAD, "claim", "the lease is over, max_losses is spent"
    ),
    Transition(_S.CANCELLING, _E.CANCELLED, None, "claim", "the lease is over"),
    Transition(_S.DEAD, _E.PRUNED, None, "claim", "the retention of dead jobs is over"),
    Transition(_S.READY, _E.EXPIRED, None, "claim", "its deadline is over"),
    Transition(_S.READY, _E.EXPIRED, _S.DEAD, "claim", _EXPIRED_AFTER_A_FAILURE),
    Transition(_S.SCHEDULED, _E.EXPIRED, None, "claim", "its deadline is over"),
    Transition(_S.SCHEDULED, _E.EXPIRED, _S.DEAD, "claim", _EXPIRED_AFTER_A_FAILURE),
    Transition(_S.RUNNING, _E.SUCCEEDED, None, "complete"),
    Transition(_S.CANCELLING, _E.SUCCEEDED, None, "complete", "it finished before it noticed"),
    Transition(_S.RUNNING, _E.RETRIED, _S.SCHEDULED, "fail"),
    Transition(_S.RUNNING, _E.RETRIED, _S.READY, "fail", "the retry has no delay"),
    Transition(_S.RUNNING, _E.DIED, _S.DEAD, "fail", "max_attempts is spent, or the failure final"),
    Transition(_S.CANCELLING, _E.CANCELLED, None, "fail"),
    Transition(_S.RUNNING, _E.ROLLED_BACK, _S.READY, "rollback", "to its old place in line"),
    Transition(
        _S.RUNNING,
        _E.ROLLED_BACK,
        _S.SCHEDULED,
        "rollback",
        "the worker lacks the task, or another job that has lost a worker runs on this one",
    ),
    Transition(_S.RUNNING, _E.DIED, _S.DEAD, "rollback", "no worker knew the task for too long"),
    Transition(_S.CANCELLING, _E.CANCELLED, None, "rollback"),
    Transition(_S.READY, _E.CANCELLED, None, "cancel"),
    Transition(_S.SCHEDULED, _E.CANCELLED, None, "cancel"),
    Transition(_S.RUNNING, _E.CANCEL_REQUESTED, _S.CANCELLING, "cancel"),
    Transition(_S.READY, _E.EDITED, _S.READY, "edit", "its priority or its deadline is another"),
    Transition(_S.READY, _E.EDITED, _S.SCHEDULED, "edit", "a delay was asked for"),
    Transition(_S.SCHEDULED, _E.EDITED, _S.READY, "edit", "it is to run now"),
    Transition(_S.SCHEDULED, _E.EDITED, _S.SCHEDULED, "edit"),
    Transition(_S.DEAD, _E.REQUEUED, _S.READY, "requeue"),
    Transition(_S.DEAD, _E.PRUNED, None, "prune"),
    Transition(None, _E.RESTORED, _S.READY, "restore", "Redis lost it"),
    Transition(None, _E.RESTORED, _S.SCHEDULED, "restore", "and it is not due yet"),
    Transition(None, _E.RESTORED, _S.DEAD, "restore", "and it was dead"),
    Transition(_S.READY, _E.REMOVED, None, "restore", "it had ended, and Redis forgot that"),
    Transition(_S.SCHEDULED, _E.REMOVED, None, "restore", "it had ended, and Redis forgot that"),
    Transition(_S.DEAD, _E.REMOVED, None, "restore", "it had ended, and Redis forgot that"),
)

TRANSITIONS: Final[tuple[Transition, ...]] = (
    *_ALONE,
    # A turn is both in one call.
    *(t._replace(script="turn") for t in _ALONE if t.script in ("claim", "complete")),
)
"""Every legal arrow of a job, by the script that draws it. Nothing else may move a job."""


class EventField(NamedTuple):
    """One position of a job's array in an outbox entry. Trailing fields may be left out (null)."""

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
_DIGEST = EventField("digest", "first 32 hex digits of the SHA-256 of the arguments' JSON")
_CLAIMS = EventField("claims", "claims so far")
_FAILED = EventField("failures", "failures so far")
_LOST = EventField("losses", "leases lost so far")
_UNKNOWN = EventField("unknown", "times given back because a worker lacked the task")
_EXPIRES = EventField(
    "expires_ms", "its deadline: no claim begins at it or later (Unix ms); null: it has none"
)
_UNIQUE = EventField("unique_name", "the name of a unique job; null: it is not unique")
_ONCE = EventField(
    "once_ms",
    "until when its id is remembered, whether the job is alive or not (Unix ms); null: while it is alive",
)
_CALL = EventField(
    "call_digest",
    "32 hex digits for task and arguments, by which calls with such an id are compared; null: they are not",
)
_STANDS = EventField(
    "name_stands",
    "until when it holds that name: until:MS, that instant, whatever becomes of it; claim:MS, its first claim, for"
    " which it is ready by MS at the latest (Unix ms); null: until it ends",
)
_KEEP = EventField("keep_ms", "how long after its end its result is kept in Redis; null: it is not")
_LANE = EventField(
    "lane", "where it waits for its scopes: priority+scope+scope…; null: it has none"
)

JOB_EVENT_FIELDS: Final[dict[Event, tuple[EventField, ...]]] = {
    _E.ENQUEUED: (
        _ID, _SEQ, _DUE, _TASK, _PRIORITY, _MAX_ATTEMPTS, _MAX_LOSSES, _DIGEST, _LANE,
        EventField(
            "spec",
            "the job's immutable JSON, arguments included, as text; null unless its producer has"
            ' audit_payload="full", or if it is longer than that keeps',
        ),
        _EXPIRES, _UNIQUE, _ONCE, _CALL, _STANDS, _KEEP,
    ),
    _E.DISCARDED: (
        _ID, _TASK, _LANE,
        EventField("scope", "which was full"),
        EventField("cap", "how many it takes"),
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
            ' as ["queue", cap]; null: nothing counts it',
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
            "first 32 hex digits of the SHA-256 of the value that its handler returned, as JSON; null: none is kept",
        ),
        EventField(
            "value",
            'that JSON, as text; null unless the task has audit_result="full", or while the log is at its bound',
        ),
    ),
    _E.RETRIED: (_ID, _FENCE, _DUE, _FAILURES, _ERROR),
    _E.DIED: (_ID, _FENCE, _REASON, _FAILURES, _ERROR),
    _E.ROLLED_BACK: (
        _ID, _FENCE, _DUE, _REASON, _UNKNOWN,
        EventField("lane", "the lane that it goes to, if that is another one; null: its own"),
    ),
    _E.LEASE_EXPIRED: (
        _ID, _FENCE,
        EventField("worker", "whose lease expired"),
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
        _CLAIMS, _FAILED, _LOST, _UNKNOWN, _REASON, _LANE, _EXPIRES, _UNIQUE, _ONCE, _CALL,
        _STANDS, _KEEP,
    ),
    _E.REMOVED: (
        _ID,
        EventField("reason", "the event that had ended it, and that Redis forgot"),
    ),
    _E.FREED: (_ID, EventField("unique_name", "the name that the job held, and that is free now")),
    _E.BASELINE: (
        _ID,
        EventField("state", "as Redis has it; null: Redis does not have the job"),
        _TASK, _PRIORITY, _MAX_ATTEMPTS, _MAX_LOSSES, _SEQ, _DUE,
        _CLAIMS, _FAILED, _LOST, _UNKNOWN, _FENCE,
        EventField("worker", "who holds the claim in force"),
        EventField("since_ms", "when it entered its state (Unix ms)"),
        _REASON, _LANE, _EXPIRES, _UNIQUE, _ONCE, _CALL, _STANDS, _KEEP,
    ),
    _E.SETTLEMENT_REFUSED: (
        _ID, _FENCE,
        EventField("outcome", "what the worker presented: complete, fail or rollback"),
        EventField("reason", "gone: Redis has no such job; stale: that claim is not in force"),
    ),
}  # fmt: skip
"""Events about jobs: an outbox entry's ``jobs`` field is an array of arrays in these orders."""

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
            "old", "the limit before: a number, none, or limit/window/burst; null: there was none"
        ),
        EventField("new", "the limit now; null: a key has none of its own any more"),
        EventField("version", "1, 2, 3… per scope, from 1 again after null"),
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
"""Events about the queue: an outbox entry's ``data`` field is one array in these orders."""


class Priority(StrEnum):
    """The four classes of a queue, served strictly in this order."""

    CRITICAL = "critical"
    HIGH = "high"
    NORMAL = "normal"
    LOW = "low"


PRIORITIES: Final = tuple(Priority)

LAYOUT: Final = 2
"""Version of what the keys hold. A client refuses a queue of another layout."""

DEFAULT_PRIORITY: Final = Priority.NORMAL
DEFAULT_MAX_ATTEMPTS: Final = 3
DEFAULT_MAX_LOSSES: Final = 3
"""These three belong to the layout: a job at the default leaves the field out of its state line."""


def transitions_of(script: str) -> tuple[Transition, ...]:
    """The arrows that one script may draw."""
    return tuple(t for t in TRANSITIONS if t.script == script)


_ARROWS: Final = frozenset((t.source, t.event, t.target) for t in TRANSITIONS)


def legal(source: State | None, event: Event, target: State | None) -> bool:
    """Whether the table has this arrow, whichever script draws it."""
    return (source, event, target) in _ARROWS
