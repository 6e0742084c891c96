"""Jobs whose deadline comes before any worker may take them, so many a second: they leave as fast as they come."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from rq_core.connections.client import Client
from rq_core.model.ids import JobIds
from rq_core.model.job import NewJob, profile, ties_of
from tests.kit.processes import worker
from tests.kit.wait import wait_until
from tests.rigs.once.tasks import QUEUE

CHUNK: Final = 250
"""Jobs of a call."""
LANES: Final = 250
DEADLINE_MS: Final = 1_000


@dataclass
class Second:
    """How the queue stood at the end of a second."""

    jobs: int
    overdue: int
    """Jobs whose deadline is over, and that are still there."""
    memory: int
    """Bytes that Redis uses."""


@dataclass
class Expiring:
    """What became of it."""

    rate: float = 0.0
    """Jobs that were enqueued a second."""
    enqueued: int = 0
    seconds: list[Second] = field(default_factory=list)
    drained_s: float = 0.0
    """From the last enqueue until the last job was gone; their deadline is part of it."""
    left: list[str] = field(default_factory=list)
    """What the queue still had then of jobs and indexes."""

    @property
    def growth(self) -> float:
        """The most memory of the last third, by the most of the middle third: 1 is flat."""
        third = max(len(self.seconds) // 3, 1)
        middle, last = self.seconds[third : 2 * third], self.seconds[-third:]
        return max(s.memory for s in last) / max(s.memory for s in middle)

    def line(self) -> str:
        """The figures."""
        memory = [second.memory / 2**20 for second in self.seconds]
        return (
            f"{self.enqueued:,} jobs with a deadline of {DEADLINE_MS} ms, {self.rate:,.0f} a second: at most"
            f" {max(s.jobs for s in self.seconds):,} at once and {max(s.overdue for s in self.seconds):,} overdue;"
            f" memory {min(memory):.1f} to {max(memory):.1f} MiB, last third by middle third {self.growth:.3f};"
            f" all gone {self.drained_s:.1f} s after the last"
        )


def expire(url: str, place: Path, rate: int, seconds: int) -> Expiring:
    """Enqueue so many a second for so long, half of them delayed, half in lanes that a cap of 0 holds up."""
    found = Expiring()
    log = place / "worker.log"
    with Client(url) as client, worker("tests.rigs.once.tasks:app", [QUEUE], url, log=log) as child:
        child.wait_said("worker started")
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
    prefix = f"rqc:{{{QUEUE}}}:"
    replies: list[Any] = client.run(
        client.calls.delivery.ask([["HLEN", f"{prefix}jobs"], ["TIME"], ["INFO", "memory"]])
    )
    jobs, now, info = replies
    now_ms = int(now[0]) * 1000 + int(now[1]) // 1000
    overdue = client.run(
        client.calls.delivery.ask([["ZCOUNT", f"{prefix}expiring", "-inf", str(now_ms)]])
    )[0]
    text = info if isinstance(info, str) else str(info)
    memory = next(line for line in text.splitlines() if line.startswith("used_memory:"))
    return Second(int(jobs), int(overdue), int(memory.partition(":")[2]))
