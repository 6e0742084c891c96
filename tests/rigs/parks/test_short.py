"""The proofs of parked jobs in a short form. `scripts/prove/live parks` is the long form.

The short form of the module `stops` is in tests/worker/test_durable_live.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.servers import RedisServer
from tests.rigs.parks import crowded, deploys, families, kills, wide


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


@pytest.mark.slow
def test_the_log_explains_each_run_of_a_child_if_workers_are_killed_while_groups_join(
    valkey: RedisServer, tmp_path: Path
) -> None:
    audit_url = f"sqlite:///{tmp_path / 'audit.db'}"

    found = wide.kill(
        valkey.url, audit_url, tmp_path, 300, width=150, every_s=0.8, processes=2, seconds_max=60
    )

    assert [] == found.problems
    assert found.kills >= 1
    assert found.runs >= 300


@pytest.mark.parametrize(
    ("runs", "claims", "said"),
    [
        ({"a 1": 2}, {"a 1": "succeeded"}, "claim a 1 ran 2 times"),
        ({"a 1": 1}, {"a 2": "succeeded"}, "the log says of claim a 1, which ran: None"),
        ({"a 1": 1}, {"a 1": "rolled_back"}, "the log says of claim a 1, which ran: rolled_back"),
        ({}, {"a 1": "succeeded"}, "claim a 1 succeeded and did not run"),
    ],
)
def test_a_run_of_a_child_that_the_log_does_not_explain_is_a_problem(
    runs: dict[str, int], claims: dict[str, str], said: str
) -> None:
    assert said in wide.wrong_runs(runs, claims)


def test_runs_that_succeeded_or_lost_their_lease_are_no_problem() -> None:
    runs, claims = {"a 1": 1, "a 2": 1}, {"a 1": "lease_expired", "a 2": "succeeded"}

    assert [] == list(wide.wrong_runs(runs, claims))
