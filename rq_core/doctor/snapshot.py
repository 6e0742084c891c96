"""A parsed snapshot: the jobs by their state lines, the limits, and the log."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

from rq_core.doctor.log import FoldedLog
from rq_core.model.events import JobRecord
from rq_core.model.idempotency import read_result
from rq_core.model.job_ends import End
from rq_core.model.keys import QueueKeys, queue_keys
from rq_core.model.limits import scopes
from rq_core.model.limits.limit import CapEntry, Limit
from rq_core.model.state_line import StoredJob, lines_of_jobs, read_job
from rq_core.model.table.machine import State
from rq_core.model.unique_names import read_stands
from rq_core.protocol.engine.queue_check import number_of

UNNAMED: Final = queue_keys("QUEUE")
"""The key names in commands that an operator types, if the caller does not name the snapshot's queue."""

UNKNOWN: Final = -1
"""Represents a time that the log does not have."""
LEASE_TRUSTED_MS: Final = 365 * 86_400_000
"""Milliseconds of the longest lease that the doctor takes as correct if the log does not show how long leases were."""


@dataclass
class View:
    """A parsed snapshot of a queue."""

    snapshot: Mapping[str, Any]
    keys: QueueKeys
    """The queue's key names, for commands that an operator types."""
    log: FoldedLog
    """The log of the queue, and the state of each job after its events."""
    now_ms: int | None = None
    """Redis' time (Unix ms) when the snapshot was taken, or later; None: unknown."""
    jobs: dict[str, StoredJob] = field(default_factory=dict)
    """The jobs whose state lines are readable, by id."""
    unreadable: dict[str, str] = field(default_factory=dict)
    """The errors of unreadable state lines, by the id of the job."""

    def __post_init__(self) -> None:
        for job_id, line in self.lines.items():
            try:
                self.jobs[job_id] = read_job(job_id, line)
            except ValueError as why:
                self.unreadable[job_id] = str(why)

    @property
    def is_fuzzy(self) -> bool:
        """Return whether the queue was read in pages and may have changed meanwhile.

        Its numbers and sums then do not belong to one moment.
        """
        return getattr(self.snapshot, "since", None) is not None

    @cached_property
    def standing(self) -> Mapping[str, str]:
        """Id → state line, as scripts read it. A job without a field in ``state`` waits and was never claimed."""
        return lines_of_jobs(self.snapshot["state"], self.snapshot["jobs"])

    @cached_property
    def lines(self) -> Mapping[str, str]:
        """Id → state line, without lost lines.

        A line is lost if ``state`` lacks it although, according to the log, its job has done more than wait.
        """
        lost = {
            job_id
            for job_id in self.standing.keys() - self.snapshot["state"].keys()
            if (record := self.log.records.get(job_id)) is not None and _does_more(record)
        }
        lines = self.standing.items()
        return {i: line for i, line in lines if i not in lost} if lost else self.standing

    @cached_property
    def ends(self) -> dict[str, End | None]:
        """Id in ``results`` → how its last job ended; None: no job of the id can have left the line.

        Ids are left out if the end of their job is unknown.
        """
        lines = self.snapshot["results"].items()
        made_up = {i: None for i, line in lines if self.log.is_made_up(read_result(i, line))}
        log = self.log
        if log.since is not None and not log.may_be_restored:
            return {i: end._replace(is_last=True) for i, end in log.ends.items()} | made_up
        return log.ends | made_up

    def has_heard_of(self, job_id: str) -> bool:
        """Return whether a job of this id may have existed."""
        return job_id in self.standing or self.log.has_heard_of(job_id)

    def instant_by(self, name: str, job_id: str) -> int | None:
        """Return the time (Unix ms) until which a name is held according to the log.

        None: no job can have taken the name. UNKNOWN: the log does not show the time. The log shows the time only under
        two conditions: the last job of the holder's id took this name, and no later entry is missing.
        """
        if not self.has_heard_of(job_id):
            return None
        record = self.log.records[job_id] if job_id in self.log.began else None
        if record is None or record.unique_name != name:
            return UNKNOWN
        with suppress(ValueError):
            stands = read_stands(record.name_stands)
            if stands.how == "until" and stands.at_ms is not None:
                return stands.at_ms
        return UNKNOWN

    @property
    def lease_end_max(self) -> int | None:
        """The latest time (Unix ms) at which a lease can end; None: unknown.

        If the log is incomplete, leases may have been longer in the past.
        """
        if self.latest_ms is None:
            return None
        longest = LEASE_TRUSTED_MS if self.log.since is None else self.log.lease_max_ms
        return self.latest_ms + max(self.fact("lease_ms"), longest)

    @cached_property
    def untold(self) -> dict[str, str]:
        """Id → arguments, for jobs whose state line is missing in Redis. Only the audit log may have their states."""
        specs = self.snapshot["jobs"]
        if self.facts.get("audit") != "on":
            return {}
        return {i: specs[i] for i in specs.keys() - self.standing.keys() if self._is_untold(i)}

    def _is_untold(self, job_id: str) -> bool:
        if self.log.whole:
            return job_id in self.log.doubtful
        record = self.log.records.get(job_id)
        return record is None or not record.complete

    @property
    def facts(self) -> Mapping[str, str]:
        """The fields of ``meta``."""
        facts: Mapping[str, str] = self.snapshot["meta"]
        return facts

    @property
    def latest_ms(self) -> int | None:
        """The time (Unix ms) with which the times of rates are compared: Redis' time, or the queue's last activity if
        this is later. None: Redis' time is unknown.

        A clock that is behind the last activity is not a finding: the next claim notices this, and checks all rates.
        """
        return None if self.now_ms is None else max(self.now_ms, self.fact("last_activity"))

    def fact(self, name: str) -> int:
        """Return a number in the key ``meta``, or its default."""
        return number_of(self.facts, name)

    @cached_property
    def caps(self) -> dict[str, CapEntry]:
        """Scope or family → its stored limit and version, without unreadable limits."""
        read = {}
        for name, text in self.snapshot["caps"].items():
            if scopes.family_of(name) != scopes.WEIGHT:
                with suppress(ValueError, KeyError):
                    read[name] = CapEntry.parse(text)
        return read

    @cached_property
    def limits(self) -> dict[str, Limit]:
        """Scope or family → its stored limit, without unreadable limits."""
        return {name: entry.limit for name, entry in self.caps.items()}

    def limit(self, scope: str) -> Limit:
        """Return the limit that applies to a scope."""
        family = scopes.family_of(scope)
        own = self.limits.get(scope)
        if own is None and family != scopes.TASK:
            own = self.limits.get(family)
        return own or Limit(None)

    @cached_property
    def heads(self) -> dict[str, str]:
        """Lane → the lane's first member in the key ``waiting``."""
        found: dict[str, str] = {}
        for member in sorted(self.snapshot["waiting"], reverse=True):
            found[member.split("|")[0]] = member
        return found


def _does_more(record: JobRecord) -> bool:
    """Return whether a live job has been claimed or has left the state ready, according to its complete log."""
    if record.state is None or not record.complete:
        return False
    return record.state is not State.READY or record.claims > 0
