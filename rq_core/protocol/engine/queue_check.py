"""Checks by the fields of a queue's ``meta`` whether a client can use the queue."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from rq_core.errors import LayoutMismatch, QueueDamaged
from rq_core.model.lib.text import printable, shorten
from rq_core.model.settings import SETTINGS
from rq_core.model.table.machine import LAYOUT

NUMBER_MAX: Final = 19
"""A number in ``meta`` must have fewer digits than this."""
SHOWN_MAX: Final = 40
"""Maximum number of characters of a value that a message shows."""


def check_queue(queue: str, facts: Mapping[str, str]) -> None:
    """Raise LayoutMismatch if this release cannot read the queue's keys, and QueueDamaged if the queue's epoch is not a
    number."""
    check_layout(queue, facts)
    epoch_of(queue, facts.get("epoch", "0"))


def epoch_of(queue: str, text: object) -> int:
    """Return the epoch as a number. Raises QueueDamaged for any other text."""
    shown = str(text)
    if _is_number(shown):
        return int(shown)
    raise QueueDamaged(
        f"queue {queue!r} is damaged: its epoch in `meta` is {printable(shorten(shown, SHOWN_MAX))!r}, which is no"
        f" number. `rq-core doctor {queue}` prints the command that sets it back",
        queue=queue,
        why="its epoch is no number",
    )


def number_of(facts: Mapping[str, str], name: str) -> int:
    """Return a number of ``meta``, or its default if the field is missing or not a number."""
    text = facts.get(name, "")
    if _is_number(text):
        return int(text)
    return SETTINGS[name].default if name in SETTINGS else 0


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < NUMBER_MAX


def check_layout(queue: str, facts: Mapping[str, str]) -> None:
    """Raise LayoutMismatch if this release cannot read the queue's keys. A queue without a layout does not exist
    yet."""
    found = facts.get("layout")
    if found is not None and found != str(LAYOUT):
        raise LayoutMismatch(queue=queue, found=found, known=LAYOUT)
