"""Connections: commands out, replies back, errors in the place of replies. Nothing is sent twice here.

:mod:`rq_core.protocol.operations` decides what to re-send; redis-py's own retries are off. It must know whether a
command was sent at all, so exchanges are made on connections taken from the pool, not through redis-py's commands.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

import hiredis
import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry

from rq_core.connections.pool import AsyncPool, Pool
from rq_core.connections.redis_errors import (
    ANSWERED,
    BROKEN,
    BROKEN_ASYNC,
    is_demoted,
    unsent,
    words_of,
)
from rq_core.connections.source import source_of
from rq_core.protocol.plan import Lost, ReplyError, Unsent

SOCKET_TIMEOUT_S: Final = 10.0
"""Seconds without a reply after which a connection is given up."""
WORKER_SOCKET_TIMEOUT_S: Final = 4.0
"""The same for workers: one that waits on a connection which an outage has silently ended waits so long after Redis is
back, and is to claim again within ten seconds. What it sends again is carried out once."""
BLOCK_MARGIN_S: Final = 2.0
"""Seconds that the answer to a blocking command may come late."""


Meanwhile = Callable[[], None] | None


class Wire(Protocol):
    """What a Client needs of a connection."""

    one_slot: bool
    """Whether a blocking command may have the keys of one queue only."""

    def exchange(self, commands: Sequence[Sequence[Any]], meanwhile: Meanwhile = None) -> list[Any]:
        """One round trip. An exception stands in the place of a reply that is an error, or did not come.

        ``meanwhile`` is called, if at all, when the commands have been sent.
        """

    def block(self, command: Sequence[Any], seconds: float) -> Any:
        """One blocking command that answers within ``seconds``, on a connection of its own."""

    def place(self, key: str) -> object:
        """Which of its servers has a key, as far as is known: equal for keys that are in one place."""

    def close(self) -> None:
        """Close all connections."""


class AsyncWire(Protocol):
    """What an AsyncClient needs: see Wire."""

    one_slot: bool

    async def exchange(
        self, commands: Sequence[Sequence[Any]], meanwhile: Meanwhile = None
    ) -> list[Any]:
        """See Wire.exchange."""

    async def block(self, command: Sequence[Any], seconds: float) -> Any:
        """See Wire.block."""

    def place(self, key: str) -> object:
        """See Wire.place."""

    async def close(self) -> None:
        """Close all connections."""


class PoolWire:
    """A Wire over a pool of connections."""

    one_slot = False

    def __init__(self, url: str, *, answer_within: float = SOCKET_TIMEOUT_S) -> None:
        retry = Retry(NoBackoff(), 0)
        self._pool = Pool(
            source_of(redis.ConnectionPool, url, retry, answer_within), wait=answer_within
        )

    def exchange(self, commands: Sequence[Sequence[Any]], meanwhile: Meanwhile = None) -> list[Any]:
        try:
            connection: Any = self._pool.take()
        except (*BROKEN, redis.RedisError) as error:
            return [unsent(error)] * len(commands)
        replies: list[Any] = []
        try:
            connection.send_packed_command(_packed(commands))
            if meanwhile is not None:
                meanwhile()
            for _ in commands:
                try:
                    replies.append(connection.read_response())
                except redis.ResponseError as error:
                    replies.append(ReplyError(words_of(error)))
        except ANSWERED as error:
            replies += [ReplyError(words_of(error))] * (len(commands) - len(replies))
        except BROKEN as error:
            connection.disconnect()
            self._distrust()
            replies += [Lost(words_of(error))] * (len(commands) - len(replies))
        except BaseException:
            # Replies may still be under way: this connection cannot be used again.
            connection.disconnect()
            raise
        else:
            if is_demoted(replies):
                connection.disconnect()
                self._distrust()
        finally:
            self._pool.give_back(connection)
        return replies

    def block(self, command: Sequence[Any], seconds: float) -> Any:
        try:
            connection: Any = self._pool.take()
        except redis.RedisError as error:
            raise Unsent(words_of(error)) from error
        try:
            connection.send_command(*command)
            return connection.read_response(timeout=seconds + BLOCK_MARGIN_S)
        except redis.ResponseError as error:
            reply = ReplyError(words_of(error))
            if is_demoted([reply]):
                connection.disconnect()
                self._distrust()
            raise reply from error
        except BROKEN as error:
            connection.disconnect()
            self._distrust()
            raise Lost(words_of(error)) from error
        except BaseException:
            connection.disconnect()
            raise
        finally:
            self._pool.give_back(connection)

    def _distrust(self) -> None:
        """One connection is broken: those that lie idle may have died with it, and would each cost a timeout."""
        self._pool.disconnect_idle()

    def place(self, key: str) -> object:  # noqa: ARG002 - all are in one place
        return None

    def close(self) -> None:
        self._pool.disconnect()


class AsyncPoolWire:
    """The same for asyncio."""

    one_slot = False

    def __init__(self, url: str, *, answer_within: float = SOCKET_TIMEOUT_S) -> None:
        retry = AsyncRetry(NoBackoff(), 0)
        self._pool = AsyncPool(
            source_of(redis.asyncio.ConnectionPool, url, retry, answer_within), wait=answer_within
        )
        self._answer_within = answer_within

    async def exchange(
        self, commands: Sequence[Sequence[Any]], meanwhile: Meanwhile = None
    ) -> list[Any]:
        """See Wire.exchange."""
        try:
            connection: Any = await self._pool.take()
        except (*BROKEN_ASYNC, redis.RedisError) as error:
            return [unsent(error)] * len(commands)
        replies: list[Any] = []
        try:
            async with asyncio.timeout(self._answer_within) as limit:
                await _send_now(connection, _packed(commands))
                if meanwhile is not None:
                    meanwhile()
                for _ in commands:
                    if replies:
                        limit.reschedule(_loop_time() + self._answer_within)
                    try:
                        replies.append(await connection.read_response(timeout=math.inf))
                    except redis.ResponseError as error:
                        replies.append(ReplyError(words_of(error)))
        except ANSWERED as error:
            replies += [ReplyError(words_of(error))] * (len(commands) - len(replies))
        except BROKEN_ASYNC as error:
            await connection.disconnect(nowait=True)
            await self._distrust()
            replies += [Lost(words_of(error))] * (len(commands) - len(replies))
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        else:
            if is_demoted(replies):
                await connection.disconnect(nowait=True)
                await self._distrust()
        finally:
            self._pool.give_back(connection)
        return replies

    async def block(self, command: Sequence[Any], seconds: float) -> Any:
        """See Wire.block."""
        try:
            connection: Any = await self._pool.take()
        except (*BROKEN_ASYNC, redis.RedisError) as error:
            raise Unsent(words_of(error)) from error
        try:
            async with asyncio.timeout(seconds + BLOCK_MARGIN_S):
                await _send_now(connection, _packed([command]))
                # redis-py answers None at the end of a timeout that it is given, as if that were the reply, and leaves
                # the connection with a reply to come: so it is given none.
                return await connection.read_response(timeout=math.inf)
        except redis.ResponseError as error:
            reply = ReplyError(words_of(error))
            if is_demoted([reply]):
                await connection.disconnect(nowait=True)
                await self._distrust()
            raise reply from error
        except BROKEN_ASYNC as error:
            await connection.disconnect(nowait=True)
            await self._distrust()
            raise Lost(words_of(error)) from error
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        finally:
            self._pool.give_back(connection)

    async def _distrust(self) -> None:
        """See PoolWire._distrust."""
        with contextlib.suppress(redis.RedisError, *BROKEN_ASYNC):
            await self._pool.disconnect_idle()

    def place(self, key: str) -> object:  # noqa: ARG002 - all are in one place
        """See Wire.place."""
        return None

    async def close(self) -> None:
        """Close all connections."""
        await self._pool.disconnect()


def _packed(commands: Sequence[Sequence[Any]]) -> list[bytes]:
    """Commands as bytes. redis-py would look at each argument's type first: longer than all of this takes."""
    try:
        return [b"".join([hiredis.pack_command(tuple(command)) for command in commands])]
    except UnicodeEncodeError:
        # Replies with bytes that are not UTF-8 were read; what is said of such a job must reach Redis, too.
        return _packed([[_as_bytes(word) for word in command] for command in commands])


def _as_bytes(word: Any) -> Any:
    return word.encode(errors="surrogateescape") if isinstance(word, str) else word


async def _send_now(connection: Any, packed: Sequence[bytes]) -> None:
    """Write to the socket before anybody else has a turn on the loop.

    redis-py makes a task for a send that has a time limit, so the command would leave after whatever the loop does
    next. Our limit is around the whole exchange.
    """
    limit, connection.socket_timeout = connection.socket_timeout, None
    try:
        await connection.send_packed_command(packed, check_health=False)
    finally:
        connection.socket_timeout = limit


def _loop_time() -> float:
    return asyncio.get_running_loop().time()
