"""Reads all data of a queue: a small queue in one transaction, a large one in pages that do not block the server for
long.

Pages are read at different moments, and the outbox last. A job without an event since the first page has not changed,
so the job's members must agree with the log. For any other job, the caller must read members that differ from the log
again, at one moment (:meth:`WholeReads.members`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from rq_core import errors
from rq_core.model.keys import KEY_TYPES, KEYS, QueueKeys
from rq_core.model.state_line import line_of_job
from rq_core.protocol.engine.plan import Plan, pairs_of, says_full
from rq_core.protocol.engine.retried_commands import in_one_step
from rq_core.protocol.reads.ranges import head_of_lane
from rq_core.protocol.reads.steps import Command, QueueReader

AT_ONCE_MAX: Final = 2_000
"""Maximum number of members, of all keys of a queue together, that one transaction reads."""
PAGE: Final = 250
"""Maximum number of members of a key that one page asks for. Redis may return more of them."""
PAGE_FIRST: Final = 25
"""Number of members that the first page of a key asks for. This page shows how large the members are."""
PAGE_BYTES: Final = 256 * 1024
"""Approximate upper bound of the bytes of a page."""
_SIZE: Final = {"hash": "HLEN", "list": "LLEN", "zset": "ZCARD", "stream": "XLEN"}
_STARTS: Final[dict[str, Any]] = {"hash": "0", "list": 0, "zset": "0", "stream": "+"}
_MEMBER: Final = {"hash": "HGET", "zset": "ZSCORE"}


class Snapshot(dict[str, Any]):
    """All data of a queue in Redis: the value of each key, in Python's types, by the key's short name."""

    since: str | None = None
    """The last entry of the outbox before the first page, if the queue changed while its pages were read; None: all
    values are of one moment."""


class WholeReads(QueueReader):
    """Reads all keys of a queue, at one moment or page by page."""

    def snapshot(self, queue: str) -> Plan[Snapshot]:
        """Read all data of a queue in one transaction. The reply is as large as the queue.

        Raises QueueDamaged if a key has the wrong type.
        """
        keys = self._keys(queue)
        read = {
            "hash": lambda key: ["HGETALL", key],
            "list": lambda key: ["LRANGE", key, 0, -1],
            "zset": lambda key: ["ZRANGE", key, 0, -1, "WITHSCORES"],
            "stream": lambda key: ["XRANGE", key, "-", "+"],
        }
        commands = [read[key.type](keys(key.name)) for key in KEYS]
        try:
            *_, values = yield from self._delivery.ask([["MULTI"], *commands, ["EXEC"]])
        except errors.ServerUnsuitable as error:
            if not says_full(error):
                raise
            # A full Redis 7.0 queues no command.
            (values,) = yield from self._delivery.ask([in_one_step(commands)])
        found = Snapshot()
        for key, value in zip(KEYS, values, strict=True):
            if isinstance(value, Exception):
                raise errors.QueueDamaged(
                    f"queue {queue!r} is damaged: key {keys(key.name)} is not a {key.type}. Move it away with RENAME,"
                    f" then run `rq-core doctor {queue} --repair`",
                    queue=queue,
                    why=str(value),
                )
            found[key.name] = _shaped(key.type, value)
        return found

    def whole(self, queue: str) -> Plan[Snapshot]:
        """Read all data of a queue, in pages if the queue is large.

        Raises QueueDamaged if a key has the wrong type.
        """
        keys = self._keys(queue)
        sizes = [[_SIZE[key.type], keys(key.name)] for key in KEYS]
        change: list[Command] = [
            ["XREVRANGE", keys("outbox"), "+", "-", "COUNT", 1],
            ["HGETALL", keys("meta")],
        ]
        try:
            *many, last, meta = yield from self._delivery.ask([*sizes, *change], queue)
        except errors.QueueDamaged:
            many = []  # The transaction names the key.
        if sum(many) <= AT_ONCE_MAX:
            return (yield from self.snapshot(queue))
        found = Snapshot()
        for key in KEYS:
            found[key.name] = yield from self._pages(queue, keys(key.name), key.type)
        _share_ids(found)
        found["meta"] = pairs_of(meta)
        if [last, meta] != (yield from self._delivery.ask(change, queue)):
            found.since = last[0][0] if last else "0-0"
        return found

    def _pages(self, queue: str, key: str, kind: str) -> Plan[Any]:
        """Read one key in pages.

        A list or a stream is read from the end to which members are added. So no member is missed if others are added
        or removed during the read.
        """
        found: dict[str, Any] = {}
        pages: list[list[Any]] = []
        at, count = _STARTS[kind], PAGE_FIRST
        while at is not None:
            (reply,) = yield from self._delivery.ask([_page(kind, key, at, count)], queue)
            page, at = _read(kind, at, count, reply)
            # A page in Python's types needs less memory than Redis' reply, which is not kept.
            shaped = _shaped(kind, page)
            if isinstance(shaped, dict):
                found |= shaped
            else:
                pages.append(shaped)
            if page:
                each = sum(map(_size_of, page)) // len(page) + 1
                count = max(1, min(PAGE, PAGE_BYTES // each))
        if kind in ("list", "stream"):
            return [each for page in reversed(pages) for each in page]
        return found

    def members(
        self, queue: str, members: Iterable[tuple[str, str]]
    ) -> Plan[dict[tuple[str, str], str]]:
        """Read single members of keys at one moment. A member is given as (key, member). Returns the values of the
        members; an empty text for a missing member.

        Keys whose members have no names, such as lists, are left out.
        """
        keys = self._keys(queue)
        asked = {each: _member(keys, *each) for each in members}
        replies: Sequence[Any] = ()
        if commands := [command for each in asked.values() for command in each]:
            (replies,) = yield from self._delivery.ask([in_one_step(commands)], queue)
        rest, found = iter(replies), {}
        for (key, member), commands in asked.items():
            values = [next(rest) for _ in commands]
            if key == "head":
                values = values[0][:1]
            elif key == "line":
                values = [line_of_job(*values)]
            if commands:
                found[key, member] = (values and values[0]) or ""
        return found


def _page(kind: str, key: str, at: Any, count: int) -> Command:
    match kind:
        case "list":
            return ["LRANGE", key, -at - count, -at - 1]
        case "stream":
            return ["XREVRANGE", key, at, "-", "COUNT", count]
    return ["HSCAN" if kind == "hash" else "ZSCAN", key, at, "COUNT", count]


def _read(kind: str, at: Any, count: int, reply: Any) -> tuple[list[Any], Any]:
    """Return the members of a page, and the place of the next page; None after the last page."""
    match kind:
        case "list":
            return reply, at + count if reply else None
        case "stream":
            return reply[::-1], f"({reply[-1][0]}" if reply else None
    cursor, page = reply
    return page, None if str(cursor) == "0" else cursor


def _share_ids(found: Snapshot) -> None:
    """Let lists have the same texts as the key ``jobs``, instead of equal ones, so that each id is in memory once."""
    ids = {job_id: job_id for job_id in found["jobs"]}
    for key in KEYS:
        if key.type == "list":
            found[key.name] = [ids.get(member, member) for member in found[key.name]]


def _size_of(value: Any) -> int:
    return len(value) if isinstance(value, str) else sum(map(_size_of, value))


def _shaped(kind: str, value: Any) -> Any:
    """Return Redis' reply for a key, or for a page of a key, in Python's types."""
    match kind:
        case "hash":
            return pairs_of(value)
        case "zset":
            return {member: float(score) for member, score in pairs_of(value).items()}
        case "stream":
            return [(entry_id, pairs_of(flat)) for entry_id, flat in value]
    return list(value)


def _member(keys: QueueKeys, key: str, member: str) -> list[Command]:
    if key == "line":
        return [["HGET", keys(name), member] for name in ("state", "jobs")]
    if key == "head":
        return [head_of_lane(keys, member)]
    command = _MEMBER.get(KEY_TYPES[key])
    return [[command, keys(key), member]] if command else []
