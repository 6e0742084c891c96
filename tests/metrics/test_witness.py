"""Real worker processes that are replaced and killed: their counts against the log, and against what jobs wrote."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

import psutil
import pytest

from rq_core import App
from rq_core.metrics.collector import QueueCollector
from tests.kit import crew
from tests.kit.crew import worker_process
from tests.kit.servers import free_port
from tests.kit.wait import wait_until
from tests.metrics.scrape import exposition, fell, get, parsed, total, value

JOBS = 1_000
SETTLED, ENDED = "rqc_worker_settled_total", "rqc_claims_ended_total"


@pytest.fixture
def witness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> crew.Witness:
    path = tmp_path / "witness.jsonl"
    monkeypatch.setenv(crew.WITNESS, str(path))
    return crew.Witness(path)


def enqueue(app: App, count: int) -> None:
    for _ in range(count):
        app.enqueue("crew", "coroutine", {})


@pytest.mark.alone
def test_totals_are_exact_for_orderly_ends_and_never_fall(
    valkey_url: str, witness: crew.Witness, tmp_path: Path
) -> None:
    port, audit = free_port(), str(tmp_path / "audit.db")
    scrapes = [parsed(get(port)[1])]
    how = ("--processes", "4", "--max-jobs", "150", "--health", str(port), "--audit", audit)

    def scraped(wanted: float) -> bool:
        """Scrape, and see that nothing fell since the scrape before."""
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
            wait_until(lambda: scraped(JOBS), "all are counted", timeout=60)
            orderly = scrapes[-1]
            assert total(orderly, SETTLED) == total(orderly, SETTLED, outcome="succeeded") == JOBS
            assert value(orderly, "rqc_worker_claims_total", queue="crew") == JOBS
            assert (
                value(orderly, "rqc_worker_run_seconds_count", queue="crew", task="coroutine")
                == JOBS
            )
            assert value(orderly, "rqc_worker_processes_replaced_total", why="retired")

            enqueue(app, JOBS)
            wait_until(lambda: scraped(JOBS + 100), "some are counted", timeout=60)
            victim = next(
                child.pid
                for child in psutil.Process(process.pid).children()
                if "spawn_main" in " ".join(child.cmdline())
            )
            os.kill(victim, signal.SIGKILL)
            wait_until(
                lambda: (
                    scraped(0)
                    and value(scrapes[-1], "rqc_worker_processes_replaced_total", why="died")
                ),
                "the killed process is replaced",
                timeout=60,
            )
            wait_until(lambda: _left(app) == 0, "all jobs have run", timeout=60)

            def logged() -> bool:
                found = parsed(exposition(collector))
                return total(found, ENDED, outcome="succeeded") == 2 * JOBS

            wait_until(logged, "the log has them all", timeout=60)
            wait_until(
                lambda: scraped(2 * JOBS - 50), "but those of the killed process", timeout=60
            )

    assert len({line["job"] for line in witness.lines("coroutine")}) == 2 * JOBS
    assert JOBS < total(scrapes[-1], SETTLED, outcome="succeeded") <= 2 * JOBS


def _left(app: App) -> int:
    counts = app.client.run(app.client.calls.reads.counts("crew"))
    return sum(counts.ready.values()) + counts.running + counts.scheduled + counts.dead
