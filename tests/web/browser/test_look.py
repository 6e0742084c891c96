"""Each page in Chromium, light and dark, on a phone and on a desktop. No page has an error, and axe finds no
problem."""

from __future__ import annotations

import itertools

import pytest

from tests.kit.browser import SCHEMES, WIDTHS
from tests.kit.flow_jobs import FlowJob, graph_by
from tests.web.browser.conftest import Site, View
from tests.web.conftest import QUEUE
from tests.web.test_pages import ADDRESSES


@pytest.mark.parametrize("name", ADDRESSES)
def test_a_page_causes_no_browser_error_and_axe_finds_no_problem_on_it(
    view: View, name: str
) -> None:
    found = []
    with view() as viewer:
        viewer.go(ADDRESSES[name])
        for scheme, width in itertools.product(SCHEMES, WIDTHS):
            viewer.show(scheme, width)
            found += [f"{scheme}, {width} px: {each}" for each in viewer.findings()]

    assert not found, "\n".join(found)


def test_axe_finds_no_problem_in_the_graph_of_a_flow_that_changes_while_the_page_is_open(
    view: View, site: Site
) -> None:
    seed = site.scene.seed
    nodes = {
        "fetch": [],
        "render": ["fetch"],
        "check": ["fetch"],
        "merge": ["render", "check"],
        "tell": ["merge"],
    }
    flow = FlowJob(seed, graph_by(nodes, {"render": 9}, queue=QUEUE))
    flow.launch("fetch", "render", "check")
    flow.done("fetch")
    flow.done("render", 0, 1, 2)
    for name, at in (("render", 3), ("check", 0)):
        site.scene.die(flow.child(name, at))
    seed.enqueue(*(flow.child("render", at) for at in range(4, 9)))
    found = []
    with view() as viewer:
        page = viewer.go(f"/jobs/{QUEUE}/flow")
        for scheme, width in itertools.product(SCHEMES, WIDTHS):
            viewer.show(scheme, width)
            found += [f"{scheme}, {width} px: {each}" for each in viewer.findings()]
        page.get_by_text("The nodes as a table").click()
        found += viewer.findings()
        flow.done("render", *range(4, 9))
        page.locator("a.n-failed", has_text="8/9, 1 failed").wait_for()
        width = page.locator("a.n-failed .frame").first.evaluate(
            "each => each.getBoundingClientRect().width"
        )
        assert width > 190, "what changed is drawn, too"
        assert page.locator("details.nodes").get_attribute("open") is not None

    assert not found, "\n".join(found)
