"""The names of entries, which are the records of a durable job's steps, sleeps and waits.

This module checks the names that users give. It makes the names for steps with a key, for repeated steps, and for
undos.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any, Final
from urllib.parse import quote

from rq_core.errors import InvalidStep
from rq_core.model.durable.boxes import (
    NAME_PATTERN,
    SIGNAL_PATTERN,
    UNDO_PREFIX,
    reserved_prefix,
)

_NAME: Final = re.compile(NAME_PATTERN)
_NAME_MAX: Final = 64
_STEP: Final = re.compile(r"[A-Za-z0-9_.:-]{1,64}")
_WAIT: Final = re.compile(SIGNAL_PATTERN)
_CHARACTERS: Final = "of the characters A-Z a-z 0-9 _ . : -"


def check_step(name: Any) -> None:
    """Raise InvalidStep unless users may give this name to a step."""
    _check(name, _STEP, f"a name is 1 to {_NAME_MAX} {_CHARACTERS}")


def check_wait(name: Any) -> None:
    """Raise InvalidStep unless users may give this name to a wait or a sleep."""
    _check(name, _WAIT, f"the name of a wait is 1 to 58 {_CHARACTERS}, not only digits")


def _check(name: Any, pattern: re.Pattern[str], must: str) -> None:
    if not isinstance(name, str) or not pattern.fullmatch(name):
        raise InvalidStep(step=name, why=must)
    if prefix := reserved_prefix(name):
        why = f"only rq-core's own entries have names that begin with {prefix!r}: use another name"
        raise InvalidStep(step=name, why=why)


def with_key(name: str, key: str) -> str:
    """Return the name under which a step with a key is saved (its entry's name): at most 64 characters. A long name
    ends with a digest."""
    full = f"{name}={quote(key, safe='')}"
    if _NAME.fullmatch(full):
        return full
    return f"{name[:31]}={_digest(full)}"


def numbered(base: str, count: int) -> str:
    """Return the name under which the ``count``-th step with the name ``base`` is saved, such as ``send#2``.

    A long name gets a digest, so that two long names never give the same name.
    """
    full = f"{base}#{count}"
    return full if len(full) <= _NAME_MAX else f"{base[:25]}={_digest(base)}#{count}"


def undo_name(name: str) -> str:
    """Return the name under which the undo of the step ``name`` is saved."""
    full = f"{UNDO_PREFIX}{name}"
    return full if len(full) <= _NAME_MAX else f"{UNDO_PREFIX}{_digest(name)}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]
