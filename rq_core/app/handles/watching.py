"""Follows one job: reads its progress, or the chunks of its stream, until the job ends."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from rq_core.errors import InvalidOption
from rq_core.model.lib.durations import Duration, seconds_of
from rq_core.protocol.reads.shown_reads import PLACE_MAX, StreamPlace

if TYPE_CHECKING:
    from rq_core.app.producer import Producer
    from rq_core.model.showing.shown import Chunk, Progress

LOOK_S: Final = 0.1
"""Seconds until a stream is read again after a read that found new chunks."""
LOOK_S_MAX: Final = 1.0
"""Maximum seconds between two reads of a stream. The pause doubles after each read that finds no new chunk."""


class Watched(NamedTuple):
    """A job whose progress or stream is followed."""

    producer: Producer
    queue: str
    id: str
    is_row: Callable[[], bool] | None
    """A function that returns whether the job is still a row of an inbox (a table of jobs in the user's database), and
    not yet in Redis. The function may block. None if the job was not put into an inbox."""

    def may_come(self) -> bool:
        """Return whether a job that is not in Redis may still arrive there from an inbox, a table in the user's
        database. May block."""
        return self.is_row is not None and self.is_row()

    async def may_come_async(self) -> bool:
        """Return whether a job that is not in Redis may still arrive there from an inbox, a table in the user's
        database."""
        import asyncio

        return self.is_row is not None and await asyncio.to_thread(self.is_row)


def every_of(every: Duration) -> float:
    """Return the seconds between two reads of a job's progress. Raises InvalidOption."""
    seconds = seconds_of("every", every)
    if seconds <= 0:
        raise InvalidOption.of("every", every, "must be greater than 0")
    return seconds


def start_of(after: int) -> StreamPlace:
    """Return the position in a job's stream after the chunk with the number ``after``. Raises InvalidOption."""
    number: object = after
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= PLACE_MAX:
        must = "must be the number of a chunk, or 0"
        raise InvalidOption.of("after", after, must)
    return StreamPlace(after, after, None)


def follow_progress(job: Watched, seconds: float) -> Iterator[Progress]:
    """Yield a job's progress at each change. See JobHandle.watch."""
    import time

    client, last, is_gone = job.producer.client, None, job.is_row is None
    while True:
        looked = time.monotonic()
        found = client.run(client.calls.reads.shown(job.queue, job.id))
        if found.progress is not None and found.progress != last:
            last = found.progress
            yield last
        if found.has_ended and (found.state is not None or is_gone):
            return
        if not is_gone and found.state is None and not job.may_come():
            # The relay may have handed it over between the two looks.
            is_gone = True
            continue
        time.sleep(max(0.0, looked + seconds - time.monotonic()))


async def follow_progress_async(job: Watched, seconds: float) -> AsyncIterator[Progress]:
    """Yield a job's progress at each change, without blocking the event loop. See JobHandle.watch."""
    import asyncio

    client, last, is_gone = job.producer.async_client(), None, job.is_row is None
    while True:
        found = await client.run(client.calls.reads.shown(job.queue, job.id))
        if found.progress is not None and found.progress != last:
            last = found.progress
            yield last
        if found.has_ended and (found.state is not None or is_gone):
            return
        if not is_gone and found.state is None and not await job.may_come_async():
            # The relay may have handed it over between the two looks.
            is_gone = True
            continue
        await asyncio.sleep(seconds)


def follow_stream(job: Watched, place: StreamPlace) -> Iterator[Chunk]:
    """Yield the chunks of a job's stream. See JobHandle.stream."""
    import time

    client, pause, is_gone = job.producer.client, LOOK_S, job.is_row is None
    while True:
        look = client.run(client.calls.reads.stream(job.queue, job.id, place))
        yield from look.chunks
        if look.is_over and (not look.is_gone or is_gone):
            return
        pause = _pause(pause, place, look.place)
        place = look.place
        if not is_gone and look.is_gone and not job.may_come():
            # The relay may have handed it over between the two looks.
            is_gone = True
            continue
        if place.upto >= look.last:
            time.sleep(pause)


async def follow_stream_async(job: Watched, place: StreamPlace) -> AsyncIterator[Chunk]:
    """Yield the chunks of a job's stream, without blocking the event loop. See JobHandle.stream."""
    import asyncio

    client, pause, is_gone = job.producer.async_client(), LOOK_S, job.is_row is None
    while True:
        look = await client.run(client.calls.reads.stream(job.queue, job.id, place))
        for chunk in look.chunks:
            yield chunk
        if look.is_over and (not look.is_gone or is_gone):
            return
        pause = _pause(pause, place, look.place)
        place = look.place
        if not is_gone and look.is_gone and not await job.may_come_async():
            # The relay may have handed it over between the two looks.
            is_gone = True
            continue
        if place.upto >= look.last:
            await asyncio.sleep(pause)


def _pause(before: float, old: StreamPlace, new: StreamPlace) -> float:
    return LOOK_S if new.upto > old.upto else min(2 * before, LOOK_S_MAX)
