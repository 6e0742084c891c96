"""An operator on call sees on the page alone why a queue is stuck, and why it was stuck yesterday.

scripts/prove/live page shows the same in Chromium, on one screen.
"""

from __future__ import annotations

import html

import pytest
from starlette.testclient import TestClient

from rq_core.web.access import LocalOnly
from rq_core.web.dashboard import build_site
from rq_core.web.sources import Sources
from tests.kit.servers import free_port
from tests.rigs import stuck
from tests.rigs.page import waited
from tests.rigs.stuck import QUEUE, SAYS, SCENES
from tests.web.conftest import HOST, Browse, Scene, read


@pytest.mark.parametrize("name", SCENES)
def test_the_first_page_names_the_cause_of_a_stuck_queue(name: str, valkey_url: str) -> None:
    away = f"postgresql://nobody@127.0.0.1:{free_port()}/none"
    sources = Sources(valkey_url, audit_url=away if name == "sql_away" else None)
    with (
        stuck.scene(valkey_url, name),
        TestClient(
            build_site(sources, LocalOnly()), base_url=HOST, client=("127.0.0.1", 1)
        ) as page,
    ):
        causes, _, _ = html.unescape(read(page, "/")).partition('id="h-queues"')

    assert SAYS[name] in causes
    assert causes.count(SAYS[name]) == 1


def test_a_past_wait_is_found_by_its_time_and_explained_on_the_page_of_its_job(
    scene: Scene, browse: Browse
) -> None:
    """Checks the question for which jobs the tenant acme waited four minutes yesterday at 12:03."""
    waited(scene)
    page = browse()

    (then,) = page.get("/at.json", params={"t": "yesterday 12:03:30", "queue": QUEUE}).json()["moments"]  # fmt: skip
    (wait,) = page.get(f"/jobs/{QUEUE}/invoice-1.json").json()["waits"]

    assert [each["job_id"] for each in then["running"]] == ["export"]
    assert {each["job_id"] for each in then["waiting"]} == {f"invoice-{n}" for n in range(3)}
    assert {each["lane"] for each in then["waiting"]} == {"2+tenant=acme"}
    assert wait["says"] == "held back by tenant=acme"
    assert 230_000 < wait["waited_ms"] < 250_000
    assert wait["in_front"][0]["named"] == ["export", "invoice-0"]
