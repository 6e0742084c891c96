"""The actors of a simulation of families: workers of both queues, a producer of parents, an operator, and mirrors."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

from rq_core import errors
from rq_core.app.handlers.handler_setup import now
from rq_core.connections.client import Client
from rq_core.model.job import Claim, NewJob, read_spec
from rq_core.model.result_encoding import pack_result
from rq_core.model.settings import SETTINGS
from rq_core.model.table.machine import State
from rq_core.protocol.calls.admin import Change
from rq_core.protocol.engine.plan import Patience, Plan
from rq_core.protocol.operations import Operations
from rq_core.worker.child_ends import ChildEnds
from rq_core.worker.settlement import Settlement, calls_of, claim_call, successes_in
from tests.rigs.simulator import durable
from tests.rigs.simulator.actors import FOREVER, Actor, MirrorProcess, Operator, Producer, Worker
from tests.rigs.simulator.families import calls
from tests.rigs.simulator.families.handlers import FamilyHandler
from tests.rigs.simulator.families.shards import PARENTS, PARTS, QUEUES
from tests.rigs.simulator.strand import Sleep, Strand
from tests.rigs.simulator.watch import Violated

if TYPE_CHECKING:
    from tests.rigs.simulator.families.judge import Cancel
    from tests.rigs.simulator.families.simulation import FamilySimulation

ROOM: Final = SETTINGS["kept_max_bytes"].default
LITTLE_ROOM: Final = 600
"""The smaller limit (bytes) on kept results. One result hardly fits."""
BACKLOG: Final = SETTINGS["backlog_max_jobs"].default


# --- Workers ------------------------------------------------------------------------------------


class _StrandClient:
    """The client of the strand that uses it, with the methods that ChildEnds awaits. No method ever suspends."""

    def __init__(self) -> None:
        self._strand = threading.local()

    def lend(self, client: Client) -> None:
        """Let the strand that calls this method use a client."""
        self._strand.client = client

    @property
    def _client(self) -> Client:
        found: Client = self._strand.client
        return found

    @property
    def calls(self) -> Operations:
        return self._client.calls

    async def run(self, plan: Plan[Any]) -> Any:
        return self._client.run(plan)

    async def carry_out(self, sent: Sequence[Any]) -> Any:
        return self._client.run(self.calls.delivery.carry_out(sent))


class StrandChildEnds(ChildEnds):
    """Sends signals to parents at the ends of their children, and cancels the children of cancelled parents.

    Each task runs on a strand of its own, so any other actor may continue between two of its calls.
    """

    def __init__(self, worker: FamilyWorker) -> None:
        self._clients = _StrandClient()
        super().__init__(self._clients, worker.name)
        self._of = worker

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        worker = self._of

        def body(strand: Strand) -> None:
            with worker.seat(strand) as seat:
                assert seat.client is not None
                self._clients.lend(seat.client)
                now(work)

        worker.add_strand("ends", body, work.close)

    def note(
        self,
        settled: Sequence[Settlement],
        outcomes: Mapping[str, str],
        signalled: Collection[str] = (),
    ) -> None:
        """Start the tasks for these settlements, and note which of their jobs were cancelled."""
        family, name = self._of.family, self._of.name
        self._heads = [
            cancel
            for claim, *_ in settled
            if outcomes.get(claim.id) == "cancelled"
            for cancel in family.cancels_of(claim.queue, [claim.id], name)
        ]
        super().note(settled, outcomes, signalled)

    def _cancel(self, orphans: Mapping[str, Sequence[str]]) -> Coroutine[Any, Any, None]:
        return self._cancel_of(self._heads, orphans)

    async def _cancel_of(
        self, heads: Sequence[Cancel], orphans: Mapping[str, Sequence[str]]
    ) -> None:
        await super()._cancel(orphans)
        self._of.family.note_cancelled(heads)


class FamilyWorker(Worker):
    """A worker of both queues. Each queue has turns of its own, as in a cluster."""

    def bodies(self) -> dict[str, Callable[[Strand], None]]:
        found = super().bodies()
        self.ends = StrandChildEnds(self)
        self.unbegun: list[tuple[Strand, Callable[[], None]]] = []
        self.resting: dict[str, Strand] = {}
        """The strands that rest between two turns, by queue."""
        turns = {f"{self.role}.{queue}": partial(self.work_on, queue=queue) for queue in QUEUES}
        return turns | {f"{self.role}.leases": found[f"{self.role}.leases"]}

    @property
    def family(self) -> FamilySimulation:
        """Return the simulation."""
        return cast("FamilySimulation", self.simulation)

    def add_strand(
        self, name: str, body: Callable[[Strand], None], drop: Callable[[], None] = lambda: None
    ) -> None:
        """Begin a strand beside the turns. ``drop`` is called if the strand is killed before it begins."""
        self.strands = [strand for strand in self.strands if not strand.done]

        def begun(strand: Strand) -> None:
            self.unbegun = [each for each in self.unbegun if each[0] is not strand]
            body(strand)

        strand = Strand(f"{self.role} {name}", begun)
        self.strands.append(strand)
        self.unbegun.append((strand, drop))

    def crash(self) -> None:
        super().crash()
        for _, drop in self.unbegun:
            drop()
        self.unbegun = []

    def work_on(self, strand: Strand, *, queue: str) -> None:
        """Make the turns of one queue."""
        client = self.client(strand, FOREVER, f"{self.name}.{queue}")
        client.run(client.calls.delivery.handshake(queue))
        while True:
            self.turn_on(client, queue)
            pause = 600 if self.healing else self.random.choice((10, 60, 250))
            looks = self.now_ms + min(pause, self.simulation.lease_ms // 3)
            self.rest(strand, queue, looks)

    def rest(self, strand: Strand, queue: str, looks_ms: int) -> None:
        """Stop between two turns of a queue, until a handler of the queue ends, at ``looks_ms`` at the latest.

        The end of a parent's handler is not known in advance; `wake` ends the rest. If the worker looked again and
        again instead, it would leave the handler and the heartbeat almost no steps under the policy ``pct``.
        """
        runs = [run for run in self.held.values() if run.claim.queue == queue]
        if any(run.handler is not None and run.handler.outcome for run in runs):
            looks_ms = self.now_ms
        ends_ms = min((r.ends_ms for r in runs if r.handler is None), default=looks_ms)
        self.resting[queue] = strand
        strand.wait(Sleep(max(min(looks_ms, ends_ms), self.now_ms + 1)))
        del self.resting[queue]

    def wake(self, queue: str) -> None:
        """End the rest between two turns of a queue, because the handler of a parent has ended."""
        strand = self.resting.get(queue)
        if strand is not None:
            strand.point = Sleep(self.now_ms)

    def turn_on(self, client: Client, queue: str) -> None:
        """Settle and claim jobs of one queue in one round trip."""
        finished = [self.with_children(each) for each in self.finished(queue)]
        successes, others = successes_in(finished, {queue})
        reported = successes.get(queue, [])
        settling = calls_of(self.name, others)
        held = sum(run.claim.queue == queue for run in self.held.values())
        everything: list[Any] = [call for call, _ in settling]
        everything.append(claim_call(queue, self.name, self.CONCURRENCY - held, reported))
        results = client.run(client.calls.delivery.carry_out(everything))
        for result in results:
            if isinstance(result, errors.RqCoreError):
                raise Violated(f"{self.name} was told {result!r}") from result
        for (_, group), outcomes in zip(settling, results, strict=False):
            for settlement in group:
                self.settled(settlement, outcomes.get(settlement.claim.id), client)
            self.ends.note(group, outcomes)
        for settlement in reported:
            self.settled(settlement, results[-1].refused.get(settlement.claim.id), client)
        self.ends.note(reported, results[-1].refused)
        for claim in results[-1].jobs:
            self.start(claim)

    def with_children(self, settlement: Settlement) -> Settlement:
        """Return the settlement of a parent. It names the children whose success is not saved."""
        handler = self.held[f"{settlement.claim.fence} {settlement.claim.id}"].handler
        steps = None if handler is None else handler.context.steps
        return settlement if steps is None else settlement._replace(unsaved=steps.unsaved)

    def handler(self, claim: Claim, verdict: str, fails_at: int | None) -> durable.Handler:
        return FamilyHandler(self, claim, verdict, fails_at)

    def value(self, claim: Claim) -> str:
        """Return a result that names the child and its claim, or an empty text if the result is not kept.

        A few results are too large to be kept.
        """
        keeps = read_spec(claim.spec).keeps
        if not keeps:
            return ""
        tag, index = calls.place_of(claim)
        value = pack_result(json.dumps([tag, index, claim.fence, self.name]), keeps)
        return "!too_large" if self.random.random() < 0.05 else value


# --- People -------------------------------------------------------------------------------------


class FamilyProducer(Producer):
    """Enqueues parents, some of them twice with the same id, and cancels families."""

    def work(self, strand: Strand) -> None:
        client = self.client(strand, Patience(unsent=0.4, unknown=1.5))
        mine: list[str] = []
        while not self.healing:
            try:
                if mine and self.random.random() < 0.2:
                    cancel_families(self, client, PARENTS, [self.random.choice(self.best(mine))])
                else:
                    self.enqueue(client, mine)
            except (errors.ServerUnavailable, errors.OutcomeUnknown):
                pass
            self.sleep(strand, self.random.choice((5, 40, 150, 600)))

    def with_id(self, _job: NewJob, job_id: str) -> NewJob:
        """Return the parent with this id. The id determines which children it has."""
        family = cast("FamilySimulation", self.simulation)
        return family.parent_with(job_id)

    def best(self, mine: list[str]) -> list[str]:
        """Return the parents that are parked, or all parents if none is parked."""
        records = self.simulation.watch_of(PARENTS).records
        parked = [i for i in mine if i in records and records[i].state is State.PARKED]
        return parked or mine


def cancel_families(actor: Actor, client: Client, queue: str, ids: Sequence[str]) -> None:
    """Cancel jobs and their children, and tell the simulation when it is done."""
    simulation = cast("FamilySimulation", actor.simulation)
    outcomes = client.run(client.calls.families.cancel(queue, ids, why="not wanted"))
    ended = [each for each in ids if outcomes[each] == "cancelled"]
    simulation.note_cancelled(simulation.cancels_of(queue, ended, actor.name))


class FamilyOperator(Operator):
    """Pauses queues, lets the log be full for a while, and cancels, requeues, prunes and edits parents and children."""

    def work(self, strand: Strand) -> None:
        client = self.client(strand, FOREVER)
        while not self.healing:
            self.do_something(client)
            self.sleep(strand, self.random.choice((20, 150, 500)))
        for queue in QUEUES:
            settings = {"paused": 0, "backlog_max_jobs": BACKLOG, "kept_max_bytes": ROOM}
            client.run(client.calls.admin.configure(queue, settings))

    def do_something(self, client: Client) -> None:
        admin, families = client.calls.admin, client.calls.families
        queue = self.random.choice((PARTS, PARTS, PARENTS))
        match self.random.choice(
            (
                "pause",
                "room",
                "backlog",
                "cancel",
                "family",
                "requeue",
                "requeue",
                "revive",
                "prune",
                "edit",
            )
        ):
            case "pause":
                client.run(admin.configure(queue, {"paused": self.random.choice((0, 0, 1))}))
            case "room":
                room = self.random.choice((LITTLE_ROOM, ROOM, ROOM))
                family = cast("FamilySimulation", self.simulation)
                family.had_little_room = family.had_little_room or room == LITTLE_ROOM
                client.run(admin.configure(PARTS, {"kept_max_bytes": room}))
            case "backlog":
                bound = self.random.choice((1, BACKLOG, BACKLOG))
                client.run(admin.configure(PARTS, {"backlog_max_jobs": bound}))
            case "cancel" if ids := self.some(PARTS):
                cancel_families(self, client, PARTS, ids)
            case "family" if ids := self.some(PARENTS, State.PARKED):
                cancel_families(self, client, PARENTS, ids[:1])
            case "requeue" if ids := self.some(queue, State.DEAD):
                client.run(families.requeue(queue, ids, why="again"))
            case "revive" if ids := self.some(PARTS, State.DEAD):
                client.run(admin.requeue(PARTS, ids, why="again"))
            case "prune" if ids := self.some(queue, State.DEAD):
                client.run(admin.prune(queue, ids[:1]))
            case "edit" if ids := self.some(PARTS):
                change = Change("", "", self.random.choice(("+50", "+1000")))
                try:
                    client.run(admin.edit(PARTS, ids, change))
                except errors.AuditBacklogFull:
                    return

    def some(self, queue: str, state: State | None = None) -> list[str]:
        """Return up to three jobs of a queue that are in this state. With None, most often each of them is alive."""
        records = self.simulation.watch_of(queue).records
        found = [i for i in sorted(records) if records[i].state is (state or records[i].state)]
        if state is None and self.random.random() < 0.8:
            found = [i for i in found if records[i].state not in (None, State.DEAD)]
        return self.random.sample(found, min(len(found), self.random.choice((1, 1, 3))))


class PartsMirror(MirrorProcess):
    """A mirror of the children's queue."""

    queue = PARTS
