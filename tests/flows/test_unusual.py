"""Flows with unusual arguments, options and failures."""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict
from collections.abc import Iterator
from typing import Annotated, Any

import pytest
from pydantic import AfterValidator

from rq_core import RESULT, App, RetryPolicy, Unique, chain, testing
from rq_core.app.durable import children
from rq_core.app.flows import node_states, running
from rq_core.errors import ArgumentsInvalid, InvalidOption
from rq_core.model.durable.children import read_queues
from tests.kit.wait import wait_until_async
from tests.kit.working import working

ONCE = RetryPolicy(max_attempts=1)


def refuse(_: int) -> int:
    raise ZeroDivisionError("of the validator")


@pytest.fixture
def app() -> App:
    made = App()
    made.enable_flows()

    @made.task(queue="work", retry=ONCE)
    def work(n: Any, got: Any = None) -> Any:
        return n if got is None else [n, got]

    @made.task(queue="work", retry=ONCE)
    def whole(n: int) -> int:
        return n

    @made.task(queue="work", retry=ONCE, priority="high")
    def urgent() -> None: ...

    return made


@pytest.fixture
def fake(app: App) -> Iterator[testing.Fake]:
    with testing.fake(app) as made:
        yield made


def last_error(ran: list[testing.Ran]) -> str:
    return [each.error or "" for each in ran if each.task == "rq_core.flow"][-1]


@pytest.mark.slow
async def test_a_flow_that_stopped_because_of_an_impossible_call_begins_no_other_node_in_its_next_run(
    valkey_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run after the stop does not know why the earlier run has stopped the other nodes. It must not begin them
    again."""
    monkeypatch.setattr(children, "LOOK_MIN_S", 0.2)
    app = App(valkey_url)
    app.enable_flows(queue="work")
    begun: list[str] = []

    @app.task(queue="work", retry=ONCE)
    async def slow() -> None:
        begun.append("slow")
        await asyncio.Event().wait()

    @app.task(queue="work", retry=ONCE)
    async def text() -> Any:
        await wait_until_async(lambda: begun, "the slow node runs")
        return "no number"

    @app.task(queue="work", retry=ONCE)
    async def whole(n: int) -> None:
        begun.append("whole")

    app.apply_settings()
    with app.flow("stop", on_failure="cancel") as flow:
        a = flow.add(text.call(), name="a")
        flow.add(slow.call(), name="slow")
        flow.add(whole.call(a.value), name="whole")
    async with working(app, queues=("work",), concurrency=10):
        run = await flow.enqueue_async()

        async def is_dead() -> bool:
            return await run.state_async() == "dead"

        await wait_until_async(is_dead, "the flow is dead", timeout=60)
        nodes = await run.nodes_async()

    assert ["slow"] == begun
    assert {"a": "done", "slow": "stopped", "whole": "failed"} == {
        name: each.state for name, each in nodes.items()
    }


def test_a_call_with_the_default_priority_overrides_the_priority_of_its_task(
    app: App, fake: testing.Fake
) -> None:
    urgent = app.tasks["urgent"]
    chain(urgent.call()).enqueue(queue="flows")
    chain(urgent.with_options(priority="normal").call()).enqueue(queue="flows")
    fake.drain("flows")

    assert ["high", "normal"] == [each.priority for each in fake.enqueued("work")]


def test_a_node_fails_if_python_cannot_read_the_result_that_it_takes(
    app: App, fake: testing.Fake
) -> None:
    @app.task(queue="work", retry=ONCE)
    def digits() -> Any:
        return 10**5_000

    work = app.tasks["work"]
    chain(digits.call(), work.call(1, RESULT)).enqueue(queue="flows")
    assert "node work: the result of node digits cannot be read: Exceeds" in last_error(
        fake.drain()
    )
    alone = chain(digits.call()).enqueue(queue="flows")
    fake.drain()
    assert "succeeded" == alone.state()


def test_keys_that_are_no_texts_are_refused_when_the_flow_is_declared(app: App) -> None:
    keys: Any = {"tenant": 3}
    with pytest.raises(InvalidOption, match="keys="):
        app.flow("keys").add(app.tasks["work"].call(1), keys=keys)


@pytest.mark.parametrize("is_circle", [True, False])
def test_an_argument_that_is_nested_too_deeply_is_refused(app: App, is_circle: bool) -> None:
    value: Any = RESULT
    for _ in range(5_000):
        value = [value]
    if is_circle:
        value = []
        value.append(value)
    work = app.tasks["work"]
    with pytest.raises(ArgumentsInvalid, match="contains itself, or is nested too deeply"):
        chain(work.call(1), work.call(value))


def test_the_placeholder_result_may_be_a_value_in_any_kind_of_dict(
    app: App, fake: testing.Fake
) -> None:
    work = app.tasks["work"]
    run = chain(work.call(1), work.call(2, OrderedDict(x=RESULT))).enqueue()
    fake.drain()

    assert [2, {"x": 1}] == run.result(0)


def test_a_placeholder_cannot_be_compared(app: App) -> None:
    node = app.flow("compared").add(app.tasks["work"].call(1))
    with pytest.raises(TypeError, match="the result of node work is not known yet"):
        assert node.value == 3
    with pytest.raises(TypeError, match="not known yet"):
        assert RESULT != 3
    assert RESULT == RESULT  # noqa: PLR0124 - the same object
    assert 2 == len({RESULT, node.value})


@pytest.mark.parametrize(
    "options",
    [
        {"at_ms": 10**18},
        {"keep_result": 1e308},
        {"timeout": -1e300},
        {"max_attempts": False},
    ],
)
def test_a_flow_whose_graph_was_made_by_another_program_dies_at_once_if_an_option_is_out_of_bounds(
    app: App, fake: testing.Fake, options: dict[str, Any]
) -> None:
    document = json.loads(chain(app.tasks["work"].call(1)).job(queue="flows").args_json)
    document["graph"]["kinds"][0]["options"] = options
    app.enqueue("flows", "rq_core.flow", document, max_attempts=5)

    (ran,) = fake.drain()
    assert ("dead", True) == (ran.outcome, "a call has the option" in (ran.error or ""))


@pytest.mark.slow
def test_each_check_of_a_wide_map_reads_the_queues_of_its_children_once(
    app: App, fake: testing.Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each reading takes time for each child of the map."""
    count = 0

    def counted(value: str | None) -> list[str]:
        nonlocal count
        count += 1
        return read_queues(value)

    monkeypatch.setattr(children, "read_queues", counted)
    monkeypatch.setattr(node_states, "read_queues", counted)
    work = app.tasks["work"]
    with app.flow("wide") as flow:
        flow.map([work.call(n) for n in range(200)])
    run = flow.enqueue(queue="flows")
    fake.drain("flows")
    fake.drain("work")
    count = 0
    run.nodes()
    assert 1 == count
    fake.drain("flows")
    assert 2 == count
    assert list(range(200)) == run.result(0)


@pytest.mark.slow
def test_a_result_that_all_calls_of_a_map_take_is_read_once(
    app: App, fake: testing.Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    value, asked = running.FlowSteps._value, []

    def counted(self: Any, number: int, **options: Any) -> Any:
        asked.append(number)
        return value(self, number, **options)

    monkeypatch.setattr(running.FlowSteps, "_value", counted)
    work = app.tasks["work"]
    with app.flow("wide") as flow:
        first = flow.map([work.call(n) for n in range(50)])
        flow.map([work.call(n, [first.values, first.values]) for n in range(50)])
    run = flow.enqueue(queue="flows")
    fake.drain()

    assert [0, 1] == asked
    assert [[n, [list(range(50))] * 2] for n in range(50)] == run.result(0)


def test_a_validator_that_raises_an_unexpected_error_fails_its_node(
    app: App, fake: testing.Fake
) -> None:
    @app.task(queue="work", retry=ONCE)
    def odd(n: Annotated[int, AfterValidator(refuse)]) -> None: ...

    chain(app.tasks["work"].call(1), odd.call(RESULT)).enqueue(queue="flows")
    ran = fake.drain()

    assert "node odd: " in last_error(ran)
    assert "a validator raised ZeroDivisionError: of the validator" in last_error(ran)
    assert "dead" == ran[-1].outcome


def test_a_node_fails_if_its_task_is_unique_in_the_code_of_the_worker(
    app: App, fake: testing.Fake
) -> None:
    """Otherwise the node would give way to another job, and be gone."""
    home = App()
    home.enable_flows()

    @home.task(name="work", queue="work", unique=Unique())
    def work(n: Any, got: Any = None) -> Any: ...

    chain(app.tasks["work"].call(1)).enqueue(queue="flows")
    home.connections = app.connections
    fake.app = home

    assert "node work: task='work' is not valid: of the worker is unique now" in last_error(
        fake.drain("flows")
    )


def test_a_process_reads_the_graph_of_a_flow_again_only_after_an_edit(app: App) -> None:
    arguments = app.tasks["rq_core.flow"].arguments
    document: Any = {
        "name": "read", "on_failure": "drain", "kinds": [{"task": "work", "queue": "work"}],
        "nodes": [{"name": "a", "calls": [{"kind": 0, "args": {"n": 1}}]}],
    }  # fmt: skip
    first = arguments.load(json.dumps({"graph": document}))["graph"]
    assert first is arguments.load(json.dumps({"graph": document}))["graph"]
    assert first.graph is first.graph
    document["nodes"][0]["calls"][0]["args"]["n"] = True
    second = arguments.load(json.dumps({"graph": document}))["graph"]

    assert second.graph.nodes[0].calls[0].args["n"] is True
    assert first.graph.nodes[0].calls[0].args["n"] == 1


def test_a_retry_of_a_flow_does_not_run_the_failed_jobs_of_a_completed_map_again(
    fake: testing.Fake, app: App
) -> None:
    ran: list[Any] = []
    bad = {2, "merge"}

    @app.task(queue="work", retry=ONCE)
    def part(n: Any, got: Any = None) -> Any:
        ran.append(n)
        if n in bad:
            raise ValueError(f"{n} is bad")
        return got or n

    with app.flow("most") as flow:
        parts = flow.map([part.call(n) for n in (1, 2)], min_success=1)
        flow.add(part.call("merge", parts.values))
    run = flow.enqueue(queue="flows")
    fake.drain()
    bad.clear()
    run.retry()
    fake.drain()

    assert [1, 2, "merge", "merge"] == ran
    assert [1] == run.result(0)
