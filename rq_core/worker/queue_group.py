"""A worker's queues in groups whose calls are sent together, and each group's settlements to send."""

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
    """Queues whose calls are sent together.

    On one server, one group has all queues. In a cluster each queue has its own group. So a shard that is down, or a
    cluster slot that is being moved, delays no other queue.
    """

    queues: dict[str, WatchedQueue]
    watcher: Watcher
    finished: list[Settlement] = field(default_factory=list)
    """Settlements that are not sent yet."""
    turns: int = 0
    """Number of turns under way. A turn is a round trip that settles and claims."""
    claiming: list[Call[Claimed]] = field(default_factory=list)
    """The claims that Redis has not answered yet. One of them may be the armed claim: a claim that the worker prepares
    before it waits for a wake token."""
    armed: asyncio.Task[None] | None = None
    """The asyncio task of the last wait for a wake token with an armed claim: a claim that was prepared before the
    wait. The task ends when the answer to this claim has been processed."""
    death: asyncio.Event = field(default_factory=asyncio.Event)
    """An event that is set when a job of these queues died in this worker."""


class QueueGroups:
    """All queues of a worker, in groups whose calls are sent together."""

    def __init__(
        self,
        client: AsyncClient,
        options: WorkerOptions,
        *,
        full: Callable[[], bool],
        interval: Callable[[], float],
    ) -> None:
        """``full`` returns whether the worker has no room for another job. ``interval`` returns the seconds between two
        heartbeats.
        """
        self.news = asyncio.Event()
        """An event that is set when the worker may have something to send: a settlement or a claim."""
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
        """Queue → its group."""

    @property
    def present(self) -> list[str]:
        """The queues that the worker serves now."""
        return [name for name, queue in self.queues.items() if not queue.absent]

    def look_at_all(self) -> None:
        """Make the worker claim from all its queues soon."""
        for group in self.all:
            group.watcher.look_at(group.queues.values())

    def settle(self, settlement: Settlement) -> None:
        """Add a settlement (the report of how a claim ended) to those that are sent in the next round trip."""
        self.of[settlement.claim.queue].finished.append(settlement)
        self.news.set()

    def stop(self) -> None:
        """Stop claiming: take no more wake tokens. If an unanswered claim has to be sent again, it asks for 0 jobs."""
        self.news.set()
        for group in self.all:
            group.watcher.stop()
            for claim in group.claiming:
                # A claim that is sent again takes no jobs then; a claim that was carried out has the same answer.
                claim.args["limit"] = 0
