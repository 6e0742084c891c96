"""Jobs that have lost a worker: any of them may be the one that took it down.

One of them runs at a time in a process. It does not begin before Redis knows that the others which were claimed with it
were put off (Handlers.begin_held): a lost claim counts, whether its handler began or not. So the jobs that ran beside a
poison job lose one worker to it, and are not called poison with it.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from rq_core.model.job import Claim

if TYPE_CHECKING:
    from rq_core.worker.running import Running

PAUSE_S: Final = 0.5
PAUSE_S_MAX: Final = 8.0
"""Seconds until a suspect comes back; they double each time that this process puts it off."""
REMEMBERED_MAX: Final = 10_000


class Suspects:
    """Decides which suspects a process runs, and how long the others wait."""

    def __init__(self, rng: random.Random | None = None) -> None:
        self._rng = rng or random.Random()  # noqa: S311 - jitter, no secret
        self._put_off: dict[str, int] = {}

    def pause(self, claim: Claim, running: Iterable[Running]) -> float | None:
        """Seconds that a claimed job must wait, since another suspect runs here. None: it may run now."""
        if not claim.losses or not any(each.claim.losses for each in running):
            self._put_off.pop(claim.id, None)
            return None
        times = self._put_off.pop(claim.id, 0)
        self._put_off[claim.id] = times + 1
        if len(self._put_off) > REMEMBERED_MAX:
            del self._put_off[next(iter(self._put_off))]
        pause: float = min(PAUSE_S * 2**times, PAUSE_S_MAX)
        # Spread, so that those that lost one worker together do not come back together.
        return pause * self._rng.uniform(0.75, 1.25)
