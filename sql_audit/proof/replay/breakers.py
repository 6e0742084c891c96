"""Replays breakers: whether a job begins only while its scope is open, or alone as the probe of a pause that is over.

The log has each failure, and the event ``scope_paused`` before a failure that pauses a scope. What opens a scope is
the success of its probe. So the state of each scope follows from the events of its jobs. This module does no I/O.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from rq_core.model.limits.breakers import FAILED_MAX, KEPT_MS
from rq_core.model.limits.limit import Limit
from rq_core.model.limits.scopes import family_of

_GIVEN_UP: Final = "unknown_"
"""How the reasons of deaths begin that no handler caused."""


class Breakers:
    """The state of each breaker's scope at one moment of the replay. A scope without a pause is open."""

    def __init__(self) -> None:
        self.until: dict[str, int] = {}
        """Unix ms at which the pause of a scope ends. A scope stays here until a probe opens it."""
        self.probes: dict[str, object] = {}
        """The record of the job that is the probe of a scope."""
        self.failed: dict[str, list[int]] = {}
        """Unix ms of the failures in an open scope."""

    def forget(self) -> None:
        """Forget all states, because the log does not show what happened."""
        self.until.clear()
        self.probes.clear()
        self.failed.clear()

    def begin(
        self, scopes: tuple[tuple[str, Limit], ...], record: object, at_ms: int
    ) -> Iterator[str]:
        """Apply a claim to the breakers that it names, and yield a sentence for each that does not admit the job."""
        for scope, _ in scopes:
            until_ms = self.until.get(scope)
            if until_ms is None:
                continue
            if at_ms >= until_ms + KEPT_MS:
                self.open(scope)  # Redis may have forgotten the pause.
                continue
            if at_ms < until_ms:
                yield f"claimed {until_ms - at_ms} ms before the pause of {scope} ends"
            if scope in self.probes:
                yield f"claimed while the probe of {scope} runs"
            self.probes[scope] = record

    def open(self, scope: str) -> None:
        """Let all jobs of a scope begin: an operator resumed it, or its probe succeeded."""
        self.until.pop(scope, None)
        self.probes.pop(scope, None)
        self.failed.pop(scope, None)

    def pause(self, scope: str, until_ms: int, record: object | None = None) -> bool:
        """Pause a scope. Return False if an earlier pause ends later. A probe in ``record`` has said what it found."""
        before = self.until.get(scope, 0)
        self.until[scope] = max(before, until_ms)
        self.failed.pop(scope, None)
        if record is not None and self.probes.get(scope) is record:
            del self.probes[scope]
        return until_ms >= before

    def succeed(self, record: object, at_ms: int) -> None:
        """Apply the success of a job: that of a probe opens its scope, unless another pause has begun meanwhile."""
        for scope in [s for s, probe in self.probes.items() if probe is record]:
            if self.until.get(scope, 0) <= at_ms:
                self.open(scope)

    def fail(
        self, scopes: Mapping[str, Limit], record: object, facts: Mapping[str, Any], at_ms: int
    ) -> Iterator[str]:
        """Apply a failure, and yield a sentence for each scope that it must have paused and did not.

        ``scopes`` are the breakers of the job, with their limits in force. ``facts`` are those of the event.
        """
        if str(facts.get("reason", "")).startswith(_GIVEN_UP):
            return
        excepted = _excepted(facts.get("error"))
        for scope, limit in scopes.items():
            if family_of(scope) in excepted or not limit.most or limit.window_ms is None:
                continue
            if self.probes.get(scope) is record:
                yield f"is the failure of the probe of {scope}, and does not pause it"
            elif scope not in self.until:
                since_ms = at_ms - limit.window_ms
                times = [t for t in self.failed.get(scope, ()) if t > since_ms]
                times.append(at_ms)
                self.failed[scope] = times
                if len(times) >= min(limit.most, FAILED_MAX):
                    yield f"is failure {len(times)} in {scope}, which allows {limit.most}, and does not pause it"
                    self.pause(scope, at_ms)

    def release(self, record: object) -> None:
        """Apply the end of a claim: if it was a probe's, the next job of the scope is the probe."""
        for scope in [s for s, probe in self.probes.items() if probe is record]:
            del self.probes[scope]


def _excepted(error: Any) -> list[str]:
    """Return the families that an error names as those of breakers that do not count it."""
    said = error.get("excepted") if isinstance(error, dict) else None
    return said.split() if isinstance(said, str) else []
