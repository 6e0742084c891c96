"""Reads what running jobs report: their progress, and the chunks of text in their streams."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from rq_core.model.showing.shown import (
    Chunk,
    Progress,
    chunk_field,
    read_chunk,
    read_shown,
)
from rq_core.model.table.machine import State
from rq_core.protocol.engine.plan import Plan
from rq_core.protocol.reads.steps import QueueReader

PAGE: Final = 250
"""Maximum number of chunks of a stream that one read returns."""
PLACE_MAX: Final = 10**15
"""The highest chunk number after which a reader may begin. No stream has this number of chunks."""
DEAD: Final = str(State.DEAD)


class ShownJob(NamedTuple):
    """The progress of a job, and the job's state. One read gets both; it reads the state first."""

    state: str | None
    """The job's state; None if Redis has no such job."""
    progress: Progress | None

    @property
    def has_ended(self) -> bool:
        """True if the job is dead or has left Redis. Its handler reports nothing more."""
        return self.state in (None, DEAD)


class StreamPlace(NamedTuple):
    """The place in a stream up to which a reader has read."""

    got: int
    """The number of the last chunk that the reader got. Before the first chunk: the number after which the reader
    begins."""
    upto: int
    """The number up to which the reader has asked Redis for chunks."""
    claim: int | None
    """The claim that sent the last chunk that the reader got. None: the next chunk counts as the first one of its
    claim."""
    fence: str | None = None
    """The newest fence (text that identifies a claim) that the reader has found in the job's line of the key ``shown``;
    None: no fence was found yet."""


class StreamLook(NamedTuple):
    """The answer to one read of a job's stream: the new chunks, and where to continue."""

    chunks: tuple[Chunk, ...]
    place: StreamPlace
    """The place in the stream at which the next read continues."""
    is_over: bool
    """True if the stream is complete: the job had ended before its chunks were read, and the last one was read."""
    is_gone: bool
    """True if Redis has no such job."""
    last: int
    """The number of the job's last chunk so far."""


class ShownReads(QueueReader):
    """Reads the progress and the streams of jobs."""

    def shown(self, queue: str, job_id: str) -> Plan[ShownJob]:
        """Return the progress and the state of a job."""
        keys = self._keys(queue)
        asked = [
            ["HGET", keys("state"), job_id],
            ["HSTRLEN", keys("jobs"), job_id],
            ["HGET", keys("shown"), job_id],
        ]
        line, size, text = yield from self._delivery.ask(asked, queue)
        found = read_shown(text)
        return ShownJob(_state_of(line, size), None if found is None else found.progress)

    def progress(self, queue: str, job_id: str) -> Plan[Progress | None]:
        """Return the last progress of a job; None without progress. The call does not check whether the job exists."""
        asked = [["HGET", self._keys(queue)("shown"), job_id]]
        (text,) = yield from self._delivery.ask(asked, queue)
        found = read_shown(text)
        return None if found is None else found.progress

    def stream(self, queue: str, job_id: str, place: StreamPlace) -> Plan[StreamLook]:
        """Return the chunks of a job's stream after a place, at most PAGE of them."""
        keys = self._keys(queue)

        def page(first: int) -> list[str]:
            return ["HMGET", keys("shown"), *(chunk_field(job_id, first + n) for n in range(PAGE))]

        asked_first = place.upto + 1
        # The job's end is read first: what its handler emitted was written before the end.
        asked = [
            ["HGET", keys("state"), job_id],
            ["HSTRLEN", keys("jobs"), job_id],
            ["HGET", keys("shown"), job_id],
            page(asked_first),
        ]
        line, size, text, fields = yield from self._delivery.ask(asked, queue)
        state, found = _state_of(line, size), read_shown(text)
        place = _where_numbers_go_on(place, text)
        last, first = 0, place.upto + 1
        if found is not None:
            # Up to `found.first`, chunks are not kept any more.
            last, first = found.last, max(first, found.first)
        if first != asked_first:
            (fields,) = yield from self._delivery.ask([page(first)], queue)
        got = max(place.got, min(0 if found is None else found.base, last))
        chunks = tuple(_with_gaps(first, fields, place._replace(got=got)))
        if chunks:
            got = chunks[-1].number
            place = place._replace(got=got, upto=got, claim=chunks[-1].claim)
        else:
            # A chunk up to `last` that is not there now will not be there later.
            upto = max(place.upto, min(last, first + PAGE - 1))
            place = place._replace(got=got, upto=upto)
        is_over = state in (None, DEAD) and place.upto >= last
        return StreamLook(chunks, place, is_over, state is None, last)


def _state_of(line: str | None, size: int) -> str | None:
    return line.partition(" ")[0] if line else "ready" if size else None


def _where_numbers_go_on(place: StreamPlace, text: str | None) -> StreamPlace:
    """Return the place in a stream at which a reader continues. ``text`` is the job's field in the key ``shown``.

    If a failover lost chunks, or another job with this id began a stream, new chunks may have numbers that the reader
    has already passed. Then the returned place is earlier than ``place``.
    """
    found = read_shown(text)
    if place.fence is None:
        # The reader has come back. What it got before is known by the numbers alone.
        last = 0 if text is None else place.upto if found is None else found.last
        fence = None if found is None else found.fence
        return place._replace(upto=min(place.upto, last), fence=fence)
    if found is None or _instant(found.fence) <= _instant(place.fence):
        # An earlier fence: this server is behind the one that answered before.
        return place
    if found.start < place.upto:
        # The reader cannot have any chunk of this claim.
        return StreamPlace(place.got, found.start, None, found.fence)
    return place._replace(fence=found.fence)


def _instant(fence: str) -> tuple[int, int]:
    ms, _, number = fence.partition("-")
    return int(ms), int(number)


def _with_gaps(first: int, fields: Sequence[str | None], place: StreamPlace) -> Iterator[Chunk]:
    """Yield the chunks of a stream that Redis has. Each chunk says how many chunks are missing directly before it."""
    before, claim = place.got, place.claim
    for number, field in enumerate(fields, first):
        chunk = read_chunk(number, field)
        if chunk is not None:
            missed = max(0, number - before - 1)
            yield replace(chunk, begins_claim=chunk.claim != claim, missed=missed)
            before, claim = number, chunk.claim
