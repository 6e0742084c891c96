"""Interrupts Redis under a working worker, again and again, and measures how soon the worker claims again.

    scripts/prove/live outages --times 100 --seconds 2 --kind restart --kind failover

This starts servers and a worker for each kind of outage. After each outage it prints the seconds from Redis' return to
the worker's next claim. It also prints whether the job that ran meanwhile was settled once.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rq_core import App
from rq_core.connections.client import Client
from rq_core.model.events import decode
from tests.kit.proxy import Mode, Proxy
from tests.kit.sentinels import QUORUM, SentinelGroup
from tests.kit.servers import Engine, RedisServer, engines
from tests.kit.wait import wait_until
from tests.kit.witness import note, noted
from tests.rigs.judge.times import percentile
from tests.rigs.stage import DURABLE, WORKER, directory, served, workers

QUEUE: Final = "outages"
AGAIN_MAX: Final = 10.0
"""The time (s) after Redis' return within which the worker must claim again."""
PATIENCE: Final = 60.0

app = App()
app.queue(QUEUE, lease=15)


@app.task(queue=QUEUE)
def probe() -> None:
    """End at once. The run of such a job (a probe) shows that the worker claims again."""
    note("probe")


@app.task(queue=QUEUE)
async def long(seconds: float) -> None:
    """Sleep for ``seconds``, a little shorter than the outage."""
    with noted():
        await asyncio.sleep(seconds)


@dataclass(frozen=True)
class Outage:
    """One outage of Redis, and what became of two jobs."""

    kind: str
    seconds: float
    again_s: float
    """The time (s) from Redis' return to the next claim."""
    claims: int
    """The number of claims of the two jobs together. It is 2 unless a lease was lost."""
    ends: int
    """The number of recorded ends of the two jobs. Any number other than 2 is a lost job or a false report."""


class Stage:
    """A server, a worker process that reaches it through a proxy, and a producer that reaches it directly."""

    def __init__(self, place: Path, engine: Engine) -> None:
        self._place = place
        self._engine = engine

    @contextlib.contextmanager
    def up(self, processes: int) -> Iterator[Client]:
        options = ("--processes", str(processes), "--grace", "1")
        app = "tests.rigs.outages:app"
        with (
            self._servers() as (worker_url, producer_url),
            workers(self._place, app, [QUEUE], worker_url, *options) as self.crew,
            Client(producer_url) as client,
        ):
            yield client
            self.crew.stop(WORKER)

    @contextlib.contextmanager
    def _servers(self) -> Iterator[tuple[str, str]]:
        """Start the servers. Yield the worker's URL and the producer's URL."""
        with (
            served(self._engine, self._place, DURABLE) as self.server,
            Proxy(self.server.port) as self.proxy,
        ):
            yield self.proxy.url, self.server.url

    def seen(self, what: str, job_id: str) -> float | None:
        """Return when a job wrote a witness line of this kind (seconds of the monotonic clock), or None."""
        lines = self.crew.witness.lines(what)
        return next((line["at"] for line in lines if line["job"] == job_id), None)

    def perform(self, kind: str, seconds: float) -> None:
        """Interrupt Redis for some seconds, and return when Redis is back."""
        self._kinds[kind](seconds)

    def recover(self) -> None:
        """Do nothing: an outage of one server leaves nothing to restore."""

    # The kinds of outages.

    def restart(self, seconds: float) -> None:
        """Kill Redis with SIGKILL, and start it again from its append-only file."""
        self.server.kill()
        time.sleep(seconds)
        self.server.start()

    def freeze(self, seconds: float) -> None:
        """Suspend Redis with SIGSTOP: connections stay open, and Redis answers no command."""
        self.server.freeze()
        time.sleep(seconds)
        self.server.thaw()

    def blackhole(self, seconds: float) -> None:
        """Drop all data on the network. Connections from before stay open, but never work again."""
        with self.proxy.doing(Mode.BLACK_HOLE):
            time.sleep(seconds)

    def reset(self, seconds: float) -> None:
        """Let the server close all connections, again and again."""
        self._repeat(["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"], seconds)

    def flush(self, seconds: float) -> None:
        """Let the server forget its scripts, again and again."""
        self._repeat(["SCRIPT", "FLUSH"], seconds)

    def _repeat(self, command: Sequence[str], seconds: float) -> None:
        until = time.monotonic() + seconds
        with self.server.client() as client:
            while time.monotonic() < until:
                client.execute_command(*command)
                time.sleep(0.005)

    @property
    def _kinds(self) -> dict[str, Callable[[float], None]]:
        return {
            "restart": self.restart,
            "freeze": self.freeze,
            "blackhole": self.blackhole,
            "reset": self.reset,
            "flush": self.flush,
        }


class SentinelStage(Stage):
    """Two servers and three sentinels. The worker and the producer ask the sentinels for the primary."""

    def __init__(self, place: Path, engine: Engine) -> None:
        super().__init__(place, engine)
        self._group = SentinelGroup(engine, place)
        self._lost: RedisServer | None = None

    @contextlib.contextmanager
    def _servers(self) -> Iterator[tuple[str, str]]:
        with self._group.up():
            yield self._group.url, self._group.url

    def perform(self, kind: str, seconds: float) -> None:
        """Kill the primary with SIGKILL, and let the sentinels promote the replica.

        An outage longer than SHORT_S seconds must last its full time. Until then, the quorum is larger than the number
        of sentinels, so that they cannot promote the replica.
        """
        assert kind == FAILOVER
        # What was not replicated is lost with the primary, and no outage but a loss: scripts/prove/chaos has those.
        self._group.wait_replicated()
        if seconds > SHORT_S:
            self._group.need(len(self._group.sentinels) + 1)
        self._lost = self._group.lose_primary()
        if seconds > SHORT_S:
            time.sleep(seconds)
            self._group.need(QUORUM)
        self._group.wait_promoted(self._lost)

    def recover(self) -> None:
        """Start the old primary again. It becomes the replica."""
        if self._lost is not None:
            self._lost.start()
            self._lost = None
            self._group.wait_whole()


FAILOVER: Final = "failover"
KINDS: Final = ("restart", "freeze", "blackhole", "reset", "flush")
"""The kinds of outages that need only one server."""
SHORT_S: Final = 2.0
"""The longest time (s) of a short outage. Short outages have random lengths, and longer outages have exact lengths."""


def outage(stage: Stage, client: Client, kind: str, seconds: float) -> Outage:
    """Interrupt Redis while a job runs, and return what became of this job and of a probe."""
    job = long.job(seconds * 0.9)
    client.run(client.calls.enqueue.many([job]))
    wait_until(lambda: stage.seen("start", job.id), "the job runs", timeout=PATIENCE)
    stage.perform(kind, seconds)
    back = time.monotonic()
    asked = probe.job()
    client.run(client.calls.enqueue.many([asked]))
    at = wait_until(
        lambda: stage.seen("probe", asked.id),
        lambda: f"the worker claims after {kind}; its log: {stage.crew.end_of_log()}",
        timeout=PATIENCE,
    )
    ids = {job.id, asked.id}
    wait_until(
        lambda: not any(client.run(client.calls.reads.job(each, [QUEUE])) for each in ids),
        lambda: f"both are reported after {kind}; the log: {stage.crew.end_of_log()}",
        timeout=PATIENCE,
    )
    claims, ends = _tally(client, ids)
    stage.recover()
    assert at is not None
    return Outage(kind, round(seconds, 2), round(at - back, 2), claims, ends)


def _tally(client: Client, ids: set[str]) -> tuple[int, int]:
    """Return how many times these jobs together were claimed, and how many times they succeeded."""
    counts = {"claimed": 0, "succeeded": 0}
    for entry_id, raw in client.run(client.calls.audit.read_outbox(QUEUE, "-", 10_000)):
        entry = decode(entry_id, raw)
        if str(entry.event) in counts:
            counts[str(entry.event)] += sum(each.job_id in ids for each in entry.jobs)
    return counts["claimed"], counts["succeeded"]


def run(
    place: Path,
    *,
    kinds: Sequence[str] = KINDS,
    times: int,
    seconds: float,
    seed: int = 0,
    processes: int = 1,
    engine: Engine | None = None,
    on_outage: Callable[[Outage], None] = lambda _: None,
) -> list[Outage]:
    """Interrupt Redis ``times`` times in all, with these kinds of outages in turn."""
    draw = random.Random(seed)
    stage = (SentinelStage if FAILOVER in kinds else Stage)(place, engine or engines()[0])
    found = []
    with stage.up(processes) as client:
        for kind in itertools.islice(itertools.cycle(kinds), times):
            length = seconds if seconds > SHORT_S else draw.uniform(0.05, seconds)
            found.append(outage(stage, client, kind, length))
            on_outage(found[-1])
    return found


def problems(found: Sequence[Outage]) -> list[str]:
    """Return the promises that were not met."""
    said = []
    for n, each in enumerate(found):
        what = f"outage {n} ({each.kind}, {each.seconds} s)"
        if each.again_s > AGAIN_MAX:
            said.append(f"{what}: claims again after {each.again_s} s")
        if each.ends != 2:
            said.append(f"{what}: {each.ends} successes of 2 jobs")
        if each.claims != 2:
            said.append(f"{what}: {each.claims} claims of 2 jobs")
    return said


HEAD: Final = f"{'outage':10} {'attempted':>9} {'p50 s':>8} {'p99 s':>8} {'max s':>8} {'lost':>5}"


def summary(kind: str, found: Sequence[Outage]) -> dict[str, Any]:
    """Return the figures of all outages of one kind. A job that was acknowledged and did not succeed counts as lost."""
    again = [each.again_s for each in found]
    return {
        "kind": kind,
        "attempted": len(found),
        "again_p50_s": percentile(again, 0.5),
        "again_p99_s": percentile(again, 0.99),
        "again_max_s": max(again, default=0.0),
        "lost": sum(2 - each.ends for each in found),
    }


def row(said: dict[str, Any]) -> str:
    kind, attempted, *times, lost = said.values()
    return f"{kind:10} {attempted:9} {' '.join(f'{each:8.2f}' for each in times)} {lost:5}"


def every(
    kinds: Sequence[str], parallel: int, **how: Any
) -> tuple[dict[str, list[Outage]], list[str]]:
    """Call `run` for each kind of outage, on separate servers. Return the outages by kind, and the broken promises."""
    wrong: list[str] = []

    def of(kind: str) -> list[Outage]:
        found: list[Outage] = []
        try:
            with directory() as place:
                found = run(place, kinds=[kind], **how)
        except AssertionError as error:
            wrong.append(f"{kind}: {error}")
        return found

    with ThreadPoolExecutor(parallel) as pool:
        by_kind = dict(zip(kinds, pool.map(of, kinds), strict=True))
    return by_kind, wrong + [each for found in by_kind.values() for each in problems(found)]
