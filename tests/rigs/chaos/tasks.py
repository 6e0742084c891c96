"""What the workers of the chaos run do, and what each job writes of itself into the witness file.

A line is written when a handler starts, and one when it ends, with the job's number of the claim and the scopes under
which it knows itself to be counted: so the witness says by itself whether a cap was passed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import time
from collections.abc import Iterator
from typing import Final

from rq_core import App, Cap, GiveUp, RetryPolicy, current_job

WITNESS: Final = "RQ_CORE_CHAOS_WITNESS"
LEASE_S: Final = 2.0
OPEN: Final = "open"
CAPPED: Final = "capped"
QUEUES: Final = (OPEN, CAPPED)
TENANTS: Final = ("acme", "umbrella", "wayne")
LIMITS: Final = {
    "task=narrow": 2,
    "task=shared": 3,
    **{f"shared.tenant={tenant}": 1 for tenant in TENANTS},
}
"""The caps in force, by scope; the tasks below declare them."""

app = App()
for _queue in QUEUES:
    app.queue(_queue, lease=LEASE_S)

_retry = RetryPolicy(max_attempts=3, backoff="fixed", base=0.1, jitter=False)
_losses_max = 1_000
"""The faults take many workers down. What a job may survive is another test's question."""


def note(what: str, scopes: tuple[str, ...]) -> None:
    """Append one line, in one write: a line that a killed process wrote is there whole."""
    job = current_job()
    facts = {"what": what, "job": job.id, "claim": job.claim, "at_ms": time.time_ns() / 1e6}
    line = json.dumps({**facts, "scopes": scopes}).encode() + b"\n"
    handle = os.open(os.environ[WITNESS], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(handle, line)
    finally:
        os.close(handle)


@contextlib.contextmanager
def witnessed(*scopes: str) -> Iterator[None]:
    """Say that the handler started, and how it ended: ``end`` if it came to its end, ``failed`` if it raised."""
    note("start", scopes)
    try:
        yield
    except BaseException:
        note("failed", scopes)
        raise
    note("end", scopes)


@app.task(queue=OPEN, max_losses=_losses_max)
async def awaiting(seconds: float) -> None:
    """On the loop."""
    with witnessed():
        await asyncio.sleep(seconds)


@app.task(queue=OPEN, max_losses=_losses_max)
def blocking(seconds: float) -> None:
    """In a thread, and deaf: it goes on when its lease is lost."""
    with witnessed():
        time.sleep(seconds)


@app.task(queue=CAPPED, max_losses=_losses_max, caps=[Cap(LIMITS["task=narrow"])])
async def narrow(seconds: float) -> None:
    with witnessed("task=narrow"):
        await asyncio.sleep(seconds)


@app.task(
    queue=CAPPED,
    max_losses=_losses_max,
    caps=[Cap(LIMITS["task=shared"]), Cap(1, per="tenant")],
)
def shared(tenant: str, seconds: float) -> None:
    """Counted twice: with all of its task, and with those of its tenant."""
    with witnessed("task=shared", f"shared.tenant={tenant}"):
        time.sleep(seconds)


@app.task(queue=OPEN, max_losses=_losses_max, retry=_retry)
async def flaky() -> None:
    """Fails the first time."""
    with witnessed():
        if current_job().failures == 0:
            raise ValueError("the first time")


@app.task(queue=OPEN, max_losses=_losses_max, retry=_retry)
def hopeless() -> None:
    """Fails until it is dead."""
    with witnessed():
        raise ValueError("never")


@app.task(queue=OPEN, max_losses=_losses_max, retry=_retry)
async def quitting() -> None:
    """Dead at once."""
    with witnessed():
        raise GiveUp("no use")


@app.task(queue=OPEN, max_losses=_losses_max)
async def lethal() -> None:
    """Takes its worker down the first time."""
    with witnessed():
        if current_job().claim == 1:
            os.kill(os.getpid(), signal.SIGKILL)
