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
    before = due, priority, expires
    told = facts.get("old_due_ms"), facts.get("old_priority"), facts.get("old_expires_ms")
    for name, said, was in zip(("due time", "priority", "deadline"), told, before, strict=True):
        if said != was:
            yield "I6", f"says that the job's {name} was {said}, and it was {was}"
    if (facts.get("due_ms"), facts["priority"], facts.get("expires_ms")) == before:
        yield "I6", "changes nothing"
    new_due = facts.get("due_ms")
    if new_due is not None and new_due != due and new_due <= at_ms:
        yield "I6", f"puts the job off to a time that was over {at_ms - new_due} ms before"
    says = _of_lane(facts.get("lane"), lane, Priority(facts["priority"]), priority)
    if says is not None:
        yield "I6", says
    deadline = facts.get("expires_ms")
    earliest = max(at_ms, facts.get("due_ms") or 0)
    if deadline is not None and deadline <= earliest:
        yield "I19", f"leaves a job that may begin {earliest - deadline} ms after its deadline"


def _of_lane(told: str | None, before: str | None, new: Priority, old: str) -> str | None:
    """Return what is wrong with where the job goes: a lane changes with the priority, and keeps its scopes. (The task's
    own scope comes without an event.)"""
    if told is None:
        stays = new != old and before is not None
        return f"changes the priority, and leaves the job in lane {before}" if stays else None
    if new == old:
        return f"moves the job to lane {told} without another priority"
    if not told.startswith(f"{PRIORITIES.index(new)}+"):
        return f"moves the job to lane {told}, which has another priority"
    if _scopes(told) != _scopes(before):
        return f"moves the job to lane {told} from {before}, which has other scopes"
    return None


def _scopes(lane: str | None) -> set[str]:
    return {s for s in scopes.scopes_of(lane or "") if scopes.family_of(s) != scopes.TASK}
