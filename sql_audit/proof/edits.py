"""What an edit may change of a job that waits: its due time, its priority, its deadline, and nothing more."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rq_core.model import scopes
from rq_core.model.machine import PRIORITIES, Priority


def faults(
    facts: Mapping[str, Any],
    at_ms: int,
    *,
    due: int | None,
    priority: str,
    expires: int | None,
    lane: str | None,
) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with an event ``edited`` of a job that the log left like this: the invariant, and why.

    ``facts`` are the event's. Times are Unix ms.
    """
    told = facts.get("old_due_ms"), facts.get("old_priority"), facts.get("old_expires_ms")
    if told != (due, priority, expires):
        names = ("due time", "priority", "deadline")
        for name, said, was in zip(names, told, (due, priority, expires), strict=True):
            if said != was:
                yield "I6", f"says that the job's {name} was {said}, and it was {was}"
    new = facts.get("due_ms"), facts["priority"], facts.get("expires_ms")
    if new == told:
        yield "I6", "changes nothing"
    yield from (("I6", says) for says in _of_lane(facts, lane))
    deadline = facts.get("expires_ms")
    earliest = max(at_ms, facts.get("due_ms") or 0)
    if deadline is not None and deadline <= earliest:
        yield "I19", f"leaves a job that may begin {earliest - deadline} ms after its deadline"


def _of_lane(facts: Mapping[str, Any], before: str | None) -> Iterator[str]:
    """A lane changes with its priority, and keeps its scopes. (The task's own scope comes without an event.)"""
    told, moved = facts.get("lane"), facts["priority"] != facts.get("old_priority")
    if told is None:
        if moved and before is not None:
            yield f"changes the priority, and leaves the job in lane {before}"
        return
    if not moved:
        yield f"moves the job to lane {told} without another priority"
    elif not told.startswith(f"{PRIORITIES.index(Priority(facts['priority']))}+"):
        yield f"moves the job to lane {told}, which has another priority"
    if _scopes(told) != _scopes(before):
        yield f"moves the job to lane {told} from {before}, which has other scopes"


def _scopes(lane: str | None) -> set[str]:
    return {s for s in scopes.scopes_of(lane or "") if scopes.family_of(s) != scopes.TASK}
