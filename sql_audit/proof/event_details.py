"""Parses the JSON column ``detail`` of events, and caches the results: several checks parse the same event, and many
events have the same detail.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

REMEMBERED_MAX: Final = 20_000
"""Maximum number of parsed details in the cache: more than one batch of events has."""
LENGTH_MAX: Final = 4_096
"""Maximum number of characters of a detail in the cache. A longer one has a job's arguments or a result, and occurs
only once."""

_scan: Final[Callable[[str, int], tuple[dict[str, Any], int]]] = json.JSONDecoder().scan_once  # type: ignore[attr-defined]
"""Parses JSON without skipping blanks around it, which would take as long as the parsing."""
_remembered: Final[dict[str, Mapping[str, Any]]] = {}
_NOTHING: Final[Mapping[str, Any]] = {}


def facts_in(detail: str | None) -> Mapping[str, Any]:
    """Return the fields in a detail. The dict is cached, so callers must not change it.

    Raise ValueError if the detail is not a JSON object.
    """
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
