"""Shows that no wake-up is lost if a job is enqueued or cancelled while the last holder of a cap ends."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from rq_core.connections.client import Client
from rq_core.model.keys import queue_keys
from tests.kit.snapshots import lines_of
from tests.rigs.judge.follower import Follower
from tests.rigs.live import tasks
from tests.rigs.live.replay import Replay

LIMIT_S = 1.0
"""The longest allowed time (s) in which a place is empty, while a job waits only for this place and a worker is
idle."""
FOLLOW = 500


@dataclass
class Race:
    """The figures of all rounds. In each round a job is enqueued or cancelled while the holder of a cap ends."""

    rounds: int
    seconds: float
    replay: Replay
    close: int
    """The number of times that an enqueue and the success of a job were within a millisecond of each other."""
    cancelled: int
    stuck: list[str] = field(default_factory=list)

    def line(self) -> str:
        longest = max(self.replay.room_ms, default=0)
        return (
            f"{self.rounds:,} rounds in {self.seconds:.0f} s, {self.close:,} within 1 ms of an end,"
            f" {self.cancelled:,} cancelled on the way; longest with room, a job and an idle worker:"
            f" {longest} ms; stuck: {len(self.stuck)}; {len(self.replay.breaches)} breaches"
        )


def race(client: Client, rounds: int, *, seed: int = 1) -> Race:
    """Run one job at a time under a cap of 1, and enqueue the next job just when it ends.

    Some rounds enqueue two jobs and cancel the first one.
    """
    draw = random.Random(seed)

    def enqueue() -> list[str]:
        pair = draw.random() < 0.2
        jobs = [tasks.racing.job(tenant="x") for _ in range(2 if pair else 1)]
        tasks.app.enqueue_many(jobs)
        return [jobs[0].id] if pair else []

    return _rounds(client, "race", rounds, draw, enqueue, live_max=1)


def turns(client: Client, rounds: int, *, seed: int = 1) -> Race:
    """Run up to three jobs at a time. Two kinds of caps refuse the jobs in turn.

    The jobs are of two tasks and three tenants. Some jobs are cancelled.
    """
    draw = random.Random(seed)

    def enqueue() -> list[str]:
        jobs = [
            draw.choice((tasks.turning, tasks.taking)).job(tenant=draw.choice(tasks.KEYS))
            for _ in range(draw.randint(1, 3))
        ]
        tasks.app.enqueue_many(jobs)
        return [draw.choice(jobs).id] if draw.random() < 0.2 else []

    return _rounds(client, "turns", rounds, draw, enqueue, live_max=3)


def _rounds(
    client: Client,
    queue: str,
    rounds: int,
    draw: random.Random,
    enqueue: Callable[[], list[str]],
    live_max: int,
) -> Race:
    follower = Follower(client, queue, Replay())
    jobs = queue_keys(queue)("jobs")
    stuck: list[str] = []

    def live() -> int:
        (count,) = client.run(client.calls.delivery.ask([["HLEN", jobs]]))
        return int(count)

    def wait_below(most: int) -> None:
        deadline = time.monotonic() + LIMIT_S
        while live() > most:
            if time.monotonic() > deadline:
                snapshot = client.run(client.calls.reads.snapshot(queue))
                stuck.append(f"{lines_of(snapshot)} {snapshot['lanes']} wake={snapshot['wake']}")
                # A token by hand, so that the next rounds are not the same failure.
                client.run(client.calls.delivery.ask([["RPUSH", queue_keys(queue)("wake"), "1"]]))
                deadline = time.monotonic() + LIMIT_S

    def lifetimes() -> Iterator[float]:
        """Yield how many seconds a job takes from its enqueue to its end on this machine."""
        for _ in range(20):
            wait_below(0)
            started = time.monotonic()
            enqueue()
            wait_below(0)
            yield time.monotonic() - started

    begun = time.monotonic()
    lifetime = 0.002
    cancelled = 0
    for number in range(rounds):
        wait_below(live_max)
        sent = time.monotonic()
        doomed = enqueue()
        # The end of what was enqueued comes somewhere in this time.
        until = sent + draw.random() * 2 * lifetime
        while time.monotonic() < until:
            pass
        if doomed:
            answers = client.run(client.calls.admin.cancel(queue, doomed))
            cancelled += sum(answer == "cancelled" for answer in answers.values())
        if number % FOLLOW == 0:
            lifetime = min(lifetimes())
            follower.catch_up()
    wait_below(0)
    replay = follower.catch_up()
    seconds = time.monotonic() - begun
    return Race(rounds, seconds, replay, replay.near_ends, cancelled, stuck)
