"""Hostile requests. The page answers each one quickly and with a sentence.

No answer shows what the sender must not see.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from starlette.requests import Request

from rq_core.web.access import Mounted
from rq_core.web.tokens import Access
from tests.kit.servers import RedisServer, engines
from tests.kit.wait import wait_until
from tests.web.conftest import QUEUE, SECRET, Browse, Scene
from tests.web.test_pages import ADDRESSES, as_json

FAR = [
    "0",
    "1",
    "253402300800000",
    "999999999999999",
    "9999-12-31 23:59:59",
    "0001-01-01",
    "999999d",
]
NO_TEXT = ["%00", "%ff%fe", "%ed%a0%80", "%e2%80%ae", "%1b[31m", "%0d%0aSet-Cookie:x=1"]


@pytest.mark.parametrize("t", FAR)
def test_a_moment_at_either_end_of_time_causes_no_error_of_the_server(
    busy: Scene, browse: Browse, t: str
) -> None:
    page = browse()

    for path in (f"/at?t={t}", f"/at?t={t}&queue={QUEUE}", f"/at.json?t={t}"):
        assert page.get(path).status_code in (200, 400), path


@pytest.mark.parametrize("word", ["q", "queue", "state", "task", "t", "id", "before", "after"])
def test_a_long_parameter_of_an_address_is_not_repeated_at_length_in_the_answer(
    busy: Scene, browse: Browse, word: str
) -> None:
    page = browse()

    for path in ADDRESSES.values():
        place = path.partition("?")[0]
        for address in (place, as_json(place)):
            answer = page.get(address, params={word: "z" * 60_000})
            assert answer.status_code < 500
            # A page has its own address in it, whatever is behind the question mark.
            assert len(answer.text) < (10_000 if ".json" in address else 250_000), address


@pytest.mark.parametrize("text", NO_TEXT)
@pytest.mark.parametrize("word", ["q", "queue", "task", "t", "id"])
def test_invalid_text_in_an_address_causes_no_error_of_the_server(
    busy: Scene, browse: Browse, word: str, text: str
) -> None:
    page = browse()

    for place in ("/jobs", "/at", "/dead", "/log", "/job", "/queue", f"/jobs/{QUEUE}/{text}"):
        for address in (f"{place}?{word}={text}", as_json(f"{place}?{word}={text}")):
            answer = page.get(address)
            assert answer.status_code < 500, address
            assert not {"\x00", "\x1b", "\u202e"} & set(answer.text)
            assert "set-cookie" not in answer.headers


def test_a_search_for_text_that_sql_cannot_store_is_no_error(
    scene: Scene, browse: Browse, postgres_url: str
) -> None:
    """Checks a NUL character, which PostgreSQL cannot store in a text."""
    from tests.web.conftest import lay_log

    lay_log(postgres_url)
    scene.audit_url = postgres_url
    scene.die("died")
    scene.mirror()
    page = browse()

    for asks in (
        "outcome:died+error:%00",
        "outcome:died+worker:%00",
        "%00",
        "outcome:died+scope:%00+queue:mail",
    ):
        answer = page.get(f"/jobs.json?q={asks}")
        assert answer.status_code in (200, 400), answer.text


def test_arguments_that_one_viewer_may_see_are_not_shown_to_other_viewers(
    scene: Scene, browse: Browse
) -> None:
    scene.die("died")
    scene.mirror()

    def who(request: Request) -> Access:
        return Access("ann", see_arguments=request.headers["x-who"] == "ann")

    page = browse(gate=Mounted(who))
    for path in ("/dead", f"/jobs/{QUEUE}/died", "/log", "/jobs?q=outcome:died"):
        for place in (path, as_json(path)):
            hers = page.get(place, headers={"x-who": "ann"})
            his = page.get(place, headers={"x-who": "bob", "if-none-match": hers.headers["etag"]})
            assert SECRET in hers.text, place
            assert his.status_code == 200
            assert SECRET not in his.text, place


@pytest.mark.parametrize(
    "path",
    [
        "/static/../tokens.py",
        "/static/%2e%2e/tokens.py",
        "/static/..%2ftokens.py",
        "/static//etc/passwd",
        "/static/",
    ],
)
def test_only_the_static_files_are_served_from_the_static_path(
    scene: Scene, browse: Browse, path: str
) -> None:
    answer = browse().get(path)

    assert answer.status_code in (400, 404)
    assert "import" not in answer.text


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_every_page_refuses_methods_that_are_not_for_reading(
    scene: Scene, browse: Browse, method: str
) -> None:
    page = browse()

    for path in ADDRESSES.values():
        answer = page.request(method, path, headers={"sec-fetch-site": "same-origin"})
        assert answer.status_code == 405, path


@pytest.mark.slow
def test_the_page_answers_soon_after_redis_stopped_hanging(
    busy: Scene, browse: Browse, tmp_path: Path
) -> None:
    """Checks that the page's eight threads, which waited for Redis, are free again."""
    server = RedisServer(engines()[0], tmp_path).start()
    page = browse(url=server.url)
    assert page.get("/").status_code == 200
    server.freeze()
    try:
        for number in range(10):
            assert page.get(f"/jobs/{QUEUE}/{number}").status_code == 200
    finally:
        server.thaw()
    try:
        began = time.monotonic()
        wait_until(
            lambda: page.get(f"/jobs/{QUEUE}/x.json").json()["unread"] == [],
            "Redis can be read again",
            timeout=10,
        )
        assert time.monotonic() - began < 5
    finally:
        server.kill()
