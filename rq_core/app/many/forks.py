"""The part of an app that enqueues forks of durable jobs.

    app.fork("o-1", from_step="receipt", by="ann", reason="wrong address")

A fork is a copy of a durable job that runs from a chosen step on. The entries (steps, waits and sleeps) that the job
has saved before this step become entries of the fork. The worker that runs the fork copies them
(:mod:`rq_core.worker.execution.forks`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rq_core.app.many.copies import CopyProducer
from rq_core.app.many.copying import Copying, log_of, replay_name
from rq_core.errors import InvalidOption
from rq_core.model.headers import FORK_HEADER
from rq_core.model.keys import check_name

if TYPE_CHECKING:
    from rq_core.app.handles.handle import JobHandle


class ForkProducer(CopyProducer):
    """A producer with the methods for forks. Threads may share a producer."""

    def fork(
        self,
        job_id: str,
        *,
        from_step: str | None = None,
        queue: str | None = None,
        name: str | None = None,
        reason: str = "",
        by: str | None = None,
    ) -> JobHandle[Any]:
        """Enqueue a fork of a durable job, which is a copy that runs from a step on. Return the copy's handle. The job
        itself does not change.

        The copy has the task, the arguments, the headers and the queue of the job, and the present options of the task.
        The entries that the job has saved before ``from_step`` become entries of the copy: their functions are not
        called. ``from_step`` is a step, a wait, a sleep, a ``map`` or a ``run`` that the job has begun or saved; with
        None, the copy continues after all entries.

        The entries come from Redis, which has them until the job ends or, if the job is dead, until it is pruned. Later
        they come from the audit log, which this app and its workers must know, and which has them only with
        ``audit_payload="full"`` and ``audit_result="full"``.

        The copy's id is ``JOB_ID.fNAME``. Without ``name``, NAME is a digest of ``from_step``. If the job already has a
        fork of this name, no second fork is made: the method returns the handle of the first fork, with ``duplicate``
        true. It raises NotCopied if the first fork has ended.

        ``queue`` is the job's queue; with None, rq-core finds the queue. The log has ``reason`` and ``by`` with the
        copy, and the reason begins with the job and the step. Raises NotCopied, and the errors of enqueue. Raises
        LogBehind if the mirror, the process that writes the audit log, does not run.
        """
        run = _fork_name(name, from_step)
        check_name("job", job_id)
        if queue is not None:
            check_name("queue", queue)
        if by is not None:
            check_name("actor", by)
        # To declare a task needs neither boxes nor the protocol.
        from rq_core.app.many.origins import origin_in
        from rq_core.protocol.calls.admin import check_why

        why = f"fork of {job_id} from {from_step or 'its end'}{f': {reason}' if check_why(reason) else ''}"
        with log_of(self.audit_url) as log:
            found = queue or self._queue_of(log, job_id)
            header = origin_in(self, log, found, job_id, from_step)
            copying = Copying(self, self._tasks, log, found, run, None, by=by, reason=why)
            return copying.one(job_id, f"{job_id}.f{run}", {FORK_HEADER: header})

    async def fork_async(
        self,
        job_id: str,
        *,
        from_step: str | None = None,
        queue: str | None = None,
        name: str | None = None,
        reason: str = "",
        by: str | None = None,
    ) -> JobHandle[Any]:
        """Enqueue a fork of a durable job without blocking the event loop, and return the copy's handle. See fork."""
        import asyncio

        return await asyncio.to_thread(
            self.fork, job_id, from_step=from_step, queue=queue, name=name, reason=reason, by=by
        )


def _fork_name(name: str | None, step: str | None) -> str:
    """Return the name of a fork: ``name``, or by default a digest of the step. Raises InvalidOption for an invalid
    name or step."""
    given: object = step
    if given is not None and (not isinstance(given, str) or not given):
        raise InvalidOption.of("from_step", step, "must be the name of a step, or None")
    return replay_name(name, None if step is None else {"step": step})
