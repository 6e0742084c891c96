"""URLs of servers: the default URL, the environment variables for URLs, and the URLs of a Redis Cluster."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import SplitResult

from rq_core.errors import InvalidOption

DEFAULT_URL: Final = "redis://localhost:6379/0"
"""The URL of the server for apps and commands that are given no URL."""
REDIS_URL_VARIABLE: Final = "RQ_CORE_REDIS_URL"
"""The environment variable with the server's URL. Apps and commands that are given no URL read it."""
AUDIT_URL_VARIABLE: Final = "RQ_CORE_AUDIT_URL"
"""The environment variable with the URL of the audit database."""
INBOX_URL_VARIABLE: Final = "RQ_CORE_INBOX_URL"
"""The environment variable with the URL of the database that has the inbox."""

SCHEMES: Final = {"redis+cluster": "redis", "rediss+cluster": "rediss"}
"""The schemes of a cluster's URLs, each with the scheme of its nodes' URLs."""
_URL: Final = re.compile(r"(?P<scheme>rediss?)://(?P<place>[^/?]*)")


def check_password(url: str) -> None:
    """Raise InvalidOption if a URL's password has an unescaped ``/``, ``?`` or ``#``. A part of this password would be
    read as another part of the URL, and messages would show it."""
    rest = url.partition("://")[2]
    place = re.split("[/?#]", rest, maxsplit=1)[0]
    path = rest[len(place) :].partition("?")[0]
    cut_short = "@" in rest and "@" not in place and not re.fullmatch(r"[^:]*(:\d*)?", place)
    if cut_short or ("@" in path and not url.startswith("unix:")):
        must = "must be a URL: in a password write %2F for /, %3F for ?, %23 for #, and %40 for @"
        raise InvalidOption.of("redis", url, must)


def check_port(parts: SplitResult) -> int | None:
    """Return the port of a URL; None without a port. Raises ValueError for an invalid port. The error's message
    continues the words "must be a URL"."""
    try:
        return parts.port
    except ValueError:
        pass
    raise ValueError("its port is not a number up to 65535")


def is_cluster(url: str) -> bool:
    """Return whether the scheme of a URL is that of a Redis Cluster."""
    return url.partition("://")[0] in SCHEMES


def cluster_url(url: str) -> str:
    """Return the URL of a cluster, from the URL of one of its nodes. A message shows the cluster's URL to the user who
    passed the node's URL."""
    parts = _URL.match(url)
    return f"{parts['scheme']}+cluster://{parts['place']}" if parts else "redis+cluster://HOST:PORT"
