"""A proxy between clients and Redis, which loses, cuts and delays data at random while a mode is on.

Each mode imitates one failure of networks. A client cannot distinguish a lost request from a lost reply. The server has
carried out the command only in the second case.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
from collections.abc import Iterator
from enum import StrEnum
from typing import Final

from tests.kit.door import DoorKeeper, closing

READ: Final = 65_536
SHARE: Final = 0.15
"""The probability that the proxy breaks the connection at a piece of data, in a mode that drops or resets."""
DELAY_S: Final = (0.0, 0.15)
SLICE_MAX: Final = 7
"""The largest size of a slice, in bytes."""
_LINGER: Final = struct.pack("ii", 1, 0)
"""A socket option: with it, closing the socket resets the connection instead of ending it in order."""


class Mode(StrEnum):
    """The ways in which the proxy treats the data that pass through it."""

    PLAIN = "plain"
    """The proxy passes all data on."""
    DROP_REPLY = "drop_reply"
    """The server has carried out the command. Its answer is lost, and the connection ends."""
    DROP_REQUEST = "drop_request"
    """The connection ends before the server has received the command."""
    RESET = "reset"
    """The proxy resets the connection during a command."""
    STALL = "stall"
    """The proxy passes no data on until the mode ends. The connections stay open."""
    SLICE = "slice"
    """The data arrive in small pieces."""
    DELAY = "delay"
    """The data arrive late."""
    BLACK_HOLE = "black_hole"
    """The proxy passes no data on any connection that is open now or is opened during the mode, and does not close
    these connections. They stay dead after the mode, so that only a timeout of the client ends the wait."""


class Proxy(DoorKeeper):
    """Relays connections to a server on loopback, on a thread of its own. Use it in a ``with`` statement."""

    def __init__(self, port: int, seed: int = 0, late_s: float = 0.0) -> None:
        """``late_s``: seconds by which all data arrive late in each direction, whatever the mode."""
        super().__init__("proxy")
        self._late_s = late_s
        self._target = port
        self._draw = random.Random(seed)
        self._mode = Mode.PLAIN
        self._holes = 0
        """The number of black holes so far. A connection that was opened before the end of the last black hole is
        dead."""
        self._flows = asyncio.Event()
        # Of the proxy: the loop alone keeps no task that waits for an event of its own.
        self._never = asyncio.Event()
        self._flows.set()
        self.taken = 0
        """The number of times that a mode has changed the data that passed."""

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.door()}/0"

    def lead_to(self, port: int) -> None:
        """Relay new connections to the server at this port."""
        self._target = port

    @contextlib.contextmanager
    def doing(self, mode: Mode) -> Iterator[None]:
        """Apply a mode during the block."""
        self._loop.call_soon_threadsafe(self._turn_to, mode)
        try:
            yield
        finally:
            self._loop.call_soon_threadsafe(self._turn_to, Mode.PLAIN)

    def _turn_to(self, mode: Mode) -> None:
        self._mode = mode
        self._holes += mode is Mode.BLACK_HOLE
        if mode is Mode.STALL:
            self._flows.clear()
        else:
            self._flows.set()

    async def _serve(
        self, _number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        if self._mode is Mode.BLACK_HOLE:
            await self._stay_dead()
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            return
        pumps = [
            asyncio.ensure_future(self._pump(reader, far_writer, Mode.DROP_REQUEST)),
            asyncio.ensure_future(self._pump(far_reader, writer, Mode.DROP_REPLY)),
        ]
        with closing(writer, far_writer):
            try:
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for pump in pumps:
                    pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            if self._mode is Mode.RESET:
                for end in (writer, far_writer):
                    end.get_extra_info("socket").setsockopt(
                        socket.SOL_SOCKET, socket.SO_LINGER, _LINGER
                    )

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, drop: Mode
    ) -> None:
        """Pass on data in one direction, until one side ends or the mode breaks the connection."""
        holes = self._holes
        with contextlib.suppress(OSError):
            while data := await self._read(reader, holes):
                await self._flows.wait()
                if self._mode in (drop, Mode.RESET) and self._draw.random() < SHARE:
                    self.taken += 1
                    return
                await self._pass_on(data, writer)

    async def _read(self, reader: asyncio.StreamReader, holes: int) -> bytes:
        """Return the next data, or no data at the end of the connection. A call on a dead connection never returns."""
        data = b""
        with contextlib.suppress(OSError):
            data = await reader.read(READ)
        if self._holes > holes:
            await self._stay_dead()
        return data

    async def _stay_dead(self) -> None:
        """Keep the connection open without data, until the proxy ends and cancels this call."""
        self.taken += 1
        await self._never.wait()

    async def _pass_on(self, data: bytes, writer: asyncio.StreamWriter) -> None:
        if self._late_s:
            await asyncio.sleep(self._late_s)
        if self._mode is Mode.DELAY:
            self.taken += 1
            await asyncio.sleep(self._draw.uniform(*DELAY_S))
        if self._mode is Mode.SLICE:
            self.taken += 1
            # A long answer in pieces of seven bytes would only test patience.
            head, data = data[:512], data[512:]
            while head:
                size = self._draw.randint(1, SLICE_MAX)
                writer.write(head[:size])
                await writer.drain()
                await asyncio.sleep(0)
                head = head[size:]
        writer.write(data)
        await writer.drain()
