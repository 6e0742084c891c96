"""The table of states, events and transitions.

The following are made from this table, so that they agree:

- the constants in Lua, and the check of every script's header
- ``docs/reference/states.md``
- the CHECK constraints in SQL
- the legal transitions in :mod:`rq_core.model.events`
- the tests' matrix of states and scripts

:mod:`rq_core.model.table.event_fields` has the fields of events, and :mod:`rq_core.model.table.effects` their effects
on a job. This module does no I/O.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple


class State(StrEnum):
    """The states of a job in Redis. A job without one of these states has left Redis; the audit log still has the job's
    history."""

    SCHEDULED = "scheduled"
    """The job waits until its due time: for its delay, for a retry's delay, or after a rollback."""
    PARKED = "parked"
    """The job waits, without a claim, until a time or for a signal. Then its handler runs again, and continues after
    the steps that the job has saved."""
    READY = "ready"
    """The job may be claimed now."""
    RUNNING = "running"
    """One claim is in force, until it is settled or its lease expires."""
    CANCELLING = "cancelling"
    """The job runs, and was asked to stop. It ends as cancelled, unless it succeeds first."""
    DEAD = "dead"
    """The job is not retried any more. It is kept for operators, who may inspect and requeue it."""


CLAIMED_STATES: Final = frozenset({State.RUNNING, State.CANCELLING})
"""The states in which a claim is in force."""


class Event(StrEnum):
    """The events of jobs and queues. The script that makes a change also writes its event. All names except
    ``baseline`` end in a past participle."""

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
    PARKED = "parked"
    WOKEN = "woken"
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
    STEP_BEGUN = "step_begun"
    STEP_SAVED = "step_saved"
    SIGNALLED = "signalled"
    SIGNAL_LOST = "signal_lost"
    COST_SETTLED = "cost_settled"
    SCOPE_PAUSED = "scope_paused"
    TICKED = "ticked"
    PAUSED = "paused"
    RESUMED = "resumed"
    POLICY_CHANGED = "policy_changed"
    CAP_CHANGED = "cap_changed"
    PAUSE_CHANGED = "pause_changed"
    SCHEDULE_CHANGED = "schedule_changed"
    EPOCH_STARTED = "epoch_started"
    QUEUE_DELETED = "queue_deleted"


class Transition(NamedTuple):
    """One legal transition of a job, from the state ``source`` to the state ``target``. None in place of a state means
    that the job is not in Redis."""

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
    Transition(_S.PARKED, _E.WOKEN, _S.READY, "claim", "a moment that it waits for has come"),
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
    Transition(_S.PARKED, _E.EXPIRED, _S.DEAD, "claim", "its deadline is over"),
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
    Transition(_S.RUNNING, _E.PARKED, _S.PARKED, "park"),
    Transition(_S.PARKED, _E.WOKEN, _S.READY, "park", "what it waits for has come meanwhile"),
    Transition(_S.CANCELLING, _E.CANCELLED, None, "park"),
    Transition(_S.PARKED, _E.WOKEN, _S.READY, "signal", "it waits for this signal"),
    Transition(_S.READY, _E.CANCELLED, None, "cancel"),
    Transition(_S.SCHEDULED, _E.CANCELLED, None, "cancel"),
    Transition(_S.PARKED, _E.CANCELLED, None, "cancel"),
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
    Transition(_S.PARKED, _E.REMOVED, None, "restore", "it had ended, and Redis forgot that"),
    Transition(_S.DEAD, _E.REMOVED, None, "restore", "it had ended, and Redis forgot that"),
)

TRANSITIONS: Final[tuple[Transition, ...]] = (
    *_ALONE,
    # A tick enqueues the jobs of schedules as a producer would.
    *(t._replace(script="tick") for t in _ALONE if t.script == "enqueue"),
    Transition(
        _S.RUNNING,
        _E.CANCEL_REQUESTED,
        _S.CANCELLING,
        "tick",
        "its schedule says replace, and the next instant is due",
    ),
    # A turn is both in one call.
    *(t._replace(script="turn") for t in _ALONE if t.script in ("claim", "complete")),
)
"""Every legal transition of a job, with the script that makes it. A job changes its state in no other way."""


class Priority(StrEnum):
    """The four priorities of jobs. A worker claims a job only if it can claim no job of a higher priority."""

    CRITICAL = "critical"
    HIGH = "high"
    NORMAL = "normal"
    LOW = "low"


PRIORITIES: Final = tuple(Priority)

LAYOUT: Final = 2
"""The version of the layout: the form in which Redis keys store a queue. A client refuses a queue with another
version."""

DEFAULT_PRIORITY: Final = Priority.NORMAL
DEFAULT_MAX_ATTEMPTS: Final = 3
DEFAULT_MAX_LOSSES: Final = 3
"""The default of a job's max_losses, the number of lost workers at which the job is dead. The defaults of a job are
part of the layout, since a state line leaves out a field that has its default."""
LIMIT_MAX: Final = 1_000_000
"""The greatest max_attempts and max_losses that a job may have."""
LEFT_OPEN: Final = LIMIT_MAX + 1
"""The value of max_attempts or max_losses of a job whose producer did not have the task. The worker's definition of the
task then decides."""


def transitions_of(script: str) -> tuple[Transition, ...]:
    """Return the transitions that a script may make."""
    return tuple(t for t in TRANSITIONS if t.script == script)


_ARROWS: Final = frozenset((t.source, t.event, t.target) for t in TRANSITIONS)


def legal(source: State | None, event: Event, target: State | None) -> bool:
    """Return whether a transition is in the table, for any script."""
    return (source, event, target) in _ARROWS
