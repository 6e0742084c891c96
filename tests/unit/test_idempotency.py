"""Repeated calls: the options that make a call repeatable, and the answers to its repetitions."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from rq_core import (
    App,
    IdempotencyMismatch,
    InvalidOption,
    ResultsFull,
    Task,
    Unique,
    UniqueHeld,
    testing,
)
from rq_core.model.idempotency import KEY_MAX, id_of_key, read_result, result_line

DAY_S = 86_400


def make(**options: Any) -> tuple[App, Task[..., Any]]:
    app = App()

    @app.task(queue="mail", **options)
    def send(to: str, tags: set[str] | None = None, month: str = "now") -> None: ...

    return app, send


def test_an_idempotency_key_makes_the_same_id_for_each_call_of_a_task() -> None:
    app, send = make()

    @app.task(queue="mail")
    def charge(to: str) -> None: ...

    keyed = send.with_options(idempotency_key="order-42")
    ids = {keyed.job("a").id, send.with_options(idempotency_key="order-42").job("b").id}

    assert {id_of_key("send", "order-42")} == ids
    assert charge.with_options(idempotency_key="order-42").job("a").id not in ids
    assert send.with_options(idempotency_key="order-43").job("a").id not in ids


def test_an_idempotency_key_is_remembered_for_a_day_by_default() -> None:
    _, send = make()
    for options, window_ms in [
        ({"idempotency_key": "k"}, DAY_S * 1000),
        ({"idempotency_key": "k", "remember": 60}, 60_000),
        ({"id": "x", "remember": timedelta(hours=1)}, 3_600_000),
    ]:
        job = send.with_options(**options).job("a")
        assert f'{{"remember":{window_ms}}}' == job.ties
        assert job.call.startswith("=")
    plain = send.with_options(id="x").job("a")
    assert ("", "") == (plain.ties, plain.call)


def test_if_a_call_has_the_options_id_and_idempotency_key_the_option_given_later_determines_the_id() -> (
    None
):
    _, send = make()
    assert "x" == send.with_options(idempotency_key="k").with_options(id="x").job("a").id
    assert id_of_key("send", "k") == (
        send.with_options(id="x").with_options(idempotency_key="k").job("a").id
    )


@pytest.mark.parametrize(
    ("options", "option"),
    [
        ({"idempotency_key": "k", "id": "x"}, "idempotency_key"),
        ({"idempotency_key": ""}, "idempotency_key"),
        ({"idempotency_key": "k" * (KEY_MAX + 1)}, "idempotency_key"),
        ({"idempotency_key": 42}, "idempotency_key"),
        ({"idempotency_key": "\ud800"}, "idempotency_key"),
        ({"remember": 60}, "remember"),
        ({"id": "x", "remember": 0}, "remember"),
        ({"id": "x", "remember": "day"}, "remember"),
    ],
)
def test_invalid_idempotency_options_are_refused(options: dict[str, Any], option: str) -> None:
    _, send = make()

    with pytest.raises(InvalidOption) as caught:
        send.with_options(**options)

    assert option == caught.value.option


def test_calls_with_one_idempotency_key_are_compared_by_the_values_of_their_arguments() -> None:
    _, send = make()
    keyed = send.with_options(idempotency_key="k")

    assert keyed.job("a", {"x", "y", "z"}).call == keyed.job("a", tags={"z", "y", "x"}).call
    assert keyed.job("a").call == keyed.job("a", month="now").call
    assert keyed.job("a").call != keyed.job("a", month="then").call


def test_a_repeated_call_returns_the_same_job_before_and_after_its_end() -> None:
    app, send = make()
    keyed = send.with_options(idempotency_key="order-42")
    with testing.fake(app) as fake:
        first = keyed.enqueue("a")
        second = keyed.enqueue("a")
        (ran,) = fake.drain()
        third = keyed.enqueue("a")
        fake.advance(DAY_S - 1)
        fourth = keyed.enqueue("a")
        assert [] == fake.drain()
        fake.advance(1)
        fifth = keyed.enqueue("a")

    assert {ran.id} == {each.id for each in (first, second, third, fourth, fifth)}
    assert [False, True, True, True, False] == [
        each.duplicate for each in (first, second, third, fourth, fifth)
    ]


@pytest.mark.parametrize("ended", [False, True])
def test_an_idempotency_key_with_other_arguments_is_refused(*, ended: bool) -> None:
    app, send = make()
    keyed = send.with_options(idempotency_key="order-42")
    with testing.fake(app) as fake:
        keyed.enqueue("a")
        if ended:
            fake.drain()
        with pytest.raises(IdempotencyMismatch, match=id_of_key("send", "order-42")):
            keyed.enqueue("b")
        found = app.enqueue_many([keyed.job("b"), keyed.job("a"), send.job("c")])

    assert (1, 1, 1) == tuple(map(len, (found.mismatched, found.duplicates, found.ids)))
    assert found.mismatched == found.duplicates
    assert found.others()[found.mismatched[0]].mismatched


def test_enqueue_by_name_makes_the_same_id_for_an_idempotency_key() -> None:
    """Arguments are compared only if the app has the task."""
    app, send = make()
    options: Any = {"idempotency_key": "order-42"}
    with testing.fake(app):
        first = send.with_options(**options).enqueue("a")
        assert app.enqueue("mail", "send", {"to": "a", "month": "now"}, **options).duplicate
        with pytest.raises(IdempotencyMismatch):
            app.enqueue("mail", "send", {"to": "b"}, **options)
        elsewhere = app.enqueue("mail", "charge", {"to": "a"}, **options)
        assert app.enqueue("mail", "charge", {"to": "b"}, **options).duplicate

    assert (id_of_key("send", "order-42"), id_of_key("charge", "order-42")) == (
        first.id,
        elsewhere.id,
    )


def test_a_repeated_call_with_an_idempotency_key_returns_the_existing_job_that_the_first_call_returned() -> (
    None
):
    app, send = make(unique=Unique(per="to"))
    with testing.fake(app) as fake:
        first = send.enqueue("a")
        keyed = send.with_options(idempotency_key="order-42")
        assert first.id == keyed.enqueue("a").id
        fake.drain()
        again = keyed.enqueue("a")
        assert (first.id, True) == (again.id, again.duplicate)
        assert [] == fake.drain()


def test_an_idempotency_key_stays_free_if_its_unique_job_is_rejected() -> None:
    app, send = make(unique=Unique(per="to", on_duplicate="reject"))
    with testing.fake(app) as fake:
        send.enqueue("a")
        keyed = send.with_options(idempotency_key="order-42")
        with pytest.raises(UniqueHeld):
            keyed.enqueue("a")
        fake.drain()
        assert not keyed.enqueue("a").duplicate


def test_the_error_for_a_full_store_of_results_names_the_command_that_raises_the_limit() -> None:
    app, send = make()
    with testing.fake(app) as fake:
        send.with_options(idempotency_key="1").enqueue("a")
        fake.drain()
        app.client.run(app.client.calls.admin.configure("mail", {"results_max": 1}))
        with pytest.raises(ResultsFull, match="rq-core set mail results_max="):
            send.with_options(idempotency_key="2").enqueue("a")
        assert send.with_options(idempotency_key="1").enqueue("a").duplicate
        assert not send.enqueue("a").duplicate


def test_a_line_of_the_redis_key_results_is_read_back_as_it_was_written() -> None:
    line = result_line("cancelled", 5, 7)

    assert "cancelled at=5 once=7" == line
    assert ("x", "cancelled", 5, None, 7, None, None) == read_result("x", line)[:7]
    assert ("x", "same", 5, None, 7, "70c5", "a") == read_result(
        "x", "same job=a at=5 once=7 call=70c5"
    )[:7]
    assert ("x", "?", None, None, None, None, None) == read_result("x", "? at= once=soon")[:7]
