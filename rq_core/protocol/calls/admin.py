"""The changes that operators make in a queue: cancel, edit, requeue, prune, configure and delete."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

from rq_core import errors
from rq_core.errors import QueueInUse
from rq_core.model.keys import check_name, queue_keys, queues_key
from rq_core.model.settings import FLAGS, SETTINGS, VALUE_MAX
from rq_core.model.table.machine import State
from rq_core.protocol.engine.delivery import Delivery
from rq_core.protocol.engine.plan import Call, Plan, Slot, pairs_of, parse_pairs
from rq_core.protocol.reads.reads import Reads

IDS_CHUNK: Final = 250
"""Maximum number of jobs, or names, in one script call of an operator's change."""
WHY_MAX: Final = 4_000
"""Maximum number of characters of an operator's reason for a change."""


class Change(NamedTuple):
    """The new options that an edit gives to waiting jobs. An empty string leaves an option unchanged."""

    priority: str = ""
    """Name of the new priority."""
    due: str = ""
    """The new due time: Unix ms, or ``+`` and a number of ms from now (``+0``: at once)."""
    expires: str = ""
    """The new deadline, in the same form as ``due``; ``-`` removes the deadline."""


class Admin:
    """The calls with which an operator changes jobs and settings.

    One script call changes at most IDS_CHUNK jobs; for more ids, several calls are made. ``slot`` is the name and
    number that a caller gives to a call, so that Redis carries out a repeated call only once. A caller may pass
    ``slot`` only if all ids fit into one call.
    """

    def __init__(self, delivery: Delivery) -> None:
        self._delivery = delivery

    def cancel(
        self,
        queue: str,
        ids: Sequence[str],
        *,
        only: Iterable[State] = (),
        ended: Mapping[str, int] = MappingProxyType({}),
        by: str | None = None,
        why: str = "",
        slot: Slot | None = None,
    ) -> Plan[dict[str, str]]:
        """Cancel jobs. Returns the outcome by id: cancelled, cancelling (the job runs, and was asked to stop), dead, or
        gone.

        With ``only``, a job that is in none of these states stays unchanged, and its outcome is its state.

        ``ended`` protects jobs that have run meanwhile. It has, by id, how many claims of the job had ended when the
        caller read the job with :meth:`BoxReads.lives_and_ends`. If another claim of the job has ended since, the job
        stays unchanged, and its outcome is ``moved``.
        """
        args = {"only": " ".join(only)}

        def of_each(job_id: str) -> tuple[str, ...]:
            return (str(ended.get(job_id, "")),)

        return (yield from self._for_ids("cancel", queue, ids, by, why, args, of_each, slot=slot))

    def edit(
        self,
        queue: str,
        ids: Sequence[str],
        change: Change,
        *,
        line: str = "",
        by: str | None = None,
        why: str = "",
        slot: Slot | None = None,
    ) -> Plan[dict[str, str]]:
        """Change the priority, due time or deadline of waiting jobs. Returns the outcome by id.

        - edited: the job has the new options.
        - same: the job had these options already.
        - never: the job would become ready at its deadline or later. It stays unchanged.
        - gone: Redis does not have the job.
        - the name of a state, such as running: the job does not wait, but is in this state. It stays unchanged.
        - changed: ``line`` was given, and the job's state line differs from it. The job stays unchanged.

        Raises AuditBacklogFull if too many events wait to be copied into SQL.
        """
        args = change._asdict()

        def of_each(_: str) -> tuple[str, ...]:
            return (line,)

        return (yield from self._for_ids("edit", queue, ids, by, why, args, of_each, slot=slot))

    def requeue(
        self,
        queue: str,
        ids: Sequence[str],
        *,
        by: str | None = None,
        why: str = "",
        slot: Slot | None = None,
    ) -> Plan[dict[str, str]]:
        """Make dead jobs ready again. Returns the outcome by id: requeued, held (another job holds the unique name),
        gone, or the state of a job that is not dead."""
        return (yield from self._for_ids("requeue", queue, ids, by, why, slot=slot))

    def prune(
        self,
        queue: str,
        ids: Sequence[str],
        *,
        by: str | None = None,
        why: str = "",
        slot: Slot | None = None,
    ) -> Plan[dict[str, str]]:
        """Remove dead jobs. Returns the outcome by id: pruned, gone, or the state of a job that is not dead."""
        return (yield from self._for_ids("prune", queue, ids, by, why, slot=slot))

    def _for_ids(
        self,
        name: str,
        queue: str,
        ids: Sequence[str],
        by: str | None,
        why: str,
        more: Mapping[str, str] | None = None,
        of_each: Callable[[str], tuple[str, ...]] = lambda _: (),
        slot: Slot | None = None,
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
                    [(i, *of_each(i)) for i in chunk],
                    chunk,
                    absent=dict.fromkeys(chunk, "gone"),
                    slot=slot,
                )
            )
        return outcomes

    def configure(
        self, queue: str, values: Mapping[str, int], *, by: str | None = None, why: str = ""
    ) -> Plan[dict[str, str]]:
        """Change settings and flags of a queue. The flags ``paused`` and ``fair`` are 0 or 1. Returns, by field,
        whether its value has changed: changed or same. Raises InvalidOption for an unknown field or an invalid value.
        """
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
    """Return an operator's reason for a change. Raises InvalidOption if the log cannot store the text."""
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


# The deletion of a queue: its jobs are removed first, then an event is appended, then its keys are deleted.

DELETED: Final = "deleted"
WAITS: Final = "waits"
"""The answer of ``delete`` if the event of the deletion is in the outbox, but the mirror has not yet copied it into
SQL. The caller must call ``delete`` again later."""
ABSENT: Final = "absent"
"""The answer of ``delete`` if the queue does not exist."""


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
        """Delete a queue that has neither jobs nor claims. Returns DELETED; WAITS if the mirror must copy the event of
        the deletion first; or ABSENT if there is no such queue.

        This call does not begin with a handshake, because a handshake would create a missing queue. Raises QueueInUse
        if the queue has jobs or claims.
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
        """Remove a deleted queue from the list of queues. If a producer has created the queue again meanwhile, put the
        queue back on the list."""
        listed = queues_key(self._delivery.prefix)
        yield from self._delivery.ask([["SREM", listed, queue]])
        if (yield from self._reads.is_there(queue)):
            yield from self._delivery.ask([["SADD", listed, queue]])

    def claims(self, queue: str) -> Plan[int]:
        """Return the number of jobs of the queue that a worker has claimed and not settled."""
        keys = queue_keys(queue, self._delivery.prefix)
        (claims,) = yield from self._delivery.ask([["ZCARD", keys("leases")]], queue)
        return int(claims)

    def empty(self, queue: str, *, by: str | None = None, why: str = "") -> Plan[int]:
        """Cancel all jobs of a queue, and remove the dead jobs. Returns the number of removed jobs.

        A running job is asked to stop. It stays in the queue until it ends.
        """
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
