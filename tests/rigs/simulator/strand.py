"""Strands: threads that run step by step. A strand stops at each scheduling point.

Exactly one thread runs at any time: a strand, or the thread that resumes strands. So the operating system has no
influence on the order. Code need not be changed for this: a client can stop within a plan, and a mirror within a
transaction.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


class Crash(BaseException):
    """Raised inside a stopped strand to kill it.

    It is not an Exception, so that no code handles it.
    """


@dataclass(eq=False)
class Request:
    """A stop before a round trip, with the commands of the round trip."""

    commands: list[list[Any]]
    replies: list[Any] = field(default_factory=list)
    """The replies to the commands that have been carried out."""
    fate: Fate | None = None
    """The network's effect on the round trip. It is drawn at random when the first command is about to be run."""


@dataclass(frozen=True)
class Fate:
    """The effect of the network on a round trip."""

    kind: str
    """One of: fine; unsent (no connection); request (lost on the way); reply (carried out, and its reply lost); late
    (given up by its sender, and carried out some time later)."""
    keep: int = 0
    """The number of replies that still arrive, for the kind ``reply``."""


@dataclass(frozen=True)
class Sleep:
    """A stop until a simulated time (ms)."""

    until_ms: int


@dataclass(frozen=True)
class Step:
    """A stop between two steps of code that does not call Redis, such as the mirror."""

    name: str


Point = Request | Sleep | Step


class Strand:
    """A thread of an actor that can be stopped and resumed. The thread calls ``body`` with this strand."""

    def __init__(self, name: str, body: Callable[[Strand], None]) -> None:
        self.name = name
        self.point: Point = Step("start")
        self.done = False
        self._body = body
        self._ending = False
        self._failure: BaseException | None = None
        self._sent: tuple[Any, BaseException | None] = (None, None)
        # Two locks as a baton: whoever holds none waits.
        self._go, self._back = threading.Lock(), threading.Lock()
        self._go.acquire()
        self._back.acquire()
        self._thread = threading.Thread(target=self._run, name=f"strand {name}", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        self._go.acquire()
        try:
            if not self._ending:
                self._body(self)
        except Crash:
            pass
        except BaseException as failure:
            self._failure = failure
        self.done = True
        self._back.release()

    def wait(self, point: Point) -> Any:
        """Stop the strand until another thread resumes it. The strand itself calls this method.

        Returns the value, or raises the error, that is passed to `resume`.
        """
        if self._ending:
            # What tidies up after a crash would not be carried out either.
            raise Crash
        self.point = point
        self._back.release()
        self._go.acquire()
        value, error = self._sent
        if error is not None:
            raise error
        return value

    def resume(self, value: Any = None, error: BaseException | None = None) -> None:
        """Run the strand to its next stop, or to its end. Another thread calls this method.

        Raises the exception that the strand's code did not handle.
        """
        self._sent = value, error
        self._go.release()
        self._back.acquire()
        if self.done:
            self._thread.join()
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def crash(self) -> None:
        """Kill the strand where it has stopped."""
        if not self.done:
            self._ending = True
            self.resume(error=Crash())
