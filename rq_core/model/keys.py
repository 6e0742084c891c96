"""The names and types of a queue's keys, and the rules for names. Only this module builds names of keys.

All keys of a queue have the same hash tag, so Redis Cluster stores them in one slot.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final, NamedTuple

from rq_core.errors import InvalidName

DEFAULT_PREFIX: Final = "rqc"

NAME_PATTERN: Final = r"[A-Za-z0-9_.:-]{1,128}"
_NAME = re.compile(NAME_PATTERN)


class Key(NamedTuple):
    """One key of a queue: its Redis type and its contents."""

    name: str
    type: str
    holds: str


KEYS: Final[tuple[Key, ...]] = (
    Key(
        "meta",
        "hash",
        "layout, epoch, replid, sequence, paused, audit mode and stamp, bounds, settings",
    ),
    Key(
        "jobs",
        "hash",
        "id → immutable JSON (task and arguments), never parsed in Lua; before it, how a plain job waits, or what a"
        " dead one died of",
    ),
    Key("state", "hash", "id → one readable line: the state of a job that does more than wait"),
    Key("ready:0", "list", "ids that may be claimed, priority critical"),
    Key("ready:1", "list", "priority high"),
    Key("ready:2", "list", "priority normal"),
    Key("ready:3", "list", "priority low"),
    Key("waiting", "zset", "lane|sequence|id: ready jobs with scopes, in order within their lane"),
    Key("lanes", "hash", "lane → open ORDER, or blocked SCOPE ORDER"),
    Key("open", "zset", "lanes that may be served, by priority and order"),
    Key("blocked", "zset", "scope|order|lane: lanes that wait for one full scope"),
    Key("holders", "zset", "scope|id: claimed jobs, counted per scope"),
    Key("caps", "hash", "scope or family of scopes → limit, version, and where it comes from"),
    Key(
        "rates",
        "hash",
        "scope of a rate → its theoretical arrival time (Unix µs); with a unit: ARRIVAL+REST LIMIT AT",
    ),
    Key("fair", "zset", "fair queues: key → virtual finish time"),
    Key("tasks", "hash", "task → its policy, as workers register it (JSON)"),
    Key(
        "scheduled",
        "zset",
        "job|id, rate|scope, caps|family|after → due time; tick| → when the first schedule is due (Unix ms)",
    ),
    Key("leases", "zset", "id → until when its claim is in force (Unix ms)"),
    Key("parked", "zset", "id → since when it is parked (Unix ms)"),
    Key("dead", "zset", "id → when it died (Unix ms)"),
    Key(
        "expiring",
        "zset",
        "slot|name, dead|id, rate|scope, name|name, box|life, shown|id → when to forget it; job|id → its deadline,"
        " if it waits (Unix ms)",
    ),
    Key(
        "slots",
        "hash",
        "call slot → its last number, until when it is remembered (Unix ms), "
        "and + if slot|a has its answer; unique|name → the job that holds the name, "
        "and until when (Unix ms), if the name is held until an instant",
    ),
    Key(
        "results",
        "hash",
        "id of a job that has ended → how, and until when another job of that id is a duplicate",
    ),
    Key("kept", "zset", "id → when to forget its value, or all that `results` has of it (Unix ms)"),
    Key("returned", "hash", "id in `results` → the job's result (JSON)"),
    Key(
        "boxes",
        "hash",
        "life of a durable job → its id and how many entries it has; life|N → entry N: a step that was begun or saved,"
        " and what it returned (JSON); life>N → signal N; life>NAME → the signals of that name that wait;"
        " life=KEY → the signal that came with that key",
    ),
    Key(
        "shown",
        "hash",
        "id → what the job shows: how far it has come, and which chunks of its stream are kept; id~N → chunk N",
    ),
    Key(
        "schedules",
        "hash",
        "schedule → a readable line and its rule (JSON); schedule|job → its job, as enqueue takes it",
    ),
    Key("ticks", "zset", "schedule → when its next instant is due (Unix ms)"),
    Key("wake", "list", "a token, as a rule one; wakes one idle worker"),
    Key(
        "workers",
        "hash",
        "worker → when Redis last heard of it (Unix s), and its description (JSON)",
    ),
    Key("outbox", "stream", "events, entry ids <epoch>-<n>"),
)
"""Every key that a queue may have. ``ready`` in a script's header means the four lists of ready jobs, one for each
priority."""

CHANNEL: Final = "ended"
"""The channel on which scripts publish the ids of the queue's jobs that have ended. The channel's full name begins with
the prefix and the queue, as the names of keys do."""

KEY_TYPES: Final = {key.name: key.type for key in KEYS}


def is_name(name: object) -> bool:
    """Return whether a value is a valid name of a queue, task, worker or job."""
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


def check_name(kind: str, name: str) -> str:
    """Return ``name`` if it is valid. Raises InvalidName otherwise. ``kind`` is what the name is for, such as queue or
    job; the error's message contains it.
    """
    # Callers that no type checker has seen pass None and numbers, too.
    if not is_name(name):
        raise InvalidName(kind=kind, name=name)
    return name


class QueueKeys:
    """The names of one queue's keys, under one prefix."""

    __slots__ = ("_tag", "prefix", "queue")

    def __init__(self, queue: str, prefix: str = DEFAULT_PREFIX) -> None:
        self.queue = check_name("queue", queue)
        self.prefix = check_name("prefix", prefix)
        self._tag = f"{prefix}:{{{queue}}}:"

    def __call__(self, name: str) -> str:
        """Return the full name in Redis of the key ``name``. Raises KeyError if ``name`` is not in KEYS."""
        if name not in KEY_TYPES:
            raise KeyError(name)
        return self._tag + name

    @property
    def channel(self) -> str:
        """The full name of the queue's channel. The channel is sharded, and is in the same Cluster slot as the keys."""
        return self._tag + CHANNEL

    def all(self) -> tuple[str, ...]:
        """Return the full names of all keys that the queue may have."""
        return tuple(self._tag + key.name for key in KEYS)


@lru_cache(maxsize=4096)
def queue_keys(queue: str, prefix: str = DEFAULT_PREFIX) -> QueueKeys:
    """Return the cached key names of a queue. Raises InvalidName for an invalid queue name or prefix."""
    return QueueKeys(queue, prefix)


def inbox_key(prefix: str = DEFAULT_PREFIX) -> str:
    """Return the key of the Redis list whose tokens wake a relay, the process that enqueues the jobs of an inbox. A
    producer pushes a token after it has inserted rows into the inbox (a table in its own database).
    """
    return f"{check_name('prefix', prefix)}:inbox"


def queues_key(prefix: str = DEFAULT_PREFIX) -> str:
    """Return the key of the Redis set with the names of all queues under a prefix."""
    return f"{check_name('prefix', prefix)}:queues"
