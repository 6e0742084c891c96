"""Changes by hand to a relay's batch, its slot in Redis or its rows, after Redis has accepted the batch.

The relay has not yet deleted the rows. No row is lost without a finding, and no row blocks the queue. The comparison
with the log finds jobs that ran twice.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rq_core.model.keys import queue_keys
from sql_audit.inbox.service import run_relay
from sql_audit.inbox.verify import LESS, MORE, compare_with_log
from sql_audit.inbox.watching import InboxWatch
from sql_audit.mirror.redis_access import open_source
from sql_audit.mirror.service import run_mirror
from sql_audit.store.connection.database import Database
from tests.kit.command import audit, command
from tests.kit.inbox import QUEUE, Stage, at

ALL = ["a", "b", "c"]


class Ended(Exception):
    """Raised in a step of a relay, to end the relay there."""


@pytest.fixture
def finding(stage: Stage, tmp_path: Path) -> Iterator[Callable[[], str | None]]:
    """Let a relay die after Redis has accepted its batch (jobs a, b and c). Run these jobs; job d stays in the inbox.

    Yields a function that compares the inbox with the log.
    """
    path = str(tmp_path / "log.db")
    database = Database(path)
    source = open_source(stage.redis_url, "rqc")
    run_mirror(source, path, stop=threading.Event(), once=True)
    stage.insert("a", "b", "c")

    def end() -> None:
        raise Ended

    with pytest.raises(Ended):
        stage.hand_over(at("answered", 1, end))
    stage.insert("d")
    stage.age_batches()
    assert stage.drain() == ["a", "b", "c"]

    def compared() -> str | None:
        run_mirror(source, path, stop=threading.Event(), once=True)
        found = compare_with_log(stage.session, database.readers, wait_s=0)
        return next(each.finding for each in found if each.queue == QUEUE)

    yield compared
    source.close()
    database.close()


@pytest.mark.parametrize(
    ("forgery", "again", "found"),
    [
        ("taken_by = 'nobody'", [], None),
        ("number = number - 1", ALL, MORE),
        ("number = number + 1", ALL, MORE),
        ("number = 1e30", ALL, MORE),
        ("number = 'x'", ALL, MORE),
        ("number = NULL", ALL, MORE),
        ("slot = 'inbox.0'", ALL, MORE),
        ("slot = 'a b|c'", ALL, MORE),
        ("slot = NULL", ALL, MORE),
        ("ids = NULL", ALL, MORE),
        ("ids = '[]'", ALL, MORE),
        ("ids = '[1]'", ["b", "c"], MORE),
        ("ids = '[1, 2, 3, 99]'", [], LESS),
        ("relayed = relayed + 1", [], LESS),
        ("sent_at = NULL", [], None),
        ("sent_at = 'soon'", [], None),
        ("sent_at = '2999-01-01T00:00:00.000Z'", [], None),
    ],
)
def test_the_comparison_of_inbox_and_audit_log_finds_a_batch_that_was_altered(
    stage: Stage,
    finding: Callable[[], str | None],
    forgery: str,
    again: list[str],
    found: str | None,
) -> None:
    stage.sql(f"UPDATE rqc_relay SET {forgery}")
    stage.hand_over()
    assert stage.drain() == sorted([*again, "d"])
    assert (stage.rows(), stage.parked()) == ([], {})
    assert finding() == found


@pytest.mark.slow
@pytest.mark.parametrize(
    "forgery",
    [
        "ids = '{'", "ids = '7'", "ids = '{}'", "ids = '[\"1\"]'", "ids = '[9223372036854775808]'", "ids = x'ff'",
        "relayed = 'many'", "duplicate = 1.5",
    ],
)  # fmt: skip
def test_an_unreadable_row_in_the_table_of_relays_stops_only_its_own_queue(
    stage: Stage,
    finding: Callable[[], str | None],
    caplog: pytest.LogCaptureFixture,
    forgery: str,
) -> None:
    stage.insert("e", queue="other")
    stage.sql(f"UPDATE rqc_relay SET {forgery} WHERE queue = 'mail'")
    url = stage.database_url

    run_relay(stage.redis_url, "rqc", url, stop=threading.Event(), once=True)
    assert stage.drain("other") == ["e"]
    assert "queue mail: its rows wait: InboxDamaged" in caplog.text

    result = command("inbox", "status", url)
    assert result.exit_code == 1
    assert f"{len(ALL) + 1}" in result.stdout
    assert "other" in result.stdout
    (line,) = result.stderr.splitlines()
    assert "of queue 'mail' in rqc_relay are" in line
    watch = InboxWatch(url)
    assert {each.queue: each.rows for each in watch.look().queues} == {"mail": 4, "other": 0}
    watch.close()
    assert (found := finding()) is not None
    assert "relays leave the queue alone" in found

    stage.sql("UPDATE rqc_relay SET ids = NULL, relayed = 0, duplicate = 0 WHERE queue = 'mail'")
    stage.hand_over()
    assert stage.rows() == []


def test_parked_rows_with_bytes_are_shown_and_can_be_dropped(stage: Stage) -> None:
    stage.insert("a", args="[")
    stage.hand_over()
    stage.sql("UPDATE rqc_inbox_parked SET job_id = x'6162', task = x'ff', args = x'00ff'")
    url = stage.database_url
    for words in ("parked", "--json"), ("parked",), ("drop", "--all", "--json"):
        assert command("inbox", words[0], url, *words[1:]).exit_code == 0
    assert stage.parked() == {}


@pytest.mark.parametrize("table", ["parked", "relay"])
def test_a_queue_whose_name_is_bytes_is_shown_with_the_other_queues(
    stage: Stage, table: str
) -> None:
    """Checks SQLite, where a column of text accepts bytes."""
    stage.insert("a")
    if table == "relay":
        stage.sql("INSERT INTO rqc_relay (queue) VALUES (x'00ff')")
    else:
        columns = "queue, id, job_id, task, args, created_at, why"
        stage.sql(
            f"INSERT INTO rqc_inbox_parked ({columns}) VALUES (x'00ff', 1, 'j', 't', '', '', '')"
        )

    states = json.loads(command("inbox", "status", stage.database_url, "--json").stdout)

    assert ["\0\\xff", QUEUE] == [each["queue"] for each in states]
    assert command("inbox", "status", stage.database_url).exit_code == 0
    found = InboxWatch(stage.database_url).look()
    assert [each.queue for each in found.queues] == ["\0\\xff", QUEUE]


@pytest.mark.parametrize("words", [("run", "--once"), ("settle", "--moved"), ("verify",)])
def test_an_inbox_without_an_id_is_reported_in_one_line(
    stage: Stage, tmp_path: Path, words: tuple[str, ...]
) -> None:
    stage.sql("DELETE FROM rqc_inbox_place")
    log = str(tmp_path / "log.db")
    assert audit("migrate", RQ_CORE_AUDIT_URL=log).exit_code == 0
    result = command(
        "inbox", words[0], stage.database_url, *words[1:],
        RQ_CORE_REDIS_URL=stage.redis_url, RQ_CORE_AUDIT_URL=log,
    )  # fmt: skip
    assert result.exit_code == 1
    (line,) = result.stderr.splitlines()
    assert "rqc_inbox_place has no row" in line


def test_the_comparison_of_inbox_and_audit_log_finds_a_row_that_was_added_to_a_batch_by_hand(
    stage: Stage, finding: Callable[[], str | None]
) -> None:
    stage.sql("UPDATE rqc_relay SET ids = '[1, 2, 3, 4]'")
    stage.hand_over()
    assert stage.drain() == []
    assert finding() == LESS


def test_the_comparison_of_inbox_and_audit_log_finds_that_the_call_slot_of_a_relay_was_deleted_in_redis(
    stage: Stage, finding: Callable[[], str | None]
) -> None:
    key, slot = queue_keys(QUEUE)("slots"), stage.relay_row().slot
    stage.client.run(stage.client.calls.delivery.ask([["HDEL", key, slot, f"{slot}|a"]], QUEUE))
    stage.hand_over()
    assert stage.drain() == [*ALL, "d"]
    assert finding() == MORE
