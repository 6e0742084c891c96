"""Forks of durable jobs (`app.fork`) on the fake server."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rq_core import (
    RESULT,
    App,
    InvalidOption,
    NotCopied,
    RetryPolicy,
    durable,
    durable_sync,
    group,
    testing,
)
from rq_core.app.flows.node_states import graph_in, seen_flow
from rq_core.model.durable.children import child_id
from rq_core.model.durable.forks import ForkOrigin, origin_header
from rq_core.model.events import decode
from rq_core.model.headers import FORK_HEADER
from rq_core.model.keys import queue_keys
from rq_core.protocol.calls import claims
from rq_core.protocol.reads.box_reads import BoxReads

ONCE = RetryPolicy(max_attempts=1)


def outcomes(fake: testing.Fake, task: str) -> list[str]:
    return [ran.outcome for ran in fake.drain() if ran.task.endswith(task)]


def steps_of(app: App, job_id: str) -> list[tuple[str, bool, str | None]]:
    found = app.client.run(app.client.calls.reads.steps(job_id, ["default"]))
    assert found is not None
    return [(each.name, each.is_saved, each.value) for _, each in sorted(found.entries.items())]


def order(app: App, did: list[Any], fails: list[str]) -> Any:
    """Return a task with four steps. A step fails while ``fails`` has its name."""

    def charge(n: int) -> dict[str, int]:
        did.append("charge")
        return {"order": n}

    def named(name: str) -> str:
        did.append(name)
        if name in fails:
            raise ValueError(name)
        return name

    @app.task(name="order", retry=ONCE)
    async def order(n: int) -> None:
        job = durable()
        paid = await job.step("charge", charge, n)
        sent = [await job.step("send", named, f"send {n}") for n in (1, 2)]
        did.append((paid, sent, await job.step("receipt", named, "receipt")))

    return order


@pytest.mark.parametrize(
    ("step", "again"),
    [
        ("charge", ["charge", "send 1", "send 2", "receipt"]),
        ("send#2", ["send 2", "receipt"]),
        (None, ["receipt"]),
    ],
)
def test_a_fork_runs_from_the_named_step_on_and_keeps_the_values_of_earlier_steps(
    app: App, fake: testing.Fake, did: list[Any], step: str | None, again: list[str]
) -> None:
    fails = ["receipt"]
    order(app, did, fails).with_options(id="o-1", headers={"tenant": "acme"}).enqueue(7)
    assert ["dead"] == outcomes(fake, "order")
    before = steps_of(app, "o-1")
    did.clear()
    fails.clear()

    made = app.fork("o-1", from_step=step)
    (waiting,) = fake.enqueued()
    assert ["succeeded"] == outcomes(fake, "order")

    assert [*again, ({"order": 7}, ["send 1", "send 2"], "receipt")] == did
    assert (made.id, made.queue) == (waiting.id, "default")
    assert made.id.startswith("o-1.f")
    assert {"n": 7} == waiting.arguments
    assert "acme" == waiting.headers["tenant"]
    assert before == steps_of(app, "o-1")


def test_a_repeated_fork_call_with_the_same_name_makes_no_second_fork(
    app: App, fake: testing.Fake, did: list[Any]
) -> None:
    order(app, did, ["receipt"]).with_options(id="o-1").enqueue(7)
    fake.drain()

    made = [app.fork("o-1", from_step="send"), app.fork("o-1", from_step="send")]
    other = [app.fork("o-1", from_step="charge"), app.fork("o-1", from_step="send", name="again")]

    assert [False, True] == [each.duplicate for each in made]
    assert made[0].id == made[1].id
    assert "o-1.fagain" == other[1].id
    assert 3 == len(fake.enqueued())


def test_a_fork_of_a_fork_inherits_saved_steps_but_a_plain_copy_of_a_fork_inherits_none(
    app: App, fake: testing.Fake, did: list[Any]
) -> None:
    order(app, did, ["receipt"]).with_options(id="o-1").enqueue(7)
    fake.drain()
    first = app.fork("o-1", name="a")
    fake.drain()
    did.clear()

    app.fork(first.id, from_step="send#2", name="b")
    fake.drain()
    assert ["send 2", "receipt"] == did
    did.clear()
    app.copy(first.id)

    assert FORK_HEADER not in fake.enqueued()[0].headers
    fake.drain()
    assert ["charge", "send 1", "send 2", "receipt"] == did


def test_a_fork_cannot_be_forked_before_it_has_begun(
    app: App, fake: testing.Fake, did: list[Any]
) -> None:
    """Checks a fork without steps: a copy of it would repeat those of its origin."""
    order(app, did, ["receipt"]).with_options(id="o-1").enqueue(7)
    fake.drain()
    first = app.fork("o-1", name="a")

    for step in ("send", None):
        with pytest.raises(NotCopied, match="a fork that has not taken over all steps of o-1"):
            app.fork(first.id, from_step=step)
    fake.drain()
    assert app.fork(first.id, from_step="send").id


def test_the_log_has_the_origin_of_a_fork_with_its_author_and_reason(
    app: App, fake: testing.Fake, did: list[Any]
) -> None:
    order(app, did, ["receipt"]).with_options(id="o-1").enqueue(7)
    fake.drain()

    app.fork("o-1", from_step="send", by="ann", reason="wrong address")
    app.fork("o-1")

    read = app.client.calls.audit.read_outbox("default", "-", 100)
    first, second = [decode(*raw) for raw in app.client.run(read)][-2:]
    assert ("ann", "fork of o-1 from send: wrong address") == (first.by, first.why)
    assert "fork of o-1 from its end" == second.why


def test_a_fork_of_a_parked_job_does_not_repeat_waits_and_sleeps_that_have_ended(
    app: App, fake: testing.Fake, did: list[Any]
) -> None:
    def note(name: str) -> None:
        did.append(name)

    @app.task(name="order")
    def order() -> None:
        job = durable_sync()
        did.append(job.wait("approval", str))
        did.append(job.wait("objection", str, timeout=60))
        job.sleep("cool-off", 60)
        job.step("ship", note, "ship")
        job.wait("delivery", str)

    handle = order.with_options(id="o-1").enqueue()
    fake.drain()
    app.signal(handle, "approval", "yes")
    fake.drain()
    fake.advance(60)
    fake.drain()
    fake.advance(60)
    assert ["parked"] == outcomes(fake, "order")
    did.clear()

    made = app.fork("o-1", from_step="ship")
    assert ["parked"] == outcomes(fake, "order")

    assert ["yes", None, "ship"] == did
    mine = steps_of(app, "o-1"), steps_of(app, made.id)
    assert ["approval", "objection", "cool-off", "ship", "delivery"] == [e[0] for e in mine[1]]
    assert mine[0] == mine[1]
    did.clear()
    app.signal(handle, "delivery", "here")
    assert ["succeeded"] == outcomes(fake, "order")
    assert "parked" == made.state()


def test_in_a_fork_a_sleep_beside_the_named_step_ends_at_the_same_moment_as_in_the_origin(
    app: App, fake: testing.Fake, did: list[Any]
) -> None:
    @app.task(name="order")
    async def order() -> None:
        job = durable()

        async def branch() -> None:
            await job.step("charge", str, "paid")
            did.append(await job.wait("approval", str))

        await asyncio.gather(job.sleep("day", 60), branch())

    order.with_options(id="o-1").enqueue()
    fake.drain()
    fake.advance(40)
    made = app.fork("o-1")
    fake.drain()
    app.signal(made, "approval", "yes")
    assert ["parked"] == outcomes(fake, "order")
    fake.advance(20)

    assert ["succeeded"] == [ran.outcome for ran in fake.drain() if ran.id == made.id]


def test_a_step_in_doubt_is_still_in_doubt_in_a_fork(
    app: App, fake: testing.Fake, did: list[Any]
) -> None:
    fails = [True]

    def charge() -> str:
        did.append("charge")
        if fails:
            raise ValueError
        return "paid"

    def find_charge() -> Any:
        did.append("find")
        return "found"

    @app.task(name="order", retry=ONCE)
    def order() -> None:
        job = durable_sync()
        try:
            did.append(job.options(check=find_charge).step("charge", charge))
        except ValueError:
            did.append(job.step("other", str, "way"))
            raise

    order.with_options(id="o-1").enqueue()
    fake.drain()
    did.clear()

    app.fork("o-1", from_step="other")
    fake.drain()

    assert ["find", "found"] == did


def family(app: App, did: list[Any], fails: list[Any], least: float = 1.0) -> Any:
    @app.task(name="render", queue="pages", retry=ONCE)
    def render(n: int) -> int:
        did.append(n)
        if n in fails:
            raise ValueError
        return n * n

    @app.task(name="paint", retry=ONCE)
    def paint(n: int) -> int:
        return render.function(n)

    def merge(values: list[int]) -> int:
        did.append("merge")
        if "merge" in fails:
            raise ValueError
        return sum(values)

    @app.task(name="book", retry=ONCE)
    async def book() -> None:
        job = durable()
        calls = [render.call(1), render.call(2), paint.call(3)]
        pages = await job.map("pages", calls, min_success=least)
        did.append([(page.id, page.ok) for page in pages])
        did.append(await job.step("merge", merge, pages.values()))

    return book


def test_the_children_of_a_map_do_not_run_again_in_a_fork(
    app: App, fake: testing.Fake, did: list[Any]
) -> None:
    """Checks a map with one failed child, a fork, and a fork of the fork."""
    fails: list[Any] = ["merge", 2]
    family(app, did, fails, 0.5).with_options(id="b-1").enqueue()
    fake.drain()
    items = did[-2]
    did.clear()

    app.fork("b-1", name="x")
    fake.drain()
    children = app.client.calls.families.children
    found = [app.client.run(children(each, ["default"])) for each in ("b-1", "b-1.fx")]
    fails.clear()
    app.fork("b-1.fx", name="y")
    assert ["succeeded"] == outcomes(fake, "book")

    assert [items, "merge", items, "merge", 10] == did
    assert [True, False, True] == [ok for _, ok in items]
    assert found[0] == found[1]
    names = [name for name, *_ in steps_of(app, "b-1.fx")]
    assert ["map:pages", "pages=0", "pages=2", "pages=join"] == sorted(names)


def test_a_fork_from_a_step_after_unfinished_children_is_refused(
    app: App, fake: testing.Fake, did: list[Any]
) -> None:
    fails: list[Any] = [2]
    family(app, did, fails).with_options(id="b-1").enqueue()
    fake.drain()
    did.clear()

    with pytest.raises(NotCopied, match="map or run 'pages' was not over at its end: name 'pages'"):
        app.fork("b-1")
    fails.clear()
    app.fork("b-1", from_step="pages")

    assert "succeeded" == outcomes(fake, "book")[-1]
    assert [1, 2, 3] == sorted(did[:3])
    assert 14 == did[-1]


def test_a_fork_whose_origin_lost_its_saved_steps_says_that_the_steps_have_left_redis(
    app: App, fake: testing.Fake, did: list[Any]
) -> None:
    """A claim empties a box from its last entry on: here the results of the children are gone, and their map is not."""
    family(app, did, ["merge"]).with_options(id="b-1").enqueue()
    fake.drain()
    life = app.client.run(app.client.calls.reads.lives("default", ["b-1"]))["b-1"]
    made = app.fork("b-1")
    lost = [f"{life}|{number}" for number in (3, 4)]
    app.client.run(app.client.calls.delivery.ask([["HDEL", queue_keys("default")("boxes"), *lost]]))
    fake.drain()

    found = app.client.run(app.client.calls.reads.job(made.id, ["default"]))
    assert "steps of job b-1, which have left Redis" in str(found)


def test_a_job_with_a_forged_fork_header_gets_no_children_of_another_job(
    app: App, fake: testing.Fake
) -> None:
    """Otherwise a cancel of the forged fork would cancel the children of its origin."""

    @app.task(name="page", queue="pages")
    def page() -> None:
        durable_sync().wait("go", str)

    @app.task(name="book", retry=ONCE)
    async def book() -> None:
        await durable().map("pages", [page.call()])

    book.with_options(id="b-1").enqueue()
    fake.drain()
    life = app.client.run(app.client.calls.reads.lives("default", ["b-1"]))["b-1"]
    header = origin_header(ForkOrigin("b-1", life, 2, 1))
    forged = book.with_options(headers={FORK_HEADER: header}).enqueue()
    fake.drain()
    forged.cancel()
    fake.drain()

    reads = app.client.calls.reads
    child = app.client.run(reads.job(child_id(life, "pages", 0), ["pages"]))
    assert child is not None
    assert "parked" == child.state
    found = app.client.run(reads.job(forged.id, ["default"]))
    assert "map or run 'pages' was not over" in str(found)


def test_a_fork_of_a_flow_runs_a_node_again_and_keeps_the_results_before_it(
    app: App, fake: testing.Fake, did: list[Any]
) -> None:
    app.enable_flows()

    @app.task(name="render", retry=ONCE)
    def render(n: int) -> int:
        did.append(n)
        return n

    @app.task(name="merge", retry=ONCE)
    def merge(values: list[int]) -> int:
        did.append("merge")
        raise ValueError

    run = (
        group(render.call(n) for n in range(3))
        .then(merge.call(RESULT))
        .enqueue(queue="flows", id="f-1")
    )
    fake.drain()
    assert "dead" == run.state()
    did.clear()
    nodes = list(run.nodes())

    app.fork("f-1", from_step=nodes[-1], name="x")
    fake.drain()

    assert ["merge"] == did
    first = [first_child(app, each) for each in ("f-1", "f-1.fx")]
    assert first[0] == first[1] is not None


def first_child(app: App, job_id: str) -> object:
    """Return the first child of a flow's first node."""
    job = app.client.run(app.client.calls.reads.job(job_id, ["flows"]))
    assert job is not None
    seen = app.client.run(seen_flow(app.client.calls, job, graph_in(job.spec)))
    return seen.nodes[0].first


def test_the_error_for_a_job_that_cannot_be_forked_names_the_reason(
    app: App, fake: testing.Fake, did: list[Any]
) -> None:
    task = order(app, did, ["receipt"])
    for each in ("o-1", "lost", "gap"):
        task.with_options(id=each).enqueue(7)
    fake.drain()
    task.with_options(id="new").enqueue(7)
    boxes = queue_keys("default")("boxes")
    for each, member in (("lost", "{}"), ("gap", "{}|2")):
        life = app.client.run(app.client.calls.reads.lives("default", [each]))[each]
        app.client.run(app.client.calls.delivery.ask([["HDEL", boxes, member.format(life)]]))
    refused = [
        ("o-1", "ship", "it has no step 'ship', but charge, send, send#2. Without a step, a fork goes on behind"),
        ("o-1", "rq_core.life", "it has no step"),
        ("o-2", "charge", "job o-2 was not copied: no queue has it. If it has ended, name the audit database"),
        ("new", None, "it has saved no step, so a copy (`app.copy`) is the same"),
        ("lost", None, "Redis has lost its steps: `rq-core audit restore --queue default` may put them back"),
        ("gap", None, "some of its steps cannot be read: run `rq-core doctor default`"),
    ]  # fmt: skip

    for job_id, step, why in refused:
        with pytest.raises(NotCopied) as error:
            app.fork(job_id, from_step=step)
        assert why in str(error.value)

    assert 1 == len(fake.enqueued())


def test_the_error_for_a_job_that_leaves_redis_during_the_fork_call_does_not_say_that_steps_are_lost(
    app: App, fake: testing.Fake, did: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    order(app, did, ["receipt"]).with_options(id="o-1").enqueue(7)
    fake.drain()
    read = BoxReads.saved_steps

    def leave(self: BoxReads, queue: str, life: str) -> Any:
        app.client.run(app.client.calls.admin.prune("default", ["o-1"]))
        app.client.run(claims.claim("default", "w-1", 0))
        return (yield from read(self, queue, life))

    monkeypatch.setattr(BoxReads, "saved_steps", leave)
    with pytest.raises(NotCopied, match="Redis does not have it"):
        app.fork("o-1")


def test_a_fork_from_an_invalid_step_or_with_too_long_headers_is_refused(
    app: App, fake: testing.Fake, did: list[Any]
) -> None:
    task = order(app, did, ["receipt"])
    task.with_options(id="o-1", headers={"long": "x" * 2_030}).enqueue(7)
    task.with_options(id="x" * 126).enqueue(7)
    fake.drain()

    for step in ("", 7):
        with pytest.raises(InvalidOption, match="from_step"):
            app.fork("o-1", from_step=step)  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match="headers"):
        app.fork("o-1")
    with pytest.raises(NotCopied, match="id too long"):
        app.fork("x" * 126)
