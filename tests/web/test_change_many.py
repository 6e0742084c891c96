"""Changes of many jobs on the page. An operator sees their number, types it, and changes the jobs in parts."""

from __future__ import annotations

import html
import itertools
import re
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest
from starlette.testclient import TestClient

from rq_core.errors import ServerUnavailable
from rq_core.protocol.calls.admin import Admin
from rq_core.protocol.calls.bulk import PAUSE_STEPS
from rq_core.protocol.engine.plan import Pause
from rq_core.web import sources
from rq_core.web.access import Mounted
from rq_core.web.acting import bulk
from rq_core.web.acting.actions import By
from rq_core.web.tokens import OPERATOR, Access
from tests.kit.cutter import Cutter
from tests.kit.wait import wait_until
from tests.web.conftest import QUEUE, SECRET, Browse, Scene, read
from tests.web.test_acting import OWN, WHY, admin_page, told
from tests.web.test_pages import parsed

READY = f"queue:{QUEUE} task:send state:ready"


@pytest.fixture
def page(browse: Browse) -> TestClient:
    """Return the page as an operator sees it."""
    return admin_page(browse, role=OPERATOR)


def enqueue(scene: Scene, many: int, task: str = "send", **options: Any) -> None:
    seed = scene.seed
    seed.enqueue(*(seed.job(f"{task}-{number}", task=task, **options) for number in range(many)))


def preview(page: TestClient, verb: str, where: str) -> dict[str, Any]:
    def read_in_time() -> dict[str, Any] | None:
        found = dict(page.get("/bulk.json", params={"verb": verb, "where": where}).json())
        return None if found["unread"] else found

    return wait_until(read_in_time, "Redis answers in the time of a page")


def form_of(page: TestClient, path: str) -> dict[str, str]:
    """Return the fields of the form for a change at this address."""
    text = read(page, path).partition('id="many"')[2].partition("</form>")[0]
    inputs = [
        dict(re.findall(r'([\w-]+)="([^"]*)"', each)) for each in re.findall("<input[^>]*>", text)
    ]
    return {
        x["name"]: html.unescape(x.get("value", "")) for x in inputs if x.get("type") != "checkbox"
    }


def many(page: TestClient, verb: str, where: str, number: object = None, **more: str) -> Any:
    """Send the form for all jobs that the preview counts. ``number`` is the number that the operator types."""
    seen = preview(page, verb, where)
    count = str(seen["matched"])
    form = {
        "verb": verb,
        "where": seen["where"],
        "at": seen["begin"],
        "count": count,
        "reason": WHY,
    }
    form |= {"number": count if number is None else str(number)} | more
    return page.post("/act/bulk", data=form, headers=OWN)


def counts(scene: Scene, kind: str) -> dict[str, int]:
    """Return the number of events of this type, by job id."""
    found: dict[str, int] = {}
    for entry in scene.seed.entries():
        for event in entry.jobs:
            if entry.event == kind:
                found[event.job_id] = found.get(event.job_id, 0) + 1
    return found


def test_the_preview_counts_the_matching_jobs_and_changes_nothing(
    scene: Scene, page: TestClient
) -> None:
    enqueue(scene, 300)
    enqueue(scene, 5, "other")
    before = scene.seed.entries()

    seen = preview(page, "cancel", READY)

    assert (seen["matched"], seen["complete"], seen["states"]) == (300, True, {"ready": 300})
    assert len(seen["sample"]) == bulk.SAMPLE_MAX
    assert seen["where"] == f"queue:{QUEUE} task:send state:ready"
    found = parsed(read(page, f"/bulk?verb=cancel&where={READY}"))
    assert found.open == []
    assert len(found.ids) == len(set(found.ids))
    assert scene.seed.entries() == before


def test_all_matching_jobs_are_cancelled_and_the_log_says_who_did_it(
    scene: Scene, browse: Browse, page: TestClient
) -> None:
    enqueue(scene, 600)
    enqueue(scene, 5, "other")

    answer = many(page, "cancel", READY)

    assert answer.status_code == 303
    shown = read(page, answer.headers["location"])
    assert "600 of 600 cancelled; the log has it as bulk" in shown
    assert counts(scene, "cancelled") == {f"send-{number}": 1 for number in range(600)}
    scene.mirror()
    event = browse().get(f"/jobs/{QUEUE}/send-599.json").json()["events"][-1]
    assert event["worker"] == "ann"
    assert re.fullmatch(f"bulk [0-9a-f]{{16}}: {WHY}", event["detail"]["why"])


def test_an_edit_of_many_jobs_without_new_options_is_refused(
    scene: Scene, page: TestClient
) -> None:
    enqueue(scene, 3)

    assert many(page, "edit", READY, priority="low").status_code == 303
    assert set(counts(scene, "edited").values()) == {1}
    assert len(counts(scene, "edited")) == 3
    assert many(page, "edit", READY).status_code == 400


def test_a_filter_by_error_and_scope_selects_the_dead_jobs_to_requeue(
    scene: Scene, browse: Browse, page: TestClient
) -> None:
    seed = scene.seed
    for number in range(4):
        tenant = "acme" if number % 2 else "other"
        seed.enqueue(seed.job(f"j{number}", task="send", scopes=[f"tenant={tenant}"]))
    from rq_core.protocol.calls import claims

    failed = [
        (
            each.id,
            each.fence,
            "final",
            0,
            "gave_up",
            '{"type": "SmtpError", "message": "m", "traceback": "t"}',
        )
        for each in seed.claim().jobs
    ]
    seed.client.run(claims.fail(QUEUE, "w-1", failed))
    scene.mirror()
    text = read(page, "/dead")
    leads = next(html.unescape(x) for x in parsed(text).links if x.startswith("/bulk?"))
    assert "/bulk" not in read(browse(), "/dead")

    assert "4" in re.findall("<b>([^<]*)</b> jobs match", read(page, leads)), read(page, leads)
    form = form_of(page, leads)
    answer = many(page, "requeue", f"{form['where']} scope:tenant=acme")

    assert answer.status_code == 303
    assert counts(scene, "requeued") == {"j1": 1, "j3": 1}


REFUSED = [
    ({"number": "299"}, "must repeat how many jobs"), ({"number": ""}, "must repeat how many jobs"),
    ({"number": "0", "count": "0"}, "must repeat"), ({"number": "many"}, "must be a number of jobs"),
    ({"reason": ""}, "reason"), ({"verb": "destroy"}, "verb"), ({"where": f"queue:{QUEUE}"}, "another term"),
    ({"where": "task:send"}, "must have a queue"), ({"where": "queue:nothing state:ready"}, "nothing"),
    ({"where": f"queue:{QUEUE} colour:red"}, "colour"), ({"at": "yesterday"}, "must be the place"),
    ({"at": "0" * 16 + "/1/0/0/0/0/0/0/"}, "of the last 7 days"), ({"by": "boss"}, "must be a field"),
    ({"reason": "x" * 501}, "at most 500"), ({"where": f"queue:{QUEUE} state:dead"}, "must be of"),
]  # fmt: skip


def test_a_bulk_form_without_a_valid_number_reason_and_filter_changes_nothing(
    scene: Scene, page: TestClient
) -> None:
    enqueue(scene, 300)
    before = scene.seed.entries()
    form = form_of(page, f"/bulk?verb=cancel&where={READY}") | {"number": "300", "reason": WHY}
    form.pop("seal", None)

    for changed, says in REFUSED:
        answer = page.post("/act/bulk", data=form | changed, headers=OWN)
        assert answer.status_code == 400, changed
        assert says in html.unescape(answer.text), changed

    assert scene.seed.entries() == before
    assert page.post("/act/bulk", data=form, headers=OWN).status_code == 303


def test_a_stopped_change_continues_and_changes_each_job_once(
    scene: Scene, page: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "CHANGE_S", 0.0)
    enqueue(scene, 600)

    first = many(page, "cancel", READY)
    leads = first.headers["location"]
    form = form_of(page, leads)

    assert len(counts(scene, "cancelled")) < 600
    # The operator has confirmed this change, so the page does not ask for the number again.
    assert form["number"] == form["count"] == "600"
    assert form["reason"] == WHY
    for _ in range(20):
        answer = page.post("/act/bulk", data=form, headers=OWN)
        # As if the answer had been lost: the same part is sent a second time.
        answer = page.post("/act/bulk", data=form, headers=OWN)
        leads = answer.headers["location"]
        if "at=" not in leads:
            break
        form = form_of(page, leads)
    assert counts(scene, "cancelled") == {f"send-{number}": 1 for number in range(600)}


def test_a_forged_link_cannot_replace_the_confirmation_of_the_number_of_jobs(
    scene: Scene, browse: Browse, monkeypatch: pytest.MonkeyPatch
) -> None:
    who = "ann"
    page = browse(gate=Mounted(lambda _: Access(who, role=OPERATOR)))
    monkeypatch.setattr(bulk, "CHANGE_S", 0.0)
    enqueue(scene, 600)
    leads = many(page, "cancel", READY).headers["location"]

    forged = [
        leads.replace("number=600", "number=999"), leads.replace("verb=cancel", "verb=edit"),
        re.sub("seal=[0-9a-f]+", "seal=0", leads), leads.replace("task%3Asend", "task%3Aother"),
    ]  # fmt: skip
    for each in forged:
        text = read(page, each)
        assert 'id="many-number"' in text, each
        assert 'name="number" value' not in text, each
    assert 'id="many-number"' not in read(page, leads)
    who = "bob"
    assert 'id="many-number"' in read(page, leads)


def test_at_most_the_confirmed_number_of_jobs_is_changed(scene: Scene, page: TestClient) -> None:
    enqueue(scene, 3)
    form = form_of(page, f"/bulk?verb=cancel&where={READY}") | {"number": "3", "reason": WHY}
    enqueue(scene, 6)

    page.post("/act/bulk", data=form, headers=OWN)

    assert len(counts(scene, "cancelled")) == 3


def test_a_preview_that_could_not_read_all_jobs_says_so(
    scene: Scene, page: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "COUNT_S", 0.0)
    enqueue(scene, 600, priority="critical")

    assert preview(page, "cancel", READY)["complete"] is False
    text = read(page, f"/bulk?verb=cancel&where={READY}")
    assert "at least" in text
    assert "were read in the time of one page" in text


def test_a_preview_shows_no_contents_of_jobs(busy: Scene, browse: Browse, page: TestClient) -> None:
    text = read(page, f"/jobs?queue={QUEUE}&state=ready")
    leads = [html.unescape(x) for x in parsed(text).links if x.startswith("/bulk?")]

    assert {re.findall("verb=([a-z]+)", each)[0] for each in leads} == {"cancel", "edit"}
    assert all(SECRET not in read(page, each) for each in leads)
    assert "/bulk" not in read(browse(), f"/jobs?queue={QUEUE}&state=ready")
    assert browse().get("/bulk").status_code == 403
    assert "/bulk" in parsed(read(page, "/")).links


def test_a_bulk_change_is_accepted_only_from_a_form_of_the_page_itself(
    scene: Scene, browse: Browse, page: TestClient
) -> None:
    enqueue(scene, 3)
    form = form_of(page, f"/bulk?verb=cancel&where={READY}") | {"number": "3", "reason": WHY}

    for headers in ({}, {"Sec-Fetch-Site": "cross-site"}, {"Origin": "http://evil.example"}):
        assert page.post("/act/bulk", data=form, headers=headers).status_code == 403
    viewer = browse(gate=Mounted(lambda _: Access("ann")))
    assert viewer.post("/act/bulk", data=form, headers=OWN).status_code == 403

    assert counts(scene, "cancelled") == {}
    assert told(page, "queue/pause") == "The queue is paused."


def test_only_operators_who_may_see_headers_and_arguments_may_filter_by_them(
    scene: Scene, browse: Browse, page: TestClient
) -> None:
    seed = scene.seed
    seed.enqueue(seed.job("laden", args_json='{"to": "x@y.z"}'))
    sees = browse(gate=Mounted(lambda _: Access("ann", role=OPERATOR, see_arguments=True)))

    for where in (f"queue:{QUEUE} arg:to=x@y.z", f"queue:{QUEUE} header:tenant=acme"):
        form = {"verb": "cancel", "where": where, "number": "1", "count": "1", "reason": WHY}
        refused = [
            page.get(f"/bulk{form_of_answer}", params={"verb": verb, "where": where})
            for form_of_answer in ("", ".json") for verb in ("cancel", "copy")
        ]  # fmt: skip
        for answer in (*refused, page.post("/act/bulk", data=form, headers=OWN)):
            assert answer.status_code == 403
            assert "who may see the arguments" in answer.text
    assert counts(scene, "cancelled") == {}
    assert preview(sees, "cancel", f"queue:{QUEUE} arg:to=x@y.z")["matched"] == 1
    for verb in ("cancel", "copy"):
        assert "arg:NAME=VALUE" not in read(page, f"/bulk?verb={verb}")
        assert "arg:NAME=VALUE" in read(sees, f"/bulk?verb={verb}")


def test_a_bulk_change_that_meets_an_error_changes_at_most_the_confirmed_number_of_jobs(
    scene: Scene, page: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    enqueue(scene, 400)
    form = form_of(page, f"/bulk?verb=cancel&where={READY}") | {"number": "400", "reason": WHY}
    enqueue(scene, 200, "late")
    form["where"] = f"queue:{QUEUE} state:ready"
    real, calls = Admin.cancel, itertools.count(1)

    def cancel(*given: Any, **more: Any) -> Any:
        if next(calls) == 2:
            raise ServerUnavailable(url="redis://x", why="it went away")
        return (yield from real(*given, **more))

    monkeypatch.setattr(Admin, "cancel", cancel)
    for _ in range(20):
        leads = page.post("/act/bulk", data=form, headers=OWN).headers["location"]
        if "at=" not in leads:
            break
        form = form_of(page, leads)

    assert next(calls) > 4
    assert len(counts(scene, "cancelled")) == 400


def test_a_bulk_change_whose_connection_is_cut_changes_the_confirmed_number_of_jobs(
    scene: Scene, browse: Browse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checks a call whose answer is lost. Redis carries it out, and then stays away for longer than the change
    waits."""
    monkeypatch.setattr(sources, "UNSENT_S", 0.3)
    monkeypatch.setattr(sources, "UNKNOWN_S", 0.3)
    enqueue(scene, 400)
    port = urlsplit(scene.url).port
    assert port is not None
    with Cutter(port) as cutter:
        gate = Mounted(lambda _: Access("ann", role=OPERATOR))
        page = browse(gate=gate, url=cutter.url)
        seen = preview(page, "cancel", READY)
        form = form_of(page, f"/bulk?verb=cancel&where={READY}") | {"number": "400", "reason": WHY}
        assert seen["matched"] == 400
        # More jobs match than the operator has confirmed.
        enqueue(scene, 300, "late")
        form["where"] = f"queue:{QUEUE} state:ready"

        shown = []
        for call in (1, 2, 1):
            with cutter.cutting("cancel", call):
                answer = page.post("/act/bulk", data=form, headers=OWN)
                assert cutter.cuts.is_set()
            if answer.status_code == 303:
                shown += [read(page, answer.headers["location"])]
                form = form_of(page, answer.headers["location"])
            else:
                assert answer.status_code == 503
        while "at=" in (leads := pressed(page, form)):
            shown += [read(page, leads)]
            form = form_of(page, leads)
        shown += [read(page, leads)]

    numbers = [
        int(each) for text in shown for each in re.findall(r"([0-9]+) of 400 cancelled", text)
    ]
    assert max(numbers) == numbers[-1] == 400
    assert len(counts(scene, "cancelled")) == 400
    assert set(counts(scene, "cancelled").values()) == {1}


def pressed(page: TestClient, form: dict[str, str]) -> str:
    """Send the form of a change. Return the address to which the answer leads."""
    return str(page.post("/act/bulk", data=form, headers=OWN).headers["location"])


def test_a_bulk_form_that_is_sent_again_changes_at_most_the_confirmed_number_of_jobs(
    scene: Scene, page: TestClient
) -> None:
    enqueue(scene, 400)
    form = form_of(page, f"/bulk?verb=cancel&where={READY}") | {"number": "400", "reason": WHY}
    enqueue(scene, 900, "late")
    form["where"] = f"queue:{QUEUE} state:ready"

    for _ in range(4):
        leads = pressed(page, form)
    while "at=" in leads:
        leads = pressed(page, form_of(page, leads))

    assert len(counts(scene, "cancelled")) == 400
    assert "400 of 400 cancelled" in read(page, leads)


def test_a_bulk_change_pauses_between_its_steps(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checks the length of the pauses. Each read of the test's clock advances it by 0.1 s, so that a step takes
    0.1 s."""
    ticks = itertools.count()
    monkeypatch.setattr(bulk, "time", SimpleNamespace(monotonic=lambda: next(ticks) / 10))
    enqueue(scene, 900)
    calls = scene.seed.client.calls
    form = {"where": READY, "number": "900", "count": "900", "reason": WHY}
    pauses, steps, parts, is_last = [], itertools.count(), 0, False
    real = calls.bulk.step

    def counted(*given: Any) -> Any:
        next(steps)
        return (yield from real(*given))

    monkeypatch.setattr(calls.bulk, "step", counted)
    while not is_last:
        asked = bulk.asked_for(form, scene.seed.client.run(calls.reads.now_ms(QUEUE)))
        plan, reply = bulk.stretch(calls, asked, By("ann", WHY)), None
        try:
            while True:
                each = plan.send(reply)
                if isinstance(each, Pause):
                    pauses.append(each.seconds)
                    reply = None
                else:
                    reply = scene.seed.client._transport.exchange(*each)
        except StopIteration as end:
            place, is_last, _ = end.value
        form["at"] = str(place)
        parts += 1

    made = next(steps)
    assert made > 900 / 250
    assert parts > 1
    assert pauses == pytest.approx([PAUSE_STEPS * 0.1] * (made - 1))
    assert len(counts(scene, "cancelled")) == 900
