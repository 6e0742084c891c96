"""What ``results`` and ``returned`` keep of jobs that have ended, against the events that ended them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from rq_core.model.machine import Event
from rq_core.model.names import digest_of
from rq_core.model.remembered import SAME, Result

SUCCEEDED: Final = "succeeded"
_OUTCOMES: Final[Mapping[Event, frozenset[str]]] = {
    Event.SUCCEEDED: frozenset({SUCCEEDED}),
    Event.CANCELLED: frozenset({"cancelled"}),
    Event.EXPIRED: frozenset({"expired"}),
    Event.PRUNED: frozenset({"dead"}),
    Event.REPLACED: frozenset({"replaced", SAME}),
}
"""What a line of ``results`` says of a job that this event has ended. A job that a restore removed had ended before, by
an event that Redis forgot."""


class End(NamedTuple):
    """How a job left Redis, by the log."""

    event: Event
    fence: str | None = None
    """Of a success: the claim that it ended."""
    digest: str | None = None
    """Of a success: that of the value that is kept; None: none is."""

    @classmethod
    def of(cls, event: Event, facts: Mapping[str, Any]) -> End:
        """What an event says that has ended a job."""
        if event is Event.SUCCEEDED:
            return cls(event, facts.get("fence"), facts.get("value_digest"))
        return cls(event)


def wrong_outcome(result: Result, end: End) -> str | None:
    """Say why a line is not that of the job which ended so; None if it may be."""
    outcomes = _OUTCOMES.get(end.event)
    if outcomes is None:
        return None
    if result.outcome not in outcomes:
        return f"kept as {result.outcome}, {end.event} by the log"
    if result.outcome == SUCCEEDED and result.fence not in (None, end.fence):
        return f"the result of claim {result.fence} is kept, and by the log claim {end.fence} succeeded"
    return None


def wrong_value(result: Result, value: str | None, end: End) -> str | None:
    """Say why a value is not the one that the job returned which ended so; None if it may be."""
    if value is None or result.value_bytes is None or end.event is not Event.SUCCEEDED:
        return None
    found = digest_of(value)
    if end.digest is None:
        return "a value is kept, and by the log there is none"
    if found == end.digest:
        return None
    return f"the digest of its value is {found}, {end.digest} by the log"
