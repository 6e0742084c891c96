"""Waits for the ends of jobs: one thread of a process looks for all who wait, on a connection of its own.

The thread begins with the first wait, and ends when there has been none for a while. Threads and event loops share it,
and a forked child begins one of its own.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from rq_core.connections.client import Client
from rq_core.errors import NoResult, RqCoreError, ServerUnavailable
from rq_core.protocol.awaited import Wait, Waits
from rq_core.protocol.plan import Patience

LINGER_S: Final = 10.0
"""Seconds without a wait after which the thread ends, and its connection with it."""
PATIENCE: Final = Patience(unsent=1.0)
"""Of the looks: another one follows, and others wait for theirs meanwhile."""
JOIN_S: Final = 1.0
"""Seconds that ``close`` waits for the thread."""


class _Round:
    """What one thread has to do, from its first wait to its end."""

    def __init__(self) -> None:
        self.new: list[Wait] = []
        """Waits that it has not taken yet."""
        self.is_closing = False


class Waiter:
    """Looks for those who wait. Threads and forked children may share it."""

    def __init__(
        self,
        client: Client,
        *,
        clock: Callable[[], float] = time.monotonic,
        linger: float = LINGER_S,
    ) -> None:
        """``client`` is for the looks alone. ``linger`` is in seconds."""
        self._client = client
        self.clock = clock
        self._linger = linger
        self._begin_process()

    def _begin_process(self) -> None:
        self._changed = threading.Condition()
        self._round: _Round | None = None
        """Of the thread that takes new waits; None: there is none."""
        self._thread: threading.Thread | None = None
        # Last: who finds its own process here must find nothing of its parent's any more.
        self._pid = os.getpid()

    def begin(self, *waits: Wait) -> None:
        """Begin waits. The ``tell`` of each is called in the waiter's thread, and must not block. To give a wait up,
        set its ``over``."""
        if not waits:
            return
        if os.getpid() != self._pid:
            self._begin_process()
        with self._changed:
            begins = self._round is None
            current = self._round = self._round or _Round()
            current.new += waits
            if begins:
                self._thread = threading.Thread(
                    target=self._run, args=(current,), name="rq-core-waiter", daemon=True
                )
                self._thread.start()
            self._changed.notify_all()

    def close(self, *, join: bool = True) -> None:
        """End the thread. Waits that are not over end with NoResult. The waiter can be used again."""
        if os.getpid() != self._pid:
            return
        with self._changed:
            thread, current = self._thread, self._round
            # A wait that begins from here on is another thread's.
            self._thread = self._round = None
            if current is not None:
                current.is_closing = True
            self._changed.notify_all()
        if join and thread is not None:
            thread.join(JOIN_S)

    # The thread.

    def _run(self, current: _Round) -> None:
        waits = Waits()
        try:
            while self._take_new(current, waits):
                self._look(waits)
        finally:
            self._client.close()

    def _take_new(self, current: _Round, waits: Waits) -> bool:
        """Wait until there is something to look at. False: the thread is to end, and none waits."""
        with self._changed:
            while not current.new and not current.is_closing:
                at = waits.next_at()
                if at is None:
                    was_told = self._changed.wait(self._linger)
                    if not was_told and not current.new and not current.is_closing:
                        self._thread = self._round = None
                        return False
                elif at > (now := self.clock()):
                    self._changed.wait(at - now)
                else:
                    break
            new, current.new = current.new, []
        if current.is_closing:
            for wait in (*waits.all(), *new):
                wait.end(NoResult(f"the app was closed while job {wait.id} was waited for"))
            return False
        now = self.clock()
        for wait in new:
            waits.add(wait, now)
        return True

    def _look(self, waits: Waits) -> None:
        """Make the looks that are due. A server that does not answer is asked once, not once for each of its queues."""
        silent: dict[object, RqCoreError] = {}
        for queue, due in waits.due(self.clock()).items():
            place = self._client.place(queue)
            if place not in silent:
                trouble = self._look_at(waits, queue, due)
                if trouble is not None:
                    silent[place] = trouble
                continue
            self._failed(waits, due, silent[place], self.clock())

    def _look_at(self, waits: Waits, queue: str, due: Sequence[Wait]) -> RqCoreError | None:
        began = self.clock()
        try:
            ids = [*dict.fromkeys(wait.id for wait in due)]
            found = self._client.run(self._client.calls.endings.look(queue, ids))
        except ServerUnavailable as error:
            self._failed(waits, due, error, began)
            return error
        except RqCoreError as error:
            for wait in due:
                wait.end(error)
            return None
        except Exception as error:  # noqa: BLE001 - those who wait must hear of it
            for wait in due:
                wait.end(RqCoreError(f"job {wait.id} could not be looked at: {error!r}"))
            return None
        now = self.clock()
        for wait in due:
            wait.trouble = None
            waits.looked(wait, found.get(wait.id), now, began)
        return None

    def _failed(
        self, waits: Waits, due: Sequence[Wait], trouble: RqCoreError, began: float
    ) -> None:
        now = self.clock()
        for wait in due:
            wait.trouble = trouble
            waits.looked(wait, None, now, began)
