"""A call on a thread of its own, while its maker goes on: Python in one while the database works for the other.

lines = Beside(lambda: copy_text(rows))
insert(rows)
digest(lines.result())
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Beside(Generic[T]):
    """One call, begun at once. Its maker waits for it in any case: nothing goes on by itself."""

    def __init__(self, call: Callable[[], T]) -> None:
        self._call = call
        self._answer: list[T] = []
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None
        self._begin()

    def _begin(self) -> None:
        self._thread = threading.Thread(target=self._run, name="rq-core-audit-beside", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._answer.append(self._call())
        except BaseException as error:  # noqa: BLE001 - raised again where the result is asked for
            self._error = error

    def wait(self) -> None:
        """Until the call has ended, however it did."""
        if self._thread is not None:
            self._thread.join()

    def result(self) -> T:
        """What the call returned. Raises what it raised."""
        self.wait()
        if self._error is not None:
            raise self._error
        return self._answer[0]
