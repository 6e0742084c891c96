"""A relay that is killed or stopped at any point of its turn: each committed row becomes one job.

Here on SQLite and one server. The other databases and servers: scripts/prove/inbox.
"""

from __future__ import annotations

import pytest

from tests.kit.inbox import Stage
from tests.rigs.inbox.points import POINTS, Point, kill_at, stop_at


@pytest.mark.parametrize("point", POINTS, ids=lambda point: point.name)
def test_after_a_kill_at_any_point_each_row_becomes_one_job(stage: Stage, point: Point) -> None:
    kill_at(stage, point)


@pytest.mark.parametrize("point", POINTS, ids=lambda point: point.name)
def test_a_relay_that_is_stopped_and_woken_hands_no_row_over_twice(
    stage: Stage, point: Point
) -> None:
    stop_at(stage, point)
