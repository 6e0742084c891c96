"""The part of an app for schedules: code declares schedules, and operators change them in a running system.

    app.schedule("nightly", report.job("yesterday"), cron="0 2 * * *", tz="Europe/Berlin")

A schedule belongs to the queue of its job. Workers compute the schedule's instants. Redis ensures that each instant
enqueues a job only once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict, TypeVar, Unpack

from rq_core.app.queue_producer import QueueProducer
from rq_core.app.task import PreparedTask
from rq_core.errors import InvalidOption, QueueFull, UsageError
from rq_core.model.keys import check_name

if TYPE_CHECKING:
    from rq_core.model.job import NewJob
    from rq_core.model.lib.durations import Duration
    from rq_core.model.recurrence import CatchUp, Overlap
    from rq_core.protocol.calls.schedules import Declaration, ScheduleChange, Told
    from rq_core.protocol.engine.plan import Plan
    from rq_core.protocol.operations import Operations

AnyTask = TypeVar("AnyTask", bound="PreparedTask[..., Any]")


class ScheduleOptions(TypedDict, total=False):
    """The options of a schedule. Exactly one of ``cron`` and ``every`` is required.

    - ``cron`` has five fields (minute hour day month weekday), or is @hourly, @daily, @weekly, @monthly or @yearly.
    - ``tz`` is the time zone of ``cron``; by default UTC.
    - ``every`` is an interval, in seconds or a timedelta, of at least 1 s.
    - ``spread`` delays all runs of a schedule by a constant time, which is less than ``spread`` (seconds, or a
      timedelta). The time is computed from the schedule's name. So schedules with equal instants do not run at once.
    - ``overlap`` says what happens at an instant while the job of an earlier instant is alive. "skip" (the default)
      enqueues no job. "allow" enqueues another job. With "queue", one job runs and one job waits. With "replace", the
      new job replaces an earlier job that waits, and an earlier job that runs is asked to stop.
    - ``catch_up`` says what happens if instants have passed while no worker ran. "latest" (the default) enqueues one
      job for the latest of these instants. "skip" does the same only if the latest instant is at most 60 s late.
    - ``grace``, in seconds or a timedelta, is the maximum time after an instant at which the instant's job may still be
      enqueued. It holds for "latest" and for "skip".
    """

    cron: str | None
    tz: str | None
    every: Duration | None
    spread: Duration | None
    overlap: Overlap | None
    catch_up: CatchUp | None
    grace: Duration | None


class SchedulesStored(NamedTuple):
    """The names of stored schedules, by outcome."""

    changed: tuple[str, ...] = ()
    """Schedules that are new, or whose rule or job has changed."""
    same: tuple[str, ...] = ()
    """Schedules that were already stored in the same form."""
    conflicts: tuple[str, ...] = ()
    """Schedules that the queue refused to change."""


class ScheduleProducer(QueueProducer):
    """A producer with the methods for schedules. Threads may share a producer."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._scheduled: dict[str, dict[str, Declaration]] = {}
        """The schedules that code declares, by queue, then by name."""

    def schedule(self, name: str, job: NewJob, /, **options: Unpack[ScheduleOptions]) -> None:
        """Declare a schedule that enqueues ``job`` again and again. Make ``job`` with task.job(…) or app.job(…).

        This method sends nothing to Redis. Workers store the schedules of their code when they start, and every hour.
        Code never replaces a schedule that an operator set in the running system. A schedule that code declared stops
        three hours after a worker has declared it for the last time. See ScheduleOptions for the options. Raises
        InvalidOption.
        """
        made = declaration_of(name, job, options)
        known = self._scheduled.setdefault(job.queue, {})
        if name in known:
            must = f"is declared twice in queue {job.queue!r}: choose another name"
            raise InvalidOption.of("name", name, must)
        known[name] = made

    def scheduled(
        self, name: str, /, **options: Unpack[ScheduleOptions]
    ) -> Callable[[AnyTask], AnyTask]:
        """Declare a schedule of the decorated task: write ``@app.scheduled("nightly", cron="0 2 * * *")`` above
        ``@app.task``.

        All arguments of the task must have defaults. Raises InvalidOption, or UsageError if an argument has no default.
        """

        def decorate(task: AnyTask, /) -> AnyTask:
            given: object = task
            if not isinstance(given, PreparedTask):
                called = getattr(given, "__name__", repr(given))
                raise UsageError(
                    f"{called} is not a task yet, so it cannot have a schedule: write @app.scheduled(…) above @app.task"
                )
            needed = [n for n in task.arguments.names if n not in task.arguments.defaults]
            if needed:
                lacks = f"its {', '.join(needed)} has no default"
                use = f"use app.schedule({name!r}, {task.name}.job(…), …)"
                raise UsageError(f"{task.name} cannot have @app.scheduled, since {lacks}: {use}")
            self.schedule(name, task.job(), **options)
            return task

        return decorate

    @property
    def schedules(self) -> Mapping[str, tuple[str, ...]]:
        """The names of the schedules that the code declares, by queue."""
        return {queue: tuple(names) for queue, names in self._scheduled.items()}

    def spec_max_in(self, queue: str) -> int:
        """Return the maximum size, in bytes, of a job's JSON that the audit log keeps in this queue."""
        return self._spec_max_of.get(queue, self._spec_max)

    @property
    def queues(self) -> list[str]:
        """The queues that the code declares: by a task, by ``queue``, or by a schedule."""
        return list(dict.fromkeys([*super().queues, *self._scheduled]))

    def declaration(self, calls: Operations, *queues: str) -> Plan[list[str]]:
        """Return a plan, a series of calls to Redis, that writes the declarations of ``queues`` to a server: settings,
        limits, tasks' policies (options and caps), and schedules.

        The plan returns a sentence for each declaration that the server refused.
        """
        refused = yield from super().declaration(calls, *queues)
        return refused + (yield from self.declare_schedules(calls, *queues))

    def declare_schedules(self, calls: Operations, *queues: str) -> Plan[list[str]]:
        """Return a plan, a series of calls to Redis, that writes the schedules of ``queues`` to a server.

        The plan returns a sentence for each schedule that the server refused.
        """
        refused: list[str] = []
        for queue in queues:
            if made := self._scheduled.get(queue):
                refused += yield from self._declare(calls, queue, made.values())
        return refused

    def _declare(
        self, calls: Operations, queue: str, made: Iterable[Declaration]
    ) -> Plan[list[str]]:
        from rq_core.protocol.calls.caps import DECLARED_WHY

        put = calls.schedules.put
        try:
            changes = yield from put(queue, made, source="code", why=DECLARED_WHY)
        except QueueFull as error:
            # A worker must come up on a full server, too: it runs what is there.
            return [f"the schedules of queue {queue} were not stored: {error}"]
        return [
            f"queue {queue} keeps schedule {name} as it is: an operator set or removed it, or newer code or another"
            f" program declares it otherwise; `rq-core schedules {queue}` shows it, and `rq-core schedule release`,"
            f" `resume` or `set` changes it"
            for name, change in changes.items()
            if change.outcome == "kept"
        ]

    # While everything runs.

    def schedule_many(
        self,
        schedules: Iterable[tuple[str, NewJob, ScheduleOptions]],
        *,
        reason: str = "",
        by: str | None = None,
    ) -> SchedulesStored:
        """Store schedules now, for example one for each tenant. Each item is a tuple (name, job, options).

        The schedules hold until they are changed or removed. Declarations in code do not affect them. A second call
        with the same schedules changes nothing. Raises InvalidOption, ServerUnavailable, OutcomeUnknown, QueueFull.
        """
        client = self.client
        return client.run(_store(client.calls, schedules, reason, by))

    async def schedule_many_async(
        self,
        schedules: Iterable[tuple[str, NewJob, ScheduleOptions]],
        *,
        reason: str = "",
        by: str | None = None,
    ) -> SchedulesStored:
        """Store schedules now, without blocking the event loop. See schedule_many."""
        client = self.async_client()
        return await client.run(_store(client.calls, schedules, reason, by))

    def pause_schedule(
        self, queue: str, name: str, *, reason: str = "", by: str | None = None
    ) -> ScheduleChange:
        """Stop a schedule from enqueueing jobs until it is resumed. The instants that pass in the meantime get no
        jobs."""
        client = self.client
        return client.run(client.calls.schedules.change(queue, name, "pause", by=by, why=reason))

    async def pause_schedule_async(
        self, queue: str, name: str, *, reason: str = "", by: str | None = None
    ) -> ScheduleChange:
        """Pause a schedule without blocking the event loop. See pause_schedule."""
        client = self.async_client()
        plan = client.calls.schedules.change(queue, name, "pause", by=by, why=reason)
        return await client.run(plan)

    def resume_schedule(
        self, queue: str, name: str, *, reason: str = "", by: str | None = None
    ) -> ScheduleChange:
        """Let a schedule that was paused or removed continue from its next instant."""
        client = self.client
        return client.run(client.calls.schedules.change(queue, name, "resume", by=by, why=reason))

    async def resume_schedule_async(
        self, queue: str, name: str, *, reason: str = "", by: str | None = None
    ) -> ScheduleChange:
        """Let a paused or removed schedule continue, without blocking the event loop. See resume_schedule."""
        client = self.async_client()
        plan = client.calls.schedules.change(queue, name, "resume", by=by, why=reason)
        return await client.run(plan)

    def remove_schedule(
        self, queue: str, name: str, *, reason: str = "", by: str | None = None
    ) -> ScheduleChange:
        """Remove a schedule. Only resume_schedule restores it, even if a worker's code still declares it."""
        client = self.client
        return client.run(client.calls.schedules.change(queue, name, "remove", by=by, why=reason))

    async def remove_schedule_async(
        self, queue: str, name: str, *, reason: str = "", by: str | None = None
    ) -> ScheduleChange:
        """Remove a schedule without blocking the event loop. See remove_schedule."""
        client = self.async_client()
        plan = client.calls.schedules.change(queue, name, "remove", by=by, why=reason)
        return await client.run(plan)

    def release_schedule(
        self, queue: str, name: str, *, reason: str = "", by: str | None = None
    ) -> ScheduleChange:
        """Return control of a schedule to code, after an operator has set the schedule in the running system.

        The present rule holds until a worker declares the rule of its code. Workers do so when they start, and every
        hour. The outcome is ``undeclared`` if no code declares the schedule.
        """
        client = self.client
        return client.run(client.calls.schedules.change(queue, name, "release", by=by, why=reason))

    async def release_schedule_async(
        self, queue: str, name: str, *, reason: str = "", by: str | None = None
    ) -> ScheduleChange:
        """Return control of a schedule to code, without blocking the event loop. See release_schedule."""
        client = self.async_client()
        plan = client.calls.schedules.change(queue, name, "release", by=by, why=reason)
        return await client.run(plan)

    def run_schedule(
        self, queue: str, name: str, *, reason: str = "", by: str | None = None
    ) -> Told:
        """Enqueue a schedule's job once now. The schedule's instants do not change. The schedule's overlap rule
        applies."""
        client = self.client
        return client.run(
            client.calls.schedules.run(
                queue, name, by=by, why=reason, spec_max=self.spec_max_in(queue)
            )
        )

    async def run_schedule_async(
        self, queue: str, name: str, *, reason: str = "", by: str | None = None
    ) -> Told:
        """Enqueue a schedule's job once now, without blocking the event loop. See run_schedule."""
        client = self.async_client()
        return await client.run(
            client.calls.schedules.run(
                queue, name, by=by, why=reason, spec_max=self.spec_max_in(queue)
            )
        )


def declaration_of(name: str, job: NewJob, options: ScheduleOptions) -> Declaration:
    """Convert a schedule to the form that is sent to Redis. Raises InvalidOption for an invalid option or job."""
    from rq_core.model.job import NewJob as Job
    from rq_core.model.recurrence import recurrence
    from rq_core.protocol.calls.schedules import Declaration

    given: object = job
    if not isinstance(given, Job):
        must = "must be a job, as task.job(…) or app.job(…) makes it"
        raise InvalidOption.of("job", type(given), must)
    unknown = options.keys() - ScheduleOptions.__annotations__.keys()
    if unknown:
        raise TypeError(f"schedule() got an unexpected keyword argument {min(unknown)!r}")
    said: dict[str, Any] = {key: value for key, value in options.items() if value is not None}
    if job.name and "overlap" in said and said["overlap"] != "allow":
        must = (
            f"does not go with {job.profile.task}, which is unique: its own rule says what overlaps"
        )
        raise InvalidOption.of("overlap", said["overlap"], must)
    # A unique task keeps its own rule.
    said.setdefault("overlap", "allow" if job.name else "skip")
    check_name("queue", job.queue)
    return Declaration.of(job, recurrence(name, **said))


def _store(
    calls: Operations,
    schedules: Iterable[tuple[str, NewJob, ScheduleOptions]],
    reason: str,
    by: str | None,
) -> Plan[SchedulesStored]:
    found: dict[str, list[str]] = {"changed": [], "same": [], "other": []}

    def note(changes: dict[str, ScheduleChange]) -> None:
        for name, change in changes.items():
            found[change.outcome if change.outcome in found else "other"].append(name)

    def declarations() -> Iterator[tuple[str, Declaration]]:
        seen: dict[str, set[str]] = {}
        for name, job, options in schedules:
            made = declaration_of(name, job, options)
            names = seen.setdefault(job.queue, set())
            if name in names:
                must = f"is there twice for queue {job.queue!r}: choose another name"
                raise InvalidOption.of("name", name, must)
            names.add(name)
            yield job.queue, made

    yield from calls.schedules.put_many(declarations(), note, by=by, why=reason)
    return SchedulesStored(*(tuple(names) for names in found.values()))
