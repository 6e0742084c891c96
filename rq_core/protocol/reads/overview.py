"""A bounded read of all queues: numbers of jobs, ages of the oldest jobs, full scopes, workers.

    found = client.run(client.calls.reads.overview())
    found.queues[0].oldest_ready_ms

The read takes four round trips for any number of queues, and at most COMMANDS_MAX commands per queue. The cost of a
command does not grow with the number of jobs or lanes. So some numbers may be inexact; a field whose name ends in
``_exact`` says whether a number is exact. ``rq-core caps`` (:mod:`rq_core.protocol.reads.scope_reads`) reads the exact
numbers of one queue.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from rq_core.model.keys import QueueKeys
from rq_core.model.limits.limit import CapEntry, Limit
from rq_core.model.limits.scopes import QUEUE, RANK, WEIGHT, family_of, is_scope
from rq_core.model.limits.use import ScopeUse, use_of
from rq_core.model.schedule import Schedule
from rq_core.model.settings import SETTINGS
from rq_core.model.state_line import JobState
from rq_core.model.table.machine import PRIORITIES
from rq_core.protocol.engine.plan import pairs_of
from rq_core.protocol.engine.queue_check import check_queue, number_of
from rq_core.protocol.reads.queue_load import (
    Death,
    LateSchedule,
    QueueOverview,
    ScopeLoad,
    Unserved,
)
from rq_core.protocol.reads.ranges import answers, job_of, of_lane, of_scope, within
from rq_core.protocol.reads.steps import Command, Steps, ask, beside, jobs_of, time_ms
from rq_core.protocol.reads.worker_registry import (
    KnownTasks,
    known_tasks,
    rows_command,
    rows_of,
)
from rq_core.scripts.plain import plain_text

COMMANDS_MAX: Final = 44
"""Maximum number of commands that an overview sends for one queue. A queue that uses every feature takes 44 commands:
it has a backlog of events, schedules, parked jobs, boxes, progress, remembered ids, full scopes and blocked lanes."""
SCOPES_MAX: Final = 9
"""Maximum number of scopes of a queue whose running jobs are counted."""
HEADS_MAX: Final = 2
"""Number of jobs at the head of a list whose ages are read, to find the oldest job. One job is not enough: the first
job may be a cancelled job that no claim has removed yet."""
SCHEDULED_MAX: Final = 10
"""Maximum number of scheduled jobs that are read: those that are due next. Some of them may be jobs that workers gave
back."""
TICKS_MAX: Final = 10
"""Maximum number of schedules that are read: those that are due next. A schedule that a worker is handling counts as
due later."""
BLOCKED_MAX: Final = 4
"""Maximum number of blocked lanes that one read finds. A lane has the waiting jobs of one priority and the same scopes;
it is blocked while one of its scopes is full. An overview makes two such reads: one of all blocked lanes, and one of
the lanes that wait for a task's cap. For each lane found, it also reads the age of the first job, and the number of
jobs."""
LIMITS_MAX: Final = 200
"""Approximate number of a queue's stored limits that are read."""
RATES_MAX: Final = 500
"""Approximate number of scopes of rates and breakers that are read, to find those that are paused."""
PAUSED_MAX: Final = 100
"""Maximum number of scopes whose blocked lanes are counted, among the scopes of a queue that are paused or probing (a
single job tests whether the service works again)."""
QUEUES_MAX: Final = 1_000
"""Maximum number of queues that an overview reads: the first ones by name."""

NO_LIMIT: Final = Limit(None)

# The numbers of jobs, which every read of a queue asks for.

_SIZED: Final = ("waiting", "open", "scheduled", "leases", "dead", "parked")


def sizes(keys: QueueKeys) -> list[Command]:
    """Return the commands that read the numbers of a queue's jobs, and the fields of its ``meta``."""
    lists = [["LLEN", keys(f"ready:{n}")] for n in range(len(PRIORITIES))]
    sets = [["ZCARD", keys(name)] for name in _SIZED]
    return [*lists, *sets, ["HLEN", keys("jobs")], ["HGETALL", keys("meta")]]


def counts_of(
    replies: Sequence[Any], facts: Mapping[str, str], number: Callable[[str], int]
) -> dict[str, Any]:
    """Compute fields of QueueCounts and QueueOverview from the replies to the commands of ``sizes``.

    ``facts`` are the fields of the queue's key ``meta``. ``number`` is a function that returns one of these fields as a
    number, by name.
    """
    many = len(PRIORITIES)
    waiting, lanes, scheduled, running, dead, parked, alive = map(int, replies[many : many + 7])
    elsewhere = sum(replies[:many]) - number("tombstones") + waiting + running + dead + parked
    return {
        "ready": dict(zip(map(str, PRIORITIES), replies, strict=False)),
        "waiting": waiting,
        "open_lanes": lanes,
        # `scheduled` also has rates and caps that resume by themselves, so its jobs are those that are nowhere else.
        "scheduled": max(0, min(scheduled, alive - elsewhere)),
        "running": running,
        "dead": dead,
        "parked": parked,
        "paused": facts.get("paused") == "1",
        "audit": facts.get("audit") == "on",
        "epoch": number("epoch"),
        "backlog": number("backlog_jobs"),
        "settings": {name: number(name) for name in SETTINGS},
    }


# The read of one queue.


class _Lane(NamedTuple):
    """A lane whose first job is read. A lane has the waiting jobs of one priority and the same scopes; it is blocked
    while one of its scopes is full, else open.
    """

    scope: str
    """The full scope that blocks the lane; empty: the lane is open, and its jobs can be claimed."""
    name: str
    age_ms: int | None = None
    """Ms for which the lane's first job has waited; None: unknown."""
    jobs: int = 0
    """Number of jobs in a blocked lane; 0 for an open lane."""


def overview_of(keys: QueueKeys) -> Steps[QueueOverview]:
    """Read the numbers of one queue, in three round trips. Raises LayoutMismatch or QueueDamaged."""
    lists = [keys(f"ready:{n}") for n in range(len(PRIORITIES))]
    ranks = [(n * RANK, f"({(n + 1) * RANK}") for n in range(len(PRIORITIES))]
    first = yield from ask(
        sizes=sizes(keys),
        # Sent with commands that have the queue's keys: in a cluster the clock of its shard counts.
        now=["TIME"],
        heads=[["LRANGE", key, 0, HEADS_MAX - 1] for key in lists],
        blocked=["ZCARD", keys("blocked")],
        caps=["HSCAN", keys("caps"), 0, "COUNT", LIMITS_MAX],
        rates=["HSCAN", keys("rates"), 0, "COUNT", RATES_MAX],
        due=["ZRANGE", keys("scheduled"), 0, SCHEDULED_MAX - 1, "WITHSCORES"],
        opened=[["ZRANGEBYSCORE", keys("open"), *rank, "LIMIT", 0, 1] for rank in ranks],
        waited_for=[
            ["ZRANGEBYLEX", keys("blocked"), *bounds, "LIMIT", 0, BLOCKED_MAX]
            for bounds in (of_scope("task")[:2], ("-", "+"))
        ],
        workers=rows_command(keys),
        died=["ZRANGE", keys("dead"), 0, 0, "REV"],
        # Shows an outbox of another type: no call can be carried out then.
        outbox=["XLEN", keys("outbox")],
    )
    now_ms, facts = time_ms(first.now), pairs_of(first.sizes[-1])
    check_queue(keys.queue, facts)
    number = partial(number_of, facts)
    counted = counts_of(first.sizes, facts, number)
    limits, limits_exact = _limits_of(*first.caps)
    rates, rates_exact = pairs_of(first.rates[1]), str(first.rates[0]) == "0"
    due = pairs_of(first.due)
    due_ms = next(map(float, due.values()), now_ms)
    due_ids = [member[4:] for member in due if member.startswith("job|")]
    blocked = [member.split("|") for each in first.waited_for for member in each]
    lanes = [_Lane("", lane) for found in first.opened for lane in found]
    lanes += dict.fromkeys(_Lane(scope, lane) for scope, _, lane in blocked)
    blocked_lanes = [lane.name for lane in lanes if lane.scope]
    names = _without_keys(limits, {lane.scope for lane in lanes if lane.scope})
    counts = [of_scope(name) for name in names[:SCOPES_MAX]]
    paused = _paused(rates, limits, now_ms, limits_exact=limits_exact)
    pausing = [name for name in paused if family_of(name) in names[:SCOPES_MAX]][:PAUSED_MAX]
    events_wait = counted["audit"] and counted["backlog"] > 0
    then = yield from ask(
        leases_over=["ZCOUNT", keys("leases"), "-inf", f"({now_ms}"],
        event=[["EVAL_RO", plain_text("event_age"), 1, keys("outbox")]] if events_wait else [],
        ticks=[["ZCARD", keys("ticks")], ["ZRANGE", keys("ticks"), 0, TICKS_MAX - 1]]
        if "schedules" in facts
        else [],
        parked=[["ZRANGE", keys("parked"), 0, 0, "WITHSCORES"]] if counted["parked"] else [],
        boxes=[["HLEN", keys("boxes")]] if "durable" in facts else [],
        shown=[["HLEN", keys("shown")]] if "shows" in facts else [],
        remembered=[["HLEN", keys("results")]] if "remembers" in facts else [],
        holders=within(keys("holders"), counts),
        lanes=within(keys("blocked"), [*counts, *map(of_scope, pausing)]),
        heads=within(keys("waiting"), [of_lane(lane.name, 1) for lane in lanes]),
        jobs=within(keys("waiting"), map(of_lane, blocked_lanes)),
    )
    lanes_wait = answers(then.lanes)
    paused_lanes: Counter[str] = Counter()
    for name, many in zip(pausing, lanes_wait[len(counts) :], strict=True):
        paused_lanes[family_of(name)] += many
    heads = [job_of(found[0]) if found else "" for found in answers(then.heads)]
    ids = [*(each for head in first.heads for each in head), *heads, *first.died, *due_ids]
    # One damaged job must not hide its queue. The worker that claims the job reports it, and so does the doctor.
    schedules, first_due = then.ticks or (None, [])
    (read, damaged), lines = yield from beside(
        jobs_of(keys, list(filter(None, dict.fromkeys(ids)))),
        [["HMGET", keys("schedules"), *first_due]] if first_due else [],
    )
    jobs = {job.id: job for job in read}
    ages = {job.id: max(0, now_ms - since) for job in read if (since := job.since_ms) is not None}
    of_lanes = iter(answers(then.jobs))
    lanes = [
        lane._replace(age_ms=ages.get(head), jobs=next(of_lanes) if lane.scope else 0)
        for lane, head in zip(lanes, heads, strict=True)
    ]
    fair = facts.get("fair") == "1"
    died = jobs.get(first.died[0]) if first.died else None
    opened_ms = [lane.age_ms for lane in lanes if not lane.scope]
    ready_ms, ready_exact = _oldest_ready(first.sizes, first.heads, opened_ms, ages)
    waits = [lane for lane in lanes if lane.scope]
    blocked_ms = [lane.age_ms for lane in waits if lane.age_ms is not None]
    rows, all_rows = pairs_of(first.workers[1]), str(first.workers[0]) == "0"
    workers = rows_of(rows, now_ms)
    gate = limits.get(QUEUE)
    active_ms = number("last_activity")
    return QueueOverview(
        queue=keys.queue,
        now_ms=now_ms,
        cancelled_entries=number("tombstones"),
        blocked_lanes=first.blocked,
        fair=fair,
        cap=gate.limit.most if gate else None,
        oldest_ready_ms=ready_ms,
        # A fair queue's lanes are in the order of virtual time: the first of them need not be the oldest.
        oldest_ready_exact=ready_exact and not damaged and not (fair and counted["open_lanes"]),
        oldest_blocked_ms=max(blocked_ms, default=None),
        oldest_blocked_exact=not damaged and first.blocked <= len(waits),
        overdue_ms=max(0, now_ms - int(due_ms)),
        leases_over=then.leases_over,
        inactive_ms=max(0, now_ms - active_ms) if active_ms else None,
        ends_leases_in_ms=max(0, number("no_reap_before") - now_ms),
        backlog_bytes=number("backlog_bytes"),
        oldest_event_ms=next((max(0, now_ms - int(at)) for at in then.event if at), None),
        oldest_parked_ms=next(
            (max(0, now_ms - int(float(each[1]))) for each in then.parked if each), None
        ),
        box_fields=next(iter(then.boxes), 0),
        shown_fields=next(iter(then.shown), 0),
        last_death=Death(
            died.id, died.fields.get("task", "?"), died.fields.get("reason", "?"), ages[died.id]
        )
        if died is not None and died.id in ages
        else None,
        scopes=tuple(
            ScopeLoad(
                scope=name,
                limit=limits[name].limit,
                holders=counted["running"] if name == QUEUE else holders,
                blocked_lanes=wait,
                paused_lanes=paused_lanes[name],
                **_waiting(name, wait, waits),
            )
            for name, holders, wait in zip(names, answers(then.holders), lanes_wait, strict=False)
        ),
        scopes_exact=limits_exact and len(names) <= SCOPES_MAX,
        workers=workers,
        workers_exact=all_rows,
        remembered=sum(then.remembered),
        remembered_bytes=number("results_bytes"),
        kept_bytes=number("kept_bytes"),
        unserved=_unserved(
            [jobs[job_id] for job_id in due_ids if job_id in jobs],
            known_tasks(rows, workers, whole=all_rows),
        ),
        schedules=schedules,
        late_schedule=_latest(zip(first_due, *lines, strict=True) if lines else (), now_ms),
        schedules_missed=number("schedules_missed"),
        evicted=number("evicted"),
        paused_scopes=paused,
        paused_scopes_exact=rates_exact,
        **counted,
    )


def _latest(lines: Iterable[tuple[str, str | None]], now_ms: int) -> LateSchedule | None:
    """Return the schedule that has been due for the longest time; None if no schedule is due. ``lines`` are names and
    stored texts of schedules; an unreadable text is left out."""
    found = []
    for name, line in lines:
        with contextlib.suppress(ValueError):
            schedule = Schedule.parse(line or "")
            if schedule.state == "on" and schedule.due_ms < now_ms:
                found.append(LateSchedule(name, now_ms - schedule.due_ms))
    return max(found, key=lambda each: each.late_ms, default=None)


def _oldest_ready(
    lengths: Sequence[int],
    heads: Sequence[Sequence[str]],
    opened: Sequence[int | None],
    ages: Mapping[str, int],
) -> tuple[int | None, bool]:
    """Return two values. The first is the age (ms) of the oldest job at the head of a list or an open lane; None:
    unknown. The second is True if no job in a list can be older, because the first live job of each list was read.
    """
    found, exact = [age for age in opened if age is not None], True
    for length, head in zip(lengths, heads, strict=False):
        known = [ages[job_id] for job_id in head if job_id in ages]
        found += known[:1]
        # All that were read were cancelled, and more follow.
        exact = exact and (bool(known) or length <= len(head))
    return max(found, default=None), exact


def _waiting(scope: str, lanes: int, looked_at: Sequence[_Lane]) -> dict[str, Any]:
    """Return the fields of ScopeLoad about the lanes (lists of jobs) that wait for a scope or family: age of the oldest
    job, number of jobs, and whether this number is exact.

    Only jobs of the lanes in ``looked_at`` are counted. ``lanes`` is the number of all lanes that wait for the scope or
    family; if ``looked_at`` has all of them, the number of jobs is exact.
    """
    found = [lane for lane in looked_at if scope in (lane.scope, family_of(lane.scope))]
    return {
        "oldest_blocked_ms": max((e.age_ms for e in found if e.age_ms is not None), default=None),
        "blocked_jobs": sum(lane.jobs for lane in found),
        "blocked_jobs_exact": len(found) >= lanes,
    }


def _unserved(due: Sequence[JobState], known: KnownTasks) -> Unserved | None:
    """Return the unserved jobs among ``due``, for the task that has most of them; None without unserved jobs. A job is
    unserved if a worker gave it back because the worker's code lacks the task or refuses the arguments.
    """
    tasks = [job.fields.get("task", "?") for job in due if "unknown" in job.fields]
    if not tasks:
        return None
    task = max(tasks, key=tasks.count)
    return Unserved(task, tasks.count(task), known.knows(task))


def _limits_of(cursor: Any, stored: Any) -> tuple[dict[str, CapEntry], bool]:
    """Return the stored limits by name, without those that cannot be read. Also return True if no stored limit is
    missing.
    """
    texts, found = pairs_of(stored), {}
    for name, text in texts.items():
        with contextlib.suppress(ValueError, KeyError):
            found[name] = CapEntry.parse(text)
    return found, len(found) == len(texts) and str(cursor) == "0"


def _paused(
    rates: Mapping[str, str], limits: Mapping[str, CapEntry], now_ms: int, *, limits_exact: bool
) -> dict[str, ScopeUse]:
    """Return the use of each scope that is paused or probing, by name. (A scope is probing if a single job tests
    whether the service works again.) ``rates`` are fields of the key ``rates``.
    """
    found = {}
    for name, text in rates.items():
        entry = limits.get(name) or limits.get(family_of(name))
        # A scope whose limit was not read counts as a scope with a limit.
        limit = entry.limit if entry else NO_LIMIT if limits_exact else Limit(1, 1)
        use = use_of(name, text, limit, now_ms)
        if use.standing != "open":
            found[name] = use
    return dict(sorted(found.items()))


def _without_keys(limits: dict[str, CapEntry], waited_for: set[str]) -> list[str]:
    """Return the scopes with a limit: the queue, tasks and families, without the single keys of families. The scopes
    for which jobs wait come first.
    """
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
