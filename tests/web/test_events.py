"""Pages of the log and of a job's history, and ages that the page increases without a request."""

from __future__ import annotations

import re
from typing import Any

import pytest

from sql_audit.queries import questions
from tests.web.conftest import QUEUE, Browse, Scene, read


def _numbers(document: dict[str, Any]) -> list[str]:
    return [each["place"] for each in document["events"]]


def as_json(path: str) -> str:
    place, _, asks = path.partition("?")
    return f"{place}.json?{asks}"


def test_a_viewer_can_turn_the_pages_of_the_log_of_a_queue(busy: Scene, browse: Browse) -> None:
    for n in range(120):
        busy.seed.enqueue(f"n-{n}")
    busy.mirror()
    page = browse()

    last = page.get(as_json(f"/log?queue={QUEUE}")).json()
    before = page.get(as_json(last["older"])).json()
    again = page.get(as_json(before["newer"])).json()

    assert (len(last["events"]), last["newer"], last["live"]) == (100, None, True)
    assert last["events"][0]["job_id"] == "n-119"
    assert before["live"] is False
    assert not set(_numbers(last)) & set(_numbers(before))
    assert before["events"][-1]["number"] < last["events"][-1]["number"]
    assert _numbers(again) == _numbers(last)
    assert "older →" in read(page, f"/log?queue={QUEUE}")
    assert "← newer" in read(page, last["older"])


def test_the_log_opens_at_a_given_entry(busy: Scene, browse: Browse) -> None:
    page = browse()
    events = page.get(as_json(f"/log?queue={QUEUE}")).json()["events"]

    found = page.get(as_json(f"/log?queue={QUEUE}&before={events[3]['number']}")).json()

    assert _numbers(found) == [each["place"] for each in events if each["place"] in _numbers(found)]
    assert found["events"][0]["place"] < events[3]["place"]
    assert page.get(f"/log?queue={QUEUE}&before=x").status_code == 400
    assert "The log has no event there" in read(page, f"/log?queue={QUEUE}&before=0-0")


def test_a_long_history_of_a_job_has_pages(
    busy: Scene, browse: Browse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(questions, "EVENTS_MAX", 4)
    claim = busy.seed.running("often")
    for _ in range(5):
        busy.seed.rollback(claim, reason="shutdown")
        claim = busy.seed.claim_one("often")
    busy.mirror()
    page = browse()

    pages = [page.get(f"/jobs/{QUEUE}/often.json").json()]
    while pages[-1]["older"]:
        pages.append(page.get(as_json(pages[-1]["older"])).json())

    types = [each["type"] for some in reversed(pages) for each in some["events"]]
    assert types == ["enqueued", "claimed", *["rolled_back", "claimed"] * 5]
    assert [each["last_ones"] for each in pages[:2]] == [None, f"/jobs/{QUEUE}/often"]
    assert "← older events" in read(page, f"/jobs/{QUEUE}/often")
    assert "the last events" in read(page, pages[0]["older"])


def test_a_page_is_not_sent_again_if_only_displayed_ages_have_changed(
    busy: Scene, browse: Browse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checks pages with ages, which change at every read. The server must not send them every 2 s."""
    from starlette.testclient import TestClient

    from rq_core.web import dashboard
    from rq_core.web.access import Mounted
    from rq_core.web.sources import ActingSources
    from rq_core.web.tokens import Access

    # Else both requests of a second get one document.
    monkeypatch.setattr("rq_core.web.sources.SHARED_S", 0.0)
    now = [1_900_000_000.0]
    site = dashboard.build_site(
        ActingSources(busy.url, audit_url=busy.audit_url), Mounted(lambda _: Access("ann")), clock=lambda: now[0]
    )  # fmt: skip
    with TestClient(site, base_url="http://localhost:8900") as page:
        for path in (f"/jobs?queue={QUEUE}", "/dead", "/schedules"):
            first = page.get(path)
            now[0] += 7
            second = page.get(path)
            assert re.findall(r'data-age="\w+">([^<]+)', first.text), path
            assert first.text != second.text
            tag = {"If-None-Match": first.headers["etag"]}
            assert page.get(path, headers=tag).status_code == 304, path
        before = page.get(f"/jobs?queue={QUEUE}").headers["etag"]
        busy.seed.enqueue("new")
        now[0] += 7
        changed = page.get(f"/jobs?queue={QUEUE}&state=ready")
        assert changed.headers["etag"] != before
        assert "new" in changed.text
