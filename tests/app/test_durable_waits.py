"""Durable jobs that sleep and wait for signals, on the fake server. They park, and their handlers run again later."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from rq_core import (
    App,
    InvalidOption,
    NotSignalled,
    RetryPolicy,
    StepTwice,
    current_job,
    durable,
    durable_sync,
    errors,
    testing,
)
from rq_core.app.handlers.context import JobContext
from rq_core.model.keys import queue_keys

ONCE = RetryPolicy(max_attempts=1)


@dataclass
class Approval:
    ok: bool


def outcomes(fake: testing.Fake) -> list[str]:
    return [ran.outcome for ran in fake.drain()]


def test_a_sleeping_job_occupies_no_worker_and_continues_after_its_sleep(
    app: App, fake: testing.Fake, did: list[Any]
) -> None:
    @app.task(retry=ONCE)
    async def order() -> None:
        job = durable()
        await job.step("charge", lambda: did.append("charge"))
        await job.sleep("cool-off", hours=24)
        did.append("after")
        await job.sleep("cool-off", timedelta(seconds=1))
        did.append("again")

    handle = order.enqueue()

    assert ["parked"] == outcomes(fake)
    assert [] == outcomes(fake)
    assert "parked" == handle.state()
    # The machine's clock goes on, too.
    fake.advance(86_000)
    assert [] == outcomes(fake)
    fake.advance(400)
    assert ["parked"] == outcomes(fake)
    fake.advance(1)
    assert ["succeeded"] == outcomes(fake)
    assert ["charge", "after", "after", "again"] == did


def test_a_sleep_until_a_past_moment_does_not_park_the_job(app: App, fake: testing.Fake) -> None:
    @app.task(retry=ONCE)
    def order() -> None:
        durable_sync().sleep("until", until=datetime(2020, 1, 1, tzinfo=UTC))
        durable_sync().sleep("not-at-all", 0)

    order.enqueue()

    assert ["succeeded"] == outcomes(fake)


def test_a_retry_does_not_begin_a_sleep_again(app: App, fake: testing.Fake, did: list[Any]) -> None:
    @app.task(retry=RetryPolicy(max_attempts=3, backoff="fixed", base=5.0, jitter=False))
    async def order() -> None:
        job = durable()
        if not did:
            did.append("first")
            await asyncio.gather(job.sleep("cool-off", 20), job.step("fail", fail))
        await job.sleep("cool-off", 20)
        did.append("after")

    async def fail() -> None:
        await asyncio.sleep(0.01)  # the sleep has begun by then
        raise ValueError("no")

    order.enqueue()

    assert ["scheduled", "parked"] == outcomes(fake)
    fake.advance(15)
    assert ["succeeded"] == outcomes(fake)


def test_a_signal_wakes_its_job_and_gives_its_value_to_the_wait(
    app: App, fake: testing.Fake, did: list[Any]
) -> None:
    @app.task(retry=ONCE)
    async def order() -> None:
        did.append(await durable().wait("approval", Approval))

    handle = order.enqueue()
    assert ["parked"] == outcomes(fake)

    assert "sent" == app.signal(handle, "refusal", 1)
    assert [] == outcomes(fake)
    sent = app.signal(handle, "approval", Approval(ok=True), by="ann", reason="checked", key="w-9")
    assert "woken" == sent
    assert "known" == app.signal(handle, "approval", Approval(ok=True), key="w-9")
    assert ["succeeded"] == outcomes(fake)
    assert [Approval(ok=True)] == did


def test_signals_that_arrive_before_the_waits_are_kept_and_taken_in_order(
    app: App, fake: testing.Fake, did: list[Any]
) -> None:
    @app.task(retry=ONCE)
    def order() -> None:
        job = durable_sync()
        job.step("first", lambda: did.append("step"))
        did.extend(job.wait("number", int) for _ in range(3))

    handle = order.enqueue()
    for number in range(3):
        assert "sent" == app.signal(handle, "number", number)

    assert ["succeeded"] == outcomes(fake)
    assert ["step", 0, 1, 2] == did


@pytest.mark.parametrize("begins", [False, True], ids=["saved", "begun"])
def test_saved_steps_do_not_run_again_though_a_signal_arrives_after_a_failover_that_lost_them(
    app: App, fake: testing.Fake, did: list[Any], *, begins: bool
) -> None:
    """Checks a failover that loses the box of a claim in force. Two signals arrive before the claim's next save."""
    keys = queue_keys("default")

    def ask(*command: Any) -> Any:
        return app.client.run(app.client.calls.delivery.ask([list(command)]))[0]

    def charge(key: str) -> str:
        did.append("charge")
        if begins:
            lose()
        return key

    def lose() -> None:
        # Redis is now like a replica that has the claim, but lacks the box: the box was begun after the claim.
        line = ask("HGET", keys("state"), handle.id)
        ask("HSET", keys("state"), handle.id, re.sub(r" life=\S+", "", line))
        ask("DEL", keys("boxes"))
        for value in ("one", "two"):
            app.signal(handle, "approval", value, key=f"k-{value}")

    @app.task(retry=RetryPolicy(max_attempts=3, base=1.0, jitter=False))
    async def order() -> None:
        job = durable()
        key = await job.key("charge") if not begins else "a key"
        did.append(await job.options(begin=begins).step("charge", charge, key) == key)
        if not begins:
            await job.step("receipt", lose)
            did.append(await job.key("charge") == key)
        did.append(await job.wait("approval", str))
        app.signal(handle, "approval", "again", key="k-one")
        app.signal(handle, "approval", "three")
        did.append(await job.wait("approval", str))
        did.append(await job.wait("approval", str))

    handle = order.enqueue()

    assert ["succeeded"] == outcomes(fake)
    kept = [True] if begins else [True, True]
    assert ["charge", *kept, "one", "two", "three"] == did


def test_a_wait_returns_none_after_its_timeout(
    app: App, fake: testing.Fake, did: list[Any]
) -> None:
    @app.task(retry=ONCE)
    async def order() -> None:
        did.append(await durable().wait("approval", Approval, timeout=60))

    handle = order.enqueue()

    assert ["parked"] == outcomes(fake)
    fake.advance(60)
    assert ["succeeded"] == outcomes(fake)
    assert [None] == did
    with pytest.raises(NotSignalled, match="there is no such job"):
        app.signal(handle, "approval", Approval(ok=True))


def test_a_refused_signal_creates_no_queue(app: App, fake: testing.Fake) -> None:
    nowhere = app.handle_by_id("nowhere", "nobody")

    async def send() -> None:
        await app.signal_async(nowhere, "approval", 1)

    with pytest.raises(NotSignalled, match="there is no such job"):
        app.signal(nowhere, "approval", 1)
    with pytest.raises(NotSignalled, match="there is no such job"):
        asyncio.run(send())

    client = app.client
    assert [] == client.run(client.calls.reads.queues())
    assert fake.drain() == []


def test_failures_before_the_end_of_a_wait_do_not_count_towards_max_attempts(
    app: App, fake: testing.Fake, did: list[Any]
) -> None:
    @app.task(retry=RetryPolicy(max_attempts=2, backoff="fixed", base=1.0, jitter=False))
    async def order() -> None:
        did.append(current_job().failures)
        if len(did) > 1:
            await durable().wait("approval", Approval)
            did.append(current_job().attempt)
        raise ValueError("no")

    handle = order.enqueue()
    app.signal(handle, "approval", Approval(ok=True))

    assert ["scheduled", "scheduled", "dead"] == outcomes(fake)
    assert [0, 1, 1, 2, 2] == did


def test_a_step_that_runs_beside_a_wait_is_saved_before_the_job_is_parked(
    app: App, fake: testing.Fake, did: list[Any]
) -> None:
    @app.task(retry=ONCE)
    async def order() -> None:
        job = durable()
        async with asyncio.TaskGroup() as group:
            group.create_task(job.step("slow", slow))
            await job.wait("approval", Approval)
        did.append("end")

    async def slow() -> None:
        await asyncio.sleep(0.05)
        did.append("slow")

    handle = order.enqueue()

    assert ["parked"] == outcomes(fake)
    app.signal(handle, "approval", Approval(ok=True))
    assert ["succeeded"] == outcomes(fake)
    assert ["slow", "end"] == did


def test_a_waiting_job_is_parked_only_after_the_other_branches_of_its_handler_have_ended(
    app: App, fake: testing.Fake, did: list[Any]
) -> None:
    @app.task(retry=ONCE)
    async def order() -> None:
        job = durable()

        async def branch() -> None:
            await job.step("one", lambda: did.append(1))
            await asyncio.sleep(0.02)
            await job.step("two", lambda: did.append(2))

        await asyncio.gather(branch(), job.wait("approval", Approval))

    handle = order.enqueue()

    assert ["parked"] == outcomes(fake)
    assert [1, 2] == did
    app.signal(handle, "approval", Approval(ok=True))
    assert ["succeeded"] == outcomes(fake)
    assert [1, 2] == did


@pytest.mark.parametrize("kind", ["async", "sync"])
def test_a_job_is_parked_though_its_handler_suppresses_the_exception_of_the_wait(
    app: App, fake: testing.Fake, did: list[Any], kind: str
) -> None:
    if kind == "async":

        @app.task(name="order", retry=ONCE)
        async def waits() -> str:
            try:
                await durable().wait("approval", Approval)
            except BaseException:
                return "swallowed"
            return "done"
    else:

        @app.task(name="order", retry=ONCE)
        def waits_in_thread() -> str:
            try:
                durable_sync().wait("approval", Approval)
            except BaseException:
                return "swallowed"
            return "done"

    handle = app.tasks["order"].enqueue()

    assert ["parked"] == outcomes(fake)
    app.signal(handle, "approval", Approval(ok=True))
    assert ["succeeded"] == outcomes(fake)


@pytest.mark.parametrize("kind", ["async", "sync"])
def test_no_step_begins_in_the_finally_of_a_handler_that_parks(
    app: App, fake: testing.Fake, did: list[Any], kind: str
) -> None:
    @app.task(retry=ONCE)
    async def waits() -> None:
        try:
            await durable().wait("approval", Approval)
        except Exception:
            did.append("except")
        finally:
            did.append("finally")
            await durable().step("effect", lambda: did.append("effect"))

    @app.task(retry=ONCE)
    def waits_in_thread() -> None:
        try:
            durable_sync().wait("approval", Approval)
        except Exception:
            did.append("except")
        finally:
            did.append("finally")
            durable_sync().step("effect", lambda: did.append("effect"))

    handle = (waits if kind == "async" else waits_in_thread).enqueue()

    assert ["parked"] == outcomes(fake)
    assert ["finally"] == did
    app.signal(handle, "approval", Approval(ok=True))
    assert ["succeeded"] == outcomes(fake)
    assert ["finally", "finally", "effect"] == did


def test_the_middleware_of_a_handler_is_exited_before_the_job_is_parked(
    app: App, fake: testing.Fake, did: list[Any]
) -> None:
    @app.around
    def watched(job: JobContext) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            did.append(type(error).__name__)
            raise

    @app.task(retry=ONCE)
    def order() -> None:
        durable_sync().sleep("nap", 5)

    order.enqueue()

    assert ["parked"] == outcomes(fake)
    assert ["Parking"] == did


def test_two_concurrent_waits_with_the_same_name_are_refused(app: App, fake: testing.Fake) -> None:
    @app.task(retry=ONCE)
    async def order() -> None:
        job = durable()
        await asyncio.gather(job.wait("approval", Approval), job.wait("approval", Approval))

    order.enqueue()

    (ran,) = fake.drain()
    assert ran.outcome == "dead"
    assert StepTwice.__name__ in str(ran.error)


@pytest.mark.parametrize(
    ("told", "says"),
    [
        ({}, "it takes one of seconds"),
        ({"seconds": 1, "hours": 1}, "it takes one of seconds"),
        ({"seconds": -1}, "are no seconds"),
        ({"seconds": float("nan")}, "are no seconds"),
        ({"until": datetime(2030, 1, 1)}, "must be a datetime with a time zone"),  # noqa: DTZ001
    ],
)
def test_a_sleep_without_a_valid_moment_is_refused(
    app: App, fake: testing.Fake, told: dict[str, Any], says: str
) -> None:
    @app.task(retry=ONCE)
    def order() -> None:
        durable_sync().sleep("nap", **told)

    order.enqueue()

    (ran,) = fake.drain()
    assert says in str(ran.error)


def test_an_invalid_signal_is_refused_before_a_call_is_sent_to_redis(
    app: App, fake: testing.Fake
) -> None:
    @app.task(retry=ONCE)
    def order() -> None:
        durable_sync().wait("approval", Approval)

    handle = order.enqueue()
    invalid: tuple[tuple[str, Any, Any], ...] = (
        ("no name", 1, ""),
        ("a" * 59, 1, ""),
        ("a", object(), ""),
        ("a", "x" * 65_536, ""),
        ("a", 1, "no key"),
        ("a", 1, None),
    )
    for name, value, key in invalid:
        with pytest.raises(InvalidOption):
            app.signal(handle, name, value, key=key)
    with pytest.raises(NotSignalled):
        app.signal(app.handle_by_id("default", "nobody"), "approval", Approval(ok=True))


def test_a_signal_with_a_value_of_a_wrong_type_makes_the_job_dead(
    app: App, fake: testing.Fake
) -> None:
    @app.task()
    def order() -> None:
        durable_sync().wait("approval", Approval)

    handle = order.enqueue()
    app.signal(handle, "approval", "yes")

    (ran,) = fake.drain()
    assert (ran.outcome, "StepMismatch" in str(ran.error)) == ("dead", True)


def test_a_parked_job_is_cancelled_at_once(app: App, fake: testing.Fake) -> None:
    @app.task()
    def order() -> None:
        durable_sync().wait("approval", Approval)

    handle = order.enqueue()
    outcomes(fake)

    assert "cancelled" == handle.cancel()
    assert "gone" == handle.state()
    with pytest.raises(errors.NotEdited):
        handle.edit(now=True)


async def test_a_signal_can_be_sent_from_an_event_loop(app: App) -> None:
    with testing.fake(app) as fake:

        @app.task()
        async def order() -> None:
            await durable().wait("approval", Approval)

        handle = await order.enqueue_async()
        await fake.drain_async()

        assert "woken" == await app.signal_async(handle, "approval", Approval(ok=True))
        assert ["succeeded"] == [ran.outcome for ran in await fake.drain_async()]
