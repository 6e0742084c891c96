"""Servers that are unreachable or silent. The page says so within 2 s.

The page still shows the data of the servers that answer.
"""

from __future__ import annotations

import html
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from sql_audit.store.connection.database import Database
from tests.kit.seed import Seed
from tests.kit.servers import RedisServer, engines
from tests.kit.wait import wait_until
from tests.web.conftest import QUEUE, Browse, Scene, lay_log, make_busy
from tests.web.test_pages import ADDRESSES, as_json


@contextmanager
def within(seconds: float) -> Iterator[None]:
    began = time.monotonic()
    yield
    assert time.monotonic() - began < seconds


@pytest.mark.slow
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


def test_the_page_shows_the_past_of_a_job_while_redis_is_unreachable(
    busy: Scene, browse: Browse
) -> None:
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
@pytest.mark.slow
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


@pytest.mark.alone
@pytest.mark.slow
def test_the_page_says_within_two_seconds_that_tables_of_postgresql_are_locked(
    scene: Scene, browse: Browse, postgres_url: str
) -> None:
    lay_log(postgres_url)
    scene.audit_url = postgres_url
    make_busy(scene)
    page = browse()
    page.get("/workers")
    tables = "job, job_attempt, job_event, claim_minute, mirror_cursor"
    with closing(Database(postgres_url)) as database, database.engine.connect() as lock:
        lock.exec_driver_sql(f"LOCK TABLE {tables} IN ACCESS EXCLUSIVE MODE")
        for path in ("/", "/log", f"/jobs?queue={QUEUE}&outcome=failed", f"/jobs/{QUEUE}/waits"):
            with within(2.0):
                answer = page.get(path)
            assert answer.status_code == 200, path
            assert "the audit log" in html.unescape(answer.text).partition("<main")[2], path
            document = page.get(as_json(path)).json()
            assert [each["what"] for each in document["unread"]] == ["the audit log"], path
        lock.rollback()

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


@pytest.mark.slow
@pytest.mark.alone
def test_all_reads_for_one_page_from_a_slow_redis_share_one_time_limit(
    busy: Scene, browse: Browse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checks two consecutive reads of 1 s. The page once took twice the time limit of one read."""
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
