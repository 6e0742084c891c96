"""One connection of a thread: bytes out, replies in. redis-py makes it; then it is spoken on the socket itself."""

from __future__ import annotations

import asyncio
import select
from typing import Any, Final

import hiredis
import redis

from rq_core.connections import tls_probe
from rq_core.protocol.engine.plan import ReplyError

# How replies are read: hiredis takes them apart, and an error is a ReplyError in the place of its reply.

PENDING: Final = object()
"""The value that a reader returns while a reply is incomplete. None and False may be replies."""
Push: Final = hiredis.PushNotification
"""A message that the server sends unasked, to clients that speak RESP3. It is no reply."""


def new_reader() -> Any:
    """Return a reader for the bytes that one connection receives."""
    return hiredis.Reader(
        protocolError=_garbled,
        replyError=reply_error,
        encoding="utf-8",
        # A reply with bytes that are not UTF-8 must reach the code that can say which job it is.
        errors="surrogateescape",
        notEnoughData=PENDING,
    )


def reply_error(text: str) -> ReplyError:
    """Return the error for a server's error reply: its code comes first (NOSCRIPT, OOM…), unless that is ERR."""
    return ReplyError(explained(text.removeprefix("ERR ").rstrip(".")))


def explained(text: str) -> str:
    """Return a server's error text, in clearer words where it misleads."""
    if "Protocol error: unauthenticated" in text:
        # What a server that asks for a password says to a command of more than ten words.
        return f"NOAUTH Authentication required ({text})"
    return text


def _garbled(text: str) -> Exception:
    return ConnectionError(f"what the server sent is not a reply: {text}")


# The internals of redis-py's connections that are in use. redis-py makes a connection, and then only lends its socket.
#
# redis-py knows how a connection is made: TCP or a Unix socket, TLS, AUTH, HELLO, SELECT, names. Its work for each
# command after that costs more than the exchange itself, so :mod:`rq_core.connections.connection` and
# :mod:`rq_core.connections.async_connection` speak on the socket. redis-py has no public name for it: the two that are
# used stand here, and ``tests/unit/test_connections.py`` says which is missing if a version of redis-py has others.


def socket_of(connection: Any) -> Any:
    """Return the socket of a redis.Connection that is connected; with TLS, the one that encrypts."""
    return connection._sock  # noqa: SLF001 - see above


def transport_of(connection: Any) -> asyncio.Transport:
    """Return the transport of a redis.asyncio.Connection that is connected."""
    transport: asyncio.Transport = connection._writer.transport  # noqa: SLF001 - see above
    return transport


RECEIVE_BYTES: Final = 65_536
SOON_S: Final = 0.05
"""Seconds that are waited at least, whatever is left of a caller's patience."""

CONNECT_TIMEOUT_S: Final = 5.0
"""Seconds in which a connection is made, and the server has greeted."""


def soonest(bound: float, within: float | None) -> float:
    """Return how many seconds to wait: ``bound``, or ``within`` if that is less."""
    return bound if within is None else min(bound, max(SOON_S, within))


def connect_bound(source: Any) -> float:
    """Return the seconds within which connections of this pool of redis-py must be made."""
    return float(source.connection_kwargs.get("socket_connect_timeout") or CONNECT_TIMEOUT_S)


class Connection:
    """A connection to one server. One thread at a time may use it."""

    def __init__(self, source: Any) -> None:
        """``source`` is a pool of redis-py; nothing is connected yet."""
        self._made = source.connection_class(**source.connection_kwargs)
        self._answer_within = source.connection_kwargs.get("socket_timeout")
        self._connect_within = connect_bound(source)
        self._has_spoken = False
        """Whether it was connected before: then it is known whether the port speaks TLS."""
        self._socket: Any = None
        self._reader: Any = None
        self._look: Any = None
        """Asks whether there is something to receive. Making it takes longer than asking it."""

    @property
    def is_connected(self) -> bool:
        """Whether it was connected, as far as is known without looking."""
        return self._socket is not None

    @property
    def address(self) -> tuple[str, int]:
        """Where it leads, or led; not that of a Unix socket."""
        return self._made.host, self._made.port

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

    def connect(self, within: float | None = None) -> None:
        """Connect, again if it was connected. ``within``: seconds, if fewer than connections are given.

        Raises what redis-py does if that cannot be done, or OtherProtocol.
        """
        self.disconnect()
        made = self._made
        # What a server that is frozen never sends is the reply to the greeting.
        made.socket_timeout = made.socket_connect_timeout = soonest(self._connect_within, within)
        try:
            made.connect()
        except Exception as error:
            if not self._has_spoken:
                tls_probe.check_tls(made, error)
            raise
        self._has_spoken = True
        if made.can_read():
            raise redis.ConnectionError("the server sent a reply that no command asked for")
        self._socket, self._reader = socket_of(made), new_reader()
        self._socket.settimeout(self._answer_within)
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
        """Set how long to wait for the next replies, in seconds; None: the connections' own bound."""
        self._socket.settimeout(self._answer_within if seconds is None else seconds)

    def _can_read(self) -> bool:
        try:
            return bool(self._made.can_read())
        except (redis.RedisError, OSError):
            return True
