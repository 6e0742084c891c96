"""One connection of an event loop: bytes out, replies in. redis-py makes it; then this is its protocol.

Bytes are read where the loop hands them over, and the task that waits is woken when all replies are there. Streams
would wake the task for each piece, and a timeout of its own for each exchange costs as much as the exchange.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import redis

from rq_core.connections import tls_probe
from rq_core.connections.connection import (
    PENDING,
    Push,
    connect_bound,
    new_reader,
    soonest,
    transport_of,
)


class AsyncConnection(asyncio.Protocol):
    """A connection to one server. One task at a time may use it."""

    def __init__(self, source: Any) -> None:
        """``source`` is a pool of redis-py; nothing is connected yet."""
        self._source = source
        self._made = source.connection_class(**source.connection_kwargs)
        self._connect_within = connect_bound(source)
        self._has_spoken = False
        """See Connection."""
        self._transport: asyncio.Transport | None = None
        self._streams: asyncio.BaseProtocol | None = None
        """redis-py's own protocol, which is notified of the end: its connection waits for that."""
        self._loop: asyncio.AbstractEventLoop = None  # type: ignore[assignment]  # set when it connects
        self._reader: Any = None
        self._answer: asyncio.Future[None] | None = None
        """The future of the exchange that is under way."""
        self._missing = 0
        """Replies that it still waits for."""
        self._hear: Callable[[Any], None] | None = None
        self.replies: list[Any] = []
        """The replies of the last exchange that have come."""
        self._within = 0.0
        self._deadline = 0.0
        """When the next reply is overdue, on the loop's clock."""
        self._watchdog: asyncio.TimerHandle | None = None

    @property
    def is_ready(self) -> bool:
        """Whether it is connected, the server has not ended it, and it sent nothing unasked."""
        return self._transport is not None and not self._transport.is_closing()

    @property
    def address(self) -> tuple[str, int]:
        """See Connection.address."""
        return self._made.host, self._made.port

    async def connect(self, within: float | None = None) -> None:
        """See Connection.connect."""
        await self.drop()
        seconds = soonest(self._connect_within, within)
        try:
            async with asyncio.timeout(seconds):
                await self._source.ensure_connection(self._made)
        except TimeoutError as error:
            await self._check_protocol(error)
            raise redis.TimeoutError(f"no connection within {seconds:g} s") from None
        except Exception as error:
            await self._check_protocol(error)
            raise
        self._has_spoken = True
        transport = transport_of(self._made)
        self._loop = asyncio.get_running_loop()
        self._reader = new_reader()
        self._streams = transport.get_protocol()
        # With room for nothing, uvloop writes at once, and not at the end of the loop's round.
        transport.set_write_buffer_limits(high=0)
        transport.set_protocol(self)
        self._transport = transport

    async def _check_protocol(self, error: Exception) -> None:
        if not self._has_spoken:
            await tls_probe.check_tls_async(self._made, error)

    async def disconnect(self) -> None:
        """End the connection, and wait until that is done. An exchange under way fails. It can be connected again."""
        self._fail(EOFError("the connection was closed on this side"))
        self._forget()
        await self._made.disconnect()

    async def drop(self) -> None:
        """End the connection at once, whatever is under way on it. It can be connected again."""
        if self._transport is not None:
            self._transport.abort()
        self._forget()
        # It waits for nothing: a task that is cancelled once more cannot leave the connection open here.
        await self._made.disconnect(nowait=True)

    def ask(
        self,
        data: bytes,
        count: int,
        within: float,
        hear: Callable[[Any], None] | None = None,
    ) -> asyncio.Future[None]:
        """Send, and have ``count`` replies put into ``replies``; an error becomes a ReplyError in its place.

        The future is done when all are there. Its awaiter goes on in the next round of the loop; ``hear`` is
        called at once, with the last reply. It raises OSError (TimeoutError if none came for ``within`` seconds),
        or EOFError if the server has ended the connection. A caller that stops waiting must drop the
        connection.
        """
        assert self._transport is not None
        assert self._answer is None, "an exchange is under way on this connection"
        loop = self._loop
        self.replies = []
        self._missing, self._hear = count, hear
        self._answer = answer = loop.create_future()
        self._within = within
        self._deadline = deadline = loop.time() + within
        if self._watchdog is None or self._watchdog.when() > deadline:
            self._watch()
        self._transport.write(data)
        return answer

    # What the loop calls.

    def data_received(self, data: bytes) -> None:
        """Read what has come."""
        reader = self._reader
        reader.feed(data)
        replies, came = self.replies, len(self.replies)
        try:
            while (reply := reader.gets()) is not PENDING:
                if type(reply) is Push:
                    continue
                if not self._missing:
                    # The next command would take it for its reply.
                    self._end(ConnectionError("the server speaks without being asked"))
                    return
                self._missing -= 1
                replies.append(reply)
        except ConnectionError as error:
            self._end(error)
            return
        if self._answer is None:
            if reader.has_data():
                # The rest would be read as the beginning of the next command's reply.
                self._end(ConnectionError("the server sent a reply that no command asked for"))
            return
        if not self._missing:
            answer, self._answer = self._answer, None
            if not answer.done():
                if self._hear is not None:
                    self._hear(replies[-1])
                answer.set_result(None)
        elif len(replies) > came:
            self._deadline = self._loop.time() + self._within

    def connection_lost(self, error: Exception | None) -> None:
        """Notify the caller that waits for a reply."""
        if self._streams is not None:
            self._streams.connection_lost(error)
        self._fail(error or EOFError("the server closed the connection"))
        self._forget()

    # The end.

    def _end(self, error: Exception) -> None:
        if self._transport is not None:
            self._transport.abort()
        self._fail(error)

    def _fail(self, error: Exception) -> None:
        answer, self._answer = self._answer, None
        self._missing = 0
        if answer is not None and not answer.done():
            answer.set_exception(error)

    def _forget(self) -> None:
        self._transport = None
        self._answer = None
        self._missing = 0
        if self._watchdog is not None:
            self._watchdog.cancel()
            self._watchdog = None

    # The watchdog: one timer, which is moved only when it goes off, or if it would go off too late.

    def _watch(self) -> None:
        if self._watchdog is not None:
            self._watchdog.cancel()
        self._watchdog = self._loop.call_at(self._deadline, self._look)

    def _look(self) -> None:
        self._watchdog = None
        if self._answer is None:
            return
        if self._deadline > self._loop.time():
            self._watch()
        else:
            self._end(TimeoutError(f"no reply for {self._within:g} s"))
