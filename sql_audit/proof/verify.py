"""Checks the log from SQL alone, for ``rq-core audit verify``.

The events must satisfy the invariants, and the other tables must agree with the events. One pass over a queue's events
makes three checks. :mod:`sql_audit.proof.replay.replay` replays the events. :mod:`sql_audit.proof.batch_check` hashes
every batch and compares it with the chain (I7). :mod:`sql_audit.proof.row_check` derives the rows of ``job`` and
``job_attempt`` and compares them (I8).

Memory is bounded by the live jobs, the holders and one batch, whatever the length of the log. The log may grow
meanwhile: the check ends at the entry where the cursor was when the check began.

    result = verify(Database("audit.db"))
    result.verdict, result.queues["mail"].events
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection, text

from rq_core.model.events import OutboxId
from rq_core.model.lib.text import counted
from sql_audit.proof import schema_check
from sql_audit.proof.batch_check import BatchProof
from sql_audit.proof.epoch_check import EpochProof
from sql_audit.proof.families import FamilyProof
from sql_audit.proof.findings import Note, Violation
from sql_audit.proof.log import (
    LAST_PRUNE,
    BatchedLog,
    beginnings,
    kept_rows,
    tables_by_queue,
)
from sql_audit.proof.replay.replay import Replay
from sql_audit.proof.result import UNDER_WAY, LogCut, QueueResult, VerifyResult
from sql_audit.proof.row_check import RowProof
from sql_audit.store import claim_minutes, orphans
from sql_audit.store.chain import found_text
from sql_audit.store.connection.copy import copy_text
from sql_audit.store.connection.database import Database
from sql_audit.store.connection.statements import CHAIN_ID, CURSOR
from sql_audit.store.job_rows import EventRow
from sql_audit.times import readable

LOOKS: Final = 3
"""Maximum number of times that a log is read. It is read again if it was pruned meanwhile, or if the mirror recorded a
loss of data in Redis or a complete baseline."""
ROWS_NAMED: Final = 20
"""Maximum number of wrong rows of a queue that are reported; further rows are only counted."""

_CURSORS: Final = text(
    "SELECT queue, epoch, seq, batch, head FROM mirror_cursor "
    "WHERE CAST(:queue AS TEXT) IS NULL OR queue = :queue ORDER BY queue"
)
_RECORDED: Final = text("SELECT epoch, seq, kind FROM mirror_epoch WHERE queue = :queue")
_BEYOND: Final = text(
    "SELECT epoch, seq FROM job_event WHERE queue = :queue AND (epoch, seq) > (:epoch, :seq) "
    "ORDER BY epoch, seq LIMIT 1"
)
_CONFLICTS: Final = text(
    "SELECT COUNT(*) FROM quarantine WHERE queue = :queue AND kind = 'conflict'"
)
_LAST_LOSS: Final = text("SELECT MAX(id) FROM mirror_loss WHERE queue = :queue")


def verify(
    database: Database,
    queue: str | None = None,
    *others: str,
    since_ms: int = 0,
    heads: Collection[str] = (),
    on_progress: Callable[[str, int, int], None] = lambda _queue, _done, _of: None,
) -> VerifyResult:
    """Check the logs of the given queues, or of all queues, and return the findings.

    Events before ``since_ms`` (Unix ms) are replayed, but their violations are not reported. ``heads`` are hashes of
    batches that an operator kept outside the database; each must be in a queue's chain. ``on_progress`` is called with
    the queue, the number of checked events and the number of all events.
    """
    result = VerifyResult()
    missing = set(heads)
    with database.readers.connect() as connection:
        chain_id: str = connection.execute(CHAIN_ID).scalar_one()
        names = [row.queue for row in connection.execute(_CURSORS, {"queue": None})]
        without = tables_by_queue(connection)
    for name in names:
        del without[name]
    if queue is not None:
        asked = {queue, *others}
        names = [name for name in names if name in asked]
        without = {name: tables for name, tables in without.items() if name in asked}
    for says in schema_check.schema_differences(database):
        result.problems.append(f"the schema is not as the migration made it: {says}")
    for name, tables in sorted(without.items()):
        says = (
            f"queue {name!r} has rows in {', '.join(tables)} and no cursor: the log was rewritten"
        )
        result.problems.append(says)
    for name in names:
        for _ in range(LOOKS):
            check = _Check(database, chain_id, name, since_ms, missing)
            result.queues[name] = check.run(lambda done, of, name=name: on_progress(name, done, of))  # type: ignore[misc]
            if not check.changed_meanwhile:
                break
        missing -= check.batches.seen.keys()
        check.judge_heads()
    cut = [q for q in result.queues.values() if q.pruned is not None]
    for head in missing:
        if not cut:
            result.problems.append(f"head {head} is in no chain: the log was rewritten")
        for queue_ in cut:
            says = f"head {head} is in no chain: it was pruned, or the log was rewritten"
            queue_.notes.append(Note(OutboxId(*queue_.pruned[:2]), queue_.pruned.at_ms, says))  # type: ignore[index,union-attr]
    return result


class _Check:
    """The check of one queue's log, as the log was when the check began."""

    def __init__(
        self, database: Database, audit_id: str, queue: str, since_ms: int, wanted: Collection[str]
    ) -> None:
        self.database = database
        self.queue = queue
        self.since_ms = since_ms
        self.kept = 0
        """Number of events that the last prune left in the pruned part of the log."""
        self.changed_meanwhile = False
        """True if, while the log was read, a prune began or ended, or the mirror recorded a loss of data in Redis or a
        complete baseline."""
        of_queue = {"queue": queue}
        with database.snapshot() as connection:
            self.cursor = cursor = connection.execute(CURSOR, of_queue).one()
            self.end = (
                OutboxId(0, -1)
                if cursor.epoch is None or cursor.seq is None
                else OutboxId(cursor.epoch, cursor.seq)
            )
            self.cut: Any = connection.execute(LAST_PRUNE, of_queue).one_or_none()
            """The queue's last row of ``mirror_prune``; None if the log was never pruned."""
            self.last_loss = connection.execute(_LAST_LOSS, of_queue).scalar_one()
            at = {"epoch": self.end.epoch, "seq": self.end.seq}
            self.beyond = connection.execute(_BEYOND, {**of_queue, **at}).one_or_none()
            self.conflicts = connection.execute(_CONFLICTS, of_queue).scalar_one()
            orphaned = orphans.ranges(connection, queue)
            ends = orphans.ends(connection, queue, orphaned)
            self.passed = orphans.passed(connection, queue)
            self.replay = self._replay(connection, orphaned)
        self.result = QueueResult(queue, cursor.epoch, cursor.seq, cursor.at_ms, cursor.head)
        self.batches = BatchProof(database, self.result, audit_id, wanted)
        self.epochs = EpochProof(queue, self.passed)
        self.rows = RowProof(database, queue, self.end, orphaned, ends)
        self.families = FamilyProof(queue)

    def _replay(self, connection: Connection, orphaned: list[orphans.Range]) -> Replay:
        recorded: dict[OutboxId, list[str]] = {}
        for epoch, seq, kind in connection.execute(_RECORDED, {"queue": self.queue}):
            recorded.setdefault(OutboxId(epoch, seq), []).append(kind)
        return Replay(
            self.queue,
            beginnings=beginnings(connection, self.queue),
            recorded=recorded,
            orphaned=[(r.after, r.before) for r in orphaned],
            passed=self.passed,
            since_ms=self.since_ms,
            pruned_to=None if self.cut is None else (self.cut.epoch, self.cut.seq),
        )

    def run(self, on_progress: Callable[[int, int], None]) -> QueueResult:
        replay = self.replay
        log = BatchedLog(self.database, self.queue)
        if self.cut is not None:
            log.begin_behind(self._pass_cut(), self.cut.cut_batch)
        for batch, strays, events in log.batches(self.cursor.batch):
            self.batches.check(batch, strays, events)
            for part in (strays, events):
                self._feed(part)
            on_progress(replay.events, self.cursor.events)
        self.batches.check_rest(log.rest(self.end))
        replay.finish()
        if self.conflicts:
            says = counted(
                self.conflicts,
                "entry is in quarantine whose number was taken",
                "entries are in quarantine whose numbers were taken",
            )
            replay.notes.append(Note(self.end, self.cursor.at_ms or 0, says))
        with self.database.snapshot() as connection:
            self.batches.check_cursor(connection, self.cursor, self.beyond)
            self._check_epochs(connection)
            self.rows.finish(connection)
            self._check_minutes(connection)
            for invariant, row, says in self.families.wrong(connection):
                if row[5] >= self.since_ms:
                    found = invariant, *row[:4], row[5], row[4], row[6], row[7], row[8], says
                    self.result.add(Violation(*found))
            for row, says in self.families.unproved.values():
                if row[5] >= self.since_ms:
                    replay.notes.append(Note(OutboxId(row[1], row[2]), row[5], says))
            self.changed_meanwhile = self._changed(connection)
        return self._conclude()

    def _feed(self, events: Sequence[EventRow]) -> None:
        self.replay.feed(events)
        self.epochs.feed(events)
        self.rows.feed(events)
        self.families.feed(events)

    def _check_epochs(self, connection: Connection) -> None:
        """Report differences between the table ``mirror_epoch`` and the events as violations of I5."""
        if self.conflicts:
            return  # Entries without a row of job_event count in the numbering: the events do not show them.
        for at, at_ms, says in self.epochs.wrong(connection, self.cursor.batch):
            found = "I5", self.queue, *at, 0, at_ms, "mirror_epoch", None, None, None, says
            self.result.add(Violation(*found))

    def _changed(self, connection: Connection) -> bool:
        of_queue = {"queue": self.queue}
        cut = connection.execute(LAST_PRUNE, of_queue).one_or_none()
        loss = connection.execute(_LAST_LOSS, of_queue).scalar_one()
        return (cut, loss) != (self.cut, self.last_loss)

    def _pass_cut(self) -> OutboxId:
        """Replay the events of the pruned part of the log, and check that they are those that the last prune left.
        Return the last entry of this part.
        """
        cut = self.cut
        at = OutboxId(cut.epoch, cut.seq)
        done = cut.kind == "done"
        self.result.pruned = LogCut(*at, cut.cut_at_ms, cut.at_ms, cut.actor, cut.head, done)
        digest = hashlib.sha256()
        for events in kept_rows(self.database, self.queue, at):
            digest.update(copy_text(events).encode())
            self.kept += len(events)
            self._feed(events)
        with self.database.snapshot() as connection:
            for line in found_text(connection, self.queue, range(cut.cut_batch + 1)):
                digest.update(line.encode())
        self.replay.pass_cut()
        self.epochs = EpochProof(self.queue, self.passed)
        for proof in (self.epochs, self.batches):
            proof.begin_behind(cut)
        if not done:
            self.replay.notes.append(Note(at, cut.at_ms, UNDER_WAY))
        elif cut.batch <= cut.cut_batch:
            # A batch before the cut cannot have the record of the prune.
            self._violated(at, f"its record is said to be in batch {cut.batch}, before its cut")
        elif (self.kept, digest.hexdigest()) != (cut.kept_events, cut.kept_digest):
            says = (
                f"the {self.kept} events up to {at}, or the findings of the batches there, are not those that the "
                f"prune at {readable(cut.at_ms)} left ({cut.kept_events} events)"
            )
            self._violated(at, says)
        return at

    def _violated(self, at: OutboxId, says: str) -> None:
        found = "I7", self.queue, *at, 0, self.cut.at_ms, "prune", None, None, self.cut.actor, says
        self.result.add(Violation(*found))

    def judge_heads(self) -> None:
        """Add a note for each hash that was kept outside the database before the last prune. It proves nothing about
        the events that the prune left.
        """
        for head, batch in self.batches.seen.items():
            if self.cut is not None and batch < self.cut.batch:
                says = (
                    f"head {head} is older than the record of the prune at {readable(self.cut.at_ms)}: "
                    "it proves what follows the cut, and not what the prune left"
                )
                self.result.notes.append(
                    Note(OutboxId(self.cut.epoch, self.cut.seq), self.cut.at_ms, says)
                )

    def _check_minutes(self, connection: Connection) -> None:
        """Report each minute in ``claim_minute`` whose counts differ from the claims in ``job_attempt``."""
        # A prune keeps the minutes of the claims that it removes. One hour is added, in case Redis' clock went back.
        whole_since = (
            -(2**63) if self.cut is None else self.cut.cut_at_ms + 60 * claim_minutes.MINUTE_MS
        )
        wrong = claim_minutes.differing(
            connection, self.queue, since_ms=self.since_ms, whole_since_ms=whole_since
        )
        end = OutboxId(self.cursor.epoch or 0, self.cursor.seq or 0)
        for minute_ms, says in wrong:
            if self.replay.notes:
                # The log lacks events: the end of a claim may be among them, and the claim may be counted twice.
                self.replay.notes.append(Note(end, minute_ms, says))
                continue
            found = "I8", self.queue, *end, 0, minute_ms, "claim_minute", None, None, None, says
            self.result.add(Violation(*found))

    def _conclude(self) -> QueueResult:
        result, replay = self.result, self.replay
        for invariant, count in replay.counts.items():
            result.counts[invariant] = result.counts.get(invariant, 0) + count
        result.violations += replay.violations
        self._add_wrong_rows()
        result.violations.sort(key=lambda v: (v.epoch, v.seq, v.ordinal))
        result.notes, result.losses = replay.notes, replay.losses
        result.set_back = replay.set_back
        result.events, result.entries = replay.events, replay.entries
        result.batches, result.live = self.batches.number, len(replay.jobs)
        result.orphans, result.restated = replay.orphans, replay.restated
        return result

    def _add_wrong_rows(self) -> None:
        """Report the first ROWS_NAMED wrong rows, and the number of further ones."""
        wrong = [row for row in self.rows.wrong if row.at_ms >= self.since_ms or not row.at_ms]
        wrong.sort(key=lambda row: (row.at, row.ordinal, row.job_id))
        for row in wrong[:ROWS_NAMED]:
            self.result.add(
                Violation(
                    "I8", self.queue, *row.at, row.ordinal, row.at_ms or self.cursor.at_ms or 0, row.table, row.job_id,
                    row.claim, None, row.says,
                )
            )  # fmt: skip
        more = len(wrong[ROWS_NAMED:]) + self.rows.more
        if more:
            self.result.counts["I8"] += more


class Head(NamedTuple):
    """The newest hash of a queue's chain of batches. Keep it where no role that writes to the log can change it."""

    queue: str
    epoch: int | None
    number: int | None
    batch: int
    sha256: str


def heads(database: Database, queue: str | None = None) -> list[Head]:
    """Return the newest hash of each queue's chain, or only of ``queue``."""
    with database.readers.connect() as connection:
        rows = connection.execute(_CURSORS, {"queue": queue}).all()
    return [Head(row.queue, row.epoch, row.seq, row.batch, row.head) for row in rows]
