"""Handles schedules that are due: computes for which time their jobs must be enqueued, and when they run next.

The answer to a claim says that schedules of its queue are due. The worker then gets some of these schedules from Redis.
For each of them, it computes the instant to run and the next instant, and sends both instants to Redis. Redis compares
them with its own data, enqueues the schedule's job, and moves the schedule to its next instant. If a worker sends
nothing for a schedule, another worker gets the schedule some seconds later. So the workers need no leader.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

from rq_core.connections.async_client import AsyncClient
from rq_core.errors import InvalidOption, RqCoreError
from rq_core.worker.lifetime import end_tasks

if TYPE_CHECKING:
    from rq_core.app.app import App
    from rq_core.protocol.calls.schedules import Instant, Ticked, Told

log = logging.getLogger(__package__)

DECLARE_S: Final = 3600.0
"""Seconds between two declarations of the code's schedules by a worker. A schedule that no worker declares for three
hours stops."""
_EXPECTED: Final = frozenset({"fired", "skipped", "missed", "already"})
"""Outcomes of due schedules that the worker does not log, because the events in the audit log say enough."""


class Ticker:
    """Handles the due schedules of a worker's queues, until the worker stops."""

    def __init__(self, app: App, client: AsyncClient, worker: str) -> None:
        self._app = app
        self._client = client
        self._worker = worker
        self._tasks: dict[str, asyncio.Task[None]] = {}
        """The asyncio tasks that serve schedules, by queue."""
        self._thread: ThreadPoolExecutor | None = None
        """The thread that computes instants. It is made for the first schedule that is due, since most workers have no
        due schedule."""

    @property
    def busy(self) -> bool:
        """Return whether the worker is handling due schedules now."""
        return bool(self._tasks)

    def note(self, queue: str) -> None:
        """Start to handle the due schedules of a queue, unless the worker already does."""
        if queue not in self._tasks:
            self._tasks[queue] = task = asyncio.create_task(self._serve(queue))
            task.add_done_callback(lambda _: self._tasks.pop(queue, None))

    async def close(self) -> None:
        """Stop, and leave the due schedules to other workers."""
        await end_tasks(*self._tasks.values())
        if self._thread is not None:
            self._thread.shutdown()

    async def _computed(self, due: Mapping[str, str], now_ms: int) -> list[Instant]:
        """Run ``instants_of`` in a thread, and return its result."""
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="rq_core_ticker")
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, instants_of, due, now_ms)

    async def _serve(self, queue: str) -> None:
        from rq_core.protocol.calls.schedules import tick

        spec_max = self._app.spec_max_in(queue)
        instants: list[Instant] = []
        try:
            while True:
                call = tick(queue, self._worker, instants, spec_max=spec_max)
                (answer,) = await self._client.carry_out([call])
                if isinstance(answer, RqCoreError):
                    log.warning(
                        "schedules of queue %s wait, and are tried again in some seconds: %s",
                        queue,
                        answer,
                    )
                    return
                self._report(queue, answer.told)
                if not answer.due:
                    return
                await self._declare_if_late(queue, answer)
                # A schedule that was away for long has many instants to count.
                instants = await self._computed(answer.due, answer.now_ms)
        except RqCoreError as error:
            log.warning("schedules of queue %s were not served: %s", queue, error)
        except Exception:
            log.exception("schedules of queue %s were not served", queue)

    async def _declare_if_late(self, queue: str, answer: Ticked) -> None:
        """Declare the code's schedules if one of them is due and was last declared over two hours ago.

        This happens if the worker was suspended for hours, or if Redis' clock was set forward. Without a new
        declaration, the schedule stops.
        """
        own = self._app.schedules.get(queue, ())
        late_ms = answer.now_ms - round(2 * DECLARE_S * 1000)
        if any(name in own and seen_ms_in(entry) < late_ms for name, entry in answer.due.items()):
            await self._client.run(self._app.declare_schedules(self._client.calls, queue))

    def _report(self, queue: str, told: Mapping[str, Told]) -> None:
        """Log the outcomes of due schedules that an operator should see."""
        for name, each in told.items():
            if each.outcome == "undeclared":
                log.error(
                    "schedule %s of queue %s stops: no worker's code has declared it for three hours;"
                    " `rq-core schedule resume %s %s` keeps it all the same",
                    *(name, queue, queue, name),
                )
            elif each.outcome not in _EXPECTED:
                holder = f" ({each.holder})" if each.holder else ""
                log.warning("schedule %s of queue %s: %s%s", name, queue, each.outcome, holder)


def seen_ms_in(entry: str) -> int:
    """Return the time (Unix ms) at which code last declared a schedule, from the schedule's stored text; 0 if the text
    is damaged.
    """
    from rq_core.model.schedule import Schedule

    try:
        return Schedule.parse(entry).seen_ms
    except ValueError:
        return 0


def instants_of(due: Mapping[str, str], now_ms: int) -> list[Instant]:
    """Return what to send to Redis for each due schedule: the instant to run, and the next instant. ``due``: name → the
    schedule's stored text.

    A damaged schedule is logged and left out. If this process cannot compute a schedule's instants, ``next_ms`` of the
    schedule's Instant is 0.
    """
    from rq_core.model.recurrence import from_json
    from rq_core.model.schedule import Schedule
    from rq_core.protocol.calls.schedules import Instant

    found = []
    for name, entry in due.items():
        try:
            schedule = Schedule.parse(entry)
        except ValueError as error:
            # It must not hold up the others; `rq-core schedules` shows it.
            log.error("schedule %s is damaged: %s", name, error)  # noqa: TRY400
            continue
        try:
            passed = from_json(name, schedule.rule).judge(schedule.next_ms, now_ms)
        except (InvalidOption, ValueError, OverflowError) as error:
            # It is damaged, newer code wrote it, or this system lacks its time zone: another worker may be able to.
            log.error("schedule %s cannot be computed here: %s", name, error)  # noqa: TRY400
            found.append(Instant(name, schedule.version, schedule.next_ms, 0, 0, 0))
        else:
            found.append(Instant.of(name, schedule, passed))
    return found
