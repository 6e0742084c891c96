"""The mirror of one queue: writes outbox entries to SQL, exactly once, one batch per transaction.

A batch's rows and the cursor (the mirror's position) commit together, so each entry is written once. Only then does the
mirror trim Redis. The last mirrored entry stays in the outbox as the *anchor*; the next read must find it unchanged.

A batch is committed only after Redis has answered the trim of the batch before. So Redis subtracts each batch from the
backlog exactly once, even if several mirrors repeat the trim.

:meth:`Mirror.turn` mirrors one batch, without a loop, in steps that a test may interrupt. While SQL writes, a thread
reads the next batch (:mod:`sql_audit.mirror.reading`); the thread ends with the turn. Several mirrors may work on one
queue: the one that locks the cursor writes the batch and moves the cursor; the others read from the new position.

    >>> mirror = Mirror(source, Database("audit.db"), "mail")        # doctest: +SKIP
    >>> mirror.turn().events                                         # doctest: +SKIP
    4096
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import Final, NamedTuple

from sqlalchemy import Connection

from rq_core.model.events import OutboxId
from sql_audit.errors import CursorHeld
from sql_audit.mirror import forks, gaps, losses, source_registry
from sql_audit.mirror.batch import EventBatch, Projection
from sql_audit.mirror.cursor import Anchor, Cursor, lock_cursor
from sql_audit.mirror.forks import LAST_NUMBER, Behind
from sql_audit.mirror.projection.fold import Folder, job_ids
from sql_audit.mirror.reading import BatchLimits, Reader, Tail
from sql_audit.mirror.redis_access import OutboxSource
from sql_audit.store.chain import NOTHING_FOUND, Link, found_digest
from sql_audit.store.connection.background import BackgroundCall
from sql_audit.store.connection.copy import EventRows
from sql_audit.store.connection.database import Database
from sql_audit.store.connection.driver_errors import data_refused
from sql_audit.store.connection.statements import (
    ADVANCE_CURSOR,
    AUDIT_ID,
    CURSOR,
    INSERT_BATCH,
    INSERT_EPOCHS,
    INSERT_QUARANTINE,
)
from sql_audit.store.gaps import unasked_gap
from sql_audit.store.log_queues import says_deleted

logger = logging.getLogger("rq_core.audit")

STEPS: Final = (
    "attached", "read", "locked", "compared", "forgotten", "events", "projected", "chained",
    "advanced", "committed", "trimmed",
)  # fmt: skip
"""The steps in which a turn mirrors a batch, in order. ``on_step`` is called after each step with the step's name."""

FINISH_TRIES: Final = 20
"""Maximum number of tries to mirror the end of a log that was switched off, while another mirror works on the queue."""
FINISH_PAUSE_S: Final = 0.05
"""Seconds between two tries to mirror the end of a log that was switched off."""


class TurnOutcome(StrEnum):
    """The outcome of one turn of the mirror."""

    MIRRORED = "mirrored"
    IDLE = "idle"
    """Redis has no new entry."""
    HELD = "held"
    """Another mirror has locked the queue's cursor, or another process writes the SQLite file."""
    STALE = "stale"
    """The queue's cursor has changed during the turn, mostly because another mirror has mirrored entries. The next turn
    continues from the new position."""
    BEHIND = "behind"
    """Redis had no entries with which the mirror can continue. So the mirror made Redis begin a new epoch with a list
    of all live jobs; the next turn continues there."""
    REFUSED = "refused"
    """SQL refused a row of the batch. The next turns find the row's outbox entry and put it into quarantine."""


class Turn(NamedTuple):
    """The result of one turn: its outcome, and the numbers of entries and events that it mirrored."""

    outcome: TurnOutcome
    entries: int = 0
    events: int = 0


class Mirror:
    """Mirrors one queue. Only one thread may use it at a time."""

    def __init__(
        self,
        source: OutboxSource,
        database: Database,
        queue: str,
        *,
        limits: BatchLimits | None = None,
        on_step: Callable[[str], None] | None = None,
        confirm_loss: Callable[[], object] | None = None,
    ) -> None:
        """Make a mirror of ``queue``; nothing is read yet. ``on_step`` is called after each step with the step's name
        (see STEPS), for tests. ``confirm_loss`` is called before the mirror continues with a Redis that has no stamp
        (random mark) of the queue, if SQL has a stamp that this mirror neither found nor wrote. The function raises
        SourceDiffers if the queue is not lost but in another Redis."""
        self.source = source
        self.database = database
        self.queue = queue
        self._reader = Reader(source, queue, limits or BatchLimits())
        self.position: OutboxId | None = None
        """The last mirrored entry as far as this mirror knows. None: Redis may not have carried out the trim after the
        last batch, so the next read trims again."""
        self._done = on_step or (lambda _step: None)
        self._confirm_loss = confirm_loss or (lambda: None)
        self._audit_id: str | None = None
        self._ahead: BackgroundCall[Tail | None] | None = None
        """The call that reads the next batch while SQL writes the current batch."""
        self._stamp: str | None = None
        """The random mark of the queue in Redis that this mirror last found or wrote."""
        self._attached_in: int | None = None
        """The epoch of the mirror's position when this mirror last attached the queue in Redis."""
        self._trims = True
        """True if the mirror trims Redis. Redis refuses trims if the log is off."""
        self._restated_from = 0
        """The number of an epoch: at this mirror's request, Redis began this epoch or a later one with a baseline of
        all live jobs. Earlier epochs need no further request. 0: no such epoch."""

    # One turn.

    def turn(self) -> Turn:
        """Mirror one batch if there are new entries, and return the result. Raise the errors of Redis and SQL. After an
        error, the next turn continues from the last commit; nothing is lost."""
        try:
            return self._turn()
        except CursorHeld:
            self._audit_id = None  # The next turn attaches again, and calls restate again.
            return Turn(TurnOutcome.HELD)

    def _turn(self) -> Turn:
        if self._audit_id is None:
            self.attach()
            # A mirror may have died after it committed a gap, before it asked for a baseline.
            self.restate()
        cursor, tail = self.read()
        if not tail.entries and (not tail.detached or self.queue_is_deleted()):
            return Turn(TurnOutcome.IDLE)
        try:
            return self._mirror(cursor, tail)
        except Behind as found:
            logger.warning("queue %s: %s", self.queue, found)
            self.attach(found.known)
            self._restated_from = found.known
            return Turn(TurnOutcome.BEHIND)

    def finish(self) -> None:
        """Mirror the last entries of a queue whose audit log was switched off, up to the event of the switch. The log
        is not switched on again."""
        with self.database.readers.connect() as connection:
            row = connection.execute(CURSOR, {"queue": self.queue}).one_or_none()
            self._audit_id = connection.execute(AUDIT_ID).scalar_one()
        if row is None:
            return
        # The mirror's state is set as attach would set it: attach itself would switch the log on again.
        cursor = Cursor(*row)
        self._attached_in, self.position, self._stamp = cursor.epoch, cursor.position, cursor.stamp
        self._trims = False
        # Later entries, of the time without a log, are not mirrored.
        switch = self._reader.find_switch(cursor.position)
        tries = 0
        while switch is not None and tries < FINISH_TRIES:
            cursor, tail = self.read()
            left = [entry for entry in tail.entries if entry[0] <= switch]
            if not left or not tail.whole or tail.detached:
                return
            outcome = self._mirror(cursor, tail._replace(entries=left)).outcome
            if outcome is not TurnOutcome.MIRRORED:
                tries += 1
            if outcome in (TurnOutcome.STALE, TurnOutcome.HELD):
                # Another mirror works on the same entries.
                time.sleep(FINISH_PAUSE_S)

    def queue_is_deleted(self) -> bool:
        """Return whether an operator deleted the queue: the queue's last event in SQL says this. The mirror must not
        attach such a queue, because Redis would create it again."""
        with self.database.readers.connect() as reader:
            last = Cursor(*reader.execute(CURSOR, {"queue": self.queue}).one()).last
            return last is not None and says_deleted(reader, self.queue, last.at)

    def _mirror(self, cursor: Cursor, tail: Tail) -> Turn:
        """Write the first batch of the tail to SQL, commit, and trim Redis. Return the result of the turn."""
        batch: EventBatch | None = None
        try:
            with self._writing() as connection:
                locked = None if connection is None else self.lock(connection)
                if connection is None or locked is None:
                    return Turn(TurnOutcome.HELD)
                if locked != cursor:
                    # Another mirror moved the cursor, and its trim may not be sent: the next turn sends it first.
                    return Turn(TurnOutcome.STALE)
                batch = self.compare(connection, locked, tail)
                events = self._write(connection, batch)
        except Exception as error:
            if batch is None or not data_refused(error):
                raise
            self._reader.look_for_refused(batch.taken.entries, error)
            return Turn(TurnOutcome.REFUSED)
        self._reader.accepted()
        if batch.taken.begins_epoch:
            # Redis may have forgotten that this database mirrors the queue, or may need calls for a baseline.
            self.attach()
        if batch.breaks:
            self.restate()
        self.trim(batch.cursor)
        self.position = batch.cursor.position
        return Turn(TurnOutcome.MIRRORED, len(batch.taken.entries), events)

    @contextlib.contextmanager
    def _writing(self) -> Iterator[Connection | None]:
        """Yield a database transaction. After the block, wait for the thread that reads the next batch, so that only
        one thread uses Redis."""
        try:
            with self.database.writing() as connection:
                yield connection
        finally:
            if self._ahead is not None:
                self._ahead.wait()

    def _write(self, connection: Connection, batch: EventBatch) -> int:
        """Write a batch to SQL with the mirror's new position, and commit. Return the number of events."""
        self.forget(connection, batch)
        projection = self.insert_events(connection, batch)
        self.project(connection, batch, projection)
        self.chain(connection, batch, projection)
        self.advance(connection, batch, projection)
        connection.commit()
        # Until Redis has answered the trim, the next turn must begin with this trim.
        self.position = None
        batch.log_findings(self.queue)
        self._done("committed")
        return projection.events

    # The steps.

    def attach(self, known: int = 0, *, wait: bool = False) -> None:
        """Record in Redis that this database mirrors the queue, and insert the queue's row of ``mirror_cursor`` if it
        is missing.

        If Redis is in an earlier epoch than SQL or ``known``, Redis begins a later epoch (see OutboxSource.attach).
        Afterwards Redis and SQL have the same random mark of the queue, its stamp
        (:mod:`sql_audit.mirror.source_registry`).

        Raise rq_core.errors.AuditElsewhere if another database mirrors the queue. Raise SourceDiffers if SQL has the
        queue from another Redis. Raise CursorHeld if another mirror has locked the cursor or writes the SQLite file;
        with ``wait``, wait for the file instead.
        """
        with self.database.readers.connect() as reader:
            audit_id: str = reader.execute(AUDIT_ID).scalar_one()
            row = reader.execute(CURSOR, {"queue": self.queue}).one_or_none()
        epoch = 0 if row is None or row.epoch is None else row.epoch
        stamp = self.source.stamp(self.queue)
        if row is not None and stamp and (row.prefix, row.stamp) == (self.source.prefix, stamp):
            self.source.attach(self.queue, audit_id, max(known, epoch), stamp)
        else:
            if row is not None and row.stamp and not stamp:
                if row.stamp != self._stamp:
                    self._confirm_loss()
                # The old stamp is removed first: a mirror that dies before Redis and SQL have the new stamp must not be
                # refused when it starts again.
                source_registry.free(self.source, self.database, self.queue, row.stamp, wait=wait)
            stamp = source_registry.bind(
                self.source, self.database, self.queue, max(known, epoch), wait=wait
            )
        self._audit_id, self._attached_in, self._stamp = audit_id, epoch, stamp
        self._done("attached")

    def restate(self) -> None:
        """Make Redis list all live jobs in a new epoch (a baseline), if events are missing in the log since the last
        baseline. A job may have ended in the gap; the baseline shows that. Nothing happens until SQL is in Redis' last
        epoch, because a later epoch may have a baseline. Raise the same errors as :meth:`attach`."""
        with self.database.readers.connect() as reader:
            gap = unasked_gap(reader, self.queue)
            epoch = reader.execute(CURSOR, {"queue": self.queue}).one().epoch
        last = [] if gap is None else self.source.read_outbox_back(self.queue, LAST_NUMBER, 1)
        if gap is None or not last or OutboxId.parse(last[0][0]).epoch != epoch:
            return
        logger.warning("queue %s: the gap at %s: Redis is asked what lives", self.queue, gap.at)
        self._restated_from = epoch + 1
        self.attach(self._restated_from)

    def read(self) -> tuple[Cursor, Tail]:
        """Read the mirror's position from SQL, and about one batch of entries after it from Redis. If Redis may not
        have carried out the trim of the last batch, trim it again."""
        with self.database.readers.connect() as connection:
            cursor = Cursor(*connection.execute(CURSOR, {"queue": self.queue}).one())
        anchor = cursor.last
        here = (self.source.prefix, self._stamp)
        # A log that was switched off is not attached again.
        is_ours = not self._trims or (cursor.prefix, cursor.stamp) == here
        if not is_ours or (anchor is not None and anchor.at.epoch != self._attached_in):
            # The cursor is in a new epoch, or the queue has another source. Redis may have forgotten who mirrors the
            # queue: without this call, it would refuse all trims.
            self.attach()
            cursor.prefix, cursor.stamp = self.source.prefix, self._stamp
        tail = self._take_ahead(anchor) or self._reader.read_after(anchor)
        if anchor is not None and anchor.at != self.position and not tail.detached:
            # This mirror has just started, or another mirror moved the cursor and may have died before its trim. If the
            # anchor is missing, nothing is trimmed: the entries show what Redis still knew.
            self.trim(cursor)
        self.position = cursor.position
        self._done("read")
        return cursor, tail

    def _take_ahead(self, anchor: Anchor | None) -> Tail | None:
        """Return the entries that the background thread has read. Return None if it has read nothing, or if the entries
        do not follow ``anchor``, the last mirrored entry."""
        beside, self._ahead = self._ahead, None
        if beside is None:
            return None
        try:
            tail = beside.result()
        except Exception:  # noqa: BLE001 - whatever it is, reading now says it, or it is over
            return None
        return tail if tail is not None and tail.anchor == anchor else None

    def lock(self, connection: Connection) -> Cursor | None:
        """Lock the mirror's position in SQL, read it again, and return it. Return None if another mirror has locked it.
        Raise SchemaAhead or SchemaBehind if the database's schema was changed."""
        cursor = lock_cursor(connection, self.database, self.queue)
        if cursor is not None:
            self._done("locked")
        return cursor

    def compare(self, connection: Connection, cursor: Cursor, tail: Tail) -> EventBatch:
        """Return the next batch, with what it shows about lost entries. The queue's cursor must be locked. Raise Behind
        if the mirror cannot continue until Redis begins a new epoch."""
        if not tail.whole:
            # Read again now that the cursor cannot move: only then do missing numbers show a break.
            tail = self._reader.read_after(tail.anchor)
        if tail.detached:
            tail = forks.rejoin(self._reader, tail)
        taken = self._reader.take(tail)
        beginning = taken.intakes[0].beginning if taken.intakes else None
        fork = None
        if beginning is not None and tail.anchor is not None:
            fork = forks.find_fork(
                connection, self.source, self.queue, tail, beginning, self._restated_from
            )
        breaks = gaps.among(taken.intakes, cursor.position, cursor.at_ms or 0, fork)
        self._done("compared")
        return EventBatch(cursor, taken, fork, breaks)

    def forget(self, connection: Connection, batch: EventBatch) -> None:
        """If the batch shows that Redis forgot events, undo what these changed in the rows of jobs and claims."""
        if batch.fork is not None:
            assert batch.cursor.position is not None
            upto = batch.cursor.position
            losses.apply_fork(connection, self.database, self.queue, batch.fork, upto, batch.number)
        self._done("forgotten")

    def insert_events(self, connection: Connection, batch: EventBatch) -> Projection:
        """Insert the batch's events, and apply them to the rows of their jobs and claims. Return the changed rows."""
        intakes = batch.taken.intakes
        ids = job_ids(intakes)
        known = self.database.jobs(connection, self.queue, ids) if ids else ()
        folder = Folder(self.queue, known, at_ms=batch.cursor.at_ms or 0)
        for intake in intakes:
            folder.add(intake)
        rows = EventRows(folder.events, folder.lines)

        def project() -> Projection:
            projection = Projection.of(folder, rows.text())
            if self.database.dialect == "postgresql":
                for part in (*projection.jobs, *projection.attempts):
                    part.text()
            return projection

        projection = self.database.insert_events(connection, rows, project)
        quarantined = batch.quarantine_rows(self.queue)
        if quarantined:
            connection.execute(INSERT_QUARANTINE, quarantined)
            batch.cursor.quarantined += len(quarantined)
        self._done("events")
        return projection

    def project(self, connection: Connection, batch: EventBatch, projection: Projection) -> None:
        """Write the rows of jobs and claims that the batch changed, and begin to read the next batch."""
        last = batch.taken.last
        if batch.taken.more_follow and last is not None:
            self._ahead = BackgroundCall(lambda: self._reader.read_ahead(last))
        self.database.put_jobs(connection, *projection.jobs)
        self.database.put_attempts(connection, *projection.attempts)
        self.database.count_minutes(connection, projection.minutes)
        self._done("projected")

    def chain(self, connection: Connection, batch: EventBatch, projection: Projection) -> None:
        """Append the batch to the queue's chain of hashes. Insert rows for new epochs, and for missing, changed or lost
        entries. If the batch completes a baseline, end the jobs that it shows to be gone."""
        cursor, taken, number = batch.cursor, batch.taken, batch.number
        if batch.breaks:
            found = [each.row(self.queue, number) for each in batch.breaks]
            connection.execute(INSERT_EPOCHS, found)
        if taken.last is not None:
            first, last = taken.entries[0][0], taken.last.at
            if taken.completes_baseline:
                losses.complete_baseline(connection, self.queue, last, projection.at_ms, number)
            jobs, size = (sum(getattr(i, name) for i in taken.intakes) for name in ("jobs", "size"))
            link = Link(
                cursor.head, self.queue, number, first, last, len(taken.entries),
                projection.events, jobs, size, taken.last.fingerprint, projection.digest,
                found_digest(connection, self.queue, number) if batch.found_out else NOTHING_FOUND,
            )  # fmt: skip
            connection.execute(INSERT_BATCH, link.row)
            cursor.batch, cursor.head = number, link.head
        self._done("chained")

    def advance(self, connection: Connection, batch: EventBatch, projection: Projection) -> None:
        """Move the mirror's position in SQL to the end of the batch, and add the batch to the sums in the same row."""
        cursor, taken = batch.cursor, batch.taken
        if taken.last is not None:
            (cursor.epoch, cursor.seq), cursor.anchor = taken.last
            cursor.at_ms = projection.at_ms
        cursor.entries += len(taken.entries)
        cursor.events += projection.events
        cursor.trim_jobs = sum(intake.jobs for intake in taken.intakes)
        cursor.trim_bytes = sum(intake.size for intake in taken.intakes)
        cursor.bytes += cursor.trim_bytes
        cursor.gaps += sum(found.kind in ("gap", "changed", "lost") for found in batch.breaks)
        values = {name: getattr(cursor, name) for name in Cursor.__slots__ if name != "queue"}
        connection.execute(ADVANCE_CURSOR, {"the_queue": self.queue, **values})
        self._done("advanced")

    def trim(self, cursor: Cursor) -> None:
        """Remove the entries before the last mirrored entry from Redis' outbox. A repeated call does nothing."""
        assert self._audit_id is not None
        if not self._trims:
            return
        self.source.trim(
            self.queue, self._audit_id, str(cursor.position), cursor.trim_jobs, cursor.trim_bytes
        )
        self._done("trimmed")
