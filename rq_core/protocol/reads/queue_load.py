"""The numbers that an overview of queues returns, and ratios of these numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rq_core.model.limits.limit import Limit
from rq_core.model.limits.scopes import QUEUE, is_rate
from rq_core.model.limits.use import ScopeUse
from rq_core.model.settings import RESULT_COST
from rq_core.protocol.reads.worker_registry import PresentWorker


@dataclass(frozen=True, slots=True)
class ScopeLoad:
    """The load of a scope that has a limit of its own. A family (all scopes of one key) counts as one scope."""

    scope: str
    limit: Limit
    holders: int
    """Number of running jobs in the scope."""
    blocked_lanes: int
    """Number of lanes that wait for the scope. A lane has the waiting jobs of one priority and the same scopes."""
    oldest_blocked_ms: int | None = None
    """Ms for which the oldest job has waited for the scope; None: unknown. Only some of the waiting jobs are read, so
    there may be older ones."""
    blocked_jobs: int = 0
    """Number of jobs that wait for the scope. Only the jobs of lanes that were read are counted."""
    blocked_jobs_exact: bool = True
    """True if ``blocked_jobs`` counts all jobs that wait for the scope."""
    paused_lanes: int = 0
    """Number of the blocked lanes that wait because a key of the scope is paused or probing (a single job tests whether
    the service works again). The number is a lower bound if very many keys are paused or probing."""

    @property
    def is_family(self) -> bool:
        """Return whether the limit holds for each key of a family separately."""
        return "=" not in self.scope and self.scope != QUEUE

    @property
    def full(self) -> bool:
        """Return whether no job of the scope can be claimed now. A family counts as full if jobs wait for one of the
        family's keys, and a rate counts as full if jobs wait for the rate.
        """
        if self.is_family or is_rate(self.scope):
            return self.blocked_lanes > 0
        return self.limit.most is not None and self.holders >= self.limit.most


@dataclass(frozen=True, slots=True)
class Death:
    """The latest death of a job that is still in Redis."""

    job_id: str
    task: str
    reason: str
    ago_ms: int


@dataclass(frozen=True, slots=True)
class Unserved:
    """Jobs of one task that workers have given back, because their code lacks the task or refuses the arguments."""

    task: str
    jobs: int
    """Number of jobs that workers have given back for this reason, among the jobs that were read."""
    task_known: bool | None
    """True if a running worker has the task. None: unknown, or no worker runs."""


@dataclass(frozen=True, slots=True)
class LateSchedule:
    """A schedule whose job is late, and by how much."""

    name: str
    late_ms: int
    """Ms since the schedule's job should have been enqueued."""


@dataclass(frozen=True, slots=True)
class QueueOverview:
    """The numbers of one queue. Times are in ms, by the clock of the queue's Redis server."""

    queue: str
    now_ms: int
    """Unix ms at which the queue was read."""
    ready: dict[str, int]
    """Number of ready jobs without scopes, by priority. Cancelled jobs are counted until a claim removes their
    entries."""
    cancelled_entries: int
    """Number of entries of cancelled jobs in ``ready``."""
    waiting: int
    """Number of ready jobs with scopes, whether their scopes have room or not."""
    open_lanes: int
    blocked_lanes: int
    scheduled: int
    running: int
    dead: int
    paused: bool
    fair: bool
    audit: bool
    epoch: int
    cap: int | None
    """Maximum number of jobs of the queue that may run at once; None: any number."""
    oldest_ready_ms: int | None
    """Ms for which the oldest ready job has been ready; None: no job is ready, or unknown. Only the first jobs of lists
    and of open lanes are read."""
    oldest_ready_exact: bool
    """True if no ready job is older than ``oldest_ready_ms``."""
    oldest_blocked_ms: int | None
    """Ms for which the oldest job has waited for a full scope; None: no job does, or unknown. Only the first jobs of
    blocked lanes are read."""
    oldest_blocked_exact: bool
    overdue_ms: int
    """Ms since the earliest entry of the key ``scheduled`` was due. This is about 0 while workers claim."""
    leases_over: int
    """Number of running jobs whose lease has expired, but whose claim no call of a worker has ended yet."""
    inactive_ms: int | None
    """Ms since a worker last asked for jobs or extended a lease, to within a tenth of a lease; None: no worker has done
    so yet."""
    ends_leases_in_ms: int
    """Ms until claims whose leases have expired are ended again. The number is above 0 for a while after an epoch
    began, and after workers have reconnected at the end of an outage."""
    backlog: int
    """Number of events that the mirror has not yet copied into SQL."""
    backlog_bytes: int
    last_death: Death | None
    scopes: tuple[ScopeLoad, ...]
    """Scopes with a limit of their own, without single keys of a family. Scopes for which jobs wait come first."""
    scopes_exact: bool
    """True if no scope with a limit of its own is missing in ``scopes``."""
    oldest_event_ms: int | None = None
    """Ms for which the oldest event has waited for the mirror, which copies events into SQL. The number is a lower
    bound; None: no event waits."""
    workers: tuple[PresentWorker, ...] = ()
    """The queue's workers by name. Workers that ended within the last hour without saying so are included."""
    workers_exact: bool = True
    """True if no worker of the queue is missing in ``workers``."""
    parked: int = 0
    oldest_parked_ms: int | None = None
    """Ms for which the job that was parked first has been parked; None: no job is parked."""
    box_fields: int = 0
    """Number of fields of the key ``boxes``, which has the saved steps of durable jobs: one field for each such job,
    one for each saved entry, and one to three for each signal."""
    shown_fields: int = 0
    """Number of fields of the key ``shown``, which has the progress and the streams of jobs: one field for each job
    that reports something, and one for each chunk of a stream."""
    settings: dict[str, int] = field(default_factory=dict)
    remembered: int = 0
    """Number of entries of the key ``results``. Each entry remembers the id of an ended job, or keeps its outcome."""
    remembered_bytes: int = 0
    """Bytes of the entries of the key ``results``, without the overhead (RESULT_COST) of each entry."""
    kept_bytes: int = 0
    """Bytes of the queue's kept results, with the overhead (RESULT_COST) of each. The setting kept_max_bytes limits
    them."""
    unserved: Unserved | None = None
    """The unserved jobs of the task that has most of them, among the scheduled jobs that are due next; None without
    unserved jobs. A job is unserved if a worker gave it back because the worker's code lacks the task or refuses the
    arguments."""
    schedules: int | None = None
    """Number of schedules that are on; None: the queue never had a schedule."""
    late_schedule: LateSchedule | None = None
    """The schedule that has been due for the longest time; None: no schedule is due."""
    schedules_missed: int = 0
    """Number of times that a schedule was due but its job was not enqueued, since the queue was created."""
    evicted: int = 0
    """Number of kept results whose values were removed to make room for others, since the queue was created."""

    paused_scopes: Mapping[str, ScopeUse] = field(default_factory=dict)
    """The use of each scope of a rate or breaker that is paused or probing, by name. A scope is probing if a single job
    tests whether the service works again."""
    paused_scopes_exact: bool = True
    """True if no paused or probing scope is missing in ``paused_scopes``."""

    @property
    def remembered_ratio(self) -> float:
        """The fraction of the limits on remembered ids that is used. At 1.0, jobs whose ids must be remembered are
        refused.
        """
        most, size = (max(1, self.settings[name]) for name in ("results_max", "results_max_bytes"))
        used = self.remembered_bytes + RESULT_COST * self.remembered
        return max(self.remembered / most, used / size)

    @property
    def kept_ratio(self) -> float:
        """The fraction of the limit on kept results that is used. At 1.0, the results that expire next are removed."""
        return self.kept_bytes / max(1, self.settings["kept_max_bytes"])

    @property
    def present(self) -> tuple[PresentWorker, ...]:
        """The workers whose last report is recent."""
        return tuple(each for each in self.workers if not each.gone)

    @property
    def ready_jobs(self) -> int:
        """The number of ready jobs, in lists and in lanes."""
        return max(0, sum(self.ready.values()) - self.cancelled_entries) + self.waiting

    @property
    def backlog_ratio(self) -> float:
        """The fraction of the limits on the backlog of events that is used. At 1.0, enqueues are refused."""
        jobs, size = (max(1, self.settings[f"backlog_max_{unit}"]) for unit in ("jobs", "bytes"))
        return max(self.backlog / jobs, self.backlog_bytes / size)

    @property
    def full_scopes(self) -> tuple[ScopeLoad, ...]:
        """The full scopes for which at least one job waits now."""
        return tuple(each for each in self.scopes if each.full and self._waits_for(each))

    @property
    def spent_scopes(self) -> tuple[ScopeLoad, ...]:
        """The full scopes for which at least one job waits now, without scopes whose jobs all wait because of a pause
        or of a breaker that tests the service with a single job.
        """
        return tuple(e for e in self.full_scopes if not 0 < e.blocked_lanes <= e.paused_lanes)

    def _waits_for(self, scope: ScopeLoad) -> bool:
        """Return whether a job waits for a scope. If the scope is the queue itself, each ready job waits for it."""
        return self.ready_jobs > 0 if scope.scope == QUEUE else scope.blocked_lanes > 0


@dataclass(frozen=True, slots=True)
class Overview:
    """The numbers of all queues at one time, and the memory of the server."""

    queues: tuple[QueueOverview, ...]
    """The queues that could be read, by name."""
    unreadable: dict[str, str]
    """The reason why a queue could not be read, by queue. Names and reasons are safe to print."""
    queues_left_out: int
    """Number of queues that were not read, since there are more than QUEUES_MAX."""
    used_memory: int | None
    """Bytes of memory that the server uses; None: unknown, or a cluster, which has several servers."""
    maxmemory: int | None
    """Bytes of memory that the server may use (0: no limit); None: unknown, or a cluster."""
    strays: str = ""
    """A message about entries of the list of queues that are not valid names of queues; empty without such entries."""
    denied: tuple[str, ...] = ()
    """The queues that the Redis user has no right to read, if the user may read other queues."""
