"""Replays the schedules of one queue. Each time at which a schedule is due must be the one that the preceding event
named as the next (invariant I15).

The replay of a schedule begins with its first event in the log, even if earlier events are missing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from rq_core.model.schedule import job_digest
from sql_audit.proof.event_details import facts_in
from sql_audit.proof.replay.live_job import Record
from sql_audit.proof.replay.log_findings import LogFindings
from sql_audit.store.job_rows import EventRow

_RUNS: Final = frozenset({"run", "not_run"})
"""Outcomes of runs that an operator asked for. They do not belong to a time at which the schedule was due."""
_ENQUEUED: Final = frozenset({"fired", "run"})
"""Outcomes if a job was enqueued, because the schedule was due or because an operator asked for a run."""

_KEPT_OUT: Final = frozenset({"skipped", "missed", "undeclared"})
"""Outcomes if the schedule was due, but no job was enqueued."""
_OUTCOMES: Final = _RUNS | _ENQUEUED | _KEPT_OUT | {"duplicate"}
_STATES: Final = frozenset({"on", "paused", "undeclared", "removed"})
_SOURCES: Final = frozenset({"code", "live", "released"})


class _Schedule(NamedTuple):
    version: int
    next_ms: int | None
    """The time at which the schedule is due next (Unix ms); None: it is not on."""
    rule: str | None = None
    """The rule as JSON; None: unknown, since the log begins later."""


class ScheduleTicks:
    """The schedules of a queue after the events so far, and when each is due next."""

    def __init__(
        self, found: LogFindings, live_job: Callable[[EventRow, str], Record | None]
    ) -> None:
        """Begin without schedules. ``live_job`` returns the live job of an event, and reports a wrong task or claim
        number in its row.
        """
        self._violated = found.violated
        self._live_job = live_job
        self._schedules: dict[str, _Schedule] = {}
        self._asked_for: set[str] = set()
        """Ids of jobs that were enqueued because an operator asked for a run. A run may have the same time as a regular
        job of the schedule."""

    def forget(self) -> None:
        """Forget all schedules, because the log does not show what happened to them."""
        self._schedules.clear()

    def changed(self, row: EventRow, _: str) -> None:
        """Replay an event ``schedule_changed``, and report its faults."""
        facts = facts_in(row[10])
        name, version = facts["name"], facts["version"]
        known = self._schedules.get(name)
        if known is not None and version <= known.version:
            self._violated("I15", f"schedule {name} has version {known.version} already")
        elif known is not None and version != known.version + 1:
            says = f"skips versions {known.version + 1} to {version - 1} of schedule {name}"
            self._violated("I15", says)
        if facts["state"] not in _STATES:
            self._violated("I15", f"has the unknown state {facts['state']}")
        if facts["source"] not in _SOURCES:
            self._violated("I15", f"comes from {facts['source']}, and no change does")
        pack = facts.get("pack")
        if pack is not None and job_digest(pack) != facts.get("job_digest"):
            self._violated("I15", "has another digest than its job")
        old = facts.get("old")
        # A restore puts back what Redis lost: the next version, of a schedule that was not there.
        if known is not None and known.rule is not None and old not in (None, known.rule):
            self._violated("I15", f"changes a rule that schedule {name} did not have")
        if facts.get("new") is None:
            self._schedules.pop(name, None)
            return
        next_ms = facts["next_ms"] if facts["state"] == "on" else None
        if next_ms is not None and next_ms <= row[5]:
            self._violated("I15", f"the next instant of schedule {name} has passed")
        self._schedules[name] = _Schedule(version, next_ms, facts["new"])

    def ticked(self, row: EventRow, job_id: str) -> None:
        """Replay an event ``ticked``: a schedule was due, or an operator asked for a run."""
        facts = facts_in(row[10])
        name, nominal, outcome = facts["name"], facts["nominal_ms"], facts["outcome"]
        if job_id != f"tick-{name}-{nominal}":
            self._violated("I15", f"is of schedule {name} at {nominal}, and names another job")
        if facts["due_ms"] < nominal or row[5] < facts["due_ms"]:
            self._violated("I15", f"happens {facts['due_ms'] - row[5]} ms before it is due")
        if outcome not in _OUTCOMES:
            self._violated("I15", f"has the unknown outcome {outcome}")
        record = self._live_job(row, job_id)
        is_new = record is not None and not record.claims
        if outcome in _ENQUEUED and not is_new:
            self._violated("I15", f"is {outcome}, and its job was not enqueued")
        elif outcome in _KEPT_OUT and record is not None and job_id not in self._asked_for:
            self._violated("I15", f"is {outcome}, and its job was enqueued")
        if outcome == "missed" and not facts["missed"]:
            self._violated("I15", "is missed, and is not counted")
        if outcome == "run":
            self._asked_for.add(job_id)
        known = self._schedules.get(name)
        if outcome in _RUNS:
            self._run(facts, known)
        else:
            self._tell(facts, known)
            rule = None if known is None else known.rule
            self._schedules[name] = _Schedule(facts["version"], facts.get("next_ms"), rule)

    def _run(self, facts: Mapping[str, Any], known: _Schedule | None) -> None:
        """Replay a run that an operator asked for. It must not change the time at which the schedule is due next."""
        if facts["missed"]:
            self._violated("I15", f"passes over {facts['missed']} instants")
        if known is None:
            return
        self._check_version(facts["version"], known.version)
        if facts.get("next_ms") != known.next_ms:
            says = f"says another next instant than schedule {facts['name']} has: {known.next_ms}"
            self._violated("I15", says)

    def _check_version(self, version: int, known: int) -> None:
        if version != known:
            self._violated("I15", f"is of version {version} of its schedule, which has {known}")

    def _tell(self, facts: Mapping[str, Any], known: _Schedule | None) -> None:
        nominal, outcome, missed = facts["nominal_ms"], facts["outcome"], facts["missed"]
        is_undeclared = outcome == "undeclared"
        following = facts.get("next_ms")
        if not is_undeclared and (following is None or following <= nominal):
            self._violated("I15", "says no later instant")
        if known is None:
            return
        if known.next_ms is None:
            self._violated("I15", "is of a schedule that is not on")
            return
        self._check_version(facts["version"], known.version + is_undeclared)
        # An instant that is itself missed is counted, too.
        passed = missed - (outcome == "missed")
        is_next = nominal == known.next_ms and (passed == 0 or outcome == "missed")
        is_later = nominal > known.next_ms and passed > 0
        if not (is_next or is_later):
            says = f"is the instant {nominal}, with {missed} passed over: {known.next_ms} was next"
            self._violated("I15", says)
