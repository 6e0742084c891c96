"""Shows that exactly N jobs run at once under a cap of N, while workers drain a filled queue.

The log and the witness file must both show it.
"""

from __future__ import annotations

from dataclasses import dataclass

from rq_core.connections.client import Client
from tests.kit.wait import wait_until
from tests.rigs.judge.caps import peaks
from tests.rigs.judge.follower import Follower
from tests.rigs.judge.times import percentile
from tests.rigs.live import tasks
from tests.rigs.live.replay import Replay
from tests.rigs.stage import Crew

BASE_S = 0.003


@dataclass
class Exact:
    """The figures of one drain under a cap of N."""

    kind: str
    n: int
    most: int
    """The highest number of jobs that may run at once, in all scopes together."""
    witnessed: int
    """The highest number of jobs that ran at once, according to the records of the jobs."""
    problems: list[str]
    refilled_ms: list[int]
    room_ms: list[int]

    def line(self) -> str:
        return (
            f"{self.kind:6} N={self.n:<3} ran {self.witnessed} of {self.most};"
            f" reached again: p50 {percentile(self.refilled_ms, 0.5):.0f} ms,"
            f" p99 {percentile(self.refilled_ms, 0.99):.0f} ms, most {max(self.refilled_ms, default=0)} ms"
            f" ({len(self.refilled_ms)} ends); longest with room and a job {max(self.room_ms, default=0)} ms"
        )


def most_of(kind: str, n: int) -> int:
    return {"task": n, "key": n * len(tasks.KEYS), "queue": n, "all": 3 * n}[kind]


def drain(client: Client, crew: Crew, kind: str, n: int, jobs: int, *, timeout: float) -> Exact:
    """Fill a paused queue, let the workers drain it, and compare the log with the witness file."""
    queue = tasks.queue_of(kind, n)
    most = most_of(kind, n)
    seconds = BASE_S * most
    follower = Follower(client, queue, Replay())
    client.run(client.calls.admin.configure(queue, {"paused": 1}))
    made = tasks.exact[kind, n]
    tasks.app.enqueue_many(
        # Of two tasks the first, which may run twice as many, gets twice as many.
        made[number % 3 // 2 if len(made) > 1 else 0].job(
            tenant=tasks.KEYS[number // 3 % len(tasks.KEYS)], seconds=seconds
        )
        for number in range(jobs)
    )
    client.run(client.calls.admin.configure(queue, {"paused": 0}))
    wait_until(
        lambda: (
            client.run(client.calls.reads.counts(queue)).running == 0
            and client.run(client.calls.delivery.ask([["HLEN", f"rqc:{{{queue}}}:jobs"]]))[0] == 0
        ),
        lambda: f"{queue} is drained: {client.run(client.calls.reads.counts(queue))}",
        timeout=timeout,
    )
    replay = follower.catch_up()
    witnessed = peaks(crew.witness.lines()).get(queue, 0)
    problems = list(replay.breaches)
    expected = expected_peaks(queue, kind, n)
    for scope, cap in expected.items():
        if replay.peak[scope] != cap:
            problems.append(f"{scope}: at most {replay.peak[scope]} held it, not {cap}")
    if witnessed != most:
        problems.append(f"the witness saw {witnessed} at once, not {most}")
    if len(replay.holders):
        problems.append(f"held in the end: {+replay.holders.held}")
    # The total is what every end lowers and every claim raises; in the tail nothing is left to reach it with. Where
    # caps overlap, what is left may not fit either, long before.
    refilled = replay.refilled["queue"][: max(0, jobs - 2 * most)]
    if kind == "all":
        refilled = replay.room_ms
    return Exact(kind, n, most, witnessed, problems, refilled, replay.room_ms)


def expected_peaks(queue: str, kind: str, n: int) -> dict[str, int]:
    """Return how many jobs must hold a place in each scope at the same time, at the peak of the drain."""
    keys = {f"tenant-{queue}={key}": n for key in tasks.KEYS}
    return {"queue": most_of(kind, n)} | {
        "task": {f"task={queue}.0": n},
        "key": keys,
        "queue": {},
        "all": {f"task={queue}.0": 2 * n, f"task={queue}.1": n, **keys},
    }[kind]
