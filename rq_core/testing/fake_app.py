"""Connects an app to a fake server, and runs its jobs there in the process of the test."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from rq_core.app.app import App
from rq_core.app.clients import in_event_loop
from rq_core.app.handlers.context import JobContext, running
from rq_core.connections.client import Client
from rq_core.errors import RqCoreError, UsageError
from rq_core.model.headers import NO_HEADERS, read_headers
from rq_core.model.job import Claim, Spec, read_spec, spec_of
from rq_core.model.keys import queue_keys
from rq_core.model.lib.text import counted
from rq_core.model.schedule import TICK_MARK
from rq_core.model.state_line import JobState, lines_of_jobs, read_state_line
from rq_core.model.table.machine import Priority, State
from rq_core.model.table.reasons import Reason
from rq_core.protocol.calls import claims
from rq_core.protocol.calls.schedules import tick
from rq_core.protocol.engine.plan import Call, Plan, pairs_of
from rq_core.protocol.reads.steps import time_ms
from rq_core.testing.fake_server import FakeConnections
from rq_core.worker.batch_places import batch_sizes
from rq_core.worker.child_ends import WHY, calls_for, orphans_of, parents_of
from rq_core.worker.dead_hooks import DeathWatch, has_hooks
from rq_core.worker.execution.batches import BatchExecutor
from rq_core.worker.execution.running import Running
from rq_core.worker.execution.saver import Saver
from rq_core.worker.execution.shows import Shows
from rq_core.worker.settlement import Settlement, calls_of, spends_of
from rq_core.worker.ticker import instants_of

T = TypeVar("T")

_FAR_MS: Final = 10**13
"""A time (Unix ms) later than any instant."""
DRAIN_MAX: Final = 10_000
"""Maximum number of runs in one drain. Without this limit, a drain would never end if each run enqueued another job."""


@dataclass(frozen=True)
class Ran:
    """One run of a job in ``Fake.drain``."""

    id: str
    queue: str
    task: str
    claim: int
    """Number of the claim: 1 for the job's first run."""
    outcome: str
    """The job's state after the run: succeeded, scheduled or ready (in both states, the job will run again), parked,
    dead, or cancelled. A durable job that parked is ready if its wait was already over."""
    error: str | None
    """The exception of the handler, as ``ValueError: no such user``; None without an exception."""


@dataclass(frozen=True)
class Enqueued:
    """A job that waits on the fake server."""

    id: str
    queue: str
    task: str
    arguments: dict[str, Any]
    """The arguments in the types of JSON: a datetime is a string."""
    priority: str
    """The priority: critical, high, normal or low."""
    delay: float | None
    """Seconds from the enqueue, or from the last failure, until the job is due; None if it is ready."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """The headers that ``with_options(headers=…)`` set."""


class Fake:
    """An app on a fake server. The context manager ``fake`` yields this object."""

    def __init__(self, app: App, connections: FakeConnections) -> None:
        self.app = app
        self.connections = connections

    def drain(self, *queues: str, runs_max: int = DRAIN_MAX) -> list[Ran]:
        """Run the jobs of these queues, or of all queues, one after another, until no job is left. Return the runs.

        The method does not wait for delays and retries: it moves the fake server's clock forward to the next due time.
        Parked jobs stay parked: ``advance`` ends their sleeps, and ``app.signal`` sends them signals. An exception of a
        handler is not raised; it is in the returned list. Each ``on_dead`` hook runs as a job of its own, which is also
        in the list. Raises UsageError in an event loop, where drain_async must be used. Raises RqCoreError after
        ``runs_max`` runs.
        """
        if in_event_loop():
            raise UsageError("drain cannot run jobs in an event loop: await drain_async(…) there")
        return asyncio.run(self._drain_and_close(queues, runs_max))

    async def _drain_and_close(self, queues: Sequence[str], runs_max: int) -> list[Ran]:
        try:
            return await self.drain_async(*queues, runs_max=runs_max)
        finally:
            await self.app.aclose()

    async def drain_async(self, *queues: str, runs_max: int = DRAIN_MAX) -> list[Ran]:
        """Run the waiting jobs and return the runs, as :meth:`drain` does, for a test in an event loop."""
        inline = _Inline(self.app)
        client = self.app.client
        deaths: dict[str, _DeathWatch] = {}
        ran: list[Ran] = []
        try:
            while True:
                found = queues or tuple(client.run(client.calls.reads.queues()))
                self._note_beginning(deaths, found)
                claims, due = self._claim(found)
                ran += await inline.run(claims)
                if len(ran) >= runs_max:
                    raise RqCoreError(f"{counted(runs_max, 'run')}, and there are still jobs left")
                if claims or self._tell_of(deaths):
                    continue
                if not due:
                    return ran
                self._put_forward(min(due.values()))
        finally:
            await inline.close()

    def _note_beginning(self, deaths: dict[str, _DeathWatch], queues: Sequence[str]) -> None:
        """Begin to watch these queues for jobs that die, if a task of the app has an ``on_dead`` hook."""
        for queue in queues if has_hooks(self.app.tasks) else ():
            if queue not in deaths:
                client = self.app.client
                deaths[queue] = _DeathWatch(client.calls, queue, self.app.tasks)
                client.run(deaths[queue].begin())

    def _tell_of(self, deaths: Mapping[str, _DeathWatch]) -> bool:
        """Enqueue the hooks' jobs for the jobs that died. Return whether a job was enqueued."""
        before = sum(watch.told for watch in deaths.values())
        if deaths:
            # A watch leaves out the current millisecond.
            self._put_forward(1)
        for watch in deaths.values():
            while self.app.client.run(watch.look()):
                pass
        return sum(watch.told for watch in deaths.values()) > before

    def enqueued(self, *queues: str) -> list[Enqueued]:
        """Return the waiting jobs of these queues, or of all queues. Runs nothing.

        Jobs of one queue are in the order of their enqueues.
        """
        client, found = self.app.client, []
        for queue in queues or tuple(client.run(client.calls.reads.queues())):
            keys = queue_keys(queue, self.app.prefix)
            read = client.calls.delivery.ask(
                [["HGETALL", keys("jobs")], ["HGETALL", keys("state")]]
            )
            values, lines = map(pairs_of, client.run(read))
            standing = lines_of_jobs(lines, values)
            # The fake server keeps the fields of a hash in the order in which they were added.
            for job_id, value in values.items():
                job = read_state_line(queue, job_id, standing[job_id])
                if job.state in (State.READY, State.SCHEDULED):
                    found.append(_enqueued(job, read_spec(spec_of(value))))
        return found

    def advance(self, seconds: float) -> None:
        """Move the fake server's clock forward, for all existing queues. Schedules enqueue their jobs, each at its
        instant."""
        left = round(seconds * 1000)
        while left > 0:
            step = min(left, self._until_tick())
            self._put_forward(step)
            left -= step
            # Workers declare the schedules of their code hourly; one that no code declares any more stops.
            self.app.client.run(
                self.app.declare_schedules(self.app.client.calls, *self.app.schedules)
            )
            for queue in self.app.client.run(self.app.client.calls.reads.queues()):
                self._tick(queue)

    def _until_tick(self) -> int:
        """Return the milliseconds until the first schedule is due; at least 1."""
        client, found = self.app.client, [_FAR_MS]
        for queue in client.run(client.calls.reads.queues()):
            keys = queue_keys(queue, self.app.prefix)
            asked: list[list[Any]] = [["ZRANGE", keys("ticks"), 0, 0, "WITHSCORES"], ["TIME"]]
            asked.append(["HGET", keys("meta"), "test_clock_ms"])
            first, time, added = client.run(client.calls.delivery.ask(asked))
            if first:
                ((_, due),) = pairs_of(first).items()
                found.append(round(float(due)) - time_ms(time) - int(added or 0))
        return max(1, min(found))

    def _tick(self, queue: str) -> None:
        """Enqueue the jobs of a queue's due schedules, as a worker does."""
        answer = self.app.client.run(tick(queue, _WORKER))
        while answer.due:
            told = instants_of(answer.due, answer.now_ms)
            answer = self.app.client.run(tick(queue, _WORKER, told))

    def _claim(self, queues: Sequence[str]) -> tuple[list[Claim], dict[str, int]]:
        """Claim one job of the first queue with a ready job. In the queue of a batch task, claim up to a whole batch.

        Return the claims, and a mapping from queues without a ready job to the milliseconds until their next due job.
        """
        client, sizes = self.app.client, batch_sizes(self.app)
        due: dict[str, int] = {}
        for queue in queues:
            claimed = client.run(claims.claim(queue, _WORKER, sizes.get(queue, 1)))
            if claimed.jobs:
                return list(claimed.jobs), due
            at_ms = claimed.next_due_ms
            if at_ms is not None:
                # Schedules go on for ever, and parked jobs wait for the test: the clock is not put forward to them.
                at_ms = self._due_besides(queue, at_ms)
            if at_ms is not None:
                due[queue] = max(at_ms - claimed.now_ms, 1)
        return [], due

    def _due_besides(self, queue: str, at_ms: int) -> int | None:
        """Return the earliest due time (Unix ms) of the queue's delayed jobs that are not parked. Return None if there
        is no such job.

        ``at_ms`` is the earliest due time in the queue. It may belong to a schedule or to a parked job.
        """
        keys = queue_keys(queue, self.app.prefix)
        read = self.app.client.calls.delivery.ask(
            [
                ["ZRANGE", keys("scheduled"), 0, -1, "WITHSCORES"],
                ["ZRANGE", keys("parked"), 0, -1],
            ]
        )
        first, parked = self.app.client.run(read)
        found = {name: round(float(due)) for name, due in pairs_of(first).items()}
        left_out = {found.pop(name, None) for name in (TICK_MARK, *(f"job|{i}" for i in parked))}
        return min(found.values(), default=None) if at_ms in left_out else at_ms

    def _put_forward(self, ms: int) -> None:
        client = self.app.client
        metas = [
            queue_keys(queue, self.app.prefix)("meta")
            for queue in client.run(client.calls.reads.queues())
        ]
        commands: list[list[Any]] = [["HINCRBY", meta, "test_clock_ms", ms] for meta in metas]
        client.run(client.calls.delivery.ask(commands))


def _enqueued(job: JobState, spec: Spec) -> Enqueued:
    due = job.fields.get("due")
    return Enqueued(
        id=job.id,
        queue=job.queue,
        task=spec.task,
        arguments=json.loads(spec.args_json),
        priority=job.fields.get("priority", str(Priority.NORMAL)),
        delay=(int(due) - int(job.fields["since"])) / 1000 if due else None,
        headers=read_headers(spec.headers_json) if spec.headers_json else NO_HEADERS,
    )


class _DeathWatch(DeathWatch):
    """Finds the jobs that have died, by the fake server's clock."""

    def _now(self) -> Plan[tuple[int, str | None]]:
        now, seen = yield from super()._now()
        (added,) = yield from self._calls.delivery.ask(
            [["HGET", self._keys("meta"), "test_clock_ms"]]
        )
        return now + int(added or 0), seen


_WORKER: Final = "w-test"


class _Saving:
    """Wraps an app's client in the asynchronous methods that the worker's Saver calls."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.calls = client.calls

    async def run(self, plan: Plan[T]) -> T:
        return self._client.run(plan)

    async def carry_out(self, calls: Sequence[Call[Any]]) -> list[Any]:
        return self._client.run(self._client.calls.delivery.carry_out(calls))


class _Inline:
    """Runs claimed jobs with the worker's own executor, in this process, and then settles their claims."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._settlements: dict[tuple[str, str], Settlement] = {}
        self._news = asyncio.Event()
        saving = _Saving(app.client)
        self._shows = Shows(saving, _WORKER)
        self._executor = BatchExecutor(
            app.tasks,
            worker=_WORKER,
            threads=1,
            timeout=None,
            on_settlement=self._settled,
            on_free=self._freed,
            surroundings=app.surroundings,
            redact=app.redactor,
            isolate=False,
            saver=Saver(saving, _WORKER, lambda _queue: True),
            shows=self._shows,
        )

    def _settled(self, settlement: Settlement) -> None:
        self._settlements[settlement.claim.queue, settlement.claim.id] = settlement
        self._news.set()

    def _freed(self, _running: Running) -> None:
        self._news.set()

    async def run(self, claims: Sequence[Claim]) -> list[Ran]:
        """Run the jobs of these claims, and settle the claims. Return the runs.

        A job that must move to another lane does not run, and is not in the list. It will be claimed again.
        """
        self._settlements.clear()
        self._shows.attach()
        for claim in claims:
            self._executor.start(claim)
        self._executor.close_all()
        while len(self._settlements) < len(claims) or self._executor.running:
            self._news.clear()
            await self._news.wait()
        if self._shows.is_busy:
            await self._shows.before(claims)
        client = self._app.client
        outcomes: dict[str, str] = {}
        settlements = [self._settlements[claim.queue, claim.id] for claim in claims]
        for spend in spends_of(_WORKER, settlements):
            client.run(spend)
        for call, _ in calls_of(_WORKER, settlements):
            outcomes |= client.run(call)
        for told in calls_for(parents_of(settlements, outcomes), _WORKER):
            client.run(told)
        for queue, ids in orphans_of(settlements, outcomes).items():
            client.run(client.calls.families.cancel(queue, ids, by=_WORKER, why=WHY))
        return [
            Ran(
                id=claim.id,
                queue=claim.queue,
                task=read_spec(claim.spec).task,
                claim=claim.number,
                outcome=outcomes.get(claim.id, "succeeded"),
                error=_words(settlement.error),
            )
            for claim, settlement in zip(claims, settlements, strict=True)
            if settlement.reason != Reason.LANE_CHANGED
        ]

    async def close(self) -> None:
        await self._executor.leave()
        self._executor.close()


def _words(error_json: str) -> str | None:
    error = json.loads(error_json)
    return f"{error['type']}: {error['message']}" if error else None


@contextmanager
def fake(app: App) -> Iterator[Fake]:
    """Connect the app to a new fake server within a block. Raises ImportError without fakeredis[lua].

    The caps that the app declared before the block hold on the fake server. In the block the app has no audit database,
    so no mirror copies events.
    """
    before, audit_url = app.connections, app.audit_url
    connections = FakeConnections(prefix=app.prefix)
    app.connections, app.audit_url = connections, None
    try:
        client = app.client
        for queue in app.declared.queues:
            client.run(client.calls.caps.declare(queue, app.declared.limits(queue), {}))
        client.run(app.declare_schedules(client.calls, *app.schedules))
        yield Fake(app, connections)
    finally:
        connections.close()
        app.connections, app.audit_url = before, audit_url


@contextmanager
def job_running(
    *,
    id: str = "test",  # noqa: A002 - the name that it has everywhere else
    queue: str = "default",
    task: str = "test",
    claim: int = 1,
    failures: int = 0,
    losses: int = 0,
    headers: Mapping[str, str] = NO_HEADERS,
) -> Iterator[JobContext]:
    """Make ``current_job()`` return a job within a block, so that a test can call a task's function without a
    worker."""
    context = JobContext(
        id=id,
        queue=queue,
        task=task,
        claim=claim,
        failures=failures,
        losses=losses,
        fence="0-0",
        worker=_WORKER,
        headers=headers,
    )
    with running(context):
        yield context
