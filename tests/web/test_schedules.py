"""The pages of schedules: when each is due, how its instants ended, and why an instant was late."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest

from rq_core.protocol.calls.schedules import tick
from rq_core.worker.ticker import instants_of
from tests.web.conftest import QUEUE, SECRET, Browse, Scene, read

HOUR_MS = 3_600_000


def _serve(scene: Scene) -> None:
    """Fire the due schedules, as a worker does."""
    run = scene.seed.client.run
    answer = run(tick(QUEUE, "w-1"))
    while answer.due:
        answer = run(tick(QUEUE, "w-1", instants_of(answer.due, answer.now_ms)))


@pytest.fixture
def scheduled(scene: Scene) -> Scene:
    """Make four schedules: one that has fired, one that was paused and resumed, one with a refused job, and an
    unreadable one."""
    seed = scene.seed
    scene.schedule("beat", every=1, overlap="allow", args_json=f'{{"to":"{SECRET}"}}')
    scene.schedule("kept-out", cron="0 0 29 2 *")
    scene.schedule("night", cron="30 2 * * *", tz="Europe/Berlin", spread=60)
    scene.schedule("broken", every=600)
    calls = seed.client.calls.schedules
    seed.client.run(calls.run(QUEUE, "kept-out"))
    seed.client.run(calls.run(QUEUE, "kept-out"))
    seed.client.run(calls.change(QUEUE, "night", "pause"))
    seed.live(2_000)
    _serve(scene)
    seed.client.run(calls.change(QUEUE, "night", "resume"))
    control: Any = seed.control
    control.hset(seed.keys("schedules"), "broken", "nonsense")
    scene.mirror()
    return scene


def test_the_page_of_schedules_shows_the_next_and_the_last_instant_of_each_schedule(
    scheduled: Scene, browse: Browse
) -> None:
    page = browse()
    document = page.get("/schedules.json").json()
    text = read(page, "/schedules")

    rows = {each["name"]: each for each in document["schedules"]}
    assert document["schedules"][0]["name"] == "beat"
    assert set(rows) == {"beat", "kept-out", "night"}
    assert rows["beat"]["last_tick"]["outcome"] == "fired"
    assert rows["kept-out"]["last_tick"]["outcome"] == "not_run"
    assert rows["night"]["last_tick"] is None
    assert rows["night"]["when"] == "30 2 * * * Europe/Berlin"
    assert "broken" in document["notes"][0]
    assert "30 2 * * * Europe/Berlin" in text
    assert "schedule broken of queue" in text


def test_the_page_of_a_schedule_shows_its_rule_and_its_instants(
    scheduled: Scene, browse: Browse
) -> None:
    page = browse()
    document = page.get(f"/schedules/{QUEUE}/night.json").json()
    text = read(page, f"/schedules/{QUEUE}/night")

    assert ["cron", "30 2 * * *"] not in document["definition"]
    assert ["when", "30 2 * * * Europe/Berlin"] in document["definition"]
    assert ["spread", "1 min"] in document["definition"]
    assert len(document["next"]) == 5
    steps = {
        b["nominal_ms"] - a["nominal_ms"]
        for a, b in zip(document["next"], document["next"][1:], strict=False)
    }
    assert steps <= {23 * HOUR_MS, 24 * HOUR_MS, 25 * HOUR_MS}
    assert {each["due_ms"] - each["nominal_ms"] for each in document["next"]} == {
        document["next"][0]["due_ms"] - document["next"][0]["nominal_ms"]
    }
    assert [each["state"] for each in document["changes"]] == ["on", "paused", "on"]
    assert "resumed it, next at" in text
    assert document["says"].startswith("its next instant is")


def test_an_instant_on_the_page_links_to_its_job(scheduled: Scene, browse: Browse) -> None:
    page = browse()
    ticks = page.get(f"/schedules/{QUEUE}/beat.json").json()["ticks"]
    kept_out = page.get(f"/schedules/{QUEUE}/kept-out.json").json()["ticks"]

    assert ticks[0]["outcome"] == "fired"
    job = page.get(f"{ticks[0]['path']}.json").json()
    assert job["path"][0]["type"] == "enqueued"
    assert [each["outcome"] for each in kept_out] == ["not_run", "run"]
    assert "asked for it: no job, since " in kept_out[0]["says"]


@pytest.mark.slow
def test_the_page_of_a_schedule_says_why_an_instant_was_late(scene: Scene, browse: Browse) -> None:
    scene.schedule("slow", every=60)
    scene.seed.live(200_000)
    _serve(scene)
    scene.mirror()
    page = browse()

    (found,) = page.get(f"/schedules/{QUEUE}/slow.json").json()["ticks"]

    assert (found["outcome"], found["missed"] > 0) == ("fired", True)
    assert found["late"] == (found["late_ms"] > 60_000)
    assert found["says"].startswith("enqueued ")
    assert page.get(found["then"]).status_code == 200
    (row,) = page.get("/schedules.json").json()["schedules"]
    assert row["last_tick"]["late"] == found["late"]


def test_the_page_of_a_paused_schedule_shows_no_next_instant(
    scheduled: Scene, browse: Browse
) -> None:
    scheduled.seed.client.run(scheduled.seed.client.calls.schedules.change(QUEUE, "night", "pause"))
    page = browse()

    assert page.get(f"/schedules/{QUEUE}/night.json").json()["next"] == []
    assert "rq-core schedule resume mail night" in read(page, f"/schedules/{QUEUE}/night")


def test_the_arguments_of_the_job_of_a_schedule_are_hidden(
    scheduled: Scene, browse: Browse
) -> None:
    """Checks the pages of the log, in which the event of a change has the schedule's job."""
    shown, hidden = browse(see_arguments=True), browse()

    for path in (f"/schedules/{QUEUE}/beat", "/log", f"/log?queue={QUEUE}", "/schedules"):
        place, _, asks = path.partition("?")
        for each in (path, f"{place}.json?{asks}"):
            assert SECRET not in hidden.get(each).text, each
    assert SECRET in read(shown, f"/log?queue={QUEUE}")


def test_the_page_of_a_schedule_that_is_late_says_why(scene: Scene, browse: Browse) -> None:
    scene.schedule("slow", every=60)
    scene.schedule("rare", cron="0 0 29 2 *")
    control: Any = scene.seed.control
    key, due_ms = scene.seed.keys("schedules"), int(time.time() * 1000) - 200_000
    entry = control.hget(key, "slow")
    entry = entry if isinstance(entry, str) else entry.decode()
    control.hset(key, "slow", re.sub(r"(next|due)=\d+", rf"\1={due_ms}", entry))
    control.zadd(scene.seed.keys("ticks"), {"slow": due_ms})
    page = browse()

    (cause,) = page.get(f"/schedules/{QUEUE}/slow.json").json()["causes"]

    assert "schedule slow of queue mail is late by" in cause["says"]
    assert "no worker runs; start one" in cause["says"]
    assert cause["path"] == f"/schedules?queue={QUEUE}"
    assert page.get(f"/schedules/{QUEUE}/rare.json").json()["causes"] == []


def test_the_page_of_an_unknown_schedule_says_that_there_is_no_such_schedule(
    scene: Scene, browse: Browse
) -> None:
    page = browse()

    assert "Redis has no schedule of this name" in read(page, f"/schedules/{QUEUE}/none")
    assert "No schedule." in read(page, "/schedules")
    assert page.get("/schedules/mail/a%20b").status_code == 400
