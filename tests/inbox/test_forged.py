"""Changes by hand of a relay's batch, of its slot in Redis and of its rows, between the call and the deletion of the
rows. No row is lost unnoticed, no row blocks the queue, and the comparison with the log finds jobs that ran again."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rq_core.model.keys import queue_keys
from sql_audit.inbox.verify import LESS, MORE, compare_with_log
from sql_audit.mirror.redis_access import open_source
from sql_audit.mirror.service import run_mirror
from sql_audit.store.connection.database import Database
from tests.kit.inbox import QUEUE, Stage, at

ALL = ["a", "b", "c"]


class Ended(Exception):
    """Raised in place of a relay's step: the relay ends here."""


@pytest.fixture
def finding(stage: Stage, tmp_path: Path) -> Iterator[Callable[[], str | None]]:
    """Let a relay die after Redis has accepted its batch of a, b and c, whose jobs then end; d is still in the inbox.
    Return a function that compares the inbox with the log."""
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
        (found,) = compare_with_log(stage.session, database.readers, wait_s=0)
        return found.finding

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
        ("ids = '{}'", ALL, MORE),
        ("ids = '[1]'", ["b", "c"], MORE),
        ("ids = '[1, 2, 3, 99]'", [], LESS),
        ("relayed = relayed + 1", [], LESS),
    ],
)
def test_the_comparison_finds_a_batch_that_was_altered(
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


def test_a_row_that_was_added_to_a_batch_by_hand_is_missing_in_the_log(
    stage: Stage, finding: Callable[[], str | None]
) -> None:
    stage.sql("UPDATE rqc_relay SET ids = '[1, 2, 3, 4]'")
    stage.hand_over()
    assert stage.drain() == []
    assert finding() == LESS


def test_the_comparison_finds_that_a_slot_was_deleted_in_redis(
    stage: Stage, finding: Callable[[], str | None]
) -> None:
    key, slot = queue_keys(QUEUE)("slots"), stage.relay_row().slot
    stage.client.run(stage.client.calls.delivery.ask([["HDEL", key, slot, f"{slot}|a"]], QUEUE))
    stage.hand_over()
    assert stage.drain() == [*ALL, "d"]
    assert finding() == MORE
