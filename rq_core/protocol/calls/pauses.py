"""The calls by which an operator pauses and resumes scopes that have a rate or a breaker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from rq_core import errors
from rq_core.model.keys import check_name
from rq_core.model.limits.limit import FOREVER_MS
from rq_core.model.limits.scopes import is_rate, is_scope
from rq_core.protocol.calls.admin import check_why
from rq_core.protocol.engine.delivery import Delivery
from rq_core.protocol.engine.plan import Call, Plan

MUST: Final = "must be one scope of a rate or a breaker, as `rq-core caps` lists it: FAMILY=VALUE"


class PauseChange(NamedTuple):
    """The outcome of a call that pauses or resumes a scope."""

    outcome: str
    """``paused``; ``kept``: a pause that ends later is in force; ``resumed``; ``open``: no pause was in force."""
    until_ms: int | None
    """Unix ms at which the pause in force ends; None: no pause is in force."""


class Pauses:
    """The calls that pause and resume scopes."""

    def __init__(self, delivery: Delivery) -> None:
        self._delivery = delivery

    def pause(
        self,
        queue: str,
        scope: str,
        *,
        for_ms: int | None = None,
        by: str | None = None,
        why: str = "",
    ) -> Plan[PauseChange]:
        """Pause a scope for ``for_ms`` milliseconds (at least 1); None: until an operator resumes the scope. Running
        jobs continue.

        If a pause that ends later is in force, that pause stays as it is. Raises InvalidOption if the text is not a
        scope of a rate or a breaker, or if that rate or breaker has no limit.
        """
        most = FOREVER_MS if for_ms is None else for_ms
        if type(most) is not int or not 1 <= most <= FOREVER_MS:
            raise errors.InvalidOption.of("for_ms", for_ms, f"must be from 1 to {FOREVER_MS:,}")
        return (yield from self._change(queue, scope, most, by, why))

    def resume(
        self, queue: str, scope: str, *, by: str | None = None, why: str = ""
    ) -> Plan[PauseChange]:
        """End any pause of a scope. Jobs of the scope may then begin at once, unless its rate is used up.

        The use of a rate is not reset: what jobs have taken from the rate before the pause still counts.

        Raises InvalidOption, as :meth:`pause` does.
        """
        return (yield from self._change(queue, scope, 0, by, why))

    def _change(
        self, queue: str, scope: str, ms: int, by: str | None, why: str
    ) -> Plan[PauseChange]:
        check_name("queue", queue)
        given: object = scope
        if not (isinstance(given, str) and is_scope(given) and is_rate(given) and "=" in given):
            raise errors.InvalidOption.of("scope", scope, MUST)
        args = {"by": check_name("actor", by or self._delivery.name), "why": check_why(why)}
        call = Call("pause", queue, args, _parse, ((scope, ms),))
        changes = yield from self._delivery.call(call)
        change: PauseChange = changes[scope]
        if change.outcome == "unlimited":
            must = (
                f"must have a rate or a breaker with a limit in queue {queue!r}: `rq-core caps {queue}` lists them;"
                f" `rq-core cap {queue} SCOPE 0` stops any scope"
            )
            raise errors.InvalidOption.of("scope", scope, must)
        return change


def _parse(reply: Sequence[Any]) -> dict[str, PauseChange]:
    return {
        reply[at]: PauseChange(reply[at + 1], int(reply[at + 2]) or None)
        for at in range(0, len(reply), 3)
    }
