"""Connections to Redis behind Sentinel. The sentinels name the primary for each new connection, and the server must
confirm its role.

    redis+sentinel://host:26379,other:26379/mymaster?db=0&sentinel_password=…

User and password before the hosts are for the Redis servers; ``sentinel_username`` and ``sentinel_password`` are for
the sentinels. ``rediss+sentinel://`` uses TLS for the servers and for the sentinels. All other options are redis-py's
own.

A sentinel may still name the old primary after a failover. So a server counts as the primary only if its answer to the
command ROLE says so. Until then no connection can be opened, and callers wait as in any outage.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.exceptions import NoPermissionError
from redis.retry import Retry

from rq_core.connections import tls_probe
from rq_core.connections.connection import CONNECT_TIMEOUT_S, soonest
from rq_core.model.lib.url import check_port

# The sentinels of a service: they are asked for the primary's address at every connection, and once a second.
#
# A primary that is replaced while it lives (an operator asked for a failover, or it was frozen) accepts writes for some
# ten seconds more, until Sentinel makes it a replica; those writes are lost. So a pool checks once a second that the
# sentinels still name the server of its connections; if not, the connections are not used again.

log = logging.getLogger(__name__)

ANSWER_WITHIN_S: Final = 1.0
"""Seconds without an answer after which the next sentinel is asked."""

LOOK_EVERY_S: Final = 1.0
"""Seconds between two requests for the primary's address while its connections are in use."""
LOOK_LATER_S: Final = 10.0
"""Seconds until the next request for the primary's address, after as many failed requests in a row as there are
sentinels. Dead sentinels must not delay callers of a working primary."""

Address = tuple[str, int]
Said = Sequence[str] | Exception | None
"""A sentinel's answer: host and port of the primary, or an error; None if the sentinel does not know the service."""


@dataclass
class Sentinels:
    """The sentinels of one service (a primary and its replicas). Threads and forked children may share the object."""

    addresses: Sequence[Address]
    service: str
    options: dict[str, Any] = field(default_factory=dict)
    """Options of the connections to the sentinels, such as user, password and TLS."""

    def __post_init__(self) -> None:
        self._begin_process()
        self._order = list(self.addresses)
        self.primary: Address | None = None
        """The address of the primary that a sentinel named last; None before the first answer."""
        self._look_at = 0.0
        """Monotonic time before which no sentinel is asked again."""
        self._failed = 0
        """Number of requests since the last answer with an address; each request asks one sentinel."""

    def _begin_process(self) -> None:
        self._own_lock = threading.Lock()
        # Last: a thread that reads its own pid here must not see its parent's objects any more.
        self._pid = os.getpid()

    @property
    def _lock(self) -> threading.Lock:
        """The lock of this process for ``_order``. A process may fork while a thread holds the lock, so ``_order`` must
        be complete at any moment."""
        if os.getpid() != self._pid:
            # Another thread of the parent may have held the lock at the fork.
            self._begin_process()
        return self._own_lock

    def ask(self, within: float = CONNECT_TIMEOUT_S) -> Address:
        """Ask one sentinel after another for the primary, and return the primary's address.

        Raises redis.ConnectionError if no sentinel names a primary within ``within`` seconds.
        """
        silent: dict[Address, BaseException | None] = {}
        for sentinel, seconds in self._in_order(within):
            said = self._ask_one(sentinel, seconds)
            if said and not isinstance(said, Exception):
                return self._heard(sentinel, said)
            silent[sentinel] = said if isinstance(said, Exception) else None
        for sentinel, trouble in silent.items():
            if trouble is not None:
                try:
                    tls_probe.check_tls(self._made(sentinel), trouble)
                except tls_probe.OtherProtocol as error:
                    silent[sentinel] = error
        raise redis.ConnectionError(self._none(silent))

    async def ask_async(self, within: float = CONNECT_TIMEOUT_S) -> Address:
        """Ask one sentinel after another for the primary, and return the primary's address.

        Raises redis.ConnectionError if no sentinel names a primary within ``within`` seconds.
        """
        silent: dict[Address, BaseException | None] = {}
        for sentinel, seconds in self._in_order(within):
            said = await self._ask_one_async(sentinel, seconds)
            if said and not isinstance(said, Exception):
                return self._heard(sentinel, said)
            silent[sentinel] = said if isinstance(said, Exception) else None
        for sentinel, trouble in silent.items():
            if trouble is not None:
                try:
                    await tls_probe.check_tls_async(self._made(sentinel), trouble)
                except tls_probe.OtherProtocol as error:
                    silent[sentinel] = error
        raise redis.ConnectionError(self._none(silent))

    def look(self) -> None:
        """Ask a sentinel for the primary, unless ``is_level`` holds: one was asked recently. The answer updates
        ``primary``.

        While this request runs, other callers use the last answer.
        """
        if not self.is_level():
            sentinel = self._begin_look()
            self._looked(sentinel, self._ask_one(sentinel, ANSWER_WITHIN_S))

    async def look_async(self) -> None:
        """Ask a sentinel for the primary, unless ``is_level`` holds: one was asked recently. The answer updates
        ``primary``.

        While this request runs, other callers use the last answer.
        """
        if not self.is_level():
            sentinel = self._begin_look()
            self._looked(sentinel, await self._ask_one_async(sentinel, ANSWER_WITHIN_S))

    def doubt(self) -> None:
        """Move the first sentinel to the end of the order, because the server that it named was not usable."""
        with self._lock:
            first, *others = self._order
            self._order = [*others, first]

    def still_name(self, address: Address) -> bool:
        """Return whether a sentinel named this address last, and ``is_level`` holds: no sentinel must be asked now."""
        return self.primary == address and self.is_level()

    def is_level(self) -> bool:
        """Return whether no sentinel must be asked now, because one was asked recently or all have failed recently."""
        return time.monotonic() < self._look_at

    def _begin_look(self) -> Address:
        self._look_at = time.monotonic() + LOOK_EVERY_S
        with self._lock:
            return self._order[0]

    def _looked(self, sentinel: Address, said: Said) -> None:
        if said and not isinstance(said, Exception):
            self._heard(sentinel, said)
            return
        with self._lock:
            # The next request asks another sentinel.
            self._order = [*self._others(sentinel), sentinel]
            self._failed += 1
            if self._failed >= len(self._order):
                self._look_at = time.monotonic() + LOOK_LATER_S

    def _ask_one(self, sentinel: Address, seconds: float) -> Said:
        host, port = sentinel
        client: Any = redis.Redis(host, port, **self._options(seconds), retry=Retry(NoBackoff(), 0))
        try:
            with client:
                return client.execute_command(*self._question())  # type: ignore[no-any-return]
        except (redis.RedisError, OSError) as error:
            return error

    async def _ask_one_async(self, sentinel: Address, seconds: float) -> Said:
        host, port = sentinel
        options = {**self._options(seconds), "retry": AsyncRetry(NoBackoff(), 0)}
        client: Any = redis.asyncio.Redis(host=host, port=port, **options)
        try:
            async with client:
                return await client.execute_command(*self._question())  # type: ignore[no-any-return]
        except (redis.RedisError, OSError, RuntimeError) as error:
            return error

    def _options(self, seconds: float) -> dict[str, Any]:
        return {**self.options, "socket_connect_timeout": seconds, "socket_timeout": seconds}

    def _question(self) -> tuple[str, ...]:
        return "SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.service

    def _in_order(self, within: float) -> Iterator[tuple[Address, float]]:
        """Yield (sentinel, maximum seconds for its answer) pairs. The sentinel that answered last comes first."""
        with self._lock:
            order = list(self._order)
        deadline = time.monotonic() + within
        for sentinel in order:
            left = deadline - time.monotonic()
            if left > 0:
                yield sentinel, min(left, ANSWER_WITHIN_S)

    def _heard(self, sentinel: Address, said: Sequence[str]) -> Address:
        """Store the primary that a sentinel named, and return its address. From now on, ask this sentinel first,
        because a dead sentinel costs a timeout."""
        primary = said[0], int(said[1])
        with self._lock:
            self._order = [sentinel, *self._others(sentinel)]
            before, self.primary = self.primary, primary
            self._look_at, self._failed = time.monotonic() + LOOK_EVERY_S, 0
        if before not in (None, primary):
            log.info("the primary of %s is %s:%d now", self.service, *primary)
        return primary

    def _others(self, sentinel: Address) -> list[Address]:
        return [each for each in self._order if each != sentinel]

    def _made(self, sentinel: Address) -> redis.Connection:
        """Return a new, unopened connection of redis-py to a sentinel."""
        kind = redis.SSLConnection if self.options.get("ssl") else redis.Connection
        return kind(host=sentinel[0], port=sentinel[1])

    def _none(self, silent: Mapping[Address, BaseException | None]) -> str:
        """Return the text of an error: no sentinel named a primary.

        ``silent``: sentinel → its error, or None if the sentinel does not know the service.
        """
        said = (
            f"{host}:{port} knows no service {self.service}"
            if error is None
            else f"{host}:{port}: {str(error).removeprefix('ERR ')}"
            for (host, port), error in silent.items()
        )
        return f"no sentinel names a primary of {self.service} ({'; '.join(said)})"


SCHEMES: Final = ("redis+sentinel://", "rediss+sentinel://")
DEFAULT_PORT: Final = 26379
PRIMARY_CONNECTS_S: Final = 1.5
"""Seconds for the server that Sentinel names to accept a connection and to report the role of primary. A frozen server
exceeds them. At the next attempt Sentinel may name another server."""


def named_by(url: str) -> bool:
    """Return whether a URL names sentinels."""
    return url.startswith(SCHEMES)


class _Refused(redis.ConnectionError):
    """The error for a server that Sentinel named but that is not the primary: not yet, or no longer."""

    def __init__(self, address: Address, role: str) -> None:
        host, port = address
        super().__init__(f"Sentinel names {host}:{port}, whose role is {role}")


class PrimaryConnection(redis.Connection):
    """A connection that asks the sentinels for the primary whenever it connects."""

    def __init__(self, *, sentinels: Sentinels, **options: Any) -> None:
        self._sentinels = sentinels
        super().__init__(**options)  # type: ignore[no-untyped-call]

    def connect(self) -> None:
        """Connect to the primary, unless the connection is open. Raises redis.ConnectionError if no server is the
        primary now."""
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
    """A PrimaryConnection with TLS."""


class AsyncPrimaryConnection(redis.asyncio.Connection):
    """A PrimaryConnection for asyncio."""

    def __init__(self, *, sentinels: Sentinels, **options: Any) -> None:
        self._sentinels = sentinels
        super().__init__(**options)

    async def connect(self) -> None:
        """Connect to the primary, unless the connection is open. Raises redis.ConnectionError if no server is the
        primary now."""
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
    """An AsyncPrimaryConnection with TLS."""


def _role(reply: Any) -> str:
    """Return the role in a server's reply to ROLE. If the user may not send ROLE, return "master"; a replica would
    refuse writes anyway."""
    if isinstance(reply, NoPermissionError):
        return "master"
    return str(reply if isinstance(reply, Exception) else reply[0])


_BY_ASYNCIO_AND_TLS: Final[dict[tuple[bool, bool], type]] = {
    (False, False): PrimaryConnection,
    (False, True): PrimarySSLConnection,
    (True, False): AsyncPrimaryConnection,
    (True, True): AsyncPrimarySSLConnection,
}


def parse_sentinel_url(
    url: str, *, for_asyncio: bool, answer_within: float
) -> tuple[str, dict[str, Any]]:
    """Return the URL and the options for redis-py's pool, so that its connections lead to the primary. The pool does
    not use the host in this URL.

    Raises ValueError, whose text continues the words "must be a URL".
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
    # redis-py parses the options, including those of TLS, which the connections to sentinels share.
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
    """Parse ``host``, ``host:port`` or ``[::1]:port``. Raises ValueError if there is no host."""
    parts = urlsplit(f"//{said}")
    if not parts.hostname:
        raise ValueError(f"{said or 'nothing'!r} is not the host:port of a sentinel")
    return parts.hostname, check_port(parts) or DEFAULT_PORT
