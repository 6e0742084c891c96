"""Reports in Redis that this worker is alive: from the heartbeat's thread, every ten seconds, even if the worker is
idle."""

from __future__ import annotations

import hashlib
import logging
import os
import socket
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from types import CodeType
from typing import Any, Final

from rq_core.app.task import Task
from rq_core.connections.client import Client
from rq_core.protocol.reads import worker_registry
from rq_core.protocol.reads.worker_registry import TELL_EVERY_S, Presence

log = logging.getLogger(__name__)

SWEEP_EVERY_S: Final = 3_600.0


class Attendance:
    """Reports one worker as alive: writes its row in the key ``workers`` of each of its queues. An error with these
    rows harms no job and delays no heartbeat.
    """

    def __init__(
        self,
        client: Client,
        worker: str,
        *,
        tasks: Mapping[str, Task[Any, Any]],
        queues: Callable[[], Collection[str]],
        places: int,
        busy: Callable[[], int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``queues`` returns the queues that the worker serves now. ``busy`` returns the number of handlers that run or
        are about to, and ``places`` is the maximum of this number. (For a batch task, one handler runs a whole batch.)

        The heartbeat's thread calls ``queues`` and ``busy``.
        """
        self._client = client
        self._worker = worker
        self._tasks = tasks
        self._queues = queues
        self._places = places
        self._busy = busy
        self._clock = clock
        self._since_ms = int(time.time() * 1000)
        self._facts: tuple[str, str] | None = None
        self._sweep_at = clock()
        self.due = clock()
        """Time (on ``clock``) at which the worker must report next that it is alive."""

    def tell(self, failed: Collection[object] = ()) -> None:
        """Report that the worker is alive. Skip the servers in ``failed``: they did not answer the last heartbeat, and
        would delay this thread."""
        self.due = self._clock() + TELL_EVERY_S
        prefix, sweeping = self._client.prefix, self._clock() >= self._sweep_at
        try:
            for place, queues in self._places_of():
                if place in failed:
                    continue
                says = worker_registry.announce(
                    prefix, self._worker, self._says(), queues, self._tasks
                )
                self._client.run(says)
                if sweeping:
                    self._client.run(worker_registry.sweep(prefix, queues))
        except Exception:
            # No job depends on these rows, and the next heartbeat must not fail.
            log.exception("writing to the list of workers failed, trying again")
        if sweeping:
            self._sweep_at = self._clock() + SWEEP_EVERY_S

    def leave(self, failed: Collection[object] = ()) -> None:
        """Remove the worker's rows, because the worker ends. Skip the servers in ``failed``."""
        for place, queues in self._places_of():
            if place not in failed:
                self._client.run(worker_registry.leave(self._client.prefix, self._worker, queues))

    def _places_of(self) -> Iterable[tuple[object, list[str]]]:
        places: dict[object, list[str]] = {}
        for queue in self._queues():
            places.setdefault(self._client.place(queue), []).append(queue)
        return places.items()

    def _says(self) -> Presence:
        if self._facts is None:
            # Computed only here: it is slow, and this thread has the time.
            from importlib.metadata import version

            self._facts = (version("rq-core"), code_digest(self._tasks))
        return Presence(
            socket.gethostname(),
            os.getpid(),
            *self._facts,
            tuple(self._queues()),
            self._places,
            # The two counters may change on another thread between the two reads.
            max(0, self._busy()),
            self._since_ms,
        )


def code_digest(tasks: Mapping[str, Task[Any, Any]]) -> str:
    """Return eight hex digits: a digest of the tasks' names and of their handlers' code. Different digits mean
    different code.

    For a decorated handler, the code of the decorators and of the inner function counts. Imported code, comments and
    line numbers do not count.
    """
    digest = hashlib.sha256()
    for name in sorted(tasks):
        digest.update(f"\n{name}\n".encode())
        for function in _layers(tasks[name].function):
            code = getattr(function, "__code__", None)
            if code is not None:
                _add_code(digest, code)
    return digest.hexdigest()[:8]


def _layers(function: Any) -> Iterator[Any]:
    """Yield a function, then each function that it wraps."""
    seen: set[int] = set()
    while function is not None and id(function) not in seen:
        seen.add(id(function))
        yield function
        function = getattr(function, "__wrapped__", None)


def _add_code(digest: Any, code: CodeType) -> None:
    digest.update(code.co_code)
    digest.update(repr((code.co_names, code.co_varnames)).encode())
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            _add_code(digest, constant)
        else:
            digest.update(_text(constant).encode(errors="backslashreplace"))


def _text(constant: object) -> str:
    """Return a constant of code as a text that is the same in every process. Sets are sorted for this."""
    if isinstance(constant, frozenset):
        return f"{{{','.join(sorted(map(_text, constant)))}}}"
    if isinstance(constant, tuple):
        return f"({','.join(map(_text, constant))})"
    return repr(constant)
