"""Kills or suspends workers while they hold places in caps."""

from __future__ import annotations

import os
import random
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path

from rq_core.connections.client import Client
from tests.kit.lanes import CLAIMED, holders_of, lane_problems
from tests.kit.snapshots import fields_of, lines_of
from tests.kit.wait import wait_until
from tests.rigs.judge.follower import Follower
from tests.rigs.live import tasks
from tests.rigs.live.crew import crew
from tests.rigs.live.replay import Replay
from tests.rigs.stage import WORKER, Crew

LEASE_S = 1.0


@dataclass
class Kills:
    """The figures of a run in which workers are killed."""

    kills: int = 0
    held: int = 0
    """The number of claims that the killed workers held."""
    samples: int = 0
    problems: list[str] = field(default_factory=list)
    freed_ms: list[int] = field(default_factory=list)
    """The time (ms) from each kill until the last lease of the killed worker had expired."""
    refused: int = 0

    def line(self) -> str:
        return (
            f"{self.kills} workers killed with {self.held} claims in force; {self.samples:,} samples,"
            f" {len(self.problems)} of them wrong; free again after at most"
            f" {max(self.freed_ms, default=0)} ms (lease {LEASE_S * 1000:.0f} ms)"
        )


def sample(client: Client, queue: str) -> tuple[list[str], dict[str, str]]:
    """Read the whole queue at one moment. Return the errors about holders and lanes, and the worker of each claimed
    job."""
    snapshot = client.run(client.calls.reads.snapshot(queue))
    jobs = {job_id: fields_of(line) for job_id, line in lines_of(snapshot).items()}
    problems = lane_problems(snapshot, jobs)
    held = holders_of(snapshot)
    for job_id, job in jobs.items():
        for scope in job.get("lane", "").split("+")[1:]:
            if (job_id in held[scope]) != (job["state"] in CLAIMED):
                problems.append(f"{job_id} is {job['state']}; holders of {scope}: {held[scope]}")
    return problems, {i: job["by"] for i, job in jobs.items() if job["state"] in CLAIMED}


def kill_workers(client: Client, place: Path, kills: int, *, processes: int = 3) -> Kills:
    """Kill workers one after another while they hold places in caps, and examine the queue after each kill."""
    queue, draw, found = "kills", random.Random(3), Kills()
    tasks.app.apply_settings()
    client.run(client.calls.admin.configure(queue, {"lease_ms": int(LEASE_S * 1000)}))
    follower = Follower(client, queue, Replay())
    with crew(client.url, place, [queue], processes, lease=LEASE_S, concurrency=3) as running:
        for _ in range(kills):
            victim = running.of(WORKER, draw)
            mine = _stop_while_holding(client, queue, victim.pid, found, draw)
            running.kill(victim)
            killed_ms = _now_ms(client)
            found.kills += 1
            found.held += len(mine)
            running.start()
            deadline = time.monotonic() + 15
            while True:
                problems, claimed = sample(client, queue)
                found.samples += 1
                found.problems += problems
                if not mine & {(i, by) for i, by in claimed.items()}:
                    break
                assert time.monotonic() < deadline, f"still claimed 15 s after the kill: {mine}"
            replay = follower.catch_up()
            dead = {by for _, by in mine}
            ends = [at for by, at in replay.expired if by in dead]
            if len(ends) != len(mine):
                found.problems.append(f"{len(ends)} leases of {len(mine)} expired")
            found.freed_ms.append(max(ends) - killed_ms)
        wait_until(
            lambda: not client.run(client.calls.reads.snapshot(queue))["jobs"],
            "all jobs are done",
            timeout=60,
        )
        found.problems += sample(client, queue)[0]
    replay = follower.catch_up()
    found.problems += replay.breaches
    found.refused = replay.refused
    return found


def _stop_while_holding(
    client: Client, queue: str, pid: int, found: Kills, draw: random.Random
) -> set[tuple[str, str]]:
    """Suspend the worker process at a moment when it holds claims. Return the claims as (job, worker)."""
    started = False
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if client.run(client.calls.reads.counts(queue)).waiting < 30:
            tasks.app.enqueue_many(
                tasks.killed.job(tenant=draw.choice(tasks.KEYS), seconds=0.05) for _ in range(30)
            )
        if not started:
            # One that is stopped again and again would take for ever to begin.
            claimed = sample(client, queue)[1]
            started = any(by.startswith(f"w-{pid}-") for by in claimed.values())
            continue
        os.kill(pid, signal.SIGSTOP)
        problems, claimed = sample(client, queue)
        found.samples += 1
        found.problems += problems
        # What it had sent before it was stopped may still arrive; the second look is after that.
        _, again = sample(client, queue)
        mine = {(i, by) for i, by in again.items() if by.startswith(f"w-{pid}-")}
        if mine and mine <= set(claimed.items()):
            return mine
        os.kill(pid, signal.SIGCONT)
        time.sleep(0.005)
    raise AssertionError(f"worker {pid} never holds a claim")


def _now_ms(client: Client) -> int:
    ((seconds, micros),) = client.run(client.calls.delivery.ask([["TIME"]]))
    return int(seconds) * 1000 + int(micros) // 1000


@dataclass
class Zombies:
    """The figures of a run in which suspended workers come back after their leases expired."""

    zombies: int
    refused: int
    most: int
    problems: list[str]

    def line(self) -> str:
        return (
            f"{self.zombies} workers stopped past their lease and continued; {self.refused} settlements"
            f" refused and audited; at most {self.most} held the cap of 1; {len(self.problems)} problems"
        )


def stop_and_continue(client: Client, place: Path, zombies: int) -> Zombies:
    """Suspend worker after worker while each runs the same job under a cap of 1. Then resume all of them at once.

    Each worker is started when the worker before it is suspended, and gets the job when the lease has expired.
    """
    queue = "zombies"
    tasks.app.apply_settings()
    client.run(client.calls.admin.configure(queue, {"lease_ms": int(LEASE_S * 1000)}))
    follower = Follower(client, queue, Replay())
    problems: list[str] = []
    # Long enough that it ends after its worker has come back, and that the last holder still runs then.
    job = tasks.stopped.enqueue(tenant="x", seconds=2.0)
    with crew(client.url, place, [queue], 0, lease=LEASE_S, concurrency=1) as running:
        stopped: list[int] = []
        for number in range(zombies):
            pid = running.start().pid
            wait_until(lambda n=number: _starts(running) > n, "it runs", timeout=30)  # type: ignore[misc]
            os.kill(pid, signal.SIGSTOP)
            stopped.append(pid)
        # The last holder: it has the job while all the others come back.
        tasks.stopped.enqueue(tenant="x", seconds=2.0)
        last = running.start()
        wait_until(lambda: _starts(running) > zombies, "the last one runs", timeout=30)
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)
        deadline = time.monotonic() + 20
        while follower.catch_up().refused < zombies and time.monotonic() < deadline:
            problems += sample(client, queue)[0]
        wait_until(
            lambda: not client.run(client.calls.reads.snapshot(queue))["jobs"],
            f"{job.id} and the other are done",
            timeout=30,
        )
        problems += sample(client, queue)[0]
        assert last.process.poll() is None
    replay = follower.catch_up()
    return Zombies(zombies, replay.refused, replay.peak["task=stopped"], problems + replay.breaches)


def _starts(running: Crew) -> int:
    return len(running.witness.lines("start"))
