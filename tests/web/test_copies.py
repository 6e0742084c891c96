"""Copies on the page: of one job, and of all dead jobs that match a filter."""

from __future__ import annotations

import contextlib
import html
import itertools
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from rq_core import App, Cap
from rq_core.app.many import copying
from rq_core.app.many.copying import Copying
from rq_core.errors import OutcomeUnknown
from rq_core.model import plugins
from rq_core.protocol.calls import claims
from rq_core.web.access import Mounted
from rq_core.web.acting import actions, copies
from rq_core.web.dashboard import dashboard
from rq_core.web.tokens import OPERATOR, Access
from sql_audit.store.connection.database import Database
from tests.kit import auditlog
from tests.kit.mirroring import mirroring
from tests.kit.wait import wait_until
from tests.web.conftest import HOST, QUEUE, SECRET, Browse, Scene, read
from tests.web.test_acting import OWN, WHY, admin_page, press, state_of, told
from tests.web.test_change_many import form_of, preview
from tests.web.test_pages import parsed

DIED = f"queue:{QUEUE} error:Timeout"
NAMED = copying.replay_name(None, {})
"""The name of a replay without changed arguments."""


@pytest.fixture
def page(browse: Browse) -> TestClient:
    """Return the page as an operator sees it."""
    return admin_page(browse, role=OPERATOR)


@pytest.fixture
def mirrored(scene: Scene) -> Iterator[Scene]:
    """Return a scene whose queue a running mirror copies."""
    with mirroring(scene.url, scene.audit_url):
        yield scene


def die(scene: Scene, count: int, error: str = "Timeout") -> list[str]:
    """Let jobs die of an error, and return their ids."""
    seed = scene.seed
    first = len(seed.entries())
    ids = [f"{error}-{first}-{number}" for number in range(count)]
    seed.enqueue(*(seed.job(name, task="send", spec_max=1_000) for name in ids))
    said = json.dumps({"type": error, "message": SECRET})
    while held := seed.claim(250).jobs:
        failed = [(each.id, each.fence, "final", 0, "gave_up", said) for each in held]
        seed.client.run(claims.fail(QUEUE, "w-1", failed))
    return ids


def enqueued(scene: Scene) -> dict[str, tuple[str, str | None, int]]:
    """Return who enqueued each copy, why, and how often, from the log."""
    found: dict[str, tuple[str, str | None, int]] = {}
    client = scene.seed.client
    with (
        contextlib.closing(plugins.copies_opener()(scene.audit_url)) as reader,
        contextlib.closing(Database(scene.audit_url)) as database,
    ):
        copying.wait_for_log(client, reader, QUEUE)
        asked = "SELECT job_id, worker, detail FROM job_event WHERE type = 'enqueued' ORDER BY seq"
        for row in auditlog.rows(database, asked):
            if ".r" in row["job_id"]:
                before = found.get(row["job_id"], ("", "", 0))[2]
                why = json.loads(row["detail"]).get("why")
                found[row["job_id"]] = row["worker"], why, before + 1
    return found


# One job.


def test_an_operator_copies_a_job_and_is_named_in_the_log(
    scene: Scene, browse: Browse, page: TestClient
) -> None:
    with mirroring(scene.url, scene.audit_url):
        (job_id,) = die(scene, 1)
        says = told(page, "job/copy", id=job_id, name="again", args='{"n": 5}', reason=WHY)

        assert says == "This copy is enqueued."
        answer = press(page, "job/copy", id=job_id, name="again", args='{"n": 5}', reason=WHY)
        assert answer.headers["location"].startswith(f"/jobs/{QUEUE}/{job_id}.ragain?did=")
        assert "copied before" in read(page, answer.headers["location"])
        log = enqueued(scene)

    assert log == {f"{job_id}.ragain": ("ann", WHY, 1)}
    assert (state_of(scene, job_id), state_of(scene, f"{job_id}.ragain")) == ("dead", "ready")
    event = browse().get(f"/jobs/{QUEUE}/{job_id}.ragain.json").json()["events"][0]
    assert (event["worker"], event["detail"]["why"]) == ("ann", WHY)
    seen = browse(see_arguments=True).get(f"/jobs/{QUEUE}/{job_id}.ragain.json").json()
    assert '"n": 5' in json.dumps(seen["job"]["args"])


def test_a_page_without_a_log_copies_only_jobs_that_redis_has(busy: Scene, browse: Browse) -> None:
    page = browse(log=False, gate=Mounted(lambda _: Access("ann", role=OPERATOR)))

    assert told(page, "job/copy", id="died", reason=WHY) == "This copy is enqueued."
    answer = press(page, "job/copy", id="done", reason=WHY)
    assert answer.status_code == 409
    assert "was not copied: arguments not kept" in answer.text
    assert "start it with --audit URL" in read(page, f"/bulk?verb=copy&where={DIED}")


REFUSED = [
    ({"args": "3"}, "must be a JSON object"), ({"args": "{"}, "must be a JSON object"), ({"name": "a b"}, "1 to 12"),
    ({"args": "[" * 400}, "must be a JSON object"), ({"colour": "red"}, "must be a field"),
]  # fmt: skip


def test_a_copy_is_refused_if_the_form_is_malformed_or_the_job_is_unknown(
    busy: Scene, page: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = busy.seed.entries()
    for form, says in REFUSED:
        answer = press(page, "job/copy", id="died", **form)
        assert answer.status_code == 400, form
        assert says in answer.text
    assert press(page, "job/copy", id="nobody").status_code == 409
    monkeypatch.setattr(actions, "MIRROR_S", 0.1)
    busy.seed.enqueue("unmirrored")
    answer = press(page, "job/copy", id="died")
    assert answer.status_code == 409
    assert "does a mirror run" in answer.text

    assert len(busy.seed.entries()) == len(before) + 1


# Many jobs.


def replay(page: TestClient, where: str = DIED, number: object = None, **more: str) -> Any:
    """Send the form that copies all jobs which the preview counts."""
    given = {"verb": "copy", "where": where} | more
    seen = dict(page.get("/bulk.json", params=given).json())
    form = given | {"at": seen["begin"], "count": str(seen["matched"]), "reason": WHY}
    form["number"] = str(seen["matched"] if number is None else number)
    return page.post("/act/bulk", data=form, headers=OWN)


@pytest.mark.slow
def test_dead_jobs_are_copied_once_and_the_log_says_who_did_it(
    mirrored: Scene, page: TestClient
) -> None:
    died = die(mirrored, 30)
    die(mirrored, 3, "Other")
    mirrored.seed.client.run(mirrored.seed.client.calls.admin.requeue(QUEUE, [died[0]]))

    seen = preview_of_all(page, 29)
    leads = wait_until(
        lambda: [each for each in parsed(read(page, "/dead")).links if "verb=copy" in each],
        "the page has the deaths by error",
    )
    assert "29" in read(page, html.unescape(leads[0])).partition("jobs to copy")[0][-60:]
    assert seen["states"] == {}
    first = replay(page)
    shown = read(page, first.headers["location"])
    second = replay(page, number=29)

    assert "29 of 29 copied; the log has it as bulk" in shown
    assert "29 copied before" in shown
    assert "No job is left to copy" in shown
    assert second.status_code == 400
    name = copying.replay_name(None, {})
    found = enqueued(mirrored)
    assert found.keys() == {f"{job_id}.r{name}" for job_id in died[1:]}
    ((by, why, times),) = set(found.values())
    assert (by, times) == ("ann", 1)
    assert re.fullmatch(f"bulk [0-9a-f]{{16}}: {WHY}", why or "")
    # Another name makes other copies.
    assert replay(page, name="n2").status_code == 303
    assert len(enqueued(mirrored)) == 58


def preview_of_all(page: TestClient, count: int) -> dict[str, Any]:
    """Wait until the log has all deaths and all requeues, and return the preview."""
    return wait_until(
        lambda: (
            (seen := preview(page, "copy", DIED))["matched"] == count
            and not seen["states"]
            and seen
        ),
        "the log has what happened to the jobs",
    )


@pytest.mark.slow
def test_a_replay_that_was_stopped_continues_and_copies_each_job_once(
    mirrored: Scene, browse: Browse, page: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copies, "CHANGE_S", 0.0)
    monkeypatch.setattr(copying, "PAGE", 7)
    died = die(mirrored, 20)
    preview_of_all(page, 20)

    leads = replay(page, args='{"n": 1}', name="n").headers["location"]
    form = form_of(page, leads)
    assert 0 < len(enqueued(mirrored)) < 20
    # The operator has confirmed this replay, so the page does not ask for the number again.
    assert (form["number"], form["name"], form["args"]) == ("20", "n", '{"n": 1}')
    for forged in (leads.replace("name=n", "name=m"), leads.replace("%3A+1%7D", "%3A+2%7D")):
        assert forged != leads
        assert 'id="many-number"' in read(page, forged)
    for _ in range(9):
        # As if the answer had been lost: the same part is sent a second time.
        page.post("/act/bulk", data=form, headers=OWN)
        leads = page.post("/act/bulk", data=form, headers=OWN).headers["location"]
        if "at=" not in leads:
            break
        form = form_of(page, leads)

    assert {job_id: many for job_id, (_, _, many) in enqueued(mirrored).items()} == {
        f"{job_id}.rn": 1 for job_id in died
    }
    assert len({why for _, why, _ in enqueued(mirrored).values()}) == 1


def lose_an_answer(patch: pytest.MonkeyPatch, number: int) -> None:
    """Lose the answer to one call that enqueues copies. ``number`` counts the calls from 1."""
    enqueue, calls = Copying._enqueue, itertools.count(1)

    def losing(self: Copying, jobs: Any) -> Any:
        accepted = enqueue(self, jobs)
        if next(calls) == number:
            raise OutcomeUnknown(seconds=1.0)
        return accepted

    patch.setattr(Copying, "_enqueue", losing)


def filled(page: TestClient, number: int) -> dict[str, str]:
    """Return the form that copies this number of jobs."""
    form = form_of(page, f"/bulk?verb=copy&where={DIED}")
    return form | {"reason": WHY, "number": str(number)}


def send_until_done(page: TestClient, form: dict[str, str]) -> str:
    """Send a form repeatedly, also after errors, until all jobs are copied. Return the text of the last page."""
    for _ in range(9):
        leads = page.post("/act/bulk", data=form, headers=OWN).headers.get("location")
        if leads is not None and "at=" not in leads:
            return read(page, leads)
        form = form if leads is None else form_of(page, leads)
    raise AssertionError("the replay does not end")


@pytest.mark.parametrize("number", [1, 2])
def test_copies_whose_answer_was_lost_count_for_the_confirmed_number(
    number: int, mirrored: Scene, page: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copies, "CHANGE_S", 0.0)
    monkeypatch.setattr(copying, "PAGE", 3)
    died = die(mirrored, 8)
    preview_of_all(page, 8)
    form = filled(page, 8)
    # Jobs that die now are beyond the confirmed number.
    later = die(mirrored, 9)
    wait_until(lambda: preview(page, "copy", DIED)["matched"] == 17, "the log has all deaths")
    lose_an_answer(monkeypatch, number)

    shown = send_until_done(page, form)

    assert "8 of 8 copied" in shown
    found = enqueued(mirrored)
    assert (len(found), {times for _, _, times in found.values()}) == (8, {1})
    assert len(found.keys() & {copying.copy_id(each, NAMED) for each in later}) == 8
    assert not found.keys() & {copying.copy_id(each, NAMED) for each in died}


def test_a_job_that_died_twice_counts_once_towards_the_confirmed_number(
    mirrored: Scene, page: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checks a job whose two deaths are read by two requests. The second request finds that the copy exists."""
    monkeypatch.setattr(copies, "CHANGE_S", 0.0)
    monkeypatch.setattr(copying, "PAGE", 4)
    seed = mirrored.seed
    once = die(mirrored, 4)
    twice = die(mirrored, 4)
    seed.client.run(seed.client.calls.admin.requeue(QUEUE, twice))
    die(mirrored, 0)
    preview_of_all(page, 8)

    shown = send_until_done(page, filled(page, 8))

    assert "8 of 8 copied" in shown
    assert enqueued(mirrored).keys() == {copying.copy_id(each, NAMED) for each in (*once, *twice)}


@pytest.mark.slow
def test_a_replay_copies_at_most_the_confirmed_number_of_jobs(
    mirrored: Scene, page: TestClient
) -> None:
    die(mirrored, 5)
    preview_of_all(page, 5)
    form = form_of(page, f"/bulk?verb=copy&where={DIED}") | {"reason": WHY}
    for changed, says in (
        ({"number": "4"}, "must repeat how many jobs"), ({"reason": "", "number": "5"}, "reason"),
        ({"where": f"{DIED} state:dead", "number": "5"}, "a replay asks for"),
        ({"args": "3", "number": "5"}, "JSON object"),
        ({"where": "queue:nothing error:Timeout", "number": "5"}, "nothing"),
        ({"name": "a b", "number": "5"}, "1 to 12"),
        ({"args": json.dumps({"n": "x" * 500}), "number": "5"}, "at most 500 characters"),
    ):  # fmt: skip
        answer = page.post("/act/bulk", data=form | changed, headers=OWN)
        assert answer.status_code == 400, changed
        assert says in answer.text, changed
    assert enqueued(mirrored) == {}
    die(mirrored, 9, "Timeout")

    page.post("/act/bulk", data=form | {"number": "5"}, headers=OWN)

    assert len(enqueued(mirrored)) == 5
    assert "nothing" not in mirrored.seed.client.run(mirrored.seed.client.calls.reads.queues())


@pytest.mark.slow
def test_the_page_after_a_replay_does_not_offer_to_copy_the_same_jobs_again(
    mirrored: Scene, page: TestClient
) -> None:
    die(mirrored, 3)
    preview_of_all(page, 3)

    for more in ({"name": "n"}, {"args": '{"n": 1}'}):
        shown = read(page, replay(page, **more).headers["location"])

        assert "3 of 3 copied" in shown
        assert "No job is left to copy" in shown


def test_the_copy_form_shows_the_changed_arguments_and_the_ids_of_the_copies(
    busy: Scene, page: TestClient
) -> None:
    given = {"verb": "copy", "where": f"queue:{QUEUE} error:SmtpError"}
    text = html.unescape(read(page, "/bulk", params=given | {"args": '{"n": 1}', "name": "n"}))
    plain = read(page, "/bulk", params=given)

    form, plain_form = (
        each.partition('id="many"')[2].partition("</form>")[0] for each in (text, plain)
    )
    assert "ID.rn</code>, and the arguments of its job with these changes: " in form
    assert '<code>{"n": 1}</code>' in form
    assert (
        f"ID.r{copying.replay_name(None, {})}</code>, and the arguments of its job." in plain_form
    )


@pytest.mark.slow
def test_a_mounted_page_copies_jobs_with_the_options_of_its_app(scene: Scene) -> None:
    app = App(scene.url, scene.audit_url, audit_payload="full", max_payload=100_000)
    keyed = Cap(1, per=lambda n, **_: str(n), name="by-n")
    task = app.task(queue=QUEUE, name="keyed", caps=[keyed])(lambda n: None)
    app.apply_settings()
    made = dashboard(app, authorize=lambda _: Access("ann", role=OPERATOR))
    with mirroring(scene.url, scene.audit_url), TestClient(made, base_url=HOST) as page:
        job_id = task.enqueue(n=1).id

        answer = press(page, "job/copy", id=job_id, name="n", reason=WHY)

        assert "This copy is enqueued." in answer.text
        lanes = {each.id: each.lane for each in scene.seed.claim(2).jobs}
        assert lanes == {job_id: "2+by-n=1"}
        enqueued(scene)
        with contextlib.closing(plugins.copies_opener()(scene.audit_url)) as reader:
            assert f"{job_id}.rn" in reader.specs(QUEUE, [f"{job_id}.rn"])
    app.close()
