"""One worker: an asyncio loop that settles and claims in one round trip per turn (group commit).

Everything that finished since the last turn, and a claim for the free places, travel together. At low load a batch
is one job; under load batches grow by themselves. The worker claims no more than it can start at once.

Turns overlap with handlers. A claim asks for half of the places, and when its jobs come, the next turn is on its way
before they are begun: while Redis carries it out, they run. So the time that a job takes is the longer one of Python's
and Redis', not their sum.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rq_core import deaths, suitability
from rq_core.aio import AsyncClient
from rq_core.answers import Claimed
from rq_core.client import Client
from rq_core.durations import seconds_of
from rq_core.errors import (
    HandlerSignal,
    InvalidOption,
    JobCancelled,
    LeaseLost,
    RqCoreError,
    WorkerStopping,
)
from rq_core.executor import Executor, Running
from rq_core.ids import boot_id
from rq_core.job import Claim
from rq_core.keys import check_name, queue_keys
from rq_core.lease import LeaseKeeper
from rq_core.lease_table import LeaseTable
from rq_core.plans import Call, Patience
from rq_core.settlement import Settlement, calls_of
from rq_core.shares import Shares
from rq_core.suspects import SUSPECT, Suspects
from rq_core.watcher import FOREVER, TROUBLE_PAUSE, WatchedQueue, Watcher
from rq_core.wire import WORKER_SOCKET_TIMEOUT, open_async_wire, open_wire

if TYPE_CHECKING:
    from rq_core.app import App

log = logging.getLogger(__name__)

CLAIM_MAX: Final = 250
"""Most jobs in one claim, so that no claim keeps Redis from others for long; the next turn takes more."""
WEIGHT_MAX: Final = 1_000
LEND_AFTER: Final = 0.5
"""Seconds without an answer after which a line's claim no longer keeps its places from other lines."""
HALVES_MIN: Final = 16
"""Places from which on a claim asks for half of them. With fewer, Redis would pay more for twice as many calls than
the worker gains."""
OVERLAP_MAX: Final = 0.05
"""Seconds that the first steps of a batch of handlers may take for the next turn to overlap with the next batch. Where
handlers block the loop for longer, jobs claimed meanwhile would wait for it, with nobody to keep their leases."""
STOP_WAIT: Final = 1.0
"""Seconds that an async handler gets to let itself be cancelled when the worker stops."""
REPORT_WAIT: Final = 5.0
"""Seconds for the last report of a stopping worker; what is not told by then shows when its lease expires."""
MEASURE_EVERY: Final = 1.0
CANCEL_AGAIN: Final = 0.1
EXTENSION_GRACE: Final = 30.0
"""Seconds beyond a job's timeout for which its lease is still extended."""


@dataclass(frozen=True, kw_only=True)
class WorkerOptions:
    """How a worker works. Times are in seconds."""

    queues: tuple[str, ...] = ("default",)
    concurrency: int = 10
    """Most handlers at once."""
    weights: Mapping[str, int] = field(default_factory=dict)
    """How free places are divided between queues that have something to do: 3 gets three for each one of a queue with
    1, which is what queues have that are not named here."""
    burst: bool = False
    """Stop when nothing is running or due on any of the queues, and nothing that is ready may run now: what waits for
    a rate, or for a cap of 0, is left."""
    grace: float = 30.0
    """How long running jobs may go on after the worker was asked to stop."""
    timeout: float | None = None
    """For tasks that have none of their own."""
    max_jobs: int | None = None
    """Retire after so many claims: take no more, let what runs finish, and end."""
    max_memory: int | None = None
    """Retire when this process has more bytes than this resident."""

    def __post_init__(self) -> None:
        if not self.queues:
            raise InvalidOption(option="queues", value=self.queues, must="must name a queue")
        for queue in self.queues:
            check_name("queue", queue)
        if not 1 <= self.concurrency <= 5_000:
            raise InvalidOption(
                option="concurrency", value=self.concurrency, must="must be from 1 to 5000"
            )
        for queue, weight in self.weights.items():
            if queue not in self.queues or not 1 <= weight <= WEIGHT_MAX:
                must = f"must be from 1 to {WEIGHT_MAX}, of a queue that the worker works for"
                raise InvalidOption(option=f"weight of {queue}", value=weight, must=must)
        for option in ("max_jobs", "max_memory"):
            value = getattr(self, option)
            if value is not None and value < 1:
                raise InvalidOption(option=option, value=value, must="must be positive")
        seconds_of("grace", self.grace)
        if self.timeout is not None:
            seconds_of("timeout", self.timeout, minimum=0.001)


@dataclass(slots=True)
class _Line:
    """Queues whose calls travel together. On one server that is all of them; in a cluster each queue has a line of its
    own, so that a shard that is down, or a slot on its way, holds up nobody else."""

    queues: Mapping[str, WatchedQueue]
    watcher: Watcher
    finished: list[Settlement] = field(default_factory=list)
    """Settlements to be reported."""
    busy: bool = False
    """Whether a round trip is under way."""
    claiming: list[Call[Claimed]] = field(default_factory=list)
    """The claims of that."""
    death: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a job of these queues died here."""


@dataclass(slots=True)
class WorkerStats:
    """What a worker has done since it started."""

    claimed: int = 0
    completed: int = 0
    failed: int = 0
    rolled_back: int = 0
    refused: int = 0
    turns: int = 0
    started: float = field(default_factory=time.monotonic)


class Worker:
    """Claims and runs jobs of an app's tasks until it is asked to stop.

    ``await worker.run()`` returns when it has stopped; ``worker.stop()`` asks for it, a second call ends the grace.
    """

    def __init__(
        self,
        app: App,
        options: WorkerOptions | None = None,
        *,
        name: str | None = None,
        on_claim: Callable[[], None] = lambda: None,
        lease_table: LeaseTable | None = None,
    ) -> None:
        """``on_claim`` is called whenever Redis has answered a claim. ``lease_table`` is shared with a supervisor."""
        self.app = app
        self.options = options or WorkerOptions()
        self.name = check_name("worker", name or boot_id("w"))
        self.stats = WorkerStats()
        self._client = AsyncClient(
            app.redis_url,
            prefix=app.prefix,
            name=self.name,
            wire=open_async_wire(app.redis_url, answer_within=WORKER_SOCKET_TIMEOUT),
        )
        self._lease_client = Client(
            app.redis_url,
            prefix=app.prefix,
            name=f"{self.name}.leases",
            patience=Patience(unsent=1.0, unknown=1.0),
            wire=open_wire(app.redis_url, answer_within=WORKER_SOCKET_TIMEOUT),
        )
        self._queues = {name: WatchedQueue(name) for name in self.options.queues}
        self._executor = Executor(
            app.tasks,
            worker=self.name,
            threads=self.options.concurrency,
            timeout=self.options.timeout,
            on_settlement=self._settle,
            on_free=self._freed,
            redact=app.redactor,
        )
        self._leases = LeaseKeeper(
            self._lease_client,
            self.name,
            on_lost=lambda queue, job, fence: self._from_keeper(queue, job, fence, LeaseLost),
            on_cancelling=lambda queue, job, fence: self._from_keeper(
                queue, job, fence, JobCancelled
            ),
            table=lease_table,
        )
        together = [[n] for n in self._queues] if self._client.one_slot else [list(self._queues)]
        self._lines = [self._make_line(names) for names in together]
        self._line_of = {name: line for line in self._lines for name in line.queues}
        self._shares = Shares(self.options.weights)
        self._on_claim = on_claim
        self._supervised = lease_table is not None
        self._suspects = Suspects()
        self._arrived: list[Claim] = []
        """Claimed, and about to be begun."""
        self._steps_took = FOREVER
        """Seconds that the first steps of the last batch took."""
        self._measured = 0.0
        self._occupied = 0
        self._stops = 0
        self._grace_over: float | None = None
        """When the grace is over, on the monotonic clock; None: it has not begun."""
        self._grace_began = asyncio.Event()
        self._failure: RqCoreError | None = None
        """What ended it though nobody had asked for that."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._news = asyncio.Event()
        self._stepped = asyncio.Event()
        """Whether what arrived has been begun, and has had its first step."""
        self._stepped.set()
        self.retired = False
        """Whether it ends by itself, and another should take its place."""
        self._stopping = asyncio.Event()
        self._hurry = asyncio.Event()

    def _make_line(self, names: Sequence[str]) -> _Line:
        queues = {name: self._queues[name] for name in names}
        watcher = Watcher(
            self._client,
            queues,
            burst=self.options.burst,
            full=lambda: self._occupied >= self.options.concurrency,
            interval=lambda: self._leases.interval,
            on_look=self._news_came,
        )
        return _Line(queues, watcher)

    # Asked from outside.

    def stop(self) -> None:
        """Claim no more; let jobs finish for the grace time. A second call ends the grace now."""
        self._stops += 1
        if self._stops > 1:
            self._hurry.set()
        self._begin_grace()

    @property
    def asked(self) -> bool:
        """Whether somebody has asked it to stop."""
        return self._stops > 0

    def retire(self, why: str) -> None:
        """Claim no more and end when what runs has finished, however long that takes."""
        if not self._stopping.is_set():
            log.info("retiring: %s", why, extra={"worker": self.name})
            self.retired = True
            self._take_no_more()

    def _give_up(self, error: RqCoreError) -> None:
        """End as if asked to: such an error is mended by no waiting."""
        if self._failure is None:
            self._failure = error
            log.error("claims no more, and ends: %s", error, extra={"worker": self.name})
        self._begin_grace()

    def _begin_grace(self) -> None:
        if self._grace_over is None:
            self._grace_over = time.monotonic() + self.options.grace
            self._grace_began.set()
        self._take_no_more()

    def _take_no_more(self) -> None:
        self._stopping.set()
        self._news.set()
        for line in self._lines:
            line.watcher.stop()
            for claim in line.claiming:
                # Should it have to be sent again, it takes nothing; if it has been carried out, the answer is the same.
                claim.args["limit"] = 0

    async def run(self) -> bool:
        """Work until asked to stop, or with ``burst`` until nothing is left.

        Returns False if handlers' threads are still running: the process should then end at once. Raises RqCoreError if
        the server cannot be used: at the start, or later, when what ran has had its grace.
        """
        self._loop = asyncio.get_running_loop()
        if not await self._met():
            return True
        self._leases.start()
        watching = [asyncio.create_task(line.watcher.run()) for line in self._lines]
        work = [asyncio.create_task(self._work_on(line)) for line in self._lines]
        telling = [asyncio.create_task(self._tell_of_deaths(line)) for line in self._lines]
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait({*work, stopping}, return_when=asyncio.FIRST_COMPLETED)
            self._take_no_more()
            # A turn under way may bring claims; but one that waits for a server that is away must not hold us up.
            await self._let_end(self._grace_left(), *work)
        finally:
            self._take_no_more()
            await _end(*watching, *work, *telling, stopping)
            clean = await self._wind_up()
        for done in work:
            if not done.cancelled():
                done.result()
        if self._failure is not None:
            raise self._failure
        return clean

    async def _work_on(self, line: _Line) -> None:
        while not self._stopping.is_set():
            try:
                await self._turn(line)
                if self.options.burst and await self._nothing_left():
                    self._take_no_more()
                    return
            except RqCoreError as error:
                self._give_up(error)
            except Exception:
                # What nobody foresaw must not end the worker; the leases of what it held expire at worst.
                log.exception("a turn failed, trying again", extra={"worker": self.name})
                await asyncio.sleep(TROUBLE_PAUSE)

    def _grace_left(self) -> float:
        if self._grace_over is None:
            return self.options.grace
        return max(0.0, self._grace_over - time.monotonic())

    async def _let_end(self, seconds: float, *tasks: asyncio.Task[None]) -> None:
        """Wait for tasks: for ``seconds``, or until somebody is in a hurry."""
        hurry = asyncio.create_task(self._hurry.wait())
        ended = asyncio.gather(*map(asyncio.shield, tasks), return_exceptions=True)
        try:
            either: set[asyncio.Future[Any]] = {ended, hurry}
            await asyncio.wait(either, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            hurry.cancel()

    # Beginning and end.

    async def _met(self) -> bool:
        """Meet the queues. False: asked to stop before that was done, and ready to go.

        Somebody who ends a worker whose server is away wants it to end, not to hear that the server is away.
        """
        meeting = asyncio.create_task(self._meet())
        stopping = asyncio.create_task(self._stopping.wait())
        await asyncio.wait({meeting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        asked = self._stopping.is_set()
        await _end(stopping, *([meeting] if asked else []))
        if not asked and meeting.exception() is None:
            return True
        self._lease_client.close()
        await self._client.close()
        self._executor.close()
        if not asked:
            meeting.result()
        return False

    async def _meet(self) -> None:
        self.app.check()
        self._client.operations.get_ready("claim", "complete", "fail", "rollback", "extend")
        # Without a server at the start somebody has to hear of it; later, outages are waited out.
        self._client.operations.patience = Patience()
        if not self._supervised:
            suitability.warn(await self._client.run(suitability.check(self._client.operations)))
        for queue in self._queues.values():
            queue.epoch = (await self._client.handshake(queue.name)).epoch
        await self._declare(*self._queues)
        for queue in self._queues.values():
            met = await self._client.handshake(queue.name)
            queue.lease = met.lease_ms / 1000
        self._client.operations.patience = Patience(unsent=FOREVER, unknown=FOREVER)
        self._leases.interval = min(q.lease for q in self._queues.values()) / 3
        log.info(
            "worker started",
            extra={
                "worker": self.name,
                "queues": ",".join(self._queues),
                "concurrency": self.options.concurrency,
            },
        )

    async def _declare(self, *queues: str) -> None:
        """Tell the server what the code says of these queues."""
        declared = self.app.declaration(self._client.operations, *queues)
        for sentence in await self._client.run(declared):
            log.warning("%s", sentence, extra={"worker": self.name})

    async def _wind_up(self) -> bool:
        """Let jobs finish, give back the rest, report everything."""
        flushing = asyncio.create_task(self._flush_until_done())
        if self.retired:
            began = asyncio.create_task(self._grace_began.wait())
            await asyncio.wait({flushing, began}, return_when=asyncio.FIRST_COMPLETED)
            await _end(began)
        grace = self._grace_left()
        if (unsettled := self._executor.unsettled) and self._stops < 2:
            log.info(
                "stopping: %d jobs have %.3g s to finish",
                len(unsettled),
                grace,
                extra={"worker": self.name},
            )
        await self._let_end(grace, flushing)
        await _end(flushing)
        for running in tuple(self._executor.running.values()):
            self._executor.end(running, WorkerStopping())
        handlers = [r.handler for r in self._executor.running.values() if r.handler]
        if handlers:
            await asyncio.wait(handlers, timeout=STOP_WAIT)
        for running in self._executor.unsettled:
            # Threads, and async handlers that do not let themselves be cancelled.
            running.settled = True
            self._settle(Settlement(running.claim, "rollback", 0, "shutdown"))
        await asyncio.gather(*map(self._report_last, self._lines))
        for line in self._lines:
            line.watcher.close()
        self._leases.stop()
        self._lease_client.close()
        await self._client.close()
        clean = self._executor.close()
        log.info(
            "worker stopped",
            extra={
                "worker": self.name,
                "claimed": self.stats.claimed,
                "completed": self.stats.completed,
                "failed": self.stats.failed,
                "rolled_back": self.stats.rolled_back,
            },
        )
        return clean

    async def _report_last(self, line: _Line) -> None:
        try:
            async with asyncio.timeout(REPORT_WAIT):
                while line.finished:
                    await self._send(line, claims=[])
                # A token that the watcher took, and that will not be used, belongs to another worker.
                for queue in line.queues:
                    await self._client.return_token(queue)
        except (TimeoutError, RqCoreError) as error:
            why = str(error) or "no answer"
            if why == str(self._failure):
                why = "that has not changed"
            log.error(  # noqa: TRY400 - the traceback would say nothing more
                "could not report %d finished jobs: %s; their leases will expire",
                len(line.finished),
                why,
                extra={"worker": self.name},
            )

    async def _flush_until_done(self) -> None:
        await asyncio.gather(*map(self._flush, self._lines))

    async def _flush(self, line: _Line) -> None:
        """Report what finishes, until all that runs is reported."""
        while self._executor.busy or self._arrived or line.finished:
            self._news.clear()
            if not line.finished:
                # What comes may be of another line, or nothing to report: a job that falls due, a thread that is free.
                await self._news.wait()
                continue
            try:
                await self._send(line, claims=[])
            except RqCoreError as error:
                # Until the grace is over somebody else may mend it, such as a worker that may load scripts.
                self._give_up(error)
                await asyncio.sleep(TROUBLE_PAUSE)
            except Exception:
                # It would end the grace of all that still run.
                log.exception("a report failed, trying again", extra={"worker": self.name})
                await asyncio.sleep(TROUBLE_PAUSE)

    def _active(self) -> bool:
        """Whether something runs, or is to be reported or looked at."""
        if self._executor.busy or self._arrived or any(line.finished for line in self._lines):
            return True
        return any(queue.look or queue.asked for queue in self._queues.values())

    async def _nothing_left(self) -> bool:
        if self._active():
            return False
        left: dict[str, int] = {}
        for name in self._queues:
            counts = await self._client.counts(name)
            # A paused or stopped queue gives out nothing, however much is ready; nor does a full scope.
            ready = sum(counts.ready.values()) + counts.open_lanes
            if counts.running or (ready and not counts.paused and counts.cap != 0):
                return False
            if self._queues[name].due <= time.monotonic():
                return False
            if jobs := sum(counts.ready.values()) + counts.waiting:
                left[name] = jobs
        if self._active():
            return False
        if left:
            told = ", ".join(f"{jobs:,} in {name}" for name, jobs in left.items())
            log.warning(
                "jobs are left that may not run now: %s; `rq-core caps %s` says what they wait for",
                told,
                next(iter(left)),
                extra={"worker": self.name, "left": left},
            )
        return True

    # Turns.

    async def _turn(self, line: _Line) -> None:
        """Wait until there is something to do, then do it in one round trip."""
        if self._steps_took > OVERLAP_MAX:
            self._begin_arrived()
            await self._stepped.wait()
        while not self._stopping.is_set():
            claims = self._claims(line)
            if claims or line.finished:
                break
            self._news.clear()
            # There is nothing to send first. What cannot be begun, or ends at once, is news.
            self._begin_arrived()
            await self._news.wait()
        else:
            return
        if self._stepped.is_set() and self._executor.running:
            # Handlers that are about to finish get their chance to be part of this turn.
            await asyncio.sleep(0)
        await self._send(line, claims)

    def _claims(self, line: _Line) -> list[tuple[WatchedQueue, int]]:
        """How many jobs to claim from which queues now."""
        places = self.options.concurrency
        free = places - self._occupied
        if places >= HALVES_MIN:
            free = min(free, -(-places // 2))
        if self.options.max_jobs is not None:
            free = min(free, self.options.max_jobs - self.stats.claimed)
        mine = [queue for queue in line.queues.values() if queue.look]
        if not mine:
            return []
        if free <= 0:
            # A full worker does what is due for everybody all the same.
            now = time.monotonic()
            return [(queue, 0) for queue in mine if queue.overdue(now)]
        # What others could use now is left to them; who is waiting for an answer cannot use any.
        others = [o for o in self._lines if o is not line and not o.busy]
        rivals = [queue for other in others for queue in other.queues.values() if queue.look]
        shares = self._shares.divide(free, [queue.name for queue in (*mine, *rivals)])
        return [(queue, min(n, CLAIM_MAX)) for queue in mine if (n := shares[queue.name]) > 0]

    async def _send(self, line: _Line, claims: Sequence[tuple[WatchedQueue, int]]) -> None:
        """One round trip: report what finished, claim for ``claims``."""
        finished, line.finished = line.finished, []
        operations = self._client.operations
        settling = calls_of(operations, self.name, finished)
        calls: list[Call[Any]] = [call for call, _ in settling]
        for queue, limit in claims:
            queue.ask()
            self._shares.take(queue.name, limit)
            claim = operations.claim_call(queue.name, self.name, limit)
            line.claiming.append(claim)
            calls.append(claim)
        self.stats.turns += 1
        line.busy, release = True, self._reserve(sum(limit for _, limit in claims))
        try:
            results = await self._client.carry_out(calls)
        except BaseException:
            line.finished = finished + line.finished
            for queue, limit in claims:
                self._shares.refund(queue.name, limit)
                line.watcher.look_again(queue)
            raise
        finally:
            release()
            line.busy = False
            line.claiming.clear()
        trouble = False
        for (_, group), result in zip(settling, results, strict=False):
            trouble = self._settled(group, result) or trouble
        for (queue, limit), result in zip(claims, results[len(settling) :], strict=True):
            uncounted = True
            try:
                uncounted = await self._declare_anew(queue, result)
            finally:
                trouble = self._claimed(queue, limit, result, uncounted=uncounted) or trouble
        if trouble:
            await asyncio.sleep(TROUBLE_PAUSE)

    def _reserve(self, places: int) -> Callable[[], None]:
        """Keep places for a claim until the function that is returned is called.

        Where there are several lines, a claim whose answer is overdue lends them to the others: an outage of one shard
        must not occupy this worker. What it brings in the end is given back if there is no room for it by then.
        """
        self._occupied += places
        kept = places

        def release() -> None:
            nonlocal kept
            self._occupied -= kept
            kept = 0
            for line in self._lines:
                line.watcher.freed()
            if len(self._lines) > 1:
                self._news.set()

        if len(self._lines) == 1 or not places:
            return release
        lending = asyncio.get_running_loop().call_later(LEND_AFTER, release)

        def end() -> None:
            lending.cancel()
            release()

        return end

    def _settled(self, group: list[Settlement], result: dict[str, str] | RqCoreError) -> bool:
        """Take note of what became of settlements. True: not done, they are tried again."""
        if isinstance(result, RqCoreError):
            log.error("%d jobs could not be reported, trying again: %s", len(group), result)
            for settlement in group:
                self._line_of[settlement.claim.queue].finished.append(settlement)
            return True
        # Until here their leases were kept: a settlement may take as long as an outage does.
        self._leases.drop(*[settlement.claim for settlement in group])
        if not result and group[0].verdict == "complete":
            self.stats.completed += len(group)
            return False
        for settlement in group:
            outcome = result.get(settlement.claim.id)
            if outcome == "dead":
                self._line_of[settlement.claim.queue].death.set()
                log.error(
                    "job is dead: it stays for people to look at, and to requeue",
                    extra={"job": settlement.claim.id, "queue": settlement.claim.queue},
                )
            if outcome in ("gone", "stale"):
                self.stats.refused += 1
                log.warning(
                    "settlement refused: the claim was no longer in force",
                    extra={"job": settlement.claim.id, "why": outcome},
                )
            elif settlement.verdict == "complete":
                self.stats.completed += 1
            elif settlement.verdict == "rollback":
                self.stats.rolled_back += 1
            else:
                self.stats.failed += 1
        return False

    async def _declare_anew(self, queue: WatchedQueue, result: Claimed | RqCoreError) -> bool:
        """Declare the limits again if this claim is the first one in another history of Redis.

        Returns True if that history began with nothing: then the jobs of this claim may have been counted by nobody.
        Whether the limits were declared before they were claimed or after, by another worker, does not show.
        """
        if isinstance(result, RqCoreError) or result.epoch in (None, queue.epoch):
            return False
        meta = queue_keys(queue.name, self.app.prefix)("meta")
        try:
            ask = self._client.operations.ask([["HGET", meta, "whole_epoch"]], queue.name)
            (began,) = await self._client.run(ask)
            await self._declare(queue.name)
        except RqCoreError as error:
            # Its epoch stays the old one, so this is tried at the next claim.
            log.error("declaring the caps of queue %s failed: %s", queue.name, error)  # noqa: TRY400
            await asyncio.sleep(TROUBLE_PAUSE)
            return True
        began_anew = int(began or 0) > queue.epoch
        queue.epoch = result.epoch or 0
        return began_anew and bool(self.app.declared.limits(queue.name))

    def _claimed(
        self,
        queue: WatchedQueue,
        limit: int,
        result: Claimed | RqCoreError,
        *,
        uncounted: bool = False,
    ) -> bool:
        """Start what was claimed, or give it back if nothing counted it. True: the claim failed."""
        watcher = self._line_of[queue.name].watcher
        if isinstance(result, RqCoreError):
            log.error("claiming from queue %s failed, trying again: %s", queue.name, result)
            self._shares.refund(queue.name, limit)
            watcher.look_again(queue)
            return True
        self._on_claim()
        watcher.note(queue, result)
        self._shares.refund(queue.name, limit - len(result.jobs))
        self.stats.claimed += len(result.jobs)
        for claim in result.jobs:
            if uncounted:
                self._settle(Settlement(claim, "rollback", 0, "new_epoch"))
            elif self._occupied >= self.options.concurrency:
                # Its place was lent while the answer was overdue.
                self._settle(Settlement(claim, "rollback", 0, "no_room"))
            else:
                self._arrive(claim)
        if not self._arrived:
            self._retire_if_old()
        return False

    def _arrive(self, claim: Claim) -> None:
        """Have a job begun as soon as the next turn is on its way, or shows that there is nothing to send."""
        self._occupied += 1
        if not self._arrived:
            self._stepped.clear()
            asyncio.get_running_loop().call_soon(self._begin_arrived)
        self._arrived.append(claim)

    def _begin_arrived(self) -> None:
        if not self._arrived:
            return
        arrived, self._arrived = self._arrived, []
        began = time.monotonic()
        begin = [running for claim in arrived if (running := self._prepare(claim)) is not None]
        # Before any of them begins: it may hold the GIL from its first step on.
        self._leases.hold_all([(running.claim, _until(running)) for running in begin])
        for running in begin:
            self._executor.launch(running)
        # Not before they were begun: a worker that takes no more gives back what arrives.
        self._retire_if_old()

        def stepped() -> None:
            self._steps_took = time.monotonic() - began
            if not self._arrived:
                self._stepped.set()

        asyncio.get_running_loop().call_soon(stepped)

    def _retire_if_old(self) -> None:
        jobs, memory = self.options.max_jobs, self.options.max_memory
        if jobs is not None and self.stats.claimed >= jobs:
            self.retire(f"{self.stats.claimed} jobs claimed")
        elif memory is not None and time.monotonic() - self._measured > MEASURE_EVERY:
            self._measured = time.monotonic()
            if (resident := resident_bytes()) > memory:
                self.retire(f"{resident:,} bytes of memory")

    def _prepare(self, claim: Claim) -> Running | None:
        """Get ready to run a claim; None: it will not run, and its place is free."""
        running = None
        if self._stopping.is_set():
            self._settle(Settlement(claim, "rollback", 0, "shutdown"))
        elif pause := self._suspects.pause(claim, self._executor.running.values()):
            self._settle(Settlement(claim, "rollback", round(pause * 1000), SUSPECT))
        else:
            running = self._executor.prepare(claim)
        if running is None:
            self._occupied -= 1
        return running

    # Called by the executor and the watcher, on the loop.

    def _news_came(self) -> None:
        self._news.set()

    def _settle(self, settlement: Settlement) -> None:
        self._line_of[settlement.claim.queue].finished.append(settlement)
        self._news.set()

    def _freed(self, running: Running) -> None:
        if isinstance(running.ending, LeaseLost):
            self._leases.drop(running.claim)
        self._occupied -= 1
        for line in self._lines:
            line.watcher.freed()
        self._news.set()

    # Called by the lease keeper, on its thread.

    def _from_keeper(
        self, queue: str, job_id: str, fence: str, why: Callable[[], HandlerSignal]
    ) -> None:
        assert self._loop is not None

        def tell() -> None:
            running = self._executor.running.get((queue, job_id, fence))
            if running is not None:
                self._executor.end(running, why())

        self._loop.call_soon_threadsafe(tell)

    # Deaths.

    async def _tell_of_deaths(self, line: _Line) -> None:
        """Hand over the jobs of hooks, if this app has hooks: soon after a death here, and now and then."""
        if not any(deaths.hook_name(task) in self.app.tasks for task in self.app.tasks):
            return
        operations, tasks = self._client.operations, self.app.tasks
        tellers = {queue: deaths.Teller(operations, queue, tasks) for queue in line.queues}
        while not self._stopping.is_set():
            more = False
            # Before the looks: they miss a death that is noticed meanwhile.
            line.death.clear()
            for queue, teller in tellers.items():
                try:
                    more = await self._client.run(teller.look()) or more
                except Exception as error:  # noqa: BLE001 - jobs that died are told of later
                    log.error("jobs of queue %s that died are told of later: %s", queue, error)  # noqa: TRY400
            if not more:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(deaths.LOOK_EVERY):
                        await line.death.wait()
                # What dies in this millisecond is told of in the next.
                await asyncio.sleep(0.005)


def _until(running: Running) -> float | None:
    """Until when to extend its lease, on the monotonic clock; None: as long as it runs."""
    return running.started + running.timeout + EXTENSION_GRACE if running.timeout else None


async def _end(*tasks: asyncio.Task[Any]) -> None:
    """Cancel tasks and wait until they have ended.

    Again and again: a cancellation that meets the end of a connection attempt is lost (in asyncio.timeout, and so in
    redis-py), and the task would go on waiting for a server that is away.
    """
    left = {task for task in tasks if not task.done()}
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=CANCEL_AGAIN)


def resident_bytes() -> int:
    """Memory of this process that is resident; where there is no /proc, the most that ever was."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
    return pages * os.sysconf("SC_PAGE_SIZE")
