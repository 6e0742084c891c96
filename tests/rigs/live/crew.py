"""Worker processes that run the tasks with caps."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from tests.rigs.live import tasks
from tests.rigs.stage import Crew, workers


def crew(
    url: str,
    place: Path,
    queues: Sequence[str],
    count: int,
    *,
    lease: float = tasks.LONG_LEASE_S,
    concurrency: int = 10,
) -> AbstractContextManager[Crew]:
    """Start ``count`` workers that run the tasks with caps."""
    options = ("--concurrency", str(concurrency), "--grace", "2")
    words = ("tests.rigs.live.tasks:app", queues, url, *options)
    return workers(place, *words, count=count, variables={tasks.QUEUE_LEASE: str(lease)})
