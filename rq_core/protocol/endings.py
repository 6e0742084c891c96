"""One look at jobs that are waited for: whether they are alive, and how those ended of which Redis knows that.

The look is one script that only reads, so what it finds was so at one moment.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from rq_core.model.job import error_of
from rq_core.model.keys import QueueKeys, queue_keys
from rq_core.model.outcome import Failed, Outcome
from rq_core.model.state_line import read_state_line
from rq_core.protocol.delivery import Delivery
from rq_core.protocol.plan import Plan

PAGE: Final = 250
"""Most jobs in one look, so that none keeps Redis from other clients for long."""

ALIVE: Final = ""
"""What the script answers for a job that has not ended."""
_KEYS: Final = ("meta", "state", "jobs", "outbox")
_LOOK: Final = f"""local found, absent = {{}}, false
for i, id in ipairs(ARGV) do
  local line = redis.call('HGET', KEYS[2], id)
  if line and line:sub(1, 5) == 'dead ' then
    local value = redis.call('HGET', KEYS[3], id)
    local ends = value and value:sub(1, 6) == 'error=' and value:find('\\n', 1, true)
    found[i] = line .. '\\n' .. (ends and value:sub(1, ends) or '')
  elseif line or redis.call('HEXISTS', KEYS[3], id) == 1 then
    found[i] = '{ALIVE}'
  else
    found[i], absent = false, true
  end
end
if absent and redis.call('HGET', KEYS[1], 'audit') == 'on' then
  local last = redis.call('XREVRANGE', KEYS[4], '+', '-', 'COUNT', 1)[1]
  return {{found, last and last[1] or ''}}
end
return {{found, ''}}"""
"""Answers with a text for each id: empty for a job that is alive, the state line and then the error of a dead one, nil
for a job that Redis does not have; and the id of the outbox's last entry, if a mirror reads it and jobs are missing."""


class Absent(NamedTuple):
    """Redis does not have the job, and does not say how it ended."""

    logged: tuple[int, int] | None
    """The epoch and number of the outbox's last entry at that moment: the job's end is there or before. None: no mirror
    reads the outbox, or there is none."""


Found = Outcome[Any] | Absent
"""What a look finds of a job that is not alive."""


class Endings:
    """The looks of a client."""

    def __init__(self, delivery: Delivery) -> None:
        self._delivery = delivery

    def look(self, queue: str, ids: Sequence[str]) -> Plan[dict[str, Found]]:
        """What is known of the jobs among these that are not alive, by id. A dead job has ended.

        Raises what every read does, and QueueDamaged.
        """
        keys = queue_keys(queue, self._delivery.prefix)
        found: dict[str, Found] = {}
        for at in range(0, len(ids), PAGE):
            page = ids[at : at + PAGE]
            (reply,) = yield from self._delivery.ask([command(keys, page)], queue)
            found |= parse(queue, page, reply)
        return found


def command(keys: QueueKeys, ids: Sequence[str]) -> list[Any]:
    """The command of one look at these jobs, a page at most."""
    return ["EVAL_RO", _LOOK, len(_KEYS), *map(keys, _KEYS), *ids]


def parse(queue: str, ids: Sequence[str], reply: Sequence[Any]) -> dict[str, Found]:
    """Read its answer. Raises QueueDamaged."""
    told, last = reply
    found: dict[str, Found] = {}
    for job_id, said in zip(ids, told, strict=True):
        if said is None:
            found[job_id] = Absent(_entry(last))
        elif said != ALIVE:
            found[job_id] = _dead(queue, job_id, said)
    return found


def _dead(queue: str, job_id: str, said: str) -> Failed[Any]:
    line, _, error = said.partition("\n")
    job = read_state_line(queue, job_id, line)
    return Failed(job_id, reason=job.fields.get("reason", ""), error=error_of(error))


def _entry(text: str) -> tuple[int, int] | None:
    if not text:
        return None
    epoch, number = text.split("-")
    return int(epoch), int(number)
