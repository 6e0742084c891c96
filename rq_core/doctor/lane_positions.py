"""The positions that lanes should have (invariant I10). A lane is open, or blocked by a scope that is full."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from rq_core.doctor.snapshot import View
from rq_core.model.limits import scopes

_PLACE = re.compile(r"(?:open|blocked (?P<on>\S+)) (?P<order>\d{16})")


class Place(NamedTuple):
    """The position of a lane: open or blocked, and its order. It is stored in a field of ``lanes``."""

    on: str | None
    """The scope that blocks the lane; None if the lane is open."""
    order: int

    @property
    def tag(self) -> int:
        """The order of the lane within its priority: the position of its first job or, in a fair queue, a virtual
        time."""
        return self.order % scopes.RANK

    @classmethod
    def parse(cls, text: str) -> Place | None:
        """Parse a field of ``lanes``, as lane_write.lua writes it. Return None if it is unreadable."""
        match = _PLACE.fullmatch(text)
        return cls(match["on"], int(match["order"])) if match else None

    def __str__(self) -> str:
        standing = "open" if self.on is None else f"blocked {self.on}"
        return f"{standing} {self.order:016}"


def fair_key(lane: str) -> str:
    """Return the value of the scope ``fair`` in a lane; empty if the lane has no such scope.

    A fair queue divides its claims between these values.
    """
    return next((s[5:] for s in scopes.scopes_of(lane) if s.startswith("fair=")), "")


def places(view: View, heads: Mapping[str, int]) -> dict[str, Place]:
    """Return lane → position. An impossible position in ``lanes`` is replaced by *open*: a claim then checks the lane.

    ``heads``: lane → position in line of its first job.
    """
    found = {}
    for lane, head in heads.items():
        place = Place.parse(view.snapshot["lanes"].get(lane, ""))
        can_be = place is not None and _can_be(view, lane, place, head)
        found[lane] = place if place and can_be else opened(view, lane, head)
    return found


def opened(view: View, lane: str, head: int) -> Place:
    """Return the position of a lane that opens now. ``head``: the position in line of its first job."""
    order = head
    if view.fact("fair"):
        finish = int(view.snapshot["fair"].get(fair_key(lane), 0))
        order = max(view.fact("fair_clock"), finish)
    return Place(None, int(lane[0]) * scopes.RANK + order)


def _can_be(view: View, lane: str, place: Place, head: int) -> bool:
    # In a queue that was fair before, lanes keep their virtual times until their turn.
    virtual = max(view.fact("fair_clock"), view.fact("fair_top"))
    by_age = not view.fact("fair") and place.tag > virtual
    return (
        place.order // scopes.RANK == int(lane[0])
        and not (by_age and place.tag != head)
        and (place.on is None or place.on in scopes.scopes_of(lane))
    )


def kept_waiting(
    view: View, found: Mapping[str, Place], held: Mapping[str, int]
) -> Iterator[tuple[str, str]]:
    """Yield (lane, scope) for each lane that is blocked by mistake: the scope that blocks it has room, and no event
    would open the lane.

    Invariant I10: a scope with room may block a lane only if an open lane also has the scope, or if a claim checks the
    scope at a scheduled time. ``found``: lane → position. ``held``: scope → number of claimed jobs that it counts.
    """
    covered = {s for lane, place in found.items() if not place.on for s in scopes.scopes_of(lane)}
    # Claims check these scopes (rates, and families of keys) when they are due.
    returning = [m.split("|") for m in view.snapshot["scheduled"] if not m.startswith("job|")]
    covered |= {parts[1] for parts in returning if parts[0] in ("rate", "caps") and parts[1:]}
    for lane, place in sorted(found.items(), key=lambda item: item[1].order):
        on = place.on
        if on and covered.isdisjoint((on, scopes.family_of(on))) and _has_room(view, on, held):
            covered.update(scopes.scopes_of(lane))
            yield lane, on


def _has_room(view: View, scope: str, held: Mapping[str, int]) -> bool:
    limit = view.limit(scope)
    if limit.most is None or (limit.window_ms is not None and limit.most > 0):
        return True
    return held.get(scope, 0) < limit.most
