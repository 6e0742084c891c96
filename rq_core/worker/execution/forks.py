"""Copies saved steps into a fork, before the first step of the fork's handler. A fork is a copy of a durable job, its
*origin*, that continues from one of the origin's steps.

The entries are saved under the fork's claim, as those of any step, and have the numbers 1, 2, 3… So a worker that is
killed meanwhile does no harm: the next run saves the entries that are missing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from rq_core.app.handlers.context import JobContext
from rq_core.errors import QueueDamaged
from rq_core.model import plugins
from rq_core.model.durable.boxes import StepEntry, new_life
from rq_core.model.durable.forks import (
    ForkOrigin,
    box_in_log,
    copied_entries,
    open_maps,
    origin_of,
    without_value,
)
from rq_core.model.headers import FORK_HEADER
from rq_core.model.result_encoding import NO_VALUE, pack_result
from rq_core.protocol.calls.boxes import BATCH_MAX, SaveAnswer, Saving, refusals
from rq_core.protocol.engine.plan import Plan
from rq_core.protocol.operations import Operations
from rq_core.protocol.reads.box_reads import Box
from rq_core.signals import StepsSpent, StepUnusable

if TYPE_CHECKING:
    from rq_core.worker.execution.running import Running

T = TypeVar("T")

TRIES_MAX: Final = 5
"""Maximum number of times that the copied entries are saved. They are saved again if Redis has lost some of them
meanwhile, or if a signal has begun another box for the job."""
CHARACTERS_MAX: Final = 512 * 1024
"""A call that saves entries takes no further entry once it has this number of characters."""


class _Reading(Protocol):
    """The part of a client that is needed to read a durable job's saved entries."""

    calls: Operations

    async def run(self, plan: Plan[T], /) -> T:
        """Carry out a plan, and return its result."""
        ...


class _Saver(Protocol):
    """The methods of a worker's Saver that a ForkSaver uses."""

    @property
    def client(self) -> _Reading:
        """The client of the worker."""
        ...

    @property
    def lease_holds(self) -> Callable[[str], bool]:
        """A function that returns, for a queue, whether the worker's leases are in force by the worker's clock."""
        ...

    async def ask(self, plan: Callable[[Operations], Plan[T]], /) -> T:
        """Carry out a call to a queue, and return its result."""
        ...

    async def load(self, context: JobContext, first: int = 1, /) -> Box | None:
        """Return the saved entries of the job from number ``first`` on; None if the claim is not in force."""
        ...

    async def save(self, context: JobContext, records: Sequence[Saving], /) -> SaveAnswer:
        """Save entries of a durable job: steps, waits and sleeps. Returns index in ``records`` → NotSaved for a record
        that Redis refused, or the entry of a wait or sleep that is over. All other records are left out: they are
        saved.
        """
        ...


class ForkSaver:
    """Saves and loads the steps for one claim of a fork. It does what a Saver does, but ``load`` first copies the saved
    steps of the job from which the fork was made.
    """

    def __init__(self, saver: _Saver, running: Running) -> None:
        self._saver = saver
        self._audit_result = running.audit_result
        self._audit_url = running.task.app.audit_url

    @property
    def lease_holds(self) -> Callable[[str], bool]:
        """A function that returns, for a queue, whether the worker's leases are in force by the worker's clock."""
        return self._saver.lease_holds

    async def ask(self, plan: Callable[[Operations], Plan[T]]) -> T:
        """Carry out a call to a queue, and return its result."""
        return await self._saver.ask(plan)

    async def save(self, context: JobContext, records: Sequence[Saving]) -> SaveAnswer:
        """Save entries of a durable job: steps, waits and sleeps. Returns index in ``records`` → NotSaved for a record
        that Redis refused, or the entry of a wait or sleep that is over. All other records are left out: they are
        saved.
        """
        return await self._saver.save(context, records)

    async def load(self, context: JobContext, first: int = 1) -> Box | None:
        """Return the saved entries of the fork from number ``first`` on; None if the claim is not in force.

        If ``first`` is 1, and the fork lacks entries of its origin (the job from which it was made), these entries are
        first copied. Raises StepUnusable if these entries are lost or if the header of the fork cannot be read, and
        StepsSpent if there is no room for the entries.
        """
        origin = origin_of(context.headers)
        if origin is None:
            # Without the origin's steps, the handler would repeat them.
            raise StepUnusable(
                f"the header {FORK_HEADER} of this job names no steps of another job"
            )
        box = await self._saver.load(context, first)
        if first > 1:
            return box
        wanted: Sequence[StepEntry] | None = None
        for _ in range(TRIES_MAX):
            if box is None or len(box.entries) >= origin.copied:
                return box
            wanted = wanted or await self._entries_of(context.queue, origin)
            if not await self._copy(context, box, wanted):
                return None
            box = await self._saver.load(context)
        raise QueueDamaged(
            queue=context.queue, why=f"job {context.id} cannot get the steps of {origin.job_id}"
        )

    async def _entries_of(self, queue: str, origin: ForkOrigin) -> Sequence[StepEntry]:
        """Return the entries to copy into a fork, from Redis or from the audit log."""
        reads = self._saver.client.calls.reads
        found = await self._saver.client.run(
            reads.beginning(queue, origin.job_id, origin.life, origin.before)
        )
        copied = _copied(found, origin)
        if copied is not None:
            return copied
        why = "this worker has no audit log"
        if self._audit_url is not None:
            read = plugins.history_reader()
            events = await asyncio.to_thread(read, self._audit_url, origin.job_id, queue)
            logged = box_in_log(events, origin.life)
            if logged is None or without_value(logged[1], origin.before):
                why = "the audit log does not have them"
            else:
                copied = _copied(logged[1].steps, origin)
                if copied is not None:
                    return copied
                why = "the audit log has others"
        raise StepUnusable(
            f"this job goes on behind steps of job {origin.job_id}, which have left Redis, and {why}"
        )

    async def _copy(self, context: JobContext, box: Box, wanted: Sequence[StepEntry]) -> bool:
        """Save the entries in ``wanted`` that a fork lacks. Return False if the claim is not in force. Redis may lack
        some of the entries afterwards, so the caller must check again.

        Raises StepsSpent if there is no room for the entries, and QueueDamaged if the fork has an entry with the same
        number as one in ``wanted`` but with another name.
        """
        there, life = len(box.entries), box.life or new_life()
        if [entry.name for entry in box.entries] != [entry.name for entry in wanted[:there]]:
            raise _conflict(context)
        records = [
            self._saving(context, life, number, entry)
            for number, entry in enumerate(wanted[there:], there + 1)
        ]
        for part in _parts(records):
            answer = refusals(await self.save(context, part))
            refused = {each.why for each in answer.values()} - {"waits"}
            if refused & {"stale", "gone"}:
                return False
            if "full" in refused:
                raise StepsSpent(
                    "the steps that this job takes over have no room beside its signals"
                )
            if "conflict" in refused:
                raise _conflict(context)
            if refused:
                break
            context.base = context.failures  # as Redis does
        return True

    def _saving(self, context: JobContext, life: str, number: int, entry: StepEntry) -> Saving:
        record = Saving(context.id, context.fence, life, "begin", number, entry.name)
        if entry.is_saved:
            kept = entry.value is not None
            packed = (
                pack_result(entry.value or "", self._audit_result)
                if kept
                else f"{NO_VALUE}{entry.note}"
            )
            return record._replace(what="save", packed=packed)
        if entry.kind == "step":
            return record
        about = "" if entry.until_ms is None else str(entry.until_ms)
        return record._replace(what="wait" if entry.kind == "wait" else "sleep", about=about)


def _copied(entries: Mapping[int, StepEntry], origin: ForkOrigin) -> Sequence[StepEntry] | None:
    """Return the entries to copy into a fork, out of the entries of its origin (the job from which it was made); None
    if some are missing or unreadable.

    Raises StepUnusable if a map or run of the origin was not over at this point. The fork would then share children
    with the origin, and a cancel of the fork would cancel children that the origin still waits for.
    """
    try:
        copied = copied_entries(entries, origin.life, origin.before)
    except ValueError:
        return None
    if copied is None or len(copied) != origin.copied:
        return None
    if opened := open_maps(entries, origin.life, origin.before):
        raise StepUnusable(
            f"the map or run {opened[0]!r} was not over where this job goes on in job {origin.job_id}"
        )
    return copied


def _conflict(context: JobContext) -> QueueDamaged:
    why = f"job {context.id} has saved other steps than its origin"
    return QueueDamaged(queue=context.queue, why=why)


def _parts(records: Sequence[Saving]) -> Iterator[list[Saving]]:
    """Yield the records in several lists. The records of each list fit into one call."""
    part: list[Saving] = []
    size = 0
    for record in records:
        part.append(record)
        size += len(record.packed)
        if len(part) == BATCH_MAX or size >= CHARACTERS_MAX:
            yield part
            part, size = [], 0
    if part:
        yield part
