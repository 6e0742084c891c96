"""Claims that ended, in classes by how long they took, so that those in force at a moment are found by index."""

from __future__ import annotations

from typing import Final

_LASTED: Final = "ended_at_ms - COALESCE(ready_at_ms, claimed_at_ms, ended_at_ms)"
SPANS_MS: Final = (1_000, 10_000, 100_000, 1_000_000, 10_000_000, 100_000_000)
"""The bounds of the classes of how long a claim lasted, the wait before it included."""


def _class_of(lasted: str) -> str:
    """The number of the class of a time in ms."""
    bounds = " ".join(f"WHEN {lasted} < {bound} THEN {k}" for k, bound in enumerate(SPANS_MS))
    return f"CASE {bounds} ELSE {len(SPANS_MS)} END"


SPAN: Final = _class_of(_LASTED)
"""The class of a claim that ended. What was going on at a moment is found in the index of each class
without looking at more than ten times the claims that were: of a class, only those that ended less
than its bound later can have begun by then."""

RAN: Final = _class_of("(ended_at_ms - claimed_at_ms)")
"""The class of a claim that ended by how long it ran: for who ran at a moment, so that what waited long and ran later
is not looked at."""


def of_each_span(select: str, since: str, until: str, *, order: str, span: str = RAN) -> str:
    """``select``, for claims that were not over at ``since`` and had begun before ``until``: those that are
    in force, and those that ended, by index, class by class (``span``: by how long they ran, or with the wait before);
    of each class at most ``:most``, those that end first (``order`` ASC) or last (DESC).
    """
    parts = [f"{select} AND a.ended_at_ms IS NULL ORDER BY a.claimed_at_ms {order}"]
    for number, bound in zip(range(len(SPANS_MS) + 1), (*SPANS_MS, None), strict=True):
        part = f"{select} AND {span} = {number} AND a.ended_at_ms > {since}"
        last = "" if bound is None else f" AND a.ended_at_ms <= {until} + {bound}"
        parts.append(f"{part}{last} ORDER BY a.ended_at_ms {order}")
    return " UNION ALL ".join(
        # Joined from constants; values are bound.
        f"SELECT * FROM (SELECT {place} AS part, {part.removeprefix('SELECT ')} LIMIT :most) AS part_{place}"  # noqa: S608
        for place, part in enumerate(parts)
    )
