"""The part of a durable job's run that parks the job, which then waits without a claim. It lists the entries (saved
steps, waits and sleeps) that Redis must have when the claim ends, and saves entries again that Redis has lost. It also
returns a copy of the entries for the job's next run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, Literal, TypeVar

from rq_core.app.durable.steps import AGAIN_MAX, Steps, worst_of
from rq_core.app.handlers.context import JobContext
from rq_core.errors import QueueDamaged
from rq_core.model.durable.boxes import NOTHING_KNOWN, KnownBox
from rq_core.protocol.calls.boxes import NotSaved, Saving
from rq_core.protocol.reads.box_reads import Box

T = TypeVar("T")
Save = Callable[[JobContext, Sequence[Saving]], Awaitable[Mapping[int, Any]]]
"""A function that saves entries (records of steps, waits and sleeps) in Redis. Its result maps the index of an entry
that Redis refused to a NotSaved, which has the reason. Callers ignore values of other types."""


class ParkingSteps(Steps):
    """The steps of one run of a durable job that may be parked: it then waits without a worker."""

    _has_failed = False
    """True if a call that saves a step, wait or sleep has failed. Redis may then have an entry for it that this run's
    copy lacks."""
    _under_way = 0
    """Number of calls under way that save steps, waits or sleeps in Redis."""

    @property
    def is_sure(self) -> bool:
        """True if this run's copy of the job's saved steps, waits and sleeps certainly equals the entries in Redis."""
        return self._is_loaded() and not self._has_failed and not self._under_way

    def box_now(self) -> Box | None:
        """Return this run's copy of the job's entries (saved steps, waits and sleeps). Return None if Redis may have
        other entries."""
        return Box(self._life, tuple(self._loaded)) if self.is_sure else None

    async def _take(self, kind: Literal["wait", "sleep"], entry: str, about: str) -> bool:
        return await self._finish(super()._take(kind, entry, about))

    async def _write(self, what: Literal["begin", "save"], entry: str, packed: str = "") -> None:
        await self._finish(super()._write(what, entry, packed))

    async def _finish(self, saving: Coroutine[Any, Any, T]) -> T:
        """Return the result of ``saving``, a coroutine that saves steps in Redis, and then in this run's copy. If the
        coroutine fails, this run's copy counts as uncertain."""
        self._under_way += 1
        return await self.home.finish(self._noted(saving))

    async def _noted(self, saving: Coroutine[Any, Any, T]) -> T:
        try:
            return await saving
        except BaseException:
            self._has_failed = True
            raise
        finally:
            self._under_way -= 1

    def known_beside(self, waits: Sequence[int]) -> KnownBox:
        """Return the entries (saved steps, waits and sleeps) that Redis must have when the claim ends without success.
        The entries ``waits``, for which the job parks, are left out. Return NOTHING_KNOWN for a run without entries.

        Redis appends entries in the order of their numbers. So if Redis has the last entry, it has all entries. But an
        entry may be written twice: at the begin and at the end of a step, wait or sleep. A failover can lose the second
        write if no entry was appended after it. So the result also names these entries.
        """
        if not self._is_loaded() or not self._loaded:
            return NOTHING_KNOWN
        count = len(self._loaded)
        numbers = {n for n, has in self._ended.items() if has == count} | {count}
        said = (
            f"{n}+" if self._loaded[n - 1].is_saved else str(n) for n in sorted(numbers - {*waits})
        )
        return KnownBox(self._life or "", ",".join(said))

    async def save_again(self, save: Save) -> None:
        """Save again the entries (records of steps, waits and sleeps) that Redis has lost. Call this after the
        handler's end, if Redis did not end the claim because it lacks entries.

        If the claim is no longer in force, the method returns without an error, since the next attempt to end the claim
        notices it. Raises QueueDamaged if Redis has other entries of the job than this run has saved.
        """
        has = len(self._loaded) - 1
        for _ in range(AGAIN_MAX):
            answer = await save(self._context, self._missing(has, len(self._loaded)))
            worst = _worst(answer)
            if worst is not None and worst.why == "other":
                # A failover took the box that this claim knows, and a signal has begun another box.
                moved = await save(self._context, [self._saving("move", 0, "", "")])
                worst = _worst(moved) or NotSaved("behind", 0)
            if worst is None or worst.why in ("stale", "gone"):
                return
            if worst.why != "behind" or worst.has is None:
                break
            has = worst.has
        why = f"the entries of job {self._context.id} are other ones"
        raise QueueDamaged(queue=self._context.queue, why=why)


def _worst(answer: Mapping[int, Any]) -> NotSaved | None:
    """Return the most important refusal in Redis' answer to a save, or None. A NotSaved for a wait that is not over is
    no refusal, since Redis has saved the wait."""
    refused = [e for e in answer.values() if isinstance(e, NotSaved) and e.why != "waits"]
    return worst_of(refused) if refused else None
