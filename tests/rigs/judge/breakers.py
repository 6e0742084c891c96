"""Judges breakers by the handlers' lines, beside the order of events in the log. It shares no code with the scripts or
with `audit verify`.

The lines say when a handler began, when it ended, and whether the service answered. The log says in which order claims
began, which of them lost their lease, and when a scope paused.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

OK: Final = "ok"
FAILED: Final = "failed"
_FAILURES: Final = ("retried", "died")
_ENDS: Final = (*_FAILURES, "succeeded", "lease_expired", "rolled_back")
Claim = tuple[str, int]
"""A job, and the number of its claim."""


class Event(NamedTuple):
    """An event of a job in the log: its type, its time (Unix ms), the claim that it concerns, and its other fields."""

    kind: str
    at_ms: int
    claim: Claim
    facts: Mapping[str, Any]


class Run(NamedTuple):
    """One run of a handler, by the handler's own lines."""

    host: str
    began_ms: float
    failures: int
    """The number of failures that the job had, as the handler saw it."""
    ended_ms: float = math.inf
    """Infinite if the handler wrote no last line, because its process was killed."""
    how: str = ""
    """OK, FAILED, another word if the handler was cancelled, or empty without a last line."""


class Limit(NamedTuple):
    """The limit of a breaker."""

    failures: int
    window_ms: int
    cooldown_ms: int


@dataclass
class Judged:
    """The counts of a run, and the problems that the judge found."""

    pauses: int = 0
    """Pauses of open scopes."""
    probes: int = 0
    probes_lost: int = 0
    """Probes that lost their lease."""
    again: int = 0
    """Probes that failed and paused their scope again."""
    opened: int = 0
    failing: list[int] = field(default_factory=list)
    """For each pause of an open scope: the failed runs in its window that the log knows or that were in flight."""
    in_flight: list[int] = field(default_factory=list)
    """For each pause of an open scope: the other claims of the scope that were in force."""
    late_ms: list[int] = field(default_factory=list)
    """For each first probe after a pause: the time (ms) from the end of the pause until it began."""
    problems: list[str] = field(default_factory=list)


@dataclass
class _Scope:
    """The state of the scope of one host."""

    until_ms: int | None = None
    awaited: bool = False
    """True until a probe begins after the pause."""
    probe: Claim | None = None
    probe_lost_ms: float = math.inf
    """When the log says that the last probe lost its lease."""
    failed_ms: list[int] = field(default_factory=list)
    in_force: set[Claim] = field(default_factory=set)
    claims: list[Claim] = field(default_factory=list)
    """The claims since the scope was opened."""


def in_order(events: Iterable[Event]) -> Iterator[Event]:
    """Yield the events, with each `scope_paused` directly before the failure that caused the pause.

    A call logs all pauses first, and then the failures of all its jobs. Some of these failures count before a pause.
    """
    waiting: dict[Claim, Event] = {}
    for event in events:
        if event.kind == "scope_paused":
            waiting[event.claim] = event
            continue
        if event.kind not in _FAILURES:
            yield from waiting.values()
            waiting.clear()
        elif event.claim in waiting:
            yield waiting.pop(event.claim)
        yield event
    yield from waiting.values()


class Judge:
    """Follows the log event by event, and compares it with the runs."""

    def __init__(self, runs: Mapping[Claim, Run], hosts: Mapping[str, str], limit: Limit) -> None:
        """``hosts`` has the host of each job, as its producer enqueued it."""
        self.found = Judged()
        self._runs, self._hosts, self._limit = runs, hosts, limit
        self._scopes: defaultdict[str, _Scope] = defaultdict(_Scope)
        self._claimed: set[Claim] = set()
        self._lost: set[Claim] = set()
        self._failures: Counter[str] = Counter()
        self._succeeded: Counter[str] = Counter()
        self._pausing: set[Claim] = set()
        """The claims that paused a scope, until the log has their failures."""

    def judge(self, events: Iterable[Event]) -> Judged:
        """Judge the whole log. At its end all jobs must have succeeded."""
        for event in in_order(events):
            for says in self._problems_of(event):
                self.found.problems.append(f"{event.claim[0]}, claim {event.claim[1]}: {says}")
        self.found.problems += self._left()
        return self.found

    def _problems_of(self, event: Event) -> Iterator[str]:
        scope = self._scopes[self._hosts[event.claim[0]]]
        if event.kind == "claimed":
            yield from self._begin(scope, event)
        elif event.kind == "scope_paused":
            yield from self._pause(scope, event)
        elif event.kind in _ENDS:
            yield from self._end(scope, event)

    def _begin(self, scope: _Scope, event: Event) -> Iterator[str]:
        run = self._runs.get(event.claim)
        self._claimed.add(event.claim)
        scope.in_force.add(event.claim)
        scope.claims.append(event.claim)
        if run is not None and run.failures != self._failures[event.claim[0]]:
            known = self._failures[event.claim[0]]
            yield f"its handler saw {run.failures} failures, and {known} were settled"
        if scope.until_ms is None:
            return
        self.found.probes += 1
        if run is not None:
            if run.began_ms < scope.until_ms:
                yield f"began {scope.until_ms - run.began_ms:.0f} ms before the end of a pause"
            if scope.awaited:
                self.found.late_ms.append(round(run.began_ms - scope.until_ms))
            if scope.probe is not None:
                before = self._runs.get(scope.probe)
                ended_ms = min(before.ended_ms if before else -math.inf, scope.probe_lost_ms)
                if run.began_ms < ended_ms:
                    yield f"began while the probe {scope.probe[0]} ran"
        if scope.probe in scope.in_force:
            yield f"was claimed while the claim of the probe {scope.probe[0]} was in force"
        scope.awaited, scope.probe, scope.probe_lost_ms = False, event.claim, math.inf

    def _pause(self, scope: _Scope, event: Event) -> Iterator[str]:
        run = self._runs.get(event.claim)
        self._pausing.add(event.claim)
        if run is None or run.how != FAILED:
            yield "paused its scope, and its handler did not fail"
        if event.facts["until_ms"] - event.at_ms != self._limit.cooldown_ms:
            yield f"paused its scope for {event.facts['until_ms'] - event.at_ms} ms"
        if scope.until_ms is None:
            yield from self._first_pause(scope, event)
        elif scope.probe != event.claim:
            yield "paused its scope, and is not the probe"
        else:
            self.found.again += 1
        scope.until_ms, scope.awaited, scope.failed_ms = event.facts["until_ms"], True, []
        scope.probe = None

    def _first_pause(self, scope: _Scope, event: Event) -> Iterator[str]:
        """Judge the pause of an open scope."""
        since_ms = event.at_ms - self._limit.window_ms
        known = 1 + sum(at_ms > since_ms for at_ms in scope.failed_ms)
        if known != self._limit.failures:
            yield f"paused its scope with failure {known} within the window"
        in_flight = len(scope.in_force - {event.claim})
        runs = [self._runs.get(each) for each in scope.claims if each not in self._lost]
        failing = sum(
            run is not None and run.how == FAILED and run.ended_ms > since_ms for run in runs
        )
        if failing > self._limit.failures + in_flight:
            yield f"is one of {failing} failed runs, {in_flight} of them in flight at the pause"
        self.found.pauses += 1
        self.found.failing.append(failing)
        self.found.in_flight.append(in_flight)
        scope.claims = []

    def _end(self, scope: _Scope, event: Event) -> Iterator[str]:
        run = self._runs.get(event.claim)
        how = "" if run is None else run.how
        scope.in_force.discard(event.claim)
        is_probe = scope.probe == event.claim
        if event.kind == "lease_expired":
            self._lost.add(event.claim)
            if is_probe:
                scope.probe_lost_ms = event.at_ms
                self.found.probes_lost += 1
        elif event.kind == "succeeded":
            self._succeeded[event.claim[0]] += 1
            if how != OK:
                yield "succeeded in the log, and not by its handler's line"
            if is_probe and scope.until_ms is not None:
                self.found.opened += 1
                self._scopes[self._hosts[event.claim[0]]] = _Scope(in_force=scope.in_force)
        elif event.kind in _FAILURES:
            self._failures[event.claim[0]] += 1
            if how != FAILED:
                yield "failed in the log, and not by its handler's line"
            if event.kind == "died":
                yield "died"
            if event.claim in self._pausing:
                self._pausing.remove(event.claim)
            elif is_probe and scope.until_ms is not None:
                yield "is a probe that failed, and its scope was not paused"
            elif scope.until_ms is None:
                yield from self._count(scope, event.at_ms)

    def _count(self, scope: _Scope, at_ms: int) -> Iterator[str]:
        """Count a failure that paused nothing."""
        scope.failed_ms.append(at_ms)
        known = sum(each > at_ms - self._limit.window_ms for each in scope.failed_ms)
        if known >= self._limit.failures:
            yield f"is failure {known} within the window, and its scope was not paused"

    def _left(self) -> Iterator[str]:
        """Yield what is wrong at the end."""
        for job in self._hosts:
            if self._succeeded[job] != 1:
                yield f"{job} succeeded {self._succeeded[job]} times"
        for host, scope in self._scopes.items():
            if scope.until_ms is not None and scope.probe is None:
                yield f"{host} is not open, and no probe has begun since its pause"
            elif (
                scope.until_ms is not None
                and scope.probe is not None
                and scope.probe not in scope.in_force
            ):
                yield f"{host} is not open, and no probe has begun since that of {scope.probe[0]} has ended"
        for claim in self._runs.keys() - self._claimed:
            yield f"{claim[0]} ran in claim {claim[1]}, which the log does not have"
