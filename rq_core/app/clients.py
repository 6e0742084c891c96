"""An app's clients: one synchronous client, and one for each event loop. Each client is made at its first use.

The first use also imports redis-py, so that a program that only defines tasks starts quickly.
"""

from __future__ import annotations

import codecs
import sys
from typing import TYPE_CHECKING

from rq_core.app.fork_safety import preparing
from rq_core.app.limits.lane_assignment import PolicyCache

if TYPE_CHECKING:
    import asyncio

    from rq_core.app.waking import Waker
    from rq_core.connections.async_client import AsyncClient
    from rq_core.connections.client import Client
    from rq_core.connections.wait_thread import Waiter
    from rq_core.protocol.engine.plan import Patience


def in_event_loop() -> bool:
    """Return whether an event loop runs in this thread. Does not import asyncio."""
    asyncio = sys.modules.get("asyncio")
    if asyncio is None:
        return False
    return asyncio._get_running_loop() is not None  # noqa: SLF001 - the public one raises without a loop


class Connections:
    """Makes and keeps an app's clients of one server. Threads may share this object."""

    def __init__(self, url: str, *, prefix: str, patience: Patience | None = None) -> None:
        self.url = url
        self.prefix = prefix
        self.patience = patience
        self.policies = PolicyCache()
        """A cache of the options and caps that workers have registered for tasks whose code is not in this process."""
        self.warns = True
        """True until the synchronous client is used in an event loop for the first time. Only this first use logs a
        warning."""
        self._client: Client | None = None
        self._waiter: Waiter | None = None
        self._waker: Waker | None = None
        self._async_clients: dict[asyncio.AbstractEventLoop, AsyncClient] = {}

    def make_client(self) -> Client:
        """Return a new synchronous client. The client connects at its first call."""
        from rq_core.connections.client import Client

        # Each connection resolves its host. The first one would import this codec, outside of the fork lock.
        codecs.lookup("idna")
        return Client(self.url, prefix=self.prefix, patience=self.patience)

    def make_async_client(self) -> AsyncClient:
        """Return a new client for the running event loop. The client connects at its first call."""
        from rq_core.connections.async_client import AsyncClient

        codecs.lookup("idna")
        return AsyncClient(self.url, prefix=self.prefix, patience=self.patience)

    @property
    def client(self) -> Client:
        """The synchronous client, made at its first use."""
        if self.warns and in_event_loop():
            self._warn_of_loop()
        if self._client is None:
            with preparing():
                if self._client is None:
                    self._client = self.make_client()
        return self._client

    def _warn_of_loop(self) -> None:
        """Log a warning, only once, that a call blocks the event loop. The warning names the caller's file and line."""
        self.warns = False
        import logging

        frame = sys._getframe(1)  # noqa: SLF001 - the cheapest way to the caller's line
        while frame.f_back and frame.f_globals.get("__name__", "").startswith("rq_core."):
            frame = frame.f_back
        logging.getLogger(__name__).warning(
            "a call that waits for Redis was made in an event loop, at %s:%d: everything else on the loop waits"
            " meanwhile, for seconds if the server is away. Await its twin, such as enqueue_async",
            *(frame.f_code.co_filename, frame.f_lineno),
        )

    def make_waiter(self) -> Waiter:
        """Return a new Waiter, which waits for the ends of jobs. The waiter connects at its first use."""
        from rq_core.connections.client import Client
        from rq_core.connections.wait_thread import PATIENCE, Waiter

        return Waiter(Client(self.url, prefix=self.prefix, patience=PATIENCE))

    @property
    def waiter(self) -> Waiter:
        """The Waiter that waits for the ends of jobs, made at its first use. All threads and event loops share it."""
        if self._waiter is None:
            with preparing():
                if self._waiter is None:
                    self._waiter = self.make_waiter()
        return self._waiter

    @property
    def waker(self) -> Waker:
        """The Waker, which wakes a relay, the process that enqueues the jobs of an inbox table. It is made at its first
        use. All threads and event loops share it."""
        if self._waker is None:
            with preparing():
                if self._waker is None:
                    from rq_core.app.waking import Waker

                    self._waker = Waker(self.make_client)
        return self._waker

    def async_client(self) -> AsyncClient:
        """Return the running event loop's client. It is made at its first use.

        Raises RuntimeError if no event loop runs in this thread.
        """
        import asyncio

        loop = asyncio.get_running_loop()
        found = self._async_clients.get(loop)
        if found is None:
            with preparing():
                # The connections of a closed loop are closed, too.
                for other in [other for other in self._async_clients if other.is_closed()]:
                    del self._async_clients[other]
                found = self._async_clients[loop] = self.make_async_client()
        return found

    def close(self) -> None:
        """Close the synchronous client, and end all waits for jobs. The next use makes a new client."""
        self._close()

    def _close(self, *, join: bool = True) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()
        if self._waiter is not None:
            self._waiter.close(join=join)
        if self._waker is not None:
            self._waker.close(join=join)

    async def aclose(self) -> None:
        """Close the running event loop's client, and the synchronous one."""
        import asyncio

        found = self._async_clients.pop(asyncio.get_running_loop(), None)
        if found is not None:
            await found.close()
        # The waiter's thread ends by itself: the loop does not wait for it.
        self._close(join=False)
