"""The graph of a flow on the page of the flow's job."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from starlette.testclient import TestClient

from rq_core.app.flows.graph import CANCEL, FLOW_TASK
from rq_core.model.durable.boxes import ENTRIES_MAX
from rq_core.model.durable.children import item_name, launch_name, pack_queues
from rq_core.web.graph.flow_rows import STATES
from rq_core.web.graph.layout import NODES_MAX
from tests.kit.flow_jobs import FlowJob, graph_by
from tests.kit.seed import LIFE
from tests.web.conftest import QUEUE, Browse, Scene, read
from tests.web.test_commands import PAGE_MAX, nothing_is_shared, sent  # noqa: F401 - a fixture
from tests.web.test_hostile import MARKUP
from tests.web.test_pages import parsed

PATH = f"/jobs/{QUEUE}/flow"
DIAMOND = {"a": [], "b": ["a"], "c": ["a"], "d": ["b", "c"]}


def flow_on(page: TestClient) -> Any:
    return page.get(f"{PATH}.json").json()["flow"]


def svg_of(text: str) -> str:
    found = re.search(r'<div class="graph".*?</svg></div>', text, re.DOTALL)
    assert found is not None
    return found[0]


def run(scene: Scene, *ids: str) -> None:
    """Enqueue jobs, and let a worker claim them."""
    for job_id in ids:
        scene.seed.enqueue(job_id, priority="critical")
        scene.seed.claim_one(job_id)


@pytest.fixture
def half(scene: Scene) -> FlowJob:
    """Return a parked flow: fetch is done, of four renders one each is done, dead, running and ready, and merge
    waits."""
    nodes = {"fetch": [], "render": ["fetch"], "merge": ["render"]}
    flow = FlowJob(scene.seed, graph_by(nodes, {"render": 4}, queue=QUEUE))
    flow.launch("fetch", "render")
    flow.done("fetch")
    flow.done("render", 0)
    scene.die(flow.child("render", 1))
    run(scene, flow.child("render", 2))
    scene.seed.enqueue(flow.child("render", 3))
    flow.park()
    return flow


def test_the_page_of_a_flow_shows_the_state_the_jobs_and_the_children_of_each_node(
    half: FlowJob, browse: Browse
) -> None:
    flow = flow_on(browse())

    assert flow["counts"] == {"waits": 1, "runs": 1, "done": 1}
    fetch, render, merge = flow["rows"]
    assert [each["state"] for each in flow["rows"]] == ["done", "runs", "waits"]
    assert (render["done"], render["failed"], render["of"]) == (1, 1, 4)
    assert render["says"] == "1 of 4 done, 1 failed, 1 running, 1 ready"
    assert [(each["id"], each["state"]) for each in render["failed_children"]] == [
        (half.child("render", 1), "failed")
    ]
    assert [(each["id"], each["state"]) for each in render["living_children"]] == [
        (half.child("render", 2), "running"), (half.child("render", 3), "ready"),
    ]  # fmt: skip
    assert fetch["path"].endswith(half.child("fetch"))
    assert (merge["path"], merge["after"]) == ("", ["render"])


def test_the_progress_bar_of_a_flow_counts_the_ended_jobs_of_a_running_map(
    scene: Scene, browse: Browse
) -> None:
    flow = FlowJob(scene.seed, graph_by({"render": []}, {"render": 4}, queue=QUEUE))
    scene.seed.show(flow.claim, says="0/4")
    flow.launch("render")
    flow.done("render", 0)
    flow.park()
    run(scene, flow.child("render", 2), flow.child("render", 3))
    scene.seed.enqueue(scene.seed.job(flow.child("render", 1), keep_ms=60_000, priority="critical"))
    scene.seed.complete(scene.seed.claim_one(flow.child("render", 1)))
    page = browse()

    shown = page.get(f"{PATH}.json").json()["progress"]
    assert (shown["done"], shown["total"], shown["share"]) == (2, 4, 0.5)
    assert "<b>50 %</b> · 2 of 4" in read(page, PATH)


def test_the_drawing_of_a_flow_links_each_node_to_a_child_and_has_a_line_for_each_dependency(
    half: FlowJob, browse: Browse
) -> None:
    page = browse()
    text = read(page, PATH)
    svg = svg_of(text)

    for name in ("fetch", "render", "merge"):
        assert f'<text class="name" x="10" y="19">{name}</text>' in svg
    assert svg.count("<path d=") == 2
    assert ">✓ done</text>" in svg
    assert ">1/4, 1 failed</text>" in svg
    assert 'aria-label="merge: waits; after render"' in svg
    # The link of a map leads to the child that failed.
    links = [each for each in parsed(svg).links if "/jobs/" in each]
    assert links == [f"/jobs/{QUEUE}/{half.child(*each)}" for each in (("fetch", 0), ("render", 1))]
    assert page.get(links[1]).status_code == 200
    assert "It is parked, and waits for <b>render</b> (1 of 4 done, 1 failed" in text


def test_the_page_says_what_keeps_the_jobs_of_a_flow_from_running(
    half: FlowJob, browse: Browse
) -> None:
    text = read(browse(), PATH)

    assert re.search(r'<p class="warn">queue mail: \d ready, and no worker runs', text)


def test_the_page_of_a_dead_flow_names_what_failed_and_the_command_that_runs_it_again(
    scene: Scene, browse: Browse
) -> None:
    flow = FlowJob(scene.seed, graph_by(DIAMOND, queue=QUEUE))
    flow.launch("a", "b", "c")
    flow.done("a")
    flow.done("c")
    scene.die(flow.child("b"))
    flow.die()
    page = browse()
    text = read(page, PATH)

    assert [each["state"] for each in flow_on(page)["rows"]] == [
        "done",
        "failed",
        "done",
        "skipped",
    ]
    assert "It died, since nodes failed: <b>b</b>." in text
    assert f"<code>rq-core requeue flow -q {QUEUE}</code>" in text
    assert f'<a class="node n-failed" href="/jobs/{QUEUE}/{flow.child("b")}"' in text


def test_nodes_that_a_flow_stopped_are_shown_as_stopped(scene: Scene, browse: Browse) -> None:
    flow = FlowJob(
        scene.seed, graph_by({"a": [], "b": [], "c": ["b"]}, queue=QUEUE, on_failure=CANCEL)
    )
    scene.die(flow.child("a"))
    scene.seed.enqueue(scene.seed.job(flow.child("b"), keep_ms=60_000))
    scene.seed.cancel(flow.child("b"))
    flow.lay(
        {
            launch_name("a"): pack_queues([QUEUE]), launch_name("b"): pack_queues([QUEUE]),
            "rq_core.flow.stop-1": "[1]",
        }
    )  # fmt: skip
    flow.show_box()

    assert [each["state"] for each in flow_on(browse())["rows"]] == ["failed", "stopped", "waits"]


def test_a_flow_that_has_not_begun_has_a_drawing_without_links(
    scene: Scene, browse: Browse
) -> None:
    FlowJob(scene.seed, graph_by(DIAMOND, queue=QUEUE))
    page = browse()

    assert flow_on(page)["counts"] == {"waits": 3, "ready": 1}
    assert parsed(svg_of(read(page, PATH))).links == []


def test_every_state_of_a_node_has_a_sign_in_the_drawing_and_a_style(browse: Browse) -> None:
    from rq_core.web.graph.flow_rows import MARKS

    style = browse().get("/static/style.css").text

    assert set(STATES) == MARKS.keys()
    for state in STATES:
        assert f".n-{state} " in style


def test_the_page_of_a_flow_is_a_whole_document_without_scripts_and_styles_of_its_own(
    half: FlowJob, browse: Browse
) -> None:
    text = read(browse(), PATH)
    found = parsed(text)

    assert found.open == []
    assert len(found.ids) == len(set(found.ids))
    assert not re.search(r"<style| style=| on\w+=|javascript:", text)
    assert text.count("<script ") == len(re.findall(r'<script src="/static/[^"]*" defer>', text))
    assert '<title id="graph-title">' in text
    assert "<table" in text[text.index("The nodes as a table") :]


def test_a_job_that_is_no_flow_has_no_graph(busy: Scene, browse: Browse) -> None:
    page = browse()

    assert page.get(f"/jobs/{QUEUE}/waits.json").json()["flow"] is None
    assert "<h2>Graph</h2>" not in read(page, f"/jobs/{QUEUE}/waits")


# Bounds.


def wide(count: int) -> dict[str, list[str]]:
    """Return the nodes of a graph with long names: ten rows, each with a line to the row before."""
    names = [f"{'n' * 44}-{number}" for number in range(count)]
    return {name: [names[number - 10]] * (number >= 10) for number, name in enumerate(names)}


def test_a_flow_of_200_nodes_is_drawn_and_a_larger_flow_is_shown_as_counts_and_failures(
    scene: Scene, browse: Browse
) -> None:
    page = browse(log=False)
    largest, larger = graph_by(wide(NODES_MAX), queue=QUEUE), graph_by(wide(900), queue=QUEUE)
    FlowJob(scene.seed, largest, "drawn")
    flow = FlowJob(scene.seed, larger)
    names = [each.name for each in larger.nodes]
    flow.launch(*names[:10])
    scene.die(flow.child(names[7]))
    scene.seed.enqueue(*(flow.child(name) for name in names[:10] if name != names[7]))

    whole = read(page, f"/jobs/{QUEUE}/drawn")
    text = read(page, PATH)
    document = flow_on(page)

    assert svg_of(whole).count('class="frame"') == NODES_MAX
    assert len(whole) < 350_000
    assert 'class="graph"' not in text
    assert len(text) < 50_000
    assert document["counts"] == {"waits": 801, "runs": 9, "failed": 1, "skipped": 89}
    assert [each["state"] for each in document["rows"]] == ["failed", *["runs"] * 9]
    assert document["left_out"] == 890


def test_a_graph_with_too_many_lines_is_shown_as_a_table_without_a_drawing(
    scene: Scene, browse: Browse
) -> None:
    first = [f"a{n}" for n in range(60)]
    nodes = {name: [] for name in first} | {f"b{n}": first for n in range(60)}
    FlowJob(scene.seed, graph_by(nodes, queue=QUEUE))
    text = read(browse(), PATH)

    assert "too many lines to be drawn" in text
    assert 'class="graph"' not in text
    assert text.count('<th scope="row" class="id">') == 120
    assert len(text) < 150_000
    assert "a0, a1, a2, a3, a4, a5, a6, a7, a8, a9 and 50 more</td>" in text


def test_each_drawn_node_lists_only_a_bounded_number_of_other_nodes(
    scene: Scene, browse: Browse
) -> None:
    """Checks a graph that is drawn, in which each node is after all nodes before it."""
    names = [f"n{n}" for n in range(NODES_MAX)]
    nodes = {name: names[:n] for n, name in enumerate(names)}
    FlowJob(scene.seed, graph_by(nodes, queue=QUEUE))
    page = browse()

    flow = flow_on(page)
    rows = {row["name"]: (row["after"], row["after_left_out"]) for row in flow["rows"]}
    text = read(page, PATH)
    assert (flow["is_drawn"], len(rows)) == (True, NODES_MAX)
    assert rows["n10"] == (names[:10], 0)
    assert rows["n199"] == (["n198"], 198)
    assert svg_of(text).count("<path d=") == NODES_MAX - 1
    assert "n198 and 198 more</td>" in text
    assert 'aria-label="n199: waits; after n198 and 198 more"' in text


def test_a_node_of_a_flow_that_is_not_drawn_lists_a_bounded_number_of_earlier_nodes(
    scene: Scene, browse: Browse
) -> None:
    names = [f"n{n}" for n in range(NODES_MAX)]
    flow = FlowJob(
        scene.seed, graph_by({**{each: [] for each in names}, "last": names}, queue=QUEUE)
    )
    flow.launch("last")
    page = browse()

    found = flow_on(page)
    (row,) = [each for each in found["rows"] if each["name"] == "last"]
    assert not found["is_drawn"]
    assert (row["after"], row["after_left_out"]) == (names[:10], NODES_MAX - 10)


@pytest.mark.slow
@pytest.mark.usefixtures("nothing_is_shared")
def test_the_page_of_the_largest_flow_sends_few_commands_and_gets_no_results(
    scene: Scene, browse: Browse
) -> None:
    """The flow has 4,000 jobs. Half have results of 8 KB, the others are alive. Its box is as full as a box may be."""
    names = [f"m{n}" for n in range(10)]
    graph = graph_by({name: [] for name in names}, dict.fromkeys(names, 400), queue=QUEUE)
    flow = FlowJob(scene.seed, graph)
    entries: dict[str, str | None] = {
        launch_name(name): pack_queues([QUEUE] * 400) for name in names
    }
    result = json.dumps("r" * 8_000)
    entries |= {item_name(name, at): result for name in names[:5] for at in range(400)}
    entries |= {f"rq_core.child.1.{n}": None for n in range(ENTRIES_MAX - len(entries))}
    flow.lay(entries)
    flow.show_box()
    lines = {
        flow.child(name, at): "ready task=t seq=1 since=1"
        for name in names[5:]
        for at in range(400)
    }
    flow.control.hset(scene.seed.keys("state"), mapping=lines)
    page = browse(log=False)
    document = flow_on(page)
    before = flow.control.info("stats")["total_net_output_bytes"]
    texts: list[str] = []

    asked = sent(scene, lambda: texts.append(read(page, PATH)))

    got = flow.control.info("stats")["total_net_output_bytes"] - before
    assert 10 < len(asked) <= PAGE_MAX
    assert got < 4_000_000  # Much of it is what the test itself watches.
    assert document["counts"] == {"runs": 5, "done": 5}
    assert document["unread"] == 1_000
    assert "The ends of 1,000 children were not read" in texts[0]
    assert document["rows"][5]["says"] == "0 of 400 done, 400 ready"


# What rq-core did not write.


@pytest.mark.parametrize(
    "args_json",
    ["{}", "[]", '{"graph": 7}', json.dumps({"graph": {"name": MARKUP, "on_failure": MARKUP, "nodes": []}})],
)  # fmt: skip
def test_the_page_of_a_flow_says_that_its_arguments_are_no_graph(
    scene: Scene, browse: Browse, args_json: str
) -> None:
    scene.seed.enqueue(scene.seed.job("flow", task=FLOW_TASK, args_json=args_json, spec_max=9_999))
    text = read(browse(), PATH)

    assert "cannot be shown: its arguments are no graph of a flow" in text
    assert "<img src" not in text


def test_a_graph_with_markup_in_the_name_of_a_node_is_not_shown(
    scene: Scene, browse: Browse
) -> None:
    FlowJob(scene.seed, graph_by({MARKUP: []}, queue=QUEUE))
    text = read(browse(), PATH)

    assert "cannot be shown: its arguments are no graph of a flow" in text
    assert "<img src" not in text


@pytest.mark.parametrize(
    "forged",
    [
        {launch_name("a"): MARKUP},
        {launch_name("a"): '["x", 7]'},
        {launch_name("a"): "[]"},
        {launch_name("a"): '["mail"]', "a=join": "{}"},
        {"rq_core.flow.stop-1": "7"},
        {"rq_core.flow.again-1": '{"stops": []}'},
        {"rq_core.flow.again-1": '{"stops": 1, "nodes": {"x": [1]}}'},
    ],
)
def test_the_page_of_a_flow_says_that_its_steps_are_unreadable(
    scene: Scene, browse: Browse, forged: dict[str, str | None]
) -> None:
    flow = FlowJob(scene.seed, graph_by(DIAMOND, queue=QUEUE))
    flow.lay(forged)
    flow.show_box()
    page = browse(log=False)
    text = read(page, PATH)

    assert "The graph of this flow cannot be shown: its steps are unreadable" in text
    assert "<h2>Facts</h2>" in text
    assert "<img src" not in text


def test_a_forged_state_of_a_child_is_shown_as_text(half: FlowJob, browse: Browse) -> None:
    half.control.hset(half.seed.keys("state"), half.child("render", 3), f"{MARKUP} task=t")
    text = read(browse(), PATH)

    assert "<img src" not in text
    assert parsed(text).open == []
    assert "1 &lt;img" in text


def test_a_flow_whose_saved_steps_are_lost_shows_no_states(half: FlowJob, browse: Browse) -> None:
    half.control.hdel(half.seed.keys("boxes"), LIFE)

    assert "cannot be shown: Redis has lost what the flow had saved" in read(browse(), PATH)
