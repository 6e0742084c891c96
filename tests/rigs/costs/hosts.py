"""The tasks of the workers in the proof of breakers. They ask services that fail and heal, and end a worker if the
proof says so.

A file with the name of a host has the share of the host's answers that are errors. A file HOST.kill or HOST.stop lets
the next handler of this host kill or suspend its worker.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from rq_core import App, Breaker, RetryPolicy, current_job
from tests.kit.witness import note
from tests.rigs.judge.breakers import FAILED, OK, Limit

FRAGILE: Final = "fragile"
HOSTS: Final = "RQ_CORE_TEST_HOSTS"
"""The environment variable with the path of the folder that has a file for each host."""
LEASE_S: Final = 1.0
LIMIT: Final = Limit(5, 1_500, 400)
SIGNALS: Final = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}
RUN_MS: Final = 5, 60
"""The shortest and the longest time (ms) of a run."""

app = App()
app.queue(FRAGILE, lease=LEASE_S)
_breaker = Breaker(
    LIMIT.failures,
    per_seconds=LIMIT.window_ms / 1000,
    cooldown=LIMIT.cooldown_ms / 1000,
    per="host",
    name="host",
)
_retry = RetryPolicy(max_attempts=10_000, backoff="fixed", base=0.02, jitter=False)


def _pause_s() -> float:
    return random.uniform(*RUN_MS) / 2_000


def _suffer(host: str) -> None:
    """Kill or suspend this worker if the proof says so."""
    for kind, number in SIGNALS.items():
        with contextlib.suppress(FileNotFoundError):
            Path(os.environ[HOSTS], f"{host}.{kind}").unlink()
            note(kind, host=host)
            os.kill(os.getpid(), number)


def _answer(host: str) -> None:
    """Raise ConnectionError if the service does not answer."""
    if random.random() < float(Path(os.environ[HOSTS], host).read_text()):
        raise ConnectionError(host)


@contextlib.contextmanager
def _noted(host: str) -> Iterator[None]:
    """Write a line at the beginning of a handler, and one at its end."""
    note("began", host=host, failures=current_job().failures)
    how = "left"
    try:
        yield
        how = OK
    except ConnectionError:
        how = FAILED
        raise
    finally:
        note("ended", host=host, how=how)


@app.task(queue=FRAGILE, breaker=_breaker, retry=_retry, max_losses=10_000)
async def ask(host: str) -> None:
    """Ask a service on the event loop."""
    with _noted(host):
        await asyncio.sleep(_pause_s())
        _suffer(host)
        await asyncio.sleep(_pause_s())
        _answer(host)


@app.task(queue=FRAGILE, breaker=_breaker, retry=_retry, max_losses=10_000)
def call(host: str) -> None:
    """Ask a service in a thread. The handler runs on if it has lost its lease."""
    with _noted(host):
        time.sleep(_pause_s())
        _suffer(host)
        time.sleep(_pause_s())
        _answer(host)
