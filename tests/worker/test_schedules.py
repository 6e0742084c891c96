"""Workers that fire schedules on a real server. Each instant fires once, whenever workers start or stop."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import pytest

from rq_core.app.app import App
from rq_core.app.handlers.context import current_job
from rq_core.model.recurrence import recurrence
from rq_core.worker import Worker, WorkerOptions, ticker
from tests.kit.wait import wait_until_async

QUEUE = "reports"
EVERY = 1.0


def made(url: str, **rule: Any) -> tuple[App, list[int]]:
    """Return an app with one schedule, and the instants (Unix time in ms) for which its handler has run."""
    app = App(url)
    seen: list[int] = []

    @app.task(queue=QUEUE)
    async def beat() -> None:
        tick = current_job().tick
        assert tick is not None
        seen.append(round(tick.timestamp() * 1000))

    app.schedule("beat", beat.job(), **(rule or {"every": EVERY}))
    return app, seen


@asynccontextmanager
async def running(app: App, **options: Any) -> AsyncIterator[Worker]:
    worker = Worker(app, WorkerOptions(queues=(QUEUE,), **options))
    task = asyncio.create_task(worker.run())
    try:
        yield worker
    finally:
        worker.stop()
        async with asyncio.timeout(20):
            await task


def ticked(app: App) -> list[dict[str, Any]]:
    """Return the outbox's events of the schedule, each with its time in ms."""
    client = App(app.redis_url).client
    outbox = client.run(client.calls.audit.read_outbox(QUEUE, "-", 10_000))
    client.close()
    names = ("id", "name", "version", "nominal", "due", "next", "outcome", "missed", "held_by")
    return [
        dict(zip(names, told, strict=False)) | {"at": int(raw["at"])}
        for _, raw in outbox
        if raw["type"] == "ticked"
        for told in json.loads(raw["jobs"])
    ]


def assert_without_a_gap(told: list[dict[str, Any]]) -> None:
    """Assert that no instant is lost. Each event names the next instant, and the next event has this instant.

    An event that skips instants counts the skipped instants as missed.
    """
    step = round(EVERY * 1000)
    for before, after in pairwise(told):
        assert before["next"] + step * after["missed"] == after["nominal"], (before, after)


@pytest.mark.slow
async def test_a_worker_fires_due_schedules_on_time(valkey_url: str) -> None:
    app, seen = made(valkey_url)

    async with running(app):
        await wait_until_async(lambda: len(seen) >= 4, "four instants", timeout=15)

    told = ticked(app)
    assert seen == [each["nominal"] for each in told][: len(seen)]
    assert {each["outcome"] for each in told} == {"fired"}
    assert_without_a_gap(told)
    assert max(each["at"] - each["due"] for each in told) < 1_000


@pytest.mark.slow
async def test_two_workers_fire_each_instant_once(valkey_url: str) -> None:
    (first, seen), (second, also) = made(valkey_url), made(valkey_url)

    async with running(first), running(second):
        await wait_until_async(lambda: len(seen) + len(also) >= 4, "four instants", timeout=15)

    told = ticked(first)
    assert {1} == set(Counter(each["nominal"] for each in told).values())
    assert_without_a_gap(told)


@pytest.mark.slow
async def test_no_instant_is_lost_while_workers_stop_and_start(valkey_url: str) -> None:
    """Checks a deploy during which an instant passes. A scheduler with its state in memory would lose this instant."""
    for _ in range(4):
        app, _ = made(valkey_url)
        before = len(ticked(app))
        async with running(app, grace=1.0):
            await wait_until_async(lambda: len(ticked(app)) > before, "an instant")  # noqa: B023
        # Instants pass while nobody is there.
        await asyncio.sleep(2.2 * EVERY)

    told = ticked(app)
    assert {"fired", "skipped"} >= {each["outcome"] for each in told}
    assert sum(each["missed"] for each in told) >= 3
    assert_without_a_gap(told)


async def test_an_idle_worker_fires_a_schedule_that_is_stored_after_its_start(
    valkey_url: str,
) -> None:
    app, seen = made(valkey_url, cron="0 0 1 1 *")

    async with running(app):
        await asyncio.sleep(0.5)
        job = app.tasks["beat"].job()
        await app.schedule_many_async([("live", job, {"every": EVERY})])
        began = time.monotonic()
        await wait_until_async(lambda: seen, "an instant", timeout=10)

    await app.aclose()
    assert time.monotonic() - began < 3


@pytest.mark.slow
async def test_many_schedules_that_are_due_together_are_fired_together(valkey_url: str) -> None:
    app, _ = made(valkey_url, cron="0 0 1 1 *")
    job = app.tasks["beat"].job()
    await app.schedule_many_async(
        (f"s-{n}", job, {"cron": "* * * * *", "overlap": "allow"}) for n in range(1_000)
    )
    client = app.client
    keys = [f"rqc:{{{QUEUE}}}:{name}" for name in ("schedules", "ticks", "scheduled")]
    raw = client.run(client.calls.delivery.ask([["HGETALL", keys[0]]]))[0]
    past = round(time.time() * 1000) // 60_000 * 60_000
    entries = raw if isinstance(raw, dict) else dict(zip(raw[::2], raw[1::2], strict=True))
    commands: list[list[Any]] = []
    for name, entry in entries.items():
        if name.startswith("s-") and "|" not in name:
            at = entry.split("next=")[1].split(" ")[0]
            commands.append(["HSET", keys[0], name, entry.replace(at, str(past))])
            commands.append(["ZADD", keys[1], past, name])
    commands.append(["ZADD", keys[2], past, "tick|"])
    client.run(client.calls.delivery.ask(commands))
    client.close()

    async with running(app, concurrency=4):
        await wait_until_async(lambda: len(ticked(app)) >= 1_000, "all instants", timeout=30)
    await app.aclose()

    told = [each for each in ticked(app) if each["nominal"] == past]
    assert 1_000 == len({each["name"] for each in told}) == len(told)
    assert max(each["at"] for each in told) - min(each["at"] for each in told) < 5_000


@pytest.mark.slow
async def test_a_burst_fires_due_schedules_before_it_ends(valkey_url: str) -> None:
    app, _ = made(valkey_url)
    async with running(app):
        await wait_until_async(lambda: ticked(app), "an instant")
    told = len(ticked(app))
    await asyncio.sleep(EVERY + 0.2)

    await Worker(app, WorkerOptions(queues=(QUEUE,), burst=True)).run()

    assert len(ticked(app)) > told


@pytest.mark.slow
async def test_a_schedule_that_one_worker_cannot_compute_waits_for_another_worker(
    valkey_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    app, _ = made(valkey_url)
    client = app.client
    newer = recurrence("beat", every=EVERY).to_json().replace("}", ',"holidays":true}')
    async with running(app):
        await wait_until_async(lambda: ticked(app), "an instant")
    key = f"rqc:{{{QUEUE}}}:schedules"
    (entry,) = client.run(client.calls.delivery.ask([["HGET", key, "beat"]]))
    line = entry.partition("\n")[0].replace("from=code", "from=live")
    client.run(client.calls.delivery.ask([["HSET", key, "beat", f"{line}\n{newer}"]]))
    client.close()
    before = len(ticked(app))

    async with running(app):
        said = "cannot be computed here"
        await wait_until_async(lambda: said in caplog.text, "the error")

    assert before == len(ticked(app))


async def test_workers_repeat_the_declarations_of_their_schedules(
    valkey_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rq_core.worker.startup.DECLARE_S", 0.2)
    app, _ = made(valkey_url, every=3600)

    def stored() -> bool:
        client = App(valkey_url).client
        found = client.run(client.calls.schedules.stored(QUEUE))
        client.close()
        return "beat" in found

    async with running(app):
        await wait_until_async(stored, "the schedule")
        key = f"rqc:{{{QUEUE}}}:schedules"
        client = app.client
        client.run(client.calls.delivery.ask([["DEL", key]]))
        client.close()
        await wait_until_async(stored, "the schedule", timeout=5)
    assert ticker.DECLARE_S == 3600


async def test_a_resumed_worker_declares_its_schedules_before_it_fires_them(
    valkey_url: str,
) -> None:
    """Checks a suspended machine. By Redis' clock the last declaration is over an hour old, and by the worker's clock
    it is not."""
    app, _ = made(valkey_url)
    key = f"rqc:{{{QUEUE}}}:schedules"
    client = App(valkey_url).client

    async with running(app):
        await wait_until_async(lambda: ticked(app), "an instant")
        program = (
            "local entry = redis.call('HGET', KEYS[1], 'beat')"
            " redis.call('HSET', KEYS[1], 'beat', (entry:gsub('seen=%d+', 'seen=1')))"
        )
        client.run(client.calls.delivery.ask([["EVAL", program, 1, key]]))
        before = len(ticked(app))
        await wait_until_async(lambda: len(ticked(app)) >= before + 2, "two instants", timeout=15)

    (after,) = client.run(client.calls.schedules.stored(QUEUE)).values()
    client.close()
    assert {"fired"} == {each["outcome"] for each in ticked(app)}
    assert after.seen_ms > 1
