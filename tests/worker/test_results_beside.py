"""A worker saves the results of a durable job's children while the job's handler goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from rq_core import RetryPolicy, durable
from rq_core.app.app import App
from rq_core.connections.client import Client
from rq_core.errors import ServerError
from rq_core.model.keys import queue_keys
from rq_core.protocol.calls.boxes import NotSaved, SaveAnswer, Saving
from rq_core.worker.execution.homes import LoopHome
from rq_core.worker.execution.parked_boxes import ParkedBoxes
from tests.kit import crew
from tests.kit.wait import wait_until_async
from tests.kit.working import working
from tests.worker.conftest import event_types, events

ORDERS, PAGES = "crew", "pages"
ONCE = RetryPolicy(max_attempts=1)
TWICE = RetryPolicy(max_attempts=2, base=0.01)


@pytest.fixture
def own(app: App) -> Iterator[App]:
    """Yield a separate app for this test, on the same server as the crew's app, with the task of the children."""
    made = App(app.redis_url)
    made.queue(ORDERS, lease=crew.LEASE)

    @made.task(name="render", queue=PAGES, retry=ONCE)
    async def render(n: int) -> int:
        return n

    yield made
    made.close()


@pytest.fixture
def did() -> list[Any]:
    return []


class Saves:
    """Stops each save of children's results of the map ``pages`` before it is sent."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self.may_go = asyncio.Event()
        self.error: Exception | None = None
        """The error of the first save, which is then not sent."""
        save = LoopHome.save

        async def stopped(home: LoopHome, records: Sequence[Saving]) -> SaveAnswer:
            if records[0].name.startswith("pages="):
                self.count += 1
                await self.may_go.wait()
                if self.error is not None and self.count == 1:
                    raise self.error
            return await save(home, records)

        monkeypatch.setattr(LoopHome, "save", stopped)


@pytest.fixture
async def saves(monkeypatch: pytest.MonkeyPatch) -> Saves:
    return Saves(monkeypatch)


def saved(client: Client, job_id: str) -> list[str]:
    """Return the names of the steps that the log has as saved, in the log's order."""
    return [facts["name"] for entry, facts in events(client, job_id) if entry.event == "step_saved"]


async def until(client: Client, job_id: str, event: str) -> None:
    await wait_until_async(lambda: event in event_types(client, job_id), event, timeout=20)


async def test_the_next_step_begins_before_the_result_of_a_child_is_saved(
    own: App, client: Client, saves: Saves, did: list[Any]
) -> None:
    async def add(number: int) -> int:
        did.append(number)
        return number + 1

    @own.task(name="order", queue=ORDERS, retry=ONCE)
    async def order() -> None:
        pages = await durable().map("pages", [own.tasks["render"].call(n) for n in (7, 8)])
        did.append(await durable().step("add", add, sum(pages.values())))

    handle = order.enqueue()
    async with working(own, queues=(ORDERS, PAGES), grace=5.0):
        await wait_until_async(lambda: did == [15], "the step has begun", timeout=20)
        assert saves.count == 1
        assert not any(name.startswith("pages=") for name in saved(client, handle.id))
        saves.may_go.set()
        await until(client, handle.id, "succeeded")

    assert [15, 16] == did
    assert ["pages=0", "pages=1", "add"] == saved(client, handle.id)[-3:]


async def test_a_job_succeeds_only_after_the_results_of_its_children_are_saved(
    own: App, client: Client, saves: Saves, did: list[Any]
) -> None:
    @own.task(name="order", queue=ORDERS, retry=ONCE)
    async def order() -> None:
        did.extend((await durable().map("pages", [own.tasks["render"].call(7)])).values())

    handle = order.enqueue()
    async with working(own, queues=(ORDERS, PAGES), grace=5.0):
        await wait_until_async(lambda: did == [7], "the handler has the result", timeout=20)
        await wait_until_async(lambda: saves.count == 1, "the save begins", timeout=20)
        assert "succeeded" not in event_types(client, handle.id)
        saves.may_go.set()
        await until(client, handle.id, "succeeded")

    assert ["pages=0"] == saved(client, handle.id)[-1:]


@pytest.mark.parametrize("ends", [True, False], ids=["at its end", "before its next step"])
async def test_if_the_results_of_children_cannot_be_saved_the_attempt_fails_and_the_next_one_saves_them(
    own: App, client: Client, saves: Saves, did: list[Any], *, ends: bool
) -> None:
    saves.error = ServerError(what="no")

    async def add(number: int) -> int:
        did.append(f"add {number}")
        return number

    @own.task(name="order", queue=ORDERS, retry=TWICE)
    async def order() -> None:
        (page,) = (await durable().map("pages", [own.tasks["render"].call(7)])).values()
        did.append(page)
        saves.may_go.set()
        if not ends:
            await wait_until_async(lambda: saves.count == 1, "the save begins", timeout=20)
            await asyncio.sleep(0)
            await durable().step("add", add, page)

    handle = order.enqueue()
    async with working(own, queues=(ORDERS, PAGES), grace=5.0):
        await until(client, handle.id, "succeeded")

    assert ([7, 7] if ends else [7, 7, "add 7"]) == did
    assert event_types(client, handle.id).count("retried") == 1
    assert saved(client, handle.id).count("pages=0") == 1


async def test_a_handler_can_go_on_after_it_got_the_error_of_a_save_and_its_next_save_repeats_it(
    own: App, client: Client, saves: Saves, did: list[Any]
) -> None:
    saves.error = ServerError(what="no")

    async def add(number: int) -> int:
        did.append(f"add {number}")
        return number

    @own.task(name="order", queue=ORDERS, retry=ONCE)
    async def order() -> None:
        job = durable()
        (page,) = (await job.map("pages", [own.tasks["render"].call(7)])).values()
        saves.may_go.set()
        await wait_until_async(lambda: saves.count == 1, "the save begins", timeout=20)
        await asyncio.sleep(0)
        for _ in range(2):
            try:
                await job.step("add", add, page)
            except ServerError:
                did.append("refused")

    handle = order.enqueue()
    async with working(own, queues=(ORDERS, PAGES), grace=5.0):
        await until(client, handle.id, "succeeded")

    assert ["refused", "add 7"] == did
    assert saved(client, handle.id)[-2:] == ["pages=0", "add"]


async def test_results_of_children_are_sent_again_if_a_failover_took_earlier_entries(
    own: App, client: Client, saves: Saves, did: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ParkedBoxes, "take", lambda _self, _context: None)
    boxes = queue_keys(ORDERS)("boxes")
    kept: list[str] = []

    def ask(*command: Any) -> Any:
        return client.run(client.calls.delivery.ask([list(command)]))[0]

    def receive() -> None:
        fields = ask("HGETALL", boxes)
        kept[:] = (
            fields if isinstance(fields, list) else [part for e in fields.items() for part in e]
        )

    def take_over() -> None:
        ask("DEL", boxes)
        ask("HSET", boxes, *kept)

    async def first() -> str:
        did.append("first")
        return "first"

    @own.task(name="order", queue=ORDERS, retry=ONCE)
    async def order() -> None:
        job = durable()
        await job.key("any")
        if not kept:
            receive()
        await job.step("first", first)
        did.extend((await job.map("pages", [own.tasks["render"].call(n) for n in (7, 8)])).values())
        take_over()
        saves.may_go.set()

    handle = order.enqueue()
    async with working(own, queues=(ORDERS, PAGES), grace=5.0):
        await until(client, handle.id, "succeeded")

    assert did[-2:] == [7, 8]
    assert did.count("first") == 1
    names = saved(client, handle.id)
    assert names.count("first") == 2
    assert names[-2:] == ["pages=0", "pages=1"]


async def test_the_result_of_a_child_is_saved_without_its_value_if_the_jobs_steps_have_used_up_their_room(
    own: App, client: Client, saves: Saves, did: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    save = LoopHome.save

    async def full(home: LoopHome, records: Sequence[Saving]) -> SaveAnswer:
        has_value = [n for n, each in enumerate(records) if not each.packed.startswith("!")]
        if records[0].name.startswith("pages=") and has_value:
            return {n: NotSaved("full", 2) for n in has_value}
        return await save(home, records)

    monkeypatch.setattr(LoopHome, "save", full)
    saves.may_go.set()

    @own.task(name="order", queue=ORDERS, retry=ONCE)
    async def order() -> None:
        did.extend((await durable().map("pages", [own.tasks["render"].call(7)])).values())

    handle = order.enqueue()
    async with working(own, queues=(ORDERS, PAGES), grace=5.0):
        await until(client, handle.id, "succeeded")

    assert [7] == did
    assert ["pages=0"] == saved(client, handle.id)[-1:]
