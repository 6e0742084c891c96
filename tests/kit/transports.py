"""Transports that lose replies at a moment that the test chooses."""

from collections.abc import Callable, Sequence
from typing import Any

from rq_core.connections.transport import AsyncPoolTransport, PoolTransport
from rq_core.protocol.engine.plan import Lost, Unsent


def _is_call(command: Sequence[Any]) -> bool:
    return command[0] in {"FCALL", "EVALSHA"}


def is_claim(command: Sequence[Any]) -> bool:
    """Return whether a command is a claim, or a turn, which also claims jobs."""
    return command[0] == "FCALL" and str(command[1]).split("_")[1] in {"claim", "turn"}


class LossyTransport:
    """A PoolTransport that can lose replies after the server has carried out the calls.

    The next ``lose`` exchanges with script calls lose their replies, except the first ``keep`` replies of each
    exchange. ``between`` is called after each loss, before the client repeats its calls. The next ``unsent`` exchanges
    with script calls are not sent. ``sent`` has all exchanges that were sent. The server forgets its functions before
    the command with the index ``flush``.
    """

    def __init__(self, url: str) -> None:
        self._transport = PoolTransport(url)
        self.lose = 0
        self.keep = 0
        self.unsent = 0
        self.flush: int | None = None
        self.between: Callable[[], Any] = lambda: None
        self.sent: list[list[Sequence[Any]]] = []

    def exchange(self, commands: Sequence[Sequence[Any]], *how: Any) -> list[Any]:
        calls = any(_is_call(c) for c in commands)
        if calls and self.unsent > 0:
            self.unsent -= 1
            return [Unsent("no connection, says the test")] * len(commands)
        self.sent.append(list(commands))
        replies = self._exchange(commands, *how, calls=calls)
        if calls and self.lose > 0:
            self.lose -= 1
            self.between()
            return [
                *replies[: self.keep],
                *[Lost("dropped by the test")] * (len(commands) - self.keep),
            ]
        return replies

    def _exchange(self, commands: Sequence[Sequence[Any]], *how: Any, calls: bool) -> list[Any]:
        if not calls or self.flush is None:
            return self._transport.exchange(commands, *how)
        at, self.flush = self.flush, None
        mixed = [*commands[:at], ["FUNCTION", "FLUSH"], *commands[at:]]
        replies = self._transport.exchange(mixed, *how)
        return [*replies[:at], *replies[at + 1 :]]

    def block(self, command: Sequence[Any], seconds: float) -> Any:
        return self._transport.block(command, seconds)

    def close(self) -> None:
        self._transport.close()

    @property
    def calls(self) -> list[Sequence[Any]]:
        """Return all script calls that were sent."""
        return [c for exchange in self.sent for c in exchange if _is_call(c)]


class LossyAsyncTransport(AsyncPoolTransport):
    """A transport for asyncio that can lose replies after the server has carried out the calls.

    The next ``lose`` exchanges with script calls lose all replies. With ``flush``, the server forgets its scripts
    before the second call of each pipeline of script calls.
    """

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.lose = 0
        self.flush = False
        self.flushed = 0

    async def exchange(self, commands: Sequence[Sequence[Any]], *how: Any) -> list[Any]:
        if self.flush and len(commands) > 1 and all(map(_is_call, commands)):
            self.flushed += 1
            first, *rest = commands
            mixed = await super().exchange([first, ["SCRIPT", "FLUSH"], *rest])
            return [mixed[0], *mixed[2:]]
        replies = await super().exchange(commands, *how)
        if self.lose > 0 and any(_is_call(c) for c in commands):
            self.lose -= 1
            return [Lost("dropped by the test")] * len(commands)
        return replies


class Counted(AsyncPoolTransport):
    """Counts the exchanges that claim jobs. ``sent`` counts all of them, and ``under_way`` those without a reply yet.

    ``most`` is the highest value of ``under_way``.
    """

    sent = under_way = most = 0

    async def exchange(self, commands: Sequence[Sequence[Any]], *how: Any) -> list[Any]:
        if not any(map(is_claim, commands)):
            return await super().exchange(commands, *how)
        self.sent += 1
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        try:
            return await super().exchange(commands, *how)
        finally:
            self.under_way -= 1
