"""Errors of durable jobs, on the fake server: values without a JSON form, and names that are reserved for rq-core."""

from __future__ import annotations

import math
import re
import threading
from dataclasses import dataclass
from typing import Any

import pytest

from rq_core import (
    App,
    InvalidOption,
    InvalidStep,
    NotDurable,
    RetryPolicy,
    StepUnusable,
    durable,
    durable_sync,
    testing,
)
from rq_core.app.durable.entry_names import check_wait, numbered, undo_name, with_key
from rq_core.app.handles.signal_call import sending_of, sending_of_json

AT_ONCE = RetryPolicy(max_attempts=5, backoff="fixed", base=0.0, jitter=False)


@dataclass
class Line:
    when: Any


@dataclass
class Order:
    items: list[Line]


def with_a_lock() -> Order:
    return Order([Line(1), Line(threading.Lock())])


def wrong_type() -> dict[str, list[int]]:
    return {"sizes": [1, "two"]}  # type: ignore[list-item]


def not_a_number() -> dict[str, float]:
    return {"rate": math.nan}


def in_a_union() -> list[int | bool]:
    return [1, "two"]  # type: ignore[list-item]


def generator() -> Any:
    return (n for n in range(3))


def strange_key() -> Any:
    return {"sizes": {object(): 1}}


def outcomes(fake: testing.Fake) -> list[str]:
    return [ran.outcome for ran in fake.drain()]


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (with_a_lock, "value.items[1].when is of type _thread.lock, which has no JSON form"),
        (wrong_type, "value.sizes[1] does not fit the annotation: Input should be a valid integer"),
        (not_a_number, "value.rate holds NaN or an infinity"),
        (in_a_union, "value[1] does not fit the annotation: Input should be a valid integer, or Input"),
        (generator, "value is a generator, which has no JSON form"),
        (strange_key, "value.sizes has a key that is of type object, which has no JSON form"),
    ],
)  # fmt: skip
def test_the_error_of_a_step_value_without_a_json_form_names_the_step(
    app: App, fake: testing.Fake, function: Any, says: str
) -> None:
    found: list[str] = []

    @app.task(retry=AT_ONCE)
    def order() -> None:
        try:
            durable_sync().step("charge", function)
        except StepUnusable as error:
            found.append(str(error))
        if len(found) == 1:
            raise ValueError("again")

    order.enqueue()

    assert ["ready", "succeeded"] == outcomes(fake)
    first, later = found
    assert f"step 'charge' has happened, and what it returned is not kept: {says}" in first
    assert "Let its function return plain data, dataclasses or pydantic models" in first
    assert "under another name, the step runs again" in first
    # Redis keeps one word of the reason, and no place.
    assert "not_json: it does not fit the return annotation of its function" in later
    assert "under another name, the step runs again" in later


def test_the_error_of_a_saved_step_value_of_a_wrong_type_names_the_place_in_the_value(
    app: App, fake: testing.Fake
) -> None:
    runs: list[None] = []

    def old() -> dict[str, list[Any]]:
        return {"sizes": [1, "two"]}

    @app.task(retry=AT_ONCE)
    def order() -> None:
        runs.append(None)
        durable_sync().step("measure", old if len(runs) == 1 else wrong_type)
        raise ValueError("again")

    order.enqueue()
    ran = list(fake.drain())

    assert ["ready", "dead"] == [each.outcome for each in ran]
    said = str(ran[1].error)
    assert "step 'measure' has saved a value that does not fit what its function returns" in said
    assert "value.sizes[1] does not fit the annotation: Input should be a valid integer" in said


def test_the_error_of_a_signal_value_of_a_wrong_type_names_the_place_in_the_value(
    app: App, fake: testing.Fake
) -> None:
    @app.task(retry=AT_ONCE)
    async def order() -> None:
        await durable().wait("sizes", dict[str, list[int]])

    app.signal(order.enqueue(), "sizes", {"sizes": [1, "two"]})
    (ran,) = fake.drain()

    assert "dead" == ran.outcome
    assert "wait 'sizes' has taken brings a value that does not fit" in str(ran.error)
    assert "value.sizes[1] does not fit the annotation" in str(ran.error)


def test_the_error_of_a_signal_value_without_a_json_form_names_the_signal() -> None:
    with pytest.raises(InvalidOption) as caught:
        sending_of("job", "approval", with_a_lock())

    assert str(caught.value) == (
        "signal 'approval' cannot be sent: value.items[1].when is of type _thread.lock, which has no JSON form."
        " It must be plain data, dataclasses or pydantic models"
    )
    assert "value" == caught.value.option


def test_the_error_of_a_long_signal_does_not_show_its_value() -> None:
    with pytest.raises(InvalidOption) as caught:
        sending_of("job", "approval", "x" * 70_000)

    assert str(caught.value) == (
        "signal 'approval' cannot be sent: value is longer than 65,536 bytes as JSON."
        " It must be stored elsewhere, and sent as a reference"
    )


@pytest.mark.parametrize("name", ["rq_core.life", "rq_core.", "undo:charge"])
def test_step_and_wait_names_that_are_reserved_for_rq_core_are_refused_before_the_step_is_run(
    app: App, fake: testing.Fake, name: str
) -> None:
    did: list[str] = []
    says = "only rq-core's own entries have names that begin with"

    @app.task
    async def order() -> None:
        job = durable()
        with pytest.raises(InvalidStep, match=says):
            await job.step(name, lambda: did.append("step"))
        with pytest.raises(InvalidStep, match=says):
            await job.options(key="a").step(name, lambda: did.append("step"))
        with pytest.raises(InvalidStep, match=says):
            await job.wait(name, str)
        with pytest.raises(InvalidStep, match=says):
            await job.sleep(name, 1)
        await job.step("rq_core", lambda: did.append("allowed"))

    order.enqueue()

    assert ["succeeded"] == outcomes(fake)
    assert ["allowed"] == did
    with pytest.raises(InvalidOption, match="must not begin with"):
        sending_of_json("job", name, "null")


def test_the_fake_server_refuses_a_wait_in_an_isolated_handler_as_a_worker_does(
    app: App, fake: testing.Fake
) -> None:
    says = "cannot be used here: a handler with isolation"

    @app.task(isolation="process")
    async def on_loop() -> None:
        with pytest.raises(NotDurable, match=re.escape(f"wait() {says}")):
            await durable().wait("approval", str)

    @app.task(isolation="process")
    def in_thread() -> None:
        with pytest.raises(NotDurable, match=re.escape(f"sleep() {says}")):
            durable_sync().sleep("nap", 1)

    on_loop.enqueue()
    in_thread.enqueue()

    assert ["succeeded", "succeeded"] == outcomes(fake)


def test_long_step_names_that_differ_only_in_their_last_character_get_different_entries() -> None:
    names = ["a" * 63, "a" * 64, "a" * 63 + "b", "a" * 62 + "ba"]

    assert len(names) == len({numbered(name, 2) for name in names})
    assert len(names) == len({undo_name(name) for name in names})
    assert len(names) == len({with_key(name, "key") for name in names})
    assert all(len(numbered(name, 10_000)) <= 64 for name in names)


@pytest.mark.parametrize("name", ["7", "0", "10000"])
def test_a_name_of_digits_only_is_refused_for_a_signal_and_for_a_wait(name: str) -> None:
    # The field of the signal with this number in the box has the same name as the list of signals with this name.
    with pytest.raises(InvalidOption, match="not only digits"):
        sending_of_json("a", name, "null")
    with pytest.raises(InvalidStep, match="not only digits"):
        check_wait(name)


@pytest.mark.parametrize("name", ["7a", "a7", "-7", "7.", "v2:7"])
def test_a_name_with_digits_is_accepted_for_a_signal_and_for_a_wait(name: str) -> None:
    check_wait(name)

    assert name == sending_of_json("a", name, "null").name
