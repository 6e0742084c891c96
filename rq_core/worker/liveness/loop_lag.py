"""Measures once a second how late the event loop is. A blocked loop delays every handler and the next claim.

A thread watches the loop. While a handler blocks the loop, the thread logs the job and the line of code that the
handler executes.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Final

from rq_core.worker.claim_counters import FlowTable
from rq_core.worker.execution.running import Running
from rq_core.worker.lifetime import resident_bytes

log = logging.getLogger(__name__)

EVERY_S: Final = 1.0
BLOCKED_S: Final = 2.0
"""Seconds after which the log names the handler that blocks the loop."""
REMEMBERED: Final = 15
"""Number of recent measurements; the greatest of them is reported. This is about the number of measurements between two
scrapes of the metrics."""


class LoopWatch:
    """Measures how late one worker's event loop is. Call its methods on that loop."""

    def __init__(self, flow: FlowTable, clock: Callable[[], float] = time.monotonic) -> None:
        self._flow = flow
        self._clock = clock
        self._lags: deque[float] = deque(maxlen=REMEMBERED)
        self._due = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._over = threading.Event()

    def start(self) -> None:
        """Start measuring, and record that the worker is expected to claim from now on."""
        self._flow.answered()
        self._due = self._clock()
        self.measure()
        loop = threading.get_ident()
        threading.Thread(target=self._look, args=(loop,), name="rq-core-loop", daemon=True).start()

    def measure(self) -> None:
        """Store how late this measurement is, and when the next measurement is due. Schedule the next measurement."""
        now = self._clock()
        self._lags.append(max(0.0, now - self._due))
        self._due = now + EVERY_S
        self._flow.measured(self._due, max(self._lags), resident_bytes())
        self._timer = asyncio.get_running_loop().call_later(EVERY_S, self.measure)

    def stop(self) -> None:
        """Stop measuring."""
        if self._timer is not None:
            self._timer.cancel()
        self._flow.at_rest()
        self._over.set()

    def _look(self, loop: int) -> None:
        """Watch the thread with the id ``loop`` until ``stop`` is called, and log each handler that blocks it."""
        told = 0.0
        while not self._over.wait(EVERY_S):
            due = self._due
            late = self._clock() - due
            if late < BLOCKED_S or told == due:
                continue
            frame = sys._current_frames().get(loop)  # noqa: SLF001 - nothing else shows the line of a thread
            found = None if frame is None else _handler_in(frame)
            # If the loop has continued meanwhile, the frame may belong to another handler.
            if found is not None and due == self._due:
                told = due
                running, line = found
                log.warning(
                    "a handler has blocked the event loop for %.1f s, at %s: make its task a plain def, which runs in a"
                    " thread, or await asyncio.to_thread(…) there",
                    late,
                    line,
                    extra={
                        "job": running.claim.id,
                        "queue": running.claim.queue,
                        "task": running.task.name,
                    },
                )


def _handler_in(frame: FrameType) -> tuple[Running, str] | None:
    """Return the async handler that a thread executes now, and the present line of code as ``FILE:LINE``; None: no
    handler.

    If the handler's function is not on the stack, the line is that of the innermost call.
    """
    passed: list[FrameType] = []
    for each in _outwards(frame):
        running = each.f_locals.get("running") if each.f_code.co_name == "_run_async" else None
        if isinstance(running, Running):
            own = getattr(inspect.unwrap(running.task.function), "__code__", None)
            stands = next((one for one in passed if one.f_code is own), frame)
            return running, f"{stands.f_code.co_filename}:{stands.f_lineno}"
        passed.append(each)
    return None


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back
