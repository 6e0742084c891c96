"""rq-core as a contender in the benchmark: an App, ``enqueue_many`` for many jobs, and the worker of the command
line."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from contender import TEXT, WAIT_S, concurrency, handler, kind, run, url

from rq_core import App, Cap

app = App(url())
note = handler()
CPU_S: Final = 0.001
SLEEP_S: Final = 0.005


@app.task(queue="async", name="async")
async def on_the_loop(number: int, text: str) -> None:
    """Do nothing on the event loop, or wait if the benchmark asks for it."""
    note(number, text)
    if WAIT_S:
        await asyncio.sleep(WAIT_S)


@app.task(queue="threads", name="threads")
def in_a_thread(number: int, text: str) -> None:
    """Do nothing, in a thread."""
    note(number, text)


@app.task(queue="cpu", name="cpu")
def busy(number: int, text: str) -> None:
    """Use the processor for one millisecond."""
    note(number, text)
    until = time.thread_time() + CPU_S
    while time.thread_time() < until:
        pass


@app.task(queue="sleep", name="sleep")
async def asleep(number: int, text: str) -> None:
    """Sleep for five milliseconds."""
    note(number, text)
    await asyncio.sleep(SLEEP_S)


NEVER: Final = 1_000_000
"""A cap that is never reached."""
TENANTS: Final = 1_000


@app.task(queue="one_cap", name="one_cap", caps=[Cap(NEVER)])
async def under_one_cap(number: int, text: str) -> None:
    """Record only the time at which the job began, under one cap that is never reached."""
    note(number, text)


@app.task(
    queue="two_caps",
    name="two_caps",
    caps=[Cap(NEVER), Cap(NEVER, per=lambda number, **_: number % TENANTS, name="roomy")],
)
async def under_two_caps(number: int, text: str) -> None:
    """Record only the time at which the job began, under two caps that are never reached: one for the task, one for
    each of 1,000 tenants."""
    note(number, text)


@app.task(
    queue="binding",
    name="binding",
    caps=[Cap(100), Cap(1, per=lambda number, **_: number * 7919 % 10_007 % TENANTS, name="tight")],
)
async def under_binding_caps(number: int, text: str) -> None:
    """Record only the time at which the job began, under two caps that are always reached.

    One cap admits one job of each of 1,000 tenants. The other admits as many jobs as the worker can run at once.
    """
    note(number, text)


task = app.tasks[kind()]


def one(number: int) -> None:
    task.enqueue(number=number, text=TEXT)


def bulk(numbers: Sequence[int]) -> None:
    app.enqueue_many(task.job(number=number, text=TEXT) for number in numbers)


def work() -> None:
    app.close()
    options = ["--queues", task.options.queue, "--concurrency", str(concurrency())]
    if audit := os.environ.get("BENCH_AUDIT"):
        options += ["--audit", audit]
    os.chdir(Path(__file__).parent)
    os.execv(  # noqa: S606 - no shell
        sys.executable, [sys.executable, "-m", "rq_core.cli", "worker", "ours:app", *options]
    )


def ready() -> None:
    app.client.run(app.client.calls.delivery.handshake(task.options.queue))
    task.job(number=0, text=TEXT)


if __name__ == "__main__":
    run(one=one, bulk=bulk, work=work, ready=ready)
