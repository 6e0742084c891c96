"""A model of caps and rates. It has a list of jobs, and answers each question by a loop over all jobs.

The model has no lanes. A job may run if all its scopes have room. To find the next job, the model compares each job
with all others.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from rq_core.model.limits.limit import Limit
from rq_core.model.limits.scopes import lane_name, scopes_of
from tests.kit.lanes import counted
from tests.kit.seed import LEASE_MS
from tests.model.machine import Job, Model


@dataclass
class Entry:
    """The stored limit of one scope."""

    limit: str
    version: int
    source: str
    was: list[str] = field(default_factory=list)
    code: str | None = None
    """The limit that the code declares, also while an operator's limit is in force."""
    set: str = ""
    """The operator who set the limit, and the time. Empty if the code declared the limit."""

    def __str__(self) -> str:
        code = f" code={self.code}" if self.source == "live" and self.code else ""
        was = f" was={','.join(self.was)}" if self.was else ""
        return f"{self.limit} version={self.version} from={self.source}{self.set}{code}{was}"

    def declares(self, limit: str) -> None:
        if self.code is not None:
            self.was.append(self.code)
        self.code = limit


@dataclass
class CapsModel(Model):
    """A model of a queue with caps."""

    caps: dict[str, Entry] = field(default_factory=dict)
    arrivals: dict[str, int] = field(default_factory=dict)
    """The theoretical arrival time of each rate, in µs."""
    over: set[str] = field(default_factory=set)
    """Scopes that have more holders than their cap, because the cap was lowered. A scope leaves this set when its
    holders are within the cap."""

    # What counts a job.

    def lane(self, job: Job) -> str | None:
        """Return the lane of a job. The lane includes the task's scope if the task has a cap."""
        scopes = set(scopes_of(job.lane or ""))
        if f"task={job.task}" in self.caps:
            scopes.add(f"task={job.task}")
        return lane_name(job.rank, scopes) or None

    def scopes(self, job: Job) -> tuple[str, ...]:
        return scopes_of(self.lane(job) or "")

    def limit(self, scope: str) -> Limit:
        """Return the limit in force for a scope: its own limit, or else its family's limit."""
        family = scope.partition("=")[0]
        entry = self.caps.get(scope)
        if entry is None and family != "task":
            entry = self.caps.get(family)
        return Limit.parse(entry.limit if entry else "none")

    def claimed(self) -> list[Job]:
        return self.in_state("running", "cancelling")

    def holders(self, scope: str) -> list[Job]:
        if scope == "queue":
            return self.claimed()
        return [job for job in self.claimed() if scope in scopes_of(job.lane or "")]

    def has_room(self, scope: str) -> bool:
        limit = self.limit(scope)
        if limit.most is None or scope.startswith("fair="):
            return True
        if limit.window_ms is None or limit.most == 0:
            return (len(self.holders(scope)) if counted(scope) else 0) < limit.most
        return self.begins(scope) - self.now * 1000 <= self.slack(limit)

    # Rates: the generic cell rate algorithm.

    def interval(self, limit: Limit) -> int:
        return math.ceil((limit.window_ms or 0) * 1000 / (limit.most or 1))

    def slack(self, limit: Limit) -> int:
        return (limit.burst - 1) * self.interval(limit)

    def begins(self, scope: str) -> int:
        """Return the theoretical arrival time of a rate in µs. It is not in the past, and not later than the limit
        allows."""
        limit = self.limit(scope)
        furthest = self.now * 1000 + self.slack(limit) + self.interval(limit)
        return max(min(self.arrivals.get(scope, 0), furthest), self.now * 1000)

    # Who may run.

    def gated(self) -> bool:
        """Return whether no job may be claimed: the queue is paused, or its own cap is full."""
        return self.paused or not self.has_room("queue")

    def may_run(self, job: Job) -> bool:
        return job.state == "ready" and all(map(self.has_room, self.scopes(job)))

    def runnable(self) -> list[Job]:
        return [job for job in self.jobs.values() if self.may_run(job)]

    def take(self, job: Job, fence: str, worker: str) -> None:
        """Let a worker claim a job. Asserts that the job may run."""
        assert self.may_run(job), f"{job.line()} was claimed"
        assert not self.gated(), f"{job.line()} was claimed at a shut gate"
        for scope in self.scopes(job):
            limit = self.limit(scope)
            if limit.window_ms is not None and limit.most:
                self.arrivals[scope] = self.begins(scope) + self.interval(limit)
        job.lane = self.lane(job)
        self.move(job, "running", claim=job.claim + 1, fence=fence, by=worker, returning=False)
        job.lease = self.now + LEASE_MS
        job.old_entry = False

    def limits_in_force(self, job: Job) -> list[list[str | int | None]] | None:
        """Return the scopes and limits that the event `claimed` of this job must have."""
        told: list[list[str | int | None]] = []
        for scope in self.scopes(job):
            limit = self.limit(scope)
            if limit.window_ms is not None and limit.most:
                told.append([scope, limit.most, limit.window_ms, limit.burst])
            elif counted(scope):
                told.append([scope, limit.most])
        if "queue" in self.caps and self.limit("queue").most is not None:
            told.append(["queue", self.limit("queue").most])
        return told or None

    def before(self, job: Job) -> list[Job]:
        """Return the jobs that may run and come before this job.

        The order is by priority, then by place in line. Among jobs without a lane, a job that returns to its old place
        comes before the jobs that never left. The order of returning jobs among themselves is open.
        """
        return [
            other
            for other in self.runnable()
            if other is not job and other.rank <= job.rank and self.precedes(other, job)
        ]

    def precedes(self, first: Job, job: Job) -> bool:
        if first.rank != job.rank:
            return first.rank < job.rank
        older = (first.seq or 0) < (job.seq or 0)
        if first.lane is not None:
            return older
        if self.lane(job) is not None:
            return older and not self.is_hidden(first)
        if job.returning or job.old_entry or first.old_entry:
            return False
        return older or (first.returning and self.lane(first) is None)

    def is_hidden(self, job: Job) -> bool:
        """Return whether ``job``, which has no lane, may run after a later job of its list."""
        return any(
            (other.returning or other.old_entry) and (other.seq or 0) > (job.seq or 0)
            for other in self.in_state("ready")
            if other.lane is None and other.rank == job.rank
        )

    # What another order may have to remember: see FairModel.

    def note_waiting(self) -> None:
        """Record which jobs wait after a step. Only the fair model overrides this method."""

    def begin_claim(self) -> None:
        """Prepare the model for a claim. Only the fair model overrides this method."""

    def end_claim(self, most: int) -> None:
        """End a claim that removed at most ``most`` expired entries. Only the fair model overrides this method."""

    # What people and producers do.

    def kept_out(self, lane: str, rules: Iterable[tuple[str, str | int]]) -> tuple[str, str] | None:
        """Return why a new job is refused: the outcome, and the name of the full scope or lane.

        Returns None if nothing refuses the job.
        """
        queued = len([j for j in self.in_state("ready") if j.lane == lane])
        for what, value in rules:
            if what == "most":
                if queued >= int(value):
                    return "rejected", lane
                continue
            limit = self.limit(str(value))
            if limit.most is None or (limit.window_ms is not None and limit.most):
                continue
            held = len(self.holders(str(value))) if counted(str(value)) else 0
            if held + queued >= limit.most:
                return ("discarded" if what == "discard" else "rejected"), str(value)
        return None

    def set_cap(
        self, scope: str, limit: str, version: int, source: str, by: str
    ) -> tuple[str, int, str] | None:
        """Set the limit of a scope. Return the outcome, and the version and the limit that are stored afterwards.

        A non-negative ``version`` must be the current one. Returns None if ``limit`` is "code" and there is no earlier
        limit to restore.
        """
        old = self.caps.get(scope)
        current = old.version if old else 0
        is_back = limit == "code"
        if is_back:
            if old is None or old.code is None:
                return self.leave_to_family(scope, version)
            if old.source == "code":
                return "same", old.version, old.limit
            limit = old.code
        elif source == "code" and old and self.is_kept(old, limit):
            return "kept", old.version, old.limit
        if old and old.limit == limit and source in {"code", old.source} and not is_back:
            return "same", old.version, old.limit
        if version >= 0 and version != current:
            return "conflict", current, old.limit if old else "none"
        made = Entry(limit, current + 1, "code" if is_back else source)
        if old:
            made.was, made.code = list(old.was), old.code
        if made.source == "live":
            made.set = f" by={by} at={self.now}"
        elif not is_back:
            made.declares(limit)
        self.caps[scope] = made
        if old is None and scope.startswith("task="):
            for job in self.claimed():
                if f"task={job.task}" == scope:
                    job.lane = self.lane(job)
        return "changed", made.version, limit

    def is_kept(self, old: Entry, limit: str) -> bool:
        """Record the limit that the code declares. Return whether another stored limit stays in force."""
        before = [*old.was, old.code]
        if old.source == "live" and limit not in before:
            old.declares(limit)
        return old.limit != limit and (old.source == "live" or limit in before)

    def leave_to_family(self, scope: str, version: int) -> tuple[str, int, str] | None:
        """Remove the limit of a key that the code does not declare. The limit of its family is then in force."""
        old, above = self.caps.get(scope), self.caps.get(scope.partition("=")[0])
        if "=" not in scope or above is None:
            return None
        if old is None:
            return "same", 0, above.limit
        if version >= 0 and version != old.version:
            return "conflict", old.version, old.limit
        del self.caps[scope]
        return "changed", 0, above.limit

    def breached(self) -> set[str]:
        """Return the scopes with more holders than their cap allows."""
        scopes = {s for job in self.claimed() for s in scopes_of(job.lane or "") if counted(s)}
        limits = {s: self.limit(s) for s in scopes | {"queue"}}
        return {
            s
            for s, limit in limits.items()
            if limit.most is not None and len(self.holders(s)) > limit.most
        }

    # Step 0.

    def sweep_within(self, most: int, promoted: list[str], gone: set[str]) -> None:
        """Sweep as a claim does at its beginning: expire leases, promote due jobs, and forget dead jobs, at most
        ``most`` of each.

        ``promoted`` and ``gone`` are the promoted and the forgotten jobs by the server's log. The model cannot compute
        these jobs, since rates that resume count as due entries, too.
        """
        self.note_activity()
        if self.no_reap_before <= self.now:
            over = sorted((j.lease, j.id) for j in self.claimed() if j.lease <= self.now)
            for _, job_id in over[:most]:
                self.expire(self.jobs[job_id])
        due = [j for j in self.in_state("scheduled") if j.due is not None and j.due <= self.now]
        assert set(promoted) <= {j.id for j in due}
        assert len(promoted) <= most
        for job in sorted(due, key=lambda j: (j.due, j.id)):
            if job.id in promoted:
                self.promote(job)
        for job_id in gone:
            del self.jobs[job_id]
