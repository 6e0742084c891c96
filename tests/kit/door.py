"""A listening socket that leaves no connection open when it is closed.

``asyncio.start_server`` leaves a connection open in two cases: its task is cancelled before the first step, or the
server is just accepting it.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Self

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
"""A function that serves one connection. The function may be cancelled, and need not close the connection."""


@contextlib.contextmanager
def closing(*writers: asyncio.StreamWriter) -> Iterator[None]:
    """Close these connections after the block. If the block is cancelled, unsent bytes are dropped, and no close waits
    for them."""
    try:
        yield
    except asyncio.CancelledError:
        for writer in writers:
            writer.transport.abort()
        raise
    finally:
        for writer in writers:
            writer.close()


class Door:
    """Serves each connection to a listening socket in an asyncio task, on the running event loop."""

    def __init__(self, listening: socket.socket, serve: Serve) -> None:
        self._listening = listening
        self._serve = serve
        self._inside: dict[asyncio.Task[None], socket.socket] = {}
        self._loop = asyncio.get_running_loop()
        listening.setblocking(False)
        self._loop.add_reader(listening, self._let_in)

    @property
    def port(self) -> int:
        port: int = self._listening.getsockname()[1]
        return port

    def _let_in(self) -> None:
        with contextlib.suppress(OSError):
            sock, _ = self._listening.accept()
            self._inside[self._loop.create_task(self._serve_one(sock))] = sock

    async def _serve_one(self, sock: socket.socket) -> None:
        with contextlib.suppress(OSError, asyncio.CancelledError):
            reader, writer = await asyncio.open_connection(sock=sock)
            with closing(writer):
                await self._serve(reader, writer)

    async def shut(self) -> None:
        """Close the listening socket and all its connections."""
        self._loop.remove_reader(self._listening)
        self._listening.close()
        for task in self._inside:
            task.cancel()
        await asyncio.gather(*self._inside, return_exceptions=True)
        # A transport closes its socket a turn of the loop later.
        await asyncio.sleep(0)
        for sock in self._inside.values():
            sock.close()


class DoorKeeper:
    """Serves connections to several listening sockets on loopback, on a thread of its own. The sockets are numbered
    from 0.

    Use it in a ``with`` statement, or start and close it.
    """

    def __init__(self, name: str, doors: int = 1) -> None:
        self._doors = [socket.create_server(("127.0.0.1", 0)) for _ in range(doors)]
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def door(self, number: int = 0) -> int:
        """Return the port of the listening socket with this number."""
        port: int = self._doors[number].getsockname()[1]
        return port

    def start(self) -> None:
        self._thread.start()
        self._ready.wait()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._closing.set)
        self._thread.join()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # On the thread.

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._accept())
        self._loop.close()

    async def _accept(self) -> None:
        self._closing = asyncio.Event()
        doors = [
            Door(each, functools.partial(self._serve, n)) for n, each in enumerate(self._doors)
        ]
        self._ready.set()
        await self._closing.wait()
        for door in doors:
            await door.shut()

    async def _serve(
        self, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Serve one connection to the listening socket with this number."""
        raise NotImplementedError
