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
    from rq_core.app.handles.edit import EditOptions
    from rq_core.app.producer import Producer
    from rq_core.model.job import NewJob
    from rq_core.model.outcome import Outcome
    from rq_core.protocol.calls.enqueue import Accepted
    from rq_core.protocol.engine.plan import Plan
    from rq_core.protocol.reads.reads import Reads

R_co = TypeVar("R_co", covariant=True)
"""The type that the task's function returns."""

GONE: Final = "gone"
"""The state of a job that neither Redis nor the audit database, if there is one, knows."""

_STATES: Final = {
    **{outcome: outcome for outcome in ("succeeded", "cancelled", "expired", "replaced")},
    "dead": "pruned",
    "same": "replaced",
}
"""The state of a job that has ended, by the outcome that Redis keeps."""


class JobHandle(Generic[R_co]):
    """One job, as its producer sees it. It holds names, and the outcome once it has seen that; else every method reads
    Redis or SQL again.

    ``duplicate`` is True if a job of this id was live already, or has ended and its id is remembered: then this is
    the handle of that job, and the call changed nothing. If another job holds the name of a unique job, this is the
    handle of that job, and ``duplicate`` is True, too. ``discarded`` is True if the job was dropped, since a scope was
    full and its cap says discard. ``replaced`` is the id of the job that this one has replaced, None if it replaced no
    job. ``task`` is its task's name, None for a handle that was made from an id.
    """

    __slots__ = (
        "_producer",
        "discarded",
        "duplicate",
        "id",
        "keeps",
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
    ) -> None:
        self._producer = producer
        self.id = id
        self.queue = queue
        self.task = task
        self.duplicate = duplicate
        self.discarded = discarded
        self.replaced = replaced
        self.keeps = keeps
        """Whether its result is kept; None: unknown."""
        self.seen: Outcome[R_co] | None = None
        """The outcome of the job, if a wait with this handle has seen it."""

    def __repr__(self) -> str:
        note = ", duplicate" if self.duplicate else ", discarded" if self.discarded else ""
        task = f" of {self.task}" if self.task is not None else ""
        return f"<job {self.id}{task} in {self.queue}{note}>"

    def state(self) -> str:
        """Return the job's state in one word.

        It is scheduled, ready, running, cancelling or dead, as Redis has it; succeeded, cancelled,
        pruned, expired, replaced or removed, as Redis keeps it with the job's result, or else as SQL has it if an audit
        database is set; else ``gone``.

        For a moment after the end of a job whose result is not kept, the mirror may not have it yet; it is ``gone``
        then, too.
        """
        client = self._producer.client
        if word := client.run(self._word(client.calls.reads)):
            return word
        return GONE if self._producer.audit_url is None else _end_of(self.history())

    async def state_async(self) -> str:
        """See state."""
        client = self._producer.async_client()
        if word := await client.run(self._word(client.calls.reads)):
            return word
        return GONE if self._producer.audit_url is None else _end_of(await self.history_async())

    def _word(self, reads: Reads) -> Plan[str | None]:
        found = yield from reads.job(self.id, [self.queue])
        if found is not None:
            return str(found.state)
        ended = yield from reads.ended(self.id, [self.queue])
        return None if ended is None else _STATES.get(ended[1].outcome)

    def wait(self, timeout: Duration, *, allow_in_handler: bool = False) -> Outcome[R_co]:
        """Wait for the end of the job, however it ends, and return its outcome. Blocks; in an event loop use
        wait_async.

        ``timeout`` is in seconds, or a timedelta; 0 looks once. A dead job has ended. The outcome stays in the handle:
        waiting once more asks nothing. Redis sends a message when the job ends; looks go on meanwhile, every 5 s in
        the end. Where Redis cannot send one, the job is looked at 50 ms after the first look, then less and less often,
        every second in the end. If Redis does not have the job any more, its outcome comes from the audit database;
        without one it is Gone. Raises WaitTimeout, which is a TimeoutError; WaitRefused in a handler, which would keep
        the place that the job may need, unless ``allow_in_handler``; QueueDamaged or ServerUnsuitable.
        """
        from rq_core.app.handles.awaiting import check_may_wait, each, timeout_of

        seconds = timeout_of(timeout)
        if self.seen is not None:
            return self.seen
        check_may_wait(self.id, allow_in_handler=allow_in_handler, blocks=True)
        ((_, outcome),) = each(self._producer, (self,), seconds)
        return outcome

    def result(self, timeout: Duration, *, allow_in_handler: bool = False) -> R_co:
        """Wait for the end of the job, and return its result, as the type that its task is annotated
        with. Blocks; in an event loop use result_async.

        It is what ``wait(timeout).value`` gives. A task keeps its results with ``keep_result``; of one that keeps none,
        ResultUnavailable is raised at once. Raises JobFailed, JobWasCancelled, JobExpired, JobReplaced or JobGone if
        the job ended otherwise, ResultUnavailable if its value is not there, and what wait raises. All but WaitRefused,
        QueueDamaged and ServerUnsuitable are NoResult.
        """
        self._check_keeps()
        return self.wait(timeout, allow_in_handler=allow_in_handler).value

    async def result_async(
        self,
        timeout: Duration,  # noqa: ASYNC109 - the last look is made when it is over
        *,
        allow_in_handler: bool = False,
    ) -> R_co:
        """See result."""
        self._check_keeps()
        outcome = await self.wait_async(timeout, allow_in_handler=allow_in_handler)
        return outcome.value

    def _check_keeps(self) -> None:
        if self.keeps is False and self.seen is None:
            raise keeps_none(self.id)

    def is_of(self, connections: object) -> bool:
        """Whether its app has these connections."""
        return self._producer.connections is connections

    async def wait_async(
        self,
        timeout: Duration,  # noqa: ASYNC109 - the last look is made when it is over
        *,
        allow_in_handler: bool = False,
    ) -> Outcome[R_co]:
        """See wait."""
        from rq_core.app.handles.awaiting import check_may_wait, each_async, timeout_of

        seconds = timeout_of(timeout)
        if self.seen is not None:
            return self.seen
        check_may_wait(self.id, allow_in_handler=allow_in_handler, blocks=False)
        ((_, outcome),) = [ended async for ended in each_async(self._producer, (self,), seconds)]
        return outcome

    def cancel(self, *, why: str = "") -> str:
        """Cancel the job.

        Returns cancelled, cancelling (it runs, and was asked to stop), dead, or gone.
        """
        client = self._producer.client
        return client.run(client.calls.admin.cancel(self.queue, [self.id], why=why))[self.id]

    async def cancel_async(self, *, why: str = "") -> str:
        """See cancel."""
        client = self._producer.async_client()
        outcomes = await client.run(client.calls.admin.cancel(self.queue, [self.id], why=why))
        return outcomes[self.id]

    def edit(self, *, line: str = "", why: str = "", **options: Unpack[EditOptions]) -> None:
        """Change when the job will run, while it waits: ready, delayed, or between two attempts.

        ``priority``: it joins the tail of that line. ``delay`` (seconds from now, or a timedelta), ``at`` (a
        datetime with a time zone) or ``now=True`` say when it becomes ready; one that has waited before returns to its
        place in line. ``expires`` is its deadline, in seconds from now or as a datetime with a time zone; None takes
        its deadline away. What is not given stays as it is; the arguments always do. A job that is as asked already is
        left alone.

        With ``line``, the job is edited only if this is still its state line, as `rq-core job ID --json` prints it.

        Raises NotEdited if the job does not wait, has another line, or could never run any more: its ``outcome`` is
        running, cancelling, dead, gone, changed or never. Raises InvalidOption, and AuditBacklogFull.
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
        """See edit."""
        from rq_core.app.handles.edit import change_of, check_line, check_outcome

        check_line(line)
        change = change_of(self.queue, **options)
        client = self._producer.async_client()
        plan = client.calls.admin.edit(self.queue, [self.id], change, line=line, why=why)
        check_outcome(self.queue, self.id, (await client.run(plan))[self.id])

    def history(self) -> list[Any]:
        """Return the job's events from SQL, oldest first.

        Each has at least its ``type``, a word of machine.Event. The list is empty while the mirror has not
        come to the job yet, and for ever once a prune has taken it out of the log: ``rq-core audit history ID``
        says up to when the log was cut. Raises AuditNotConfigured if no audit database is set.
        """
        if self._producer.audit_url is None:
            raise AuditNotConfigured
        return plugins.history_reader()(self._producer.audit_url, self.id, self.queue)

    async def history_async(self) -> list[Any]:
        """See history. The database is read in a thread."""
        import asyncio

        return await asyncio.to_thread(self.history)


def handle_of(producer: Producer, job: NewJob, accepted: Accepted | None) -> JobHandle[Any]:
    """Return the handle of a job and what became of it. Raises ScopeFull if it was rejected, UniqueHeld if another job
    holds its name and it says reject, IdempotencyMismatch if its id belongs to another call."""
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
