"""The indexes that a queue should have, derived from its jobs' state lines, limits, call slots and log."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cached_property
from itertools import chain
from typing import Final, NamedTuple

from rq_core.doctor.box_check import boxes_astray, lives_of, members_of_boxes
from rq_core.doctor.box_faults import BoxFaults, box_faults, corrected, trusted_faults
from rq_core.doctor.lane_positions import Place, fair_key, kept_waiting, opened, places
from rq_core.doctor.line_check import line_by
from rq_core.doctor.lost_signals import LostSignals, lost_signals, trusted_signals
from rq_core.doctor.rate_check import kept_rates, latest_resumes
from rq_core.doctor.result_check import KeptResults, kept_results
from rq_core.doctor.shown_check import shown_members
from rq_core.doctor.snapshot import UNKNOWN, View
from rq_core.model.durable.boxes import life_of
from rq_core.model.idempotency import load_of
from rq_core.model.lib.text import bytes_of
from rq_core.model.limits import scopes
from rq_core.model.schedule import JOB_FIELD, TICK_MARK, Schedule
from rq_core.model.settings import INBOX_SLOT, INBOX_SLOT_LIFE_MS, SLOT_ANSWER, SLOT_LIFE_MS
from rq_core.model.showing.shown import MARK
from rq_core.model.state_line import StoredJob, read_job, with_task, write_line
from rq_core.model.table.machine import CLAIMED_STATES, PRIORITIES, State
from rq_core.model.unique_names import (
    is_name_field,
    name_field,
    name_in,
    name_mark,
    read_holder,
    read_stands,
    until_instants,
)

LISTS: Final = tuple(f"ready:{rank}" for rank in range(len(PRIORITIES)))
INDEXES: Final = (
    *("state", "jobs", *LISTS, "waiting", "lanes", "open", "blocked", "holders"),
    *("rates", "fair", "scheduled", "leases", "parked", "dead", "expiring", "slots", "results"),
    *("returned", "kept", "ticks", "boxes", "shown", "meta"),
)
"""The keys whose members the doctor derives. Two are derived only in part: `jobs` without values, because arguments
cannot be derived; `state` only for lines that are lost or wrong."""

MOVED_ON_MS: Final = 60_000
"""Maximum number of milliseconds by which a claim or a worker may postpone the due time of a schedule."""


class AnyValue(NamedTuple):
    """An expected value that may be anything from ``least`` to ``most``. ``fresh`` replaces a value outside this range,
    and a missing one. If ``fresh`` begins with `+`, it is a number of milliseconds to add to the server's time."""

    fresh: str | None
    """The value to write instead; None if it cannot be derived."""
    most: float | None = None
    least: float | None = None


class AtLeast(NamedTuple):
    """An expected number from ``value`` to ``most``; without ``most``, there is no upper limit."""

    value: int
    most: float | None = None


Want = str | int | AnyValue | AtLeast | StoredJob
"""An expected value. A job is expected in its list: texts for a million entries would need much memory."""
ANY: Final = AnyValue(None)
"""An expected value that may be anything, or missing."""


def place_in_line(job: StoredJob) -> int:
    """Return a job's position in line (its field ``seq``); 0 if it has none yet."""
    return job.number("seq") or 0


def _counted(job: StoredJob) -> list[str]:
    """Return the scopes whose limits count this job as a holder while it is claimed."""
    return [scope for scope in scopes.scopes_of(job.lane or "") if scopes.is_counted(scope)]


class Image:
    """The contents that a queue's keys should have."""

    def __init__(self, view: View) -> None:
        self.view = view
        self.restored = dict(_restored(view))
        """Job id → state line from the log, for jobs whose own line is lost, unreadable or wrong."""
        self.jobs = _with_lines(view.jobs, self.restored)
        recounted = dict(_recounted(self))
        self.lines = self.restored | recounted
        self.jobs = _with_lines(self.jobs, recounted)
        self.lanes: defaultdict[str, list[tuple[int, str]]] = defaultdict(list)
        """Lane → (position in line, id) of its waiting jobs, in order."""
        for job_id, job in self.in_state(State.READY):
            if job.lane is not None:
                self.lanes[job.lane].append((place_in_line(job), job_id))
        for members in self.lanes.values():
            members.sort()

    def in_state(self, *states: State) -> list[tuple[str, StoredJob]]:
        """Return the (id, job) pairs of the jobs in one of the states."""
        return [(job_id, job) for job_id, job in self.jobs.items() if job.state in states]

    @cached_property
    def kept_waiting(self) -> dict[str, str]:
        """Lane → the scope that blocks it, for each lane that is blocked by mistake: the scope has room, and no event
        would open the lane."""
        if self.view.is_fuzzy:
            return {}
        claimed = self.in_state(*CLAIMED_STATES)
        held = Counter(scope for _, job in claimed for scope in _counted(job))
        return dict(kept_waiting(self.view, self._settled, held))

    @cached_property
    def places(self) -> dict[str, Place]:
        """Lane → the position that it should have: open, or blocked by a scope."""
        reopened = {lane: self._opened(lane) for lane in self.kept_waiting}
        return self._settled | reopened

    @cached_property
    def _settled(self) -> dict[str, Place]:
        return places(self.view, {lane: members[0][0] for lane, members in self.lanes.items()})

    def _opened(self, lane: str) -> Place:
        return opened(self.view, lane, self.lanes[lane][0][0])

    @cached_property
    def kept(self) -> KeptResults:
        """The expected members of ``results``, ``returned`` and ``kept``, for ids whose jobs have ended."""
        return kept_results(self.view, self.jobs)

    @cached_property
    def box_owners(self) -> dict[str, str]:
        """Life (id) of a box of saved steps → id of its durable job."""
        return {job.fields["life"]: i for i, job in self.jobs.items() if "life" in job.fields}

    @cached_property
    def lost_signals(self) -> list[LostSignals]:
        """The signals of durable jobs that the log has and Redis lacks."""
        log, found = self.view.log, self.view.snapshot["boxes"]
        lost = lost_signals(log.boxes, found, self.box_owners, log.began)
        return trusted_signals(list(lost), log.distrust)

    @cached_property
    def box_faults(self) -> dict[str, BoxFaults]:
        """Life (id) of a durable job's box of saved steps → its differences from the log."""
        view = self.view
        faults = box_faults(view.log.boxes, view.snapshot["boxes"], self.box_owners)
        return trusted_faults(list(faults), view.log.distrust)

    @cached_property
    def boxes(self) -> dict[str, str]:
        """The fields of the hash ``boxes`` as they are after all corrections that the log allows."""
        return corrected(self.view.snapshot["boxes"], self.lost_signals, self.box_faults.values())

    @cached_property
    def boxes_astray(self) -> dict[str, str]:
        """Life (id) of a box that no state line names but that must stay → id of the job to which it may belong."""
        view, log = self.view, self.view.log
        alive = {i: r.life for i, r in log.records.items() if r.state and i not in self.jobs}
        unread = alive.keys() | view.untold.keys() | view.unreadable.keys() | log.doubtful
        return dict(boxes_astray(self.boxes, self.box_owners, alive, unread - self.jobs.keys()))

    @cached_property
    def instants(self) -> dict[str, int | None]:
        """Field of `slots` for a unique name → the time (Unix ms) until which the name is held according to the log.
        None: no job can have taken the name. Only fields whose time in Redis differs are included."""
        found = {}
        for field, holder in until_instants(self.view.snapshot["slots"]).items():
            at_ms = self.view.instant_by(name_in(field), holder.job_id)
            if at_ms not in (UNKNOWN, holder.until_ms):
                found[field] = at_ms
        return found

    @cached_property
    def indexes(self) -> dict[str, dict[str, Want]]:
        """Index → member → the expected value."""
        found: dict[str, dict[str, Want]] = {key: {} for key in INDEXES}
        entries = chain(
            (entry for item in self.jobs.items() for entry in _of_job(*item, self.view)),
            (entry for item in self.places.items() for entry in _of_lane(*item)),
            (each for it in self.view.snapshot["slots"].items() for each in _of_slot(self, *it)),
            _results(self),
            _boxes(self),
            _shown(self.view),
            _ticks(self.view),
            _rates(self.view),
            _turns(self),
            _facts(self),
        )
        for key, member, value in entries:
            found[key][member] = value
        found["state"] |= self.lines
        return found


def _with_lines(jobs: dict[str, StoredJob], lines: Mapping[str, str]) -> dict[str, StoredJob]:
    """Return ``jobs`` with the parsed jobs of ``lines`` (id → state line) added. They replace jobs of the same id."""
    return jobs | {i: read_job(i, line) for i, line in lines.items()} if lines else jobs


def _restored(view: View) -> Iterator[tuple[str, str]]:
    """Yield (id, state line from the log) for jobs whose line in Redis is lost, unreadable or wrong. A job is left
    out if Redis has neither its line nor its arguments."""
    specs, caps = view.snapshot["jobs"], view.snapshot["caps"]
    for job_id, record in view.log.records.items():
        is_here = job_id in view.lines or job_id in specs
        if record.state is not None and is_here and job_id not in view.log.moving:
            in_state = job_id in view.snapshot["state"]
            line = line_by(
                record,
                view.jobs.get(job_id),
                caps,
                view.snapshot["boxes"],
                in_state=in_state,
                has_holes=view.log.has_holes,
            )
            if line is not None:
                yield job_id, line


def _recounted(image: Image) -> Iterator[tuple[str, str]]:
    """Yield (id, corrected state line) for claimed jobs that their task's limit does not count, because the task is
    missing in their lane."""
    for job_id, job in image.in_state(*CLAIMED_STATES):
        task = f"{scopes.TASK}={job.fields['task']}"
        if task in image.view.snapshot["caps"] and task not in scopes.scopes_of(job.lane or ""):
            fields = {**job.fields, "lane": with_task(job.lane, job.rank, task)}
            yield job_id, write_line(job.state, fields)


Entry = tuple[str, str, Want]


def _of_job(job_id: str, job: StoredJob, view: View) -> Iterator[Entry]:
    yield "jobs", job_id, ANY
    if "unique" in job.fields and _holds_name(job):
        yield "slots", name_field(job.fields["unique"]), job_id
    if "expires" in job.fields and job.state in (State.READY, State.SCHEDULED, State.PARKED):
        yield "expiring", f"job|{job_id}", int(job.fields["expires"])
    if job.state is State.SCHEDULED:
        yield "scheduled", f"job|{job_id}", int(job.fields["due"])
    elif job.state is State.PARKED:
        yield "parked", job_id, int(job.fields["since"])
        if "due" in job.fields:
            yield "scheduled", f"job|{job_id}", int(job.fields["due"])
    elif job.state is State.DEAD:
        since = int(job.fields["since"])
        yield "dead", job_id, since
        yield "expiring", f"dead|{job_id}", _end_of_retention(since, view)
    elif job.state in CLAIMED_STATES:
        if "expires" in job.fields:
            yield "expiring", f"job|{job_id}", ANY
        yield "leases", job_id, AnyValue(f"+{view.fact('lease_ms')}", view.lease_end_max)
        for scope in _counted(job):
            yield "holders", f"{scope}|{job_id}", 0
    elif job.lane is None:
        yield LISTS[job.rank], job_id, job
    else:
        yield "waiting", f"{job.lane}|{place_in_line(job):016}|{job_id}", 0


def _end_of_retention(since_ms: int, view: View) -> AnyValue:
    """Return the expected time (Unix ms) at which a dead job is pruned.

    Other times also count as right, because the retention may have been different when the job died. Only if the log
    shows the shortest retention that was ever in force, a time before the end of this retention is wrong.
    """
    log, retention_ms = view.log, view.fact("dead_retention_ms")
    is_known = log.since is not None and log.retention_min_ms is not None
    least_ms = since_ms + min(log.retention_min_ms or 0, retention_ms) if is_known else None
    return AnyValue(str(since_ms + retention_ms), least=least_ms)


def _holds_name(job: StoredJob) -> bool:
    stands = read_stands(job.fields.get("stands"))
    return stands.holds(dead=job.state is State.DEAD, claims=job.number("claim") or 0)


def _of_lane(lane: str, place: Place) -> Iterator[Entry]:
    yield "lanes", lane, str(place)
    if place.on is None:
        yield "open", lane, place.order
    else:
        yield "blocked", f"{place.on}|{place.order:016}|{lane}", 0


def _of_slot(image: Image, name: str, kept: str) -> Iterator[Entry]:
    if is_name_field(name):
        # A name that is held until a time is kept, unless the log has another time: the holder may have ended.
        holder = read_holder(kept)
        until_ms = image.instants.get(name, holder.until_ms)
        if until_ms is not None:
            yield "slots", name, f"{holder.job_id} {until_ms}"
            yield "expiring", name_mark(name_in(name)), until_ms
        return
    if name.endswith(SLOT_ANSWER):
        return
    deadline = kept.split(" ")[1:2]
    known = deadline and deadline[0].isascii() and deadline[0].isdigit()
    life = INBOX_SLOT_LIFE_MS if name.startswith(INBOX_SLOT) else SLOT_LIFE_MS
    yield "expiring", f"slot|{name}", int(deadline[0]) if known else AnyValue(f"+{life}")


def _ticks(view: View) -> Iterator[Entry]:
    """Yield the due time of each active schedule, and the earliest of these times, at which claims look for due
    schedules.

    The times in Redis may be up to MOVED_ON_MS later: later than the due time or, if the schedule is overdue, than now.
    Scripts postpone a schedule that a worker has been given, or whose next instants a worker cannot compute. They also
    postpone the earliest time while a worker handles the due schedules.
    """
    due, at = [], view.latest_ms

    def moved_on(due_ms: int) -> AtLeast:
        return AtLeast(due_ms, None if at is None else max(due_ms, at) + MOVED_ON_MS)

    for name, entry in view.snapshot["schedules"].items():
        with suppress(ValueError):
            if not name.endswith(JOB_FIELD) and (schedule := Schedule.parse(entry)).state == "on":
                due.append(schedule.due_ms)
                yield "ticks", name, moved_on(schedule.due_ms)
    if due:
        yield "scheduled", TICK_MARK, moved_on(min(due))
    if view.snapshot["schedules"] and view.facts.get("epoch"):
        yield "meta", "schedules", "1"


def _results(image: Image) -> Iterator[Entry]:
    """Yield the expected members of the keys `results`, `returned` and `kept`, for ids whose jobs have ended."""
    for kept in image.kept.remembered:
        if kept.value is not None:
            yield "returned", kept.id, kept.value
        yield "results", kept.id, kept.line
        until = kept.met_ms
        yield "kept", kept.id, ANY if until is None else AtLeast(until)
    lines = image.view.snapshot["results"]
    for job_id in (*image.kept.untold, *(image.kept.doubts.keys() - lines.keys())):
        yield from (("returned", job_id, ANY), ("kept", job_id, ANY))
        if job_id in lines:
            yield "results", job_id, ANY


def _boxes(image: Image) -> Iterator[Entry]:
    """Yield the expected members of `boxes`. A box without a job is marked as due in `expiring`, so that claims remove
    it."""
    owners, faults, astray = image.box_owners, image.box_faults, image.boxes_astray
    found = {name: text for name, text in image.boxes.items() if life_of(name) not in astray}
    yield from (("boxes", name, ANY) for name in image.boxes.keys() - found.keys())
    yield from (("expiring", f"box|{life}", ANY) for life in astray)
    known = {member for each in faults.values() if each.is_mendable for member in each.members}
    left = {life for life, each in faults.items() if each.says and not each.is_mendable}
    left |= {each.life for each in image.lost_signals if each.distrusted}
    for member, value in members_of_boxes(found, owners):
        is_any = (value is None and member not in known) or life_of(member) in left
        is_any = is_any and member in found
        yield "boxes", member, AnyValue(found[member]) if is_any else value or found[member]
    lives = lives_of(found)
    for life in lives - owners.keys():
        yield "expiring", f"box|{life}", AnyValue("+0")
    if (lives or owners) and image.view.facts.get("epoch"):
        yield "meta", "durable", "1"


def _shown(view: View) -> Iterator[Entry]:
    """Yield the expected members of `shown`: the progress and stream chunks of jobs, also of recently ended jobs."""
    jobs = view.standing.keys() | view.snapshot["jobs"].keys()
    for each in shown_members(view.snapshot["shown"], jobs, is_fuzzy=view.is_fuzzy):
        yield "shown", each.job_id, each.line
        for field in each.chunks:
            yield "shown", field, ANY
        if each.until_ms is not None:
            yield "expiring", f"{MARK}{each.job_id}", AnyValue(str(each.until_ms), each.until_ms)
    if view.snapshot["shown"] and view.facts.get("epoch"):
        yield "meta", "shows", "1"


def _rates(view: View) -> Iterator[Entry]:
    """Yield the expected value of each rate limit and breaker, and the time (Unix ms) after which it may be removed.

    For a paused or exhausted rate that would resume too late, also yield the latest time at which it may resume.
    """
    for scope, arrival, mark in kept_rates(view):
        yield "rates", scope, arrival
        yield "expiring", f"rate|{scope}", ANY if mark is None else mark
    for member, latest in latest_resumes(view):
        yield "scheduled", member, latest


def _turns(image: Image) -> Iterator[Entry]:
    """Yield the expected members of `fair`: value of the scope ``fair`` → its latest virtual finish time, as in fair
    queuing.

    This is the highest ``Place.tag`` of the value's lanes. A value is left out if none of its tags is after the queue's
    virtual clock.
    """
    view = image.view
    if view.fact("fair") and not view.is_fuzzy:
        ends: Counter[str] = Counter()
        for lane, place in image.places.items():
            if place.tag > view.fact("fair_clock"):
                ends[fair_key(lane)] = max(place.tag, ends[fair_key(lane)])
        for key, end in ends.items():
            yield "fair", key, AtLeast(end)


def _waits_in(job: StoredJob | None, rank: int) -> bool:
    """Return whether a job waits in the list of its priority (``rank``)."""
    return job is not None and job.state is State.READY and job.lane is None and job.rank == rank


def _facts(image: Image) -> Iterator[Entry]:
    view, snapshot = image.view, image.view.snapshot
    if not view.facts.get("epoch"):
        return  # a handshake writes the fields of ``meta`` first
    given = max(map(place_in_line, image.jobs.values()), default=0)
    yield "meta", "sequence", AtLeast(max(view.log.seq_max, given))
    nowhere = sum(
        len(snapshot[key]) - len({i for i in snapshot[key] if _waits_in(image.jobs.get(i), rank)})
        for rank, key in enumerate(LISTS)
    )
    # The numbers of a line that the repair changes are recomputed afterwards.
    lines = [snapshot["results"].get(each.id, "") for each in image.kept.remembered]
    sums = {
        "tombstones": nowhere,
        "results_bytes": sum(len(bytes_of(line)) for line in lines),
        "kept_bytes": sum(map(load_of, lines)),
    }
    for name, number in sums.items():
        if not view.is_fuzzy and view.facts.get(name, "0") != str(number):
            yield "meta", name, str(number)
    tied = {name for job in image.jobs.values() for name in job.fields} & {
        "expires", "unique", "once", "keep",
    }  # fmt: skip
    if tied or lines:
        yield "meta", "ties", "1"
    if tied & {"once", "keep"} or lines:
        yield "meta", "remembers", "1"
    own = {scopes.family_of(name) for name in snapshot["caps"] if "=" in name} - {scopes.WEIGHT}
    if scopes.TASK in own:
        yield "meta", "caps_by_task", "1"
    if own - {scopes.TASK}:
        yield "meta", "caps_by_key", "1"
