"""An operator on call sees from the page alone why a queue is stuck, or was stuck yesterday.

`scripts/prove/live page` shows the same in Chromium, on one screen.
"""

from __future__ import annotations

import html

import pytest
from starlette.testclient import TestClient

from rq_core.web.access import LocalOnly
from rq_core.web.dashboard import build_site
from rq_core.web.sources import ActingSources
from tests.kit.servers import free_port
from tests.rigs import stuck
from tests.rigs.page import waited
from tests.rigs.stuck import QUEUE, SAYS, SCENES
from tests.web.conftest import HOST, Browse, Scene, read


def open_page(redis_url: str, audit_url: str | None = None) -> TestClient:
    site = build_site(ActingSources(redis_url, audit_url=audit_url), LocalOnly())
    return TestClient(site, base_url=HOST, client=("127.0.0.1", 1))


@pytest.mark.parametrize("name", SCENES)
def test_the_first_page_names_the_cause_of_a_stuck_queue(name: str, valkey_url: str) -> None:
    away = f"postgresql://nobody@127.0.0.1:{free_port()}/none"
    log = away if name == "sql_away" else None
    with stuck.scene(valkey_url, name), open_page(valkey_url, log) as page:
        causes, _, _ = html.unescape(read(page, "/")).partition('id="h-queues"')

    assert SAYS[name] in causes
    assert causes.count(SAYS[name]) == 1


def test_a_past_wait_is_found_by_its_time_and_explained(scene: Scene, browse: Browse) -> None:
    """Checks the question: for which jobs did the tenant acme wait for four minutes, yesterday at 12:03?"""
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


def test_the_badge_of_a_queue_is_as_urgent_as_its_worst_cause(scene: Scene, browse: Browse) -> None:
    scene.seed.enqueue("a")
    scene.seed.configure(paused=1)
    scene.present()
    scene.seed.of("unserved").enqueue("b")
    page = browse(log=False)

    rows = page.get("/index.json").json()["queues"]
    text = read(page, "/")

    assert {row["queue"]: row["wrong"] for row in rows} == {QUEUE: "later", "unserved": "now"}
    assert text.count('<tr class="wrong later">') == text.count('<tr class="wrong now">') == 1


def test_the_first_page_says_for_how_long_a_job_has_waited_in_a_lane(valkey_url: str) -> None:
    """Checks a queue whose ready jobs all wait for a cap. The page shows the age of the oldest."""
    with stuck.scene(valkey_url, "full_cap"), open_page(valkey_url) as page:
        for path in ("/", f"/queues/{QUEUE}"):
            assert (
                "10 min" in html.unescape(read(page, path)).partition("in a blocked lane")[0][-40:]
            )


def test_without_a_log_the_page_of_the_log_says_that_the_mirror_is_behind(
    valkey_url: str,
) -> None:
    with stuck.scene(valkey_url, "sql_away"), open_page(valkey_url) as page:
        text = html.unescape(read(page, "/audit"))

    assert "the mirror is at least" in text
    assert "start it with --audit URL" in text


def test_the_page_of_a_queue_links_to_its_log_where_the_pause_is_shown(
    scene: Scene, browse: Browse
) -> None:
    scene.seed.configure(paused=1)
    scene.mirror()
    page = browse()

    assert f'href="/log?queue={QUEUE}"' in read(page, f"/queues/{QUEUE}")
    assert "paused" in [
        each["type"] for each in page.get(f"/log.json?queue={QUEUE}").json()["events"]
    ]
