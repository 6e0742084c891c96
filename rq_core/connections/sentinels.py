"""The sentinels of a service, and what they say of its primary: asked at every connection, and once a second.

A primary that is replaced while it lives (an operator asked for a failover, or it was frozen) takes writes for some ten
seconds more, until Sentinel makes it a replica, and they are lost then. So a pool looks once a second whether the
sentinels still name the server that its connections lead to; if not, they are not used again.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry

from rq_core.connections import other_protocol
from rq_core.connections.line import CONNECT_TIMEOUT_S

log = logging.getLogger(__name__)

ANSWER_WITHIN_S: Final = 1.0
"""Seconds after which the next sentinel is asked: a connection waits for all of those that are dead."""

LOOK_EVERY_S: Final = 1.0
"""Seconds between two looks at who the primary is, while connections to it are used."""
LOOK_LATER_S: Final = 10.0
"""The same once no sentinel has answered: a primary that works is not held up by sentinels that do not."""

Address = tuple[str, int]


@dataclass
class Sentinels:
    """The sentinels of one service. Threads and forked children may share it."""

    addresses: Sequence[Address]
    service: str
    options: dict[str, Any] = field(default_factory=dict)
    """Of the connections to the sentinels: user, password, TLS."""

    def __post_init__(self) -> None:
        self._begin_process()
        self._order = list(self.addresses)
        self.primary: Address | None = None
        """What a sentinel named last."""
        self._look_at = 0.0
        """When it is to be asked again whether that still holds, on the monotonic clock."""
        self._failed = 0
        """Looks in a row that had no answer."""

    def _begin_process(self) -> None:
        self._own_lock = threading.Lock()
        # Last: who finds its own process here must find nothing of its parent's any more.
        self._pid = os.getpid()

    @property
    def _lock(self) -> threading.Lock:
        """What is done under it is short, and leaves ``_order`` whole at each moment: a fork may come in between."""
        if os.getpid() != self._pid:
            # Another thread of the parent may have had it.
            self._begin_process()
        return self._own_lock

    def ask(self, within: float = CONNECT_TIMEOUT_S) -> Address:
        """The primary's address, from the first sentinel that has one. Raises redis.ConnectionError if none has one and
        answers within so many seconds."""
        silent: dict[Address, BaseException | None] = {}
        for sentinel, seconds in self._in_order(within):
            try:
                said = self._ask_one(sentinel, seconds)
            except (redis.RedisError, OSError) as error:
                silent[sentinel] = error
                continue
            if said:
                return self._heard(sentinel, said)
            silent[sentinel] = None
        for sentinel, trouble in silent.items():
            if trouble is not None:
                try:
                    other_protocol.check(self._made(sentinel), trouble)
                except other_protocol.OtherProtocol as error:
                    silent[sentinel] = error
        raise redis.ConnectionError(self._none(silent))

    async def ask_async(self, within: float = CONNECT_TIMEOUT_S) -> Address:
        """The same for asyncio."""
        silent: dict[Address, BaseException | None] = {}
        for sentinel, seconds in self._in_order(within):
            try:
                said = await self._ask_one_async(sentinel, seconds)
            except (redis.RedisError, OSError, RuntimeError) as error:
                silent[sentinel] = error
                continue
            if said:
                return self._heard(sentinel, said)
            silent[sentinel] = None
        for sentinel, trouble in silent.items():
            if trouble is not None:
                try:
                    await other_protocol.check_async(self._made(sentinel), trouble)
                except other_protocol.OtherProtocol as error:
                    silent[sentinel] = error
        raise redis.ConnectionError(self._none(silent))

    def look(self) -> None:
        """Ask again who the primary is, if that was last heard more than a second ago.

        One call asks one sentinel; others go on with what is known.
        """
        if self.is_level():
            return
        sentinel = self._begin_look()
        try:
            self._looked(sentinel, self._ask_one(sentinel, ANSWER_WITHIN_S))
        except (redis.RedisError, OSError):
            self._looked(sentinel, None)

    async def look_async(self) -> None:
        """The same for asyncio."""
        if self.is_level():
            return
        sentinel = self._begin_look()
        try:
            self._looked(sentinel, await self._ask_one_async(sentinel, ANSWER_WITHIN_S))
        except (redis.RedisError, OSError, RuntimeError):
            self._looked(sentinel, None)

    def doubt(self) -> None:
        """What the first sentinel named could not be used: it may know less than the others, so it is asked last."""
        with self._lock:
            first, *others = self._order
            self._order = [*others, first]

    def still_name(self, address: Address) -> bool:
        """Whether that is the primary by what was heard a moment ago."""
        return self.primary == address and self.is_level()

    def is_level(self) -> bool:
        """Whether a sentinel was asked a moment ago, or it is no use to ask."""
        return time.monotonic() < self._look_at

    def _begin_look(self) -> Address:
        self._look_at = time.monotonic() + LOOK_EVERY_S
        with self._lock:
            return self._order[0]

    def _looked(self, sentinel: Address, said: Sequence[str] | None) -> None:
        if said:
            self._heard(sentinel, said)
            return
        with self._lock:
            # The next look asks another one.
            self._order = [*self._others(sentinel), sentinel]
            self._failed += 1
            if self._failed >= len(self._order):
                self._look_at = time.monotonic() + LOOK_LATER_S

    def _ask_one(self, sentinel: Address, seconds: float) -> Sequence[str] | None:
        host, port = sentinel
        client: Any = redis.Redis(host, port, **self._options(seconds), retry=Retry(NoBackoff(), 0))
        with client:
            said: Sequence[str] | None = client.execute_command(*self._question())
        return said

    async def _ask_one_async(self, sentinel: Address, seconds: float) -> Sequence[str] | None:
        host, port = sentinel
        options = {**self._options(seconds), "retry": AsyncRetry(NoBackoff(), 0)}
        client: Any = redis.asyncio.Redis(host=host, port=port, **options)
        async with client:
            said: Sequence[str] | None = await client.execute_command(*self._question())
        return said

    def _options(self, seconds: float) -> dict[str, Any]:
        return {**self.options, "socket_connect_timeout": seconds, "socket_timeout": seconds}

    def _question(self) -> tuple[str, ...]:
        return "SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.service

    def _in_order(self, within: float) -> Iterator[tuple[Address, float]]:
        """The sentinels, the one that answered last first, and how many seconds each is given."""
        with self._lock:
            order = list(self._order)
        deadline = time.monotonic() + within
        for sentinel in order:
            left = deadline - time.monotonic()
            if left > 0:
                yield sentinel, min(left, ANSWER_WITHIN_S)

    def _heard(self, sentinel: Address, said: Sequence[str]) -> Address:
        """Remember who answered: it is asked first from now on, as one that is dead costs a timeout."""
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
        """What a connection to a sentinel is made of."""
        kind = redis.SSLConnection if self.options.get("ssl") else redis.Connection
        return kind(host=sentinel[0], port=sentinel[1])

    def _none(self, silent: Mapping[Address, BaseException | None]) -> str:
        """Why none could be asked, by sentinel; None: it knows no such service."""
        said = (
            f"{host}:{port} knows no service {self.service}"
            if error is None
            else f"{host}:{port}: {str(error).removeprefix('ERR ')}"
            for (host, port), error in silent.items()
        )
        return f"no sentinel names a primary of {self.service} ({'; '.join(said)})"
