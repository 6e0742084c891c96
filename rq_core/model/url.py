"""URLs of servers: the default, and those that name a Redis Cluster."""

from __future__ import annotations

import re
from typing import Final

SCHEMES: Final = {"redis+cluster": "redis", "rediss+cluster": "rediss"}
"""What a URL of a cluster begins with, and what those of its nodes do."""


_URL: Final = re.compile(r"(?P<scheme>rediss?)://(?P<place>[^/?]*)")


def is_cluster(url: str) -> bool:
    """Whether a URL names a cluster."""
    return url.partition("://")[0] in SCHEMES


def cluster_url(url: str) -> str:
    """What to write for the URL of one node of a cluster, so that all are found."""
    parts = _URL.match(url)
    return f"{parts['scheme']}+cluster://{parts['place']}" if parts else "redis+cluster://HOST:PORT"


DEFAULT_URL: Final = "redis://localhost:6379/0"
REDIS_URL_VARIABLE: Final = "RQ_CORE_REDIS_URL"
"""The environment variable that names the server."""
AUDIT_URL_VARIABLE: Final = "RQ_CORE_AUDIT_URL"
"""The environment variable that names the audit database, as SQLAlchemy writes it."""
