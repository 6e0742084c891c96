"""The headers of a job: short texts that a producer sends with the arguments, such as the id of a request.

In the job's JSON, the headers come before the task; a job without headers has no field for them. The digest of the
job's arguments does not cover its headers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from rq_core.errors import InvalidOption

HEADERS_BYTES_MAX: Final = 2048
"""Maximum number of bytes of all headers of a job together, as JSON."""
TRACE_HEADER: Final = "rq-core-trace"
"""The header that says how the span of a claim belongs to the span that enqueued the job. The caller may choose the
value ``parent`` or ``link``. With ``first``, the span of the job's first claim may be a child of the enqueuing span."""
FORK_HEADER: Final = "rq-core-fork"
"""The header of a fork. It names the job that the fork copies (:mod:`rq_core.model.durable.forks`)."""

NO_HEADERS: Final[Mapping[str, str]] = MappingProxyType({})


def headers_json(headers: object) -> str:
    """Return headers as a JSON object; an empty text without headers. Raises InvalidOption if the headers are invalid
    or too long."""
    text = headers_text(headers)
    if not fits(text):
        raise InvalidOption.of(
            "headers",
            f"<{len(text.encode())} bytes>",
            f"must take at most {HEADERS_BYTES_MAX} bytes as JSON: store larger data elsewhere, and pass a"
            " reference",
        )
    return text


def fits(text: str) -> bool:
    """Return whether headers, given as JSON, are short enough for a job."""
    return len(text.encode()) <= HEADERS_BYTES_MAX


def headers_text(headers: object) -> str:
    """Return headers of any length as a JSON object; an empty text without headers. Raises InvalidOption if the headers
    are invalid."""
    if not isinstance(headers, Mapping) or not all(
        isinstance(text, str) for each in headers.items() for text in each
    ):
        raise InvalidOption.of("headers", headers, "must be a mapping of strings to strings")
    if not headers:
        return ""
    if "" in headers:
        raise InvalidOption.of("headers", headers, "must not have an empty name")
    text = json.dumps(dict(headers), ensure_ascii=False, separators=(",", ":"))
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidOption.of("headers", headers, "must be valid Unicode text") from None
    return text


def read_headers(headers_json: str) -> Mapping[str, str]:
    """Return headers from their JSON. Raises ValueError if the JSON is not an object of strings."""
    headers = json.loads(headers_json)
    if not isinstance(headers, dict) or not all(isinstance(v, str) for v in headers.values()):
        raise ValueError("the job's headers are not strings")
    return MappingProxyType(headers)
