"""Hands the rows of a user's database over to Redis, each exactly once.

Before a relay sends a batch, it commits to the database which rows the batch has, and the slot and the number of each
call to Redis. Redis carries out each number of a slot once, and answers a repeated call as before. So if a batch has no
answer, any relay may send it again. The rows are deleted only after the answer. No lock is held while a batch is being
sent.

A COMMIT waits for the disk, so one batch has the rows of several calls. Each call has its own slot; all calls of the
batch have the same call number. A row's position in the batch determines the row's call.

A relay draws a random name for its slot and counts the call numbers in memory. So no call number is used twice, even if
the database is set back to an older state.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, Final

from rq_core.connections.client import Client
from rq_core.errors import BadArguments, StaleCall
from rq_core.model.ids import boot_id
from rq_core.model.job import NewJob
from rq_core.model.lib.text import counted, printable, shorten
from rq_core.model.packed_job import Unreadable
from rq_core.model.settings import INBOX_SLOT
from rq_core.protocol.calls.enqueue import ENQUEUE_CHUNK_BYTES
from sql_audit.inbox import sending
from sql_audit.inbox.rows import JobMaker, PolicyNeeded
from sql_audit.inbox.sending import BatchAnswer, Number, RowBatch, Sender
from sql_audit.inbox.session import NOTHING, InboxRow, RelayRow, RowCounts, Session, Transaction

logger = logging.getLogger("rq_core.inbox")

CALLS_MAX: Final = 8
"""Maximum number of calls in a batch. More calls are faster, since a COMMIT waits for the disk. But a program that
writes to the same SQLite file waits for the transaction of the whole batch, which takes about 30 ms."""
ADOPT_MS: Final = 5_000
"""Milliseconds after which any relay may send another relay's batch that has no answer yet."""
SHOWN_MAX: Final = 300
"""Maximum number of characters that a log message shows of a row's text."""
DAY_S: Final = 86_400.0
PARK_MS: Final = 29 * 86_400_000
"""Milliseconds after which the rows of a batch without an answer are parked: an operator must decide about them.

Redis recognises a repeated call for 30 days after the first call in its slot. A relay uses a slot for one day. So a
batch may be sent again for 29 days."""
SEND_MS: Final = PARK_MS - 86_400_000
"""Milliseconds after which a batch is not sent again. This is a day less than PARK_MS, since a relay's process may be
suspended for up to a day before it makes the call."""
MISMATCH: Final = (
    "a job of this id is live or remembered, and it has another task or other arguments"
)
EXPIRED: Final = (
    "its batch was on its way for 29 days, so whether Redis has carried it out is not known any more: look for the job,"
    " then retry or drop the row"
)
ALTERED: Final = (
    "it cannot be read any more ({why}), and its batch was on its way, so whether Redis has carried it out is not"
    " known: look for the job, then retry or drop the row"
)
LEFT: Final = 0
"""Replaces a row's id in a committed batch if the row no longer belongs to the batch. The other rows keep their
positions. No row has this id."""
SET_BACK: Final = (
    "queue %s: the database was set back to an older state: %s in it again, or will be sent again. A row whose job is"
    " live is a duplicate; a row whose job has ended, and whose id is not remembered, runs again"
)


def _back(rows: int) -> str:
    """Return the part of the log message ``SET_BACK`` that counts rows, such as "2 rows that were handed over are"."""
    return counted(rows, "row that was handed over is", "rows that were handed over are")


class RelayOutcome(Enum):
    """The result of a relay's turn."""

    MOVED = auto()
    IDLE = auto()
    """There was nothing to do."""
    HELD = auto()
    """Another relay is at work: it has locked the queue, or it waits for Redis' answer to a batch. Or the batch is too
    old to be sent again, and will be parked."""


@dataclass(slots=True)
class _Queue:
    """The state of one queue that a relay keeps in memory from turn to turn."""

    name: str
    slot: str = ""
    number: int = 0
    drawn_at: float = 0.0
    sent: Number | None = None
    """The call slot and number of the last batch that this relay committed to the database."""
    answer: BatchAnswer | None = None
    """Redis' answer to a batch, until the relay has stored the end of the batch in the database."""
    handled: int = 0
    """Number of rows that had left the inbox after this relay's last turn in which it had locked the queue. A lower
    number later shows that the database was set back to an older state."""
    most: int = sending.CALL_ROWS
    """Number of rows to read at once. It is lower if rows are large."""
    single: int = 0
    """Number of rows that are still to be sent in batches of one row, to find the row that made Redis refuse a call."""


@dataclass(slots=True)
class _Step:
    """The results of a turn's database transaction: the batch to send after the COMMIT, and warnings to log."""

    batch: RowBatch | None = None
    needs: set[str] = field(default_factory=set)
    """Tasks whose policies (caps and options) must first be read from Redis."""
    moved: bool = False
    held: bool = False
    says: list[tuple[Any, ...]] = field(default_factory=list)
    """Warnings for the log."""
    handled: int = 0


class Relay:
    """Hands rows of the inbox over to Redis, one turn at a time. A turn ends the answered batch and sends the next one.
    After an error, this or another relay can make the next turn.
    """

    def __init__(
        self,
        session: Session,
        client: Client,
        inbox_id: str,
        *,
        clock: Callable[[], float] = time.time,
        on_step: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Prepare a relay; nothing is read yet. ``on_step`` is called between the steps of a turn: tests use it to kill
        the relay there.
        """
        self.name = boot_id("r")
        self._session = session
        self._client = client
        self.inbox_id = inbox_id
        self._jobs = JobMaker(client)
        self._sender = Sender(client, on_step)
        self._queues: dict[str, _Queue] = {}
        self._clock = clock
        self._on_step = on_step

    def queues(self) -> list[str]:
        """Return the queues that have rows, or a batch that Redis has not answered. Raise InboxError."""
        with self._session.transaction() as transaction:
            return transaction.queues()

    def knows(self, name: str) -> bool:
        """Return whether this relay has made a turn for the queue ``name``."""
        return name in self._queues

    def turn(self, name: str) -> RelayOutcome:
        """Delete the rows of the batch that Redis has answered, and send the next batch of the queue.

        Raise InboxError for an error of the database, and another RqCoreError for an error of Redis.
        """
        queue = self._queues.get(name)
        if queue is None:
            queue = self._queues[name] = _Queue(name)
        began = self._clock()
        with self._session.transaction() as transaction:
            step = self._step(transaction, queue)
            self._on_step("commit")
        queue.handled = step.handled
        if not step.held:
            queue.answer = None
        for says, *facts in step.says:
            logger.warning(says, *map(_shown, facts))
        self._on_step("committed")
        if step.batch is not None:
            queue.sent = step.batch.of
            if abs(self._clock() - began) < DAY_S:
                queue.answer = self._sender.send(name, step.batch, self.inbox_id)
                self._on_step("answered")
            # Else the process was stopped meanwhile, for so long that others may have parked the batch.
        for task in sorted(step.needs):
            self._jobs.learn(name, task)
        if step.held:
            return RelayOutcome.HELD
        return RelayOutcome.MOVED if step.moved or step.batch or step.needs else RelayOutcome.IDLE

    # Within the transaction.

    def _step(self, transaction: Transaction, queue: _Queue) -> _Step:
        step = _Step(handled=queue.handled)
        row = transaction.lock(queue.name)
        if row is None:
            step.held = True
            return step
        self._look_back(queue, row, step)
        ended: RowCounts | None = None
        if row.ids is not None:
            of = Number(row.slot or "", row.number or 0)
            if queue.answer is not None and queue.answer.of == of:
                ended = self._end(transaction, queue, row.ids, queue.answer, step)
            elif row.age_ms >= PARK_MS:
                transaction.park(queue.name, row.ids, EXPIRED)
                says = "queue %s: %s parked: %s"
                parked = counted(len(row.ids), "row is", "rows are")
                step.says.append((says, queue.name, parked, EXPIRED))
                ended = NOTHING
            elif row.age_ms < SEND_MS and (
                # A clock that was set back makes a batch younger than nothing.
                row.taken_by == self.name or not 0 <= row.age_ms < ADOPT_MS
            ):
                step.batch = self._again(transaction, queue, row, row.ids, of, step)
                return step
            else:
                step.held = True
                return step
            step.handled += sum(ended)
            step.moved = True
        step.batch = self._choose(transaction, queue, step, ended or NOTHING)
        if step.batch is None and ended is not None:
            transaction.end(queue.name, ended)
        return step

    def _look_back(self, queue: _Queue, row: RelayRow, step: _Step) -> None:
        """Add a warning if the database is in an older state than this relay has already seen."""
        back = queue.handled - row.handled
        sent = queue.sent
        is_older = sent is not None and row.slot == sent.slot and (row.number or 0) < sent.number
        if back > 0 or is_older:
            step.says.append((SET_BACK, queue.name, _back(max(back, 0))))
            # Logged once; a later batch has another number.
            queue.sent = None
        step.handled = row.handled

    def _end(
        self,
        transaction: Transaction,
        queue: _Queue,
        ids: Sequence[int],
        answer: BatchAnswer,
        step: _Step,
    ) -> RowCounts:
        """End the batch that Redis has answered, and return the counts of its rows.

        Rows of accepted calls are deleted or parked. Rows of a refused call stay in the inbox. But if a call had one
        row and Redis rejected its arguments, the row is parked.
        """
        relayed = held = duplicate = 0
        done: list[int] = []
        parked: list[int] = []
        queue.single = max(0, queue.single - 1)
        for number, call in enumerate(answer.calls):
            some = ids[number * sending.CALL_ROWS : (number + 1) * sending.CALL_ROWS]
            if call.error is not None:
                self._end_refused(transaction, queue, some, call.error, step)
                continue
            done += some
            relayed += len(some) - len(call.others)
            for place, outcome in call.others:
                if outcome == "mismatch" and call.is_whole:
                    parked.append(some[place])
                elif outcome in ("duplicate", "mismatch"):
                    duplicate += 1
                else:
                    held += 1
        transaction.park(queue.name, parked, MISMATCH)
        transaction.delete(queue.name, done)
        return RowCounts(relayed, held, duplicate)

    def _end_refused(
        self,
        transaction: Transaction,
        queue: _Queue,
        ids: Sequence[int],
        error: StaleCall | BadArguments,
        step: _Step,
    ) -> None:
        """End a call that Redis refuses for good. Its rows stay in the inbox, and are sent again with a new call
        number.

        If Redis rejects the arguments of a call with one row, the row is parked.
        """
        if isinstance(error, StaleCall):
            step.says.append((SET_BACK, queue.name, _back(len(ids))))
        elif len(ids) == 1:
            transaction.park(queue.name, ids, str(error))
        else:
            queue.single += len(ids)

    def _again(
        self,
        transaction: Transaction,
        queue: _Queue,
        row: RelayRow,
        ids: list[int],
        of: Number,
        step: _Step,
    ) -> RowBatch:
        """Return the committed batch that has no answer yet, to be sent again under the same call number. Under another
        number, Redis could carry the batch out twice.

        A row that cannot be read any more is parked.
        """
        if row.taken_by != self.name:
            transaction.take(queue.name, self.name)
        jobs: dict[int, NewJob] = {}
        for each in transaction.load(queue.name, ids):
            try:
                jobs[each.id] = self._jobs.job(queue.name, each)
            except Unreadable as error:
                transaction.park(queue.name, [each.id], ALTERED.format(why=error))
                step.says.append(("queue %s: row %d is parked: %s", queue.name, each.id, error))
                # Its place in the batch stays. Put back by a person, the row does not belong to the batch.
                ids[ids.index(each.id)] = LEFT
                transaction.change(queue.name, ids)
        return RowBatch(of, [jobs.get(each) for each in ids])

    def _choose(
        self, transaction: Transaction, queue: _Queue, step: _Step, ended: RowCounts
    ) -> RowBatch | None:
        """Choose the rows of the next batch and write the batch to the database. Also add ``ended``, the counts of the
        preceding batch.

        Return None, and write no batch, if no row can be sent now. Rows that cannot become jobs are parked or deleted
        meanwhile.
        """
        ids: list[int] = []
        jobs: list[NewJob] = []
        # What is read for one call is all that a turn holds of rows that may be large.
        for _ in range(CALLS_MAX):
            is_full = self._fill(transaction, queue, step, ids, jobs)
            if not is_full or queue.single:
                break
        if not jobs:
            return None
        now = self._clock()
        if not queue.slot or abs(now - queue.drawn_at) >= DAY_S:
            queue.slot, queue.number = INBOX_SLOT + secrets.token_hex(16), 0
            queue.drawn_at = now
        # Counted up before it is written: whether a COMMIT without an answer has written it is unknown.
        queue.number += 1
        transaction.begin(queue.name, queue.slot, queue.number, ids, self.name, ended)
        return RowBatch(Number(queue.slot, queue.number), jobs)

    def _fill(
        self,
        transaction: Transaction,
        queue: _Queue,
        step: _Step,
        ids: list[int],
        jobs: list[NewJob],
    ) -> bool:
        """Add the rows of one more call to a batch. Return whether the call is full; then the batch may have a next
        call.
        """
        rows = transaction.choose(
            queue.name, 1 if queue.single else queue.most, ids[-1] if ids else 0
        )
        begin = len(jobs)
        size = 0
        for row in rows:
            size += len(row.args)
            try:
                job = self._job(transaction, queue.name, row)
            except PolicyNeeded as needed:
                step.needs.add(needed.task)
                break
            except Unreadable as error:
                transaction.park(queue.name, [row.id], str(error))
                step.says.append(("queue %s: row %d is parked: %s", queue.name, row.id, error))
                step.moved = True
                continue
            if job is None:
                step.moved = True
                continue
            ids.append(row.id)
            jobs.append(job)
        queue.most = _fitting(queue.most, len(rows), size)
        end = begin + self._client.calls.enqueue.fitting(jobs[begin:])
        del ids[end:], jobs[end:]
        return end - begin == sending.CALL_ROWS

    def _job(self, transaction: Transaction, name: str, row: InboxRow) -> NewJob | None:
        """Make the job of a row. Return None if another row has the job's id; the row is then deleted.

        If another program inserted the row, the relay first computes the job's options and stores them in the row, so
        that every relay makes the same job. Raise Unreadable or PolicyNeeded.
        """
        if row.packed is not None:
            return self._jobs.job(name, row)
        made = self._jobs.packed(name, row)
        job = self._jobs.job(name, made)
        if not transaction.pack(name, row, made.job_id, made.args, made.packed or ""):
            transaction.delete(name, [row.id])
            return None
        return job


def _shown(fact: Any) -> Any:
    """Prepare a value for the log: shorten a text, and escape its control characters."""
    return printable(shorten(fact, SHOWN_MAX)) if isinstance(fact, str) else fact


def _fitting(most: int, rows: int, size: int) -> int:
    """Return how many rows to read next, so that they fill about one call to Redis.

    ``most`` is the number before. The last read returned ``rows`` rows with ``size`` characters of arguments.
    """
    if size > 2 * ENQUEUE_CHUNK_BYTES:
        return max(1, rows * ENQUEUE_CHUNK_BYTES // size)
    return min(sending.CALL_ROWS, most * 2)
