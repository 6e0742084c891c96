"""The reading of batches: how much is read from Redis at a time, and how it is taken in.

While there is more than one batch to come, the one after is read and decoded while SQL works on this one. That batch is
used only if the cursor is then where the read began; otherwise it is read again.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from rq_core.errors import QueueDamaged
from rq_core.model.events import OutboxId
from rq_core.model.table.machine import Event
from sql_audit.mirror.cursor import Anchor
from sql_audit.mirror.epochs import contiguous
from sql_audit.mirror.intake import Intake, fingerprint, hold, take, take_all
from sql_audit.mirror.redis_access import OutboxSource, RawFields
from sql_audit.store.connection.driver_errors import describe_error

logger = logging.getLogger("rq_core.audit")

SWITCHED_OFF: Final = '["audit","on","off"]'
"""The values of the last event of a log that was switched off."""

_STRAY: Final = "its outbox has the entry {}, whose number no script begins with and SQL may not be able to keep"

RawEntry = tuple[OutboxId, RawFields]


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """The limits of one transaction. A batch ends with the entry that reaches a limit."""

    events: int = 5_000
    size: int = 4 * 1024 * 1024
    """Bytes of the entries' values."""
    page: int = 500
    """Entries per read, so that a batch of large entries is not read at once many times over."""


class Taken(NamedTuple):
    """One batch of entries, and what they say."""

    entries: list[RawEntry]
    intakes: list[Intake]
    more_follow: bool
    """Whether there is so much that another batch will follow at once."""
    begins_epoch: bool
    """Whether an epoch begins among them."""
    completes_baseline: bool
    """Whether the last ends a complete baseline."""
    last: Anchor | None
    """The last entry, after which the next batch is read; None without an entry."""


class Tail(NamedTuple):
    """The entries of Redis from the cursor on, up to about a batch."""

    anchor: Anchor | None
    """The entry after which the tail was read; None: from the beginning."""
    entries: list[RawEntry]
    """The entries after the anchor. If Redis lacks the anchor, or has another entry there: all entries from its number
    on."""
    detached: bool = False
    """Whether Redis lacks the anchor, or has another entry there: then contiguous numbers prove nothing."""
    whole: bool = True
    """Whether no number is missing, from the anchor on."""
    taken: Taken | None = None
    """Its first batch, if that was taken in while SQL wrote the batch before."""


class Reader:
    """Reads one queue's outbox in batches."""

    def __init__(self, source: OutboxSource, queue: str, limits: BatchLimits) -> None:
        self.source = source
        self.queue = queue
        self.limits = limits
        self._page = 64
        """The number of entries that the next batch will have, about."""
        self._entries_max: int | None = None
        """While a refused row is looked for: how many entries a batch may have."""
        self._refusals: dict[OutboxId, list[str]] = {}
        """Entries that SQL refused alone, and what it said, each time."""

    def read_after(self, anchor: Anchor | None) -> Tail:
        """Return the entries after the anchor, which is compared with the entry that Redis has under its number."""
        if anchor is None:
            entries = self.read_from(None)
            return Tail(None, entries, whole=contiguous(at for at, _ in entries))
        entries = self.read_from(anchor.at)
        if not entries or Anchor(entries[0][0], fingerprint(entries[0][1])) != anchor:
            return Tail(anchor, entries, detached=True, whole=False)
        return Tail(anchor, entries[1:], whole=contiguous(at for at, _ in entries))

    def read_from(self, position: OutboxId | None) -> list[RawEntry]:
        """Entries from ``position`` on, itself included, up to about a batch."""
        entries: list[RawEntry] = []
        start = "-" if position is None else str(position)
        size = jobs = 0
        while True:
            count = min(self._page, self.limits.page)
            page = self.source.read_outbox(self.queue, start, count)
            new = [(OutboxId.parse(entry_id), raw) for entry_id, raw in page]
            stray = next((at for at, _ in new if not at.is_given), None)
            if stray is not None:
                # What comes before it is mirrored all the same.
                new = [each for each in new if each[0] < stray]
                if not any(at != position for at, _ in (*entries, *new)):
                    raise QueueDamaged(queue=self.queue, why=_STRAY.format(stray))
            if entries and new and new[0][0] == entries[-1][0]:
                del new[0]
            entries += new
            for _, raw in new:
                size += sum(map(len, raw.values()))
                jobs += _about_jobs(raw)
            full = size >= self.limits.size or jobs >= self.limits.events
            if full:
                self._page = max(8, len(entries) * self.limits.events // max(jobs, 1) + 2)
            if full or stray is not None or len(page) < count or not new:
                return entries
            if self._entries_max is not None and len(entries) > self._entries_max:
                return entries
            start = str(entries[-1][0])

    def take(self, tail: Tail) -> Taken:
        """The first batch of what was read, taken in."""
        if tail.taken is not None and not self._looking:
            return tail.taken
        entries, full = self._cut(tail.entries)
        if self._refusals:
            intakes = [self._take_suspect(entry_id, raw) for entry_id, raw in entries]
        else:
            intakes = take_all(entries)
        end = _end_of_batch(intakes)
        if end is not None:
            del entries[end:], intakes[end:]
        more_follow = full and end is None and not self._looking
        return Taken(
            entries,
            intakes,
            more_follow,
            begins_epoch=any(intake.beginning is not None for intake in intakes),
            completes_baseline=bool(intakes) and _completes_baseline(intakes[-1]),
            last=Anchor(entries[-1][0], fingerprint(entries[-1][1])) if entries else None,
        )

    def _cut(self, entries: list[RawEntry]) -> tuple[list[RawEntry], bool]:
        """The entries that a batch may have, and whether they are as much as that."""
        entries = entries[: self._entries_max]
        size = jobs = 0
        for index, (_, raw) in enumerate(entries):
            size += sum(map(len, raw.values()))
            jobs += _about_jobs(raw)
            if size >= self.limits.size or jobs >= self.limits.events:
                return entries[: index + 1], True
        return entries, False

    def read_ahead(self, anchor: Anchor) -> Tail | None:
        """Read the entries after the anchor, and take them in.

        None if Redis has none yet, or not the anchor any more: the next turn looks again.
        """
        tail = self.read_after(anchor)
        if tail.detached or not tail.entries:
            return None
        return tail._replace(taken=self.take(tail))

    # What SQL refuses.

    @property
    def _looking(self) -> bool:
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
                describe_error(error),
            )
            return
        refusals = self._refusals.setdefault(entries[0][0], []) if count else []
        if not count or len(refusals) > 1:
            raise error
        refusals.append(describe_error(error))
        logger.error(
            "queue %s: entry %s goes to quarantine: %s", self.queue, entries[0][0], refusals[-1]
        )

    def accepted(self) -> None:
        """Forget the refusals, since SQL has the batch, and double a reduced size of batches."""
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


def last_entry(tail: Tail) -> int | None:
    """How many of these entries there are up to the one with which the log was switched off. None: that one is not
    there, or Redis' history does not go on up to it."""
    if not tail.whole or tail.detached:
        return None
    for number, (_, raw) in enumerate(tail.entries, 1):
        if raw.get("type") == Event.EPOCH_STARTED:
            return None
        if raw.get("type") == Event.POLICY_CHANGED and raw.get("data") == SWITCHED_OFF:
            return number
    return None


def _end_of_batch(intakes: Sequence[Intake]) -> int | None:
    """How many entries make a batch, if not all do: it ends before an epoch that does not go on from
    it, and behind a complete baseline. What they say of all jobs is said between two batches.
    """
    before: OutboxId | None = None
    for index, intake in enumerate(intakes):
        if _completes_baseline(intake):
            return index + 1
        if index and intake.beginning is not None and intake.beginning.last != before:
            return index
        before = intake.id
    return None


def _completes_baseline(intake: Intake) -> bool:
    """Whether an entry ends a complete baseline."""
    if intake.event is not Event.POLICY_CHANGED:
        return False
    return (intake.data.get("field"), intake.data.get("new")) == ("baseline", "done")
