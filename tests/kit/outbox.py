"""A small replacement for the scripts. It writes real outbox entries to a real stream, and answers a mirror's calls."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import redis

from rq_core.errors import AuditElsewhere
from rq_core.model.events import OutboxId
from rq_core.model.keys import queue_keys, queues_key

_TRIM = """
local parts = function(id) local e, s = id:match('(%d+)-(%d+)') return tonumber(e), tonumber(s) end
local last = redis.call('HGET', KEYS[2], 'trimmed') or '0-0'
local e1, s1 = parts(ARGV[1])
local e2, s2 = parts(last)
if e1 < e2 or (e1 == e2 and s1 <= s2) then return 0 end
redis.call('XTRIM', KEYS[1], 'MINID', ARGV[1])
redis.call('HSET', KEYS[2], 'trimmed', ARGV[1])
redis.call('HINCRBY', KEYS[2], 'backlog_jobs', -ARGV[2])
redis.call('HINCRBY', KEYS[2], 'backlog_bytes', -ARGV[3])
return 1
"""


class StreamSource:
    """Answers the mirror's calls (the protocol OutboxSource) with plain Redis commands."""

    def __init__(self, url: str, prefix: str = "rqc") -> None:
        # redis-py types every reply as text or bytes.
        self.redis: Any = redis.Redis.from_url(
            url, decode_responses=True, encoding_errors="surrogateescape"
        )
        self.url = url
        self.prefix = prefix
        self.trims: list[tuple[str, str, int, int]] = []

    def close(self) -> None:
        self.redis.close()

    def queues(self) -> list[str]:
        return sorted(self.redis.smembers(queues_key(self.prefix)))

    def stamp(self, queue: str) -> str | None:
        keys = queue_keys(queue, self.prefix)
        if not self.redis.exists(keys("meta"), keys("outbox")):
            return None
        return self.redis.hget(keys("meta"), "stamp") or ""

    def holder(self, queue: str) -> str | None:
        found: str | None = self.redis.hget(queue_keys(queue, self.prefix)("meta"), "audit")
        return found

    def attach(self, queue: str, audit_id: str, known: int = 0, stamp: str = "") -> None:
        meta = queue_keys(queue, self.prefix)("meta")
        if not self.redis.hsetnx(meta, "audit", audit_id):
            attached = self.redis.hget(meta, "audit")
            if attached != audit_id:
                raise AuditElsewhere(queue=queue, attached=attached)
        if stamp:
            self.redis.hsetnx(meta, "stamp", stamp)
        outbox = queue_keys(queue, self.prefix)("outbox")
        last = self.redis.xrevrange(outbox, count=1)
        if known and (not last or OutboxId.parse(last[0][0]).epoch < known):
            self.begin_beyond(queue, known, last[0][0] if last else None)

    def begin_beyond(self, queue: str, known: int, last: str | None) -> None:
        """Begin an epoch greater than ``known``, as a script does for a queue that is behind its mirror."""
        outbox = queue_keys(queue, self.prefix)("outbox")
        old = OutboxId.parse(last).epoch if last else None
        facts = json.dumps(["behind", old, "replid", "replid", last])
        for seq, kind, data in (
            (0, "epoch_started", facts),
            (1, "policy_changed", '["baseline","pending","done"]'),
        ):
            fields = {"type": kind, "at": known + 1, "by": "-", "data": data}
            self.redis.xadd(outbox, fields, id=f"{known + 1}-{seq}")

    def read_outbox_back(
        self, queue: str, before: str, count: int
    ) -> Sequence[tuple[str, Mapping[str, str]]]:
        key = queue_keys(queue, self.prefix)("outbox")
        found: list[tuple[str, dict[str, str]]] = self.redis.xrevrange(
            key, max=f"({before}", count=count
        )
        return found

    def read_outbox(
        self, queue: str, start: str, count: int
    ) -> Sequence[tuple[str, Mapping[str, str]]]:
        key = queue_keys(queue, self.prefix)("outbox")
        found: list[tuple[str, dict[str, str]]] = self.redis.xrange(key, min=start, count=count)
        return found

    def trim(self, queue: str, audit_id: str, upto: str, jobs: int, size: int) -> None:
        self.attach(queue, audit_id)
        keys = queue_keys(queue, self.prefix)
        self.trims.append((queue, upto, jobs, size))
        self.redis.eval(_TRIM, 2, keys("outbox"), keys("meta"), upto, jobs, size)

    def counts(self, queue: str) -> SimpleNamespace:
        meta = queue_keys(queue, self.prefix)("meta")
        return SimpleNamespace(backlog=int(self.redis.hget(meta, "backlog_jobs") or 0))

    def place(self, queue: str) -> object:  # noqa: ARG002 - all are in one place
        """Return None, since all queues of this source are on one server."""
        return None

    def wait_outbox(self, last: Mapping[str, str], wait_s: float) -> set[str]:
        streams = {queue_keys(q, self.prefix)("outbox"): entry for q, entry in last.items()}
        names = dict(zip(streams, last, strict=True))
        found = self.redis.xread(streams, count=1, block=max(1, int(wait_s * 1000)))
        pairs = found.items() if isinstance(found, dict) else found
        return {names[key] for key, _ in pairs}


class StreamWriter:
    """Appends entries to an outbox, numbered without a gap as by the scripts. It keeps a copy of each entry."""

    def __init__(self, source: StreamSource, queue: str, epoch: int = 1_795_225_746_504) -> None:
        self.source = source
        self.queue = queue
        self.keys = queue_keys(queue, source.prefix)
        self.epoch = epoch
        self.seq = -1
        self.now_ms = epoch
        self.log: list[tuple[str, dict[str, bytes]]] = []
        """All entries that were ever appended, including trimmed entries."""
        source.redis.sadd(queues_key(source.prefix), queue)
        self.begin(epoch, "created")

    def begin(self, epoch: int, reason: str, last: str | None = None) -> str:
        old = self.epoch if self.seq >= 0 else None
        self.epoch, self.seq = epoch, -1
        return self.queue_event("epoch_started", reason, old, None, "replid", last)

    def queue_event(self, kind: str, *values: Any) -> str:
        return self.raw({"type": kind, "by": "-", "data": json.dumps(values)})

    def jobs(self, kind: str, *jobs: Sequence[Any], by: str = "w-1", why: str | None = None) -> str:
        """Append one entry of job events, and return its id. If it is a claim, the id is the fence of its jobs."""
        fields = {"type": kind, "by": by, "jobs": json.dumps(jobs, separators=(",", ":"))}
        return self.raw(fields if why is None else {**fields, "why": why})

    def raw(self, fields: Mapping[str, str | bytes]) -> str:
        """Append an entry with these fields, and the field ``at`` if it is missing. Return its id."""
        self.seq += 1
        self.now_ms += 1
        entry_id = f"{self.epoch}-{self.seq}"
        full = {"at": str(self.now_ms), **fields}
        values = {k: v if isinstance(v, bytes) else v.encode() for k, v in full.items()}
        self.log.append((entry_id, values))
        pipe = self.source.redis.pipeline()
        pipe.xadd(self.keys("outbox"), values, id=entry_id)
        pipe.hincrby(self.keys("meta"), "backlog_jobs", counted_jobs(values))
        pipe.hincrby(self.keys("meta"), "backlog_bytes", counted_bytes(values))
        pipe.execute()
        return entry_id

    def backlog(self) -> tuple[int, int]:
        """Return how many events and how many bytes wait for the mirror, as Redis counts them."""
        jobs, size = self.source.redis.hmget(self.keys("meta"), ["backlog_jobs", "backlog_bytes"])
        return int(jobs), int(size)

    def life(self, *ids: str, by: str = "w-1", task: str = "send") -> None:
        """Append an enqueue, a claim and a success of these jobs, in three entries."""
        enqueue(self, *ids, task=task)
        fence = self.jobs("claimed", *([i, 1] for i in ids), by=by)
        self.jobs("succeeded", *([i, fence] for i in ids), by=by)


def enqueue(writer: StreamWriter, *ids: str, task: str = "send", due_ms: int | None = None) -> str:
    digest = "0123456789abcdef0123456789abcdef"
    return writer.jobs(
        "enqueued",
        *(
            [i, None if due_ms else n, due_ms, task, "normal", 3, 3, digest]
            for n, i in enumerate(ids)
        ),
        by="producer",
    )


def counted_jobs(values: Mapping[str, bytes]) -> int:
    if "jobs" not in values:
        return 1
    try:
        return len(json.loads(values["jobs"]))
    except (ValueError, RecursionError):
        return 0


def counted_bytes(values: Mapping[str, bytes]) -> int:
    return sum(len(values.get(name, b"")) for name in ("type", "jobs", "data", "why"))
