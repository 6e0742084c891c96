"""One connection that hears: messages of channels come on it between replies, as RESP3 has it.

Redis answers in order: what is published between a subscription and a reply comes before the reply. So a look that
leaves in one write with the subscription finds all that no message will tell."""

from __future__ import annotations

import ssl
from collections import deque
from collections.abc import Sequence
from typing import Any

import hiredis
import redis

from rq_core.connections.line import RECEIVE_BYTES, Line, soonest
from rq_core.connections.replies import PENDING, Push
from rq_core.protocol.plan import ReplyError

_SUBSCRIBES = {"SSUBSCRIBE": "ssubscribe", "SUNSUBSCRIBE": "sunsubscribe"}
"""Commands that a message answers, and the first word of that message."""


class HearingLine(Line):
    """A connection for the commands and the messages of one thread."""

    def __init__(self, source: Any) -> None:
        """See Line."""
        super().__init__(source)
        self._messages: deque[tuple[str, str, str]] = deque()

    @property
    def socket(self) -> Any:
        """What becomes readable when something comes; None if it is not connected."""
        return self._socket

    def connect(self, within: float | None = None) -> None:
        """See Line.connect. Raises redis.ConnectionError, too, if the server does not speak RESP3."""
        super().connect(within)
        self._messages.clear()
        # redis-py has greeted by now, and speaks RESP2: what it would do with RESP3 besides is not wanted here.
        (reply,) = self.exchange([["HELLO", "3"]], soonest(self._connect_within, within))
        if isinstance(reply, ReplyError):
            raise redis.ConnectionError(f"it does not speak RESP3: {reply}")

    def exchange(self, commands: Sequence[Sequence[Any]], within: float) -> list[Any]:
        """The replies to commands, within so many seconds each; an error as a ReplyError in its place, None for a
        subscription that has begun or ended. Raises what Line.receive does, or OSError."""
        self._socket.settimeout(within)
        self.send(b"".join(hiredis.pack_command(tuple(each)) for each in commands))
        replies = [self._reply_to(each) for each in commands]
        self._read()
        return replies

    def messages(self) -> list[tuple[str, str, str]]:
        """What has come since the last time: the kind of message (smessage, sunsubscribe), the channel, what it says.
        Raises OSError, or EOFError if the server has ended the connection."""
        if self._socket is not None:
            self._read()
        found = [*self._messages]
        self._messages.clear()
        return found

    def _reply_to(self, command: Sequence[Any]) -> Any:
        kind = _SUBSCRIBES.get(str(command[0]))
        while True:
            reply = self._reader.gets()
            if reply is PENDING:
                self._feed()
            elif type(reply) is not Push:
                return reply
            elif kind is not None and reply[:2] == [kind, command[1]]:
                return None
            else:
                self._note(reply)

    def _feed(self) -> None:
        data = self._socket.recv(RECEIVE_BYTES)
        if not data:
            raise EOFError("the server closed the connection")
        self._reader.feed(data)

    def _read(self) -> None:
        """Read what is there. (What TLS has decrypted no longer shows on the socket.)"""
        self._socket.settimeout(0)
        while True:
            while (message := self._reader.gets()) is not PENDING:
                self._note(message)
            try:
                self._feed()
            except (BlockingIOError, ssl.SSLWantReadError):
                return

    def _note(self, message: Any) -> None:
        if type(message) is Push and len(message) == 3:
            self._messages.append((message[0], message[1], str(message[2])))
