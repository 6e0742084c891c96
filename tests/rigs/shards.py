"""Lets parts of a cluster, or a primary under Sentinel, fail under load. Measures idle times and counts lost jobs.

    scripts/prove/live outages --kind frozen_node --seconds 30 --times 3

Producers enqueue into queues of all shards, one call after another, and a worker process runs the jobs. Only the shard
of the last queue fails.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from rq_core import App
from rq_core.connections.client import Client
from rq_core.errors import RqCoreError
from rq_core.model.keys import queue_keys
from tests.kit.clusters import RedisCluster
from tests.kit.sentinels import SERVICE, SentinelGroup
from tests.kit.servers import Engine, RedisServer, engines
from tests.kit.wait import wait_until
from tests.kit.witness import Witness, note
from tests.rigs.stage import directory, workers

SPARED_PAUSE_MAX: Final = 2.0
"""The longest time (s) for which the queues of an undisturbed shard may go without a claim."""
CALL_MAX: Final = 3.5
"""The longest time (s) that a call to an undisturbed shard may take. It allows for the patience of the client and a
slow machine."""
REFUSED_MAX: Final = 4.5
"""The longest time (s) that a refused call may take. A call that was sent waits 4 s for its answer before it is sent to
another node."""
AGAIN_MAX: Final = 10.0
"""The longest time (s) from the moment at which a new primary accepts writes until the worker claims again."""
UNSURE_S: Final = 2.0
"""The time (s) after which the sentinels know the new primary, and clients learn it from the sentinels."""
SECONDS_MIN: Final = 6.0
"""The shortest time (s) of a strike. It is longer than a worker waits for an answer."""
SETTLED_S: Final = 45.0
EVERY_S: Final = 0.02

app = App()


@app.task(queue="any", name="note")
def ran(queue: str, key: str) -> None:
    note("ran", key=key)


@dataclass(frozen=True)
class Strike:
    """The results of one strike, which is a fault under load. All times are in seconds."""

    kind: str
    engine: str
    spared_pause_s: float
    """The longest time in which no job of an undisturbed queue ran (an undisturbed queue is on a shard without a
    fault)."""
    spared_call_s: float
    """The duration of the longest call of a producer to an undisturbed queue."""
    fresh_call_s: float
    """The duration of the longest first call of a new process that starts when the new primary accepts writes. It is
    not measured under Sentinel."""
    refused_call_s: float
    """The duration of the longest refused call, or 0 if no call was refused."""
    writable_s: float
    """The time from the strike until the new primary accepted writes."""
    acked_s: float
    """The time from the first accepted write until a producer was told that its job is in the struck queue."""
    again_s: float
    """The time from the first accepted write until a job of the struck queue ran."""
    acked: int
    lost: int
    """The number of jobs that never ran though they were acknowledged. They were acknowledged before the strike, or
    later than ``UNSURE_S`` after the new primary accepted writes."""
    lost_meanwhile: int
    """The number of lost jobs that were acknowledged in between, by a primary that its replicas no longer regarded as
    the primary."""
    twice: int


@dataclass
class Load:
    """Producers, one thread for each queue, and the answers that they got."""

    url: str
    acked: dict[str, tuple[str, float, str]] = field(default_factory=dict)
    """The acknowledged jobs, by the key in their arguments: the queue, the time of the answer, and the id of the
    job."""
    calls: list[tuple[str, float, float, bool]] = field(default_factory=list)
    """The calls of the producers: the queue, the time of the beginning, the time of the end, and whether the job was
    accepted."""
    stop: threading.Event = field(default_factory=threading.Event)

    @contextlib.contextmanager
    def producing(self, queues: Sequence[str]) -> Iterator[None]:
        with App(self.url) as producer:
            threads = [
                threading.Thread(target=self._produce, args=(producer, queue)) for queue in queues
            ]
            for thread in threads:
                thread.start()
            try:
                yield
            finally:
                self.stop.set()
                for thread in threads:
                    thread.join()

    def _produce(self, producer: App, queue: str) -> None:
        for number in itertools.count():
            if self.stop.is_set():
                return
            key, began = f"{queue}-{number}", time.monotonic()
            try:
                job = producer.enqueue(queue, "note", {"queue": queue, "key": key})
            except RqCoreError:
                accepted = False
            else:
                accepted = True
                self.acked[key] = queue, time.monotonic(), job.id
            self.calls.append((queue, began, time.monotonic(), accepted))
            time.sleep(EVERY_S)

    def acked_after(self, queue: str, moment: float) -> float | None:
        times = (at for of, at, _ in list(self.acked.values()) if of == queue and at > moment)
        return next(times, None)

    def longest(self, since: float, of: Callable[[str, bool], bool]) -> float:
        """Return the duration (s) of the longest of the chosen calls that ended after this time."""
        calls = [(b - a) for queue, a, b, ok in self.calls if b > since and of(queue, ok)]
        return max(calls, default=0.0)


class Runs:
    """The runs that the jobs recorded."""

    def __init__(self, witness: Witness) -> None:
        self._witness = witness

    def of(self, queue: str) -> list[float]:
        """Return the times at which jobs of the queue ran (seconds of the monotonic clock)."""
        return [line["at"] for line in self._witness.lines("ran") if line["queue"] == queue]

    def keys(self) -> Counter[str]:
        """Return how often each job ran, by the key in its arguments."""
        return Counter(line["key"] for line in self._witness.lines("ran"))

    def first_after(self, queue: str, moment: float) -> float | None:
        return next((at for at in self.of(queue) if at > moment), None)

    def longest_pause(self, queue: str, since: float, until: float) -> float:
        times = [at for at in self.of(queue) if since < at < until]
        return max(b - a for a, b in itertools.pairwise([since, *times, until]))


class ClusterStage:
    """A cluster of six nodes, with a queue on each shard.

    Faults strike the shard of the last queue. The primary of this shard is the first node in the URL.
    """

    fresh_call_s = 0.0

    def __init__(self, cluster: RedisCluster) -> None:
        self._cluster = cluster
        self.url = cluster.url
        self.victim = cluster.servers[0]
        if self.victim not in cluster.primaries():
            self.victim = cluster.primaries()[0]
            others = [each for each in cluster.servers if each is not self.victim]
            ports = ",".join(f"127.0.0.1:{each.port}" for each in (self.victim, *others))
            self.url = f"redis+cluster://{ports}"
        names = [name for on_shard in cluster.queues(1).values() for name in on_shard]
        struck = next(
            name for name in names if cluster.primary_of(queue_keys(name)("meta")) is self.victim
        )
        self.queues = [*(name for name in names if name != struck), struck]

    def frozen_node(self, seconds: float) -> float:
        """Suspend the struck primary with SIGSTOP for some seconds. Return the time at which its replica had taken
        over."""
        began = time.monotonic()
        promoted = self._cluster.watch(self.victim)
        self.victim.freeze()
        try:
            writable = self._promoted(promoted)
            time.sleep(max(0.0, began + seconds - time.monotonic()))
        finally:
            self.victim.thaw()
        return writable

    def bus_partition(self, seconds: float) -> float:
        """Cut the struck primary off from the other nodes for some seconds. Clients can still reach it.

        Return the time at which its replica had taken over.
        """
        began = time.monotonic()
        promoted = self._cluster.watch(self.victim)
        with self._cluster.cutting_off(self.victim):
            writable = self._promoted(promoted)
            time.sleep(max(0.0, began + seconds - time.monotonic()))
        return writable

    def _promoted(self, promoted: Callable[[], bool]) -> float:
        wait_until(promoted, "the replica takes over", timeout=30)
        writable = time.monotonic()
        for queue in self.queues:
            began = time.monotonic()
            with App(self.url) as fresh:
                fresh.enqueue(queue, "note", {"queue": queue, "key": f"{queue}-{began}"})
            self.fresh_call_s = max(self.fresh_call_s, time.monotonic() - began)
        return writable


class SentinelStage:
    """A primary, two replicas and three sentinels, with one queue."""

    fresh_call_s = 0.0

    def __init__(self, group: SentinelGroup) -> None:
        """Let each server refuse writes while it is a primary without a replica."""
        self._group = group
        self.url = group.url
        self.queues = ["moved"]
        for server in group.servers:
            with server.client() as client:
                client.config_set("min-replicas-to-write", 1)
                client.config_set("min-replicas-max-lag", 2)

    def planned_failover(self, seconds: float) -> float:
        """Let Sentinel replace a healthy primary, as an operator can. Return the time from which the new primary took
        writes."""
        group = self._group
        old = group.primary
        group.wait_replicated()
        began = time.monotonic()
        with group.sentinels[0].client() as sentinel:
            sentinel.execute_command("SENTINEL", "FAILOVER", SERVICE)
        writable = self._promoted(old)
        time.sleep(max(0.0, began + seconds - time.monotonic()))
        return writable

    def old_primary_back(self, seconds: float) -> float:
        """Suspend the primary until a replica has taken over, and then resume it. At first it still acts as a primary.

        Return the time from which the new primary took writes.
        """
        old = self._group.primary
        self._group.wait_replicated()
        began = time.monotonic()
        old.freeze()
        try:
            writable = self._promoted(old)
            time.sleep(max(0.0, began + seconds - time.monotonic()))
        finally:
            old.thaw()
        return writable

    def _promoted(self, old: RedisServer) -> float:
        others = [server for server in self._group.servers if server is not old]
        wait_until(lambda: any(map(self._group.takes_writes, others)), "it is promoted", timeout=60)
        return time.monotonic()


Stage = ClusterStage | SentinelStage
CLUSTER_KINDS: Final = ("frozen_node", "bus_partition")
SENTINEL_KINDS: Final = ("planned_failover", "old_primary_back")
KINDS: Final = (*CLUSTER_KINDS, *SENTINEL_KINDS)


def strike(stage: Stage, kind: str, seconds: float, place: Path, engine: Engine) -> Strike:
    """Apply one fault under load, and return the results."""
    load = Load(stage.url)
    *spared, struck = stage.queues
    options = ("--concurrency", "8", "--grace", "1", "--force")
    app = "tests.rigs.shards:app"
    with (
        workers(place, app, stage.queues, stage.url, *options) as crew,
        load.producing(stage.queues),
    ):
        runs = Runs(crew.witness)
        wait_until(
            lambda: all(len(runs.of(queue)) > 20 for queue in stage.queues),
            lambda: f"jobs of all queues run: {crew.end_of_log()}",
        )
        began = time.monotonic()
        writable = getattr(stage, kind)(seconds)
        acked = wait_until(
            lambda: load.acked_after(struck, writable), "jobs are acknowledged", timeout=SETTLED_S
        )
        again = wait_until(
            lambda: runs.first_after(struck, writable), "jobs run", timeout=SETTLED_S
        )
        over = time.monotonic()
        wait_until(
            lambda: all(runs.first_after(queue, over) for queue in stage.queues),
            lambda: f"jobs of all queues run on: {crew.end_of_log()}",
            timeout=SETTLED_S,
        )
        load.stop.set()
        with contextlib.suppress(AssertionError):
            # What is left then is lost, or waits for the end of a lease in Redis.
            wait_until(lambda: load.acked.keys() <= runs.keys().keys(), "all ran", timeout=3)
        with Client(stage.url) as client:
            reads = client.calls.reads
            live = {job for q in stage.queues for job in client.run(reads.snapshot(q))["jobs"]}
    ran = runs.keys()
    lost = [
        at for key, (_, at, job_id) in load.acked.items() if key not in ran and job_id not in live
    ]
    assert acked is not None
    assert again is not None
    return Strike(
        kind,
        engine.name,
        max((round(runs.longest_pause(q, began, over), 2) for q in spared), default=0.0),
        round(load.longest(began, lambda queue, _: queue in spared), 2),
        round(stage.fresh_call_s, 2),
        round(load.longest(began, lambda _, accepted: not accepted), 2),
        round(writable - began, 2),
        round(acked - writable, 2),
        round(again - writable, 2),
        len(load.acked),
        sum(not began <= at < writable + UNSURE_S for at in lost),
        sum(began <= at < writable + UNSURE_S for at in lost),
        sum(times > 1 for times in ran.values()),
    )


def problems(found: Sequence[Strike]) -> list[str]:
    """Return the promises that were not met."""
    said = []
    for n, each in enumerate(found):
        for name, most in (
            ("spared_pause_s", SPARED_PAUSE_MAX),
            ("spared_call_s", CALL_MAX),
            ("fresh_call_s", CALL_MAX),
            ("refused_call_s", REFUSED_MAX),
            ("acked_s", AGAIN_MAX),
            ("again_s", AGAIN_MAX),
            ("lost", 0),
        ):
            if getattr(each, name) > most:
                said.append(
                    f"strike {n} ({each.kind}, {each.engine}): {name} is {getattr(each, name)}"
                )
    return said


@contextlib.contextmanager
def staged(kind: str, place: Path, engine: Engine) -> Iterator[Stage]:
    """Start the servers that this kind of strike needs, and yield them."""
    if kind in CLUSTER_KINDS:
        cluster = RedisCluster(engine, place)
        try:
            yield ClusterStage(cluster.start())
        finally:
            cluster.stop()
    else:
        with SentinelGroup(engine, place, replicas=2).up() as group:
            yield SentinelStage(group)


def run(
    kinds: Sequence[str],
    *,
    times: int,
    seconds: float,
    on: Sequence[Engine] | None = None,
    on_strike: Callable[[Strike], None] = lambda _: None,
) -> list[Strike]:
    """Strike ``times`` times with each kind of fault on each engine. Each strike has its own servers."""
    found = []
    for engine, kind, _ in itertools.product(on or engines(), kinds, range(times)):
        with directory() as place, staged(kind, place, engine) as stage:
            found.append(strike(stage, kind, seconds, place, engine))
            on_strike(found[-1])
    return found
