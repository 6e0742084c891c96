"""Readings of a server that all viewers, such as scrapes and web pages, share. Fifty viewers cost Redis no more than
one.

No viewer waits longer than WITHIN_S for a server that does not answer.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Final, Generic, TypeVar

from rq_core.connections.client import Client
from rq_core.connections.open import open_transport
from rq_core.errors import RqCoreError, ServerUnavailable
from rq_core.model import plugins
from rq_core.model.keys import DEFAULT_PREFIX
from rq_core.model.plugins import InboxOverview, LogOverview
from rq_core.protocol.engine.plan import Patience
from rq_core.protocol.reads.queue_load import Overview

SHARED_S: Final = 1.0
"""Seconds for which all viewers get the same reading."""
WITHIN_S: Final = 1.5
"""Maximum seconds that a viewer waits for a reading."""

T = TypeVar("T")


class Shared(Generic[T]):
    """The last reading of a server. If the reading is older than ``shared_s`` seconds, a thread of this object reads
    again.

    Threads may share the object. Viewers wait for a reading under way, at most until it has taken ``within_s`` seconds.
    An error is shared, too, so that viewers do not queue for a server that does not answer.
    """

    def __init__(
        self,
        look: Callable[[], T],
        late: Callable[[], RqCoreError],
        *,
        shared_s: float = SHARED_S,
        within_s: float = WITHIN_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create the object without a reading. ``look`` reads the server, and may raise RqCoreError. ``late`` returns
        the error for a reading that takes too long.

        ``shared_s``: seconds for which viewers get one reading. ``within_s``: maximum seconds of a wait.
        """
        self._look = look
        self._late = late
        self._shared_s = shared_s
        self._within_s = within_s
        self._clock = clock
        self._changed = threading.Condition()
        self._found: T | Exception | None = None
        self._until = float("-inf")
        self._forgotten = False
        """True if the reading under way began before a change."""
        self._thread: threading.Thread | None = None
        self._began = 0.0
        """Monotonic time at which the reading under way began."""
        self.took_s = 0.0
        """Seconds that the last reading took."""

    def begin(self) -> None:
        """Start a reading if the last one is too old and none is under way. Does not wait."""
        with self._changed:
            if self._thread is None and (self._found is None or self._clock() >= self._until):
                self._began = time.monotonic()
                thread = threading.Thread(target=self._run, name="rq-core-look", daemon=True)
                thread.start()
                # Only after a successful start: if the machine has no more threads, the next viewer tries again.
                self._thread = thread

    def get(self) -> T:
        """Return the reading, after a wait of up to ``within_s`` seconds.

        Raises the reading's error, or the error of ``late`` if the reading takes too long.
        """
        self.begin()
        with self._changed:
            left = max(0.0, self._began + self._within_s - time.monotonic())
            if not self._changed.wait_for(lambda: self._thread is None, left):
                raise self._late()
            found = self._found
        if isinstance(found, Exception):
            raise found
        assert found is not None
        return found

    def forget(self) -> None:
        """Let the next viewer get a new reading, because something has changed.

        A reading under way counts as old once it has ended.
        """
        with self._changed:
            self._until = float("-inf")
            self._forgotten = self._thread is not None

    def close(self) -> None:
        """If a reading is under way, wait up to ``within_s`` seconds for its end."""
        thread = self._thread
        if thread is not None:
            thread.join(self._within_s)

    def _run(self) -> None:
        found: T | Exception
        try:
            found = self._look()
        except Exception as error:  # noqa: BLE001 - raised again to all who wait for it
            found = error
        with self._changed:
            self.took_s = time.monotonic() - self._began
            fresh_s = float("-inf") if self._forgotten else self._shared_s
            self._found, self._until = found, self._clock() + fresh_s
            self._thread, self._forgotten = None, False
            self._changed.notify_all()


class SharedOverview(Shared[Overview]):
    """The shared reading of all queues of one server."""

    def __init__(
        self,
        client: Client,
        *,
        shared_s: float = SHARED_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create the object without a reading. ``client`` must have short timeouts, as :func:`viewer` returns it.
        ``close`` leaves the client open.
        """
        super().__init__(
            lambda: client.run(client.calls.reads.overview()),
            lambda: ServerUnavailable(url=client.url, why=f"no answer within {WITHIN_S:g} s"),
            shared_s=shared_s,
            clock=clock,
        )


@contextlib.contextmanager
def shared_log(audit_url: str) -> Iterator[Shared[LogOverview]]:
    """Yield a shared reading of an audit log. The reading is closed after the block.

    Raises AuditNotConfigured if no installed package reads audit logs. Raises RqCoreError for an invalid URL.
    """
    late = f"no answer from the audit log within {WITHIN_S:g} s"
    with (
        contextlib.closing(plugins.reader_opener()(audit_url)) as reader,
        contextlib.closing(Shared(reader.look, lambda: RqCoreError(late))) as shared,
    ):
        yield shared


@contextlib.contextmanager
def shared_inbox(inbox_url: str) -> Iterator[Shared[InboxOverview]]:
    """Yield a shared reading of an inbox. The reading is closed after the block.

    Raises AuditNotConfigured if no installed package reads inboxes. Raises RqCoreError for an invalid URL.
    """
    late = f"no answer from the inbox' database within {WITHIN_S:g} s"
    with (
        contextlib.closing(plugins.inbox_reader_opener()(inbox_url)) as reader,
        contextlib.closing(Shared(reader.look, lambda: RqCoreError(late))) as shared,
    ):
        yield shared


def viewer(url: str, prefix: str = DEFAULT_PREFIX) -> Client:
    """Return a client for reading. The client tries each call once, and waits up to a second to connect and for an
    answer.
    """
    return Client(
        url,
        prefix=prefix,
        patience=Patience(unsent=0.0, unknown=0.0),
        transport=open_transport(url, answer_within=1.0),
    )
