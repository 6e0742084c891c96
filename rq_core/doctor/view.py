"""A snapshot, read: the jobs by their state lines, and what the outbox says of them."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Container, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, Final, NamedTuple

from rq_core.errors import QueueDamaged
from rq_core.model import scopes
from rq_core.model.events import Entry, JobRecord, Undecodable, decode, fold
from rq_core.model.machine import (
    CLAIMED_STATES,
    DEFAULT_MAX_ATTEMPTS,
    DEFAULT_MAX_LOSSES,
    DEFAULT_PRIORITY,
    PRIORITIES,
    STATE_FIELDS,
    Event,
    Priority,
    State,
)
from rq_core.protocol.answers import read_state_line

RECORD_FIELDS: Final[dict[str, tuple[str, Any]]] = {
    "task": ("task", None),
    "priority": ("priority", str(DEFAULT_PRIORITY)),
    "attempts": ("max_attempts", DEFAULT_MAX_ATTEMPTS),
    "losses": ("max_losses", DEFAULT_MAX_LOSSES),
    "lane": ("lane", None),
    "claim": ("claims", 0),
    "fence": ("fence", None),
    "failed": ("failures", 0),
    "lost": ("losses", 0),
    "unknown": ("unknown", 0),
    "seq": ("seq", None),
    "due": ("due_ms", None),
    "since": ("since_ms", None),
    "by": ("worker", None),
    "reason": ("reason", None),
}
"""A state line's field: the same in a folded record, and what it is if the line leaves it out."""

RANK: Final = 10**15
"""Orders of one priority are below the next one's; see lane_names.lua."""

_PLACE = re.compile(r"(?:open|blocked (?P<on>\S+)) (?P<order>\d{16})")
_NUMBERS: Final = frozenset(STATE_FIELDS) - {"task", "priority", "lane", "fence", "by", "reason"}


class Job(NamedTuple):
    """A state line, read."""

    state: State
    fields: Mapping[str, str]

    def number(self, name: str) -> int | None:
        """Return a numeric field, None if the line leaves it out."""
        value = self.fields.get(name)
        return None if value is None else int(value)

    @property
    def lane(self) -> str | None:
        """The lane that it belongs in, None if it has no scopes."""
        return self.fields.get("lane")

    @property
    def rank(self) -> int:
        """Which of the four lists it belongs in, if it is in no lane."""
        return PRIORITIES.index(Priority(self.fields.get("priority", DEFAULT_PRIORITY)))

    def value(self, name: str) -> Any:
        """Return a field as a folded record has it."""
        if name in _NUMBERS:
            found = self.number(name)
            return RECORD_FIELDS[name][1] if found is None else found
        return self.fields.get(name, RECORD_FIELDS[name][1])


def read_job(job_id: str, line: str) -> Job:
    """Read a state line strictly. Raises ValueError, in words, if no script wrote it."""
    try:
        read = read_state_line("", job_id, line)
    except QueueDamaged:
        raise ValueError("it is in no state that there is") from None
    job = Job(read.state, read.fields)
    for name, value in job.fields.items():
        if name not in RECORD_FIELDS:
            raise ValueError(f"it has a field {name}")
        if name in _NUMBERS and not (value.isascii() and value.isdigit()):
            raise ValueError(f"{name} is no number")
    if job.fields.get("priority", DEFAULT_PRIORITY) not in PRIORITIES:
        raise ValueError("it has no priority that there is")
    if job.lane is not None and not _is_lane(job.lane):
        raise ValueError("its lane is none")
    needed = {"task", "since"}
    needed |= {"fence", "by", "claim"} if job.state in CLAIMED_STATES else set()
    needed |= {"due"} if job.state is State.SCHEDULED else {"seq"}
    if missing := sorted(needed - job.fields.keys()):
        raise ValueError(f"it lacks {', '.join(missing)}")
    return job


@lru_cache(maxsize=4096)
def _is_lane(text: str) -> bool:
    rank, *names = text.split("+")
    known = rank.isascii() and rank.isdigit() and int(rank) < len(PRIORITIES)
    return known and bool(names) and all(map(scopes.is_scope, names))


def write_line(state: State, fields: Mapping[str, Any]) -> str:
    """Return a state line as state.lua writes it."""
    return " ".join(
        [str(state), *(f"{name}={fields[name]}" for name in STATE_FIELDS if name in fields)]
    )


def line_of(record: JobRecord, capped: Container[str] = ()) -> str | None:
    """Return the state line of a live job as the log has it, None if the log does not know.

    ``capped`` are the stored limits: a task's first one moves its jobs into lanes without an event.
    """
    if not record.complete or record.state is None:
        return None
    fields = {}
    for name in STATE_FIELDS:
        attribute, default = RECORD_FIELDS[name]
        value = getattr(record, attribute)
        if value != default:
            fields[name] = value
    if f"{scopes.TASK}={record.task}" in capped:
        rank = PRIORITIES.index(Priority(record.priority or DEFAULT_PRIORITY))
        fields["lane"] = with_task(record.lane, rank, f"{scopes.TASK}={record.task}")
    line = write_line(record.state, fields)
    try:
        read_job(record.id, line)
    except ValueError:
        return None
    return line


def with_task(lane: str | None, rank: int, scope: str) -> str:
    """Return the lane that a job is in once its task has a limit."""
    head = str(rank) if lane is None else lane[0]
    return scopes.lane_name(int(head), [scope, *scopes.scopes_of(lane or "")])


def without_task(lane: str | None) -> str | None:
    """Return the lane without the task's scope, None if it has no other."""
    names = [s for s in scopes.scopes_of(lane or "") if scopes.family_of(s) != scopes.TASK]
    return scopes.lane_name(int(lane[0]), names) if lane and names else None


class Place(NamedTuple):
    """A field of ``lanes``, read."""

    on: str | None
    """The scope that the lane is blocked on, None if it is open."""
    order: int

    @property
    def tag(self) -> int:
        """The order within its priority: its head's place in line, or a virtual time."""
        return self.order % RANK

    @classmethod
    def parse(cls, text: str) -> Place | None:
        """Read a field as lane_write.lua writes it, None if it is none."""
        match = _PLACE.fullmatch(text)
        return cls(match["on"], int(match["order"])) if match else None


@dataclass
class View:
    """What a snapshot says."""

    snapshot: Mapping[str, Any]
    jobs: dict[str, Job] = field(default_factory=dict)
    """The jobs whose state lines can be read, by id."""
    unreadable: dict[str, str] = field(default_factory=dict)
    """Why the other lines cannot be read, by id."""

    def __post_init__(self) -> None:
        for job_id, line in self.lines.items():
            try:
                self.jobs[job_id] = read_job(job_id, line)
            except ValueError as why:
                self.unreadable[job_id] = str(why)

    @property
    def lines(self) -> Mapping[str, str]:
        """The state lines by job id."""
        lines: Mapping[str, str] = self.snapshot["state"]
        return lines

    @property
    def specs(self) -> Mapping[str, str]:
        """The jobs' JSON by id."""
        specs: Mapping[str, str] = self.snapshot["jobs"]
        return specs

    @property
    def facts(self) -> Mapping[str, str]:
        """The queue's own facts."""
        facts: Mapping[str, str] = self.snapshot["meta"]
        return facts

    def fact(self, name: str, default: int = 0) -> int:
        """Return a number of ``meta``."""
        text = self.facts.get(name, "")
        return int(text) if text.isascii() and text.isdigit() else default

    @cached_property
    def limits(self) -> dict[str, scopes.Limit]:
        """The stored limits that can be read, by scope or family."""
        read = {}
        for name, text in self.snapshot["caps"].items():
            if name.partition("=")[0] != scopes.WEIGHT:
                with suppress(ValueError, KeyError):
                    read[name] = scopes.CapEntry.parse(text).limit
        return read

    def limit(self, scope: str) -> scopes.Limit:
        """Return the limit in force for a scope."""
        family = scopes.family_of(scope)
        own = self.limits.get(scope)
        if own is None and family != scopes.TASK:
            own = self.limits.get(family)
        return own or scopes.Limit(None)

    @cached_property
    def in_lanes(self) -> dict[str, dict[str, str]]:
        """The ready jobs that belong in a lane: lane → member of ``waiting`` → id, in order."""
        ready = [(job, i) for i, job in self.in_state(State.READY).items() if job.lane]
        found: dict[str, dict[str, str]] = defaultdict(dict)
        for job, job_id in sorted(ready, key=lambda item: item[0].number("seq") or 0):
            found[str(job.lane)][f"{job.lane}|{job.number('seq'):016}|{job_id}"] = job_id
        return found

    @cached_property
    def places(self) -> dict[str, Place]:
        """Where the lanes stand, by the fields of ``lanes`` that can be read."""
        read = {lane: Place.parse(text) for lane, text in self.snapshot["lanes"].items()}
        return {lane: place for lane, place in read.items() if place is not None}

    def counted_in(self, job: Job) -> list[str]:
        """Return the scopes that a claimed job holds; its task's, too, if that has a limit."""
        names = [s for s in scopes.scopes_of(job.lane or "") if scopes.is_counted(s)]
        task = f"{scopes.TASK}={job.fields['task']}"
        return names if task in names or task not in self.snapshot["caps"] else [task, *names]

    @cached_property
    def holders(self) -> dict[str, set[str]]:
        """Who holds which scope, by the state lines."""
        held: dict[str, set[str]] = defaultdict(set)
        for job_id, job in self.in_state(*CLAIMED_STATES).items():
            for scope in self.counted_in(job):
                held[scope].add(job_id)
        return held

    def in_state(self, *states: State) -> dict[str, Job]:
        """Return the jobs that are in one of the states."""
        return {job_id: job for job_id, job in self.jobs.items() if job.state in states}

    @cached_property
    def lists(self) -> list[list[str]]:
        """The entries of the four lists."""
        return [self.snapshot[f"ready:{rank}"] for rank in range(len(PRIORITIES))]

    @cached_property
    def listed(self) -> set[str]:
        """The ready jobs without scopes that stand in the list of their priority."""
        entries = [set(each) for each in self.lists]
        ready = self.in_state(State.READY).items()
        return {i for i, job in ready if job.lane is None and i in entries[job.rank]}

    @cached_property
    def log(self) -> Log:
        """What the outbox says."""
        return read_log(self.snapshot)


@dataclass
class Log:
    """The outbox, decoded and folded."""

    records: dict[str, JobRecord] = field(default_factory=dict)
    """Every job that the log has heard of, gone ones included."""
    entries: int = 0
    whole: bool = False
    """Whether a live job must be in it: it begins with the queue, or with a complete baseline."""
    unreadable: list[str] = field(default_factory=list)
    gaps: list[str] = field(default_factory=list)
    """Ids of entries before which some are missing."""
    seq_max: int = 0


def read_log(snapshot: Mapping[str, Any]) -> Log:
    """Decode and fold the outbox of a snapshot."""
    log = Log()
    before: Entry | None = None
    for entry_id, raw in snapshot["outbox"]:
        log.entries += 1
        try:
            entry = decode(entry_id, raw)
            _fold(log, entry)
        except (Undecodable, ValueError, TypeError) as error:
            log.unreadable.append(f"{entry_id}: {error}")
            before = None
            continue
        if before is not None:
            same = before.id.epoch == entry.id.epoch
            if entry.id.seq != (before.id.seq + 1 if same else 0):
                log.gaps.append(entry_id)
        if entry.event is Event.EPOCH_STARTED and entry.id.seq == 0:
            reason = entry.data["reason"]
            first = reason == "created" and log.entries == 1
            attached = reason == "attached" and snapshot["meta"].get("baseline") == "done"
            log.whole = log.whole or first or attached
        before = entry
    return log


def _fold(log: Log, entry: Entry) -> None:
    for event in entry.jobs:
        known = log.records.get(event.job_id)
        if entry.event is Event.SETTLEMENT_REFUSED and known is None:
            continue  # That a worker was refused says nothing of the job.
        record, _ = fold(known, entry, event)
        log.records[event.job_id] = record
        log.seq_max = max(log.seq_max, record.seq or 0)
