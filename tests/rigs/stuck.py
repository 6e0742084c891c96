"""Makes queues that are stuck, each for another cause. `rq-core top` and the alerts must name the cause.

    scripts/prove/live stuck full_cap --redis redis://localhost:6379/0

This makes one of the five queues on a server, by real calls. The clock of the calls is ten minutes behind.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Final

from rq_core.connections.client import Client
from rq_core.protocol.reads import worker_registry
from rq_core.protocol.reads.worker_registry import Presence
from tests.kit.clock import CLOCK_KEY
from tests.kit.seed import Seed

AGO_MS: Final = 600_000
QUEUE: Final = "mail"


def _works(seed: Seed, *, places: int = 10, busy: int = 0) -> None:
    """Announce a running worker in Redis, without a process."""
    says = Presence("web-1", 4711, "0.1.0", "c0de0001", (seed.queue,), places, busy, 0)
    seed.client.run(
        worker_registry.announce("rqc", "w-1", says, [seed.queue], ["crash", "send", "t"])
    )


def no_worker(seed: Seed) -> None:
    """Make a queue with ready jobs but without a running worker."""
    seed.enqueue("a", "b")


def full_cap(seed: Seed) -> None:
    """Make a queue in which one job fills the cap of its task and does not end."""
    seed.cap("task=send", 1)
    seed.enqueue(*(seed.job(f"j{n}", task="send", scopes=["task=send"]) for n in range(3)))
    (held,) = seed.claim(1).jobs
    seed.claim(1)
    _works(seed, busy=1)
    now, _ = seed.control.time()
    # Its worker is alive: it goes on extending the lease.
    seed.control.zadd(seed.keys("leases"), {held.id: (int(now) + 60) * 1000})


def paused(seed: Seed) -> None:
    """Make a queue that an operator has paused."""
    seed.enqueue("a", "b")
    seed.configure(paused=1)
    _works(seed)


def poison(seed: Seed) -> None:
    """Make a queue with a job that kills every worker that runs it."""
    seed.clock.set(seed.now + AGO_MS - 180_000)
    seed.enqueue(seed.job("bomb", task="crash", losses=2))
    for _ in range(2):
        seed.claim(1)
        seed.live(31_000)
    seed.claim(1)
    _works(seed)


def sql_away(seed: Seed) -> None:
    """Make a queue whose mirror cannot reach SQL, so that events stay in the outbox."""
    seed.attach()
    seed.enqueue("a", "b")
    seed.complete(*seed.claim(2).jobs)
    _works(seed)


SCENES: Final[dict[str, Callable[[Seed], None]]] = {
    each.__name__: each for each in (no_worker, full_cap, paused, poison, sql_away)
}

SAYS: Final = {
    "no_worker": "2 ready, and no worker runs",
    "full_cap": "the cap of task=send is full, 1 of 1 running; 2 jobs wait in 1 lane, the oldest for 10 min",
    "paused": "paused, and 2 jobs are ready",
    "poison": "a job of crash died",
    "sql_away": "the audit log cannot be read",
}
"""The words with which the cause of each stuck queue must be named."""


@contextlib.contextmanager
def scene(url: str, name: str) -> Iterator[Client]:
    """Make the queue that is stuck for this cause, on an empty server, and yield a client."""
    with Seed(url, QUEUE) as seed:
        now, _ = seed.control.time()
        seed.clock.set(int(now) * 1000 - AGO_MS)
        SCENES[name](seed)
        seed.control.delete(CLOCK_KEY)
    with Client(url) as client:
        yield client
