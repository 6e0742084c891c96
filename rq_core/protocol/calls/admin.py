"""Changes that operators make in a queue: cancel, edit, requeue, prune, and its settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from rq_core import errors
from rq_core.errors import QueueInUse
from rq_core.model.keys import check_name, queue_keys, queues_key
from rq_core.model.settings import FLAGS, SETTINGS, VALUE_MAX
from rq_core.protocol.engine.delivery import Delivery
from rq_core.protocol.engine.plan import Call, Plan, pairs_of, parse_pairs
from rq_core.protocol.reads.reads import Reads

IDS_CHUNK: Final = 250
"""Most jobs that a person cancels, requeues or prunes in one call."""
WHY_MAX: Final = 4_000
"""Most characters of an operator's reason for a change."""


class Change(NamedTuple):
    """The options that an edit changes of jobs that wait. An empty text leaves an option as it is."""

    priority: str = ""
    """Its name."""
    due: str = ""
    """Unix ms, or ``+`` and ms from now; ``+0`` is at once."""
    expires: str = ""
    """The deadline, likewise; ``-`` takes it away."""


class Admin:
    """The calls that people make."""

    def __init__(self, delivery: Delivery) -> None:
        self._delivery = delivery

    def cancel(
        self, queue: str, ids: Sequence[str], *, by: str | None = None, why: str = ""
    ) -> Plan[dict[str, str]]:
        """Cancel jobs. The outcome by id: cancelled, cancelling (it runs), dead, or gone."""
        return (yield from self._for_ids("cancel", queue, ids, by, why))

    def edit(
        self,
        queue: str,
        ids: Sequence[str],
        change: Change,
        *,
        line: str = "",
        by: str | None = None,
        why: str = "",
    ) -> Plan[dict[str, str]]:
        """Change when jobs that wait will run. The outcome by id: edited; same (it is so already); never (it would
        become ready at its deadline or later); gone, or the state that it is in. With ``line`` a job is edited only
        if that is its state line; else the outcome is changed. Raises AuditBacklogFull."""
        args = change._asdict()
        return (yield from self._for_ids("edit", queue, ids, by, why, args, line))

    def requeue(
        self, queue: str, ids: Sequence[str], *, by: str | None = None, why: str = ""
    ) -> Plan[dict[str, str]]:
        """Give dead jobs another life. The outcome by id: requeued, gone, or the state that it is in."""
        return (yield from self._for_ids("requeue", queue, ids, by, why))

    def prune(
        self, queue: str, ids: Sequence[str], *, by: str | None = None, why: str = ""
    ) -> Plan[dict[str, str]]:
        """Remove dead jobs. The outcome by id: pruned, gone, or the state that it is in."""
        return (yield from self._for_ids("prune", queue, ids, by, why))

    def _for_ids(
        self,
        name: str,
        queue: str,
        ids: Sequence[str],
        by: str | None,
        why: str,
        more: Mapping[str, str] | None = None,
        *of_each: str,
    ) -> Plan[dict[str, str]]:
        outcomes: dict[str, str] = {}
        args = {"by": check_name("actor", by or self._delivery.name), "why": check_why(why)}
        args |= more or {}
        # Each id once: for a second time in a call, the script would answer with the state after the first change.
        once = tuple(dict.fromkeys(check_name("job", i) for i in ids))
        for start in range(0, len(once), IDS_CHUNK):
            chunk = once[start : start + IDS_CHUNK]
            outcomes |= yield from self._delivery.call(
                Call(
                    name,
                    queue,
                    args,
                    parse_pairs,
                    [(i, *of_each) for i in chunk],
                    chunk,
                    absent=dict.fromkeys(chunk, "gone"),
                )
            )
        return outcomes

    def configure(
        self, queue: str, values: Mapping[str, int], *, by: str | None = None, why: str = ""
    ) -> Plan[dict[str, str]]:
        """Change settings of a queue, or a flag (``paused``, ``fair``: 0 or 1). The outcome by field: changed
        or same."""
        for name, value in values.items():
            minimum = SETTINGS[name].minimum if name in SETTINGS else 0
            if name not in SETTINGS and name not in FLAGS:
                known = ", ".join((*SETTINGS, *FLAGS))
                raise errors.InvalidOption.of(name, value, f"must be one of {known}")
            if name in FLAGS and value not in (0, 1):
                raise errors.InvalidOption.of(name, value, "must be 0 or 1")
            if not _is_whole(value) or not minimum <= value <= VALUE_MAX:
                must = f"must be a whole number from {minimum} to {VALUE_MAX:,}"
                raise errors.InvalidOption.of(name, value, must)
        args = {"by": check_name("actor", by or self._delivery.name), "why": check_why(why)}
        # A bool is a whole number to Python, and nothing to the connection.
        records = tuple((name, int(value)) for name, value in values.items())
        call = Call("configure", queue, args, parse_pairs, records)
        return (yield from self._delivery.call(call))


def _is_whole(value: object) -> bool:
    return isinstance(value, int)


def check_why(why: str) -> str:
    """Return an operator's reason for a change, if the log can keep it. Raises InvalidOption."""
    given: object = why
    if isinstance(given, str) and len(given) <= WHY_MAX and "\0" not in given:
        try:
            given.encode()
        except UnicodeEncodeError:
            pass
        else:
            return why
    raise errors.InvalidOption.of(
        "reason",
        given[:50] if isinstance(given, str) else given,
        f"must be text of at most {WHY_MAX:,} characters, without NUL and lone surrogates",
    )


# The deletion of a queue: its jobs are taken out first, then an event says that it goes, then its keys go.

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
        """Return how many claims are in force."""
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
