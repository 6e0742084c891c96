"""Judges the schedules of a queue from its log alone. Each instant must be right, and must come once (I15).

The log has the rule of each schedule. The judge computes from it each instant, and how many instants were passed over.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rq_core.model.events import Entry, JobEvent
from rq_core.model.recurrence import INSTANT_MAX, Recurrence, from_json
from rq_core.model.schedule import JOB_FIELD, Schedule
from rq_core.model.table.machine import Event


@dataclass
class Known:
    """The state of one schedule, according to the log."""

    state: str
    version: int
    rule: Recurrence
    text: str
    """The rule of the schedule as JSON."""
    next_ms: int
    last_ms: int = 0
    """The last instant in the log (Unix ms), or 0 before the first instant."""
    declared: set[str] = field(default_factory=set)
    """The rules that code has declared up to the present entry."""


class Schedules:
    """The state of all schedules. It finds each entry of the log that breaks a rule."""

    def __init__(self) -> None:
        self.known: dict[str, Known] = {}
        self._enqueued: set[str] = set()
        """The jobs that the previous entry enqueued."""

    def add(self, entry: Entry) -> list[str]:
        """Read the next entry of the log, and return its errors as sentences."""
        found: list[str] = []
        if entry.event is Event.SCHEDULE_CHANGED:
            found = self._change(entry)
        elif entry.event is Event.TICKED:
            for event in entry.jobs:
                found += self._tick(entry, event)
        is_enqueue = entry.event is Event.ENQUEUED
        self._enqueued = {event.job_id for event in entry.jobs} if is_enqueue else set()
        return [f"{entry.id}: {says}" for says in found]

    def differences(self, stored: Mapping[str, str]) -> list[str]:
        """Return as sentences how the key ``schedules`` in Redis differs from the log."""
        entries = {n: Schedule.parse(e) for n, e in stored.items() if not n.endswith(JOB_FIELD)}
        found = [
            f"schedule {name} is stored: {name in entries}"
            for name in self.known.keys() ^ entries.keys()
        ]
        for name, known in self.known.items():
            entry = entries.get(name)
            if entry is None:
                continue
            told = (known.state, known.version, known.next_ms, known.last_ms, known.text)
            has = (entry.state, entry.version, entry.next_ms, entry.last_ms, entry.rule)
            if told != has:
                found.append(f"schedule {name} is {has}, and by the log {told}")
        return found

    def _change(self, entry: Entry) -> list[str]:
        facts, found = entry.data, []
        name, state, old, new, version, next_ms, source = (
            facts[each] for each in ("name", "state", "old", "new", "version", "next_ms", "source")
        )
        known = self.known.get(name)
        if (known.text if known else None) != old:
            found.append(f"schedule {name} had another rule than {old}")
        if version != (known.version if known else 0) + 1:
            found.append(f"schedule {name} has version {version} now")
        if new is None:
            self.known.pop(name, None)
            return found
        changed = Known(state, version, from_json(name, new), new, next_ms)
        if known is not None:
            changed.last_ms, changed.declared = known.last_ms, known.declared
        if source == "code":
            if new != old and new in changed.declared:
                found.append(f"old code brought back what schedule {name} was: {new}")
            changed.declared.add(new)
        if state == "on" and next_ms <= max(entry.at_ms, changed.last_ms):
            found.append(f"schedule {name} goes on in the past, at {next_ms}")
        if next_ms != INSTANT_MAX and changed.rule.next_after(next_ms - 1) != next_ms:
            found.append(f"schedule {name} has no instant at {next_ms}")
        self.known[name] = changed
        return found

    def _tick(self, entry: Entry, event: JobEvent) -> list[str]:
        facts = event.fields
        name, nominal, outcome = facts["name"], facts["nominal_ms"], facts["outcome"]
        known, found = self.known.get(name), []
        if outcome in ("fired", "run") and event.job_id not in self._enqueued:
            found.append(f"{event.job_id} is {outcome}, and was not enqueued in the entry before")
        if event.job_id != f"tick-{name}-{nominal}":
            found.append(f"{event.job_id} is for the instant {nominal} of {name}")
        if known is None or outcome in ("run", "not_run"):
            return [*found, *([] if known else [f"there is no schedule {name}"])]
        if known.state != "on":
            found.append(f"schedule {name} is {known.state}, and has an instant")
        if outcome == "undeclared":
            known.state, known.version = "undeclared", known.version + 1
            known.declared.clear()  # Older code may bring it back now.
        if facts["version"] != known.version:
            found.append(f"schedule {name} has version {known.version}, not {facts['version']}")
        if outcome == "undeclared":
            return found
        return found + self._instant(entry, facts, known)

    def _instant(self, entry: Entry, facts: Mapping[str, Any], known: Known) -> list[str]:
        name, nominal, found, rule = facts["name"], facts["nominal_ms"], [], known.rule
        if facts["outcome"] == "missed":
            passed = list(_first(rule, known.next_ms, facts["missed"]))
            after = rule.next_after(passed[-1])
            is_right = nominal == known.next_ms
        else:
            after = rule.next_after(nominal)
            is_right = nominal >= known.next_ms and rule.next_after(nominal - 1) == nominal
            is_right = is_right and facts["missed"] == rule.passed(known.next_ms, nominal)
        if not is_right:
            says = f"{nominal} after {facts['missed']} that were passed over, and {known.next_ms} was next"
            found.append(f"schedule {name} has the instant {says}")
        if facts["next_ms"] != (after or INSTANT_MAX):
            found.append(f"schedule {name} goes on at {facts['next_ms']}, not at {after}")
        if facts["due_ms"] != nominal + rule.shift_ms or entry.at_ms < facts["due_ms"]:
            found.append(f"schedule {name} is early for {nominal}, due {facts['due_ms']}")
        if nominal <= known.last_ms:
            found.append(f"schedule {name} has the instant {nominal} again")
        known.last_ms, known.next_ms = max(nominal, known.last_ms), facts["next_ms"]
        return found


def _first(rule: Recurrence, start: int, count: int) -> list[int]:
    """Return ``count`` instants of the rule: ``start``, and the instants that follow it."""
    found = [start]
    while len(found) < count:
        found.append(rule.next_after(found[-1]) or INSTANT_MAX)
    return found
