"""The load of all queues: the numbers that an overview has, and ratios that follow from them."""

from __future__ import annotations

from dataclasses import dataclass, field

from rq_core.model.limits.limit import Limit
from rq_core.model.limits.scopes import QUEUE, is_rate
from rq_core.model.settings import RESULT_COST
from rq_core.protocol.reads.worker_registry import PresentWorker


@dataclass(frozen=True, slots=True)
class ScopeLoad:
    """The load of a scope that has a limit of its own. A family of keys counts as one, all its keys together."""

    scope: str
    limit: Limit
    holders: int
    """Running jobs in it."""
    blocked_lanes: int
    """Lanes that wait for it."""
    oldest_blocked_ms: int | None = None
    """How long the oldest of the jobs that were read has waited for it: there may be older ones."""
    blocked_jobs: int = 0
    """Jobs in those of its blocked lanes that were read."""
    blocked_jobs_exact: bool = True
    """False: other lanes wait for it, too."""

    @property
    def is_family(self) -> bool:
        """Whether the limit holds for each key of a family, not for all jobs of the scope together."""
        return "=" not in self.scope and self.scope != QUEUE

    @property
    def full(self) -> bool:
        """Whether no job of it can be claimed now. Of a family or a rate: whether a lane waits for one of its keys."""
        if self.is_family or is_rate(self.scope):
            return self.blocked_lanes > 0
        return self.limit.most is not None and self.holders >= self.limit.most


@dataclass(frozen=True, slots=True)
class Death:
    """The last job that died and is still in Redis."""

    job_id: str
    task: str
    reason: str
    ago_ms: int


@dataclass(frozen=True, slots=True)
class Unserved:
    """Jobs of one task that workers have given back: their code lacks the task, or refuses the arguments."""

    task: str
    jobs: int
    """How many of them were read."""
    task_known: bool | None
    """Whether a running worker has the task. None: not known, or no worker runs."""


@dataclass(frozen=True, slots=True)
class QueueOverview:
    """The numbers of one queue. Lengths of time are in ms, by the clock of its Redis."""

    queue: str
    now_ms: int
    """Unix ms, when it was read."""
    ready: dict[str, int]
    """By priority, jobs without scopes. Includes the entries of cancelled jobs until a claim passes over them."""
    cancelled_entries: int
    """How many entries of cancelled jobs are in ``ready``."""
    waiting: int
    """Ready jobs with scopes, whether their scopes have room or not."""
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
    """How many of its jobs may run at once; None: any number."""
    oldest_ready_ms: int | None
    """How long the oldest of the jobs at the heads of lists and open lanes has been ready; None: no job is ready."""
    oldest_ready_exact: bool
    """False: there may be an older one."""
    oldest_blocked_ms: int | None
    """How long the oldest job at the head of a blocked lane has waited for a full scope; None: no lane is
    blocked, or it is not known."""
    oldest_blocked_exact: bool
    overdue_ms: int
    """How late the earliest due entry of ``scheduled`` is: 0 unless no worker claims."""
    leases_over: int
    """Running jobs whose lease is over, and which no claim has taken back yet."""
    inactive_ms: int | None
    """How long ago a worker last claimed or extended a lease, to a tenth of a lease; None: no worker has in this
    epoch."""
    ends_leases_in_ms: int
    """How long claims still end no leases, since an epoch began, or workers came back after an outage."""
    backlog: int
    """Events that wait to be mirrored."""
    backlog_bytes: int
    last_death: Death | None
    scopes: tuple[ScopeLoad, ...]
    """Scopes with a limit of their own, those first for which a lane waits. Never one key of a family."""
    scopes_exact: bool
    """False: there are more of them."""
    oldest_event_ms: int | None = None
    """How long the oldest event that was read has waited for the mirror, at least; None: no event waits."""
    workers: tuple[PresentWorker, ...] = ()
    """Its workers, by name, and those that ended within the last hour without saying so."""
    workers_exact: bool = True
    """False: there are more of them."""
    settings: dict[str, int] = field(default_factory=dict)
    remembered: int = 0
    """Ids that are remembered after their jobs' ends, and jobs whose results are kept."""
    remembered_bytes: int = 0
    """Bytes of their entries in Redis, without RESULT_COST for each."""
    kept_bytes: int = 0
    """Bytes of its kept results, with RESULT_COST for each (the setting kept_max_bytes bounds it)."""
    unserved: Unserved | None = None
    """The jobs that no worker could run, among the scheduled jobs that are due first; None: no such job."""
    evicted: int = 0
    """Kept results that have lost their values since the queue was made, so that others had room."""

    @property
    def remembered_ratio(self) -> float:
        """How much of the bounds on these ids is used: at 1.0 jobs whose ids must be remembered are refused."""
        most, size = (max(1, self.settings[name]) for name in ("results_max", "results_max_bytes"))
        used = self.remembered_bytes + RESULT_COST * self.remembered
        return max(self.remembered / most, used / size)

    @property
    def kept_ratio(self) -> float:
        """How much of the bound on kept results is used: at 1.0 the results that expire next are removed."""
        return self.kept_bytes / max(1, self.settings["kept_max_bytes"])

    @property
    def present(self) -> tuple[PresentWorker, ...]:
        """The workers that are not taken for gone."""
        return tuple(each for each in self.workers if not each.gone)

    @property
    def ready_jobs(self) -> int:
        """All jobs that are ready, in lists and in lanes."""
        return max(0, sum(self.ready.values()) - self.cancelled_entries) + self.waiting

    @property
    def backlog_ratio(self) -> float:
        """How much of the backlog's bound is used: at 1.0 enqueuing is refused."""
        jobs, size = (max(1, self.settings[f"backlog_max_{unit}"]) for unit in ("jobs", "bytes"))
        return max(self.backlog / jobs, self.backlog_bytes / size)

    @property
    def full_scopes(self) -> tuple[ScopeLoad, ...]:
        """The scopes that hold jobs up now. A full one for which no job waits is merely used."""
        return tuple(each for each in self.scopes if each.full and self._waits_for(each))

    def _waits_for(self, scope: ScopeLoad) -> bool:
        """Whether a job waits for a scope. The queue's own cap blocks no lane: all ready jobs wait for it."""
        return self.ready_jobs > 0 if scope.scope == QUEUE else scope.blocked_lanes > 0


@dataclass(frozen=True, slots=True)
class Overview:
    """The numbers of all queues."""

    queues: tuple[QueueOverview, ...]
    """By name."""
    unreadable: dict[str, str]
    """Why the others could not be read, by queue. Names and reasons are fit to be shown."""
    queues_left_out: int
    """How many queues were not read, since there are more than QUEUES_MAX."""
    used_memory: int | None
    """Bytes that the server uses, None if it does not say (in a cluster there are several servers)."""
    maxmemory: int | None
    """Bytes that it may use; 0: any number."""
    strays: str = ""
    """A message about entries of the list of queues that can name no queue; empty without such entries."""
    denied: tuple[str, ...] = ()
    """The queues that the user may not read, though it may read others."""
