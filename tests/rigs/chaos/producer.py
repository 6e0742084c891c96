"""A producer in a separate process. It enqueues random jobs until SIGTERM, and records its calls and their answers.

    python -m tests.rigs.chaos.producer REDIS_URL FILE SEED RATE

Before a job is sent, the line ``try ID QUEUE AT_MS`` is appended to FILE. When the server has accepted the job, the
line ``ack ID QUEUE AT_MS`` follows. A job without an ``ack`` line may or may not be in Redis. RATE is in jobs per
second. Now and then the producer changes a schedule, as an operator does.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Final

from rq_core.errors import QueueFull, RqCoreError, ServerError
from rq_core.model.job import NewJob
from rq_core.model.recurrence import Overlap
from rq_core.model.table.machine import Priority
from tests.rigs.chaos import tasks

PRIORITIES: Final = (*Priority, Priority.NORMAL)
"""The priorities of jobs. The priority normal is the most frequent."""
CHANGES: Final = 0.05
"""The chance that a producer changes a schedule after a call."""
OVERLAPS: Final[tuple[Overlap, ...]] = ("skip", "allow", "queue", "replace")


def one(draw: random.Random) -> NewJob:
    """Return a new job of a random task."""
    brief, priority = draw.uniform(0.0, 0.05), draw.choice(PRIORITIES)
    delay = draw.uniform(0.1, 2.0) if draw.random() < 0.15 else None
    kind = draw.random()
    if kind < 0.20:
        return tasks.narrow.with_options(priority=priority, delay=delay).job(brief)
    if kind < 0.40:
        return tasks.shared.with_options(priority=priority).job(draw.choice(tasks.TENANTS), brief)
    if kind < 0.66:
        return tasks.awaiting.with_options(priority=priority, delay=delay).job(brief)
    if kind < 0.80:
        return tasks.blocking.with_options(priority=priority, delay=delay).job(brief)
    if kind < 0.86:
        return tasks.flaky.job()
    if kind < 0.88:
        return tasks.hopeless.job()
    if kind < 0.90:
        return tasks.quitting.job()
    if kind < 0.94:
        # Some are long, so that every fault finds claims in force.
        return tasks.awaiting.job(draw.uniform(0.5, 2.0))
    if kind < 0.997:
        return tasks.blocking.job(draw.uniform(0.5, 2.0))
    return tasks.lethal.job()


def change_a_schedule(draw: random.Random) -> None:
    """Change a schedule at random: edit, pause, resume, remove or run it."""
    name, queue = draw.choice(list(tasks.SCHEDULES.items()))
    task = tasks.beating if queue == tasks.OPEN else tasks.ticking
    what = draw.choice(("edit", "pause", "resume", "resume", "remove", "run"))
    if what == "edit":
        overlap = draw.choice(OVERLAPS)
        tasks.app.schedule_many(
            [(name, task.job(), {"every": draw.choice((1, 1.5, 3)), "overlap": overlap})]
        )
    else:
        getattr(tasks.app, f"{what}_schedule")(queue, name)


def main() -> None:
    url, path, seed, rate = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
    draw, changes = random.Random(seed), random.Random(f"{seed} schedules")
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    tasks.app.connect_to(url)
    out = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def say(word: str, jobs: list[NewJob]) -> None:
        # Redis tells whole milliseconds: what it says happened after a try may be of the same.
        at_ms = time.time_ns() // 1_000_000 if word == "try" else time.time_ns() / 1e6
        os.write(out, "".join(f"{word} {each.id} {each.queue} {at_ms}\n" for each in jobs).encode())

    while not stop.is_set():
        jobs = [one(draw) for _ in range(draw.randint(1, 4))]
        say("try", jobs)
        accepted = None
        try:
            accepted = tasks.app.enqueue_many(jobs)
        except RqCoreError as error:
            if not isinstance(error, (ServerError, QueueFull)):
                raise
            # Of several queues, one may have accepted its part before the other could not be reached.
            accepted = getattr(error, "accepted", None)
        if changes.random() < CHANGES:
            with contextlib.suppress(ServerError, QueueFull):
                change_a_schedule(changes)
        ids = accepted.ids if accepted else ()
        say("ack", [job for job in jobs if job.id in ids])
        stop.wait(draw.expovariate(rate / 2.5))
    tasks.app.close()


if __name__ == "__main__":
    main()
