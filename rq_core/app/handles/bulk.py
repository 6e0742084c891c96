"""Enqueues many jobs in chunks, and waits for many jobs at once."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final, TypeVar, overload

from rq_core.app.handlers.outgoing import outgoing_jobs, outgoing_jobs_async
from rq_core.app.handles.handle import JobHandle
from rq_core.app.handles.signals import SignalProducer
from rq_core.errors import InvalidOption
from rq_core.model.lib.durations import Duration

if TYPE_CHECKING:
    from rq_core.app.handles.bulk_result import AcceptedJobs
    from rq_core.model.job import NewJob
    from rq_core.protocol.calls.enqueue import Accepted

R = TypeVar("R")

_ASYNC_CHUNK: Final = 1_000


class ManyProducer(SignalProducer):
    """A producer with the methods for many jobs. Threads may share a producer."""

    def enqueue_many(self, jobs: Iterable[NewJob]) -> AcceptedJobs:
        """Enqueue jobs into one or more queues, in chunks. Redis accepts each chunk whole or not at all.

        Returns the outcomes of all enqueues. The attribute ``handles`` of the returned object has the jobs' handles,
        and ``as_completed`` accepts the object. ``jobs`` may be a generator: it makes the jobs of the next chunk while
        Redis works on a chunk.

        Raises the errors of Task.enqueue. Each exception, also KeyboardInterrupt and CancelledError, has an attribute
        ``accepted``: the outcomes before the exception. Redis may also have accepted one chunk more, whose answer did
        not arrive.
        """
        from rq_core.app.handles.bulk_result import AcceptedJobs

        if self.outgoing_functions:
            jobs = outgoing_jobs(self.outgoing_functions, jobs, "enqueue_many")
        chunks: list[tuple[str, Accepted]] = []
        many = self.client.calls.enqueue.many(jobs, lambda *chunk: chunks.append(chunk))
        return AcceptedJobs.of(self, self.client.run(many), chunks)

    async def enqueue_many_async(
        self, jobs: Iterable[NewJob] | AsyncIterable[NewJob]
    ) -> AcceptedJobs:
        """Enqueue jobs in chunks, without blocking the event loop. ``jobs`` may also be an asynchronous generator. See
        enqueue_many."""
        from rq_core.app.handles.bulk_result import AcceptedJobs
        from rq_core.protocol.calls.enqueue import Accepted, tell_accepted

        if self.outgoing_functions:
            if isinstance(jobs, AsyncIterable):
                jobs = outgoing_jobs_async(self.outgoing_functions, jobs, "enqueue_many")
            else:
                jobs = outgoing_jobs(self.outgoing_functions, jobs, "enqueue_many")
        client = self.async_client()
        chunks: list[tuple[str, Accepted]] = []

        async def send(some: Iterable[NewJob]) -> Accepted:
            told = client.calls.enqueue.many(some, lambda *part: chunks.append(part))
            return await client.run(told)

        if not isinstance(jobs, AsyncIterable):
            return AcceptedJobs.of(self, await send(jobs), chunks)
        parts: list[Accepted] = []
        chunk: list[NewJob] = []

        async def send_chunk() -> None:
            try:
                parts.append(await send(chunk))
            except BaseException as error:
                parts.append(getattr(error, "accepted", Accepted(())))
                raise
            finally:
                chunk.clear()

        try:
            async for job in jobs:
                chunk.append(job)
                if len(chunk) == _ASYNC_CHUNK:
                    await send_chunk()
            await send_chunk()
        except BaseException as error:
            tell_accepted(error, parts)
            raise
        return AcceptedJobs.of(self, Accepted.sum(parts), chunks)

    @overload
    def as_completed(
        self, handles: AcceptedJobs, timeout: Duration, *, allow_in_handler: bool = ...
    ) -> Iterator[JobHandle[Any]]: ...
    @overload
    def as_completed(
        self, handles: Iterable[JobHandle[R]], timeout: Duration, *, allow_in_handler: bool = ...
    ) -> Iterator[JobHandle[R]]: ...
    def as_completed(
        self,
        handles: Iterable[JobHandle[Any]] | AcceptedJobs,
        timeout: Duration,
        *,
        allow_in_handler: bool = False,
    ) -> Iterator[JobHandle[Any]]:
        """Yield each handle when the handle's job has ended. This method blocks; in an event loop use
        as_completed_async.

        A later ``wait`` of a yielded handle returns at once, and sends nothing to Redis. ``handles`` are handles of
        this app, or the result of enqueue_many. ``timeout`` (seconds or timedelta) is for all jobs together. Raises
        InvalidOption, and the errors of JobHandle.wait.
        """
        from rq_core.app.handles.awaiting import check_may_wait, each, timeout_of

        given, seconds = _handles_of(handles, self.connections), timeout_of(timeout)
        for handle in given[:1]:
            check_may_wait(handle.id, allow_in_handler=allow_in_handler, blocks=True)
        return (ended.handle for ended in each(self, given, seconds))

    @overload
    def as_completed_async(
        self, handles: AcceptedJobs, timeout: Duration, *, allow_in_handler: bool = ...
    ) -> AsyncIterator[JobHandle[Any]]: ...
    @overload
    def as_completed_async(
        self, handles: Iterable[JobHandle[R]], timeout: Duration, *, allow_in_handler: bool = ...
    ) -> AsyncIterator[JobHandle[R]]: ...
    def as_completed_async(
        self,
        handles: Iterable[JobHandle[Any]] | AcceptedJobs,
        timeout: Duration,
        *,
        allow_in_handler: bool = False,
    ) -> AsyncIterator[JobHandle[Any]]:
        """Yield each handle when the handle's job has ended, without blocking the event loop: ``async for handle in
        app.as_completed_async(handles, timeout=60)``. See as_completed."""
        from rq_core.app.handles.awaiting import check_may_wait, each_async, timeout_of

        given, seconds = _handles_of(handles, self.connections), timeout_of(timeout)
        for handle in given[:1]:
            check_may_wait(handle.id, allow_in_handler=allow_in_handler, blocks=False)
        return (ended.handle async for ended in each_async(self, given, seconds))


def _handles_of(handles: object, connections: object) -> tuple[JobHandle[Any], ...]:
    """Return the handles that a caller passed to ``as_completed``.

    Raises InvalidOption unless all are handles of the app with these connections.
    """
    must = "must be handles of jobs, or what enqueue_many has returned"
    given = getattr(handles, "handles", handles)
    if not isinstance(given, Iterable):
        raise InvalidOption.of("handles", handles, must)
    found = tuple(given)
    for handle in found:
        if not isinstance(handle, JobHandle):
            raise InvalidOption.of("handles", handle, must)
        if not handle.is_of(connections):
            raise InvalidOption.of("handles", handle, "must be handles of this app")
    return found
