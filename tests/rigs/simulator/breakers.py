"""Breakers in a simulation: jobs of hosts that fail, handlers and an operator who pause scopes, and the naive judge of
the log."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from rq_core.errors import InvalidOption
from rq_core.model.events import Entry
from rq_core.model.job import NewJob
from rq_core.model.limits.scopes import lane_name, scopes_of
from rq_core.model.table.machine import Event
from rq_core.worker.settlement import Settlement

if TYPE_CHECKING:
    from rq_core.connections.client import Client

FAMILY: Final = "service@5s:failures"
WINDOW_MS: Final = 5_000
LIMITS: Final = ("1/5000ms/50", "2/5000ms/400", "3/5000ms/1500")
PAUSES_MS: Final = (50, 800, 4_000)
ERROR: Final = '{"type":"Busy","message":"no"}'
EXCEPTED: Final = f'{{"type":"Wrong","message":"no","excepted":"{FAMILY}"}}'
FAILURES: Final = (Event.RETRIED, Event.DIED)
ENDS: Final = (
    *FAILURES, Event.SUCCEEDED, Event.ROLLED_BACK, Event.PARKED, Event.LEASE_EXPIRED, Event.CANCELLED,
)  # fmt: skip


def add_breaker(job: NewJob, dice: random.Random) -> NewJob:
    """Give two of three jobs a breaker."""
    if dice.random() < 1 / 3:
        return job
    scopes = sorted([*scopes_of(job.lane), f"{FAMILY}={dice.choice('xy')}"])
    return job._replace(lane=lane_name(job.profile.rank, scopes))


def add_failure(settlement: Settlement, dice: random.Random) -> Settlement:
    """Let half of the handlers of jobs with the breaker fail, some by an excepted error; let some pause the scope."""
    scopes = [scope for scope in scopes_of(settlement.claim.lane or "") if FAMILY in scope]
    chance = dice.random()
    if not scopes or chance < 0.5:
        return settlement
    claim = settlement.claim
    if chance < 0.6:
        ms = dice.choice(PAUSES_MS)
        return Settlement(claim, "rollback", ms, "scope_paused", pauses=f"{scopes[0]}|{ms}")
    error = EXCEPTED if chance < 0.7 else ERROR
    return Settlement(claim, "retry", dice.choice((0, 300)), "error", error)


def act(client: Client, queue: str, dice: random.Random) -> None:
    """Change the limit, or pause or resume a scope, as an operator does."""
    scope = f"{FAMILY}={dice.choice('xy')}"
    chance = dice.random()
    if chance < 0.2:
        limit = dice.choice((*LIMITS, "none"))
        client.run(client.calls.caps.set(queue, [(FAMILY, limit, -1)]))
        return
    stored = client.run(client.calls.caps.stored(queue)).get(FAMILY)
    if stored is None or not stored.limit.window_ms:
        return  # The job has no breaker now.
    # A total loss between the read and the call takes the limit from Redis. The call is then refused.
    with suppress(InvalidOption):
        if chance < 0.6:
            for_ms = dice.choice(PAUSES_MS)
            client.run(client.calls.pauses.pause(queue, scope, for_ms=for_ms, by="ada"))
        else:
            client.run(client.calls.pauses.resume(queue, scope, by="ada"))


@dataclass
class Scope:
    """One scope. ``is_known`` is False after a change of its limit, a loss, or if the clock went back."""

    is_known: bool
    until_ms: int | None = None
    probe: str | None = None
    failed: list[int] = field(default_factory=list)
    is_sure: bool = True
    """False if the scope was unknown before its pause, so that an unknown job may be the probe."""


@dataclass
class Call:
    """A call that reports failures: its pauses, and its failures by scope."""

    at_ms: int
    by: str
    paused: dict[str, tuple[str, int]] = field(default_factory=dict)
    """By scope: the job, and Unix ms at which the pause ends."""
    failed: dict[str, list[str]] = field(default_factory=dict)
    """By scope: the jobs whose failures count."""


class Guards:
    """Judges claims and pauses by lists of failures. It shares no code with the breakers."""

    def __init__(self) -> None:
        self._scopes: dict[str, Scope] = {}
        self._jobs: dict[str, list[str]] = {}
        """The scopes of breakers of each job, by its lane."""
        self._limit: tuple[int, int] | None = None
        """Failures and cooldown; None: no breaker."""
        self._all_known = False
        self._at_ms = 0
        self._call: Call | None = None

    def add(self, entry: Entry) -> list[str]:
        """Add the next entry. Return a sentence for each claim, failure and pause that is wrong."""
        found = list(self._finish(entry))
        if entry.event is Event.EPOCH_STARTED or entry.at_ms < self._at_ms:
            self._scopes, self._call = {}, None
            self._all_known = entry.data.get("reason") == "created" and not self._at_ms
        self._at_ms = entry.at_ms
        match entry.event:
            case Event.CAP_CHANGED if entry.data["scope"] == FAMILY:
                self._change(entry.data["new"] or "none", is_first=entry.data.get("old") is None)
            case Event.PAUSE_CHANGED:
                self._pause(entry.data["scope"], entry.data.get("until_ms"))
            case Event.ENQUEUED | Event.RESTORED | Event.BASELINE:
                for event in entry.jobs:
                    lane = scopes_of(event.fields.get("lane") or "")
                    self._jobs[event.job_id] = [scope for scope in lane if FAMILY in scope]
            case Event.CLAIMED:
                for event in entry.jobs:
                    found += self._claim(event.job_id, event.fields)
            case Event.SCOPE_PAUSED:
                told = {e.fields["scope"]: (e.job_id, e.fields["until_ms"]) for e in entry.jobs}
                paused = {scope: each for scope, each in told.items() if FAMILY in scope}
                self._call = Call(entry.at_ms, entry.by, paused)
        if entry.event in ENDS:
            for event in entry.jobs:
                self._end(entry, event.job_id, event.fields)
        return found

    def _change(self, text: str, *, is_first: bool) -> None:
        most, _, rest = text.partition("/")
        self._limit = (int(most), int(rest.partition("/")[2])) if rest else None
        if not is_first:
            self._scopes, self._all_known = {}, False

    def _scope(self, name: str) -> Scope:
        return self._scopes.setdefault(name, Scope(self._all_known))

    def _pause(self, name: str, until_ms: int | None) -> None:
        scope = self._scope(name)
        if until_ms is None:
            self._scopes[name] = Scope(is_known=True)
        else:
            scope.is_sure = scope.is_sure and scope.is_known
            scope.until_ms, scope.failed = max(until_ms, scope.until_ms or 0), []
            scope.is_known = True

    def _claim(self, job_id: str, fields: Mapping[str, Any]) -> Iterator[str]:
        for name, *facts in fields["scopes"] or []:
            if FAMILY not in name or len(facts) < 3:
                continue
            scope = self._scope(name)
            if not scope.is_known or scope.until_ms is None:
                continue
            if self._at_ms < scope.until_ms:
                yield f"{job_id} was claimed in a pause of {name} until {scope.until_ms}"
            if scope.probe is not None:
                yield f"{job_id} was claimed while the probe {scope.probe} of {name} ran"
            scope.probe, scope.is_sure = job_id, True

    def _end(self, entry: Entry, job_id: str, fields: Mapping[str, Any]) -> None:
        error, event = fields.get("error") or {}, entry.event
        failed = event in FAILURES and not str(fields.get("reason")).startswith("unknown_")
        counts = failed and FAMILY not in str(error.get("excepted", ""))
        for name in self._jobs.get(job_id, ()):
            scope = self._scope(name)
            if counts and self._limit:
                self._call = self._call or Call(entry.at_ms, entry.by)
                self._call.failed.setdefault(name, []).append(job_id)
            elif not scope.is_sure and event is Event.SUCCEEDED:
                self._scopes[name] = Scope(is_known=False)
            elif scope.probe == job_id:
                scope.probe = None
                if event is Event.SUCCEEDED and (scope.until_ms or 0) <= self._at_ms:
                    self._scopes[name] = Scope(scope.is_known)

    def _finish(self, entry: Entry) -> Iterator[str]:
        """Judge a call of failures when an entry of another call follows."""
        call = self._call
        if call is None or (
            entry.event in FAILURES and (entry.at_ms, entry.by) == (call.at_ms, call.by)
        ):
            return
        self._call = None
        for name in sorted({*call.paused, *call.failed}):
            yield from self._judge(name, call)

    def _judge(self, name: str, call: Call) -> Iterator[str]:
        scope, failed = self._scope(name), call.failed.get(name, [])
        by, until_ms = call.paused.get(name, ("", None))
        recent = [t for t in scope.failed if t > call.at_ms - WINDOW_MS] + [call.at_ms] * len(
            failed
        )
        by_failure = by in failed
        if scope.is_known and scope.is_sure and self._limit is not None:
            most, cooldown = self._limit
            probed = scope.probe is not None and scope.probe in failed
            must = probed if scope.until_ms is not None else bool(failed) and len(recent) >= most
            if must and until_ms is None:
                yield f"{name} had {len(recent)} failures, and was not paused"
            elif by_failure and not must:
                yield f"{by} paused {name} after {len(recent)} failures of {most}"
            elif by_failure and until_ms != max(call.at_ms + cooldown, scope.until_ms or 0):
                yield f"{by} paused {name} until {until_ms}, at {call.at_ms} for {cooldown} ms"
        if scope.probe in failed:
            scope.probe = None
        if until_ms is not None:
            self._pause(name, until_ms)
        elif scope.until_ms is None:
            scope.failed = recent

    def differences(self, rates: Mapping[str, str]) -> list[str]:
        """Return a sentence for each known scope whose pause in ``rates`` differs from the log."""
        found = []
        here = self._call or Call(0, "")
        for name, scope in self._scopes.items():
            if name in {*here.paused, *here.failed}:
                continue  # The call is not judged yet.
            has = f" until={scope.until_ms}" in rates.get(name, "")
            if scope.is_known and scope.until_ms is not None and self._limit and not has:
                found.append(f"{name} is paused until {scope.until_ms}: {rates.get(name)!r}")
            if scope.is_known and scope.until_ms is None and " until=" in rates.get(name, ""):
                found.append(f"{name} is open: {rates[name]!r}")
        return found
