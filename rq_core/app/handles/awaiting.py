"""Waits for the ends of jobs, with or without an event loop. A wait asks Redis, and then the audit log. The generator
:meth:`Ends.steps` yields the steps of a wait; the drivers :func:`each` and :func:`each_async` carry them out."""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections import deque
from collections.abc import (
    AsyncIterator,
    Callable,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, Protocol, TypeVar

from rq_core.app.clients import in_event_loop
from rq_core.app.handlers.context import job_here
from rq_core.app.handles.log_reader import BackgroundLogReader, LogReading
from rq_core.errors import RqCoreError, WaitRefused, WaitTimeout
from rq_core.model.lib.durations import Duration, seconds_of
from rq_core.model.outcome import NOT_JSON, Gone, Kept, Outcome, Succeeded
from rq_core.protocol.reads.result_reads import Absent
from rq_core.protocol.reads.wait_schedule import JobWait, Nothing, Told

if TYPE_CHECKING:
    import asyncio

    from rq_core.app.producer import Producer

GRACE_S: Final = 2.0
"""Seconds after the timeout in which the wait still accepts the answer to its last read."""
_WHY_ROW: Final = {
    "inbox": "its row is still in the inbox: check that a relay runs (`rq-core inbox run`) for that database",
    "parked": "its row is parked: `rq-core inbox parked` shows why",
    "": "the database of the inbox has not answered: check that it runs and can be reached",
}
"""Why a job that is still a row of an inbox has not ended, by the row's place. Empty: the database has not answered."""
LOG_PAUSES_S: Final = (0.05, 0.1, 0.2, 0.5)
"""Seconds between successive reads of the log, or of the inbox. After the last value, the pause stays the same."""
_OF_PARENTS: Final[list[BackgroundLogReader]] = []
"""Audit log readers that a forked child inherited. It does not close them: this would end the parent's connection."""


class Awaited(Protocol):
    """The attributes of a handle that a wait reads and sets."""

    id: str
    queue: str
    seen: Outcome[Any] | None
    """The outcome of the job; None until a wait has found it."""
    may_be_in_inbox: bool
    """True if the job may still be a row of an inbox, a table of jobs in the user's database, and not yet in Redis."""


H = TypeVar("H", bound=Awaited)


class Until(NamedTuple):
    """A step of a wait: sleep until a thread calls ``notify``, or until ``at``, in seconds of the wait's clock."""

    at: float


class ReadLog(NamedTuple):
    """A step of a wait: read from the audit log how jobs of a queue ended. The driver of the wait sends back the
    outcomes by job id, or an RqCoreError. ``jobs`` maps a job's id to a position in the queue's log: the numbers of its
    unbroken history (epoch) and of the event (seq). The log has the job's end once it has all events up to it."""

    queue: str
    jobs: Mapping[str, tuple[int, int]]
    by: float
    """Latest time of the answer, in seconds of the wait's clock."""


class LookInInbox(NamedTuple):
    """A step of a wait: find the rows of a queue's jobs in the inbox, a table in the user's database. The driver of the
    wait sends back the places of the rows, ``inbox`` or ``parked``, by job id, or an RqCoreError if the read fails."""

    queue: str
    ids: Sequence[str]
    by: float
    """Latest time of the answer, in seconds of the wait's clock."""


class Ended(NamedTuple, Generic[H]):
    """A step of a wait: report that a job has ended. The driver of the wait yields this object to its caller."""

    handle: H
    outcome: Outcome[Any]


Steps = Generator[Until | ReadLog | LookInInbox | Ended[H], Any, None]


class Ends(Generic[H]):
    """One wait for the ends of jobs. A forked child may continue its parent's wait, but must first call ``begin``."""

    def __init__(self, producer: Producer, handles: Iterable[H], seconds: float) -> None:
        self._producer = producer
        self._waiter = producer.connections.waiter
        self.clock = self._waiter.clock
        self._seconds = seconds
        self._deadline = self.clock() + seconds
        self._pid: int | None = None
        """Id of the process that called ``begin`` last; None before the first call."""
        self._news: deque[tuple[H, Told]] = deque()
        self._waits: dict[H, JobWait] = {}
        self._missing: dict[H, tuple[int, int]] = {}
        """By handle of a job that has left Redis: the position (epoch, seq) up to which the log must be read."""
        self._alive: dict[H, RqCoreError | None] = {}
        """The handles of jobs not ended at the timeout, with the error if the job could not be read, or else None."""
        self._known: dict[H, Outcome[Any]] = {}
        """The outcomes that Redis keeps of jobs that have left it, by handle. The audit log may also have results."""
        self._waiting_rows: dict[H, str] = {}
        """The handles of jobs that are not in Redis, and may be rows of the inbox, with the place that the last read
        found, ``inbox`` or ``parked``. The place is empty before the first read, and after a read that failed."""
        self._rows_left: set[H] = set()
        """The handles of jobs that have no row in the inbox. The wait does not look for them there again."""
        self._rows_looks = 0
        self._rows_at = 0.0
        self._notify: Callable[[], None] = lambda: None
        self._heard_at = -math.inf
        """Time of Redis' last answer about a job, in seconds of ``clock``."""
        self._log_looks = 0
        self._log_at = 0.0
        self._log_trouble: RqCoreError | None = None
        self._rows_trouble: RqCoreError | None = None
        """The reason why the last read of the inbox failed."""
        self._reader: BackgroundLogReader | None = None
        self._left = dict.fromkeys(handles)
        """The handles whose jobs have not ended yet, in the order given."""
        self._seen = {handle: handle.seen for handle in self._left if handle.seen is not None}
        """The outcomes that earlier waits have already found for the handles of this wait."""

    @property
    def has_begun(self) -> bool:
        """True if this process has called ``begin``. False in a child that was forked after the call."""
        return self._pid == os.getpid()

    def begin(self, notify: Callable[[], None]) -> None:
        """Begin to wait in this process. Another thread calls ``notify`` when there is an answer about a job."""
        self._leave_parents_reader()
        self._pid = os.getpid()
        self._notify = notify
        # A child reads again what its parent had been notified of.
        self._news.clear()
        told = {*self._seen, *self._missing, *self._alive, *self._waiting_rows}
        # All in one call: otherwise this thread and the waiter's thread would compete for the lock at each job.
        self._waiter.begin(*(self._wait_for(h, notify) for h in self._left if h not in told))

    def steps(self) -> Steps[H]:
        """Yield the steps of the wait until all jobs have ended. Raises WaitTimeout, and the errors of reads."""
        for handle, outcome in self._seen.items():
            yield self._ended(handle, outcome)
        while self._left:
            if self._news:
                self._heard_at = self.clock()
            while self._news:
                yield from self._hear(*self._news.popleft())
            if self._missing and self.clock() >= self._log_at:
                yield from self._read_log()
            if self._waiting_rows and self.clock() >= self._rows_at:
                yield from self._look_in_inbox()
            if not self._left or self._news:
                continue
            known = len(self._alive) + len(self._missing) + len(self._waiting_rows)
            if self._alive and known == len(self._left):
                raise self._timed_out(next(iter(self._alive.values())))
            looked = self._rows_trouble is not None or all(self._waiting_rows.values())
            is_told = self._missing or (known == len(self._left) and looked)
            last = self._deadline + (0 if is_told else GRACE_S)
            if self.clock() >= last and self._known:
                for handle, outcome in self._known.items():
                    del self._missing[handle]
                    yield self._ended(handle, outcome)
                self._known.clear()
                continue
            if self.clock() >= last:
                raise self._timed_out(self._unanswered())
            log_at = self._log_at if self._missing else last
            yield Until(min(last, log_at, self._rows_at if self._waiting_rows else last))

    def close(self) -> None:
        """End the wait, and close the reader of the log."""
        for wait in self._waits.values():
            wait.over = True
        self._leave_parents_reader()
        if self._reader is not None:
            self._reader.close()

    def _leave_parents_reader(self) -> None:
        if self._reader is not None and not self.has_begun:
            _OF_PARENTS.append(self._reader)
            self._reader = None

    def begin_reading(self, step: ReadLog | LookInInbox, notify: Callable[[], None]) -> LogReading:
        """Begin, in another thread, the read of the audit log (for ReadLog) or of the inbox (for LookInInbox)."""
        if isinstance(step, LookInInbox):
            from rq_core.app.handles.inbox_look import begin_look

            assert self._producer.inbox_url is not None
            return begin_look(self._producer.inbox_url, step.queue, step.ids, notify)
        if self._reader is None:
            assert self._producer.audit_url is not None
            self._reader = BackgroundLogReader(self._producer.audit_url)
        return self._reader.begin(step.queue, step.jobs, notify)

    def _wait_for(self, handle: H, notify: Callable[[], None]) -> JobWait:
        def tell(told: Told) -> None:
            self._news.append((handle, told))
            notify()

        wait = self._waits[handle] = JobWait(handle.queue, handle.id, self._deadline, tell)
        return wait

    def _hear(self, handle: H, told: Told) -> Iterator[Ended[H]]:
        if isinstance(told, Outcome):
            yield self._ended(handle, told)
        elif isinstance(told, Absent):
            if told.known is None and self._may_be_row(handle):
                self._waiting_rows[handle] = ""
                self._rows_at = 0.0
            elif self._producer.audit_url is None:
                yield self._ended(handle, told.known or Gone(handle.id))
            else:
                # Redis may have forgotten that a mirror reads the queue: read the log, however far it has come.
                self._missing[handle] = told.logged or (0, 0)
                self._log_at = 0.0
                if told.known is not None:
                    self._known[handle] = told.known
        elif told is Nothing.ALIVE:
            self._alive[handle] = None
        elif told is self._waits[handle].trouble:
            self._alive[handle] = told
        else:
            assert isinstance(told, RqCoreError)
            raise told

    def _may_be_row(self, handle: H) -> bool:
        """Return whether a job that is not in Redis may be a row of an inbox (a table in the user's database)."""
        return (
            handle.may_be_in_inbox
            and self._producer.inbox_url is not None
            and handle not in self._rows_left
        )

    def _look_in_inbox(self) -> Steps[H]:
        """Look for the jobs in the inbox. For jobs that are no longer there, begin to wait in Redis."""
        by_queue: dict[str, list[H]] = {}
        for handle in self._waiting_rows:
            by_queue.setdefault(handle.queue, []).append(handle)
        by = max(self._deadline, self.clock()) + GRACE_S
        for queue, handles in by_queue.items():
            told = yield LookInInbox(queue, [handle.id for handle in handles], by)
            if isinstance(told, RqCoreError):
                self._waiting_rows |= dict.fromkeys(handles, "")
                # A look that was late has an error of its own, which says nothing of the database.
                self._rows_trouble = None if type(told) is RqCoreError else told
                continue
            self._waiting_rows |= {h: told[h.id] for h in handles if h.id in told}
            left = [handle for handle in handles if handle.id not in told]
            for handle in left:
                del self._waiting_rows[handle]
            self._rows_left.update(left)
            self._waiter.begin(*(self._wait_for(handle, self._notify) for handle in left))
        self._rows_looks += 1
        pause = LOG_PAUSES_S[min(self._rows_looks, len(LOG_PAUSES_S)) - 1]
        self._rows_at = self.clock() + pause

    def _read_log(self) -> Steps[H]:
        by_queue: dict[str, dict[str, tuple[int, int]]] = {}
        for handle, upto in self._missing.items():
            by_queue.setdefault(handle.queue, {})[handle.id] = upto
        self._log_trouble = None
        by = max(self._deadline, self.clock()) + GRACE_S
        for queue, jobs in by_queue.items():
            told = yield ReadLog(queue, jobs, by)
            if isinstance(told, RqCoreError):
                self._log_trouble = told
                continue
            for handle in [h for h in self._missing if h.queue == queue and h.id in told]:
                del self._missing[handle]
                known, outcome = self._known.pop(handle, None), told[handle.id]
                has_value = isinstance(outcome, Succeeded) and outcome.missing is None
                yield self._ended(handle, outcome if has_value else known or outcome)
        self._log_looks += 1
        pause = LOG_PAUSES_S[min(self._log_looks, len(LOG_PAUSES_S)) - 1]
        self._log_at = self.clock() + pause

    def _ended(self, handle: H, outcome: Outcome[Any]) -> Ended[H]:
        self._left.pop(handle, None)
        outcome = handle.seen = self._loaded(outcome)
        return Ended(handle, outcome)

    def _loaded(self, outcome: Outcome[Any]) -> Outcome[Any]:
        """Return the outcome with the result in its task's type, or in JSON's types if this app lacks the task."""
        if not isinstance(outcome, Succeeded) or not isinstance(outcome.kept, Kept):
            return outcome
        value, task = outcome.kept
        returned = self._producer.returned_of(task)
        try:
            return replace(
                outcome, kept=json.loads(value) if returned is None else returned.load(value)
            )
        except Exception:  # noqa: BLE001 - also an error of the task's own validator
            return replace(outcome, kept=None, missing=NOT_JSON)

    def _unanswered(self) -> RqCoreError | None:
        """Return an error if, at the timeout, Redis has not answered about every job; else None."""
        for wait in map(self._waits.__getitem__, self._left):
            if wait.trouble is not None:
                return wait.trouble
            if not wait.over and not (wait.place and wait.looks):
                if self._heard_at >= self._deadline:
                    return RqCoreError("there was no time to look at all jobs: wait longer")
                return RqCoreError("Redis has not answered: does it run, and can it be reached?")
        return None

    def _timed_out(self, trouble: RqCoreError | None) -> WaitTimeout:
        handle = next(iter(self._left))
        many = f"{len(self._left):,} of the jobs have" if len(self._left) > 1 else "has"
        what = f"job {handle.id} {many} not ended" if many == "has" else f"{many} not ended"
        why = "wait again, or cancel what is no longer wanted"
        if (where := self._waiting_rows.get(handle)) is not None:
            why, trouble = _WHY_ROW[where], trouble if where else self._rows_trouble or trouble
        if handle in self._missing:
            trouble = self._log_trouble
            what = f"job {handle.id} has ended, but the audit database did not tell how"
            why = "the mirror is behind: does `rq-core audit run` work?"
        if trouble is not None:
            why = str(trouble).rstrip(".?")
        error = WaitTimeout(what=what, seconds=self._seconds, why=why, id=handle.id)
        error.__cause__ = trouble
        return error


def each(producer: Producer, handles: Iterable[H], seconds: float) -> Iterator[Ended[H]]:
    """Yield each job's handle and outcome when the job ends. Blocks. Raises WaitTimeout."""
    import threading

    news = threading.Event()
    ends = Ends(producer, handles, seconds)
    steps, answer = ends.steps(), None
    try:
        while True:
            if not ends.has_begun:
                # In a forked child: another thread of the parent may have held the lock of the parent's event.
                news = threading.Event()
                ends.begin(news.set)
            try:
                step = steps.send(answer)
            except StopIteration:
                return
            answer = None
            if isinstance(step, Ended):
                yield step
            elif isinstance(step, ReadLog | LookInInbox):
                reading = ends.begin_reading(step, news.set)
                while not reading.is_done and (left := step.by - ends.clock()) > 0:
                    news.wait(left)
                    news.clear()
                answer = reading.answer()
            else:
                news.wait(max(0.0, step.at - ends.clock()))
                news.clear()
    finally:
        ends.close()


async def each_async(
    producer: Producer, handles: Iterable[H], seconds: float
) -> AsyncIterator[Ended[H]]:
    """Yield each job's handle and outcome when the job ends, without blocking the event loop. Raises WaitTimeout."""
    import asyncio

    news = asyncio.Event()
    notify = news.set
    ends = Ends(producer, handles, seconds)
    steps, answer = ends.steps(), None
    try:
        while True:
            if not ends.has_begun:
                news = asyncio.Event()
                notify = _notifier(asyncio.get_running_loop(), news)
                ends.begin(notify)
            try:
                step = steps.send(answer)
            except StopIteration:
                return
            answer = None
            if isinstance(step, Ended):
                yield step
            elif isinstance(step, ReadLog | LookInInbox):
                reading = ends.begin_reading(step, notify)
                while not reading.is_done and (left := step.by - ends.clock()) > 0:
                    await _wait(news, left)
                answer = reading.answer()
            else:
                await _wait(news, max(0.0, step.at - ends.clock()))
    finally:
        ends.close()


async def _wait(news: asyncio.Event, seconds: float) -> None:
    import asyncio

    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await news.wait()
    news.clear()


def _notifier(loop: asyncio.AbstractEventLoop, news: asyncio.Event) -> Callable[[], None]:
    def notify() -> None:
        # The loop may be closed: then none of its tasks waits any more.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(news.set)

    return notify


def timeout_of(timeout: Duration) -> float:
    """Convert a timeout to seconds. With 0, a wait reads the job once. Raises InvalidOption."""
    return seconds_of("timeout", timeout)


def check_may_wait(job_id: str, *, allow_in_handler: bool, blocks: bool) -> None:
    """Raise WaitRefused for a wait that ``blocks`` an event loop, or is in a handler without ``allow_in_handler``."""
    if blocks and in_event_loop():
        raise WaitRefused(
            id=job_id,
            why="an event loop runs in this thread, and would be blocked: await the method's _async twin",
        )
    if job_here() is not None and not allow_in_handler:
        raise WaitRefused(
            id=job_id,
            why="a handler that waits keeps its place; once all places wait like this, no job ends any more. Enqueue"
            " what comes next from the other job, or pass allow_in_handler=True if other workers run that one",
        )
