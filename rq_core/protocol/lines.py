"""The state lines of many jobs, without their arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from rq_core.model.keys import QueueKeys
from rq_core.model.state_line import line_of_job
from rq_core.protocol.delivery import Delivery
from rq_core.protocol.plan import Plan

_PAGE: Final = 500
"""Jobs in one question: a server looks at so many values of ``jobs`` in about a millisecond."""

_FIRST_LINES: Final = """local found = {}
for i, id in ipairs(ARGV) do
  local value = redis.call('HGET', KEYS[1], id)
  found[i] = value and value:match('^[^\\n{]*')
end
return found"""
"""What stands before the JSON in fields of a hash: Redis has no command that reads the beginning of a field."""


def read_lines(delivery: Delivery, keys: QueueKeys, ids: Sequence[str]) -> Plan[list[str | None]]:
    """Read the state lines of jobs, in order; None for a job that Redis does not have."""
    lines: list[str | None] = []
    for at in range(0, len(ids), _PAGE):
        lines += yield from _read_page(delivery, keys, ids[at : at + _PAGE])
    return lines


def _read_page(delivery: Delivery, keys: QueueKeys, ids: Sequence[str]) -> Plan[list[str | None]]:
    (lines,) = yield from delivery.ask([["HMGET", keys("state"), *ids]], keys.queue)
    absent = [job_id for job_id, line in zip(ids, lines, strict=True) if line is None]
    if not absent:
        return list(lines)
    ask: list[Any] = ["EVAL", _FIRST_LINES, 1, keys("jobs"), *absent]
    (heads,) = yield from delivery.ask([ask], keys.queue)
    values = iter(heads)
    return [line if line is not None else line_of_job(None, next(values)) for line in lines]
