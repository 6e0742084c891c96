"""The deletion of a queue: its jobs are taken out first, then an event says that it goes, then its keys go."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from rq_core.errors import QueueInUse
from rq_core.model.keys import check_name, queue_keys, queues_key
from rq_core.protocol.admin import IDS_CHUNK, Admin, check_why
from rq_core.protocol.delivery import Delivery
from rq_core.protocol.plan import Call, Plan, pairs_of
from rq_core.protocol.reads import Reads

DELETED: Final = "deleted"
WAITS: Final = "waits"
"""The event is appended, and the mirror does not have it yet: ask again."""
ABSENT: Final = "absent"
"""There is no such queue."""


class _Answer(NamedTuple):
    word: str
    jobs: int = 0
    claims: int = 0


class Deletion:
    """The calls that delete a queue."""

    def __init__(self, delivery: Delivery, admin: Admin, reads: Reads) -> None:
        self._delivery = delivery
        self._admin = admin
        self._reads = reads

    def delete(self, queue: str, *, by: str | None = None, why: str = "") -> Plan[str]:
        """Delete a queue that has neither jobs nor claims: DELETED, WAITS or ABSENT.

        The queue is not met first, since that would make it. Raises QueueInUse.
        """
        args = {"by": check_name("actor", by or self._delivery.name), "why": check_why(why)}
        (answer,) = yield from self._delivery.carry_out([Call("delete", queue, args, _parse)])
        if isinstance(answer, Exception):
            raise answer
        if answer.word == "alive":
            raise QueueInUse(queue=queue, jobs=answer.jobs, claims=answer.claims)
        if answer.word != WAITS:
            yield from self._strike(queue)
        return str(answer.word)

    def _strike(self, queue: str) -> Plan[None]:
        """Take the queue off the list, unless a producer has made it again"""
        listed = queues_key(self._delivery.prefix)
        yield from self._delivery.ask([["SREM", listed, queue]])
        if (yield from self._reads.is_there(queue)):
            yield from self._delivery.ask([["SADD", listed, queue]])

    def claims(self, queue: str) -> Plan[int]:
        """How many claims are in force."""
        keys = queue_keys(queue, self._delivery.prefix)
        (claims,) = yield from self._delivery.ask([["ZCARD", keys("leases")]], queue)
        return int(claims)

    def empty(self, queue: str, *, by: str | None = None, why: str = "") -> Plan[int]:
        """Cancel the jobs that wait and remove those that are dead. Returns how many it took out; a job that a worker
        claims meanwhile is left."""
        keys, gone, cursor = queue_keys(queue, self._delivery.prefix), 0, "0"
        while True:
            asked = [["HSCAN", keys("jobs"), cursor, "COUNT", IDS_CHUNK]]
            ((cursor, found),) = yield from self._delivery.ask(asked, queue)
            gone += yield from self._take_out(queue, tuple(pairs_of(found)), by, why)
            if str(cursor) == "0":
                return gone

    def _take_out(self, queue: str, ids: Sequence[str], by: str | None, why: str) -> Plan[int]:
        if not ids:
            return 0
        cancelled = yield from self._admin.cancel(queue, ids, by=by, why=why)
        dead = [job_id for job_id, outcome in cancelled.items() if outcome == "dead"]
        pruned = yield from self._admin.prune(queue, dead, by=by, why=why)
        outcomes = [*cancelled.values(), *pruned.values()]
        return sum(outcome in ("cancelled", "pruned") for outcome in outcomes)


def _parse(reply: Sequence[object]) -> _Answer:
    word, *counts = reply
    return _Answer(str(word), *(int(str(count)) for count in counts))
