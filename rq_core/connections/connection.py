"""One connection of a thread: sends bytes, and parses replies. redis-py connects; then this module uses the socket."""

from __future__ import annotations

import asyncio
import select
from typing import Any, Final

import hiredis
import redis

from rq_core.connections import tls_probe
from rq_core.protocol.engine.plan import ReplyError

# Parsing of replies: hiredis parses them; an error reply becomes a ReplyError in its place.

PENDING: Final = object()
"""The value that the reply parser returns while a reply is incomplete. (None and False can be replies.)"""
Push: Final = hiredis.PushNotification
"""The type of a message that the server sends to RESP3 clients unasked, such as a channel message. The replies to
SSUBSCRIBE and SUNSUBSCRIBE have this type, too."""


def new_reader() -> Any:
    """Return a new parser for the bytes that one connection receives."""
    return hiredis.Reader(
        protocolError=_garbled,
        replyError=reply_error,
        encoding="utf-8",
        # A reply with bytes that are not UTF-8 must reach the code that can name the job.
        errors="surrogateescape",
        notEnoughData=PENDING,
    )


def reply_error(text: str) -> ReplyError:
    """Return the ReplyError for a server's error text, which begins with the error code (NOSCRIPT, OOM…).

    The general code ERR is left out.
    """
    return ReplyError(explained(text.removeprefix("ERR ").rstrip(".")))


def explained(text: str) -> str:
    """Return a server's error text. Replace one misleading text by clearer words."""
    if "Protocol error: unauthenticated" in text:
        # This is the answer of a server that asks for a password to a command of more than ten words.
        return f"NOAUTH Authentication required ({text})"
    return text


def _garbled(text: str) -> Exception:
    return ConnectionError(f"what the server sent is not a reply: {text}")


# Access to internals of redis-py's connections. redis-py connects; after that only its socket is used.
#
# redis-py implements connecting: TCP or a Unix socket, TLS, AUTH, HELLO, SELECT, names. Its work for each command after
# that costs more than the exchange itself, so :mod:`rq_core.connections.connection` and
# :mod:`rq_core.connections.async_connection` use the socket directly. redis-py has no public name for the socket: the
# two private names in use are here, and ``tests/unit/test_connections.py`` reports a name that a version of redis-py
# lacks.


def socket_of(connection: Any) -> Any:
    """Return the socket of a connected redis.Connection. With TLS, this is the socket that encrypts."""
    return connection._sock  # noqa: SLF001 - see above


def transport_of(connection: Any) -> asyncio.Transport:
    """Return the asyncio transport of a connected redis.asyncio.Connection."""
    transport: asyncio.Transport = connection._writer.transport  # noqa: SLF001 - see above
    return transport


RECEIVE_BYTES: Final = 65_536
SOON_S: Final = 0.05
"""Minimum timeout in seconds, even if less of the caller's patience is left."""

CONNECT_TIMEOUT_S: Final = 5.0
"""Seconds to open a connection, up to the server's greeting."""


def soonest(bound: float, within: float | None) -> float:
    """Return the lower of ``bound`` and ``within``, in seconds. A ``within`` below SOON_S counts as SOON_S."""
    return bound if within is None else min(bound, max(SOON_S, within))


def connect_bound(source: Any) -> float:
    """Return the maximum seconds that a connection of ``source``, a pool of redis-py, may take to open."""
    return float(source.connection_kwargs.get("socket_connect_timeout") or CONNECT_TIMEOUT_S)


class Connection:
    """A connection to one server. Only one thread at a time may use it."""

    def __init__(self, source: Any) -> None:
        """Create a connection that is not open yet. ``source`` is a pool of redis-py."""
        self._made = source.connection_class(**source.connection_kwargs)
        self._answer_within = source.connection_kwargs.get("socket_timeout")
        self._connect_within = connect_bound(source)
        self._has_spoken = False
        """True if the connection was open at least once. Then the port and the URL agree about TLS."""
        self._socket: Any = None
        self._reader: Any = None
        self._look: Any = None
        """The poll object that shows whether the socket has bytes to read. It is reused, since creating it takes longer
        than polling."""

    @property
    def is_connected(self) -> bool:
        """Return whether this side has opened the connection and not closed it. The server may have closed it."""
        return self._socket is not None

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of the server. A connection over a Unix socket has neither."""
        return self._made.host, self._made.port

    def is_ready(self) -> bool:
        """Return whether the connection is open and has no unread bytes.

        Check this before each command. If the server has closed the connection, a command on it would count as sent,
        and its outcome would be unknown.
        """
        if self._socket is None or self._reader.has_data():
            return False
        if self._look is None:
            return not self._can_read()
        return not self._look.poll(0)

    def connect(self, within: float | None = None) -> None:
        """Connect, or reconnect, within ``within`` seconds or the pool's timeout, whichever is shorter.

        Raises redis-py's error if the attempt fails, or OtherProtocol if the port and the URL disagree about TLS.
        """
        self.disconnect()
        made = self._made
        # A frozen server never replies to the greeting.
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
        # Bytes that TLS has decrypted no longer show on the socket. Some libraries that replace sockets remove
        # ``poll``.
        if hasattr(select, "poll") and not hasattr(self._socket, "pending"):
            self._look = select.poll()
            self._look.register(self._socket, select.POLLIN)

    def disconnect(self) -> None:
        """Close the connection. ``connect`` opens it again."""
        self._socket = self._reader = self._look = None
        self._made.disconnect()

    def send(self, data: bytes) -> None:
        """Send all of ``data``. Raises OSError."""
        self._socket.sendall(data)

    def receive(self, count: int, replies: list[Any]) -> None:
        """Receive ``count`` replies, and append each to ``replies`` when it arrives. An error reply is a ReplyError.

        Raises TimeoutError after the timeout of ``wait_for``, EOFError if the server has closed the connection, or
        another OSError.
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
        """Set the timeout for the next replies, in seconds; None: the pool's own timeout."""
        self._socket.settimeout(self._answer_within if seconds is None else seconds)

    def _can_read(self) -> bool:
        try:
            return bool(self._made.can_read())
        except (redis.RedisError, OSError):
            return True
