"""The state lines of many jobs, without their arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rq_core.model.job import JobError, error_of
from rq_core.model.keys import QueueKeys
from rq_core.model.state_line import (
    LINE_MAX,
    TOO_LONG,
    JobState,
    line_of_job,
    read_state_lines,
)
from rq_core.protocol.delivery import Delivery
from rq_core.protocol.plan import Plan
from rq_core.protocol.steps import Steps, run

PAGE: Final = 500
"""Jobs in one question: a server looks at so many values of ``jobs`` in about a millisecond."""

LONG: Final = 4096
"""Bytes of a value in ``jobs``, from which its job has a line in ``state`` for sure."""

_LINES: Final = f"""local found, count = {{}}, #ARGV
for i, id in ipairs(ARGV) do
  local long = redis.call('HSTRLEN', KEYS[1], id)
  local line = long > {LINE_MAX} and '{TOO_LONG}' .. long or long > 0 and redis.call('HGET', KEYS[1], id)
  local value = not line and redis.call('HSTRLEN', KEYS[2], id) < {LONG} and redis.call('HGET', KEYS[2], id)
  found[i] = line
  found[count + i] = value and value:match('^[^\\n{{]*')
end
return found"""
"""Lines of jobs in `state`, and for those without one what stands before the JSON in `jobs`; but nothing long: Redis
can only read a field as a whole."""


_ERRORS: Final = """local found = {}
for i, id in ipairs(ARGV) do
  local value = redis.call('HGET', KEYS[1], id)
  local ends = value and value:sub(1, 6) == 'error=' and value:find('\\n', 1, true)
  found[i] = ends and value:sub(1, ends) or false
end
return found"""
"""The errors that jobs died of, as :func:`rq_core.model.job.error_of` reads them."""
_ERRORS_PAGE: Final = 20
"""Jobs in one question for errors: each of their values is read as a whole, and other clients wait meanwhile."""


def lines_of(keys: QueueKeys, ids: Sequence[str]) -> Steps[list[str | None]]:
    """Read the state lines of any number of jobs, in order; None for a job that Redis does not have."""
    lines: list[str | None] = []
    for at in range(0, len(ids), PAGE):
        page = ids[at : at + PAGE]
        (found,) = yield [["EVAL_RO", _LINES, 2, keys("state"), keys("jobs"), *page]]
        lines += map(line_of_job, found[: len(page)], found[len(page) :])
    return lines


def jobs_of(keys: QueueKeys, ids: Sequence[str]) -> Steps[tuple[list[JobState], list[str]]]:
    """Read how those of some jobs stand that Redis has, and why others cannot be read."""
    lines = yield from lines_of(keys, ids)
    return read_state_lines(keys.queue, zip(ids, lines, strict=True))


def errors_of(keys: QueueKeys, ids: Sequence[str]) -> Steps[list[JobError | None]]:
    """Read what each of these jobs died of; None for no error."""
    pages = [ids[at : at + _ERRORS_PAGE] for at in range(0, len(ids), _ERRORS_PAGE)]
    found = yield [["EVAL_RO", _ERRORS, 1, keys("jobs"), *page] for page in pages]
    return [None if head is None else error_of(head) for heads in found for head in heads]


def read_lines(delivery: Delivery, keys: QueueKeys, ids: Sequence[str]) -> Plan[list[str | None]]:
    """Read the state lines of any number of jobs, in order; None for a job that Redis does not have."""
    return run(delivery, keys.queue, lines_of(keys, ids))
