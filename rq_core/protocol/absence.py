"""Whether there is a queue at all, for calls that change what is there: an unknown queue is not made by them.

A queue is made by what gives it something: jobs, a worker, settings. To cancel, edit, requeue or prune jobs of a queue
that nobody has made, or that was deleted since, finds nothing, and leaves nothing behind.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rq_core.model.keys import queue_keys

if TYPE_CHECKING:
    from rq_core.protocol.delivery import Delivery
    from rq_core.protocol.plan import Call, Plan


def is_absent(delivery: Delivery, call: Call[Any]) -> Plan[bool]:
    """Whether a call finds nothing, since Redis has neither its queue nor any of its jobs, which may outlive a `meta`
    that is lost. A call that makes its queue finds that."""
    if call.absent is None:
        return False
    keys = queue_keys(call.queue, delivery.prefix)
    asked: list[list[Any]] = [["HGET", keys("meta"), "epoch"]]
    asked += [["HGET", keys("jobs"), job_id] for job_id in call.ids]
    found = yield from delivery.ask(asked, call.queue)
    return all(each is None for each in found)
