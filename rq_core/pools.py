"""Connections that lie idle between exchanges; the one that was used last is used next.

redis-py makes the connections, and could keep them, too. But its pools lock, retry, record metrics and dispatch events
whenever a connection is taken or given back, and every exchange takes one: that was half of what Python does in it.
"""

from __future__ import annotations

import asyncio
import os
import threading
from typing import Any, Final

import redis
import redis.asyncio

_CAN_READ: Final = (
    "can_read" if hasattr(redis.asyncio.Connection, "can_read") else "can_read_destructive"
)
"""What redis-py calls it depends on its version."""


class Pool:
    """Connections as ``source``, a pool of redis-py, makes them. Threads and forked children may share it."""

    def __init__(self, source: Any) -> None:
        self._source = source
        self._begin_process()

    def _begin_process(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._idle: list[Any] = []
        self.busy: set[Any] = set()
        """Those that are taken."""

    def take(self) -> Any:
        """A connection with nothing to be read on it. Give it back. Raises what redis-py does if it cannot be made."""
        if os.getpid() != self._pid:
            # A forked child must not speak on its parent's connections.
            self._begin_process()
        with self._lock:
            connection = self._idle.pop() if self._idle else _made_by(self._source, self.busy)
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
        with self._lock:
            self.busy.discard(connection)
            self._idle.append(connection)

    def disconnect_idle(self) -> None:
        """Disconnect those that nobody uses."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.disconnect()

    def disconnect(self) -> None:
        """Disconnect all."""
        self.disconnect_idle()
        for connection in tuple(self.busy):
            connection.disconnect()


class AsyncPool:
    """The same for asyncio: for one event loop."""

    def __init__(self, source: Any) -> None:
        self._source = source
        self._idle: list[Any] = []
        self.busy: set[Any] = set()

    async def take(self) -> Any:
        """See Pool.take."""
        connection = self._idle.pop() if self._idle else _made_by(self._source, self.busy)
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
        self.busy.discard(connection)
        self._idle.append(connection)

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


def _made_by(source: Any, busy: set[Any]) -> Any:
    """Another connection, not connected yet. Raises redis.ConnectionError if the URL allows no more."""
    if len(busy) >= source.max_connections:
        raise redis.ConnectionError(f"all {source.max_connections} connections are in use")
    return source.connection_class(**source.connection_kwargs)


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
