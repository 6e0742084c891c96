"""A pool of idle connections; the connection that was used last is used next.

redis-py makes the connections, and could also keep them. But its pools lock, retry, record metrics and dispatch events
whenever a connection is taken or given back, and every exchange takes one connection: that was half of Python's work in
an exchange. This pool keeps objects of :mod:`rq_core.connections.connection`, and connects each when it is taken.

If all connections that the URL allows are in use (recent redis-py allows 100 if the URL names no limit), callers wait
in a queue. A caller fails when the queue has not moved for a while.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

import redis

from rq_core.connections.async_connection import AsyncConnection
from rq_core.connections.connection import Connection, soonest
from rq_core.connections.sentinel import Sentinels
from rq_core.model.lib.text import counted

L = TypeVar("L", bound=Connection)


class Pool:
    """A pool of connections that ``source``, a pool of redis-py, makes. Threads and forked children may share it."""

    def __init__(
        self, source: Any, *, wait: float, make_connection: Callable[[Any], Connection] = Connection
    ) -> None:
        """``wait``: seconds after which a caller gives up waiting in a queue that does not move, with
        redis.ConnectionError."""
        self._source = source
        self._sentinels = sentinels_of(source)
        self._wait = wait
        self._make_connection = make_connection
        self._begin_process()

    def _begin_process(self) -> None:
        self._lock = threading.Lock()
        self._freed = threading.Condition(self._lock)
        self._waiting = 0
        self._moved = 0.0
        """Monotonic time at which a working connection was last given back while callers waited."""
        self._idle: list[Connection] = []
        self.busy: set[Connection] = set()
        """The connections in use."""
        self._leaving: set[Connection] = set()
        """The connections in use that must be closed when they are given back."""
        # Last: a thread that reads its own pid here must not see its parent's objects any more.
        self._pid = os.getpid()

    def take(self, within: float | None = None) -> Connection:
        """Return a connection with no unread bytes; the caller must give it back. Raises redis-py's error if it cannot
        connect within ``within`` seconds, or within the pool's own timeout if that is less."""
        if os.getpid() != self._pid:
            # A forked child must not use its parent's connections.
            self._begin_process()
        with self._lock:
            if len(self.busy) >= self._source.max_connections:
                self._wait_for_room(within)
            connection = self._idle.pop() if self._idle else self._make_connection(self._source)
            self.busy.add(connection)
        try:
            if not connection.is_ready() or self.leads_elsewhere(connection):
                connection.connect(within)
        except BaseException:
            # redis-py counts a connection that broke during its greeting as connected.
            connection.disconnect()
            self.give_back(connection)
            raise
        return connection

    def leads_elsewhere(self, connection: Connection) -> bool:
        """Return whether the sentinels now name another server than the server to which the connection leads."""
        if self._sentinels is None:
            return False
        self._sentinels.look()
        return self._sentinels.primary != connection.address

    def new_connection(self, kind: Callable[[Any], L]) -> L:
        """Return a new connection that is not in the pool and not connected yet."""
        return kind(self._source)

    def give_back(self, connection: Connection) -> None:
        """Make a connection available to other callers. If replies may still arrive on it, it must have been
        disconnected."""
        with self._lock:
            if connection in self._leaving:
                self._leaving.discard(connection)
                connection.disconnect()
            self.busy.discard(connection)
            self._idle.append(connection)
            if self._waiting:
                if connection.is_connected:
                    self._moved = time.monotonic()
                self._freed.notify()

    def _wait_for_room(self, within: float | None) -> None:
        """Wait until another thread gives a connection back. The caller must hold the lock."""
        since = time.monotonic()
        wait = soonest(self._wait, within)
        self._waiting += 1
        try:
            while len(self.busy) >= self._source.max_connections:
                self._freed.wait(_time_in_line(self._source, wait, max(since, self._moved)))
        finally:
            self._waiting -= 1

    def disconnect_idle(self) -> None:
        """Disconnect the connections that no caller uses."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.disconnect()

    def disconnect(self) -> None:
        """Disconnect all connections; a connection that another thread uses is disconnected when it is given back."""
        with self._lock:
            self._leaving |= self.busy
        self.disconnect_idle()


class AsyncPool:
    """A pool of connections for one event loop. See Pool."""

    def __init__(self, source: Any, *, wait: float, keep: bool = True) -> None:
        """See Pool. ``keep``: whether connections are reused; a closed pool reuses none."""
        self._source = source
        self.sentinels = sentinels_of(source)
        """The sentinels that the URL names, or None."""
        self._wait = wait
        self._waiting: deque[asyncio.Future[AsyncConnection]] = deque()
        self._moved = 0.0
        self._idle: list[AsyncConnection] = []
        self.busy: set[AsyncConnection] = set()
        self.keeps = keep

    def take_idle(self) -> AsyncConnection | None:
        """Return the connection that was used last, if it is usable at once. Return None otherwise; then call
        ``take``."""
        idle = self._idle
        # Callers that wait in the queue come first.
        if not idle or not idle[-1].is_ready or len(self.busy) >= self._source.max_connections:
            return None
        if self.sentinels is not None and not self.sentinels.still_name(idle[-1].address):
            return None
        connection = idle.pop()
        self.busy.add(connection)
        return connection

    async def take(self, within: float | None = None) -> AsyncConnection:
        """See Pool.take."""
        if len(self.busy) >= self._source.max_connections:
            connection = await self._next_given_back(soonest(self._wait, within))
        else:
            connection = self._idle.pop() if self._idle else AsyncConnection(self._source)
            self.busy.add(connection)
        try:
            if not connection.is_ready or await self.leads_elsewhere(connection):
                await connection.connect(within)
        except BaseException:
            await connection.drop()
            self.give_back(connection)
            raise
        return connection

    async def leads_elsewhere(self, connection: AsyncConnection) -> bool:
        """Return whether the sentinels now name another server than the server to which the connection leads."""
        if self.sentinels is None:
            return False
        await self.sentinels.look_async()
        return self.sentinels.primary != connection.address

    def give_back(self, connection: AsyncConnection) -> None:
        """See Pool.give_back. If the pool keeps no connections, drop the connection first."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                if connection.is_ready:
                    self._moved = time.monotonic()
                turn.set_result(connection)
                return
        self.busy.discard(connection)
        self._idle.append(connection)

    async def _next_given_back(self, wait: float) -> AsyncConnection:
        """Wait in the queue of callers until a connection is given back. The connection counts as in use meanwhile."""
        since = time.monotonic()
        turn: asyncio.Future[AsyncConnection] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            while not turn.done():
                left = _time_in_line(self._source, wait, max(since, self._moved))
                await asyncio.wait({turn}, timeout=left)
            return turn.result()
        except BaseException:
            if not turn.cancel():
                self.give_back(turn.result())
            raise

    async def disconnect_idle(self) -> None:
        """See Pool.disconnect_idle."""
        idle, self._idle = self._idle, []
        for connection in idle:
            await connection.drop()

    async def disconnect(self) -> None:
        """Disconnect all connections, and reuse none from now on. A caller that waits for a reply receives an error.

        A connection that is being opened cannot be disconnected yet: it is closed when it is given back.
        """
        self.keeps = False
        connections = (*self._idle, *self.busy)
        self._idle = []
        ends = (connection.disconnect() for connection in connections)
        for error in await asyncio.gather(*ends, return_exceptions=True):
            if error is not None:
                raise error


def sentinels_of(source: Any) -> Sentinels | None:
    """Return the sentinels that connections of this pool of redis-py ask for their server; None if the URL names
    none."""
    found: Sentinels | None = source.connection_kwargs.get("sentinels")
    return found


def _time_in_line(source: Any, wait: float, moved: float) -> float:
    """Return how many more seconds to wait in a queue of callers that last moved at ``moved``. Raises
    redis.ConnectionError if the time is over."""
    left = moved + wait - time.monotonic()
    if left <= 0:
        most = source.max_connections
        busy = counted(most, "connection is", "connections are")
        raise redis.ConnectionError(
            f"{busy} in use, as many as the URL allows, and none was given back for {wait:g} s"
        )
    return left
