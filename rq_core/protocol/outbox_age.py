"""Since when the events of an outbox wait for the mirror."""

from __future__ import annotations

from typing import Any, Final

from rq_core.model.keys import QueueKeys

_SINCE: Final = """local entries = redis.call('XRANGE', KEYS[1], '-', '+', 'COUNT', 2)
local fields = entries[1] and entries[#entries][2] or {}
for i = 1, #fields, 2 do
  if fields[i] == 'at' then
    return fields[i + 1]
  end
end
return false"""
"""The time of the second entry, since the first may be the mirror's anchor, which SQL has. The time alone: an entry may
have ten thousand jobs."""


def command(keys: QueueKeys) -> list[Any]:
    """The command that asks when the oldest event that waits was written, or a later one: Unix ms, or nothing."""
    return ["EVAL_RO", _SINCE, 1, keys("outbox")]
