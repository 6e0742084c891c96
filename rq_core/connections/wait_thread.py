"""Waits for the ends of jobs. One thread checks the jobs for all waiting callers of an app in a process.

The thread has its own connection to each server. It receives messages about ended jobs
(:mod:`rq_core.connections.end_subscriptions`), and also checks the jobs from time to time. It starts with the first
wait, and ends after LINGER_S seconds without a wait. All threads and event loops of a process share it. A forked child
starts its own thread.
"""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from rq_core.connections.client import Client
from rq_core.connections.end_subscriptions import Deafness, Listener, Looked
from rq_core.errors import NoResult, RqCoreError, ServerUnavailable
from rq_core.model.lib.text import counted
from rq_core.protocol.engine.plan import Patience
from rq_core.protocol.reads.wait_schedule import TOGETHER_MAX, JobWait, Waits

log = logging.getLogger(__name__)

LINGER_S: Final = 10.0
"""Seconds without a wait after which the thread ends and closes its connections."""
QUIET_S: Final = 1.0
"""Seconds without a wait after which the subscription to a queue ends. A wait that begins earlier uses the existing
subscription."""
PATIENCE: Final = Patience(unsent=1.0, unknown=1.0)
"""The timeouts of the thread's calls. They are short, because the next check follows soon, and other waits are due
meanwhile."""
JOIN_S: Final = 1.0
"""Maximum seconds for which ``close`` waits for the thread to end."""


class _Round:
    """The waits and the wake-up socket of one run of the thread, from its start to its end."""

    def __init__(self) -> None:
        self.new: list[JobWait] = []
        """The waits that the thread has yet to take over."""
        self.is_closing = False
        self.woken, self._waker = socket.socketpair()
        for end in (self.woken, self._waker):
            end.setblocking(False)

    def wake(self) -> None:
        """Wake the thread, because there are new waits or it must end."""
        # A full socket also wakes the thread; a closed socket has no thread to wake.
        with contextlib.suppress(OSError):
            self._waker.send(b"\0")

    def close(self) -> None:
        self.woken.close()
        self._waker.close()


class Waiter:
    """Waits for the ends of jobs, for all callers of a process. Threads and forked children may share it."""

    def __init__(
        self,
        client: Client,
        *,
        clock: Callable[[], float] = time.monotonic,
        linger: float = LINGER_S,
    ) -> None:
        """Create a waiter; its thread starts with the first wait.

        ``client``: a client that only the waiter uses. ``linger``: seconds without a wait after which the thread ends.
        """
        self._client = client
        self.clock = clock
        self._linger = linger
        self._begin_process()

    def _begin_process(self) -> None:
        self._lock = threading.Lock()
        self._round: _Round | None = None
        """The state of the thread that takes over new waits. None: the next wait starts a thread, even if an earlier
        thread is still ending."""
        self._thread: threading.Thread | None = None
        self._waits: Waits | None = None
        """The waits of the thread that started last; None before the first thread."""
        self._deaf = Deafness()
        # Last: a thread that reads its own pid here must not see its parent's objects any more.
        self._pid = os.getpid()

    def begin(self, *waits: JobWait) -> None:
        """Start waiting for the ends of jobs. The thread calls each wait's ``tell``, which must not block, with the
        result.

        To give up a wait, set its ``over``. Raises RuntimeError if the process cannot start a thread.
        """
        if not waits:
            return
        if os.getpid() != self._pid:
            self._begin_process()
        with self._lock:
            if self._round is None:
                self._begin_round(waits)
                return
            current = self._round
            current.new += waits
            if len(current.new) == len(waits):
                # Otherwise the thread has earlier waits to take over, and was woken for them.
                current.wake()

    def _begin_round(self, waits: Sequence[JobWait]) -> None:
        current = _Round()
        current.new += waits
        thread = threading.Thread(
            target=self._run, args=(current,), name="rq-core-waiter", daemon=True
        )
        try:
            thread.start()
        except RuntimeError:
            # The process may start no more threads: the next wait tries again.
            current.close()
            raise
        except BaseException:
            # A signal such as Ctrl-C interrupted the start: the thread may run, and no other wait will find it.
            current.is_closing = True
            current.wake()
            raise
        self._round, self._thread = current, thread

    def close(self, *, join: bool = True) -> None:
        """End the thread. Waits that are still open end with the error NoResult. The next wait starts a new thread.
        ``join``: whether to wait for the thread's end, for at most JOIN_S seconds."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            thread, current = self._thread, self._round
            # From here on, a new wait starts another thread.
            self._thread = self._round = None
            if current is not None:
                current.is_closing = True
                current.wake()
        if join and thread is not None:
            thread.join(JOIN_S)

    # The thread's side.

    def _run(self, current: _Round) -> None:
        waits, listener = Waits(), Listener(self._client, self.clock, self._deaf)
        self._waits = waits
        quiet: dict[str, float] = {}
        try:
            while self._take_new(current, waits, listener, quiet):
                self._look(waits, listener)
        except Exception as error:
            log.exception(
                "the thread that checks the jobs of waits has failed: the next wait starts another"
            )
            self._break_off(current, waits, error)
        finally:
            listener.close()
            self._client.close()
            current.close()

    def _break_off(self, current: _Round, waits: Waits, error: Exception) -> None:
        """End all waits of a thread that has failed with ``error``. Each wait gets an error with the text of
        ``error``."""
        with self._lock:
            if self._round is current:
                self._thread = self._round = None
            new, current.new = current.new, []
        for wait in (*waits.all(), *new):
            wait.end(RqCoreError(f"the wait for job {wait.id} broke off: {error!r}. Wait again"))

    def _take_new(
        self, current: _Round, waits: Waits, listener: Listener, quiet: dict[str, float]
    ) -> bool:
        """Take over new waits, and sleep until a job is due for a check. Return False if the thread must end; then no
        waits are left.

        ``quiet``: queue without waits → clock time at which its subscription ends.
        """
        idle_since = self.clock()
        while True:
            self._hear(waits, listener)
            with self._lock:
                is_closing = current.is_closing
                # If there are many waits, the first are checked before the last are taken over.
                taken = len(current.new) if is_closing else TOGETHER_MAX
                new, current.new = current.new[:taken], current.new[taken:]
                at = waits.next_at()
                now = self.clock()
                if at is None and not new and now >= idle_since + self._linger and not is_closing:
                    self._thread = self._round = None
                    return False
            if is_closing:
                for wait in (*waits.all(), *new):
                    wait.end(NoResult(f"the app was closed while job {wait.id} was waited for"))
                return False
            for wait in new:
                waits.add(wait, now)
            if new or (at is not None and at <= now):
                return True
            if self._leave(waits, listener, quiet, now):
                # Messages for other queues may have arrived before the answer.
                continue
            leave_at = min(quiet.values(), default=float("inf"))
            until = min(leave_at, idle_since + self._linger if at is None else at)
            self._sleep(current, listener, max(0.0, until - now))

    def _hear(self, waits: Waits, listener: Listener) -> None:
        """Pass the messages that have arrived to the waits that they concern."""
        told, missed = listener.told()
        now = self.clock()
        for queue, ids in told:
            waits.told(queue, ids, now)
        for queue in missed:
            waits.missed(queue, now)

    def _leave(self, waits: Waits, listener: Listener, quiet: dict[str, float], now: float) -> bool:
        """Unsubscribe from queues that have had no wait for QUIET_S seconds. Return whether there were such queues.

        ``quiet``: queue without waits → clock time at which its subscription ends.
        """
        left = listener.subscribed() - waits.queues()
        for queue in quiet.keys() - left:
            del quiet[queue]
        for queue in left:
            quiet.setdefault(queue, now + QUIET_S)
        over = [queue for queue, at in quiet.items() if at <= now]
        for queue in over:
            del quiet[queue]
        listener.leave(over)
        return bool(over)

    @staticmethod
    def _sleep(current: _Round, listener: Listener, seconds: float) -> None:
        """Sleep up to ``seconds``, or until a message or a new wait arrives."""
        # PollSelector needs no file descriptor, so a process without free descriptors can still wait.
        with selectors.PollSelector() as selector:
            for each in (current.woken, *listener.sockets()):
                selector.register(each, selectors.EVENT_READ)
            selector.select(seconds)
        with contextlib.suppress(BlockingIOError):
            current.woken.recv(4096)

    def _look(self, waits: Waits, listener: Listener) -> None:
        """Check the jobs that are due. If a server does not answer for one queue, the checks of its other queues fail
        without another request."""
        silent: dict[object, RqCoreError] = {}
        for queue, due in waits.due(self.clock()).items():
            place = self._client.place(queue)
            if place not in silent:
                trouble = self._look_at(waits, listener, queue, due)
                if trouble is not None:
                    silent[place] = trouble
                continue
            self._failed(waits, due, silent[place], self.clock())

    def _look_at(
        self, waits: Waits, listener: Listener, queue: str, due: Sequence[JobWait]
    ) -> RqCoreError | None:
        began = self.clock()
        try:
            ids = [*dict.fromkeys(wait.id for wait in due)]
            looked = listener.look(queue, ids)
            if looked is None:
                found = self._client.run(self._client.calls.endings.look(queue, ids))
                looked = Looked(found, None)
        except ServerUnavailable as error:
            self._failed(waits, due, error, began)
            return error
        except RqCoreError as error:
            self._end(waits, due, error)
            return None
        except Exception as error:  # noqa: BLE001 - those who wait must hear of it
            self._end(
                waits,
                due,
                RqCoreError(f"the check of {counted(len(due), 'job')} failed: {error!r}"),
            )
            return None
        # A message that arrived before the answer is about a job that the check has found.
        self._hear(waits, listener)
        now = self.clock()
        for wait in due:
            found_here = looked.found.get(wait.id)
            if found_here and wait.hearing and wait.hearing is looked.hearing and not wait.over:
                listener.was_of_no_use(queue)
            wait.trouble = None
            waits.looked(wait, found_here, now, began, looked.hearing)
        return None

    @staticmethod
    def _end(waits: Waits, due: Sequence[JobWait], error: RqCoreError) -> None:
        for wait in due:
            wait.end(error)
            waits.forget(wait)

    def _failed(
        self, waits: Waits, due: Sequence[JobWait], trouble: RqCoreError, began: float
    ) -> None:
        now = self.clock()
        for wait in due:
            wait.trouble = trouble
            waits.looked(wait, None, now, began)
