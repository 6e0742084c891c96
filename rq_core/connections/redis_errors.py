"""Converts errors of redis-py, OpenSSL and the operating system to errors and texts of rq-core."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import redis.asyncio

from rq_core.connections.connection import explained
from rq_core.protocol.engine.plan import ReplyError, Unsent

_DEMOTED = ("READONLY", "MASTERDOWN", "UNBLOCKED", "NOREPLICAS")
"""The error codes of a server that is no longer the primary, or that has lost its replicas. The next call then needs a
new connection, perhaps to another server."""


def unsent(error: Exception) -> Unsent | ReplyError:
    """Return the error that takes the place of a reply if no connection could be opened for a command."""
    broken = isinstance(error, BROKEN_ASYNC) and not isinstance(error, ANSWERED)
    return Unsent(own_words(error)) if broken else ReplyError(own_words(error))


def is_demoted(replies: Sequence[Any]) -> bool:
    # Most replies contain no error; the first test finds this quickly.
    return ReplyError in map(type, replies) and any(
        isinstance(reply, ReplyError) and str(reply).startswith(_DEMOTED) for reply in replies
    )


def own_words(error: BaseException) -> str:
    """Return the error's text. Add the code (NOSCRIPT, OOM…) that redis-py removes, and advice for TLS errors."""
    text = str(error).rstrip(".") or type(error).__name__
    for sign, advice in _TLS_ADVICE.items():
        if sign in text:
            return f"{advice} ({text})"
    text = explained(text)
    if "invalid username-password" in text:
        # redis-py has one class for a missing and for a wrong password, and drops the server's prefix.
        return text if text.startswith("WRONGPASS") else f"WRONGPASS {text}"
    prefix = _PREFIXES.get(type(error))
    return text if prefix is None or text.startswith(prefix) else f"{prefix} {text}"


_NAME_YOURS: Final = (
    "it asks for a certificate: name yours in the URL,"
    " ?ssl_certfile=/path/client.crt&ssl_keyfile=/path/client.key"
)


_TLS_ADVICE: Final = {
    "unable to get local issuer certificate": "no authority known here has signed its certificate: name the authority's"
    " file in the URL, ?ssl_ca_certs=/path/ca.crt",
    "self-signed certificate": "its certificate is signed by itself or by an authority that is not known here: name the"
    " authority's file in the URL, ?ssl_ca_certs=/path/ca.crt",
    "CERTIFICATE_REQUIRED": _NAME_YOURS,
    # A write before the alert is read fails with this text, since the server has ended the connection.
    "EOF occurred in violation of protocol": f"it ended the TLS connection; perhaps {_NAME_YOURS}",
}
"""Advice for the operator, by a part of OpenSSL's error text."""


_PREFIXES: Final[dict[type, str]] = {
    redis.exceptions.NoScriptError: "NOSCRIPT",
    redis.exceptions.OutOfMemoryError: "OOM",
    redis.exceptions.ReadOnlyError: "READONLY",
    redis.exceptions.BusyLoadingError: "LOADING",
    redis.exceptions.NoPermissionError: "NOPERM",
    redis.exceptions.AuthenticationError: "NOAUTH",
    redis.exceptions.TryAgainError: "TRYAGAIN",
    redis.exceptions.MovedError: "MOVED",
    redis.exceptions.AskError: "ASK",
    redis.exceptions.ClusterCrossSlotError: "CROSSSLOT",
    redis.exceptions.ClusterDownError: "CLUSTERDOWN",
    redis.exceptions.MasterDownError: "MASTERDOWN",
}


BROKEN = (redis.ConnectionError, redis.TimeoutError, OSError, EOFError)


BROKEN_ASYNC = (TimeoutError, RuntimeError, *BROKEN)
"""Errors that mean a broken asyncio connection. uvloop raises RuntimeError for a write to a connection that was just
reset."""


ANSWERED = (redis.AuthenticationError, redis.BusyLoadingError)
"""Errors that redis-py reports as a broken connection although the server answered. The answer gives the reason, and
the server carried nothing out."""
