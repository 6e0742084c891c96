"""Saves again the entries (steps, waits and sleeps) of durable jobs that Redis lost before the claims of the jobs could
end.

A job parks, fails or is given back after its handler has saved entries. If a failover has lost some of these entries in
between, Redis answers ``behind``, and the claim stays in force. If the claim ended, the next run would repeat steps,
and enqueue the job's children a second time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from rq_core.errors import QueueDamaged, RqCoreError
from rq_core.model.durable.boxes import NOTHING_KNOWN
from rq_core.model.table.reasons import Reason
from rq_core.worker.execution.saver import PAUSE_S, Saver
from rq_core.worker.settlement import Settlement, to_send_again

log = logging.getLogger(__name__)

BEHIND: Final = "behind"
"""The answer of Redis to a settlement if it has lost saved entries of the durable job."""
TRIES_MAX: Final = 5
"""Maximum number of times that the lost entries of one claim are saved again. Then the claim ends although Redis lacks
entries. A job that should have parked is then given back."""


class LostEntries:
    """Saves again the entries of durable jobs that Redis has lost, while the worker goes on to claim and settle. Then
    passes the settlement of the job's claim to ``on_settlement``.
    """

    def __init__(self, saver: Saver, on_settlement: Callable[[Settlement], None]) -> None:
        self._saver = saver
        self._on_settlement = on_settlement
        self._saving: dict[tuple[str, str, str], tuple[Settlement, asyncio.Task[None]]] = {}
        """The jobs whose entries are being saved, by queue, id and fence."""
        self._stopped = False

    @property
    def busy(self) -> bool:
        """Return whether entries are being saved. Meanwhile, no settlement of these entries' jobs is sent."""
        return bool(self._saving)

    def saves_for(self, queues: Collection[str]) -> bool:
        """Return whether entries of jobs of these queues are being saved."""
        return any(queue in queues for queue, _, _ in self._saving)

    def take(
        self, settlements: Sequence[Settlement], outcomes: Mapping[str, str]
    ) -> list[Settlement]:
        """Begin to save again the entries of those jobs for which Redis has answered ``behind``. Return the settlements
        of the other jobs.

        ``outcomes``: job id → the answer of Redis.
        """
        others = []
        for settlement in settlements:
            claim = settlement.claim
            if outcomes.get(claim.id) != BEHIND:
                others.append(settlement)
                continue
            (each,) = to_send_again([settlement])
            if self._stopped:
                self._on_settlement(_given_back(each, Reason.SHUTDOWN))
            else:
                key = claim.queue, claim.id, claim.fence
                self._saving[key] = each, asyncio.create_task(self._save(key, each))
        return others

    def give_back(self) -> None:
        """Stop saving entries, and give the jobs back, because the worker ends."""
        self._stopped = True
        saving, self._saving = self._saving, {}
        for each, task in saving.values():
            task.cancel()
            self._on_settlement(_given_back(each, Reason.SHUTDOWN))

    async def _save(self, key: tuple[str, str, str], lost: Settlement) -> None:
        facts = {"job": lost.claim.id, "queue": lost.claim.queue}
        settlement = _given_back(lost, Reason.STEPS_LOST)
        if lost.tries >= TRIES_MAX:
            log.error("Redis lacks steps of a job that were saved again", extra=facts)
        else:
            log.warning("Redis has lost steps of a job; saving them again", extra=facts)
            try:
                await self._saved(lost)
            except Exception:
                log.exception("lost steps could not be saved again", extra=facts)
            else:
                settlement = lost._replace(tries=lost.tries + 1)
        if self._saving.pop(key, None) is not None:
            self._on_settlement(settlement)

    async def _saved(self, lost: Settlement) -> None:
        """Save the job's entries again. While Redis cannot store the entries, repeat the attempt: the claim stays in
        force.
        """
        assert lost.save_again is not None
        facts, said = {"job": lost.claim.id, "queue": lost.claim.queue}, False
        while True:
            try:
                return await lost.save_again(self._saver.save)
            except QueueDamaged:
                raise
            except RqCoreError as error:
                if not said:
                    log.warning(
                        "lost steps are not saved yet, trying again: %s", error, extra=facts
                    )
                said = True
            await asyncio.sleep(PAUSE_S)


def _given_back(lost: Settlement, reason: Reason) -> Settlement:
    """Return the settlement that ends a claim although Redis lacks saved entries of the job. A job that should have
    parked is rolled back. For any other verdict, the settlement stays as it is.
    """
    if lost.verdict != "park":
        return lost._replace(known=NOTHING_KNOWN)
    return lost._replace(verdict="rollback", reason=reason, known=NOTHING_KNOWN)
