"""Whether there is a queue at all, for calls that change what is there: an unknown queue is not made by them.

A queue is made by what gives it something: jobs, a worker, settings. To cancel, edit, requeue or prune jobs of a queue
that was never made, or that was deleted since, finds nothing, and leaves nothing behind.
"""

from __future__ import annotations

from typing import Any

from rq_core.model.keys import queue_keys
from rq_core.protocol.plan import Call


def look_for(call: Call[Any], prefix: str) -> list[list[Any]]:
    """What to ask Redis to learn whether a call finds anything: the queue, or one of the call's jobs, which may outlive
    a `meta` that is lost. If all answers are None, there is nothing."""
    keys = queue_keys(call.queue, prefix)
    jobs = [["HGET", keys("jobs"), job_id] for job_id in call.ids]
    return [["HGET", keys("meta"), "epoch"], *jobs]
