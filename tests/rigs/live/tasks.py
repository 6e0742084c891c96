"""Tasks with caps for worker processes, which record their runs in a witness file. Each kind of test has a queue.

Workers almost never poll here, and leases are very long. So a job starts only if a worker was woken for it.
"""

from __future__ import annotations

import asyncio
import os
import time
from typing import Final

from rq_core import App, Cap, Task
from rq_core.worker import wakeups
from tests.kit.witness import noted

QUEUE_LEASE: Final = "RQ_CORE_TEST_LEASE"
LONG_LEASE_S: Final = 10_000.0
NUMBERS: Final = (1, 2, 3, 10)
KEYS: Final = ("x", "y", "z")
KINDS: Final = ("task", "key", "queue", "all")

wakeups.LOOK_S_MAX = LONG_LEASE_S  # type: ignore[misc]
lease = float(os.environ.get(QUEUE_LEASE, LONG_LEASE_S))

app = App()


async def holding(tenant: str, seconds: float) -> None:
    """Hold places in caps for a while, on the event loop."""
    with noted():
        await asyncio.sleep(seconds)


def enduring(tenant: str, seconds: float) -> None:
    """Hold places in caps for a while, in a thread that ignores requests to stop."""
    with noted():
        time.sleep(seconds)


def queue_of(kind: str, n: int) -> str:
    return f"{kind}-{n}"


def _declare(kind: str, n: int) -> list[Task[..., None]]:
    queue = queue_of(kind, n)
    by_key = Cap(n, per="tenant", name=f"tenant-{queue}")
    # All three bind at once: 3n run if and only if 2n of the first task do, n of the other, and n of each tenant.
    caps: dict[str, list[list[Cap]]] = {
        "task": [[Cap(n)]],
        "key": [[by_key]],
        "queue": [[]],
        "all": [[Cap(2 * n), by_key], [Cap(n), by_key]],
    }
    if kind in ("queue", "all"):
        app.queue(queue, cap=n if kind == "queue" else 3 * n, lease=lease)
    else:
        app.queue(queue, lease=lease)
    return [
        app.task(name=f"{queue}.{number}", queue=queue, caps=those)(holding)
        for number, those in enumerate(caps[kind])
    ]


exact: Final = {(kind, n): _declare(kind, n) for kind in KINDS for n in NUMBERS}

app.queue("race", lease=lease)
app.queue("turns", lease=lease)
app.queue("kills", lease=lease)
app.queue("zombies", lease=lease)


async def brief(tenant: str) -> None:
    """Do nothing: the jobs of ``racing``, ``turning`` and ``taking`` end at once."""


racing = app.task(name="racing", queue="race", caps=[Cap(1)])(brief)
"""A task with a cap of 1. The next job is enqueued while the previous job ends."""
turn = Cap(1, per="tenant", name="turn")
turning = app.task(name="turning", queue="turns", caps=[Cap(1), turn])(brief)
"""A task with two scopes that refuse jobs alternately. Either the scope of the task is full, or the scope of a tenant,
in which a job of ``taking`` runs."""
taking = app.task(name="taking", queue="turns", caps=[turn])(brief)
killed = app.task(
    name="killed",
    queue="kills",
    caps=[Cap(5), Cap(2, per="tenant", name="victims")],
    max_losses=1_000,
)(holding)
stopped = app.task(name="stopped", queue="zombies", caps=[Cap(1)], max_losses=1_000)(enduring)
