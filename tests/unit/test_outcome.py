"""Options and outcomes of waits. An invalid call is refused before anything is sent."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from rq_core import (
    App,
    Cancelled,
    Expired,
    Failed,
    Gone,
    HandlerSignal,
    InvalidOption,
    InvalidTask,
    JobExpired,
    JobFailed,
    JobGone,
    JobHandle,
    JobReplaced,
    JobWasCancelled,
    NoResult,
    Outcome,
    Replaced,
    ResultUnavailable,
    Succeeded,
)
from rq_core.model.job import KEEP_TIE, Claim, read_spec
from rq_core.protocol.calls.enqueue import pack_jobs
from rq_core.worker.settlement import VALUES_MAX, Settlement, calls_of, successes_in

NOTHING_LISTENS = "redis://127.0.0.1:1/0"


class Opaque:
    """A type that JSON cannot encode."""


@pytest.fixture
def app() -> App:
    return App(NOTHING_LISTENS)


def test_a_task_whose_result_json_cannot_encode_is_refused_when_it_is_defined(app: App) -> None:
    def makes() -> Opaque:
        return Opaque()

    with pytest.raises(InvalidTask, match="what it returns cannot be kept as JSON"):
        app.task(keep_result=True)(makes)
    task = app.task(makes)
    with pytest.raises(InvalidTask, match="leave out keep_result"):
        task.with_options(keep_result=60)


def test_check_refuses_a_return_annotation_that_cannot_be_resolved(app: App) -> None:
    def makes() -> Later:  # type: ignore[name-defined]  # noqa: F821 - that is the point
        ...

    app.task(keep_result=True)(makes)
    with pytest.raises(InvalidTask, match="Later"):
        app.check()


@pytest.mark.parametrize("value", ["1h", -1, 0, object(), float("nan")])
def test_an_invalid_keep_result_is_refused(app: App, value: Any) -> None:
    with pytest.raises(InvalidOption, match=r"keep_result=.* must be True, False, or seconds"):
        app.task(keep_result=value)(lambda: None)


@pytest.mark.parametrize(
    "value, keep_ms", [(True, 3_600_000), (60, 60_000), (timedelta(days=1), 86_400_000)]
)
def test_the_option_keep_result_is_written_into_the_fields_and_the_spec(
    app: App, value: Any, keep_ms: int
) -> None:
    def send(to: str) -> str:
        return to

    task = app.task(keep_result=value, timeout=5)(send)
    job = task.with_options(headers={"a": "b"}).job("x")
    plain = task.with_options(keep_result=False).job("x")
    ((_, _, _, _, spec),) = pack_jobs([job])[1]
    ((_, _, _, _, plain_spec),) = pack_jobs([plain])[1]

    assert f"{KEEP_TIE}{keep_ms}" in job.ties
    assert "" == plain.ties
    assert "digest" == read_spec(spec).keeps
    assert read_spec(spec)._replace(keeps="", headers_json="") == read_spec(plain_spec)


def test_a_wait_for_the_result_of_a_task_without_keep_result_is_refused(
    app: App,
) -> None:
    """The wait is refused before anything is sent: no server listens."""
    handle = JobHandle[int](app, id="a", queue="q", keeps=False)
    with pytest.raises(ResultUnavailable, match=r"write @app\.task\(keep_result=True\)"):
        handle.result(30)


ENDS: list[tuple[Outcome[Any], type[NoResult]]] = [
    (Succeeded("a"), ResultUnavailable),
    (Failed("a", "gave_up"), JobFailed),
    (Cancelled("a"), JobWasCancelled),
    (Expired("a"), JobExpired),
    (Replaced("a", "b"), JobReplaced),
    (Gone("a"), JobGone),
]


@pytest.mark.parametrize("outcome, kind", ENDS, ids=lambda each: type(each).__name__)
def test_a_handler_that_waits_for_a_cancelled_job_is_not_cancelled_or_snoozed_itself(
    outcome: Outcome[Any], kind: type[NoResult]
) -> None:
    """The handler waits for another job, which is cancelled. The handler itself is not cancelled."""
    with pytest.raises(kind) as caught:
        outcome.value  # noqa: B018 - it raises

    assert not isinstance(caught.value, HandlerSignal)
    assert "a" == caught.value.id  # type: ignore[attr-defined]


def test_a_succeeded_outcome_returns_the_value_of_its_job() -> None:
    assert 5 == Succeeded("a", 5, None).value


def settlement(job_id: str, size: int) -> Settlement:
    return Settlement(Claim("q", job_id, "1-1", 1, 0, 0, "{}"), "complete", value="x" * size)


def test_a_worker_splits_results_into_several_calls_within_the_size_limit() -> None:
    group = [settlement(str(n), 60_000) for n in range(100)]
    queue = group[0].claim.queue
    with_claim, others = successes_in(group, {queue})
    sizes = [
        sum(len(value) for _, value in call.tail.values()) for call, _ in calls_of("w-1", others)
    ]

    assert 0 < sum(len(each.value) for each in with_claim[queue]) <= VALUES_MAX
    assert all(0 < size <= VALUES_MAX for size in sizes)
    assert 100 == len(with_claim[queue]) + sum(len(part) for _, part in calls_of("w-1", others))
    assert [1, 2, 3] == [*calls_of("w-1", others[:3])[0][0].tail]
