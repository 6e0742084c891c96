"""Replays breakers, and checks two rules. A job begins only while its scope is not paused, or as the only probe of a
scope whose pause is over. And failures pause a scope exactly when its limit says so.

A breaker pauses a scope, such as the jobs of one tenant, when the service behind the jobs fails too often. The success
of one job, the probe, opens the scope again.

The log has each failure. If a failure pauses a scope, the event ``scope_paused`` comes before the event of the failure.
So the state of each scope follows from the events of its jobs.

The state of a scope may be unknown: after a gap, in a pruned or restored log, or if the clock went back. It is known
again when the log shows the scope's pause or the end of this pause, or when a job that was claimed in the meantime
succeeds or fails. This module does no I/O.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from rq_core.model.limits.breakers import FAILED_MAX, KEPT_MS
from rq_core.model.limits.limit import PAUSE_MAX_MS, Limit
from rq_core.model.limits.scopes import family_of
from rq_core.model.table.machine import Event
from sql_audit.store.job_rows import EventRow

KNOWN_MAX: Final = 100_000
"""Maximum number of scopes whose failures the replay keeps in memory."""

_GIVEN_UP: Final = "unknown_"
"""The prefix of the reasons for which a job dies although its handler has not failed, such as ``unknown_task``."""
_FAILURES: Final = (Event.RETRIED, Event.DIED)


@dataclass(slots=True)
class Pausing:
    """A ``scope_paused`` event that cannot be judged before all events of its call to Redis are read. It has the
    event's fields, and the scope's state before the event.
    """

    scope: str
    until_ms: int
    record: object
    """The record of the job that paused the scope."""
    row: EventRow
    was_known: bool
    """True if the scope's state before the event was known."""
    before_ms: int | None
    """Unix ms at which a pause ends that was in force before the event; None if the scope was not paused."""
    is_probe: bool
    failed: list[int]
    """Times of the scope's failures (Unix ms), those of this call included."""
    since_ms: int
    """All failures of the scope from this time on are known (Unix ms)."""
    limit: Limit | None = None
    """The scope's limit, set when the replay comes to the failure that paused the scope. None: no failure paused it,
    but the job's handler did."""


class Breakers:
    """The state of each breaker's scope at one moment of the replay. A scope is what the breaker pauses, such as the
    jobs of one tenant. It is open if its state is known and it has no pause.
    """

    def __init__(self) -> None:
        self.until: dict[str, int] = {}
        """By scope: Unix ms at which its pause ends. Afterwards one job may begin as the probe. A scope is removed when
        its probe succeeds or an operator resumes it."""
        self.probes: dict[str, object] = {}
        """By scope whose pause is over: the job that runs as its probe. The probe's success opens the scope."""
        self.failed: dict[str, list[int]] = {}
        """By open scope: the times of its failures (Unix ms)."""
        self.pausing: list[Pausing] = []
        """The pauses in the current call to Redis. They are judged when all events of the call are read."""
        self.handled: dict[object, str] = {}
        """By job: the scope that its handler has paused under the claim in force."""
        self.limits: dict[str, Limit] = {}
        """By scope: the limit that its last claim named, to be used if the log does not show the limit in force."""
        self._since: dict[str, int] = {}
        """By scope: the time (Unix ms) from which on all its failures are known."""
        self._unknown: set[str] = set()
        self._unsure: set[str] = set()
        """Paused scopes whose state before the pause was unknown. A job that the log does not show may be their
        probe."""
        self._witnesses: dict[str, object] = {}
        """By scope with an unknown state: the last job that was claimed in it. When this job succeeds or fails, the
        scope's state is known."""
        self.forget()

    def forget(self, *, is_new: bool = False) -> None:
        """Forget the states of all scopes, because the log does not show what happened. ``is_new`` is True if the
        queue is new, so that no scope has failed yet.
        """
        for states in self._states():
            states.clear()
        self.limits.clear()
        self.handled.clear()
        self.pausing.clear()
        self._unknown.clear()
        self._unsure.clear()
        self._all_known = is_new
        self._doubt_ms = 0

    def doubt(self, at_ms: int) -> None:
        """Note that any scope may have had a failure that the log does not show."""
        self._doubt_ms = at_ms

    def begin(
        self, scopes: tuple[tuple[str, Limit], ...], record: object, at_ms: int
    ) -> Iterator[str]:
        """Apply a claim to the breakers ``scopes``. Yield a sentence for each breaker that should not have let the job
        begin.
        """
        for scope, limit in scopes:
            if not self._all_known:
                self.limits[scope] = limit
            until_ms = self.until.get(scope)
            if until_ms is not None and at_ms >= until_ms + KEPT_MS:
                self._lose(scope)  # Redis may have forgotten the pause.
                until_ms = None
            if until_ms is None:
                if not self._is_known(scope):
                    self._witnesses[scope] = record
                continue
            if at_ms < until_ms:
                yield f"claimed {until_ms - at_ms} ms before the pause of {scope} ends"
            if scope in self.probes:
                yield f"claimed while the probe of {scope} runs"
            self.probes[scope] = record
            self._unsure.discard(scope)

    def open(self, scope: str, since_ms: int = 0) -> None:
        """Open a scope, because an operator resumed it or its probe succeeded. All its jobs may begin again.

        All failures of the scope from ``since_ms`` (Unix ms) on are known.
        """
        self._lose(scope)
        self._unknown.discard(scope)
        if since_ms or not self._all_known:
            self._since[scope] = since_ms
            self._bound(since_ms)

    def pause(
        self, scope: str, until_ms: int, record: object | None = None, row: EventRow = ()
    ) -> bool:
        """Pause a scope until ``until_ms`` (Unix ms). Return False if a pause that is already in force ends later.

        ``record`` is the job that paused the scope; None: an operator paused it. ``row`` is the event.
        """
        before_ms = self.until.get(scope)
        if record is not None:
            failed, is_probe = list(self.failed.get(scope, ())), self.probes.get(scope) is record
            was_known = before_ms is not None or self._is_known(scope)
            is_probe = is_probe or scope in self._unsure
            said = (was_known, before_ms, is_probe, failed, self._since.get(scope, 0))
            self.pausing.append(Pausing(scope, until_ms, record, row, *said))
        probe = self.probes.get(scope)
        is_unsure = scope in self._unsure or (before_ms is None and not self._is_known(scope))
        self.open(scope)
        if is_unsure:
            self._unsure.add(scope)
        self.until[scope] = max(before_ms or 0, until_ms)
        if probe is not None:
            self.probes[scope] = probe
        return until_ms >= (before_ms or 0)

    def succeed(
        self, scopes: tuple[tuple[str, Limit], ...], record: object, at_ms: int
    ) -> Iterator[str]:
        """Apply the success of a job. If the job is a probe whose scope has no pause in force, the scope opens.

        Yield a sentence if the job's handler has paused a scope: the handler should then have given the job back.
        """
        # Without the job's claim, any unsure scope may be its own.
        for scope in [s for s, _ in scopes] or [*self._unsure]:
            if scope in self._unsure and self.until.get(scope, 0) <= at_ms:
                self._lose(scope)
            elif self.probes.get(scope) is record and self.until.get(scope, 0) <= at_ms:
                self.open(scope)
            elif self._witnesses.get(scope) is record:
                self.open(scope, at_ms)
        yield from self.end(record, "succeeds")

    def fail(
        self,
        scopes: Mapping[str, Limit | None],
        record: object,
        facts: Mapping[str, Any],
        at_ms: int,
    ) -> Iterator[str]:
        """Apply the failure of a job. Yield a sentence for each scope that the failure pauses although it must not, or
        does not pause although it must.

        ``scopes`` has the job's breakers with their limits in force; a limit of None is unknown. ``facts`` are the
        event's fields.
        """
        if str(facts.get("reason", "")).startswith(_GIVEN_UP):
            return
        excepted = _excepted(facts.get("error"))
        for scope, limit in scopes.items():
            is_excepted = family_of(scope) in excepted
            pausing = self._pausing_of(scope, record)
            if limit is None:
                if scope not in self.until:
                    self._lose(scope)
            elif not limit.most or limit.window_ms is None:
                continue
            elif pausing is not None:
                pausing.limit = limit
                yield from _wrong_pause(pausing, limit, at_ms, is_excepted=is_excepted)
            if pausing is not None or is_excepted or limit is None:
                continue
            for other in self.pausing:
                if other.scope == scope:
                    other.failed.append(at_ms)
            if self.probes.get(scope) is record:
                yield f"is the failure of the probe of {scope}, and does not pause it"
            elif scope not in self.until:
                yield from self._count(scope, limit, record, at_ms)
        yield from self.end(record, "fails")

    def _count(self, scope: str, limit: Limit, record: object, at_ms: int) -> Iterator[str]:
        """Count a failure in an open scope. Yield a sentence if the failure should have paused the scope."""
        if not self._is_known(scope):
            if self._witnesses.get(scope) is not record:
                return
            self.open(scope, at_ms)
        since_ms = at_ms - (limit.window_ms or 0)
        times = [t for t in self.failed.get(scope, ()) if t > since_ms]
        times.append(at_ms)
        self.failed[scope] = times
        self._bound(at_ms)
        if len(times) >= min(limit.most or 0, FAILED_MAX):
            yield f"is failure {len(times)} in {scope}, which allows {limit.most}, and does not pause it"
            self.pause(scope, at_ms)

    def end(self, record: object, how: str) -> Iterator[str]:
        """Yield a sentence if the job's handler has paused a scope under this claim, since such a handler must give its
        job back.

        ``how`` says how the claim ended instead, such as ``succeeds``.
        """
        if self.handled and (scope := self.handled.pop(record, None)) is not None:
            yield f"{how}, and its claim paused {scope}: a handler that pauses a scope gives its job back"

    def finish_call(self, row: EventRow) -> Iterator[tuple[EventRow, str]]:
        """Judge the pauses of the last call to Redis, if all its events are read. ``row`` is the first row of the next
        entry: it may still belong to the call.

        Yield a row and a sentence for each pause that began after too few failures, and for each pause that a handler
        made too long.
        """
        first = self.pausing[0].row
        if row[4] in _FAILURES and (row[5], row[8]) == (first[5], first[8]):
            return
        for pausing in self.pausing:
            at_ms, limit = pausing.row[5], pausing.limit
            if limit is None:
                self.handled[pausing.record] = pausing.scope
                if pausing.until_ms > max(at_ms + PAUSE_MAX_MS, pausing.before_ms or 0):
                    says = f"pauses {pausing.scope} for longer than a day, and no operator did"
                    yield pausing.row, says
                continue
            after_ms = at_ms - (limit.window_ms or 0)
            failures = sum(t > after_ms for t in pausing.failed)
            if (
                pausing.was_known
                and pausing.before_ms is None
                and max(pausing.since_ms, self._doubt_ms) <= after_ms
                and failures < min(limit.most or 0, FAILED_MAX)
            ):
                says = f"pauses {pausing.scope} at failure {failures}, and it allows {limit.most}"
                yield pausing.row, says
        self.pausing.clear()

    def release(self, scopes: tuple[tuple[str, Limit], ...], record: object) -> None:
        """Apply the end of a claim. If the job was a scope's probe and has not opened the scope, the next job that
        begins in the scope becomes the probe.
        """
        for scope, _ in scopes:
            for states in (self.probes, self._witnesses):
                if states.get(scope) is record:
                    del states[scope]
        self.handled.pop(record, None)

    def change(self, name: str, old: str | None, new: str | None, at_ms: int) -> None:
        """Apply a change of the limit of a scope, or of a family (all scopes of one key, such as ``tenant``)."""
        before, now = (_read(limit) for limit in (old, new))
        states = (*self._states(), self.limits)
        for scope in {s for each in states for s in each if name in (s, family_of(s))}:
            self.limits.pop(scope, None)
            if before is None or now is None:
                self._lose(scope)
            elif before.window_ms == now.window_ms or scope in self.until:
                continue
            elif self._is_known(scope):
                # Redis may have dropped failures that the new window would count.
                self.open(scope, at_ms)

    def _is_known(self, scope: str) -> bool:
        return scope not in self._unknown and (self._all_known or scope in self._since)

    def _states(self) -> tuple[dict[str, Any], ...]:
        return self.until, self.probes, self.failed, self._since, self._witnesses

    def _lose(self, scope: str) -> None:
        for states in self._states():
            states.pop(scope, None)
        self._unsure.discard(scope)
        if self._all_known:
            self._unknown.add(scope)

    def _pausing_of(self, scope: str, record: object) -> Pausing | None:
        found = (p for p in self.pausing if p.scope == scope and p.record is record)
        return next(found, None)

    def _bound(self, at_ms: int) -> None:
        """Limit the memory: forget the failures of all scopes if there are more than KNOWN_MAX scopes."""
        if len(self.failed) > KNOWN_MAX or len(self._since) > KNOWN_MAX:
            self.failed.clear()
            self._since.clear()
            self.doubt(at_ms)


def _wrong_pause(pausing: Pausing, limit: Limit, at_ms: int, *, is_excepted: bool) -> Iterator[str]:
    """Yield a sentence for each fault of a pause that a job's failure began."""
    scope = pausing.scope
    if is_excepted:
        yield f"pauses {scope} by an error that its breaker does not count"
    else:
        pausing.failed.append(at_ms)
    if pausing.before_ms is not None and not pausing.is_probe:
        yield f"is paused already: {scope}, and the failure of another job than its probe pauses it"
    least_ms = max(pausing.before_ms or 0, at_ms + limit.burst)
    if pausing.until_ms < least_ms or (pausing.was_known and pausing.until_ms > least_ms):
        yield f"pauses {scope} for {pausing.until_ms - at_ms} ms, and must for {least_ms - at_ms}"


def _read(limit: str | None) -> Limit | None:
    """Parse the text of a breaker's limit. Return None if the text is missing or is not the limit of a breaker."""
    read = None if limit is None else Limit.parse(limit)
    return read if read is not None and read.most and read.window_ms else None


def _excepted(error: Any) -> list[str]:
    """Return the families of scopes whose breakers do not count this error, from its field ``excepted``."""
    said = error.get("excepted") if isinstance(error, dict) else None
    return said.split() if isinstance(said, str) else []
