"""The tasks of the chaos run. Each job writes lines about its run into the witness file.

A handler writes a line at its start and at its end. The line has the number of the claim, and the scopes that count the
job. So the witness file alone shows whether a cap was exceeded.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from typing import Final

from rq_core import App, Cap, GiveUp, RetryPolicy, current_job
from tests.kit.witness import noted

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
"""The caps in force, by scope. The tasks below declare these caps."""

app = App()
for _queue in QUEUES:
    app.queue(_queue, lease=LEASE_S)

_retry = RetryPolicy(max_attempts=3, backoff="fixed", base=0.1, jitter=False)
_losses_max = 1_000
"""The number of lost workers that a job may survive. It is high because the faults end many workers. Other tests check
the limit itself."""


@app.task(queue=OPEN, max_losses=_losses_max)
async def awaiting(seconds: float) -> None:
    """Wait on the event loop, without blocking."""
    with noted(scopes=()):
        await asyncio.sleep(seconds)


@app.task(queue=OPEN, max_losses=_losses_max)
def blocking(seconds: float) -> None:
    """Block a thread. The handler never checks whether to stop, so it runs on after its lease is lost."""
    with noted(scopes=()):
        time.sleep(seconds)


@app.task(queue=CAPPED, max_losses=_losses_max, caps=[Cap(LIMITS["task=narrow"])])
async def narrow(seconds: float) -> None:
    with noted(scopes=("task=narrow",)):
        await asyncio.sleep(seconds)


@app.task(
    queue=CAPPED,
    max_losses=_losses_max,
    caps=[Cap(LIMITS["task=shared"]), Cap(1, per="tenant")],
)
def shared(tenant: str, seconds: float) -> None:
    """Run under two caps: one of the task, and one of the tenant."""
    with noted(scopes=("task=shared", f"shared.tenant={tenant}")):
        time.sleep(seconds)


@app.task(queue=OPEN, max_losses=_losses_max, retry=_retry)
async def flaky() -> None:
    """Fail in the first attempt."""
    with noted(scopes=()):
        if current_job().failures == 0:
            raise ValueError("the first time")


@app.task(queue=OPEN, max_losses=_losses_max, retry=_retry)
def hopeless() -> None:
    """Fail until the job is dead."""
    with noted(scopes=()):
        raise ValueError("never")


@app.task(queue=OPEN, max_losses=_losses_max, retry=_retry)
async def quitting() -> None:
    """Give up in the first attempt, so that the job is dead at once."""
    with noted(scopes=()):
        raise GiveUp("no use")


@app.task(queue=OPEN, max_losses=_losses_max)
async def lethal() -> None:
    """Kill the worker in the first claim."""
    with noted(scopes=()):
        if current_job().claim == 1:
            os.kill(os.getpid(), signal.SIGKILL)


@app.task(queue=OPEN, max_losses=_losses_max)
async def beating() -> None:
    """Run as the job of a schedule. An instant is skipped while an earlier job of the schedule is alive."""
    with noted(scopes=()):
        await asyncio.sleep(0.02)


@app.task(queue=CAPPED, max_losses=_losses_max)
async def ticking() -> None:
    """Run as the job of a schedule that has at most one running job and one waiting job."""
    with noted(scopes=()):
        await asyncio.sleep(0.02)


SCHEDULES: Final = {"beat": OPEN, "tick": CAPPED}
"""The queue of each schedule."""
app.schedule("beat", beating.job(), every=1)
app.schedule("tick", ticking.job(), every=2, overlap="queue", spread=1)
