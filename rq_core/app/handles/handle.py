"""The handle of a job that a producer enqueued."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, Unpack

from rq_core.errors import AuditNotConfigured, IdempotencyMismatch, ScopeFull, UniqueHeld
from rq_core.model import plugins
from rq_core.model.job import KEEP_TIE
from rq_core.model.lib.durations import Duration
from rq_core.model.outcome import keeps_none
from rq_core.model.table.effects import JOB_ENDS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from rq_core.app.handles.watching import Watched
    from rq_core.app.options import EditOptions
    from rq_core.app.producer import Producer
    from rq_core.model.job import NewJob
    from rq_core.model.outcome import Outcome
    from rq_core.model.showing.shown import Chunk, Progress
    from rq_core.protocol.calls.enqueue import Accepted
    from rq_core.protocol.engine.plan import Plan
    from rq_core.protocol.reads.reads import Reads

R_co = TypeVar("R_co", covariant=True)
"""The type that the task's function returns."""

GONE: Final = "gone"
"""The state of a job that is not in Redis, and whose end is in no audit database that the app knows."""

_STATES: Final = {
    **{outcome: outcome for outcome in ("succeeded", "cancelled", "expired", "replaced")},
    "dead": "pruned",
    "same": "replaced",
}
"""The state of an ended job, by the outcome that Redis keeps with the job's result."""


class JobHandle(Generic[R_co]):
    """A job that a producer has enqueued.

    A handle has the job's id, task and queue. After a wait, it also has the job's outcome. The methods read all other
    facts from Redis or SQL.

    - ``duplicate``: True if the call enqueued no job. The reason is that a job with this id is live, that the id is
      remembered, or that another job holds the unique name. The handle belongs to this earlier job.
    - ``discarded``: True if the job was dropped because the scope of a cap with on_full="discard" was full.
    - ``replaced``: the id of the job that this job replaced; None if it replaced no job.
    - ``task``: the task's name; None for a handle that was made from an id, or by enqueue_many.
    """

    __slots__ = (
        "_producer",
        "discarded",
        "duplicate",
        "id",
        "keeps",
        "may_be_in_inbox",
        "queue",
        "replaced",
        "seen",
        "task",
    )

    def __init__(
        self,
        producer: Producer,
        *,
        id: str,  # noqa: A002 - the name that it has everywhere else
        queue: str,
        task: str | None = None,
        duplicate: bool = False,
        discarded: bool = False,
        replaced: str | None = None,
        keeps: bool | None = None,
        may_be_in_inbox: bool = False,
    ) -> None:
        self._producer = producer
        self.id = id
        self.queue = queue
        self.task = task
        self.duplicate = duplicate
        self.discarded = discarded
        self.replaced = replaced
        self.keeps = keeps
        """True if the job's result is kept; None if unknown."""
        self.may_be_in_inbox = may_be_in_inbox
        """True if the job may still be a row of an inbox, a table of jobs in the user's database, and not yet in
        Redis."""
        self.seen: Outcome[R_co] | None = None
        """The outcome of the job; None until a wait with this handle has found it."""

    def __repr__(self) -> str:
        note = ", duplicate" if self.duplicate else ", discarded" if self.discarded else ""
        task = f" of {self.task}" if self.task is not None else ""
        return f"<job {self.id}{task} in {self.queue}{note}>"

    def state(self) -> str:
        """Return the job's state in one word.

        A job in Redis is scheduled, parked, ready, running, cancelling or dead. A job that has ended is succeeded,
        cancelled, pruned, expired, replaced or removed. Redis has this word as long as it keeps the job's result. SQL
        has the word if an audit database is set. If neither Redis nor SQL knows the job, its state is ``gone``.

        With App(inbox=…), a job that was enqueued within a transaction is ``inbox`` from the commit until a relay, the
        process that reads the inbox, has handed it over to Redis. It is ``parked`` if the relay could not read the
        job's row, or the queue refused the job.

        If the result is not kept, the state may be ``gone`` right after the job's end, until the mirror has copied the
        end.
        """
        client = self._producer.client
        if word := client.run(self._word(client.calls.reads)):
            return word
        if self._inbox_url is not None:
            if word := self._row(self._inbox_url):
                return word
            # It may have been handed over between the two looks.
            if word := client.run(self._word(client.calls.reads)):
                return word
        return GONE if self._producer.audit_url is None else _end_of(self.history())

    async def state_async(self) -> str:
        """Return the job's state in one word, without blocking the event loop. See state."""
        client = self._producer.async_client()
        if word := await client.run(self._word(client.calls.reads)):
            return word
        if self._inbox_url is not None:
            import asyncio

            if word := await asyncio.to_thread(self._row, self._inbox_url):
                return word
            if word := await client.run(self._word(client.calls.reads)):
                return word
        return GONE if self._producer.audit_url is None else _end_of(await self.history_async())

    @property
    def _inbox_url(self) -> str | None:
        """The URL of the database with the inbox that may have the job. None if no inbox can have the job."""
        return self._producer.inbox_url if self.may_be_in_inbox else None

    def _row(self, inbox_url: str) -> str | None:
        return plugins.inbox_finder()(inbox_url, self.queue, [self.id]).get(self.id)

    def _word(self, reads: Reads) -> Plan[str | None]:
        found = yield from reads.job(self.id, [self.queue])
        if found is not None:
            return str(found.state)
        ended = yield from reads.ended(self.id, [self.queue])
        return None if ended is None else _STATES.get(ended[1].outcome)

    def wait(self, timeout: Duration, *, allow_in_handler: bool = False) -> Outcome[R_co]:
        """Wait until the job ends, by success or in any other way, and return its outcome. This method blocks; in an
        event loop use wait_async.

        ``timeout`` is in seconds, or a timedelta; with 0, the wait reads the job once. The handle keeps the outcome: a
        later wait returns it at once, and sends nothing to Redis.

        Redis sends a message when the job ends. The wait also reads the job, at intervals that grow to 5 s; if Redis
        cannot send messages, the intervals grow from 50 ms to 1 s. If Redis no longer has the job, the outcome comes
        from the audit database. Without an audit database, the outcome is then Gone.

        Raises WaitTimeout, which is a TimeoutError. Raises WaitRefused in an event loop. Raises WaitRefused in a
        handler unless ``allow_in_handler``, since the waiting handler occupies a worker's place that the job may need.
        Raises QueueDamaged or ServerUnsuitable.
        """
        from rq_core.app.handles.awaiting import check_may_wait, each, timeout_of

        seconds = timeout_of(timeout)
        if self.seen is not None:
            return self.seen
        check_may_wait(self.id, allow_in_handler=allow_in_handler, blocks=True)
        ((_, outcome),) = each(self._producer, (self,), seconds)
        return outcome

    def result(self, timeout: Duration, *, allow_in_handler: bool = False) -> R_co:
        """Wait until the job ends, and return its result, in the annotated type. This method blocks; in an event loop
        use result_async.

        A result is kept only if the task or the enqueue has ``keep_result``. Without it, ResultUnavailable is raised at
        once. Raises JobFailed, JobWasCancelled, JobExpired, JobReplaced or JobGone if the job did not succeed. Raises
        ResultUnavailable if the value is missing. Raises the errors of wait. All of these except WaitRefused,
        QueueDamaged and ServerUnsuitable are subclasses of NoResult.
        """
        self._check_keeps()
        return self.wait(timeout, allow_in_handler=allow_in_handler).value

    async def result_async(
        self,
        timeout: Duration,  # noqa: ASYNC109 - the job is read once more at the timeout
        *,
        allow_in_handler: bool = False,
    ) -> R_co:
        """Wait until the job ends, without blocking the event loop, and return its result. See result."""
        self._check_keeps()
        outcome = await self.wait_async(timeout, allow_in_handler=allow_in_handler)
        return outcome.value

    def _check_keeps(self) -> None:
        if self.keeps is False and self.seen is None:
            raise keeps_none(self.id)

    def is_of(self, connections: object) -> bool:
        """Return whether this handle belongs to the app with these connections."""
        return self._producer.connections is connections

    async def wait_async(
        self,
        timeout: Duration,  # noqa: ASYNC109 - the job is read once more at the timeout
        *,
        allow_in_handler: bool = False,
    ) -> Outcome[R_co]:
        """Wait until the job ends, without blocking the event loop, and return its outcome. See wait."""
        from rq_core.app.handles.awaiting import check_may_wait, each_async, timeout_of

        seconds = timeout_of(timeout)
        if self.seen is not None:
            return self.seen
        check_may_wait(self.id, allow_in_handler=allow_in_handler, blocks=False)
        ((_, outcome),) = [ended async for ended in each_async(self._producer, (self,), seconds)]
        return outcome

    def progress(self) -> Progress | None:
        """Return the progress that the job's handler showed last with ``current_job().progress``.

        Return None if the handler has shown no progress, or the job has left Redis.
        """
        client = self._producer.client
        return client.run(client.calls.reads.shown(self.queue, self.id)).progress

    async def progress_async(self) -> Progress | None:
        """Return the job's progress without blocking the event loop. See progress."""
        client = self._producer.async_client()
        return (await client.run(client.calls.reads.shown(self.queue, self.id))).progress

    def watch(self, *, every: Duration = 1.0, allow_in_handler: bool = False) -> Iterator[Progress]:
        """Yield the job's progress each time that it has changed, until the job is dead or has left Redis.

        The method reads the job once in ``every`` seconds. It blocks; in an event loop use watch_async. Raises
        InvalidOption. Raises WaitRefused in a handler unless ``allow_in_handler``.
        """
        from rq_core.app.handles import watching
        from rq_core.app.handles.awaiting import check_may_wait

        seconds = watching.every_of(every)
        check_may_wait(self.id, allow_in_handler=allow_in_handler, blocks=True)
        return watching.follow_progress(self._watched(), seconds)

    def watch_async(
        self, *, every: Duration = 1.0, allow_in_handler: bool = False
    ) -> AsyncIterator[Progress]:
        """Yield the job's progress each time that it has changed, without blocking the event loop. See watch."""
        from rq_core.app.handles import watching
        from rq_core.app.handles.awaiting import check_may_wait

        seconds = watching.every_of(every)
        check_may_wait(self.id, allow_in_handler=allow_in_handler, blocks=False)
        return watching.follow_progress_async(self._watched(), seconds)

    def stream(self, *, after: int = 0, allow_in_handler: bool = False) -> Iterator[Chunk]:
        """Yield the chunks that the job's handler emits with ``current_job().emit``, until the job has ended.

        ``after`` is the ``number`` of the last chunk that an earlier reader got, or 0. The iterator yields each later
        chunk once, in order. Redis keeps the last 1,000 chunks of a job, at most 1 MiB, until an hour after the job's
        end. ``Chunk.missed`` is the number of chunks before this one that Redis no longer had. ``Chunk.begins_claim``
        marks the first chunk of another claim, whose handler may emit the same chunks again. The iterator ends when all
        chunks were read and the job is dead or has left Redis.

        This method blocks; in an event loop use stream_async. Raises InvalidOption. Raises WaitRefused in a handler
        unless ``allow_in_handler``.
        """
        from rq_core.app.handles import watching
        from rq_core.app.handles.awaiting import check_may_wait

        place = watching.start_of(after)
        check_may_wait(self.id, allow_in_handler=allow_in_handler, blocks=True)
        return watching.follow_stream(self._watched(), place)

    def stream_async(
        self, *, after: int = 0, allow_in_handler: bool = False
    ) -> AsyncIterator[Chunk]:
        """Yield the chunks that the job's handler emits, without blocking the event loop. See stream."""
        from rq_core.app.handles import watching
        from rq_core.app.handles.awaiting import check_may_wait

        place = watching.start_of(after)
        check_may_wait(self.id, allow_in_handler=allow_in_handler, blocks=False)
        return watching.follow_stream_async(self._watched(), place)

    def _watched(self) -> Watched:
        from rq_core.app.handles.watching import Watched

        url = self._inbox_url
        is_row = None if url is None else lambda: self._row(url) is not None
        return Watched(self._producer, self.queue, self.id, is_row)

    def cancel(self, *, why: str = "") -> str:
        """Cancel the job, and then the job's children that have not succeeded. Return the outcome for the job itself.

        The outcome is ``cancelled``, ``cancelling``, ``dead`` or ``gone``. With ``cancelling``, the job runs and was
        asked to stop. With ``dead``, the job was dead already, and was not cancelled.
        """
        client = self._producer.client
        return client.run(client.calls.families.cancel(self.queue, [self.id], why=why))[self.id]

    async def cancel_async(self, *, why: str = "") -> str:
        """Cancel the job without blocking the event loop. See cancel."""
        client = self._producer.async_client()
        outcomes = await client.run(client.calls.families.cancel(self.queue, [self.id], why=why))
        return outcomes[self.id]

    def edit(self, *, line: str = "", why: str = "", **options: Unpack[EditOptions]) -> None:
        """Change when a waiting job will run. A job waits if it is ready, delayed, or between two attempts.

        Options that are left out, and the job's arguments, do not change. An edit to the same values has no effect.

        - ``priority``: the job moves to the end of its waiting line (lane) of this priority.
        - ``delay`` (seconds from now, or a timedelta), ``at`` (a datetime with a time zone) or ``now=True``: the time
          at which the job becomes ready. A job that was ready before returns to its former place in the lane.
        - ``expires``: the job's deadline, in seconds from now or as a datetime with a time zone. None removes the
          deadline.
        - ``line``: the text with which Redis stores the job's state (the state line), as `rq-core job ID --json` prints
          it. The job is changed only if it still has this state line.

        Raises NotEdited if the job does not wait, has another state line than ``line``, or could never run after the
        edit. The error's ``outcome`` is running, cancelling, dead, gone, changed (another state line) or never. Raises
        InvalidOption, and AuditBacklogFull.
        """
        from rq_core.app.handles.edit import change_of, check_line, check_outcome

        check_line(line)
        change = change_of(self.queue, **options)
        client = self._producer.client
        plan = client.calls.admin.edit(self.queue, [self.id], change, line=line, why=why)
        check_outcome(self.queue, self.id, client.run(plan)[self.id])

    async def edit_async(
        self, *, line: str = "", why: str = "", **options: Unpack[EditOptions]
    ) -> None:
        """Change a waiting job without blocking the event loop. See edit."""
        from rq_core.app.handles.edit import change_of, check_line, check_outcome

        check_line(line)
        change = change_of(self.queue, **options)
        client = self._producer.async_client()
        plan = client.calls.admin.edit(self.queue, [self.id], change, line=line, why=why)
        check_outcome(self.queue, self.id, (await client.run(plan))[self.id])

    def history(self) -> list[Any]:
        """Return the job's events from SQL, oldest first. Each event has a ``type``, such as ``enqueued`` or
        ``claimed``.

        The list is empty until the mirror, the process that copies events from Redis into SQL, has copied the job's
        first event. It is empty again after `rq-core audit prune` has deleted the job's events. ``rq-core audit history
        ID`` shows up to which time the log was pruned. Raises AuditNotConfigured if no audit database is set.
        """
        if self._producer.audit_url is None:
            raise AuditNotConfigured
        return plugins.history_reader()(self._producer.audit_url, self.id, self.queue)

    async def history_async(self) -> list[Any]:
        """Return the job's events from SQL. A thread reads the database. See history."""
        import asyncio

        return await asyncio.to_thread(self.history)


def handle_of(producer: Producer, job: NewJob, accepted: Accepted | None) -> JobHandle[Any]:
    """Return the handle for a job that was enqueued. ``accepted`` is the outcome of the enqueue; None if the job was
    accepted.

    Raises ScopeFull if a full scope rejected the job. Raises UniqueHeld if another job holds the job's name and
    on_duplicate is "reject". Raises IdempotencyMismatch if the job's id belongs to another call.
    """
    if accepted is None or accepted.ids:
        old = accepted.replaced[0][1] if accepted is not None and accepted.replaced else None
        return JobHandle(
            producer,
            id=job.id,
            queue=job.queue,
            task=job.profile.task,
            replaced=old,
            keeps=KEEP_TIE in job.ties,
        )
    if accepted.mismatched:
        raise IdempotencyMismatch(queue=job.queue, id=job.id, task=job.profile.task)
    for _, holder in accepted.held:
        if '"unique":"reject"' in job.ties:
            raise UniqueHeld(queue=job.queue, name=job.name, id=job.id, holder=holder)
        return JobHandle(
            producer, id=holder, queue=job.queue, task=job.profile.task, duplicate=True
        )
    for _, scope in accepted.rejected:
        message = None
        if "+" in scope:  # A lane; in a scope it would be encoded.
            message = (
                f"queue {job.queue!r} did not take job {job.id}: as many wait in its lane {scope} as its"
                " cap's max_waiting allows. Enqueue it later, or raise max_waiting"
            )
        raise ScopeFull(message, scope=scope, queue=job.queue, id=job.id)
    return JobHandle(
        producer,
        id=job.id,
        queue=job.queue,
        task=job.profile.task,
        duplicate=bool(accepted.duplicates),
        discarded=bool(accepted.discarded),
    )


def _end_of(history: list[Any]) -> str:
    last = str(history[-1].type) if history else GONE
    return last if last in JOB_ENDS else GONE
