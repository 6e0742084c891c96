"""Converts a URL to a pool of redis-py, which opens connections later. ``embedded://`` also starts a server."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import redis.asyncio

from rq_core.connections import sentinel
from rq_core.connections.connection import CONNECT_TIMEOUT_S
from rq_core.errors import InvalidOption
from rq_core.model.lib.url import check_password, check_port


def resolve_url(url: str) -> str:
    """Return a URL that redis-py or :mod:`rq_core.connections` can open.

    For ``embedded://``, find or start the server that comes with rq-core, and return the server's URL. Any other URL is
    returned unchanged. Raises InvalidOption for a URL of an unknown kind.
    """
    if url.startswith("embedded:"):
        # Imported only here: most processes connect to a server of their own.
        from rq_core.embedded import server

        return server.resolve_url(url)
    if not url.startswith(("redis://", "rediss://", "unix://", *sentinel.SCHEMES)):
        raise InvalidOption.of(
            "redis",
            url,
            "must begin with redis://, rediss://, unix:// or embedded://, or redis+cluster:// or redis+sentinel://"
            " (rediss+… with TLS)",
        )
    return url


def shown_url(url: str) -> str:
    """Return the URL to show in messages and to pass to other processes. In an embedded server's URL, the path of the
    data directory becomes absolute."""
    if not url.startswith("embedded:"):
        return url
    from rq_core.embedded import server

    return server.absolute_url(url)


def _options(retry: Any, answer_within: float, connect_within: float) -> dict[str, Any]:
    return {
        "decode_responses": True,
        # A reply with bytes that are not UTF-8 must reach the code that can name the job.
        "encoding_errors": "surrogateescape",
        "retry": retry,
        "socket_connect_timeout": min(connect_within, answer_within),
        "socket_timeout": answer_within,
        "socket_keepalive": True,
        "protocol": 2,
    }


def _for_unix(url: str, options: dict[str, Any]) -> dict[str, Any]:
    if url.startswith("unix:"):
        del options["socket_keepalive"]
    return options


def source_of(
    pool_class: Any,
    url: str,
    retry: Any,
    answer_within: float,
    connect_within: float = CONNECT_TIMEOUT_S,
) -> Any:
    """Return a pool of redis-py for a URL. No connection is opened yet.

    ``answer_within``, ``connect_within``: seconds for a reply, and to connect. Raises InvalidOption for an invalid URL.
    This function checks the URL, because redis-py ignores a path that is not a database number, and reports an unknown
    option only when it connects.
    """
    check_password(url)
    pool: Any = None
    problem: str | None = None
    try:
        real, options = resolve_url(url), _options(retry, answer_within, connect_within)
        if sentinel.named_by(real):
            real, more = sentinel.parse_sentinel_url(
                real,
                for_asyncio=pool_class is redis.asyncio.ConnectionPool,
                answer_within=answer_within,
            )
            options |= more
        _check_address(real)
        pool = pool_class.from_url(real, **_for_unix(real, options))
        # redis-py's pool for asyncio uses the class for rediss:// instead of the given one.
        pool.connection_class = options.get("connection_class", pool.connection_class)
        pool.connection_class(**pool.connection_kwargs)
        _check_files(pool.connection_kwargs)
    except (ValueError, TypeError, redis.RedisError) as error:
        problem = str(error)
        if unknown := _UNKNOWN.search(problem):
            problem = f"it has no option {unknown[1]}: known are {OPTIONS}"
            # The option may be a misspelt password, which would not be masked.
            url = url.partition("?")[0]
    if problem is not None:
        # Raised outside the except block: the library's error would be the context, and may repeat the whole URL.
        raise InvalidOption.of("redis", url, f"must be a URL ({problem})")
    return pool


OPTIONS: Final = (
    "client_name, db, health_check_interval, password and username; with TLS (rediss://) also ssl_ca_certs,"
    " ssl_cert_reqs, ssl_certfile, ssl_check_hostname and ssl_keyfile; with Sentinel also sentinel_password and"
    " sentinel_username"
)
"""The options that a URL may have after its question mark, as text for error messages."""
_UNKNOWN: Final = re.compile(r"unexpected keyword argument '(.*)'")


def _check_address(url: str) -> None:
    """Raise ValueError if the URL's path is no database number, or its port is no number."""
    parts = urlsplit(url)
    database = parts.path.strip("/")
    if not url.startswith("unix:") and not (database or "0").isdecimal():
        raise ValueError(
            f"its path {parts.path} is not the number of a database, as in redis://HOST:6379/0"
        )
    check_port(parts)


def _check_files(options: Mapping[str, Any]) -> None:
    """Raise ValueError if a file that a URL option names is missing. OpenSSL would fail only when it connects, and
    would not name the file."""
    for name in ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile"):
        path = options.get(name)
        if path is not None and not Path(path).is_file():
            raise ValueError(f"there is no file {path}, which {name} names")
