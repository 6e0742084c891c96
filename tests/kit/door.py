"""Lets connections in, and loses none of them when it is shut at any moment.

``asyncio.start_server`` does: a connection whose task is cancelled before its first step stays open, and so does one
that is just being accepted.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable, Iterator

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
"""Serves one connection. It may be cancelled, and need not close the connection."""


@contextlib.contextmanager
def closing(*writers: asyncio.StreamWriter) -> Iterator[None]:
    """Close these after the block. If it is cancelled, at once: else a connection with bytes to send waits for them."""
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
    """Serves each connection to a listening socket by a task of its own, on the loop that runs."""

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
        """Close the listening socket, and end all connections."""
        self._loop.remove_reader(self._listening)
        self._listening.close()
        for task in self._inside:
            task.cancel()
        await asyncio.gather(*self._inside, return_exceptions=True)
        # A transport closes its socket a turn of the loop later.
        await asyncio.sleep(0)
        for sock in self._inside.values():
            sock.close()
