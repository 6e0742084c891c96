"""Checks the rows of ``mirror_epoch`` against the events: beginnings of epochs, losses, and missing numbers. (An epoch
is one unbroken history of a queue in Redis.)

Events do not show under which number Redis and SQL had different entries (the kind ``changed``), nor why numbers are
missing. For these rows and columns, :mod:`sql_audit.proof.batch_check` only proves that they are unchanged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection, text

from rq_core.model.events import OutboxId
from rq_core.model.table.machine import Event
from rq_core.model.table.reasons import Began
from sql_audit.mirror.epochs import follows, last_known
from sql_audit.mirror.field_types import NAME_LENGTH_MAX
from sql_audit.proof.event_details import facts_in
from sql_audit.store.job_rows import EventRow
from sql_audit.store.storable_text import clean, to_json

_ROWS: Final = text(
    "SELECT epoch, seq, kind, at_ms, old_epoch, old_seq, missing, reason, detail FROM mirror_epoch "
    "WHERE queue = :queue AND batch > :after AND batch <= :upto AND kind <> 'changed' ORDER BY id"
)


QUEUE_DELETED: Final = str(Event.QUEUE_DELETED)


class Shown(NamedTuple):
    """The columns of a row of ``mirror_epoch`` that can be computed from events."""

    at: OutboxId
    kind: str
    at_ms: int
    old: OutboxId | None = None
    missing: int | None = None
    reason: str | None = None
    detail: str | None = None


class EpochProof:
    """Checks the numbering of one queue's outbox entries against ``mirror_epoch``.

    Call :meth:`feed` with all events in order, including those that Redis has forgotten; then call :meth:`wrong`.
    """

    def __init__(self, queue: str, passed: Mapping[int, int]) -> None:
        """Begin before the first event. ``passed`` has, by epoch, the number of Redis' entries before the epoch that
        the mirror could not copy.
        """
        self.queue = queue
        self._passed = passed
        self._before: OutboxId | None = None
        self._deleted = False
        """True if an operator deleted the queue with the last entry that was read."""
        self._shown: Counter[Shown] = Counter()
        self._after_batch = 0

    def begin_behind(self, cut: Any) -> None:
        """Begin after a prune. ``cut`` is the row of ``mirror_prune`` with the entry up to which jobs were removed."""
        self._before, self._after_batch = OutboxId(cut.epoch, cut.seq), cut.cut_batch

    def feed(self, rows: Sequence[EventRow]) -> None:
        """Collect the beginnings of epochs and the missing numbers that the next events show."""
        before = self._before
        if before is not None and rows and rows[0][1] == rows[-1][1] == before[0]:
            # In most cases no entry is missing: then the number of entries (rows with ordinal 0) fits their numbers.
            count = [row[3] for row in rows].count(0)
            if count == rows[-1][2] - before[1]:
                self._before = OutboxId(rows[-1][1], rows[-1][2])
                self._deleted = rows[-1][4] == QUEUE_DELETED
                return
        for row in rows:
            if row[3] and before is not None:
                continue  # The row is not the first of its entry.
            at = OutboxId(row[1], row[2])
            if before is None or row[4] == "epoch_started" or not follows(before, at):
                self._shown.update(self._shows(row, at, before))
            before, self._deleted = at, row[4] == QUEUE_DELETED
        self._before = before

    def _shows(self, row: EventRow, at: OutboxId, before: OutboxId | None) -> Iterator[Shown]:
        kind, at_ms = row[4], row[5]
        if kind == "epoch_started":
            try:
                facts = dict(facts_in(row[10]))
            except ValueError:
                return  # The replay reports that the event cannot be read.
            facts.pop("why", None)
            reason, detail = facts.get("reason"), to_json(facts)
            word = clean(reason)[:NAME_LENGTH_MAX] if isinstance(reason, str) else None
            yield Shown(at, "started", at_ms, before, reason=word, detail=detail)
            last, passed = last_known(facts), self._passed.get(at.epoch)
            if before is None or (last == before and not passed):
                return
            if self._deleted and last is None and reason == Began.CREATED:
                return
            if last is None or last < before or passed:
                yield Shown(at, "lost", at_ms, before)
            else:
                missing = last.seq - before.seq if last.epoch == before.epoch else None
                yield Shown(at, "gap", at_ms, before, missing)
        elif before is None:
            yield Shown(at, "joined", at_ms)
        else:
            missing = at.seq - before.seq - 1 if at.epoch == before.epoch else None
            yield Shown(at, "gap", at_ms, before, missing)

    def wrong(self, connection: Connection, batch: int) -> Iterator[tuple[OutboxId, int, str]]:
        """Yield each difference between ``mirror_epoch`` and the events: the entry, its time (Unix ms), and a sentence.

        Only rows of batches up to ``batch`` are compared.
        """
        told: Counter[Shown] = Counter()
        bounds = {"queue": self.queue, "after": self._after_batch, "upto": batch}
        for row in connection.execute(_ROWS, bounds):
            old = None if row.old_epoch is None else OutboxId(row.old_epoch, row.old_seq)
            words = (row.reason, row.detail) if row.kind == "started" else (None, None)
            at = OutboxId(row.epoch, row.seq)
            told[Shown(at, row.kind, row.at_ms, old, row.missing, *words)] += 1
        for shown in self._shown - told:
            yield shown.at, shown.at_ms, f"mirror_epoch lacks the row {_words(shown)}"
        for each in told - self._shown:
            says = f"mirror_epoch has the row {_words(each)}, which no event shows"
            yield each.at, each.at_ms, says


def _words(shown: Shown) -> str:
    after = "" if shown.old is None else f" after {shown.old}"
    return f"{shown.kind}{after}"
