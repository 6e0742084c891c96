"""Classes of ended claims by duration. With them, an index finds the claims that were in force at a given moment."""

from __future__ import annotations

from typing import Final

_LASTED: Final = "ended_at_ms - COALESCE(ready_at_ms, claimed_at_ms, ended_at_ms)"
SPANS_MS: Final = (1_000, 10_000, 100_000, 1_000_000, 10_000_000, 100_000_000)
"""The upper bounds of the classes of durations (ms). One more class has all durations from the last bound on."""


def _class_of(lasted: str) -> str:
    """Return an SQL expression for the number of a duration's class. ``lasted`` is an SQL expression for the duration
    in ms.
    """
    bounds = " ".join(f"WHEN {lasted} < {bound} THEN {k}" for k, bound in enumerate(SPANS_MS))
    return f"CASE {bounds} ELSE {len(SPANS_MS)} END"


SPAN: Final = _class_of(_LASTED)
"""An SQL expression: the class of an ended claim by its duration together with the wait before it.

To find the claims that waited or ran at a moment, a query reads a part of the index for each class. In a class with the
bound B, it reads only the claims that ended at most B ms after the moment: a claim of this class that ended later also
began after the moment. The bound of each class is ten times the bound of the class before, so a query reads at most
about ten times as many claims as it finds.
"""

RAN: Final = _class_of("(ended_at_ms - claimed_at_ms)")
"""An SQL expression: the class of an ended claim by its duration without the wait, with the same bounds.

Queries for the claims that ran at a moment use RAN. So they do not read claims that waited then and ran later."""


def of_each_span(select: str, since: str, until: str, *, order: str, span: str = RAN) -> str:
    """Return a statement that selects, by index, the claims in force at any time between ``since`` and ``until``.

    By UNION ALL it joins the claims that are still in force with the ended claims of each class. ``select`` is a SELECT
    with further conditions. It must itself exclude claims that began at ``until`` or later. ``span`` is the expression
    of the class, RAN or SPAN. From each class, at most ``:most`` claims are selected: those that ended first (``order``
    ASC) or last (DESC).
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
