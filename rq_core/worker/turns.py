"""A worker's turns. A turn is one round trip: it sends the settlements since the last turn (the reports of how claims
ended) and a claim for the free places. If jobs have reported costs, a round trip with these costs comes first.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from rq_core.connections.async_client import AsyncClient
from rq_core.errors import RqCoreError
from rq_core.model.lib.text import counted
from rq_core.model.table.reasons import Reason
from rq_core.protocol.calls.claims import Claimed, extend
from rq_core.protocol.engine.plan import Call
from rq_core.worker.capacity import CLAIM_MAX, Capacity
from rq_core.worker.child_ends import NO_SIGNALS, ChildEnds, SignalsBehind
from rq_core.worker.claim_counters import FlowTable
from rq_core.worker.held_jobs import FRESH_INTERVALS, OVERLAP_S_MAX, Handlers
from rq_core.worker.lifetime import Lifetime
from rq_core.worker.queue_group import QueueGroup, QueueGroups
from rq_core.worker.settlement import (
    Settlement,
    calls_of,
    claim_call,
    spends_of,
    successes_in,
    to_send_again,
)
from rq_core.worker.startup import Startup
from rq_core.worker.ticker import Ticker
from rq_core.worker.wakeups import TROUBLE_PAUSE_S, WatchedQueue

log = logging.getLogger(__package__)

SECOND_MIN: Final = 8
"""Minimum number of settlements for which a worker sends a second turn (round trip that settles and claims) while
another turn is under way. There must also be at least one settlement for every four handlers that may run. A second
turn keeps Redis busy while the worker processes the first. Without a minimum, the worker would send more turns, with
fewer settlements each."""
ARMED_MAX: Final = 16
"""Maximum number of jobs in a claim that the worker sends together with a wait for a wake token. If the worker
vanishes, Redis may still carry out this claim. Its jobs then cannot run before their leases have expired."""


@dataclass(slots=True)
class _Asked:
    """A claim, from its preparation until its answer has arrived."""

    queue: WatchedQueue
    limit: int
    successes: Sequence[Settlement]
    """The successes of the queue that are reported in the same call as the claim."""
    epoch: int
    """The epoch (history of the queue in Redis) in which this worker had last declared the queue's limits when it sent
    the claim."""
    call: Call[Claimed]
    sent: float
    """Monotonic time at which the claim was sent: the leases of its jobs began later."""
    release: Callable[[], None]
    """The function that releases the places (room for handlers) that are reserved for the claim's jobs."""

    def is_sent(self) -> None:
        """Record that the prepared claim has been sent now."""
        self.sent = self.queue.looked = time.monotonic()


class Turns:
    """Claims jobs and settles claims, one group of queues at a time."""

    def __init__(
        self,
        client: AsyncClient,
        lifetime: Lifetime,
        capacity: Capacity,
        groups: QueueGroups,
        handlers: Handlers,
        startup: Startup,
        ticker: Ticker,
        *,
        on_claim: Callable[[], None],
        flow: FlowTable,
    ) -> None:
        """``on_claim`` is called whenever Redis has answered a claim. ``flow`` counts the settled claims."""
        self._client = client
        self._lifetime = lifetime
        self._stats = lifetime.stats
        self._capacity = capacity
        self._groups = groups
        self._handlers = handlers
        self._startup = startup
        self._ticker = ticker
        self._on_claim = on_claim
        self._flow = flow
        self.child_ends = ChildEnds(client, lifetime.worker)
        self.over: asyncio.Future[Any] | None = None
        """A future that is done when the worker claims no more. None: the worker waits for wake tokens without a
        prepared claim."""
        if len(groups.queues) == 1 and not lifetime.options.burst and capacity.on_reserve is None:
            groups.all[0].watcher.arm = self.arm

    async def turn(self, group: QueueGroup) -> None:
        """Wait until there are settlements to send or jobs to claim, then make one round trip for both.

        Raises RqCoreError if the server cannot be used. The settlements are then kept for the next turn.
        """
        handlers = self._handlers
        while not self._lifetime.over.is_set():
            if handlers.steps_took > OVERLAP_S_MAX:
                handlers.begin_arrived()
                await handlers.stepped.wait()
            claims = self._due(group)
            if claims is not None and handlers.stepped.is_set() and handlers.executor.running:
                # Handlers that are about to finish may join this turn. The group's other turn may take the places and
                # the settlements meanwhile.
                await asyncio.sleep(0)
                claims = self._due(group)
            if claims is not None:
                await self.send(group, claims)
                if handlers.arrived and self._due(group) is None:
                    # No turn must be sent first, so the handlers begin before this worker prepares the next turn.
                    handlers.begin_arrived()
                    await asyncio.sleep(0)
                return
            self._groups.news.clear()
            # No turn has to be sent first. A job that cannot start, or ends at once, sets ``news``.
            handlers.begin_arrived()
            await self._groups.news.wait()

    def _due(self, group: QueueGroup) -> list[tuple[WatchedQueue, int]] | None:
        """Return the claims of the next turn (round trip), as (queue, number of jobs) pairs; None: no turn is due. The
        list is empty if the turn has only settlements to send."""
        if group.turns and not self._fills_another(group):
            return None
        claims: list[tuple[WatchedQueue, int]] = []
        if self._handlers.held is None:
            claims = self._capacity.claims(group, self._groups, self._most(group))
        return claims if claims or group.finished else None

    def _fills_another(self, group: QueueGroup) -> bool:
        """Return whether there are enough settlements to send a second turn (round trip) while one is under way."""
        enough = max(SECOND_MIN, self._capacity.most // 4)
        return len(group.finished) >= enough and self._handlers.steps_took <= OVERLAP_S_MAX

    def _most(self, group: QueueGroup) -> float:
        """Return how many jobs the next turn (round trip) may claim at most, even if more handlers could run."""
        # Redis may carry out this turn before the turn under way, which settles the other jobs.
        most = len(group.finished) if group.turns else math.inf
        return min(most, self._jobs_left())

    def _jobs_left(self) -> float:
        """Return how many jobs the worker may still claim under ``max_jobs``. Claims under way are subtracted."""
        share = self._lifetime.options.max_jobs
        if share is None:
            return math.inf
        # A group that lends its places also lends its part of ``max_jobs``: an outage may outlast all other jobs.
        return share - self._stats.claimed - self._capacity.kept

    async def send(self, group: QueueGroup, claims: Sequence[tuple[WatchedQueue, int]]) -> None:
        """Make one round trip: send the settlements, and claim jobs for ``claims``.

        Raises RqCoreError if the server cannot be used. The settlements are then kept for the next turn.
        """
        finished, group.finished = group.finished, []
        successes: Mapping[str, Sequence[Settlement]] = {}
        settling: list[tuple[Call[Any], list[Settlement]]] = []
        signals = NO_SIGNALS
        if finished:
            successes, others = successes_in(finished, {queue.name for queue, _ in claims})
            settling = calls_of(self._lifetime.worker, others)
            ended = (*(reported for _, reported in settling), *successes.values())
            signals = self.child_ends.signals_behind(ended)
        asking = [self._ask(*each, successes.get(each[0].name, ())) for each in claims]
        calls: list[Call[Any]] = [call for call, _ in settling]
        calls += [each.call for each in asking]
        trouble = False
        try:
            try:
                if finished and self._handlers.shows.is_busy:
                    await self._handlers.shows.before(each.claim for each in finished)
                if finished and (spends := spends_of(self._lifetime.worker, finished)):
                    await self._spend(spends)
                results, signalled = await self._exchange(group, calls, asking, signals)
            except BaseException:
                group.finished = to_send_again(finished) + group.finished
                for each in asking:
                    self._capacity.shares.refund(each.queue.name, each.limit)
                    group.watcher.look_again(each.queue)
                raise
            for (_, reported), result in zip(settling, results, strict=False):
                trouble = self._settled(reported, result, signalled) or trouble
            answers = [*zip(asking, results[len(settling) :], strict=True)]
            for each, result in answers:
                if each.successes:
                    refused = result if isinstance(result, RqCoreError) else result.refused
                    trouble = self._settled(each.successes, refused, signalled) or trouble
            for each, result in answers:
                trouble = await self._answered(each, result) or trouble
        finally:
            for each in asking:
                each.release()
            self._handlers.begin_held()
        if trouble:
            await asyncio.sleep(TROUBLE_PAUSE_S)

    def _ask(self, queue: WatchedQueue, limit: int, successes: Sequence[Settlement]) -> _Asked:
        """Prepare a claim, and reserve places (room for handlers) for its jobs."""
        queue.ask()
        self._capacity.shares.take(queue.name, limit)
        call = claim_call(queue.name, self._lifetime.worker, limit, successes)
        release = self._capacity.reserve(queue.name, limit, self._groups)
        return _Asked(queue, limit, successes, queue.epoch, call, queue.looked, release)

    def arm(self, queue: WatchedQueue, seconds: float, *, far: bool) -> asyncio.Task[None] | None:
        """Begin to wait up to ``seconds`` for a wake token, with a prepared (*armed*) claim. Return the asyncio task of
        the wait; it ends when the claim's jobs have arrived. None: the worker should wait without a claim.

        If Redis is ``far``, the claim is sent together with the wait, and the jobs arrive with the token. Otherwise the
        prepared claim is sent when the token arrives.

        Places are reserved for the claim's jobs, so turns may claim further jobs meanwhile. If the answer to the claim
        is lost, or the worker stops, the claim is sent again under the same number.
        """
        group, handlers = self._groups.of[queue.name], self._handlers
        if handlers.executor.running and handlers.steps_took > OVERLAP_S_MAX:
            # While a handler blocks the loop, no heartbeat would extend the leases of the claimed jobs.
            return None
        free = self._capacity.for_one_claim()
        limit = int(min(free, self._jobs_left(), ARMED_MAX if far else CLAIM_MAX))
        if limit <= 0 or handlers.held is not None or self._lifetime.over.is_set():
            return None
        if self.over is None:
            return None
        asked = self._ask(queue, limit, ())
        group.claiming.append(asked.call)
        group.armed = asyncio.create_task(self._wait_and_claim(group, asked, seconds, far=far))
        return group.armed

    async def _wait_and_claim(
        self, group: QueueGroup, asked: _Asked, seconds: float, *, far: bool
    ) -> None:
        """Wait for a wake token with an armed (prepared) claim, and start its jobs. Raises the error of the wait."""
        handlers, over = self._handlers, self.over
        assert over is not None
        try:
            try:
                result, error = await self._client.wait_and_carry_out(
                    asked.call, seconds, over, None if far else asked.is_sent
                )
            except BaseException as failure:
                self._not_sent(group, asked)
                if isinstance(failure, RqCoreError):
                    return  # The turn that follows meets the same error, and decides what the worker does.
                raise
            finally:
                group.claiming.remove(asked.call)
            if result is None:
                self._not_sent(group, asked)
                if error is not None:
                    raise error
                return  # The worker has stopped.
            self._stats.turns += 1
            took = time.monotonic() - asked.sent
            await self._answered(asked, result)
        finally:
            asked.release()
            handlers.begin_held()
        if handlers.arrived and self._due(group) is None:
            handlers.begin_arrived()
        if not far:
            # Far from Redis, the end of the wait is not known.
            self._flow.turned(took)
        self._groups.news.set()
        if error is not None:
            raise error

    def _not_sent(self, group: QueueGroup, asked: _Asked) -> None:
        """Record that an armed (prepared) claim will have no answer, and make the worker claim again."""
        self._capacity.shares.refund(asked.queue.name, asked.limit)
        group.watcher.look_again(asked.queue)

    async def _spend(self, spends: Sequence[Call[Any]]) -> None:
        """Report the units of rates that jobs have really used, before their claims end.

        The report has a round trip of its own, because Redis must carry it out before the settlements. In a shared
        round trip, the order would change if Redis lacked the report's script and the report had to be sent again.
        """
        for result in await self._client.carry_out(spends):
            if isinstance(result, RqCoreError):
                log.error("costs could not be reported, the estimates stand: %s", result)

    async def _exchange(
        self,
        group: QueueGroup,
        calls: Sequence[Call[Any]],
        asked: Sequence[_Asked],
        signals: SignalsBehind,
    ) -> tuple[list[Any], Collection[str]]:
        """Send the calls of a turn (round trip), and ``signals`` after them. Return the answers to the calls, and the
        ids of the children whose parents have got signals. The turn counts as under way meanwhile."""
        self._stats.turns += 1
        group.turns += 1
        group.claiming += [each.call for each in asked]
        began, delivery = time.monotonic(), self._client.calls.delivery
        again = delivery.rounds_again
        try:
            results = await self._client.carry_out([*calls, *signals.calls])
        finally:
            self._flow.turned(time.monotonic() - began)
            group.turns -= 1
            for each in asked:
                group.claiming.remove(each.call)
        if not signals.calls:
            return results, ()
        results, sent = results[: len(calls)], results[len(calls) :]
        # A settlement that was sent again may have come after its signal.
        is_behind = delivery.rounds_again == again
        failed = any(isinstance(each, RqCoreError) for each in sent)
        return results, signals.children if is_behind and not failed else ()

    async def _answered(self, asked: _Asked, result: Claimed | RqCoreError) -> bool:
        """Process the answer to a claim: start its jobs, if the code's limits were in force when Redis carried it out.
        If the answer was late, start only jobs whose lease can still be extended. Return True if the claim failed."""
        uncounted = False
        try:
            if isinstance(result, Claimed) and result.jobs:
                if result.epoch != asked.epoch:
                    uncounted = True
                    uncounted = await self._startup.declare_anew(
                        asked.queue, result, since=asked.epoch
                    )
                fresh = FRESH_INTERVALS * self._handlers.leases.interval
                if time.monotonic() - asked.sent > fresh:
                    result, asked.sent = await self._still_held(asked, result)
        finally:
            # Not earlier: the group's other turn would take the places of the claimed jobs.
            asked.release()
            failed = self._claimed(asked, result, uncounted=uncounted)
        return failed

    async def _still_held(self, asked: _Asked, claimed: Claimed) -> tuple[Claimed, float]:
        """Extend the leases of jobs whose claim Redis answered late: these leases may have expired. Return the jobs
        that are still claimed, and a monotonic time: their leases began then or later. Nothing may be settled for the
        other jobs: other workers claim them."""
        sent = time.monotonic()
        jobs = [(claim.id, claim.fence) for claim in claimed.jobs]
        call = extend(asked.queue.name, self._lifetime.worker, jobs)
        (answer,) = await self._client.carry_out([call])
        if isinstance(answer, RqCoreError):
            log.error("leases of queue %s were not extended: %s", asked.queue.name, answer)
            return claimed, asked.sent  # The jobs are given back.
        lost = set(answer.lost)
        if lost:
            log.warning(
                "a claim was answered after %.1f s: of %s, %d had lost the lease by then and will not start here",
                *(sent - asked.sent, counted(len(jobs), "job"), len(lost)),
                extra={"queue": asked.queue.name},
            )
        kept = tuple(claim for claim in claimed.jobs if claim.id not in lost)
        return replace(claimed, jobs=kept), sent

    def _settled(
        self,
        group: Sequence[Settlement],
        result: Mapping[str, str] | RqCoreError,
        signalled: Collection[str] = (),
    ) -> bool:
        """Process the answer to settlements. Return True if Redis did not carry out the settlements; they will be sent
        again. ``signalled``: ids of children whose parents have already got signals."""
        if isinstance(result, RqCoreError):
            many = counted(len(group), "job")
            log.error("%s could not be reported, trying again: %s", many, result)
            for settlement in to_send_again(group):
                self._groups.of[settlement.claim.queue].finished.append(settlement)
            return True
        # The leases were extended until now: a settlement may take as long as an outage.
        group = self._handlers.reported(group, result)
        self._flow.ended(group, result)
        self.child_ends.note(group, result, signalled)
        if not result and group[0].verdict == "complete":
            self._stats.completed += len(group)
            return False
        for settlement in group:
            outcome = result.get(settlement.claim.id)
            if outcome == "dead":
                self._groups.of[settlement.claim.queue].death.set()
                log.error(
                    "job is dead: it stays in Redis until an operator requeues it or its retention ends",
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
            elif outcome == "cancelled":
                self._stats.cancelled += 1
            elif settlement.verdict == "rollback":
                self._stats.rolled_back += 1
            elif settlement.verdict == "park":
                self._stats.parked += 1
            else:
                self._stats.failed += 1
        return False

    def _claimed(
        self, asked: _Asked, result: Claimed | RqCoreError, *, uncounted: bool = False
    ) -> bool:
        """Start the claimed jobs. Give back the jobs for which the worker has no room. With ``uncounted``, give all
        jobs back: perhaps no cap counted them. Return True if the claim failed."""
        queue, limit = asked.queue, asked.limit
        watcher = self._groups.of[queue.name].watcher
        if isinstance(result, RqCoreError):
            log.error("claiming from queue %s failed, trying again: %s", queue.name, result)
            self._capacity.shares.refund(queue.name, limit)
            watcher.look_again(queue)
            return True
        self._on_claim()
        self._flow.answered()
        watcher.note(queue, result)
        if result.ticks:
            self._ticker.note(queue.name)
        self._capacity.shares.refund(queue.name, limit - len(result.jobs))
        self._stats.claimed += len(result.jobs)
        if result.jobs:
            self._flow.claimed(queue.name, len(result.jobs))
        for claim in result.jobs:
            if uncounted:
                self._groups.settle(Settlement(claim, "rollback", 0, Reason.NEW_EPOCH))
            elif self._capacity.taken >= self._capacity.most and not self._capacity.has_room(
                queue.name
            ):
                # The job's place was lent while the answer was overdue.
                self._groups.settle(Settlement(claim, "rollback", 0, Reason.NO_ROOM))
            else:
                self._handlers.arrive(claim, asked.sent)
        if not self._handlers.arrived:
            self._lifetime.retire_if_due()
        return False
