"""Changes that operators and admins make on the page to jobs, queues and schedules. The log says who made each change,
and why."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from rq_core.connections.client import Client
from rq_core.web.access import Mounted
from rq_core.web.acting.actions import ACTIONS
from rq_core.web.acting.forms import FORM_TYPE
from rq_core.web.tokens import ADMIN, OPERATOR, VIEWER, Access
from tests.web.conftest import HOST, QUEUE, Browse, Scene, read
from tests.web.test_pages import parsed

OWN = {"Sec-Fetch-Site": "same-origin"}
WHY = "the provider is down"


@pytest.fixture
def page(scene: Scene, browse: Browse) -> TestClient:
    """Return the page as an admin sees it."""
    return admin_page(browse)


def admin_page(browse: Browse, name: str = "ann", role: str = ADMIN) -> TestClient:
    return browse(gate=Mounted(lambda _: Access(name, role=role)))


def press(page: TestClient, action: str, **form: str) -> Any:
    """Send the form of an action, as a browser does."""
    return page.post(f"/act/{action}", data={"queue": QUEUE} | form, headers=OWN)


def told(page: TestClient, action: str, **form: str) -> str:
    """Send a form, and return the sentence that the page then shows."""
    answer = press(page, action, **form)
    assert answer.status_code == 303, answer.text
    text = read(page, answer.headers["location"])
    return text.partition('class="did" role="status">')[2].partition("</p>")[0]


def state_of(scene: Scene, job_id: str) -> str:
    client: Client = scene.seed.client
    found = client.run(client.calls.reads.job(job_id, [QUEUE]))
    return "gone" if found is None else str(found.state)


def last_event(scene: Scene, browse: Browse, kind: str) -> dict[str, Any]:
    """Return the newest event of this type in the log."""
    scene.mirror()
    events = browse().get(f"/log.json?queue={QUEUE}").json()["events"]
    return next(each for each in events if each["type"] == kind)


# Jobs.


def test_an_operator_cancels_a_job_and_is_named_in_the_log(busy: Scene, browse: Browse) -> None:
    page = admin_page(browse, role=OPERATOR)

    says = told(page, "job/cancel", id="ready", reason=WHY)

    assert says == "The job is cancelled."
    assert state_of(busy, "ready") == "gone"
    event = last_event(busy, browse, "cancelled")
    assert (event["job_id"], event["worker"], event["detail"]["why"]) == ("ready", "ann", WHY)


def test_a_running_job_is_asked_to_stop(busy: Scene, page: TestClient) -> None:
    assert "asked to stop" in told(page, "job/cancel", id="holds", reason=WHY)
    assert state_of(busy, "holds") == "cancelling"


def test_a_dead_job_is_requeued_or_removed(busy: Scene, browse: Browse, page: TestClient) -> None:
    busy.die("second")

    assert "ready again" in told(page, "job/requeue", id="died", reason=WHY)
    assert "removed from Redis" in told(page, "job/prune", id="second", reason=WHY)

    assert (state_of(busy, "died"), state_of(busy, "second")) == ("ready", "gone")
    assert last_event(busy, browse, "requeued")["detail"]["why"] == WHY
    assert last_event(busy, browse, "pruned")["worker"] == "ann"


def test_the_form_of_a_requeue_says_that_dead_children_are_requeued_first() -> None:
    (requeue,) = [each for each in ACTIONS if each.name == "job/requeue"]

    assert "If it waits for children, those that are dead are requeued first." in requeue.says


def test_a_waiting_job_is_edited(busy: Scene, browse: Browse, page: TestClient) -> None:
    changes: list[tuple[dict[str, str], str]] = [
        ({"priority": "low"}, "ready"), ({"expires": "60"}, "ready"), ({"delay": "30"}, "scheduled"),
    ]  # fmt: skip
    for form, state in changes:
        assert told(page, "job/edit", id="ready", reason=WHY, **form) == "The job is changed."
        assert state_of(busy, "ready") == state

    event = last_event(busy, browse, "edited")
    assert (event["worker"], event["detail"]["why"]) == ("ann", WHY)


def test_a_delayed_job_is_made_ready_at_once(busy: Scene, page: TestClient) -> None:
    told(page, "job/edit", id="scheduled", expires="7200")
    told(page, "job/edit", id="scheduled", delay="0", no_deadline="1")

    client = busy.seed.client
    found = client.run(client.calls.reads.job("scheduled", [QUEUE]))
    assert found is not None
    assert found.state == "ready"
    assert "expires" not in found.fields


REFUSED = [
    ("job/cancel", "nothing", "Redis has no such job"), ("job/cancel", "died", "the job is dead"),
    ("job/requeue", "ready", "the job is ready"), ("job/prune", "holds", "the job is running"),
    ("job/edit", "holds", "the job is running"),
]  # fmt: skip


def test_a_change_that_cannot_be_made_is_answered_with_a_sentence_that_says_why(
    busy: Scene, page: TestClient
) -> None:
    before = busy.seed.entries()

    for action, job, says in REFUSED:
        extra = {"priority": "low"} if action == "job/edit" else {}
        answer = press(page, action, id=job, **extra)
        assert answer.status_code == 409
        assert says in answer.text
        assert f'href="/jobs/{QUEUE}/{job}"' in answer.text

    assert busy.seed.entries() == before


def test_a_job_with_an_odd_name_is_changed_and_shown_again(busy: Scene, page: TestClient) -> None:
    busy.seed.enqueue("..", "x.json")

    for job in ("..", "x.json"):
        assert "cancelled" in told(page, "job/cancel", id=job)
        assert state_of(busy, job) == "gone"


# Queues.


def test_the_page_shows_a_pause_and_a_resume_at_once(
    busy: Scene, browse: Browse, page: TestClient
) -> None:
    assert "/act/queue/pause" in read(page, f"/queues/{QUEUE}")

    assert told(page, "queue/pause", reason=WHY) == "The queue is paused."

    shown = read(page, f"/queues/{QUEUE}")
    assert "/act/queue/resume" in shown
    assert "/act/queue/pause" not in shown
    assert last_event(busy, browse, "paused")["detail"]["why"] == WHY
    assert told(page, "queue/pause") == "The queue was paused already."
    assert told(page, "queue/resume", reason="it is back") == "The queue is resumed."


def test_an_admin_cannot_replace_a_limit_that_was_changed_meanwhile(
    busy: Scene, browse: Browse, page: TestClient
) -> None:
    form = {"scope": "tenant=acme", "version": "0"}

    assert "The limit of tenant=acme is now 7" in told(
        page, "queue/limit", limit="7", reason=WHY, **form
    )
    answer = press(page, "queue/limit", limit="9", **form)

    assert answer.status_code == 409
    assert "it is 7 now" in answer.text
    event = last_event(busy, browse, "cap_changed")
    assert (event["worker"], event["detail"]["why"]) == ("ann", WHY)
    shown = read(page, f"/queues/{QUEUE}")
    assert 'name="scope" value="tenant=acme"' in shown


ODD_LIMITS = [
    ({"scope": "tenant", "limit": "many"}, "must be a number from 0"),
    ({"scope": "task=sedn", "limit": "3"}, "has seen no task"),
    ({"scope": "nobody=x", "limit": "3"}, "nobody"), ({"scope": "tenant", "limit": ""}, "must not be empty"),
    ({"scope": "tenant", "limit": "3", "version": "-1"}, "must be a whole number"),
]  # fmt: skip


def test_an_invalid_limit_of_a_queue_is_refused(busy: Scene, page: TestClient) -> None:
    for form, says in ODD_LIMITS:
        answer = press(page, "queue/limit", **form)
        assert answer.status_code == 400
        assert says in answer.text


def test_an_action_on_a_queue_that_does_not_exist_creates_no_queue(
    busy: Scene, page: TestClient
) -> None:
    for action in ACTIONS:
        form = {
            "queue": "nothing",
            "id": "a",
            "name": "beat",
            "scope": "queue",
            "limit": "1",
            "priority": "low",
        }
        known = {*action.names, *action.hidden, *(each.name for each in action.fields)}
        answer = press(page, action.name, **{n: v for n, v in form.items() if n in known})
        assert answer.status_code == 400, action.name
        assert "nothing" in answer.text

    client = busy.seed.client
    assert client.run(client.calls.reads.is_there("nothing")) is False
    assert "nothing" not in client.run(client.calls.reads.listed()).queues


# Schedules.


def test_an_operator_pauses_resumes_runs_and_removes_a_schedule(
    busy: Scene, browse: Browse, page: TestClient
) -> None:
    address = f"/schedules/{QUEUE}/beat"
    before = parsed(read(page, address)).ids
    assert "act-schedule-pause" in before
    assert "act-schedule-resume" not in before

    assert told(page, "schedule/pause", name="beat", reason=WHY) == "The schedule is paused."
    assert "act-schedule-resume" in parsed(read(page, address)).ids
    assert last_event(busy, browse, "schedule_changed")["detail"]["why"] == WHY
    assert told(page, "schedule/run", name="beat", reason=WHY) == "Its job is enqueued."
    assert told(page, "schedule/resume", name="beat") == "The schedule is on again."
    assert told(page, "schedule/remove", name="beat") == "The schedule is removed."
    assert press(page, "schedule/run", name="beat").status_code == 409
    assert press(page, "schedule/pause", name="nobody").status_code == 409


# Who, and why.


def test_an_actor_with_an_e_mail_address_is_logged_under_a_name_made_from_the_address(
    busy: Scene, browse: Browse
) -> None:
    page = admin_page(browse, "ann@shop.example")

    told(page, "job/cancel", id="ready", reason=WHY)
    told(page, "job/cancel", id="later")

    event = last_event(busy, browse, "cancelled")
    assert (event["worker"], event["detail"]["why"]) == ("ann.at.shop.example", "ann@shop.example")
    events = browse().get(f"/jobs/{QUEUE}/ready.json").json()["events"]
    assert events[-1]["detail"]["why"] == f"ann@shop.example: {WHY}"


def test_a_person_without_a_name_changes_nothing(busy: Scene, browse: Browse) -> None:
    for name in ("", "  "):
        answer = press(admin_page(browse, name), "job/cancel", id="ready")
        assert answer.status_code == 400
        assert "gives you no name" in answer.text

    assert state_of(busy, "ready") == "ready"


# Forged and broken forms.


FORGED: list[dict[str, str]] = [
    {}, {"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"}, {"Sec-Fetch-Site": "none"},
    {"Origin": "http://evil.example"}, {"Origin": "null"}, {"Origin": HOST, "Sec-Fetch-Site": "cross-site"},
    {"Referer": HOST}, {"Authorization": "Basic YTpi"},
]  # fmt: skip


def test_a_form_of_another_site_changes_nothing(busy: Scene, page: TestClient) -> None:
    for action in ACTIONS:
        for headers in FORGED:
            form = {"queue": QUEUE, "id": "ready"}
            answer = page.post(action.path, data=form, headers=headers)
            assert answer.status_code == 403, (action.name, headers)

    assert state_of(busy, "ready") == "ready"
    sent = {"data": {"queue": QUEUE, "id": "ready"}, "headers": {"Origin": HOST}}
    assert page.post("/act/job/cancel", **sent).status_code == 303


def test_a_form_for_another_host_changes_nothing(busy: Scene, page: TestClient) -> None:
    forged = OWN | {"Host": "evil.example"}
    answer = page.post("/act/job/cancel", data={"queue": QUEUE, "id": "ready"}, headers=forged)

    assert answer.status_code == 400
    assert state_of(busy, "ready") == "ready"


BROKEN = [
    ('{"queue": "mail", "id": "ready"}', "application/json", 415), ("queue=mail&id=ready", "text/plain", 415),
    ("queue=mail&id=ready", "", 415), ("queue=mail&id=ready&id=later", FORM_TYPE, 400),
    ("queue=mail&id=ready&by=boss", FORM_TYPE, 400), ("queue=mail", FORM_TYPE, 400), ("", FORM_TYPE, 400),
    ("queue=mail&id=" + "x" * 600, FORM_TYPE, 400), ("queue=mail&id=a%2Fb", FORM_TYPE, 400),
    ("queue=mail&id=ready&reason=%00", FORM_TYPE, 400), ("queue=mail&id=ready&reason=%ff", FORM_TYPE, 400),
    ("queue=mail&id=ready&reason=" + "x" * 4_001, FORM_TYPE, 400), ("a=1&" * 100, FORM_TYPE, 400),
    ("queue=mail&id=ready&reason=" + "x" * 40_000, FORM_TYPE, 413),
]  # fmt: skip


def test_a_malformed_form_or_a_form_with_other_fields_changes_nothing(
    busy: Scene, page: TestClient
) -> None:
    for content, kind, status in BROKEN:
        headers = OWN | {"Content-Type": kind}
        answer = page.post("/act/job/cancel", content=content.encode(), headers=headers)
        assert answer.status_code == status, content[:50]

    assert state_of(busy, "ready") == "ready"


def test_the_message_after_an_action_cannot_be_forged_or_seen_by_other_viewers(
    busy: Scene, browse: Browse, page: TestClient
) -> None:
    leads = press(page, "job/cancel", id="ready").headers["location"]
    assert "is cancelled" in read(page, leads)

    assert 'class="did"' not in read(admin_page(browse, "bob"), leads)
    for other in ("x", "The job is cancelled", leads.partition("did=")[2][:-1]):
        assert 'class="did"' not in read(page, f"/jobs/{QUEUE}/later?did={other}")


def test_markup_in_a_reason_or_a_name_is_shown_as_text(busy: Scene, browse: Browse) -> None:
    page = admin_page(browse, "<b>ann</b>")

    told(page, "job/cancel", id="ready", reason="<script>alert(1)</script>")

    event = last_event(busy, browse, "cancelled")
    assert event["worker"] == "_b_ann__b_"
    # Another site, since this one shows the log of up to a second ago.
    shown = read(admin_page(browse), f"/jobs/{QUEUE}/ready")
    assert "<script>alert" not in shown
    assert "&lt;script&gt;alert" in shown


# What is offered.


def test_a_page_offers_only_what_the_viewer_may_do(busy: Scene, browse: Browse) -> None:
    pause, limit = "/act/queue/pause", "/act/queue/limit"
    expected: dict[str, set[str]] = {VIEWER: set(), OPERATOR: {pause}, ADMIN: {pause, limit}}

    for role, paths in expected.items():
        text = read(admin_page(browse, role=role), f"/queues/{QUEUE}")
        assert {each.path for each in ACTIONS if f'action="{each.path}"' in text} == paths


def test_a_page_of_a_job_offers_what_its_state_allows(busy: Scene, page: TestClient) -> None:
    expected: dict[str, set[str]] = {
        "ready": {"cancel", "edit", "copy"}, "scheduled": {"cancel", "edit", "copy"}, "holds": {"cancel", "copy"},
        "died": {"requeue", "prune", "copy"}, "done": {"copy"}, "never": set(),
    }  # fmt: skip
    for job, names in expected.items():
        found = parsed(read(page, f"/jobs/{QUEUE}/{job}"))
        offered = {x.removeprefix("act-job-") for x in found.ids if x.startswith("act-job-")}
        assert {each for each in offered if "-" not in each} == names
        assert found.open == []
        assert len(found.ids) == len(set(found.ids))


# When Redis cannot, or may not.


def test_an_action_through_a_redis_user_who_may_only_read_is_refused(
    busy: Scene, browse: Browse, viewer_url: str
) -> None:
    page = browse(url=viewer_url, gate=Mounted(lambda _: Access("ann", role=ADMIN)))

    answer = press(page, "job/cancel", id="ready")

    assert answer.status_code == 503
    assert "Nothing is changed" in answer.text
    assert "rq-core acl" in answer.text
    assert state_of(busy, "ready") == "ready"


@pytest.fixture
def viewer_url(scene: Scene) -> Iterator[str]:
    """Return the URL of a Redis user who has the rights of a viewer only."""
    from rq_core.protocol.engine import acl_roles

    execute = scene.seed.control.execute_command
    execute("ACL", "SETUSER", "looks", "on", ">secret", *acl_roles.rules("viewer"))
    try:
        yield scene.url.replace("redis://", "redis://looks:secret@")
    finally:
        execute("ACL", "DELUSER", "looks")
