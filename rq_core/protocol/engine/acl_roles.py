"""The rights that a user of Redis needs, by role. These are the fewest rights with which the role can do all of its
work.

When a user calls a script, Redis checks the user's rights for the call's keys and for each command in the script. So
the rights for scripts follow from the texts of the scripts. ROLES names the commands that a role sends outside of
scripts. ``rq-core acl`` and docs/reference/rights.md are generated from this module.

Redis gives rights per command and per key, not per script. For example, a producer cannot settle claims, because it has
no right to the key ``leases``. But a role may use each of its commands on each of its keys, also without a script.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any, Final, NamedTuple

from rq_core.errors import InvalidOption
from rq_core.model.keys import (
    CHANNEL,
    DEFAULT_PREFIX,
    KEYS,
    check_name,
    inbox_key,
    queue_keys,
    queues_key,
)
from rq_core.protocol.engine.plan import Plan, Send
from rq_core.scripts.plain import plain_text
from rq_core.scripts.script import names, script

_CALLED: Final = re.compile(r"\('([A-Z]+)'")
_PATTERN: Final = re.compile(r"[A-Za-z0-9_.:*?-]{1,128}")

LOOKING: Final = ("select", "info", "cluster|slots", "asking")
"""Redis commands that every role sends when it first contacts a server. The last two are sent only in a cluster."""
CALLING: Final = ("fcall", "evalsha", "script|load")
"""Redis commands that a role needs in order to call scripts."""
ADDING: Final = ("sadd", "sismember")
"""Redis commands that add a queue to the list of queues. A role needs them if its scripts may create a queue."""
WAKING: Final = ("lpush", "ltrim")
"""Redis commands by which a role wakes a relay: the process that enqueues the jobs in an inbox (an SQL table)."""
LISTENING: Final = ("ssubscribe", "sunsubscribe")
"""Redis commands that a role needs in order to get messages about ends of jobs."""
OF_CHANNEL: Final = frozenset({*LISTENING, "spublish"})
"""Redis commands whose first argument is a queue's channel, not a key."""
_COUNTS: Final = ("llen", "zcard", "hlen", "hget", "hgetall")


class Role(NamedTuple):
    """A kind of Redis user, such as producer or worker: its work and its rights."""

    does: str
    scripts: tuple[str, ...]
    sends: tuple[str, ...]
    """Redis commands that the role sends outside of scripts. The role also sends the commands in LOOKING, ``lists`` and
    ``inbox``, and those in CALLING if it calls scripts."""
    reads: tuple[str, ...] = ()
    """Keys that the role reads only by plain commands, and that its scripts do not use."""
    writes: tuple[str, ...] = ()
    """Keys that the role writes only by plain commands, and that its scripts do not use."""
    lists: tuple[str, ...] = ()
    """Redis commands that the role may send for the key with the list of queues, but not for other keys."""
    inbox: tuple[str, ...] = ()
    """Redis commands that the role may send for the key that wakes a relay, but not for other keys. A relay is the
    process that enqueues the jobs in an inbox (an SQL table)."""


_PRODUCER: Final = ("handshake", "enqueue", "cancel", "edit", "listen", "schedule", "signal")
ROLES: Final = {
    "producer": Role(
        "enqueues, cancels and edits jobs, reads their states, and waits for them",
        _PRODUCER,
        ("eval_ro", "evalsha_ro", "hget", "hmget", "hstrlen", *LISTENING),
        ("tasks",),
        lists=ADDING,
        inbox=WAKING,
    ),
    "worker": Role(
        "runs jobs, declares its tasks' caps, enqueues what handlers and hooks do, and relays an inbox",
        (
            *_PRODUCER, "turn", "claim", "complete", "fail", "rollback", "extend", "save", "show", "park", "spend",
            "cap", "register", "tick",
        ),
        (
            *_COUNTS, "blpop", "eval", "eval_ro", "evalsha_ro", "hstrlen", "rpush", "ltrim", "time",
            "hmget", "hset", "hsetnx", "hdel", "zrangebyscore", *LISTENING,
        ),
        writes=("workers",),
        lists=ADDING,
        inbox=("blpop", *WAKING),
    ),
    "relay": Role(
        "hands over the rows of an inbox: `rq-core inbox run`",
        ("handshake", "enqueue"),
        ("hget",),
        ("tasks",),
        lists=ADDING,
        inbox=("blpop",),
    ),
    "mirror": Role(
        "writes the events into SQL, trims them, and switches a queue's log on or off",
        ("handshake", "attach", "baseline", "trim"),
        (*_COUNTS, "hscan", "xrange", "xrevrange", "xread"),
        ("ready:0", "ready:1", "ready:2", "ready:3", "waiting", "open", "scheduled", "leases", "parked", "dead"),
        lists=(*ADDING, "smembers"),
    ),
    "operator": Role(
        "all of `rq-core` but the worker: looks, cancels, edits, requeues, prunes, sets caps, repairs, restores,"
        " deletes",
        names(),
        (
            *_COUNTS, *LISTENING, "multi", "exec", "eval",
            "eval_ro", "evalsha_ro", "hstrlen", "time", "hmget", "hkeys", "hvals", "hscan", "lrange", "lindex", "lpos",
            "xlen", "xrange", "xrevrange", "xread", "zrange", "zrangebyscore", "zrangebylex", "zlexcount", "zscan",
            "zscore", "zmscore", "zcount",
        ),
        writes=("workers",),
        lists=(*ADDING, "smembers", "srem"),
        inbox=("blpop", *WAKING),
    ),
    "viewer": Role(
        "reads and changes nothing: `rq-core metrics`, `top`, `queues`, `workers`, `caps`, `jobs`, `job` and `dead`",
        (),
        (
            *_COUNTS, "eval_ro", "evalsha_ro", "hstrlen", "time", "hmget", "hscan", "lrange", "lindex", "lpos", "xlen",
            "xrange", "xrevrange", "zrange", "zrangebyscore", "zrangebylex", "zlexcount", "zscore", "zmscore", "zcount",
        ),
        tuple(key.name for key in KEYS),
        lists=("smembers",),
    ),
    "preparer": Role(
        "loads the functions that all others call: `rq-core server prepare`",
        (),
        ("function|load", "function|list", "function|delete"),
    ),
}  # fmt: skip
"""The roles by name. Each role that calls scripts may load scripts, since a script is called by its digest. Only the
preparer, which may use no key, loads functions. If another user could load functions, that user could replace a
function that other users call, and so act with the rights of these users."""


@cache
def commands_of_script(name: str) -> frozenset[str]:
    """Return the names of the commands that a script may send, in lower case."""
    return frozenset(word.lower() for word in _CALLED.findall(script(name).text))


def commands_of_role(role: str) -> list[str]:
    """Return the Redis commands that a role may send for the keys of a queue, sorted. Commands for the keys that all
    queues share (``lists`` and ``inbox``) are left out.
    """
    known = ROLES[role]
    calling = CALLING if known.scripts else ()
    of_scripts = (c for name in known.scripts for c in commands_of_script(name))
    return sorted({*LOOKING, *calling, *known.sends, *of_scripts})


def keys(role: str) -> tuple[list[str], list[str]]:
    """Return two lists of a queue's keys: the keys that a role may write, and the keys that the role may only read. All
    keys of the role's scripts are in the first list.
    """
    writes = {key for name in ROLES[role].scripts for key in script(name).all_keys}
    writes |= set(ROLES[role].writes)
    order = [key.name for key in KEYS]
    return (
        [name for name in order if name in writes],
        [name for name in order if name in ROLES[role].reads and name not in writes],
    )


def uses_channel(role: str) -> bool:
    """Return whether a role publishes or receives messages about ends of jobs."""
    return not OF_CHANNEL.isdisjoint(commands_of_role(role))


def rules(role: str, *, prefix: str = DEFAULT_PREFIX, queue: str = "*") -> list[str]:
    """Return the rules of ``ACL SETUSER`` that give exactly the role's rights, in all queues whose name matches the
    pattern ``queue``.

    Raises InvalidOption for an unknown role or an invalid pattern.
    """
    if role not in ROLES:
        raise InvalidOption.of("role", role, f"must be one of {', '.join(ROLES)}")
    if not _PATTERN.fullmatch(queue):
        must = "must be a queue's name, in which * and ? may stand for others"
        raise InvalidOption.of("queue", queue, must)
    tag = f"{check_name('prefix', prefix)}:{{{queue}}}:"
    writes, reads = keys(role)
    every = [f"~{tag}*"] if len(writes) == len(KEYS) else [f"~{tag}{name}" for name in writes]
    only_reads = [f"%R~{tag}*"] if len(reads) == len(KEYS) else [f"%R~{tag}{n}" for n in reads]
    return [
        *every,
        *only_reads,
        *([f"&{tag}{CHANNEL}"] if uses_channel(role) else []),
        *(f"+{command}" for command in commands_of_role(role)),
        *_of_shared_key(queues_key(prefix), ROLES[role].lists),
        *_of_shared_key(inbox_key(prefix), ROLES[role].inbox),
    ]


def _of_shared_key(key: str, commands: tuple[str, ...]) -> list[str]:
    """Return the ACL rules for a key that all queues share. The rules allow the role to send these commands, but only
    for this key. In Redis, such a group of rules is called a selector.
    """
    if not commands:
        return []
    mark = "%R~" if commands == ("smembers",) else "~"
    first, *others = (f"{mark}{key}", *(f"+{command}" for command in commands))
    return [f"({first}", *others[:-1], f"{others[-1]})"]


def beyond(role: str) -> list[str]:
    """Return the names of the scripts of other roles that a user with this role could also call. Redis cannot prevent
    these calls.
    """
    writes, _ = keys(role)
    may = set(commands_of_role(role))
    return [
        name
        for name in names()
        if name not in ROLES[role].scripts
        and set(script(name).all_keys) <= set(writes)
        and commands_of_script(name) <= may
    ]


# The rights that a user of Redis lacks, if Redis refuses a call or a command.

_KEYLESS: Final = frozenset({"INFO", "TIME"})

_OF_KEYS: Final = frozenset({"exists", "unlink"})


def lacking_keys(commands: Iterable[Sequence[Any]]) -> Plan[list[str]]:
    """Return the keys of these commands for which the Redis user has no right, as ACL rules such as ``~KEY``."""
    checks = [(f"~{c[1]}", [str(word) for word in c]) for c in commands if len(c) > 1]
    return list(dict.fromkeys((yield from _denied(checks))))


def lacking(prefix: str, name: str, queue: str) -> Plan[list[str]]:
    """Return the rights that the user lacks to call a script in a queue, as ACL rules. The list is empty if Redis does
    not say which rights are lacking."""
    told = [queue_keys(queue, prefix)(key) for key in script(name).all_keys]
    checks: list[tuple[str, Sequence[str]]] = [
        (f"~{key}", ("FCALL", "f", "1", key)) for key in told
    ]
    # A user without rights on the channel can do all its work: waiting clients see ends of jobs a little later.
    for command in sorted(commands_of_script(name) - OF_CHANNEL):
        key = () if command.upper() in _KEYLESS else (told[0],)
        # All arguments of these are keys.
        others = () if command in _OF_KEYS else ("1", "1", "1")
        checks.append((f"+{command}", (command, *key, *others)))
    return (yield from _denied(checks))


def _denied(checks: Iterable[tuple[str, Sequence[str]]]) -> Plan[list[str]]:
    asked = list(checks)
    (sha,) = yield Send([["SCRIPT", "LOAD", plain_text("probe")]])
    if isinstance(sha, Exception):
        return []
    (denied,) = yield Send([["EVALSHA", sha, 0, json.dumps([list(c) for _, c in asked])]])
    return [] if isinstance(denied, Exception) else [asked[int(at) - 1][0] for at in denied]


def is_denial(text: str) -> bool:
    """Return whether the text of an error reply means that the user lacks a right."""
    return (
        text.startswith("NOPERM")
        or "The user executing the script" in text
        or "ACL failure" in text
    )


def lacking_words(lacks: Sequence[str], text: str) -> str:
    """Return the message for a user that lacks the rights ``lacks``. ``text`` is the error reply of Redis."""
    what = f"the right {' '.join(lacks)}" if lacks else "a right"
    return f"its user lacks {what}; `rq-core acl` prints what each role needs ({text})"
