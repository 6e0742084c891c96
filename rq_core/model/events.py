"""What the outbox says: decoding its entries, and folding a job's events into where the job stands.

The one reader of events. ``doctor`` folds the outbox with it, ``sql_audit`` folds it into SQL, and the tests
compare both with ``state``. It does no I/O.

    >>> entry = decode("1795225746504-3", {"type": "promoted", "at": "1795225746600", "by": "-",
    ...                                    "jobs": '[["a",7]]'})
    >>> [(e.job_id, e.fields["seq"]) for e in entry.jobs]
    [('a', 7)]
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from rq_core.model.machine import (
    CLAIMED_STATES,
    JOB_EVENT_FIELDS,
    QUEUE_EVENT_FIELDS,
    Event,
    State,
    legal,
)


class OutboxId(NamedTuple):
    """An entry's number: within an epoch 0, 1, 2… without a gap."""

    epoch: int
    seq: int

    def __str__(self) -> str:
        return f"{self.epoch}-{self.seq}"

    @classmethod
    def parse(cls, text: str) -> OutboxId:
        """Read ``<epoch>-<n>``. Raises ValueError for anything else."""
        epoch, _, seq = text.partition("-")
        return cls(int(epoch), int(seq))


class JobEvent(NamedTuple):
    """One job's part of an entry. ``ordinal`` is its position there, from 0."""

    ordinal: int
    job_id: str
    fields: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Entry:
    """One outbox entry, decoded: an event that happened to one or more jobs, or to the queue."""

    id: OutboxId
    event: Event
    at_ms: int
    by: str
    """The worker, producer or person who made the call."""
    why: str | None = None
    jobs: tuple[JobEvent, ...] = ()
    data: dict[str, Any] = field(default_factory=dict)
    """For events about the queue."""


class Undecodable(ValueError):
    """An outbox entry that this release cannot read; keep its bytes."""


_JOB_FIELD_NAMES: Final = {
    event: tuple(f.name for f in fields) for event, fields in JOB_EVENT_FIELDS.items()
}
_QUEUE_FIELD_NAMES: Final = {
    event: tuple(f.name for f in fields) for event, fields in QUEUE_EVENT_FIELDS.items()
}


def _named(names: tuple[str, ...], values: list[Any]) -> dict[str, Any]:
    if len(values) > len(names):
        raise Undecodable(f"{len(values)} values for {len(names)} fields")
    named = dict(zip(names, values, strict=False))
    for missing in names[len(values) :]:
        named[missing] = None
    return named


def decode(entry_id: str, raw: Mapping[str, str]) -> Entry:
    """Decode one outbox entry. Raises Undecodable if it is not one that this release knows."""
    try:
        event = Event(raw["type"])
        jobs: tuple[JobEvent, ...] = ()
        data: dict[str, Any] = {}
        if event in _JOB_FIELD_NAMES:
            names = _JOB_FIELD_NAMES[event]
            jobs = tuple(
                JobEvent(ordinal, values[0], _named(names, values))
                for ordinal, values in enumerate(json.loads(raw["jobs"]))
            )
        else:
            data = _named(_QUEUE_FIELD_NAMES[event], json.loads(raw.get("data", "[]")))
        return Entry(
            id=OutboxId.parse(entry_id),
            event=event,
            at_ms=int(raw["at"]),
            by=raw["by"],
            why=raw.get("why"),
            jobs=jobs,
            data=data,
        )
    except Undecodable:
        raise
    except (KeyError, ValueError, TypeError, IndexError) as error:
        raise Undecodable(f"outbox entry {entry_id}: {error!r}") from error


@dataclass(slots=True)
class JobRecord:
    """A job as its events tell it. ``state`` None: not in Redis (yet, or any more)."""

    id: str
    state: State | None = None
    task: str | None = None
    priority: str | None = None
    max_attempts: int | None = None
    max_losses: int | None = None
    seq: int | None = None
    lane: str | None = None
    due_ms: int | None = None
    since_ms: int | None = None
    claims: int = 0
    failures: int = 0
    losses: int = 0
    unknown: int = 0
    fence: str | None = None
    worker: str | None = None
    reason: str | None = None
    complete: bool = True
    """False when the record began in the middle: earlier events were not seen."""


_TAKEN: Final[dict[Event, tuple[str, ...]]] = {
    Event.ENQUEUED: ("task", "priority", "max_attempts", "max_losses", "seq", "lane"),
    Event.DISCARDED: ("task", "lane"),
    Event.PROMOTED: ("seq",),
    Event.REQUEUED: ("seq",),
    Event.RETRIED: ("failures",),
    Event.DIED: ("failures",),
    Event.ROLLED_BACK: ("unknown",),
    Event.LEASE_EXPIRED: ("losses",),
    Event.RESTORED: (
        "task",
        "priority",
        "max_attempts",
        "max_losses",
        "seq",
        "lane",
        "claims",
        "failures",
        "losses",
        "unknown",
    ),
}
"""What a record takes over as the event gives it."""

_RESET: Final[dict[Event, tuple[str, ...]]] = {
    Event.ENQUEUED: ("claims", "failures", "losses", "unknown"),
    Event.DISCARDED: ("claims", "failures", "losses", "unknown"),
    Event.REQUEUED: ("failures", "losses", "unknown"),
}
"""Counters that begin again."""

BEGINNINGS: Final = frozenset({Event.ENQUEUED, Event.DISCARDED, Event.BASELINE, Event.RESTORED})
"""Events before which there is nothing to know of a job."""


def fold(record: JobRecord | None, entry: Entry, event: JobEvent) -> tuple[JobRecord, str | None]:
    """Apply one event to a job's record (None: never heard of it).

    Returns the record, changed in place, and what is wrong with the event in that place, or None. An event that
    is wrong is applied all the same, since what Redis did is what happened.
    """
    problem = None
    if record is None:
        record = JobRecord(event.job_id)
        record.complete = entry.event in BEGINNINGS
    if entry.event is Event.SETTLEMENT_REFUSED:
        return record, None
    before = record.state
    facts = event.fields
    if entry.event is Event.BASELINE:
        _take_baseline(record, facts)
        return record, None
    fence = facts.get("fence")
    if record.complete and fence is not None and fence != record.fence:
        problem = f"{entry.event} presents fence {fence}, in force is {record.fence}"
    target = _target(entry.event, facts)
    record.state = target
    record.since_ms = entry.at_ms
    _take(record, entry.event, facts)
    if entry.event is Event.CLAIMED:
        if record.complete and facts["claim"] != record.claims + 1:
            problem = f"claim {facts['claim']} follows claim {record.claims}"
        record.claims = facts["claim"]
    record.due_ms = facts.get("due_ms")
    if target not in CLAIMED_STATES:
        record.fence = record.worker = None
    elif entry.event is Event.CLAIMED:
        record.fence, record.worker = str(entry.id), entry.by
    record.reason = None
    if target is State.DEAD:
        record.reason = "poison" if entry.event is Event.LEASE_EXPIRED else facts["reason"]
    if record.complete and not legal(before, entry.event, target):
        problem = f"{before or 'none'} -{entry.event}-> {target or 'none'} is not a transition"
    return record, problem


def _take(record: JobRecord, event: Event, facts: Mapping[str, Any]) -> None:
    """Take over what the event says of the job."""
    for name in _RESET.get(event, ()):
        setattr(record, name, 0)
    for name in _TAKEN.get(event, ()):
        setattr(record, name, facts[name])
    if event is Event.ROLLED_BACK and facts["lane"] is not None:
        record.lane = facts["lane"]
    if event is Event.RESTORED:
        record.complete = True


def _target(event: Event, facts: Mapping[str, Any]) -> State | None:
    """The state that an event leads to, by what it carries."""
    match event:
        case Event.ENQUEUED | Event.RETRIED | Event.ROLLED_BACK:
            return State.READY if facts["due_ms"] is None else State.SCHEDULED
        case Event.PROMOTED | Event.REQUEUED:
            return State.READY
        case Event.CLAIMED:
            return State.RUNNING
        case Event.DIED:
            return State.DEAD
        case Event.LEASE_EXPIRED | Event.RESTORED:
            return State(facts["target"])
        case Event.CANCEL_REQUESTED:
            return State.CANCELLING
        case Event.SUCCEEDED | Event.CANCELLED | Event.PRUNED | Event.REMOVED | Event.DISCARDED:
            return None
        case _:
            raise ValueError(f"{event} is not about a job")


def _take_baseline(record: JobRecord, facts: Mapping[str, Any]) -> None:
    record.complete = True
    record.state = State(facts["state"]) if facts["state"] is not None else None
    for name in (
        "task", "priority", "max_attempts", "max_losses", "seq", "lane", "due_ms",
        "fence", "worker", "reason", "since_ms",
    ):  # fmt: skip
        setattr(record, name, facts[name])
    for name in ("claims", "failures", "losses", "unknown"):
        setattr(record, name, facts[name] or 0)


def fold_all(entries: Iterable[Entry]) -> tuple[dict[str, JobRecord], list[str]]:
    """Fold entries in order. Returns the records by job id, gone ones included, and the problems found."""
    records: dict[str, JobRecord] = {}
    problems: list[str] = []
    for entry in entries:
        for event in entry.jobs:
            record, problem = fold(records.get(event.job_id), entry, event)
            records[event.job_id] = record
            if problem is not None:
                problems.append(f"{entry.id} job {event.job_id}: {problem}")
    return records, problems
