"""Time limits of handlers. Each expires once, at its time, and many limits share few timers."""

from __future__ import annotations

import asyncio
import logging

import pytest

from rq_core.worker.execution import time_limits
from rq_core.worker.execution.time_limits import TimeLimits
from tests.kit.wait import wait_until_async


class Thing:
    def __init__(self, name: str) -> None:
        self.name = name


class Told(list[str]):
    def __call__(self, thing: Thing) -> None:
        self.append(thing.name)


async def test_time_limits_expire_in_deadline_order() -> None:
    told = Told()
    limits = TimeLimits(told)
    loop = asyncio.get_running_loop()
    began = loop.time()
    for name, seconds in [("late", 0.06), ("early", 0.02), ("early too", 0.02), ("later", 0.06)]:
        limits.begin(Thing(name), seconds)

    await wait_until_async(lambda: len(told) == 2, "they were told")
    assert loop.time() - began >= 0.019
    await wait_until_async(lambda: len(told) == 4, "they were told")

    assert told == ["early", "early too", "late", "later"]
    assert loop.time() - began >= 0.059


async def test_the_limit_of_an_ended_handler_does_not_expire_and_the_next_limit_does() -> None:
    told = Told()
    limits = TimeLimits(told)
    ended, left = Thing("ended"), Thing("left")
    limits.begin(ended, 0.03)
    limits.begin(left, 0.03)
    limits.end(ended, 0.03)

    await wait_until_async(lambda: told, "they were told")

    assert told == ["left"]


async def test_many_time_limits_share_a_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    made: list[object] = []
    call_later = loop.call_later
    monkeypatch.setattr(loop, "call_later", lambda *args: made.append(args) or call_later(*args))
    limits = TimeLimits(Told())

    for n in range(1_000):
        thing = Thing(str(n))
        limits.begin(thing, 60.0)
        if n % 2:
            limits.end(thing, 60.0)

    assert len(made) == 1
    limits.close()


async def test_time_limits_of_different_lengths_leave_no_timer_behind() -> None:
    limits = TimeLimits(Told())

    for n in range(1_000):
        thing = Thing(str(n))
        limits.begin(thing, 60.0 + n)
        limits.end(thing, 60.0 + n)

    assert len(limits._timers) <= time_limits.EMPTY_MAX
    limits.close()
    assert limits._timers == {}


async def test_a_handler_may_get_a_new_time_limit_after_an_earlier_limit_ended() -> None:
    told = Told()
    limits = TimeLimits(told)
    thing = Thing("thing")
    limits.begin(thing, 0.01)
    limits.end(thing, 0.01)
    limits.begin(thing, 0.03)

    await wait_until_async(lambda: told, "they were told")
    limits.begin(thing, 0.01)
    await wait_until_async(lambda: len(told) == 2, "they were told")

    assert told == ["thing", "thing"]
    assert limits._timers == {}


async def test_a_callback_that_raises_does_not_stop_other_time_limits(
    caplog: pytest.LogCaptureFixture,
) -> None:
    told = Told()

    def tell(thing: Thing) -> None:
        told(thing)
        if thing.name == "breaks":
            raise ValueError("no")

    limits = TimeLimits(tell)
    limits.begin(Thing("breaks"), 0.01)
    limits.begin(Thing("other"), 0.01)

    with caplog.at_level(logging.ERROR):
        await wait_until_async(lambda: len(told) == 2, "they were told")

    assert [record.exc_text or record.exc_info for record in caplog.records]
