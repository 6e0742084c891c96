"""Caps and rates that code declares. An invalid declaration is refused at once. No test here needs a server."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Any

import pytest

from rq_core import App, Cap, InvalidName, InvalidOption, InvalidTask, KeyFailed, Rate
from rq_core.model.limits.limit import Limit
from tests.unit.caps.tasks import later, send


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Cap(-1), "n=-1 is not valid: must be a whole number from 0"),
        (lambda: Cap(True), "n=True is not valid: must be a whole number"),
        (lambda: Cap(1.0), "must be a whole number"),  # type: ignore[arg-type]
        (lambda: Cap(10**10), "must be a whole number from 0 to 1,000,000,000"),
        (lambda: Cap(1, per=5), "must be the name of an argument, or a function"),  # type: ignore[arg-type]
        (lambda: Cap(1, per="a b"), "pass name="),
        (lambda: Cap(1, per=""), "pass name="),
        (lambda: Cap(1, per=lambda **_: "x"), "pass name="),
        (lambda: Cap(1, per=later), "must not be async"),
        (lambda: Cap(1, name="queue"), "must not be one of fair, queue, task, tick, weight"),
        (lambda: Cap(1, per="x", name="task"), "must not be one of"),
        (lambda: Cap(1, on_full="drop"), "must be one of wait, discard, reject"),  # type: ignore[arg-type]
        (
            lambda: Cap(1, max_waiting=0),
            "max_waiting=0 is not valid: must be a whole number from 1",
        ),
        (lambda: Cap(1, max_waiting=True), "must be a whole number"),
        (lambda: Cap(1, on_full="reject", max_waiting=5), "needs on_full='wait'"),
        (lambda: Rate(0, per_seconds=1), "to stop a scope for now, set its limit to 0"),
        (lambda: Rate(-1, per_seconds=1), "must be a whole number from 1"),
        (lambda: Rate(False, per_seconds=1), "must be a whole number from 1"),
        (lambda: Rate(1, per_seconds=0), "per_seconds=0 is not valid"),
        (lambda: Rate(1, per_seconds=-1), "per_seconds=-1 is not valid"),
        (lambda: Rate(1, per_seconds=True), "per_seconds=True is not valid"),
        (lambda: Rate(1, per_seconds=dt.timedelta(days=400)), "must be 366 days or less"),
        (lambda: Rate(1, per_seconds=1, burst=0), "burst=0 is not valid"),
        (lambda: Rate(1, per_seconds=1, per=lambda **_: "x"), "pass name="),
    ],
)
def test_invalid_caps_are_refused(make: Callable[[], object], says: str) -> None:
    with pytest.raises(InvalidOption, match="is not valid") as caught:
        make()
    assert says in str(caught.value)


def test_the_error_of_a_key_function_that_raises_names_the_function(app: App) -> None:
    def shard_of(**_: Any) -> str:
        raise LookupError("no shard for a")

    task = app.task(caps=[Cap(1, per=shard_of)])(send)

    with pytest.raises(KeyFailed) as caught:
        task.job("a")
    assert str(caught.value).startswith(
        "the function shard_of, which makes the key 'send.shard_of' of task 'send', raised LookupError: no shard for a."
    )
    assert isinstance(caught.value.__cause__, LookupError)


def test_a_cap_whose_name_has_a_forbidden_character_is_refused() -> None:
    for name in ("a b", "a=b", "a@1s", "a+b", "a|b", ""):
        with pytest.raises(InvalidName):
            Cap(1, per="tenant", name=name)


def no_such_arguments(host: str) -> str:
    return host


@pytest.mark.parametrize(
    ("caps", "says"),
    [
        ([Cap(1, per="tennant")], "it has no such argument: it has tenant, to, n"),
        ([Cap(1, per=no_such_arguments)], "cannot be called with its arguments by name"),
        ([Cap(1), Cap(2)], "two of its caps or breakers count task"),
        ([Cap(1, per="to"), Cap(1, per="to")], "two of its caps or breakers count send.to"),
        (
            [Rate(1, per_seconds=1), Rate(9, per_seconds=1)],
            "two of its caps or breakers count task@1s",
        ),
        ([5], "must hold Cap(…) and Rate(…), not 5"),
        (Cap(1), "caps must be a list"),
        ([Cap(1, per="tenant", name=f"{'x' * 128}"), Cap(1, per="to")], None),
    ],
)
def test_caps_that_do_not_fit_the_task_are_refused(app: App, caps: Any, says: str | None) -> None:
    if says is None:
        app.task(caps=caps)(send)
        return
    with pytest.raises(InvalidTask) as caught:
        app.task(caps=caps)(send)
    assert says in str(caught.value)

    # It left no trace: the name is free, and no limit is declared.
    assert app.declared.limits("default") == {}
    app.task(send)


def test_the_error_of_a_cap_whose_scope_is_too_long_advises_a_name_for_the_cap(app: App) -> None:
    with pytest.raises(InvalidTask, match="pass name="):
        app.task(name="t" * 125, caps=[Cap(1, per="tenant")])(send)


def test_two_queues_cannot_use_the_same_name_for_a_cap(app: App) -> None:
    app.task(queue="mail", caps=[Cap(1, per="tenant", name="tenant")])(send)

    with pytest.raises(
        InvalidTask, match=r"belongs to queue 'mail'.* choose another name for 'sms'"
    ):
        app.task(queue="sms", name="other", caps=[Cap(1, per="tenant", name="tenant")])(send)


def test_two_caps_with_one_name_cannot_have_different_limits(app: App) -> None:
    app.task(caps=[Cap(1, per="tenant", name="tenant")])(send)

    with pytest.raises(InvalidTask, match="limits tenant to 2, and task 'send' to 1"):
        app.task(name="other", caps=[Cap(2, per="to", name="tenant")])(send)
    app.task(name="other", caps=[Cap(1, per="to", name="tenant")])(send)
    assert app.declared.limits("default") == {"tenant": Limit(1)}


def test_jobs_of_a_task_with_caps_stay_in_the_queue_of_the_task(app: App) -> None:
    """The task's caps would not count the job in another queue."""
    task = app.task(queue="mail", caps=[Cap(1)])(send)

    with pytest.raises(InvalidOption, match="must be 'mail'"):
        task.with_options(queue="other")
    with pytest.raises(InvalidOption, match="must be 'mail'"):
        app.job("other", "send", {"tenant": "a"})


@pytest.mark.parametrize(
    "cap", [Cap(1, on_full="discard"), Cap(1, on_full="reject"), Cap(1, max_waiting=1)]
)
def test_a_task_whose_cap_discards_or_rejects_jobs_refuses_a_delay(app: App, cap: Cap) -> None:
    task = app.task(caps=[cap])(send)

    with pytest.raises(
        InvalidOption, match=r"delay=2.0 is not valid: does not go with caps of task 'send'"
    ):
        task.with_options(delay=2)
    with pytest.raises(InvalidOption, match="does not go with caps"):
        app.job("default", "send", {"tenant": "a"}, delay=2)
    assert task.with_options(delay=0).job("a").full


def test_a_task_whose_jobs_wait_at_a_full_cap_accepts_a_delay(app: App) -> None:
    job = app.task(caps=[Cap(1)])(send).with_options(delay=2).job("a")

    assert (job.delay_ms, job.lane, job.full) == (2_000, "2+task=send", "")
