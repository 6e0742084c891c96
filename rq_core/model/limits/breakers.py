"""Breakers: scopes that pause when a service fails, and their entries in the key ``rates``.

A breaker's limit is a Limit: ``most`` failures per ``window_ms``, and ``burst`` is the cooldown in ms.
``lua/include/caps/breakers.lua`` writes the entries.

    >>> read_breaker("1795226745504 until=1795226775504 probe=job-7")
    BreakerEntry(at_ms=1795226745504, until_ms=1795226775504, probe='job-7', failed=(), by=None)
"""

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple

from rq_core.errors import InvalidOption
from rq_core.model.limits.limit import PAUSE_MAX_MS, Limit
from rq_core.model.limits.scopes import unit_of

FAILURES: Final = "failures"
"""The unit in the names of breakers' scopes. A rate with costs must not have this unit."""
FAILED_MAX: Final = 1_000
"""The greatest number of failures that a breaker's limit may have; ``lua/include/caps/breakers.lua`` has the same
number."""
LOOK_MS: Final = 5_000
"""Ms after which a worker's claim checks again whether the probe of a scope (the one job that may run after a pause)
still runs."""
KEPT_MS: Final = 86_400_000
"""Ms for which a scope waits after its pause for a successful job (a probe). Then the scope is open again."""


class BreakerEntry(NamedTuple):
    """The entry of a breaker's scope in the key ``rates``. A scope without an entry is open."""

    at_ms: int
    """Unix ms at which the entry was written."""
    until_ms: int | None = None
    """Unix ms until which the scope is paused; None: the scope is open."""
    probe: str | None = None
    """The id of the probe, the one job that may run after the pause; None: no job is the probe now."""
    failed: tuple[int, ...] = ()
    """Times of the failures in an open scope (Unix ms); empty for a paused scope."""
    by: str | None = None
    """The operator who paused the scope. None: failures or a handler paused the scope, or the scope is open."""

    def expires_ms(self, limit: Limit) -> int:
        """Return the time (Unix ms) from which on the entry may be removed."""
        if self.until_ms is None:
            return self.at_ms + (limit.window_ms or 0)
        return max(self.until_ms, self.at_ms) + KEPT_MS

    def standing(self, now_ms: int) -> str:
        """Return the scope's state at ``now_ms`` (Unix ms): ``open``, ``paused`` or ``probing``.

        From the end of its pause until a job succeeds or fails, a scope is probing: only one job at a time may begin.
        """
        if self.until_ms is None:
            return "open"
        return "paused" if self.until_ms > now_ms else "probing"

    def __str__(self) -> str:
        if self.until_ms is None:
            return f"{self.at_ms} failed={','.join(map(str, self.failed))}"
        probe = f" probe={self.probe}" if self.probe else ""
        by = f" by={self.by}" if self.by else ""
        return f"{self.at_ms} until={self.until_ms}{probe}{by}"


_ENTRY: Final = re.compile(
    r"(\d{1,15}) (?:failed=(\d{1,15}(?:,\d{1,15})*)|until=(\d{1,16})(?: probe=(\S+))?(?: by=(\S{1,128}))?)"
)


def is_breaker(scope: str) -> bool:
    """Return whether a scope, or a family of scopes, belongs to a breaker, which pauses the scope after too many
    failures.
    """
    return unit_of(scope) == FAILURES


def check_breaker(failures: Any, cooldown_ms: float, *, names: tuple[str, str]) -> None:
    """Raise InvalidOption if a breaker must not have this limit. ``names`` are the options that the error names: the
    option for the failures and the option for the cooldown.

    The bounds are the same for code that declares a breaker and for an operator who changes its limit.
    """
    if type(failures) is not int or not 1 <= failures <= FAILED_MAX:
        must = f"must be a whole number from 1 to {FAILED_MAX:,}: failures that pause a scope"
        raise InvalidOption.of(names[0], failures, must)
    if not 1 <= cooldown_ms <= PAUSE_MAX_MS:
        must = f"must be from 0.001 to {PAUSE_MAX_MS // 1000:,} seconds, a day"
        raise InvalidOption.of(names[1], f"{cooldown_ms:,} ms", must)


def read_breaker(text: str) -> BreakerEntry | None:
    """Parse the entry of a breaker in the key ``rates``; None for any other text."""
    found = _ENTRY.fullmatch(text)
    if found is None:
        return None
    failed = tuple(map(int, found[2].split(","))) if found[2] else ()
    until_ms = None if found[3] is None else int(found[3])
    return BreakerEntry(int(found[1]), until_ms, found[4], failed, found[5])
