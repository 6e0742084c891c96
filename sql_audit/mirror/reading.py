"""What a batch is made of: how much is read from Redis at a time, and how it is taken in.

While there is more than one batch to come, the one after is read and decoded while SQL works on this one. What was
read so is used only if the cursor then stands where it was read from, and is otherwise read again.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rq_core.model.events import OutboxId
from sql_audit.mirror.intake import Intake, hold, take, take_all
from sql_audit.mirror.source import OutboxSource, RawFields
from sql_audit.store.driver_errors import describe

logger = logging.getLogger("rq_core.audit")

RawEntry = tuple[OutboxId, RawFields]


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """How much one transaction takes. A batch ends with the entry that reaches a limit."""

    events: int = 5_000
    size: int = 4 * 1024 * 1024
    """Bytes of the entries' values."""
    page: int = 500
    """Entries per read, so that a batch of large entries is not read at once many times over."""


class Ahead(NamedTuple):
    """A batch that was read before its turn."""

    after: OutboxId
    """The entry that it follows, with which ``read`` begins if Redis still has it."""
    read: list[RawEntry]
    intakes: list[Intake]
    """What the entries of the batch behind ``after`` say."""


class Reader:
    """Reads one queue's outbox in batches."""

    def __init__(self, source: OutboxSource, queue: str, limits: BatchLimits) -> None:
        self.source = source
        self.queue = queue
        self.limits = limits
        self._page = 64
        """How many entries the next batch will be about."""
        self._entries_max: int | None = None
        """While a refused row is looked for: how many entries a batch may have."""
        self._refusals: dict[OutboxId, list[str]] = {}
        """Entries that SQL refused alone, and what it said, each time."""

    def read_from(self, position: OutboxId | None) -> list[RawEntry]:
        """Entries from ``position`` on (the anchor, if it is still there), up to about a batch."""
        entries: list[RawEntry] = []
        start = "-" if position is None else str(position)
        size = jobs = 0
        while True:
            count = min(self._page, self.limits.page)
            page = self.source.read_outbox(self.queue, start, count)
            new = [(OutboxId.parse(entry_id), raw) for entry_id, raw in page]
            if entries and new and new[0][0] == entries[-1][0]:
                del new[0]
            entries += new
            for _, raw in new:
                size += sum(map(len, raw.values()))
                jobs += _about_jobs(raw)
            full = size >= self.limits.size or jobs >= self.limits.events
            if full:
                self._page = max(8, len(entries) * self.limits.events // max(jobs, 1) + 2)
            if full or len(page) < count or not new:
                return entries
            if self._entries_max is not None and len(entries) > self._entries_max:
                return entries
            start = str(entries[-1][0])

    def cut(self, entries: list[RawEntry]) -> tuple[list[RawEntry], bool]:
        """The entries of one batch, and whether they are as much as a batch may be."""
        if self._entries_max is not None:
            entries = entries[: self._entries_max]
        size = jobs = 0
        for index, (_, raw) in enumerate(entries):
            size += sum(map(len, raw.values()))
            jobs += _about_jobs(raw)
            if size >= self.limits.size or jobs >= self.limits.events:
                return entries[: index + 1], True
        return entries, False

    def take(self, entries: list[RawEntry]) -> list[Intake]:
        """What the entries say, those that SQL refused kept raw."""
        if not self._refusals:
            return take_all(entries)
        return [self._take_suspect(entry_id, raw) for entry_id, raw in entries]

    def read_ahead(self, after: OutboxId) -> Ahead | None:
        """The batch behind ``after``, read and taken in.

        None if Redis has none yet, or not ``after`` any more: the next turn looks again.
        """
        read = self.read_from(after)
        if len(read) < 2 or read[0][0] != after:
            return None
        entries, _ = self.cut(read[1:])
        return Ahead(after, read, self.take(entries))

    # What SQL refuses.

    @property
    def looking(self) -> bool:
        """Whether a refused row is looked for."""
        return bool(self._refusals) or self._entries_max is not None

    def look_for_refused(self, entries: Sequence[RawEntry], error: Exception) -> None:
        """Make the next batches smaller until one entry is left, and then mark that one.

        Raises ``error`` again if there is nothing left to try.
        """
        count = len(entries)
        if count > 1:
            self._entries_max = count // 2
            logger.warning(
                "queue %s: SQL refused a row among %d entries: %s",
                self.queue,
                count,
                describe(error),
            )
            return
        refusals = self._refusals.setdefault(entries[0][0], []) if count else []
        if not count or len(refusals) > 1:
            raise error
        refusals.append(describe(error))
        logger.error(
            "queue %s: entry %s goes to quarantine: %s", self.queue, entries[0][0], refusals[-1]
        )

    def accepted(self) -> None:
        """SQL has the batch: whatever was refused is behind it."""
        self._refusals.clear()
        if self._entries_max is not None:
            self._entries_max *= 2
            if self._entries_max >= self.limits.events:
                self._entries_max = None

    def _take_suspect(self, entry_id: OutboxId, raw: RawFields) -> Intake:
        refusals = self._refusals.get(entry_id)
        if refusals is None:
            return take(entry_id, raw)
        if len(refusals) == 1:
            return hold(entry_id, raw, "refused", refusals[0])
        # Not even a row that holds its place was taken: the place is taken.
        intake = hold(entry_id, raw, "conflict", refusals[-1])
        intake.in_place = False
        return intake


def _about_jobs(raw: RawFields) -> int:
    """About how many events an entry has, without reading it: every job begins a bracket."""
    jobs = raw.get("jobs")
    return max(1, jobs.count("[") - 1) if jobs else 1
