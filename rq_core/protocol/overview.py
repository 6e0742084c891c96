"""One look at all queues: how many jobs, how old the oldest, what is full, who works. Every read is bounded.

    found = client.run(client.calls.overview.all())
    found.queues[0].oldest_ready_ms

Four round trips whatever the number of queues, at most COMMANDS_MAX commands a queue, and none whose cost grows with
the number of jobs or lanes. So some numbers cannot be had exactly; each of those says in a field of its own whether it
is exact. ``rq-core caps`` (:mod:`rq_core.protocol.inspect`) takes the exact look at one queue.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeVar

from rq_core.errors import QueueDamaged, RqCoreError, ServerUnavailable, ServerUnsuitable
from rq_core.model.keys import QueueKeys, queue_keys, queues_key
from rq_core.model.limits import CapEntry, Limit
from rq_core.model.machine import PRIORITIES
from rq_core.model.scopes import QUEUE, RANK, WEIGHT, family_of, is_rate, is_scope
from rq_core.model.settings import RESULT_COST, SETTINGS
from rq_core.model.text import printable, shorten
from rq_core.model.url import is_cluster
from rq_core.protocol import denial, lines, outbox_age
from rq_core.protocol.cap_reads import Holder, holders_of, members
from rq_core.protocol.delivery import Delivery
from rq_core.protocol.plan import Lost, Plan, Unsent, pairs_of
from rq_core.protocol.presence import PresentWorker, known_tasks, rows_command, rows_of
from rq_core.protocol.reads import Listed
from rq_core.protocol.usable import check, number_of

T = TypeVar("T")

COMMANDS_MAX: Final = 70
"""Commands that one look may send for one queue."""
SCOPES_MAX: Final = 9
"""Scopes of a queue whose holders are counted."""
HEADS_MAX: Final = 2
"""Jobs at the head of a list whose age is read: the first may be a cancelled one that no claim has passed over yet."""
SCHEDULED_MAX: Final = 10
"""Scheduled jobs that are looked at, those first that are due first: a worker may have given them back."""
BLOCKED_MAX: Final = 4
"""Blocked lanes whose age and jobs are read: so many that wait for a task's cap, and so many of all."""
LIMITS_MAX: Final = 200
"""About how many stored limits of a queue are read."""
QUEUES_MAX: Final = 1_000
"""Queues that one look reads: those that come first by name."""
WHY_MAX: Final = 300
"""Characters of the reason why a queue cannot be read."""


@dataclass(frozen=True, slots=True)
class ScopeLoad:
    """How full a scope is that has a limit of its own. A family of keys counts as one, all its keys together."""

    scope: str
    limit: Limit
    holders: int
    """Running jobs in it."""
    blocked_lanes: int
    """Lanes that wait for it."""
    oldest_blocked_ms: int | None = None
    """How long the oldest of the jobs that were looked at has waited for it: there may be older ones."""
    blocked_jobs: int = 0
    """Jobs in those of its blocked lanes that were looked at."""
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
    """How many of them were looked at."""
    task_known: bool | None
    """Whether a worker that is there has the task. None: that is not known, or no worker is there."""


@dataclass(frozen=True, slots=True)
class QueueOverview:
    """How one queue stands. Lengths of time are in ms, by the clock of its Redis."""

    queue: str
    now_ms: int
    """Unix ms, when it was read."""
    ready: dict[str, int]
    """By priority, jobs without scopes. Includes the entries of cancelled jobs until a claim passes over them."""
    cancelled_entries: int
    """How many such entries there are."""
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
    """How long the oldest job has been ready that stands first in a list or in an open lane; None: there is none."""
    oldest_ready_exact: bool
    """False: there may be an older one."""
    oldest_blocked_ms: int | None
    """The same of jobs in blocked lanes, which wait for a full scope."""
    oldest_blocked_exact: bool
    overdue_ms: int
    """How late the earliest of what is due by itself is: 0 unless no worker claims."""
    leases_over: int
    """Running jobs whose lease is over and which no worker has taken back yet."""
    inactive_ms: int | None
    """How long no worker has claimed or extended a lease, to a tenth of a lease; None: none has in this epoch."""
    ends_leases_in_ms: int
    """How long no lease ends yet, since an epoch began, or workers came back after an outage."""
    backlog: int
    """Events that wait to be mirrored."""
    backlog_bytes: int
    last_death: Death | None
    scopes: tuple[ScopeLoad, ...]
    """Scopes with a limit of their own, those first for which a lane waits. Never one key of a family."""
    scopes_exact: bool
    """False: there are more of them."""
    oldest_event_ms: int | None = None
    """How long the oldest event that was looked at has waited for the mirror, at least; None: none waits."""
    workers: tuple[PresentWorker, ...] = ()
    """Those that work for it, by name, and those that ended without saying so within the last hour."""
    workers_exact: bool = True
    """False: there are more of them."""
    settings: dict[str, int] = field(default_factory=dict)
    remembered: int = 0
    """Ids that are remembered after their jobs' ends, and jobs whose results are kept."""
    remembered_bytes: int = 0
    """What Redis keeps of them, without what an entry costs besides."""

    kept_bytes: int = 0
    """What its kept results take, what an entry costs besides included (the setting kept_max_bytes bounds it)."""
    unserved: Unserved | None = None
    """Of the scheduled jobs that are due first, those that no worker could run; None: there are none."""
    evicted: int = 0
    """Kept results that have lost their values since the queue was made, so that others had room."""

    @property
    def remembered_ratio(self) -> float:
        """How much of the bounds on these ids is used: at 1.0 jobs whose ids are to be remembered are refused."""
        most, size = (max(1, self.settings[name]) for name in ("results_max", "results_max_bytes"))
        used = self.remembered_bytes + RESULT_COST * self.remembered
        return max(self.remembered / most, used / size)

    @property
    def kept_ratio(self) -> float:
        """How much of the bound on kept results is used: at 1.0 those nearest their end go."""
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
        """Whether a job waits for a scope. The queue's own cap blocks no lane: what is ready waits for it."""
        return self.ready_jobs > 0 if scope.scope == QUEUE else scope.blocked_lanes > 0


@dataclass(frozen=True, slots=True)
class Overview:
    """How all queues stand."""

    queues: tuple[QueueOverview, ...]
    """By name."""
    unreadable: dict[str, str]
    """Why the others could not be read, by queue. Names and reasons are fit to be shown."""
    queues_left_out: int
    """How many queues were not looked at, since there are more than QUEUES_MAX."""
    used_memory: int | None
    """Bytes that the server uses, None if it does not say (in a cluster there are several servers)."""
    maxmemory: int | None
    """Bytes that it may use; 0: any number."""
    strays: str = ""
    """What is to be said of entries of the list of queues that can name no queue; empty if there are none."""
    denied: tuple[str, ...] = ()
    """The queues that the user may not read, though it may read others."""


class Look:
    """What one look has read of one queue so far."""

    def __init__(self, keys: QueueKeys) -> None:
        self.keys = keys
        self.why: str | None = None
        self.limits: dict[str, CapEntry] = {}
        self.limits_exact = True
        self.names: list[str] = []
        self.heads: list[list[str]] = []
        self.jobs: dict[str, Holder] = {}
        self.since: dict[str, int] = {}
        self.ages_exact = True
        """False: the line of a job could not be read."""
        self.lanes: list[tuple[str, str]] = []
        """Lanes whose first job's age is read: what they wait for, empty if they are open, and the lane."""

    # The first commands, and what they say.

    def sizes(self) -> list[list[Any]]:
        """The commands about the whole queue."""
        keys = self.keys
        lists = [keys(f"ready:{n}") for n in range(len(PRIORITIES))]
        counted = ("waiting", "open", "blocked", "scheduled", "leases", "dead")
        return [
            *(["LLEN", key] for key in lists),
            *(["LRANGE", key, 0, HEADS_MAX - 1] for key in lists),
            # Beside something of the queue: in a cluster it is its shard's clock that counts.
            ["TIME"],
            *(["ZCARD", keys(name)] for name in counted),
            ["HLEN", keys("jobs")],
            ["HGETALL", keys("meta")],
            ["HSCAN", keys("caps"), 0, "COUNT", LIMITS_MAX],
            ["ZRANGE", keys("scheduled"), 0, SCHEDULED_MAX - 1, "WITHSCORES"],
            *(
                ["ZRANGEBYSCORE", keys("open"), n * RANK, f"({(n + 1) * RANK}", "LIMIT", 0, 1]
                for n in range(len(PRIORITIES))
            ),
            ["ZRANGEBYLEX", keys("blocked"), *members("task"), "LIMIT", 0, BLOCKED_MAX],
            ["ZRANGEBYLEX", keys("blocked"), "-", "+", "LIMIT", 0, BLOCKED_MAX],
            rows_command(keys),
            ["ZRANGE", keys("dead"), 0, 0, "REV"],
            # Tells an outbox of another type: no call can be carried out then.
            ["XLEN", keys("outbox")],
        ]

    def take_sizes(self, replies: Sequence[Any]) -> None:
        """Take the answers to those."""
        many = len(PRIORITIES)
        self.lengths, self.heads = replies[:many], list(replies[many : 2 * many])
        (seconds, micros), *rest = replies[2 * many :]
        self.now_ms = int(seconds) * 1000 + int(micros) // 1000
        self.waiting, self.open, self.blocked, self.scheduled, self.running, self.dead = rest[:6]
        alive, meta, (cursor, stored), due = rest[6:10]
        opened, tasks, first, (more, rows), self.died, _ = rest[10 : 10 + many], *rest[10 + many :]
        self.alive, self.facts = int(alive), pairs_of(meta)
        check(self.keys.queue, self.facts)
        self.limits, all_read = _limits_of(pairs_of(stored))
        self.limits_exact = all_read and str(cursor) == "0"
        first_due = pairs_of(due)
        self.due_ms = next(map(float, first_due.values()), None)
        self.first_due = [name[4:] for name in first_due if name.startswith("job|")]
        self.workers, self.workers_exact = rows_of(pairs_of(rows), self.now_ms), str(more) == "0"
        self.known = known_tasks(pairs_of(rows), self.now_ms, whole=self.workers_exact)
        blocked = [member.split("|") for member in dict.fromkeys([*tasks, *first])]
        self.lanes = [("", lane) for found in opened for lane in found]
        self.lanes += [(scope, lane) for scope, _, lane in blocked]
        self.looked_at = len(blocked)
        self.names = _without_keys(self.limits, {scope for scope, _, _ in blocked})

    # What is asked about lanes and scopes, and what that says.

    def loads(self) -> list[list[Any]]:
        """The commands about the scopes and lanes that the first ones named."""
        keys = self.keys
        commands = [
            ["ZCOUNT", keys("leases"), "-inf", f"({self.now_ms}"],
            *([outbox_age.command(keys)] if self._events_wait() else []),
            *([["HLEN", keys("results")]] if self._remembers() else []),
        ]
        for name in self.names[:SCOPES_MAX]:
            low, high = members(name)
            commands += [
                ["ZLEXCOUNT", keys("holders"), low, high],
                ["ZLEXCOUNT", keys("blocked"), low, high],
            ]
        waiting = [
            (scope, keys("waiting"), f"[{lane}|", f"({lane}}}") for scope, lane in self.lanes
        ]
        commands += [["ZRANGEBYLEX", *where, "LIMIT", 0, 1] for _, *where in waiting]
        return commands + [["ZLEXCOUNT", *where] for scope, *where in waiting if scope]

    def take_loads(self, replies: Sequence[Any]) -> None:
        """Take the answers to those."""
        self.leases_over, *rest = replies
        self.waits_since = rest.pop(0) if self._events_wait() else None
        self.remembered = int(rest.pop(0)) if self._remembers() else 0
        counted = 2 * len(self.names[:SCOPES_MAX])
        self.counts = rest[:counted]
        firsts, jobs = rest[counted:][: len(self.lanes)], rest[counted + len(self.lanes) :]
        self.blocked_jobs = dict(zip([lane for lane in self.lanes if lane[0]], jobs, strict=True))
        self.first_of = [found[0].rpartition("|")[2] if found else None for found in firsts]

    def _events_wait(self) -> bool:
        return self.facts.get("audit") == "on" and number_of(self.facts, "backlog_jobs") > 0

    def _remembers(self) -> bool:
        return "remembers" in self.facts

    # Since when those jobs wait.

    def ages(self) -> list[list[Any]]:
        """The commands that ask for the jobs at the heads; none if there is no job."""
        ids = self._ids()
        return lines.commands(self.keys, ids) if ids else []

    def take_ages(self, replies: Sequence[Any]) -> None:
        """Take their answers."""
        ids = self._ids()
        for job_id, line in zip(ids, lines.lines_of(replies) if ids else [], strict=True):
            try:
                (job,) = holders_of(self.keys.queue, [job_id], [line])
            except QueueDamaged:
                # One damaged job must not hide its queue. The worker that claims it says so, and so does doctor.
                self.ages_exact = False
                continue
            self.jobs[job_id] = job
            if job.since_ms is not None:
                self.since[job_id] = job.since_ms

    def _ids(self) -> list[str]:
        ids = [job_id for head in self.heads for job_id in head]
        firsts = [each for each in self.first_of if each is not None]
        return list(dict.fromkeys([*ids, *firsts, *self.died, *self.first_due]))

    # All of it.

    def result(self) -> QueueOverview:
        """Return what was read."""
        facts, number = self.facts, partial(number_of, self.facts)
        cancelled = number("tombstones")
        elsewhere = sum(self.lengths) - cancelled + self.waiting + self.running + self.dead
        gate = self.limits.get(QUEUE)
        ready, ready_exact = self._oldest_ready(fair=facts.get("fair") == "1")
        blocked = self._ages_of_blocked()
        return QueueOverview(
            queue=self.keys.queue,
            now_ms=self.now_ms,
            ready=dict(zip(map(str, PRIORITIES), self.lengths, strict=True)),
            cancelled_entries=cancelled,
            waiting=self.waiting,
            open_lanes=self.open,
            blocked_lanes=self.blocked,
            # `scheduled` also has what resumes by itself, so the jobs there are those that are nowhere else.
            scheduled=max(0, min(self.scheduled, self.alive - elsewhere)),
            running=self.running,
            dead=self.dead,
            paused=facts.get("paused") == "1",
            fair=facts.get("fair") == "1",
            audit=facts.get("audit") == "on",
            epoch=number("epoch"),
            cap=gate.limit.most if gate else None,
            oldest_ready_ms=ready,
            oldest_ready_exact=ready_exact,
            oldest_blocked_ms=max(blocked.values(), default=None),
            oldest_blocked_exact=self.ages_exact and self.blocked <= self.looked_at,
            overdue_ms=0 if self.due_ms is None else max(0, self.now_ms - int(self.due_ms)),
            leases_over=self.leases_over,
            inactive_ms=max(0, self.now_ms - number("last_activity"))
            if number("last_activity")
            else None,
            ends_leases_in_ms=max(0, number("no_reap_before") - self.now_ms),
            backlog=number("backlog_jobs"),
            backlog_bytes=number("backlog_bytes"),
            oldest_event_ms=None
            if self.waits_since is None
            else max(0, self.now_ms - int(self.waits_since)),
            last_death=self._last_death(),
            scopes=tuple(self._scopes(blocked)),
            scopes_exact=self.limits_exact and len(self.names) <= SCOPES_MAX,
            workers=self.workers,
            workers_exact=self.workers_exact,
            settings={name: number(name) for name in SETTINGS},
            remembered=self.remembered,
            remembered_bytes=number("results_bytes"),
            kept_bytes=number("kept_bytes"),
            unserved=self._unserved(),
            evicted=number("evicted"),
        )

    def _oldest_ready(self, *, fair: bool) -> tuple[int | None, bool]:
        """The age of the oldest job at a head, and whether there is none older."""
        # A fair queue's lanes stand by virtual time: the first of them need not be the oldest.
        exact = self.ages_exact and not (fair and self.open)
        ages = []
        for length, head in zip(self.lengths, self.heads, strict=True):
            known = [self._age(job_id) for job_id in head if job_id in self.since]
            ages += known[:1]
            # All that were looked at were cancelled, and more follow.
            exact = exact and (bool(known) or length <= len(head))
        for (scope, _), job_id in zip(self.lanes, self.first_of, strict=True):
            if not scope and job_id in self.since:
                ages.append(self._age(job_id))
        return max(ages, default=None), exact

    def _ages_of_blocked(self) -> dict[str, int]:
        """By scope that lanes wait for, the age of the oldest job at the head of one that was looked at."""
        ages: dict[str, int] = {}
        for (scope, _), job_id in zip(self.lanes, self.first_of, strict=True):
            if scope and job_id in self.since:
                ages[scope] = max(self._age(job_id), ages.get(scope, 0))
        return ages

    def _last_death(self) -> Death | None:
        job = self.jobs.get(self.died[0]) if self.died else None
        if job is None or job.id not in self.since:
            return None
        return Death(job.id, job.task or "?", job.reason or "?", self._age(job.id))

    def _unserved(self) -> Unserved | None:
        """The task of which the most jobs were given back."""
        jobs = (self.jobs.get(job_id) for job_id in self.first_due)
        tasks = [job.task or "?" for job in jobs if job is not None and job.given_back]
        if not tasks:
            return None
        task = max(tasks, key=tasks.count)
        return Unserved(task, tasks.count(task), self.known.knows(task))

    def _age(self, job_id: str) -> int:
        return max(0, self.now_ms - self.since[job_id])

    def _scopes(self, blocked: dict[str, int]) -> Iterable[ScopeLoad]:
        counts = iter(self.counts)
        for name, holders, lanes in zip(self.names, counts, counts, strict=False):
            ages = [age for scope, age in blocked.items() if name in (scope, family_of(scope))]
            jobs = [
                count
                for (scope, _), count in self.blocked_jobs.items()
                if name in (scope, family_of(scope))
            ]
            yield ScopeLoad(
                scope=name,
                limit=self.limits[name].limit,
                # A queue's own cap counts all that run, and blocks no lane: the queue gives out nothing.
                holders=self.running if name == QUEUE else holders,
                blocked_lanes=lanes,
                oldest_blocked_ms=max(ages, default=None),
                blocked_jobs=sum(jobs),
                blocked_jobs_exact=len(jobs) >= lanes,
            )


def _limits_of(stored: Mapping[str, str]) -> tuple[dict[str, CapEntry], bool]:
    """The stored limits that can be read, and whether all can. One that cannot has no effect, and doctor names it."""
    found = {}
    for name, text in stored.items():
        with contextlib.suppress(ValueError, KeyError):
            found[name] = CapEntry.parse(text)
    return found, len(found) == len(stored)


def _without_keys(limits: dict[str, CapEntry], waited_for: set[str]) -> list[str]:
    """The scopes with a limit that name no key of a family: those for which a lane waits first."""
    waited = waited_for | {family_of(scope) for scope in waited_for}
    plain = [
        name
        for name, entry in limits.items()
        if entry.limit.most is not None
        and family_of(name) != WEIGHT
        and is_scope(name)
        and (name.startswith("task=") or not name.partition("=")[2])
    ]
    return sorted(plain, key=lambda name: (name not in waited, name != QUEUE, name))


class Overviews:
    """The looks of one client."""

    def __init__(self, delivery: Delivery) -> None:
        self._delivery = delivery

    def all(self) -> Plan[Overview]:
        """How all queues of the prefix stand. A queue that cannot be read does not hide the others.

        Raises ServerUnavailable or ServerUnsuitable if nothing can be read.
        """
        asking = self._delivery.asking
        read = ["SMEMBERS", queues_key(asking.prefix)]
        names, info = yield from asking.ask_each([read, ["INFO", "memory"]])
        if isinstance(names, (Unsent, Lost)):
            raise ServerUnavailable(url=asking.url, why=str(names)) from names
        if isinstance(names, Exception):
            raise asking.unsuitable(names, read) from names
        listed = Listed.of(names)
        first = listed.queues[:QUEUES_MAX]
        queues, unreadable = yield from self.of(first)
        denied = [name for name, why in unreadable.items() if denial.is_denial(why)]
        if denied and not queues:
            why = denial.words_of((), unreadable[denied[0]])
            raise ServerUnsuitable(url=asking.url, why=why)
        # A user of one queue is not told each time that it may not read those of others.
        unreadable = {name: why for name, why in unreadable.items() if name not in denied}
        left_out = len(listed.queues) - len(first)
        used, most = (None, None) if is_cluster(asking.url) else _memory(info)
        return Overview(
            tuple(queues), unreadable, left_out, used, most, listed.complaint, tuple(denied)
        )

    def of(self, queues: Sequence[str]) -> Plan[tuple[list[QueueOverview], dict[str, str]]]:
        """How these queues stand, and why some could not be read, by name. Three round trips."""
        looks = [Look(queue_keys(queue, self._delivery.prefix)) for queue in queues]
        for ask, take in (
            (Look.sizes, Look.take_sizes),
            (Look.loads, Look.take_loads),
            (Look.ages, Look.take_ages),
        ):
            asked = [(look, ask(look)) for look in looks if look.why is None]
            commands = [command for _, each in asked for command in each]
            replies = iter((yield from self._delivery.asking.ask_each(commands)))
            for look, each in asked:
                answers = [next(replies) for _ in each]
                failed = [n for n, answer in enumerate(answers) if isinstance(answer, Exception)]
                if failed:
                    look.why = _fit(_named(answers[failed[0]], each[failed[0]]))
                else:
                    _contained(look, partial(take, look, answers))
        found = [_contained(look, look.result) for look in looks if look.why is None]
        unreadable = {look.keys.queue: look.why for look in looks if look.why is not None}
        return [each for each in found if each is not None], unreadable


def _named(failed: Exception, command: Sequence[Any]) -> str:
    """What an error says, and of which key if that has another type."""
    says = str(failed)
    return f"key {command[1]}: {says}" if says.startswith("WRONGTYPE") else says


def _contained(look: Look, step: Callable[[], T]) -> T | None:
    """Do a step of one look. What it cannot read makes its queue unreadable, and hides no other queue."""
    try:
        return step()
    except RqCoreError as error:
        look.why = _fit(str(error))
    except (ValueError, TypeError, LookupError, ArithmeticError) as error:
        look.why = _fit(f"a key holds something unexpected ({type(error).__name__}: {error})")
    return None


def _fit(text: str) -> str:
    """A text that anything may stand in, as one short line."""
    return printable(" ".join(shorten(text, WHY_MAX).split()))


def _memory(info: Any) -> tuple[int | None, int | None]:
    """Bytes in use and bytes allowed, of INFO's answer; None where it does not say."""
    if isinstance(info, Exception):
        return None, None
    facts = dict(line.split(":", 1) for line in info.splitlines() if ":" in line)
    used, most = facts.get("used_memory"), facts.get("maxmemory")
    return (int(used) if used else None), (int(most) if most else None)
