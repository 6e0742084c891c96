"""The facts in an event's detail: read once, though several proofs ask, and many events have the same detail."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

REMEMBERED_MAX: Final = 20_000
"""Details that are kept as read: more than a batch has."""
LENGTH_MAX: Final = 4_096
"""Characters of a detail that is kept so: one with arguments or a value in it comes once."""

_scan: Final[Callable[[str, int], tuple[dict[str, Any], int]]] = json.JSONDecoder().scan_once  # type: ignore[attr-defined]
"""Reads JSON without the checks for blanks around it, which cost as much as the reading."""
_remembered: Final[dict[str, Mapping[str, Any]]] = {}
_NOTHING: Final[Mapping[str, Any]] = {}


def facts_in(detail: str | None) -> Mapping[str, Any]:
    """The facts in a detail, not to be changed. Raises ValueError if it is not a JSON object."""
    if detail is None:
        return _NOTHING
    facts = _remembered.get(detail)
    if facts is None:
        try:
            facts, end = _scan(detail, 0)
        except StopIteration:
            raise ValueError(f"{detail!r} is not JSON") from None
        except RecursionError:
            raise ValueError("it is nested too deep") from None
        if end != len(detail) or type(facts) is not dict:
            raise ValueError(f"{detail!r} is not a JSON object")
        if len(_remembered) >= REMEMBERED_MAX:
            _remembered.clear()
        if len(detail) <= LENGTH_MAX:
            _remembered[detail] = facts
    return facts
