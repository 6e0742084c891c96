"""A parsed snapshot of a queue: the jobs from their state lines, the limits, and the log."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, TypeVar

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
"""The key names that findings show in commands if the caller does not name the queue."""

T = TypeVar("T")

UNKNOWN: Final = -1
"""The value for a time that the log does not have."""
LEASE_TRUSTED_MS: Final = 365 * 86_400_000
"""The longest lease, in milliseconds, that counts as correct if the log does not show how long leases could be."""


class StateLines:
    """The state lines in a snapshot of a queue, as scripts see them, and the jobs that they describe."""

    def __init__(self, snapshot: Mapping[str, Any]) -> None:
        self.standing = lines_of_jobs(snapshot["state"], snapshot["jobs"])
        """Id → state line. A job without a field in ``state`` counts as waiting and never claimed."""
        self.jobs: dict[str, StoredJob] = {}
        """Id → job, for the jobs whose state lines are readable."""
        self.unreadable: dict[str, str] = {}
        """Id of a job → why its state line is unreadable."""
        for job_id, line in self.standing.items():
            try:
                self.jobs[job_id] = read_job(job_id, line)
            except ValueError as why:
                self.unreadable[job_id] = str(why)


@dataclass
class View:
    """A parsed snapshot of a queue."""

    snapshot: Mapping[str, Any]
    keys: QueueKeys
    """The queue's key names, for commands that an operator types."""
    log: FoldedLog
    """The queue's log: the state of each job and setting that follows from the events."""
    now_ms: int | None = None
    """Redis' time (Unix ms) at or after the snapshot; None if unknown."""
    read: StateLines | None = None
    """The state lines in the snapshot; None: they are read from it."""

    @property
    def is_fuzzy(self) -> bool:
        """Return whether the queue was read in pages and may have changed meanwhile.

        Its numbers and sums then cannot be compared, because they do not belong to one moment.
        """
        return getattr(self.snapshot, "since", None) is not None

    @cached_property
    def _read(self) -> StateLines:
        return self.read or StateLines(self.snapshot)

    @property
    def standing(self) -> Mapping[str, str]:
        """Id → state line, as scripts see it."""
        return self._read.standing

    @cached_property
    def _lost(self) -> set[str]:
        """Ids of the jobs whose state line is lost: ``state`` does not have it, although the log shows that the job has
        been claimed or has left the state ready."""
        lines, records = self.snapshot["state"], self.log.records
        return {
            job_id
            for job_id in self.standing
            if job_id not in lines
            and (record := records.get(job_id)) is not None
            and _does_more(record)
        }

    @cached_property
    def lines(self) -> Mapping[str, str]:
        """Id → state line, without the jobs whose line is lost."""
        return self._unless_lost(self._read.standing)

    @cached_property
    def jobs(self) -> dict[str, StoredJob]:
        """Id → job, for the jobs whose state lines are readable and not lost."""
        return self._unless_lost(self._read.jobs)

    @cached_property
    def unreadable(self) -> dict[str, str]:
        """Id of a job → why its state line is unreadable, for lines that are not lost."""
        return self._unless_lost(self._read.unreadable)

    def _unless_lost(self, found: dict[str, T]) -> dict[str, T]:
        # Usually no line is lost, and a copy would need as much memory again.
        lost = self._lost
        return {i: each for i, each in found.items() if i not in lost} if lost else found

    @cached_property
    def ends(self) -> dict[str, End | None]:
        """Id in ``results`` → how the last job of this id ended; None: no job of this id can have left the line.

        Ids are left out if it is unknown how their job ended.
        """
        lines = self.snapshot["results"].items()
        made_up = {i: None for i, line in lines if self.log.is_made_up(read_result(i, line))}
        log = self.log
        if log.since is not None and not log.may_be_restored:
            return {i: end._replace(is_last=True) for i, end in log.ends.items()} | made_up
        return log.ends | made_up

    def has_heard_of(self, job_id: str) -> bool:
        """Return whether a job of this id may ever have existed."""
        return job_id in self.standing or self.log.has_heard_of(job_id)

    def instant_by(self, name: str, job_id: str) -> int | None:
        """Return the time (Unix ms) until which a unique name is held according to the log. ``job_id``: the job that
        holds it in Redis.

        None: no job of this id can have existed. UNKNOWN: the log does not show the time. It shows the time only if the
        last job of this id took the name, and no later entry is missing.
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
        """The latest time (Unix ms) at which a lease may end; None if unknown.

        If the log is incomplete, leases may have been longer in the past, so LEASE_TRUSTED_MS applies.
        """
        if self.latest_ms is None:
            return None
        longest = LEASE_TRUSTED_MS if self.log.since is None else self.log.lease_max_ms
        return self.latest_ms + max(self.fact("lease_ms"), longest)

    @cached_property
    def untold(self) -> dict[str, str]:
        """Id → arguments, for jobs whose state line is missing in Redis and whose state is not in the outbox. Only the
        audit database may have their states."""
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
        """The time (Unix ms) with which the times of rates are compared: Redis' time or, if later, the queue's last
        activity. None if Redis' time is unknown.

        A clock that is behind the last activity is not a finding: the next claim notices this and checks all rates.
        """
        return None if self.now_ms is None else max(self.now_ms, self.fact("last_activity"))

    def fact(self, name: str) -> int:
        """Return a number from the key ``meta``; if it is missing, the default."""
        return number_of(self.facts, name)

    @cached_property
    def caps(self) -> dict[str, CapEntry]:
        """Scope or family of scopes → its stored limit and version. Unreadable limits are left out."""
        read = {}
        for name, text in self.snapshot["caps"].items():
            if scopes.family_of(name) != scopes.WEIGHT:
                with suppress(ValueError, KeyError):
                    read[name] = CapEntry.parse(text)
        return read

    @cached_property
    def limits(self) -> dict[str, Limit]:
        """Scope or family of scopes → its stored limit. Unreadable limits are left out."""
        return {name: entry.limit for name, entry in self.caps.items()}

    def limit(self, scope: str) -> Limit:
        """Return the limit that applies to a scope: its own, or its family's."""
        family = scopes.family_of(scope)
        own = self.limits.get(scope)
        if own is None and family != scopes.TASK:
            own = self.limits.get(family)
        return own or Limit(None)

    @cached_property
    def heads(self) -> dict[str, str]:
        """Lane → the member of the lane's first job in the key ``waiting``."""
        found: dict[str, str] = {}
        for member in sorted(self.snapshot["waiting"], reverse=True):
            found[member.split("|")[0]] = member
        return found


def _does_more(record: JobRecord) -> bool:
    """Return whether a live job has been claimed or has left the state ready, according to its complete log."""
    if record.state is None or not record.complete:
        return False
    return record.state is not State.READY or record.claims > 0
