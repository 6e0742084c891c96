"""The verdicts of the long proofs find the problems that are planted in invented figures."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rq_core import App
from rq_core.connections.client import Client
from rq_core.model.events import Entry, JobEvent, OutboxId
from rq_core.model.keys import queue_keys
from rq_core.model.table.machine import Event
from tests.rigs import outages, shards
from tests.rigs.judge import memory
from tests.rigs.judge.caps import peaks
from tests.rigs.judge.follower import Follower
from tests.rigs.judge.names import Names
from tests.rigs.waits.crowd import Found, fell_short

OUTAGE = outages.Outage("restart", 1.0, again_s=0.5, claims=2, ends=2)
STRIKE = shards.Strike(
    "frozen_node", "valkey", spared_pause_s=0.1, spared_call_s=0.1, fresh_call_s=0.1, refused_call_s=0.1,
    writable_s=1.0, acked_s=0.1, again_s=0.1, acked=9, lost=0, lost_meanwhile=3, twice=2,
)  # fmt: skip
FOUND = Found(asked=2, ended=2, late_s=[0.001, 0.001], trip_s=[0.002])


@pytest.mark.parametrize("fault", [{"again_s": 11.0}, {"claims": 3}, {"ends": 1}])
def test_an_outage_run_with_one_bad_figure_is_reported_as_one_problem(
    fault: dict[str, Any],
) -> None:
    assert outages.problems([OUTAGE]) == []
    assert len(outages.problems([OUTAGE, replace(OUTAGE, **fault)])) == 1


@pytest.mark.parametrize(
    "fault",
    [
        {"spared_pause_s": 2.1}, {"spared_call_s": 3.6}, {"fresh_call_s": 3.6}, {"refused_call_s": 4.6},
        {"acked_s": 10.1}, {"again_s": 10.1}, {"lost": 1},
    ],
)  # fmt: skip
def test_a_run_that_strikes_one_shard_is_reported_as_a_problem_if_one_of_its_figures_is_bad(
    fault: dict[str, Any],
) -> None:
    assert shards.problems([STRIKE]) == []
    assert len(shards.problems([STRIKE, replace(STRIKE, **fault)])) == 1


@pytest.mark.parametrize(
    "fault",
    [{"lost": ["a: late"]}, {"ended": 0}, {"gone": 1}, {"listening": 1}, {"late_s": [0.003]}],
)
def test_a_run_of_waits_with_one_bad_figure_is_reported_as_a_problem(fault: dict[str, Any]) -> None:
    assert fell_short(FOUND, alone=True, may_forget=False) == []
    assert len(fell_short(replace(FOUND, **fault), alone=True, may_forget=False)) == 1


def test_a_name_that_two_jobs_hold_is_reported_as_a_breach() -> None:
    def enqueued(seq: int, job_id: str) -> Entry:
        fields = {"unique_name": "send/to=a"}
        jobs = (JobEvent(0, job_id, fields),)
        return Entry(OutboxId(1, seq), Event.ENQUEUED, 1_000, "p", jobs=jobs)

    names = Names()
    names.feed([enqueued(0, "a"), enqueued(1, "a")])
    assert names.breaches == []
    names.feed([enqueued(2, "b")])
    assert names.breaches == ["1-2: b is a second send/to=a"]


def test_a_log_that_was_trimmed_during_the_read_raises_an_error(valkey_url: str) -> None:
    with App(valkey_url) as app, Client(valkey_url) as client:
        follower = Follower(client, "q", Names())
        app.enqueue("q", "send", {})
        assert follower.catch_up().counts["enqueued"] == 1
        memory.ask(client, "XTRIM", queue_keys("q")("outbox"), "MAXLEN", "0")
        with pytest.raises(AssertionError, match="was trimmed while it was read"):
            follower.catch_up()


def test_memory_growth_is_the_factor_by_which_memory_rose_after_the_start() -> None:
    assert memory.growth([9, 5, 5, 5, 5, 5]) == 1
    assert memory.growth([5, 5, 5, 5, 5, 10]) == 2


def test_the_peak_is_the_largest_number_of_runs_that_overlap() -> None:
    def line(what: str, job: str, at: float) -> dict[str, Any]:
        return {"what": what, "queue": "q", "job": job, "at": at}

    apart = [line("start", "a", 1.0), line("end", "a", 2.0), line("start", "b", 2.0)]
    assert peaks(apart) == {"q": 1}
    assert peaks([*apart, line("start", "c", 2.5)]) == {"q": 2}
