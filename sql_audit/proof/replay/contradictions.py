"""Finds events that contradict themselves or earlier events of their job, although the job's change of state is legal.

A script reads Redis' clock once, compares times with it, and writes it into the event as the event's time. So the
script's comparisons can be repeated here. No rule compares the times of two calls, because the clock may have been set
back in between.

An event must also have exactly the fields of its type, each once, and its job's task and claim. Other details could
mislead readers. If a field occurs twice in the JSON, one database returns the first value and another the last. And a
field that the event's type does not have is displayed like any other.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from rq_core.model.job import limits_fault, spec_fault
from rq_core.model.lib.text import counted
from rq_core.model.limits.scopes import TASK, family_of, scopes_of
from rq_core.model.table.effects import CLAIM_ENDS
from rq_core.model.table.event_fields import JOB_EVENT_FIELDS, QUEUE_EVENT_FIELDS
from rq_core.model.table.machine import CLAIMED_STATES, PRIORITIES, Event, Priority, State
from rq_core.model.unique_names import digest_of
from sql_audit.mirror.field_types import KINDS, Check
from sql_audit.proof.event_details import LENGTH_MAX, facts_in
from sql_audit.proof.replay.live_job import Record
from sql_audit.proof.replay.plain_details import plain_details
from sql_audit.store.job_rows import EventRow
from sql_audit.store.schema.tables import QUARANTINED
from sql_audit.store.storable_text import to_json

Fault = tuple[str, str]
"""A pair of the violated invariant and a phrase that continues a sentence about the event."""
Facts = Mapping[str, Any]
Rule = Callable[[Facts, Record, EventRow], Iterator[Fault]]
_UNKNOWN: Final = "unknown_"
"""The prefix of the reasons ``unknown_task`` and ``unknown_arguments``: a worker does not know a job's task or
arguments. With such a reason, it gives the job back for another worker, or the job dies without a failure."""
_PRIORITY_OF: Final = {f"{index}+": str(priority) for index, priority in enumerate(PRIORITIES)}
"""The priority of a lane, by the first two characters of the lane's name."""
_WAITING: Final = (State.READY, State.SCHEDULED, State.PARKED)


def is_plain_beginning(facts: Facts) -> bool:
    """Return whether :func:`of_beginning` cannot find a fault in an event ``enqueued`` of a job that is ready at once.

    So it is for most jobs: the job has a place in line, and no lane or one of its priority, and the log does not have
    the job's JSON. Without a lane, the rules about the fields report each fault.
    """
    if "spec" in facts or "seq" not in facts:
        return False
    lane = facts.get("lane")
    if lane is None:
        return True
    priority = _PRIORITY_OF.get(lane[:2]) if type(lane) is str else None
    is_its_own = priority is not None and priority == facts.get("priority")
    return is_its_own and facts["seq"] is not None


def of_beginning(facts: Facts, at_ms: int, task: str | None, state: str) -> Iterator[Fault]:
    """Yield the faults of an event ``enqueued`` or ``restored`` that puts its job into ``state``."""
    due = facts.get("due_ms")
    if (due is None) is (state == State.SCHEDULED) or (facts.get("seq") is None) is (due is None):
        yield "I6", f"is {state}, with place {facts.get('seq')} in line and due time {due}"
    elif due is not None and due <= at_ms:
        yield "I6", f"waits for a time that was over {at_ms - due} ms before"
    lane, priority = facts.get("lane"), Priority(facts["priority"])
    if lane is not None and not lane.startswith(f"{PRIORITIES.index(priority)}+"):
        yield "I6", f"is of priority {priority}, and in lane {lane}"
    spec = facts.get("spec")
    if spec is not None:
        yield from _of_spec(spec, facts, task)


def _of_spec(spec: str, facts: Facts, task: str | None) -> Iterator[Fault]:
    """Yield the differences between a job's stored JSON and the task, limits and digest that the job's event has."""
    # In a JSON with U+FFFD, characters that SQL cannot keep may have been replaced: its digest differs.
    digest = None if "\ufffd" in spec else facts.get("digest") or "none"
    if (wrong := spec_fault(spec, task, digest)) or (
        wrong := limits_fault(spec, facts.get("max_attempts"), facts.get("max_losses"))
    ):
        yield "I6", wrong


def _of_promoted(_: Facts, record: Record, row: EventRow) -> Iterator[Fault]:
    if record.due is not None and row[5] < record.due:
        yield "I6", f"is ready {record.due - row[5]} ms before it is due"


def _of_expired(facts: Facts, record: Record, row: EventRow) -> Iterator[Fault]:
    if record.priority is None:
        return
    if record.expires is None:
        yield "I19", "expires, and has no deadline"
    elif row[5] < record.expires:
        yield "I19", f"expires {record.expires - row[5]} ms before its deadline"
    if record.failures is None or record.losses is None:
        return
    has_worked = record.failures + record.losses > 0 or record.state == State.PARKED
    if has_worked is not bool(facts.get("dead")):
        ends = "dead" if facts.get("dead") else "gone"
        yield "I6", f"is {ends} after {record.failures} failures and {record.losses} losses"


def _of_replaced(_: Facts, record: Record, _row: EventRow) -> Iterator[Fault]:
    if record.claims:
        yield "I6", f"is replaced after {counted(record.claims, 'claim')}"


def _of_settled(facts: Facts, record: Record, row: EventRow) -> Iterator[Fault]:
    due = facts.get("due_ms")
    if due is not None and due < row[5]:
        yield "I6", f"waits for a time that was over {row[5] - due} ms before"
    is_unknown = str(facts.get("reason")).startswith(_UNKNOWN)
    if row[4] == Event.DIED:
        if not is_unknown and record.failures is not None and facts["failures"] == record.failures:
            yield "I4", "dies of a failure that is not counted"
    elif row[4] == Event.ROLLED_BACK and record.unknown is not None:
        expected = record.unknown + is_unknown
        if (logged := facts.get("unknown") or 0) != expected:
            yield "I4", f"was given back as unknown {logged} times, by the log {expected}"


def _of_cancelled(facts: Facts, record: Record, _: EventRow) -> Iterator[Fault]:
    if "fence" in facts and record.state in _WAITING:
        yield "I9", f"ends claim {facts['fence']} of a job that was {record.state}"


def _of_refused(facts: Facts, record: Record, row: EventRow) -> Iterator[Fault]:
    worker = row[8]
    if record.fence is not None and (record.fence, record.worker) == (facts.get("fence"), worker):
        yield "I9", f"refuses fence {record.fence} of {worker}, which is in force"


def _of_edited(facts: Facts, record: Record, row: EventRow) -> Iterator[Fault]:
    """Yield the faults of an event ``edited`` of a waiting job.

    An edit changes the due time, the priority (with its lane) or the deadline, and must name the old values.
    """
    if record.priority is None:
        return
    at_ms, before = row[5], (record.due, record.priority, record.expires)
    told = facts.get("old_due_ms"), facts.get("old_priority"), facts.get("old_expires_ms")
    for name, said, was in zip(("due time", "priority", "deadline"), told, before, strict=True):
        if said != was:
            yield "I6", f"says that the job's {name} was {said}, and it was {was}"
    new_due, deadline = facts.get("due_ms"), facts.get("expires_ms")
    if (new_due, facts["priority"], deadline) == before:
        yield "I6", "changes nothing"
    if new_due is not None and new_due != record.due and new_due <= at_ms:
        yield "I6", f"puts the job off to a time that was over {at_ms - new_due} ms before"
    new = Priority(facts["priority"])
    if says := _of_new_lane(facts.get("lane"), record.lane, new, record.priority):
        yield "I6", says
    earliest = max(at_ms, new_due or 0)
    if deadline is not None and deadline <= earliest:
        yield "I19", f"leaves a job that may begin {earliest - deadline} ms after its deadline"


def _of_new_lane(lane: str | None, before: str | None, new: Priority, old: str) -> str | None:
    """Return a phrase if an edit moves a job to a wrong lane; None if the lane is right.

    The lane must have the new priority and the old scopes. Only the task's scope may differ: it may change without an
    event.
    """
    if lane is None:
        stays = new != old and before is not None
        return f"changes the priority, and leaves the job in lane {before}" if stays else None
    if new == old:
        return f"moves the job to lane {lane} without another priority"
    if not lane.startswith(f"{PRIORITIES.index(new)}+"):
        return f"moves the job to lane {lane}, which has another priority"
    if _keys_of(lane) != _keys_of(before):
        return f"moves the job to lane {lane} from {before}, which has other scopes"
    return None


def _keys_of(lane: str | None) -> set[str]:
    return {s for s in scopes_of(lane or "") if family_of(s) != TASK}


RULES: Final[Mapping[str, Rule]] = {
    "promoted": _of_promoted,
    "expired": _of_expired,
    "replaced": _of_replaced,
    **dict.fromkeys(("retried", "died", "rolled_back"), _of_settled),
    "cancelled": _of_cancelled,
    "edited": _of_edited,
    "settlement_refused": _of_refused,
}
"""By type of event: a function that checks the event. It takes the event's fields, the job's state before the event,
and the event's row, and yields the faults of the event."""


def of_discarded(facts: Facts, limit: str | None) -> Iterator[Fault]:
    """Yield the faults of an event ``discarded``: a job was not accepted, because a scope (what a cap counts) was full.

    ``limit`` is the stored limit of the scope; None: not known. With "none", no limit is stored, and the producer's own
    limit was used.
    """
    scope, cap, lane = facts["scope"], facts["cap"], facts.get("lane")
    if lane is not None and scope not in scopes_of(lane):
        yield "I6", f"finds {scope} full, and that is no scope of lane {lane}"
    if limit not in (None, "none", str(cap)):
        yield "I3", f"finds {scope} ≤ {cap} full, stored is {limit}"


def of_entry(first: EventRow, row: EventRow) -> Iterator[Fault]:
    """Yield a fault for two rows of one outbox entry, ``first`` and ``row``, whose event type, time or actor differ.
    Yield nothing if one of the rows is in quarantine.
    """
    if QUARANTINED not in (first[4], row[4]):
        yield "I6", f"is in one entry with {first[4]} at {first[5]} by {first[8]}"


def of_value(facts: Facts, *, is_kept: bool | None) -> Iterator[str]:
    """Yield the faults of the result in an event ``succeeded``. ``is_kept`` is True if the job keeps its result; None:
    not known.
    """
    digest, value = facts.get("value_digest"), facts.get("value")
    if digest is None and value is None:
        return
    if is_kept is False:
        yield "has a value, and the job keeps no result"
    if value is not None and digest_of(value) != digest:
        yield f"its value has another digest than {digest}"


class Replacing:
    """The jobs that must be enqueued next, because they have replaced other jobs.

    A call to Redis first ends the old jobs in one entry, then enqueues the new jobs in another.
    """

    def __init__(self) -> None:
        self.by_jobs: dict[str, str] = {}
        """The id of the job that was replaced, by the id of the job that replaces it and is not enqueued yet."""
        self._is_enqueued = False
        """True if the replay has read the entry in which the replacing call enqueues jobs."""

    def forget(self) -> None:
        """Forget the jobs that must begin, without a report about them."""
        self.by_jobs.clear()

    def add(self, by_job: str, job_id: str) -> None:
        """Note that the job ``by_job`` has replaced ``job_id``, so that ``by_job`` must be enqueued next."""
        self.by_jobs[by_job] = job_id
        self._is_enqueued = False

    def pass_entry(self, kind: str) -> Iterator[Fault]:
        """Go to the next outbox entry, of type ``kind``.

        A call that replaces jobs appends one entry after the other. If this entry belongs to another call, yield a
        fault for each job of the call that was not enqueued.
        """
        if kind == Event.DISCARDED or (kind == Event.ENQUEUED and not self._is_enqueued):
            self._is_enqueued = kind == Event.ENQUEUED
            return
        if kind not in (Event.EPOCH_STARTED, QUARANTINED):
            for by_job, job_id in self.by_jobs.items():
                yield (
                    "I6",
                    f"follows the end of job {job_id}, replaced by {by_job}, which did not begin",
                )
        self.forget()


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
    _E.PARKED: ("fence", "waits"),
    _E.STEP_BEGUN: ("fence", "life", "entry", "name"),
    _E.STEP_SAVED: ("fence", "life", "entry", "name", "digest"),
    _E.SIGNALLED: ("life", "message", "name", "bytes", "digest"),
    _E.SIGNAL_LOST: ("life", "message"),
    _E.COST_SETTLED: ("fence", "taken"),
    _E.SCOPE_PAUSED: ("fence", "scope", "until_ms"),
    _E.LEASE_EXPIRED: ("fence", "worker", "losses", "target"),
    _E.CANCEL_REQUESTED: ("fence",),
    _E.RESTORED: ("target", *_POLICY),
    _E.REMOVED: ("reason",),
    _E.FREED: ("unique_name",),
    _E.SETTLEMENT_REFUSED: ("fence", "outcome", "reason"),
    _E.POLICY_CHANGED: ("field", "new"),
    _E.CAP_CHANGED: ("scope", "version"),
    _E.PAUSE_CHANGED: ("scope",),
    _E.EPOCH_STARTED: ("reason",),
}
"""By type of event: the fields that are never null."""
_IN_COLUMNS: Final = frozenset({"id", "task", "claim"})
_WITHOUT_REASON: Final = frozenset((
    _E.REPLACED, _E.PROMOTED, _E.CLAIMED, _E.EXPIRED, _E.SUCCEEDED, _E.RETRIED, _E.DIED, _E.ROLLED_BACK, _E.PARKED,
    _E.STEP_BEGUN, _E.STEP_SAVED, _E.COST_SETTLED, _E.SCOPE_PAUSED, _E.LEASE_EXPIRED, _E.SETTLEMENT_REFUSED,
))  # fmt: skip
"""The types of events that never have a reason (the field ``why``)."""
_FIELDS: Final = {
    str(event): (
        frozenset(field.name for field in fields) - _IN_COLUMNS
        | (frozenset() if event in _WITHOUT_REASON else {"why"}),
        _ALWAYS.get(event, ()),
    )
    for event, fields in (JOB_EVENT_FIELDS | QUEUE_EVENT_FIELDS).items()
}
_CHECKS: Final[Mapping[str, Mapping[str, Check]]] = {
    str(event): {field.name: KINDS[field.name] for field in fields if field.name in KINDS}
    for event, fields in JOB_EVENT_FIELDS.items()
}
"""By type of event: the checks of the fields' values, the same as in the mirror. Events about the queue have no
checks."""
_PLAIN: Final = {
    str(event): plain_details(
        [field.name for field in fields if field.name not in _IN_COLUMNS], _ALWAYS.get(event, ())
    ).fullmatch
    for event, fields in JOB_EVENT_FIELDS.items()
}
"""By type of event: a function that matches most details without a fault, and no others."""
_FAULTLESS: Final[Mapping[str, set[str | None]]] = {kind: set() for kind in _PLAIN}
"""By type of event: details without a fault. Many events have the same detail as others shortly before."""
FAULTLESS_MAX: Final = 2_000
"""Maximum number of details without a fault that are kept, for each type of event."""
_OCCURS_ONCE: Final = frozenset({str(_E.ENQUEUED)})
"""Types of events with a different detail for each job: to keep it would cost time."""
_CLAIMED: Final = frozenset(map(str, CLAIMED_STATES))
NAMES_CLAIM: Final = frozenset(map(str, (*CLAIM_ENDS, Event.CANCEL_REQUESTED)))
"""The types of events whose rows must have the number of the claim in force."""


def of_event(kind: str, detail: str | None) -> tuple[Fault, ...]:
    """Return the faults of the JSON in an event's detail, as far as the event's type alone shows them.

    Raise ValueError if the detail is not a JSON object.
    """
    faultless = _FAULTLESS.get(kind)
    if faultless is None:
        return tuple(_of_event(kind, detail))
    if detail in faultless:
        return ()
    # A changed database may have bytes here.
    if not (type(detail) is str and _PLAIN[kind](detail)):
        faults = tuple(_of_event(kind, detail))
        if faults:
            return faults
    if kind not in _OCCURS_ONCE and (detail is None or len(detail) <= LENGTH_MAX):
        if len(faultless) >= FAULTLESS_MAX:
            faultless.clear()
        faultless.add(detail)
    return ()


def _of_event(kind: str, detail: str | None) -> Iterator[Fault]:
    facts = facts_in(detail)
    if kind in _FIELDS:
        fields, always = _FIELDS[kind]
        for name in facts.keys() - fields:
            yield "I6", f"says {name}, which is no field of such an event"
        for name in always:
            if name not in facts:
                yield "I6", f"does not say {name}"
        checks = _CHECKS.get(kind, {})
        for name, value in facts.items():
            check = checks.get(name)
            if value is None or (check is not None and not check((value,))):
                yield "I7", f"says {name} {value!r:.100}, which the mirror does not write"
    if detail is not None and not _is_as_written(facts, detail):
        yield "I7", "its JSON is not as the mirror writes it: another reader may read it otherwise"


def _is_as_written(facts: Facts, detail: str) -> bool:
    """Return whether a detail is exactly the JSON text that the mirror writes for these fields. Databases may read any
    other text differently.
    """
    if _dumps(facts) == detail:
        return True
    # The mirror encodes each value on its own.
    parts = [f"{to_json(name)}:{to_json(value)}" for name, value in facts.items()]
    return f"{{{','.join(parts)}}}" == detail


def of_job(row: EventRow, record: Record) -> Iterator[Fault]:
    """Yield the faults of the task and of the claim number in the row of an event about a live job."""
    kind, claim, task = row[4], row[7], row[9]
    if record.task is not None and task != record.task:
        yield "I6", f"is said to be of task {task}, and the job's is {record.task}"
    if kind == "claimed" or record.state is None:
        return
    if kind not in NAMES_CLAIM:
        if claim is not None:
            yield "I4", f"is said to be of claim {claim}, and is of none"
        return
    in_force = record.fence is not None and facts_in(row[10]).get("fence") == record.fence
    if in_force and record.claims is not None and claim != record.claims:
        yield "I4", f"is said to be of claim {claim}, in force is {record.claims}"


def of_claim(row: EventRow, facts: Facts, state: str) -> Iterator[Fault]:
    """Yield a fault if an event that puts a job into ``state`` has a wrong claim number in its row.

    The number must be that of the event's fields, or be missing if no claim is in force.
    """
    claim = row[7]
    expected = facts.get("claims") if state in _CLAIMED and "fence" in facts else None
    if claim != expected:
        yield "I4", f"is said to be of claim {claim}, and it says {expected}"


def of_queue(row: EventRow) -> Iterator[Fault]:
    """Yield a fault if the row of an event about the queue names a job, a claim or a task."""
    if (row[6], row[7], row[9]) != (None, None, None):
        yield "I6", f"is about the queue, and names job {row[6]}, claim {row[7]}, task {row[9]}"
