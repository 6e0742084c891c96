"""The apps of the workers: one app whose code declares a schedule, and one app whose schedules are stored live."""

from __future__ import annotations

import os
from typing import Final

from rq_core import App

EVERY: Final = "RQ_CORE_TEST_EVERY"
"""The variable with the seconds of the interval."""
BEATS: Final = "beats"
NAME: Final = "beat"
MINUTE: Final = "minute"

beats = App()


@beats.task(queue=BEATS)
async def beat() -> None:
    """End at once."""


beats.schedule(NAME, beat.job(), every=float(os.environ.get(EVERY, "10")))

minute = App()


@minute.task(queue=MINUTE)
async def remind(tenant: str) -> None:
    """End at once."""
