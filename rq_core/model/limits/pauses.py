"""Phrases about the cause of a scope's pause, from the audit log: an operator, a handler, or a breaker's failures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from rq_core.model.lib.text import counted

if TYPE_CHECKING:
    from rq_core.model.limits.use import ScopeUse

NAMED_MAX: Final = 3
"""Maximum number of types of errors that a phrase about a pause names."""

Pause = Mapping[str, Any]
"""A document about one pause, in the form that AuditQuestions.pauses returns."""


def pause_of(use: ScopeUse, pause: Pause | None) -> Pause | None:
    """Return ``pause``, the log's last pause of a scope, if the pause is in force or the scope is probing after it.

    Otherwise return None: the scope is open, the log has no pause, or the log has only an earlier pause, because the
    mirror is behind.
    """
    if pause is None or use.standing == "open" or pause["resumed_at_ms"] is not None:
        return None
    return pause if pause["until_ms"] == use.until_ms else None


def cause_says(pause: Pause) -> str:
    """Return a phrase for the operator, handler or failures that paused a scope, such as *by 2 failures: OSError, the
    last of job a*. The phrase names the most frequent types of errors first."""
    if pause["cause"] == "operator":
        return f"by {pause['who']}" + (f": {pause['reason']}" if pause["reason"] else "")
    if pause["cause"] == "handler":
        return f"by the handler of job {pause['job_id']}"
    if pause["cause"] != "failures":
        return "by a claim that Redis has forgotten"
    found = pause["failures"]
    types = Counter(each["error_type"] or "?" for each in found).most_common()
    named = [f"{many} {kind}" if len(types) > 1 else kind for kind, many in types[:NAMED_MAX]]
    if rest := sum(many for _, many in types[NAMED_MAX:]):
        named.append(f"{rest} of other types")
    if found:
        last = f"of job {found[0]['job_id']}"
        named.append(f"the last {last}" if len(found) > 1 else last)
    said = ", ".join(named) if len(found) > 1 else " ".join(named)
    return f"by {counted(len(found), 'failure')}: {said}"


def resume_command(queue: str, scope: str) -> str:
    """Return the command by which an operator ends the pause of a scope."""
    return f"rq-core resume-scope {queue} {scope}"


def resume_says(queue: str, paused: Sequence[str]) -> str:
    """Return a sentence with the command that ends the pause of the first scope in ``paused``; empty without scopes."""
    if not paused:
        return ""
    which = "the pause" if len(paused) == 1 else "the first pause"
    return f"`{resume_command(queue, paused[0])}` ends {which}"
