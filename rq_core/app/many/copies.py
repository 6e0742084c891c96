"""The part of an app that enqueues copies of jobs, and replays jobs that died.

    app.replay(Filter(queue="mail", error="TimeoutError", between=(since, None)))

The id of a copy is ``ID.rNAME``: the id of the original, and the name of the replay. A repeated replay with the same
name finds these ids in Redis or in the audit log, and copies no job twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from rq_core.app.many.changes import ChangeProducer
from rq_core.app.many.copying import COPIED, NAME_LOG, Copying, log_of, replay_name, wait_for_log
from rq_core.errors import InvalidOption, NotCopied
from rq_core.model.keys import check_name
from rq_core.model.lib.checks import check_whole

if TYPE_CHECKING:
    from rq_core.app.handles.handle import JobHandle
    from rq_core.app.task import Task
    from rq_core.model.filters.copy_reader import CopyReader
    from rq_core.model.filters.job_filter import Filter

LIMIT_MAX: Final = 1_000_000_000
"""Highest value of ``limit`` in ``replay``."""


@dataclass(frozen=True)
class Replayed:
    """The result of a replay."""

    name: str
    """The name of the replay: the id of each copy is ``ID.rNAME``."""
    matched: int
    """Number of jobs that died and match the filter. If ``limit`` ended the replay early, only the jobs that it has
    reached are counted."""
    copied: int
    """Number of copies that were enqueued. In a dry run: number of copies that the replay would enqueue."""
    outcomes: Mapping[str, int] = field(default_factory=dict)
    """Number of jobs by outcome. The outcomes are: copied, alive, copied before, arguments not kept, arguments not
    valid, id too long, too large, needs the task's code, refused."""


class CopyProducer(ChangeProducer):
    """A producer with the methods for copies of jobs. Threads may share a producer."""

    _tasks: dict[str, Task[..., Any]]

    def copy(
        self,
        job_id: str,
        *,
        queue: str | None = None,
        args: Mapping[str, Any] | None = None,
        name: str | None = None,
        reason: str = "",
        by: str | None = None,
    ) -> JobHandle[Any]:
        """Enqueue a copy of a job, and return the copy's handle. The job itself does not change.

        The copy has the job's arguments, changed by ``args``. The arguments come from Redis. If the job has left Redis,
        they come from the audit log, which has them only with ``audit_payload="full"``. The copy has the job's headers,
        and the present options of the task.

        The copy's id is ``JOB_ID.rNAME``. Without ``name``, NAME is a digest of ``args``. If the job already has a copy
        of this name, no second copy is made: the method returns the handle of the first copy, with ``duplicate`` true.
        It raises NotCopied if the first copy has ended.

        ``queue`` is the job's queue; with None, rq-core finds the queue. The log has ``reason`` and ``by`` with the
        copy; the default of ``by`` is the name of this client. Raises NotCopied, and the errors of enqueue. Raises
        LogBehind if the mirror, the process that writes the audit log, does not run.
        """
        run = replay_name(name, args)
        check_name("job", job_id)
        if queue is not None:
            check_name("queue", queue)
        with log_of(self.audit_url) as log:
            found = queue or self._queue_of(log, job_id)
            return Copying(self, self._tasks, log, found, run, args, by=by, reason=reason).one(
                job_id
            )

    async def copy_async(
        self,
        job_id: str,
        *,
        queue: str | None = None,
        args: Mapping[str, Any] | None = None,
        name: str | None = None,
        reason: str = "",
        by: str | None = None,
    ) -> JobHandle[Any]:
        """Enqueue a copy of a job without blocking the event loop, and return the copy's handle. See copy."""
        import asyncio

        return await asyncio.to_thread(
            self.copy, job_id, queue=queue, args=args, name=name, reason=reason, by=by
        )

    def replay(
        self,
        which: Filter,
        /,
        *,
        args: Mapping[str, Any] | None = None,
        name: str | None = None,
        reason: str = "",
        by: str | None = None,
        dry_run: bool = False,
        limit: int | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> Replayed:
        """Enqueue a copy of each job that died and matches ``which``, the last death first.

        The replay finds the deaths in the audit log. ``which`` may have the terms queue, task, error, worker, scope,
        headers, args, and between (the time of the job's death). A job that was requeued since its death is not copied.
        A job that already has a copy of this ``name`` is not copied again, so a replay can be repeated. See ``copy``
        for ``args``, ``name``, ``reason`` and ``by``.

        ``dry_run=True`` only counts the jobs. ``limit`` is the maximum number of copies. ``progress`` is a function
        that is called after each page with two counts so far: jobs that matched, and jobs that were copied. Raises
        AuditNotConfigured. Raises LogBehind if no mirror runs (the mirror is the process that writes the audit log).
        """
        check_filter(which)
        if limit is not None:
            check_whole("limit", limit, 1, LIMIT_MAX)
        run, outcomes, matched, after = replay_name(name, args), Counter[str](), 0, None
        with log_of(self.audit_url) as log:
            copying = Copying(
                self, self._tasks, log, which.queue, run, args, which, by=by, reason=reason
            )
            while True:
                room = None if limit is None else limit - outcomes[COPIED]
                page = copying.step(after, room, dry_run=dry_run)
                matched += len(page.outcomes)
                outcomes.update(page.outcomes.values())
                if progress is not None:
                    progress(matched, outcomes[COPIED])
                after = page.next
                if after is None or (limit is not None and outcomes[COPIED] >= limit):
                    break
        return Replayed(run, matched, outcomes[COPIED], dict(outcomes))

    async def replay_async(
        self,
        which: Filter,
        /,
        *,
        args: Mapping[str, Any] | None = None,
        name: str | None = None,
        reason: str = "",
        by: str | None = None,
        dry_run: bool = False,
        limit: int | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> Replayed:
        """Enqueue a copy of each job that died and matches ``which``, without blocking the event loop. Another thread
        does the work, and calls ``progress``. See replay."""
        import asyncio

        return await asyncio.to_thread(
            self.replay,
            which,
            args=args,
            name=name,
            reason=reason,
            by=by,
            dry_run=dry_run,
            limit=limit,
            progress=progress,
        )

    def _queue_of(self, log: CopyReader | None, job_id: str) -> str:
        found = self.client.run(self.client.calls.reads.job(job_id))
        if found is not None:
            return found.queue
        queues = []
        if log is not None:
            for each in self.client.run(self.client.calls.reads.queues()):
                wait_for_log(self.client, log, each)
            queues = log.queues_of(job_id)
        if len(queues) == 1:
            return queues[0]
        if queues:
            why = f"it is in the queues {', '.join(queues)}: name one"
        elif log is None:
            why = f"no queue has it. {NAME_LOG}"
        else:
            why = "neither a queue nor the audit log has it"
        raise NotCopied(f"job {job_id} was not copied: {why}.", queue="?", id=job_id, why=why)


def check_filter(which: object) -> None:
    """Raise InvalidOption unless ``which`` is a Filter."""
    from rq_core.model.filters.job_filter import Filter

    if not isinstance(which, Filter):
        raise InvalidOption.of("filter", which, "must be a Filter, like Filter(queue='mail')")
