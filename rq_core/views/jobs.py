"""Views of jobs: the jobs of a queue, the dead jobs, and the jobs that hold unique names."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from rq_core.model.job import place_in
from rq_core.model.lib.text import counted, number_in, printable
from rq_core.model.state_line import JobState, write_line
from rq_core.model.table.machine import (
    DEFAULT_MAX_ATTEMPTS,
    DEFAULT_MAX_LOSSES,
    DEFAULT_PRIORITY,
    LEFT_OPEN,
    State,
)
from rq_core.protocol.reads.job_reads import MEMBERS_MAX
from rq_core.views.table import Found
from rq_core.views.text import shortened, span

if TYPE_CHECKING:
    from rq_core.model.filters.job_filter import Filter
    from rq_core.protocol.calls.unique import HeldName
    from rq_core.protocol.engine.plan import Plan
    from rq_core.protocol.operations import Operations
    from rq_core.protocol.reads.job_reads import GivenBack
    from rq_core.protocol.reads.worker_registry import KnownTasks

ALIVE: Final = tuple(state for state in State if state is not State.DEAD)


class ListedJob(NamedTuple):
    """A row of the list of jobs.

    It has the job, the tasks of its queue's workers, and the last time that a worker gave the job back.
    """

    job: JobState
    known: KnownTasks
    back: GivenBack | None = None

    @property
    def waits(self) -> bool:
        """Return whether the job is ready or scheduled, so that a worker may claim it now or later."""
        return self.job.state in (State.READY, State.SCHEDULED)

    @property
    def task_known(self) -> bool | None:
        """Return whether a live worker has the job's task; None: this is unknown, or no worker is alive."""
        return self.known.knows(self.job.fields.get("task"))


# Queries.


def listed(
    calls: Operations,
    queue: str,
    states: Sequence[State],
    task: str | None,
    limit: int,
    *,
    which: Filter | None = None,
    now_ms: int = 0,
    members: int | None = None,
) -> Plan[Found[ListedJob]]:
    """Return at most ``limit`` jobs of a queue in these states. Without ``states``, return jobs that are not dead.

    If ``task`` is given, jobs of other tasks are left out; if ``which`` is given, jobs that do not match this filter
    are left out. The filter compares times with ``now_ms`` (Unix ms). At most ``members`` jobs are
    read (by default MEMBERS_MAX).
    """
    wanted = states or ALIVE
    found = yield from calls.reads.jobs(
        queue, states=wanted, task=task, limit=limit, which=which, now_ms=now_ms, members=members
    )
    known = yield from calls.reads.known_tasks(queue)
    back = yield from calls.reads.given_back(queue, found.jobs)
    of_task = f" of task {task}" if task is not None else ""
    *others, last = map(str, wanted)
    either = f"{', '.join(others)} or {last}" if others else last
    notes = []
    if found.cut:
        notes.append(
            f"read {members or MEMBERS_MAX:,} of the queue's jobs and stopped: --state leaves out other states"
        )
    elif found.more:
        notes.append(f"the first {len(found.jobs):,}; --limit shows more")
    if not known.workers:
        notes.append(f"no worker runs for {queue}")
    return Found(
        [ListedJob(job, known, back.get(job.id)) for job in found.jobs],
        empty=f"no jobs{of_task} in {queue} are {either}",
        notes=notes,
        unread=found.damaged,
    )


def dead_jobs(calls: Operations, queue: str, limit: int) -> Plan[Found[JobState]]:
    """Return at most ``limit`` dead jobs of a queue: those that died last."""
    found = yield from calls.reads.dead(queue, limit)
    more = f"{len(found.jobs):,} of {found.total:,}; --limit shows more"
    return Found(
        found.jobs,
        empty=f"no dead jobs in {queue}",
        notes=[more] if found.more else [],
        unread=found.damaged,
    )


def held_names(
    calls: Operations, queue: str, name: str | None, limit: int
) -> Plan[Found[HeldName]]:
    """Return the unique names that jobs of a queue hold, each with its job. With ``name``, return only this name."""
    found = yield from calls.names.held(queue, name, limit=limit + 1)
    which = f"the name {name}" if name is not None else "a name"
    return Found(
        found[:limit],
        empty=f"no job of {queue} holds {which}",
        notes=[f"{limit:,} of them; --limit shows more"] if len(found) > limit else [],
        unread=[each.damaged for each in found[:limit] if each.damaged],
    )


# Cells.


def number(job: JobState, name: str, default: int = 0) -> int:
    """Return a number in a job's state line, or ``default`` if the line lacks it."""
    found = number_in(job.fields.get(name))
    return default if found is None else found


def time_in_state(job: JobState | None, now_ms: float) -> str:
    """Return how long a job has been in its state, as text; empty if there is no job."""
    if job is None:
        return ""
    return "?" if job.since_ms is None else span(now_ms - job.since_ms)


def unknown_task(row: ListedJob) -> str:
    """Return a sentence if no live worker has a waiting job's task; empty if one has it, or if this is unknown."""
    return "no live worker has this task" if row.waits and row.task_known is False else ""


def blind_returns(row: ListedJob) -> str:
    """Return a phrase with the number of times that workers gave a waiting job back.

    The phrase is empty if the number is 0, or if the outbox still shows why a worker gave the job back last.
    """
    times = number(row.job, "unknown")
    blind = row.waits and row.back is None and times
    return (
        f"{counted(times, 'time')} by workers that lack its task or refuse its arguments"
        if blind
        else ""
    )


def notes(row: ListedJob, now_ms: float) -> str:
    """Return notes about a job as one text, such as when it is due, how often it has failed, and why it died."""
    job, fields = row.job, row.job.fields
    found = [unknown_task(row)]
    if row.back is not None:
        found.append(f"given back: {row.back.reason}")
    elif blind := blind_returns(row):
        found.append(f"given back {blind}")
    due_ms = number_in(fields.get("due"))
    if job.state in (State.SCHEDULED, State.PARKED) and due_ms is not None:
        left = due_ms - now_ms
        found.append(f"due in {span(left)}" if left > 0 else f"due since {span(-left)}")
    if fields.get("by"):
        found.append(f"by {fields['by']}")
    if fields.get("priority", str(DEFAULT_PRIORITY)) != str(DEFAULT_PRIORITY):
        found.append(f"{fields['priority']} priority")
    for name, title in (("failed", "failures: "), ("lost", "losses: "), ("lane", "lane ")):
        if fields.get(name):
            found.append(f"{title}{fields[name]}")
    if job.state is State.DEAD:
        found.append(fields.get("reason", "?"))
    return "; ".join(filter(None, found))


def died_of(job: JobState) -> str:
    """Return the error that killed a job, with its place in the code; empty if the job died without an error."""
    if job.error is None:
        return ""
    place = place_in(job.error.traceback)
    return shortened(str(job.error)) + (f" ({printable(place)})" if place else "")


def holder_state(held: HeldName) -> str:
    """Return the state of the job that holds a unique name: "gone" if the job has ended, "?" if its state is
    unreadable.
    """
    if held.job is not None:
        return str(held.job.state)
    return "?" if held.damaged else "gone"


# Documents.


def job_document(job: JobState) -> dict[str, Any]:
    """Return a job as a JSON document. Times are Unix ms."""
    document: dict[str, Any] = {
        "id": job.id,
        "queue": job.queue,
        "state": str(job.state),
        "task": job.fields.get("task"),
        "priority": job.fields.get("priority", str(DEFAULT_PRIORITY)),
        "claims": number(job, "claim"),
        "failures": number(job, "failed"),
        "max_attempts": _limit(job, "attempts", DEFAULT_MAX_ATTEMPTS),
        "losses": number(job, "lost"),
        "max_losses": _limit(job, "losses", DEFAULT_MAX_LOSSES),
        "base": job.fields.get("base"),
        "since_ms": job.since_ms or None,
        "due_ms": number(job, "due") or None,
        "expires_ms": number(job, "expires") or None,
        "worker": job.fields.get("by"),
        "fence": job.fields.get("fence"),
        "reason": job.fields.get("reason"),
        "error": None if job.error is None else job.error._asdict(),
        "line": write_line(job.state, job.fields),
    }
    if job.spec is not None:
        document["args"] = _part(job.spec, "args")
        document["headers"] = _part(job.spec, "headers") or {}
    return document


def listed_document(row: ListedJob) -> dict[str, Any]:
    """Return a row of the list of jobs as a JSON document."""
    return job_document(row.job) | {
        "task_known": row.task_known,
        "given_back": None if row.back is None else row.back._asdict(),
    }


def name_document(held: HeldName) -> dict[str, Any]:
    """Return a JSON document about a unique name and the job that holds it."""
    job = None if held.job is None else job_document(held.job)
    return {"name": held.name, "id": held.job_id, "until_ms": held.until_ms, "job": job}


def _limit(job: JobState, name: str, default: int) -> int | None:
    """Return a job's maximum number of attempts or losses; None if the worker's definition of the task decides."""
    limit = number(job, name, default)
    return None if limit == LEFT_OPEN else limit


def _part(spec: str, name: str) -> Any:
    try:
        return json.loads(spec)[name]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
