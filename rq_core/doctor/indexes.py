"""The indexes against ``state``."""

from __future__ import annotations

from collections.abc import Iterator

from rq_core.doctor.finding import Finding, Kind, Record
from rq_core.doctor.view import View
from rq_core.model.machine import CLAIMED_STATES, PRIORITIES, State
from rq_core.model.scopes import QUEUE, is_rate
from rq_core.model.settings import SETTINGS


def of_job(kind: Kind, job_id: str, says: str, *, relist: bool = False) -> Finding:
    """Return a finding that is mended by putting the job where its state says."""
    return Finding(kind, f"job {job_id} {says}", job_id, Record("job", job_id, relist=int(relist)))


def findings(view: View) -> Iterator[Finding]:
    """Compare every index with the state lines."""
    yield from _specs(view)
    yield from _ready(view)
    yield from _scheduled(view)
    yield from _leases(view)
    yield from _dead(view)
    yield from _expiring(view)
    yield from _meta(view)


def _is(view: View, job_id: str) -> str:
    job = view.jobs.get(job_id)
    return "does not exist" if job is None else f"is {job.state}"


def _specs(view: View) -> Iterator[Finding]:
    for job_id in view.specs.keys() - view.lines.keys():
        yield of_job(Kind.NO_STATE, job_id, "has arguments and no state")
    for job_id, job in view.jobs.items():
        if job_id not in view.specs:
            after = "; the worker that claims it will fail it" if job.state is State.READY else ""
            yield Finding(
                Kind.NO_SPEC, f"job {job_id} is {job.state} and has no arguments{after}", job_id
            )


def _ready(view: View) -> Iterator[Finding]:
    plain = [item for item in view.in_state(State.READY).items() if item[1].lane is None]
    lacking = [item for item in plain if item[0] not in view.listed]
    # Each goes to the head of its list, so the first in line must come last.
    lacking.sort(key=lambda item: -(item[1].number("seq") or 0))
    for job_id, job in lacking:
        says = f"is ready and not in the list of priority {PRIORITIES[job.rank]}"
        yield of_job(Kind.NOT_LISTED, job_id, says, relist=True)
    nowhere = sum(map(len, view.lists)) - len(view.listed)
    noted = view.snapshot["meta"].get("tombstones", "0")
    if view.snapshot["meta"] and noted != str(nowhere):
        says = f"{nowhere} list entries lead nowhere, {noted} are noted"
        yield Finding(Kind.TOMBSTONES, says, value=nowhere)


def _scheduled(view: View) -> Iterator[Finding]:
    members = view.snapshot["scheduled"]
    waiting = view.in_state(State.SCHEDULED)
    for job_id, job in waiting.items():
        at = members.get(f"job|{job_id}")
        if at is None:
            yield of_job(Kind.NOT_SCHEDULED, job_id, "is scheduled and will not become ready")
        elif at != job.number("due"):
            says = f"is due at {job.number('due')} by its state and at {at:.0f} by the index"
            yield of_job(Kind.NOT_SCHEDULED, job_id, says)
    for member in members:
        kind, _, job_id = member.partition("|")
        if _returns(kind, job_id):
            continue
        if kind != "job" or not job_id:
            says = f"`scheduled` has a member {member!r} that leads nowhere"
            yield Finding(Kind.STRAY, says, record=Record("scheduled", member))
        elif job_id not in waiting and job_id not in view.unreadable:
            yield of_job(Kind.STRAY, job_id, f"is in `scheduled` and {_is(view, job_id)}")


def _returns(kind: str, rest: str) -> bool:
    """Say whether a member of `scheduled` is a rate that goes on, or a change of limits that claims go on with."""
    return (kind == "rate" and is_rate(rest)) or (kind == "caps" and "|" in rest)


def _leases(view: View) -> Iterator[Finding]:
    claimed = view.in_state(*CLAIMED_STATES)
    for job_id, job in claimed.items():
        if job_id not in view.snapshot["leases"]:
            says = f"is {job.state} and has no lease; one more lease is given"
            yield of_job(Kind.NO_LEASE, job_id, says)
    for job_id in view.snapshot["leases"]:
        if job_id not in claimed and job_id not in view.unreadable:
            yield of_job(Kind.STRAY, job_id, f"is in `leases` and {_is(view, job_id)}")


def _dead(view: View) -> Iterator[Finding]:
    members = view.snapshot["dead"]
    dead = view.in_state(State.DEAD)
    for job_id, job in dead.items():
        if members.get(job_id) != job.number("since"):
            says = "is dead and not in `dead`, or with another time"
            yield of_job(Kind.NOT_AMONG_DEAD, job_id, says)
        if f"dead|{job_id}" not in view.snapshot["expiring"]:
            yield of_job(Kind.NEVER_FORGOTTEN, job_id, "is dead and would never be forgotten")
    for job_id in members:
        if job_id not in dead and job_id not in view.unreadable:
            yield of_job(Kind.STRAY, job_id, f"is in `dead` and {_is(view, job_id)}")


def _expiring(view: View) -> Iterator[Finding]:
    marks, slots = view.snapshot["expiring"], view.snapshot["slots"]
    for name, kept in slots.items():
        deadline, mark = kept.split(" ")[1:2], marks.get(f"slot|{name}")
        if mark is None or [f"{mark:.0f}"] != deadline:
            says = f"call slot {name} would not be forgotten in time"
            yield Finding(Kind.NEVER_FORGOTTEN, says, record=Record("slot", name))
    dead = view.in_state(State.DEAD)
    for mark in marks:
        kind, _, name = mark.partition("|")
        if kind == "dead" and name:
            if name not in dead and name not in view.unreadable:
                yield of_job(
                    Kind.STRAY, name, f"is to be forgotten as a dead job and {_is(view, name)}"
                )
        elif kind == "rate" and is_rate(name):
            continue  # see lanes.py
        elif kind != "slot" or name not in slots:
            says = f"`expiring` has a member {mark!r} that leads nowhere"
            yield Finding(Kind.STRAY, says, record=Record("expiring", mark))


def _meta(view: View) -> Iterator[Finding]:
    facts = view.snapshot["meta"]
    if not facts.get("epoch"):
        if any(view.snapshot.values()):
            says = (
                "`meta` is gone: a new epoch begins, with default settings;"
                " nobody knows whether the queue was paused or fair"
            )
            yield Finding(Kind.NO_META, says)
        return
    if not view.snapshot["outbox"]:
        yield Finding(Kind.NO_OUTBOX, "the outbox is gone: a new epoch begins")
    last = max((job.number("seq") or 0 for job in view.jobs.values()), default=0)
    last = max(last, view.log.seq_max)
    given = facts.get("sequence", "0")
    if not given.isdigit() or int(given) < last:
        says = f"place {last} in line was given, {given} is noted as the last"
        yield Finding(Kind.SEQUENCE, says, value=last)
    if not view.snapshot["wake"] and not _gated(view) and (count := _claimable(view)):
        yield Finding(Kind.NO_WAKE, f"{count} jobs are ready and no token would wake a worker")

    if len(view.snapshot["wake"]) > 1:
        says = f"there are {len(view.snapshot['wake'])} tokens to wake a worker, one is enough"
        yield Finding(Kind.TOO_MANY_WAKES, says)


def _claimable(view: View) -> int:
    """Count the jobs in lists and open lanes."""
    opened = [lane for lane, place in view.places.items() if place.on is None]
    return len(view.listed) + sum(len(view.in_lanes.get(lane, ())) for lane in opened)


def _gated(view: View) -> bool:
    """Say whether claims give out nothing for now; see claim.lua."""
    most = view.limit(QUEUE).most
    if view.fact("paused") or (most is not None and len(view.in_state(*CLAIMED_STATES)) >= most):
        return True
    return view.facts.get("audit") == "on" and any(
        view.fact(f"backlog_{unit}")
        >= 2 * view.fact(f"backlog_max_{unit}", SETTINGS[f"backlog_max_{unit}"].default)
        for unit in ("jobs", "bytes")
    )
