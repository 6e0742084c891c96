"""Reads the running, ready, scheduled, parked and dead jobs of a queue. Every read is bounded.

For example:

    found = client.run(client.calls.reads.jobs("mail", states=[State.READY], task="send", limit=20))
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from rq_core.errors import QueueDamaged, ServerUnsuitable
from rq_core.model.events import Undecodable, decode
from rq_core.model.filters.job_filter import Filter
from rq_core.model.idempotency import ResultLine, read_result
from rq_core.model.keys import QueueKeys, check_name
from rq_core.model.outcome import EXPIRED
from rq_core.model.state_line import JobState
from rq_core.model.table.machine import PRIORITIES, Event, State
from rq_core.protocol.engine.plan import Plan, pairs_of
from rq_core.protocol.reads.matches import matching
from rq_core.protocol.reads.steps import (
    PAGE,
    Command,
    QueueReader,
    Steps,
    errors_of,
    jobs_of,
    time_ms,
)
from rq_core.protocol.reads.worker_registry import KnownTasks, known_tasks, rows_command, rows_of

MEMBERS_MAX: Final = 10_000
"""Maximum number of members of the queue's keys that are read for one list of jobs. The limit is needed because a
filter may leave many of them out."""

RECENT_MAX: Final = 1_000
"""Maximum number of entries of the outbox (the stream of events) that are searched for rollbacks: events by which
workers gave jobs back."""
_STEPS: Final = frozenset(
    {
        Event.CLAIMED,
        Event.RETRIED,
        Event.ROLLED_BACK,
        Event.LEASE_EXPIRED,
        Event.REQUEUED,
        Event.RESTORED,
    }
)
"""Events of a job after which an earlier rollback of the job no longer explains why the job waits."""


class GivenBack(NamedTuple):
    """The rollback of a job: why a worker gave the job back, which worker, and when."""

    reason: str
    by: str
    at_ms: int


@dataclass(frozen=True, slots=True)
class JobList:
    """Jobs of a queue. Each job is in the state that it had when it was read."""

    jobs: tuple[JobState, ...]
    """The jobs, without their arguments: claimed jobs first, then ready, scheduled, parked and dead jobs."""
    more: bool
    """True if the queue may have further jobs that match, beyond the limit."""
    cut: bool
    """True if the read stopped at its maximum number of members (by default MEMBERS_MAX). The queue may have further
    jobs that match."""
    damaged: tuple[str, ...] = ()
    """A message for each job that cannot be read."""
    total: int = 0
    """Number of all dead jobs of the queue, if ``JobReads.dead`` has returned this list; otherwise 0."""


class _Source(NamedTuple):
    """A list or sorted set in Redis that has the ids of jobs in some states, in order."""

    key: str
    states: frozenset[State]
    id_of: Callable[[str], str] = str
    """The function that returns the job's id in a member of the key; an empty text for a member without a job."""
    order: tuple[str, ...] = ()

    def members(self, keys: QueueKeys, first: int, last: int) -> Command:
        """Return the command that reads the members at the positions ``first`` to ``last``, both included."""
        command = "LRANGE" if self.key.startswith("ready:") else "ZRANGE"
        return [command, keys(self.key), first, last, *self.order]


_SOURCES: Final = (
    _Source("leases", frozenset({State.RUNNING, State.CANCELLING})),
    *(_Source(f"ready:{rank}", frozenset({State.READY})) for rank in range(len(PRIORITIES))),
    _Source("waiting", frozenset({State.READY}), lambda member: member.rpartition("|")[2]),
    _Source(
        "scheduled",
        frozenset({State.SCHEDULED}),
        lambda member: member[4:] if member.startswith("job|") else "",
    ),
    _Source("parked", frozenset({State.PARKED})),
    _Source("dead", frozenset({State.DEAD}), order=("REV",)),
)


class JobReads(QueueReader):
    """Reads the jobs of a queue: lists of jobs, and the ends and rollbacks of single jobs."""

    def jobs(
        self,
        queue: str,
        *,
        states: Collection[State],
        task: str | None = None,
        limit: int = 100,
        which: Filter | None = None,
        now_ms: int = 0,
        members: int | None = None,
    ) -> Plan[JobList]:
        """Return at most ``limit`` jobs in these states, read page by page. With ``task``, only jobs of this task are
        returned.

        With ``which``, only jobs that match this filter at the time ``now_ms`` (Unix ms) are returned. At most
        ``members`` members of keys are read (default: MEMBERS_MAX).

        Running jobs are ordered by the expiry of their lease. Ready jobs without scopes come first, by priority; then
        ready jobs with scopes, by lane. (A lane has the jobs of one priority and the same scopes.) Scheduled jobs are
        ordered by due time, and parked jobs by the time at which they parked. Dead jobs are ordered by death, newest
        first. A job that changes during the read may be missing.
        """
        keys = self._keys(queue)

        def chosen(jobs: Sequence[JobState]) -> Steps[list[JobState]]:
            found = [job for job in jobs if task in (None, job.fields.get("task"))]
            if which is not None:
                found = yield from matching(keys, found, which, now_ms)
            return found

        return self.exactly(
            queue, _jobs(keys, frozenset(states), chosen, limit, members or MEMBERS_MAX)
        )

    def dead(self, queue: str, limit: int = 100) -> Plan[JobList]:
        """Return the jobs that died last, newest first, each with the error of its death."""
        return self.exactly(queue, _dead(self._keys(queue), limit))

    def ended(
        self, job_id: str, queues: Sequence[str]
    ) -> Plan[tuple[str, ResultLine, str | None] | None]:
        """Return what Redis still knows of an ended job: the job's queue, its parsed line in the key ``results``, and
        its result or None.

        The first of ``queues`` that has a line for the job is read. Returns None if no queue has one. Expired lines and
        results are ignored.
        """
        check_name("job", job_id)
        for queue in queues:
            keys = self._keys(queue)
            asked: list[list[Any]] = [
                ["HGET", keys(key), job_id] for key in ("results", "returned")
            ]
            line, value, now = yield from self._delivery.ask([*asked, ["TIME"]], queue)
            result, now_ms = None if line is None else read_result(job_id, line), time_ms(now)
            if result is None or (result.forgotten_ms or 0) <= now_ms:
                continue
            if value is not None and (result.until_ms or 0) <= now_ms:
                result, value = result._replace(missing=EXPIRED), None
            return queue, result, value
        return None

    def given_back(self, queue: str, jobs: Sequence[JobState]) -> Plan[dict[str, GivenBack]]:
        """Return, by job id, the rollback of each job in ``jobs`` that waits because a worker gave it back. Only the
        last RECENT_MAX entries of the outbox are searched."""
        open_ids = {
            job.id
            for job in jobs
            if job.state in (State.READY, State.SCHEDULED) and "claim" in job.fields
        }
        found: dict[str, GivenBack] = {}
        if not open_ids:
            return found
        asked = [["XREVRANGE", self._keys(queue)("outbox"), "+", "-", "COUNT", RECENT_MAX]]
        try:
            (entries,) = yield from self._delivery.ask(asked, queue)
        except (QueueDamaged, ServerUnsuitable):
            # The jobs' states are known without it.
            return found
        for entry_id, flat in entries:
            try:
                entry = decode(entry_id, pairs_of(flat))
            except Undecodable:
                continue
            if entry.event not in _STEPS:
                continue
            for event in entry.jobs:
                if event.job_id in open_ids and entry.event is Event.ROLLED_BACK:
                    found[event.job_id] = GivenBack(event.fields["reason"], entry.by, entry.at_ms)
                open_ids.discard(event.job_id)
        return found

    def known_tasks(self, queue: str) -> Plan[KnownTasks]:
        """Return the tasks of the workers that serve the queue now."""
        # The time of the queue's own shard: a cluster's servers have clocks of their own.
        commands = [["TIME"], rows_command(self._keys(queue))]
        now, (cursor, found) = yield from self._delivery.ask(commands, queue)
        rows = pairs_of(found)
        return known_tasks(rows, rows_of(rows, time_ms(now)), whole=str(cursor) == "0")


def _jobs(
    keys: QueueKeys,
    states: frozenset[State],
    chosen: Callable[[Sequence[JobState]], Steps[list[JobState]]],
    limit: int,
    most: int,
) -> Steps[JobList]:
    """Return at most ``limit`` jobs in these states that pass the filter ``chosen``. At most ``most`` members of keys
    are read.
    """
    found: dict[str, JobState] = {}
    damaged: dict[str, None] = {}
    whole = True
    for source in (each for each in _SOURCES if each.states & states):
        at, whole = 0, False
        while not whole and most and len(found) < limit:
            count = min(PAGE, most)
            (members,) = yield [source.members(keys, at, at + count - 1)]
            at, most, whole = at + len(members), most - len(members), len(members) < count
            ids = [job_id for job_id in map(source.id_of, members) if job_id]
            jobs, unread = yield from jobs_of(keys, ids)
            damaged |= dict.fromkeys(unread)
            some = yield from chosen([job for job in jobs if job.state in states])
            found |= {job.id: job for job in some}
        if not whole:
            # The rest of this key is not searched for further jobs.
            break
    return JobList(
        tuple(found.values())[:limit],
        more=not whole or len(found) > limit,
        cut=not whole and not most,
        damaged=tuple(damaged),
    )


def _dead(keys: QueueKeys, limit: int) -> Steps[JobList]:
    (total,) = yield [["ZCARD", keys("dead")]]
    found = yield from _jobs(keys, frozenset({State.DEAD}), _each, limit, total)
    said = yield from errors_of(keys, [job.id for job in found.jobs])
    jobs = (replace(job, error=error) for job, error in zip(found.jobs, said, strict=True))
    more = total > len(found.jobs) + len(found.damaged)
    return replace(found, jobs=tuple(jobs), more=more, cut=False, total=total)


def _each(jobs: Sequence[JobState]) -> Steps[list[JobState]]:
    """Return all of the given jobs: the filter that leaves out no job. It sends no command."""
    yield from ()
    return list(jobs)
