"""Sends signals to durable jobs."""

from __future__ import annotations

from collections.abc import Sequence

from rq_core.model.keys import check_name
from rq_core.protocol.calls.admin import check_why
from rq_core.protocol.calls.boxes import BATCH_MAX, Sending, Sent, look_again, send_signals
from rq_core.protocol.engine.delivery import Delivery
from rq_core.protocol.engine.plan import Plan


class Mail:
    """The calls that send signals, and that wake parked jobs whose awaited signal has arrived."""

    def __init__(self, delivery: Delivery) -> None:
        self._delivery = delivery

    def signal(
        self,
        queue: str,
        record: Sending,
        *,
        by: str | None = None,
        why: str = "",
        value_max: int = 0,
    ) -> Plan[Sent]:
        """Send a signal. Returns its outcome. The log stores a signal's value only if the value has at most
        ``value_max`` bytes."""
        actor = check_name("actor", by or self._delivery.name)
        call = send_signals(queue, [record], by=actor, why=check_why(why), value_max=value_max)
        (found,) = yield from self._delivery.call(call)
        return found

    def look_again(self, queue: str, ids: Sequence[str], *, by: str, why: str) -> Plan[None]:
        """Check again whether jobs have received the signals for which they wait. A parked job whose awaited signal has
        arrived becomes ready.
        """
        for begin in range(0, len(ids), BATCH_MAX):
            chunk = ids[begin : begin + BATCH_MAX]
            yield from self._delivery.call(look_again(queue, chunk, by=by, why=why))
