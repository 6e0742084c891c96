"""The simulation of one seed of families: parents on one server, their children on another."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Final
from unittest import mock

from rq_core.app.durable import children
from rq_core.connections.client import Client
from rq_core.connections.transport import Transport
from rq_core.model.job import NewJob
from rq_core.model.table.machine import Event
from rq_core.protocol.operations import Operations
from tests.rigs.simulator.actors import Actor, MirrorProcess, Waiting
from tests.rigs.simulator.families import calls, judge
from tests.rigs.simulator.families.actors import (
    FamilyOperator,
    FamilyProducer,
    FamilyWorker,
    PartsMirror,
)
from tests.rigs.simulator.families.handlers import Joined
from tests.rigs.simulator.families.shards import (
    PARENTS,
    PARTS,
    QUEUES,
    Routed,
    ShardTransport,
    TwoStages,
)
from tests.rigs.simulator.policy import Policy, policy_of
from tests.rigs.simulator.simulation import NOTHING, Kept, Plant, Profile, Result, Simulation
from tests.rigs.simulator.watch import RawEntry, Violated, Watch
from tests.rigs.simulator.world import World

PROFILES: Final = (
    Profile("order"),
    Profile("network", network=0.12),
    Profile("crashes", faults=("crash", "crash", "pause", "sql"), many=6),
    Profile("zombies", network=0.05, faults=("pause", "pause", "jump"), many=6),
    Profile("failover", network=0.05, faults=("failover", "failover", "crash", "forget_scripts"), many=4),
    Profile("parents lost", network=0.03, faults=("lose_parents", "lose_parents", "crash"), many=2),
    Profile("parts lost", network=0.03, faults=("lose_parts", "lose_parts", "crash"), many=2),
    Profile("both lost", network=0.03, faults=("lose_both", "lose_both", "lose_parents", "crash"), many=2),
    Profile("everything", network=0.08,
        faults=("crash", "pause", "jump", "sql", "failover", "lose_parents", "lose_parts", "lose_both",
            "forget_scripts"), many=6),
)  # fmt: skip
"""The faults that may happen. ``lose_both`` promotes replicas of both servers at once, each with older data."""
KEPT_EVERY: Final = 15
"""The number of steps between two copies of the data of both servers."""
KEPT_MAX: Final = 3
"""The number of copies of each server to which a failover may go back."""
COMPARE_EVERY: Final = 60
"""The number of script calls after which the indexes of a queue are compared with its log."""
LOOKS_S: Final = (0.3, 0.3, 1.0, 2.5)
"""The possible values of LOOK_MIN_S: after this time a parent looks at its children without a signal."""


@dataclass
class Shard:
    """One server with its queue and its log."""

    world: World
    watch: Watch
    kept: list[Kept] = field(default_factory=list)
    """The newest copies of the server's data, oldest first."""
    lost: list[str] = field(default_factory=list)
    """The ways in which the server lost acknowledged data."""
    when: dict[str, int] = field(default_factory=dict)
    """The step in which each entry of the log was first seen, by the entry's id."""


class FamilySimulation(Simulation):
    """The simulation of one seed, on two stages."""

    option = " --families"

    def __init__(
        self,
        stages: TwoStages,
        seed: int,
        *,
        plant: Plant | None = None,
        on_step: Callable[[str], None] = lambda _line: None,
    ) -> None:
        super().__init__(stages.parents, seed, plant=plant, on_step=on_step)
        parts = World(stages.parts.url, PARTS, self.world.time)
        parts.replid = "b" * 40
        parts.tell()
        self.worlds.append(parts)
        self.shards = {PARENTS: Shard(self.world, self.watch), PARTS: Shard(parts, Watch(PARTS))}
        self.joined: list[Joined] = []
        """The maps that were over, in each run of each parent."""
        self.cancelled: dict[judge.Cancel, int] = {}
        """The step in which the cancel of a family was done, by the end of its head."""
        self.crashes = 0
        self.had_little_room = False
        """True if there was ever too little room for the results of children."""

    def _draw_setting(self) -> None:
        rng = random.Random(f"{self.seed} families")
        self.profile = PROFILES[self.seed % len(PROFILES)]
        self.ties = self.keeps = self.schedules = self.costly = self.guarded = False
        self.durable, self.has_room = True, True
        self.steps = rng.randrange(120, 260)
        self.policy: Policy = policy_of(rng, self.steps)
        self.pace: tuple[int, ...] = rng.choice(((0, 1, 2, 5), (0, 5, 20), (0, 10, 100)))
        self.lease_ms = rng.choice((600, 2_000, 2_000, 5_000))
        self.look_s = rng.choice(LOOKS_S)
        workers = rng.choice((1, 2, 2))
        mirrors = rng.choice((1, 1, 1, 2))
        self._roles: list[tuple[type[Actor], str]] = [
            *((FamilyProducer, f"producer-{n}") for n in range(rng.choice((1, 1, 2)))),
            *((FamilyWorker, f"worker-{n}") for n in range(workers)),
            *((MirrorProcess, f"mirror-{n}") for n in range(mirrors)),
            *((PartsMirror, f"parts-mirror-{n}") for n in range(mirrors)),
            (FamilyOperator, "operator"),
        ]
        many = self.profile.many
        at = sorted(rng.sample(range(20, self.steps), many))
        self._faults = {step: rng.choice(self.profile.faults) for step in at}

    # What actors use.

    def new_job(self, _rng: random.Random) -> NewJob:
        self._jobs += 1
        return self.parent_with(f"{self.seed}-p-{self._jobs}")

    def parent_with(self, job_id: str) -> NewJob:
        """Return the parent with this id. The id determines its calls."""
        return calls.make_parent(random.Random(job_id.replace("-", " ", 1)), job_id)

    def world_of(self, queue: str) -> World:
        return self.shards[queue].world

    def watch_of(self, queue: str) -> Watch:
        return self.shards[queue].watch

    def transport(self, strand: Waiting) -> Transport:
        return ShardTransport(strand)

    def cancels_of(self, queue: str, ids: Collection[str], by: str) -> list[judge.Cancel]:
        """Return the newest cancel of each of these jobs by this actor."""
        found: dict[str, judge.Cancel] = {}
        for entry in self.watch_of(queue).entries:
            if (entry.event, entry.by) == (Event.CANCELLED, by):
                for event in entry.jobs:
                    if event.job_id in ids:
                        cancel = judge.Cancel(queue, event.job_id, str(entry.id))
                        found[event.job_id] = cancel
        return list(found.values())

    def note_cancelled(self, cancels: Iterable[judge.Cancel]) -> None:
        """Note the present step as the step in which the cancels of the families of these jobs were done."""
        self.cancelled |= dict.fromkeys(cancels, self.step)

    def client_of(self, queue: str) -> Client:
        """Return a client of one queue for checks. Its calls stop no strand."""
        world = self.world_of(queue)
        delivery = self.plant.delivery(
            url=world.url, name="outside", clock=world.seconds, scripts=self.plant.scripts
        )
        return Client(world.url, calls=Operations(delivery), transport=world.transport)

    # The run.

    def run(self) -> Result:
        clock = SimpleNamespace(time=lambda: self.world.server_ms / 1000)
        with (
            mock.patch.object(children, "time", clock),
            mock.patch.object(children, "LOOK_MIN_S", self.look_s),
            mock.patch.object(children, "PAUSE_MS", 500),
        ):
            return super().run()

    def _set_up(self) -> None:
        for path in self.stage.directory.glob("audit.db*"):
            path.unlink()
        shutil.copyfile(self.stage.template, self.audit)
        for queue, shard in self.shards.items():
            shard.world.load_scripts(self.plant.scripts)
            client = self.client_of(queue)
            client.run(client.calls.admin.configure(queue, {"lease_ms": self.lease_ms}))
            self._note_entries(shard, shard.world.exchange([])[1])
        self.actors = [kind(self, role) for kind, role in self._roles]

    def _break(self) -> None:
        loses = any(fault.startswith("lose") for fault in self.profile.faults)
        for step in range(self.steps):
            self.step = step
            if loses and step % KEPT_EVERY == 0:
                for shard in self.shards.values():
                    kept = Kept(shard.world.dump(), tuple(shard.watch.log), step)
                    shard.kept = [*shard.kept, kept][-KEPT_MAX:]
            fault = self._faults.get(step)
            if fault is not None:
                getattr(self, f"_fault_{fault}")()
            self._step()

    def _note_entries(self, shard: Shard, found: list[Any]) -> None:
        added = shard.watch.add(found)
        for entry in added:
            shard.when.setdefault(str(entry.id), self.step)
        self._check_parked(added, shard.world)

    def _carry_out(self, who: str, commands: Sequence[list[Any]], fate: str = "fine") -> list[Any]:
        command = commands[0]
        assert isinstance(command, Routed)
        shard = self.shards[command.queue]
        replies, found = shard.world.exchange(commands, shard.watch.last)
        self._note_carried_out(f"{who} {command.queue}", commands, replies, fate)
        self._note_entries(shard, found)
        if command[0] == "FCALL":
            self._calls += 1
            if self._calls % COMPARE_EVERY == 0:
                for queue, each in self.shards.items():
                    each.watch.compare(self.client_of(queue))
        return replies

    def _judge(self) -> dict[str, int]:
        return judge.judge(self)

    def _logs(self) -> Sequence[RawEntry]:
        return [entry for shard in self.shards.values() for entry in shard.watch.log]

    def _everything(self) -> str:
        return judge.everything(self)

    # What breaks.

    def _fault_crash(self) -> None:
        self.crashes += 1
        super()._fault_crash()

    def _fault_failover(self) -> None:
        """Promote a replica with all data in place of one server, or of both."""
        queues = self.random.choice(((PARENTS,), (PARTS,), QUEUES))
        for queue in queues:
            self.world_of(queue).become_another(self.random)
        self._note("server", f"FAILOVER of {', '.join(queues)}")

    def _fault_lose_parents(self) -> None:
        self._lose(PARENTS)

    def _fault_lose_parts(self) -> None:
        self._lose(PARTS)

    def _fault_lose_both(self) -> None:
        self._lose(PARENTS)
        self._lose(PARTS)

    def _lose(self, queue: str) -> None:
        """Promote a replica that has older data."""
        shard = self.shards[queue]
        kept = self.random.choice(shard.kept or [NOTHING])
        if tuple(shard.watch.log) != kept.log:
            how = f"{queue} has what it knew in step {kept.step}"
            shard.lost.append(how)
            self.lost.append(how)
        shard.watch.go_back(kept.log)
        shard.kept = [each for each in shard.kept if each.step <= kept.step]
        shard.world.come_back(self.random, kept.dump)
        self._note("server", f"LOSS: {queue} has what it knew in step {kept.step}")

    def _fault_forget_scripts(self) -> None:
        for shard in self.shards.values():
            shard.world.forget_scripts()
        self._note("server", "FUNCTION FLUSH")

    def _heal(self) -> None:
        # Time passes as quickly as a healthy fleet allows, since parents and retries wait. There are some twenty
        # strands, and each heartbeat must have its turn several times in a lease.
        self.pace = (self.lease_ms // 200,)
        try:
            super()._heal()
        except Violated as failure:
            parents = self.shards[PARENTS].watch.boxes.parked
            raise Violated(f"{failure}; parked: {sorted(parents)}") from failure
