"""Runs one job with very many children over three shards of a cluster, while slots move or primaries are lost.

The queue of the job and of its groups is on one shard, and the queue of the children on another. A worker is killed
(SIGKILL) every second, as in :mod:`tests.rigs.parks.wide`. Meanwhile

- ``moves``: the slots of both queues move to the third shard and on, key by key;
- ``parent``, ``children``, ``both``: the primary of the job's shard is killed, of the children's, or of both. Its
  replica has no data since some time before, so the shard loses what it acknowledged in between.

After a loss, the rig does what docs/how-to/children.md asks of an operator: ``audit restore`` for both queues, ``doctor
--repair``, and ``requeue`` for the job if it is dead. :mod:`tests.rigs.parks.aftermath` is the verdict.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from rq_core.connections.client import Client
from rq_core.errors import RqCoreError
from rq_core.model.durable.children import CHILDREN_MAX
from rq_core.model.keys import queue_keys
from sql_audit.store.connection.database import Database
from tests.kit.clusters import RedisCluster
from tests.kit.processes import python
from tests.kit.servers import RedisServer
from tests.kit.wait import wait_until
from tests.rigs.chaos.records import read_cursors
from tests.rigs.chaos.stage import last_of
from tests.rigs.parks import aftermath
from tests.rigs.parks.wide import (
    JOINS,
    MIRROR,
    MIRRORED_S,
    PARTS,
    RUNS,
    SUMS,
    Pace,
    Workers,
    app_of,
    lay,
    wait_mirrored,
)
from tests.rigs.stage import Crew

Tell = Callable[[str], None]
QUEUES: Final = (JOINS, PARTS)
STRUCK: Final[dict[str, tuple[str, ...]]] = {
    "moves": (),
    "parent": (JOINS,),
    "children": (PARTS,),
    "both": QUEUES,
}
"""The queues whose shards lose their primary, by the kind of the run."""
CONCURRENCY: Final = 20
"""Number of jobs that a worker runs at the same time."""
KILLS: Final = 400
"""The approximate maximum number of kills while children run. On a slow machine the kills are less frequent."""
MIN_S: Final = 6.0
"""The time (s) that all children take together if no worker is killed, as far as PART_S allows."""
PART_S: Final = 0.02, 0.2
"""The shortest and the longest time (s) that a child takes. Otherwise, few children would be left when a primary
is killed."""
TURN_S: Final = 0.02
"""The time (s) between two steps of a slot's move, and between two looks."""
REST_S: Final = 2.0
"""The time (s) between two moves of slots. A move begins an epoch, and in the first lease of an epoch no lease expires:
if each queue moved more often than that, the jobs of a killed worker would stay with it."""
REQUEUES_MAX: Final = 5
"""The maximum number of times that the rig requeues the job."""
COMMAND_S: Final = 1_800.0
"""The maximum time (s) for a command of the operator."""
CAUGHT_UP: Final = "600"
"""The maximum time (s) for which ``audit restore`` waits for the mirror. The mirror derives the rows of all jobs again
whose events Redis forgot, in one transaction."""
_CLEAN: Final = multiprocessing.get_context("forkserver")
"""Workers come from a process without threads. The cluster's bus has threads and connections in this process."""
# Each worker imports the main module of this process, too. Under pytest, that would take longer than the worker lives.
_CLEAN.set_forkserver_preload([__name__, *({"pytest"} & sys.modules.keys())])

meta: Final = {queue: queue_keys(queue)("meta") for queue in QUEUES}


@dataclass
class Sharded:
    """The figures of a run, and the problems that the run found."""

    kind: str
    children: int
    groups: int
    """Number of jobs between the job and its children; 0: the job has one map with all children."""
    kills: int = 0
    unreached: int = 0
    """Number of workers that did not reach the servers when they started, and started again."""
    moves: int = 0
    """Number of slots that have moved to another shard."""
    losses: int = 0
    """Number of primaries that were replaced by replicas with older data."""
    seconds: float = 0.0
    """The time (s) from the enqueue of the job until all jobs had ended."""
    ended_s: float = 0.0
    """The time (s) from the enqueue of the job until it had left Redis."""
    mirrored_s: float = 0.0
    """The time (s) after the end of all jobs until the log had everything."""
    judged_s: float = 0.0
    """The time (s) that the verdict took: the comparison of all runs with the log, ``audit verify`` and the doctor."""
    promoted_s: float = 0.0
    """The longest time (s) from the death of a primary until all nodes knew the new one."""
    restored_s: float = 0.0
    """The time (s) that ``audit restore`` took after the losses. It waits for the mirror, which derives the rows of all
    jobs again whose events Redis forgot."""
    repaired_s: float = 0.0
    """The time (s) that ``doctor --repair`` took after the losses."""
    restored: Counter[str] = field(default_factory=Counter)
    """Number of changes that ``audit restore`` made, by queue and kind of change."""
    requeues: int = 0
    families: int = 0
    """Number of children in the log. There are more than ``children`` if a loss let a map begin again."""
    runs: int = 0
    lost_runs: int = 0
    """Number of runs of children whose lease has expired by the log."""
    orphaned_runs: int = 0
    """Number of runs of children whose claim or success Redis forgot, by the log."""
    orphans: Counter[str] = field(default_factory=Counter)
    """Number of events that Redis forgot, by queue."""
    counts: Counter[str] = field(default_factory=Counter)
    """Number of events of both queues, by type."""
    verified: dict[str, str] = field(default_factory=dict)
    """The verdict of ``audit verify``, by queue."""
    problems: list[str] = field(default_factory=list)

    def line(self) -> str:
        """Return the figures as text."""
        kinds = ("parked", "woken", "signalled", "lease_expired", "restored", "removed")
        return (
            f"{self.kind}: {self.children:,} children in {self.groups or 'no'} groups: {self.ended_s:.0f} s,"
            f" all jobs {self.seconds:.0f} s, {self.kills} kills, {self.unreached} starts again, {self.moves} moves of"
            f" slots, {self.losses} primaries lost\n"
            f"new primaries after at most {self.promoted_s:.1f} s, restore {self.restored_s:.0f} s, doctor"
            f" {self.repaired_s:.0f} s: {dict(self.restored)}, {self.requeues} requeues\n"
            f"{self.families:,} children in the log, {self.runs:,} runs, {self.lost_runs:,} of claims that lost their"
            f" lease, {self.orphaned_runs:,} of claims that Redis forgot; {dict(self.orphans)} events forgotten;"
            f" {', '.join(f'{self.counts[kind]:,} {kind}' for kind in kinds)}\n"
            f"log complete {self.mirrored_s:.0f} s later, judged in {self.judged_s:.0f} s; verify: {self.verified};"
            f" {len(self.problems)} problems"
        )


def strike(
    cluster: RedisCluster,
    audit_url: str,
    place: Path,
    count: int,
    kind: str,
    *,
    width: int = CHILDREN_MAX,
    every_s: float = 1.0,
    processes: int = 3,
    times: int = 1,
    seconds_max: float = 3_600.0,
    on_step: Tell = lambda _: None,
) -> Sharded:
    """Let one job run ``count`` children, and let slots move or primaries fail meanwhile: ``kind`` is a key of STRUCK.

    ``audit_url`` names an empty database. A map has at most ``width`` children. ``times`` is the number of losses.
    ``on_step`` is called with a sentence about each step of the run.
    """
    found = Sharded(kind, count, 0 if count <= width else -(-count // width))
    part_s = min(max(MIN_S * processes * CONCURRENCY / count, PART_S[0]), PART_S[1])
    pace = Pace(part_s, CONCURRENCY, full=True)
    app, join = app_of(cluster.url, place, pace)
    _part(cluster)
    app.apply_settings()
    lay(audit_url)
    with (
        Crew(place) as mirrors,
        Client(cluster.url) as client,
        contextlib.closing(Database(audit_url)) as database,
    ):
        mirrors.knows(MIRROR, lambda: ["tests.kit.mirror_service", cluster.url, audit_url])
        mirrors.start(MIRROR)
        wait_mirrored(
            "both queues are mirrored", lambda at: set(QUEUES) <= set(at), audit_url, mirrors
        )
        began = time.monotonic()
        handle = join.enqueue(count, width)
        with Workers(
            cluster.url,
            place,
            every_s,
            processes,
            pace=pace,
            context=_CLEAN,
            least=count // KILLS,
        ) as crew:
            stage = _Stage(
                cluster, audit_url, place, client, database, crew, handle.id, found, began, on_step
            )
            steps = stage.moving() if kind == "moves" else stage.losing(STRUCK[kind], times)
            for _ in itertools.chain(steps, stage.ending()):
                crew.tick()
                if time.monotonic() - began > seconds_max:
                    found.problems.append(f"not all had ended in time: {stage.says()}")
                    break
                time.sleep(TURN_S)
            found.kills, found.unreached = crew.kills, crew.unreached()
        found.seconds = time.monotonic() - began
        on_step("all jobs have ended")
        last = {queue: last_of(client, queue) for queue in QUEUES}
        wait_mirrored("the log is complete", lambda at: at == last, audit_url, mirrors)
        found.mirrored_s = time.monotonic() - began - found.seconds
        on_step("the log is complete")
        if mirrors.stop(MIRROR) != [0]:
            found.problems.append(f"the mirror ended by itself: {mirrors.end_of_log()}")
        app.close()
        runs = [line.split() for line in (place / RUNS).read_text().splitlines()]
        sums = (place / SUMS).read_text().splitlines()
        judging = time.monotonic()
        aftermath.judge(
            cluster.url, audit_url, database, handle.id, runs, sums, STRUCK[kind], found, on_step
        )
        found.judged_s = time.monotonic() - judging
    return found


def _part(cluster: RedisCluster) -> None:
    """Let each queue be on a shard of its own."""
    shared = cluster.primary_of(meta[JOINS])
    if cluster.primary_of(meta[PARTS]) is shared:
        other = next(each for each in cluster.primaries() if each is not shared)
        cluster.migrate(meta[PARTS], other)


class _Stage:
    """The faults of a run, and its operator. Each fault is an iterator that yields whenever time passes."""

    def __init__(
        self,
        cluster: RedisCluster,
        audit_url: str,
        place: Path,
        client: Client,
        database: Database,
        crew: Workers,
        job_id: str,
        found: Sharded,
        began: float,
        on_step: Tell,
    ) -> None:
        """``began`` is the time of the enqueue of the job (seconds of the monotonic clock)."""
        self._cluster, self._audit_url, self._place = cluster, audit_url, place
        self._client, self._database, self._crew = client, database, crew
        self._job_id, self._found, self._on_step = job_id, found, on_step
        self._began = began
        self._seen, self._runs = 0, 0

    # What the rig sees.

    def _count_runs(self) -> int:
        """Return the number of runs of children up to now."""
        with (self._place / RUNS).open("rb") as file:
            file.seek(self._seen)
            text = file.read()
        self._seen += len(text)
        self._runs += text.count(b"\n")
        return self._runs

    def _ask(self, queue: str, *words: Any) -> Any:
        """Send a command to the primary of a queue, and return its reply."""
        (reply,) = self._client.run(self._client.calls.delivery.ask([[*words]], queue))
        return reply

    def _state(self) -> str | None:
        """Return the state of the job; None if it has left Redis."""
        line = self._ask(JOINS, "HGET", queue_keys(JOINS)("state"), self._job_id)
        if line is not None:
            return str(line).split(" ", 1)[0]
        is_there = self._ask(JOINS, "HEXISTS", queue_keys(JOINS)("jobs"), self._job_id)
        return "ready" if is_there else None

    def says(self) -> str:
        left = {queue: self._ask(queue, "HGETALL", queue_keys(queue)("state")) for queue in QUEUES}
        return f"the job is {self._state()}; {str(left)[:2_000]}"

    def _until(self, is_true: Callable[[], bool]) -> Iterator[None]:
        """Yield until ``is_true`` returns True, or the job has left Redis."""
        while not is_true() and self._state() is not None:
            yield

    # What happens to it.

    def moving(self) -> Iterator[None]:
        """Move the slots of both queues in turn, each time to the shard that has neither, until the job has ended."""
        for queue in itertools.cycle(QUEUES):
            if self._state() in (None, "dead"):
                return
            owners = [self._cluster.primary_of(key) for key in meta.values()]
            target = next(each for each in self._cluster.primaries() if each not in owners)
            for _ in self._cluster.migrating(meta[queue], target):
                yield
            self._found.moves += 1
            self._on_step(f"the slot of {queue} has moved; {self._count_runs():,} runs of children")
            until = time.monotonic() + REST_S
            while time.monotonic() < until:
                yield

    def losing(self, queues: Sequence[str], times: int) -> Iterator[None]:
        """Lose the primaries of these queues ``times`` times, and put back what was lost after each time."""
        for n in range(times):
            began = self._count_runs()
            share = self._found.children // (8 * times)
            yield from self._until(lambda: self._count_runs() > began + share)  # noqa: B023
            primaries = [self._cluster.primary_of(meta[queue]) for queue in queues]
            replicas = [self._cluster.cut_replica_off(each) for each in primaries]
            cut = self._count_runs()
            self._on_step(f"the replicas are cut off; {cut:,} runs of children")
            # Jobs of killed workers run alone, so the last ones take long: the loss must come before these.
            more = max(1, min(2 * share, (self._found.children - cut) // 4))
            had = {queue: last_of(self._client, queue) for queue in queues}
            yield from self._until(
                lambda: (
                    self._count_runs() >= cut + more  # noqa: B023
                    and all(last_of(self._client, queue) > at for queue, at in had.items())  # noqa: B023
                )
            )
            if self._state() is None:
                self._found.problems.append(f"loss {n}: the job had ended before")
                return
            yield from self._lose(queues, primaries, replicas)
            yield from self._put_back(n)

    def _lose(
        self,
        queues: Sequence[str],
        primaries: Sequence[RedisServer],
        replicas: Sequence[RedisServer],
    ) -> Iterator[None]:
        """Kill primaries when the log has all that they acknowledged. Start them again as replicas of the new ones."""
        self._on_step(f"all workers are suspended; {self._count_runs():,} runs of children")
        with self._crew.frozen():
            wait_until(self._is_mirrored, "the log has everything", timeout=MIRRORED_S)
            for each in primaries:
                each.kill()
        self._on_step("the log has everything, and the primaries are dead")
        began = time.monotonic()
        if len(primaries) > 1:
            for replica in replicas:
                self._cluster.take_over(replica)
        for queue, replica in zip(queues, replicas, strict=True):
            while not self._cluster.all_know(meta[queue], replica):
                yield
        self._found.promoted_s = max(self._found.promoted_s, time.monotonic() - began)
        self._found.losses += len(primaries)
        self._on_step("all nodes know the new primaries")
        for primary, replica in zip(primaries, replicas, strict=True):
            self._cluster.let_replicate(replica)
            primary.start()
        yield

    def _is_mirrored(self) -> bool:
        """Return whether the log has all entries of both queues. The workers must not run."""
        with contextlib.suppress(RqCoreError):
            return read_cursors(self._database) == {
                queue: last_of(self._client, queue) for queue in QUEUES
            }
        return False

    # What the operator does.

    def _command(self, name: str, *words: str) -> Iterator[None]:
        """Run an rq-core command. Its output is the file ``name``, and then ``said``. ``status`` is its exit status."""
        at = ("--redis", self._cluster.url, "--audit", self._audit_url)
        log = self._place / name
        with python("rq_core.cli", *words, *at, log=log) as child:
            until = time.monotonic() + COMMAND_S
            while child.poll() is None:
                assert time.monotonic() < until, f"{words} does not end"
                yield
            self.status, self.said = child.wait(), log.read_text()

    def _put_back(self, n: int) -> Iterator[None]:
        """Restore both queues, and let the doctor repair them."""
        began = time.monotonic()
        words = ("audit", "restore", "--apply", "--json", "--by", "ada", "--wait", CAUGHT_UP)
        yield from self._command(f"restore-{n}", *words)
        if self.status not in (0, 2):
            self._found.problems.append(f"restore {n} ended with {self.status}: {self.said}")
            return
        said = json.loads(self.said[self.said.index("{") :])
        for queue, done in said["queues"].items():
            for name, what in done.items():
                size = what if isinstance(what, int) else len(what)
                if size and name != "complete":
                    self._found.restored[f"{queue} {name}"] += size
        restored = time.monotonic()
        self._found.restored_s += restored - began
        self._on_step(f"restored; {self._count_runs():,} runs of children")
        mend = ("doctor", "--repair", "--force", "--by", "ada", *QUEUES)
        yield from self._command(f"doctor-{n}", *mend)
        self._found.restored["doctor's status"] = self.status
        self._found.repaired_s += time.monotonic() - restored
        self._on_step(f"repaired; {self._count_runs():,} runs of children")

    def ending(self) -> Iterator[None]:
        """Requeue the job whenever it is dead, until it and all other jobs have ended."""
        while (state := self._state()) is not None:
            if state == "dead" and self._found.requeues == REQUEUES_MAX:
                self._found.problems.append(f"the job is dead after {REQUEUES_MAX} requeues")
                break
            if state == "dead":
                self._found.requeues += 1
                words = ("requeue", self._job_id, "--redis", self._cluster.url, "--by", "ada")
                yield from self._requeue(words)
                self._on_step(f"the job was dead, and is requeued; {self._count_runs():,} runs")
            yield
        self._found.ended_s = time.monotonic() - self._began
        self._on_step(f"the job is {self._state() or 'over'}; {self._count_runs():,} runs")
        while not all(self._is_empty(queue) for queue in QUEUES):
            yield

    def _requeue(self, words: Sequence[str]) -> Iterator[None]:
        log = self._place / f"requeue-{self._found.requeues}"
        with python("rq_core.cli", *words, log=log) as child:
            while child.poll() is None:
                yield
            if child.wait():
                self._found.problems.append(f"requeue failed: {log.read_text()}")

    def _is_empty(self, queue: str) -> bool:
        """Return whether all jobs of the queue have ended or are dead."""
        keys = queue_keys(queue)
        alive = self._ask(queue, "HLEN", keys("jobs")) - self._ask(queue, "ZCARD", keys("dead"))
        return bool(alive <= 0)
