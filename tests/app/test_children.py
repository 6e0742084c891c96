"""Durable jobs that enqueue other jobs and wait for their ends, on the fake server."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest

from rq_core import (
    App,
    ChildrenFailed,
    Failed,
    GiveUp,
    JobFailed,
    Outgoing,
    RetryPolicy,
    StepTwice,
    Unique,
    current_job,
    durable,
    durable_sync,
    errors,
    testing,
)
from rq_core.app.durable.children import JobSteps
from rq_core.app.durable.items import children_failed
from rq_core.model.keys import queue_keys

ONCE = RetryPolicy(max_attempts=1)


@dataclass
class Page:
    n: int


def outcomes(fake: testing.Fake, task: str) -> list[str]:
    return [ran.outcome for ran in fake.drain() if ran.task.endswith(task)]


def test_a_parent_gets_its_childs_result_as_the_result_type_of_the_childs_task(
    app: App, fake: testing.Fake, did: list[Any]
) -> None:
    @app.task(queue="pages", retry=ONCE)
    def render(n: int) -> Page:
        did.append(("child", n))
        return Page(n)

    @app.task(queue="orders", retry=ONCE)
    async def order() -> None:
        did.append(await durable().run(render.call(7)))

    order.enqueue()

    assert ["parked", "succeeded"] == outcomes(fake, "order")
    assert [("child", 7), Page(7)] == did


def test_children_get_the_headers_that_outgoing_functions_add(
    app: App, fake: testing.Fake, did: list[Any]
) -> None:
    """Checks a map of two children. rq-core calls the outgoing function once, while the parent's handler runs."""

    @app.outgoing
    def request_of_the_parent(call: Outgoing) -> dict[str, str]:
        did.append((call.way, call.task))
        parent = current_job().headers["request"] if call.way == "children" else "r-1"
        return {"request": parent}

    @app.task(name="render")
    def render(n: int) -> None:
        did.append((n, current_job().headers["request"]))

    @app.task(name="order")
    async def order() -> None:
        await durable().map("pages", [render.call(n) for n in range(2)])

    order.enqueue()
    fake.drain()

    assert [("enqueue", "order"), ("children", "render"), (0, "r-1"), (1, "r-1")] == did


def test_a_map_returns_an_item_for_each_call_in_order(
    app: App, fake: testing.Fake, did: list[Any]
) -> None:
    @app.task(retry=ONCE)
    def render(n: int) -> int:
        did.append(n)
        return n * n

    @app.task(retry=ONCE)
    def order() -> None:
        items = durable_sync().map("pages", (render.call(n) for n in range(6)))
        did.append(([item.index for item in items], items.failed))
        assert [n * n for n in range(6)] == items.values()

    order.enqueue()

    assert "succeeded" == outcomes(fake, "order")[-1]
    assert [*range(6), ([*range(6)], [])] == did


def test_a_parent_waits_for_a_child_that_is_retried(
    app: App, fake: testing.Fake, did: list[Any]
) -> None:
    @app.task(queue="pages", retry=RetryPolicy(max_attempts=2, base=1.0, jitter=False))
    def render(n: int) -> int:
        did.append(n)
        if did == [0]:
            raise ValueError("no")
        return n

    @app.task(queue="orders", retry=ONCE)
    async def order() -> None:
        did.append((await durable().map("pages", [render.call(0), render.call(1)])).values())

    order.enqueue()

    assert ["parked", "parked", "succeeded"] == outcomes(fake, "order")
    assert [0, 1, 0, [0, 1]] == did


def test_a_map_without_calls_ends_at_once(app: App, fake: testing.Fake, did: list[Any]) -> None:
    @app.task(retry=ONCE)
    def order() -> None:
        did.append(list(durable_sync().map("pages", [])))

    order.enqueue()

    assert ["succeeded"] == outcomes(fake, "order")
    assert [[]] == did


def test_a_map_with_min_success_ends_though_a_child_has_failed(
    app: App, fake: testing.Fake, did: list[Any]
) -> None:
    @app.task(queue="pages", retry=ONCE)
    def render(n: int) -> int:
        if n == 3 and not did:
            raise ValueError("no")
        return n

    @app.task(queue="orders", retry=ONCE)
    async def order() -> None:
        job = durable()
        items = await job.map("pages", [render.call(n) for n in range(5)], min_success=0.8)
        did.append((items.values(), [(each.index, each.ok) for each in items.failed]))
        outcome = items[3].outcome
        assert isinstance(outcome, Failed)
        assert "attempts_spent" == outcome.reason
        with pytest.raises(JobFailed):
            items[3].value  # noqa: B018 - it raises
        await job.sleep("later", 5)

    order.enqueue()

    assert "parked" == outcomes(fake, "order")[-1]
    client = app.client
    (dead,) = [each.id for each in client.run(client.calls.reads.dead("pages", 9)).jobs]
    client.run(client.calls.admin.requeue("pages", [dead], by="ann", why="mended"))
    assert ["succeeded"] == outcomes(fake, "render")
    fake.advance(6)
    assert ["succeeded"] == outcomes(fake, "order")
    assert 2 == len(did)
    assert [([0, 1, 2, 4], [(3, False)])] * 2 == did


@pytest.mark.slow
def test_if_dead_children_are_requeued_their_dead_parent_continues_without_running_the_other_children_again(
    app: App, fake: testing.Fake, did: list[Any]
) -> None:
    @app.task(retry=ONCE)
    def render(n: int) -> int:
        did.append(n)
        if did.count(n) == 1 and n in (1, 2):
            raise ValueError("no")
        return n

    @app.task(retry=ONCE)
    async def order() -> None:
        did.append((await durable().map("pages", [render.call(n) for n in range(4)])).values())

    handle = order.enqueue()
    ran = fake.drain()

    assert "dead" == ran[-1].outcome
    assert "pages: 2 of 4 children succeeded, 4 must. 1: job f-" in (ran[-1].error or "")
    assert f"`rq-core requeue {handle.id}` runs it again" in (ran[-1].error or "")
    client = app.client
    dead = [each.id for each in ran if each.outcome == "dead"]
    client.run(client.calls.admin.requeue(handle.queue, dead, by="ann", why="mended"))
    assert "succeeded" == outcomes(fake, "order")[-1]
    assert [0, 1, 2, 3, 1, 2, [0, 1, 2, 3]] == did


def test_a_retried_parent_does_not_run_children_again(
    app: App, fake: testing.Fake, did: list[Any]
) -> None:
    @app.task(queue="pages", retry=ONCE)
    def render(n: int) -> int:
        did.append(n)
        return n

    @app.task(queue="orders", retry=RetryPolicy(max_attempts=3, base=1.0, jitter=False))
    def order() -> None:
        job = durable_sync()
        found = job.map("pages", [render.call(1), render.call(2)]).values()
        did.append(found)
        if current_job().failures < 2:
            raise ValueError("again")

    order.enqueue()

    assert ["parked", "scheduled", "scheduled", "succeeded"] == outcomes(fake, "order")
    assert [1, 2, [1, 2], [1, 2], [1, 2]] == did


def test_a_crash_after_the_enqueue_of_children_makes_no_second_child(
    app: App, fake: testing.Fake, did: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    @app.task(queue="pages", retry=ONCE)
    def render(n: int) -> int:
        did.append(n)
        return n

    @app.task(queue="orders", retry=RetryPolicy(max_attempts=3, base=1.0, jitter=False))
    async def order() -> None:
        did.append((await durable().map("pages", [render.call(1), render.call(2)])).values())

    write = JobSteps._write

    async def crashing(steps: Any, what: Any, entry: str, packed: str = "") -> None:
        if what == "save" and "crash" not in did:
            did.append("crash")
            raise KeyError("killed")
        await write(steps, what, entry, packed)

    monkeypatch.setattr(JobSteps, "_write", crashing)
    order.enqueue()

    found = outcomes(fake, "order")

    assert ["scheduled", "succeeded"] == [found[0], found[-1]]
    assert ["crash", 1, 2, [1, 2]] == did


def test_a_parent_that_gets_no_signal_finds_the_ends_of_its_children_by_itself(
    app: App, fake: testing.Fake, did: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rq_core.testing.fake_app.calls_for", lambda *_: [])

    @app.task(queue="pages", retry=ONCE)
    def render() -> int:
        return 1

    @app.task(queue="orders", retry=ONCE)
    def order() -> None:
        did.append(durable_sync().run(render.call()))

    order.enqueue()

    assert ["parked"] == outcomes(fake, "order")
    assert [] == outcomes(fake, "order")
    fake.advance(5.1)
    assert ["succeeded"] == outcomes(fake, "order")
    assert [1] == did


@pytest.mark.slow
@pytest.mark.parametrize("end", ["Cancelled", "Expired", "Gone"])
def test_every_end_of_a_child_reaches_its_parent(
    app: App, fake: testing.Fake, did: list[Any], end: str
) -> None:
    @app.task(queue="pages", retry=ONCE)
    def render() -> int:
        raise AssertionError("it never runs")

    prepared = render.with_options(expires=30) if end == "Expired" else render

    @app.task(queue="orders", retry=ONCE)
    def order() -> None:
        items = durable_sync().map("pages", [prepared.call()], min_success=0)
        did.append(type(items[0].outcome).__name__)

    order.enqueue()
    assert ["parked"] == [ran.outcome for ran in fake.drain("orders")]
    client = app.client
    (child,) = fake.enqueued("pages")
    if end == "Cancelled":
        client.run(client.calls.admin.cancel("pages", [child.id]))
    elif end == "Gone":
        # As a failover to a replica that lacks the child.
        key = queue_keys("pages")
        lost: list[list[Any]] = [
            ["HDEL", key("jobs"), child.id],
            ["HDEL", key("state"), child.id],
            ["LREM", key("ready:2"), 0, child.id],
        ]
        client.run(client.calls.delivery.ask(lost))
    fake.advance(31)
    fake.drain("pages")
    fake.advance(40)
    fake.drain("orders")

    assert [end] == did


@pytest.mark.slow
def test_parallel_branches_must_give_their_children_different_names(
    app: App, fake: testing.Fake, did: list[Any]
) -> None:
    @app.task(queue="pages", retry=ONCE)
    def render(n: int) -> int:
        return n

    @app.task(queue="orders", retry=ONCE)
    async def order() -> None:
        job = durable()
        did.append(
            await asyncio.gather(
                job.run(render.call(1), name="one"), job.run(render.call(2), name="two")
            )
        )
        did.append([await job.run(render.call(n), name="more") for n in (3, 4)])
        with pytest.raises(StepTwice):
            await asyncio.gather(job.run(render.call(1)), job.run(render.call(2)))

    order.enqueue()
    fake.drain()

    assert [[1, 2], [3, 4]] == did[-2:]


def test_calls_of_map_have_different_children_if_one_has_the_name_that_a_repeated_name_gets(
    app: App, fake: testing.Fake, did: list[Any]
) -> None:
    @app.task(queue="pages", retry=ONCE)
    def render(n: int) -> int:
        return n

    @app.task(queue="orders", retry=ONCE)
    async def order() -> None:
        job = durable()
        for number, name in enumerate(("page-2", "page", "page", "page")):
            did.append(await job.run(render.call(number), name=name))

    order.enqueue()
    fake.drain()

    assert [0, 1, 2, 3] == did[-4:]


def test_a_durable_job_dies_if_its_second_run_calls_a_map_with_another_number_of_children(
    app: App, fake: testing.Fake, did: list[Any]
) -> None:
    @app.task(queue="pages", retry=ONCE)
    def render(n: int) -> int:
        return n

    @app.task(queue="orders", retry=ONCE)
    def order() -> None:
        did.append(1)
        durable_sync().map("pages", [render.call(n) for n in range(len(did))])

    order.enqueue()
    ran = fake.drain()

    assert "dead" == ran[-1].outcome
    assert "an earlier run has enqueued 1 children, and this one has 2 calls" in str(ran[-1].error)


def test_a_call_that_cannot_be_a_child_is_refused(
    app: App, fake: testing.Fake, did: list[Any]
) -> None:
    @app.task(unique=Unique())
    def render() -> int:
        return 1

    @app.task(retry=ONCE)
    def order() -> None:
        job = durable_sync()
        for calls, needed in (
            ([render.call()], 1.0), ([render.job()], 1.0), ([], 1.5), ([], -1), ([], True), ([], 2)
        ):  # fmt: skip
            try:
                job.map("pages", calls, min_success=needed)  # type: ignore[arg-type]
            except errors.InvalidStep as error:
                did.append(error.why)

    order.enqueue()
    fake.drain()

    assert 6 == len(did)
    assert "is unique, and a child must not give way" in did[0]


def test_the_error_children_failed_has_the_outcomes_of_the_children(
    app: App, fake: testing.Fake, did: list[Any]
) -> None:
    @app.task(retry=ONCE)
    def render(n: int) -> int:
        if n:
            raise GiveUp("no")
        return 5

    @app.task(retry=ONCE)
    def order() -> None:
        try:
            durable_sync().map("pages", [render.call(0), render.call(1)], min_success=2)
        except ChildrenFailed as error:
            did.append((error.items.values(), len(error.items.failed)))

    order.enqueue()
    fake.drain()

    assert [([5], 1)] == did


def test_a_requeue_of_a_parent_runs_only_its_failed_children_again(
    app: App, fake: testing.Fake, did: list[Any]
) -> None:
    @app.task(queue="pages", retry=ONCE)
    def render(n: int) -> int:
        did.append(n)
        if did.count(n) == 1 and n:
            raise ValueError("no")
        return n

    @app.task(queue="orders", retry=ONCE)
    async def order() -> None:
        did.append((await durable().map("pages", [render.call(n) for n in range(3)])).values())

    handle = order.enqueue()
    fake.drain()
    families = app.client.calls.families
    children = app.client.run(families.children(handle.id, ["orders"])) or []
    assert [(0, True), (1, False), (2, False)] == [(c.number, c.is_saved) for c in children]

    answer = app.client.run(families.requeue("orders", [handle.id], by="ann", why="mended"))

    assert {handle.id: "requeued"} == answer
    assert "succeeded" == outcomes(fake, "order")[-1]
    assert [0, 1, 2, 1, 2, [0, 1, 2]] == did


def test_a_requeued_parent_does_not_rerun_failed_children_of_a_map_that_had_enough_successes(
    app: App, fake: testing.Fake, did: list[Any]
) -> None:
    @app.task(queue="pages", retry=ONCE)
    def render(n: int) -> int:
        did.append(n)
        if n == 2:
            raise ValueError("no")
        return n

    @app.task(queue="orders", retry=ONCE)
    async def order() -> None:
        calls = [render.call(n) for n in range(3)]
        pages = await durable().map("pages", calls, min_success=2)
        if did.count("order") == 0:
            did.append("order")
            raise ValueError("no")
        did.append([each.ok for each in pages])

    handle = order.enqueue()
    fake.drain()
    families = app.client.calls.families
    children = app.client.run(families.children(handle.id, ["orders"])) or []
    assert [(True, True), (True, True), (False, True)] == [
        (c.is_saved, c.is_over) for c in children
    ]

    app.client.run(families.requeue("orders", [handle.id], by="ann", why="mended"))

    assert ["succeeded"] == [each.outcome for each in fake.drain()]
    assert [0, 1, 2, "order", [True, True, False]] == did


def test_the_commands_in_the_error_of_failed_children_name_the_key_prefix() -> None:
    error = children_failed("too few", "p-1", "other")

    assert "`rq-core requeue p-1 --prefix other`" in str(error)
    assert "`rq-core children p-1 --failed --prefix other`" in str(error)


def test_a_cancel_of_a_parent_cancels_its_children(
    app: App, fake: testing.Fake, did: list[Any]
) -> None:
    @app.task(queue="pages", retry=ONCE)
    def render(n: int) -> None:
        did.append(n)

    @app.task(queue="orders", retry=ONCE)
    async def order() -> None:
        await durable().map("pages", [render.call(n) for n in range(3)])

    handle = order.enqueue()
    fake.drain("orders")

    answer = app.client.run(app.client.calls.families.cancel("orders", [handle.id]))

    assert {handle.id: "cancelled"} == answer
    assert [] == fake.drain()
    assert [] == did
