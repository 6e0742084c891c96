"""Runs handlers in child processes that can be killed: the code in the worker.
:mod:`rq_core.worker.execution.isolated_process` is the code in the child.

A child that hangs, crashes in native code or uses too much memory does not harm the worker. Children are spawned, never
forked. A child runs one job after another. The messages on the pipes are JSON.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import json
import logging
import multiprocessing
import os
import signal
from dataclasses import dataclass, field
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from rq_core.app.task import import_place
from rq_core.errors import RqCoreError
from rq_core.model.lib import logs
from rq_core.signals import HandlerDied, HandlerTimeout
from rq_core.worker.execution import isolated_process
from rq_core.worker.execution.isolated_shows import SHOWN
from rq_core.worker.execution.running import UNFINISHED_VALUE

if TYPE_CHECKING:
    from rq_core.app.task import Task
    from rq_core.worker.execution.running import Running
    from rq_core.worker.execution.saver import Saver

log = logging.getLogger(__name__)

TELL_GRACE_S: Final = 0.5
"""Seconds within which a handler must stop after the worker asked it to stop; then the handler's process is killed.
After a timeout, the process is killed at once."""

END_WAIT_S: Final = 5.0
"""Seconds that idle processes may take to end on request, before they are killed."""
PIPE_BYTES: Final = 16 * 1024
"""Bytes that every pipe accepts at once, also before its reader has started."""


class Raised(NamedTuple):
    """The error of an isolated handler, as its process reports it. ``delay`` is the seconds until a retry."""

    outcome: str
    delay: float
    reason: str
    type: str
    message: str
    traceback: str
    excepted: str = ""


@dataclass(eq=False, slots=True)
class _Child:
    process: BaseProcess
    pipe: Connection
    sending: asyncio.Lock = field(default_factory=asyncio.Lock)
    """A lock that is held while the worker sends a message to the process. Another thread sends long messages, and
    messages on a pipe must not overlap."""
    reaped: bool = False
    """True if the process was killed or may have been joined. Another process may then have its pid, so no signal may
    be sent."""


class IsolationPool:
    """The child processes of isolated handlers. There is at most one child for each job that runs at once."""

    def __init__(self, saver: Saver | None = None) -> None:
        self._saver = saver
        self._answers: set[asyncio.Task[None]] = set()
        self._context = multiprocessing.get_context("spawn")
        self._senders = concurrent.futures.ThreadPoolExecutor(4, "rq-core-send")
        self._idle: list[_Child] = []
        self._busy: dict[Running, _Child] = {}

    async def run(self, running: Running, task: Task[Any, Any], args_json: str) -> Raised | None:
        """Run a handler to its end. Return its error, or None for a success.

        Cancel this coroutine to stop the handler. If the handler does not stop within TELL_GRACE_S, or its timeout is
        over, its process is killed. Raises HandlerDied if the process ended before the handler did.
        """
        child = self._take(task)
        self._busy[running] = child
        whole = False
        try:
            await self._send(child, _request(running, task, args_json))
            try:
                reply = await self._heard(child, running)
                if reply == isolated_process.BEGUN:
                    running.begun = True
                    reply = await self._heard(child, running)
                if reply == isolated_process.RETURNED:
                    running.value = UNFINISHED_VALUE
                    reply = await self._heard(child, running)
            except asyncio.CancelledError:
                whole = await self._stopped(child, running)
                raise
            whole = True
        except OSError as error:
            raise _died(child) from error
        finally:
            del self._busy[running]
            if whole:
                self._idle.append(child)
            else:
                _kill(child)
        if reply is not None and "value" in reply:
            running.value, running.problem = reply["value"], reply["problem"]
            return None
        return None if reply is None else Raised(**reply)

    async def _heard(self, child: _Child, running: Running) -> Any:
        """Return the child's next message about its handler's run.

        Until this message arrives, answer the questions of the handler's steps, and store the progress and chunks that
        the child sends.
        """
        while True:
            message = await _reply(child)
            if isinstance(message, dict) and SHOWN in message:
                said, chunks = message[SHOWN]
                running.context.showing().receive(said and tuple(said), chunks)
                continue
            if not isinstance(message, dict) or "ask" not in message:
                return message
            # The child may end while its question is answered, so its messages are read on.
            task = asyncio.create_task(self._answer(child, running, message))
            self._answers.add(task)
            task.add_done_callback(self._answers.discard)

    async def _answer(self, child: _Child, running: Running, asked: dict[str, Any]) -> None:
        number = asked["ask"]
        try:
            assert self._saver is not None
            found = await self._saver.answer(running, asked["call"], asked["args"])
            reply = json.dumps({"answer": number, "found": found})
        except RqCoreError as error:
            facts = {k: v for k, v in error.facts.items() if isinstance(v, str | int | float)}
            said = [type(error).__name__, str(error), facts]
            reply = json.dumps({"answer": number, "error": said})
        except Exception as error:
            # Without an answer, the handler would wait until its timeout.
            log.exception("a question of an isolated handler failed", extra=_facts(running))
            said = [RqCoreError.__name__, f"{type(error).__name__}: {error}", {}]
            reply = json.dumps({"answer": number, "error": said})
        with contextlib.suppress(OSError):  # The child has ended.
            async with child.sending:
                await self._send(child, reply.encode())

    def has_said(self, running: Running) -> bool:
        """Return whether the handler's process has sent a message that is not read yet."""
        child = self._busy.get(running)
        return child is not None and child.pipe.poll()

    async def _send(self, child: _Child, request: bytes) -> None:
        if len(request) <= PIPE_BYTES:
            child.pipe.send_bytes(request)
            return
        # A child that is still starting does not read yet, and the pipe may be too small for the whole request.
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._senders, child.pipe.send_bytes, request)

    async def _stopped(self, child: _Child, running: Running) -> bool:
        """Ask a handler to stop, and wait up to TELL_GRACE_S. Return whether the handler stopped.

        If the handler's timeout is over, return False at once.
        """
        if isinstance(running.ending, HandlerTimeout):
            return False
        try:
            async with asyncio.timeout(TELL_GRACE_S):
                async with child.sending:
                    stop = {"stop": type(running.ending).__name__}
                    child.pipe.send_bytes(json.dumps(stop).encode())
                said = (isolated_process.BEGUN, isolated_process.RETURNED)
                while await self._heard(child, running) in said:
                    pass
        except (TimeoutError, OSError, HandlerDied):
            return False
        return True

    def _take(self, task: Task[Any, Any]) -> _Child:
        while self._idle:
            child = self._idle.pop()
            if child.process.is_alive():
                return child
            child.reaped = True
            _kill(child)
        here, there = self._context.Pipe()
        process = self._context.Process(
            target=isolated_process.serve_worker,
            args=(there, logs.configured),
            name=f"rq-core-{task.name}",
            daemon=True,
        )
        # The resource tracker starts with the first process, and unblocks the signals: so it is started before.
        resource_tracker.ensure_running()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, isolated_process.SIGNALS)
        try:
            process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        there.close()
        return _Child(process, here)

    async def end_idle(self) -> None:
        """Ask the idle children to end, and wait up to END_WAIT_S. ``close`` kills the children that still run."""
        for child in self._idle:
            with contextlib.suppress(OSError):
                child.pipe.send_bytes(json.dumps(isolated_process.END).encode())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(END_WAIT_S):
                for child in self._idle:
                    await _readable(child.process.sentinel)

    def close(self) -> None:
        """Kill all children."""
        for child in (*self._idle, *self._busy.values()):
            _kill(child)
        self._idle.clear()
        self._senders.shutdown(wait=False, cancel_futures=True)


def _facts(running: Running) -> dict[str, str]:
    return {"job": running.context.id, "queue": running.context.queue}


def _request(running: Running, task: Task[Any, Any], args_json: str) -> bytes:
    context = running.context
    facts = {name: getattr(context, name) for name in isolated_process.FACTS}
    facts["headers"] = dict(context.headers)
    request = {
        "job": facts,
        "place": import_place(task),
        "memory": task.max_memory,
        "args": args_json,
        "keep": running.keeps,
        "kept": running.audit_result,
        # All processes of a machine have the same monotonic clock.
        "limit": None if running.over is None else (running.timeout, running.over),
    }
    return json.dumps(request).encode()


async def _reply(child: _Child) -> Any:
    """Return the child's next message. Raises HandlerDied if the child has ended."""
    await _readable(child.pipe.fileno())
    try:
        return json.loads(child.pipe.recv_bytes())
    except (EOFError, OSError) as error:
        raise _died(child) from error


async def _readable(file: int) -> None:
    """Wait until a file descriptor is readable. The sentinel of a process is readable once the process has ended."""
    loop = asyncio.get_running_loop()
    readable: asyncio.Future[None] = loop.create_future()

    def set_once() -> None:
        if not readable.done():
            readable.set_result(None)

    loop.add_reader(file, set_once)
    # uvloop makes the file non-blocking: a message that is longer than the pipe could not be read or sent.
    os.set_blocking(file, True)
    try:
        await readable
    finally:
        loop.remove_reader(file)


def _died(child: _Child) -> HandlerDied:
    # A child's pipe closes a moment before the child ends. Until the child is joined, no other group can have its pid.
    _kill_group(child)
    child.process.join(1.0)
    code = child.process.exitcode
    how = (
        "in no known way"
        if code is None
        else f"by signal {-code}"
        if code < 0
        else f"by status {code}"
    )
    return HandlerDied(how=how)


def _kill_group(child: _Child) -> None:
    """Kill the process group of a child: the child and the processes that its handlers started."""
    pid = child.process.pid
    if pid is not None and not child.reaped:
        child.reaped = True
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)


def _kill(child: _Child) -> None:
    _kill_group(child)
    child.process.kill()
    child.process.join()
    child.process.close()
    with contextlib.suppress(OSError):
        child.pipe.close()
