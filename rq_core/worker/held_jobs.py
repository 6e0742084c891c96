"""The jobs that a worker holds, from the answer to their claim to the end of their handlers.

Claimed jobs start when the worker has sent its next turn (the round trip that settles and claims), or when no turn has
to be sent. The heartbeat begins to extend a job's lease before the first line of the handler runs.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Final

from rq_core.connections.async_client import AsyncClient
from rq_core.connections.client import Client
from rq_core.model.job import Claim
from rq_core.model.lib.text import counted
from rq_core.model.table.reasons import Reason
from rq_core.signals import HandlerSignal, JobCancelled, LeaseLost
from rq_core.worker.capacity import Capacity
from rq_core.worker.execution.executor import Executor
from rq_core.worker.execution.lost_entries import LostEntries
from rq_core.worker.execution.running import Running
from rq_core.worker.execution.saver import Saver
from rq_core.worker.execution.shows import Shows
from rq_core.worker.lifetime import Lifetime
from rq_core.worker.liveness.heartbeat import BEATS_IN_LEASE, LeaseKeeper
from rq_core.worker.liveness.lease_table import LeaseTable
from rq_core.worker.liveness.presence import Attendance
from rq_core.worker.queue_group import QueueGroups
from rq_core.worker.settlement import Settlement
from rq_core.worker.wakeups import FOREVER

if TYPE_CHECKING:
    from rq_core.app.app import App


log = logging.getLogger(__package__)

OVERLAP_S_MAX: Final = 0.05
"""Maximum seconds in which handlers that start together must reach their first ``await``. If they take longer, they
block the event loop. Then the worker does not claim further jobs before the handlers of the claimed jobs have come this
far. Otherwise the further jobs would wait for the loop, and no heartbeat would extend their leases meanwhile."""
FRESH_INTERVALS: Final = BEATS_IN_LEASE - 1
"""Maximum age of a lease, in heartbeat intervals, at which the lease will certainly last until the next heartbeat."""
HOLD_S_MAX: Final = 1.0
"""Maximum seconds for which the worker holds a claimed suspect before it starts the suspect. A suspect is a job that
has lost a worker. An outage of another shard must not delay the suspect, or this worker's claims, for longer."""
EXTENSION_GRACE_S: Final = 30.0
"""Seconds for which the worker still extends a job's lease after the job's timeout."""


class Handlers:
    """Starts claimed jobs, lets the heartbeat extend their leases, and stops handlers whose claims are no longer in
    force.
    """

    executor_type: ClassVar[type[Executor]] = Executor

    def __init__(
        self,
        app: App,
        lifetime: Lifetime,
        capacity: Capacity,
        groups: QueueGroups,
        *,
        client: Client,
        saving: AsyncClient,
        table: LeaseTable | None,
    ) -> None:
        """``client`` is only for the heartbeat's thread. ``saving`` is the client that saves the steps of durable jobs,
        and sends the progress of jobs and the chunks of their streams.

        ``table`` is the table of leases that a supervisor reads; None: the worker has no supervisor.
        """
        self._lifetime = lifetime
        self._capacity = capacity
        self._groups = groups
        self.shows = Shows(saving, lifetime.worker)
        saver = Saver(saving, lifetime.worker, self._lease_holds)
        self.lost_entries = LostEntries(saver, groups.settle)
        self.executor = self.executor_type(
            app.tasks,
            worker=lifetime.worker,
            threads=lifetime.options.concurrency,
            timeout=lifetime.options.timeout,
            on_settlement=groups.settle,
            on_free=self._freed,
            surroundings=app.surroundings,
            redact=app.redactor,
            saver=saver,
            shows=self.shows,
        )
        self.leases = LeaseKeeper(
            client,
            lifetime.worker,
            on_lost=lambda queue, job, fence: self._from_keeper(queue, job, fence, LeaseLost),
            on_cancelling=lambda queue, job, fence: self._from_keeper(
                queue, job, fence, JobCancelled
            ),
            table=table,
            attendance=Attendance(
                client,
                lifetime.worker,
                tasks=app.tasks,
                queues=lambda: groups.present,
                places=lifetime.options.concurrency,
                busy=capacity.busy,
            ),
        )
        self._suspects = Suspects()
        self._unreported: set[tuple[str, str]] = set()
        """(id, fence) of suspects that were put off: the worker gives them back, and Redis has not answered these
        rollbacks yet."""
        self.held: Running | None = None
        """The claimed suspect (a job that has lost a worker) that must wait before it starts; None: no suspect waits.
        If the suspect killed this process at once, other suspects that were claimed with it would count a loss, too."""
        self.arrived: list[Claim] = []
        """Claimed jobs that are about to start."""
        self._since = FOREVER
        """A monotonic time. The leases of all arrived jobs began then or later."""
        self.stepped = asyncio.Event()
        """Set when the handlers of all jobs that arrived have started and have run up to their first ``await``."""
        self.stepped.set()
        self.steps_took = FOREVER
        """Seconds in which the handlers that started together last ran up to their first ``await``."""
        self._loop: asyncio.AbstractEventLoop | None = None

    def _lease_holds(self, queue: str) -> bool:
        """Return whether the queue's leases are in force by this process' own clock.

        If the process was suspended for longer than a lease, no step of a durable job may begin.
        """
        lease_s = BEATS_IN_LEASE * self.leases.interval
        return time.monotonic() - self.leases.extended_at(queue) < lease_s

    @property
    def busy(self) -> bool:
        """Return whether a claimed job is not settled yet."""
        return self.executor.busy or bool(self.arrived) or self.lost_entries.busy

    def start(self) -> None:
        """Start the heartbeat; call this once, on the loop."""
        self._loop = asyncio.get_running_loop()
        self.shows.attach()
        self.leases.start()

    def arrive(self, claim: Claim, since: float) -> None:
        """Keep a claimed job until ``begin_arrived`` starts it.

        ``since`` is a monotonic time: the job's lease began then or later.
        """
        self._capacity.taken += 1
        self._since = min(self._since, since)
        if not self.arrived:
            self.stepped.clear()
            asyncio.get_running_loop().call_soon(self.begin_arrived)
        self.arrived.append(claim)

    def begin_arrived(self) -> None:
        """Start all claimed jobs that have not started yet. If their leases may have expired, give the jobs back
        instead.
        """
        if not self.arrived:
            return
        arrived, self.arrived = self.arrived, []
        since, self._since = self._since, FOREVER
        began = time.monotonic()
        if began - since > FRESH_INTERVALS * self.leases.interval:
            # This process was stopped, or a handler blocked the loop: the jobs may already run elsewhere.
            self._give_back(arrived)
            arrived = []
        begin = [running for claim in arrived if (running := self._prepare(claim)) is not None]
        # Before any handler starts: it may hold the GIL from its first step on.
        self.leases.hold_all([(running.claim, lease_end(running)) for running in begin])
        for running in begin:
            if running.claim.losses:
                self.held = running  # There is at most one: Suspects puts off the others.
                asyncio.get_running_loop().call_later(HOLD_S_MAX, self._launch_held, running)
            else:
                self.executor.launch(running)
        self.begin_held()
        # After the jobs have started: a worker that has retired gives back the jobs that arrive.
        self._lifetime.retire_if_due()

        def stepped() -> None:
            self.steps_took = time.monotonic() - began
            if not self.arrived:
                self.stepped.set()

        asyncio.get_running_loop().call_soon(stepped)

    def begin_held(self) -> None:
        """Start the held suspect (a job that has lost a worker), if no claim is under way, no other claimed job is
        about to start, and Redis has answered the rollbacks of the other suspects.
        """
        if self.held is None or self._unreported or self.arrived:
            return
        if not any(group.claiming for group in self._groups.all):
            self._launch_held(self.held)

    def _launch_held(self, running: Running) -> None:
        if self.held is running:
            self.held = None
            self.executor.launch(running)
            self._groups.news.set()

    def reported(
        self, settlements: Sequence[Settlement], answers: Mapping[str, str]
    ) -> Sequence[Settlement]:
        """Stop extending the leases of these claims, because Redis has answered their settlements.

        Return the settlements of claims that have ended. If Redis has lost saved entries of a durable job, the job
        keeps its claim until they are saved again.
        """
        if settlements[0].verdict != "complete":
            settlements = self.lost_entries.take(settlements, answers)
        self.leases.drop(*[settlement.claim for settlement in settlements])
        if self._unreported:
            self._unreported.difference_update((s.claim.id, s.claim.fence) for s in settlements)
        return settlements

    def _prepare(self, claim: Claim) -> Running | None:
        """Prepare a claim's handler. If the handler will not run here, return None and free the job's place."""
        running = None
        if self._lifetime.over.is_set():
            self._groups.settle(Settlement(claim, "rollback", 0, Reason.SHUTDOWN))
        elif claim.losses and (
            pause := self._suspects.pause(claim, self.executor.running.values())
        ):
            self._unreported.add((claim.id, claim.fence))
            self._groups.settle(Settlement(claim, "rollback", round(pause * 1000), Reason.SUSPECT))
        else:
            running = self.executor.prepare(claim)
        if running is None:
            self._capacity.taken -= 1
        return running

    def _give_back(self, late: Sequence[Claim]) -> None:
        """Give back jobs whose leases may have expired. Redis refuses the rollback of a claim that is no longer in
        force."""
        many = counted(len(late), "claimed job")
        log.warning(
            "%s could not start in time; the worker gives back the jobs that did not start", many
        )
        for claim in late:
            self._groups.settle(Settlement(claim, "rollback", 0, Reason.LATE))
        self._capacity.taken -= len(late)

    def _freed(self, running: Running) -> None:
        """Free the place (room for one handler) of a handler that ended. Call this on the event loop."""
        if isinstance(running.ending, LeaseLost):
            self.leases.drop(running.claim)
        self._capacity.taken -= 1
        for group in self._groups.all:
            group.watcher.freed()
        self._groups.news.set()

    def _from_keeper(
        self, queue: str, job_id: str, fence: str, why: Callable[[], HandlerSignal]
    ) -> None:
        """Stop a handler, because Redis has answered that its claim is lost or its job is being cancelled.

        Runs on the heartbeat's thread or on the loop.
        """
        assert self._loop is not None

        def tell() -> None:
            running = self.executor.running.get((queue, job_id, fence))
            if running is not None:
                self.executor.end(running, why())

        self._loop.call_soon_threadsafe(tell)
        running = self.executor.running.get((queue, job_id, fence))
        if why is LeaseLost and running is not None:
            # Before this heartbeat counts as a success: else a thread that waits for the lease could begin a step.
            running.context.tell(why())


def lease_end(running: Running) -> float | None:
    """Return the monotonic time at which the worker stops extending the claim's lease, even if the handler still runs.
    None: there is no such time; the lease is extended until Redis has answered the claim's settlement.
    """
    return running.started + running.timeout + EXTENSION_GRACE_S if running.timeout else None


PAUSE_S: Final = 0.5
PAUSE_S_MAX: Final = 8.0
"""Maximum seconds until a suspect that was put off may be claimed again. A suspect is a job that has lost a worker; a
process runs one suspect at a time. Each time that this process puts the suspect off, the seconds double, up to this
maximum. Then they are multiplied by a random factor from 0.75 to 1.25."""
REMEMBERED_MAX: Final = 10_000


class Suspects:
    """Decides whether this process runs a suspect now. A suspect is a job that has lost a worker, and may kill another.

    A process runs one suspect at a time. If a worker claims several suspects, it keeps one and rolls back the others.
    The kept suspect starts once Redis has answered these rollbacks (Handlers.begin_held), or after HOLD_S_MAX. If the
    kept suspect killed the worker before these answers, each other suspect would count a loss, although its handler had
    not begun. So a job that kills its workers does not make other jobs look guilty.
    """

    def __init__(self, rng: random.Random | None = None) -> None:
        self._rng = rng or random.Random()  # noqa: S311 - jitter, no secret
        self._put_off: dict[str, int] = {}

    def pause(self, claim: Claim, running: Iterable[Running]) -> float | None:
        """Return the seconds for which a claimed job must wait because this process runs a suspect (a job that has lost
        a worker); None: the job may run now.
        """
        if not claim.losses or not any(each.claim.losses for each in running):
            self._put_off.pop(claim.id, None)
            return None
        times = self._put_off.pop(claim.id, 0)
        self._put_off[claim.id] = times + 1
        if len(self._put_off) > REMEMBERED_MAX:
            del self._put_off[next(iter(self._put_off))]
        pause: float = min(PAUSE_S * 2**times, PAUSE_S_MAX)
        # The pauses vary, so that suspects that lost one worker together do not become ready together.
        return pause * self._rng.uniform(0.75, 1.25)
