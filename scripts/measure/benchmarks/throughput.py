"""Measures jobs per second and latency of any contender (benchmarked library), always in the same way."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path
from subprocess import Popen

import psutil
from contender import Tally
from stage import OURS, Contender, Failed, Stage

SCALED_CONCURRENCY = {"cpu": 4, "sleep": 10}
JOB_S = {"cpu": 0.001, "sleep": 0.005}
WAITING_S = 0.01
"""The time (s) that handlers wait in the measurement of a worker that runs many jobs at once."""


def enqueue_one(stage: Stage, contender: Contender, jobs: int, kind: str = "async") -> float:
    stage.empty()
    return stage.produce(contender, "one", stage.tally(jobs), jobs, kind)["per_s"]


def enqueue_bulk(stage: Stage, contender: Contender, jobs: int, kind: str = "async") -> float:
    """Return how many jobs per second a library enqueues in calls of 1,000 jobs, or one by one if it has no call for
    many jobs."""
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
    """Return the jobs per second that workers begin while they empty a queue, and the server's bytes per waiting job.

    The time runs from the start of the first handler to the start of the last one. With several workers, the first
    fifth of the jobs is not counted, because one worker may start before another. ``concurrency``: jobs that a worker
    runs at once; None: its default.
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
    return paced(stage, contender, jobs, kind, concurrency)[0]


def paced(
    stage: Stage, contender: Contender, jobs: int, kind: str, concurrency: int | None
) -> tuple[list[float], float]:
    """Return the sorted latencies (ms) as ``latency_ms`` does, and the median time (ms) of the producer's calls."""
    stage.empty()
    warm = 20
    path = stage.tally(jobs + warm)
    with stage.working(contender, path, kind, concurrency=concurrency) as processes:
        _wait_until_it_works(stage, contender, path, kind, processes)
        call_ms = stage.produce(contender, "paced", path, jobs + warm, kind)["call_ms"]
        if any(process.poll() is not None for process in processes):
            raise Failed("the worker ended")
    tally = Tally(path)
    took = [1e3 * (began - sent) for began, sent in zip(tally.began, tally.sent, strict=True)]
    return sorted(took[warm:]), call_ms


def idle_mb(stage: Stage, contender: Contender, kind: str, seconds: float) -> dict[str, float]:
    """Return the memory (MB) of an idle worker, ``seconds`` after it has run one job."""
    stage.empty()
    path = stage.tally(1)
    with stage.working(contender, path, kind) as processes:
        _wait_until_it_works(stage, contender, path, kind, processes)
        time.sleep(seconds)
        return {f"idle_{name}": value for name, value in memory_mb(processes[0].pid).items()}


def waiting(
    stage: Stage, contender: Contender, jobs: int, kind: str, places: int
) -> dict[str, float]:
    """Return the jobs per second of one worker that runs ``places`` jobs at once, whose handlers wait for WAITING_S.
    Also return the worker's memory (MB) when half of the jobs have begun."""
    contender = replace(
        contender,
        concurrency=places,
        environment={**contender.environment, "BENCH_WAIT_S": str(WAITING_S)},
    )
    stage.empty()
    path = stage.tally(jobs)
    stage.produce(contender, "bulk", path, jobs, kind)
    with stage.working(contender, path, kind) as processes:
        tally = Tally(path)
        stage.await_jobs(contender, tally, jobs // 2, processes)
        memory = memory_mb(processes[0].pid)
        moments = stage.await_jobs(contender, tally, jobs, processes)
    return {
        "waiting_per_s": (jobs - 1) / (moments[-1] - moments[0]),
        **{f"busy_{name}": value for name, value in memory.items()},
    }


def memory_mb(pid: int) -> dict[str, float]:
    """Return the memory (MB) of a process and its children: ``rss_mb``, the sum of their resident sets, and on Linux
    ``pss_mb``, in which shared pages are counted once."""
    first = psutil.Process(pid)
    found = [each.memory_full_info() for each in (first, *first.children(recursive=True))]
    names = [name for name in ("rss", "pss") if hasattr(found[0], name)]
    return {f"{name}_mb": sum(getattr(each, name) for each in found) / 1e6 for name in names}


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

    For jobs that compute, the ideal keeps one core per worker busy. For jobs that sleep, it keeps each worker full.
    """
    places = SCALED_CONCURRENCY[kind]
    lanes = min(workers, len(os.sched_getaffinity(0))) if kind == "cpu" else workers * places
    rate, _ = drain(stage, OURS, jobs * workers, kind, workers=workers, concurrency=places)
    return 100 * rate * JOB_S[kind] / lanes
