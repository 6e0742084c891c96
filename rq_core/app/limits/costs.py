"""Finds the cost of a job in each unit that its rates count. The cost is the value of an argument, or of a function."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rq_core.errors import ArgumentsInvalid, KeyFailed, KeyNeeded
from rq_core.model.limits.costs import MUST, costs_text, is_cost
from rq_core.model.limits.policy import ScopeSource
from rq_core.model.limits.scopes import family_of


def costs_of(
    task: str,
    queue: str,
    sources: Sequence[ScopeSource],
    scopes: Sequence[str],
    values: Mapping[str, Any],
    keys: Mapping[str, str],
) -> str:
    """Return the costs of a job as text. The text is empty if no rate of the job counts a unit.

    A unit is, for example, ``tokens``. ``sources`` are the rules of the task's rates that count a unit, ``scopes`` are
    the job's scopes, and ``values`` are the job's arguments. ``keys`` has costs as text, by unit. A producer passes a
    cost in ``keys`` if it lacks the function that computes the cost. Raises ArgumentsInvalid, KeyNeeded or KeyFailed.
    """
    families = set(map(family_of, scopes))
    costs: dict[str, int] = {}
    for source in sources:
        if source.family in families and source.cost not in costs:
            costs[source.cost] = _cost(task, queue, source, values, keys)
    return costs_text(costs)


def given_cost(task: str, unit: str, text: str) -> int:
    """Convert a cost that a producer passed as text to a number. ``unit`` is what the cost counts, such as ``tokens``.
    Raises ArgumentsInvalid."""
    value = int(text) if text.isascii() and text.isdigit() and len(text) <= 10 else text
    return _checked(task, f"keys[{unit!r}]", value)


def _cost(
    task: str,
    queue: str,
    source: ScopeSource,
    values: Mapping[str, Any],
    keys: Mapping[str, str],
) -> int:
    unit = source.cost
    if not source.cost_is_computed:
        return _checked(task, unit, values.get(unit, source.cost_default))
    if unit in keys:
        return given_cost(task, unit, keys[unit])
    if source.cost_function is None:
        raise KeyNeeded(task=task, queue=queue, family=unit)
    try:
        found = source.cost_function(**values)
    except Exception as error:
        from rq_core.app.handlers.redaction import message_of

        raise KeyFailed(
            task=task,
            family=unit,
            function=unit,
            error=f"{type(error).__name__}: {message_of(error)}",
        ) from error
    return _checked(task, f"what {unit}() returns", found)


def _checked(task: str, what: str, value: Any) -> int:
    if not is_cost(value):
        shown = "" if value is None else f", not {value!r:.50}"
        problem = f"a job's cost {MUST}{shown}"
        raise ArgumentsInvalid(task=task, problems=f"{what}: {problem}", fields={what: problem})
    cost: int = value
    return cost
