"""Costs: how much of a unit a job takes from a rate that counts this unit.

A rate may count tokens, points or megabytes in place of jobs. Its scopes then have the unit in their names
(``ask.model@60s:tokens=gpt``), and each of its jobs has a cost in this unit. In ties, state lines and events, the costs
of a job are one text.

    >>> costs_text({"tokens": 1500, "points": 3})
    'points:3,tokens:1500'
    >>> read_costs("points:3,tokens:1500")
    {'points': 3, 'tokens': 1500}
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from rq_core.model.limits.limit import CAP_MAX
from rq_core.model.limits.scopes import UNIT_PATTERN, unit_of

COST_MAX: Final = CAP_MAX
"""The highest cost of a job in one unit."""
COSTS_LENGTH_MAX: Final = 512
"""Maximum number of characters of the text with a job's costs."""
MUST: Final = f"must be a whole number from 1 to {COST_MAX:,}"
"""The condition for a cost, for messages."""

_COSTS: Final = re.compile(rf"{UNIT_PATTERN}:[1-9]\d{{0,9}}(?:,{UNIT_PATTERN}:[1-9]\d{{0,9}})*")
_UNIT: Final = re.compile(UNIT_PATTERN)


def is_unit(text: str) -> bool:
    """Return whether a text is a valid name of a unit, such as ``tokens``."""
    return _UNIT.fullmatch(text) is not None


def is_cost(value: Any) -> bool:
    """Return whether a value is a valid cost in one unit: a whole number from 1 to COST_MAX."""
    return type(value) is int and 1 <= value <= COST_MAX


def costs_text(costs: Mapping[str, int]) -> str:
    """Return the costs of a job as text; an empty text without costs. ``costs`` are numbers by unit."""
    return ",".join(f"{unit}:{costs[unit]}" for unit in sorted(costs))


@lru_cache(maxsize=1024)
def read_costs(text: str) -> Mapping[str, int]:
    """Return the costs of a job by unit. Raises ValueError if the text does not have the form of ``costs_text``; the
    order of the units does not matter."""
    if len(text) > COSTS_LENGTH_MAX or _COSTS.fullmatch(text) is None:
        raise ValueError(f"{text!r} has no costs")
    parts = [part.partition(":") for part in text.split(",")]
    found = {unit: int(cost) for unit, _, cost in parts}
    if len(found) < len(parts) or not all(map(is_cost, found.values())):
        raise ValueError(f"{text!r} has no costs")
    return found


def cost_of(costs: str | None, scope: str) -> int:
    """Return how much a job takes from the rate of a scope. It is 1 if the rate counts jobs, or if the job has no cost
    in the rate's unit. Raises ValueError if ``costs`` is not the text of costs."""
    unit = unit_of(scope)
    return read_costs(costs).get(unit, 1) if costs and unit else 1
