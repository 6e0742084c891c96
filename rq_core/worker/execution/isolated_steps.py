"""The steps of a durable job whose handler runs in a process of its own: the code in that process.

The process has no connection to Redis. It asks its worker through their pipe to save and load steps, and whether the
lease is in force. :mod:`rq_core.worker.execution.process_pool` answers.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from rq_core import errors, signals
from rq_core.app.durable.step_calls import StepCalls
from rq_core.app.handlers.context import JobContext
from rq_core.app.handlers.handler_setup import ProcessValues, now
from rq_core.app.task import Task
from rq_core.model.durable.boxes import StepEntry
from rq_core.protocol.calls.boxes import NotSaved, SaveAnswer, Saving
from rq_core.protocol.engine.plan import Plan
from rq_core.protocol.operations import Operations
from rq_core.protocol.reads.box_reads import Box
from rq_core.worker.execution.saver import LoopHome, ThreadHome

T = TypeVar("T")


class PipeQuestions:
    """Sends questions to the worker, and matches its answers with them by number."""

    def __init__(self, send: Callable[[bytes], None]) -> None:
        self._send = send
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._open: dict[int, Future[Any]] = {}

    def ask(self, call: str, *args: Any) -> Any:
        """Send a question to the worker, and wait for the answer. Raises the error with which the worker answers."""
        answer: Future[Any] = Future()
        with self._lock:
            number = next(self._numbers)
            self._open[number] = answer
        self._send(json.dumps({"ask": number, "call": call, "args": args}).encode())
        return answer.result()

    def answered(self, message: dict[str, Any]) -> None:
        """Hand an answer of the worker to the caller of ``ask``. The thread that reads the pipe calls this method."""
        with self._lock:
            answer = self._open.pop(message["answer"])
        if "error" in message:
            kind, says, facts = message["error"]
            known = getattr(signals, kind, errors.RqCoreError)
            answer.set_exception(getattr(errors, kind, known)(says, **facts))
        else:
            answer.set_result(message["found"])

    def home(
        self, task: Task[Any, Any], resources: ProcessValues, kept: str, context: JobContext
    ) -> LoopHome | ThreadHome:
        """Return the object through which the steps of this process' handler use the worker. ``kept`` says how much of
        a step's value the audit log keeps: ``digest`` or ``full``.
        """
        calls = StepCalls(task.app.surroundings, resources, is_async=task.is_async)
        if task.is_async:
            return LoopHome(_LoopSaver(self), context, kept, calls)
        return _PipeHome(_AskingSaver(self), context, kept, calls)


class _AskingSaver:
    """Saves and loads steps through questions to the worker. Each call blocks the thread."""

    def __init__(self, asking: PipeQuestions) -> None:
        self._asking = asking

    def lease_holds(self, _queue: str) -> bool:
        """Ask the worker whether a step may begin. Return whether the lease is in force by the worker's clock, and the
        handler was not asked to stop.
        """
        return bool(self._asking.ask("lease"))

    async def load(self, _context: JobContext, first: int = 1) -> Box | None:
        """Return the saved entries of the job from number ``first`` on; None if the claim is not in force."""
        return await self._answer(_box, "load", first)

    async def save(self, _context: JobContext, records: Sequence[Saving]) -> SaveAnswer:
        """Save entries (steps) of the job. Returns index in ``records`` → NotSaved, for each record that Redis refused.

        Saved records are left out.
        """
        return await self._answer(_refused, "save", *records)

    async def ask(self, _plan: Callable[[Operations], Plan[T]]) -> T:
        """Raise NotDurable: this process has no connection to Redis, and its job cannot park."""
        raise errors.NotDurable(call="map()", why="a handler with isolation cannot wait")

    async def _answer(self, read: Callable[[Any], T], call: str, *args: Any) -> T:
        return read(self._asking.ask(call, *args))


class _LoopSaver(_AskingSaver):
    """Saves and loads steps through questions to the worker. A call does not block the event loop."""

    async def _answer(self, read: Callable[[Any], T], call: str, *args: Any) -> T:
        return read(await asyncio.to_thread(self._asking.ask, call, *args))


class _PipeHome(ThreadHome):
    """The object through which the steps of a ``def`` handler in this process ask the worker."""

    def _wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return now(coroutine)


def _box(found: Any) -> Box | None:
    return None if found is None else Box(found[0], tuple(StepEntry(*each) for each in found[1]))


def _refused(found: Any) -> SaveAnswer:
    return {int(place): NotSaved(*why) for place, why in found.items()}
