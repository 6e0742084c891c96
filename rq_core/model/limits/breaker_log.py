"""Computes from the log whether each breaker's scope is open or paused. A breaker pauses a scope (a group of jobs)
after too many failures. The command ``rq-core doctor`` compares the result with Redis. This module does no I/O.

The state of a scope is unknown if the log lacks events that may concern the scope, or if the scope's limit was changed.
A pause makes the state known again. If an operator ends a pause, the state is also known, unless a restore may have
changed the scopes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from rq_core.model.events import Entry, JobEvent
from rq_core.model.limits.breakers import KEPT_MS, BreakerEntry, is_breaker
from rq_core.model.limits.scopes import family_of
from rq_core.model.table.effects import CLAIM_ENDS
from rq_core.model.table.machine import Event

_FAILURES: Final = (Event.RETRIED, Event.DIED)
_GIVEN_UP: Final = "unknown_"
"""The prefix of the reason of a death that no failure of a handler caused."""


@dataclass
class LoggedScope:
    """The state of one scope of a breaker, computed from the log. A breaker pauses a scope (a group of jobs) after too
    many failures. A scope without ``until_ms`` is open.
    """

    until_ms: int | None = None
    by: str | None = None
    probe: str | None = None
    failed: list[int] = field(default_factory=list)
    is_sure: bool = True
    """False if the scope's state was unknown before its pause. The probe (the one job that may run after the pause) may
    then be a job that the log does not show."""

    def entry(self, at_ms: int, since_ms: int) -> BreakerEntry | None:
        """Return the scope's entry in the key ``rates``, as written at ``at_ms``. The entry of an open scope has the
        failures after ``since_ms`` (both Unix ms). Return None for an open scope without such failures: Redis has no
        entry for it."""
        if self.until_ms is not None:
            return BreakerEntry(at_ms, self.until_ms, self.probe, (), self.by)
        failed = tuple(t for t in self.failed if t > since_ms)
        return BreakerEntry(at_ms, None, None, failed) if failed else None


class LoggedBreakers:
    """The states of all breakers' scopes after the events that were added so far. A breaker pauses a scope (a group of
    jobs) after too many failures.
    """

    def __init__(self, *, may_be_restored: bool = False) -> None:
        """Begin without events.

        ``may_be_restored`` is True if a restore may have put back pauses and failures without an event. Then only the
        states of paused scopes are known.
        """
        self._may_be_restored = may_be_restored
        self._known: dict[str, LoggedScope] = {}
        self._unknown: set[str] = set()
        """The scopes and families whose limits were changed, or whose pauses Redis may have forgotten."""
        self._has_all = False
        """True if the log begins with the queue and lacks no event. A scope without events is open then."""
        self._at_ms = 0

    def forget(self) -> None:
        """Forget all scopes, because the log lacks events."""
        self._known.clear()
        self._has_all = False

    @property
    def scopes(self) -> Iterable[str]:
        """The scopes about which the log has a failure, a pause or the end of a pause."""
        return self._known.keys()

    def of(self, scope: str) -> LoggedScope | None:
        """Return a scope as the log shows it; None if its state is unknown."""
        known = self._known.get(scope)
        if known is None and self._has_all and self._unknown.isdisjoint((scope, family_of(scope))):
            return LoggedScope()
        return known

    def note(self, entry: Entry, lane_scopes: Callable[[str], Iterable[str] | None]) -> None:
        """Apply an entry of the log. ``lane_scopes`` takes a job's id and returns the scopes of the job; None if they
        are unknown.
        """
        if entry.at_ms < self._at_ms or entry.event is Event.EPOCH_STARTED:
            self.forget()
            is_new = entry.data.get("reason") == "created" and not self._at_ms
            self._has_all = is_new and not self._may_be_restored
        self._at_ms = entry.at_ms
        match entry.event:
            case Event.CAP_CHANGED if is_breaker(entry.data["scope"]):
                self._change(entry.data["scope"], is_first=entry.data.get("old") is None)
            case Event.PAUSE_CHANGED if is_breaker(entry.data["scope"]):
                self._pause(entry.data["scope"], entry.data.get("until_ms"), entry.by)
            case Event.SCOPE_PAUSED:
                for event in entry.jobs:
                    scope = event.fields["scope"]
                    if is_breaker(scope):
                        self._pause(scope, event.fields["until_ms"], None)
            case Event.CLAIMED:
                for event in entry.jobs:
                    self._begin(event)
            case ended if ended in CLAIM_ENDS:
                for each in entry.jobs:
                    self._end(entry.event, each, lane_scopes(each.job_id))

    def _change(self, name: str, *, is_first: bool) -> None:
        for scope in [s for s in self._known if name in (s, family_of(s))]:
            del self._known[scope]
        if not is_first or "=" in name:
            self._unknown.add(name)

    def _pause(self, scope: str, until_ms: int | None, by: str | None) -> None:
        before = self.of(scope) or LoggedScope(is_sure=False)
        if until_ms is None:
            self._open(scope)
        elif until_ms > (before.until_ms or 0):
            self._known[scope] = LoggedScope(until_ms, by, before.probe, is_sure=before.is_sure)

    def _open(self, scope: str) -> None:
        if self._may_be_restored:
            self._known.pop(scope, None)
        else:
            self._known[scope] = LoggedScope()

    def _begin(self, event: JobEvent) -> None:
        for scope, *limit in event.fields.get("scopes") or ():
            if len(limit) < 3 or not is_breaker(scope):
                continue
            stands = self._known.get(scope)
            if stands is not None and stands.until_ms is not None:
                stands.probe, stands.is_sure = event.job_id, True
                if self._at_ms >= stands.until_ms + KEPT_MS:
                    # Redis may have forgotten the pause.
                    self._known.pop(scope)
                    self._unknown.add(scope)

    def _end(self, how: Event, event: JobEvent, lane: Iterable[str] | None) -> None:
        failed = how in _FAILURES and not str(event.fields.get("reason")).startswith(_GIVEN_UP)
        if lane is None and failed:
            # The job may have failed in any open scope.
            self._known = {s: k for s, k in self._known.items() if k.until_ms is not None}
            self._has_all = False
        if how is Event.SUCCEEDED:
            unsure = [s for s, k in self._known.items() if not k.is_sure]
            for scope in unsure if lane is None else set(unsure).intersection(lane):
                del self._known[scope]
        named = () if lane is None else filter(is_breaker, lane)
        for scope in {*named, *(s for s, k in self._known.items() if k.probe == event.job_id)}:
            stands = self.of(scope)
            if stands is None:
                continue
            if stands.until_ms is None:
                if failed and family_of(scope) not in _excepted(event):
                    stands.failed.append(self._at_ms)
                    self._known[scope] = stands
            elif stands.probe == event.job_id:
                stands.probe = None
                if how is Event.SUCCEEDED and stands.until_ms <= self._at_ms:
                    self._open(scope)


def _excepted(event: JobEvent) -> list[str]:
    error: Any = event.fields.get("error")
    said = error.get("excepted") if isinstance(error, dict) else None
    return said.split() if isinstance(said, str) else []
