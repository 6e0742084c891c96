"""The worker of a durable job, as the job's run sees it: saving, loading, and whether the lease holds."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

from rq_core.protocol.calls.boxes import NotSaved, Saving
from rq_core.protocol.reads.box_reads import Box


class Home(Protocol):
    """The worker of one claim, as its handler's steps see it.

    Each method may be awaited by the handler that it belongs to: on the event loop, or, for a ``def`` handler, in one
    step that blocks the handler's thread.
    """

    is_async: bool
    """Whether the handler is an ``async def`` function."""
    audit_result: str
    """The part of a value that the log keeps: digest or full."""

    def lease(self) -> Awaitable[None]:
        """Wait until the lease of the claim is in force by the worker's own clock, or the handler must stop."""
        ...

    def began(self) -> Callable[[], None]:
        """Note that a step has begun; return the function that notes its end."""
        ...

    def load(self) -> Awaitable[Box | None]:
        """Return what the job has saved; None if the claim is not in force."""
        ...

    def save(self, records: Sequence[Saving]) -> Awaitable[dict[int, NotSaved]]:
        """Save entries, and return those that were not saved, by their places."""
        ...

    def turn(self) -> AbstractAsyncContextManager[Any]:
        """Let one save of the job come after the other."""
        ...

    def call(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Awaitable[Any]:
        """Call a step's function; a plain function of an async handler runs in a thread."""
        ...
