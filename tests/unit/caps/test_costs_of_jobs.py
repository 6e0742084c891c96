"""Costs of jobs in the units that rates count, and the errors for invalid costs."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rq_core import (
    App,
    ArgumentsInvalid,
    Cap,
    InvalidOption,
    InvalidTask,
    KeyFailed,
    KeyNeeded,
    Rate,
)
from rq_core.app.limits.lane_assignment import registered_placing
from rq_core.model.job import NewJob
from rq_core.model.limits.costs import cost_of, read_costs
from rq_core.model.packed_job import Unreadable, pack, unpack
from rq_core.model.recurrence import recurrence
from rq_core.model.schedule import job_of
from scripts.measure.once import costs as costs_once


def ask(model: str, prompt: str, tokens: int = 500) -> None: ...


def words(prompt: str, **_: Any) -> int:
    return len(prompt.split())


def rate(**options: Any) -> Rate:
    return Rate(
        90_000, **{"per_seconds": 60, "per": "model", "cost": "tokens", "burst": 90_000, **options}
    )


def costs(job: NewJob) -> dict[str, int]:
    text = json.loads(job.ties or "{}").get("cost")
    return dict(read_costs(text)) if text else {}


def test_the_cost_of_a_job_is_the_value_of_an_argument_or_its_default(app: App) -> None:
    task = app.task(caps=[Cap(20, per="model"), rate(), Rate(100, per_seconds=60, per="model")])(
        ask
    )

    job = task.job("gpt", "hi", 1_500)

    assert job.lane == "2+ask.model=gpt+ask.model@60s:tokens=gpt+ask.model@60s=gpt"
    assert costs(job) == {"tokens": 1_500}
    assert costs(task.job("gpt", "hi")) == {"tokens": 500}


def test_the_cost_of_a_job_is_what_a_function_of_its_arguments_returns(app: App) -> None:
    task = app.task(caps=[rate(cost=words), rate(), rate(cost=words, per_seconds=86_400)])(ask)

    assert costs(task.job("gpt", "a b c")) == {"tokens": 500, "words": 3}


def test_a_job_to_which_a_rate_does_not_apply_has_no_cost_for_that_rate(app: App) -> None:
    def paid(model: str | None, tokens: int) -> None: ...

    task = app.task(caps=[Cap(5), rate()])(paid)

    assert costs(task.job(None, 5)) == {}


def test_a_job_carries_its_cost_beside_its_other_options(app: App) -> None:
    task = app.task(caps=[rate()], keep_result=60)(ask).with_options(expires=30)

    assert json.loads(task.job("gpt", "hi", 7).ties) == {
        "expires_in": 30_000, "keep": 60_000, "cost": "tokens:7",
    }  # fmt: skip


@pytest.mark.parametrize("cost", [0, -1, 10**12])
def test_an_invalid_cost_is_refused_when_the_job_is_created(app: App, cost: int) -> None:
    task = app.task(caps=[rate()])(ask)

    with pytest.raises(
        ArgumentsInvalid, match="tokens: a job's cost must be a whole number from 1"
    ):
        task.job("gpt", "hi", cost)


@pytest.mark.parametrize("value", ["many", True, 1.5, None, 0])
def test_the_error_of_an_invalid_cost_names_the_function_that_returned_it(
    app: App, value: Any
) -> None:
    def points(**_: Any) -> Any:
        return value

    task = app.task(caps=[rate(cost=points)])(ask)

    with pytest.raises(ArgumentsInvalid, match=r"what points\(\) returns: a job's cost must be"):
        task.job("gpt", "hi")


def test_the_error_of_a_cost_function_that_fails_names_the_function(app: App) -> None:
    def points(**_: Any) -> int:
        raise RuntimeError("no price")

    task = app.task(caps=[rate(cost=points)])(ask)

    with pytest.raises(KeyFailed, match="points"):
        task.job("gpt", "hi")


async def later(**_: Any) -> int:
    return 1


@pytest.mark.parametrize(
    ("cost", "why"),
    [(5, "must be the name"), (lambda **_: 1, "cannot name the unit"), ("a b", "cannot name"), (later, "not be async")],
)  # fmt: skip
def test_a_rate_without_a_usable_unit_is_refused(cost: Any, why: str) -> None:
    with pytest.raises(InvalidOption, match=why):
        rate(cost=cost)


def test_a_task_that_lacks_the_argument_named_as_its_cost_is_refused(app: App) -> None:
    with pytest.raises(InvalidTask, match="cost='tokens', and it has no such argument"):
        app.task(name="ask", caps=[rate()])(lambda model: None)


def test_a_default_value_that_is_no_valid_cost_is_refused(app: App) -> None:
    def free(model: str, tokens: int = 0) -> None: ...

    with pytest.raises(
        InvalidTask, match="the default of tokens, its cost, must be a whole number"
    ):
        app.task(caps=[rate()])(free)


def test_two_functions_for_one_unit_are_refused(app: App) -> None:
    def other(prompt: str, **_: Any) -> int:
        return len(prompt)

    other.__name__ = "words"
    with pytest.raises(InvalidTask, match="two functions compute its cost in words"):
        app.task(caps=[rate(cost=words), rate(cost=other, per_seconds=1)])(ask)


def test_a_producer_without_the_code_computes_the_cost_from_the_stored_policy(app: App) -> None:
    task = app.task(name="ask", caps=[rate(), rate(cost=words)])(ask)
    (policy,) = app.declared.policies("default").values()
    placing = registered_placing("ask", "default", policy)
    values = {"model": "gpt", "prompt": "a b"}

    lane, _ = placing.lane(2, values, {"words": "2"})

    assert lane == task.job("gpt", "a b").lane
    assert placing.costs(lane, values, {"words": "2"}) == "tokens:500,words:2"
    with pytest.raises(KeyNeeded, match="words"):
        placing.costs(lane, values)
    for text in ("0", "x", "1000000000000", ""):
        with pytest.raises(ArgumentsInvalid, match=r"keys\['words'\]: a job's cost must be"):
            placing.costs(lane, values, {"words": text})
    with pytest.raises(InvalidOption, match="must name words"):
        placing.lane(2, values, {"pages": "2"})


def test_a_producer_of_an_unregistered_task_must_pass_the_key_and_the_cost(app: App) -> None:
    placing = app.declared.unregistered("new", "default")
    keys = {"new.model@60s:tokens": "gpt", "tokens": "70"}

    lane, _ = placing.lane(2, {}, keys)

    assert lane == "2+new.model@60s:tokens=gpt"
    assert placing.costs(lane, {}, keys) == "tokens:70"


def test_a_row_of_the_inbox_keeps_the_cost(app: App) -> None:
    job = app.task(name="ask", caps=[rate()])(ask).job("gpt", "hi", 7)

    read = unpack(pack(job), queue="default", job_id=job.id, task="ask", args=job.args_json)

    assert costs(read) == {"tokens": 7}
    with pytest.raises(Unreadable, match="cost="):
        unpack('{"ties":{"cost":"tokens:0"}}', queue="q", job_id="j", task="t", args="{}")


def test_the_job_of_a_schedule_keeps_its_cost(app: App) -> None:
    job = app.task(name="ask", caps=[rate()])(ask).job("gpt", "hi", 7)

    assert costs(job_of(job, recurrence("nightly", every=60))) == {"tokens": 7}


@pytest.mark.parametrize(
    ("scope", "cost"), [("a@60s:tokens=x", 7), ("a@60s:points=x", 1), ("a@60s=x", 1), ("a=x", 1)]
)
def test_a_job_takes_its_cost_from_a_scope_that_counts_the_unit_and_1_from_any_other_scope(
    scope: str, cost: int
) -> None:
    assert cost_of("tokens:7", scope) == cost


def test_jobs_that_take_units_from_a_rate_begin_at_the_same_times_as_with_a_naive_token_bucket() -> (
    None
):
    """A short form of `scripts/measure/once/run costs`. Jobs begin at the right times. Together they take no more than
    the rate gives, whatever costs they report afterwards."""
    for name, found, share in costs_once.reports(8_000, 3):
        assert found.wrong == 0, name
        assert share <= 1.02, name
