"""Which right a user of Redis lacks, where Redis refuses a call or a command."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, Final

from rq_core.model.keys import queue_keys
from rq_core.protocol.access import OF_CHANNEL, commands_of
from rq_core.protocol.plan import Plan, Send
from rq_core.scripts.script import script

_KEYLESS: Final = frozenset({"INFO", "TIME"})

_OF_KEYS: Final = frozenset({"exists", "unlink"})
_PROBE: Final = """local denied = {}
for i, command in ipairs(cjson.decode(ARGV[1])) do
  local known, may = pcall(redis.acl_check_cmd, unpack(command))
  if known and not may then denied[#denied + 1] = i end
end
return denied"""


def lacking_keys(commands: Iterable[Sequence[Any]]) -> Plan[list[str]]:
    """Which keys of plain commands the user may not touch so, as rules."""
    checks = [(f"~{c[1]}", [str(word) for word in c]) for c in commands if len(c) > 1]
    return list(dict.fromkeys((yield from _denied(checks))))


def lacking(prefix: str, name: str, queue: str) -> Plan[list[str]]:
    """Which rights the user lacks that a script needs in a queue, as rules. Empty if that cannot be found out."""
    told = [queue_keys(queue, prefix)(key) for key in script(name).all_keys]
    checks: list[tuple[str, Sequence[str]]] = [
        (f"~{key}", ("FCALL", "f", "1", key)) for key in told
    ]
    # A user that lacks the channel does all its work: those who wait for its jobs find their ends a little later.
    for command in sorted(commands_of(name) - OF_CHANNEL):
        key = () if command.upper() in _KEYLESS else (told[0],)
        # All arguments of these are keys.
        others = () if command in _OF_KEYS else ("1", "1", "1")
        checks.append((f"+{command}", (command, *key, *others)))
    return (yield from _denied(checks))


def _denied(checks: Iterable[tuple[str, Sequence[str]]]) -> Plan[list[str]]:
    asked = list(checks)
    (sha,) = yield Send([["SCRIPT", "LOAD", _PROBE]])
    if isinstance(sha, Exception):
        return []
    (denied,) = yield Send([["EVALSHA", sha, 0, json.dumps([list(c) for _, c in asked])]])
    return [] if isinstance(denied, Exception) else [asked[int(at) - 1][0] for at in denied]


def is_denial(text: str) -> bool:
    """Whether an error reply says that the user may not do this."""
    return (
        text.startswith("NOPERM")
        or "The user executing the script" in text
        or "ACL failure" in text
    )


def words_of(lacks: Sequence[str], text: str) -> str:
    """What to tell who lacks rights."""
    what = f"the right {' '.join(lacks)}" if lacks else "a right"
    return f"its user lacks {what}; `rq-core acl` prints what each role needs ({text})"
