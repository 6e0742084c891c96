"""How replies are read: hiredis takes them apart, and an error is a ReplyError in the place of its reply."""

from __future__ import annotations

from typing import Any, Final

import hiredis

from rq_core.protocol.plan import ReplyError

PENDING: Final = object()
"""What a reader gives while a reply has not come whole. None and False may be replies."""
Push: Final = hiredis.PushNotification
"""A message that the server sends unasked, to clients that speak RESP3. It is no reply."""


def new_reader() -> Any:
    """A reader of what one connection receives."""
    return hiredis.Reader(
        protocolError=_garbled,
        replyError=error_of,
        encoding="utf-8",
        # A reply with bytes that are not UTF-8 must reach the code that can say which job it is.
        errors="surrogateescape",
        notEnoughData=PENDING,
    )


def error_of(text: str) -> ReplyError:
    """The error that a server's words stand for: its code first (NOSCRIPT, OOM…), unless that is ERR."""
    return ReplyError(explained(text.removeprefix("ERR ").rstrip(".")))


def explained(text: str) -> str:
    """A server's words, in clearer ones where they mislead."""
    if "Protocol error: unauthenticated" in text:
        # What a server that asks for a password says to a command of more than ten words.
        return f"NOAUTH Authentication required ({text})"
    return text


def _garbled(text: str) -> Exception:
    return ConnectionError(f"what the server sent is not a reply: {text}")
