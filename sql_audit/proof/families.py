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
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from heapq import heappop, heappush
from itertools import islice, takewhile
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection, bindparam, text

from rq_core.model.durable.children import CHILDREN_MAX, KEEP_MS
from rq_core.model.table.machine import Event
from sql_audit.proof.child_logs import MARGIN_MS, ChildLog, WholeLogs, logs_of, was_deleted
from sql_audit.proof.event_details import facts_in
from sql_audit.proof.launches import Launch, Launches, SavedItem, fill_queues, positions
from sql_audit.store.job_rows import EventRow

PASSES_MAX: Final = 1_000
"""Number of calls that claim jobs without waking a parked job that is due, from which on this is a violation. Fewer
calls prove nothing: a call wakes only the first 250 jobs and rates that are due, and the log does not show which rates
are due."""
CHUNK: Final = 500
"""Number of children that one query reads."""

_QUEUES: Final = text(
    "SELECT job_id, queue FROM job_event WHERE job_id IN :ids AND type = 'enqueued' ORDER BY at_ms"
).bindparams(bindparam("ids", expanding=True))
_ALL_QUEUES: Final = text("SELECT queue FROM mirror_cursor ORDER BY queue")
_AT: Final = text(
    "SELECT at_ms FROM job_event WHERE queue = :queue AND epoch = :epoch AND seq = :seq LIMIT 1"
)
Wrong = tuple[str, EventRow, str]
"""A violation: the number of the invariant, the event, and a phrase that continues a sentence about the event."""


class _Found(NamedTuple):
    """A contradiction between an event of a parent and the log of its child."""

    invariant: str
    row: EventRow
    """The event of the parent."""
    says: str
    """A phrase that continues a sentence about the event."""
    is_absence: bool = False
    """True if the child's log lacks an event. While its mirror is behind, every log lacks events."""
    is_by_time: bool = False
    """True if the events only have the wrong order, by the clocks of their servers. A clock that was set back may be
    the cause, also if no log shows that it was."""


class FamilyProof:
    """Checks the children of one queue's durable jobs. Call :meth:`feed` with all events of the queue, then
    :meth:`wrong`.
    """

    def __init__(self, queue: str) -> None:
        self._queue = queue
        self._launches = Launches()
        self._parked = ParkedParents(self._launches.parents)
        self._logs = WholeLogs()
        self.unproved: dict[tuple[str, str], tuple[EventRow, str]] = {}
        """By box id of a job and name of its launch (a call of ``map`` or ``run``): why nothing is proved about the
        children, and the event of the job that is not proved. Complete after :meth:`wrong`."""
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
        is_whole = self._logs.whole_upto(connection, self._queue) is not None
        if is_whole:
            # A whole log begins with its queue, so it has the begin of each launch.
            for row, says in (*self._parked.passed, *self._launches.impossible):
                yield "I25", row, says
            for launch in self._launches.values():
                for row, says in launch.beyond():
                    yield "I25", row, says
        children = positions(self._launches.values())
        while chunk := list(islice(children, CHUNK)):
            logs = logs_of(connection, [job_id for job_id, _, _ in chunk])
            for job_id, launch, index in chunk:
                by_queue = logs.get(job_id, {})
                item = launch.items.get(index)
                queue = launch.queues[index] if index < len(launch.queues) else None
                log = _log_of(by_queue, item) if queue is None else by_queue.get(queue)
                if item is not None and log is not None:
                    found = _item(job_id, item, log)
                    yield from self._judged(connection, launch, log.queue, found)
                if queue is not None:
                    found = self._child(connection, job_id, launch, index, log)
                    yield from self._judged(connection, launch, queue, found)
                elif by_queue and launch.is_unknown:
                    self._note(connection, job_id, launch, by_queue)
                elif (
                    # A step with a key may have the name of a result, but no child then has the computed id.
                    item is not None
                    and (launch.queues or (launch.has_none and log is not None))
                    and is_whole
                    and item.entry > launch.entry
                ):
                    count = len(launch.queues)
                    yield (
                        "I25",
                        item.row,
                        f"saves the result of child {index}, and there are {count}",
                    )

    def _judged(
        self, connection: Connection, launch: Launch, queue: str, found: Iterator[_Found]
    ) -> Iterator[Wrong]:
        """Yield the contradictions that are violations. Note those that the log of the children's queue does not
        prove.
        """
        upto_ms = self._logs.whole_upto(connection, queue)
        if upto_ms is None:
            return
        for invariant, row, says, is_absence, is_by_time in found:
            must_ms = row[5] + MARGIN_MS
            if (
                upto_ms <= must_ms
                and is_absence
                and self._logs.last_ms(connection, queue) <= must_ms
            ):
                continue  # The mirror is behind.
            if upto_ms <= must_ms and not is_absence:
                why = f"the log of queue {queue} ends at {upto_ms}, and later events may explain it"
                self._doubt(launch, row, f"{says}: {why}")
            elif is_by_time:
                self._doubt(launch, row, f"{says}, if the clocks of the servers were right")
            elif upto_ms > must_ms and self._logs.clocks_agree(connection, self._queue, queue):
                yield invariant, row, says
            else:
                why = f"a clock of these queues was set back by more than {MARGIN_MS // 1000} s"
                self._doubt(launch, row, f"{says}, if the times of the events are right: {why}")

    def _doubt(self, launch: Launch, row: EventRow, says: str) -> None:
        self.unproved.setdefault((launch.life, launch.name), (row, f"job {row[6]} {says}"))

    def _child(
        self, connection: Connection, child: str, launch: Launch, index: int, log: ChildLog | None
    ) -> Iterator[_Found]:
        """Compare the parent's events about one child with the child's log (I25: no child is lost)."""
        queue, row, join = launch.queues[index], launch.row, launch.join
        if row is None:
            return
        if log is None:
            says = f"has enqueued child {child}, which the log of queue {queue} does not have"
            yield _Found("I25", row, says, is_absence=True)
            return
        if join is not None and index not in launch.items:
            if not log.ends:
                says = f"says how all children have ended, and {child} has not"
                yield _Found("I25", join, says, is_absence=True)
            elif min(log.ends) > join[5] + MARGIN_MS:
                late_ms = min(log.ends) - join[5]
                says = f"says how all children have ended, and {child} ended {late_ms} ms later"
                yield _Found("I25", join, says, is_by_time=True)
            elif log.succeeded == len(log.ends) and self._was_known(connection, log, join):
                says = f"leaves out the result of child {child}, which has succeeded"
                yield _Found("I25", join, says)
        wait, ended_ms = launch.waits.get(index), log.ended_once_ms
        if wait is None or ended_ms is None or ended_ms + MARGIN_MS >= wait.row[5]:
            return
        # In a run that has enqueued the children itself, a flow waits for them before it reads their ends.
        fence = wait.fence
        if tuple(row[1:3]) < fence and self._logs.whole_upto(connection, self._queue) is not None:
            at = {"queue": self._queue, "epoch": fence.epoch, "seq": fence.seq}
            claimed_ms = connection.execute(_AT, at).scalar_one_or_none()
            if claimed_ms is not None and ended_ms + MARGIN_MS < claimed_ms:
                says = f"waits for child {child}, which has ended {claimed_ms - ended_ms} ms before the claim began"
                yield _Found("I25", wait.row, says)

    def _note(
        self, connection: Connection, child: str, launch: Launch, queues: Iterable[str]
    ) -> None:
        """Note that nothing is proved about a launch: the digest of its children's number and queues does not fit the
        children in the log. ``queues`` have a job with the id of ``child``.
        """
        row = launch.row
        upto_ms = max(self._logs.whole_upto(connection, queue) or 0 for queue in queues)
        # The log of another queue, with other children, may be behind.
        if row is not None and upto_ms > row[5] + MARGIN_MS:
            says = (
                f"map {launch.name} of job {row[6]} has child {child}, and its digest does not show which children it"
                " has: some are in a queue that this database lacks, or has only in part, or the digest was changed"
            )
            self.unproved.setdefault((launch.life, launch.name), (row, says))

    def _was_known(self, connection: Connection, log: ChildLog, join: EventRow) -> bool:
        """Return True if Redis still remembered a child's success when the parent saved the event ``join``, which says
        how its children ended.

        Redis remembers a job that a worker has run until KEEP_MS after the job's enqueue. Later, it forgets the success
        if it needs the room.
        """
        return (
            log.enqueued_ms is not None
            and join[5] - log.enqueued_ms < KEEP_MS - MARGIN_MS
            and self._logs.whole_upto(connection, self._queue) is not None
            and not was_deleted(connection, log.queue, min(log.ends), join[5])
        )

    def _find_queues(self, connection: Connection) -> None:
        """Find the queue of each child, for the launches whose children are all in the log. Store the queues in the
        launches.
        """
        launches = self._launches.unknown()
        # Several queues may have a job with the id of a child: a later run may have enqueued it in another queue.
        first: dict[str, list[str]] = {}
        for job_id, queue in _chunked(connection, _QUEUES, [each.child(0) for each in launches]):
            first.setdefault(job_id, []).append(queue)
        by_queue: dict[str, list[Launch]] = {}
        for launch in launches:
            for queue in first.get(launch.child(0), ()):
                by_queue.setdefault(queue, []).append(launch)
        for queue, found in by_queue.items():
            fill_queues([each for each in found if not each.queues], queue)
        for launch in launches:
            queues = first.get(launch.child(0))
            if queues and not launch.queues:
                self._find_mixed(connection, launch)
                if not launch.queues:
                    self._note(connection, launch.child(0), launch, queues)
        # The log may have lost the first child, or the children's queue is not in this database.
        absent = [each for each in launches if each.child(0) not in first]
        if absent:
            for queue in connection.execute(_ALL_QUEUES).scalars().all():
                if self._logs.whole_upto(connection, queue) is not None:
                    fill_queues([each for each in absent if not each.queues], queue)

    def _find_mixed(self, connection: Connection, launch: Launch) -> None:
        """Find the queues of a launch's children if they are in several queues, and store them in the launch."""
        queues: list[str] = []
        for first in range(0, CHILDREN_MAX, CHUNK):
            ids = [launch.child(first + n) for n in range(CHUNK)]
            # If several queues have an id, the last run that enqueued the children has enqueued them last.
            found = dict(_chunked(connection, _QUEUES, ids))
            queues += takewhile(bool, [found.get(each, "") for each in ids])
            if len(queues) < first + CHUNK:
                break
        if launch.fits(queues):
            launch.queues = queues


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


def _log_of(by_queue: Mapping[str, ChildLog], item: SavedItem | None) -> ChildLog | None:
    """Return the log of a child whose queue is unknown, from those of all jobs with its id. If there are several, only
    one with a success that fits the saved result is returned, or None.
    """
    if len(by_queue) > 1:
        fits = (each for each in by_queue.values() if item is not None and each.has(item.digest))
        return next(fits, None)
    return next(iter(by_queue.values()), None)


def _item(child: str, item: SavedItem, log: ChildLog) -> Iterator[_Found]:
    """Check that a child has succeeded with the result that its parent has saved (I24)."""
    row, digest = item.row, item.digest
    first_ms = log.first_success_ms if digest is None else log.digests.get(digest)
    if first_ms is not None:
        if first_ms > row[5] + MARGIN_MS:
            late_ms = first_ms - row[5]
            says = f"saves the result of child {child}, which succeeded {late_ms} ms later"
            yield _Found("I24", row, says, is_by_time=True)
    elif log.succeeded:
        says = f"saves digest {digest}, and child {child} did not succeed with it"
        yield _Found("I24", row, says)
    else:
        says = f"saves the result of child {child}, which did not succeed"
        yield _Found("I24", row, says, is_absence=True)


def _chunked(connection: Connection, query: Any, ids: Sequence[str]) -> Iterator[Any]:
    for first in range(0, len(ids), CHUNK):
        yield from connection.execute(query, {"ids": ids[first : first + CHUNK]})
