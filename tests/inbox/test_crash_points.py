"""A relay that is killed or suspended at any point of its work. Each committed row still becomes one job.

These tests use SQLite and one server. `scripts/prove/inbox` uses other databases and servers, too.
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
def test_each_row_becomes_one_job_though_the_relay_is_killed_at_any_point(
    stage: Stage, point: Point
) -> None:
    kill_at(stage, point)


@pytest.mark.parametrize("point", POINTS, ids=lambda point: point.name)
def test_a_suspended_relay_that_resumes_hands_no_row_over_twice(stage: Stage, point: Point) -> None:
    stop_at(stage, point)


@pytest.mark.slow
def test_each_committed_row_becomes_one_job_under_many_kills(
    tmp_path: Path, sqlite_url: str, valkey_url: str
) -> None:
    """Runs a short form of `scripts/prove/inbox`: 100 transactions and 10 kills."""
    outcome = Rig(sqlite_url, valkey_url, tmp_path, seed=1).run(transactions=100, kills=10)
    assert outcome.holds, outcome.document()
    assert outcome.committed > 100
    assert outcome.rolled_back > 0


def test_a_naive_relay_runs_jobs_twice_if_it_is_killed_between_its_two_steps(stage: Stage) -> None:
    """Checks that the tests of this file can fail."""

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
