"""The part of a worker that a run of a durable job uses: it saves and loads steps, and checks the lease."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol, TypeVar

from rq_core.app.durable.step_calls import StepCalls
from rq_core.protocol.calls.boxes import NotSaved, Saving
from rq_core.protocol.engine.plan import Plan
from rq_core.protocol.operations import Operations
from rq_core.protocol.reads.box_reads import Box

T = TypeVar("T")


class Home(Protocol):
    """The part of a worker that the steps of one claim use.

    Only the handler of the claim awaits these methods. An ``async def`` handler awaits them on the event loop. For a
    ``def`` handler, each method blocks the handler's thread and completes without awaiting anything.
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
        """Wait until the claim's lease is in force by the worker's own clock, or until the handler must stop."""
        ...

    def began(self) -> Callable[[], None]:
        """Note that a step has begun. Return a function; calling it notes that the step has ended."""
        ...

    def load(self, first: int = 1) -> Awaitable[Box | None]:
        """Return the job's box, which has its saved steps and its signals; of the steps, only the entries numbered
        ``first`` or higher. Return None if the claim is not in force."""
        ...

    def save(self, records: Sequence[Saving]) -> Awaitable[dict[int, NotSaved]]:
        """Save entries. Return the refusals of the entries that were not saved, by the entry's place in ``records``."""
        ...

    def ask(self, plan: Callable[[Operations], Plan[T]]) -> Awaitable[T]:
        """Carry out a call to a queue, and return its result. ``plan`` makes the plan of the call. Only jobs that may
        be parked use this method."""
        ...

    def park(self, entry: int) -> Awaitable[None]:
        """Park the job as soon as none of its steps runs, because the wait or sleep of this entry is not over.
        The method does not return: the handler is stopped."""
        ...

    def turn(self) -> AbstractAsyncContextManager[Any]:
        """Return a context manager within which no other save of the job runs."""
        ...
