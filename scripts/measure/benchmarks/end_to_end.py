"""Measures a whole system on this machine: a producer, a worker, its mirror, Redis and the database."""

from __future__ import annotations

import time

from contender import Tally
from mirroring import Databases
from stage import OURS, Failed, Stage

from rq_core.model.keys import queue_keys

QUEUE = "async"


def measure(stage: Stage, databases: Databases, dialect: str, jobs: int) -> float:
    """Return the jobs per second of the whole system. The time runs from the start of the first handler until SQL has
    the end of the last job.

    Raises Failed.
    """
    stage.empty()
    database = databases.fresh(dialect)
    path = stage.tally(jobs)
    tally = Tally(path)
    outbox = queue_keys(QUEUE)("outbox")
    url = database.address.render_as_string(hide_password=False)
    try:
        with stage.working(OURS, path, more={"BENCH_AUDIT": url}) as workers:
            stage.produce(OURS, "one", path, 1)
            stage.await_jobs(OURS, tally, 1, workers)
            _await_mirror(stage, outbox)
            tally.began[0] = 0.0
            stage.produce(OURS, "bulk", path, jobs)
            moments = stage.await_jobs(OURS, tally, jobs, workers)
            _await_mirror(stage, outbox)
            took = time.monotonic() - moments[0]
        with database.readers.connect() as connection:
            ended = connection.exec_driver_sql(
                "SELECT count(*) FROM job_event WHERE type = 'succeeded'"
            ).scalar()
    finally:
        databases.drop(database)
    if ended != jobs + 1:
        raise Failed(f"SQL has {ended} of {jobs + 1} jobs")
    return jobs / took


def _await_mirror(stage: Stage, outbox: str) -> None:
    """Wait until Redis has no job, and the outbox (event stream) has only its last entry, which the mirror never
    removes. Raises Failed."""
    patience = time.monotonic() + OURS.part_s
    while stage.control.xlen(outbox) > 1 or stage.control.hlen(queue_keys(QUEUE)("jobs")):
        if time.monotonic() > patience:
            raise Failed("the mirror did not get done")
        time.sleep(0.01)
