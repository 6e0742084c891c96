"""Durable jobs that wait for several children: the children's options, and the order of reads, requeues and cancels."""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from rq_core import App, Cap, Failed, Filter, RetryPolicy, durable, testing
from rq_core.app.durable import children as launches
from rq_core.app.durable.items import MESSAGE_MAX, MESSAGES_MAX, least, pack_ends, unpack_ends
from rq_core.model.durable.children import KEEP_MS
from rq_core.model.job import JobError
from rq_core.model.keys import queue_keys
from rq_core.model.result_encoding import pack_result
from rq_core.protocol.calls.admin import Admin
from rq_core.protocol.engine.plan import Plan
from rq_core.signals import LeaseLost
from rq_core.worker.child_ends import calls_for, parents_of
from rq_core.worker.settlement import Settlement, calls_of, claim_call
from tests.kit.families import PARENT, PARENTS, PARENTS_LEASE_MS, PARTS, family

ONCE = RetryPolicy(max_attempts=1)


@pytest.mark.parametrize(
    ("share", "count", "needed"),
    [(0.5, 3, 2), (0.95, 100, 95), (0.07, 100, 7), (0.0, 3, 0), (1.0, 3, 3), (0.01, 3, 1)],
)
def test_a_share_of_children_that_must_succeed_is_rounded_up_to_a_number_of_children(
    share: float, count: int, needed: int
) -> None:
    assert needed == least("pages", share, count)


def test_a_child_waits_when_a_scope_is_full_even_if_the_cap_rejects_jobs(
    app: App, fake: testing.Fake
) -> None:
    did: list[Any] = []

    @app.task(queue="pages", retry=ONCE, caps=[Cap(1, per="tenant", on_full="reject")])
    def render(n: int, tenant: str = "acme") -> int:
        return n

    @app.task(queue="orders", retry=ONCE)
    async def order() -> None:
        did.append((await durable().map("pages", [render.call(n) for n in range(3)])).values())

    app.apply_settings()
    order.enqueue()

    assert ["succeeded"] == [ran.outcome for ran in fake.drain() if ran.queue == "orders"][-1:]
    assert [[0, 1, 2]] == did


def test_a_child_keeps_its_result_for_longer_than_a_day_if_its_task_asks_for_that(
    app: App, fake: testing.Fake
) -> None:
    @app.task(queue="pages", retry=ONCE, keep_result=3 * KEEP_MS / 1000)
    def render() -> int:
        return 7

    @app.task(queue="orders", retry=ONCE)
    async def order() -> None:
        await durable().run(render.call())

    handle = order.enqueue()
    fake.drain("orders")
    found = app.client.run(app.client.calls.families.children(handle.id, ["orders"]))
    assert found is not None
    (child,) = found
    fake.drain("pages")
    fake.advance(2 * KEEP_MS / 1000)
    fake.drain("pages")  # A claim forgets what is over.

    ends = app.client.run(app.client.calls.endings.look("pages", [child.id]))
    assert "Succeeded" == type(ends[child.id]).__name__


def end_in_one_call(app: App, queue: str) -> None:
    """End all jobs of a queue in one call, and signal that to their parents, as a worker does."""
    claimed = app.client.run(claim_call(queue, "w-2", 10)).jobs
    ends = [
        Settlement(claim, "complete", value=pack_result(str(n), "digest"))
        for n, claim in enumerate(claimed)
    ]
    ((call, _),) = calls_of("w-2", ends)
    outcomes = app.client.run(call)
    for told in calls_for(parents_of(ends, outcomes), "w-2"):
        app.client.run(told)


def test_a_parent_is_woken_though_one_call_ends_all_its_children_while_it_reads_their_outcomes(
    app: App, fake: testing.Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the last of the children that end in one call gives a signal. So the parent must wait for the last one."""
    did: list[Any] = []

    @app.task(queue="pages", retry=ONCE)
    def render(n: int) -> int:
        raise AssertionError("the test ends it")

    @app.task(queue="orders", retry=ONCE)
    async def order() -> None:
        did.append((await durable().map("pages", [render.call(n) for n in range(2)])).values())

    look = launches._look

    def looking(queue: str, ids: Sequence[str], calls: Any) -> Plan[dict[str, Any]]:
        # The page of each read has one child, and both children end between the first two pages.
        found = yield from look(queue, ids[:1], calls)
        if "read" not in did:
            did.append("read")
            end_in_one_call(app, "pages")
        return found | (yield from look(queue, ids[1:], calls))

    monkeypatch.setattr(launches, "_look", looking)
    order.enqueue()
    fake.drain("orders")  # A run that has enqueued the children waits without a look.
    assert [] == did
    fake.advance(launches.LOOK_MIN_S + 1)

    fake.drain("orders")

    assert ["read", [0, 1]] == did


def test_every_run_of_a_parent_gets_the_same_error_texts_of_its_failed_children(
    app: App, fake: testing.Fake
) -> None:
    """The parent saves at most MESSAGE_MAX characters of an error, and its first run gets no more, either."""
    seen: list[list[str]] = []

    @app.task(queue="pages", retry=ONCE)
    def render(n: int) -> int:
        raise ValueError(f"page {n} is blank" if n else "no" * MESSAGE_MAX)

    @app.task(queue="orders")
    async def order() -> None:
        pages = await durable().map("pages", [render.call(n) for n in range(2)], min_success=0)
        seen.append([str(page.error) for page in pages.failed])
        await durable().sleep("later", 5)

    order.enqueue()
    fake.drain()
    fake.advance(6)
    fake.drain()

    first, again = seen
    assert first == again
    assert "page 1 is blank" in first[1]
    assert MESSAGE_MAX < len(first[0]) < 2 * MESSAGE_MAX


def test_if_many_children_fail_their_errors_are_saved_with_shorter_messages() -> None:
    ends = {
        n: Failed(f"f-{n}", "attempts_spent", JobError("ValueError", "x" * 400))
        for n in range(4_000)
    }

    packed = pack_ends(ends)

    assert MESSAGES_MAX <= packed.count("x") < len(packed) < 5 * MESSAGES_MAX
    assert {
        n: (each.reason, each.error.type)
        for n, each in unpack_ends(packed, [*map(str, ends)]).items()
    } == dict.fromkeys(ends, ("attempts_spent", "ValueError"))


def test_a_requeue_of_a_parent_requeues_its_children_first(app: App, fake: testing.Fake) -> None:
    """A parent that runs before its children are alive again fails again at once."""
    states: list[str] = []

    @app.task(queue="pages", retry=ONCE)
    def render() -> None:
        raise ValueError("no")

    @app.task(queue="orders", retry=ONCE)
    async def order() -> None:
        await durable().run(render.call())

    handle = order.enqueue()
    fake.drain()
    client = app.client

    def verb(ids: Sequence[str]) -> Plan[dict[str, str]]:
        lines = yield from client.calls.delivery.ask([["HVALS", queue_keys("pages")("state")]])
        states.extend(line.partition(" ")[0] for line in lines[0])
        return (yield from client.calls.admin.requeue("orders", ids))

    found = client.run(client.calls.families.requeue_by(verb, "orders", [handle.id]))

    assert {handle.id: "requeued"} == found
    assert ["ready"] == states


def move_once(app: App, monkeypatch: pytest.MonkeyPatch, move: Callable[[], object]) -> None:
    """Call ``move`` after the first cancel of parents has read their children, and before it changes the parents."""
    cancel, moves = Admin.cancel, [move]

    def moving(admin: Any, queue: str, ids: Sequence[str], **options: Any) -> Any:
        if queue == "orders" and moves:
            moves.pop()()
        return (yield from cancel(admin, queue, ids, **options))

    monkeypatch.setattr(Admin, "cancel", moving)


@pytest.mark.parametrize("by", ["id", "filter"])
@pytest.mark.parametrize("is_parked", [False, True], ids=["first-run", "later-run"])
def test_cancelling_a_parent_cancels_children_that_it_enqueues_during_the_cancel(
    app: App, fake: testing.Fake, monkeypatch: pytest.MonkeyPatch, by: str, is_parked: bool
) -> None:
    @app.task(queue="pages", retry=ONCE)
    def render(n: int) -> None: ...

    @app.task(queue="orders", retry=ONCE)
    async def order() -> None:
        if is_parked:
            await durable().wait("go", bool)
        await durable().map("pages", [render.call(n) for n in range(2)])

    def run_parent() -> None:
        if is_parked:
            app.signal(handle, "go", True)
        fake.drain("orders")

    handle = order.enqueue()
    if is_parked:
        fake.drain("orders")
    move_once(app, monkeypatch, run_parent)

    if by == "id":
        assert "cancelled" == handle.cancel()
    else:
        assert {"cancelled": 1} == app.cancel_where(Filter(queue="orders")).outcomes

    assert [] == fake.enqueued("pages")
    assert [] == fake.enqueued("orders")


def test_cancelling_many_parents_cancels_each_parent_once_although_one_of_them_runs_meanwhile(
    app: App, fake: testing.Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    @app.task(queue="pages", retry=ONCE)
    def render() -> None: ...

    @app.task(queue="orders", retry=ONCE)
    async def order() -> None:
        await durable().wait("go", bool)
        await durable().run(render.call())

    def run_first() -> None:
        app.signal(first, "go", True)
        fake.drain("orders")

    first, *_ = sorted((order.enqueue() for _ in range(3)), key=lambda handle: handle.id)
    fake.drain("orders")
    move_once(app, monkeypatch, run_first)

    assert {"cancelled": 3} == app.cancel_where(Filter(queue="orders")).outcomes
    assert [] == fake.enqueued("orders") + fake.enqueued("pages")


@pytest.mark.parametrize("by", [LeaseLost, CancelledError], ids=["its-save", "its-heartbeat"])
def test_a_worker_that_lost_its_claim_of_a_cancelled_parent_cancels_the_children_that_it_still_enqueues(
    redis_url: str, monkeypatch: pytest.MonkeyPatch, by: type[BaseException]
) -> None:
    """``by`` is the exception that the handler gets when the worker has learned that the lease is lost."""
    enqueue, sent = launches._enqueue, list[str]()
    whole = launches.JobSteps._enqueue

    async def told(steps: Any, launch: str, jobs: Any) -> bool:
        found = await whole(steps, launch, jobs)
        if by is CancelledError:
            steps._context.tell(LeaseLost())
            raise CancelledError
        return found

    def late(jobs: Any, calls: Any) -> Any:
        sent.extend(job.id for job in jobs)
        for _ in range(4):
            of.pass_time(PARENTS_LEASE_MS // 3)
            claim = of.claim(PARENTS)
        assert claim is not None
        of.run(calls.families.cancel(PARENTS, [PARENT]))
        assert "cancelled" == of.settle(Settlement(claim, "rollback", reason="shutdown"))
        return (yield from enqueue(jobs, calls))

    monkeypatch.setattr(launches, "_enqueue", late)
    monkeypatch.setattr(launches.JobSteps, "_enqueue", told)
    with family(redis_url, count=2) as of:
        with pytest.raises(by):
            of.run_parent()

        assert ["Cancelled"] * 2 == [of.outcome(PARTS, each) for each in sent]


def test_a_parked_parent_gets_a_signal_only_from_the_child_for_which_it_waits(
    redis_url: str,
) -> None:
    """The parent waits for the child that was enqueued last. When it goes on, it sees that the others have ended."""
    with family(redis_url, count=3) as of:
        assert of.run_parent()
        assert of.parent == "parked"
        first, second, last = (of.claim(PARTS) for _ in range(3))

        of.succeed(first)
        of.fail(second)
        assert of.events(PARENTS, PARENT)["signalled"] == 0

        of.succeed(last)
        assert of.events(PARENTS, PARENT)["signalled"] == 1
        assert of.work_off()
        assert of.got == [["Succeeded", "Failed", "Succeeded"]]


def test_a_running_parent_gets_a_signal_from_each_child_that_ends(redis_url: str) -> None:
    """The parent may have looked already, and may be about to wait for this child."""
    with family(redis_url, count=2) as of:

        def end_both() -> None:
            of.succeed(of.claim(PARTS))
            of.succeed(of.claim(PARTS))

        of.moments["before it parks"] = end_both
        assert of.run_parent()
        assert of.events(PARENTS, PARENT)["signalled"] == 2
        assert of.work_off()
        assert of.got == [["Succeeded", "Succeeded"]]
