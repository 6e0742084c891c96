"""Flows on the fake server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from rq_core import (
    RESULT,
    App,
    Cap,
    FlowRun,
    Group,
    NodeState,
    Outgoing,
    ResultUnavailable,
    RetryPolicy,
    chain,
    current_job,
    group,
    testing,
)
from rq_core.app.flows import graph as graphs
from rq_core.errors import InvalidOption, JobFailed, NoCurrentJob
from rq_core.model.durable.boxes import WAITS_MAX
from rq_core.model.durable.children import children_in
from rq_core.model.job import NewJob
from rq_core.model.keys import queue_keys
from rq_core.model.state_line import read_state_line
from rq_core.protocol.calls.families import Families
from rq_core.signals import InvalidFlow
from rq_core.worker.settlement import Settlement, calls_of, claim_call

ONCE = RetryPolicy(max_attempts=1)


class Work:
    """An app with one task, whose calls a test lets fail."""

    def __init__(self) -> None:
        self.app = App()
        self.app.enable_flows()
        self.did: list[Any] = []
        self.bad: set[Any] = set()

        @self.app.task(queue="work", retry=ONCE)
        def work(n: Any, got: Any = None) -> Any:
            self.did.append(n)
            if n in self.bad:
                raise ValueError(f"{n} is bad")
            return n if got is None else [n, got]

        self.task = work

    def call(self, n: Any, got: Any = None) -> Any:
        return self.task.call(n) if got is None else self.task.call(n, got)

    def diamond(self, on_failure: Any = "drain") -> FlowRun[Any]:
        """Enqueue a flow of four nodes: a, then b and c, then d with the results of both."""
        with self.app.flow("diamond", on_failure=on_failure) as flow:
            a = flow.add(self.call("a"), name="a")
            b = flow.add(self.call("b"), after=a, name="b")
            c = flow.map([self.call(f"c{n}") for n in range(3)], after=a, name="c")
            flow.add(self.call("d", [b.value, c.values]), name="d")
        return flow.enqueue(queue="flows")


@pytest.fixture
def work() -> Work:
    return Work()


@pytest.fixture
def fake(work: Work) -> Iterator[testing.Fake]:
    with testing.fake(work.app) as made:
        yield made


def last_error(ran: list[testing.Ran]) -> str:
    return [each.error or "" for each in ran if each.task == "rq_core.flow"][-1]


def test_a_flow_runs_each_node_once_and_after_the_nodes_that_it_depends_on(
    work: Work, fake: testing.Fake
) -> None:
    run = work.diamond()
    fake.drain()

    assert "a" == work.did[0]
    assert {"b", "c0", "c1", "c2"} == set(work.did[1:5])
    assert ["d"] == work.did[5:]
    assert ["d", ["b", ["c0", "c1", "c2"]]] == run.result(0)
    assert ("succeeded", {}) == (run.state(), run.nodes())


def test_a_chain_hands_the_result_of_each_part_to_the_next(work: Work, fake: testing.Fake) -> None:
    run = chain(work.call(1), work.call(2, RESULT), work.call(3, {"in": [RESULT]})).enqueue(
        queue="flows", id="monthly"
    )
    fake.drain()

    assert ("monthly", [3, {"in": [[2, 1]]}]) == (run.id, run.result(0))


@pytest.mark.parametrize("is_first", [True, False])
def test_a_group_hands_the_list_of_its_results_to_the_next_part(
    work: Work, fake: testing.Fake, is_first: bool
) -> None:
    calls: Group = group(work.call(n) for n in range(3))
    flow = (
        calls.then(work.call("sum", RESULT))
        if is_first
        else chain(work.call("x"), calls, work.call("sum", RESULT))
    )
    run = flow.enqueue()
    fake.drain()

    assert ["sum", [0, 1, 2]] == run.result(0)


def test_a_flow_of_a_single_group_has_the_list_of_its_results(
    work: Work, fake: testing.Fake
) -> None:
    run = group([work.call(1), work.call(2)]).enqueue()
    fake.drain()

    assert [1, 2] == run.result(0)


def test_a_map_of_no_calls_is_done_at_once(work: Work, fake: testing.Fake) -> None:
    with work.app.flow("empty") as flow:
        none = flow.map([])
        flow.add(work.call("after", none.values))
    run = flow.enqueue(queue="flows")
    fake.drain()

    assert ["after", []] == run.result(0)


def test_a_flow_of_only_an_empty_map_succeeds(work: Work, fake: testing.Fake) -> None:
    with work.app.flow("empty") as flow:
        flow.map([], min_success=0.5)
    run = flow.enqueue(queue="flows")
    fake.drain()

    assert [] == run.result(0)


@pytest.mark.slow
async def test_the_async_methods_enqueue_read_and_retry_flows(
    work: Work, fake: testing.Fake
) -> None:
    work.bad.add(2)
    run = await chain(work.call(1), work.call(2)).enqueue_async(queue="flows")
    other = await group([work.call(3)]).enqueue_async(queue="flows")
    await fake.drain_async()

    assert "failed" == (await run.nodes_async())["work-2"].state
    work.bad.clear()
    assert "requeued" == await run.retry_async()
    await fake.drain_async()
    assert (2, [3]) == (await run.result_async(0), await other.result_async(0))


@pytest.mark.slow
def test_a_flow_handle_returns_the_state_of_each_node(work: Work, fake: testing.Fake) -> None:
    work.bad |= {"c1"}
    run = work.diamond()
    assert {"a": "ready", "b": "waits", "c": "waits", "d": "waits"} == {
        name: each.state for name, each in run.nodes().items()
    }

    fake.drain("flows")
    assert NodeState("runs", 0, 0, 1) == run.nodes()["a"]
    fake.drain("work")
    fake.drain("flows")
    assert NodeState("runs", 0, 0, 3) == run.nodes()["c"]
    fake.drain()

    assert {
        "a": NodeState("done", 1, 0, 1),
        "b": NodeState("done", 1, 0, 1),
        "c": NodeState("failed", 2, 1, 3),
        "d": NodeState("skipped", 0, 0, 1),
    } == run.nodes()
    progress = run.progress()
    assert progress is not None
    assert (4, 6, "1 node failed") == (progress.done, progress.total, progress.text)


def test_the_handle_of_another_job_has_no_nodes(work: Work, fake: testing.Fake) -> None:
    job = work.task.enqueue(1)

    with pytest.raises(InvalidFlow, match="it is no graph of a flow"):
        FlowRun(work.app, id=job.id, queue=job.queue).nodes()


@pytest.mark.slow
def test_with_the_option_drain_nodes_that_do_not_depend_on_a_failed_node_still_run(
    work: Work, fake: testing.Fake
) -> None:
    with work.app.flow("drain") as flow:
        bad = flow.add(work.call("bad"))
        good = flow.add(work.call("good"))
        flow.add(work.call("after bad"), after=bad)
        flow.add(work.call("after good"), after=good)
        flow.add(work.call("after both"), after=[bad, good])
    work.bad.add("bad")
    run = flow.enqueue(queue="flows")
    error = last_error(fake.drain())

    assert {"bad", "good", "after good"} == set(work.did)
    assert "node work: job f-" in error
    assert "ValueError: bad is bad" in error
    assert "2 other nodes did not run" in error
    with pytest.raises(JobFailed, match="node work: job f-"):
        run.result(0)


def test_a_retry_runs_only_what_failed_and_what_depends_on_it(
    work: Work, fake: testing.Fake
) -> None:
    work.bad |= {"b", "c1"}
    run = work.diamond()
    fake.drain()
    work.did.clear()
    work.bad.clear()

    assert "requeued" == run.retry(why="mended")
    fake.drain()

    assert {"b", "c1", "d"} == set(work.did)
    assert 3 == len(work.did)
    assert ["d", ["b", ["c0", "c1", "c2"]]] == run.result(0)


def test_with_the_option_cancel_a_failed_node_stops_the_other_nodes_until_a_retry(
    work: Work, fake: testing.Fake
) -> None:
    with work.app.flow("cancel", on_failure="cancel") as flow:
        bad = flow.add(work.call("bad"))
        waiting = flow.add(work.task.with_options(queue="later").call("waiting"))
        flow.add(work.call("last", [bad.value, waiting.value]))
    work.bad.add("bad")
    run = flow.enqueue(queue="flows")
    fake.drain("flows")
    fake.drain("work")
    fake.drain("flows")  # It cancels the other child, and looks again once that has ended.
    fake.advance(10)
    fake.drain("flows")

    assert ("dead", ["bad"]) == (run.state(), work.did)
    assert ["failed", "stopped", "skipped"] == [each.state for each in run.nodes().values()]
    assert [] == fake.drain("later")

    work.bad.clear()
    run.retry()
    fake.drain()
    assert ("bad", {"bad", "waiting"}) == (work.did[0], set(work.did[1:3]))
    assert ["last"] == work.did[3:]
    assert ["last", ["bad", "waiting"]] == run.result(0)


def test_nodes_that_two_failures_have_cancelled_run_after_the_last_retry(
    work: Work, fake: testing.Fake
) -> None:
    """Checks a child that is claimed before it is cancelled. Redis lets no other job have the id of this child."""
    with work.app.flow("cancel", on_failure="cancel") as flow:
        bad = flow.add(work.call("bad"))
        other = flow.add(work.task.with_options(queue="later").call("other"))
        flow.map([], after=[bad, other])
    run = flow.enqueue(queue="flows")

    def drain(*queues: str) -> None:
        for queue in queues:
            fake.drain(queue)
            fake.advance(10)

    work.bad |= {"bad", "other"}
    drain(
        "flows", "later", "flows", "flows"
    )  # ``other`` dies, and ``bad`` is cancelled before it ran.
    assert ("dead", ["other"]) == (run.state(), work.did)
    run.retry()
    drain(
        "flows", "work", "flows", "flows"
    )  # ``bad`` dies, and ``other``, which has run, is cancelled.
    assert ("dead", ["other", "bad"]) == (run.state(), work.did)
    work.bad.clear()
    run.retry()
    fake.drain()

    assert (["other", "bad"], {"bad", "other"}) == (work.did[:2], set(work.did[2:]))
    assert (4, "succeeded") == (len(work.did), run.state())


def test_a_map_with_min_success_gives_the_next_node_only_the_results_of_successful_calls(
    work: Work, fake: testing.Fake
) -> None:
    work.bad.add(2)
    with work.app.flow("most") as flow:
        pages = flow.map([work.call(n) for n in range(10)], min_success=0.9)
        flow.add(work.call("merge", pages.values))
    run = flow.enqueue(queue="flows")
    fake.drain()

    assert ["merge", [0, 1, 3, 4, 5, 6, 7, 8, 9]] == run.result(0)


def test_a_retry_of_a_later_node_does_not_change_the_results_of_an_ended_map(
    work: Work, fake: testing.Fake
) -> None:
    work.bad |= {2, "merge"}
    with work.app.flow("most") as flow:
        pages = flow.map([work.call(n) for n in range(4)], min_success=3)
        flow.add(work.call("merge", pages.values))
    run = flow.enqueue(queue="flows")
    fake.drain()
    assert NodeState("done", 3, 1, 4) == run.nodes()["work"]

    work.bad.clear()
    run.retry()
    work.did.clear()
    fake.drain()
    assert (["merge"], ["merge", [0, 1, 3]]) == (work.did, run.result(0))


def test_the_error_of_a_failed_flow_names_the_commands_that_show_and_retry_it(
    work: Work, fake: testing.Fake
) -> None:
    work.bad.add("a")
    run = work.diamond()

    error = last_error(fake.drain())
    assert error.endswith(
        f". `rq-core children {run.id} --failed` lists what failed, `rq-core requeue {run.id}` runs it again"
    )


def test_a_child_that_succeeds_after_its_map_was_done_changes_no_result(
    work: Work, fake: testing.Fake
) -> None:
    work.bad.add(2)
    with work.app.flow("most") as flow:
        pages = flow.map([work.call(n) for n in range(4)], min_success=3)
        gate = flow.add(work.task.with_options(queue="later").call("gate"))
        flow.add(work.call("merge", pages.values), after=gate)
    run = flow.enqueue(queue="flows")
    fake.drain("flows")
    fake.drain("work")
    fake.drain("flows")
    assert NodeState("done", 3, 1, 4) == run.nodes()["work"]

    work.bad.clear()
    client = work.app.client
    (dead,) = [each.id for each in client.run(client.calls.reads.dead("work", 9)).jobs]
    client.run(client.calls.admin.requeue("work", [dead]))
    fake.drain()

    assert 2 == work.did.count(2)
    assert ["merge", [0, 1, 3]] == run.result(0)


def test_the_progress_of_a_flow_counts_the_ended_jobs_of_a_map_that_runs(
    work: Work, fake: testing.Fake
) -> None:
    """Checks a map that may lose one of two jobs that fail."""
    work.bad |= {1, 2}
    with work.app.flow("most") as flow:
        later = work.task.with_options(queue="later")
        flow.map([*map(work.call, range(4)), later.call("last")], min_success=4)
    run = flow.enqueue(queue="flows")
    for queue in ("flows", "work"):
        fake.drain(queue)
    fake.advance(10)
    fake.drain("flows")

    progress = run.progress()
    assert progress is not None
    assert ("parked", 3, 5, "") == (run.state(), progress.done, progress.total, progress.text)


def test_every_node_that_depends_on_a_failed_node_is_skipped(
    work: Work, fake: testing.Fake
) -> None:
    work.bad.add("bad")
    run = chain(*(work.call(each) for each in ("bad", "second", "third"))).enqueue(queue="flows")
    fake.drain()

    assert ["failed", "skipped", "skipped"] == [each.state for each in run.nodes().values()]


def test_a_flow_that_drains_waits_for_the_other_children_of_a_failed_map(
    work: Work, fake: testing.Fake
) -> None:
    work.bad.add("bad")
    with work.app.flow("drain") as flow:
        later = work.task.with_options(queue="later")
        flow.map([work.call("bad"), later.call("good")])
    run = flow.enqueue(queue="flows")
    for queue in ("flows", "work"):
        fake.drain(queue)
    fake.advance(10)
    fake.drain("flows")

    assert ("parked", NodeState("runs", 0, 1, 2)) == (run.state(), run.nodes()["work"])
    fake.drain()
    assert ("dead", ["bad", "good"]) == (run.state(), work.did)
    assert NodeState("failed", 1, 1, 2) == run.nodes()["work"]


def stopped_flow(work: Work, fake: testing.Fake) -> FlowRun[Any]:
    """Return a dead flow. Its node ``bad`` has failed, and its node ``other`` was cancelled before it ran."""
    with work.app.flow("cancel", on_failure="cancel") as flow:
        flow.add(work.call("bad"), name="bad")
        flow.add(work.task.with_options(queue="later").call("other"), name="other")
    work.bad.add("bad")
    run = flow.enqueue(queue="flows")
    for queue in ("flows", "work", "flows", "flows"):
        fake.drain(queue)
        fake.advance(10)
    assert ("dead", "stopped") == (run.state(), run.nodes()["other"].state)
    return run


def test_a_child_that_is_cancelled_after_a_retry_fails_its_node(
    work: Work, fake: testing.Fake
) -> None:
    """The flow has cancelled the child of this node before the retry, and not after it."""
    run = stopped_flow(work, fake)
    work.bad.clear()
    run.retry()
    fake.drain("work")
    fake.drain("flows")
    (child,) = fake.enqueued("later")
    work.app.client.run(work.app.client.calls.admin.cancel("later", [child.id]))
    fake.advance(10)
    fake.drain("flows")

    assert ("dead", ["bad", "bad"]) == (run.state(), work.did)
    assert ["done", "failed"] == [each.state for each in run.nodes().values()]


def test_a_child_that_dies_while_its_flow_stops_has_failed(
    work: Work, fake: testing.Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The flow has cancelled only the third of its children."""
    with work.app.flow("cancel", on_failure="cancel") as flow:
        for name, queue in (("bad", "work"), ("worse", "soon"), ("other", "later")):
            flow.add(work.task.with_options(queue=queue).call(name), name=name)
    work.bad.add("bad")
    run = flow.enqueue(queue="flows")
    fake.drain("flows")
    fake.drain("work")
    cancel = Families.cancel

    def late(families: Families, queue: str, ids: Any, **words: Any) -> Any:
        if queue == "soon":
            # The child dies just before the flow cancels it.
            client = work.app.client
            ends = [Settlement(c, "final") for c in client.run(claim_call("soon", "w-2", 1)).jobs]
            for call, _ in calls_of("w-2", ends):
                client.run(call)
        return cancel(families, queue, ids, **words)

    monkeypatch.setattr(Families, "cancel", late)
    fake.drain("flows")
    fake.advance(10)
    fake.drain("flows")

    assert ("dead", ["bad"]) == (run.state(), work.did)
    assert ["failed", "failed", "stopped"] == [each.state for each in run.nodes().values()]


def test_a_map_with_fewer_successes_than_min_success_fails(work: Work, fake: testing.Fake) -> None:
    work.bad |= {1, 2}
    with work.app.flow("most") as flow:
        flow.map([work.call(n) for n in range(4)], min_success=3)
    flow.enqueue(queue="flows")

    assert "node work: 2 of 4 children failed: job f-" in last_error(fake.drain())


def test_a_cancel_of_a_flow_cancels_its_children(work: Work, fake: testing.Fake) -> None:
    run = work.diamond()
    fake.drain("flows")

    assert "cancelled" == run.cancel(why="not needed")
    assert [] == fake.drain()
    assert [] == work.did


def test_a_second_flow_with_the_id_of_a_live_flow_is_a_duplicate_and_changes_nothing(
    work: Work, fake: testing.Fake
) -> None:
    first = chain(work.call(1), work.call(2)).enqueue(queue="flows", id="monthly")
    fake.drain("flows")
    second = chain(work.call(3)).enqueue(queue="flows", id="monthly")
    assert (True, first.nodes()) == (second.duplicate, second.nodes())
    fake.drain()

    assert ([1, 2], 2) == (work.did, second.result(0))


def test_a_flow_whose_graph_differs_from_that_of_an_earlier_run_dies(
    work: Work, fake: testing.Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = work.diamond()
    fake.drain("flows")
    fake.drain("work")
    fake.drain("flows")

    def fewer(document: Any) -> Any:
        changed = json.loads(json.dumps(document))
        changed["nodes"][2]["calls"].pop()
        changed["nodes"][2]["needed"] = 1
        return graphs.read_graph(changed)

    monkeypatch.setattr("rq_core.app.flows.built_in.graph_of", fewer)
    error = last_error(fake.drain())
    assert (
        "StepMismatch: node c: an earlier run has enqueued 3 children, and the graph has 2" in error
    )
    assert "dead" == run.state()


def test_a_job_of_the_flow_task_without_a_graph_dies(work: Work, fake: testing.Fake) -> None:
    work.app.enqueue("flows", "rq_core.flow", {"graph": {"nodes": "many"}}, max_attempts=5)

    (ran,) = fake.drain()
    assert ("dead", True) == (ran.outcome, "GiveUp: it is no graph of a flow" in (ran.error or ""))


def test_a_node_whose_inputs_are_too_large_fails_and_is_named_in_the_error(
    work: Work, fake: testing.Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rq_core.app.flows.running.BYTES_MAX", 50_000)
    with work.app.flow("large") as flow:
        parts = flow.map([work.call("x" * 30_000 + str(n)) for n in range(2)])
        flow.add(work.call("merge", parts.values), name="merge")
        flow.add(work.call("other"), after=parts)
    run = flow.enqueue(queue="flows")

    error = last_error(fake.drain())
    assert "node merge: inputs too large: they are 60," in error
    assert "other" == work.did[-1]
    assert "dead" == run.state()


def test_a_result_that_is_not_kept_fails_only_the_node_that_needs_it(
    work: Work, fake: testing.Fake
) -> None:
    @work.app.task(queue="work", retry=ONCE)
    def huge() -> str:
        return "x" * 70_000

    with work.app.flow("kept") as flow:
        big = flow.add(huge.call())
        flow.add(work.call("after"), after=big)
        flow.add(work.call("with", big.value), name="with")
    flow.enqueue(queue="flows")
    error = last_error(fake.drain())

    assert "node with: the result of node huge is not kept: too_large" in error
    assert ["after"] == work.did


def test_a_flow_whose_last_result_is_not_kept_succeeds_without_a_result(
    work: Work, fake: testing.Fake
) -> None:
    @work.app.task(queue="work", retry=ONCE)
    def huge() -> str:
        return "x" * 70_000

    run = chain(work.call(1), huge.call()).enqueue(queue="flows")
    fake.drain()

    assert "succeeded" == run.state()
    with pytest.raises(ResultUnavailable):
        run.result(0)


def test_a_result_of_another_type_than_the_argument_fails_the_node_and_names_it(
    work: Work, fake: testing.Fake
) -> None:
    @work.app.task(queue="work", retry=ONCE)
    def counts(n: int) -> int:
        return n

    run = chain(work.call("no number"), counts.call(RESULT)).enqueue(queue="flows")
    error = last_error(fake.drain())

    assert "node counts: " in error
    assert "valid integer" in error
    assert "failed" == run.nodes()["counts"].state


def test_the_arguments_and_results_of_nodes_have_the_types_that_their_tasks_declare(
    work: Work, fake: testing.Fake
) -> None:
    @work.app.task(queue="work", retry=ONCE)
    def typed(data: bytes, pair: tuple[int, str], got: list[bytes] | None = None) -> bytes:
        work.did.append((data, pair, got))
        return data[::-1]

    first = typed.call(b"\x00\xff", (1, "a"))
    chain(first, typed.call(b"\x01", (2, "b"), [RESULT, RESULT])).enqueue(queue="flows")
    fake.drain()

    assert [
        (b"\x00\xff", (1, "a"), None),
        (b"\x01", (2, "b"), [b"\xff\x00", b"\xff\x00"]),
    ] == work.did


def test_the_worker_of_a_flow_need_not_have_the_tasks_of_its_nodes(work: Work) -> None:
    """The flow's worker knows no task of a node. The nodes' jobs wait in their queues, with the declared options and
    caps."""
    producer, home = App(), App()
    producer.enable_flows()
    home.enable_flows()

    @producer.task(queue="work", caps=[Cap(1, per="tenant")], retry=RetryPolicy(max_attempts=7))
    def render(tenant: str, n: int = 0) -> int:
        return n

    @home.task(queue="flows")
    def unrelated() -> None: ...

    job: NewJob = chain(render.call("acme"), render.call("acme", RESULT)).job(queue="flows")
    with testing.fake(producer) as fake:
        producer.apply_settings()
        fake.app = home
        home.connections = producer.connections
        producer.client.enqueue_one(job)
        fake.drain("flows")
        fake.app = producer
        (child,) = fake.enqueued("work")
        assert ("render", {"tenant": "acme"}) == (child.task, child.arguments)
        line = producer.client.run(producer.client.calls.reads.job(child.id, ["work"]))
        assert line is not None
        assert "tenant=acme" in str(line)
        assert [] == [each.error for each in fake.drain("work") if each.error]
        fake.app = home
        fake.drain("flows")
        (second,) = fake.enqueued("work")
        assert {"tenant": "acme", "n": 0} == second.arguments


def test_a_node_whose_key_is_computed_by_a_function_fails_on_a_worker_without_the_task() -> None:
    producer, home = App(), App()
    producer.enable_flows()
    home.enable_flows()

    @producer.task(queue="work", caps=[Cap(1, per=lambda n: str(n), name="of-n")])
    def render(n: int) -> int:
        return n

    with testing.fake(producer) as fake:
        producer.apply_settings()
        home.connections = producer.connections
        for keys in (None, {"of-n": "3"}):
            with producer.flow("keys") as flow:
                flow.add(render.call(3), keys=keys)
            flow.enqueue(queue="flows")
        fake.app = home
        ran = fake.drain("flows")

        assert ["dead", "parked"] == [each.outcome for each in ran]
        assert (
            "node render: task 'render' of queue 'work' makes its key 'of-n' with a function"
            in str(ran[0].error)
        )
        assert 1 == len(fake.enqueued("work"))


def test_a_node_whose_task_no_worker_has_waits_in_its_queue(work: Work) -> None:
    """The node does not fail, since a worker that has the task may still start. The flow can be cancelled."""
    nobody = App()
    nobody.enable_flows()

    @nobody.task(queue="nowhere")
    def unknown() -> None: ...

    with testing.fake(nobody) as fake:
        run = chain(unknown.call()).enqueue(queue="flows")
        work.app.connections = nobody.connections
        fake.app = work.app
        fake.drain("flows")
        (child,) = fake.enqueued("nowhere")
        assert ("unknown", "parked") == (child.task, run.state())
        assert "cancelled" == run.cancel()
        assert [] == fake.enqueued("nowhere")


def test_outgoing_functions_are_called_for_a_flow_and_for_its_nodes(
    work: Work, fake: testing.Fake
) -> None:
    ways: list[str] = []

    @work.app.outgoing
    def add(call: Outgoing) -> dict[str, str]:
        ways.append(call.way)
        return {"request": "r-1"}

    @work.app.task(queue="work")
    def tell() -> str:
        return current_job().headers["request"]

    run = chain(tell.call()).enqueue(queue="flows")
    fake.drain()

    assert (["enqueue", "children"], "r-1") == (ways, run.result(0))


@pytest.mark.slow
def test_more_than_60_nodes_of_a_flow_may_run_at_once(work: Work, fake: testing.Fake) -> None:
    with work.app.flow("wide") as flow:
        nodes = [flow.add(work.call(n)) for n in range(70)]
        flow.add(work.call("sum", [node.value for node in nodes]))
    run = flow.enqueue(queue="flows")
    fake.drain("flows")
    assert 70 == len(fake.enqueued("work"))
    fake.drain()

    assert ["sum", list(range(70))] == run.result(0)


def test_the_job_of_a_wide_flow_waits_for_at_most_as_many_nodes_at_once_as_any_job_may(
    work: Work, fake: testing.Fake
) -> None:
    with work.app.flow("wide") as flow:
        for n in range(70):
            flow.add(work.call(n))
    run = flow.enqueue(queue="flows")
    fake.drain("flows")

    client = work.app.client
    asked = [["HGET", queue_keys("flows")("state"), run.id]]
    (line,) = client.run(client.calls.delivery.ask(asked))
    waits = read_state_line("flows", run.id, line).fields["waits"]
    assert 50 < len(waits.split(",")) <= WAITS_MAX


@pytest.mark.slow
def test_the_children_of_a_flow_are_named_after_their_nodes(work: Work, fake: testing.Fake) -> None:
    run = work.diamond()
    fake.drain("flows")
    fake.drain("work")
    fake.drain("flows")

    client = work.app.client
    steps = client.run(client.calls.reads.steps(run.id, ["flows"]))
    assert steps is not None
    found = children_in(steps.life or "", steps.entries.values())
    assert [("a", True), ("b", False), ("c", False), ("c", False), ("c", False)] == [
        (each.map, each.is_saved) for each in found
    ]


def test_calling_the_flow_task_directly_without_a_job_is_refused(work: Work) -> None:
    task = work.app.tasks["rq_core.flow"]
    document = json.loads(chain(work.call(1)).job(queue="flows").args_json)
    with pytest.raises(NoCurrentJob):
        task(**document).send(None)


def test_a_flow_that_waits_for_a_long_time_checks_its_children_rarely(
    work: Work, fake: testing.Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each look adds an entry to the box of the flow's job. A box may have 10,000 entries."""
    monkeypatch.setattr("rq_core.app.flows.running.LOOKS_SOON", 3)
    # Else the pauses grow with the time of this process, and not with the fake server's.
    monkeypatch.setattr("rq_core.app.flows.running.FlowSteps._pause_ms", lambda *_: 5_000)
    run = chain(work.call(1)).enqueue(queue="flows")
    for _ in range(30):
        fake.drain("flows")
        fake.advance(10)

    client = work.app.client
    steps = client.run(client.calls.reads.steps(run.id, ["flows"]))
    assert steps is not None
    looks = [each.name for each in steps.entries.values() if "look" in each.name]
    assert ["rq_core.flow.look", *(f"rq_core.flow.look#{n}" for n in (2, 3, 4))] == looks


@pytest.mark.slow
def test_a_stopped_node_that_a_retry_cannot_enqueue_fails_until_a_later_retry_can_enqueue_it(
    work: Work, fake: testing.Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The code of the task may have changed between the stop and the retry."""
    with work.app.flow("again", on_failure="cancel") as flow:
        flow.add(work.call("bad"), name="bad")
        flow.add(work.task.with_options(queue="later").call("other"), name="other")
    work.bad.add("bad")
    run = flow.enqueue(queue="flows")
    for queue in ("flows", "work", "flows", "flows"):
        fake.drain(queue)
        fake.advance(10)
    assert "stopped" == run.nodes()["other"].state

    def refuse(*_: Any) -> Any:
        raise InvalidOption.of("queue", "later", "must be another one")

    work.bad.clear()
    with monkeypatch.context() as patch:
        patch.setattr("rq_core.app.flows.running.child_call", refuse)
        run.retry()
        ran: list[testing.Ran] = []
        for _ in range(3):
            ran += fake.drain()
            fake.advance(10)
        assert "node other: queue='later' is not valid: must be another one" in last_error(ran)
    run.retry()
    fake.drain()

    assert (["bad", "bad", "other"], "succeeded") == (sorted(work.did), run.state())
