"""The points of a relay's turn at which it is killed or suspended. Each committed row must still become one job.

A relay in a child process is killed or suspended at a point. The test then runs all jobs in Redis to their ends: a live
job would refuse a second job with its id. Another relay continues. At the end a suspended relay is resumed.
"""

from __future__ import annotations

import os
import signal
from typing import Final, NamedTuple

from sql_audit.inbox.sending import CALL_ROWS
from tests.kit.inbox import QUEUE, Stage, killing, sorted_ids


class Point(NamedTuple):
    """A point of a relay's work: the moment at which a step occurs for the ``times``-th time."""

    step: str
    times: int
    means: str

    @property
    def name(self) -> str:
        return f"{self.step}-{self.times}"


POINTS: Final = (
    Point("commit", 1, "before the COMMIT that writes the batch"),
    Point("committed", 1, "after that COMMIT"),
    Point("send", 1, "before the first call of the batch is sent"),
    Point("send", 2, "between its two calls"),
    Point("answered", 1, "after Redis has carried both out"),
    Point("commit", 2, "before the COMMIT that deletes the rows"),
    Point("committed", 2, "after that COMMIT"),
)
JOBS: Final = tuple(f"j-{n}" for n in range(CALL_ROWS + 3))
"""The jobs of a batch that needs two calls."""


def kill_at(stage: Stage, point: Point) -> None:
    """Kill a relay at the point, and let another relay continue its batch.

    Another relay takes over a batch only after 5 s, so the test makes the batch look older.
    """
    _insert(stage)
    child = stage.forked(killing(point.step, point.times))
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status), f"the relay did not reach {point}"
    first = stage.drain()
    stage.age_batches()
    stage.hand_over()
    judge(stage, sorted_ids(first, stage.drain()))


def stop_at(stage: Stage, point: Point) -> None:
    """Suspend a relay at the point, let another relay work, and resume the first relay.

    The other relay does not work if the first relay was suspended within a transaction.
    """
    _insert(stage)
    child = stage.forked(killing(point.step, point.times, signal.SIGSTOP))
    _, status = os.waitpid(child, os.WUNTRACED)
    assert os.WIFSTOPPED(status), f"the relay did not reach {point}"
    try:
        first = stage.drain()
        # Within its transaction, the stopped relay excludes others; its database ends the transaction after a while.
        is_within = point.step == "commit"
        if not is_within:
            stage.age_batches()
            stage.hand_over()
        second = stage.drain()
    finally:
        os.kill(child, signal.SIGCONT)
        _, status = os.waitpid(child, 0)
    assert status == 0, "the woken relay failed"
    third = stage.drain()
    assert is_within or not third, "the woken relay handed rows over a second time"
    stage.hand_over()
    judge(stage, sorted_ids(first, second, third, stage.drain()))


def _insert(stage: Stage) -> None:
    stage.insert(*JOBS)
    with stage.session.engine.connect() as connection:
        rolled_back = connection.begin()
        connection.exec_driver_sql(
            "INSERT INTO rqc_inbox (queue, task, job_id) VALUES ('mail', 't', 'no')"
        )
        rolled_back.rollback()


def judge(stage: Stage, ran: list[str]) -> None:
    """Assert that each committed row became one job, which ran once, and that the inbox counted each row once."""
    assert ran == sorted(JOBS)
    assert stage.enqueued() == dict.fromkeys(JOBS, 1)
    assert stage.rows() == []
    row = stage.relay_row(QUEUE)
    assert (row.ids, row.relayed, row.held, row.duplicate) == (None, len(JOBS), 0, 0)
