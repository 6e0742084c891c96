"""Whether a client can use a queue at all, by the facts that its ``meta`` has."""

from __future__ import annotations

from collections.abc import Mapping

from rq_core.errors import LayoutMismatch
from rq_core.model.machine import LAYOUT


def check_layout(queue: str, facts: Mapping[str, str]) -> None:
    """Raise LayoutMismatch if this release cannot read the queue's keys. A queue without a layout is yet to be made."""
    found = facts.get("layout")
    if found is not None and found != str(LAYOUT):
        raise LayoutMismatch(queue=queue, found=found, known=LAYOUT)
