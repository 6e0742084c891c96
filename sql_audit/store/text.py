"""Text and JSON as both databases can keep them."""

from __future__ import annotations

import json
from typing import Any


def clean(text: str) -> str:
    """``text`` with U+FFFD for what a database may refuse: NUL and surrogates without a partner."""
    if "\0" in text:
        text = text.replace("\0", "\ufffd")
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


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
