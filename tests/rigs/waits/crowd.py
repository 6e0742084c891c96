"""Callers who enqueue a job and wait for its result, again and again."""

from __future__ import annotations

import itertools
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from rq_core import App, JobGone, NoResult, WaitTimeout
from rq_core.errors import RqCoreError
from rq_core.protocol.engine.plan import Patience
from tests.rigs.judge.times import percentile
from tests.rigs.stage import Crew

QUEUE: Final = "waits"
KEEP_S: Final = 120
WAIT_S: Final = 90.0
"""The time limit (s) of a wait. It is longer than any fault and longer than a lease."""
LEASE_MS: Final = 3_000
LOOK_EVERY_S: Final = 0.02
LEFT_WITHIN_S: Final = 10.0
SHOWN: Final = 5
PATIENCE: Final = Patience(unsent=120.0, unknown=120.0)


def answer(n: int = 0) -> str:
    """Raise AssertionError: no worker runs this task. The process `settler` settles its jobs, with their ids as
    results."""
    raise AssertionError("the settler runs it")


@dataclass
class Found:
    """The figures of a crowd of callers, and what went wrong."""

    asked: int = 0
    ended: int = 0
    gone: int = 0
    """The number of jobs that Redis forgot in a failover."""
    lost: list[str] = field(default_factory=list)
    """The enqueues that were refused, and the waits that did not end or ended with the value of another job."""
    late_s: list[float] = field(default_factory=list)
    """The time (s) from the answer to the settlement until the end of the wait."""
    trip_s: list[float] = field(default_factory=list)
    """The durations (s) of the polls that were made during the waits."""
    seconds: float = 0.0
    faults: int = 0
    listening: int = 0
    """The number of subscriptions that remained at the end."""

    def line(self, name: str) -> str:
        """Return the figures as one line."""
        return (
            f"{name}: {self.asked:,} waits in {self.seconds:.0f} s, {self.faults:,} faults; {self.ended:,} ended"
            " with their value,"
            f" {self.gone:,} of jobs that Redis forgot, {len(self.lost):,} lost; settlement to wait's end: median"
            f" {percentile(self.late_s, 0.5) * 1e3:.2f} ms, 99 % {percentile(self.late_s, 0.99) * 1e3:.1f} ms, most"
            f" {max(self.late_s, default=0.0) * 1e3:.0f} ms; a look's round trip: median {self.trip_ms:.2f} ms;"
            f" subscriptions left: {self.listening}"
        )

    @property
    def trip_ms(self) -> float:
        return statistics.median(self.trip_s or [0.0]) * 1e3


def run(
    waits_at: str,
    settles_at: str,
    place: Path,
    jobs: int,
    *,
    callers: int,
    subscribed: Callable[[], int],
    more: Callable[[], bool],
    seconds_max: float,
) -> Found:
    """Let callers enqueue a job and wait for it, ``jobs`` times in all, or longer while ``more()`` is true.

    No new wait begins after ``seconds_max`` seconds. ``subscribed()`` counts the subscriptions to the queue.
    """
    file = place / "settled"
    file.touch()
    found, lock, began = Found(), threading.Lock(), time.monotonic()
    numbers = itertools.count(1)
    ends: dict[str, float] = {}
    over = threading.Event()
    with App(settles_at, patience=PATIENCE) as owner:
        owner.client.run(owner.client.calls.delivery.handshake(QUEUE))
        owner.client.run(owner.client.calls.admin.configure(QUEUE, {"lease_ms": LEASE_MS}))
    with App(waits_at, patience=PATIENCE) as app, Crew(place) as crew:
        crew.knows("settler", lambda: ["tests.rigs.waits.settler", settles_at, QUEUE, str(file)])
        crew.start("settler")
        task = app.task(queue=QUEUE, keep_result=KEEP_S)(answer)

        def call() -> None:
            while (next(numbers) <= jobs or more()) and time.monotonic() - began < seconds_max:
                _one(task, found, lock, ends)

        threads = [threading.Thread(target=call) for _ in range(callers)]
        looks = threading.Thread(target=_look, args=(app, found.trip_s, over))
        for each in (*threads, looks):
            each.start()
        for each in threads:
            each.join()
        over.set()
        looks.join()
        found.seconds = time.monotonic() - began
        found.listening = _left(subscribed)
        crew.stop("settler")
    for line in file.read_text().splitlines():
        job_id, _, at = line.partition(" ")
        if at and job_id in ends:
            found.late_s.append(max(0.0, ends[job_id] - float(at)))
    return found


def _one(task: Any, found: Found, lock: threading.Lock, ends: dict[str, float]) -> None:
    try:
        handle = task.enqueue(0)
    except RqCoreError as error:
        with lock:
            found.lost.append(f"not enqueued: {error!r}")
        return
    try:
        value: str | None = handle.result(WAIT_S)
    except JobGone:
        value = None
    except (NoResult, WaitTimeout) as error:
        value = repr(error)
    at = time.monotonic()
    with lock:
        found.asked += 1
        if value == handle.id:
            found.ended += 1
            ends[handle.id] = at
        elif value is None:
            found.gone += 1
        else:
            found.lost.append(f"{handle.id}: {value}")


def _look(app: App, trips: list[float], over: threading.Event) -> None:
    """Measure how long one read of a job takes while all callers wait."""
    client = app.client
    while not over.wait(LOOK_EVERY_S):
        began = time.monotonic()
        try:
            client.run(client.calls.endings.look(QUEUE, ["no-such-job"]))
        except RqCoreError:
            continue
        trips.append(time.monotonic() - began)


def _left(subscribed: Callable[[], int]) -> int:
    """Return how many subscriptions remain after the last wait. They get some seconds to end."""
    deadline = time.monotonic() + LEFT_WITHIN_S
    while (count := subscribed()) and time.monotonic() < deadline:
        time.sleep(0.1)
    return count


def fell_short(found: Found, *, alone: bool, may_forget: bool) -> Sequence[str]:
    """Return the promises that the figures do not meet."""
    problems = found.lost[:SHOWN]
    if not found.ended:
        problems.append("no wait has ended")
    if found.gone and not may_forget:
        problems.append(f"{found.gone} jobs are gone, and Redis has lost nothing")
    if found.listening:
        problems.append(f"{found.listening} subscriptions are left")
    late = statistics.median(found.late_s or [0.0]) * 1e3
    if alone and late > found.trip_ms:
        problems.append(
            f"the median wait ends {late:.2f} ms behind its settlement, and a round trip takes {found.trip_ms:.2f} ms"
        )
    return problems
