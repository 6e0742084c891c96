"""Text and JSON as both databases can keep them."""

from __future__ import annotations

import json
from typing import Any, TypeVar

from rq_core.model.events import OutboxId
from sql_audit.errors import RowDamaged

T = TypeVar("T", dict[str, Any], list[Any])


def clean(text: str) -> str:
    """``text`` with U+FFFD for what a database may refuse: NUL and surrogates without a partner."""
    if "\0" in text:
        text = text.replace("\0", "\ufffd")
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def read_json(text: str | None, kind: type[T]) -> T:
    """The JSON object or list that a column keeps; an empty one if it has none, or what cannot be read: one damaged row
    must not hide the others, and `audit verify` finds it."""
    try:
        found = json.loads(text or "null")
    except (ValueError, RecursionError):
        return kind()
    return found if isinstance(found, kind) else kind()


def read_details(text: str | None, queue: str, at: OutboxId) -> dict[str, Any]:
    """The details of an event, as a caller needs them that acts on them: it must not take a damaged row for one without
    any. Raises RowDamaged."""
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
    """Compact JSON that both databases can keep, and that says exactly ``value``."""
    text = _dumps_text(value)
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return _dumps_ascii(value)
    return text
