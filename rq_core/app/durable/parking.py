"""The steps of one run that its worker may park: the entries that Redis must have, and how they are saved again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from rq_core.app.durable.steps import AGAIN_MAX, Steps, worst_of
from rq_core.app.handlers.context import JobContext
from rq_core.errors import QueueDamaged
from rq_core.model.durable.boxes import KnownBox
from rq_core.protocol.calls.boxes import NotSaved, Saving

Save = Callable[[JobContext, Sequence[Saving]], Awaitable[Mapping[int, Any]]]
"""A function that saves entries, and returns index → refusal (NotSaved). Other values of its answer are ignored."""


class ParkingSteps(Steps):
    """The steps of one run, which its worker may park."""

    def known_beside(self, waits: Sequence[int]) -> KnownBox:
        """Return the entries that Redis must have, beside the entries ``waits`` for which the job parks.

        Redis writes entries in the order of their numbers. So if it has the last one, it has all. It can still have
        lost the ends of entries that were begun before, if no new entry was saved after them.
        """
        count = len(self._loaded)
        numbers = {n for n, has in self._ended.items() if has == count} | {count}
        said = (
            f"{n}+" if self._loaded[n - 1].is_saved else str(n) for n in sorted(numbers - {*waits})
        )
        return KnownBox(self._life or "", ",".join(said))

    async def save_again(self, save: Save) -> None:
        """Save the entries that Redis has lost. Call this after the handler's end, if Redis could not park the job.

        Also returns if the claim is no longer in force: the next attempt to park the job says so. Raises QueueDamaged
        if the job's box cannot be what this run knows.
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
    """Return the most important refusal in an answer, or None. A wait that is not over is saved, and not refused."""
    refused = [e for e in answer.values() if isinstance(e, NotSaved) and e.why != "waits"]
    return worst_of(refused) if refused else None
