"""A proxy between clients and Redis. It loses the reply to one call, and then breaks all connections."""

from __future__ import annotations

import asyncio
import contextlib
import re
import threading
from collections.abc import Iterator

from tests.kit.door import DoorKeeper, closing

READ = 65_536


class Cutter(DoorKeeper):
    """Relays connections to a server on loopback, on a thread of its own. Use it in a ``with`` statement."""

    def __init__(self, port: int) -> None:
        super().__init__("cutter")
        self._target = port
        self._asked: re.Pattern[bytes] | None = None
        self._left = 0
        self._passing = 0
        self._is_cut = False
        self.cuts = threading.Event()
        """Set if a connection was cut during the last block of ``cutting``."""

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.door()}/0"

    @contextlib.contextmanager
    def cutting(self, script: str, call: int = 1, passing: int = 0) -> Iterator[None]:
        """Lose the reply to one call of a script during the block. ``call`` is the number of this call, from 1.

        The server carries out the call. The first ``passing`` bytes of its answer still pass. From then on, no
        connection works until the end of the block.
        """
        self.cuts.clear()
        self._left, self._passing = call, passing
        self._asked = re.compile(rb"FCALL\r\n\$\d+\r\n\w*" + script.encode())
        try:
            yield
        finally:
            self._asked, self._is_cut = None, False

    async def _serve(
        self, _number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        if self._is_cut:
            return
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target)
        pumps = [
            asyncio.ensure_future(self._ask(reader, far_writer)),
            asyncio.ensure_future(self._answer(far_reader, writer)),
        ]
        with closing(writer, far_writer):
            try:
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for pump in pumps:
                    pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)

    async def _ask(self, reader: asyncio.StreamReader, far: asyncio.StreamWriter) -> None:
        while (data := await reader.read(READ)) and not self._is_cut:
            if self._asked is not None:
                self._left -= len(self._asked.findall(data))
            far.write(data)
            await far.drain()

    async def _answer(self, far: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while (data := await far.read(READ)) and not self._is_cut:
            if self._asked is not None and self._left <= 0:
                self._is_cut = True
                if self._passing:
                    writer.write(data[: self._passing])
                    await writer.drain()
                self.cuts.set()
                return
            writer.write(data)
            await writer.drain()
