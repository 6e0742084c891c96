"""The actors of a simulation: producers, workers, an operator, and mirrors.

They use the project's own code: its plans, its clients, the settlements of a worker, the extension of leases, and the
mirror. Only user code is invented: the jobs, and how long each handler takes and how it ends.
"""

from __future__ import annotations

import json
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from sqlalchemy.exc import OperationalError

from rq_core import errors
from rq_core.app.limits.lane_assignment import full_rules
from rq_core.connections.client import Client
from rq_core.connections.connection import Connection
from rq_core.connections.transport import Meanwhile
from rq_core.model.job import Claim, NewJob, profile, read_spec, ties_of
from rq_core.model.keys import queue_keys
from rq_core.model.limits.scopes import lane_name
from rq_core.model.result_encoding import DIGEST, FULL, pack_result
from rq_core.model.settings import SETTINGS
from rq_core.model.table.machine import Priority
from rq_core.protocol.calls.admin import Change
from rq_core.protocol.engine.plan import Patience, Plan
from rq_core.protocol.operations import Operations
from rq_core.signals import JobCancelled, LeaseLost
from rq_core.worker.execution.parked_boxes import ParkedBoxes
from rq_core.worker.liveness.heartbeat import BEAT_AGAIN_S, LeaseKeeper
from rq_core.worker.settlement import Settlement, calls_of, claim_call, spends_of, successes_in
from sql_audit.mirror.reading import BatchLimits
from sql_audit.mirror.redis_access import Outbox
from sql_audit.mirror.turn import TurnOutcome
from sql_audit.store.connection.database import Database
from tests.kit.fleet import QUEUE
from tests.rigs.simulator import breakers, costs, durable, schedules
from tests.rigs.simulator.strand import Point, Request, Sleep, Step, Strand
from tests.rigs.simulator.watch import Violated

if TYPE_CHECKING:
    from tests.rigs.simulator.simulation import Simulation

L = TypeVar("L", bound=Connection)

FOREVER: Final = Patience(unsent=float("inf"), unknown=float("inf"))
RATE: Final = "tenant@10s"
ERROR: Final = '{"type":"ValueError","message":"no"}'


class Waiting(Protocol):
    """A strand (a thread that runs step by step), or an object that stops a strand."""

    def wait(self, point: Point, /) -> Any:
        """Stop the strand until the simulation resumes it."""
        ...


class StepTransport:
    """A transport that stops the strand at every round trip. Another actor may continue there."""

    one_slot = False

    def __init__(self, strand: Waiting) -> None:
        self._strand = strand

    def exchange(
        self,
        commands: Sequence[Sequence[Any]],
        meanwhile: Meanwhile = None,
        _patience: Patience | None = None,
    ) -> list[Any]:
        if meanwhile is not None:
            meanwhile()
        replies: list[Any] = self._strand.wait(Request([list(each) for each in commands]))
        return replies

    def block(self, _command: Sequence[Any], _seconds: float) -> Any:
        raise AssertionError("actors look again instead of waiting in Redis")

    def place(self, _key: str) -> object:
        return None

    def new_connection(self, _key: str, _kind: Callable[[Any], L]) -> L | None:
        return None

    def is_current(self, _line: Connection) -> bool:
        return True

    def close(self) -> None:
        pass


class Actor(ABC):
    """One process of the simulation. It may be killed at any stop, and then starts again under another name."""

    def __init__(self, simulation: Simulation, role: str) -> None:
        self.simulation = simulation
        self.role = role
        self.random = random.Random(f"{simulation.seed} {role}")
        self.boots = 0
        self.strands: list[Strand] = []
        self.begin()

    @property
    def name(self) -> str:
        """Return the name of the process, which is different after each start."""
        return f"{self.role}.{self.boots}"

    @property
    def now_ms(self) -> int:
        return self.simulation.world.now_ms

    @property
    def healing(self) -> bool:
        """Return whether the simulation is in its last part, in which actors begin no new work."""
        return self.simulation.healing

    @property
    def running(self) -> bool:
        return any(not strand.done for strand in self.strands)

    def begin(self) -> None:
        self.boots += 1
        self.strands = [Strand(name, body) for name, body in self.bodies().items()]

    def crash(self) -> None:
        for strand in self.strands:
            strand.crash()

    @abstractmethod
    def bodies(self) -> dict[str, Callable[[Strand], None]]:
        """Return the functions that this actor runs. The keys are the names of their strands."""

    def client(self, strand: Waiting, patience: Patience, name: str | None = None) -> Client:
        """Return a client that stops its strand at each round trip and at each pause."""
        world = self.simulation.world
        delivery = self.simulation.plant.delivery(
            url=world.url,
            name=name or self.name,
            patience=patience,
            clock=world.seconds,
            scripts=self.simulation.plant.scripts,
        )
        calls = Operations(delivery)

        def now_ms(queue: str) -> Plan[int]:
            """Make the round trip of Reads.now_ms, and return the simulated time (ms) of the server."""
            yield from delivery.ask([["HGET", queue_keys(queue)("meta"), "epoch"]], queue)
            return self.simulation.world_of(queue).server_ms

        calls.reads.now_ms = now_ms  # type: ignore[method-assign]
        return Client(
            world.url,
            calls=calls,
            transport=self.simulation.transport(strand),
            sleep=lambda seconds: self.sleep(strand, round(seconds * 1000)),
        )

    def sleep(self, strand: Waiting, ms: int) -> None:
        strand.wait(Sleep(self.now_ms + max(ms, 1)))


# --- Producers ----------------------------------------------------------------------------------


class Producer(Actor):
    """Enqueues jobs of all kinds, sometimes with an id that is in use, and cancels some jobs."""

    def bodies(self) -> dict[str, Callable[[Strand], None]]:
        return {self.role: self.work}

    def work(self, strand: Strand) -> None:
        client = self.client(strand, Patience(unsent=0.4, unknown=1.5))
        mine: list[str] = []
        while not self.healing:
            try:
                if mine and self.random.random() < 0.15:
                    client.run(client.calls.admin.cancel(QUEUE, self.random.sample(mine, 1)))
                else:
                    self.enqueue(client, mine)
            except (errors.ServerUnavailable, errors.OutcomeUnknown):
                pass
            self.sleep(strand, self.random.choice((1, 20, 100, 400)))

    def enqueue(self, client: Client, mine: list[str]) -> None:
        told = self.simulation.told
        count = self.random.choice((1, 1, 1, 2, 5))
        jobs = [self.simulation.new_job(self.random) for _ in range(count)]
        if mine and not self.simulation.lost and self.random.random() < 0.2:
            # Its own job once more, as somebody does who was told nothing.
            jobs[0] = self.with_id(jobs[0], self.random.choice(mine))
        fresh = {job.id for job in jobs} - told.attempted
        told.attempted |= fresh
        self.simulation.sent.update(job.id for job in jobs)
        told.refused -= {job.id for job in jobs}
        told.turned_away -= {job.id for job in jobs}
        mine += fresh
        mine.sort()
        try:
            accepted = client.run(client.calls.enqueue.many(jobs))
        except errors.ServerUnavailable:
            told.refused |= fresh
            raise
        told.acknowledged |= set(accepted.ids)
        kept_out = (*accepted.discarded, *accepted.rejected, *accepted.held)
        told.turned_away |= {i for i, _ in kept_out} & fresh

    def with_id(self, job: NewJob, job_id: str) -> NewJob:
        """Return the job that is sent under an id that is in use."""
        return job._replace(id=job_id)


def make_job(rng: random.Random, job_id: str) -> NewJob:
    """Return a random job with up to three scopes. Some jobs are delayed. Some are discarded or rejected if a scope is
    full."""
    task, tenant = rng.choice(("a", "a", "b")), rng.choice(("x", "x", "y"))
    priority = rng.choice((*(["normal"] * 4), "critical", "high", "low"))
    made = profile(task, Priority(priority), rng.choice((1, 3, 3)), rng.choice((1, 2, 3)))
    possible = [f"task={task}", f"tenant={tenant}", "host=h", f"{RATE}={tenant}"]
    scopes = sorted(rng.sample(possible, rng.choice((0, 0, 1, 2, 3))))
    lane = lane_name(made.rank, scopes)
    delay = rng.choice((0, 0, 0, 0, 150, 2_000))
    rules = ""
    if lane and not delay and rng.random() < 0.15:
        rules = full_rules([(rng.choice(("discard", "reject")), rng.choice(scopes))])
    thread = "true" if rng.random() < 0.4 else "false"
    return NewJob(job_id, QUEUE, made, f'{{"thread":{thread}}}', delay, lane, rules)


def tie(job: NewJob, dice: random.Random) -> NewJob:
    """Return the job with a unique name, a deadline, both or neither, at random."""
    how = dice.choice(("", "", "keep", "replace"))
    expires_ms = dice.choice((0, 0, 0, 300, 3_000))
    if job.full or 0 < expires_ms <= job.delay_ms:
        return job
    name = f"{job.profile.task}/{dice.choice('mno')}" if how else ""
    return job._replace(ties=ties_of(unique=how, expires_in_ms=expires_ms), name=name)


def keep(job: NewJob, dice: random.Random) -> NewJob:
    """Return the job with a random time (ms) to keep its result, or unchanged."""
    keep_ms = dice.choice((0, 300, 3_000, 10**9))
    if not keep_ms:
        return job
    ties = json.loads(job.ties or "{}")
    ties |= json.loads(ties_of(keep_ms=keep_ms, audit_result=dice.choice((DIGEST, DIGEST, FULL))))
    return job._replace(ties=json.dumps(ties, separators=(",", ":")))


# --- Workers ------------------------------------------------------------------------------------


@dataclass
class Run:
    """A handler that runs in a simulated worker."""

    claim: Claim
    ends_ms: int
    verdict: str
    lost: bool = False
    cancelled: bool = False
    handler: durable.Handler | None = None
    """The handler, if the job is durable. It ends by itself, whatever ``ends_ms`` says."""

    @property
    def thread(self) -> bool:
        """Return whether the handler runs in a thread. Its outcome is then reported even if its lease is lost."""
        return '"thread":true' in read_spec(self.claim.spec).args_json


@dataclass(frozen=True)
class Line:
    """A record that a handler writes when it begins or ends."""

    kind: str
    """The kind of record: began or ended."""
    job_id: str
    fence: str
    worker: str


VERDICTS: Final = (
    *(["complete"] * 12), "retry", "retry", "final", "shutdown", "unknown_task", "suspect",
)  # fmt: skip


HANDLERS_MS: Final = (5, 50, 200, 800, 2_000)


class Worker(Actor):
    """A worker. In each turn it settles and claims jobs in one round trip. If jobs report costs, it first sends the
    costs in another round trip. A second thread extends its leases."""

    CONCURRENCY = 3

    def bodies(self) -> dict[str, Callable[[Strand], None]]:
        self.held: dict[str, Run] = {}
        """The running handlers, by the fence and the id of the job."""
        self.keeper: LeaseKeeper | None = None
        self.seats: list[durable.Seat] = []
        """The clients that no handler of a durable job uses now."""
        self.seats_made = 0
        self.parked = ParkedBoxes(clock=lambda: self.simulation.world.server_ms / 1000)
        return {self.role: self.work, f"{self.role}.leases": self.keep}

    # The heartbeat.

    def keep(self, strand: Strand) -> None:
        client = self.client(strand, Patience(unsent=1.0, unknown=1.0), f"{self.name}.leases")
        self.keeper = LeaseKeeper(
            client,
            self.name,
            on_lost=lambda _queue, job, fence: self.note(job, fence, "lost"),
            on_cancelling=lambda _queue, job, fence: self.note(job, fence, "cancelled"),
            clock=self.simulation.world.seconds,
        )
        self.keeper.interval = self.simulation.lease_ms / 3000
        pause = self.keeper.interval
        while True:
            self.sleep(strand, round(pause * 1000))
            pause = min(self.keeper.interval, BEAT_AGAIN_S)
            try:
                self.keeper.beat()
                pause = self.keeper.interval
            except errors.RqCoreError:
                pass

    def note(self, job: str, fence: str, what: str) -> None:
        run = self.held.get(f"{fence} {job}")
        if run is not None:
            setattr(run, what, True)
            if run.handler is not None:
                run.handler.end(LeaseLost() if what == "lost" else JobCancelled())

    # The turns.

    def work(self, strand: Strand) -> None:
        client = self.client(strand, FOREVER)
        client.run(client.calls.delivery.handshake(QUEUE))
        code = self.simulation.code_of(self.name)
        if code is not None and not self.healing:
            schedules.declare(client, code)
        while True:
            self.turn(client)
            if code is not None and not self.healing and self.random.random() < schedules.AGAIN:
                schedules.declare(client, code)
            pause = 400 if self.healing else self.random.choice((10, 60, 250))
            # As a worker does, every third of a lease at least: no lease ends while the fleet seems to stand still.
            looks = self.now_ms + min(pause, self.simulation.lease_ms // 3)
            ends = min((run.ends_ms for run in self.held.values()), default=looks)
            strand.wait(Sleep(max(min(looks, ends), self.now_ms + 1)))

    def turn(self, client: Client) -> None:
        finished = self.finished(QUEUE)
        if spends := spends_of(self.name, finished):
            client.run(client.calls.delivery.carry_out(spends))
        successes, others = successes_in(finished, {QUEUE})
        reported = successes.get(QUEUE, [])
        calls = calls_of(self.name, others)
        room = self.CONCURRENCY - len(self.held)
        everything: list[Any] = [call for call, _ in calls]
        everything.append(claim_call(QUEUE, self.name, room, reported))
        results = client.run(client.calls.delivery.carry_out(everything))
        for result in results:
            if isinstance(result, errors.RqCoreError):
                raise Violated(f"{self.name} was told {result!r}") from result
        for (_, group), outcomes in zip(calls, results, strict=False):
            for settlement in group:
                self.settled(settlement, outcomes.get(settlement.claim.id), client)
        for settlement in reported:
            self.settled(settlement, results[-1].refused.get(settlement.claim.id), client)
        for claim in results[-1].jobs:
            self.start(claim)
        if results[-1].ticks:
            schedules.serve(client, self.name)

    def start(self, claim: Claim) -> None:
        self.simulation.write(Line("began", claim.id, claim.fence, self.name))
        lasts, verdict = 5, "complete"
        if not self.healing:
            lasts, verdict = self.random.choice(HANDLERS_MS), self.random.choice(VERDICTS)
        key = f"{claim.fence} {claim.id}"
        if key in self.held:
            raise Violated(f"{self.name} was given {claim.id} twice by one claim")
        self.held[key] = Run(claim, self.now_ms + lasts, verdict)
        if moves := durable.moves_of(claim):
            self.begin_handler(self.held[key], moves)
        if self.keeper is not None:
            self.keeper.hold(claim, None)

    def begin_handler(self, run: Run, moves: Sequence[str]) -> None:
        """Start the handler of a durable job on a strand of its own."""
        fails_at = None if run.verdict == "complete" else self.random.randrange(len(moves))
        run.handler = self.handler(run.claim, run.verdict, fails_at)
        self.simulation.handlers[run.claim.id, run.claim.fence] = run.handler
        self.strands = [strand for strand in self.strands if not strand.done]
        self.strands.append(Strand(f"{self.role} {run.claim.id}", run.handler.run))

    def handler(self, claim: Claim, verdict: str, fails_at: int | None) -> durable.Handler:
        """Return the handler for a claim of a durable job."""
        return durable.Handler(self, claim, verdict, fails_at)

    @contextmanager
    def seat(self, strand: Strand) -> Iterator[durable.Seat]:
        """Lend a client to the handler on this strand during the block."""
        if not self.seats:
            self.seats_made += 1
            made = durable.Seat()
            made.client = self.client(made, FOREVER, f"{self.name}.seat-{self.seats_made}")
            self.seats.append(made)
        seat = self.seats.pop()
        seat.strand = strand
        yield seat
        self.seats.append(seat)

    def finished(self, queue: str) -> list[Settlement]:
        """Return the settlements of the handlers of this queue's jobs that have ended.

        A handler on the event loop gets no settlement if its lease is lost.
        """
        found = []
        for key, run in list(self.held.items()):
            if run.claim.queue != queue:
                continue
            if run.lost and not run.thread:
                self.drop(key)
            elif run.handler is not None:
                found += self.ended(key, run, run.handler)
            elif run.cancelled and not run.thread:
                found.append(Settlement(run.claim, "final", 0, "cancelled", ERROR))
            elif run.ends_ms <= self.now_ms:
                found.append(self.settlement(run))
        if self.simulation.costly:
            found = [self.with_truth(settlement) for settlement in found]
        if self.simulation.guarded and not self.healing:
            found = [self.with_failure(settlement) for settlement in found]
        for settlement in found:
            if settlement.verdict == "complete":
                claim = settlement.claim
                self.simulation.write(Line("ended", claim.id, claim.fence, self.name))
        return found

    def with_truth(self, settlement: Settlement) -> Settlement:
        """Let the handler say what its job has really taken, or pause the rate. It says the same amount each time."""
        claim = settlement.claim
        dice = random.Random(f"{self.simulation.seed} {claim.id} {claim.fence} truth")
        may_pause = not self.healing and settlement.verdict == "complete"
        return costs.add_truth(
            settlement, dice, may_pause=may_pause and not durable.moves_of(claim)
        )

    def with_failure(self, settlement: Settlement) -> Settlement:
        """Let the handler of a job with a breaker fail, or pause the scope. The handler does the same each time."""
        claim = settlement.claim
        if settlement.verdict != "complete" or settlement.value or durable.moves_of(claim):
            return settlement
        dice = random.Random(f"{self.simulation.seed} {claim.id} {claim.fence} failure")
        return breakers.add_failure(settlement, dice)

    def ended(self, key: str, run: Run, handler: durable.Handler) -> list[Settlement]:
        """Return the settlement of a durable job's handler, in a list.

        The list is empty if the handler still runs, or has lost its lease.
        """
        match handler.outcome:
            case "":
                return []
            case "lost":
                self.drop(key)
                return []
            case "park":
                park = Settlement(run.claim, "park", reason="parked", waits=handler.waits)
                return [park._replace(known=handler.known)]
            case "cancelled":
                return [Settlement(run.claim, "final", 0, "cancelled", ERROR)]
        run.verdict = handler.outcome
        return [self.settlement(run)._replace(known=handler.known)]

    def settlement(self, run: Run) -> Settlement:
        match run.verdict:
            case "complete":
                return Settlement(run.claim, "complete", value=self.value(run.claim))
            case "retry" | "final":
                delay = self.random.choice((0, 300, 1_500))
                return Settlement(run.claim, run.verdict, delay, "given_up", ERROR)
            case "suspect":
                return Settlement(run.claim, "rollback", 500, "suspect")
            case reason:
                return Settlement(run.claim, "rollback", 0, reason)

    def value(self, claim: Claim) -> str:
        """Return a value for the handler's result, or an empty text if the result is not kept."""
        keeps = read_spec(claim.spec).keeps
        if not keeps:
            return ""
        size = self.random.choice((0, 0, 200, 900))
        value = pack_result(json.dumps(f"{claim.id} {claim.fence} {self.name} {'x' * size}"), keeps)
        if self.random.random() < 0.2:
            value = "!too_large"
        self.simulation.returned[claim.id, claim.fence, self.name] = value
        return value

    def settled(self, settlement: Settlement, refused: str | None, client: Client) -> None:
        claim = settlement.claim
        key = f"{claim.fence} {claim.id}"
        if refused == "behind":
            # The claim stays in force, and the next turn settles it again.
            handler = self.held[key].handler
            assert handler is not None
            handler.save_again(client)
            return
        self.drop(key)
        if settlement.verdict == "park" and refused in ("stale", "gone"):
            self.simulation.refused["park"] += 1
        if settlement.verdict == "complete" and refused is None:
            self.simulation.completed.append((claim.id, claim.fence))

    def drop(self, key: str) -> None:
        run = self.held.pop(key)
        if self.keeper is not None:
            self.keeper.drop(run.claim)


# --- A person -----------------------------------------------------------------------------------

CAPS: Final = ("0", "1", "1", "2", "3", "none")
RATES: Final = ("5/10000ms/1", "20/10000ms/3", "0", "none")
ROOMS: Final = (0, 900, 2_500, 8_000, SETTINGS["kept_max_bytes"].default)
"""The possible limits (bytes) on kept results. One result takes some 400 to 1,400 bytes."""


class Operator(Actor):
    """Changes limits, and pauses, edits, requeues and prunes at random. At the end it lets all jobs run."""

    def bodies(self) -> dict[str, Callable[[Strand], None]]:
        return {self.role: self.work}

    def work(self, strand: Strand) -> None:
        client = self.client(strand, FOREVER)
        while not self.healing:
            self.do_something(client)
            self.sleep(strand, self.random.choice((20, 200, 800)))
        client.run(client.calls.admin.configure(QUEUE, {"paused": 0}))
        if self.simulation.schedules:
            schedules.remove_all(client)
        for scope, entry in client.run(client.calls.caps.stored(QUEUE)).items():
            if entry.limit.most == 0 or entry.limit.window_ms is not None:
                client.run(client.calls.caps.set(QUEUE, [(scope, "none", -1)]))

    def do_something(self, client: Client) -> None:
        some = sorted(self.simulation.told.attempted)
        some = self.random.sample(some, min(len(some), 4))
        choices = ["cap", "cap", "cap", "rate", "pause", "requeue", "prune"]
        choices += ["edit"] * (3 if self.simulation.ties else 0)
        choices += ["schedule"] * (6 if self.simulation.schedules else 0)
        choices += ["tokens"] * (3 if self.simulation.costly else 0)
        choices += ["breaker"] * (4 if self.simulation.guarded else 0)
        choices += ["room"] * (0 if self.simulation.has_room else 2)
        match self.random.choice(choices):
            case "cap":
                scope = self.random.choice(
                    ("task=a", "task=b", "tenant", "tenant=x", "host", "queue")
                )
                client.run(client.calls.caps.set(QUEUE, [(scope, self.random.choice(CAPS), -1)]))
            case "rate":
                scope = self.random.choice((RATE, f"{RATE}=x"))
                client.run(client.calls.caps.set(QUEUE, [(scope, self.random.choice(RATES), -1)]))
            case "pause":
                client.run(
                    client.calls.admin.configure(QUEUE, {"paused": self.random.choice((0, 0, 1))})
                )
            case "tokens":
                costs.change_limit(client, QUEUE, self.random)
            case "breaker":
                breakers.act(client, QUEUE, self.random)
            case "schedule":
                schedules.change_something(client, self.random)
            case "room":
                room = self.random.choice(ROOMS)
                client.run(client.calls.admin.configure(QUEUE, {"kept_max_bytes": room}))
            case "edit" if some:
                change = Change(
                    self.random.choice(("", "critical", "low")),
                    self.random.choice(("", "+0", "+200")),
                    self.random.choice(("", "", "+1000")),
                )
                client.run(client.calls.admin.edit(QUEUE, some, change))
            case "requeue" if some:
                client.run(client.calls.admin.requeue(QUEUE, some))
            case "prune" if some:
                client.run(client.calls.admin.prune(QUEUE, some[:1]))


# --- Mirrors ------------------------------------------------------------------------------------


class MirrorProcess(Actor):
    """A process with the real mirror. It stops after each step of the mirror's turn, and SQL may fail there."""

    queue = QUEUE

    def bodies(self) -> dict[str, Callable[[Strand], None]]:
        return {self.role: self.work}

    def work(self, strand: Strand) -> None:
        client = self.client(strand, Patience(unsent=0.5, unknown=0.5), f"{self.name}.audit")
        database = Database(self.simulation.audit_url)

        def on_step(step: str) -> None:
            strand.wait(Step(step))

        mirror = self.simulation.plant.mirror(
            Outbox(client), database, self.queue, limits=BatchLimits(events=6), on_step=on_step
        )
        try:
            while True:
                try:
                    outcome = mirror.turn().outcome
                except (errors.RqCoreError, OperationalError):
                    self.sleep(strand, 200)
                    continue
                if outcome in (TurnOutcome.IDLE, TurnOutcome.HELD):
                    self.sleep(strand, 400 if self.healing else self.random.choice((20, 150)))
        finally:
            database.close()
