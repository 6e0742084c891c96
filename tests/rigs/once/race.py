"""Many producers enqueue jobs with one unique name while workers are killed.

Two live jobs may never hold the name, and at the end the name must be free.
"""

from __future__ import annotations

import itertools
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from rq_core.connections.client import Client
from rq_core.model.ids import JobIds
from rq_core.model.job import NewJob, profile, ties_of
from rq_core.protocol.engine.delivery import Delivery
from rq_core.protocol.operations import Operations
from tests.kit.wait import wait_until
from tests.rigs.judge.follower import Follower
from tests.rigs.judge.memory import ask
from tests.rigs.judge.names import Names
from tests.rigs.once.tasks import LEASE_S, QUEUE
from tests.rigs.stage import WORKER, Crew

PRODUCERS: Final = 50
PAUSE_S: Final = 0.02
"""The pause (s) between two calls of a producer, so that workers get processor time."""
NAME: Final = "hold/name=one"
STANDING: Final = """local id = redis.call('HGET', KEYS[1], ARGV[1])
if not id then return {'free', '', ''} end
return {id, redis.call('HGET', KEYS[2], id) or '', redis.call('HGET', KEYS[3], id) or ''}"""


@dataclass
class Race:
    """The figures of a race for one unique name, and the problems that it found."""

    enqueues: int = 0
    accepted: int = 0
    held: int = 0
    kills: int = 0
    samples: int = 0
    """The number of times that the name and the job that holds it were read at one moment."""
    names: Names = field(default_factory=Names)
    problems: list[str] = field(default_factory=list)

    def line(self) -> str:
        """Return the figures as one line."""
        counts = self.names.counts
        return (
            f"{self.enqueues:,} enqueues of one name, {PRODUCERS} producers: {self.accepted:,} accepted,"
            f" {self.held:,} held; {self.kills} workers killed, {counts['lease_expired']} leases lost,"
            f" {counts['retried']:,} retries, {counts['died']} died; {counts['succeeded']:,} succeeded;"
            f" {self.samples:,} looks, {len(self.problems) + len(self.names.breaches)} breaches"
        )


class _Producers:
    """Producers that enqueue jobs with the same unique name again and again until they are stopped."""

    def __init__(self, url: str) -> None:
        self.url, self.found = url, Race()
        self.done = threading.Event()
        self._counting = threading.Lock()
        self._ids = JobIds()
        self._numbers = itertools.count()

    def produce(self, number: int) -> None:
        calls = Operations(Delivery(url=self.url, name=f"p-{number}"))
        made = profile("hold")
        with Client(self.url, calls=calls) as client:
            while not self.done.wait(PAUSE_S):
                args = f'{{"name":"one","number":{next(self._numbers)}}}'
                job = NewJob(self._ids(), QUEUE, made, args, ties=ties_of(unique="keep"), name=NAME)
                answer = client.run(client.calls.enqueue.many([job]))
                with self._counting:
                    self.found.enqueues += 1
                    self.found.accepted += len(answer.ids)
                    self.found.held += len(answer.held)


def race(url: str, place: Path, enqueues: int, kills: int, *, processes: int = 2) -> Race:
    """Run the race until enough jobs were enqueued, enough workers were killed, and all jobs have ended."""
    producers = _Producers(url)
    found, draw = producers.found, random.Random(7)
    stop = threading.Event()
    with (
        Client(url) as client,
        Crew(place) as crew,
        ThreadPoolExecutor(PRODUCERS + 1) as threads,
    ):
        crew.knows_workers(
            "tests.rigs.once.tasks:app", [QUEUE], url, "--concurrency", "2", "--grace", "1"
        )
        for _ in range(processes):
            crew.start()
        try:
            client.run(client.calls.admin.configure(QUEUE, {"lease_ms": round(LEASE_S * 1000)}))
            follower = Follower(client, QUEUE, found.names)
            looking = threads.submit(_look, url, follower, found, stop)
            asking = [threads.submit(producers.produce, n) for n in range(PRODUCERS)]
            while found.kills < kills:
                _wait_accepted(found, found.accepted + 3, crew)
                victim = crew.of(WORKER, draw)
                _wait_holding(client, victim.pid)
                crew.kill(victim)
                found.kills += 1
                crew.start()
            wait_until(
                lambda: found.enqueues >= enqueues,
                "so many have asked",
                timeout=60 + enqueues / 200,
            )
            producers.done.set()
            for each in asking:
                each.result()
            wait_until(
                lambda: (
                    ask(client, "HLEN", f"rqc:{{{QUEUE}}}:jobs")
                    == ask(client, "ZCARD", f"rqc:{{{QUEUE}}}:dead")
                ),
                "all has ended",
                timeout=60,
            )
            stop.set()
            looking.result()
        finally:
            producers.done.set()
            stop.set()
        _judge(client, found)
    return found


def _wait_accepted(found: Race, upto: int, crew: Crew) -> None:
    wait_until(
        lambda: found.accepted > upto, lambda: f"workers run jobs: {crew.end_of_log()}", timeout=60
    )


def _wait_holding(client: Client, pid: int) -> None:
    """Wait until the worker holds a claim. Give up after 200 reads."""
    for _ in range(200):
        lines = ask(client, "HVALS", f"rqc:{{{QUEUE}}}:state")
        if any(f"-{pid}-" in line for line in lines):
            return


def _look(url: str, follower: Follower[Names], found: Race, stop: threading.Event) -> None:
    """Read the name and the job that holds it, and follow the log, until the race ends."""
    keys = [f"rqc:{{{QUEUE}}}:{name}" for name in ("slots", "jobs", "state")]
    with Client(url) as client:
        while True:
            stopped = stop.is_set()
            for _ in range(20):
                holder, value, line = ask(client, "EVAL", STANDING, "3", *keys, f"unique|{NAME}")
                found.samples += 1
                if holder != "free" and (not value or line.startswith("dead")):
                    found.problems.append(f"{holder} holds the name, and is {line or 'gone'}")
            follower.catch_up()
            if stopped:
                return


def _judge(client: Client, found: Race) -> None:
    counts = found.names.counts
    if found.accepted + found.held != found.enqueues:
        found.problems.append("an enqueue was answered neither accepted nor held")
    if counts["enqueued"] != found.accepted:
        found.problems.append(f"{counts['enqueued']} jobs in the log, {found.accepted} accepted")
    if found.names.holders:
        found.problems.append(f"alive in the end by the log: {found.names.holders}")
    slots = ask(client, "HKEYS", f"rqc:{{{QUEUE}}}:slots")
    left = [each for each in slots if each.startswith("unique|")]
    dead = ask(client, "ZCARD", f"rqc:{{{QUEUE}}}:dead")
    if left:
        found.problems.append(f"names without jobs in the end: {left} ({dead} are dead)")
