"""Enqueues a hook for each job that died, if the job's task has one. A hook is a task whose job is enqueued when a job
of another task dies. A worker checks for deaths every few seconds, and also soon after a job has died in this worker.

Jobs die in several scripts, and some deaths reach no worker: the worker of a poison job is gone. So workers read the
queue's index of dead jobs, and enqueue one job of the hook for each death. The field ``on_dead_ms`` of ``meta`` is a
time, the *mark*: for each death up to the mark, the hook's job has been enqueued. A worker moves the mark on after it
enqueued these jobs. So each hook is called at least once, even if workers die. A hook's job is retried and audited like
any other job.

Several workers may find one death at once. They derive the same id for the hook's job. Redis remembers the id after the
job's end. So a later enqueue is a duplicate, even if the hook has already run.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict
from time import monotonic
from typing import TYPE_CHECKING, Final

from rq_core.app.handlers.dead_hooks import DeadJob, arguments_of, hook_name
from rq_core.model.job import NewJob, profile, spec_of, ties_of
from rq_core.model.keys import queue_keys
from rq_core.model.settings import BATCH_MAX
from rq_core.protocol.engine.retried_commands import in_one_step

if TYPE_CHECKING:
    from rq_core.protocol.engine.plan import Plan
    from rq_core.protocol.operations import Operations

import asyncio
import contextlib
import logging
from collections.abc import Iterable, Mapping
from typing import Any

from rq_core.app.task import Task
from rq_core.connections.async_client import AsyncClient
from rq_core.worker.queue_group import QueueGroup

log = logging.getLogger(__package__)


LOOK_EVERY_S: Final = 5.0
"""Seconds between two checks for deaths."""


DEATHS_MAX: Final = 250
"""Maximum number of deaths in one check, unless more jobs died in the same millisecond."""


FIELD: Final = "on_dead_ms"


LAG_MS: Final = 60_000
"""Maximum milliseconds by which a queue's mark may be behind the present time while no job dies. The mark is the time
up to which workers have handled deaths. A worker that finds a mark in the future checks the deaths of the last LAG_MS
again."""


REMEMBER_MS: Final = 600_000
"""Milliseconds for which Redis remembers the id of a hook's job. This is longer than a check for deaths takes, even in
a delayed worker, and longer than LAG_MS. So if Redis' clock goes back and a death is handled again, the second job is a
duplicate."""


NEXT_MS_S: Final = 0.005
"""Seconds that a worker waits after a death before it checks for deaths. A check leaves out the current millisecond,
which is not over yet."""


STEP_MS: Final = 5
"""If Redis' clock falls behind this worker's clock by more than this number of milliseconds, Redis' clock counts as set
back. A smaller difference means that Redis' clock is slower."""


SLACK_MS: Final = 1_000
"""Extra milliseconds that a check looks into the past after Redis' clock was set back, because the exact moment of the
change is unknown."""


class DeathWatch:
    """Checks one queue for dead jobs again and again, and enqueues the hooks' jobs: jobs that must run when another job
    dies.

    Each check covers the time since the last check. If Redis' clock was set back, a new death may have a time that an
    earlier check covered. Then the next check covers that time again. So no death is missed, and some enqueues are
    repeated.
    """

    def __init__(
        self,
        calls: Operations,
        queue: str,
        tasks: Mapping[str, Task[Any, Any]],
        *,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._calls = calls
        self._queue = queue
        self._tasks = tasks
        self._clock = clock
        self._keys = queue_keys(queue, calls.delivery.prefix)
        self._last: tuple[int, float] | None = None
        """Times of the last check: Redis' time (Unix ms), and the worker's monotonic time just after that (seconds)."""
        self.told = 0
        """Number of deaths for which this watch has enqueued hooks, even if another worker had already done so."""

    def begin(self) -> Plan[None]:
        """Set the queue's mark to now, unless it has one. The mark is the time up to which deaths are handled. Run this
        before the worker's first claim, so that no later death is missed.
        """
        now, _ = yield from self._now()
        yield from self._mark_beginning(now - 1)

    def _now(self) -> Plan[tuple[int, str | None]]:
        """Return Redis' time (Unix ms) and the queue's mark: the time up to which deaths are handled (Unix ms, as text;
        None: the queue has no mark).
        """
        asked = ["HGET", self._keys("meta"), FIELD]
        # TIME is sent together with a read of the queue: in a cluster the clock of the queue's shard counts.
        time, seen = yield from self._calls.delivery.ask([["TIME"], asked], self._queue)
        return int(time[0]) * 1000 + int(time[1]) // 1000, seen

    def look(self) -> Plan[bool]:
        """Enqueue a hook's job for each job that died since a worker's last check of the queue, if the job's task has a
        hook. One check handles about DEATHS_MAX deaths. Return whether more deaths are left.
        """
        before = self._clock()
        now, noted = yield from self._now()
        # More jobs may still die in this millisecond.
        upto = now - 1
        if noted is None:
            # Hooks are not called for earlier deaths.
            since = told = yield from self._mark_beginning(upto)
        else:
            since = told = int(noted)
        if self._last is not None:
            # Between an answer and the next request, Redis' clock normally advances at least as much as ours.
            back = (before - self._last[1]) * 1000 - (now - self._last[0])
            if back > STEP_MS:
                since = min(since, self._last[0]) - round(back) - SLACK_MS
        if told > now:
            # The clock went back between two checks. Deaths of long ago are not handed over again.
            since = min(since, now - LAG_MS)
        self._last = (now, self._clock())
        ids, upto, more = yield from self._died(since, upto)
        if ids:
            yield from self._hand_over(ids)
        if ids or since != told or told + LAG_MS < upto:
            mark = in_one_step([["HSET", self._keys("meta"), FIELD, upto]])
            yield from self._calls.delivery.ask([mark], self._queue)
        return more

    def _mark_beginning(self, at: int) -> Plan[int]:
        """Set the queue's mark to ``at`` (Unix ms), unless it has one. The mark is the time up to which deaths are
        handled. Return the mark that the queue has now.
        """
        key = self._keys("meta")
        note = in_one_step([["HSETNX", key, FIELD, at], ["HGET", key, FIELD]])
        ((_, seen),) = yield from self._calls.delivery.ask([note], self._queue)
        return int(seen)

    def _died(self, since: int, upto: int) -> Plan[tuple[list[str], int, bool]]:
        """Return (ids, time, more) for jobs that died after ``since``, and at ``upto`` or earlier (Unix ms).

        ``ids``: the ids of all jobs that died after ``since``, up to ``time`` (Unix ms). ``more``: whether more deaths
        are left.
        """
        ask, dead = self._calls.delivery.ask, self._keys("dead")
        span = [f"({since}", upto, "WITHSCORES", "LIMIT", 0, DEATHS_MAX]
        (flat,) = yield from ask([["ZRANGEBYSCORE", dead, *span]], self._queue)
        ids = list(flat[::2])
        if len(ids) < DEATHS_MAX:
            return ids, upto, False
        # The list may contain only some of the jobs that died together with the last one: leave all of these for the
        # next check, unless all jobs of the list died together.
        last = flat[-1]
        kept = [i for i, at in zip(ids, flat[1::2], strict=True) if at != last]
        if kept:
            return kept, int(float(flat[2 * len(kept) - 1])), True
        together = ["ZRANGEBYSCORE", dead, last, last, "LIMIT", 0, BATCH_MAX]
        (ids,) = yield from ask([together], self._queue)
        return ids, int(float(last)), True

    def _hand_over(self, ids: list[str]) -> Plan[None]:
        lines, values = yield from self._calls.delivery.ask(
            [["HMGET", self._keys("state"), *ids], ["HMGET", self._keys("jobs"), *ids]], self._queue
        )
        told = [
            job
            for job_id, line, value in zip(ids, lines, values, strict=True)
            if line and value
            if (job := _job_of(self._queue, job_id, line, value, self._tasks)) is not None
        ]
        if told:
            yield from self._calls.enqueue.many(told)
            self.told += len(told)


def _job_of(
    queue: str, job_id: str, line: str, value: str, tasks: Mapping[str, Task[Any, Any]]
) -> NewJob | None:
    # Imported here: a program that only defines tasks does not need this module.
    from rq_core.model.state_line import read_state_line

    job = read_state_line(queue, job_id, line)
    if job.state != "dead" or hook_name(job.fields.get("task", "")) not in tasks:
        return None
    facts = job.fields
    dead = DeadJob(
        id=job_id,
        queue=queue,
        task=facts["task"],
        arguments=arguments_of(spec_of(value)),
        reason=facts.get("reason", ""),
        claims=int(facts.get("claim", 0)),
        failures=int(facts.get("failed", 0)),
        losses=int(facts.get("lost", 0)),
        died_at_ms=int(facts["since"]),
        event=f"{job_id}/{facts['since']}",
    )
    name = hashlib.sha256(f"{queue}/{dead.event}".encode()).hexdigest()[:32]
    return NewJob(
        f"on-dead-{name}",
        queue,
        profile(hook_name(dead.task)),
        json.dumps({"job": asdict(dead)}),
        ties=ties_of(remember_ms=REMEMBER_MS),
        # The arguments are not compared: a worker with other code may describe the same death differently.
        call="=",
    )


def has_hooks(tasks: Mapping[str, Task[Any, Any]]) -> bool:
    """Return whether one of these tasks is a hook: a task that runs when a job of another of these tasks dies."""
    return any(hook_name(task) in tasks for task in tasks)


def death_watches(
    client: AsyncClient, tasks: Mapping[str, Task[Any, Any]], queues: Iterable[str]
) -> dict[str, DeathWatch]:
    """Return a watch for each queue, which enqueues hooks for dead jobs. The result is empty if no task has a hook."""
    if not has_hooks(tasks):
        return {}
    return {queue: DeathWatch(client.calls, queue, tasks) for queue in queues}


async def tell_of_deaths(
    client: AsyncClient, tasks: Mapping[str, Task[Any, Any]], group: QueueGroup, over: asyncio.Event
) -> None:
    """Check these queues for dead jobs until ``over`` is set, and enqueue the hooks' jobs.

    Returns at once if ``tasks`` contains no hooks.
    """
    watches = death_watches(client, tasks, group.queues)
    while watches and not over.is_set():
        more = False
        for queue, watch in watches.items():
            if group.queues[queue].absent:
                continue
            try:
                more = await client.run(watch.look()) or more
            except Exception as error:  # noqa: BLE001 - a later look hands the deaths over
                says = "calling the on_dead hooks of queue %s failed, trying again: %s"
                log.error(says, queue, error)  # noqa: TRY400 - the traceback would say nothing more
        if not more:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_EVERY_S):
                    await group.death.wait()
            # Cleared before the pause: the next checks may miss a death that is noticed from here on.
            group.death.clear()
            await asyncio.sleep(NEXT_MS_S)
