"""Servers that are away or hang: the page says so within two seconds.

It shows the data of the other source.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.kit.seed import Seed
from tests.kit.servers import RedisServer, engines
from tests.kit.wait import wait_until
from tests.web.conftest import QUEUE, Browse, Scene
from tests.web.test_pages import ADDRESSES, as_json


@contextmanager
def within(seconds: float) -> Iterator[None]:
    began = time.monotonic()
    yield
    assert time.monotonic() - began < seconds


@pytest.mark.alone
@pytest.mark.parametrize("name", ["overview", "job"])
def test_the_page_says_within_two_seconds_that_redis_hangs(
    busy: Scene, browse: Browse, tmp_path: Path, name: str
) -> None:
    server = RedisServer(engines()[0], tmp_path).start()
    page = browse(url=server.url)
    assert page.get("/").status_code == 200
    time.sleep(1.1)  # That look is no longer shown.
    server.freeze()
    try:
        with within(2.0):
            answer = page.get(ADDRESSES[name])
        document = page.get(as_json(ADDRESSES[name])).json()
    finally:
        server.kill()

    assert answer.status_code == 200
    assert "no answer from Redis" in answer.text
    assert document["unread"][0]["what"] == "Redis"


def test_the_page_shows_the_past_of_a_job_while_redis_is_away(busy: Scene, browse: Browse) -> None:
    page = browse(url="redis://127.0.0.1:1/0")

    with within(2.0):
        document = page.get(f"/jobs/{QUEUE}/done.json").json()

    assert document["unread"][0]["what"] == "Redis"
    assert [step["type"] for step in document["path"]] == ["enqueued", "claimed", "succeeded"]
    assert "what to do" in page.get("/").text


def test_the_page_shows_the_queues_while_the_log_cannot_be_read(
    busy: Scene, browse: Browse
) -> None:
    Path(busy.audit_url.removeprefix("sqlite:///")).write_bytes(b"this is no database" * 100)
    page = browse()

    with within(2.0):
        document = page.get("/index.json").json()

    assert document["unread"][0]["what"] == "the audit log"
    assert [each["queue"] for each in document["queues"]] == [QUEUE]
    for path in ADDRESSES.values():
        assert page.get(path).status_code == 200


@pytest.mark.alone
def test_the_page_says_within_two_seconds_that_the_log_is_locked(
    busy: Scene, browse: Browse
) -> None:
    page = browse()
    lock = sqlite3.connect(busy.audit_url.removeprefix("sqlite:///"), isolation_level=None)
    try:
        lock.execute("PRAGMA locking_mode = EXCLUSIVE")
        lock.execute("BEGIN EXCLUSIVE")
        # The first page also prepares what is prepared once.
        page.get("/workers")
        for path in (
            "/",
            "/log",
            f"/jobs?queue={QUEUE}&outcome=failed",
            f"/schedules/{QUEUE}/beat",
        ):
            with within(2.0):
                answer = page.get(path)
            assert "no answer from the audit log within" in answer.text, path
        assert [q["queue"] for q in page.get("/index.json").json()["queues"]] == [QUEUE]
    finally:
        lock.close()

    wait_until(lambda: page.get("/log.json").json()["unread"] == [], "the log is read again")


def test_an_unreadable_queue_hides_no_other_queue_on_the_page(scene: Scene, browse: Browse) -> None:
    scene.seed.enqueue("a")
    other: Seed = scene.seed.of("broken")
    other.enqueue("b")
    scene.seed.control.delete(other.keys("outbox"))
    scene.seed.control.set(other.keys("outbox"), "no stream")

    document = browse().get("/index.json").json()

    assert [each["queue"] for each in document["queues"]] == [QUEUE]
    assert any(each["queue"] == "broken" for each in document["causes"])


@pytest.mark.alone
def test_all_questions_of_a_page_to_a_slow_redis_have_one_bound_of_time(
    busy: Scene, browse: Browse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its two questions in turn, of a second each, had twice the time that one question may take."""
    page = browse(log=False)
    sources: Any = page.app.state.sources  # type: ignore[attr-defined]
    run = sources._client.run

    def late(plan: Any) -> Any:
        time.sleep(1.0)
        return run(plan)

    monkeypatch.setattr(sources._client, "run", late)

    with within(2.0):
        document = page.get(as_json(ADDRESSES["job"])).json()

    assert [each["what"] for each in document["unread"]] == ["this page"]
