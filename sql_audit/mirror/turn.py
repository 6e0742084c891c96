"""The mirror of one queue: outbox entries into SQL, exactly once, one batch per transaction.

Exactly once, because a batch's rows and the cursor that counts them commit together. Only then is
Redis trimmed, and the last mirrored entry stays in the stream as the *anchor*, which the next read
must find unchanged. A batch is never committed before the trim of the one before was answered, so
that each trim takes exactly one batch off the backlog, however often it is sent and by whichever
mirror.

No loops: :meth:`Mirror.turn` makes one batch, in steps that a test may interrupt. While SQL writes, a thread that ends
with the turn prepares what comes next (:mod:`sql_audit.mirror.reading`); it only reads.
Several mirrors may work on a queue; whoever has the cursor's lock moves it, and the others see that
it moved.

    >>> mirror = Mirror(source, Database("audit.db"), "mail")        # doctest: +SKIP
    >>> mirror.turn().events                                         # doctest: +SKIP
    4096
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from enum import StrEnum
from typing import Final, NamedTuple

from sqlalchemy import Connection

from rq_core.model.events import OutboxId
from rq_core.model.machine import Event
from rq_core.model.reasons import RESTATED_BY
from sql_audit.mirror import gaps as breaks
from sql_audit.mirror import losses
from sql_audit.mirror.batch import Batch, Projection
from sql_audit.mirror.cursor import Cursor
from sql_audit.mirror.fold import Folder, job_ids
from sql_audit.mirror.gaps import Break, completes_baseline, end_of_batch, goes_on
from sql_audit.mirror.intake import INTEGER_MAX, fingerprint
from sql_audit.mirror.reading import Ahead, BatchLimits, RawEntry, Reader
from sql_audit.mirror.source import OutboxSource
from sql_audit.store.background import BackgroundCall
from sql_audit.store.chain import chain, genesis
from sql_audit.store.copy import EventRows
from sql_audit.store.database import Database
from sql_audit.store.driver_errors import data_refused
from sql_audit.store.statements import (
    ADVANCE_CURSOR,
    AUDIT_ID,
    CREATE_CURSOR,
    CURSOR,
    INSERT_BATCH,
    INSERT_EPOCHS,
    INSERT_QUARANTINE,
    LOCKED_CURSOR,
)

logger = logging.getLogger("rq_core.audit")

STEPS: Final = (
    "attached", "read", "locked", "compared", "forgotten", "events", "projected", "chained",
    "advanced", "committed", "trimmed",
)  # fmt: skip
"""The steps of a turn, in order; ``on_step`` is told each one when it is done."""


class Outcome(StrEnum):
    """What a turn came to."""

    MIRRORED = "mirrored"
    IDLE = "idle"
    """Nothing new."""
    HELD = "held"
    """Another mirror has the cursor."""
    STALE = "stale"
    """Another mirror moved the cursor meanwhile. The next turn reads on from there."""
    BEHIND = "behind"
    """Redis does not go on from what SQL has. It was made to begin an epoch that can be mirrored."""
    REFUSED = "refused"
    """SQL refused a row. The next turns look for it, and put it into quarantine."""


class Turn(NamedTuple):
    """What a turn came to, and how much it mirrored."""

    outcome: Outcome
    entries: int = 0
    events: int = 0


class _Behind(Exception):
    """Redis must begin an epoch after ``known`` before anything of it can be mirrored."""

    def __init__(self, known: int, why: str) -> None:
        super().__init__(why)
        self.known = known


class Mirror:
    """Mirrors one queue. Not for several threads at once."""

    def __init__(
        self,
        source: OutboxSource,
        database: Database,
        queue: str,
        *,
        limits: BatchLimits | None = None,
        on_step: Callable[[str], None] | None = None,
    ) -> None:
        """``on_step`` is called with each of STEPS when it is done, for tests."""
        self.source = source
        self.database = database
        self.queue = queue
        self._reader = Reader(source, queue, limits or BatchLimits())
        self.position: OutboxId | None = None
        """The last mirrored entry, as this mirror knows it."""
        self._done = on_step or (lambda _step: None)
        self._audit_id: str | None = None
        self._ahead: BackgroundCall[Ahead | None] | None = None
        """The next batch, as it is being read while this one is written."""
        self._attached_in: int | None = None
        """The epoch of the cursor when Redis was last told that this database mirrors the queue."""
        self._restated_from = 0
        """Redis is known to have an epoch from here on that begins with a baseline."""

    # One turn.

    def turn(self) -> Turn:
        """Mirror one batch, if there is one.

        Raises what Redis or SQL raise when they fail; nothing is lost then, and the next turn goes
        on.
        """
        if self._audit_id is None:
            self.attach()
        batch = self.read()
        if not batch.read and batch.cursor.position is None:
            return Turn(Outcome.IDLE)
        if len(batch.read) == 1 and batch.cursor.anchored(batch.read):
            return Turn(Outcome.IDLE)
        try:
            outcome = self._write(batch)
        except _Behind as found:
            logger.warning("queue %s: %s", self.queue, found)
            self.attach(found.known)
            self._restated_from = found.known
            return Turn(Outcome.BEHIND)
        except Exception as error:
            if not data_refused(error):
                raise
            self._reader.look_for_refused(batch.entries, error)
            return Turn(Outcome.REFUSED)
        if outcome is not Outcome.MIRRORED:
            return Turn(outcome)
        self._reader.accepted()
        if any(intake.event is Event.EPOCH_STARTED for intake in batch.intakes):
            # Redis may have forgotten that this database mirrors the queue, or ask for a baseline.
            self.attach()
        self.trim(batch.cursor)
        self.position = batch.cursor.position
        events = 0 if batch.folder is None else len(batch.folder.events)
        return Turn(outcome, len(batch.entries), events)

    def _write(self, batch: Batch) -> Outcome:
        try:
            with self.database.writing() as connection:
                if connection is None or not self.lock(connection, batch):
                    return Outcome.HELD
                if not self.compare(connection, batch):
                    return Outcome.STALE
                self.forget(connection, batch)
                self.insert_events(connection, batch)
                self.project(connection, batch)
                self.chain(connection, batch)
                self.advance(connection, batch)
                connection.commit()
                # Until the trim is answered it is owed, and the next turn begins with it.
                self.position = None
                self._done("committed")
        finally:
            # From here on Redis is spoken to on one thread again.
            if self._ahead is not None:
                self._ahead.wait()
        return Outcome.MIRRORED

    # The steps.

    def attach(self, known: int = 0) -> None:
        """Make the queue's cursor if there is none, and tell Redis that this database mirrors the
        queue, and from which epoch on it must go on: the cursor's, and ``known`` or a later one.

        Raises rq_core.errors.AuditElsewhere if another one does.
        """
        with self.database.readers.connect() as reader:
            audit_id: str = reader.execute(AUDIT_ID).scalar_one()
            row = reader.execute(CURSOR, {"queue": self.queue}).one_or_none()
        if row is None:
            first = {"queue": self.queue, "head": genesis(audit_id, self.queue)}
            with self.database.writing(wait=True) as connection:
                assert connection is not None
                connection.execute(CREATE_CURSOR[self.database.dialect], first)
                connection.commit()
        epoch = 0 if row is None or row.epoch is None else row.epoch
        self.source.attach(self.queue, audit_id, max(known, epoch))
        self._audit_id, self._attached_in = audit_id, epoch
        self._done("attached")

    def read(self) -> Batch:
        """Read the cursor, settle the trim it may still owe, and read from Redis up to a batch."""
        with self.database.readers.connect() as connection:
            cursor = Cursor(*connection.execute(CURSOR, {"queue": self.queue}).one())
        if cursor.position is not None and cursor.position.epoch != self._attached_in:
            # The epoch was committed here or by another mirror, and Redis, which may have forgotten who
            # mirrors the queue, could not be told. Trims would be refused for ever.
            self.attach()
        ahead = self._take_ahead(cursor)
        if ahead is None:
            batch = Batch(cursor, self._reader.read_from(cursor.position))
        else:
            batch = Batch(cursor, ahead.read, ahead=ahead)
        if cursor.position != self.position and cursor.anchored(batch.read):
            # This mirror has begun, or another moved the cursor and may have died before its trim.
            # Without the anchor nothing is trimmed: what is there shows what Redis still knew.
            self.trim(cursor)
        self.position = cursor.position
        self._done("read")
        return batch

    def _take_ahead(self, cursor: Cursor) -> Ahead | None:
        """What was read while the last batch was written, if that is what the cursor stands before."""
        beside, self._ahead = self._ahead, None
        if beside is None:
            return None
        try:
            ahead = beside.result()
        except Exception:  # noqa: BLE001 - whatever it is, reading now says it, or it is over
            return None
        return ahead if ahead is not None and ahead.after == cursor.position else None

    def lock(self, connection: Connection, batch: Batch) -> bool:
        """Lock the cursor. False if another mirror has it."""
        row = connection.execute(LOCKED_CURSOR, {"queue": self.queue}).one_or_none()
        if row is None:
            return False
        locked = Cursor(*row)
        batch.moved = locked != batch.cursor
        batch.cursor = locked
        self._done("locked")
        return True

    def compare(self, connection: Connection, batch: Batch) -> bool:
        """Find what follows the cursor, and note every break. False if the cursor moved since the
        read.
        """
        cursor = batch.cursor
        if batch.moved:
            # The trim that the cursor owes now was not sent by this mirror: begin with that again.
            return False
        if not cursor.continues(batch.read):
            # Redis is asked again now that the cursor cannot move, before this is called a break.
            batch.read = self._reader.read_from(cursor.position)
        entries = batch.read
        if cursor.position is not None and not cursor.anchored(entries):
            entries = self._rejoin(cursor, entries)
            batch.rejoined = True
        elif cursor.position is not None:
            entries = entries[1:]
        batch.entries, full = self._reader.cut(entries)
        ahead = batch.ahead
        if ahead is not None and ahead.read is batch.read and not self._reader.looking:
            batch.intakes = ahead.intakes
        else:
            batch.intakes = self._reader.take(batch.entries)
        end = end_of_batch(batch.intakes, cursor.position)
        if end is not None:
            del batch.entries[end:], batch.intakes[end:]
        batch.more_follow = full and end is None and not self._reader.looking
        self._find_fork(connection, batch)
        batch.breaks += breaks.among(batch.intakes, cursor.position, cursor.at_ms or 0, batch.fork)
        self._done("compared")
        return True

    def forget(self, connection: Connection, batch: Batch) -> None:
        """Take what Redis forgot out of the projection, before what it went on with is folded."""
        if batch.fork is not None:
            assert batch.cursor.position is not None
            at_ms = batch.intakes[0].at_ms or batch.cursor.at_ms or 0
            loss = losses.apply(
                connection, self.database, self.queue, batch.fork, batch.cursor.position, at_ms
            )
            if loss is not None:
                losses.log(self.queue, batch.fork, loss)
        self._done("forgotten")

    def insert_events(self, connection: Connection, batch: Batch) -> None:
        """Fold the batch onto the jobs' rows as they stand, and append its events."""
        ids = job_ids(batch.intakes)
        known = self.database.jobs(connection, self.queue, ids) if ids else ()
        folder = Folder(self.queue, known, at_ms=batch.cursor.at_ms or 0)
        for intake in batch.intakes:
            folder.add(intake)
        batch.folder = folder
        rows = EventRows(folder.events, folder.lines)

        def project() -> Projection:
            projection = Projection.of(folder, rows.text())
            if self.database.dialect == "postgresql":
                for part in (*projection.jobs, *projection.attempts):
                    part.text()
            return projection

        batch.projection = self.database.insert_events(connection, rows, project)
        kept = batch.extra + [q for intake in batch.intakes for q in intake.quarantined]
        quarantined = [
            {
                "queue": self.queue, "epoch": q.at.epoch, "seq": q.at.seq, "ordinal": q.ordinal,
                "kind": q.kind, "reason": q.reason, "raw": q.raw,
            }
            for q in kept
        ]  # fmt: skip
        if quarantined:
            connection.execute(INSERT_QUARANTINE, quarantined)
            batch.cursor.quarantined += len(quarantined)
        self._done("events")

    def project(self, connection: Connection, batch: Batch) -> None:
        """Write the jobs and the claims as the batch leaves them."""
        assert batch.projection is not None
        if batch.more_follow:
            after = batch.entries[-1][0]
            self._ahead = BackgroundCall(lambda: self._reader.read_ahead(after))
        self.database.put_jobs(connection, *batch.projection.jobs)
        self.database.put_attempts(connection, *batch.projection.attempts)
        self.database.count_minutes(connection, batch.projection.minutes)
        self._done("projected")

    def chain(self, connection: Connection, batch: Batch) -> None:
        """Append the batch to the chain, and what was found out about the numbering."""
        assert batch.folder is not None
        assert batch.projection is not None
        cursor = batch.cursor
        if batch.entries:
            first, last = batch.entries[0][0], batch.entries[-1][0]
            rows = batch.folder.events
            digest = batch.projection.digest
            number = cursor.batch + 1
            head = chain(cursor.head, self.queue, number, first, last, len(rows), digest)
            connection.execute(
                INSERT_BATCH,
                {
                    "queue": self.queue, "batch": number, "first_epoch": first.epoch,
                    "first_seq": first.seq, "last_epoch": last.epoch, "last_seq": last.seq,
                    "entries": len(batch.entries), "events": len(rows), "digest": digest,
                    "prev": cursor.head, "head": head,
                },
            )  # fmt: skip
            cursor.batch, cursor.head = number, head
        if batch.breaks:
            connection.execute(INSERT_EPOCHS, [found.row(self.queue) for found in batch.breaks])
        if batch.intakes and completes_baseline(batch.intakes[-1]):
            last = batch.intakes[-1].id
            began = losses.began(connection, self.queue, last)
            if began is not None:
                losses.restated(connection, self.queue, began, last, batch.folder.at_ms)
        self._done("chained")

    def advance(self, connection: Connection, batch: Batch) -> None:
        """Move the cursor behind the batch."""
        assert batch.folder is not None
        cursor = batch.cursor
        if batch.entries:
            last_id, last_raw = batch.entries[-1]
            cursor.epoch, cursor.seq = last_id
            cursor.at_ms = batch.folder.at_ms
            cursor.anchor = fingerprint(last_raw)
        cursor.entries += len(batch.entries)
        cursor.events += len(batch.folder.events)
        cursor.trim_jobs = sum(intake.jobs for intake in batch.intakes)
        cursor.trim_bytes = sum(intake.size for intake in batch.intakes)
        cursor.bytes += cursor.trim_bytes
        cursor.gaps += sum(found.kind in ("gap", "changed", "lost") for found in batch.breaks)
        values = {name: getattr(cursor, name) for name in Cursor.__slots__ if name != "queue"}
        connection.execute(ADVANCE_CURSOR, {"the_queue": self.queue, **values})
        self._done("advanced")

    def trim(self, cursor: Cursor) -> None:
        """Let Redis forget what SQL has, but the anchor. Harmless if it was done before."""
        assert self._audit_id is not None
        self.source.trim(
            self.queue, self._audit_id, str(cursor.position), cursor.trim_jobs, cursor.trim_bytes
        )
        self._done("trimmed")

    # Comparing.

    def _rejoin(self, cursor: Cursor, entries: list[RawEntry]) -> list[RawEntry]:
        """What can be mirrored after the cursor, if its anchor is not there, or not what it was.

        Raises _Behind if Redis has nothing that can.
        """
        before = cursor.position
        assert before is not None
        changed = bool(entries) and entries[0][0] == before
        if entries and not changed:
            return entries
        entries = self._reader.read_from(OutboxId(before.epoch + 1, 0))
        if not entries:
            found = "another entry under that number" if changed else "nothing from there on"
            raise _Behind(before.epoch + 1, f"SQL has {before}, Redis has {found}")
        return entries

    def _find_fork(self, connection: Connection, batch: Batch) -> None:
        """See whether the batch begins where Redis' history left the one that SQL has.

        Raises _Behind if Redis must say anew what lives before that can be mirrored.
        """
        before = batch.cursor.position
        if before is None or not batch.intakes:
            return
        first = batch.intakes[0]
        # Numbers may be given twice: without the anchor it does not count that they match.
        if first.event is not Event.EPOCH_STARTED or (
            goes_on(first, before) and not batch.rejoined
        ):
            return
        told = losses.told_last(first)
        reason = first.data.get("reason")
        if told is None and reason not in ("created", "behind"):
            return  # Only the log is lost, and a baseline follows.
        fork, kept = losses.find(connection, self.source, self.queue, first, before)
        if fork.passed and reason not in RESTATED_BY:
            # What it had under passed numbers is missing from what follows.
            last, _ = self.source.read_outbox_back(self.queue, str(OutboxId(INTEGER_MAX, 0)), 1)[0]
            if first.id.epoch >= self._restated_from:
                why = f"{fork.passed} entries before {first.id} have numbers that SQL had passed"
                raise _Behind(OutboxId.parse(last).epoch + 1, why)
        batch.fork = fork
        batch.extra += kept
        if fork.changed is not None:
            text = "Redis has another entry under a number that is mirrored already"
            at_ms = first.at_ms or 0
            batch.breaks.append(Break(fork.changed, "changed", at_ms, text, before))
