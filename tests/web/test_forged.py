"""Rows and keys that rq-core did not write. Each page answers, and says what it cannot read or show."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Callable
from typing import Any

import pytest

from sql_audit.proof.record import record_proofs
from sql_audit.proof.verify import verify
from sql_audit.store.connection.database import Database
from tests.web.conftest import QUEUE, SECRET, Browse, Scene
from tests.web.test_pages import ADDRESSES, as_json

DEEP = "[" * 100_000
NEWLINE = "\n"
JOBS = [f"/jobs/{QUEUE}/{each}" for each in ("died", "done", "holds")]
LISTS = [f"/jobs?queue={QUEUE}&outcome=any", f"/at?queue={QUEUE}", f"/log?queue={QUEUE}"]


def forge_rows(scene: Scene, statement: str, *values: Any) -> None:
    """Change rows of the log without its triggers and CHECKs, as an operator with all rights can."""
    path = scene.audit_url.removeprefix("sqlite:///")
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as log:
        log.execute("PRAGMA ignore_check_constraints = ON")
        names = log.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall()
        for (name,) in names:
            log.execute(f"DROP TRIGGER {name}")
        assert log.execute(statement, values).rowcount > 0


def look_at_all(browse: Browse) -> dict[str, Any]:
    """Open each page as HTML and as JSON. Return the JSON documents by path."""
    page = browse()
    found = {}
    for path in (*ADDRESSES.values(), *JOBS, *LISTS):
        answer = page.get(path)
        assert answer.status_code == 200, path
        assert SECRET not in answer.text
        document = page.get(as_json(path))
        assert document.status_code == 200, path
        assert SECRET not in document.text
        found[path] = document.json()
    return found


@pytest.mark.parametrize(
    "column", ["mirror_cursor.events", "job_attempt.claimed_at_ms", "job.ready_at_ms"]
)
def test_each_page_answers_even_if_the_log_has_bytes_in_place_of_a_number(
    busy: Scene, browse: Browse, column: str
) -> None:
    table, _, name = column.partition(".")
    forge_rows(busy, f"UPDATE {table} SET {name} = ?", b"\xff")

    look_at_all(browse)


def test_the_first_page_names_the_verify_command_if_the_log_has_forged_values(
    busy: Scene, browse: Browse
) -> None:
    forge_rows(busy, "UPDATE mirror_cursor SET at_ms = ?", SECRET)

    overview = look_at_all(browse)["/"]

    (cause,) = (each for each in overview["causes"] if each["alert"] == "RqCoreAuditDown")
    assert "rq-core audit verify" in cause["says"]
    assert overview["queues"][0]["queue"] == QUEUE


def test_the_page_of_a_job_with_unreadable_events_shows_the_data_in_redis(
    busy: Scene, browse: Browse
) -> None:
    forge_rows(busy, "UPDATE job_event SET at_ms = ? WHERE type = 'claimed'", b"\xff")

    document = look_at_all(browse)[f"/jobs/{QUEUE}/holds"]

    assert document["job"]["state"] == "running"
    assert [each["what"] for each in document["unread"]] == ["the past"]
    assert "rq-core audit verify" in document["unread"][0]["why"]


@pytest.mark.parametrize(
    ("forged", "says"),
    [
        ("head = 'f00d'", "not of this log"),
        ("events = 1000000", "not of this log"),
        ("at_ms = 4000000000000", "its time is still to come"),
        ("verdict = 'unknown'", "something could not be proved"),
    ],
)
def test_the_page_of_the_log_says_why_a_recorded_proof_is_incomplete(
    busy: Scene, browse: Browse, forged: str, says: str
) -> None:
    database = Database(busy.audit_url)
    with contextlib.closing(database):
        record_proofs(database, verify(database))
    page = browse()
    (whole,) = page.get("/audit.json").json()["queues"]
    assert (whole["proof_lacks"], whole["unproven_events"]) == ("", 0)
    assert says not in page.get("/audit").text

    forge_rows(busy, f"UPDATE mirror_proof SET {forged}")

    page = browse()
    (row,) = page.get("/audit.json").json()["queues"]
    assert says in row["proof_lacks"]
    assert says in page.get("/audit").text
    assert (row["unproven_events"] == row["events"]) == ("not of" in says)


def change_field(scene: Scene, key: str, field: str, change: Callable[[str], str]) -> None:
    """Change a field of a hash in Redis, as an operator with redis-cli can."""
    control: Any = scene.seed.control
    old = control.hget(scene.seed.keys(key), field)
    new = change(old)
    assert new != old
    control.hset(scene.seed.keys(key), field, new)


@pytest.mark.parametrize("error", [DEEP, "[1]"], ids=["deep", "list"])
def test_a_dead_job_with_a_strange_error_hides_no_other_dead_job(
    busy: Scene, browse: Browse, error: str
) -> None:
    busy.die("other")
    change_field(busy, "jobs", "died", lambda old: f"error={error}\n{old.partition(NEWLINE)[2]}")

    found = look_at_all(browse)

    assert {each["id"] for each in found["/dead"]["jobs"]} == {"died", "other"}
    assert found[f"/jobs/{QUEUE}/died"]["job"]["state"] == "dead"


def test_a_job_with_deeply_nested_json_still_has_a_page(busy: Scene, browse: Browse) -> None:
    change_field(busy, "jobs", "waits", lambda _: DEEP)

    document = look_at_all(browse)[f"/jobs/{QUEUE}/waits"]

    assert (document["job"]["state"], document["unread"]) == ("ready", [])


@pytest.mark.parametrize("every", ['"often"', DEEP], ids=["text", "deep"])
def test_a_schedule_with_a_strange_rule_hides_no_other_schedule(
    busy: Scene, browse: Browse, every: str
) -> None:
    busy.schedule("other", every=600)
    change_field(busy, "schedules", "beat", lambda old: old.replace("600000", every))

    found = look_at_all(browse)

    assert {each["name"] for each in found["/schedules"]["schedules"]} >= {"other"}
    assert "beat" in json.dumps(found["/schedules"])
