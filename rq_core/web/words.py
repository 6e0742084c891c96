"""Formats times, durations, and texts of jobs and servers for the pages."""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import quote, urlencode

from rq_core.masking import masked
from rq_core.model.keys import is_name
from rq_core.model.lib.text import excerpt
from rq_core.views.text import span, utc

TEXT_MAX: Final = 20_000
"""Maximum number of characters of a text from a job or a server, in a block of several lines."""
WORD_MAX: Final = 300
"""Maximum number of characters of a text from a job or a server, on one line."""
LINK_MAX: Final = 1_000
"""Maximum number of characters of a value in an address."""
NONE: Final = "\u2013"
"""The dash that is shown in place of an unknown number."""
_STEER: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Unicode categories of characters that are escaped. They may change the writing direction, be invisible, or control
the terminal or browser."""


def plain(text: object) -> str:
    """Return a text in which control characters are escaped, such as ESC or a character that changes the writing
    direction.

    Line ends and tabs are kept. Templates escape markup.
    """
    whole = str(text)
    if whole.isascii() and whole.isprintable():
        return whole
    return "".join(
        c if c in "\n\t" or unicodedata.category(c) not in _STEER else ascii(c)[1:-1] for c in whole
    )


def block(text: object) -> str:
    """Return a text of several lines, with passwords removed. The middle of a long text is left out."""
    return plain(excerpt(str(text), TEXT_MAX))


def word(text: object, most: int = WORD_MAX) -> str:
    """Return a text as one line, with passwords removed. If it has more than ``most`` characters, the middle is left
    out."""
    line = " ".join(masked(str(text)[: 100 * most]).split())
    if len(line) > most:
        line = f"{line[: most // 2]} … {line[-most // 2 :]}"
    return plain(line)


def json_text(document: object) -> str:
    """Return a document as JSON. A number that JSON cannot express, such as NaN, becomes a text, because jobs may have
    such numbers."""
    try:
        made = json.dumps(document, ensure_ascii=False, allow_nan=False, default=str)
    except ValueError:
        made = json.dumps(_finite(document), ensure_ascii=False, allow_nan=False, default=str)
    # What is no UTF-8 in Redis is read as lone surrogates.
    return made.encode("utf-8", "backslashreplace").decode()


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {str(_finite(key)): _finite(each) for key, each in value.items()}
    return [_finite(each) for each in value] if isinstance(value, list | tuple) else value


def grouped(value: float | None) -> str:
    """Return a number with thousands separators; a dash for None."""
    return NONE if value is None else f"{value:,}"


def brief_span(ms: float) -> str:
    """Return a duration in ms as a short text. Below one second, its unit is ms."""
    return span(ms) if abs(ms) >= 1_000 else f"{ms:.0f} ms"


def iso(at_ms: float | None) -> str:
    """Return a moment (Unix ms) in the format of the HTML attribute ``datetime``; empty for None, or for a moment that
    Python cannot express."""
    if at_ms is None:
        return ""
    try:
        return f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%dT%H:%M:%S.%f}"[:-3] + "Z"
    except (ValueError, OverflowError, OSError):
        return ""


def clock(at_ms: float | None) -> str:
    """Return the time of day (UTC) of a moment (Unix ms), with milliseconds; empty if ``iso`` is."""
    return iso(at_ms)[11:-1]


def items(text: str) -> list[list[tuple[bool, str]]]:
    """Return the items of a Markdown list. Each item is a list of (is code, text) pairs."""
    found = [" ".join(each.split()) for each in re.split(r"(?m)^- ", text) if each.strip()]
    return list(map(pieces, found))


def pieces(text: str) -> list[tuple[bool, str]]:
    """Split a text at its backticks, and return (is code, text) pairs. If a backtick has no partner, the whole text is
    one pair."""
    if text.count("`") % 2:
        return [(False, text)]
    return [(at % 2 == 1, part) for at, part in enumerate(text.split("`")) if part]


# Addresses. A browser takes /queues/.. for /, and .json asks for the document: such names stand behind a ?.


def queue_path(queue: str) -> str:
    """Return the address of a queue's page."""
    if _fits(queue):
        return f"/queues/{quote(queue, safe=':')}"
    return query("/queue", queue=queue)


def job_path(queue: str, job_id: str) -> str:
    """Return the address of a job's page."""
    if _fits(queue) and _fits(job_id):
        return f"/jobs/{quote(queue, safe=':')}/{quote(job_id, safe=':')}"
    return query("/job", queue=queue, id=job_id)


def schedule_path(queue: str, name: str) -> str:
    """Return the address of a schedule's page."""
    if _fits(queue) and _fits(name):
        return f"/schedules/{quote(queue, safe=':')}/{quote(name, safe=':')}"
    return query("/schedule", queue=queue, name=name)


def query(path: str, **values: object) -> str:
    """Return an address with a query of these values. A list becomes several parameters of the same name.

    A value is left out if it is empty, None, or longer than any page accepts.
    """
    given = {n: v for n, v in values.items() if v not in (None, "", []) and len(str(v)) <= LINK_MAX}
    # What is no UTF-8 in Redis is read as lone surrogates.
    asks = urlencode(given, doseq=True, errors="surrogateescape")
    return f"{path}?{asks}" if given else path


def _fits(name: str) -> bool:
    return is_name(name) and name not in (".", "..") and not name.endswith(".json")


FILTERS: Final = {
    "plain": plain,
    "block": block,
    "word": word,
    "number": grouped,
    "span": lambda ms: NONE if ms is None else span(ms),
    "short": brief_span,
    "utc": lambda ms: "" if ms is None else utc(ms),
    "iso": iso,
    "clock": clock,
    "items": items,
    "pieces": pieces,
    "queue_path": queue_path,
}
