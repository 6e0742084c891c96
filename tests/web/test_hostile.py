"""Pages show hostile texts as plain text. Only viewers with the right to see arguments see secret fields of jobs."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rq_core.protocol.calls import claims
from tests.web.conftest import QUEUE, SECRET, Browse, Scene, read
from tests.web.test_pages import ADDRESSES, as_json, parsed

MARKUP = "<img src=x onerror=alert(1)><script>alert(2)</script>'\"&{{ 6*7 }}"
STEERING = "\x1b[31mred\x1b[0m \u202egnp.exe \u2066x\u2069 \u200b\x00\x9b"
LONG = "z" * 1_000_000
ENDED = f"/jobs?queue={QUEUE}&outcome=any"
NAMES = ["..", ".", "a.json", "etc:passwd", "x" * 128, "-", "index.json", "login", "static"]


@pytest.mark.parametrize("see_arguments", [False, True])
def test_markup_in_an_error_is_shown_as_text(
    scene: Scene, browse: Browse, see_arguments: bool
) -> None:
    scene.die("died", json.dumps({"type": MARKUP, "message": MARKUP, "traceback": MARKUP}))
    scene.mirror()
    page = browse(see_arguments=see_arguments)

    for path in ("/", "/dead", f"/jobs/{QUEUE}/died", "/log", f"/queues/{QUEUE}", ENDED):
        text = read(page, path)
        assert "<img src" not in text
        assert "<script>" not in text
        assert parsed(text).open == []
    assert "&lt;img src=x" in read(page, "/dead")


def test_control_characters_and_changes_of_the_text_direction_are_escaped(
    scene: Scene, browse: Browse
) -> None:
    scene.die("died", json.dumps({"type": "E", "message": STEERING, "traceback": STEERING}))
    scene.mirror()
    page = browse(see_arguments=True)

    for path in ("/dead", f"/jobs/{QUEUE}/died", "/log", ENDED):
        text = read(page, path)
        assert "gnp.exe" in text
        assert not {"\x1b", "\u202e", "\u2066", "\u200b", "\x00", "\x9b"} & set(text)


def test_a_text_of_a_megabyte_is_cut_on_every_page(scene: Scene, browse: Browse) -> None:
    scene.die("died", json.dumps({"type": "E", "message": LONG, "traceback": LONG}))
    scene.seed.enqueue("big", args_json=json.dumps({"to": LONG}))
    scene.mirror()
    page = browse(see_arguments=True)

    for path in ("/", "/dead", f"/jobs/{QUEUE}/died", f"/jobs/{QUEUE}/big", "/log", "/jobs", ENDED):
        assert len(read(page, path)) < 100_000


@pytest.mark.parametrize("name", NAMES)
def test_a_queue_whose_name_looks_like_a_path_has_its_page(
    scene: Scene, browse: Browse, name: str
) -> None:
    other = scene.seed.of(name)
    other.enqueue("j", other.job(".."), other.job("b.json"))
    page = browse(log=False)

    row = page.get("/index.json").json()["queues"][0]
    jobs = page.get("/jobs.json", params={"queue": name}).json()["jobs"]

    assert row["queue"] == name
    assert name in read(page, row["path"])
    shown = [page.get(each["path"]) for each in jobs]
    assert len(shown) == 3
    assert all(each.status_code == 200 and "why" not in each.url.path for each in shown)
    assert all(f">{each['id']}<" in page.text for each, page in zip(jobs, shown, strict=True))


def test_markup_in_names_of_workers_and_queues_is_shown_as_text(
    scene: Scene, browse: Browse
) -> None:
    scene.seed.enqueue("a")
    scene.present(host=MARKUP)
    control: Any = scene.seed.control
    control.sadd("rqc:queues", MARKUP)
    page = browse()

    for path in ("/", "/workers", f"/queues/{QUEUE}"):
        assert "<img src" not in read(page, path)
    assert "&lt;img src" in read(page, "/workers")


def test_text_that_is_not_utf_8_is_shown(scene: Scene, browse: Browse) -> None:
    scene.seed.enqueue("a")
    control: Any = scene.seed.control
    control.hset(scene.seed.keys("state"), "a", b"ready task=\xff\xfe seq=1 since=1")
    page = browse(see_arguments=True)

    for path in ("/", f"/jobs?queue={QUEUE}", f"/jobs/{QUEUE}/a"):
        read(page, path)
        assert page.get(as_json(path)).json()


# What jobs carry.


@pytest.fixture
def secretive(scene: Scene) -> Scene:
    """Make a queue whose jobs have the secret in each secret field, in Redis and in the log."""
    seed = scene.seed
    arguments = json.dumps({"to": SECRET})
    scene.die("died")
    carries = seed.job(
        "carries", args_json=arguments, spec_max=10_000, name=f"t/to={SECRET}", keep_ms=600_000,
        audit_result="full", priority="critical",
    )._replace(headers_json=json.dumps({"trace": SECRET}))  # fmt: skip
    seed.enqueue(carries)
    claim = seed.claim_one("carries")
    seed.complete(claim, values={0: f"+{json.dumps(SECRET)}"})
    seed.enqueue(
        seed.job("alive", args_json=arguments, spec_max=10_000, name=f"t/of={SECRET}")._replace(
            headers_json=json.dumps({"trace": SECRET})
        )
    )
    again = seed.running("again", args_json=arguments)
    seed.client.run(
        claims.fail(
            QUEUE, "w-1",
            [(again.id, again.fence, "retry", 60_000, "x", json.dumps({"type": "E", "message": SECRET}))],
        )
    )  # fmt: skip
    scene.present()
    scene.mirror()
    return scene


def test_no_page_shows_the_secret_fields_of_jobs(secretive: Scene, browse: Browse) -> None:
    page = browse()
    jobs = [f"/jobs/{QUEUE}/{each}" for each in ("died", "carries", "alive", "again")]
    lists = [
        f"/jobs?queue={QUEUE}&{words}" for words in ("state=dead", "state=scheduled", "outcome=any")
    ]

    for path in (*ADDRESSES.values(), *jobs, *lists):
        for place in (path, as_json(path)):
            answer = page.get(place)
            assert answer.status_code == 200
            assert SECRET not in answer.text, place


def test_a_viewer_with_the_right_to_see_arguments_sees_the_secret_fields_of_jobs(
    secretive: Scene, browse: Browse
) -> None:
    """Checks that the pages have the secret. Only then does the test of viewers without the right prove anything."""
    page = browse(see_arguments=True)

    for name in ("died", "carries", "alive", "again"):
        assert SECRET in read(page, f"/jobs/{QUEUE}/{name}")
        assert SECRET in page.get(f"/jobs/{QUEUE}/{name}.json").text
    assert SECRET in read(page, "/dead")
    assert SECRET in read(page, "/log")
