"""Redis does not save the results of a durable job's children: what the job's handler then gets."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Annotated, Any

import pytest

from rq_core import Depends, ResultUnavailable, RetryPolicy, durable
from rq_core.app.app import App
from rq_core.connections.client import Client
from rq_core.errors import ServerError
from rq_core.protocol.calls.boxes import NotSaved, SaveAnswer, Saving
from rq_core.worker.execution.saver import LoopHome
from tests.kit import crew
from tests.kit.wait import wait_until_async
from tests.kit.working import working
from tests.worker.conftest import event_types

ORDERS, PAGES = "crew", "pages"
ONCE = RetryPolicy(max_attempts=1)
TWICE = RetryPolicy(max_attempts=2, base=0.01)
ENDS: list[str] = []
"""The ends of the transactions of this module, in order."""


async def transaction() -> AsyncIterator[str]:
    try:
        yield "open"
    except ServerError:
        ENDS.append("rolled back")
        raise
    ENDS.append("committed")


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


def on_results(
    monkeypatch: pytest.MonkeyPatch, answer: Callable[[Sequence[Saving]], SaveAnswer | None]
) -> None:
    """Let ``answer`` answer each save of children's results. If it returns None, Redis answers."""
    save = LoopHome.save

    async def answered(home: LoopHome, records: Sequence[Saving]) -> SaveAnswer:
        found = answer(records) if records[0].name.startswith("pages=") else None
        return await save(home, records) if found is None else found

    monkeypatch.setattr(LoopHome, "save", answered)


def fails_once() -> Callable[[Sequence[Saving]], None]:
    left = [ServerError()]

    def fail(_records: Sequence[Saving]) -> None:
        if left:
            raise left.pop()

    return fail


async def run(own: App, client: Client, task: Any, *ends: str) -> None:
    handle = task.enqueue()
    async with working(own, queues=(ORDERS, PAGES), grace=5.0):
        await wait_until_async(
            lambda: {*ends} & {*event_types(client, handle.id)}, " or ".join(ends), timeout=20
        )


async def test_a_handler_gets_no_value_of_a_child_that_the_next_run_will_not_get(
    own: App, client: Client, did: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job's steps have used up their room, so the result is saved without its value."""

    def full(records: Sequence[Saving]) -> SaveAnswer | None:
        found: SaveAnswer = {
            n: NotSaved("full", 2)
            for n, each in enumerate(records)
            if not each.packed.startswith("!")
        }
        return found or None

    on_results(monkeypatch, full)

    @own.task(name="order", queue=ORDERS, retry=ONCE)
    async def order() -> None:
        pages = await durable().map("pages", [own.tasks["render"].call(7)])
        try:
            did.append(pages.values())
        except ResultUnavailable as error:
            did.append(type(error))
        await durable().sleep("later", 0.01)

    await run(own, client, order, "succeeded", "died")

    assert [ResultUnavailable, ResultUnavailable] == did


async def test_a_dependency_is_left_with_the_error_if_the_results_of_children_cannot_be_saved(
    own: App, client: Client, did: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    ENDS.clear()
    on_results(monkeypatch, fails_once())

    @own.task(name="order", queue=ORDERS, retry=TWICE)
    async def order(_tx: Annotated[str, Depends(transaction)]) -> None:
        did.extend((await durable().map("pages", [own.tasks["render"].call(7)])).values())

    await run(own, client, order, "succeeded")

    assert ["rolled back", "committed"] == ENDS
    assert [7] == did


async def test_a_handler_can_undo_its_steps_if_the_results_of_its_children_cannot_be_saved(
    own: App, client: Client, did: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def pay() -> int:
        return 1

    async def refund(paid: int) -> None:
        did.append(f"refunded {paid}")

    on_results(monkeypatch, fails_once())

    @own.task(name="order", queue=ORDERS, retry=ONCE)
    async def order() -> None:
        job = durable()
        await job.options(undo=refund).step("pay", pay)
        try:
            await job.map("pages", [own.tasks["render"].call(7)])
        except ServerError:
            await job.undo()
            raise

    await run(own, client, order, "died")

    assert ["refunded 1"] == did
