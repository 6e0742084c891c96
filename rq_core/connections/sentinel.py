"""Redis behind Sentinel: who the primary is, asked at every connection, and checked with the server itself.

    redis+sentinel://host:26379,other:26379/mymaster?db=0&sentinel_password=…

User and password before the hosts are those of the Redis servers; ``sentinel_username`` and ``sentinel_password`` those
of the sentinels. ``rediss+sentinel://`` speaks TLS with both. All other options are redis-py's own.

Sentinel's answer may be older than a failover, so a server counts as the primary only if its ROLE says so. Until then a
connection cannot be made, which callers wait out like any outage. :mod:`rq_core.connections.sentinels` asks.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

import redis
import redis.asyncio
from redis.exceptions import NoPermissionError

from rq_core.connections.line import CONNECT_TIMEOUT_S, soonest
from rq_core.connections.sentinels import ANSWER_WITHIN_S, Address, Sentinels
from rq_core.model.url import check_port

SCHEMES: Final = ("redis+sentinel://", "rediss+sentinel://")
DEFAULT_PORT: Final = 26379
PRIMARY_CONNECTS_S: Final = 1.5
"""Seconds in which the server that Sentinel names is to accept a connection and say that it is the primary. A frozen
server does not; by the next try Sentinel may name another."""


def named_by(url: str) -> bool:
    """Whether a URL names sentinels."""
    return url.startswith(SCHEMES)


class _Refused(redis.ConnectionError):
    """What Sentinel named is not the primary, or not yet, or no longer."""

    def __init__(self, address: Address, role: str) -> None:
        host, port = address
        super().__init__(f"Sentinel names {host}:{port}, whose role is {role}")


class PrimaryConnection(redis.Connection):
    """A connection to whatever the primary is when it is made."""

    def __init__(self, *, sentinels: Sentinels, **options: Any) -> None:
        self._sentinels = sentinels
        super().__init__(**options)  # type: ignore[no-untyped-call]

    def connect(self) -> None:
        """Connect to the primary, if it is not connected. Raises redis.ConnectionError while there is none."""
        plain: Any = super()
        socket: Any = self._sock
        if socket is not None:
            return
        within = self.socket_connect_timeout or CONNECT_TIMEOUT_S
        deadline = time.monotonic() + within
        self.host, self.port = self._sentinels.ask(within)
        left = soonest(PRIMARY_CONNECTS_S, deadline - time.monotonic())
        self.socket_timeout = self.socket_connect_timeout = left
        try:
            plain.connect()
            plain.send_command("ROLE")
            role = _role(plain.read_response())
        except redis.ResponseError as error:
            role = _role(error)
        except BaseException:
            self._sentinels.doubt()
            plain.disconnect()
            raise
        if role != "master":
            self._sentinels.doubt()
            plain.disconnect()
            raise _Refused((self.host, self.port), role)


class PrimarySSLConnection(PrimaryConnection, redis.SSLConnection):
    """The same with TLS."""


class AsyncPrimaryConnection(redis.asyncio.Connection):
    """The same for asyncio."""

    def __init__(self, *, sentinels: Sentinels, **options: Any) -> None:
        self._sentinels = sentinels
        super().__init__(**options)

    async def connect(self) -> None:
        """See PrimaryConnection.connect."""
        if self.is_connected:
            return
        self.host, self.port = await self._sentinels.ask_async(
            self.socket_connect_timeout or CONNECT_TIMEOUT_S
        )
        plain: Any = super()
        try:
            async with asyncio.timeout(PRIMARY_CONNECTS_S):
                await plain.connect()
                await self.send_command("ROLE")
                role = _role(await self.read_response())
        except redis.ResponseError as error:
            role = _role(error)
        except BaseException:
            self._sentinels.doubt()
            await self.disconnect(nowait=True)
            raise
        if role != "master":
            self._sentinels.doubt()
            await self.disconnect(nowait=True)
            raise _Refused((self.host, self.port), role)


class AsyncPrimarySSLConnection(AsyncPrimaryConnection, redis.asyncio.SSLConnection):
    """The same with TLS."""


def _role(reply: Any) -> str:
    """What a server says of itself. Without the right to ask one goes on: a replica refuses what writes."""
    if isinstance(reply, NoPermissionError):
        return "master"
    return str(reply if isinstance(reply, Exception) else reply[0])


_BY_ASYNCIO_AND_TLS: Final[dict[tuple[bool, bool], type]] = {
    (False, False): PrimaryConnection,
    (False, True): PrimarySSLConnection,
    (True, False): AsyncPrimaryConnection,
    (True, True): AsyncPrimarySSLConnection,
}


def parse(url: str, *, for_asyncio: bool, answer_within: float) -> tuple[str, dict[str, Any]]:
    """What redis-py's pool needs to reach the primary: a URL without a meaningful host, and options beside it.

    Raises ValueError, in words that complete "must be a URL".
    """
    parts = urlsplit(url)
    tls = parts.scheme.startswith("rediss")
    credentials, _, hosts = parts.netloc.rpartition("@")
    service, _, database = parts.path.strip("/").partition("/")
    if not service:
        raise ValueError("it names no service, as in redis+sentinel://host:26379/mymaster")
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    database = query.pop("db", "") or database or "0"
    if not database.isdecimal():
        raise ValueError(f"{database} is not the number of a database")
    mine = {
        name: query.pop(f"sentinel_{name}")
        for name in ("username", "password")
        if f"sentinel_{name}" in query
    }
    scheme = "rediss" if tls else "redis"
    address = f"{credentials}@sentinel" if credentials else "sentinel"
    # redis-py reads the options, also those of TLS that the connections to sentinels share.
    plain = f"{scheme}://{address}/{database}?{urlencode(query)}"
    shared = redis.ConnectionPool.from_url(plain).connection_kwargs if tls else {}
    within = min(ANSWER_WITHIN_S, answer_within)
    sentinels = Sentinels(
        [_address(each) for each in hosts.split(",")],
        unquote(service),
        {
            **{name: value for name, value in shared.items() if name.startswith("ssl_")},
            **mine,
            "ssl": tls,
            "decode_responses": True,
            "socket_connect_timeout": within,
            "socket_timeout": within,
            "protocol": 2,
        },
    )
    return plain, {
        "connection_class": _BY_ASYNCIO_AND_TLS[for_asyncio, tls],
        "sentinels": sentinels,
    }


def _address(said: str) -> Address:
    """``host``, ``host:port`` or ``[::1]:port``."""
    parts = urlsplit(f"//{said}")
    if not parts.hostname:
        raise ValueError(f"{said or 'nothing'!r} is not the host:port of a sentinel")
    return parts.hostname, check_port(parts) or DEFAULT_PORT
