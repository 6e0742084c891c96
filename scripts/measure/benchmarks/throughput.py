"""Measures jobs per second and latency of any contender, always in the same way."""

from __future__ import annotations

import os
from pathlib import Path
from subprocess import Popen

from contender import Tally
from stage import OURS, Contender, Failed, Stage

SCALED_CONCURRENCY = {"cpu": 4, "sleep": 10}
JOB_S = {"cpu": 0.001, "sleep": 0.005}


def enqueue_one(stage: Stage, contender: Contender, jobs: int, kind: str = "async") -> float:
    stage.empty()
    return stage.produce(contender, "one", stage.tally(jobs), jobs, kind)["per_s"]


def enqueue_bulk(stage: Stage, contender: Contender, jobs: int, kind: str = "async") -> float:
    """Return how many jobs per second are enqueued in calls of 1,000 jobs, or singly if the library has no such
    call."""
    stage.empty()
    return stage.produce(contender, "bulk", stage.tally(jobs), jobs, kind)["per_s"]


def drain(
    stage: Stage,
    contender: Contender,
    jobs: int,
    kind: str = "async",
    *,
    workers: int = 1,
    concurrency: int | None = None,
) -> tuple[float, float]:
    """Return the jobs per second that workers begin, and the server's bytes per waiting job.

    The time runs from the start of the first handler to the start of the last one. With several workers, the first
    fifth of the jobs does not count, because one worker may start before another.
    """
    stage.empty()
    path = stage.tally(jobs)
    before = stage.used_memory()
    stage.produce(contender, "bulk", path, jobs, kind)
    held = (stage.used_memory() - before) / jobs
    with stage.working(
        contender, path, kind, workers=workers, concurrency=concurrency
    ) as processes:
        moments = stage.await_jobs(contender, Tally(path), jobs, processes)
    # The first fifth is left out: one worker may have started before the other.
    skipped = jobs // 5 if workers > 1 else 0
    return (jobs - skipped - 1) / (moments[-1] - moments[skipped]), held


def latency_ms(
    stage: Stage, contender: Contender, jobs: int, kind: str = "async", concurrency: int | None = 10
) -> list[float]:
    """Return the sorted times (ms) from the enqueue call to the start of the handler. The worker is idle before each
    job.
    """
    stage.empty()
    warm = 20
    path = stage.tally(jobs + warm)
    with stage.working(contender, path, kind, concurrency=concurrency) as processes:
        _wait_until_it_works(stage, contender, path, kind, processes)
        stage.produce(contender, "paced", path, jobs + warm, kind)
        if any(process.poll() is not None for process in processes):
            raise Failed("the worker ended")
    tally = Tally(path)
    took = [1e3 * (began - sent) for began, sent in zip(tally.began, tally.sent, strict=True)]
    return sorted(took[warm:])


def _wait_until_it_works(
    stage: Stage, contender: Contender, path: Path, kind: str, processes: list[Popen[str]]
) -> None:
    """Wait until the worker has begun one job, so that its start-up is not measured."""
    stage.produce(contender, "one", path, 1, kind)
    tally = Tally(path)
    stage.await_jobs(contender, tally, 1, processes)
    tally.began[0] = 0.0


def percentile(values: list[float], share: float) -> float:
    return values[min(len(values) - 1, int(share * len(values)))]


def scaling(stage: Stage, kind: str, workers: int, jobs: int) -> float:
    """Return the throughput of several workers, in percent of the ideal.

    For jobs that compute, the ideal keeps one core per worker busy. For jobs that sleep, it keeps all places busy.
    """
    places = SCALED_CONCURRENCY[kind]
    lanes = min(workers, len(os.sched_getaffinity(0))) if kind == "cpu" else workers * places
    rate, _ = drain(stage, OURS, jobs * workers, kind, workers=workers, concurrency=places)
    return 100 * rate * JOB_S[kind] / lanes
