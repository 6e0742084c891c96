"""Finds out whether the URL and the port disagree about TLS.

The error of the failed connection does not show this. A port with TLS resets a connection without TLS. A port without
TLS takes the TLS handshake for a command, and waits for the end of this command. So the probe opens a second connection
and does the opposite of the URL: it sends a plain command if the URL asks for TLS, and otherwise begins a TLS
handshake.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import Any, Final

import redis
import redis.asyncio

LOOK_S: Final = 0.5
"""Maximum seconds for the whole probe in an event loop. In a thread, each attempt to connect, and the wait for the
first byte, may take this long."""
SPEAKS: Final = "ERR it speaks "
"""The beginning of the text of an ``OtherProtocol`` error."""

_RECORDS: Final = (b"\x15", b"\x16")
"""The possible first bytes from a TLS server: the first byte of an alert, and the first byte of a handshake."""
_PLAIN: Final = (b"+", b"-")
_FAILED: Final = (redis.ConnectionError, redis.TimeoutError, OSError)


class OtherProtocol(redis.RedisError):
    """The error if only the port or only the URL uses TLS.

    A further attempt would fail, too.
    """

    def __init__(self, *, speaks_tls: bool) -> None:
        super().__init__(
            f"{SPEAKS}TLS on this port, and the URL asks for none"
            if speaks_tls
            else f"{SPEAKS}no TLS on this port, and the URL asks for it"
        )


def check_tls(made: Any, error: BaseException) -> None:
    """Raise OtherProtocol if ``made``, a connection of redis-py, failed with ``error`` because only one side uses
    TLS."""
    tls = _asks_for_tls(made, error)
    if tls is None:
        return
    with contextlib.suppress(OSError):
        with socket.create_connection((made.host, made.port), LOOK_S) as sock:
            sock.sendall(_greeting(tls=not tls))
            first = sock.recv(1)
        _judge(first, tls=tls)


async def check_tls_async(made: Any, error: BaseException) -> None:
    """Raise OtherProtocol if ``made``, a connection of redis-py, failed with ``error`` because only one side uses
    TLS."""
    tls = _asks_for_tls(made, error)
    if tls is None:
        return
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(LOOK_S):
            reader, writer = await asyncio.open_connection(made.host, made.port)
            try:
                writer.write(_greeting(tls=not tls))
                first = await reader.read(1)
            finally:
                writer.transport.abort()
        _judge(first, tls=tls)


def _asks_for_tls(made: Any, error: BaseException) -> bool | None:
    """Return whether the failed connection used TLS; None if TLS cannot be the reason for the error."""
    timed_out = isinstance(error, redis.TimeoutError | TimeoutError)
    if not isinstance(error, _FAILED) or "refused" in str(error):
        return None
    if type(made) in (redis.SSLConnection, redis.asyncio.SSLConnection):
        return True if timed_out else None
    return (
        None
        if timed_out or type(made) not in (redis.Connection, redis.asyncio.Connection)
        else False
    )


def _greeting(*, tls: bool) -> bytes:
    if not tls:
        return b"PING\r\n"
    # Imported only here: OpenSSL is slow to import.
    import ssl

    sent = ssl.MemoryBIO()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), sent).do_handshake()
    return sent.read()


def _judge(first: bytes, *, tls: bool) -> None:
    if first in (_PLAIN if tls else _RECORDS):
        raise OtherProtocol(speaks_tls=not tls)
