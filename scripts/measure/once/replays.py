"""Replays jobs that died, in processes that are killed at random moments, and counts the copies in the audit log.

    scripts/measure/once/run replays [--jobs 12431] [--kills 5]

Some copies run and leave Redis before the next process continues. The last process is not killed. Another replay must
then find nothing to copy. The command also fails unless `audit verify` accepts the log, and the log has one copy of
each job, enqueued once.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import click
from sqlalchemy import text

from rq_core import App, Filter
from rq_core.protocol.calls import claims
from sql_audit.proof.result import LogVerdict
from sql_audit.proof.verify import verify
from sql_audit.store import migrate
from sql_audit.store.connection.database import Database
from tests.kit.mirroring import mirroring
from tests.kit.reaper import close_reaper
from tests.kit.servers import engines
from tests.rigs.stage import directory, served

QUEUE: Final = "mail"
AT_ONCE: Final = 250
"""The number of jobs in one claim."""
DIED: Final = json.dumps({"type": "TimeoutError", "message": "x"})
COPIES: Final = "SELECT COUNT(*), COUNT(DISTINCT job_id) FROM job_event WHERE type = 'enqueued' AND job_id LIKE '%.r%'"


@dataclass
class Figures:
    """The counts of all replays (enqueues of copies) of the same jobs."""

    jobs: int
    kills: int
    """Number of processes that were killed while they replayed."""
    enqueued: int
    """Number of events in the log that enqueued a copy."""
    copies: int
    """Number of ids of copies in the log."""
    again: dict[str, int]
    """Outcome → number of jobs, for a further replay after the complete one. It must find that all jobs were copied
    before."""
    holds: bool
    """True if `audit verify` accepts the log."""
    seconds: float
    """The time (s) of all replays, with the starts of their processes."""

    @property
    def failures(self) -> list[str]:
        found = []
        if (self.enqueued, self.copies) != (self.jobs, self.jobs):
            found.append(
                f"{self.enqueued:,} events for {self.copies:,} copies of {self.jobs:,} jobs"
            )
        if self.again != {"copied before": self.jobs}:
            found.append(f"the last replay says {self.again}")
        if not self.holds:
            found.append("the log does not hold")
        return found


def app_of(url: str, audit: str) -> App:
    app = App(url, audit, audit_payload="full")

    @app.task(queue=QUEUE)
    def send(n: int) -> None: ...

    return app


def replay(url: str, audit: str) -> None:
    """Replay the jobs that died. Print a line after each page, and the outcomes at the end. Runs in a process of its
    own.
    """
    with app_of(url, audit) as app:
        made = app.replay(
            Filter(queue=QUEUE, error="TimeoutError"),
            name="again",
            progress=lambda _matched, copied: print(copied, flush=True),
        )
    print(json.dumps(dict(made.outcomes)), flush=True)


def start(url: str, audit: str) -> subprocess.Popen[str]:
    words = [sys.executable, "-m", "scripts.measure.once.replays", "--replay", url, audit]
    return subprocess.Popen(words, stdout=subprocess.PIPE, text=True)


def killed(url: str, audit: str, pages: int, after_s: float) -> bool:
    """Start a replay in a process, and kill it ``after_s`` seconds after it has copied ``pages`` pages. Return whether
    it was still running."""
    with start(url, audit) as process:
        assert process.stdout is not None
        for _ in range(pages):
            process.stdout.readline()
        time.sleep(after_s)
        process.kill()
        return process.wait(30) < 0


def whole(url: str, audit: str) -> dict[str, int]:
    """Run a replay to its end in a process. Return outcome → number of jobs."""
    with start(url, audit) as process:
        said, _ = process.communicate()
        assert process.returncode == 0, "the replay failed"
    outcomes: dict[str, int] = json.loads(said.splitlines()[-1])
    return outcomes


def end(app: App, most: int, error: str | None = None) -> int:
    """Claim up to ``most`` jobs, and let each succeed, or die of ``error``. Return the number of jobs."""
    ended = 0
    while ended < most:
        limit = min(AT_ONCE, most - ended)
        held = app.client.run(claims.claim(QUEUE, "w-1", limit)).jobs
        if not held:
            break
        if error is None:
            app.client.run(claims.complete(QUEUE, "w-1", [(c.id, c.fence) for c in held]))
        else:
            failed = [(c.id, c.fence, "final", 0, "gave_up", error) for c in held]
            app.client.run(claims.fail(QUEUE, "w-1", failed))
        ended += len(held)
    return ended


def measure(redis: str, audit: str, jobs: int, kills: int, seed: int = 40) -> Figures:
    """Let jobs die, replay them, and return the counts."""
    chosen = random.Random(seed)  # noqa: S311 - it shall repeat
    migrate.upgrade_schema(audit)
    with app_of(redis, audit) as app, mirroring(redis, audit):
        app.enqueue_many(app.tasks["send"].job(n) for n in range(jobs))
        assert end(app, jobs, DIED) == jobs
        began, count = time.perf_counter(), 0
        pages = -(-jobs // AT_ONCE)
        for _ in range(kills):
            # A page takes some 50 ms.
            at = chosen.randrange(max(1, pages - 1)), chosen.random() / 20
            count += killed(redis, audit, *at)
            end(app, jobs // (2 * kills))
        whole(redis, audit)
        end(app, jobs // 4)
        again = whole(redis, audit)
        took = time.perf_counter() - began
        end(app, jobs)
        whole(redis, audit)  # It waits until the log has all events.
    database = Database(audit)
    with database.snapshot() as reading:
        enqueued, copies = reading.execute(text(COPIES)).one()
    holds = verify(database).verdict is LogVerdict.HOLDS
    database.close()
    return Figures(jobs, count, enqueued, copies, again, holds, took)


@click.command()
@click.option("--jobs", default=12_431, show_default=True, type=click.IntRange(500))
@click.option("--kills", default=5, show_default=True, type=click.IntRange(0, 50))
@click.option("--replay", "replayed", nargs=2, hidden=True)
def main(jobs: int, kills: int, replayed: tuple[str, str] | None) -> None:
    """Print the counts of the replays. Exit with 1 if a job has no copy, or more than one."""
    if replayed is not None:
        replay(*replayed)
        return
    with directory() as place, served(engines()[0], place) as server:
        audit = f"sqlite:///{Path(place) / 'audit.db'}"
        found = measure(server.url, audit, jobs, kills)
    print(json.dumps(asdict(found)))
    close_reaper()
    if found.failures:
        sys.exit("; ".join(found.failures))


if __name__ == "__main__":
    main()
