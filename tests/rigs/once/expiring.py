"""Enqueues jobs whose deadlines pass before any worker may claim them. They must leave Redis as fast as they come."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from rq_core.connections.client import Client
from rq_core.model.ids import JobIds
from rq_core.model.job import NewJob, profile, ties_of
from rq_core.model.keys import queue_keys
from tests.kit.wait import wait_until
from tests.rigs.judge import memory
from tests.rigs.once.tasks import QUEUE
from tests.rigs.stage import workers

CHUNK: Final = 250
"""The number of jobs in a call."""
LANES: Final = 250
DEADLINE_MS: Final = 1_000


@dataclass
class Second:
    """The state of the queue at the end of one second."""

    jobs: int
    overdue: int
    """The number of jobs that are still in Redis though their deadline has passed."""
    memory: int
    """The number of bytes that Redis uses."""


@dataclass
class Expiring:
    """The figures of a run with jobs that all expire."""

    rate: float = 0.0
    """The number of jobs that were enqueued per second."""
    enqueued: int = 0
    seconds: list[Second] = field(default_factory=list)
    drained_s: float = 0.0
    """The time (s) from the last enqueue until the last job had left Redis. It includes the time until the deadline."""
    left: list[str] = field(default_factory=list)
    """The jobs and index entries that the queue still had at the end."""

    @property
    def growth(self) -> float:
        return memory.growth([second.memory for second in self.seconds])

    def line(self) -> str:
        """Return the figures as one line."""
        return (
            f"{self.enqueued:,} jobs with a deadline of {DEADLINE_MS} ms, {self.rate:,.0f} a second: at most"
            f" {max(s.jobs for s in self.seconds):,} at once and {max(s.overdue for s in self.seconds):,} overdue;"
            f" {memory.said([second.memory for second in self.seconds])};"
            f" all gone {self.drained_s:.1f} s after the last"
        )


def expire(url: str, place: Path, rate: int, seconds: int) -> Expiring:
    """Enqueue ``rate`` jobs per second for some seconds. Half of the jobs are delayed, and half wait in lanes with a
    cap of 0."""
    found = Expiring()
    with Client(url) as client, workers(place, "tests.rigs.once.tasks:app", [QUEUE], url):
        client.run(client.calls.caps.set(QUEUE, [("host", "0", -1)]))
        chunks = _chunks()
        began = time.monotonic()
        for second in range(seconds):
            while found.enqueued < rate * (second + 1):
                jobs = next(chunks)
                found.enqueued += len(client.run(client.calls.enqueue.many(jobs)).ids)
                _wait_for(began + found.enqueued / rate)
            found.seconds.append(_look(client))
        ended = time.monotonic()
        found.rate = found.enqueued / (ended - began)
        wait_until(lambda: not _look(client).jobs, "all have expired", timeout=60)
        found.drained_s = time.monotonic() - ended
        snapshot = client.run(client.calls.reads.snapshot(QUEUE))
        for key in ("jobs", "state", "scheduled", "waiting", "lanes", "blocked", "open"):
            found.left += [f"{key} has {each}" for each in list(snapshot[key])[:3]]
        found.left += [f"expiring has {m}" for m in snapshot["expiring"] if m.startswith("job|")]
    return found


def _chunks() -> Iterator[list[NewJob]]:
    ids, made, ties = JobIds(), profile("hold"), ties_of(expires_in_ms=DEADLINE_MS)
    args, number = '{"name":"x","number":1}', 0
    while True:
        jobs = []
        for _ in range(CHUNK // 2):
            number += 1
            lane = f"2+host=h{number % LANES}"
            jobs.append(NewJob(ids(), QUEUE, made, args, 3_600_000, ties=ties))
            jobs.append(NewJob(ids(), QUEUE, made, args, lane=lane, ties=ties))
        yield jobs


def _wait_for(moment: float) -> None:
    left = moment - time.monotonic()
    if left > 0:
        time.sleep(left)


def _look(client: Client) -> Second:
    key = queue_keys(QUEUE)
    seconds, micros = memory.ask(client, "TIME")
    now_ms = int(seconds) * 1000 + int(micros) // 1000
    overdue = memory.ask(client, "ZCOUNT", key("expiring"), "-inf", str(now_ms))
    jobs = memory.ask(client, "HLEN", key("jobs"))
    return Second(int(jobs), int(overdue), memory.used_memory(client))
