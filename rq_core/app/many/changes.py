"""The part of an app that changes many jobs at once: all jobs of a queue that match a filter.

app.cancel_where(Filter(queue="mail", headers={"tenant": "acme"}), reason="account closed")
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from rq_core.app.options import EditOptions
from rq_core.app.schedules import ScheduleProducer

if TYPE_CHECKING:
    from rq_core.model.filters.job_filter import Filter
    from rq_core.protocol.calls.bulk import JobsChanged, Progress
    from rq_core.protocol.engine.plan import Plan
    from rq_core.protocol.operations import Operations


class BulkOptions(TypedDict, total=False):
    """The options of a change of many jobs.

    - ``reason`` is in the log with each job's change, after the id of the whole change.
    - ``by`` is the person or program that makes the change, for the log; by default, the name of this client.
    - ``limit`` is the maximum number of jobs that are changed.
    - ``dry_run=True`` changes no job and counts the jobs that match.
    - ``progress`` is a function that is called after each page of jobs. Its argument ``place`` says how far the change
      has come. ``place.looked``, ``place.matched`` and ``place.changed`` are the numbers of jobs that were read, that
      matched, and that were changed.
    - ``resume`` is ``str(place)`` of an earlier change that was stopped. The new call continues the earlier change from
      there.
    """

    reason: str
    by: str | None
    limit: int | None
    dry_run: bool
    progress: Progress | None
    resume: str | None


class EditWhereOptions(BulkOptions, EditOptions, total=False):
    """The options of ``edit_where``: those of BulkOptions, and the new values for the jobs as in JobHandle.edit."""


class ChangeProducer(ScheduleProducer):
    """A producer with the methods for changes of many jobs. Threads may share a producer.

    Each change goes through the queue in pages of at most 250 jobs. After each page, the change pauses 1.5 times as
    long as the page took, at most 1 s, so that workers can work. Jobs move while the queue is read. So the change reads
    the whole queue up to three times; it ends early if a reading changes no job. A change that was stopped at any
    moment can be repeated, or can continue. Each job is changed once.
    """

    def cancel_where(self, which: Filter, /, **options: Unpack[BulkOptions]) -> JobsChanged:
        """Cancel all jobs of a queue that match ``which``. If ``which`` names no state, only jobs that are ready,
        scheduled or parked are cancelled.

        A job that a worker claims meanwhile is left alone. If ``which`` has the state running, running jobs are asked
        to stop. The children of cancelled jobs are cancelled, too, even if they are in other queues.

        See BulkOptions for the options. Raises InvalidOption.
        """
        return self.client.run(_plan(self.client.calls, "cancel", which, options))

    async def cancel_where_async(
        self, which: Filter, /, **options: Unpack[BulkOptions]
    ) -> JobsChanged:
        """Cancel all matching jobs of a queue without blocking the event loop. See cancel_where."""
        client = self.async_client()
        return await client.run(_plan(client.calls, "cancel", which, options))

    def requeue_where(self, which: Filter, /, **options: Unpack[BulkOptions]) -> JobsChanged:
        """Requeue all dead jobs of a queue that match ``which``, the oldest first: the jobs become ready again.

        The dead children of a job, in whichever queue, are requeued before the job. Jobs that die during the change
        stay dead.

        See BulkOptions for the options. Raises InvalidOption.
        """
        return self.client.run(_plan(self.client.calls, "requeue", which, options))

    async def requeue_where_async(
        self, which: Filter, /, **options: Unpack[BulkOptions]
    ) -> JobsChanged:
        """Requeue all matching dead jobs of a queue without blocking the event loop. See requeue_where."""
        client = self.async_client()
        return await client.run(_plan(client.calls, "requeue", which, options))

    def edit_where(self, which: Filter, /, **options: Unpack[EditWhereOptions]) -> JobsChanged:
        """Change the priority, due time or deadline of all waiting jobs of a queue that match ``which``.

        ``delay`` and ``expires`` in seconds count from the beginning of the whole change. See JobHandle.edit and
        BulkOptions for the options. Raises InvalidOption, or AuditBacklogFull.
        """
        return self.client.run(_plan(self.client.calls, "edit", which, options))

    async def edit_where_async(
        self, which: Filter, /, **options: Unpack[EditWhereOptions]
    ) -> JobsChanged:
        """Change all matching waiting jobs of a queue without blocking the event loop. See edit_where."""
        client = self.async_client()
        return await client.run(_plan(client.calls, "edit", which, options))

    def prune_where(self, which: Filter, /, **options: Unpack[BulkOptions]) -> JobsChanged:
        """Remove from Redis all dead jobs of a queue that match ``which``. Their history stays in SQL.

        See BulkOptions for the options. Raises InvalidOption.
        """
        return self.client.run(_plan(self.client.calls, "prune", which, options))

    async def prune_where_async(
        self, which: Filter, /, **options: Unpack[BulkOptions]
    ) -> JobsChanged:
        """Remove all matching dead jobs of a queue without blocking the event loop. See prune_where."""
        client = self.async_client()
        return await client.run(_plan(client.calls, "prune", which, options))


def _plan(calls: Operations, verb: str, which: Filter, options: Any) -> Plan[JobsChanged]:
    """Return the plan of a change of many jobs, which is the series of calls to Redis. Raises InvalidOption, and
    TypeError for an unknown option."""
    from rq_core.protocol.calls.bulk import VERBS, BulkChange, BulkPlace

    given = dict(options)
    progress, resume = given.pop("progress", None), given.pop("resume", None)
    own = {name: given.pop(name) for name in _OWN if name in given}
    if verb == "edit":
        from rq_core.app.handles.edit import change_of

        own["edit"] = change_of("-", **given)
    elif given:
        known = ", ".join(BulkOptions.__annotations__)
        unknown = next(iter(given))
        raise TypeError(f"{verb}_where() has no option {unknown!r}: its options are {known}")
    change = BulkChange(VERBS[verb], which, **own)
    place = None if resume is None else BulkPlace.parse(resume)
    return calls.bulk.run(change, place, progress)


_OWN = ("reason", "by", "limit", "dry_run")
