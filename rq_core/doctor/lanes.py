"""The lanes against ``state``: where jobs with scopes wait, who is counted, and whether anybody waits in vain (I10)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rq_core.doctor.finding import Finding, Kind, Record
from rq_core.doctor.view import Place, View
from rq_core.model import scopes
from rq_core.model.machine import CLAIMED_STATES
from rq_core.model.state_line import Job, with_task, write_line


def findings(view: View) -> Iterator[Finding]:
    """Compare the lanes, the holders and what belongs to them with the state lines."""
    yield from _waiting(view)
    misplaced = dict(_misplaced(view))
    for lane, problem in misplaced.items():
        says = f"lane {lane}, where {len(view.in_lanes[lane])} jobs wait, {problem}"
        yield Finding(Kind.NO_PLACE, says, record=Record("lane", lane))
    yield from _empty(view)
    yield from _holders(view)
    yield from _in_vain(view, misplaced)
    yield from _rates(view)
    yield from _turns(view)
    yield from _caps(view)


def _waiting(view: View) -> Iterator[Finding]:
    """Yield jobs that are in no lane, and what is in `waiting` and does not belong there."""
    expected = {m: job_id for members in view.in_lanes.values() for m, job_id in members.items()}
    for member, job_id in expected.items():
        if member not in view.snapshot["waiting"]:
            says = f"job {job_id} is ready and does not wait in its lane {view.jobs[job_id].lane}"
            yield Finding(Kind.NOT_LISTED, says, job_id, Record("job", job_id))
    for member in view.snapshot["waiting"]:
        job_id = member.rpartition("|")[2]
        if member not in expected and job_id not in view.unreadable:
            says = f"`waiting` has a member {member!r}, and {_stands(view, job_id)}"
            yield Finding(Kind.STRAY, says, job_id, Record("waiting", member))


def _stands(view: View, job_id: str) -> str:
    job = view.jobs.get(job_id)
    if job is None:
        return "there is no such job"
    return f"job {job_id} is {job.state}{f' in lane {job.lane}' if job.lane else ''}"


def _misplaced(view: View) -> Iterator[tuple[str, str]]:
    """Yield lanes where jobs wait and that do not stand where they should, and what is wrong."""
    for lane, members in view.in_lanes.items():
        text = view.snapshot["lanes"].get(lane)
        place = view.places.get(lane)
        if text is None:
            yield lane, "has no place in `lanes`"
        elif place is None:
            yield lane, f"has a place that cannot be read: {text!r}"
        elif problem := _problem(view, lane, place, _seq_of(next(iter(members)))):
            yield lane, problem


def _seq_of(member: str) -> int:
    return int(member.split("|")[1])


def _problem(view: View, lane: str, place: Place, first: int) -> str | None:
    """Say what is wrong with a lane's place, whose first job has this place in line."""
    score = view.snapshot["open"].get(lane)
    # In a queue that was fair, lanes keep their virtual times until their turn.
    virtual = max(view.fact("fair_clock"), view.fact("fair_top"))
    by_age = not view.fact("fair") and place.tag > virtual
    if place.order // scopes.RANK != int(lane[0]):
        return f"has an order of another priority: {place.order}"
    if by_age and place.tag != first:
        return f"stands at place {place.tag}, its first job has place {first}"
    if place.on is None:
        if score is None:
            return "is open and not in `open`"
        if score != place.order:
            return f"is in `open` at {score:.0f} and in `lanes` at {place.order}"
        return None
    if place.on not in scopes.scopes_of(lane):
        return f"is blocked on {place.on}, which is no scope of its own"
    if f"{place.on}|{place.order:016}|{lane}" not in view.snapshot["blocked"]:
        return f"is blocked on {place.on} and not in `blocked`"
    return "is blocked, and in `open`" if score is not None else None


def _empty(view: View) -> Iterator[Finding]:
    """Yield places of lanes where nothing waits, and members of `blocked` that `lanes` knows nothing of."""
    # Of a job whose state cannot be read nobody knows whether it waits.
    unknown = {
        member.split("|")[0]
        for member in view.snapshot["waiting"]
        if member.rpartition("|")[2] in view.unreadable
    }
    for lane in {*view.snapshot["lanes"], *view.snapshot["open"]} - unknown:
        if lane not in view.in_lanes:
            says = f"lane {lane} has a place, and no job waits in it"
            yield Finding(Kind.STRAY, says, record=Record("lane", lane))
    for member in view.snapshot["blocked"]:
        on, _, rest = member.partition("|")
        order, _, lane = rest.partition("|")
        if view.snapshot["lanes"].get(lane) != f"blocked {on} {order}":
            says = f"`blocked` has a member {member!r}, and that lane does not stand there"
            yield Finding(Kind.STRAY, says, record=Record("blocked", member))


def _holders(view: View) -> Iterator[Finding]:
    """Yield claimed jobs that are not counted where they should be, and what is counted and should not be."""
    for job_id, job in view.in_state(*CLAIMED_STATES).items():
        lacking = [
            s for s in view.counted_in(job) if f"{s}|{job_id}" not in view.snapshot["holders"]
        ]
        line = _line_with_task(view, job)
        if lacking or line:
            says = f"job {job_id} is {job.state} and is not counted in {', '.join(lacking) or line}"
            was = view.lines[job_id] if line else ""
            yield Finding(Kind.NOT_COUNTED, says, job_id, Record("job", job_id, 0, 0, was, line))
    for member in view.snapshot["holders"]:
        scope, _, job_id = member.rpartition("|")
        if job_id not in view.holders.get(scope, ()) and job_id not in view.unreadable:
            says = f"`holders` counts {job_id!r} in {scope!r}, and {_stands(view, job_id)}"
            yield Finding(Kind.STRAY, says, job_id, Record("holder", member))


def _line_with_task(view: View, job: Job) -> str:
    """Return the line of a claimed job whose lane should name its task and does not, else nothing."""
    task = f"{scopes.TASK}={job.fields['task']}"
    if task not in view.snapshot["caps"] or task in scopes.scopes_of(job.lane or ""):
        return ""
    return write_line(job.state, {**job.fields, "lane": with_task(job.lane, job.rank, task)})


def _in_vain(view: View, misplaced: Mapping[str, str]) -> Iterator[Finding]:
    """I10: no scope has room and a blocked lane unless an open lane contains it, or it is looked at soon."""
    sound = {lane: p for lane, p in view.places.items() if lane in view.in_lanes}
    opened = [lane for lane in sound if sound[lane].on is None]
    # What is misplaced comes back open.
    covered = {scope for lane in [*opened, *misplaced] for scope in scopes.scopes_of(lane)}
    # Claim looks at these, scopes of rates and families, at a time that is known.
    returning = [m.split("|") for m in view.snapshot["scheduled"] if not m.startswith("job|")]
    covered |= {parts[1] for parts in returning if parts[0] in ("rate", "caps") and parts[1:]}
    blocked = {lane: place for lane, place in sound.items() if place.on and lane not in misplaced}
    for lane, place in sorted(blocked.items(), key=lambda item: item[1].order):
        on = str(place.on)
        if covered.isdisjoint((on, scopes.family_of(on))) and _has_room(view, on):
            covered.update(scopes.scopes_of(lane))
            says = f"scope {on} has room, lane {lane} waits for it, and nothing would open it"
            yield Finding(Kind.KEPT_WAITING, says, record=Record("lane", lane))


def _has_room(view: View, scope: str) -> bool:
    limit = view.limit(scope)
    if limit.most is None or (limit.window_ms is not None and limit.most > 0):
        return True
    return len(view.holders.get(scope, ())) < limit.most


def _rates(view: View) -> Iterator[Finding]:
    rates, marks = view.snapshot["rates"], view.snapshot["expiring"]
    spent = {m.partition("|")[2] for m in marks if m.startswith("rate|")}
    for scope in filter(scopes.is_rate, {*rates, *spent}):
        arrival, mark = rates.get(scope, ""), marks.get(f"rate|{scope}")
        record = Record("rate", scope)
        if not (arrival.isascii() and arrival.isdigit()):
            says = f"rate {scope} was spent, and until when is gone"
            yield Finding(Kind.RATE_LOST, says, record=record)
        elif mark != -(-int(arrival) // 1000):
            says = f"rate {scope} would not be forgotten in time"
            yield Finding(Kind.NEVER_FORGOTTEN, says, record=record)


def _turns(view: View) -> Iterator[Finding]:
    """In a fair queue, a lane ahead of the clock stands where its key's last job ended: `fair` knows it."""
    if not view.fact("fair"):
        return
    ends: dict[str, int] = {}
    for lane, place in view.places.items():
        if lane in view.in_lanes and place.tag > view.fact("fair_clock"):
            key = next((s[5:] for s in scopes.scopes_of(lane) if s.startswith("fair=")), "")
            ends[key] = max(place.tag, ends.get(key, 0))
    for key, end in ends.items():
        known = view.snapshot["fair"].get(key, 0)
        if known < end:
            says = f"key {key!r} of the fair queue was served until {end}, `fair` says {known:.0f}"
            yield Finding(Kind.TURN_LOST, says, record=Record("fair", key, line=str(end)))


def _caps(view: View) -> Iterator[Finding]:
    stored = view.snapshot["caps"]
    for name, text in stored.items():
        if name not in view.limits and scopes.family_of(name) != scopes.WEIGHT:
            says = f"the limit of {name} cannot be read, so it holds nobody back: {text!r}"
            yield Finding(Kind.UNREADABLE, says)
    if not view.facts.get("epoch"):
        return
    own = {scopes.family_of(name) for name in stored if "=" in name} - {scopes.WEIGHT}
    needed = {"caps_by_task": scopes.TASK in own, "caps_by_key": bool(own - {scopes.TASK})}
    for fact, is_needed in needed.items():
        noted = view.fact(fact) == 1
        if is_needed and not noted:
            says = f"limits are stored that no script looks at, since `meta` lacks {fact}"
            yield Finding(Kind.CAPS_UNNOTED, says, record=Record("meta", fact))
        elif noted and not stored:
            says = (
                f"limits are gone (`meta` has {fact}, and `caps` is empty): workers declare theirs"
                " again when they start, those set by hand have to be set again"
            )
            yield Finding(Kind.NO_CAPS, says)
            return
