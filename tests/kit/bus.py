"""The cluster bus on loopback. All links between nodes pass through this process, so a test can cut a node off.

Each node announces a port of this process as its bus port. Each node connects from an address of its own, by which this
process recognizes it. Clients and replicas do not use the bus, and still reach a node that is cut off.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from tests.kit.door import DoorKeeper

READ: Final = 65_536


@dataclass(eq=False)
class _Link:
    """A connection from one node to another."""

    ends: tuple[int, int]
    writers: tuple[asyncio.StreamWriter, asyncio.StreamWriter]

    def cut(self) -> None:
        for writer in self.writers:
            writer.transport.abort()


class Bus(DoorKeeper):
    """Relays the links between nodes, on a thread of its own. Nodes are numbered from 0.

    ``door`` returns the port that a node announces to the other nodes.
    """

    def __init__(self, ports: list[int]) -> None:
        """``ports`` are the real bus ports of the nodes."""
        super().__init__("bus", len(ports))
        self._ports = ports
        self._cut: set[int] = set()
        self._links: set[_Link] = set()

    @staticmethod
    def address(number: int) -> str:
        """Return the address from which the node with this number connects."""
        return f"127.0.1.{number + 1}"

    @contextlib.contextmanager
    def cutting_off(self, number: int) -> Iterator[None]:
        """Cut a node off during the block. It exchanges no data with other nodes."""
        self._loop.call_soon_threadsafe(self._cut_off, number)
        try:
            yield
        finally:
            self._loop.call_soon_threadsafe(self._cut.discard, number)

    def _cut_off(self, number: int) -> None:
        self._cut.add(number)
        for link in list(self._links):
            if number in link.ends:
                link.cut()

    # On the thread.

    async def _serve(
        self, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        came_from = int(writer.get_extra_info("peername")[0].rpartition(".")[2]) - 1
        if not self._cut & {number, came_from}:
            await self._relay((came_from, number), reader, writer)
        writer.transport.abort()

    async def _relay(
        self, ends: tuple[int, int], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._ports[ends[1]])
        link = _Link(ends, (writer, far_writer))
        self._links.add(link)
        pumps = [
            asyncio.ensure_future(self._pump(reader, far_writer)),
            asyncio.ensure_future(self._pump(far_reader, writer)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._links.discard(link)
            link.cut()
            for pump in pumps:
                pump.cancel()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(READ):
                writer.write(data)
                await writer.drain()
