"""One simulation. Its seed determines the order of the actors, the network, and the faults.

    simulation = Simulation(Stage(url, directory), seed=7)
    simulation.run()          # raises Failed, which says how to repeat it

A run has two parts. In the first part, of a few hundred steps, the faults of the seed's profile may happen. In the
second part there are no faults and no new jobs, and all jobs must end. Then `judge` compares the records.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import random
import shutil
import sqlite3
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple
from unittest import mock

from sqlalchemy.exc import OperationalError

from rq_core.app.durable import steps
from rq_core.connections.client import Client
from rq_core.connections.transport import Transport
from rq_core.model.events import Entry
from rq_core.model.job import NewJob
from rq_core.model.schedule import tick_of
from rq_core.model.table.machine import Event
from rq_core.protocol.calls import boxes
from rq_core.protocol.engine.delivery import Delivery
from rq_core.protocol.engine.plan import Lost, Unsent
from rq_core.protocol.operations import Operations
from rq_core.protocol.reads import result_reads
from sql_audit.mirror import source_registry
from sql_audit.mirror.turn import Mirror
from sql_audit.store import migrate
from sql_audit.store.connection.background import BackgroundCall
from tests.kit.fleet import QUEUE
from tests.kit.servers import Engine
from tests.rigs.judge.told import Answers
from tests.rigs.simulator import breakers, costs, durable, judge, results, schedules
from tests.rigs.simulator.actors import (
    CAPS,
    RATE,
    RATES,
    ROOMS,
    Actor,
    Line,
    MirrorProcess,
    Operator,
    Producer,
    StepTransport,
    Waiting,
    Worker,
    keep,
    make_job,
    tie,
)
from tests.rigs.simulator.policy import Policy, policy_of
from tests.rigs.simulator.sender import Sender
from tests.rigs.simulator.strand import Fate, Request, Sleep, Step, Strand
from tests.rigs.simulator.watch import RawEntry, Violated, Watch
from tests.rigs.simulator.world import (
    START_MS,
    Dump,
    Scripts,
    World,
    simulated,
    socket_url,
    start_server,
)

DRAIN_STEPS_MAX: Final = 12_000
"""The number of steps within which all jobs must end, once no more faults happen. Seed 5292 of the families takes
9,240, more than any seed below it."""
TIED_EVERY: Final = 6
"""The number of rounds in a cycle; a round has one seed of each profile.
In one round of each cycle, jobs have names and deadlines, and are edited."""
KEPT_EVERY: Final = 11
"""The number of rounds in a cycle. In the last three rounds, results are kept. Half of these seeds have little room."""
SCHEDULED_EVERY: Final = 13
"""The number of rounds in a cycle. In two rounds of each cycle there are schedules."""
SCHEDULED_AT: Final = (2, 7)
COSTLY_EVERY: Final = 17
"""The number of rounds in a cycle. In two rounds of each cycle most jobs have costs."""
COSTLY_AT: Final = (13, 14)
GUARDED_EVERY: Final = 19
"""The number of rounds in a cycle. In two rounds of each cycle most jobs have a breaker."""
GUARDED_AT: Final = (15, 17)
DURABLE_EVERY: Final = 8
"""The number of rounds in a cycle. In one round of each cycle most jobs are durable, and are sent signals."""
DURABLE_AT: Final = 1
LOOK_EVERY: Final = 5
"""The number of script calls after which all jobs are polled, in the way of waiting callers."""
COMPARE_EVERY: Final = 40
"""The number of script calls after which all indexes are compared with the log."""


@dataclass(frozen=True)
class Plant:
    """The code that is simulated. Tests replace parts of it by code with planted bugs."""

    scripts: Scripts = simulated
    delivery: type[Delivery] = Delivery
    mirror: Callable[..., Mirror] = Mirror


@dataclass(frozen=True)
class Stage:
    """A server, and a directory for the audit database. One simulation after another uses them."""

    url: str
    directory: Path

    @property
    def template(self) -> Path:
        """Return the path of an audit database without rows. It has the same id in each run."""
        path = self.directory / "template.db"
        if not path.exists():
            migrate.upgrade_schema(str(path))
            with contextlib.closing(sqlite3.connect(path)) as connection:
                connection.execute("UPDATE audit_meta SET audit_id = 'simulated'")
                connection.commit()
                # All in one file, so that it can be copied.
                connection.execute("PRAGMA journal_mode = DELETE")
        return path


@contextlib.contextmanager
def staged(engine: Engine | None = None) -> Iterator[Stage]:
    """Yield a new server and a directory. The directory is in memory if possible."""
    memory = Path("/dev/shm")  # noqa: S108 - mkdtemp makes it private
    base = memory if os.access(memory, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="rq-core-simulator-", dir=base) as name:
        server = start_server(Path(name), engine)
        try:
            yield Stage(socket_url(server), Path(name))
        finally:
            server.kill()


@dataclass(frozen=True)
class Profile:
    """The faults that may happen in a simulation, and how often they happen."""

    name: str
    network: float = 0.0
    """The chance that the network disturbs a round trip."""
    faults: tuple[str, ...] = ()
    """The kinds of other faults that may happen."""
    many: int = 0
    """The number of faults in one simulation, of the kinds in ``faults``."""


PROFILES: Final = (
    Profile("order"),
    Profile("network", network=0.15),
    Profile("crashes", faults=("crash", "pause", "sql"), many=8),
    Profile("pauses", network=0.05, faults=("pause", "pause", "jump"), many=6),
    Profile("failover", network=0.05, faults=("failover", "crash", "forget_scripts"), many=4),
    Profile("loss", network=0.05, faults=("restart", "restart", "flush", "crash"), many=3),
    Profile("everything", network=0.1,
        faults=("crash", "pause", "jump", "sql", "failover", "restart", "forget_scripts"), many=8),
)  # fmt: skip
LOSING: Final = frozenset({"restart", "flush"})


class Failed(AssertionError):
    """Raised if a promise does not hold for a seed."""

    def __init__(
        self, seed: int, step: int, why: str, trace: Sequence[str], world: str = ""
    ) -> None:
        super().__init__(
            f"seed {seed}, step {step}: {why}\nscripts/prove/simulate{world} --seed {seed} --trace"
        )
        self.seed = seed
        self.step = step
        self.why = why
        self.trace = trace


class Kept(NamedTuple):
    """A copy of the server's data at a step, with the log at that step."""

    dump: Dump
    log: tuple[RawEntry, ...]
    step: int


NOTHING: Final = Kept([], (), -1)


@dataclass
class Late:
    """Commands whose sender has given them up. They may still arrive at the server."""

    name: str
    commands: list[list[Any]]


@dataclass
class Result:
    """The result of the simulation of one seed."""

    seed: int
    profile: str
    policy: str
    steps: int
    digest: str
    """The SHA-256 digest of every step, the whole log and the contents of SQL."""
    counts: dict[str, int] = field(default_factory=dict)


Runnable = Strand | Late


class Simulation:
    """The simulation of one seed, on one stage."""

    option = ""
    """The option of scripts/prove/simulate that chooses this kind of simulation."""

    def __init__(
        self,
        stage: Stage,
        seed: int,
        *,
        plant: Plant | None = None,
        on_step: Callable[[str], None] = lambda _line: None,
    ) -> None:
        self.seed = seed
        self.plant = plant or Plant()
        self.stage = stage
        self.on_step = on_step
        self.random = random.Random(f"{seed} schedule")
        self.trace: list[str] = []
        self.world = World(stage.url)
        self.worlds = [self.world]
        """The servers of the simulation, each with one queue."""
        self.watch = Watch()
        self.told = Answers()
        self.lines: list[Line] = []
        """The lines that the handlers wrote."""
        self.completed: list[tuple[str, str]] = []
        """The claims (id, fence) for which a worker was told that its settlement counts."""
        self.returned: dict[tuple[str, str, str], str] = {}
        """The values that workers reported for handlers, by job, fence and worker, whether or not the report was
        accepted."""
        self.sent: Counter[str] = Counter()
        """The number of times that producers decided to enqueue each job. A call that is only sent again does not
        count."""
        self.handlers: dict[tuple[str, str], durable.Handler] = {}
        """The last handler of a durable job, by job and fence."""
        self.effects: list[durable.Effect] = []
        """The effects of the steps of durable jobs."""
        self.mail = durable.Mail()
        self.refused: Counter[str] = Counter()
        """The number of late saves and late parks that Redis has refused, and the number of parks that came after a
        loss of entries (``behind``)."""
        self.boxes_kept = 0
        """The number of claims that took over the box of a job that their worker had parked."""
        self.healing = False
        self.step = 0
        self.lost: list[str] = []
        """The ways in which the server lost acknowledged data."""
        self.audit = stage.directory / "audit.db"
        self._jobs = 0
        self._late: list[Late] = []
        self._paused: dict[str, int] = {}
        self._kept = NOTHING
        self._calls = 0
        self._draw_setting()

    def _draw_setting(self) -> None:
        rng = random.Random(f"{self.seed} setting")
        self.profile = PROFILES[self.seed % len(PROFILES)]
        self.ties = self.seed // len(PROFILES) % TIED_EVERY == TIED_EVERY - 1
        """True if jobs have names and deadlines, and are edited."""
        self.keeps = self.seed // len(PROFILES) % KEPT_EVERY >= KEPT_EVERY - 3
        """True if the results of some jobs are kept."""
        self.has_room = not self.keeps or random.Random(f"{self.seed} room").random() < 0.5
        """True if the queue has room for all kept results."""
        self.schedules = self.seed // len(PROFILES) % SCHEDULED_EVERY in SCHEDULED_AT
        """True if there are schedules, and the server's clock may be set to another time."""
        self.durable = self.seed // len(PROFILES) % DURABLE_EVERY == DURABLE_AT
        """True if most jobs are durable."""
        self.costly = self.seed // len(PROFILES) % COSTLY_EVERY in COSTLY_AT
        """True if most jobs have costs, and the server's clock may be set to another time."""
        self.guarded = self.seed // len(PROFILES) % GUARDED_EVERY in GUARDED_AT
        """True if most jobs have a breaker."""
        # The steps of schedules come on top of the others.
        self.steps = rng.randrange(150, 400) * (3 if self.schedules else 4) // 4
        self.policy: Policy = policy_of(rng, self.steps)
        self.pace: tuple[int, ...] = rng.choice(
            ((0, 1, 2, 5), (0, 5, 20), (0, 10, 100), (1, 30, 300))
        )
        """The possible durations of a step, in ms."""
        self.lease_ms = rng.choice((600, 2_000, 2_000, 5_000))
        self._caps = [
            (scope, rng.choice(RATES if scope == RATE else CAPS))
            for scope in ("task=a", "tenant", "tenant=x", "host", "queue", RATE)
            if rng.random() < 0.5
        ]
        self._roles: list[tuple[type[Actor], str]] = [
            *((Producer, f"producer-{n}") for n in range(rng.choice((1, 2, 3)))),
            *((Worker, f"worker-{n}") for n in range(rng.choice((1, 2, 3)))),
            *((MirrorProcess, f"mirror-{n}") for n in range(rng.choice((0, 1, 1, 2)))),
            (Operator, "operator"),
            *([(Sender, "sender")] if self.durable else []),
        ]
        many = self.profile.many
        at = sorted(rng.sample(range(20, self.steps), min(many, self.steps - 20)))
        self._faults = {step: rng.choice(self.profile.faults) for step in at} if many else {}
        dice = random.Random(f"{self.seed} clock")
        if self.schedules:
            # The shortest interval of schedules is a second.
            self.pace = dice.choice(schedules.PACES)
        if (self.schedules or self.costly) and dice.random() < 0.5:
            self._faults[dice.randrange(20, self.steps)] = "clock"
        if self.costly:
            rates = random.Random(f"{self.seed} costs")
            self._caps.append((costs.FAMILY, rates.choice(costs.LIMITS)))
        if self.guarded:
            limits = random.Random(f"{self.seed} breakers")
            self._caps.append((breakers.FAMILY, limits.choice(breakers.LIMITS)))

    @property
    def audit_url(self) -> str:
        return str(self.audit)

    # What actors use.

    def world_of(self, _queue: str) -> World:
        """Return the server of a queue."""
        return self.world

    def watch_of(self, _queue: str) -> Watch:
        """Return the log of a queue."""
        return self.watch

    def transport(self, strand: Waiting) -> Transport:
        """Return a transport that stops the strand at each round trip."""
        return StepTransport(strand)

    def new_job(self, rng: random.Random) -> NewJob:
        self._jobs += 1
        job = make_job(rng, f"j-{self._jobs}")
        if self.ties:
            job = tie(job, random.Random(f"{self.seed} {job.id} ties"))
        if self.durable:
            job = durable.add_moves(job, random.Random(f"{self.seed} {job.id} moves"))
        if self.costly:
            job = costs.add_cost(job, random.Random(f"{self.seed} {job.id} cost"))
        if self.guarded:
            job = breakers.add_breaker(job, random.Random(f"{self.seed} {job.id} breaker"))
        return keep(job, random.Random(f"{self.seed} {job.id} keep")) if self.keeps else job

    def code_of(self, worker: str) -> int | None:
        """Return which version of the code this worker runs, or None in a simulation without schedules."""
        dice = random.Random(f"{self.seed} {worker} code")
        return dice.randrange(schedules.CODES) if self.schedules else None

    def write(self, line: Line) -> None:
        self.lines.append(line)

    def direct(self) -> Client:
        """Return a client for checks. Its calls stop no strand. All such clients share one transport, so none may be
        closed."""
        delivery = self.plant.delivery(
            url=self.world.url, name="outside", clock=self.world.seconds, scripts=self.plant.scripts
        )
        return Client(self.world.url, calls=Operations(delivery), transport=self.world.transport)

    # The run.

    def run(self) -> Result:
        """Run the simulation of this seed, and return its result. Raises Failed."""
        self.actors: list[Actor] = []
        stamps, lives = ((f"{n:016x}" for n in itertools.count(1)) for _ in range(2))
        # What goes on beside a strand would bring an order of its own: it is done on the strand, at once. A random
        # stamp would differ each time.
        with (
            mock.patch.object(source_registry, "new_stamp", side_effect=stamps),
            mock.patch.object(boxes, "new_life", side_effect=lives),
            mock.patch.object(steps, "new_life", side_effect=lives),
            mock.patch.object(BackgroundCall, "_begin", BackgroundCall._run),
            mock.patch.object(result_reads, "look_program", return_value=results.LOOK),
        ):
            return self._run_and_judge()

    def _run_and_judge(self) -> Result:
        try:
            self._set_up()
            self._break()
            self._heal()
            self._stop()
            return self._result(self._judge())
        except Exception as error:
            words = str(error) if isinstance(error, AssertionError) else traceback.format_exc()
            raise Failed(self.seed, self.step, words, self.trace, self.option) from error
        finally:
            self._stop()
            for world in self.worlds:
                world.close()

    def _judge(self) -> dict[str, int]:
        """Check all promises at the end, and return the numbers of events by type. Raises Violated or
        AssertionError."""
        return judge.judge(self)

    def _set_up(self) -> None:
        for path in self.stage.directory.glob("audit.db*"):
            path.unlink()
        shutil.copyfile(self.stage.template, self.audit)
        self.world.load_scripts(self.plant.scripts)
        client = self.direct()
        room = {} if self.has_room else {"kept_max_bytes": ROOMS[2]}
        client.run(client.calls.admin.configure(QUEUE, {"lease_ms": self.lease_ms, **room}))
        client.run(
            client.calls.caps.set(QUEUE, [(scope, limit, -1) for scope, limit in self._caps])
        )
        self.watch.add(self.world.exchange([])[1])
        self.actors = [kind(self, role) for kind, role in self._roles]

    def _break(self) -> None:
        for step in range(self.steps):
            self.step = step
            if self.step % 25 == 0:
                self._kept = Kept(self.world.dump(), tuple(self.watch.log), self.step)
            fault = self._faults.get(self.step)
            if fault is not None:
                getattr(self, f"_fault_{fault}")()
            self._step()

    def _heal(self) -> None:
        """End all faults and all new work, and run until all jobs have ended. Raises Violated if they do not end
        (I11)."""
        self.healing = True
        self._paused.clear()
        for actor in self.actors:
            self._restart(actor)
        for _ in range(DRAIN_STEPS_MAX):
            self.step += 1
            self._step()
            if self.step % 20 == 0 and self._drained():
                return
        raise Violated(f"I11: not worked off after {DRAIN_STEPS_MAX} steps: {self._left()}")

    def _left(self) -> list[str]:
        """Return the id and the line of each live job that is not dead."""
        standing: dict[bytes, bytes] = {}
        for world in self.worlds:
            key = f"rqc:{{{world.queue}}}"
            standing |= world.control.hgetall(f"{key}:jobs")
            standing |= world.control.hgetall(f"{key}:state")
        return sorted(
            f"{i.decode()} {text.decode()}"
            for i, text in standing.items()
            if not text.startswith(b"dead ")
        )

    def _drained(self) -> bool:
        waiting = any(not a.running for a in self.actors if not isinstance(a, Producer | Operator))
        busy = any(a.running for a in self.actors if isinstance(a, Producer | Operator))
        held = any(a.held for a in self.actors if isinstance(a, Worker))
        return not (waiting or busy or held or self._late or self._left())

    def _stop(self) -> None:
        for actor in self.actors:
            actor.crash()

    # One step.

    def _step(self) -> None:
        ms = self.random.choice(self.pace)
        # No lease ends while the fleet is so slow that it seems to stand still; a healthy fleet is quick.
        self.world.now_ms += min(ms, self.lease_ms // 60) if self.healing else ms
        ready = self._ready()
        while not ready:
            self.world.now_ms = max(self.world.now_ms + 1, self._next_ms())
            ready = self._ready()
        names = [each.name for each in ready]
        self._run(ready[self.policy.choose(names, self.step, self.random)])

    def _ready(self) -> list[Runnable]:
        """Return what can continue now: strands of actors, and late commands."""
        now = self.world.now_ms
        found: list[Runnable] = [
            strand
            for actor in self.actors
            if self._paused.get(actor.role, 0) <= now
            for strand in actor.strands
            if not strand.done
            and (not isinstance(strand.point, Sleep) or strand.point.until_ms <= now)
        ]
        return found + self._late

    def _next_ms(self) -> int:
        """Return when the next sleep or pause ends (simulated ms)."""
        later = [
            *self._paused.values(),
            *(
                strand.point.until_ms
                for actor in self.actors
                for strand in actor.strands
                if not strand.done and isinstance(strand.point, Sleep)
            ),
        ]
        coming = [at for at in later if at > self.world.now_ms]
        if not coming:
            raise Violated("nobody has anything to do, and nobody ever will")
        return min(coming)

    def _run(self, chosen: Runnable) -> None:
        if isinstance(chosen, Late):
            self._carry_out(chosen.name, self._next_commands(chosen.commands, 0))
            del chosen.commands[: self._taken]
            if not chosen.commands:
                self._late.remove(chosen)
            return
        point = chosen.point
        if isinstance(point, Request):
            self._go_on(chosen, point)
        else:
            if isinstance(point, Step):
                self._note(chosen.name, point.name)
            chosen.resume()

    def _go_on(self, strand: Strand, request: Request) -> None:
        """Run the next command of the strand's round trip. The network may lose or delay the whole round trip, or lose
        its replies."""
        if request.fate is None:
            request.fate = self._draw_fate(len(request.commands))
        fate, count = request.fate, len(request.commands)
        if fate.kind in ("unsent", "request", "late"):
            self._note(strand.name, f"{fate.kind}: {_words(request.commands)}")
            if fate.kind == "late":
                self._late.append(Late(f"{strand.name} late", request.commands))
            strand.resume([_missing(fate.kind)] * count)
            return
        done = len(request.replies)
        request.replies += self._carry_out(
            strand.name, self._next_commands(request.commands, done), fate.kind
        )
        if len(request.replies) < count:
            return
        keep = count if fate.kind == "fine" else fate.keep
        strand.resume([*request.replies[:keep], *([_missing("reply")] * (count - keep))])

    def _next_commands(self, commands: Sequence[list[Any]], done: int) -> Sequence[list[Any]]:
        """Return the next command, or a whole transaction. So other actors may run between two commands of a
        pipeline."""
        self._taken = 1
        if commands[done][0] == "MULTI":
            ends = [at for at, each in enumerate(commands) if at > done and each[0] == "EXEC"]
            self._taken = ends[0] - done + 1
        return commands[done : done + self._taken]

    def _carry_out(self, who: str, commands: Sequence[list[Any]], fate: str = "fine") -> list[Any]:
        replies, found = self.world.exchange(commands, self.watch.last)
        self._note_carried_out(who, commands, replies, fate)
        self._check_parked(self.watch.add(found), self.world)
        if commands[0][0] == "FCALL":
            self._calls += 1
            if self.keeps and self._calls % LOOK_EVERY == 0:
                self.check_results()
            if self._calls % COMPARE_EVERY == 0:
                self.watch.compare(self.direct())
                judge.check_boxes(self)
        return replies

    def _note_carried_out(
        self, who: str, commands: Sequence[list[Any]], replies: Sequence[Any], fate: str
    ) -> None:
        said = "" if fate == "fine" else f" ({fate} lost)"
        self._note(who, f"{_words(commands)} -> {_shown(commands, replies)}{said}")

    def _check_parked(self, added: Sequence[Entry], world: World) -> None:
        """Check that each job that was just parked has no lease and holds no place in a cap (I22)."""
        control, key = world.control, f"rqc:{{{world.queue}}}"
        for job_id in {
            i.job_id for entry in added if entry.event is Event.PARKED for i in entry.jobs
        }:
            places = [m for m, _ in control.zscan_iter(f"{key}:holders", f"*|{job_id}")]
            lease = control.zscore(f"{key}:leases", job_id)
            if places or lease is not None:
                raise Violated(f"I22: {job_id} is parked, and has lease {lease}, places {places}")

    def check_results(self) -> None:
        """Read the results of all jobs as a waiting caller does, and check them against the log. Raises Violated."""
        client = self.direct()
        known = self.told.attempted | {each for each in self.watch.records if tick_of(each)}
        found = client.run(client.calls.endings.look(QUEUE, sorted(known)))
        wrong = self.watch.results.problems(
            found, self.returned, self.world.clock, has_room=self.has_room
        )
        if wrong:
            raise Violated(f"I14: {'; '.join(wrong)}")

    def _draw_fate(self, count: int) -> Fate:
        if self.healing or self.random.random() >= self.profile.network:
            return Fate("fine")
        kind = self.random.choice(("unsent", "request", "reply", "reply", "late"))
        return Fate(kind, self.random.randrange(count) if kind == "reply" else 0)

    def _note(self, who: str, what: str) -> None:
        line = f"{self.step:4} {self.world.now_ms - START_MS:7} {who:16} {what}"
        self.trace.append(line)
        self.on_step(line)

    # What breaks.

    def _fault_crash(self) -> None:
        alive = [actor for actor in self.actors if actor.running]
        gone = [actor for actor in self.actors if not actor.running]
        if gone and self.random.random() < 0.4:
            self._restart(self.random.choice(gone))
            return
        actor = self.random.choice(alive)
        for strand in actor.strands:
            # What it had sent may still arrive.
            point = strand.point
            if isinstance(point, Request) and not strand.done and self.random.random() < 0.5:
                left = point.commands[len(point.replies) :]
                if left:
                    self._late.append(Late(f"{strand.name} late", left))
        actor.crash()
        self._note(actor.name, "CRASH")
        if self.random.random() < 0.6:
            self._restart(actor)

    def _restart(self, actor: Actor) -> None:
        if not actor.running and not (self.healing and isinstance(actor, Producer)):
            actor.begin()
            self._note(actor.name, "BOOT")

    def _fault_pause(self) -> None:
        actor = self.random.choice([a for a in self.actors if not isinstance(a, Operator)])
        ms = self.random.choice((100, self.lease_ms // 2, self.lease_ms * 2, self.lease_ms * 3))
        self._paused[actor.role] = self.world.now_ms + ms
        self._note(actor.name, f"PAUSE {ms} ms")

    def _fault_jump(self) -> None:
        ms = self.random.choice((self.lease_ms // 2, self.lease_ms, self.lease_ms * 3))
        self.world.now_ms += ms
        self._note("everybody", f"JUMP {ms} ms")

    def _fault_clock(self) -> None:
        """Set the server's clock to another time."""
        ms = random.Random(f"{self.seed} {self.step} clock").choice(schedules.CLOCK_MS)
        self.world.skew_ms += ms
        self._note("server", f"CLOCK {ms} ms")

    def _fault_sql(self) -> None:
        """Let SQL fail at the present step of a mirror. The mirror then tries again."""
        for actor in self.actors:
            if not isinstance(actor, MirrorProcess) or not actor.running:
                continue
            (strand,) = actor.strands
            if isinstance(strand.point, Step) and strand.point.name not in ("committed", "start"):
                self._note(actor.name, f"SQL FAILS {strand.point.name}")
                strand.resume(error=OperationalError("", {}, Exception("made up")))
                return

    def _fault_failover(self) -> None:
        self.world.become_another(self.random)
        self._note("server", f"FAILOVER, clock {self.world.skew_ms} ms")

    def _fault_restart(self) -> None:
        step = self._kept.step
        self._go_back(self._kept, f"restarted with what it knew in step {step}")
        self._note("server", f"RESTART of step {step}, clock {self.world.skew_ms} ms")

    def _fault_flush(self) -> None:
        self._go_back(NOTHING, "flushed")
        self._note("server", "FLUSH")

    def _go_back(self, kept: Kept, how: str) -> None:
        if tuple(self.watch.log) != kept.log:
            self.lost.append(how)
        self.watch.go_back(kept.log)
        self.world.come_back(self.random, kept.dump)

    def _fault_forget_scripts(self) -> None:
        self.world.forget_scripts()
        self._note("server", "FUNCTION FLUSH")

    # What it came to.

    def _result(self, counts: dict[str, int]) -> Result:
        digest = hashlib.sha256()
        for line in (*self.trace, *map(str, self._logs()), *map(str, self.lines)):
            digest.update(line.encode())
        for key, value in sorted(counts.items()):
            digest.update(f"{key}={value}".encode())
        digest.update(self._everything().encode())
        return Result(
            self.seed, self.profile.name, self.policy.name, self.step, digest.hexdigest(), counts
        )

    def _logs(self) -> Sequence[RawEntry]:
        """Return the entries of all logs."""
        return self.watch.log

    def _everything(self) -> str:
        """Return as text all data that Redis and SQL have at the end."""
        return judge.everything(self)


def _missing(kind: str) -> Exception:
    return Unsent("no connection") if kind == "unsent" else Lost(f"{kind} lost")


def _words(commands: Sequence[list[Any]]) -> str:
    """Return the commands as text, without the digests in the names of scripts."""
    return " ; ".join(_one(command) for command in commands)[:400]


def _one(command: list[Any]) -> str:
    if command[0] in ("FCALL", "EVALSHA", "EVALSHA_RO"):
        name = str(command[1]).removeprefix("rqc_").rpartition("_")[0] or "script"
        return " ".join([name, *map(str, command[3 + int(command[2]) :])])
    if command[0] in ("FUNCTION", "SCRIPT"):
        return " ".join(map(str, command[:2]))
    return " ".join(map(str, command))


def _shown(commands: Sequence[list[Any]], replies: Sequence[Any]) -> str:
    return "…" if commands[0][0] in ("INFO", "FUNCTION", "SCRIPT") else str(list(replies))[1:300]
