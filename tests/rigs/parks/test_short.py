"""The proofs of parked jobs in a short form. `scripts/prove/live parks` is the long form.

The short form of the module `stops` is in tests/worker/test_durable_live.py, that of `sharded` in
tests/cluster/test_families.py.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from rq_core.model.durable.children import child_id
from tests.kit.servers import RedisServer
from tests.rigs.parks import aftermath, crowded, deploys, families, kills, sharded, wide


@pytest.mark.slow
def test_each_signal_is_taken_once_and_in_order_while_the_job_parks_and_wakes(
    valkey: RedisServer, tmp_path: Path
) -> None:
    found = crowded.send(valkey.url, tmp_path, 60, processes=1)

    assert [] == found.problems
    assert found.parks > 1


@pytest.mark.slow
def test_each_sleeping_job_is_woken_once_and_not_too_early_while_its_worker_is_replaced(
    valkey: RedisServer, tmp_path: Path
) -> None:
    found = deploys.deploy(valkey.url, tmp_path, 100, 2, seconds_each=2.5)

    assert [] == found.problems
    assert 100 == len(found.late_ms)


@pytest.mark.slow
def test_no_job_is_lost_and_no_saved_step_happens_again_if_workers_are_killed(
    valkey: RedisServer, tmp_path: Path
) -> None:
    found = kills.kill(valkey.url, tmp_path, 6, 6, legs=4, processes=2)

    assert [] == found.problems
    assert found.kills >= 6


@pytest.mark.slow
def test_each_child_counts_once_in_its_parent_if_workers_are_killed(
    valkey: RedisServer, tmp_path: Path
) -> None:
    found = families.kill(valkey.url, tmp_path, 2, 12, 5, processes=2)

    assert [] == found.problems
    assert found.kills >= 5


@pytest.mark.slow
def test_the_log_explains_each_run_of_each_child_though_workers_are_killed(
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
def test_the_judge_reports_a_run_of_a_child_that_the_log_does_not_explain(
    runs: dict[str, int], claims: dict[str, str], said: str
) -> None:
    assert said in wide.wrong_runs(runs, claims)


def test_the_judge_accepts_runs_that_succeeded_or_lost_their_lease() -> None:
    runs, claims = {"a 1": 1, "a 2": 1}, {"a 1": "lease_expired", "a 2": "succeeded"}

    assert [] == list(wide.wrong_runs(runs, claims))


def _event(kind: str, at: int, *, forgotten: bool = False, **facts: str) -> dict[str, Any]:
    return {
        "queue": "parts", "epoch": 5, "seq": at, "type": kind, "job_id": "a", "forgotten": forgotten,
        "detail": json.dumps(facts),
    }  # fmt: skip


def _judged(events: Sequence[Mapping[str, Any]], runs: Sequence[Sequence[str]]) -> list[str]:
    """Return the problems of a run with one child, ``a``, after a loss of the children's shard."""
    children, found = aftermath.children_in(events), sharded.Sharded("children", 1, 0)
    return [
        *aftermath.wrong_runs(children, runs, found),
        *aftermath.wrong_ends(children, 1, may_be_more=False),
    ]


CLAIMED, SUCCEEDED = _event("claimed", 1), _event("succeeded", 2, fence="5-1")
AGAIN = _event("claimed", 3), _event("succeeded", 4, fence="5-3")
RUN, SECOND = ("a", "1", "5-1"), ("a", "2", "5-3")


@pytest.mark.parametrize(
    ("events", "runs"),
    [
        ([CLAIMED, SUCCEEDED], [RUN]),
        ([CLAIMED, _event("lease_expired", 2, fence="5-1"), *AGAIN], [RUN, SECOND]),
        ([CLAIMED, SUCCEEDED | {"forgotten": True}, *AGAIN], [RUN, SECOND]),
        ([CLAIMED | {"forgotten": True}, *AGAIN], [RUN, SECOND]),
        ([CLAIMED, SUCCEEDED | {"forgotten": True}, _event("removed", 3)], [RUN]),
    ],
    ids=["once", "lease expired", "success forgotten", "claim forgotten", "taken out"],
)
def test_the_judge_accepts_runs_that_an_expired_lease_or_a_reported_loss_explains(
    events: list[dict[str, Any]], runs: list[tuple[str, str, str]]
) -> None:
    assert [] == _judged(events, runs)


@pytest.mark.parametrize(
    ("events", "runs", "said"),
    [
        ([CLAIMED, SUCCEEDED], [RUN, SECOND], "does not explain the run of a in claim 5-3"),
        ([CLAIMED, *AGAIN], [RUN, SECOND], "does not explain the run of a in claim 5-1"),
        ([CLAIMED, SUCCEEDED], [RUN, RUN], "claim 5-1 of a ran 2 times"),
        ([CLAIMED, SUCCEEDED], [], "claim 5-1 of a succeeded and did not run"),
        ([CLAIMED, SUCCEEDED, *AGAIN], [RUN, SECOND], "child a succeeded 2 times, 0 forgotten"),
        ([CLAIMED, _event("lease_expired", 2, fence="5-1")], [RUN], "child a succeeded 0 times"),
        ([CLAIMED, SUCCEEDED, _event("removed", 3)], [RUN], "child a was removed, and had not"),
        ([], [], "there are 0 children, not 1"),
    ],
)
def test_the_judge_reports_a_run_or_an_end_that_neither_a_lease_nor_a_loss_explains(
    events: list[dict[str, Any]], runs: list[tuple[str, str, str]], said: str
) -> None:
    assert any(said in problem for problem in _judged(events, runs))


def test_the_judge_reports_a_child_that_belongs_to_no_job_and_a_result_that_was_saved_twice() -> (
    None
):
    mine = child_id("b0c", "parts", 0)
    children = {mine: aftermath.Child(), "a": aftermath.Child()}
    saved = _event("step_saved", 1, life="b0c", name="parts=0")

    assert ["child a belongs to no job"] == list(aftermath.strangers(children, [saved]))
    assert [] == list(aftermath.wrong_saves([saved, saved | {"forgotten": True}]))
    assert 1 == len(list(aftermath.wrong_saves([saved, saved])))
