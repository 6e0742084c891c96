"""Reads a queue's outbox in batches: decides how many entries a batch has, and checks them.

While SQL writes one batch, the reader reads and checks the next. If another mirror has moved the cursor meanwhile, the
batch is read again.
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
"""The JSON data of the event that switches a queue's audit log off. It is the last event of this log."""

_STRAY: Final = "its outbox has the entry {}, whose number no script begins with and SQL may not be able to keep"

RawEntry = tuple[OutboxId, RawFields]


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """Limits of one batch, which is one transaction in SQL. A batch ends with the entry that reaches a limit."""

    events: int = 5_000
    size: int = 4 * 1024 * 1024
    """A batch ends when the values of its entries together have this many characters."""
    page: int = 500
    """Maximum number of entries per read. Without this limit, one read could return many batches of large entries."""


class Taken(NamedTuple):
    """One batch of the outbox: its raw entries, and the checked entries (intakes) that are made from them."""

    entries: list[RawEntry]
    intakes: list[Intake]
    more_follow: bool
    """True if the batch reached a limit, so that another batch probably follows at once."""
    begins_epoch: bool
    """True if an entry of the batch begins an epoch, a new unbroken history of the queue in Redis."""
    completes_baseline: bool
    """True if, with the last entry, the log has the state of every live job in Redis again (a complete baseline)."""
    last: Anchor | None
    """The last entry, after which the next batch is read; None if the batch is empty."""


class Tail(NamedTuple):
    """Entries of the outbox that SQL does not have yet: about as many as one batch has."""

    anchor: Anchor | None
    """The last mirrored entry, after which the entries were read. None if they were read from the oldest entry on."""
    entries: list[RawEntry]
    """The entries after the anchor, the last mirrored entry. If Redis has lost or changed the anchor: the entries from
    its number on."""
    detached: bool = False
    """True if Redis has lost or changed the anchor, the last mirrored entry. Then even entries with consecutive numbers
    may not continue SQL's history."""
    whole: bool = True
    """True if no entry number is missing after the last mirrored entry."""
    taken: Taken | None = None
    """The first batch of these entries, if it was checked ahead, while SQL wrote the batch before. Otherwise None."""


class Reader:
    """Reads one queue's outbox in batches. If SQL refuses a row, the reader makes smaller batches until it finds the
    row's entry.
    """

    def __init__(self, source: OutboxSource, queue: str, limits: BatchLimits) -> None:
        self.source = source
        self.queue = queue
        self.limits = limits
        self._page = 64
        """The estimated number of entries of the next batch."""
        self._entries_max: int | None = None
        """Maximum number of entries of a batch while the reader searches for the entry that SQL refuses; None
        otherwise."""
        self._refusals: dict[OutboxId, list[str]] = {}
        """The messages with which SQL refused an entry that was alone in its batch, by entry."""

    def read_after(self, anchor: Anchor | None) -> Tail:
        """Read the entries after ``anchor``, the last mirrored entry. Without an anchor, read from the oldest entry on.

        The result is marked ``detached`` if Redis has lost the anchor, or has another entry under its number.
        """
        if anchor is None:
            entries = self.read_from(None)
            return Tail(None, entries, whole=contiguous(at for at, _ in entries))
        entries = self.read_from(anchor.at)
        if not entries or Anchor(entries[0][0], fingerprint(entries[0][1])) != anchor:
            return Tail(anchor, entries, detached=True, whole=False)
        return Tail(anchor, entries[1:], whole=contiguous(at for at, _ in entries))

    def find_switch(self, position: OutboxId | None) -> OutboxId | None:
        """Return the number of the entry after ``position`` that switched the queue's audit log off.

        Return None if there is no such entry, or if an epoch begins before it.
        """
        start, count = "-" if position is None else str(position), max(2, self.limits.page)
        while True:
            page = self.source.read_outbox(self.queue, start, count)
            for entry_id, raw in page:
                if raw.get("type") == Event.EPOCH_STARTED and entry_id != start:
                    return None
                if entry_id != start and _switches_off(raw):
                    return OutboxId.parse(entry_id)
            if len(page) < count:
                return None
            start = page[-1][0]

    def read_from(self, position: OutboxId | None) -> list[RawEntry]:
        """Read about one batch of entries, from the entry ``position`` on, or from the oldest entry if ``position`` is
        missing.

        Raise QueueDamaged if the first new entry has a number that rq-core never assigns.
        """
        entries: list[RawEntry] = []
        start = "-" if position is None else str(position)
        size = jobs = 0
        while True:
            count = min(self._page, self.limits.page)
            page = self.source.read_outbox(self.queue, start, count)
            new = [(OutboxId.parse(entry_id), raw) for entry_id, raw in page]
            stray = next((at for at, _ in new if not at.is_given), None)
            if stray is not None:
                # The entries before the stray entry are mirrored nevertheless.
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
        """Check as many of the tail's entries as one batch may have, and return them as the next batch."""
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
        """Return as many entries as one batch may have, and whether a limit on events or characters was reached."""
        entries = entries[: self._entries_max]
        size = jobs = 0
        for index, (_, raw) in enumerate(entries):
            size += sum(map(len, raw.values()))
            jobs += _about_jobs(raw)
            if size >= self.limits.size or jobs >= self.limits.events:
                return entries[: index + 1], True
        return entries, False

    def read_ahead(self, anchor: Anchor) -> Tail | None:
        """Read and check the batch after ``anchor``, while SQL still writes the batch that ends with ``anchor``.

        Return None if Redis has no later entry yet, or if Redis has lost or changed the entry ``anchor``.
        """
        tail = self.read_after(anchor)
        if tail.detached or not tail.entries:
            return None
        return tail._replace(taken=self.take(tail))

    # Entries that SQL refuses.

    @property
    def _looking(self) -> bool:
        """True if the reader searches for an entry that SQL refuses, or sends a refused entry to quarantine."""
        return bool(self._refusals) or self._entries_max is not None

    def look_for_refused(self, entries: Sequence[RawEntry], error: Exception) -> None:
        """React to SQL's refusal of a batch: halve the size of the next batches, to find the entry that SQL refuses. If
        the batch had one entry, send this entry to quarantine.

        Raise ``error`` again if SQL has already refused this one entry twice, or if ``entries`` is empty.
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
        """Note that SQL has accepted a batch: forget the refusals, and double the size of batches that were halved."""
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
        # SQL refused even the ``quarantined`` row: it has another entry under this number.
        intake = hold(entry_id, raw, "conflict", refusals[-1])
        intake.in_place = False
        return intake


def _about_jobs(raw: RawFields) -> int:
    """Return the approximate number of events in an entry. Opening brackets are counted, because parsing the JSON is
    slow.
    """
    jobs = raw.get("jobs")
    return max(1, jobs.count("[") - 1) if jobs else 1


def _switches_off(raw: RawFields) -> bool:
    return raw.get("type") == Event.POLICY_CHANGED and raw.get("data") == SWITCHED_OFF


def _end_of_batch(intakes: Sequence[Intake]) -> int | None:
    """Return the number of entries after which a batch must end early; None if it may have all entries.

    A batch ends before an epoch that does not continue from the preceding entry, because Redis has lost data. It also
    ends after the last event of a baseline, which lists all live jobs. In both cases the mirror must change all jobs of
    the queue, which it does only between two batches.
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
    """Return whether an entry ends a baseline, the events that list the state of every live job in Redis."""
    if intake.event is not Event.POLICY_CHANGED:
        return False
    return (intake.data.get("field"), intake.data.get("new")) == ("baseline", "done")
