"""The code of a process that runs isolated handlers, one at a time. A pipe connects the process to its worker."""

from __future__ import annotations

import asyncio
import contextvars
import json
import os
import queue
import random
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Generator
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, Final, TypeVar
from weakref import WeakSet

from rq_core import signals
from rq_core.app.handlers import context as job_context
from rq_core.app.handlers.context import JobContext, job_here
from rq_core.app.handlers.log_context import JobLogFilter
from rq_core.app.handlers.process_scope import Resources
from rq_core.app.handlers.redaction import message_of, traceback_of
from rq_core.app.loading import preload
from rq_core.app.task import Task, module_attribute
from rq_core.model.lib import logs
from rq_core.worker.execution.isolated_shows import PipeShows
from rq_core.worker.execution.isolated_steps import PipeQuestions

FACTS: Final = (
    "id",
    "queue",
    "task",
    "claim",
    "failures",
    "losses",
    "fence",
    "worker",
    "headers",
    "base",
)
"""The fields of a JobContext that the worker sends to the process of an isolated handler."""
SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
"""Signals that reach all processes of a worker. Only the worker reacts to them, and ends this process itself. The
process starts with these signals blocked, and unblocks them once it ignores them: otherwise, an early signal would
make its job fail."""
BEGUN: Final = "begun"
"""The message that says that a handler has begun."""
RETURNED: Final = "returned"
"""The message that says that a handler has returned, and that its result is being converted to JSON."""
END: Final[dict[str, Any]] = {"end": True}
"""The message by which the worker asks the process to exit: no more jobs will come. The process first closes the
dependencies that live as long as the process."""
WORDS_MAX: Final = 1_000_000
"""Maximum number of characters of an error's message or traceback that this process sends. The worker redacts and
shortens the text."""


def _task_at(module: str, name: str) -> Task[Any, Any]:
    preload()
    found = module_attribute(module, name)
    if not isinstance(found, Task):
        raise LookupError(f"no task {name} in module {module}")  # noqa: TRY004 - no wrong type
    return found


class _Running:
    """The handler that runs now, with its context, the event loop and the dependencies of the process."""

    def __init__(self, context: JobContext, own_loop: ChildLoop, resources: Resources) -> None:
        self.context = context
        self.own_loop = own_loop
        self.resources = resources
        self.loop: asyncio.AbstractEventLoop | None = None
        self.handler: asyncio.Task[Any] | None = None

    def stop(self, why: str) -> None:
        kind = getattr(signals, why, signals.JobCancelled)
        self.context.tell(kind())
        if self.loop is not None and self.handler is not None:
            self.loop.call_soon_threadsafe(self.handler.cancel)


def _end_group() -> None:
    """Kill this process and all processes that its handlers have started."""
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def serve_worker(pipe: Connection, log_options: tuple[str, str] | None) -> None:
    """Run the handlers that the worker sends, until the worker sends END or closes the pipe."""
    # A process group of its own: processes that a handler starts are killed together with this process.
    os.setpgid(0, 0)
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    if log_options is not None:
        logs.configure(*log_options, filters=[JobLogFilter()])
    requests: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    current: list[_Running] = []
    sending = threading.Lock()

    def send(message: bytes) -> None:
        with sending:
            pipe.send_bytes(message)

    asking, shows = PipeQuestions(send), PipeShows(send)

    def listen() -> None:
        while True:
            try:
                message = json.loads(pipe.recv_bytes())
            except (EOFError, OSError):
                # The worker is gone, and its claim with it: nothing else would stop this handler.
                _end_group()
            if "answer" in message:
                asking.answered(message)
            elif "stop" not in message:
                requests.put(message)
            elif current:
                current[-1].stop(message["stop"])

    threading.Thread(target=listen, name="rq-core-worker", daemon=True).start()
    rng = random.Random()  # noqa: S311 - jitter, no secret
    own_loop, resources = ChildLoop(), Resources()
    while (request := requests.get()) != END:
        running = _Running(JobContext(**request["job"]), own_loop, resources)
        running.context.why_no_costs = (
            "a handler in a process of its own cannot say costs: use a task without isolation"
        )
        current.append(running)
        reply = _carry_out(running, request, rng, send, asking, shows)
        shows.send_last()
        current.clear()
        send(json.dumps(reply).encode())
    own_loop.close(resources.close())


def _carry_out(
    running: _Running,
    request: dict[str, Any],
    rng: random.Random,
    send: Callable[[bytes], None],
    asking: PipeQuestions,
    shows: PipeShows,
) -> dict[str, Any] | None:
    task: Task[Any, Any] | None = None
    failure: BaseException | None = None
    returned: dict[str, str] | None = None
    try:
        _limit_memory(request["memory"])
        task = _task_at(*request["place"])
        arguments = task.arguments.load(request["args"])
        send(json.dumps(BEGUN).encode())
        running.context.home = partial(asking.home, task, running.resources, request["kept"])
        running.context.shows = shows
        function, around = task.function, task.app.surroundings
        if task.steps or around.arounds:
            function = around.wrap(task, running.context, running.resources)
        if request["limit"] is not None:
            running.context.limit(*request["limit"])
        with job_context.running(running.context):
            try:
                if task.is_async:
                    value = running.own_loop.run(_awaited(running, function, arguments))
                else:
                    running.context.raise_if_cancelled()
                    value = function(**arguments)
            finally:
                running.context.raise_if_timed_out()
            if request["keep"]:
                send(json.dumps(RETURNED).encode())
                packed = task.returned.dump(value, request["keep"])
                returned = {"value": packed, "problem": task.returned.problem_of(value, packed)}
    except BaseException as error:  # noqa: BLE001 - also SystemExit: the worker must hear of it
        failure = error
    _limit_memory(None)
    if failure is None:
        return returned
    # Outside the except block: an error of a backoff function would have the failure as its context, unredacted.
    try:
        return _told(failure, task, running, rng)
    finally:
        failure = None  # Its traceback refers to this frame.


def _told(
    failure: BaseException, task: Task[Any, Any] | None, running: _Running, rng: random.Random
) -> dict[str, Any]:
    """Return the message that reports a failed handler to the worker: the error, and what the task's retry policy
    decides.
    """
    verdict = ("retry", 0.0, "failed")
    if task is not None:
        verdict = task.retry.verdict(failure, running.context.attempt, rng.random)
    return {
        **dict(zip(("outcome", "delay", "reason"), verdict, strict=True)),
        "type": type(failure).__name__,
        "message": message_of(failure)[:WORDS_MAX],
        "traceback": traceback_of(failure)[-WORDS_MAX:],
        "excepted": "" if task is None else task.excepted(failure),
    }


async def _awaited(
    running: _Running, function: Callable[..., Any], arguments: dict[str, Any]
) -> Any:
    running.handler = asyncio.current_task()
    running.loop = asyncio.get_running_loop()
    if running.context.cancelled:
        running.context.raise_if_cancelled()
    try:
        return await function(**arguments)
    finally:
        if running.context.steps is not None:
            # A step that has happened must be saved before the claim ends.
            await running.context.steps.home.let_end()
        running.loop = None


def _limit_memory(limit: int | None) -> None:
    """Limit the data segment of this process to ``limit`` bytes; None: to the hard limit of the system."""
    if sys.platform == "win32":
        return
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    soft = hard if limit is None else limit
    if hard not in (resource.RLIM_INFINITY, -1):
        soft = min(soft, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


# The event loop of a process that runs isolated handlers. There is one loop for the life of the process, so that
# objects which live as long, such as a pool of connections, can be used by one job after another.

T = TypeVar("T")


class ChildLoop:
    """An event loop that runs one coroutine at a time. Between two coroutines, nothing on the loop runs."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner()
        self._of_the_job: WeakSet[asyncio.Task[Any]] = WeakSet()
        """The asyncio tasks that handlers have started. Tasks of dependencies that live longer than a job are not among
        them."""

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a handler and return its result. Then cancel the asyncio tasks that the handler left behind."""
        self._runner.get_loop().set_task_factory(self._make)
        try:
            return self._runner.run(coroutine, context=contextvars.copy_context())
        finally:
            self._runner.run(self._end_rest(), context=contextvars.Context())

    def _make(
        self,
        loop: asyncio.AbstractEventLoop,
        coroutine: Coroutine[Any, Any, Any] | Generator[Any, None, Any],
        **options: Any,
    ) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(coroutine, loop=loop, **options)
        if job_here(options.get("context")) is not None:
            self._of_the_job.add(task)
        return task

    async def _end_rest(self) -> None:
        rest = [task for task in self._of_the_job if not task.done()]
        self._of_the_job.clear()
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)

    def close(self, last: Coroutine[Any, Any, None]) -> None:
        """Run a last coroutine, and close the loop."""
        with self._runner as runner:
            runner.run(last, context=contextvars.Context())
