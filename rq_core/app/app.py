"""The class App: a program's tasks, the URL of its server, and the settings of its queues.

    app = App()

    @app.task(queue="mail")
    def send(tenant: str, to: str) -> None: ...

    send.enqueue(tenant="acme", to="a@b.c")

The lines before ``send.enqueue`` open no connection, and read nothing but environment variables.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from types import MappingProxyType
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    ParamSpec,
    TypeVar,
    Unpack,
    overload,
)

from rq_core.app.clients import Connections
from rq_core.app.decorators import BatchDecorator, BatchTaskOptions, TaskDecorator, TaskOptions
from rq_core.app.handlers.outgoing import outgoing_job
from rq_core.app.handlers.redaction import Redact, redactor_of
from rq_core.app.handlers.retry import RetryPolicy
from rq_core.app.handles.handle import JobHandle, handle_of
from rq_core.app.limits.breaker import Breaker
from rq_core.app.limits.caps import Cap, Rate
from rq_core.app.many.forks import ForkProducer
from rq_core.app.options import (
    TIMEOUT_S_MIN,
    EnqueueOptions,
    JobOptions,
    PriorityName,
    keep_ms_of,
    spelling_out_options,
)
from rq_core.app.producer import MAX_PAYLOAD, AuditPayload
from rq_core.app.registration import check_batch, check_callbacks, check_isolation, make_task
from rq_core.app.task import AsyncTask, Isolation, Task
from rq_core.app.unique.naming import Named
from rq_core.app.unknown_options import OF_TASKS, naming_options
from rq_core.app.untyped_enqueue import Draft
from rq_core.errors import InvalidOption
from rq_core.model.job import NewJob
from rq_core.model.keys import DEFAULT_PREFIX, check_name
from rq_core.model.lib.durations import Duration, seconds_of
from rq_core.model.result_encoding import AuditResult
from rq_core.model.table.machine import DEFAULT_MAX_LOSSES, DEFAULT_PRIORITY, Priority

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from rq_core.app.batches.batch import Batch
    from rq_core.app.flows.declaring import Flow, OnFailure
    from rq_core.app.handlers.context import JobContext
    from rq_core.app.handlers.dead_hooks import Hook
    from rq_core.app.handlers.result_types import Returned
    from rq_core.app.inbox.within import AsyncExecutes, AsyncWithin, Executes, Within
    from rq_core.protocol.calls.enqueue import Accepted
    from rq_core.protocol.engine.plan import Patience

P = ParamSpec("P")
R = TypeVar("R")
Around = TypeVar("Around", bound="Callable[[JobContext], Any]")

DEFAULT_QUEUE: Final = "default"


class App(ForkProducer):
    """A set of tasks, with the server and the audit database of their jobs. Threads may share an app.

    - ``redis``: the URL of the server: redis://, rediss://, unix://, embedded:// or
      redis+sentinel://HOST:PORT,…/SERVICE. The default is RQ_CORE_REDIS_URL, else redis://localhost:6379/0.
    - ``audit``: the audit database: a path, sqlite:///PATH or postgresql://USER@HOST/DATABASE. The default is
      RQ_CORE_AUDIT_URL, else none.
    - ``inbox``: the database into which ``within`` inserts jobs. The default is RQ_CORE_INBOX_URL, else none. If the
      app has an inbox, handles also find jobs that are still in the inbox.
    - ``max_payload``: the maximum number of bytes of a job's arguments as JSON.
    - ``patience``: how long a call waits for a server that does not answer: Patience(unsent=3.0, unknown=600.0), in
      seconds. A call that cannot be sent within ``unsent`` raises ServerUnavailable. A call that was sent is repeated
      until an answer comes. Without an answer within ``unknown`` it raises OutcomeUnknown.
    - ``ids``: a function that returns a new job id.
    - ``redact``: a function, or its import path. Each error's text passes through the function before the text is
      stored or logged.
    - ``audit_payload``: "full" keeps the arguments of this app's jobs in the audit log, up to 64 KiB a job, without
      redaction. ``rq-core audit restore`` can then put back jobs that Redis lost. "digest", the default, keeps
      arguments out of SQL; but the log keeps a copy's arguments if it has those of the copied job.

    Raises InvalidName or InvalidOption.
    """

    def __init__(
        self,
        redis: str | None = None,
        audit: str | None = None,
        *,
        inbox: str | None = None,
        prefix: str = DEFAULT_PREFIX,
        max_payload: int = MAX_PAYLOAD,
        patience: Patience | None = None,
        ids: Callable[[], str] | None = None,
        connections: Connections | None = None,
        redact: Redact | str | None = None,
        audit_payload: AuditPayload = "digest",
    ) -> None:
        super().__init__(
            redis,
            audit,
            inbox=inbox,
            prefix=prefix,
            max_payload=max_payload,
            patience=patience,
            ids=ids,
            connections=connections,
            audit_payload=audit_payload,
        )
        self.redact = redact
        if not isinstance(redact, str):
            # An import path is looked up when it is first needed: its module may import the app.
            redactor_of(redact)
        self._tasks: dict[str, Task[..., Any]] = {}

    @property
    def redactor(self) -> Redact | None:
        """The function ``redact``, or the function at the import path ``redact``. None if the app has no redactor.

        Raises InvalidOption if there is no function at the path.
        """
        return redactor_of(self.redact)

    # Tasks.

    @overload
    def task(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncTask[P, R]: ...
    @overload
    def task(self, function: Callable[P, R], /) -> Task[P, R]: ...
    @overload
    def task(self, /, *, batch: Batch, **options: Unpack[BatchTaskOptions]) -> BatchDecorator: ...
    @overload
    def task(self, /, **options: Unpack[TaskOptions]) -> TaskDecorator: ...
    @naming_options("task", OF_TASKS)
    def task(
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        queue: str = DEFAULT_QUEUE,
        name: str | None = None,
        retry: RetryPolicy | None = None,
        timeout: Duration | None = None,
        priority: Priority | PriorityName = DEFAULT_PRIORITY,
        max_losses: int = DEFAULT_MAX_LOSSES,
        caps: Sequence[Cap | Rate] = (),
        breaker: Breaker | Sequence[Breaker] | None = None,
        unique: Named | None = None,
        keep_result: bool | Duration = False,
        audit_result: AuditResult = "digest",
        aliases: Sequence[str] = (),
        isolation: Isolation | None = None,
        max_memory: int | None = None,
        batch: Batch | None = None,
        on_dead: Hook | None = None,
    ) -> Any:
        """Turn a function into a task: ``@app.task`` or ``@app.task(queue="mail", …)``.

        - ``keep_result``: how long after the job's end Redis keeps the function's result, in seconds or a timedelta.
          JobHandle.result reads it. True is an hour; False drops the result.
        - ``audit_result``: "full" also stores a kept result in the audit log, without redaction. JobHandle.result reads
          the result there when Redis no longer has it. "digest" stores only a digest, by which the result can be
          verified.
        - ``name``: by default the function's name.
        - ``retry``: the number of attempts, and the time between them; by default RetryPolicy(), 3 attempts.
        - ``timeout``: the limit of one attempt, in seconds or a timedelta. With None, the worker's limit holds.
        - ``max_losses``: a job that has lost this number of workers is dead, and its reason is ``poison``.
        - ``caps``: Caps and Rates. A job is claimed only if all of them admit the job.
        - ``breaker``: a Breaker, or several. It pauses the jobs of a key when the service behind them fails.
        - ``unique``: Unique, Throttle, Debounce or Latest. This rule decides what happens to several calls with one
          unique name.
        - ``aliases``: former names of the task. The task also runs jobs that producers enqueue under these names, and
          the task's caps count these jobs. The log keeps the name under which each job was enqueued.
        - ``isolation``: with "process", workers run the function in a process of its own. They kill the process at the
          timeout. The timeout includes the time for starting the process. A crash of the process does not harm the
          worker.
        - ``max_memory``: the maximum number of bytes that the process of an isolated function may use.
        - ``batch``: a Batch lets one call of the function run several jobs. The function takes ``jobs: list[Job[…]]``.
        - ``on_dead``: a function that is called with a DeadJob when a job of this task has died for any reason. The
          call is a job of its own. Each death causes one call; only a fault can cause a second call for the same death.

        Raises InvalidTask, InvalidName or InvalidOption.
        """
        if function is not None and not callable(function):
            raise InvalidOption.of("function", function, "must be a function: options go by name")
        check_callbacks(retry, on_dead)
        unique_given: object = unique
        if isinstance(unique_given, type):
            must = f"must be made, not the class: write unique={unique_given.__name__}(…)"
            raise InvalidOption.of("unique", unique_given.__name__, must)
        policy = retry or RetryPolicy()
        options = JobOptions(
            queue=queue,
            priority=priority,
            max_attempts=policy.max_attempts,
            max_losses=max_losses,
            unique=unique,
            keep_ms=keep_ms_of(keep_result),
            audit_result=audit_result,
        )
        seconds = None if timeout is None else seconds_of("timeout", timeout, minimum=TIMEOUT_S_MIN)
        check_isolation(isolation, max_memory)
        check_batch(batch, isolation)

        def decorate(function: Callable[..., Any], /) -> Task[..., Any]:
            task = make_task(
                self,
                self._tasks,
                function,
                name,
                options,
                retry=policy,
                timeout=seconds,
                caps=caps,
                breaker=breaker,
                isolation=isolation,
                max_memory=max_memory,
                batch=batch,
                aliases=aliases,
            )
            self._add(task)
            if on_dead is not None:
                # Most apps have no hooks, and the module that calls hooks needs OpenSSL.
                from rq_core.app.handlers.dead_hooks import handler_of, hook_name

                hook = make_task(
                    self,
                    self._tasks,
                    handler_of(task.name, on_dead),
                    hook_name(task.name),
                    JobOptions(queue=queue),
                    retry=RetryPolicy(),
                    aliases=[*map(hook_name, aliases)],
                    is_hook=True,
                )
                self._add(hook)
            return task

        return decorate if function is None else decorate(function)

    def _add(self, task: Task[..., Any]) -> None:
        for name in (task.name, *task.aliases):
            self._tasks[name] = task

    def around(self, function: Around, /) -> Around:
        """Put a context manager around every handler of this app: ``@app.around``.

        At each attempt of a job, a worker calls ``function`` with the JobContext. ``function`` is a generator that
        yields once, a class of context managers, or a function made by ``contextmanager`` or ``asynccontextmanager``.

        The context manager that an app registers first is the outermost. All of them are entered before the handler's
        dependencies. A context manager receives the exception that the handler raises. It may raise another exception
        in its place, but cannot suppress it. Around a ``def`` handler, ``function`` runs in the handler's thread.
        Around an async handler, it runs on the event loop, and must not block the loop.

        Raises InvalidOption, and InvalidTask if ``function`` is async and the app has ``def`` tasks.
        """
        self.surroundings.add(function, self._tasks.values())
        return function

    def override(
        self, provider: Callable[..., Any], other: Callable[..., Any], /
    ) -> AbstractContextManager[None]:
        """Call ``other`` in place of the dependency ``provider`` within a block: ``with app.override(session, fake):``.

        This is for tests. In a real worker, isolated tasks do not see the override, since their processes import the
        app themselves. Raises InvalidOption, and InvalidTask for a task that cannot use ``other``.
        """
        return self.surroundings.override(provider, other, self._tasks.values())

    @property
    def tasks(self) -> Mapping[str, Task[..., Any]]:
        """The app's tasks, by name and by each alias."""
        return MappingProxyType(self._tasks)

    def returned_of(self, task: str | None) -> Returned | None:
        """Return the result type of the task with this name; None if the app does not have the task."""
        found = self._tasks.get(task or "")
        return None if found is None else found.returned

    def check(self) -> None:
        """Resolve the annotations of all tasks, and the redactor's import path. A worker calls this before its first
        claim.

        Without this call, each annotation and the import path are resolved at their first use. Raises InvalidTask, and
        InvalidOption if the redactor does not exist.
        """
        self.redactor  # noqa: B018 - it is looked up on access
        for task in self._tasks.values():
            task.arguments.check()
            if task.options.keeps_result:
                task.returned.check()
            if task.isolation is not None:
                from rq_core.app.task import import_place

                import_place(task)

    # Producers.

    def enable_flows(self, *, queue: str = "flows") -> None:
        """Add the task ``rq_core.flow``, whose jobs are flows. A worker whose app lacks this task runs no flow.

        ``queue`` is the default queue of flows. Raises InvalidName, and InvalidTask at a second call."""
        from rq_core.app.flows.built_in import flow_task

        self._add(flow_task(self, self.tasks, queue))

    def flow(self, name: str, /, *, on_failure: OnFailure = "drain") -> Flow:
        """Return a new flow. Declare its nodes in a ``with`` block: see docs/how-to/flows.md.

        ``on_failure`` says what happens when a node fails. With "drain", the nodes that do not depend on this node
        still run. With "cancel", the running nodes are cancelled, and no other node begins. Raises InvalidName or
        InvalidFlow.
        """
        from rq_core.app.flows.declaring import Flow

        return Flow(self, name, on_failure)

    def handle(self, job: NewJob, accepted: Accepted | None = None) -> JobHandle[Any]:
        """Return the handle of a job of this app. ``accepted`` is the outcome of the job's enqueue.

        Raises ScopeFull, UniqueHeld or IdempotencyMismatch if the queue refused the job.
        """
        return handle_of(self, job, accepted)

    def handle_by_id(self, queue: str, job_id: str) -> JobHandle[Any]:
        """Return the handle of the job with this id.

        The job need not exist: this method does not ask Redis for it. Raises InvalidName.
        """
        return JobHandle(
            self,
            id=check_name("job", job_id),
            queue=check_name("queue", queue),
            may_be_in_inbox=True,
        )

    @spelling_out_options
    def job(
        self,
        queue: str,
        task: str,
        args: Mapping[str, Any] | None = None,
        *,
        keys: Mapping[str, str] | None = None,
        **options: Unpack[EnqueueOptions],
    ) -> NewJob:
        """Return a job of the task with this name, for enqueue_many. This process need not have the task's code.

        If this app has the task, the task's options are the defaults, and this method validates the arguments. If this
        app lacks the task, the worker validates the arguments. The options and caps are then those that workers have
        registered in the queue. This method reads them from Redis, at most every few seconds; in an event loop use
        job_async.

        ``keys`` maps the name of a cap to the job's key. Pass a key if only a function in the task's code can compute
        it. Raises InvalidName, InvalidOption, InvalidTask, ArgumentsInvalid, KeyNeeded or PayloadTooLarge. If the
        method reads the queue, it also raises ServerUnavailable or ServerUnsuitable.
        """
        draft = Draft(self, self._tasks.get(check_name("task", task)), queue, task, args, options)
        if draft.placing is None:
            draft.read(self.client.run(self.client.calls.caps.policy(queue, task)))
        return draft.job(keys)

    @spelling_out_options
    async def job_async(
        self,
        queue: str,
        task: str,
        args: Mapping[str, Any] | None = None,
        *,
        keys: Mapping[str, str] | None = None,
        **options: Unpack[EnqueueOptions],
    ) -> NewJob:
        """Return a job of the task with this name, without blocking the event loop. See job."""
        draft = Draft(self, self._tasks.get(check_name("task", task)), queue, task, args, options)
        if draft.placing is None:
            client = self.async_client()
            draft.read(await client.run(client.calls.caps.policy(queue, task)))
        return draft.job(keys)

    @spelling_out_options
    def enqueue(
        self,
        queue: str,
        task: str,
        args: Mapping[str, Any] | None = None,
        *,
        keys: Mapping[str, str] | None = None,
        **options: Unpack[EnqueueOptions],
    ) -> JobHandle[Any]:
        """Enqueue a job of the task with this name, and return the job's handle.

        This process need not have the task's code. See job for the options, and Task.enqueue for the errors.
        """
        job = self.job(queue, task, args, keys=keys, **options)
        if self.outgoing_functions:
            job = outgoing_job(self.outgoing_functions, job, "enqueue")
        return self.handle(job, self.client.enqueue_one(job))

    @spelling_out_options
    async def enqueue_async(
        self,
        queue: str,
        task: str,
        args: Mapping[str, Any] | None = None,
        *,
        keys: Mapping[str, str] | None = None,
        **options: Unpack[EnqueueOptions],
    ) -> JobHandle[Any]:
        """Enqueue a job of the task with this name, without blocking the event loop. See enqueue."""
        job = await self.job_async(queue, task, args, keys=keys, **options)
        if self.outgoing_functions:
            job = outgoing_job(self.outgoing_functions, job, "enqueue")
        return self.handle(job, await self.async_client().enqueue_one(job))

    @overload
    def within(self, connection: AsyncExecutes, /) -> AsyncWithin: ...
    @overload
    def within(self, connection: Executes | str, /) -> Within: ...
    def within(self, connection: Any, /) -> Any:
        """Return an object that enqueues jobs in the transaction of a database connection. See PreparedTask.within."""
        from rq_core.app.inbox.within import app_within

        return app_within(self, self._own_job, connection)

    def _own_job(
        self,
        queue: str,
        task: str,
        args: Mapping[str, Any] | None,
        keys: Mapping[str, str] | None,
        options: EnqueueOptions,
    ) -> NewJob | None:
        """Return a job of the task with this name; None if this app does not have the task."""
        known = self._tasks.get(check_name("task", task))
        return None if known is None else Draft(self, known, queue, task, args, options).job(keys)
