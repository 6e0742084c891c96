"""What each event says, and of whom: the fields of its type and no other, each once, and its job's task and claim.

SQL shows them as they stand, in queries and in ``history``: a name that is there twice is read by one database as its
first value and by another as its last, and a field too many is shown like any other.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, Final

from rq_core.model.effects import CLAIM_ENDS
from rq_core.model.event_fields import JOB_EVENT_FIELDS, QUEUE_EVENT_FIELDS
from rq_core.model.machine import CLAIMED_STATES, Event
from sql_audit.proof.details import LENGTH_MAX, REMEMBERED_MAX, facts_in
from sql_audit.proof.live import Record
from sql_audit.store.rows import EventRow
from sql_audit.store.text import to_json

Fault = tuple[str, str]
"""The invariant, and what is wrong."""
_dumps: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode

_E = Event
_POLICY = ("priority", "max_attempts", "max_losses")
_ALWAYS: Final[Mapping[Event, tuple[str, ...]]] = {
    _E.ENQUEUED: (*_POLICY, "digest"),
    _E.DISCARDED: ("scope", "cap"),
    _E.REPLACED: ("by_job",),
    _E.EDITED: ("priority", "old_priority"),
    _E.SUCCEEDED: ("fence",),
    _E.RETRIED: ("fence", "failures"),
    _E.DIED: ("fence", "reason", "failures"),
    _E.ROLLED_BACK: ("fence",),
    _E.LEASE_EXPIRED: ("fence", "worker", "losses", "target"),
    _E.CANCEL_REQUESTED: ("fence",),
    _E.RESTORED: ("target", *_POLICY),
    _E.REMOVED: ("reason",),
    _E.FREED: ("unique_name",),
    _E.SETTLEMENT_REFUSED: ("fence", "outcome", "reason"),
    _E.POLICY_CHANGED: ("field", "new"),
    _E.CAP_CHANGED: ("scope", "version"),
    _E.EPOCH_STARTED: ("reason",),
}
"""The fields that are never null."""
_IN_COLUMNS: Final = frozenset({"id", "task", "claim"})
_FIELDS: Final = {
    str(event): (
        frozenset(field.name for field in fields) - _IN_COLUMNS | {"why"},
        _ALWAYS.get(event, ()),
    )
    for event, fields in (JOB_EVENT_FIELDS | QUEUE_EVENT_FIELDS).items()
}
_CLAIMED: Final = frozenset(map(str, CLAIMED_STATES))
_NAMES_CLAIM: Final = frozenset(map(str, (*CLAIM_ENDS, Event.CANCEL_REQUESTED)))
"""Events that are told the number of the claim in force."""


def of_event(kind: str, detail: str | None) -> tuple[Fault, ...]:
    """Return what is wrong with an event's detail. Raises ValueError if it is not a JSON object."""
    if detail is None or len(detail) <= LENGTH_MAX:
        return _remembered(kind, detail)
    return tuple(_of_event(kind, detail))


@lru_cache(maxsize=REMEMBERED_MAX)
def _remembered(kind: str, detail: str | None) -> tuple[Fault, ...]:
    return tuple(_of_event(kind, detail))


def _of_event(kind: str, detail: str | None) -> Iterator[Fault]:
    facts = facts_in(detail)
    if kind in _FIELDS:
        fields, always = _FIELDS[kind]
        for name in facts.keys() - fields:
            yield "I6", f"says {name}, which is no field of such an event"
        for name in always:
            if name not in facts:
                yield "I6", f"does not say {name}"
    if detail is not None and not _is_as_written(facts, detail):
        yield "I7", "its JSON is not as the mirror writes it: another reader may read it otherwise"


def _is_as_written(facts: Mapping[str, Any], detail: str) -> bool:
    """Whether a detail is the text that the mirror makes of its facts, so that every reader reads the same."""
    if _dumps(facts) == detail:
        return True
    # Each value has an encoding of its own.
    parts = [f"{to_json(name)}:{to_json(value)}" for name, value in facts.items()]
    return f"{{{','.join(parts)}}}" == detail


def of_job(row: EventRow, record: Record) -> Iterator[Fault]:
    """Yield what is wrong with the task and the claim of an event that happens to a job."""
    kind, claim, task = row[4], row[7], row[9]
    if record.task is not None and task != record.task:
        yield "I6", f"is said to be of task {task}, and the job's is {record.task}"
    if kind == "claimed" or record.state is None:
        return
    if kind not in _NAMES_CLAIM:
        if claim is not None:
            yield "I4", f"is said to be of claim {claim}, and is of none"
        return
    in_force = record.fence is not None and facts_in(row[10]).get("fence") == record.fence
    if in_force and record.claims is not None and claim != record.claims:
        yield "I4", f"is said to be of claim {claim}, in force is {record.claims}"


def of_beginning(row: EventRow, facts: Mapping[str, Any], state: str) -> Iterator[Fault]:
    """Yield what is wrong with the claim of an event with which a job begins, in this state."""
    claim = row[7]
    expected = facts.get("claims") if state in _CLAIMED and "fence" in facts else None
    if claim != expected:
        yield "I4", f"is said to be of claim {claim}, and it says {expected}"


def of_queue(row: EventRow) -> Iterator[Fault]:
    """Yield what is wrong with an event about the queue."""
    if (row[6], row[7], row[9]) != (None, None, None):
        yield "I6", f"is about the queue, and names job {row[6]}, claim {row[7]}, task {row[9]}"
