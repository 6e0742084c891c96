"""``rq-core audit verify``: whether the log proves what the design promises, from SQL alone.

Two things are checked in one pass over a queue's events. :mod:`sql_audit.proof.replay` replays them (I2 to
I6); here every batch is hashed again and must be the one that the chain names (I7). Memory is bounded
by the live jobs, the holders and one batch, whatever the length of the log. The log may grow
meanwhile: what is checked is what the cursor counted when the check began.

    result = verify(Database("audit.db"))
    result.verdict, result.queues["mail"].events
"""

# ruff: noqa: S608 - statements are joined from the schema's own names; values are bound

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection, text

from rq_core.model.events import OutboxId
from sql_audit.proof.replay import Beginning, Note, Replay, Violation
from sql_audit.proof.result import Pruned, QueueResult, Result
from sql_audit.store import minutes, orphans
from sql_audit.store.chain import chain, genesis, rows_digest
from sql_audit.store.copy import copy_text
from sql_audit.store.database import Database
from sql_audit.store.rows import EventRow
from sql_audit.store.statements import AUDIT_ID
from sql_audit.store.tables import EVENT_COLUMNS
from sql_audit.times import readable

LOOKS: Final = 3
"""How often a log is read again that was pruned while it was read."""

READ_EVENTS: Final = 20_000
"""About how many events are read at once."""

_COLUMNS: Final = ", ".join(EVENT_COLUMNS)
_RANGE: Final = (
    f"SELECT {_COLUMNS} FROM job_event WHERE queue = ? AND (epoch, seq) > (?, ?) "
    "AND (epoch, seq) <= (?, ?) ORDER BY epoch, seq, ordinal"
)
_BATCHES: Final = text(
    "SELECT batch, first_epoch, first_seq, last_epoch, last_seq, entries, events, digest, prev, head "
    "FROM mirror_batch WHERE queue = :queue AND batch > :batch ORDER BY batch LIMIT 500"
)
_CURSORS: Final = text(
    "SELECT queue, epoch, seq, at_ms, batch, head, events FROM mirror_cursor "
    "WHERE CAST(:queue AS TEXT) IS NULL OR queue = :queue ORDER BY queue"
)
_RECORDED: Final = text("SELECT epoch, seq, kind FROM mirror_epoch WHERE queue = :queue")
_NEXT_EPOCH: Final = text(
    "SELECT MIN(epoch) FROM job_event WHERE queue = :queue AND epoch > :epoch"
)
_FIRST_EVENT: Final = text(
    "SELECT type, detail FROM job_event "
    "WHERE queue = :queue AND epoch = :epoch AND seq = 0 AND ordinal = 0"
)
_BEYOND: Final = text(
    "SELECT epoch, seq FROM job_event WHERE queue = :queue AND (epoch, seq) > (:epoch, :seq) "
    "ORDER BY epoch, seq LIMIT 1"
)
_KEPT: Final = (
    f"SELECT {_COLUMNS} FROM job_event WHERE queue = ? AND (epoch, seq, ordinal) > (?, ?, ?) "
    f"AND (epoch, seq) <= (?, ?) ORDER BY epoch, seq, ordinal LIMIT {READ_EVENTS}"
)
LAST_PRUNE: Final = text("SELECT * FROM mirror_prune WHERE queue = :queue ORDER BY id DESC LIMIT 1")
"""The last row of a queue: where its log is cut, and whether a prune is under way."""
_CONFLICTS: Final = text(
    "SELECT COUNT(*) FROM quarantine WHERE queue = :queue AND kind = 'conflict'"
)


class _Batch(NamedTuple):
    """A row of mirror_batch."""

    number: int
    first: OutboxId
    last: OutboxId
    entries: int
    events: int
    digest: str
    prev: str
    head: str


def verify(
    database: Database,
    queue: str | None = None,
    *,
    since_ms: int = 0,
    heads: Collection[str] = (),
    on_progress: Callable[[str, int, int], None] = lambda _queue, _done, _of: None,
) -> Result:
    """Check the log of one queue, or of all.

    ``since_ms``: violations of events before that time are not reported; they are replayed all the
    same. ``heads``: heads of a chain that were kept elsewhere, each of which must be found.
    ``on_progress`` is told the queue, the events checked and how many there are.
    """
    result = Result()
    missing = set(heads)
    with database.readers.connect() as connection:
        audit_id: str = connection.execute(AUDIT_ID).scalar_one()
        names = [row.queue for row in connection.execute(_CURSORS, {"queue": queue})]
    for name in names:
        for _ in range(LOOKS):
            check = _Check(database, audit_id, name, since_ms, missing)
            result.queues[name] = check.run(lambda done, of, name=name: on_progress(name, done, of))  # type: ignore[misc]
            if not check.pruned_meanwhile():
                break
        missing -= check.seen
    cut = [q for q in result.queues.values() if q.pruned is not None]
    for head in missing:
        if not cut:
            result.problems.append(f"head {head} is in no chain: the log was rewritten")
        for queue_ in cut:
            says = f"head {head} is in no chain: it was pruned, or the log was rewritten"
            queue_.notes.append(Note(OutboxId(*queue_.pruned[:2]), queue_.pruned.at_ms, says))  # type: ignore[index,union-attr]
    return result


class _Check:
    """The check of one queue."""

    def __init__(
        self, database: Database, audit_id: str, queue: str, since_ms: int, wanted: Collection[str]
    ) -> None:
        self.database = database
        self.queue = queue
        self.since_ms = since_ms
        self.head = genesis(audit_id, queue)
        self.wanted = frozenset(wanted)
        self.seen = {self.head} & self.wanted
        """Which of the wanted heads are in the chain."""
        self.number = 0
        self.cut: Any = None
        """The last row of mirror_prune."""
        self.kept = 0
        """Events that a prune left up to the cut."""

    def pruned_meanwhile(self) -> bool:
        """Whether somebody began or ended a prune since the check began."""
        with self.database.readers.connect() as connection:
            now = connection.execute(LAST_PRUNE, {"queue": self.queue}).one_or_none()
        return (None if now is None else now.id) != (None if self.cut is None else self.cut.id)

    def run(self, on_progress: Callable[[int, int], None]) -> QueueResult:
        with self.database.readers.connect() as connection:
            if self.database.dialect == "postgresql":
                # The cursor, and what it counts, at one moment.
                connection.execute(text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"))
            of_queue = {"queue": self.queue}
            cursor = connection.execute(_CURSORS, of_queue).one()
            self.result = QueueResult(
                self.queue, cursor.epoch, cursor.seq, cursor.at_ms, cursor.head
            )
            self.cut = connection.execute(LAST_PRUNE, of_queue).one_or_none()
            at = {"epoch": cursor.epoch or 0, "seq": -1 if cursor.seq is None else cursor.seq}
            beyond = connection.execute(_BEYOND, {**of_queue, **at}).one_or_none()
            conflicts = connection.execute(_CONFLICTS, of_queue).scalar_one()
            recorded: dict[OutboxId, list[str]] = {}
            for epoch, seq, kind in connection.execute(_RECORDED, of_queue):
                recorded.setdefault(OutboxId(epoch, seq), []).append(kind)
            replay = Replay(
                self.queue,
                beginnings=self._beginnings(connection),
                recorded=recorded,
                orphaned=[(r.after, r.before) for r in orphans.ranges(connection, self.queue)],
                passed=orphans.passed(connection, self.queue),
                since_ms=self.since_ms,
                pruned_to=None if self.cut is None else (self.cut.epoch, self.cut.seq),
            )
        if self.cut is not None:
            self._begin_at_cut(replay)
        end = OutboxId(0, -1) if cursor.epoch is None else OutboxId(cursor.epoch, cursor.seq)
        for batch, strays, rows in self._batches(end, cursor.batch):
            self._check_batch(batch, strays, rows)
            replay.feed(strays)
            replay.feed(rows)
            on_progress(replay.events, cursor.events)
        replay.finish()
        self._check_end(cursor, replay, beyond)
        if conflicts:
            says = f"{conflicts} entries are in quarantine whose numbers were taken"
            replay.notes.append(Note(end, cursor.at_ms or 0, says))
        self._check_minutes(cursor, replay)
        return self._conclude(replay)

    def _check_minutes(self, cursor: Any, replay: Replay) -> None:
        """Whether ``claim_minute`` counts the claims that there are."""
        # A prune leaves the minutes of what it removes. An hour more, in case Redis' clock went back.
        whole_since = 0 if self.cut is None else self.cut.cut_at_ms + 60 * minutes.MINUTE_MS
        with self.database.readers.connect() as connection:
            wrong = minutes.differing(
                connection, self.queue, since_ms=self.since_ms, whole_since_ms=whole_since
            )
        end = OutboxId(cursor.epoch or 0, cursor.seq or 0)
        for minute_ms, says in wrong:
            if replay.notes:
                # What ended a claim may be among what the log does not know, and be told twice.
                replay.notes.append(Note(end, minute_ms, says))
                continue
            found = "I8", self.queue, *end, 0, minute_ms, "claim_minute", None, None, None, says
            self.result.add(Violation(*found))

    def _conclude(self, replay: Replay) -> QueueResult:
        result = self.result
        for invariant, count in replay.counts.items():
            result.counts[invariant] = result.counts.get(invariant, 0) + count
        result.violations += replay.violations
        result.violations.sort(key=lambda v: (v.epoch, v.seq, v.ordinal))
        result.notes, result.losses = replay.notes, replay.losses
        result.events, result.entries = replay.events, replay.entries
        result.batches, result.live = self.number, len(replay.jobs)
        result.orphans, result.restated = replay.orphans, replay.restated
        return result

    # What a prune left.

    def _begin_at_cut(self, replay: Replay) -> None:
        """Replay what is left up to the cut, which must be what the prune left, and begin there."""
        cut = self.cut
        at = OutboxId(cut.epoch, cut.seq)
        done = cut.kind == "done"
        self.result.pruned = Pruned(*at, cut.cut_at_ms, cut.at_ms, cut.actor, cut.head, done)
        digest = hashlib.sha256()
        for rows in kept_rows(self.database, self.queue, at):
            digest.update(copy_text(rows).encode())
            self.kept += len(rows)
            replay.feed(rows)
        replay.pass_cut()
        self.number, self.head = cut.batch, cut.head
        self.seen |= {cut.head} & self.wanted
        if not done:
            says = "a prune up to here is under way, or was interrupted: run it again"
            replay.notes.append(Note(at, cut.at_ms, says))
        elif (self.kept, digest.hexdigest()) != (cut.kept_events, cut.kept_digest):
            says = (
                f"the {self.kept} events up to {at} are not the {cut.kept_events} that the prune "
                f"at {readable(cut.at_ms)} left"
            )
            found = "I7", self.queue, *at, 0, cut.at_ms, "prune", None, None, cut.actor, says
            self.result.add(Violation(*found))

    # The chain.

    def _check_batch(
        self, batch: _Batch, strays: Sequence[EventRow], rows: Sequence[EventRow]
    ) -> None:
        self.number += 1
        if strays:
            self._broken(batch, f"{len(strays)} events before it are in no batch", strays[0])
        if batch.number != self.number:
            self._broken(batch, f"batch {self.number} is missing before it")
            self.number = batch.number
        if batch.prev != self.head:
            self._broken(batch, "does not follow from the batch before")
        if len(rows) != batch.events:
            self._broken(batch, f"has {len(rows)} events, {batch.events} were committed")
        digest = rows_digest(copy_text(rows))
        if digest != batch.digest:
            self._broken(batch, "its events are not those that were committed")
        # The head of what is really there, so that a change shows to the end of the chain.
        said = batch.prev, self.queue, batch.number, batch.first, batch.last, batch.events
        if chain(*said, batch.digest) != batch.head:
            self._broken(batch, "its head is not that of its contents")
        self.head = batch.head
        if batch.head in self.wanted:
            self.seen.add(batch.head)

    def _broken(self, batch: _Batch, says: str, row: EventRow | None = None) -> None:
        epoch, seq = batch.first if row is None else (row[1], row[2])
        at_ms = self.result.at_ms or 0 if row is None else row[5]
        where = f"batch {batch.number} ({batch.first} to {batch.last}): {says}"
        if self.result.counts.get("I7", 0) < 20:
            found = Violation(
                "I7", self.queue, epoch, seq, 0, at_ms, "batch", None, None, None, where
            )
            self.result.add(found)

    def _check_end(self, cursor: Any, replay: Replay, beyond: Any) -> None:
        end = (cursor.epoch or 0, cursor.seq or 0)

        def wrong(at: tuple[int, int], says: str) -> None:
            at_ms = cursor.at_ms or 0
            found = Violation("I7", self.queue, *at, 0, at_ms, "cursor", None, None, None, says)
            self.result.add(found)

        if beyond is not None:
            says = f"the cursor stands at {OutboxId(*end)}, and there are events after it"
            wrong((beyond.epoch, beyond.seq), says)
        if (self.number, self.head) != (cursor.batch, cursor.head):
            wrong(end, f"the chain ends with batch {self.number}, the cursor counts {cursor.batch}")
        through = 0 if self.cut is None else self.cut.through_events
        there = through + replay.events - self.kept
        if there != cursor.events:
            wrong(end, f"there are {there} events, the cursor counts {cursor.events}")

    # Reading.

    def _beginnings(self, connection: Connection) -> list[Beginning]:
        found: list[Beginning] = []
        epoch = -1
        while True:
            at = {"queue": self.queue, "epoch": epoch}
            after = connection.execute(_NEXT_EPOCH, at).scalar_one()
            if after is None:
                return found
            epoch = after
            first = connection.execute(_FIRST_EVENT, {**at, "epoch": epoch}).one_or_none()
            if first is not None and first.type == "epoch_started":
                found.append(_beginning(epoch, first.detail))

    def _batches(
        self, end: OutboxId, last_batch: int
    ) -> Iterator[tuple[_Batch, list[EventRow], list[EventRow]]]:
        """Every batch with its rows, and the rows before it that belong to none."""
        after = OutboxId(-1, -1) if self.cut is None else OutboxId(self.cut.epoch, self.cut.seq)
        group: list[_Batch] = []
        events = 0
        for batch in self._batch_rows(last_batch):
            group.append(batch)
            events += max(batch.events, 1)
            if events >= READ_EVENTS:
                yield from self._with_rows(after, group)
                after, group, events = max(after, batch.last), [], 0
        if group:
            yield from self._with_rows(after, group)
            after = max(after, group[-1].last)
        strays = self._rows(after, end) if end > after else []
        if strays:
            row = strays[0]
            says = f"{len(strays)} events are in no batch"
            at = row[1], row[2], row[3], row[5]
            self.result.add(Violation("I7", self.queue, *at, "batch", None, None, None, says))

    def _with_rows(
        self, after: OutboxId, group: list[_Batch]
    ) -> Iterator[tuple[_Batch, list[EventRow], list[EventRow]]]:
        rows = self._rows(after, max(batch.last for batch in group))
        place = 0
        for batch in group:
            begin = place
            while place < len(rows) and rows[place][1:3] < batch.first:
                place += 1
            middle = place
            # Most batches are as long as they say.
            guess = middle + batch.events
            if (
                middle < guess <= len(rows)
                and rows[guess - 1][1:3] == batch.last
                and (guess == len(rows) or rows[guess][1:3] > batch.last)
            ):
                place = guess
            else:
                while place < len(rows) and rows[place][1:3] <= batch.last:
                    place += 1
            yield batch, rows[begin:middle], rows[middle:place]

    def _batch_rows(self, last_batch: int) -> Iterator[_Batch]:
        number = 0 if self.cut is None else self.cut.batch
        while True:
            with self.database.readers.connect() as connection:
                at = {"queue": self.queue, "batch": number}
                page = connection.execute(_BATCHES, at).all()
            for row in page:
                if row.batch > last_batch:
                    return
                first = OutboxId(row.first_epoch, row.first_seq)
                last = OutboxId(row.last_epoch, row.last_seq)
                counted = row.entries, row.events
                yield _Batch(row.batch, first, last, *counted, row.digest, row.prev, row.head)
                number = row.batch
            if not page:
                return

    def _rows(self, after: OutboxId, upto: OutboxId) -> list[EventRow]:
        """The events of a range, as plain tuples."""
        return _fetch(self.database, _RANGE, (self.queue, *after, *upto))


def kept_rows(
    database: Database, queue: str, cut: OutboxId, connection: Connection | None = None
) -> Iterator[list[EventRow]]:
    """The events of a queue up to ``cut``, some thousands at a time."""
    after: tuple[int, ...] = (-1, -1, -1)
    while rows := _fetch(database, _KEPT, (queue, *after, *cut), connection):
        yield rows
        after = rows[-1][1:4]


def _fetch(
    database: Database, statement: str, values: tuple[Any, ...], within: Connection | None = None
) -> list[EventRow]:
    """Rows as plain tuples."""
    if database.dialect == "postgresql":
        statement = statement.replace("?", "%s")
    with contextlib.ExitStack() as stack:
        connection = within or stack.enter_context(database.readers.connect())
        driver: Any = connection.connection.driver_connection
        cursor = driver.cursor()
        try:
            cursor.execute(statement, values)
            rows: list[EventRow] = cursor.fetchall()
        finally:
            cursor.close()
    return rows


def _beginning(epoch: int, detail: str | None) -> Beginning:
    try:
        facts = json.loads(detail or "{}")
        last = facts.get("last")
        told = None if last is None else OutboxId.parse(last)
        return Beginning(epoch, str(facts.get("reason")), told)
    except (ValueError, TypeError, AttributeError):
        return Beginning(epoch, "unreadable", None)


class Head(NamedTuple):
    """The end of a queue's chain, to be kept where nobody who can write to the log can write."""

    queue: str
    epoch: int | None
    number: int | None
    batch: int
    sha256: str


def heads(database: Database, queue: str | None = None) -> list[Head]:
    """The head of the chain of each queue."""
    with database.readers.connect() as connection:
        rows = connection.execute(_CURSORS, {"queue": queue}).all()
    return [Head(row.queue, row.epoch, row.seq, row.batch, row.head) for row in rows]
