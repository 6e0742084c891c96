"""The part of a run's steps that parks the job. It knows which entries Redis must have when the run ends, saves lost
entries again, and returns the box that the next run may take over."""

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
"""A function that saves entries. It returns why Redis refused an entry (a NotSaved), by the entry's index. Callers
ignore values of other types."""


class ParkingSteps(Steps):
    """The steps of one run of a job that may be parked."""

    _has_failed = False
    """True if a save has failed: Redis may have an entry that this run does not know."""
    _under_way = 0
    """Number of saves under way."""

    @property
    def is_sure(self) -> bool:
        """True if Redis has exactly the entries that this run knows."""
        return self._is_loaded() and not self._has_failed and not self._under_way

    def box_now(self) -> Box | None:
        """Return what Redis has in the job's box. Return None if that is not certain."""
        return Box(self._life, tuple(self._loaded)) if self.is_sure else None

    async def _take(self, kind: Literal["wait", "sleep"], entry: str, about: str) -> bool:
        return await self._finish(super()._take(kind, entry, about))

    async def _write(self, what: Literal["begin", "save"], entry: str, packed: str = "") -> None:
        await self._finish(super()._write(what, entry, packed))

    async def _finish(self, saving: Coroutine[Any, Any, T]) -> T:
        """Return the result of ``saving``, a coroutine that saves entries in Redis, and then stores them in this
        run."""
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
        """Return the entries that Redis must have when the job parks, except the entries ``waits`` for which it parks.
        Return NOTHING_KNOWN for a run without entries.

        Redis writes entries in the order of their numbers. So if Redis has the last entry, it has all entries. But it
        can have lost the end of an entry that was begun earlier, if no new entry was written after this end.
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
        """Save the entries that Redis has lost. Call this after the handler's end, if Redis could not park the job.

        If the claim is no longer in force, the method returns without an error, since the next attempt to park the job
        notices it. Raises QueueDamaged if the job's box has other entries than this run knows.
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
    """Return the most important refusal in an answer, or None. A NotSaved for a wait that is not over is no refusal,
    since Redis has saved this wait."""
    refused = [e for e in answer.values() if isinstance(e, NotSaved) and e.why != "waits"]
    return worst_of(refused) if refused else None
