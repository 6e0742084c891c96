"""Plain commands carried out in one step, and on a server that has reached maxmemory, too.

MULTI would be one step as well; but Redis 7.0 queues no command while it is full, and refuses those that write.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

_SCRIPT: Final = """#!lua flags=allow-oom
local replies, at = {}, 1
for i, key in ipairs(KEYS) do
  local rest = tonumber(ARGV[at + 1])
  replies[i] = redis.pcall(ARGV[at], key, unpack(ARGV, at + 2, at + 1 + rest))
  at = at + 2 + rest
end
return replies"""
"""ARGV: COMMAND HOW_MANY ARGUMENT… of each; the key of each stands in KEYS."""


def in_one_step(commands: Sequence[Sequence[Any]]) -> list[Any]:
    """The command that carries out ``commands``, each with its one key as first argument, and answers with a list of
    their answers. An error stands in the place of its answer."""
    keys = [command[1] for command in commands]
    words = [word for name, _, *rest in commands for word in (name, len(rest), *rest)]
    return ["EVAL", _SCRIPT, len(keys), *keys, *words]
