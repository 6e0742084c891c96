"""The names of entries: for a step with a key, for a name that a run uses again, and for the undo of a step."""

from __future__ import annotations

import hashlib
import re
from typing import Final
from urllib.parse import quote

from rq_core.model.durable.boxes import NAME_PATTERN

_NAME: Final = re.compile(NAME_PATTERN)
UNDO: Final = "undo:"


def with_key(name: str, key: str) -> str:
    """Return the name of the entry for a step with a key. The name has at most 64 characters."""
    full = f"{name}={quote(key, safe='')}"
    if _NAME.fullmatch(full):
        return full
    return f"{name[:31]}={hashlib.sha256(full.encode()).hexdigest()[:32]}"


def numbered(base: str, count: int) -> str:
    """Return the name of a step's entry, if the step is the ``count``-th step with the name ``base``."""
    full = f"{base}#{count}"
    return full if len(full) <= 64 else f"{base[: 64 - len(f'#{count}')]}#{count}"


def undo_name(name: str) -> str:
    """Return the name of the entry for the undo of a step."""
    full = f"{UNDO}{name}"
    return full if len(full) <= 64 else f"{UNDO}{hashlib.sha256(name.encode()).hexdigest()[:32]}"
