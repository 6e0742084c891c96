"""Computes the boxes of durable jobs from the log. A box is what Redis keeps of a job's steps: its entries and its
signals.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from rq_core.model.durable.boxes import StepEntry, entry_text, signal_of, signal_text
from rq_core.model.events import Entry
from rq_core.model.table.machine import Event
from rq_core.model.unique_names import digest_of

BOX_EVENTS: Final = frozenset(
    {Event.STEP_BEGUN, Event.STEP_SAVED, Event.SIGNALLED, Event.SIGNAL_LOST}
)
"""The types of events that change the box (the saved steps and signals) of a durable job."""


Distrust = Callable[[Mapping[str, bool]], Mapping[str, str]]
"""A function that checks the log's events about jobs' boxes (saved steps and signals) before a repair uses them. It
returns the ids of the jobs whose events must not be used, because the log was changed, each with the reason. The
argument has the ids of the jobs to check. The value of a job is True if the repair would also remove members of the
job's box, because the log does not have these members."""


def no_distrust(_: Mapping[str, bool]) -> Mapping[str, str]:
    """Return an empty mapping: a repair may use the events about every box. Use this function if the events come from
    Redis' outbox, not from an audit database."""
    return {}


class LoggedSignal(NamedTuple):
    """A signal (a value that was sent to a durable job), as its event in the log describes it."""

    at_ms: int
    facts: Mapping[str, Any]
    """The event's fields by name."""

    def text(self, *, is_taken: bool) -> str | None:
        """Return the text with which Redis keeps the signal in the job's box. The text contains the signal's value only
        while no wait has taken the signal (``is_taken`` False). Return None if the log lacks a value that the text must
        contain.
        """
        facts, value = self.facts, self.facts.get("value")
        if is_taken:
            return signal_text(facts["name"], self.at_ms, facts["digest"], facts.get("key"))
        if value is None or digest_of(value) != facts["digest"]:
            return None
        return signal_text(facts["name"], self.at_ms, facts["digest"], facts.get("key"), value)

    def is_for(self, entry: str, digest: str) -> bool:
        """Return whether a wait may have taken this signal. ``entry`` is the name of the wait's box entry, and
        ``digest`` the digest of the value that the wait saved."""
        return (self.facts["name"], self.facts["digest"]) == (signal_of(entry), digest)

    def text_of_lost(self) -> str:
        """Return the text of a signal whose value is lost. The signal keeps its number, as if a wait had taken it.

        The text has no key. So the sender can send the signal again with the same key.
        """
        return signal_text(self.facts["name"], self.at_ms, self.facts["digest"])


@dataclass
class LoggedBox:
    """The box of a durable job (its saved steps and signals), computed from the events of a log. The log may begin
    later than the box.
    """

    steps: dict[int, StepEntry] = field(default_factory=dict)
    """The entries by number, each as the last event about the entry describes it. The value of an entry is missing
    here if the log does not have the value."""
    sizes: dict[int, int | None] = field(default_factory=dict)
    """The number of bytes of each entry's value, by the entry's number; None: the box does not keep a value."""
    signals: dict[int, LoggedSignal] = field(default_factory=dict)
    taken: set[int] = field(default_factory=set)
    """The numbers of the signals that waits have taken."""
    lost: set[int] = field(default_factory=set)
    """The numbers of the signals that a restore could not put back: their values are not in the log."""
    is_whole: bool = False
    """True if the log has all events about the box."""
    unknown_since: str | None = None
    """The reason why an audit database may lack events about the box. None: the database has all of them, or no audit
    database was read."""
    also: dict[str, set[str]] = field(default_factory=dict)
    """Other texts that ``rq-core doctor`` accepts as the first line of a member of the box, by the member's name
    without the box's id (life). A restore may have written them, because it also puts back the effects of events that
    Redis had forgotten."""
    perhaps_taken: set[int] = field(default_factory=set)
    """The numbers of the signals that may lack their value in the box: a wait may have taken the signal, or the signal
    may be lost. ``allow`` collects the numbers."""

    @property
    def entries(self) -> int:
        """The number of the last entry in the box; 0 without entries."""
        return max(self.steps, default=0)

    def add(self, event: Event | str, at_ms: int, facts: Mapping[str, Any]) -> None:
        """Apply an event about the box."""
        message = facts.get("message")
        if event == Event.SIGNALLED:
            self.signals[facts["message"]] = LoggedSignal(at_ms, facts)
            # A wait took another signal of this number, which Redis has forgotten.
            self.taken.discard(facts["message"])
            self.lost.discard(facts["message"])
            return
        if event == Event.SIGNAL_LOST:
            self.lost.add(facts["message"])
            return
        number, value = facts["entry"], facts.get("value")
        if message is not None:
            signal = self.signals.get(message)
            if signal is None or signal.is_for(facts["name"], facts["digest"]):
                self.taken.add(message)
                value = value or (signal and signal.facts.get("value"))
            # Otherwise Redis forgot the signal and the take, and gave the number to another signal.
        self.steps[number] = step_of(event, at_ms, facts)._replace(value=value)
        self.sizes[number] = facts.get("bytes")

    def allow(self, event: Event | str, at_ms: int, facts: Mapping[str, Any]) -> None:
        """Note what a restore may have written to the box for this event, if Redis had forgotten the event. Lines are
        added to ``also``, and signals to ``perhaps_taken``.
        """
        if event == Event.SIGNALLED:
            signal = LoggedSignal(at_ms, facts)
            heads = {str(signal.text(is_taken=True)), signal.text_of_lost()}
            self.also.setdefault(f">{facts['message']}", set()).update(heads)
            return
        if event == Event.SIGNAL_LOST:
            self.perhaps_taken.add(facts["message"])
            return
        step = step_of(event, at_ms, facts)
        heads = {entry_text(step)}
        if step.message is not None:
            waits = StepEntry(step.name, False, at_ms, step.fence, kind="wait")
            heads.add(entry_text(waits))
            self.also.setdefault(f">{step.message}", set()).add(step.name.partition("#")[0])
            self.perhaps_taken.add(step.message)
        self.also.setdefault(f"|{facts['entry']}", set()).update(heads)


def step_of(event: Event | str, at_ms: int, facts: Mapping[str, Any]) -> StepEntry:
    """Return the entry of a job's box that an event ``step_begun`` or ``step_saved`` describes, without the entry's
    value.
    """
    is_saved = event == Event.STEP_SAVED
    # A forger may have written any kind into SQL.
    is_wait = not is_saved and facts.get("kind") in ("wait", "sleep")
    return StepEntry(
        facts["name"],
        is_saved,
        at_ms,
        facts["fence"],
        facts["digest"] if is_saved else None,
        kind=facts["kind"] if is_wait else "step",
        until_ms=None if is_saved else facts.get("until_ms"),
        message=facts.get("message"),
    )


def note_boxes(boxes: dict[str, LoggedBox], entry: Entry) -> None:
    """Apply an entry of the log to ``boxes``, a mapping from the id (life) of a box to the box. An entry that is not
    about boxes changes nothing."""
    if entry.event not in BOX_EVENTS:
        return
    for event in entry.jobs:
        boxes.setdefault(event.fields["life"], LoggedBox()).add(
            entry.event, entry.at_ms, event.fields
        )
