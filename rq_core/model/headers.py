"""The headers of a job: short texts that a producer sends with the arguments, such as the id of a request.

In the job's JSON, the headers come before the task; a job without headers has no field for them. The digest of the
job's arguments covers only two headers: FORK_HEADER and PARENT_HEADER.
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
"""The header that says how the trace span of a claim is joined to the span that enqueued the job: as its child
(``parent``), or by a link (``link``). A caller may choose one of these two values. rq-core itself writes ``first``: it
may then make only the span of the job's first claim a child."""
FORK_HEADER: Final = "rq-core-fork"
"""The header of a fork. It names the job that the fork copies (:mod:`rq_core.model.durable.forks`)."""
PARENT_HEADER: Final = "rq-core-parent"
"""The header of a child. It names the child's parent (:mod:`rq_core.model.durable.children`)."""

_CHILD: Final = f'{{"{PARENT_HEADER}":"'
"""The beginning of the JSON of a job's headers if the first header is PARENT_HEADER, which every child has."""
_CHILD_LENGTH: Final = len(_CHILD)
_CHILD_QUOTES: Final = 4
"""Number of double quotes in the JSON of a job's headers if PARENT_HEADER is the only one."""

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


def headers_in_digest(headers_json: str) -> str:
    """Return the part of a job's headers that the digest of the job's arguments covers. Returns an empty text for a job
    that is neither a fork nor a child.

    The header of a fork says with which saved entries the fork's first run begins. The header of a child names the
    parent that waits for the child's end.

    >>> headers_in_digest('{"a":"b","rq-core-fork":"9f3a0b1c9f3a0b1c 3 2 o-1"}')
    ',"rq-core-fork":"9f3a0b1c9f3a0b1c 3 2 o-1"'
    """
    # The fast way, for most children: the result is as below.
    if (
        headers_json[:_CHILD_LENGTH] == _CHILD
        and headers_json[-2:] == '"}'
        and "\\" not in headers_json
        and headers_json.count('"') == _CHILD_QUOTES
        and headers_json.isascii()
    ):
        return f",{headers_json[1:-1]}"
    # JSON may also write a character of a name with a backslash.
    if (
        FORK_HEADER not in headers_json
        and PARENT_HEADER not in headers_json
        and "\\" not in headers_json
    ):
        return ""
    headers = json.loads(headers_json)
    covered = [name for name in (FORK_HEADER, PARENT_HEADER) if name in headers]
    return "".join([f',"{name}":{json.dumps(headers[name])}' for name in covered])
