"""The boxes of durable jobs according to the log: how many entries they have, and which signals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from rq_core.model.durable.boxes import signal_text
from rq_core.model.events import Entry
from rq_core.model.table.machine import Event
from rq_core.model.unique_names import digest_of


class LoggedSignal(NamedTuple):
    """A signal according to its event."""

    at_ms: int
    facts: Mapping[str, Any]
    """The event's fields by name."""

    def text(self, *, is_taken: bool) -> str | None:
        """Return the text of the signal in its box; None if no wait has taken the signal, and the log does not have the
        signal's value."""
        facts, value = self.facts, self.facts.get("value")
        if is_taken:
            return signal_text(facts["name"], self.at_ms, facts["digest"], facts.get("key"))
        if value is None or digest_of(value) != facts["digest"]:
            return None
        return signal_text(facts["name"], self.at_ms, facts["digest"], facts.get("key"), value)

    def text_of_lost(self) -> str:
        """Return the text of a signal that is lost. The signal keeps its number, as if a wait had taken it. It loses
        its key, so that its sender can send it again with this key."""
        return signal_text(self.facts["name"], self.at_ms, self.facts["digest"])


@dataclass
class LoggedBox:
    """A box according to the events of the outbox."""

    entries: int = 0
    """The number of the last entry in the box."""
    signals: dict[int, LoggedSignal] = field(default_factory=dict)
    taken: set[int] = field(default_factory=set)
    """The numbers of the signals that waits have taken."""


def note_boxes(boxes: dict[str, LoggedBox], entry: Entry) -> None:
    """Apply an event of the log to ``boxes`` if the event is about a box. ``boxes`` are by box id (life)."""
    if entry.event not in (Event.SIGNALLED, Event.STEP_BEGUN, Event.STEP_SAVED):
        return
    for event in entry.jobs:
        facts = event.fields
        box = boxes.setdefault(facts["life"], LoggedBox())
        if entry.event is Event.SIGNALLED:
            box.signals[facts["message"]] = LoggedSignal(entry.at_ms, facts)
            # A wait took another signal of this number, which Redis has forgotten.
            box.taken.discard(facts["message"])
        else:
            box.entries = max(box.entries, facts["entry"])
            if (message := facts.get("message")) is not None:
                box.taken.add(message)
