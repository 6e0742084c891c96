"""Sends commands on connections, and returns the replies. A failed command has an error in place of its reply.

This module sends nothing twice, and redis-py's retries are off. :mod:`rq_core.protocol.engine.delivery` decides what to
send again, and for this it must know whether a command was sent at all. So this module takes a connection from the pool
itself, instead of using redis-py's command methods.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol, TypeVar

import hiredis
import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry

from rq_core.connections.async_connection import AsyncConnection
from rq_core.connections.connection import CONNECT_TIMEOUT_S, SOON_S, Connection
from rq_core.connections.connection_options import source_of
from rq_core.connections.pool import AsyncPool, Pool
from rq_core.connections.redis_errors import BROKEN, BROKEN_ASYNC, is_demoted, own_words, unsent
from rq_core.connections.sentinel import LOOK_EVERY_S
from rq_core.protocol.engine.plan import Lost, Patience, Unsent

SOCKET_TIMEOUT_S: Final = 10.0
"""Seconds without a reply after which a connection is closed."""
WORKER_SOCKET_TIMEOUT_S: Final = 4.0
"""Seconds without a reply after which a worker's connection is closed. If an outage cuts a connection silently, the
worker waits this long even if Redis is back earlier. The time is short, because a worker must claim again within ten
seconds. A call that the worker sends again is carried out only once."""
BLOCK_MARGIN_S: Final = 2.0
"""Seconds of delay that are allowed for the answer to a blocking command."""
ROUND_TRIP_S: Final = 0.0001
"""The estimated round trip in seconds before the first exchange. It is low: a new client treats its server as near
until about thirty exchanges in a row were slower."""
ROUND_TRIP_GROWTH: Final = 1.04
"""Factor by which one exchange may raise the estimated round trip."""


L = TypeVar("L", bound=Connection)
Meanwhile = Callable[[], None] | None
Hear = Callable[[Any], None] | None


class Transport(Protocol):
    """The interface between a Client and its connections to servers."""

    one_slot: bool
    """True if all keys of a blocking command must belong to one queue."""

    def exchange(
        self,
        commands: Sequence[Sequence[Any]],
        meanwhile: Meanwhile = None,
        patience: Patience | None = None,
    ) -> list[Any]:
        """Send commands in one round trip, and return the replies. A failed command has an exception in place of its
        reply.

        ``meanwhile``: a function that is called when the commands have been sent; it is not called if none were sent.
        ``patience`` limits the seconds to connect (``unsent``) and the seconds to wait for a reply (``unknown``). The
        timeouts of the connections apply, too.
        """

    def block(self, command: Sequence[Any], seconds: float) -> Any:
        """Send a blocking command that answers within ``seconds``. Return the reply, or raise its error. No other
        caller uses the connection meanwhile."""

    def place(self, key: str) -> object:
        """Return an object that identifies the server of a key. None: there is only one server, or the key's server is
        not known yet."""

    def new_connection(self, key: str, kind: Callable[[Any], L]) -> L | None:
        """Return a new, unopened connection to the server that has a key; None if the server is not known yet.
        ``kind``: the class of the connection."""

    def is_current(self, connection: Connection) -> bool:
        """Return whether a new connection would lead to the same server as this connection."""

    def close(self) -> None:
        """Close all connections."""


class AsyncTransport(Protocol):
    """The interface between an AsyncClient and its connections. Transport describes the methods."""

    one_slot: bool

    async def exchange(
        self,
        commands: Sequence[Sequence[Any]],
        meanwhile: Meanwhile = None,
        patience: Patience | None = None,
    ) -> list[Any]:
        """Send commands in one round trip, and return the replies. Transport.exchange describes the arguments."""

    async def block(self, command: Sequence[Any], seconds: float, hear: Hear = None) -> Any:
        """Send a blocking command that answers within ``seconds``. Return the reply, or raise its error. ``hear`` is
        called with the reply, or its ReplyError, one iteration of the event loop before the caller resumes."""

    def pool_of(self, key: str) -> AsyncPoolTransport | None:
        """Return the transport to the server that has a key; None if the server is not known yet, or is in this
        process."""

    def place(self, key: str) -> object:
        """Return an object that identifies the server of a key. Transport.place describes the object."""

    async def close(self) -> None:
        """Close all connections."""


class PoolTransport:
    """A Transport to one server, over a pool of connections."""

    one_slot = False

    def __init__(
        self,
        url: str,
        *,
        answer_within: float = SOCKET_TIMEOUT_S,
        connect_within: float = CONNECT_TIMEOUT_S,
    ) -> None:
        """Create a transport that is not connected yet. ``answer_within``: seconds for a reply. ``connect_within``:
        seconds to connect, up to the server's greeting."""
        retry, bounds = Retry(NoBackoff(), 0), (answer_within, connect_within)
        self._pool = Pool(source_of(redis.ConnectionPool, url, retry, *bounds), wait=answer_within)
        self._answer_within = answer_within

    def exchange(
        self,
        commands: Sequence[Sequence[Any]],
        meanwhile: Meanwhile = None,
        patience: Patience | None = None,
    ) -> list[Any]:
        if patience is None:
            return self._exchange(commands, meanwhile, None)
        seconds = max(SOON_S, patience.unknown)
        if seconds >= self._answer_within:
            return self._exchange(commands, meanwhile, None, patience.unsent)
        return self._exchange(commands, meanwhile, seconds, patience.unsent)

    def _exchange(
        self,
        commands: Sequence[Sequence[Any]],
        meanwhile: Meanwhile,
        seconds: float | None,
        connect_within: float | None = None,
    ) -> list[Any]:
        """Send commands, and return the replies.

        ``seconds``: timeout of a reply; None: the timeout of the connection. ``connect_within``: seconds to connect;
        None: the pool's own limit.
        """
        try:
            connection = self._pool.take(connect_within)
        except (*BROKEN, redis.RedisError) as error:
            return [unsent(error)] * len(commands)
        replies: list[Any] = []
        try:
            connection.send(_packed(commands))
            if meanwhile is not None:
                meanwhile()
            if seconds is not None:
                connection.wait_for(seconds)
            connection.receive(len(commands), replies)
            if seconds is not None:
                connection.wait_for(None)
            if is_demoted(replies):
                connection.disconnect()
                self._distrust()
        except BROKEN as error:
            connection.disconnect()
            self._distrust()
            replies += [Lost(own_words(error))] * (len(commands) - len(replies))
        except BaseException:
            # Replies may still arrive: this connection cannot be used again.
            connection.disconnect()
            raise
        finally:
            self._pool.give_back(connection)
        return replies

    def block(self, command: Sequence[Any], seconds: float) -> Any:
        return _or_raise(self._exchange([command], None, seconds + BLOCK_MARGIN_S))

    def _distrust(self) -> None:
        """Disconnect idle connections, because one connection has broken and they may be dead, too. Each dead
        connection would cost a timeout."""
        self._pool.disconnect_idle()

    def place(self, key: str) -> object:  # noqa: ARG002 - all are in one place
        return None

    def new_connection(self, key: str, kind: Callable[[Any], L]) -> L | None:  # noqa: ARG002 - see place
        return self._pool.new_connection(kind)

    def is_current(self, connection: Connection) -> bool:
        return not self._pool.leads_elsewhere(connection)

    def close(self) -> None:
        self._pool.disconnect()


class AsyncPoolTransport:
    """An AsyncTransport to one server, over a pool of connections."""

    one_slot = False

    def __init__(
        self,
        url: str,
        *,
        answer_within: float = SOCKET_TIMEOUT_S,
        connect_within: float = CONNECT_TIMEOUT_S,
        keep: bool = True,
    ) -> None:
        """Create a transport that is not connected yet.

        ``answer_within``: seconds for a reply. ``connect_within``: seconds to connect, up to the server's greeting.
        ``keep``: whether connections are reused.
        """
        retry, bounds = AsyncRetry(NoBackoff(), 0), (answer_within, connect_within)
        source = source_of(redis.asyncio.ConnectionPool, url, retry, *bounds)
        self._pool = AsyncPool(source, wait=answer_within, keep=keep)
        self._answer_within = answer_within
        self.round_trip = ROUND_TRIP_S
        """The estimated seconds of a round trip: about the shortest of the recent exchanges that did not block.

        A busy server, a busy loop and the work of the calls make an exchange longer than a round trip. So each exchange
        may lower the estimate to its own duration, but raise it only by the factor ROUND_TRIP_GROWTH.
        """

    async def exchange(
        self,
        commands: Sequence[Sequence[Any]],
        meanwhile: Meanwhile = None,
        patience: Patience | None = None,
    ) -> list[Any]:
        """Send commands in one round trip, and return the replies. Transport.exchange describes the arguments."""
        if patience is None:
            return await self._exchange(commands, meanwhile, self._answer_within)
        seconds = min(self._answer_within, max(SOON_S, patience.unknown))
        return await self._exchange(commands, meanwhile, seconds, patience.unsent)

    async def _exchange(
        self,
        commands: Sequence[Sequence[Any]],
        meanwhile: Meanwhile,
        seconds: float,
        connect_within: float | None = None,
    ) -> list[Any]:
        """Send commands, and return the replies. ``seconds``: timeout of a reply. ``connect_within``: seconds to
        connect; None: the pool's own limit."""
        count = len(commands)
        connection = self._pool.take_idle()
        if connection is None:
            try:
                connection = await self._pool.take(connect_within)
            except (*BROKEN_ASYNC, redis.RedisError) as error:
                return [unsent(error)] * count
        try:
            answer = connection.ask(_packed(commands), count, seconds)
            sent = time.perf_counter()
            if meanwhile is not None:
                meanwhile()
            await answer
            self._note_round_trip(time.perf_counter() - sent)
            replies = connection.replies
            if is_demoted(replies):
                await connection.drop()
                await self._distrust()
        except BROKEN_ASYNC as error:
            replies = await self._replies_before(error, connection, count)
            await self._distrust()
        except BaseException:
            await connection.drop()
            raise
        finally:
            if not self._pool.keeps:
                await connection.drop()
            self._pool.give_back(connection)
        return replies

    def _note_round_trip(self, seconds: float) -> None:
        self.round_trip = min(seconds, self.round_trip * ROUND_TRIP_GROWTH)

    async def _wait(
        self,
        commands: Sequence[Sequence[Any]],
        seconds: float,
        hear: Hear = None,
        then: Sequence[Any] | None = None,
        on_then: Callable[[], None] | None = None,
        until: asyncio.Future[Any] | None = None,
    ) -> list[Any]:
        """Send a command that blocks for up to ``seconds``, with any further commands behind it. Return the replies.

        ``hear``: a function that is called with the last reply. ``then``: a command that is sent as soon as the first
        reply arrives; ``on_then`` is called after that. When ``until`` is done, the connection is closed, and missing
        replies become errors.
        """
        written: list[float] = []

        def note_write() -> None:
            written.append(time.perf_counter())
            if on_then is not None:
                on_then()

        count = len(commands) + (then is not None)
        try:
            connection = self._pool.take_idle() or await self._pool.take(None)
        except (*BROKEN_ASYNC, redis.RedisError) as error:
            return [unsent(error)] * count
        end: Callable[[asyncio.Future[Any]], None] | None = None
        try:
            data = _packed(commands), count, seconds + BLOCK_MARGIN_S
            # A call behind a wait has the time of each other call, once the wait is over.
            after = b"" if then is None else _packed((then,))
            answer = connection.ask(*data, hear, self._answer_within, after, note_write)
            if until is not None:
                end = functools.partial(_end_wait, answer)
                until.add_done_callback(end)
            if self._pool.sentinels is not None:
                await self._watched(connection, answer)
            await answer
            if written:
                self._note_round_trip(time.perf_counter() - written[0])
            replies = connection.replies
            if is_demoted(replies):
                await connection.drop()
                await self._distrust()
        except BROKEN_ASYNC as error:
            replies = await self._replies_before(error, connection, count)
            if until is None or not until.done():
                await self._distrust()
        except BaseException:
            await connection.drop()
            raise
        finally:
            if until is not None and end is not None:
                until.remove_done_callback(end)
            if not self._pool.keeps:
                await connection.drop()
            self._pool.give_back(connection)
        return replies

    async def _replies_before(
        self, error: Exception, connection: AsyncConnection, count: int
    ) -> list[Any]:
        """Close a broken connection, and return ``count`` replies. Each reply that had not arrived is replaced by the
        error."""
        replies, unwritten = connection.replies, connection.unwritten
        await connection.drop()
        replies += [Lost(own_words(error))] * (count - len(replies))
        if unwritten:
            replies[-1] = Unsent(own_words(error))
        return replies

    async def block(self, command: Sequence[Any], seconds: float, hear: Hear = None) -> Any:
        """Send a blocking command that answers within ``seconds``. Return the reply, or raise its error. ``hear`` is
        called with the reply, or its ReplyError, one iteration of the event loop before the caller resumes."""
        return _or_raise(await self._wait([command], seconds, hear))

    def pool_of(self, key: str) -> AsyncPoolTransport | None:  # noqa: ARG002 - all are in one place
        """Return this transport, because it leads to the only server."""
        return self

    async def block_before(
        self,
        command: Sequence[Any],
        call: Sequence[Any],
        seconds: float,
        until: asyncio.Future[Any],
        on_token: Callable[[], None] | None,
    ) -> list[Any]:
        """Send a blocking command that answers within ``seconds``, and a call behind it. Return both replies.

        Without ``on_token``, both are written at once, and the server carries out the call when the blocking command
        ends. With ``on_token``, the call is written as soon as the blocking command has been answered, and then
        ``on_token`` is called.

        A failed command has an exception in place of its reply. When ``until`` is done, the connection is closed, and
        the missing replies become exceptions.
        """
        if on_token is None:
            return await self._wait([command, call], seconds, until=until)
        return await self._wait([command], seconds, None, call, on_token, until)

    async def _watched(self, connection: AsyncConnection, answer: asyncio.Future[None]) -> None:
        """Wait for the reply to a blocking command, and watch the sentinels meanwhile. Raises EOFError if the sentinels
        name another server, because the reply may then never come."""
        while not answer.done():
            await asyncio.wait({answer}, timeout=LOOK_EVERY_S)
            if not answer.done() and await self._pool.leads_elsewhere(connection):
                raise EOFError("the sentinels name another primary")

    async def _distrust(self) -> None:
        """Disconnect idle connections, because one connection has broken and they may be dead, too."""
        with contextlib.suppress(redis.RedisError, *BROKEN_ASYNC):
            await self._pool.disconnect_idle()

    def place(self, key: str) -> object:  # noqa: ARG002 - all are in one place
        """Return None: all keys are on one server."""
        return None

    async def close(self) -> None:
        """Close all connections."""
        await self._pool.disconnect()


def _end_wait(answer: asyncio.Future[None], _: asyncio.Future[Any]) -> None:
    if not answer.done():
        answer.set_exception(EOFError("the wait was ended on this side"))


def _or_raise(replies: list[Any]) -> Any:
    (reply,) = replies
    if isinstance(reply, Exception):
        raise reply
    return reply


def _packed(commands: Sequence[Sequence[Any]]) -> bytes:
    """Return commands as the bytes to send. redis-py's own packing is slower, because it checks the type of each
    argument."""
    try:
        if len(commands) == 1:
            packed: bytes = hiredis.pack_command(tuple(commands[0]))
            return packed
        return b"".join([hiredis.pack_command(tuple(command)) for command in commands])
    except UnicodeEncodeError:
        # A reply with bytes that are not UTF-8 was read; a command about such a job must reach Redis, too.
        return _packed([[_as_bytes(word) for word in command] for command in commands])


def _as_bytes(word: Any) -> Any:
    return word.encode(errors="surrogateescape") if isinstance(word, str) else word
