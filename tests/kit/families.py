"""One durable job with children, driven by hand on a real server with a clock that the test sets.

A test decides when the parent runs and when a child ends, between any two calls of the parent.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from types import SimpleNamespace
from typing import Any, Final
from unittest import mock

import redis

from rq_core import App
from rq_core.app.durable import children
from rq_core.app.durable.handles import DurableSync
from rq_core.app.durable.step_calls import StepCalls
from rq_core.app.handlers.context import JobContext
from rq_core.app.handlers.handler_setup import Surroundings
from rq_core.connections.client import Client
from rq_core.model.events import decode
from rq_core.model.job import Claim, NewJob, profile
from rq_core.model.keys import queue_keys
from rq_core.model.result_encoding import pack_result
from rq_core.protocol.calls import claims
from rq_core.protocol.calls.admin import Deletion
from rq_core.protocol.calls.boxes import SaveAnswer, Saving, save
from rq_core.protocol.engine.delivery import Delivery
from rq_core.protocol.operations import Operations
from rq_core.protocol.reads import result_reads
from rq_core.protocol.reads.box_reads import Box
from rq_core.signals import Parking
from rq_core.worker.child_ends import calls_for, orphans_of, parents_of
from rq_core.worker.settlement import Settlement, calls_of
from tests.kit.clock import CLOCK_KEY, timed
from tests.rigs.simulator.results import LOOK

PARENTS: Final = "orders"
PARTS: Final = "pages"
WORKER: Final = "w"
PARENT: Final = "p"
START_MS: Final = 1_800_000_000_000
PARTS_LEASE_MS: Final = 1_000
PARENTS_LEASE_MS: Final = 10_000_000
EXPIRES_S: Final = 20.0
LOOK_MS: Final = 5_100
"""Ms after which a parent looks at its children without a signal."""
ERROR: Final = '{"type":"ValueError","message":"no"}'
_ROUNDS_MAX: Final = 6
_NO_VALUES: Any = None


class _Home:
    """The part of a worker that the steps of the parent need. It makes each call at once."""

    is_async = False
    can_park = True
    audit_result = "digest"

    def __init__(self, family: Family, context: JobContext) -> None:
        self._family = family
        self._context = context
        self.calls = StepCalls(Surroundings(), _NO_VALUES, is_async=False)

    async def lease(self) -> None:
        """Return at once: the lease is in force."""

    def began(self) -> Callable[[], None]:
        return lambda: None

    async def load(self, first: int = 1) -> Box | None:
        it = self._context
        calls = self._family.client.calls
        plan = calls.reads.box(PARENTS, it.id, it.fence, WORKER, first=first)
        return self._family.client.run(plan)

    async def save(self, records: Sequence[Saving]) -> SaveAnswer:
        if any(record.what == "wait" for record in records):
            # The children are enqueued, and Redis does not have the wait.
            self._family.at("before it waits")
        found: SaveAnswer = self._family.run(save(PARENTS, WORKER, records))
        return found

    async def ask(self, plan: Callable[[Operations], Any]) -> Any:
        return self._family.run(plan(self._family.client.calls))

    async def park(self, entry: int) -> None:
        self._family.at("before it parks")
        raise Parking((entry,))

    async def finish(self, saving: Coroutine[Any, Any, Any]) -> Any:
        return await saving

    @contextlib.asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        yield


class Family:
    """A job that runs children in another queue, and the answers that it got."""

    def __init__(self, url: str, count: int, expires_s: float) -> None:
        self.control: Any = redis.Redis.from_url(url, decode_responses=True)
        self.control.flushall()
        self.now_ms = START_MS
        self.pass_time(0)
        self.client = Client(url, calls=Operations(Delivery(url=url, name="test", scripts=timed)))
        self.app = App(url)
        self.count = count
        self.expires_s = expires_s
        self.moments: dict[str, Callable[[], None]] = {}
        """The functions to call once, by the moment at which each is called."""
        self.got: list[list[str]] = []
        """The names of the outcomes that the parent got, for each map that was over."""
        self.fails_next = False
        """True if the next run of the parent fails for good."""
        self.parent = ""
        """The answer to the parent's last settlement."""
        configure = self.client.calls.admin.configure
        self.run(configure(PARENTS, {"lease_ms": PARENTS_LEASE_MS}))
        self.run(configure(PARTS, {"lease_ms": PARTS_LEASE_MS}))

        @self.app.task(name="render", queue=PARTS)
        def render(n: int) -> int:
            """Return the number: the test settles the job itself."""
            return n

        self.task = render.with_options(expires=expires_s, max_attempts=1, max_losses=1)
        self.run(self.client.calls.enqueue.many([NewJob(PARENT, PARENTS, profile("order"), "{}")]))

    def run(self, what: Any) -> Any:
        return self.client.run(what)

    def pass_time(self, ms: int) -> None:
        self.now_ms += ms
        self.control.set(CLOCK_KEY, self.now_ms)

    def at(self, moment: str) -> None:
        """Do what happens at this moment, once."""
        self.moments.pop(moment, lambda: None)()

    # The parent.

    def run_parent(self) -> bool:
        """Claim and run the parent. Return False if it cannot be claimed now."""
        claim = self.claim(PARENTS)
        if claim is None:
            return False
        if self.fails_next:
            self.fails_next = False
            self.parent = self.settle(Settlement(claim, "final", reason="given_up", error=ERROR))
            return True
        context = JobContext.of_claim(claim, "order", WORKER)
        context.steps = children.JobSteps(context, _Home(self, context))
        calls = [self.task.call(n) for n in range(self.count)]
        try:
            items = DurableSync(context.steps).map("pages", calls, min_success=0)
        except Parking as parking:
            waits = ",".join(map(str, parking.waits))
            known = context.steps.known_beside(parking.waits)
            settlement = Settlement(claim, "park", reason="parked", waits=waits, known=known)
        else:
            self.got.append([type(item.outcome).__name__ for item in items])
            settlement = Settlement(claim, "complete")
        self.parent = self.settle(settlement._replace(unsaved=context.steps.unsaved))
        return True

    def work_off(self) -> bool:
        """Run the parent until it ends. Return whether it needed no look of its own."""
        at_once = True
        for _ in range(_ROUNDS_MAX):
            while self.run_parent():
                pass
            if self.parent != "parked":
                return at_once
            at_once = False
            self.pass_time(LOOK_MS)
        raise AssertionError(f"the parent is {self.parent}")

    # Workers and operators.

    def claim(self, queue: str) -> Claim | None:
        found = self.run(claims.claim(queue, WORKER, 1)).jobs
        return found[0] if found else None

    def settle(self, settlement: Settlement) -> str:
        """Settle a claim as a worker does, with all that follows for its parent and its children. Return the answer:
        ``succeeded`` for a success that counts."""
        ((call, group),) = calls_of(WORKER, [settlement])
        outcomes: dict[str, str] = self.run(call)
        families = self.client.calls.families
        for told in calls_for(parents_of(group, outcomes), WORKER):
            self.run(told)
        for queue, ids in orphans_of(group, outcomes).items():
            self.run(families.cancel(queue, ids))
        return outcomes.get(settlement.claim.id, "succeeded")

    def succeed(self, claim: Claim | None) -> None:
        assert claim is not None
        self.settle(Settlement(claim, "complete", value=pack_result("7", "digest")))

    def fail(self, claim: Claim | None) -> None:
        assert claim is not None
        self.settle(Settlement(claim, "final", reason="given_up", error=ERROR))

    def lose(self) -> None:
        """Let the lease of the claimed child expire. Another worker claims meanwhile: no lease ends while the fleet
        seems to stand still."""
        for _ in range(4):
            self.pass_time(PARTS_LEASE_MS // 3)
            assert self.claim(PARTS) is None

    def expire(self) -> None:
        self.pass_time(round(self.expires_s * 1000) + 1)
        assert self.claim(PARTS) is None

    def delete_parts(self) -> None:
        """Delete the queue of the children."""
        calls = self.client.calls
        deletion = Deletion(calls.delivery, calls.admin, calls.reads)
        self.run(deletion.empty(PARTS))
        self.run(deletion.delete(PARTS))

    # What happened.

    def events(self, queue: str, job_id: str) -> Counter[str]:
        """Return how often each event of a job is in the queue's log."""
        log = self.control.xrange(queue_keys(queue)("outbox"))
        return Counter(
            str(entry.event)
            for entry in (decode(*each) for each in log)
            for event in entry.jobs
            if event.job_id == job_id
        )

    def outcome(self, queue: str, job_id: str) -> str:
        """Return how a job has ended: ``Absent`` if Redis does not know it, ``alive`` if it has not."""
        found = self.run(self.client.calls.endings.look(queue, [job_id]))
        return type(found[job_id]).__name__ if job_id in found else "alive"

    def close(self) -> None:
        self.client.close()
        self.app.close()
        self.control.close()


@contextlib.contextmanager
def family(url: str, count: int = 1, expires_s: float = EXPIRES_S) -> Iterator[Family]:
    """Yield a parent with ``count`` children. It is enqueued and has not run. Its children have a deadline."""
    made: Family | None = None
    clock = SimpleNamespace(time=lambda: START_MS / 1000 if made is None else made.now_ms / 1000)
    with (
        mock.patch.object(result_reads, "look_program", return_value=LOOK),
        mock.patch.object(children, "time", clock),
    ):
        made = Family(url, count, expires_s)
        try:
            yield made
        finally:
            made.close()
