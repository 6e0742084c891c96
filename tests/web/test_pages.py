"""Each page as HTML and as JSON, with and without an audit log."""

from __future__ import annotations

import html.parser
import json
import logging
import re
import threading
import time
from functools import partial
from typing import Any

import pytest
from starlette.testclient import TestClient

from rq_core.model.durable.children import child_id, child_wait, parent_header
from rq_core.model.durable.forks import ForkOrigin, origin_header
from rq_core.model.headers import FORK_HEADER, PARENT_HEADER
from rq_core.protocol.calls.boxes import Sending, send_signals
from rq_core.web import pages
from rq_core.web.pages import PAGES
from rq_core.web.rows import wait_row
from rq_core.web.tokens import VIEWER
from rq_core.web.views import Facts
from tests.kit.seed import Seed
from tests.kit.wait import wait_until
from tests.web.conftest import QUEUE, Browse, Scene, read

ADDRESSES = {
    "overview": "/",
    "jobs": f"/jobs?queue={QUEUE}",
    "dead": "/dead",
    "workers": "/workers",
    "log": "/log",
    "at": "/at",
    "audit": "/audit",
    "queue": f"/queues/{QUEUE}",
    "job": f"/jobs/{QUEUE}/waits",
    "schedules": "/schedules",
    "schedule": f"/schedules/{QUEUE}/beat",
}


def as_json(path: str) -> str:
    place, _, asks = path.partition("?")
    made = "/index.json" if place == "/" else f"{place}.json"
    return f"{made}?{asks}" if asks else made


class Whole(html.parser.HTMLParser):
    """A parser of HTML that records open tags, ids, and the targets of links."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.ids += [found] if (found := given.get("id")) else []
        self.links += [found] if tag == "a" and (found := given.get("href")) else []
        if tag not in ("meta", "link", "input", "rect", "line"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in ("rect", "line"):
            assert self.open.pop() == tag


def parsed(text: str) -> Whole:
    found = Whole()
    found.feed(text)
    found.close()
    return found


def test_the_tests_have_an_address_for_every_page() -> None:
    assert {page.name for page in PAGES if page.role == VIEWER} == ADDRESSES.keys()


@pytest.mark.parametrize("name", ADDRESSES)
@pytest.mark.parametrize("log", [True, False], ids=["with a log", "without a log"])
def test_a_page_is_a_whole_document_and_has_a_json_form(
    busy: Scene, browse: Browse, name: str, log: bool
) -> None:
    page = browse(log=log)

    text = read(page, ADDRESSES[name])
    document = page.get(as_json(ADDRESSES[name])).json()

    found = parsed(text)
    assert found.open == []
    assert len(found.ids) == len(set(found.ids))
    assert "live" in found.ids
    assert document["now_ms"] > 0
    needs_log = next(each for each in PAGES if each.name == name).of_past
    assert bool(document["unread"]) == (needs_log and not log)
    if needs_log and not log:
        assert "start it with --audit URL" in text


@pytest.mark.slow
@pytest.mark.parametrize("name", ADDRESSES)
def test_every_link_of_a_page_leads_to_an_existing_page(
    busy: Scene, browse: Browse, name: str
) -> None:
    page = browse()
    links = {link for link in parsed(read(page, ADDRESSES[name])).links if not link.startswith("#")}
    assert links

    broken = [link for link in sorted(links)[:60] if page.get(link).status_code != 200]

    assert broken == []


def test_an_address_without_a_required_name_is_refused_with_a_sentence(
    busy: Scene, browse: Browse, caplog: pytest.LogCaptureFixture
) -> None:
    page = browse()

    for path, missing in (
        ("/queue", "queue"), ("/job", "queue and id"), (f"/job?queue={QUEUE}", "id"),
        (f"/schedule?queue={QUEUE}", "name"), ("/schedule.json?name=", "queue and name"),
    ):  # fmt: skip
        answer = page.get(path)
        assert answer.status_code == 400
        assert f"the address must say {missing}" in answer.text
    assert [each for each in caplog.records if each.levelno >= logging.WARNING] == []


def test_the_first_page_shows_the_causes_before_the_queues(scene: Scene, browse: Browse) -> None:
    scene.seed.enqueue("a", "b")

    text = read(browse(), "/")

    wrong, queues = text.index("2 ready, and no worker runs"), text.index('id="h-queues"')
    assert wrong < queues
    assert "what to do" in text
    assert "1 wrong" in text


def has_hint(page: TestClient, name: str) -> bool:
    return 'class="empty"' in read(page, name)


def test_the_page_of_an_empty_server_says_what_to_do(scene: Scene, browse: Browse) -> None:
    page = browse()
    text = read(page, "/")

    assert "Nothing is wrong" in text
    assert "No queues yet" in text
    for name in ("/jobs", "/dead", "/workers", "/log", "/at", "/audit", "/queues/none"):
        # A page says instead that a server was too slow, if it was. A later page has the answer.
        wait_until(partial(has_hint, page, name), f"{name} says what to do")


def test_the_page_of_a_waiting_job_names_the_full_scope_and_the_job_that_holds_it(
    busy: Scene, browse: Browse
) -> None:
    document = browse().get(f"/jobs/{QUEUE}/waits.json").json()
    text = read(browse(), f"/jobs/{QUEUE}/waits")

    assert document["job"]["waits_for"] == "tenant=acme"
    assert ["waits for", "tenant=acme"] in document["why"]
    assert document["job"]["held_by"][0]["id"] == "holds"
    assert f'href="/jobs/{QUEUE}/holds"' in text
    assert [step["type"] for step in document["path"]] == ["enqueued"]


def test_the_page_of_an_ended_job_shows_its_events_and_its_waits(
    busy: Scene, browse: Browse
) -> None:
    document = browse().get(f"/jobs/{QUEUE}/done.json").json()

    assert document["job"] is None
    assert document["log_state"] == "succeeded"
    assert [step["type"] for step in document["path"]] == ["enqueued", "claimed", "succeeded"]
    assert document["waits"][0]["claim"] == 1


UNTIL = 9_000_000_000_000


def test_the_page_of_a_durable_job_lists_its_steps_and_marks_the_steps_in_doubt(
    scene: Scene, browse: Browse
) -> None:
    claim = scene.seed.running("durable")
    scene.seed.save(claim)
    scene.seed.save(claim, what="begin", entry=2, name="ship=secret")
    key = scene.seed.running("key")
    scene.seed.save(key, what="begin", name="rq_core.life", life="0" * 16)

    found = browse(log=False).get(f"/jobs/{QUEUE}/durable.json").json()
    trusted = browse(log=False, see_arguments=True).get(f"/jobs/{QUEUE}/durable.json").json()

    steps = [(each["entry"], each["name"], each["is_saved"]) for each in found["steps"]]
    assert [(1, "charge", True), (2, "ship", False)] == steps
    assert "ship=secret" == trusted["steps"][1]["name"]
    assert "in doubt" in read(browse(log=False), f"/jobs/{QUEUE}/durable")
    assert "value" not in found["steps"][0]
    of_rq_core = read(browse(log=False), f"/jobs/{QUEUE}/key")
    assert "rq_core.life" in of_rq_core
    assert "for job.key()" in of_rq_core
    assert "in doubt" not in of_rq_core


def test_the_page_of_a_running_job_shows_its_progress(scene: Scene, browse: Browse) -> None:
    claim = scene.seed.running("shows")
    scene.seed.show(claim, says="30/120 <b>secret</b>")

    found = browse(log=False).get(f"/jobs/{QUEUE}/shows.json").json()["progress"]
    trusted = browse(log=False, see_arguments=True)
    page = trusted.get(f"/jobs/{QUEUE}/shows").text

    assert (found["done"], found["total"], found["share"], found["text"]) == (
        30,
        120,
        0.25,
        "hidden",
    )
    assert '<meter min="0" max="1" value="0.25"' in page
    assert "&lt;b&gt;secret" in page
    assert "25 %" in read(trusted, f"/jobs/{QUEUE}/shows")


def test_the_page_of_a_parked_job_says_what_it_waits_for(scene: Scene, browse: Browse) -> None:
    seed = scene.seed
    claim = seed.running("durable")
    seed.wait(claim, str(UNTIL))
    seed.wait(claim, entry=2, name="nap", what="sleep")
    seed.signal("durable", name="refusal", key="secret-9", value='"private"')
    life = seed.life_of("durable")
    of_child = Sending("durable", "rq_core.child.1.0", "", "null", life)
    (sent,) = seed.client.run(send_signals(QUEUE, [of_child], by="w-1"))
    assert sent.outcome == "sent"
    seed.park(claim, waits="1,2")

    found = browse(log=False).get(f"/jobs/{QUEUE}/durable.json").json()
    trusted = browse(log=False, see_arguments=True).get(f"/jobs/{QUEUE}/durable.json").json()
    shown = read(browse(log=False), f"/jobs/{QUEUE}/durable")

    waits = [(each["says"], each["until_ms"]) for each in found["waits_for"]]
    assert [("the signal approval", UNTIL), ("the end of its sleep nap", None)] == waits
    (signal,) = found["signals"]
    assert (1, "refusal", "hidden") == (signal["signal"], signal["name"], signal["key"])
    assert "secret-9" == trusted["signals"][0]["key"]
    assert "private" not in str(trusted)
    assert "It is parked, and waits for the signal approval until 2255-" in shown
    assert ", the end of its sleep nap." in shown
    assert "waits until 2255-" in shown
    assert "in doubt" not in shown
    assert "refusal" in shown
    assert "parked" in read(browse(log=False), f"/queues/{QUEUE}")


def test_the_page_of_a_child_and_of_a_fork_link_to_the_jobs_that_they_come_from(
    scene: Scene, browse: Browse
) -> None:
    life = "9f3a0b1c22aa0001"
    made = child_id(life, "parts", 0)
    parent = parent_header("home", "whole", child_wait(1, 0), life, "parts")
    headers = {
        made: {PARENT_HEADER: parent},
        "forged": {PARENT_HEADER: parent},
        "o-1.fx": {FORK_HEADER: origin_header(ForkOrigin("o-1", life, 2, 1))},
    }
    for job_id, each in headers.items():
        job = scene.seed.job(job_id)
        scene.seed.enqueue(job._replace(headers_json=json.dumps(each)))
    page = browse(log=False)

    shown = {job_id: read(page, f"/jobs/{QUEUE}/{job_id}") for job_id in headers}

    assert ' · child of <a class="id" href="/jobs/home/whole">whole</a>' in shown[made]
    assert f' · fork of <a class="id" href="/jobs/{QUEUE}/o-1">o-1</a>' in shown["o-1.fx"]
    assert "child of" not in shown["forged"]


def test_parked_jobs_are_counted_on_the_first_page_and_in_the_choice_of_states(
    scene: Scene, browse: Browse
) -> None:
    scene.seed.running("runs")
    assert "parked" not in read(browse(log=False), "/")
    for name in ("one", "two"):
        scene.seed.parked(name)

    page = browse(log=False)
    first = page.get(as_json("/")).json()
    found = page.get(f"/jobs.json?queue={QUEUE}").json()["choices"]
    (chip,) = [each for each in found["states"] if each["says"] == "parked"]

    assert (2, 2) == (first["totals"]["parked"], first["queues"][0]["parked"])
    assert "<dt>parked</dt>" in read(page, "/")
    assert "state=parked" in read(page, "/")
    assert (2, 3) == (chip["count"], found["queues"][0]["count"])
    assert ["one", "two"] == sorted(
        each["id"] for each in page.get(as_json(chip["path"])).json()["jobs"]
    )


def test_an_unfinished_wait_is_counted_up_to_now_if_the_job_is_still_in_redis() -> None:
    """Checks a log that ended 8 ms after the enqueue. The job has waited for a minute. Once, the page showed 8 ms."""
    wait = {
        "since_ms": 1_000,
        "until_ms": 1_008,
        "held_back_by": "tenant=acme",
        "claim": None,
        "ended": None,
        "pauses": [],
    }

    alive, unknown = wait_row(wait, 61_000), wait_row(wait, None)
    ended = wait_row(wait | {"ended": "cancelled"}, 61_000)

    assert (alive["waited_ms"], alive["still"]) == (60_000, True)
    assert (unknown["waited_ms"], unknown["still"]) == (8, True)
    assert (ended["waited_ms"], ended["still"]) == (8, False)


def test_the_page_of_an_unknown_job_is_no_error(busy: Scene, browse: Browse) -> None:
    assert "Redis has no such job. Nor does the audit log know it" in read(
        browse(), f"/jobs/{QUEUE}/never"
    )
    assert "the audit log would know it still" in read(browse(log=False), f"/jobs/{QUEUE}/never")


def test_the_page_of_jobs_filters_by_state_and_by_task(busy: Scene, browse: Browse) -> None:
    page = browse()

    def ids(asks: str) -> list[str]:
        found = page.get(f"/jobs.json?queue={QUEUE}{asks}").json()["jobs"]
        return sorted(each["id"] for each in found)

    assert ids("") == ["holds", "later", "ready", "scheduled", "waits"]
    assert ids("&state=running,cancelling") == ["holds"]
    assert ids("&state=dead") == ["died"]
    assert ids("&state=ready&task=other") == []


def test_a_search_for_a_job_id_leads_to_the_page_of_the_job(busy: Scene, browse: Browse) -> None:
    document = browse().get(f"/job.json?queue={QUEUE}&id=ready").json()

    assert document["job"]["state"] == "ready"


def test_the_page_of_a_moment_shows_the_jobs_of_that_moment(busy: Scene, browse: Browse) -> None:
    page = browse()
    now = page.get(f"/at.json?queue={QUEUE}").json()["moments"][0]
    before = page.get(f"/at.json?queue={QUEUE}&t=1h ago").json()["moments"][0]

    assert [each["job_id"] for each in now["running"]] == ["holds"]
    assert {each["job_id"] for each in now["waiting"]} == {"waits", "ready", "later"}
    assert (before["running"], before["waiting"]) == ([], [])
    assert "begins at" in before["caveats"][0]


def test_the_chart_counts_the_claims_that_ended_in_each_minute(busy: Scene, browse: Browse) -> None:
    minutes = browse().get(f"/queues/{QUEUE}.json").json()["minutes"]

    assert (sum(minutes["done"]), sum(minutes["failed"]), sum(minutes["other"])) == (1, 1, 0)


def test_errors_are_counted_by_type(busy: Scene, browse: Browse) -> None:
    page = browse()
    document, queue = page.get("/dead.json").json(), page.get(f"/queues/{QUEUE}.json").json()

    (errors,), (deaths,) = queue["errors"], document["deaths"]
    assert (errors["error_type"], errors["outcome"], errors["claims"]) == ("SmtpError", "died", 1)
    assert (deaths["error_type"], deaths["task"], deaths["deaths"]) == ("SmtpError", "t", 1)
    assert (deaths["hours"]["died"][-1], sum(deaths["hours"]["died"])) == (1, 1)
    assert document["errors"] == []
    for path in (errors["path"], deaths["path"]):
        place, _, asks = path.partition("?")
        claims = page.get(f"{place}.json?{asks}").json()["claims"]
        assert [each["job_id"] for each in claims] == ["died"]


def test_the_page_of_the_log_shows_the_last_event_first(busy: Scene, browse: Browse) -> None:
    events = browse().get("/log.json").json()["events"]

    assert (events[0]["type"], events[0]["job_id"]) == ("enqueued", "scheduled")
    assert len(events) <= 100


@pytest.mark.parametrize(
    "path",
    [
        "/jobs?queue=a/b",
        "/jobs?queue=mail&state=asleep",
        "/at?t=yesterday",
        "/jobs/mail/a%20b",
        "/at?t=9" + "9" * 40,
    ],
)
def test_an_invalid_address_is_refused_with_a_sentence_that_says_why(
    scene: Scene, browse: Browse, path: str
) -> None:
    answer = browse().get(path)
    document = browse().get(as_json(path))

    assert (answer.status_code, document.status_code) == (400, 400)
    assert "is not valid" in answer.text
    assert "is not valid" in document.json()["error"]


def test_an_unknown_address_is_answered_with_a_page_that_says_so(
    scene: Scene, browse: Browse
) -> None:
    answer = browse().get("/nothing/of/this")

    assert answer.status_code == 404
    assert "there is no such page" in answer.text


def test_an_answer_that_the_browser_already_has_is_sent_without_its_body(
    scene: Scene, browse: Browse
) -> None:
    page = browse()
    first = page.get("/workers")

    again = page.get("/workers", headers={"If-None-Match": first.headers["etag"]})

    assert (again.status_code, again.content) == (304, b"")
    assert again.headers["content-security-policy"]


@pytest.mark.slow
@pytest.mark.parametrize("path", ["/", f"/queues/{QUEUE}", f"/jobs/{QUEUE}/waits"])
def test_fifty_viewers_cause_one_read_of_redis(busy: Scene, browse: Browse, path: str) -> None:
    page = browse(log=False)
    read(page, path)
    time.sleep(1.1)
    before = _calls(busy.seed)

    threads = [threading.Thread(target=read, args=(page, path)) for _ in range(50)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()

    # One look a second, of at most 70 commands, and what the page asks.
    assert _calls(busy.seed) - before <= 4 * 90


def test_one_document_serves_fifty_tabs(
    busy: Scene, browse: Browse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checks how often the page makes a document. To make fifty would keep a processor core busy."""
    made: list[str] = []
    page = PAGES[0]

    def noted(facts: Facts) -> Any:
        made.append(facts.access.name)
        return page.view(facts)

    monkeypatch.setattr(pages, "PAGES", (page._replace(view=noted), *PAGES[1:]))
    monkeypatch.setattr("rq_core.web.dashboard.PAGES", pages.PAGES)
    began = time.monotonic()
    site = browse(log=False)
    for _ in range(50):
        read(site, "/")

    assert len(made) <= 2 + (time.monotonic() - began)


def _calls(seed: Seed) -> int:
    found: Any = seed.control.info("stats")
    return int(found["total_commands_processed"])


def test_the_page_marks_numbers_that_are_lower_bounds(scene: Scene, browse: Browse) -> None:
    scene.seed.configure(fair=1)
    for lane in range(3):
        scene.seed.enqueue(scene.seed.job(f"j-{lane}", scopes=[f"tenant={lane}"]))

    text = read(browse(), "/")

    assert re.search(r"≥ \d+ s", text)


def test_the_page_of_a_queue_counts_waiting_jobs_in_a_bounded_number_of_lanes(
    scene: Scene, browse: Browse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "LANES_MAX", 40)
    seed = scene.seed
    seed.cap("tenant", 1)
    for number in range(30):
        scopes = [f"tenant={number}"]
        seed.enqueue(*(seed.job(f"j-{number}-{n}", scopes=scopes) for n in range(2)))
    seed.claim(30)
    seed.claim(30)

    limits = browse().get(f"/queues/{QUEUE}.json").json()["limits"]

    assert (limits[0]["scope"], limits[0]["waiting_says"]) == ("tenant", "20+")


def test_a_list_reads_a_bounded_number_of_jobs_and_says_where_it_stopped(
    scene: Scene, browse: Browse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "MEMBERS_MAX", 50)
    scene.seed.enqueue(*(f"j-{n}" for n in range(60)))

    document = browse().get(f"/jobs.json?queue={QUEUE}&task=other").json()

    assert document["jobs"] == []
    assert document["notes"][0].startswith("read 50 of the queue's jobs and stopped")
