"""Checks whether this version of rq-core can use a queue, from the fields of the queue's key ``meta``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from rq_core.errors import LayoutMismatch, QueueDamaged
from rq_core.model.lib.text import printable, shorten
from rq_core.model.settings import SETTINGS
from rq_core.model.table.machine import LAYOUT

NUMBER_MAX: Final = 19
"""Number of digits from which on a number in the key ``meta`` is invalid."""
SHOWN_MAX: Final = 40
"""Maximum number of characters of an invalid value that an error message shows."""


def check_queue(queue: str, facts: Mapping[str, str]) -> None:
    """Raise LayoutMismatch if this version of rq-core cannot read the queue's keys, or QueueDamaged if the queue's
    epoch is not a number. ``facts`` are the fields of the queue's key ``meta``.
    """
    check_layout(queue, facts)
    epoch_of(queue, facts.get("epoch", "0"))


def epoch_of(queue: str, text: object) -> int:
    """Return the number of a queue's epoch (its present history in Redis). Raises QueueDamaged if the text is not a
    number.
    """
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
    """Return a field of the key ``meta`` as a number. If the field is missing or not a number, return the field's
    default.
    """
    text = facts.get(name, "")
    if _is_number(text):
        return int(text)
    return SETTINGS[name].default if name in SETTINGS else 0


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < NUMBER_MAX


def check_layout(queue: str, facts: Mapping[str, str]) -> None:
    """Raise LayoutMismatch if this version of rq-core cannot read the queue's keys. If the field ``layout`` is missing,
    the queue does not exist yet, and nothing is raised.
    """
    found = facts.get("layout")
    if found is not None and found != str(LAYOUT):
        raise LayoutMismatch(queue=queue, found=found, known=LAYOUT)
