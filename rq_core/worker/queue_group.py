"""A worker's queues in groups whose calls travel together, with the settlements to report for each group."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from rq_core.connections.async_client import AsyncClient
from rq_core.protocol.calls.claims import Claimed
from rq_core.protocol.engine.plan import Call
from rq_core.worker.options import WorkerOptions
from rq_core.worker.settlement import Settlement
from rq_core.worker.wakeups import WatchedQueue, Watcher


@dataclass(slots=True)
class QueueGroup:
    """Queues whose calls travel together. On one server that is all of them; in a cluster each queue has a group of its
    own, so that a shard that is down, or a slot on its way, holds up no other queue."""

    queues: dict[str, WatchedQueue]
    watcher: Watcher
    finished: list[Settlement] = field(default_factory=list)
    """Settlements to be reported."""
    turns: int = 0
    """Turns that are under way."""
    claiming: list[Call[Claimed]] = field(default_factory=list)
    """The claims of those turns."""
    death: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a job of these queues died here."""


class QueueGroups:
    """All groups of a worker, and the news that their turns wait for."""

    def __init__(
        self,
        client: AsyncClient,
        options: WorkerOptions,
        *,
        full: Callable[[], bool],
        interval: Callable[[], float],
    ) -> None:
        """``full`` and ``interval``: see Watcher."""
        self.news = asyncio.Event()
        """Set when a turn may have something to do."""
        self.queues = {name: WatchedQueue(name) for name in options.queues}
        together = [[n] for n in self.queues] if client.one_slot else [list(self.queues)]
        self.all: list[QueueGroup] = []
        for names in together:
            queues = {name: self.queues[name] for name in names}
            watcher = Watcher(
                client,
                queues,
                burst=options.burst,
                full=full,
                interval=interval,
                on_look=self.news.set,
            )
            self.all.append(QueueGroup(queues, watcher))
        self.of = {name: group for group in self.all for name in group.queues}
        """The groups by queue."""

    @property
    def present(self) -> list[str]:
        """The queues that the worker works for now."""
        return [name for name, queue in self.queues.items() if not queue.absent]

    def look_at_all(self) -> None:
        """Have all queues looked at."""
        for group in self.all:
            group.watcher.look_at(group.queues.values())

    def settle(self, settlement: Settlement) -> None:
        """Have a settlement reported with the next turn of its group."""
        self.of[settlement.claim.queue].finished.append(settlement)
        self.news.set()

    def stop(self) -> None:
        """Claim no more: no tokens are taken, and claims under way take nothing if they can help it."""
        self.news.set()
        for group in self.all:
            group.watcher.stop()
            for claim in group.claiming:
                # If it is sent again, it takes no jobs; if it was carried out already, the answer is the same.
                claim.args["limit"] = 0
