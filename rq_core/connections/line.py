"""One connection of a thread: bytes out, replies in. redis-py makes it; then it is spoken on the socket itself."""

from __future__ import annotations

import select
from typing import Any, Final

import redis

from rq_core.connections.borrowed import socket_of
from rq_core.connections.replies import PENDING, Push, new_reader

RECEIVE_BYTES: Final = 65_536


class Line:
    """A connection to one server. One thread at a time may use it."""

    def __init__(self, source: Any) -> None:
        """``source`` is a pool of redis-py; nothing is connected yet."""
        self._made = source.connection_class(**source.connection_kwargs)
        self._socket: Any = None
        self._reader: Any = None
        self._look: Any = None
        """Asks whether there is something to receive. Making it takes longer than asking it."""

    @property
    def is_connected(self) -> bool:
        """Whether it was connected, as far as is known without looking."""
        return self._socket is not None

    def is_ready(self) -> bool:
        """Whether it is connected, the server has not ended it, and it sent nothing unasked.

        A command that is sent to a server which has ended the connection would count as sent, and its outcome as
        unknown.
        """
        if self._socket is None or self._reader.has_data():
            return False
        if self._look is None:
            return not self._can_read()
        return not self._look.poll(0)

    def connect(self) -> None:
        """Connect, also if it was connected. Raises what redis-py does if that cannot be done."""
        self.disconnect()
        made = self._made
        made.connect()
        if made.can_read():
            raise redis.ConnectionError("the server sent a reply that no command asked for")
        self._socket, self._reader = socket_of(made), new_reader()
        # What TLS has decrypted no longer shows on the socket. Some libraries that replace sockets take poll away.
        if hasattr(select, "poll") and not hasattr(self._socket, "pending"):
            self._look = select.poll()
            self._look.register(self._socket, select.POLLIN)

    def disconnect(self) -> None:
        """End the connection. It can be connected again."""
        self._socket = self._reader = self._look = None
        self._made.disconnect()

    def send(self, data: bytes) -> None:
        """Send all of it. Raises OSError."""
        self._socket.sendall(data)

    def receive(self, count: int, replies: list[Any]) -> None:
        """Put the next replies into ``replies`` as they come, an error as a ReplyError in its place.

        Raises OSError (TimeoutError after the seconds that connections are given), or EOFError if the server has
        ended the connection.
        """
        reader, socket = self._reader, self._socket
        gets = reader.gets
        for _ in range(count):
            while (reply := gets()) is PENDING or type(reply) is Push:
                if reply is PENDING:
                    data = socket.recv(RECEIVE_BYTES)
                    if not data:
                        raise EOFError("the server closed the connection")
                    reader.feed(data)
            replies.append(reply)

    def wait_for(self, seconds: float | None) -> None:
        """How long the next replies are waited for, in seconds; None: as long as connections are given."""
        self._socket.settimeout(self._made.socket_timeout if seconds is None else seconds)

    def _can_read(self) -> bool:
        try:
            return bool(self._made.can_read())
        except (redis.RedisError, OSError):
            return True
