"""The durable tasks of the workers. Each proof has its own queue."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from typing import Final

from rq_core import App, RetryPolicy, current_job, durable, durable_sync
from tests.kit.witness import note

COLLECTED: Final = "collected"
NAPS: Final = "naps"
STOPS: Final = "stops"
ASKED: Final = "asked"
LONG: Final = "long"
JOINED: Final = "joined"
ENDED: Final = "ended"
END_S: Final = 0.05
"""How long a child of `join_again` runs: until its parent is parked."""
LEASE_S: Final = 1.0
_ONCE: Final = RetryPolicy(max_attempts=1)

app = App()
for name in (COLLECTED, NAPS, STOPS, ASKED, LONG, JOINED, ENDED):
    app.queue(name, lease=LEASE_S)


@app.task(queue=COLLECTED, retry=_ONCE)
async def collect(count: int) -> None:
    """Wait for this number of signals, and write their values into the witness file."""
    job = durable()
    got = [await job.wait("number", int) for _ in range(count)]
    note("collected", got=got)


@app.task(queue=NAPS, retry=_ONCE)
async def nap(seconds: float) -> None:
    """Sleep for this time (s), in one durable sleep."""
    await durable().sleep("nap", seconds)


@app.task(queue=STOPS, retry=_ONCE)
def stop_inside() -> None:
    """Suspend the worker process (SIGSTOP) within the step of the first claim. The proof resumes the process later."""
    try:
        durable_sync().step("stops", _stop)
    except BaseException as error:
        note("refused", error=type(error).__name__)
        raise


@app.task(queue=ASKED, retry=_ONCE)
async def ask() -> None:
    """Wait for one signal, and then write a line into the witness file."""
    await durable().wait("go", int)
    note("went")


@app.task(queue=LONG, retry=RetryPolicy(max_attempts=100, backoff="fixed", base=0.01, jitter=False))
async def resume(entries: int, times: int) -> None:
    """Do ``entries`` steps, write down how long they take, and fail ``times`` times."""
    job, began = durable(), time.perf_counter()
    await job.step("s0", _nothing)
    loaded = time.perf_counter()
    for number in range(1, entries):
        await job.step(f"s{number}", _nothing)
    note("resumed", load_s=loaded - began, all_s=time.perf_counter() - began)
    if current_job().claim <= times:
        raise ValueError("once more")


@app.task(queue=ENDED, retry=_ONCE)
async def end() -> float:
    """Return the time of the end, in seconds of the monotonic clock, which all processes share."""
    await asyncio.sleep(END_S)
    return time.monotonic()


@app.task(queue=JOINED, retry=_ONCE)
async def join_again(count: int) -> None:
    """Run this number of children, one after another. After each, write a line into the witness file in a step."""
    job = durable()
    for number in range(count):
        ended = await job.run(end.call())
        await job.step(f"next-{number}", _go_on, ended)


async def _go_on(ended: float) -> None:
    note("joined", ended=ended)


async def _nothing() -> int:
    return 1


def _stop() -> int:
    claim = current_job().claim
    note("inside")
    if claim == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    return claim
