"""A snapshot, read: the jobs by their state lines, and what the outbox says of them."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from rq_core.model import scopes
from rq_core.model.events import Entry, JobRecord, Undecodable, decode, fold
from rq_core.model.limits import CapEntry, Limit
from rq_core.model.machine import (
    CLAIMED_STATES,
    PRIORITIES,
    Event,
    State,
)
from rq_core.model.state_line import Job, read_job

_PLACE = re.compile(r"(?:open|blocked (?P<on>\S+)) (?P<order>\d{16})")


class Place(NamedTuple):
    """A field of ``lanes``, read."""

    on: str | None
    """The scope that the lane is blocked on, None if it is open."""
    order: int

    @property
    def tag(self) -> int:
        """The order within its priority: its head's place in line, or a virtual time."""
        return self.order % scopes.RANK

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
    def limits(self) -> dict[str, Limit]:
        """The stored limits that can be read, by scope or family."""
        read = {}
        for name, text in self.snapshot["caps"].items():
            if name.partition("=")[0] != scopes.WEIGHT:
                with suppress(ValueError, KeyError):
                    read[name] = CapEntry.parse(text).limit
        return read

    def limit(self, scope: str) -> Limit:
        """Return the limit in force for a scope."""
        family = scopes.family_of(scope)
        own = self.limits.get(scope)
        if own is None and family != scopes.TASK:
            own = self.limits.get(family)
        return own or Limit(None)

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
