"""A relay that is killed or stopped at any point of its turn: each committed row becomes one job.

Here on SQLite and one server. The other databases and servers: scripts/prove/inbox.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.kit.inbox import Stage, killing
from tests.rigs.inbox import usual
from tests.rigs.inbox.points import POINTS, Point, kill_at, stop_at
from tests.rigs.inbox.rig import Rig


@pytest.mark.parametrize("point", POINTS, ids=lambda point: point.name)
def test_after_a_kill_at_any_point_each_row_becomes_one_job(stage: Stage, point: Point) -> None:
    kill_at(stage, point)


@pytest.mark.parametrize("point", POINTS, ids=lambda point: point.name)
def test_a_relay_that_is_stopped_and_woken_hands_no_row_over_twice(
    stage: Stage, point: Point
) -> None:
    stop_at(stage, point)


@pytest.mark.slow
def test_under_kills_each_committed_row_becomes_one_job_and_the_usual_relay_runs_some_twice(
    tmp_path: Path, sqlite_url: str, valkey_url: str
) -> None:
    """The short form of scripts/prove/inbox."""
    outcome = Rig(sqlite_url, valkey_url, tmp_path, seed=1).run(transactions=100, kills=10)
    assert outcome.holds, outcome.document()
    assert outcome.committed > 100
    assert outcome.rolled_back > 0


def test_the_usual_relay_runs_jobs_twice_after_a_kill_between_its_two_steps(stage: Stage) -> None:
    """So the points of this file can fail."""

    def usual_relay() -> None:
        usual.hand_over(stage, killing("answered", 1))

    stage.insert("a", "b")
    child = os.fork()
    if child == 0:
        usual_relay()
    os.waitpid(child, 0)
    first = stage.drain()
    usual.hand_over(stage, lambda _: None)
    assert first == stage.drain() == ["a", "b"]
