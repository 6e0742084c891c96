"""Events that contradict themselves, or what the log says of their job before, although each step is legal.

A script decides and writes at one moment of Redis' clock, which is the event's time, so what it compared that clock
with can be compared again. Nothing here compares the times of two calls: the clock may have been set back in between.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from rq_core.model.job import read_spec, spec_fault
from rq_core.model.machine import PRIORITIES, Event, Priority, State
from rq_core.model.names import digest_of
from rq_core.model.scopes import scopes_of
from rq_core.model.text import counted
from sql_audit.proof.live import Record
from sql_audit.store.rows import EventRow
from sql_audit.store.tables import QUARANTINED

Fault = tuple[str, str]
"""The invariant, and what is wrong."""
_UNKNOWN: Final = "unknown_"
"""What the reasons begin with for which a job dies without a failure, and waits for another worker."""
_WAITING: Final = (State.READY, State.SCHEDULED)


def of_beginning(
    facts: Mapping[str, Any], at_ms: int, task: str | None, state: str
) -> Iterator[Fault]:
    """Yield what is wrong with ``enqueued`` or ``restored``, which leads to ``state``."""
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


def _of_spec(spec: str, facts: Mapping[str, Any], task: str | None) -> Iterator[Fault]:
    """Yield what is wrong with a job's JSON beside its event's task, limits, and digest."""
    # What SQL cannot keep was replaced.
    digest = None if "\ufffd" in spec else facts.get("digest") or "none"
    if wrong := spec_fault(spec, task, digest):
        yield "I6", wrong
        return
    attempts, logged = read_spec(spec).max_attempts, facts.get("max_attempts")
    # None: the worker's task decides.
    if attempts not in (None, logged):
        yield "I6", f"its JSON allows {attempts} attempts, and it says {logged}"


def of_promoted(record: Record, at_ms: int) -> Iterator[Fault]:
    """Yield what is wrong with ``promoted``."""
    if record.due is not None and at_ms < record.due:
        yield "I6", f"is ready {record.due - at_ms} ms before it is due"


def of_expired(facts: Mapping[str, Any], record: Record, at_ms: int) -> Iterator[Fault]:
    """Yield what is wrong with ``expired``."""
    if record.priority is None:
        return
    if record.expires is None:
        yield "I19", "expires, and has no deadline"
    elif at_ms < record.expires:
        yield "I19", f"expires {record.expires - at_ms} ms before its deadline"
    if record.failures is None or record.losses is None:
        return
    if (record.failures + record.losses > 0) is not bool(facts.get("dead")):
        ends = "dead" if facts.get("dead") else "gone"
        yield "I6", f"is {ends} after {record.failures} failures and {record.losses} losses"


def of_replaced(record: Record) -> Iterator[Fault]:
    """Yield what is wrong with ``replaced``."""
    if record.claims:
        yield "I6", f"is replaced after {counted(record.claims, 'claim')}"


def of_settled(
    event: Event, facts: Mapping[str, Any], record: Record, at_ms: int
) -> Iterator[Fault]:
    """Yield what is wrong with ``retried``, ``died`` or ``rolled_back``."""
    due = facts.get("due_ms")
    if due is not None and due < at_ms:
        yield "I6", f"waits for a time that was over {at_ms - due} ms before"
    is_unknown = str(facts.get("reason")).startswith(_UNKNOWN)
    if event is Event.DIED:
        if not is_unknown and record.failures is not None and facts["failures"] == record.failures:
            yield "I4", "dies of a failure that is not counted"
    elif event is Event.ROLLED_BACK and record.unknown is not None:
        expected = record.unknown + is_unknown
        if (told := facts.get("unknown") or 0) != expected:
            yield "I4", f"was given back as unknown {told} times, by the log {expected}"


def of_cancelled(facts: Mapping[str, Any], record: Record) -> Iterator[Fault]:
    """Yield what is wrong with ``cancelled`` of a job that no worker had."""
    if "fence" in facts and record.state in _WAITING:
        yield "I9", f"ends claim {facts['fence']} of a job that was {record.state}"


def of_discarded(facts: Mapping[str, Any], limit: str | None) -> Iterator[Fault]:
    """Yield what is wrong with ``discarded``. ``limit`` is the stored one of the scope that was full; None, or "none":
    it is not known, or the producer's own counted."""
    scope, cap, lane = facts["scope"], facts["cap"], facts.get("lane")
    if lane is not None and scope not in scopes_of(lane):
        yield "I6", f"finds {scope} full, and that is no scope of lane {lane}"
    if limit not in (None, "none", str(cap)):
        yield "I3", f"finds {scope} ≤ {cap} full, stored is {limit}"


def of_refused(facts: Mapping[str, Any], record: Record, worker: str | None) -> Iterator[Fault]:
    """Yield what is wrong with ``settlement_refused`` of a job that is alive."""
    if record.fence is not None and (record.fence, record.worker) == (facts.get("fence"), worker):
        yield "I9", f"refuses fence {record.fence} of {worker}, which is in force"


def of_entry(first: EventRow, row: EventRow) -> Iterator[Fault]:
    """Yield what is wrong with a row that says another event, time or actor than the first row of its entry."""
    if QUARANTINED not in (first[4], row[4]):
        yield "I6", f"stands in one entry with {first[4]} at {first[5]} by {first[8]}"


def of_value(facts: Mapping[str, Any], *, is_kept: bool | None) -> Iterator[str]:
    """Yield what is wrong with what ``succeeded`` says of a value. ``is_kept``: whether the job's result is kept; None:
    that is not known."""
    digest, value = facts.get("value_digest"), facts.get("value")
    if digest is None and value is None:
        return
    if is_kept is False:
        yield "tells a value, and the job keeps no result"
    if value is not None and digest_of(value) != digest:
        yield f"its value has another digest than {digest}"


class Replacing:
    """Jobs that take the places of others: the call that replaced those enqueues these."""

    def __init__(self) -> None:
        self.by_jobs: dict[str, str] = {}
        """Those that have not begun yet, and the job that each replaces."""
        self._is_enqueued = False
        """Whether the entry with which the call enqueues its jobs has come."""

    def forget(self) -> None:
        """Expect none any more."""
        self.by_jobs.clear()

    def add(self, by_job: str, job_id: str) -> None:
        """A job was replaced."""
        self.by_jobs[by_job] = job_id
        self._is_enqueued = False

    def pass_entry(self, kind: str) -> Iterator[Fault]:
        """Yield what is wrong when an entry of this kind follows."""
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
