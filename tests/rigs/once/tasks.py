"""The task with a unique name that worker processes run."""

from __future__ import annotations

import time

from rq_core import App, RetryPolicy, Unique

QUEUE = "once"
LEASE_S = 0.5

app = App()
app.queue(QUEUE, lease=LEASE_S)


@app.task(
    queue=QUEUE,
    unique=Unique(per="name"),
    retry=RetryPolicy(max_attempts=3, backoff=lambda _: 0.002, jitter="none"),
)
def hold(name: str, number: int) -> None:
    """Hold the unique name for some milliseconds. About one in seven attempts fails."""
    time.sleep(0.003)
    if (number + time.monotonic_ns()) % 7 == 0:
        raise ConnectionError("once more")
