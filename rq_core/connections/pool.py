"""A pool of connections. It reuses the connection that was used last.

redis-py opens the connections. This pool replaces redis-py's own pools, which lock, retry, record metrics and dispatch
events for each exchange. That took half of Python's time in an exchange. The pool holds objects of
:mod:`rq_core.connections.connection`, and opens an object when a caller takes it.

The URL limits the number of connections; recent redis-py allows 100 if the URL has no limit. If all are in use, callers
wait in line. A caller fails if no connection was given back for a while.
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
    """A pool of connections, which ``source``, a pool of redis-py, opens. Threads and forked children may share it."""

    def __init__(
        self, source: Any, *, wait: float, make_connection: Callable[[Any], Connection] = Connection
    ) -> None:
        """Create a pool without connections. ``wait``: seconds without a returned connection after which a waiting
        caller gets redis.ConnectionError."""
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
        """Monotonic time at which a caller last gave back a working connection while others waited."""
        self._idle: list[Connection] = []
        self.busy: set[Connection] = set()
        """The connections in use."""
        self._leaving: set[Connection] = set()
        """The connections in use that must be closed when they are given back."""
        # Last: a thread that reads its own pid here must not see its parent's objects any more.
        self._pid = os.getpid()

    def take(self, within: float | None = None) -> Connection:
        """Return an open connection without unread bytes. The caller must give it back.

        Raises redis-py's error if the pool cannot connect within ``within`` seconds or its own timeout, whichever is
        shorter.
        """
        if os.getpid() != self._pid:
            # A forked child must not use its parent's connections.
            self._begin_process()
        with self._lock:
            if len(self.busy) >= self._source.max_connections:
                self._wait_for_room(within)
            connection = self._idle.pop() if self._idle else self._make_connection(self._source)
            self.busy.add(connection)
        try:
            if not connection.is_ready() or (self._sentinels and self.leads_elsewhere(connection)):
                connection.connect(within)
        except BaseException:
            # redis-py counts a connection that broke during its greeting as connected.
            connection.disconnect()
            self.give_back(connection)
            raise
        return connection

    def leads_elsewhere(self, connection: Connection) -> bool:
        """Return whether the sentinels name a different server than the one to which the connection leads."""
        if self._sentinels is None:
            return False
        self._sentinels.look()
        return self._sentinels.primary != connection.address

    def new_connection(self, kind: Callable[[Any], L]) -> L:
        """Return a new, unopened connection of the class ``kind`` that does not belong to the pool."""
        return kind(self._source)

    def give_back(self, connection: Connection) -> None:
        """Make a connection available to other callers. The caller must disconnect it first if replies may still
        arrive."""
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
        """Wait until a thread gives a connection back. The caller must hold the lock. ``within``: seconds without a
        returned connection after which the wait fails, if lower than the pool's own limit."""
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
        """Disconnect all connections. A connection in use is disconnected when it is given back."""
        with self._lock:
            self._leaving |= self.busy
        self.disconnect_idle()


class AsyncPool:
    """A pool of connections for one event loop. Pool describes the methods."""

    def __init__(self, source: Any, *, wait: float, keep: bool = True) -> None:
        """Create a pool without connections. ``wait``: as in Pool. ``keep``: whether connections are reused; a closed
        pool reuses none."""
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
        """Return the connection that was used last, if it is ready and may be taken. Otherwise return None: the caller
        must then use ``take``."""
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
        """Return an open connection without unread bytes. The caller must give it back.

        Raises redis-py's error if the pool cannot connect within ``within`` seconds or its own timeout, whichever is
        shorter.
        """
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
        """Return whether the sentinels name a different server than the one to which the connection leads."""
        if self.sentinels is None:
            return False
        await self.sentinels.look_async()
        return self.sentinels.primary != connection.address

    def give_back(self, connection: AsyncConnection) -> None:
        """Make a connection available to other callers. The caller must drop it first if the pool reuses no
        connections."""
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
        """Wait in line until a caller gives a connection back, and return it. It still counts as in use. ``wait``:
        seconds without a returned connection after which redis.ConnectionError is raised."""
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
        """Disconnect the connections that no caller uses."""
        idle, self._idle = self._idle, []
        for connection in idle:
            await connection.drop()

    async def disconnect(self) -> None:
        """Disconnect all connections, and reuse none from now on. Callers that wait for a reply receive an error.

        A connection that is just being opened is closed when it is given back.
        """
        self.keeps = False
        connections = (*self._idle, *self.busy)
        self._idle = []
        ends = (connection.disconnect() for connection in connections)
        for error in await asyncio.gather(*ends, return_exceptions=True):
            if error is not None:
                raise error


def sentinels_of(source: Any) -> Sentinels | None:
    """Return the sentinels that a pool of redis-py asks for its server; None if its URL names none."""
    found: Sentinels | None = source.connection_kwargs.get("sentinels")
    return found


def _time_in_line(source: Any, wait: float, moved: float) -> float:
    """Return how many more seconds a caller may wait for a connection. ``moved``: monotonic time at which the wait
    began or a connection was last given back. ``wait``: maximum seconds after that.

    Raises redis.ConnectionError if no time is left.
    """
    left = moved + wait - time.monotonic()
    if left <= 0:
        most = source.max_connections
        busy = counted(most, "connection is", "connections are")
        raise redis.ConnectionError(
            f"{busy} in use, as many as the URL allows, and none was given back for {wait:g} s"
        )
    return left
