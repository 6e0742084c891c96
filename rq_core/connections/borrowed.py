"""What is borrowed of redis-py's connections, which make themselves and then only lend their socket.

redis-py knows how a connection is made: TCP or a Unix socket, TLS, AUTH, HELLO, SELECT, names. What it does for each
command after that is more than the exchange itself, so :mod:`rq_core.connections.line` and
:mod:`rq_core.connections.async_line` speak on the socket. redis-py has no public name for it: the two that are used
stand here, and ``tests/unit/test_lines.py`` says which is missing if a version of redis-py has others.
"""

from __future__ import annotations

import asyncio
from typing import Any


def socket_of(connection: Any) -> Any:
    """The socket of a redis.Connection that is connected; with TLS, the one that encrypts."""
    return connection._sock  # noqa: SLF001 - see above


def transport_of(connection: Any) -> asyncio.Transport:
    """The transport of a redis.asyncio.Connection that is connected."""
    transport: asyncio.Transport = connection._writer.transport  # noqa: SLF001 - see above
    return transport
