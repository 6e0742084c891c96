"""Durable jobs in a simulation: their handlers, and the signals that are sent to them.

The handlers use the project's own code for steps (:mod:`rq_core.app.durable.steps`). Each handler has a strand of its
own. So any other actor may continue between two of its calls.
"""

from __future__ import annotations

import contextlib
import json
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar

from rq_core.app.durable.children import JobSteps
from rq_core.app.durable.handles import DurableSync
from rq_core.app.durable.step_calls import StepCalls
from rq_core.app.durable.step_values import NOT_DONE
from rq_core.app.handlers.context import JobContext
from rq_core.app.handlers.handler_setup import Surroundings, now
from rq_core.connections.client import Client
from rq_core.errors import QueueDamaged
from rq_core.model.durable.boxes import NOTHING_KNOWN, OVER, KnownBox
from rq_core.model.job import Claim, NewJob, read_spec
from rq_core.model.table.machine import Event
from rq_core.model.unique_names import digest_of
from rq_core.protocol.calls.boxes import SaveAnswer, Saving, Sending, Sent, refusals, save
from rq_core.protocol.engine.plan import Plan
from rq_core.protocol.operations import Operations
from rq_core.protocol.reads.box_reads import Box as Loaded
from rq_core.signals import HandlerSignal, JobCancelled, LeaseLost, Parking
from rq_core.worker.liveness.heartbeat import BEATS_IN_LEASE
from tests.rigs.judge.boxes import Box
from tests.rigs.simulator.strand import Point, Sleep, Strand

if TYPE_CHECKING:
    from tests.rigs.simulator.actors import Worker
    from tests.rigs.simulator.simulation import Simulation

T = TypeVar("T")

MOVES: Final = ("step", "step", "begun", "checked", "wait", "timed", "timed", "sleep")
TIMES_MS: Final = (100, 400, 1_500)
"""The possible durations of sleeps, and of the time limits of waits."""
SIGNALS: Final = ("yes", "no")
"""The names of the signals for which jobs wait."""
LASTS_MS: Final = (0, 0, 5, 50, 400)
"""The possible durations of steps."""
LEASE_PAUSE_MS: Final = 50
AGAIN_MS: Final = 100
"""The pause of a sender that got no answer, before it sends the signal again."""


def add_moves(job: NewJob, dice: random.Random) -> NewJob:
    """Make two of three jobs durable, at random. The arguments of such a job list the calls that its handler makes."""
    if dice.random() < 1 / 3:
        return job
    moves = [_move(dice) for _ in range(dice.choice((1, 2, 3, 3, 5)))]
    args = json.loads(job.args_json) | {"moves": moves}
    return job._replace(args_json=json.dumps(args, separators=(",", ":")))


def _move(dice: random.Random) -> str:
    kind, name, ms = dice.choice(MOVES), dice.choice(SIGNALS), dice.choice(TIMES_MS)
    said = {"wait": f"wait {name}", "timed": f"timed {name} {ms}", "sleep": f"sleep {ms}"}
    return said.get(kind, kind)


def moves_of(claim: Claim) -> list[str]:
    """Return the calls that the handler of this claim makes. A job that is not durable has none."""
    found: list[str] = json.loads(read_spec(claim.spec).args_json).get("moves", [])
    return found


@dataclass(frozen=True)
class Effect:
    """The effect of a step, and the value that the step returned."""

    job_id: str
    fence: str
    name: str
    value: str


@dataclass
class Seat:
    """A client of a worker. One handler after another uses it."""

    strand: Strand | None = None
    """The strand that uses the client now."""
    client: Client | None = None

    def wait(self, point: Point) -> Any:
        """Stop the strand that uses the client."""
        assert self.strand is not None
        return self.strand.wait(point)


class Failing(Exception):
    """Raised by a handler to fail. ``verdict`` is that of its settlement; it is never ``complete``."""

    def __init__(self, verdict: str) -> None:
        super().__init__(verdict)
        self.verdict = verdict


@dataclass(eq=False)
class Handler:
    """One run of the handler of a durable job."""

    worker: Worker
    claim: Claim
    verdict: str
    fails_at: int | None
    """The number of calls after which the handler fails. If it is None, the handler does not fail."""
    context: JobContext = field(init=False)
    strand: Strand = field(init=False)
    outcome: str = ""
    """The end of the handler: complete, park, lost, cancelled, or the verdict of its failure."""
    waits: str = ""
    known: KnownBox = NOTHING_KNOWN
    seen: list[tuple[str, str]] = field(default_factory=list)
    """The names of the entries that the handler has passed, with the digest of each value."""

    def __post_init__(self) -> None:
        self.context = JobContext.of_claim(self.claim, "a", self.worker.name)

    def home(self, seat: Seat) -> StrandHome:
        """Return the part of the worker that the steps of this run need."""
        return StrandHome(self, seat)

    def end(self, why: HandlerSignal) -> None:
        """Ask the handler to stop, for this reason."""
        self.context.tell(why)

    def run(self, strand: Strand) -> None:
        """Run the handler to its end, and note how it ended."""
        self.strand = strand
        with self.worker.seat(strand) as seat:
            self.context.steps = JobSteps(self.context, self.home(seat))
            job = DurableSync(self.context.steps)
            try:
                self._handle(job)
                self.outcome = "complete"
            except Parking as parking:
                self.outcome, self.waits = "park", ",".join(map(str, parking.waits))
                self.known = self.context.steps.known_beside(parking.waits)
                if (box := self.context.steps.box_now()) is not None:
                    self.worker.parked.keep(self.context, box)
            except LeaseLost:
                self.outcome = "lost"
            except JobCancelled:
                self.outcome = "cancelled"
            except QueueDamaged as damage:
                raise AssertionError(f"no member of a box was damaged, and {damage}") from damage
            except Failing as failing:
                self.outcome, self.known = failing.verdict, self.context.steps.known_beside(())

    def save_again(self, client: Client) -> None:
        """Save the entries that Redis has lost, so that the claim can end."""

        async def saved(context: JobContext, records: Sequence[Saving]) -> dict[int, Any]:
            found: dict[int, Any] = client.run(save(context.queue, context.worker, records))
            return found

        now(self.context.steps.save_again(saved))
        self.worker.simulation.refused["behind"] += 1

    def _handle(self, job: DurableSync) -> None:
        used: dict[str, int] = {}
        for number, move in enumerate(moves_of(self.claim)):
            if number == self.fails_at:
                raise Failing(self.verdict)
            kind, *words = move.split()
            name = {"wait": words[:1], "timed": words[:1], "sleep": ["nap"]}.get(
                kind, [f"s{number}"]
            )[0]
            used[name] = used.get(name, 0) + 1
            entry = name if used[name] == 1 else f"{name}#{used[name]}"
            self.seen.append((entry, self._done(job, kind, name, words)))

    def _done(self, job: DurableSync, kind: str, name: str, words: Sequence[str]) -> str:
        """Make one call of a durable handler, and return the digest of its value.

        Return ``over`` for a sleep, and for a wait whose time limit has passed.
        """
        if kind == "sleep":
            job.sleep(name, int(words[0]) / 1000)
            return OVER
        if kind in ("wait", "timed"):
            timeout = int(words[1]) / 1000 if kind == "timed" else None
            brought = job.wait(name, str, timeout=timeout)
            return OVER if brought is None else digest_of(json.dumps(brought))
        if kind == "begun":
            job = job.options(begin=True)
        elif kind == "checked":
            job = job.options(check=_find)
        return digest_of(json.dumps(job.step(name, _happen, self, name)))

    def happen(self, name: str) -> str:
        """Carry out the effect of a step, and return its value. Raises AssertionError if the step was saved before."""
        simulation = self.worker.simulation
        watch = simulation.watch_of(self.claim.queue)
        record = watch.records.get(self.claim.id)
        box = watch.boxes.box_of(self.claim.id)
        is_in_force = record is not None and record.fence == self.claim.fence
        if is_in_force and box is not None and box.is_saved(name):
            raise AssertionError(f"I20: step {name} of {self.claim.id} is saved, and happens again")
        effect = Effect(self.claim.id, self.claim.fence, name, f"{name} {self.claim.fence}")
        simulation.effects.append(effect)
        return effect.value

    def pause(self, ms: int) -> None:
        """Let some time pass within a step."""
        self.strand.wait(Sleep(self.worker.now_ms + ms))

    def pause_before_next_try(self, ms: int) -> None:
        """Let some time pass before the next look at the lease, or the next try of a refused save.

        In the last part of a simulation, a third of a lease passes: several handlers that try more often would take
        nearly all steps, and the heartbeat would extend no lease.
        """
        if self.worker.healing:
            ms = max(ms, self.worker.simulation.lease_ms // BEATS_IN_LEASE)
        self.pause(ms)

    def find(self, name: str) -> Any:
        """Return the value of the step's effect, or NOT_DONE if the effect has not happened."""
        for each in self.worker.simulation.effects:
            if (each.job_id, each.name) == (self.claim.id, name):
                return each.value
        return NOT_DONE


def _happen(handler: Any, name: str) -> str:
    value: str = handler.happen(name)
    ms = 5 if handler.worker.healing else handler.worker.random.choice(LASTS_MS)
    if ms:
        handler.pause(ms)
    return value


def _find(handler: Any, name: str) -> Any:
    return handler.find(name)


class StrandHome:
    """The part of a worker that the steps of a claim need. Each load or save is a round trip on the handler's
    strand."""

    is_async = False
    can_park = True
    audit_result = "digest"

    def __init__(self, handler: Handler, seat: Seat) -> None:
        self._handler = handler
        self._context = handler.context
        assert seat.client is not None
        self._client = seat.client
        self.calls = StepCalls(Surroundings(), _NO_VALUES, is_async=False)

    def _lease_holds(self) -> bool:
        keeper = self._handler.worker.keeper
        now = self._handler.worker.simulation.world.seconds()
        return (
            keeper is None
            or now - keeper.extended_at(self._context.queue) < BEATS_IN_LEASE * keeper.interval
        )

    async def lease(self) -> None:
        """Wait until the lease is in force by the worker's clock, or until the handler is asked to stop."""
        while not self._lease_holds() and not self._context.cancelled:
            self._handler.pause_before_next_try(LEASE_PAUSE_MS)

    def began(self) -> Callable[[], None]:
        """Return a function that does nothing: this handler always waits for the end of its steps."""
        return lambda: None

    async def load(self, first: int = 1) -> Loaded | None:
        """Return the saved entries of the job from number ``first`` on, or None if the claim is not in force."""
        context, worker = self._context, self._handler.worker
        parked = worker.parked.take(context) if first == 1 else None
        if parked is not None:
            worker.simulation.boxes_kept += 1
            return parked
        plan = self._client.calls.reads.box(
            context.queue, context.id, context.fence, context.worker, first=first
        )
        return self._client.run(plan)

    async def save(self, records: Sequence[Saving]) -> SaveAnswer:
        """Save entries. Return the refusals, and the entries of waits that are over, by their places in ``records``."""
        found = self._client.run(save(self._context.queue, self._context.worker, records))
        if any(each.why in ("stale", "gone") for each in refusals(found).values()):
            self._handler.worker.simulation.refused["save"] += 1
        return found

    async def ask(self, plan: Callable[[Operations], Plan[T]]) -> T:
        """Make a call to the queue, and return its answer."""
        return self._client.run(plan(self._client.calls))

    async def park(self, entry: int) -> None:
        """End the handler by the exception Parking, so that the worker parks the job."""
        why = Parking((entry,))
        self._context.tell(why)
        raise why

    async def finish(self, saving: Coroutine[Any, Any, T]) -> T:
        """Await a coroutine that saves entries."""
        return await saving

    @contextlib.asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Do nothing: this handler never makes two calls at the same time."""
        yield


_NO_VALUES: Any = None
"""The values of a process for dependencies. No step has dependencies here."""


@dataclass
class Mail:
    """The signals that were sent, and the answers that their senders got."""

    count: int = 0
    sent: list[Sending] = field(default_factory=list)
    acknowledged: list[tuple[Sending, Sent]] = field(default_factory=list)

    def next(self, job_id: str, name: str, sender: str, dice: random.Random) -> Sending:
        """Return a signal for the job: mostly a new one, sometimes one that was sent to this job before."""
        before = [each for each in self.sent if each.id == job_id and each.key]
        if before and dice.random() < 0.3:
            return dice.choice(before)
        self.count += 1
        key = f"k-{self.count}" if dice.random() < 0.7 else ""
        signal = Sending(job_id, name, key, json.dumps(f"{sender} {self.count}"))
        self.sent.append(signal)
        return signal


def problems(simulation: Simulation) -> list[str]:
    """Return as sentences the errors about signals and durable handlers at the end of a simulation."""
    return [*_mail(simulation), *_handlers(simulation)]


def _mail(simulation: Simulation) -> list[str]:
    """Compare the answers to senders with the log (I21)."""
    watch = simulation.watch
    entries = watch.entries if not simulation.lost else [*watch.entries, *watch.forgotten]
    told = {
        (event.job_id, event.fields["message"], event.fields["name"], event.fields["digest"])
        for entry in entries
        if entry.event is Event.SIGNALLED
        for event in entry.jobs
    }
    wrong = []
    for signal, sent in simulation.mail.acknowledged:
        if (signal.id, sent.number, signal.name, digest_of(signal.value)) not in told:
            wrong.append(
                f"I21: a sender was told {sent} of {signal}, and the log has no such signal"
            )
    known = {(each.id, each.name, digest_of(each.value)) for each in simulation.mail.sent}
    strange = {(job, name, digest) for job, _, name, digest in told} - known
    return wrong + [f"I21: nobody sent {each}" for each in sorted(strange)]


def _handlers(simulation: Simulation) -> list[str]:
    """Compare the runs of durable handlers with the entries that the log says were saved (I20)."""
    wrong: list[str] = []
    for key, box in sorted(simulation.watch.boxes.succeeded.items()):
        handler = simulation.handlers.get(key)
        if handler is not None:
            wrong += _passed(simulation, handler, box)
        elif box.entries:
            wrong.append(f"I20: {key} has a box with {box.entries}, and is not durable")
    for (job_id, fence), handler in sorted(simulation.handlers.items()):
        # Each signal and each step has a value of its own.
        times = Counter(digest for _, digest in handler.seen if digest != OVER)
        if twice := [digest for digest, count in times.items() if count > 1]:
            wrong.append(f"I21: one run of {job_id} ({fence}) got {twice} more than once")
        if handler.outcome == "complete" and len(handler.seen) != len(moves_of(handler.claim)):
            wrong.append(f"I20: {job_id} was completed after {handler.seen}")
    return wrong


def _passed(simulation: Simulation, handler: Handler, box: Box) -> Iterator[str]:
    """Compare a successful run with the saved entries of its job, and yield the differences."""
    job_id = handler.claim.id
    happened = {each.name for each in simulation.effects if each.job_id == job_id}
    saved = {step.name: step for step in box.entries.values()}
    for name, digest in handler.seen:
        step = saved.get(name)
        if step is None or step.digest is None:
            if not simulation.lost:
                yield f"I20: {job_id} passed {name}, which is not saved"
        elif step.digest != digest:
            yield f"I20: {job_id} got {digest} of {name}, saved is {step.digest}"
        if name.startswith("s") and name not in happened:
            yield f"I20: step {name} of {job_id} was skipped"
    if strange := saved.keys() - {name for name, _ in handler.seen}:
        yield f"I20: {job_id} has saved {sorted(strange)}, and never passed it"
