"""Judges the steps, waits and signals of durable jobs, from the log alone (I20 to I23)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from rq_core.model.durable.boxes import OVER, signal_of
from rq_core.model.events import Entry, JobEvent, JobRecord
from rq_core.model.table.effects import EFFECTS, target
from rq_core.model.table.machine import Event

Wrong = Iterator[str]


@dataclass
class Step:
    """One entry of a durable job: a step, a wait or a sleep."""

    name: str
    kind: str | None
    """``wait`` or ``sleep``; None if the entry is a step."""
    until_ms: int | None = None
    digest: str | None = None
    """The digest of the saved value in the log, or the reason why no value is kept; None: the entry is only begun."""


@dataclass
class Box:
    """The entries that one durable job saved, and the signals sent to it."""

    job_id: str
    entries: dict[int, Step] = field(default_factory=dict)
    signals: dict[int, str] = field(default_factory=dict)
    """The digest of each signal, by its number."""
    keys: set[str] = field(default_factory=set)
    waiting: dict[str, list[int]] = field(default_factory=dict)
    """The numbers of the signals that wait, by name, oldest first."""
    taken: set[int] = field(default_factory=set)

    def is_saved(self, name: str) -> bool:
        """Return whether the entry with this name is saved."""
        return any(each.name == name and each.digest for each in self.entries.values())

    def mail(self, entry: str) -> list[int]:
        """Return the numbers of the signals that a wait with this name may take, oldest first."""
        return self.waiting.get(signal_of(entry), [])


@dataclass
class Boxes:
    """The boxes of all durable jobs, as the log shows them so far."""

    boxes: dict[str, Box] = field(default_factory=dict)
    """The boxes of all jobs, by the id of the box (its life)."""
    lives: dict[str, str] = field(default_factory=dict)
    """The id of the box (its life) of each job that has a box and has not left Redis."""
    parked: dict[str, JobEvent] = field(default_factory=dict)
    """The ``parked`` event of each job that is parked."""
    must_wake: dict[str, str] = field(default_factory=dict)
    """The parked jobs that the next entry must wake, each with the reason."""
    succeeded: dict[tuple[str, str], Box] = field(default_factory=dict)
    """The boxes of jobs that have succeeded, by job and fence."""
    has_lost: bool = False
    """True if the server has lost entries. The worker of a claim then sends again the entries that it knows."""

    def box_of(self, job_id: str) -> Box | None:
        """Return the box of a job that is still in Redis, or None if it has no box."""
        return self.boxes.get(self.lives.get(job_id, ""))

    def add(self, entry: Entry, records: Mapping[str, JobRecord]) -> list[str]:
        """Add the next entry of the log, and return its errors as sentences.

        ``records`` has the state of each job after this entry.
        """
        woken = {event.job_id for event in entry.jobs} if entry.event is Event.WOKEN else set()
        asleep = {i: why for i, why in self.must_wake.items() if i not in woken}
        found = [f"I23: {job_id} stays parked: {why}" for job_id, why in asleep.items()]
        self.must_wake.clear()
        for event in entry.jobs:
            found += [
                f"{why} ({entry.id}, {entry.event} of job {event.job_id})"
                for why in self._add(entry, event, records.get(event.job_id))
            ]
        return found

    def _add(self, entry: Entry, event: JobEvent, record: JobRecord | None) -> Wrong:
        facts = event.fields
        if entry.event in (Event.STEP_BEGUN, Event.STEP_SAVED):
            yield from self._claim(entry, facts, record)
            yield from self._written(entry, event.job_id, facts)
        elif entry.event is Event.SIGNALLED:
            if record is not None and record.worker == entry.by:
                self._move(event.job_id, facts["life"])
            yield from self._signalled(event.job_id, facts)
        elif entry.event is Event.PARKED:
            yield from self._parks(entry, event)
        elif entry.event is Event.WOKEN:
            yield from self._wakes(entry, event)
        elif entry.event in EFFECTS and entry.event is not Event.DISCARDED:
            if entry.event is Event.CLAIMED and event.job_id in self.parked:
                yield "I22: a parked job is claimed"
            self._moves(entry, event)

    def _moves(self, entry: Entry, event: JobEvent) -> None:
        """Note an event that moves the job and does not change its box."""
        job_id = event.job_id
        if entry.event is Event.SUCCEEDED and (box := self.box_of(job_id)):
            self.succeeded[job_id, str(event.fields["fence"])] = box
        state = target(entry.event, event.fields)
        if entry.event is not Event.BASELINE:
            self.parked.pop(job_id, None)
            if state is None or EFFECTS[entry.event].begins:
                self.lives.pop(job_id, None)

    # Entries.

    @staticmethod
    def _claim(entry: Entry, facts: Mapping[str, Any], record: JobRecord | None) -> Wrong:
        held = None if record is None else (record.fence, record.worker)
        if held != (facts["fence"], entry.by):
            yield f"I9: {entry.by} writes under {facts['fence']}, in force is {held}"

    def _box(self, job_id: str, life: str) -> tuple[Box, list[str]]:
        """Return the box with this id (its life), and an error if the job already has another box."""
        known = self.lives.setdefault(job_id, life)
        box = self.boxes.setdefault(life, Box(job_id))
        is_other = known != life or box.job_id != job_id
        return box, [f"I20: the box is {life}, and the job has box {known}"] if is_other else []

    def _move(self, job_id: str, life: str) -> None:
        """Give a job's box, which a signal began, the id of the box that Redis had lost. The log has the signals
        again."""
        box = self.box_of(job_id)
        if self.has_lost and box is not None and not box.entries:
            self.lives[job_id] = life

    def _written(self, entry: Entry, job_id: str, facts: Mapping[str, Any]) -> Wrong:
        box, wrong = self._box(job_id, facts["life"])
        yield from wrong
        number, name = facts["entry"], facts["name"]
        old = box.entries.get(number)
        if old is None and number != len(box.entries) + 1:
            yield f"I20: entry {number} follows {len(box.entries)} entries"
        if old is not None and old.name != name:
            yield f"I20: entry {number} was {old.name} and is {name}"
        if old is None and any(each.name == name for each in box.entries.values()):
            yield f"I20: step {name} has a second entry"
        if entry.event is Event.STEP_BEGUN:
            if old is not None:
                yield f"I20: entry {number} is begun again"
            box.entries[number] = Step(name, facts["kind"], facts["until_ms"])
            return
        if old is not None and old.digest is not None:
            yield f"I20: step {name} is saved twice"
        kind = old.kind if old is not None else None
        yield from self._taken(entry, box, facts, old)
        box.entries[number] = Step(name, kind, None, facts["digest"])

    def _taken(self, entry: Entry, box: Box, facts: Mapping[str, Any], old: Step | None) -> Wrong:
        """Check how a wait or a sleep ended: it took a signal, or its time had passed (I21, I23)."""
        name = facts["name"]
        if facts["message"] is not None:
            yield from self._takes_signal(box, facts)
        elif facts["digest"] == OVER:
            mail = box.mail(name)
            if old is None or old.kind is None:
                if not self.has_lost:
                    yield f"I23: {name} is over and was not begun"
            elif old.until_ms is None or old.until_ms > entry.at_ms:
                yield f"I23: {name} is over at {entry.at_ms}, and lasts until {old.until_ms}"
            elif old.kind == "wait" and mail:
                yield f"I21: {name} is over, and signal {mail[0]} waits"
        elif old is not None and old.kind is not None:
            yield f"I21: {name} was a {old.kind}, and is saved as a step"

    def _takes_signal(self, box: Box, facts: Mapping[str, Any]) -> Wrong:
        """Check that a wait took the oldest signal of its name, and that no wait had taken this signal before (I21)."""
        name, number = facts["name"], facts["message"]
        mail = box.mail(name)
        if number in box.taken:
            yield f"I21: signal {number} is taken twice"
        if number not in mail or (self.has_lost and box.signals[number] != facts["digest"]):
            # Redis may have forgotten the signal, and given its number to another one. The other one still waits.
            if not any(number in numbers for numbers in box.waiting.values()):
                box.taken.add(number)
            if not self.has_lost:
                yield f"I21: {name} takes signal {number}, which does not wait"
            return
        box.taken.add(number)
        if number != mail[0] and not self.has_lost:
            yield f"I21: {name} takes signal {number} before {mail[0]}"
        mail.remove(number)
        if box.signals[number] != facts["digest"]:
            yield f"I21: {name} takes {facts['digest']} of signal {number}"

    # Signals.

    def _signalled(self, job_id: str, facts: Mapping[str, Any]) -> Wrong:
        box, wrong = self._box(job_id, facts["life"])
        yield from wrong
        number, name, key = facts["message"], facts["name"], facts["key"]
        last = max([0, *box.signals, *box.taken])
        if number != last + 1:
            yield f"I21: signal {number} follows signal {last}"
        if key is not None and key in box.keys:
            yield f"I21: key {key} has a second signal"
        if key is not None:
            box.keys.add(key)
        box.signals[number] = facts["digest"]
        box.waiting.setdefault(name, []).append(number)
        if (parked := self.parked.get(job_id)) and self._ripe_entry(box, parked):
            self.must_wake[job_id] = f"signal {number} has come"

    @staticmethod
    def _ripe_entry(box: Box, parked: JobEvent) -> str | None:
        """Return the number of a wait of the parked job whose signal has arrived, or None if none has arrived."""
        for mark in parked.fields["waits"].split(","):
            step = box.entries.get(int(mark))
            if step is not None and step.kind == "wait" and box.mail(step.name):
                return str(mark)
        return None

    # Parking.

    def _parks(self, entry: Entry, event: JobEvent) -> Wrong:
        job_id, facts = event.job_id, event.fields
        box = self.box_of(job_id) or Box(job_id)
        self.parked[job_id] = event
        marks = [int(mark) for mark in facts["waits"].split(",")]
        if missing := [mark for mark in marks if mark not in box.entries]:
            yield f"I22: it parks for entries {missing}, which its box lacks"
        steps = [step for mark in marks if (step := box.entries.get(mark)) is not None]
        waits = [step for step in steps if step.kind is not None and step.digest is None]
        if len(waits) < len(marks):
            if not (self.has_lost or missing):
                yield f"I22: it parks for {facts['waits']}, and has {box.entries}"
            self.must_wake[job_id] = "it waits for what Redis does not have"
        ends = [step.until_ms for step in waits if step.until_ms is not None]
        if facts["due_ms"] != min(ends, default=None):
            yield f"I23: its moment is {facts['due_ms']}, and its waits last until {ends}"
        if self._ripe_entry(box, event):
            self.must_wake[job_id] = "its signal had come"
        elif any(end <= entry.at_ms for end in ends):
            self.must_wake[job_id] = "its moment was over"

    def _wakes(self, entry: Entry, event: JobEvent) -> Wrong:
        job_id, cause = event.job_id, event.fields["cause"]
        parked = self.parked.pop(job_id, None)
        if parked is None:
            yield "I23: it is woken, and was not parked"
            return
        box, due = self.box_of(job_id) or Box(job_id), parked.fields["due_ms"]
        if cause is not None:
            step = box.entries.get(cause)
            waits = parked.fields["waits"].split(",")
            if str(cause) not in waits or step is None or not box.mail(step.name):
                yield f"I23: it is woken for entry {cause}, whose signal has not come"
        elif due is None or due > entry.at_ms:
            marks = [int(mark) for mark in parked.fields["waits"].split(",")]
            if all(mark in box.entries and not box.entries[mark].digest for mark in marks):
                yield f"I23: it is woken at {entry.at_ms}, and waits until {due}"
