"""From a URL to a wire: to one server, to what Sentinel calls the primary, or to a Redis Cluster."""

from __future__ import annotations

from rq_core.connections.wire import SOCKET_TIMEOUT_S, AsyncPoolWire, AsyncWire, PoolWire, Wire
from rq_core.model.url import is_cluster


def open_wire(url: str, *, answer_within: float = SOCKET_TIMEOUT_S) -> Wire:
    """The wire to what a URL names; it connects to nothing yet. Raises InvalidOption."""
    if is_cluster(url):
        # Imported only here: most processes talk to one server.
        from rq_core.connections.cluster import ClusterWire

        return ClusterWire(url, answer_within=answer_within)
    return PoolWire(url, answer_within=answer_within)


def open_async_wire(url: str, *, answer_within: float = SOCKET_TIMEOUT_S) -> AsyncWire:
    """The same for asyncio."""
    if is_cluster(url):
        from rq_core.connections.cluster import AsyncClusterWire

        return AsyncClusterWire(url, answer_within=answer_within)
    return AsyncPoolWire(url, answer_within=answer_within)
