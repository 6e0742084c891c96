"""The tasks of the workers: one whose rate counts tokens per key, and one whose service may answer 429."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path
from typing import Final

from rq_core import App, Cap, PauseScope, Rate, current_job
from tests.kit.witness import note
from tests.rigs.naive_bucket import Bucket

REFUSING: Final = "RQ_CORE_TEST_REFUSING"
"""The environment variable with the path of a file. While the file exists, the service answers 429."""
PAID: Final = "paid"
WINDOW_MS: Final = 100
BURST: Final = 1_000
"""The tokens that a key gets back per window, all of which may be taken at once."""

BUSY: Final = "busy"
COST: Final = 1_000
EACH_MS: Final = 500
"""The time (ms) in which the cost of one job of `BUSY` comes back."""
PAUSE_S: Final = 1.0

app = App()


def bucket(share: float = 1.0) -> Bucket:
    """Return a bucket for a key of `PAID`, which gets ``share`` of the tokens back. It shares no code with the rate."""
    return Bucket(round(BURST * share), WINDOW_MS, BURST)


def truth(job_id: str, tokens: int) -> int:
    """Return what a job has really taken: 0.3 to 3 times its estimate, the same for each claim."""
    return round(tokens * random.Random(job_id).uniform(0.3, 3))


@app.task(
    queue=PAID,
    caps=[Rate(BURST, per_seconds=WINDOW_MS / 1000, per="key", cost="tokens", burst=BURST)],
)
async def ask(key: str, tokens: int, tells: bool) -> None:
    """Write a line with the times at which the handler began and ended. The last argument says whether the handler also
    reports the job's true cost."""
    began_ms, job = time.time_ns() / 1e6, current_job()
    if tells:
        job.cost("tokens", truth(job.id, tokens))
    note("ran", key=key, tokens=tokens, tells=tells, fence=job.fence, began_ms=began_ms)


@app.task(
    queue=BUSY,
    caps=[
        Cap(20, per="model"),
        Rate(COST, per_seconds=EACH_MS / 1000, per="model", cost="tokens", burst=COST),
    ],
)
def complete(model: str, tokens: int = COST) -> None:
    """Ask a service. If it answers 429, pause the scope of the model, so that all its jobs wait."""
    refused = Path(os.environ[REFUSING]).exists()
    note("asked", attempt=current_job().attempt, refused=refused)
    if refused:
        raise PauseScope("model", after=PAUSE_S)
