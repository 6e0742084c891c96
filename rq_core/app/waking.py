"""Wakes a relay, the process that enqueues the jobs in an inbox table, after a commit. A thread pushes tokens into a
list in Redis. Each token is the name of a queue with new rows in the inbox.

If the push fails, the relay finds the rows a little later.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

from rq_core.model.keys import inbox_key
from rq_core.protocol.engine.plan import Patience, Send

if TYPE_CHECKING:
    from rq_core.connections.client import Client
    from rq_core.protocol.engine.plan import Plan

PATIENCE: Final = Patience(unsent=0.05, unknown=0.05)
"""Maximum seconds for pushing the tokens that wake a relay. Later tokens would be useless, since the relay has by then
read the inbox by itself."""
TOKENS_MAX: Final = 16
"""Maximum number of wake tokens that the list in Redis has while no relay takes them."""
ANY: Final = "*"
"""The wake token that names no queue. It wakes the relay for the rows of any queue."""
JOIN_S: Final = 0.2
"""Maximum seconds that ``close`` waits for the thread's end."""


class Waker:
    """Pushes tokens into Redis that wake a relay, the process that enqueues the jobs in an inbox table. Threads and
    forked children may share a Waker."""

    def __init__(self, make_client: Callable[[], Client]) -> None:
        self._make_client = make_client
        self._begin_process()

    def _begin_process(self) -> None:
        self._lock = threading.Lock()
        self._asked: set[str] = set()
        """The queues for which tokens are still to be pushed."""
        self._thread: threading.Thread | None = None
        """The thread that pushes tokens; None if no thread runs."""
        self._client: Client | None = None
        self._pid = os.getpid()

    def wake(self, *queues: str) -> None:
        """Push a token for each queue soon, in another thread, to wake a relay. Does not block, and does not raise."""
        if os.getpid() != self._pid:
            # The parent's thread is not in this child.
            self._begin_process()
        with self._lock:
            self._asked.update(queues or (ANY,))
            if self._thread is not None:
                return
            thread = threading.Thread(target=self._run, name="rq-core-inbox", daemon=True)
            # The process may start no more threads.
            with contextlib.suppress(RuntimeError):
                thread.start()
                self._thread = thread

    @property
    def is_busy(self) -> bool:
        """True while a thread is pushing tokens."""
        return self._thread is not None

    def close(self, *, join: bool = True) -> None:
        """Close the connection. The waker can be used again."""
        if os.getpid() != self._pid:
            return
        thread = self._thread
        if join and thread is not None:
            thread.join(JOIN_S)
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.close()

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._asked:
                    self._thread = None
                    return
                asked, self._asked = self._asked, set()
            with contextlib.suppress(Exception):
                with self._lock:
                    client = self._client = self._client or self._make_client()
                client.run(_push(client.prefix, asked))


def _push(prefix: str, queues: Iterable[str]) -> Plan[None]:
    key = inbox_key(prefix)
    tokens = list(queues)[:TOKENS_MAX]
    commands: list[list[Any]] = [["LPUSH", key, *tokens], ["LTRIM", key, 0, TOKENS_MAX - 1]]
    yield Send(commands, patience=PATIENCE)
