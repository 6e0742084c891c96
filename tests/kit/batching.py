"""A batch task, and worker processes that run it."""

from __future__ import annotations

import time
from dataclasses import dataclass

from rq_core import App, Batch, Job, RetryPolicy
from tests.kit.processes import Child, worker
from tests.kit.witness import WITNESS, Witness, write

LEASE = 1.0
QUICK = RetryPolicy(max_attempts=2, backoff="fixed", base=0.01, jitter=False)

app = App()
app.queue("events", lease=LEASE)


@dataclass
class Event:
    """The arguments of a job of the batch task."""

    n: int
    table: str = "t"


@app.task(queue="events", batch=Batch(10), retry=QUICK)
def sleep_once(jobs: list[Job[Event]]) -> None:
    """Record the batch. In the first claim, sleep until a test kills the worker."""
    write("batch", jobs=[job.args.n for job in jobs], claims=[job.context.claim for job in jobs])
    if jobs[0].context.claim == 1:
        time.sleep(60)


def worker_process(url: str, seen: Witness) -> Child:
    """Start a ``rq-core worker`` process for the queue of the batch task."""
    return worker(
        "tests.kit.batching:app",
        ["events"],
        url,
        log=seen.path.with_suffix(".log"),
        variables={WITNESS: str(seen.path)},
    )
