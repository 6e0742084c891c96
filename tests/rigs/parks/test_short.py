"""The proofs of parked jobs in a short form. `scripts/prove/live parks` is the long form.

The short form of the module `stops` is in tests/worker/test_durable_live.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.servers import RedisServer
from tests.rigs.parks import crowded, deploys, families, kills


def test_each_signal_is_taken_once_and_in_order_while_the_job_parks_and_wakes(
    valkey: RedisServer, tmp_path: Path
) -> None:
    found = crowded.send(valkey.url, tmp_path, 60, processes=1)

    assert [] == found.problems
    assert found.parks > 1


@pytest.mark.slow
def test_each_sleeping_job_is_woken_once_and_not_early_while_its_worker_is_replaced(
    valkey: RedisServer, tmp_path: Path
) -> None:
    found = deploys.deploy(valkey.url, tmp_path, 100, 2, seconds_each=2.5)

    assert [] == found.problems
    assert 100 == len(found.late_ms)


def test_no_job_is_lost_and_no_saved_step_happens_again_if_workers_are_killed(
    valkey: RedisServer, tmp_path: Path
) -> None:
    found = kills.kill(valkey.url, tmp_path, 6, 6, legs=4, processes=2)

    assert [] == found.problems
    assert found.kills >= 6


def test_each_child_counts_once_in_its_parent_if_workers_are_killed(
    valkey: RedisServer, tmp_path: Path
) -> None:
    found = families.kill(valkey.url, tmp_path, 2, 12, 5, processes=2)

    assert [] == found.problems
    assert found.kills >= 5
