"""A worker's turns: what finished since the last one, and a claim for the free places, in one round trip."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any

from rq_core.aio import AsyncClient
from rq_core.answers import Claimed
from rq_core.errors import RqCoreError
from rq_core.plans import Call
from rq_core.settlement import Settlement, calls_of
from rq_core.watcher import TROUBLE_PAUSE, WatchedQueue
from rq_core.worker.handlers import OVERLAP_MAX, Handlers
from rq_core.worker.lines import Line, Lines
from rq_core.worker.meeting import Meeting
from rq_core.worker.places import Places
from rq_core.worker.shift import Shift

log = logging.getLogger(__package__)


class Turns:
    """Reports and claims, line by line."""

    def __init__(
        self,
        client: AsyncClient,
        shift: Shift,
        places: Places,
        lines: Lines,
        handlers: Handlers,
        meeting: Meeting,
        *,
        on_claim: Callable[[], None],
    ) -> None:
        """``on_claim`` is called whenever Redis has answered a claim."""
        self._client = client
        self._shift = shift
        self._stats = shift.stats
        self._places = places
        self._lines = lines
        self._handlers = handlers
        self._meeting = meeting
        self._on_claim = on_claim

    async def turn(self, line: Line) -> None:
        """Wait until there is something to do, then do it in one round trip. Raises RqCoreError if the server cannot be
        used; what was to be reported still is, then."""
        handlers, stats, most = self._handlers, self._stats, self._shift.options.max_jobs
        if handlers.steps_took > OVERLAP_MAX:
            handlers.begin_arrived()
            await handlers.stepped.wait()
        while not self._shift.over.is_set():
            claims = self._places.claims(
                line, self._lines, None if most is None else most - stats.claimed
            )
            if claims or line.finished:
                break
            self._lines.news.clear()
            # There is nothing to send first. What cannot be begun, or ends at once, is news.
            handlers.begin_arrived()
            await self._lines.news.wait()
        else:
            return
        if handlers.stepped.is_set() and handlers.executor.running:
            # Handlers that are about to finish get their chance to be part of this turn.
            await asyncio.sleep(0)
        await self.send(line, claims)

    async def send(self, line: Line, claims: Sequence[tuple[WatchedQueue, int]]) -> None:
        """One round trip: report what finished, claim for ``claims``. Raises RqCoreError as ``turn`` does."""
        finished, line.finished = line.finished, []
        operations = self._client.operations
        settling = calls_of(operations, self._shift.worker, finished)
        calls: list[Call[Any]] = [call for call, _ in settling]
        for queue, limit in claims:
            queue.ask()
            self._places.shares.take(queue.name, limit)
            claim = operations.claim_call(queue.name, self._shift.worker, limit)
            line.claiming.append(claim)
            calls.append(claim)
        self._stats.turns += 1
        release = self._places.reserve(sum(limit for _, limit in claims), self._lines)
        line.busy = True
        try:
            results = await self._client.carry_out(calls)
        except BaseException:
            line.finished = finished + line.finished
            for queue, limit in claims:
                self._places.shares.refund(queue.name, limit)
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
                uncounted = await self._meeting.declare_anew(queue, result)
            finally:
                trouble = self._claimed(queue, limit, result, uncounted=uncounted) or trouble
        if trouble:
            await asyncio.sleep(TROUBLE_PAUSE)

    def _settled(self, group: list[Settlement], result: dict[str, str] | RqCoreError) -> bool:
        """Take note of what became of settlements. True: not done, they are tried again."""
        if isinstance(result, RqCoreError):
            log.error("%d jobs could not be reported, trying again: %s", len(group), result)
            for settlement in group:
                self._lines.of[settlement.claim.queue].finished.append(settlement)
            return True
        # Until here their leases were kept: a settlement may take as long as an outage does.
        self._handlers.leases.drop(*[settlement.claim for settlement in group])
        if not result and group[0].verdict == "complete":
            self._stats.completed += len(group)
            return False
        for settlement in group:
            outcome = result.get(settlement.claim.id)
            if outcome == "dead":
                self._lines.of[settlement.claim.queue].death.set()
                log.error(
                    "job is dead: it stays for people to look at, and to requeue",
                    extra={"job": settlement.claim.id, "queue": settlement.claim.queue},
                )
            if outcome in ("gone", "stale"):
                self._stats.refused += 1
                log.warning(
                    "settlement refused: the claim was no longer in force",
                    extra={"job": settlement.claim.id, "why": outcome},
                )
            elif settlement.verdict == "complete":
                self._stats.completed += 1
            elif settlement.verdict == "rollback":
                self._stats.rolled_back += 1
            else:
                self._stats.failed += 1
        return False

    def _claimed(
        self,
        queue: WatchedQueue,
        limit: int,
        result: Claimed | RqCoreError,
        *,
        uncounted: bool = False,
    ) -> bool:
        """Start what was claimed, or give it back if nothing counted it. True: the claim failed."""
        watcher = self._lines.of[queue.name].watcher
        if isinstance(result, RqCoreError):
            log.error("claiming from queue %s failed, trying again: %s", queue.name, result)
            self._places.shares.refund(queue.name, limit)
            watcher.look_again(queue)
            return True
        self._on_claim()
        watcher.note(queue, result)
        self._places.shares.refund(queue.name, limit - len(result.jobs))
        self._stats.claimed += len(result.jobs)
        for claim in result.jobs:
            if uncounted:
                self._lines.settle(Settlement(claim, "rollback", 0, "new_epoch"))
            elif self._places.taken >= self._places.most:
                # Its place was lent while the answer was overdue.
                self._lines.settle(Settlement(claim, "rollback", 0, "no_room"))
            else:
                self._handlers.arrive(claim)
        if not self._handlers.arrived:
            self._shift.retire_if_due()
        return False
