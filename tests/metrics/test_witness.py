"""Worker processes that are replaced and killed. Their counts never fall, and are exact if no process was killed.

The log and the jobs' own records have all jobs.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import psutil
import pytest

from rq_core import App
from rq_core.metrics.collector import QueueCollector
from tests.kit import crew
from tests.kit.crew import worker_process
from tests.kit.processes import command_of, lives
from tests.kit.servers import free_port
from tests.kit.wait import wait_until
from tests.kit.witness import WITNESS
from tests.metrics.scrape import exposition, fell, get, parsed, total, value

JOBS = int(os.environ.get("RQ_CORE_WITNESS_JOBS", "2000")) // 2
"""Number of jobs in each half of the test. In the second half, processes are killed. `scripts/prove/live witness` runs
more jobs."""
KILLS = max(1, JOBS // 1_000)
SHARE = max(150, JOBS // 20)
"""Number of jobs after which a worker process is replaced."""
WAIT_S = 60 + JOBS / 20
SETTLED, ENDED = "rqc_worker_settled_total", "rqc_claims_ended_total"


@pytest.fixture
def witness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> crew.Witness:
    path = tmp_path / "witness.jsonl"
    monkeypatch.setenv(WITNESS, str(path))
    return crew.Witness(path)


def enqueue(app: App, count: int) -> None:
    for _ in range(count):
        app.enqueue("crew", "coroutine", {})


@pytest.mark.slow
def test_the_metric_totals_of_a_supervisor_never_fall_and_are_exact_after_workers_have_ended(
    valkey_url: str, witness: crew.Witness, tmp_path: Path
) -> None:
    port, audit = free_port(), str(tmp_path / "audit.db")
    scrapes = [parsed(get(port)[1])]
    how = ("--processes", "4", "--max-jobs", str(SHARE), "--health", str(port), "--audit", audit)

    def scraped(wanted: float) -> bool:
        """Scrape the metrics, and assert that no counter fell. Return whether this number of jobs has succeeded."""
        status, text = get(port)
        if status != 200:
            return False
        scrapes.append(parsed(text))
        assert fell(scrapes[-2], scrapes[-1]) == {}
        return total(scrapes[-1], SETTLED, outcome="succeeded") >= wanted

    with (
        App(valkey_url) as app,
        contextlib.closing(QueueCollector.at(valkey_url, audit_url=audit)) as collector,
    ):
        enqueue(app, JOBS)
        with worker_process(valkey_url, witness, *how) as process:
            wait_until(lambda: scraped(JOBS), "all are counted", timeout=WAIT_S)
            orderly = scrapes[-1]
            assert total(orderly, SETTLED) == total(orderly, SETTLED, outcome="succeeded") == JOBS
            assert value(orderly, "rqc_worker_claims_total", queue="crew") == JOBS
            assert (
                value(orderly, "rqc_worker_run_seconds_count", queue="crew", task="coroutine")
                == JOBS
            )
            assert value(orderly, "rqc_worker_processes_replaced_total", why="retired")

            enqueue(app, JOBS)
            struck: list[int] = []
            for kill in range(1, KILLS + 1):
                some = total(scrapes[-1], SETTLED, outcome="succeeded") + 100
                wait_until(lambda some=some: scraped(some), "some are counted", timeout=WAIT_S)
                struck.append(_kill_a_worker_of(process.pid))

                def died(kill: int = kill) -> bool:
                    """Return whether the metrics count this number of killed workers.

                    A killed process does not count if it had already retired. Then this function kills another worker.
                    """
                    gone = not lives(struck[-1])
                    scraped(0)
                    found = value(scrapes[-1], "rqc_worker_processes_replaced_total", why="died")
                    if gone and (found or 0) < kill:
                        struck.append(_kill_a_worker_of(process.pid))
                    return (found or 0) >= kill

                wait_until(died, "the killed process is buried", timeout=60)
            wait_until(lambda: scraped(0) and _left(app) == 0, "all have run", timeout=WAIT_S)

            def logged() -> bool:
                found = parsed(exposition(collector))
                return total(found, ENDED, outcome="succeeded") == 2 * JOBS

            wait_until(logged, "the log has them all", timeout=60)
            most_missing = 50 * len(struck)
            wait_until(
                lambda: scraped(2 * JOBS - most_missing), "but those of the killed", timeout=60
            )
            # A counter of waits goes with each run, and a process that is there shows how it does.
            for name in ("rqc_worker_wait_seconds_count", "rqc_worker_turns_total"):
                assert total(scrapes[-1], name) > 0
            assert value(scrapes[-1], "rqc_worker_claim_age_seconds") is not None
            # In order, so that the mirror ends with it and finds no other test's server.
            process.terminate()
            process.wait(30)

    assert len({line["job"] for line in witness.lines("coroutine")}) == 2 * JOBS
    assert JOBS < total(scrapes[-1], SETTLED, outcome="succeeded") <= 2 * JOBS


def _kill_a_worker_of(supervisor: int) -> int:
    """Kill the oldest worker process, which is most likely at work. Return its process id."""

    def one_is_killed() -> int | None:
        workers = [
            child
            for child in psutil.Process(supervisor).children()
            if "spawn_main" in command_of(child.pid)
        ]
        try:
            oldest = min(workers, key=psutil.Process.create_time)
            oldest.kill()
        except (psutil.NoSuchProcess, ValueError):
            return None  # It has retired meanwhile, or all have.
        return oldest.pid

    pid = wait_until(one_is_killed, "a worker process is killed", timeout=WAIT_S)
    assert pid is not None
    return pid


def _left(app: App) -> int:
    counts = app.client.run(app.client.calls.reads.counts("crew"))
    return sum(counts.ready.values()) + counts.running + counts.scheduled + counts.dead
