"""Saves again the entries of durable jobs that Redis lost before it could park the jobs.

A job parks after its handler has saved the entries of its waits. If a failover between the two takes entries, Redis
answers ``behind``, and the claim stays in force. If the claim ended, the next run would repeat steps, and enqueue the
job's children a second time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from rq_core.errors import QueueDamaged, RqCoreError
from rq_core.model.table.reasons import Reason
from rq_core.worker.execution.saver import PAUSE_S, Saver
from rq_core.worker.settlement import Settlement

log = logging.getLogger(__name__)

BEHIND: Final = "behind"
"""The answer of Redis if it lacks entries of a job that should park."""
TRIES_MAX: Final = 5
"""Maximum number of times that the entries of one claim are saved again. Then the worker gives the job back."""


class LostEntries:
    """Saves entries again, beside the worker's turns. Calls ``on_settlement`` when a job may be parked again."""

    def __init__(self, saver: Saver, on_settlement: Callable[[Settlement], None]) -> None:
        self._saver = saver
        self._on_settlement = on_settlement
        self._saving: dict[tuple[str, str, str], tuple[Settlement, asyncio.Task[None]]] = {}
        """The jobs whose entries are being saved, by queue, id and fence."""
        self._stopped = False

    @property
    def busy(self) -> bool:
        """Return whether entries are being saved. The claims of their jobs have no settlement meanwhile."""
        return bool(self._saving)

    def take(self, parks: Sequence[Settlement], outcomes: Mapping[str, str]) -> list[Settlement]:
        """Begin to save the entries of the jobs that Redis could not park. Return the other settlements.

        ``outcomes``: job id → the answer of Redis.
        """
        others = []
        for each in parks:
            claim = each.claim
            if outcomes.get(claim.id) != BEHIND:
                others.append(each)
            elif self._stopped:
                self._on_settlement(_given_back(each, Reason.SHUTDOWN))
            else:
                key = claim.queue, claim.id, claim.fence
                self._saving[key] = each, asyncio.create_task(self._save(key, each))
        return others

    def give_back(self) -> None:
        """Stop saving entries, and give the jobs back, because the worker ends."""
        self._stopped = True
        saving, self._saving = self._saving, {}
        for park, task in saving.values():
            task.cancel()
            self._on_settlement(_given_back(park, Reason.SHUTDOWN))

    async def _save(self, key: tuple[str, str, str], park: Settlement) -> None:
        facts = {"job": park.claim.id, "queue": park.claim.queue}
        settlement = _given_back(park, Reason.STEPS_LOST)
        if park.tries >= TRIES_MAX:
            log.error("Redis lacks steps of a job that were saved again", extra=facts)
        else:
            log.warning("Redis has lost steps of a job that parks; saving them again", extra=facts)
            try:
                await self._saved(park)
            except Exception:
                log.exception("lost steps could not be saved again", extra=facts)
            else:
                settlement = park._replace(tries=park.tries + 1)
        if self._saving.pop(key, None) is not None:
            self._on_settlement(settlement)

    async def _saved(self, park: Settlement) -> None:
        """Save the entries. While Redis cannot store them, try again: the claim stays in force."""
        assert park.save_again is not None
        facts, said = {"job": park.claim.id, "queue": park.claim.queue}, False
        while True:
            try:
                return await park.save_again(self._saver.save)
            except QueueDamaged:
                raise
            except RqCoreError as error:
                if not said:
                    log.warning(
                        "lost steps are not saved yet, trying again: %s", error, extra=facts
                    )
                said = True
            await asyncio.sleep(PAUSE_S)


def _given_back(park: Settlement, reason: Reason) -> Settlement:
    return park._replace(verdict="rollback", reason=reason)
