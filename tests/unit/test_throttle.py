"""The options Throttle, Debounce and Latest, and unique names from a key function."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from rq_core import (
    App,
    ArgumentsInvalid,
    Cap,
    Debounce,
    InvalidOption,
    InvalidTask,
    KeyFailed,
    KeyNeeded,
    Latest,
    Throttle,
    Unique,
    testing,
)


def by_tenant(tenant: str, **others: Any) -> str:
    return tenant.lower()


def made(unique: Any, **options: Any) -> tuple[App, Any]:
    app = App()

    @app.task(queue="q", unique=unique, **options)
    def send(tenant: str, month: str = "now") -> None: ...

    return app, send


# What may be said.


@pytest.mark.parametrize(
    "make",
    [
        lambda: Throttle(0), lambda: Throttle(True), lambda: Throttle("1"), lambda: Throttle(1, per=5),
        lambda: Throttle(1, per=()), lambda: Debounce(-1), lambda: Debounce(5, at_most=4),
        lambda: Debounce(5, at_most=float("nan")), lambda: Latest(per=("tenant", "month")),
        lambda: Latest(per=lambda tenant: tenant),
    ],
)  # fmt: skip
def test_an_invalid_option_of_throttle_debounce_or_latest_is_refused(
    make: Callable[[], Any],
) -> None:
    with pytest.raises(InvalidOption):
        make()


def test_unique_refuses_an_async_key_function() -> None:
    async def key(tenant: str) -> str:
        return tenant

    with pytest.raises(InvalidOption, match="async"):
        Unique(per=key)


def test_the_times_of_throttle_and_debounce_may_be_seconds_or_timedeltas() -> None:
    assert 60_000 == Throttle(60).window_ms == Throttle(timedelta(minutes=1)).window_ms
    assert (5_000, 50_000) == (Debounce(5).after_ms, Debounce(5).most_ms)
    assert 60_000 == Debounce(5, at_most=timedelta(minutes=1)).most_ms


@pytest.mark.parametrize(
    ("unique", "caps"),
    [
        (Throttle(1, per="nothing"), []),
        (Debounce(1, per=lambda other: other), []),
        (Debounce(1), [Cap(1, on_full="discard")]),
        (Debounce(1), [Cap(1, on_full="reject")]),
        (Debounce(1), [Cap(1, max_waiting=3)]),
        (Latest(per="tenant"), [Cap(1, max_waiting=3)]),
        (Latest(per="tenant"), [Cap(2, per="tenant")]),
    ],
)
def test_a_task_whose_unique_option_does_not_fit_its_signature_or_caps_is_refused(
    unique: Any, caps: list[Cap]
) -> None:
    app = App()

    def send(tenant: str) -> None: ...

    with pytest.raises(InvalidTask):
        app.task(unique=unique, caps=caps)(send)
    assert {} == app.tasks


def test_a_throttle_may_be_combined_with_caps_that_discard() -> None:
    made(Throttle(1), caps=[Cap(1, on_full="discard")])


@pytest.mark.parametrize("unique", [Debounce(5), Latest(per="tenant")])
@pytest.mark.parametrize("option", [{"delay": 3}, {"expires": 5}])
def test_debounce_refuses_delay_and_expires_but_latest_refuses_only_delay(
    unique: Any, option: dict[str, Any]
) -> None:
    _, send = made(unique)
    if "expires" in option and isinstance(unique, Latest):
        send.with_options(**option)
        return
    with pytest.raises(InvalidOption):
        send.with_options(**option)


def test_the_option_latest_adds_a_cap_of_1_to_a_task() -> None:
    for caps in ([], [Cap(1, per="tenant")]):
        _, send = made(Latest(per="tenant"), caps=caps)
        assert "2+send.tenant=acme" == send.job("acme").lane


# Names by a function.


def test_a_key_function_makes_the_unique_name() -> None:
    for unique in (Unique(per=by_tenant), Throttle(1, per=by_tenant), Debounce(1, per=by_tenant)):
        _, send = made(unique)
        assert "send/by_tenant=acme" == send.job("ACME").name == send.job("acme", month="x").name
    _, send = made(Unique(per=lambda tenant, month: (tenant, 1)))
    assert "send/key=%22%5B%5C%22acme%5C%22%2C1%5D%22" == send.job("acme").name


def test_the_error_of_a_key_function_that_fails_names_the_function() -> None:
    def fails(tenant: str, month: str) -> str:
        raise KeyError(tenant)

    _, send = made(Unique(per=fails))
    with pytest.raises(KeyFailed, match="fails"):
        send.job("acme")
    _, send = made(Unique(per=lambda tenant, month: object()))
    with pytest.raises(ArgumentsInvalid, match="no JSON"):
        send.job("acme")


# What a producer is told.


@pytest.mark.parametrize("by_name", [False, True])
def test_a_throttled_call_returns_the_existing_job(by_name: bool) -> None:
    app, send = made(Throttle(60, per="tenant"))
    with testing.fake(app) as fake:
        first = send.enqueue("acme")
        fake.drain()
        fake.advance(59)
        again = app.enqueue("q", "send", {"tenant": "acme"}) if by_name else send.enqueue("acme")
        other = send.enqueue("umbrella")
        told = app.enqueue_many([send.job("acme"), send.job("initech")])
        fake.advance(2)
        late = send.enqueue("acme")

    assert (first.id, True, None) == (again.id, again.duplicate, again.replaced)
    assert [False, False] == [other.duplicate, late.duplicate]
    assert ([first.id], 1) == ([by for _, by in told.held], len(told.ids))


def test_repeated_debounced_calls_run_one_job_with_the_last_arguments() -> None:
    ran: list[str] = []
    app = App()

    @app.task(queue="q", unique=Debounce(5, per="doc"))
    def index(doc: str, text: str) -> None:
        ran.append(text)

    with testing.fake(app) as fake:
        first = index.enqueue("a", "old")
        fake.advance(3)
        second = index.enqueue("a", "new")
        (waits,) = fake.enqueued("q")
        fake.drain()
        third = index.enqueue("a", "newest")

    assert (["new"], second.id, 5) == (ran, waits.id, waits.delay)
    assert [None, first.id, None] == [h.replaced for h in (first, second, third)]
    assert not any(h.duplicate for h in (first, second, third))


# By name, where the task's code is missing.


@pytest.mark.parametrize(
    ("unique", "keys"),
    [
        (Unique(), None),
        (Unique(per="tenant"), None),
        (Unique(per=("month", "tenant")), None),
        (Throttle(60, per="tenant"), None),
        (Debounce(5, per=("tenant", "month")), None),
        (Latest(per="tenant"), None),
        (Unique(per=by_tenant), {"unique": "acme"}),
    ],
    ids=lambda each: type(each).__name__,
)
def test_a_producer_without_the_code_of_a_throttled_task_creates_the_same_job(
    unique: Any, keys: dict[str, str] | None, valkey: Any
) -> None:
    _, send = made(unique)
    worker = App(valkey.url)
    worker.task(queue="q", unique=unique)(send.function)
    with worker, App(valkey.url) as producer:
        worker.apply_settings()
        ours = worker.tasks["send"].job("acme")
        theirs = producer.job("q", "send", {"tenant": "acme"}, keys=keys)
        assert (ours.name, ours.ties, ours.lane) == (theirs.name, theirs.ties, theirs.lane)
        late = producer.job("q", "send", {"tenant": "acme"}, keys=keys, expires=600)
        assert '"expires_in":600000' in late.ties
        assert '"unique":' in late.ties


def test_a_producer_without_the_code_must_pass_a_key_that_a_function_computes(valkey: Any) -> None:
    worker = App(valkey.url)

    @worker.task(queue="q", unique=Debounce(5, per=by_tenant))
    def send(tenant: str) -> None: ...

    with worker, App(valkey.url) as producer:
        worker.apply_settings()
        with pytest.raises(KeyNeeded, match="unique"):
            producer.job("q", "send", {"tenant": "acme"})
        with pytest.raises(InvalidOption, match="Debounce"):
            producer.job("q", "send", {"tenant": "acme"}, keys={"unique": "acme"}, delay=3)
