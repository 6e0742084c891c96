"""Breakers with real workers: failures pause a scope, and its jobs wait without spending an attempt."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from rq_core import App, Batch, Breaker, GiveUp, InvalidOption, InvalidTask, Job, Rate, RetryPolicy
from tests.kit.wait import wait_until_async
from tests.kit.working import working
from tests.worker.test_costs_told import log_of

QUEUE = "fragile"
NOW = RetryPolicy(max_attempts=5, base=0.0, jitter=False)


@pytest.fixture
def app(valkey_url: str) -> Iterator[App]:
    made = App(valkey_url)
    yield made
    made.close()


@dataclass
class Asked:
    host: str


def breaker(**options: Any) -> Breaker:
    given: dict[str, Any] = {"failures": 3, "per_seconds": 60, "cooldown": 0.3, "per": "host"}
    return Breaker(**(given | options))


async def test_jobs_of_a_failing_host_wait_and_run_once_the_host_is_well_again(app: App) -> None:
    ill, calls = {"a"}, Counter[str]()

    @app.task(queue=QUEUE, breaker=breaker(), retry=NOW)
    async def ask(host: str) -> None:
        calls[host] += 1
        if host in ill:
            raise ConnectionError("no answer")

    app.enqueue_many([ask.job(host) for host in "aaaaaabb"])
    async with working(app, queues=[QUEUE], concurrency=1):
        await wait_until_async(lambda: len(log_of(app.client, "scope_paused", QUEUE)) >= 2, "probe")
        ill.clear()
        await wait_until_async(
            lambda: len(log_of(app.client, "succeeded", QUEUE)) == 8, "all jobs succeed"
        )

    paused = len(log_of(app.client, "scope_paused", QUEUE))
    assert calls["a"] == 6 + 3 + (paused - 1)
    assert calls["b"] == 2
    assert not log_of(app.client, "died", QUEUE)


async def test_errors_that_a_breaker_excepts_do_not_count_for_that_breaker(app: App) -> None:
    """One breaker excepts the error, and the other breaker does not."""

    @app.task(
        queue=QUEUE,
        breaker=[
            breaker(except_for=ValueError),
            breaker(failures=4, per="zone", except_for=(LookupError,)),
        ],
        retry=RetryPolicy(max_attempts=1),
    )
    async def ask(host: str, zone: str) -> None:
        raise ValueError(host)

    app.enqueue_many([ask.job("a", "z") for _ in range(6)])
    async with working(app, queues=[QUEUE], concurrency=1):
        await wait_until_async(lambda: log_of(app.client, "scope_paused", QUEUE), "a pause")

    (paused,) = log_of(app.client, "scope_paused", QUEUE)
    assert paused["scope"] == "ask.zone@60s:failures=z"
    assert len(log_of(app.client, "died", QUEUE)) == 4


async def test_breakers_count_jobs_of_producers_without_the_code_and_of_schedules(
    app: App, valkey_url: str
) -> None:
    """Checks jobs from before and after the worker has registered the task, and a run of a schedule.

    The second failure pauses the scope. The other jobs of the host wait, and no attempt of theirs is spent.
    """
    ill = {"a"}

    later = RetryPolicy(max_attempts=5, base=3_600)

    @app.task(
        queue=QUEUE, breaker=breaker(failures=2, cooldown=3_600, except_for=ValueError), retry=later
    )
    async def ask(host: str) -> None:
        if host in ill:
            raise ConnectionError("no answer")
        raise ValueError(host)

    app.schedule("poll", ask.job("a"), every=3_600, overlap="allow")
    with App(valkey_url) as other:
        other.enqueue(QUEUE, "ask", {"host": "a"})
        async with working(app, queues=[QUEUE], concurrency=1):
            await wait_until_async(lambda: log_of(app.client, "retried", QUEUE), "a failure")
            other.connections.policies._found.clear()
            app.run_schedule(QUEUE, "poll")
            await wait_until_async(lambda: log_of(app.client, "scope_paused", QUEUE), "a pause")
            other.enqueue(QUEUE, "ask", {"host": "a"})
            app.run_schedule(QUEUE, "poll")
            for _ in range(3):
                other.enqueue(QUEUE, "ask", {"host": "b"})
            await wait_until_async(
                lambda: len(log_of(app.client, "retried", QUEUE)) == 5, "the other host's jobs fail"
            )

        (paused,) = log_of(app.client, "scope_paused", QUEUE)
        assert paused["scope"] == "ask.host@60s:failures=a"
        (scope,) = (each for each in app.caps(QUEUE) if each.scope == paused["scope"])
        assert (scope.use.standing, scope.waiting) == ("paused", 2)


async def test_a_timeout_counts_as_one_failure_and_a_failed_batch_counts_once_for_each_job(
    app: App,
) -> None:
    @app.task(queue=QUEUE, breaker=breaker(failures=1), timeout=0.05)
    async def slow(host: str) -> None:
        await asyncio.sleep(60)

    @app.task(queue="bulk", breaker=breaker(failures=3), batch=Batch(3), retry=NOW)
    async def many(jobs: list[Job[Asked]]) -> None:
        raise ConnectionError

    slow.enqueue("a")
    app.enqueue_many([many.job(Asked("a")) for _ in range(3)])
    async with working(app, queues=[QUEUE, "bulk"]):
        await wait_until_async(lambda: log_of(app.client, "scope_paused", QUEUE), "a timeout")
        await wait_until_async(lambda: log_of(app.client, "scope_paused", "bulk"), "a batch")


def test_an_isolated_handler_says_which_breakers_except_its_error(app: App) -> None:
    task = app.task(queue=QUEUE, breaker=breaker(except_for=(ValueError, GiveUp)))(_ask)

    assert task.excepted(ValueError()) == "_ask.host@60s:failures"
    assert task.excepted(GiveUp("no")) == "_ask.host@60s:failures"
    assert task.excepted(OSError()) == ""


def _ask(host: str) -> None: ...


@pytest.mark.parametrize(
    ("option", "wrong"),
    [
        ("failures", 0), ("failures", 1_001), ("failures", "3"), ("failures", True),
        ("per_seconds", 0), ("per_seconds", 86_401), ("per_seconds", "60"),
        ("cooldown", 0), ("cooldown", 86_401), ("cooldown", None),
        ("per", 7), ("name", "queue"), ("except_for", "ValueError"), ("except_for", (ValueError, 3)),
    ],
)  # fmt: skip
def test_a_wrong_option_of_a_breaker_is_refused_where_it_is_written(
    option: str, wrong: Any
) -> None:
    with pytest.raises(InvalidOption, match=option):
        breaker(**{option: wrong})


def test_a_wrong_breaker_of_a_task_is_refused(app: App) -> None:
    with pytest.raises(InvalidTask, match="must be a Breaker or a list of them"):
        app.task(breaker=3)(_ask)  # type: ignore[call-overload]
    with pytest.raises(InvalidTask, match="pass it as breaker="):
        app.task(caps=[breaker()])(_ask)  # type: ignore[list-item]
    with pytest.raises(InvalidTask, match="has no such argument"):
        app.task(breaker=breaker(per="region"))(_ask)
    with pytest.raises(InvalidTask, match="two of its caps or breakers"):
        app.task(breaker=[breaker(), breaker(failures=9)])(_ask)
    with pytest.raises(InvalidOption, match="unit of breakers"):
        Rate(1, per_seconds=1, cost="failures")
