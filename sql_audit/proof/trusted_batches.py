"""Checks the batches of the log from which a repair or a restore would copy events into Redis (invariant I7).

A batch is what the mirror wrote in one transaction, and has a hash. ``audit verify`` checks all batches in the same
way. Here only the batches with the events to copy are checked. From the first of them on, the chain of hashes and the
number of events are checked, too. Nothing is copied from a batch that fails a check.
"""

# ruff: noqa: S608 - statements are joined from the schema's own names; values are bound

from __future__ import annotations

import hashlib
from bisect import bisect, insort
from collections.abc import Collection, Iterable, Iterator
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection, text

from rq_core.model.events import OutboxId
from rq_core.model.lib.text import counted
from sql_audit.mirror.field_types import INTEGER_MAX
from sql_audit.proof.log import LAST_PRUNE, kept_rows
from sql_audit.store.chain import Link, found_digest, found_text, rows_digest
from sql_audit.store.connection.copy import copy_text, event_line
from sql_audit.store.connection.database import Database
from sql_audit.store.schema.tables import EVENT_COLUMNS

EVENTS_MAX: Final = 1_000_000
"""Maximum number of events that are read to check batches for one repair. Events in further batches are not trusted."""
LINKS_MAX: Final = 10_000
"""Maximum number of batches whose place in the chain of hashes is checked. A person who has forged 10,000 hashes can
forge all. Only a hash that is kept outside the database reveals that (``audit verify --head``)."""
NOT_COPIED: Final = "nothing is copied from it into Redis"
WHAT_TO_DO: Final = f"{NOT_COPIED}: run `rq-core audit verify`, and find out who changed the log"

_LAST: Final = text("SELECT batch FROM mirror_cursor WHERE queue = :queue")
_BATCH: Final = text("SELECT * FROM mirror_batch WHERE queue = :queue AND batch = :batch")
_LINKS: Final = text(
    "SELECT * FROM mirror_batch WHERE queue = :queue AND batch > :batch AND batch <= :last "
    "ORDER BY batch LIMIT 500"
)
_ROWS: Final = text(
    f"SELECT {', '.join(EVENT_COLUMNS)} FROM job_event WHERE queue = :queue "
    "AND (epoch, seq) >= (:first_epoch, :first_seq) AND (epoch, seq) <= (:last_epoch, :last_seq) "
    # With the limit, PostgreSQL goes along the primary key. It would otherwise expect a ninth of all events between any
    # two bounds, and read the whole log for each batch.
    "ORDER BY epoch, seq, ordinal LIMIT :most"
)
_COMMITTED: Final = text(
    "SELECT COALESCE(SUM(events), 0) FROM mirror_batch "
    "WHERE queue = :queue AND batch >= :first AND batch <= :last"
)
_THERE: Final = text(
    "SELECT COUNT(*) FROM job_event WHERE queue = :queue "
    "AND (epoch, seq) >= (:first_epoch, :first_seq) AND (epoch, seq) <= (:last_epoch, :last_seq)"
)
_THERE_BEFORE: Final = text(
    "SELECT COUNT(*) FROM (SELECT 1 FROM job_event WHERE queue = :queue "
    "AND (epoch, seq) >= (:first_epoch, :first_seq) AND (epoch, seq) < (:last_epoch, :last_seq) "
    "ORDER BY epoch, seq, ordinal LIMIT :most) AS found"
)


class _Batch(NamedTuple):
    link: Link
    head: str


class TrustedBatches:
    """Decides which batches of one queue's log can be trusted. Each batch, and each link of the chain, is read and
    checked only once: the events of a restore may be in any number of batches.
    """

    def __init__(
        self,
        database: Database,
        connection: Connection,
        queue: str,
        events_max: int | None = EVENTS_MAX,
    ) -> None:
        """Begin before the first check. ``connection`` reads one state of ``database``. At most ``events_max`` events
        are read; None: any number.
        """
        self._database, self._connection, self._queue = database, connection, queue
        self._left = events_max
        self._last: int = connection.execute(_LAST, {"queue": queue}).scalar() or 0
        self._prune: Any = connection.execute(LAST_PRUNE, {"queue": queue}).one_or_none()
        cut = self._prune
        self._cut = OutboxId(0, -1) if cut is None else OutboxId(cut.epoch, cut.seq)
        self._begin: int = 0 if cut is None else cut.cut_batch
        self._batches: dict[int, _Batch | None] = {}
        """The batches that were read, by number; None: there is no such batch."""
        self._faults: dict[int, str | None] = {}
        """By number of a checked batch: the reason why it cannot be trusted; None if it can."""
        self._linked: dict[int, str | None] = {}
        """By number of a batch: the reason why the chain of hashes from this batch on cannot be trusted; None if it
        can."""
        self._right_links: tuple[int, int] | None = None
        """The first and the last number of consecutive batches whose hashes follow from each other. None: nothing is
        checked yet."""
        self._complete: list[int] = []
        """Numbers of batches, in ascending order, from which on the log has all events: as many as the mirror
        committed."""

    def why_not(self, entries: Iterable[OutboxId], *, to_end: bool = False) -> str | None:
        """Return the reason why the events of these outbox entries must not be copied into Redis; None if they may be
        copied.

        With ``to_end``, all later batches are checked, too: no event may be missing after the first of these entries.
        If an entry lies in the pruned part of the log, all events that the prune left are checked.
        """
        numbers: set[int] = set()
        batch: _Batch | None = None
        is_cut = False
        for entry in sorted(set(entries)):
            if entry <= self._cut:
                is_cut = True
                continue
            if batch is None or entry > batch.link.last:
                batch = self._find(entry)
            if batch is None or not batch.link.first <= entry <= batch.link.last:
                return f"entry {entry} of the log is in no batch (I7); {WHAT_TO_DO}"
            numbers.add(batch.link.batch)
        if is_cut and (fault := self._fault(self._begin)) is not None:
            return fault
        if is_cut and to_end and self._last > self._begin:
            numbers.add(self._begin + 1)
        if not numbers:
            return None
        first = min(numbers)
        checked: Collection[int] = range(first, self._last + 1) if to_end else sorted(numbers)
        return self._chain_fault(first) or next(
            (fault for number in checked if (fault := self._fault(number)) is not None), None
        )

    def _find(self, entry: OutboxId) -> _Batch | None:
        """Return the batch that must contain ``entry``: the first one whose last entry is ``entry`` or later. None:
        there is no such batch, or a batch is missing.
        """
        low, high, found = self._begin + 1, self._last, None
        while low <= high:
            middle = (low + high) // 2
            batch = self._read(middle)
            if batch is None:
                return None
            if batch.link.last >= entry:
                found, high = batch, middle - 1
            else:
                low = middle + 1
        return found

    def _read(self, number: int) -> _Batch | None:
        if number not in self._batches:
            asked = {"queue": self._queue, "batch": number}
            row = self._connection.execute(_BATCH, asked).mappings().one_or_none()
            self._batches[number] = None if row is None else _Batch(Link.of(row), row["head"])
        return self._batches[number]

    def _fault(self, number: int) -> str | None:
        if number not in self._faults:
            is_cut = number == self._begin
            self._faults[number] = self._check_cut() if is_cut else self._check(number)
        return self._faults[number]

    def _check(self, number: int) -> str | None:
        batch = self._read(number)
        if batch is None:
            return _says(number, "is missing")
        link = batch.link
        if not self._may_read(link.events):
            return f"batch {number} of the log was not checked, since there are too many events to read; {NOT_COPIED}"
        span = self._range(link) | {"most": _one_more(link.events)}
        rows: list[Any] = [tuple(row) for row in self._connection.execute(_ROWS, span)]
        is_true = rows_digest(copy_text(rows, list(map(event_line, rows)))) == link.digest
        if not is_true or found_digest(self._connection, self._queue, number) != link.found:
            return _says(number, "is not as it was committed (I7)")
        return None

    def _check_cut(self) -> str | None:
        """Return the reason why the events that the last prune left cannot be trusted; None if they can be trusted.
        ``audit verify`` makes the same check.
        """
        prune, digest, count = self._prune, hashlib.sha256(), 0
        what = "the events that the last prune has left"
        if prune.kind != "done":
            return "a prune is under way: run `rq-core audit prune` again, and repeat this"
        if not self._may_read(prune.kept_events):
            return f"{what} were not checked, since there are too many of them; {NOT_COPIED}"
        for events in kept_rows(self._database, self._queue, self._cut, self._connection):
            digest.update(copy_text(events).encode())
            count += len(events)
        for line in found_text(self._connection, self._queue, range(self._begin + 1)):
            digest.update(line.encode())
        if (count, digest.hexdigest()) != (prune.kept_events, prune.kept_digest):
            return f"{what} are not those that it left (I7); {WHAT_TO_DO}"
        return None

    def _may_read(self, events: int) -> bool:
        """Subtract ``events`` from the number of events that may still be read. Return whether the number was
        sufficient.
        """
        if self._left is None:
            return True
        self._left -= events
        return self._left >= 0

    def _chain_fault(self, first: int) -> str | None:
        if first not in self._linked:
            self._linked[first] = self._check_links(first) or self._check_count(first)
        return self._linked[first]

    def _check_links(self, first: int) -> str | None:
        last = min(self._last, first + LINKS_MAX)
        right = self._right_links
        begin, end = first, last
        if right is not None and right[0] <= first <= right[1]:
            begin = right[1]
        elif right is not None and first < right[0] <= last <= right[1]:
            end = right[0]
        if right is not None and right[0] <= begin and end <= right[1]:
            return None
        before: _Batch | None = None
        for number, batch in enumerate(self._links(begin, end), begin):
            if batch.link.batch != number:
                return _says(number, "is missing")
            if batch.link.head != batch.head:
                return _says(number, "does not have the head of its contents (I7)")
            if before is not None and batch.link.prev != before.head:
                return _says(number, "does not follow from the batch before (I7)")
            before = batch
        if right is not None and (begin, end) != (first, last):
            first, last = min(first, right[0]), max(last, right[1])
        self._right_links = first, last
        return None

    def _links(self, first: int, last: int) -> Iterator[_Batch]:
        """Yield the batches with the numbers from ``first`` to ``last``. Missing batches are left out."""
        number = first - 1
        while number < last:
            asked = {"queue": self._queue, "batch": number, "last": last}
            page = self._connection.execute(_LINKS, asked).mappings().all()
            for row in page:
                number = row["batch"]
                yield _Batch(Link.of(row), row["head"])
            if not page:
                return

    def _check_count(self, first: int) -> str | None:
        begin, end = self._read(first), self._read(self._last)
        if begin is None or end is None:
            return _says(first if begin is None else self._last, "is missing")
        if not self._is_complete_between(begin):
            committed = self._committed(first, self._last)
            span = self._range(begin.link, end.link.last)
            there = self._connection.execute(_THERE, span).scalar_one()
            if there != committed:
                since = f"the log has {counted(there, 'event')} since batch {first}, {committed:,} were committed (I7)"
                return f"{since}; {WHAT_TO_DO}"
        insort(self._complete, first)
        return None

    def _is_complete_between(self, batch: _Batch) -> bool:
        """Return True if the log is complete from another batch on, as an earlier check showed, and has all events
        between that batch and ``batch``. Then the log is complete from ``batch`` on, too.
        """
        first = batch.link.batch
        at = bisect(self._complete, first)
        beside = self._complete[max(0, at - 1) : at + 1]
        if not beside:
            return False
        other = self._read(min(beside, key=lambda number: abs(number - first)))
        if other is None:
            return False
        begin, end = sorted((batch, other), key=lambda each: each.link.batch)
        committed = self._committed(begin.link.batch, end.link.batch - 1)
        span = self._range(begin.link, end.link.first) | {"most": _one_more(committed)}
        there: int = self._connection.execute(_THERE_BEFORE, span).scalar_one()
        return there == committed

    def _committed(self, first: int, last: int) -> int:
        """Return the number of events in these batches according to the rows of ``mirror_batch``, as the mirror
        committed them.
        """
        of_batches = {"queue": self._queue, "first": first, "last": last}
        return int(self._connection.execute(_COMMITTED, of_batches).scalar_one())

    def _range(self, link: Link, last: OutboxId | None = None) -> dict[str, Any]:
        """Return the values to bind for a query of the entries from the first entry of ``link`` to ``last``. None: to
        the last entry of ``link``.
        """
        last = link.last if last is None else last
        return {
            "queue": self._queue,
            "first_epoch": link.first.epoch, "first_seq": link.first.seq,
            "last_epoch": last.epoch, "last_seq": last.seq,
        }  # fmt: skip


def _one_more(events: int) -> int:
    """Return ``events`` + 1, the LIMIT of a query that finds out whether there are more than ``events`` events.

    ``events`` may be forged, so the limit is made valid for any number.
    """
    return min(max(events, 0), INTEGER_MAX - 1) + 1


def _says(number: int, what: str) -> str:
    return f"batch {number} of the log {what}; {WHAT_TO_DO}"
