"""Opens a URL: returns a transport to one server, to the primary that Sentinel names, or to a Redis Cluster."""

from __future__ import annotations

from typing import Final

from rq_core.connections import sentinel
from rq_core.connections.connection import CONNECT_TIMEOUT_S
from rq_core.connections.transport import (
    SOCKET_TIMEOUT_S,
    AsyncPoolTransport,
    AsyncTransport,
    PoolTransport,
    Transport,
)
from rq_core.model.lib.url import is_cluster
from rq_core.protocol.engine.plan import Patience

ELSEWHERE_AFTER_S: Final = 4.0
"""Seconds without an answer after which a connection of a Sentinel or Cluster URL is closed, because another server may
have taken over. The call is then sent again, but carried out only once."""
SECONDS_MIN: Final = 1.0
"""Minimum timeout in seconds for connecting and for a reply, even if the caller's patience is shorter."""


def open_transport(
    url: str, *, answer_within: float = SOCKET_TIMEOUT_S, patience: Patience | None = None
) -> Transport:
    """Return a transport (connections) to the server that a URL names. It is not connected yet.

    ``answer_within``: seconds for a reply. ``patience``: how long the caller's calls wait; it may shorten the timeouts.
    Raises InvalidOption.
    """
    answer, connect = _bounds(url, answer_within, patience or Patience())
    if is_cluster(url):
        # Imported only here: most processes talk to one server.
        from rq_core.connections.cluster import ClusterTransport

        return ClusterTransport(url, answer_within=answer, connect_within=connect)
    return PoolTransport(url, answer_within=answer, connect_within=connect)


def open_async_transport(
    url: str, *, answer_within: float = SOCKET_TIMEOUT_S, patience: Patience | None = None
) -> AsyncTransport:
    """Return an asyncio transport to the server that a URL names. The arguments are those of ``open_transport``."""
    answer, connect = _bounds(url, answer_within, patience or Patience())
    if is_cluster(url):
        from rq_core.connections.cluster import AsyncClusterTransport

        return AsyncClusterTransport(url, answer_within=answer, connect_within=connect)
    return AsyncPoolTransport(url, answer_within=answer, connect_within=connect)


def _bounds(url: str, answer_within: float, patience: Patience) -> tuple[float, float]:
    """Return the maximum seconds for a reply, and the maximum seconds to connect."""
    if is_cluster(url) or sentinel.named_by(url):
        answer_within = min(answer_within, ELSEWHERE_AFTER_S)
    return (
        min(answer_within, max(SECONDS_MIN, patience.unknown)),
        min(CONNECT_TIMEOUT_S, max(SECONDS_MIN, patience.unsent)),
    )
