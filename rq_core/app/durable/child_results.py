"""The part of a durable job's run that saves the results of its children as entries (records in Redis) of the job."""

from __future__ import annotations

from collections.abc import Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any, Final, TypeVar

from rq_core.app.durable.parking import ParkingSteps
from rq_core.model.durable.boxes import StepEntry
from rq_core.model.durable.children import item_name
from rq_core.model.outcome import TOO_LARGE, Kept, Outcome, Succeeded
from rq_core.model.result_encoding import NO_VALUE, pack_result, unpack_result
from rq_core.signals import StepsSpent

SAVED_MAX: Final = 100
"""Maximum number of children's results that a parent job saves in one call to Redis."""
SAVED_CHARACTERS: Final = 512 * 1024
"""Number of characters after which a call to Redis takes no further child's result; another call saves the rest."""

T = TypeVar("T")
Result = tuple[str, str]
"""The name of the entry that a child's result becomes, and the packed result."""


class ResultSteps(ParkingSteps):
    """One run of a durable job that saves the results of the job's children."""

    _failure: BaseException | None = None
    """The error of a save beside the handler; None: no such save has failed, or a later save has succeeded."""
    _is_told = False
    """True if the handler has got the error of the save that failed beside it."""

    def check_saved(self) -> None:
        """Raise the error of a save that ran beside the handler and failed. The worker calls this after the handler's
        end, and before the job succeeds."""
        if self._failure is not None:
            raise self._failure

    async def _may_begin(self) -> None:
        if not self._is_told:
            self._is_told = self._failure is not None
            self.check_saved()
        await super()._may_begin()

    async def _finish(self, saving: Coroutine[Any, Any, T]) -> T:
        """Return the result of ``saving``, a coroutine that saves steps. It has then also saved what an earlier save
        could not: Redis notices that the earlier entries are missing, and this run sends them again."""
        found = await super()._finish(saving)
        self._failure = None
        return found

    async def _save_results(
        self, launch: str, ended: Mapping[int, Outcome[object]], *, goes_on: bool = False
    ) -> None:
        """Save the results of the children that succeeded, each as an entry (a record in Redis) of the parent.

        ``goes_on`` is True if the handler needs nothing else from Redis before it goes on. Then the handler does not
        wait for the last call. If the worker dies during that call, the next run reads the same results from the
        children's queues.
        """
        part: list[Result] = []
        size = 0
        for index, outcome in ended.items():
            if not isinstance(outcome, Succeeded):
                continue
            if len(part) >= SAVED_MAX or size >= SAVED_CHARACTERS:
                await self._finish(self._save_part(part))
                part, size = [], 0
            packed = f"{NO_VALUE}{outcome.missing}"
            if isinstance(outcome.kept, Kept):
                packed = pack_result(outcome.kept.json, self.home.audit_result)
            part.append((item_name(launch, index), packed))
            size += len(packed)
        if not part:
            return
        if goes_on:
            await self._save_beside(part)
        else:
            await self._finish(self._save_part(part))

    async def _save_part(self, part: Sequence[Result]) -> None:
        """Save the results of several children in one call to Redis."""
        async with self.home.turn():
            first = len(self._loaded) + 1
            records = [
                self._saving("save", first + n, name, packed)
                for n, (name, packed) in enumerate(part)
            ]
            if not await self.home.save(records):
                self._keep_results(first, part)
                self._context.base = self._context.failures
                return
        # Each alone: what was saved is answered as known, and what a failover took is sent again.
        for name, packed in part:
            await self._write("save", name, packed)

    async def _save_beside(self, part: Sequence[Result]) -> None:
        """Save the results of several children in one call to Redis, while the handler goes on.

        The job's next save waits for this one, and so does the end of the handler.
        """
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self.home.turn())
            first = len(self._loaded) + 1
            self._keep_results(first, part)
            turn = stack.pop_all()
        self._under_way += 1
        await self.home.beside(self._noted(self._sent_beside(first, part, turn)))

    async def _sent_beside(self, first: int, part: Sequence[Result], turn: AsyncExitStack) -> None:
        """Send the results of several children, which this run's copy has, in the given turn."""
        try:
            async with turn:
                records = [
                    self._saving("save", first + n, name, packed)
                    for n, (name, packed) in enumerate(part)
                ]
                if await self.home.save(records):
                    await self._send_each(first, part)
                self._context.base = self._context.failures
        except BaseException as error:
            self._failure = error
            raise

    async def _send_each(self, first: int, part: Sequence[Result]) -> None:
        """Send the results of several children one by one. A result for which the job's entries have no room is saved
        without its value. Raises StepsSpent if there is no room for that either."""
        for number, (name, packed) in enumerate(part, first):
            why = await self._sent("save", name, packed)
            if why == "full":
                spent = f"{NO_VALUE}{TOO_LARGE}"
                why = await self._sent("save", name, spent)
                self._keep_results(number, [(name, spent)])
            if why == "full":
                raise StepsSpent("the job's steps take all the room that they may have")

    def _keep_results(self, first: int, part: Sequence[Result]) -> None:
        for number, (name, packed) in enumerate(part, first):
            note, text = unpack_result(packed)
            is_kept = not packed.startswith(NO_VALUE)
            said = note.removeprefix("+") if is_kept else packed.removeprefix(NO_VALUE)
            value = text if is_kept else None
            self._keep(number, StepEntry(name, True, 0, self._context.fence, said, value))
