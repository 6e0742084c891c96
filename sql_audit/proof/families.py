"""Checks durable jobs and their children, across the logs of their queues. (A durable job, the parent, enqueues
children and waits for their ends.)

- I24: if a job has saved a child's result, this child has succeeded with this result.
- I25: no child is lost. Each child that a job has enqueued is in the log of its queue. When a job saves how its
  children have ended, all its children have ended, and the job has saved the result of each child that succeeded. A job
  does not wait for a child that has ended, or that it has not enqueued. A parked job that is due is woken (see
  :class:`ParkedParents`).

A fork is a copy of a job, its origin, and has copies of the results of its origin's children. These results are
compared only if the log has the value of the fork's entry for the ``map``: this value names the origin's box of saved
steps.

Nothing is proved about a child if the log of the child's queue has gaps, or is not in this database. Some checks also
need the parent's complete log: they are left out if that log has gaps.

A job enqueues children in launches (calls of ``map`` or ``run``). If the number and the queues of a launch's children
are unknown, and a complete log has one of the children, a note is added. Either SQL was changed, or other children are
in a queue whose log is not in this database or has gaps.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import islice, takewhile
from typing import Any, Final

from sqlalchemy import Connection, bindparam, text

from rq_core.model.durable.children import CHILDREN_MAX, KEEP_MS
from rq_core.model.table.effects import target
from rq_core.model.table.machine import Event, State
from sql_audit.proof.event_details import facts_in
from sql_audit.proof.launches import Launch, Launches, SavedItem, fill_queues, positions
from sql_audit.store.job_rows import EventRow

MARGIN_MS: Final = 60_000
"""Assumed maximum difference in ms between the clocks of two Redis servers.

A child's log may lack an event that must come before an event of its parent. This is a fault only if the child's log
continues for more than this many ms after the parent's event."""
PASSES_MAX: Final = 1_000
"""Number of calls that claim jobs without waking a parked job that is due, from which on this is a violation. Fewer
calls prove nothing: a call wakes only the first 250 jobs and rates that are due, and the log does not show which rates
are due."""
CHUNK: Final = 500
"""Number of children that one query reads."""

_ENDS: Final = ("succeeded", "died", "cancelled", "expired", "pruned", "removed", "replaced")
_CHILDREN: Final = text(
    "SELECT job_id, queue, type, at_ms, detail FROM job_event WHERE job_id IN :ids AND type IN :types"
    " ORDER BY queue, epoch, seq, ordinal"
).bindparams(
    bindparam("ids", expanding=True),
    bindparam("types", ("enqueued", "requeued", "lease_expired", *_ENDS), expanding=True),
)
_QUEUES: Final = text(
    "SELECT job_id, queue FROM job_event WHERE job_id IN :ids AND type = 'enqueued'"
).bindparams(bindparam("ids", expanding=True))
_ALL_QUEUES: Final = text("SELECT queue FROM mirror_cursor ORDER BY queue")
_WHOLE: Final = text(
    "SELECT c.at_ms FROM mirror_cursor c WHERE c.queue = :queue"
    " AND NOT EXISTS (SELECT 1 FROM mirror_loss l WHERE l.queue = c.queue)"
    " AND NOT EXISTS (SELECT 1 FROM mirror_prune p WHERE p.queue = c.queue)"
    " AND NOT EXISTS (SELECT 1 FROM quarantine q WHERE q.queue = c.queue)"
    " AND (SELECT COUNT(*) FROM mirror_epoch e WHERE e.queue = c.queue) = 1"
)
_DELETED: Final = text(
    "SELECT 1 FROM job_event WHERE job_id IS NULL AND queue = :queue AND type = 'queue_deleted' LIMIT 1"
)
_AT: Final = text(
    "SELECT at_ms FROM job_event WHERE queue = :queue AND epoch = :epoch AND seq = :seq LIMIT 1"
)
_SET_BACK: Final = text(
    "SELECT 1 FROM (SELECT at_ms, LAG(at_ms) OVER (ORDER BY epoch, seq, ordinal) AS before_ms FROM job_event"
    " WHERE queue = :queue) AS events WHERE at_ms < before_ms - :margin LIMIT 1"
)

Wrong = tuple[str, EventRow, str]
"""A violation: the number of the invariant, the event, and a phrase that continues a sentence about the event."""


@dataclass(slots=True)
class ChildLog:
    """The events of one child in the log of the child's queue."""

    queue: str
    begun: int = 0
    """Number of times that the child was enqueued or requeued."""
    ends: list[int] = field(default_factory=list)
    """Unix ms of each end of the child."""
    succeeded: int = 0
    """How many of the ends in ``ends`` are successes."""
    digests: dict[Any, int] = field(default_factory=dict)
    """The Unix ms at which the child first succeeded with a result, by the digest of the result."""

    def add(self, kind: str, at_ms: int, detail: str | None) -> None:
        """Add an event of the child."""
        if kind in (Event.ENQUEUED, Event.REQUEUED):
            self.begun += 1
        elif kind == Event.SUCCEEDED:
            self.ends.append(at_ms)
            self.succeeded += 1
            self.digests.setdefault(facts_in(detail).get("value_digest"), at_ms)
        elif target(Event(kind), facts_in(detail)) in (None, State.DEAD):
            self.ends.append(at_ms)

    @property
    def ended_once_ms(self) -> int | None:
        """Unix ms of the child's end. None if it has not ended, has ended more than once, or was requeued."""
        return self.ends[0] if self.begun == len(self.ends) == 1 else None


class FamilyProof:
    """Checks the children of one queue's durable jobs. Call :meth:`feed` with all events of the queue, then
    :meth:`wrong`.
    """

    def __init__(self, queue: str) -> None:
        self._queue = queue
        self._launches = Launches()
        self._parked = ParkedParents(self._launches.parents)
        self._whole: dict[str, int | None] = {}
        """By queue: the time (Unix ms) up to which SQL has every event of the queue; None if SQL may lack events."""
        self._set_back: dict[str, bool] = {}
        """By queue: True if the clock of its Redis server was set back by more than MARGIN_MS."""
        self.unproved: dict[tuple[str, str], tuple[EventRow, str]] = {}
        """By box id of a job and name of its launch (a call of ``map`` or ``run``): why nothing is proved about the
        children, and the event that says that all of them are enqueued. Complete after :meth:`wrong`."""
        read, parked = self._launches.read, self._parked
        self._steps: dict[str, Callable[[EventRow], None]] = {
            "step_saved": read,
            "step_begun": read,
            "parked": parked.park,
            "claimed": parked.claim,
            **dict.fromkeys(("woken", "promoted", "expired", "cancelled", "removed"), parked.move),
        }

    def feed(self, events: Sequence[EventRow]) -> None:
        """Read the events of the queue, in order."""
        steps = self._steps
        for row in events:
            if row[4] in steps:
                steps[row[4]](row)

    def wrong(self, connection: Connection) -> Iterator[Wrong]:
        """Yield each event of the queue that violates I24 or I25, judged by the logs of the children's queues, too."""
        self._find_queues(connection)
        is_whole = self._whole_upto(connection, self._queue) is not None
        if is_whole:
            for row, says in (*self._parked.passed, *self._launches.impossible):
                yield "I25", row, says
            for launch in self._launches.values():
                for row, says in launch.beyond():
                    yield "I25", row, says
        children = positions(self._launches.values())
        while chunk := list(islice(children, CHUNK)):
            logs = _logs_of(connection, [job_id for job_id, _, _ in chunk])
            for job_id, launch, index in chunk:
                log = logs.get(job_id)
                queue = launch.queues[index] if index < len(launch.queues) else None
                if log is not None and queue in (None, log.queue):
                    yield from self._item(connection, job_id, launch.items.get(index), log)
                if queue is not None:
                    for wrong in self._child(connection, job_id, launch, index, log):
                        if self._clocks_agree(connection, queue):
                            yield wrong
                elif log is not None and launch.is_unknown:
                    self._note(connection, job_id, launch, log.queue)
                elif (
                    # A step with a key may have the name of a result, but no child then has the computed id.
                    (launch.queues or (launch.has_none and log is not None))
                    and is_whole
                    and launch.items[index].entry > launch.entry
                ):
                    count = len(launch.queues)
                    row = launch.items[index].row
                    yield "I25", row, f"saves the result of child {index}, and there are {count}"

    def _item(
        self, connection: Connection, child: str, item: SavedItem | None, log: ChildLog
    ) -> Iterator[Wrong]:
        """Check that a child has succeeded with the result that its parent has saved (I24)."""
        upto_ms = self._whole_upto(connection, log.queue)
        if item is None or item.digest is None or upto_ms is None:
            return
        first_ms = log.digests.get(item.digest)
        if first_ms is not None:
            if first_ms > item.row[5] + MARGIN_MS and self._clocks_agree(connection, log.queue):
                late_ms = first_ms - item.row[5]
                says = f"saves the result of child {child}, which succeeded {late_ms} ms later"
                yield "I24", item.row, says
        elif log.succeeded:
            says = f"saves digest {item.digest}, and child {child} did not succeed with it"
            yield "I24", item.row, says
        elif upto_ms > item.row[5] + MARGIN_MS:
            yield "I24", item.row, f"saves the result of child {child}, which did not succeed"

    def _child(
        self, connection: Connection, child: str, launch: Launch, index: int, log: ChildLog | None
    ) -> Iterator[Wrong]:
        """Check the parent's events about one child against the child's log (I25: no child is lost)."""
        queue, row, join = launch.queues[index], launch.row, launch.join
        upto_ms = self._whole_upto(connection, queue)
        if upto_ms is None or row is None:
            return
        if log is None or log.queue != queue:
            if upto_ms > row[5] + MARGIN_MS:
                says = f"has enqueued child {child}, which the log of queue {queue} does not have"
                yield "I25", row, says
            return
        if join is not None and index not in launch.items:
            if not any(at_ms <= join[5] + MARGIN_MS for at_ms in log.ends):
                if upto_ms > join[5] + MARGIN_MS:
                    yield "I25", join, f"says how all children have ended, and {child} has not"
            elif log.succeeded == len(log.ends) and self._was_known(connection, log, join):
                yield "I25", join, f"leaves out the result of child {child}, which has succeeded"
        wait, ended_ms = launch.waits.get(index), log.ended_once_ms
        if wait is None or ended_ms is None or ended_ms + MARGIN_MS >= wait.row[5]:
            return
        # In a run that has enqueued the children itself, a flow waits for them before it reads their ends.
        fence = wait.fence
        if tuple(row[1:3]) < fence and self._whole_upto(connection, self._queue) is not None:
            at = {"queue": self._queue, "epoch": fence.epoch, "seq": fence.seq}
            claimed_ms = connection.execute(_AT, at).scalar_one_or_none()
            if claimed_ms is not None and ended_ms + MARGIN_MS < claimed_ms:
                says = f"waits for child {child}, which has ended {claimed_ms - ended_ms} ms before the claim began"
                yield "I25", wait.row, says

    def _note(self, connection: Connection, child: str, launch: Launch, queue: str) -> None:
        """Note that nothing is proved about a launch: the digest of its children's number and queues does not fit the
        children in the log.
        """
        row, upto_ms = launch.row, self._whole_upto(connection, queue)
        # The log of another queue, with other children, may be behind.
        if row is not None and upto_ms is not None and upto_ms > row[5] + MARGIN_MS:
            says = (
                f"map {launch.name} of job {row[6]} has child {child}, and its digest does not show which children it"
                " has: some are in a queue that this database lacks, or has only in part, or the digest was changed"
            )
            self.unproved.setdefault((launch.life, launch.name), (row, says))

    def _was_known(self, connection: Connection, log: ChildLog, join: EventRow) -> bool:
        """Return True if Redis certainly still remembered a child's success when the parent saved the event ``join``,
        which says how its children ended.
        """
        return (
            join[5] - min(log.ends) < KEEP_MS - MARGIN_MS
            and self._whole_upto(connection, self._queue) is not None
            and connection.execute(_DELETED, {"queue": log.queue}).scalar_one_or_none() is None
        )

    def _find_queues(self, connection: Connection) -> None:
        """Find the queue of each child, for the launches whose children are all in the log. Store the queues in the
        launches.
        """
        launches = self._launches.unknown()
        first = dict(_chunked(connection, _QUEUES, [launch.child(0) for launch in launches]))
        by_queue: dict[str, list[Launch]] = {}
        absent: list[Launch] = []
        for launch in launches:
            queue = first.get(launch.child(0))
            (absent if queue is None else by_queue.setdefault(queue, [])).append(launch)
        for queue, found in by_queue.items():
            fill_queues(found, queue)
            for launch in found:
                if not launch.queues:
                    self._find_mixed(connection, launch)
                if not launch.queues:
                    self._note(connection, launch.child(0), launch, queue)
        # The log may have lost the first child, or the children's queue is not in this database.
        if absent:
            for queue in connection.execute(_ALL_QUEUES).scalars().all():
                if self._whole_upto(connection, queue) is not None:
                    fill_queues([each for each in absent if not each.queues], queue)

    def _find_mixed(self, connection: Connection, launch: Launch) -> None:
        """Find the queues of a launch's children if they are in several queues, and store them in the launch."""
        queues: list[str] = []
        for first in range(0, CHILDREN_MAX, CHUNK):
            ids = [launch.child(first + n) for n in range(CHUNK)]
            found = dict(_chunked(connection, _QUEUES, ids))
            queues += takewhile(bool, [found.get(each, "") for each in ids])
            if len(queues) < first + CHUNK:
                break
        if launch.fits(queues):
            launch.queues = queues

    def _clocks_agree(self, connection: Connection, queue: str) -> bool:
        """Return whether the times of the events in ``queue`` can be compared with those in the parents' queue.

        This reads both logs, so it is called only to confirm a violation.
        """
        for each in (self._queue, queue):
            if each not in self._set_back:
                values = {"queue": each, "margin": MARGIN_MS}
                found = connection.execute(_SET_BACK, values).scalar_one_or_none()
                self._set_back[each] = found is not None
        return not self._set_back[self._queue] and not self._set_back[queue]

    def _whole_upto(self, connection: Connection, queue: str) -> int | None:
        if queue not in self._whole:
            self._whole[queue] = connection.execute(_WHOLE, {"queue": queue}).scalar_one_or_none()
        return self._whole[queue]


class ParkedParents:
    """Finds parked jobs that have children and are due, but are not woken. (A parked job waits without a claim.)

    Each call that claims jobs first wakes the parked jobs that are due, the oldest first. So if a call claims jobs, but
    has woken and promoted no job, it passes over each parked job that is due.
    """

    def __init__(self, parents: Container[str]) -> None:
        self.passed: list[tuple[EventRow, str]] = []
        """Pairs (event, sentence), one for each job that was not woken. The event is the PASSES_MAX-th claim that
        passed over it."""
        self._parents = parents
        self._parked: dict[str, tuple[int, int]] = {}
        """The outbox entry (epoch, seq) with which each job was parked, by the job's id."""
        self._due: list[tuple[int, int, int, str]] = []
        """A heap of the parked jobs. Each item has the Unix ms at which the job is due, the number (epoch, seq) of the
        entry that parked the job, and the job's id."""
        self._late: deque[tuple[int, int, tuple[int, int], str]] = deque()
        """The parked jobs that are due. Each item has the value of ``_passes`` when the job became due, the Unix ms at
        which it was due, the entry that parked it, and its id."""
        self._passes = 0
        """Number of calls so far that claimed jobs, but woke and promoted no job."""
        self._swept_ms = -1
        self._claimed: tuple[int, int] = (0, 0)

    def park(self, row: EventRow) -> None:
        """Note the event ``parked`` of a job with children."""
        if row[6] not in self._parents:
            return
        with suppress(ValueError):
            due_ms = facts_in(row[10]).get("due_ms")
            if type(due_ms) is int:
                self._parked[row[6]] = row[1], row[2]
                heappush(self._due, (due_ms, row[1], row[2], row[6]))

    def move(self, row: EventRow) -> None:
        """Note an event that shows that a call woke or promoted a job, or that a job's wait has ended."""
        self._swept_ms = row[5]
        if row[4] != Event.PROMOTED:
            self._parked.pop(row[6], None)

    def claim(self, row: EventRow) -> None:
        """Count a claim that came without waking a job, and note each due job that was passed over for the
        PASSES_MAX-th time.
        """
        if not self._parked or self._swept_ms == row[5] or self._claimed == (row[1], row[2]):
            return
        self._claimed = row[1], row[2]
        while self._due and self._due[0][0] <= row[5]:
            due_ms, *at, job_id = heappop(self._due)
            self._late.append((self._passes, due_ms, (at[0], at[1]), job_id))
        self._passes += 1
        while self._late and (
            self._parked.get(self._late[0][3]) != self._late[0][2]
            or self._passes - self._late[0][0] >= PASSES_MAX
        ):
            _, due_ms, event, job_id = self._late.popleft()
            if self._parked.get(job_id) == event:
                says = f"passes over job {job_id}, which waits for its children until {due_ms}"
                self.passed.append((row, says))


def _logs_of(connection: Connection, ids: Sequence[str]) -> dict[str, ChildLog]:
    """Return the events of these children, by the child's id.

    If several queues have a job with the same id, only the last queue counts: a producer must have chosen the id of a
    child on purpose.
    """
    found: dict[str, ChildLog] = {}
    for job_id, queue, kind, at_ms, detail in connection.execute(_CHILDREN, {"ids": ids}):
        if job_id not in found or found[job_id].queue != queue:
            found[job_id] = ChildLog(queue)
        with suppress(KeyError, ValueError, TypeError, AttributeError, RecursionError):
            # The replay of the child's queue reports an event that cannot be read.
            found[job_id].add(kind, at_ms, detail)
    return found


def _chunked(connection: Connection, query: Any, ids: Sequence[str]) -> Iterator[Any]:
    for first in range(0, len(ids), CHUNK):
        yield from connection.execute(query, {"ids": ids[first : first + CHUNK]})
