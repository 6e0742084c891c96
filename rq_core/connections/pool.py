"""Connections that lie idle between exchanges; the one that was used last is used next.

redis-py makes the connections, and could keep them, too. But its pools lock, retry, record metrics and dispatch events
whenever a connection is taken or given back, and every exchange takes one: that was half of what Python does in it.

Where all connections that the URL allows are in use (redis-py allows 100 if it says nothing), whoever needs one waits
in line, for as long as the line moves.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections import deque
from typing import Any, Final

import redis
import redis.asyncio

_CAN_READ: Final = (
    "can_read" if hasattr(redis.asyncio.Connection, "can_read") else "can_read_destructive"
)
"""What redis-py calls it depends on its version."""


class Pool:
    """Connections as ``source``, a pool of redis-py, makes them. Threads and forked children may share it."""

    def __init__(self, source: Any, *, wait: float) -> None:
        """``wait``: seconds after which a line that does not move is left, with redis.ConnectionError."""
        self._source = source
        self._wait = wait
        self._begin_process()

    def _begin_process(self) -> None:
        self._lock = threading.Lock()
        self._freed = threading.Condition(self._lock)
        self._waiting = 0
        self._moved = 0.0
        """When a connection that works was given back last while others waited, on the monotonic clock."""
        self._idle: list[Any] = []
        self.busy: set[Any] = set()
        """Those that are taken."""
        self._leaving: set[Any] = set()
        """Those of them that are not to be used again."""
        # Last: who finds its own process here must find nothing of its parent's any more.
        self._pid = os.getpid()

    def take(self) -> Any:
        """A connection with nothing to be read on it. Give it back. Raises what redis-py does if it cannot be made."""
        if os.getpid() != self._pid:
            # A forked child must not speak on its parent's connections.
            self._begin_process()
        with self._lock:
            if len(self.busy) >= self._source.max_connections:
                self._wait_for_room()
            connection = self._idle.pop() if self._idle else _made_by(self._source)
            self.busy.add(connection)
        try:
            if not _is_ready(connection):
                _connect_anew(connection)
        except BaseException:
            # One that broke in the middle of its greeting counts as connected with redis-py.
            connection.disconnect()
            self.give_back(connection)
            raise
        return connection

    def give_back(self, connection: Any) -> None:
        """Let others have a connection. One that may have replies under way must have been disconnected."""
        if connection in self._leaving:
            self._leaving.discard(connection)
            connection.disconnect()
        with self._lock:
            self.busy.discard(connection)
            self._idle.append(connection)
            if self._waiting:
                if connection._sock is not None:  # noqa: SLF001 - see _is_ready
                    self._moved = time.monotonic()
                self._freed.notify()

    def _wait_for_room(self) -> None:
        """Wait until somebody gives a connection back; call it under the lock."""
        since = time.monotonic()
        self._waiting += 1
        try:
            while len(self.busy) >= self._source.max_connections:
                self._freed.wait(_time_in_line(self._source, self._wait, max(since, self._moved)))
        finally:
            self._waiting -= 1

    def disconnect_idle(self) -> None:
        """Disconnect those that nobody uses."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.disconnect()

    def disconnect(self) -> None:
        """Disconnect all: those that another thread speaks on when it gives them back.

        Under its hands, redis-py would have it wait for a reply that cannot come.
        """
        with self._lock:
            self._leaving |= self.busy
        self.disconnect_idle()


class AsyncPool:
    """The same for asyncio: for one event loop."""

    def __init__(self, source: Any, *, wait: float) -> None:
        """See Pool."""
        self._source = source
        self._wait = wait
        self._waiting: deque[asyncio.Future[Any]] = deque()
        self._moved = 0.0
        self._idle: list[Any] = []
        self.busy: set[Any] = set()

    async def take(self) -> Any:
        """See Pool.take."""
        if len(self.busy) >= self._source.max_connections:
            connection = await self._next_given_back()
        else:
            connection = self._idle.pop() if self._idle else _made_by(self._source)
            self.busy.add(connection)
        try:
            if not await _is_ready_async(connection):
                await self._source.ensure_connection(connection)
        except BaseException:
            await connection.disconnect(nowait=True)
            self.give_back(connection)
            raise
        return connection

    def give_back(self, connection: Any) -> None:
        """See Pool.give_back."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                if connection.is_connected:
                    self._moved = time.monotonic()
                turn.set_result(connection)
                return
        self.busy.discard(connection)
        self._idle.append(connection)

    async def _next_given_back(self) -> Any:
        """Wait in line for a connection; it stays busy from hand to hand."""
        since = time.monotonic()
        turn: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            while not turn.done():
                left = _time_in_line(self._source, self._wait, max(since, self._moved))
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
            await connection.disconnect(nowait=True)

    async def disconnect(self) -> None:
        """See Pool.disconnect."""
        connections = (*self._idle, *self.busy)
        self._idle = []
        ends = (connection.disconnect() for connection in connections)
        for error in await asyncio.gather(*ends, return_exceptions=True):
            if error is not None:
                raise error


def _made_by(source: Any) -> Any:
    """Another connection, not connected yet."""
    return source.connection_class(**source.connection_kwargs)


def _time_in_line(source: Any, wait: float, moved: float) -> float:
    """How long to stay in a line that moved then. Raises redis.ConnectionError if that is over."""
    left = moved + wait - time.monotonic()
    if left <= 0:
        most = source.max_connections
        raise redis.ConnectionError(
            f"all {most} connections are in use, and none was given back for {wait:g} s"
        )
    return left


def _connect_anew(connection: Any) -> None:
    connection.disconnect()
    connection.connect()
    if connection.can_read():
        raise redis.ConnectionError("the server speaks without being asked")


def _is_ready(connection: Any) -> bool:
    """Whether it is connected, the server has not ended it, and nothing came that nobody asked for."""
    try:
        return connection._sock is not None and not connection.can_read()  # noqa: SLF001 - redis-py has no name for it
    except (redis.ConnectionError, redis.TimeoutError, OSError):
        return False


async def _is_ready_async(connection: Any) -> bool:
    try:
        return connection.is_connected and not await getattr(connection, _CAN_READ)()
    except (redis.ConnectionError, redis.TimeoutError, OSError):
        return False
