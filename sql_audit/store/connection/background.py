"""Runs a call on its own thread, so that Python and the database can work at the same time.

text = BackgroundCall(lambda: copy_text(rows))
insert(rows)
digest(text.result())
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class BackgroundCall(Generic[T]):
    """A call that starts at once on its own thread. Call :meth:`wait` or :meth:`result`, so that no thread is left."""

    def __init__(self, call: Callable[[], T]) -> None:
        self._call = call
        self._answer: list[T] = []
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None
        self._begin()

    def _begin(self) -> None:
        self._thread = threading.Thread(
            target=self._run, name="rq-core-audit-background", daemon=True
        )
        self._thread.start()

    def _run(self) -> None:
        try:
            self._answer.append(self._call())
        except BaseException as error:  # noqa: BLE001 - raised again where the result is asked for
            self._error = error

    def wait(self) -> None:
        """Wait until the call has returned or raised."""
        if self._thread is not None:
            self._thread.join()

    def result(self) -> T:
        """Wait for the call, and return its value. Raise the call's error."""
        self.wait()
        if self._error is not None:
            raise self._error
        return self._answer[0]
