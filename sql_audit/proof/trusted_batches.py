"""Checks the hashes (I7) of the batches from which a repair or a restore would copy events into Redis.

``audit verify`` checks all batches in the same way. Here only the batches with the events to copy are checked. From the
first of them on, the links of the chain and the number of events are checked, too. Nothing is copied from a batch that
fails.
"""

# ruff: noqa: S608 - statements are joined from the schema's own names; values are bound

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection, text

from rq_core.model.events import OutboxId
from rq_core.model.lib.text import counted
from sql_audit.proof.log import LAST_PRUNE, kept_rows
from sql_audit.store.chain import Link, found_digest, found_text, rows_digest
from sql_audit.store.connection.copy import copy_text, event_line
from sql_audit.store.connection.database import Database
from sql_audit.store.schema.tables import EVENT_COLUMNS

EVENTS_MAX: Final = 1_000_000
"""Maximum number of events that one check reads. Events in further batches are not trusted."""
LINKS_MAX: Final = 10_000
"""Maximum number of batches whose links are checked. A person who computed 10,000 heads again can compute all heads;
only a head that is kept elsewhere shows that (``audit verify --head``)."""
WHAT_TO_DO: Final = "nothing is copied from it into Redis: run `rq-core audit verify`, and find out who changed the log"

_LAST: Final = text("SELECT batch FROM mirror_cursor WHERE queue = :queue")
_BATCH: Final = text("SELECT * FROM mirror_batch WHERE queue = :queue AND batch = :batch")
_LINKS: Final = text(
    "SELECT * FROM mirror_batch WHERE queue = :queue AND batch > :batch ORDER BY batch LIMIT 500"
)
_ROWS: Final = text(
    f"SELECT {', '.join(EVENT_COLUMNS)} FROM job_event WHERE queue = :queue "
    "AND (epoch, seq) >= (:first_epoch, :first_seq) AND (epoch, seq) <= (:last_epoch, :last_seq) "
    "ORDER BY epoch, seq, ordinal"
)
_COMMITTED: Final = text(
    "SELECT COALESCE(SUM(events), 0) FROM mirror_batch "
    "WHERE queue = :queue AND batch >= :first AND batch <= :last"
)
_THERE: Final = text(
    "SELECT COUNT(*) FROM job_event WHERE queue = :queue "
    "AND (epoch, seq) >= (:first_epoch, :first_seq) AND (epoch, seq) <= (:last_epoch, :last_seq)"
)


class _Batch(NamedTuple):
    link: Link
    head: str


class TrustedBatches:
    """Judges the batches of one queue. Each batch is checked once."""

    def __init__(
        self,
        database: Database,
        connection: Connection,
        queue: str,
        events_max: int | None = EVENTS_MAX,
    ) -> None:
        """``connection`` reads one state of ``database``. At most ``events_max`` events are read; None: any number."""
        self._database, self._connection, self._queue = database, connection, queue
        self._left = events_max
        self._last: int = connection.execute(_LAST, {"queue": queue}).scalar() or 0
        self._prune: Any = connection.execute(LAST_PRUNE, {"queue": queue}).one_or_none()
        cut = self._prune
        self._cut = OutboxId(0, -1) if cut is None else OutboxId(cut.epoch, cut.seq)
        self._begin: int = 0 if cut is None else cut.cut_batch
        self._faults: dict[int, str | None] = {}
        """By number of a checked batch: the reason why the batch cannot be trusted; None: it can be trusted."""
        self._linked: dict[int, str | None] = {}
        """By number of a batch: the reason why the chain from this batch on cannot be trusted; None: it can be
        trusted."""

    def why_not(self, entries: Iterable[OutboxId], *, to_end: bool = False) -> str | None:
        """Return the reason why the events of these entries must not be copied into Redis; None if they may be copied.

        With ``to_end``, all later batches are checked, too: after the first of these entries, the log must not lack an
        event. All events that a prune left are checked together.
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
        """Return the first batch whose last entry is ``entry`` or later: the only batch that can have ``entry``."""
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
        asked = {"queue": self._queue, "batch": number}
        row = self._connection.execute(_BATCH, asked).mappings().one_or_none()
        return None if row is None else _Batch(Link.of(row), row["head"])

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
            return _says(number, "was not checked, since there are too many events to read")
        rows: list[Any] = [tuple(row) for row in self._connection.execute(_ROWS, self._range(link))]
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
            return f"{what} were not checked, since there are too many of them; {WHAT_TO_DO}"
        for events in kept_rows(self._database, self._queue, self._cut, self._connection):
            digest.update(copy_text(events).encode())
            count += len(events)
        for line in found_text(self._connection, self._queue, range(self._begin + 1)):
            digest.update(line.encode())
        if (count, digest.hexdigest()) != (prune.kept_events, prune.kept_digest):
            return f"{what} are not those that it left (I7); {WHAT_TO_DO}"
        return None

    def _may_read(self, events: int) -> bool:
        """Subtract ``events`` from the number of events that may still be read. Return False if fewer events may be
        read.
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
        before: _Batch | None = None
        for number, batch in enumerate(self._links(first), first):
            if batch.link.batch != number:
                return _says(number, "is missing")
            if batch.link.head != batch.head:
                return _says(number, "does not have the head of its contents (I7)")
            if before is not None and batch.link.prev != before.head:
                return _says(number, "does not follow from the batch before (I7)")
            before = batch
        return None

    def _links(self, first: int) -> Iterator[_Batch]:
        number, last = first - 1, min(self._last, first + LINKS_MAX)
        while number < last:
            asked = {"queue": self._queue, "batch": number}
            page = self._connection.execute(_LINKS, asked).mappings().all()
            for row in page:
                number = row["batch"]
                if number <= last:
                    yield _Batch(Link.of(row), row["head"])
            if not page:
                return

    def _check_count(self, first: int) -> str | None:
        begin, end = self._read(first), self._read(self._last)
        if begin is None or end is None:
            return _says(first if begin is None else self._last, "is missing")
        of_batches = {"queue": self._queue, "first": first, "last": self._last}
        committed = self._connection.execute(_COMMITTED, of_batches).scalar_one()
        span = self._range(begin.link) | {
            "last_epoch": end.link.last.epoch,
            "last_seq": end.link.last.seq,
        }
        there = self._connection.execute(_THERE, span).scalar_one()
        if there == committed:
            return None
        since = f"the log has {counted(there, 'event')} since batch {first}, {committed:,} were committed (I7)"
        return f"{since}; {WHAT_TO_DO}"

    def _range(self, link: Link) -> dict[str, Any]:
        return {
            "queue": self._queue,
            "first_epoch": link.first.epoch, "first_seq": link.first.seq,
            "last_epoch": link.last.epoch, "last_seq": link.last.seq,
        }  # fmt: skip


def _says(number: int, what: str) -> str:
    return f"batch {number} of the log {what}; {WHAT_TO_DO}"
