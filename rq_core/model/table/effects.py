"""The effect of each event on a job's fields, as one table, and sets of events that are computed from the table.

:func:`rq_core.model.events.fold`, the mirror and ``audit verify`` each apply the table with code of their own. So a
mistake in one of the three shows as a difference. These rules hold for all events and are not in the table:

- The event's time becomes ``since_ms``. ``due_ms`` becomes the event's ``due_ms``, or null without one.
- A job that becomes ready gets ``ready_at_ms``, and a job that becomes scheduled loses it.
- The event's ``error``, if it has one, becomes ``error_type`` and ``error_message``.
- A job that dies gets ``finished_at_ms``. Its reason is the event's ``reason``, or the reason in the table. A job
  in Redis that is not dead has neither of the two fields.
- The times that a baseline sets are the baseline's field ``since_ms``, not the event's time. If a baseline says that
  Redis does not have the job, the event's time becomes ``since_ms``, and the job gets no other field from the baseline.
- A job without a claim in force has neither ``fence`` nor ``worker``. A claim that is no longer in force, and that no
  event has ended, counts as lost.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any, Final, NamedTuple

from rq_core.model.table.fields import COUNTERS, TRAITS
from rq_core.model.table.machine import CLAIMED_STATES, TRANSITIONS, Event, State
from rq_core.model.table.reasons import Reason


class Leads(Enum):
    """Rules for a job's state after an event, for the events that may lead to several states."""

    BY_DUE = "scheduled if the event has due_ms, else ready"
    BY_TARGET = "what the event's field target says"
    BY_STATE = "what the event's field state says"
    BY_DEATH = "dead if the event says so in its field dead, else out of Redis"


class Effect(NamedTuple):
    """The effect of one event on a job's fields."""

    leads_to: State | Leads | None = None
    """The job's state after the event; None: the job has left Redis."""
    begins: bool = False
    """True if a job begins with the event. Earlier events with the same id then do not matter."""
    takes: tuple[tuple[str, str], ...] = ()
    """Fields that get a value from the event, as pairs of the job's field and the event's field. For a counter, null
    means 0."""
    takes_if_told: tuple[str, ...] = ()
    """Fields of the job that get the value of the event's field with the same name. If the event's value is null, the
    job's field stays unchanged."""
    zeroes: tuple[str, ...] = ()
    clears: tuple[str, ...] = ()
    """Fields that become null."""
    stamps: tuple[str, ...] = ()
    """Fields that become the event's time."""
    dies_of: Reason | None = None
    """The reason of the job's death, if the event makes the job dead and has no field ``reason``."""


def _same(*names: str) -> tuple[tuple[str, str], ...]:
    return tuple((name, name) for name in names)


_E, _S = Event, State
_POLICY = ("task", "priority", "max_attempts", "max_losses")
_ERROR = ("error_type", "error_message")
_TRAITS = tuple(field.name for field in TRAITS)

EFFECTS: Final[Mapping[Event, Effect]] = {
    _E.ENQUEUED: Effect(
        Leads.BY_DUE,
        begins=True,
        takes=_same(*_POLICY, "seq", "lane", "digest", *_TRAITS),
        zeroes=COUNTERS,
        clears=("claimed_at_ms", *_ERROR),
        stamps=("enqueued_at_ms",),
    ),
    _E.DISCARDED: Effect(
        begins=True,
        takes=_same("task", "lane"),
        zeroes=COUNTERS,
        clears=(
            *_POLICY[1:], "seq", "digest", *_TRAITS, "ready_at_ms", "claimed_at_ms", *_ERROR,
        ),
        stamps=("enqueued_at_ms", "finished_at_ms"),
    ),
    _E.REPLACED: Effect(stamps=("finished_at_ms",)),
    _E.EDITED: Effect(
        Leads.BY_DUE, takes=_same("seq", "priority", "expires_ms"), takes_if_told=("lane",)
    ),
    _E.PROMOTED: Effect(_S.READY, takes=_same("seq")),
    _E.CLAIMED: Effect(_S.RUNNING, takes=(("claims", "claim"),), stamps=("claimed_at_ms",)),
    _E.EXPIRED: Effect(Leads.BY_DEATH, clears=("waits",), stamps=("finished_at_ms",), dies_of=Reason.EXPIRED),
    _E.SUCCEEDED: Effect(stamps=("finished_at_ms",)),
    _E.RETRIED: Effect(Leads.BY_DUE, takes=_same("failures")),
    _E.DIED: Effect(_S.DEAD, takes=_same("failures")),
    _E.ROLLED_BACK: Effect(Leads.BY_DUE, takes_if_told=("unknown", "lane")),
    _E.PARKED: Effect(_S.PARKED, takes=_same("waits")),
    _E.WOKEN: Effect(_S.READY, clears=("waits",)),
    _E.LEASE_EXPIRED: Effect(Leads.BY_TARGET, takes=_same("losses"), dies_of=Reason.POISON),
    _E.CANCEL_REQUESTED: Effect(_S.CANCELLING),
    _E.CANCELLED: Effect(stamps=("finished_at_ms",)),
    _E.REQUEUED: Effect(
        _S.READY,
        takes=_same("seq"),
        zeroes=("failures", "losses", "unknown"),
        clears=("expires_ms", "base"),
    ),
    _E.PRUNED: Effect(),
    _E.RESTORED: Effect(
        Leads.BY_TARGET,
        begins=True,
        takes=(
            *_same(*_POLICY, "seq", "lane", "digest", *_TRAITS, *COUNTERS),
            ("enqueued_at_ms", "enqueued_ms"),
        ),
        clears=("ready_at_ms", "claimed_at_ms", *_ERROR),
    ),
    _E.REMOVED: Effect(stamps=("finished_at_ms",)),
    _E.BASELINE: Effect(
        Leads.BY_STATE,
        begins=True,
        takes=_same(
            *_POLICY, "seq", "lane", *_TRAITS, *COUNTERS, "fence", "worker", "since_ms", "reason",
        ),
    ),
}  # fmt: skip
"""The effect of each event that is a transition of a job."""

CLEARS: Final[Mapping[Event, tuple[str, ...]]] = {
    _E.SETTLEMENT_REFUSED: (),
    _E.STEP_BEGUN: (),
    _E.STEP_SAVED: (),
    _E.SIGNALLED: (),
    _E.SIGNAL_LOST: (),
    _E.COST_SETTLED: (),
    _E.SCOPE_PAUSED: (),
    _E.TICKED: (),
    _E.FREED: ("unique_name", "name_stands"),
}
"""Events about a job that leave the job's state unchanged, so they are not in EFFECTS. Each is mapped to the fields
that become null. These events change no other fields except those in TAKES."""

TAKES: Final[Mapping[Event, tuple[str, ...]]] = {
    _E.STEP_BEGUN: ("life",),
    _E.STEP_SAVED: ("life", "base"),
    _E.SIGNALLED: ("life",),
}
"""Fields of a job that get a value from an event in CLEARS, by event. The event's field has the same name as the
job's."""

BEGINNINGS: Final = frozenset(event for event, effect in EFFECTS.items() if effect.begins)
"""Events with which a job begins. After such an event, earlier events with the same id do not matter."""

_SOURCES: Final = {event: {t.source for t in TRANSITIONS if t.event is event} for event in EFFECTS}

CLAIM_ENDS: Final = frozenset(
    t.event for t in TRANSITIONS if t.source in CLAIMED_STATES and t.target not in CLAIMED_STATES
)
"""Events that end the claim of a job, if a claim is in force."""

ONLY_CLAIM_ENDS: Final = frozenset(e for e in CLAIM_ENDS if _SOURCES[e] <= CLAIMED_STATES)
"""Events that end a claim, and that can happen only to a job with a claim in force."""

JOB_ENDS: Final = frozenset(t.event for t in TRANSITIONS if t.source and t.target is None)
"""Events by which a job leaves Redis. (After ``expired``, the job may instead be dead and stay in Redis.) In the audit
database, the name of such an event is the state of a job that has left Redis."""

REVIVALS: Final = frozenset(
    t.event for t in TRANSITIONS if t.source in (None, _S.DEAD) and t.target
)
"""Events that bring a job into Redis, or make a dead job alive. After such an event, an earlier end of the job does
not matter."""


def target(event: Event, facts: Mapping[str, Any]) -> State | None:
    """Return the state to which an event with the fields ``facts`` leads; None: the job has left Redis.

    Raises KeyError if the event is not about a job's state, or ValueError if its target is not a state.
    """
    leads_to = EFFECTS[event].leads_to
    if leads_to is Leads.BY_DUE:
        return State.READY if facts.get("due_ms") is None else State.SCHEDULED
    if leads_to is Leads.BY_TARGET:
        return State(facts["target"])
    if leads_to is Leads.BY_DEATH:
        return State.DEAD if facts.get("dead") else None
    if leads_to is Leads.BY_STATE:
        said = facts.get("state")
        return None if said is None else State(said)
    return leads_to
