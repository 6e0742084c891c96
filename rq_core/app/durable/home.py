"""The interface between one run of a durable job and its worker: methods that load and save steps, and check the
lease."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol, TypeVar

from rq_core.app.durable.step_calls import StepCalls
from rq_core.protocol.calls.boxes import SaveAnswer, Saving
from rq_core.protocol.engine.plan import Plan
from rq_core.protocol.operations import Operations
from rq_core.protocol.reads.box_reads import Box

T = TypeVar("T")


class Home(Protocol):
    """The methods of a worker that the steps of one durable job call.

    An ``async def`` handler awaits these methods on the event loop. In a ``def`` handler, each method blocks the
    handler's thread until it is done, and awaits nothing.
    """

    is_async: bool
    """True if the handler is an ``async def`` function."""
    calls: StepCalls
    """The object that calls the functions of steps."""
    can_park: bool
    """True if the job may sleep and wait."""
    audit_result: str
    """The form in which the audit log keeps the values of steps: ``digest`` (only a digest of the value), or ``full``
    (also the value itself)."""

    def lease(self) -> Awaitable[None]:
        """Wait until the lease of the job's claim is in force by the worker's clock, or until the handler must stop."""
        ...

    def began(self) -> Callable[[], None]:
        """Notify the worker that a step runs, so that the worker does not park the job. The caller calls the returned
        function when the step has ended."""
        ...

    def load(self, first: int = 1) -> Awaitable[Box | None]:
        """Load the job's entries (saved steps, waits and sleeps) from number ``first`` on. Return None if the claim is
        not in force."""
        ...

    def save(self, records: Sequence[Saving]) -> Awaitable[SaveAnswer]:
        """Save entries, which are records of steps, waits and sleeps. The answer maps an index in ``records`` to the
        reason why Redis refused the record, or to the entry of a wait or sleep that is over."""
        ...

    def finish(self, saving: Coroutine[Any, Any, T]) -> Awaitable[T]:
        """Return the result of a coroutine that saves steps in Redis. If the handler is cancelled, the coroutine still
        runs to its end."""
        ...

    def ask(self, plan: Callable[[Operations], Plan[T]]) -> Awaitable[T]:
        """Call Redis, and return the result. ``plan`` is a function that takes the calls of the protocol (Operations),
        and returns the plan of one call.

        Only jobs that may be parked use this method.
        """
        ...

    def park(self, entry: int) -> Awaitable[None]:
        """Park the job as soon as none of its steps runs: end the claim, and wait without a worker. ``entry`` is the
        number of the wait or sleep for which the job is parked.

        The method never returns, since the worker stops the handler.
        """
        ...

    def turn(self) -> AbstractAsyncContextManager[Any]:
        """Return a lock as a context manager. Within its block, no other save of this job runs."""
        ...
