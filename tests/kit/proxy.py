"""A proxy between clients and Redis that randomly loses, cuts and delays data while a mode is on.

Each mode is a way in which networks and proxies fail. The most important difference is between a lost request and a
lost reply: the client sees the same, but only in the second case has the server executed the command.
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
"""Of the pieces that pass, how many a lossy mode takes."""
DELAY_S: Final = (0.0, 0.15)
SLICE_MAX: Final = 7
"""Bytes."""
_LINGER: Final = struct.pack("ii", 1, 0)
"""A close with this set sends a reset instead of an orderly end."""


class Mode(StrEnum):
    """The ways in which the proxy handles the data that passes."""

    PLAIN = "plain"
    """Everything passes."""
    DROP_REPLY = "drop_reply"
    """The server has executed the command; its answer is lost, and the connection with it."""
    DROP_REQUEST = "drop_request"
    """The connection ends before the server has seen the command."""
    RESET = "reset"
    """The connection is reset under whatever is under way."""
    STALL = "stall"
    """Nothing passes until the mode ends; connections stay."""
    SLICE = "slice"
    """Everything arrives in small pieces."""
    DELAY = "delay"
    """Everything arrives late."""
    BLACK_HOLE = "black_hole"
    """Nothing passes on the connections that are open or opened meanwhile, and nothing ends them: they stay dead when
    the mode ends, so that only a deadline of the client can."""


class Proxy(DoorKeeper):
    """Relays connections to a server on loopback, on a thread of its own. Use it in a ``with``."""

    def __init__(self, port: int, seed: int = 0) -> None:
        super().__init__("proxy")
        self._target = port
        self._draw = random.Random(seed)
        self._mode = Mode.PLAIN
        self._holes = 0
        """How many black holes there were; what is older than the last one is dead."""
        self._flows = asyncio.Event()
        # Of the proxy: the loop alone keeps no task that waits for an event of its own.
        self._never = asyncio.Event()
        self._flows.set()
        self.taken = 0
        """How often a mode has done something to what passed."""

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.door()}/0"

    def lead_to(self, port: int) -> None:
        """Lead new connections to another server on loopback."""
        self._target = port

    @contextlib.contextmanager
    def doing(self, mode: Mode) -> Iterator[None]:
        """Apply this mode during the block."""
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
        """Pass on the data of one direction, until either side ends or a mode ends the connection."""
        holes = self._holes
        with contextlib.suppress(OSError):
            while data := await self._read(reader, holes):
                await self._flows.wait()
                if self._mode in (drop, Mode.RESET) and self._draw.random() < SHARE:
                    self.taken += 1
                    return
                await self._pass_on(data, writer)

    async def _read(self, reader: asyncio.StreamReader, holes: int) -> bytes:
        """Return the next data, or nothing at the end; never returns for a dead connection."""
        data = b""
        with contextlib.suppress(OSError):
            data = await reader.read(READ)
        if self._holes > holes:
            await self._stay_dead()
        return data

    async def _stay_dead(self) -> None:
        """Keep the connection open without data until the proxy itself ends, which cancels this call."""
        self.taken += 1
        await self._never.wait()

    async def _pass_on(self, data: bytes, writer: asyncio.StreamWriter) -> None:
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
