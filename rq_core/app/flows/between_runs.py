"""Keeps the state of a flow in a process between two runs of the flow's job, so that a run need not read all of it
again.

The state consists of the entries of the flow's job: the saved records of its steps, waits and sleeps. A run keeps a
copy of the entries when it parks the job. If this process also gets the job's next claim, and Redis has lost nothing
meanwhile, the next run reads nothing. Otherwise, a later run in this process reads only the copy's last entry, and the
entries that may have changed since. The copy is valid if Redis still has its last entry with the same number, name and
fence: since entries are only appended, Redis then also has all earlier entries. If the copy is not valid, for example
after a failover, the run reads all entries.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from rq_core.app.durable.children import JobSteps, Place
from rq_core.app.flows.sweep import Frontier
from rq_core.model.durable.boxes import StepEntry, entry_in
from rq_core.model.ids import epoch_of_fence
from rq_core.model.keys import queue_keys
from rq_core.model.lib.newest_values import NewestValues
from rq_core.protocol.reads.box_reads import PAGE, Box

if TYPE_CHECKING:
    from rq_core.app.durable.home import Home
    from rq_core.app.flows.graph import Graph
    from rq_core.app.handlers.context import JobContext
    from rq_core.protocol.engine.plan import Plan
    from rq_core.protocol.operations import Operations


@dataclass
class KeptRun:
    """A copy of a flow's state, which one run of the flow's job keeps for a later run. The run makes the copy when it
    parks the job."""

    claim: int
    """The number of the claim in which the copy was made."""
    life: str
    entries: list[StepEntry]
    """The entries of the flow's job (saved steps, waits and sleeps), in the order of their numbers (from 1). The run
    that made the copy has itself appended the last entry."""
    numbers: dict[str, int]
    """The number of each entry (a saved step, wait or sleep), by the entry's name."""
    ended_last: frozenset[int]
    """The numbers of the entries (steps, waits and sleeps) whose end was saved after the last entry had been appended.
    Redis may have lost these ends."""
    graph: Graph
    frontier: Frontier
    places: dict[str, list[Place]]
    """The queue and the id of each child job, by the name of the call (the launch) that enqueued the children."""
    characters: int
    """Number of characters of the values of all entries (saved steps, waits and sleeps)."""

    def holds(self, box: Box | None) -> bool:
        """Return whether this copy is still valid: whether ``box`` begins with the copy's last entry. ``box`` has the
        entries (saved steps, waits and sleeps) in Redis from the number of this entry on."""
        if box is None or box.life != self.life or not box.entries:
            return False
        mine, there = self.entries[-1], box.entries[0]
        return (there.name, there.fence) == (mine.name, mine.fence)

    def is_newest(self, context: JobContext) -> bool:
        """Return whether this copy certainly equals what Redis has saved for the flow's job. For this, the claim of
        ``context`` must directly follow the claim in which the copy was made, and Redis must have lost nothing
        since."""
        return (context.claim, context.life, epoch_of_fence(context.fence)) == (
            self.claim + 1, self.life, epoch_of_fence(self.entries[-1].fence),
        )  # fmt: skip

    def uncertain(self, claim: int) -> list[int]:
        """Return the numbers of the copied entries (saved steps, waits and sleeps) that may have changed and must be
        read again. The last entry is left out, since the caller reads it anyway. ``claim`` is the number of the claim
        that reads the entries."""
        found = set(self.ended_last)
        if claim != self.claim + 1:
            # Claims of other workers were in between. They append entries, and save those that were begun.
            found |= {n for n, entry in enumerate(self.entries, 1) if not entry.is_saved}
        return sorted(found - {len(self.entries)})

    def update(self, number: int, entry: StepEntry) -> None:
        """Store an entry (a saved step, wait or sleep) that was read from Redis. It replaces the copied entry with this
        number, or is appended. Raises ValueError if the entry contradicts the copy."""
        if self.numbers.setdefault(entry.name, number) != number:
            raise ValueError(f"entry {number} has the name of another one")
        if number <= len(self.entries):
            if self.entries[number - 1].name != entry.name:
                raise ValueError(f"entry {number} is another one")
            self.characters -= len(self.entries[number - 1].value or "")
        self.characters += len(entry.value or "")
        self.entries[number - 1 : number] = [entry]


class ResumedSteps(JobSteps):
    """The saved steps of one run of a flow's job. The run loads all of them, or only those that have changed since an
    earlier run in this process."""

    def __init__(
        self,
        context: JobContext,
        home: Home,
        graph: Graph,
        kept: NewestValues[tuple[str, str], KeptRun],
    ) -> None:
        super().__init__(context, home)
        self._graph = graph
        self._kept = kept
        self._frontier = Frontier(graph)
        self._known_places: dict[str, list[Place]] = {}
        """The queue and the id of each child job, by the name of the call (the launch) that enqueued the children."""
        self._characters = 0
        """Number of characters of the values of all entries (saved steps, waits and sleeps)."""

    async def _load(self) -> None:
        """Load the entries (saved steps, waits and sleeps) of the flow's job. If an earlier run in this process has
        kept a valid copy, load only the entries that may have changed since."""
        if not self._is_loaded():
            kept = self._kept.take((self._context.queue, self._context.id))
            if kept is not None and kept.is_newest(self._context):
                self._take_over(kept)
            elif kept is not None:
                async with self.home.turn():
                    await self._load_rest(kept)
        await super()._load()

    async def _load_rest(self, kept: KeptRun) -> None:
        """Use the copy that an earlier run has kept, and load the entries (saved steps, waits and sleeps) that may have
        changed since. If the copy is not valid, do nothing."""
        first = len(kept.entries)
        box = await self.home.load(first)
        if not kept.holds(box):
            return
        assert box is not None
        numbers = kept.uncertain(self._context.claim)
        plan = partial(_entries_at, self._context.queue, kept.life, numbers)
        read = await self.home.ask(plan) if numbers else {}
        if len(read) < len(numbers):
            return
        try:
            for number, entry in [*read.items(), *enumerate(box.entries, first)]:
                kept.update(number, entry)
        except ValueError:
            return
        self._take_over(kept)

    def _take_over(self, kept: KeptRun) -> None:
        self._life, self._entries, self._numbers = kept.life, kept.entries, kept.numbers
        self._characters = kept.characters
        if kept.graph is self._graph:
            self._frontier, self._known_places = kept.frontier, kept.places

    def _keep(self, number: int, entry: StepEntry) -> None:
        if number <= len(self._loaded):
            self._characters -= len(self._loaded[number - 1].value or "")
        self._characters += len(entry.value or "")
        # Redis knows better when it was written, but only to read that would take a call.
        super()._keep(number, entry._replace(at_ms=entry.at_ms or round(time.time() * 1000)))

    def _know(self, box: Box) -> None:
        super()._know(box)
        self._characters = sum(len(entry.value or "") for entry in box.entries)

    def box_now(self) -> Box | None:
        """Return None, since a flow's next run does not use this copy of the saved steps. It uses the KeptRun, which
        has more data."""
        return None

    def _keep_run(self) -> None:
        """Keep a copy of this run's state for the next run in this process. Call this method when no call to Redis of
        this run is under way any more."""
        entries, context = self._loaded, self._context
        if not self.is_sure or not entries or entries[-1].fence != context.fence:
            return  # It could not be seen whether Redis still has all of it.
        assert self._life is not None
        ended = frozenset(n for n, count in self._ended.items() if count == len(entries))
        run = KeptRun(
            context.claim, self._life, entries, self._numbers, ended, self._graph,
            self._frontier, self._known_places, self._characters,
        )  # fmt: skip
        self._kept.put((context.queue, context.id), run, self._characters)


def _entries_at(
    queue: str, life: str, numbers: Sequence[int], calls: Operations
) -> Plan[dict[int, StepEntry]]:
    """Read the entries (saved steps, waits and sleeps) of a durable job with these numbers. Return them by number.
    Entries that Redis lacks are left out."""
    boxes = queue_keys(queue, calls.delivery.prefix)("boxes")
    found: dict[int, StepEntry] = {}
    for first in range(0, len(numbers), PAGE):
        page = numbers[first : first + PAGE]
        asked = [["HMGET", boxes, *(f"{life}|{number}" for number in page)]]
        (texts,) = yield from calls.delivery.ask(asked, queue)
        entries = zip(page, map(entry_in, texts), strict=True)
        found |= {number: entry for number, entry in entries if entry is not None}
    return found
