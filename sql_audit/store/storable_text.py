"""Makes and reads texts and JSON that both PostgreSQL and SQLite can store."""

from __future__ import annotations

import json
from typing import Any, TypeVar

from rq_core.model.events import OutboxId
from sql_audit.errors import RowDamaged

T = TypeVar("T", dict[str, Any], list[Any])


def clean(text: str) -> str:
    """Replace each character that a database may refuse (NUL and lone surrogates) by U+FFFD."""
    if "\0" in text:
        text = text.replace("\0", "\ufffd")
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def read_json(text: str | None, kind: type[T]) -> T:
    """Return the JSON object or list in a column. Return an empty one if the column is null or cannot be read.

    So one damaged row does not hide the other rows. `audit verify` reports damaged rows.
    """
    try:
        found = json.loads(text or "null")
    except (ValueError, RecursionError):
        return kind()
    return found if isinstance(found, kind) else kind()


def read_details(text: str | None, queue: str, at: OutboxId) -> dict[str, Any]:
    """Return the fields in an event's detail. Raise RowDamaged if the detail cannot be read.

    :func:`read_json` returns an empty object instead. This function is for callers that act on the fields.
    """
    try:
        found = json.loads(text or "{}")
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise RowDamaged(queue=queue, number=str(at), part="details of event")
    return found


_dumps_text = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
_dumps_ascii = json.JSONEncoder(ensure_ascii=True, separators=(",", ":")).encode


def to_json(value: Any) -> str:
    """Return ``value`` as compact JSON that both databases can store. Parsing the JSON gives exactly ``value``."""
    text = _dumps_text(value)
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return _dumps_ascii(value)
    return text
