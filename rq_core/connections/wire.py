"""Connections: commands out, replies back, errors in the place of replies. Nothing is sent twice here.

:mod:`rq_core.protocol.operations` decides what to re-send; redis-py's own retries are off. It must know whether a
command was sent at all, so exchanges are made on connections taken from the pool, not through redis-py's commands.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import urlsplit

import hiredis
import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry

from rq_core.connections import sentinel
from rq_core.connections.pool import AsyncPool, Pool
from rq_core.errors import InvalidOption
from rq_core.model.url import is_cluster
from rq_core.protocol.plan import Lost, ReplyError, Unsent

SOCKET_TIMEOUT: Final = 10.0
"""Seconds without a reply after which a connection is given up."""
WORKER_SOCKET_TIMEOUT: Final = 4.0
"""The same for workers: one that waits on a connection which an outage has silently ended waits so long after Redis is
back, and is to claim again within ten seconds. What it sends again is carried out once."""
BLOCK_MARGIN: Final = 2.0
"""Seconds that the answer to a blocking command may come late."""
CONNECT_TIMEOUT: Final = 5.0

_BROKEN = (redis.ConnectionError, redis.TimeoutError, OSError, EOFError)
_BROKEN_ASYNC = (TimeoutError, RuntimeError, *_BROKEN)
"""RuntimeError is what uvloop raises to whoever writes to a connection that was just reset."""
_DEMOTED = ("READONLY", "MASTERDOWN", "UNBLOCKED")
"""What a server answers that is the primary no more: the next call needs another connection, perhaps elsewhere."""
_ANSWERED = (redis.AuthenticationError, redis.BusyLoadingError)
"""What redis-py counts as a broken connection, though the server answered: it carried nothing out, and says why."""


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


def open_wire(url: str, *, answer_within: float = SOCKET_TIMEOUT) -> Wire:
    """The wire to what a URL names; it connects to nothing yet. Raises InvalidOption."""
    if is_cluster(url):
        # Imported only here: most processes talk to one server.
        from rq_core.connections.cluster import ClusterWire

        return ClusterWire(url, answer_within=answer_within)
    return PoolWire(url, answer_within=answer_within)


def open_async_wire(url: str, *, answer_within: float = SOCKET_TIMEOUT) -> AsyncWire:
    """The same for asyncio."""
    if is_cluster(url):
        from rq_core.connections.cluster import AsyncClusterWire

        return AsyncClusterWire(url, answer_within=answer_within)
    return AsyncPoolWire(url, answer_within=answer_within)


def resolve(url: str) -> str:
    """The URL that redis-py understands; ``embedded://`` starts or finds the server that comes with rq-core.

    Raises InvalidOption for a URL that is neither.
    """
    if url.startswith("embedded:"):
        # Imported only here: most processes talk to a server of their own.
        from rq_core.embedded import server

        return server.resolve(url)
    if not url.startswith(("redis://", "rediss://", "unix://", *sentinel.SCHEMES)):
        raise InvalidOption(
            option="redis",
            value=url,
            must="must begin with redis://, rediss://, unix:// or embedded://, or redis+cluster:// or redis+sentinel://"
            " (rediss+… with TLS)",
        )
    return url


def _options(retry: Any, answer_within: float) -> dict[str, Any]:
    return {
        "decode_responses": True,
        # A reply with bytes that are not UTF-8 must reach whoever can say which job it is.
        "encoding_errors": "surrogateescape",
        "retry": retry,
        "socket_connect_timeout": min(CONNECT_TIMEOUT, answer_within),
        "socket_timeout": answer_within,
        "socket_keepalive": True,
        "protocol": 2,
    }


def _for_unix(url: str, options: dict[str, Any]) -> dict[str, Any]:
    if url.startswith("unix:"):
        del options["socket_keepalive"]
    return options


def _source(kind: Any, url: str, retry: Any, answer_within: float) -> Any:
    """What makes connections: a pool of redis-py. Nothing is connected yet. Raises InvalidOption.

    redis-py would pass over a path that is no number of a database, and notice an unknown option only when it
    connects.
    """
    try:
        real, options = resolve(url), _options(retry, answer_within)
        if sentinel.named_by(real):
            real, more = sentinel.parse(
                real,
                for_asyncio=kind is redis.asyncio.ConnectionPool,
                answer_within=answer_within,
            )
            options |= more
        if not real.startswith("unix:"):
            int(urlsplit(real).path.strip("/") or 0)
        pool = kind.from_url(real, **_for_unix(real, options))
        pool.connection_class(**pool.connection_kwargs)
        _check_files(pool.connection_kwargs)
    except (ValueError, TypeError, redis.RedisError) as error:
        raise InvalidOption(option="redis", value=url, must=f"must be a URL ({error})") from None
    return pool


def _check_files(options: Mapping[str, Any]) -> None:
    """Raise ValueError for a file that is not there: OpenSSL would not say which, and only when it connects."""
    for name in ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile"):
        path = options.get(name)
        if path is not None and not Path(path).is_file():
            raise ValueError(f"there is no file {path}, which {name} names")


class PoolWire:
    """A Wire over a pool of connections."""

    one_slot = False

    def __init__(self, url: str, *, answer_within: float = SOCKET_TIMEOUT) -> None:
        retry = Retry(NoBackoff(), 0)
        self._pool = Pool(
            _source(redis.ConnectionPool, url, retry, answer_within), wait=answer_within
        )

    def exchange(self, commands: Sequence[Sequence[Any]], meanwhile: Meanwhile = None) -> list[Any]:
        try:
            connection: Any = self._pool.take()
        except (*_BROKEN, redis.RedisError) as error:
            return [_unsent(error)] * len(commands)
        replies: list[Any] = []
        try:
            connection.send_packed_command(_packed(commands))
            if meanwhile is not None:
                meanwhile()
            for _ in commands:
                try:
                    replies.append(connection.read_response())
                except redis.ResponseError as error:
                    replies.append(ReplyError(_words(error)))
        except _ANSWERED as error:
            replies += [ReplyError(_words(error))] * (len(commands) - len(replies))
        except _BROKEN as error:
            connection.disconnect()
            self._distrust()
            replies += [Lost(_words(error))] * (len(commands) - len(replies))
        except BaseException:
            # Replies may still be under way: this connection cannot be used again.
            connection.disconnect()
            raise
        else:
            if _demoted(replies):
                connection.disconnect()
                self._distrust()
        finally:
            self._pool.give_back(connection)
        return replies

    def block(self, command: Sequence[Any], seconds: float) -> Any:
        try:
            connection: Any = self._pool.take()
        except redis.RedisError as error:
            raise Unsent(_words(error)) from error
        try:
            connection.send_command(*command)
            return connection.read_response(timeout=seconds + BLOCK_MARGIN)
        except redis.ResponseError as error:
            reply = ReplyError(_words(error))
            if _demoted([reply]):
                connection.disconnect()
                self._distrust()
            raise reply from error
        except _BROKEN as error:
            connection.disconnect()
            self._distrust()
            raise Lost(_words(error)) from error
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

    def __init__(self, url: str, *, answer_within: float = SOCKET_TIMEOUT) -> None:
        retry = AsyncRetry(NoBackoff(), 0)
        self._pool = AsyncPool(
            _source(redis.asyncio.ConnectionPool, url, retry, answer_within), wait=answer_within
        )
        self._answer_within = answer_within

    async def exchange(
        self, commands: Sequence[Sequence[Any]], meanwhile: Meanwhile = None
    ) -> list[Any]:
        """See Wire.exchange."""
        try:
            connection: Any = await self._pool.take()
        except (*_BROKEN_ASYNC, redis.RedisError) as error:
            return [_unsent(error)] * len(commands)
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
                        replies.append(ReplyError(_words(error)))
        except _ANSWERED as error:
            replies += [ReplyError(_words(error))] * (len(commands) - len(replies))
        except _BROKEN_ASYNC as error:
            await connection.disconnect(nowait=True)
            await self._distrust()
            replies += [Lost(_words(error))] * (len(commands) - len(replies))
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        else:
            if _demoted(replies):
                await connection.disconnect(nowait=True)
                await self._distrust()
        finally:
            self._pool.give_back(connection)
        return replies

    async def block(self, command: Sequence[Any], seconds: float) -> Any:
        """See Wire.block."""
        try:
            connection: Any = await self._pool.take()
        except (*_BROKEN_ASYNC, redis.RedisError) as error:
            raise Unsent(_words(error)) from error
        try:
            async with asyncio.timeout(seconds + BLOCK_MARGIN):
                await _send_now(connection, _packed([command]))
                # redis-py answers None at the end of a timeout that it is given, as if that were the reply, and leaves
                # the connection with a reply to come: so it is given none.
                return await connection.read_response(timeout=math.inf)
        except redis.ResponseError as error:
            reply = ReplyError(_words(error))
            if _demoted([reply]):
                await connection.disconnect(nowait=True)
                await self._distrust()
            raise reply from error
        except _BROKEN_ASYNC as error:
            await connection.disconnect(nowait=True)
            await self._distrust()
            raise Lost(_words(error)) from error
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        finally:
            self._pool.give_back(connection)

    async def _distrust(self) -> None:
        """See PoolWire._distrust."""
        with contextlib.suppress(redis.RedisError, *_BROKEN_ASYNC):
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


def _unsent(error: Exception) -> Unsent | ReplyError:
    """What stands in the place of a reply to a command for which no connection could be made."""
    broken = isinstance(error, _BROKEN_ASYNC) and not isinstance(error, _ANSWERED)
    return Unsent(_words(error)) if broken else ReplyError(_words(error))


def _loop_time() -> float:
    return asyncio.get_running_loop().time()


def _demoted(replies: Sequence[Any]) -> bool:
    return any(
        isinstance(reply, ReplyError) and str(reply).startswith(_DEMOTED) for reply in replies
    )


def _words(error: BaseException) -> str:
    """The error's own words, with the prefix (NOSCRIPT, OOM…) that redis-py turns into a class."""
    text = str(error).rstrip(".") or type(error).__name__
    for sign, advice in _TLS_ADVICE.items():
        if sign in text:
            return f"{advice} ({text})"
    if "Protocol error: unauthenticated" in text:
        # What a server that asks for a password says to a command of more than ten words.
        return f"NOAUTH Authentication required ({text})"
    prefix = _PREFIXES.get(type(error))
    return text if prefix is None or text.startswith(prefix) else f"{prefix} {text}"


_NAME_YOURS: Final = (
    "it asks for a certificate: name yours in the URL,"
    " ?ssl_certfile=/path/client.crt&ssl_keyfile=/path/client.key"
)
_TLS_ADVICE: Final = {
    "unable to get local issuer certificate": "nobody known vouches for its certificate: name the authority's"
    " file in the URL, ?ssl_ca_certs=/path/ca.crt",
    "self-signed certificate": "its certificate is signed by itself or by an authority that is not known here: name the"
    " authority's file in the URL, ?ssl_ca_certs=/path/ca.crt",
    "CERTIFICATE_REQUIRED": _NAME_YOURS,
    # What is written before that alert is read meets a connection that has ended.
    "EOF occurred in violation of protocol": f"it ended the TLS connection; perhaps {_NAME_YOURS}",
}
"""What OpenSSL says, and what to do about it."""
_PREFIXES: Final[dict[type, str]] = {
    redis.exceptions.NoScriptError: "NOSCRIPT",
    redis.exceptions.OutOfMemoryError: "OOM",
    redis.exceptions.ReadOnlyError: "READONLY",
    redis.exceptions.BusyLoadingError: "LOADING",
    redis.exceptions.NoPermissionError: "NOPERM",
    redis.exceptions.AuthenticationError: "NOAUTH",
    redis.exceptions.TryAgainError: "TRYAGAIN",
    redis.exceptions.MovedError: "MOVED",
    redis.exceptions.AskError: "ASK",
    redis.exceptions.ClusterCrossSlotError: "CROSSSLOT",
    redis.exceptions.ClusterDownError: "CLUSTERDOWN",
    redis.exceptions.MasterDownError: "MASTERDOWN",
}
