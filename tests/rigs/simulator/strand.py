"""Code that runs only while it is let: a thread that stands still at each of its scheduling points.

Of all strands and the one who resumes them exactly one runs at any time, so threads bring no order of their own. They
are what makes real code steppable as it is: a client in the middle of a plan, a mirror in the middle of a transaction.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


class Crash(BaseException):
    """The process is gone: raised where the strand stands. Not an Exception, so that nobody handles it."""


@dataclass(eq=False)
class Request:
    """At the network: commands for one round trip."""

    commands: list[list[Any]]
    replies: list[Any] = field(default_factory=list)
    """To those that have been carried out."""
    fate: Fate | None = None
    """What the network does with it; drawn when its first command's turn comes."""


@dataclass(frozen=True)
class Fate:
    """What becomes of a round trip."""

    kind: str
    """fine; unsent: no connection; request: lost on the way; reply: carried out, and its reply lost; late: given up
    by its sender, and carried out some time afterwards."""
    keep: int = 0
    """reply: how many of the replies still came."""


@dataclass(frozen=True)
class Sleep:
    """Until a moment of the server's time."""

    until_ms: int


@dataclass(frozen=True)
class Step:
    """Between two steps of code that does something else than to call Redis."""

    name: str


Point = Request | Sleep | Step


class Strand:
    """One actor's thread. ``body`` is called with the strand when it is started."""

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
        """From inside: stand at this point until resumed. Returns what the other side sends."""
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
        """From outside: run on to the next point, or to the end. Raises what the actor did not handle."""
        self._sent = value, error
        self._go.release()
        self._back.acquire()
        if self.done:
            self._thread.join()
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def crash(self) -> None:
        """End it where it stands."""
        if not self.done:
            self._ending = True
            self.resume(error=Crash())
