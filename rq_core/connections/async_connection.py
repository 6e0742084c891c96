"""One connection of an event loop: sends bytes, and parses replies.

redis-py opens the connection. Then AsyncConnection becomes the connection's asyncio protocol. It parses bytes in the
loop's callback, and resumes the waiting task only when all replies are complete; asyncio's streams would resume the
task for each piece of data. One timer, the watchdog, finds overdue replies, because a timer for each exchange would
cost as much as the exchange.
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
    """A connection to one server. Only one task at a time may use it."""

    def __init__(self, source: Any) -> None:
        """Create a connection that is not open yet. ``source`` is a pool of redis-py."""
        self._source = source
        self._made = source.connection_class(**source.connection_kwargs)
        self._connect_within = connect_bound(source)
        self._has_spoken = False
        """True if the connection was open at least once. Then the port and the URL agree about TLS."""
        self._transport: asyncio.Transport | None = None
        self._streams: asyncio.BaseProtocol | None = None
        """redis-py's own protocol object. It must be notified when the connection ends, because redis-py's connection
        waits for this notice."""
        self._loop: asyncio.AbstractEventLoop = None  # type: ignore[assignment]  # set when it connects
        self._reader: Any = None
        self._answer: asyncio.Future[None] | None = None
        """The future that completes when the current exchange has all its replies; None if no exchange is under way."""
        self._missing = 0
        """Number of replies that the current exchange still lacks."""
        self._hear: Callable[[Any], None] | None = None
        self.replies: list[Any] = []
        """The replies of the current or last exchange that have arrived."""
        self.unwritten = b""
        """The bytes of the current exchange that are written when the first reply arrives. Afterwards it is empty."""
        self._on_then: Callable[[], None] | None = None
        self._within = 0.0
        self._later_within = 0.0
        """Maximum seconds to wait for each reply after the first."""
        self._deadline = 0.0
        """Time, on the loop's clock, after which the next reply is overdue."""
        self._watchdog: asyncio.TimerHandle | None = None
        self._looks_at = 0.0
        """Time, on the loop's clock, at which the watchdog timer fires. It is stored here, because a timer of uvloop
        that is due at once does not report its time."""

    @property
    def is_ready(self) -> bool:
        """Return whether the connection is open and has received only replies to its commands."""
        return self._transport is not None and not self._transport.is_closing()

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of the server. A connection over a Unix socket has neither."""
        return self._made.host, self._made.port

    async def connect(self, within: float | None = None) -> None:
        """Connect, or reconnect, within ``within`` seconds or the pool's timeout, whichever is shorter.

        Raises redis-py's error if the attempt fails, or OtherProtocol if the port and the URL disagree about TLS.
        """
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
        # With a write buffer of 0 bytes, uvloop writes at once, not at the end of the loop's round.
        transport.set_write_buffer_limits(high=0)
        transport.set_protocol(self)
        self._transport = transport

    async def _check_protocol(self, error: Exception) -> None:
        if not self._has_spoken:
            await tls_probe.check_tls_async(self._made, error)

    async def disconnect(self) -> None:
        """Close the connection, and wait until it is closed. An exchange under way fails. ``connect`` opens it
        again."""
        self._fail(EOFError("the connection was closed on this side"))
        self._forget()
        await self._made.disconnect()

    async def drop(self) -> None:
        """Close the connection at once, even during an exchange. ``connect`` opens it again."""
        if self._transport is not None:
            self._transport.abort()
        self._forget()
        # ``nowait``: a second cancellation of the task cannot leave the connection open here.
        await self._made.disconnect(nowait=True)

    def ask(
        self,
        data: bytes,
        count: int,
        within: float,
        hear: Callable[[Any], None] | None = None,
        later_within: float | None = None,
        then: bytes = b"",
        on_then: Callable[[], None] | None = None,
    ) -> asyncio.Future[None]:
        """Send ``data``, and return a future that is done once ``replies`` has ``count`` replies. An error reply is a
        ReplyError.

        ``then``: bytes that are sent as soon as the first reply arrives, before the event loop runs anything else.
        ``on_then`` is called after that.

        ``hear``: a function that is called with the last reply, one iteration of the loop before the awaiting task
        resumes. A caller that stops waiting must drop the connection.

        The future raises TimeoutError if no reply arrived for ``within`` seconds, EOFError if the server closed the
        connection, or another OSError. ``later_within``: the timeout in seconds after the first reply; None: ``within``
        also applies then.
        """
        assert self._transport is not None
        assert self._answer is None, "an exchange is under way on this connection"
        loop = self._loop
        self.replies = []
        self._missing, self._hear = count, hear
        self.unwritten, self._on_then = then, on_then
        self._answer = answer = loop.create_future()
        self._within = within
        self._later_within = within if later_within is None else later_within
        self._deadline = deadline = loop.time() + within
        if self._watchdog is None or self._looks_at > deadline:
            self._watch()
        self._transport.write(data)
        return answer

    # Callbacks of the event loop.

    def data_received(self, data: bytes) -> None:
        """Parse the bytes that have arrived. If they contain the last missing reply, complete the exchange."""
        reader = self._reader
        reader.feed(data)
        replies, came = self.replies, len(self.replies)
        try:
            while (reply := reader.gets()) is not PENDING:
                if type(reply) is Push:
                    continue
                if not self._missing:
                    # The next command would take this reply for its own.
                    self._end(ConnectionError("the server sent a reply that no command asked for"))
                    return
                self._missing -= 1
                replies.append(reply)
        except ConnectionError as error:
            self._end(error)
            return
        if self._answer is None:
            if reader.has_data():
                # The incomplete reply would be read as the beginning of the next command's reply.
                self._end(ConnectionError("the server sent a reply that no command asked for"))
            return
        if not self._missing:
            answer, self._answer = self._answer, None
            if not answer.done():
                if self._hear is not None:
                    self._hear(replies[-1])
                answer.set_result(None)
        elif len(replies) > came:
            self._go_on()

    def _go_on(self) -> None:
        """Write the data that was held back until the first reply. From now on, replies must arrive within
        ``_later_within`` seconds."""
        if self.unwritten and self._transport is not None:
            self._transport.write(self.unwritten)
            self.unwritten = b""
            if self._on_then is not None:
                self._on_then()
        self._within = self._later_within
        self._deadline = self._loop.time() + self._within
        if self._looks_at > self._deadline:
            self._watch()

    def connection_lost(self, error: Exception | None) -> None:
        """Fail the current exchange, if any, because the connection has ended."""
        if self._streams is not None:
            self._streams.connection_lost(error)
        self._fail(error or EOFError("the server closed the connection"))
        self._forget()

    # Ending the connection.

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

    # The watchdog: one timer, which is set again only when it fires, or if it would fire too late.

    def _watch(self) -> None:
        if self._watchdog is not None:
            self._watchdog.cancel()
        self._watchdog = self._loop.call_at(self._deadline, self._look)
        self._looks_at = self._deadline

    def _look(self) -> None:
        self._watchdog = None
        if self._answer is None:
            return
        if self._deadline > self._loop.time():
            self._watch()
        else:
            self._end(TimeoutError(f"no reply for {self._within:g} s"))
