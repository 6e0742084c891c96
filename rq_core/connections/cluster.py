"""Connections to a Redis Cluster: a pool for each node. :mod:`rq_core.connections.routing` chooses the node.

    redis+cluster://user:password@host:7000,host:7001     (rediss+cluster:// with TLS)

The URL may name any nodes of the cluster. They report the remaining nodes. The URL's user, TLS and options apply to
every node.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Generic, TypeVar
from urllib.parse import urlsplit, urlunsplit

from rq_core.connections.connection import CONNECT_TIMEOUT_S, Connection
from rq_core.connections.routing import (
    BRIEF,
    REDIRECTS_MAX,
    Command,
    Node,
    Replies,
    Round,
    Routing,
    Steps,
)
from rq_core.connections.transport import (
    SOCKET_TIMEOUT_S,
    AsyncPoolTransport,
    Hear,
    Meanwhile,
    PoolTransport,
)
from rq_core.errors import InvalidOption
from rq_core.model.lib.url import SCHEMES, check_password
from rq_core.protocol.engine.plan import Lost, Patience, ReplyError, Unsent

T = TypeVar("T")
L = TypeVar("L", bound=Connection)
W = TypeVar("W", PoolTransport, AsyncPoolTransport)

DEFAULT_PORT: Final = 6379
NODE_CONNECTS_S: Final = 1.5
"""Seconds to open a connection to a node. A frozen node accepts a connection and never answers. The client must not
wait long for it, since another node may have become the primary."""


def seeds_of(url: str) -> tuple[Node, ...]:
    """Return the nodes that a URL names. Raises InvalidOption if the URL is invalid."""
    check_password(url)
    try:
        parts = urlsplit(url)
    except ValueError:
        parts = None
    if parts is None or any(map(_has_open_bracket, parts.netloc.rpartition("@")[2].split(","))):
        must = "must have each IPv6 address in [ and ], as redis+cluster://[::1]:7000,[::2]:7000"
        raise InvalidOption.of("redis", url, must)
    hosts = parts.netloc.rpartition("@")[2].split(",")
    if parts.path.strip("/") not in ("", "0"):
        raise InvalidOption.of("redis", url, "must name no database but 0: a cluster has one")
    with contextlib.suppress(ValueError):
        return tuple(_seed(host) for host in hosts)
    raise InvalidOption.of("redis", url, "must read redis+cluster://HOST:PORT,HOST:PORT")


def _has_open_bracket(host: str) -> bool:
    """Return whether a host of a URL is an IPv6 address whose brackets are missing or not closed."""
    address = host.rpartition(":")[0]
    return host.startswith("[") != ("]" in host) or (":" in address and not host.startswith("["))


def _seed(text: str) -> Node:
    # An IPv6 address is written in brackets.
    host, colon, port = text.rpartition(":") if not text.endswith("]") else (text, "", "")
    if not (host or port):
        raise ValueError(text)
    return (
        Node(host.strip("[]"), int(port))
        if colon
        else Node((host or port).strip("[]"), DEFAULT_PORT)
    )


class _Nodes(Generic[W]):
    """The transports to the nodes of a cluster.

    The transports to the nodes in the URL are created at once. The transport to any other node is created at first use.
    """

    one_slot = True

    def __init__(
        self,
        url: str,
        *,
        answer_within: float = SOCKET_TIMEOUT_S,
        connect_within: float = CONNECT_TIMEOUT_S,
    ) -> None:
        """Create the transports to the nodes in the URL.

        ``answer_within``: seconds for a reply. ``connect_within``: seconds that one exchange may take to open
        connections. Raises InvalidOption for an invalid URL.
        """
        self._url = url
        self._connect_within = connect_within
        self._bounds = {
            "answer_within": answer_within,
            "connect_within": min(connect_within, NODE_CONNECTS_S),
        }
        self._transports: dict[Node, W] = {}
        seeds = seeds_of(url)
        self._routing = Routing(seeds)
        # An invalid URL raises an error here, not at the first command.
        for seed in seeds:
            self._to(seed)

    def place(self, key: str) -> object:
        """Return the node that has the key; None if no node is known."""
        return self._routing.node_of(key)

    def _to(self, node: Node) -> W:
        """Return the transport to a node."""
        found = self._transports.get(node)
        if found is None:
            parts = urlsplit(self._url)
            user, at, _ = parts.netloc.rpartition("@")
            host = f"[{node.host}]" if ":" in node.host else node.host
            place = f"{user}{at}{host}:{node.port}"
            scheme = SCHEMES[parts.scheme]
            url = urlunsplit((scheme, place, "", parts.query, ""))
            # Threads that arrive at the same time must share one transport.
            found = self._transports.setdefault(node, self._make_transport(url))
        return found

    def _make_transport(self, url: str) -> W:
        raise NotImplementedError


class _Budget:
    """The remaining seconds of one exchange, which may need several rounds of commands."""

    def __init__(self, patience: Patience | None, connect_within: float) -> None:
        """Start the clock. ``patience``: the limits of the exchange. Without it, the exchange may take
        ``connect_within`` seconds to open connections, and any time to wait for replies."""
        self._patience = patience or Patience(unsent=connect_within, unknown=math.inf)
        self._began = time.monotonic()

    def left(self, of: Round) -> Patience:
        """Return the patience that remains for the round ``of``. A brief round gets at most the patience BRIEF."""
        took = time.monotonic() - self._began
        unsent, unknown = self._patience.unsent - took, self._patience.unknown - took
        if of.brief:
            unsent, unknown = min(unsent, BRIEF.unsent), min(unknown, BRIEF.unknown)
        return Patience(unsent, unknown)


def _of(step: Round, meanwhile: Meanwhile) -> Meanwhile:
    """Return the function to call when the round ``step`` has been sent: ``meanwhile``, or None for a brief round. A
    brief round only asks for the cluster's map, or sends one command to all primaries."""
    return None if step.brief else meanwhile


class ClusterTransport(_Nodes[PoolTransport]):
    """A Transport to the nodes of a cluster."""

    def exchange(
        self,
        commands: Sequence[Command],
        meanwhile: Meanwhile = None,
        patience: Patience | None = None,
    ) -> list[Any]:
        """Send each command to the node that has its key, and return the replies. A failed command has an exception in
        place of its reply."""
        return self._drive(self._routing.exchange(commands), meanwhile, patience)

    def block(self, command: Command, seconds: float) -> Any:
        """Send a blocking command that answers within ``seconds``. Return the reply, or raise its error."""
        for _ in range(REDIRECTS_MAX):
            node = self._drive(self._routing.locate(command))
            try:
                return self._to(node).block(command, seconds)
            except ReplyError as error:
                if not self._routing.follow(error, node):
                    raise
            except (Lost, Unsent) as error:
                self._routing.map.note(node, error)
                raise
        raise ReplyError("TRYAGAIN its slot keeps moving")

    def new_connection(self, key: str, kind: Callable[[Any], L]) -> L | None:
        """Return a new, unopened connection to the node that has a key; None if that node is not known yet. ``kind``:
        the class of the connection."""
        node = self._routing.node_of(key)
        return None if node is None else self._to(node).new_connection(key, kind)

    def is_current(self, connection: Connection) -> bool:  # noqa: ARG002 - each node has connections of its own
        """Return True: a connection to a node always leads to that node."""
        return True

    def close(self) -> None:
        """Close all connections."""
        for transport in self._transports.values():
            transport.close()

    def _make_transport(self, url: str) -> PoolTransport:
        return PoolTransport(url, **self._bounds)

    def _drive(
        self, steps: Steps[T], meanwhile: Meanwhile = None, patience: Patience | None = None
    ) -> T:
        budget = _Budget(patience, self._connect_within)
        replies: Replies | None = None
        while True:
            try:
                step = next(steps) if replies is None else steps.send(replies)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            replies = {
                node: self._to(node).exchange(batch, _of(step, meanwhile), budget.left(step))
                for node, batch in step.commands.items()
            }


class AsyncClusterTransport(_Nodes[AsyncPoolTransport]):
    """An AsyncTransport to the nodes of a cluster. It sends commands to several nodes at the same time."""

    _is_closed = False

    async def exchange(
        self,
        commands: Sequence[Command],
        meanwhile: Meanwhile = None,
        patience: Patience | None = None,
    ) -> list[Any]:
        """Send each command to the node that has its key, and return the replies. A failed command has an exception in
        place of its reply."""
        return await self._drive(self._routing.exchange(commands), meanwhile, patience)

    async def block(self, command: Command, seconds: float, hear: Hear = None) -> Any:
        """Send a blocking command that answers within ``seconds``. Return the reply, or raise its error.

        ``hear`` is called with the reply, one iteration of the event loop before this method returns.
        """
        for _ in range(REDIRECTS_MAX):
            node = await self._drive(self._routing.locate(command))
            try:
                return await self._to(node).block(command, seconds, hear)
            except ReplyError as error:
                if not self._routing.follow(error, node):
                    raise
            except (Lost, Unsent) as error:
                self._routing.map.note(node, error)
                raise
        raise ReplyError("TRYAGAIN its slot keeps moving")

    def pool_of(self, key: str) -> AsyncPoolTransport | None:
        """Return the transport to the node that has a key; None if that node is not known. If the key moves to another
        node, the transport still leads to the old node."""
        node = self._routing.node_of(key)
        return None if node is None else self._to(node)

    async def close(self) -> None:
        """Close all connections. If a running call opens a connection later, that connection is closed after the
        call."""
        self._is_closed = True
        ends = (transport.close() for transport in self._transports.values())
        for error in await asyncio.gather(*ends, return_exceptions=True):
            if error is not None:
                raise error

    def _make_transport(self, url: str) -> AsyncPoolTransport:
        return AsyncPoolTransport(url, keep=not self._is_closed, **self._bounds)

    async def _drive(
        self, steps: Steps[T], meanwhile: Meanwhile = None, patience: Patience | None = None
    ) -> T:
        budget = _Budget(patience, self._connect_within)
        replies: Replies | None = None
        while True:
            try:
                step = next(steps) if replies is None else steps.send(replies)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            replies = await self._round(step.commands, _of(step, meanwhile), budget.left(step))

    async def _round(
        self, commands: Mapping[Node, Sequence[Command]], meanwhile: Meanwhile, left: Patience
    ) -> Replies:
        if len(commands) == 1:
            ((node, batch),) = commands.items()
            return {node: await self._to(node).exchange(batch, meanwhile, left)}
        async with asyncio.TaskGroup() as group:
            tasks = {
                node: group.create_task(self._to(node).exchange(batch, meanwhile, left))
                for node, batch in commands.items()
            }
        return {node: task.result() for node, task in tasks.items()}
