"""The jobs of a queue, one by one: those that run, wait, are scheduled or dead. Every read is bounded.

found = client.run(client.calls.listing.jobs("mail", states=[State.READY], task="send", limit=20))
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from rq_core.model.keys import QueueKeys, queue_keys
from rq_core.model.machine import PRIORITIES, State
from rq_core.model.state_line import JobState, read_state_lines
from rq_core.protocol.delivery import Delivery
from rq_core.protocol.lines import PAGE, read_lines
from rq_core.protocol.plan import Plan, pairs_of
from rq_core.protocol.presence import KnownTasks, known_tasks, rows_command

MEMBERS_MAX: Final = 10_000
"""Members of the queue's keys that one list looks at: with a filter, many of them may be left out of it."""


@dataclass(frozen=True, slots=True)
class JobList:
    """Jobs of a queue, as they stood while they were read."""

    jobs: tuple[JobState, ...]
    """Without arguments. Claimed ones first, then ready ones, then those that are scheduled, then dead ones."""
    more: bool
    """Whether there may be more, beyond the limit that was asked for."""
    cut: bool
    """Whether MEMBERS_MAX members were looked at, and there are others."""
    damaged: tuple[str, ...] = ()
    """Why other jobs cannot be read, one sentence each."""


class _Source(NamedTuple):
    """A key that has jobs of some states, in order."""

    states: frozenset[State]
    members: Callable[[QueueKeys, int, int], list[Any]]
    """The command that reads the members from one place to another, both included."""
    id_of: Callable[[str], str]
    """The job that a member stands for; empty: none."""


def _list(rank: int) -> _Source:
    return _Source(
        frozenset({State.READY}),
        lambda keys, first, last: ["LRANGE", keys(f"ready:{rank}"), first, last],
        lambda member: member,
    )


def _set(
    key: str, *states: State, id_of: Callable[[str], str] = str, newest_first: bool = False
) -> _Source:
    order = ["REV"] if newest_first else []
    return _Source(
        frozenset(states),
        lambda keys, first, last: ["ZRANGE", keys(key), first, last, *order],
        id_of,
    )


_SOURCES: Final = (
    _set("leases", State.RUNNING, State.CANCELLING),
    *(_list(rank) for rank in range(len(PRIORITIES))),
    _set("waiting", State.READY, id_of=lambda member: member.rpartition("|")[2]),
    _set(
        "scheduled",
        State.SCHEDULED,
        id_of=lambda member: member[4:] if member.startswith("job|") else "",
    ),
    _set("dead", State.DEAD, newest_first=True),
)


class Listing:
    """The reads that list jobs."""

    def __init__(self, delivery: Delivery) -> None:
        self._delivery = delivery

    def jobs(
        self, queue: str, *, states: Collection[State], task: str | None = None, limit: int = 100
    ) -> Plan[JobList]:
        """The jobs in one of these states, page by page, at most ``limit``; with ``task``, of this task only.

        Running jobs come by the end of their lease, ready ones by list and then by lane, scheduled ones by when they
        are due, dead ones newest first. It is not a snapshot: a job that moves while the list is read may be missing.
        """
        keys = queue_keys(queue, self._delivery.prefix)
        wanted = frozenset(states)
        found: dict[str, JobState] = {}
        damaged: dict[str, None] = {}
        left = MEMBERS_MAX
        for source in _SOURCES:
            if not source.states & wanted:
                continue
            at, whole = 0, False
            while not whole:
                if len(found) >= limit or not left:
                    # Whether this key has another member that counts is not looked at.
                    return JobList(
                        tuple(found.values())[:limit],
                        more=True,
                        cut=not left,
                        damaged=tuple(damaged),
                    )
                count = min(PAGE, left)
                (members,) = yield from self._delivery.ask(
                    [source.members(keys, at, at + count - 1)], queue
                )
                at, left, whole = at + len(members), left - len(members), len(members) < count
                ids = [job_id for job_id in map(source.id_of, members) if job_id]
                jobs, unread = yield from self._standing(keys, ids)
                damaged |= dict.fromkeys(unread)
                for job in jobs:
                    if job.state in wanted and (task is None or job.fields.get("task") == task):
                        found[job.id] = job
        return JobList(
            tuple(found.values())[:limit],
            more=len(found) > limit,
            cut=False,
            damaged=tuple(damaged),
        )

    def _standing(
        self, keys: QueueKeys, ids: Sequence[str]
    ) -> Plan[tuple[list[JobState], list[str]]]:
        """How these jobs stand, and why some cannot be read. A list also has ids that lead nowhere, until a claim
        passes over them."""
        lines = yield from read_lines(self._delivery, keys, ids)
        return read_state_lines(keys.queue, zip(ids, lines, strict=True))

    def known_tasks(self, queue: str) -> Plan[KnownTasks]:
        """Which tasks the workers have that work for the queue now."""
        keys = queue_keys(queue, self._delivery.prefix)
        # The time of the queue's own shard: a cluster's servers have clocks of their own.
        (cursor, rows), (seconds, _) = yield from self._delivery.ask(
            [rows_command(keys), ["TIME"]], queue
        )
        return known_tasks(pairs_of(rows), int(seconds) * 1000, whole=str(cursor) == "0")
