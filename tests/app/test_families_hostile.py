"""Durable jobs and their children at bad moments: a process is killed, a queue is full, or a parent is changed.

In one test, another job has a child's id.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from rq_core import App, Cap, Filter, JobHandle, RetryPolicy, current_job, durable, errors, testing
from rq_core.app.durable import children as launches
from rq_core.app.durable.children import JobSteps
from rq_core.model.durable.boxes import StepEntry
from rq_core.model.durable.children import (
    CHILDREN_MAX,
    child_id,
    child_wait,
    children_in,
    parent_header,
    read_child_wait,
    read_queues,
)
from rq_core.model.headers import PARENT_HEADER
from rq_core.model.keys import queue_keys
from rq_core.web.acting.actions import ACTIONS, By, carried_out

ONCE = RetryPolicy(max_attempts=1)
NO_QUEUE_META = queue_keys("no-queue")("meta")
TWICE = RetryPolicy(max_attempts=2, base=1.0, jitter=False)


def states(app: App, queue: str, ids: list[str]) -> list[str]:
    """Return the outcome of each job: ``alive`` if it has not ended, ``Absent`` if Redis has forgotten it."""
    ends = app.client.run(app.client.calls.endings.look(queue, ids))
    return [type(ends[each]).__name__ if each in ends else "alive" for each in ids]


def children_of(app: App, queue: str, job_id: str) -> list[str]:
    found = app.client.run(app.client.calls.families.children(job_id, [queue]))
    return [child.id for child in found or ()]


def crash_once(monkeypatch: pytest.MonkeyPatch, did: list[Any]) -> None:
    """Let the first attempt to enqueue children fail before any child is enqueued."""
    enqueue = JobSteps._enqueue

    async def crashing(steps: Any, launch: str, jobs: Any) -> bool:
        if "crash" not in did:
            did.append("crash")
            raise KeyError("killed")
        return await enqueue(steps, launch, jobs)

    monkeypatch.setattr(JobSteps, "_enqueue", crashing)


def test_a_crash_before_the_enqueue_of_children_loses_no_child(
    app: App, fake: testing.Fake, did: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    @app.task(queue="pages", retry=ONCE)
    def render(n: int) -> int:
        did.append(n)
        return n

    @app.task(queue="orders", retry=TWICE)
    async def order() -> None:
        did.append((await durable().map("pages", [render.call(1), render.call(2)])).values())

    crash_once(monkeypatch, did)
    order.enqueue()

    fake.drain()

    assert ["crash", 1, 2, [1, 2]] == did


def test_children_that_a_full_queue_refused_are_enqueued_later(
    app: App, fake: testing.Fake, did: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    @app.task(queue="pages", retry=ONCE)
    def render(n: int) -> int:
        did.append(n)
        return n

    @app.task(queue="orders", retry=ONCE)
    async def order() -> None:
        did.append((await durable().map("pages", [render.call(1), render.call(2)])).values())

    enqueue = launches._enqueue

    def refusing(jobs: Any, calls: Any) -> Any:
        if "full" not in did:
            did.append("full")
            yield from enqueue(jobs[:1], calls)
            raise errors.QueueFull(queue="pages")
        return (yield from enqueue(jobs, calls))

    monkeypatch.setattr(launches, "_enqueue", refusing)
    order.enqueue()

    fake.drain()
    fake.advance(6)
    fake.drain()

    assert ["full", 1, 2, [1, 2]] == did


def test_a_parent_does_not_mistake_a_foreign_job_with_the_id_of_a_child_for_the_child(
    app: App, fake: testing.Fake, did: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    @app.task(queue="pages", retry=ONCE)
    def render(n: int) -> int:
        return n

    @app.task(queue="orders", retry=TWICE)
    async def order() -> None:
        did.append(await durable().run(render.call(1), name="page"))

    enqueue = JobSteps._enqueue

    async def crashing(steps: Any, launch: str, jobs: Any) -> bool:
        if not did:
            did.append("crash")
            forged = render.with_options(id=jobs[0].id, keep_result=600, remember=600)
            forged.enqueue(666)
            raise KeyError("killed")
        return await enqueue(steps, launch, jobs)

    monkeypatch.setattr(JobSteps, "_enqueue", crashing)
    order.enqueue()

    ran = fake.drain()

    assert ["crash"] == did
    assert "StepMismatch" in str([each.error for each in ran if each.queue == "orders"])


@pytest.mark.parametrize("count", [CHILDREN_MAX + 1, 10**12, -1, True, "3", None, 2.5])
def test_a_forged_number_of_children_is_refused(count: Any) -> None:
    forged = json.dumps({"count": count, "queue": "pages"})
    entry = StepEntry("map:pages", True, 5, "1-2", "70c5", forged)

    assert [] == children_in("9f3a0b1c22aa0001", [entry])
    with pytest.raises(ValueError, match="children"):
        read_queues(forged)


@pytest.mark.parametrize("queue", ["", "a b", "a{b", 7, None])
def test_a_forged_name_of_a_childs_queue_is_refused(queue: Any) -> None:
    with pytest.raises(ValueError, match="queues"):
        read_queues(json.dumps([queue, "pages"]))


def test_a_run_after_a_crash_does_not_enqueue_a_cancelled_child_again(
    app: App, fake: testing.Fake, did: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    @app.task(queue="pages", retry=ONCE)
    def render(n: int) -> None:
        did.append(n)

    @app.task(queue="orders", retry=TWICE)
    async def order() -> None:
        items = await durable().map("pages", [render.call(0), render.call(1)], min_success=0)
        did.append([type(item.outcome).__name__ for item in items])

    enqueue = JobSteps._enqueue

    async def crashing(steps: Any, launch: str, jobs: Any) -> bool:
        found = await enqueue(steps, launch, jobs)
        if not did:
            did.append("crash")
            app.client.run(app.client.calls.admin.cancel("pages", [jobs[0].id]))
            raise KeyError("killed")
        return found

    monkeypatch.setattr(JobSteps, "_enqueue", crashing)
    order.enqueue()

    fake.drain()

    assert ["crash", 1, ["Cancelled", "Succeeded"]] == did


@pytest.mark.parametrize("caps", [[], [Cap(1)]], ids=["no-cap", "cap"])
def test_a_child_that_is_cancelled_while_its_parent_enqueues_again_does_not_run(
    app: App, fake: testing.Fake, did: list[Any], monkeypatch: pytest.MonkeyPatch, caps: list[Cap]
) -> None:
    @app.task(queue="pages", retry=ONCE, caps=caps)
    def render(n: int) -> None:
        did.append(n)

    @app.task(queue="orders", retry=TWICE)
    async def order() -> None:
        items = await durable().map("pages", [render.call(0), render.call(1)], min_success=0)
        did.append([type(item.outcome).__name__ for item in items])

    enqueue = JobSteps._enqueue

    async def crashing(steps: Any, launch: str, jobs: Any) -> bool:
        if not did:
            did.append("crash")
            assert await enqueue(steps, launch, jobs)
            raise KeyError("killed")
        # The second run has seen both children alive.
        app.client.run(app.client.calls.admin.cancel("pages", [jobs[0].id]))
        return await enqueue(steps, launch, jobs)

    monkeypatch.setattr(JobSteps, "_enqueue", crashing)
    app.apply_settings()
    order.enqueue()

    fake.drain("orders")
    fake.advance(2)
    fake.drain()

    assert ["crash", 1, ["Cancelled", "Succeeded"]] == did


def test_a_cancelled_child_whose_outcome_redis_has_removed_does_not_run_when_its_parent_enqueues_again(
    app: App, fake: testing.Fake, did: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The results of the children's queue have no room. So the cancel of the third child removes the outcome of the
    first one."""

    @app.task(queue="pages", retry=ONCE)
    def render(n: int) -> None:
        did.append(n)

    @app.task(queue="orders", retry=TWICE)
    async def order() -> None:
        items = await durable().map("pages", [render.call(n) for n in range(3)], min_success=0)
        did.append([type(item.outcome).__name__ for item in items])

    enqueue, admin = JobSteps._enqueue, app.client.calls.admin

    async def crashing(steps: Any, launch: str, jobs: Any) -> bool:
        if not did:
            did.append("crash")
            assert await enqueue(steps, launch, jobs)
            raise KeyError("killed")
        app.client.run(admin.configure("pages", {"kept_max_bytes": 0}))
        for each in (jobs[0], jobs[2]):
            app.client.run(admin.cancel("pages", [each.id]))
        did.append(states(app, "pages", [job.id for job in jobs]))
        return await enqueue(steps, launch, jobs)

    monkeypatch.setattr(JobSteps, "_enqueue", crashing)
    order.enqueue()

    fake.drain("orders")
    fake.advance(2)
    fake.drain()

    assert ["crash", ["Absent", "alive", "Cancelled"], 1] == did[:3]
    assert "Gone" == did[3][0]


@pytest.mark.parametrize("end", ["Cancelled", "Expired", "overdue"])
def test_a_late_enqueue_call_of_an_earlier_run_does_not_enqueue_a_child_that_ended_unclaimed(
    app: App, fake: testing.Fake, did: list[Any], monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """A worker that has lost its claim of the parent may send its call after the next run's call. ``overdue`` is a
    child past its deadline that no claim has ended yet."""

    @app.task(queue="pages", retry=ONCE)
    def render(n: int) -> None:
        did.append(n)

    @app.task(queue="orders", retry=TWICE)
    async def order() -> None:
        calls = [render.with_options(expires=5).call(0), render.call(1)]
        items = await durable().map("pages", calls, min_success=0)
        did.append([type(item.outcome).__name__ for item in items])

    enqueue, late = JobSteps._enqueue, list[Any]()

    async def keeping(steps: Any, launch: str, jobs: Any) -> bool:
        if not late:
            late.extend(jobs)
            raise KeyError("frozen")
        return await enqueue(steps, launch, jobs)

    monkeypatch.setattr(JobSteps, "_enqueue", keeping)
    order.enqueue()
    fake.drain("orders")
    fake.advance(2)
    fake.drain("orders")

    if end == "Cancelled":
        app.client.run(app.client.calls.admin.cancel("pages", [late[0].id]))
    else:
        fake.advance(6)
    if end == "Expired":
        fake.drain("pages")
    found = app.client.run(launches._enqueue(late, app.client.calls))
    fake.drain()

    assert ((), tuple(job.id for job in late)) == (found.ids, found.duplicates)
    assert [1, ["Cancelled" if end == "Cancelled" else "Expired", "Succeeded"]] == did


@pytest.mark.parametrize("first", ["map", "step"])
def test_a_step_with_a_key_is_refused_if_its_name_equals_that_of_a_childs_saved_result(
    app: App, fake: testing.Fake, did: list[Any], first: str
) -> None:
    @app.task(queue="pages", retry=ONCE)
    def render() -> str:
        return "of the child"

    @app.task(queue="orders", retry=ONCE)
    async def order() -> None:
        job = durable()
        if first == "map":
            await job.map("pages", [render.call()])
        did.append(await job.options(key="0").step("pages", lambda: "of the step"))
        did.append((await job.map("pages", [render.call()])).values())

    order.enqueue()

    ran = fake.drain()

    assert "InvalidStep" in str(ran[-1].error)
    assert "of the child" not in str(did)


def test_a_forged_header_sends_no_signal_to_a_foreign_job(
    app: App, fake: testing.Fake, did: list[Any]
) -> None:
    @app.task(queue="pages", retry=ONCE)
    def render(n: int) -> None:
        did.append(n)

    @app.task(queue="orders", retry=ONCE)
    async def order() -> None:
        await durable().map("pages", [render.call(0), render.call(1)])

    @app.task(queue="plain", retry=ONCE)
    def plain() -> None:
        did.append("plain")

    parent, other = order.enqueue(), plain.enqueue()
    fake.drain("orders")
    lives = app.client.run(app.client.calls.reads.lives("orders", [parent.id]))
    life, forged = lives[parent.id], "f0f0f0f0f0f0f0f0"
    headers = [
        parent_header("orders", parent.id, child_wait(1, 1), life, "pages"),
        parent_header("orders", parent.id, child_wait(1, 77), life, "pages"),
        parent_header("plain", other.id, child_wait(1, 1), life, "pages"),
        parent_header("no-queue", "no-job", child_wait(1, 1), life, "pages"),
    ]
    for n, header in enumerate(headers):
        # The first producer's jobs have ids of their own. Those of the second one have the ids of children of a box
        # that no job has.
        second = header.replace(life, forged)
        place = read_child_wait(header.split(" ")[0])
        assert place is not None
        ids = {f"own-{n}": header, child_id(forged, "pages", place[1]): second}
        for job_id, said in ids.items():
            render.with_options(
                queue=f"foreign-{n}", headers={PARENT_HEADER: said}, id=job_id, keep_result=60
            ).enqueue(7)
        fake.drain(f"foreign-{n}")

    found = app.client.run(app.client.calls.reads.steps(parent.id, ["orders"]))
    assert found is not None
    assert {} == found.signals
    assert [] == fake.drain("orders")
    assert {} == app.client.run(app.client.calls.reads.lives("plain", [other.id]))
    assert not app.client.run(app.client.calls.delivery.ask([["EXISTS", NO_QUEUE_META]]))[0]
    assert [7] * 2 * len(headers) == did

    fake.drain("pages")
    assert ["succeeded"] == [ran.outcome for ran in fake.drain("orders")]


# Changes by operators.

Change = Callable[[App, JobHandle[Any]], object]


def by_page(name: str) -> Change:
    def change(app: App, handle: JobHandle[Any]) -> object:
        form = {"queue": handle.queue, "id": handle.id}
        (action,) = (each for each in ACTIONS if each.name == name)
        return app.client.run(carried_out(app.client.calls, action, form, By("ann", "closed")))

    return change


CANCELS: dict[str, Change] = {
    "the handle": lambda _, handle: handle.cancel(),
    "the page": by_page("job/cancel"),
    "a filter": lambda app, handle: app.cancel_where(
        Filter(queue=handle.queue, task="order"), reason="closed"
    ),
}
REQUEUES: dict[str, Change] = {
    "the page": by_page("job/requeue"),
    "a filter": lambda app, handle: app.requeue_where(Filter(queue=handle.queue)),
}


@pytest.mark.parametrize("change", CANCELS.values(), ids=CANCELS)
def test_each_kind_of_cancel_of_a_parent_cancels_children_and_grandchildren(
    app: App, fake: testing.Fake, did: list[Any], change: Change
) -> None:
    @app.task(queue="words", retry=ONCE)
    def word() -> None:
        did.append("word")

    @app.task(queue="pages", retry=ONCE)
    async def page() -> None:
        await durable().run(word.call())

    @app.task(name="order", queue="orders", retry=ONCE)
    async def order() -> None:
        await durable().map("pages", [page.call(), page.call()])

    handle = order.enqueue()
    fake.drain("orders")
    fake.drain("pages")
    pages = children_of(app, "orders", handle.id)
    words = [word for each in pages for word in children_of(app, "pages", each)]

    change(app, handle)

    assert ["Absent"] == states(app, "orders", [handle.id])
    assert ["Cancelled"] * 2 == states(app, "pages", pages)
    assert ["Cancelled"] * 2 == states(app, "words", words)
    assert [] == did


@pytest.mark.parametrize("change", REQUEUES.values(), ids=REQUEUES)
def test_each_requeue_of_a_parent_runs_dead_children_and_grandchildren_again(
    app: App, fake: testing.Fake, did: list[Any], change: Change
) -> None:
    @app.task(queue="words", retry=ONCE)
    def word() -> int:
        did.append("word")
        if did.count("word") == 1:
            raise ValueError("no")
        return 7

    @app.task(queue="pages", retry=ONCE)
    async def page() -> int:
        return await durable().run(word.call())

    @app.task(queue="orders", retry=ONCE)
    async def order() -> None:
        did.append(await durable().run(page.call()))

    handle = order.enqueue()
    fake.drain()
    assert ["Failed"] == states(app, "orders", [handle.id])

    change(app, handle)
    fake.drain()

    assert ["word", "word", 7] == did


def test_cancelling_a_dead_parent_does_not_change_its_children(
    app: App, fake: testing.Fake, did: list[Any]
) -> None:
    @app.task(queue="pages", retry=ONCE)
    def render() -> None:
        did.append("page")

    @app.task(queue="orders", retry=ONCE)
    async def order() -> None:
        if current_job().claim > 1:
            raise ValueError("no")
        await durable().run(render.call())

    handle = order.enqueue()
    fake.drain("orders")
    (child,) = children_of(app, "orders", handle.id)
    fake.advance(6)
    fake.drain("orders")
    assert ["Failed"] == states(app, "orders", [handle.id])

    assert "dead" == handle.cancel()

    assert ["alive"] == states(app, "pages", [child])


def test_a_requeue_of_a_parent_that_is_not_dead_changes_nothing(
    app: App, fake: testing.Fake, did: list[Any]
) -> None:
    @app.task(queue="pages", retry=ONCE)
    def render() -> None:
        raise ValueError("no")

    @app.task(queue="later", retry=ONCE)
    def bind() -> None:
        did.append("it never runs")

    @app.task(queue="orders", retry=ONCE)
    async def order() -> None:
        await durable().map("pages", [render.call(), bind.call()])

    handle = order.enqueue()
    fake.drain("orders")
    fake.drain("pages")
    dead, _ = children_of(app, "orders", handle.id)
    families = app.client.calls.families

    assert {handle.id: "parked"} == app.client.run(families.requeue("orders", [handle.id]))

    assert ["Failed"] == states(app, "pages", [dead])


def test_children_that_a_parent_enqueues_after_it_was_cancelled_are_cancelled(
    app: App, fake: testing.Fake, did: list[Any]
) -> None:
    @app.task(queue="pages", retry=ONCE)
    def render(n: int) -> None:
        did.append(n)

    @app.task(queue="orders", retry=ONCE)
    async def order() -> None:
        did.append(handle.cancel())
        await durable().map("pages", [render.call(0), render.call(1)])

    handle = order.enqueue()

    fake.drain()

    assert ["cancelling"] == did
    assert ["Absent"] == states(app, "orders", [handle.id])
    assert [] == fake.enqueued("pages")


def test_a_parent_that_is_cancelled_during_an_enqueue_of_children_cancels_them(
    app: App, fake: testing.Fake, did: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    @app.task(queue="pages", retry=ONCE)
    def render(n: int) -> None:
        did.append(n)

    @app.task(queue="orders", retry=ONCE)
    async def order() -> None:
        await durable().map("pages", [render.call(0), render.call(1)])

    enqueue = JobSteps._enqueue

    async def cancelled(steps: Any, launch: str, jobs: Any) -> bool:
        await enqueue(steps, launch, jobs)
        did.append(handle.cancel())
        raise KeyError("the handler was asked to stop")

    monkeypatch.setattr(JobSteps, "_enqueue", cancelled)
    handle = order.enqueue()

    fake.drain()

    assert ["cancelling"] == did
    assert [] == fake.enqueued("pages")
