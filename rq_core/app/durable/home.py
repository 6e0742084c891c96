"""The methods by which one run of a durable job uses its worker: they save and load steps, and check the lease."""

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
    """The methods of a worker that are called by the steps of one claim.

    An ``async def`` handler awaits these methods on the event loop. In a ``def`` handler, each method blocks the
    handler's thread until it is done, and awaits nothing.
    """

    is_async: bool
    """True if the handler is an ``async def`` function."""
    calls: StepCalls
    """Calls the functions of the steps."""
    can_park: bool
    """True if the job may sleep and wait."""
    audit_result: str
    """The form in which the log keeps the values of steps: ``digest`` (only a digest of the value), or ``full`` (also
    the value itself)."""

    def lease(self) -> Awaitable[None]:
        """Wait until the claim's lease is in force by the worker's clock, or until the handler must stop."""
        ...

    def began(self) -> Callable[[], None]:
        """Tell the worker that a step runs. The caller calls the returned function when the step has ended."""
        ...

    def load(self, first: int = 1) -> Awaitable[Box | None]:
        """Return the job's box: its entries from number ``first`` on, and its signals. Return None if the claim is not
        in force."""
        ...

    def save(self, records: Sequence[Saving]) -> Awaitable[SaveAnswer]:
        """Save entries. Return the refused records and the entries of waits and sleeps that are over, each by its index
        in ``records``."""
        ...

    def finish(self, saving: Coroutine[Any, Any, T]) -> Awaitable[T]:
        """Return the result of a coroutine that saves entries. If the handler is cancelled, the coroutine continues."""
        ...

    def ask(self, plan: Callable[[Operations], Plan[T]]) -> Awaitable[T]:
        """Send a call to a queue, and return its result. ``plan`` is a function that takes the protocol's calls, and
        returns the call as a Plan.

        Only jobs that may be parked use this method.
        """
        ...

    def park(self, entry: int) -> Awaitable[None]:
        """Park the job as soon as none of its steps runs. ``entry`` is the number of the wait or sleep for which the
        job is parked.

        The method never returns, since the worker stops the handler.
        """
        ...

    def turn(self) -> AbstractAsyncContextManager[Any]:
        """Return a lock as a context manager. Within its block, no other save of this job runs."""
        ...
