"""Declared flows: their graphs, and the declarations that are refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest

from rq_core import RESULT, App, Batch, Flow, Job, Unique, chain, group, testing
from rq_core.app.flows.graph import (
    _OPTIONS,
    CALLS_MAX,
    FLOW_TASK,
    NODES_MAX,
    Graph,
    graph_document,
    read_graph,
)
from rq_core.app.options import EnqueueOptions
from rq_core.errors import ArgumentsInvalid, InvalidName, InvalidOption, InvalidTask
from rq_core.signals import InvalidFlow


@dataclass
class Row:
    n: int


@pytest.fixture
def app() -> App:
    made = App()
    made.enable_flows()

    @made.task(queue="pages")
    def render(n: Any = 0, rows: Any = None) -> int:
        return 0

    @made.task(queue="pages", unique=Unique())
    def single() -> None: ...

    @made.task(queue="pages")
    def dated(at: datetime, n: int) -> None: ...

    @made.task(queue="batched", batch=Batch(5))
    async def store(jobs: list[Job[Row]]) -> None: ...

    return made


def call(app: App, *args: Any, task: str = "render", **kwargs: Any) -> Any:
    return app.tasks[task].call(*args, **kwargs)


def graph_of(flow: Flow) -> Graph:
    return read_graph(json.loads(flow.job(queue="flows").args_json)["graph"])


def test_the_job_of_a_flow_has_the_graph_as_its_argument_and_the_queue_of_enable_flows(
    app: App,
) -> None:
    with app.flow("monthly", on_failure="cancel") as flow:
        first = flow.add(call(app, 1))
        pages = flow.map([call(app, n) for n in range(4)], after=first, min_success=0.5)
        flow.add(call(app, [first.value, {"pages": pages.values}]), name="merge")

    job = flow.job()
    graph = read_graph(json.loads(job.args_json)["graph"])

    assert ("flows", FLOW_TASK) == (job.queue, job.profile.task)
    assert ("monthly", "cancel") == (graph.name, graph.on_failure)
    assert ["render", "render-2", "merge"] == [node.name for node in graph.nodes]
    assert [(), (0,), (0, 1)] == [node.after for node in graph.nodes]
    assert [(False, 1), (True, 2), (False, 1)] == [(n.is_map, n.needed) for n in graph.nodes]
    assert {"n": [None, {"pages": None}]} == graph.nodes[2].calls[0].args
    assert [(("n", 0), 0), (("n", 1, "pages"), 1)] == [*graph.nodes[2].calls[0].fills]
    assert graph_document(graph) == json.loads(job.args_json)["graph"]


def test_an_argument_that_looks_like_a_placeholder_is_no_placeholder(app: App) -> None:
    forged = {"fills": [[["n"], 0]], "$result": "render", "node": 0}
    with app.flow("forged") as flow:
        flow.add(call(app, 1))
        flow.add(call(app, forged))

    (made,) = graph_of(flow).nodes[1].calls
    assert ({"n": forged}, ()) == (made.args, made.fills)


def test_the_options_of_a_call_are_in_the_graph(app: App) -> None:
    at = datetime(2040, 1, 1, tzinfo=UTC)
    options: dict[str, Any] = {
        "queue": "other", "priority": "high", "max_attempts": 7, "timeout": 2.5, "at": at,
        "headers": {"request": "r-1"}, "keep_result": 60, "audit_result": "full", "id": "left-out",
    }  # fmt: skip
    with app.flow("options") as flow:
        flow.add(app.tasks["render"].with_options(**options).call(1))

    (made,) = graph_of(flow).nodes[0].calls
    said = dict(made.options)
    assert "other" == made.queue
    assert round(at.timestamp() * 1000) == said.pop("at_ms")
    assert {
        "priority": "high",
        "max_attempts": 7,
        "timeout": 2.5,
        "headers": {"request": "r-1"},
    } == {name: said[name] for name in ("priority", "max_attempts", "timeout", "headers")}
    assert (60, "full", False) == (said["keep_result"], said["audit_result"], "id" in said)


def test_a_flow_has_at_most_1000_nodes(app: App) -> None:
    flow = app.flow("long")
    for n in range(NODES_MAX):
        flow.add(call(app, n))

    with pytest.raises(InvalidFlow, match=r"flow 'long' cannot be made: .*more than 1,000 nodes"):
        flow.add(call(app, 0))
    assert NODES_MAX == len(graph_of(flow).nodes)


def test_a_map_reads_no_more_than_4000_calls_of_an_endless_generator(app: App) -> None:
    read = 0

    def endless() -> Any:
        nonlocal read
        while True:
            read += 1
            yield call(app, 0)

    with pytest.raises(InvalidFlow, match="more than 4,000 calls"):
        app.flow("wide").map(endless())
    assert read == CALLS_MAX + 1
    with pytest.raises(InvalidFlow, match="more than 4,000 calls"):
        group(endless())


def test_a_graph_of_more_than_1_mib_is_refused(app: App) -> None:
    flow = app.flow("heavy")
    flow.add(call(app, "x" * 600_000))

    with pytest.raises(InvalidFlow, match="larger than 1,048,576 bytes of JSON"):
        flow.add(call(app, "x" * 600_000))


def test_a_graph_with_too_many_edges_is_refused_at_the_end_of_its_block(
    app: App,
) -> None:
    flow = app.flow("edges")
    with pytest.raises(InvalidFlow, match="larger than 1,048,576 bytes of JSON"), flow:
        nodes = []
        for n in range(NODES_MAX):
            nodes.append(flow.add(call(app, n), after=nodes))


def _of_another_flow(app: App, flow: Flow) -> Any:
    other = app.flow("other").add(call(app, 1))
    return flow.add(call(app, other.value))


def _after_another_flow(app: App, flow: Flow) -> Any:
    return flow.add(call(app, 1), after=app.flow("other").add(call(app, 1)))


def _other_app(_: App, flow: Flow) -> Any:
    other = App()

    @other.task
    def stranger() -> None: ...

    return flow.add(stranger.call())


def _after_its_block(app: App, flow: Flow) -> Any:
    with flow:
        flow.add(call(app, 1))
    return flow.add(call(app, 2))


REFUSED: dict[str, tuple[Callable[[App, Flow], Any], str]] = {
    "a placeholder of another flow": (_of_another_flow, "node render belongs to flow other"),
    "a node of another flow": (_after_another_flow, "node render belongs to flow other"),
    "a task of another app": (_other_app, "task 'stranger' belongs to another app"),
    "a node after the block": (_after_its_block, "its `with` block has ended"),
    "no call": (lambda app, flow: flow.add(app.tasks["render"]), "is no call of a task"),
    "after a text": (lambda app, flow: flow.add(call(app, 1), after="x"), "is no node"),
    "RESULT": (lambda app, flow: flow.add(call(app, RESULT)), "RESULT is for the later parts"),
    "a unique task": (lambda app, flow: flow.add(call(app, task="single")), "'single' is unique"),
    "a name twice": (
        lambda app, flow: [flow.add(call(app, 1), name="a") for _ in range(2)],
        "it has a node 'a' already",
    ),
    "a reserved name": (
        lambda app, flow: flow.add(call(app, 1), name="rq_core.flow.stop-1"),
        "a node cannot be named 'rq_core.flow.stop-1'",
    ),
    "a name like an entry": (
        lambda app, flow: flow.add(call(app, 1), name="a=1"),
        "cannot be named",
    ),
    "too many of a map": (
        lambda app, flow: flow.map([call(app, 1)], min_success=2),
        "min_success is 2, and there are 1 calls",
    ),
    "the list of one job": (
        lambda app, flow: flow.add(call(app, 1)).values,
        "its result is .value",
    ),
    "the value of a map": (lambda app, flow: flow.map([]).value, "its results are .values"),
    "no node": (lambda app, flow: flow.enqueue(), "it has no node"),
    "an unknown policy": (lambda app, flow: app.flow("x", on_failure="ignore"), "on_failure"),  # type: ignore[arg-type]
    "a chain in a group": (
        lambda app, flow: group([chain(call(app, 1))]),
        "for chains side by side",
    ),  # type: ignore[list-item]
    "an empty chain": (lambda app, flow: chain(), "it has no call"),
    "an empty group": (lambda app, flow: group([]).enqueue(), "the group has no call: "),
    "a chain of an empty group": (lambda app, flow: chain(group([])), "its group has no call: "),
    "a chain of flows": (lambda app, flow: chain(call(app, 1), flow), "use app.flow"),  # type: ignore[arg-type]
    "RESULT at the beginning": (lambda app, flow: chain(call(app, RESULT)), "RESULT is for"),
}


def test_a_node_that_is_added_after_the_enqueue_is_refused(app: App) -> None:
    with testing.fake(app), app.flow("early") as flow:
        flow.add(call(app, 1))
        flow.enqueue(queue="flows")
        flow.job(queue="flows")
        with pytest.raises(InvalidFlow, match="it was enqueued, so nothing can be added to it"):
            flow.add(call(app, 2))


@pytest.mark.parametrize("name", REFUSED)
def test_an_invalid_declaration_of_a_flow_is_refused(app: App, name: str) -> None:
    make, words = REFUSED[name]
    with pytest.raises(InvalidFlow) as raised:
        make(app, app.flow("f"))
    assert words in str(raised.value)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (object(), "n: "),
        (float("nan"), "n: "),
        ({1: RESULT}, "the key 1 is no text"),
        ([RESULT, object()], "cannot be JSON"),
        ([RESULT, float("inf")], "cannot be JSON"),
        ([RESULT, "\ud800"], "cannot be JSON"),
    ],
)
def test_a_value_that_is_no_json_is_refused_where_it_is_declared(
    app: App, value: Any, words: str
) -> None:
    with pytest.raises(ArgumentsInvalid, match=words):
        chain(call(app, 1), call(app, value))


def test_a_list_that_contains_itself_is_refused(app: App) -> None:
    loop: list[Any] = [app.flow("f").add(call(app, 1)).value]
    loop.append(loop)
    flow = app.flow("f")
    with pytest.raises(ArgumentsInvalid, match="contains itself, or is nested too deeply"):
        flow.add(call(app, loop))


def test_arguments_beside_a_placeholder_are_validated_when_the_flow_is_declared(app: App) -> None:
    with pytest.raises(ArgumentsInvalid, match="at: is required"):
        chain(call(app, 1), call(app, n=RESULT, task="dated"))
    with pytest.raises(ArgumentsInvalid, match=r"at: .*datetime"):
        chain(call(app, 1), call(app, "yesterday-ish", RESULT, task="dated"))
    with pytest.raises(ArgumentsInvalid, match="m: the task has no such argument"):
        chain(call(app, 1), call(app, m=RESULT))
    with pytest.raises(ArgumentsInvalid, match="m: the task has no such argument"):
        chain(call(app, 1), call(app, n=RESULT, m=3))

    now = datetime(2026, 11, 26, tzinfo=UTC)
    made = graph_of(chain(call(app, 1), call(app, now, RESULT, task="dated"))).nodes[1].calls[0]
    assert {"at": "2026-11-26T00:00:00Z", "n": None} == made.args


def test_a_placeholder_in_a_text_or_a_condition_is_refused(app: App) -> None:
    value = app.flow("f").add(call(app, 1)).value
    for use in (lambda: f"/{value}", lambda: str(value), lambda: "a" if value else "b"):
        with pytest.raises(TypeError, match="the result of node render is not known yet"):
            use()


def test_a_placeholder_outside_of_a_flow_is_refused(app: App) -> None:
    value = app.flow("f").add(call(app, 1)).value
    for given in (RESULT, value):
        with pytest.raises(ArgumentsInvalid):
            app.tasks["render"].enqueue(given)


def test_a_flow_cannot_be_enqueued_into_the_queue_of_a_batch_task(app: App) -> None:
    with pytest.raises(InvalidOption, match="the jobs of a batch task and no others"):
        chain(call(app, 1)).job(queue="batched")


def test_the_error_of_a_flow_in_an_app_without_flows_names_the_call_that_enables_flows() -> None:
    bare = App()

    @bare.task(queue="pages")
    def render(n: int) -> None: ...

    with pytest.raises(
        InvalidFlow, match=r"call `app\.enable_flows\(\)` in the module of the tasks"
    ):
        chain(render.call(1)).enqueue()


def test_the_error_about_a_part_of_a_future_result_says_what_to_do_instead(app: App) -> None:
    with app.flow("parts") as flow:
        node = flow.add(call(app, 1))
    for use in (lambda: node.value[0], lambda: [*node.value]):
        with pytest.raises(TypeError, match="pass it whole, and let the task choose"):
            use()


def test_flows_are_enabled_once_and_in_a_named_queue() -> None:
    app = App()
    with pytest.raises(InvalidName):
        app.enable_flows(queue="two words")
    app.enable_flows(queue="orders")
    with pytest.raises(InvalidTask, match="has a task of that name"):
        app.enable_flows()

    @app.task(queue="pages")
    def render(n: int) -> None: ...

    assert "orders" == chain(render.call(1)).job().queue
    assert "pages" == chain(render.call(1)).job(queue="pages").queue


def test_the_name_of_a_flow_is_checked(app: App) -> None:
    with pytest.raises(InvalidName):
        app.flow("two words")


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d["nodes"][1].update(after=[1]),
        lambda d: d["nodes"][0].update(after=[1]),
        lambda d: d["nodes"][0].update(after=[True]),
        lambda d: d["nodes"][1].update(name="render"),
        lambda d: d["nodes"][1].update(name="rq_core.flow.stop-1"),
        lambda d: d["nodes"][1].update(needed=3),
        lambda d: d["nodes"][1].update(needed=-1),
        lambda d: d["nodes"][1]["calls"][0].update(kind=-1),
        lambda d: d["nodes"][1]["calls"][0].update(kind=9),
        lambda d: d["nodes"][1]["calls"][0].update(args=[]),
        lambda d: d["nodes"][1]["calls"][0].update(fills=[[["n", "x"], 0]]),
        lambda d: d["nodes"][1]["calls"][0].update(fills=[[["n", 5], 0]]),
        lambda d: d["nodes"][1]["calls"][0].update(fills=[[["n"], 0]]),
        lambda d: d["nodes"][1]["calls"][0].update(fills=[[[], 0]]),
        lambda d: d["nodes"][1]["calls"][0].update(fills=[[["n", 0], 1]]),
        lambda d: d["nodes"][1]["calls"][0].update(fills=7),
        lambda d: d["kinds"][0].update(queue="two words"),
        lambda d: d["kinds"][0].update(task=None),
        lambda d: d["kinds"][0].update(options={"id": "stolen"}),
        lambda d: d["kinds"][0].update(options={"timeout": "1"}),
        lambda d: d["kinds"][0].update(options={"headers": {"a": 1}}),
        lambda d: d["kinds"][0].update(keys={"a": 1}),
        lambda d: d.update(nodes=[]),
        lambda d: d.update(nodes={}),
        lambda d: d.update(on_failure="ignore"),
        lambda d: d.update(name=None),
        lambda d: d.pop("kinds"),
    ],
)
def test_a_json_document_that_no_flow_can_have_made_is_refused_as_a_graph(
    app: App, change: Callable[[Any], Any]
) -> None:
    with app.flow("f") as flow:
        first = flow.add(call(app, 1))
        flow.map([call(app, [first.value])])
    document = json.loads(flow.job().args_json)["graph"]
    read_graph(document)

    change(document)

    with pytest.raises(ValueError, match="it is no graph of a flow"):
        read_graph(document)


def test_a_graph_in_which_a_node_takes_the_result_of_a_node_that_is_not_before_it_is_refused(
    app: App,
) -> None:
    with app.flow("f") as flow:
        first = flow.add(call(app, 1))
        flow.add(call(app, [first.value]))
        flow.add(call(app, 3))
    document = json.loads(flow.job().args_json)["graph"]
    document["nodes"][2]["calls"][0].update(args={"n": None}, fills=[[["n"], 0]])

    with pytest.raises(ValueError, match="a call takes what is not before it"):
        read_graph(document)


@pytest.mark.parametrize("document", [None, 7, [], "x", {}, {"nodes": [[]]}])
def test_a_json_value_without_the_form_of_a_graph_is_refused(document: Any) -> None:
    with pytest.raises(ValueError, match="it is no graph of a flow"):
        read_graph(document)


def test_a_call_of_a_flow_may_have_each_option_of_a_call_but_those_for_the_id() -> None:
    of_the_id = {"id", "remember", "idempotency_key"}
    stored_as = {"at": {"at_ms"}, "expires": {"expires", "expires_ms"}, "trace": {"headers"}}

    given = EnqueueOptions.__annotations__.keys() - of_the_id
    assert set(_OPTIONS) == set().union(*(stored_as.get(name, {name}) for name in given))
