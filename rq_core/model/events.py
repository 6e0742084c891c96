"""Decodes entries of the outbox, the Redis stream of a queue's events. Folds events: applies them, in order, to a
record of a job's state.

The command ``rq-core doctor`` and the comparisons of Redis with the audit log use this module. The mirror and ``audit
verify`` have code of their own for the same tables. Tests compare all results, also with the key ``state``. This module
does no I/O.

    >>> entry = decode("1795225746504-3", {"type": "promoted", "at": "1795225746600", "by": "-",
    ...                                    "jobs": '[["a",7]]'})
    >>> [(e.job_id, e.fields["seq"]) for e in entry.jobs]
    [('a', 7)]
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, make_dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from rq_core.model.table.effects import BEGINNINGS, CLEARS, EFFECTS, TAKES, Effect, target
from rq_core.model.table.event_fields import JOB_EVENT_FIELDS, QUEUE_EVENT_FIELDS
from rq_core.model.table.fields import BY_LINE, COUNTERS
from rq_core.model.table.machine import CLAIMED_STATES, Event, State, legal

NUMBER_MAX: Final = 2**53
"""The greatest number up to which Lua counts exactly. (Redis accepts entry numbers up to 2^64, SQL up to 2^63.)"""


class OutboxId(NamedTuple):
    """The id of an entry of the outbox, the Redis stream of a queue's events. ``epoch`` is an unbroken stretch of the
    queue's history. ``seq`` is the entry's number in the epoch: 0, 1, 2… without a gap.
    """

    epoch: int
    seq: int

    @property
    def is_given(self) -> bool:
        """Return whether a script can have assigned this id: neither number is above NUMBER_MAX."""
        return max(self) <= NUMBER_MAX

    def __str__(self) -> str:
        return f"{self.epoch}-{self.seq}"

    @classmethod
    def parse(cls, text: str) -> OutboxId:
        """Parse an id of the form ``<epoch>-<n>``. Raises ValueError if the text is not an id."""
        epoch, _, seq = text.partition("-")
        return cls(int(epoch), int(seq))


class JobEvent(NamedTuple):
    """The part of an outbox entry about one job. ``ordinal`` is the job's position in the entry, from 0."""

    ordinal: int
    job_id: str
    fields: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Entry:
    """One decoded outbox entry: an event about one or more jobs, or about the queue."""

    id: OutboxId
    event: Event
    at_ms: int
    by: str
    """Name of the worker, producer or operator that made the call."""
    why: str | None = None
    jobs: tuple[JobEvent, ...] = ()
    data: dict[str, Any] = field(default_factory=dict)
    """The fields of an event about the queue, by name; empty for an event about jobs."""


class Undecodable(ValueError):
    """Raised if this release cannot read an outbox entry. The caller should store the entry's bytes."""


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
    """Decode one outbox entry. Raises Undecodable if this release cannot read the entry."""
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


RECORD_FIELDS: Final = (*(field.name for field in BY_LINE.values()), "digest")
"""Names of the job's fields that are attributes of a JobRecord. (The audit database has further fields of a job.)"""


if TYPE_CHECKING:

    @dataclass(slots=True)
    class JobRecord:
        """A job's state and fields after the events that were folded. A ``state`` of None means that Redis does not
        have the job."""

        id: str
        state: State | None = None
        # The fields of RECORD_FIELDS that code names.
        task: str | None = None
        priority: str | None = None
        max_attempts: int | None = None
        max_losses: int | None = None
        claims: int = 0
        fence: str | None = None
        worker: str | None = None
        failures: int = 0
        losses: int = 0
        seq: int | None = None
        due_ms: int | None = None
        since_ms: int | None = None
        reason: str | None = None
        waits: str | None = None
        digest: str | None = None
        """Digest of the job's arguments and timeout; None: unknown."""
        complete: bool = True
        """True if one of the folded events is one of BEGINNINGS: then no earlier event of the job matters. False if
        earlier events of the job may be missing."""

        # Any other.
        def __getattr__(self, name: str) -> Any: ...

else:
    JobRecord = make_dataclass(
        "JobRecord",
        [
            "id",
            ("state", Any, None),
            *((name, Any, 0 if name in COUNTERS else None) for name in RECORD_FIELDS),
            ("complete", Any, True),
        ],
        namespace={"__module__": __name__},
        slots=True,
    )


def fold(record: JobRecord | None, entry: Entry, event: JobEvent) -> tuple[JobRecord, str | None]:
    """Apply one event to a job's record. Before the job's first event there is no ``record`` (None).

    Returns the record, which is changed in place. Also returns a message if the event contradicts the record, else
    None. A contradicting event is applied, too, because Redis has made the change.
    """
    if record is None:
        record = JobRecord(event.job_id, complete=entry.event in BEGINNINGS)
    effect = EFFECTS.get(entry.event)
    if effect is None:
        for name in CLEARS[entry.event]:
            setattr(record, name, None)
        for name in TAKES.get(entry.event, ()):
            setattr(record, name, event.fields[name])
        return record, None
    facts = event.fields
    state = target(entry.event, facts)
    problem = _problem(record, entry, facts, state)
    restated = entry.event is Event.BASELINE
    record.complete = record.complete or effect.begins
    record.state, record.since_ms = state, entry.at_ms
    record.due_ms = facts.get("due_ms")
    record.reason = None
    if state is State.DEAD:
        record.reason = effect.dies_of or facts["reason"]
    if entry.event is Event.CLAIMED:
        record.fence, record.worker = str(entry.id), entry.by
    if not restated or state is not None:
        _take(record, effect, facts)
    if state not in CLAIMED_STATES:
        record.fence = record.worker = None
    return record, problem


def _problem(
    record: JobRecord, entry: Entry, facts: Mapping[str, Any], state: State | None
) -> str | None:
    """Return a message if an event contradicts the record of its job. Return None if the two agree, or if the job's
    earlier events are unknown. ``state`` is the state to which the event leads."""
    event, fence = entry.event, facts.get("fence")
    if not record.complete or event is Event.BASELINE:
        return None
    if not legal(record.state, event, state):
        return f"{record.state or 'none'} -{event}-> {state or 'none'} is not a transition"
    if event is Event.CLAIMED and facts["claim"] != record.claims + 1:
        return f"claim {facts['claim']} follows claim {record.claims}"
    if fence is not None and fence != record.fence:
        return f"{event} presents fence {fence}, in force is {record.fence}"
    return None


def _take(record: JobRecord, effect: Effect, facts: Mapping[str, Any]) -> None:
    """Set the record's fields by the rules in ``effect``. ``facts`` are the event's fields."""
    for name in effect.clears:
        if name in RECORD_FIELDS:
            setattr(record, name, None)
    for name in effect.zeroes:
        setattr(record, name, 0)
    for name, told in effect.takes:
        if name in RECORD_FIELDS:
            value = facts[told]
            setattr(record, name, 0 if value is None and name in COUNTERS else value)
    for name in effect.takes_if_told:
        if facts[name] is not None:
            setattr(record, name, facts[name])


def fold_all(entries: Iterable[Entry]) -> tuple[dict[str, JobRecord], list[str]]:
    """Fold entries in order. Returns the records by job id, and a message for each event that contradicts its job's
    record.

    The records include those of jobs that have left Redis.
    """
    records: dict[str, JobRecord] = {}
    problems: list[str] = []
    for entry in entries:
        for event in entry.jobs:
            record, problem = fold(records.get(event.job_id), entry, event)
            records[event.job_id] = record
            if problem is not None:
                problems.append(f"{entry.id} job {event.job_id}: {problem}")
    return records, problems
