"""Rows that no relay can turn into a job, whatever their content. A relay parks such a row, and delays no other row."""

from __future__ import annotations

from typing import Any

import pytest

from rq_core.errors import QueueFull
from tests.kit.inbox import QUEUE, Stage, at

NOT_UTF_8 = "CAST(x'7bff7d' AS TEXT)"


@pytest.mark.parametrize("packed", [None, "{}"], ids=["plain", "packed"])
@pytest.mark.parametrize("created_at", ["yesterday", 1_764_126_000])
def test_a_row_with_an_invalid_insert_time_is_handed_over_as_a_new_row(
    stage: Stage, packed: str | None, created_at: Any
) -> None:
    stage.insert("a", packed=packed, created_at=created_at)
    stage.hand_over()
    assert stage.drain() == ["a"]


def test_a_row_with_an_infinite_insert_time_does_not_delay_other_rows(on_postgres: Stage) -> None:
    on_postgres.insert("a", created_at="infinity")
    on_postgres.insert("b", created_at="-infinity", packed=None)
    on_postgres.hand_over()
    assert on_postgres.drain() == ["a", "b"]


@pytest.mark.parametrize(
    ("column", "packed"), [("args", None), ("args", "'{}'"), ("options", None), ("task", "'{}'")]
)
def test_a_row_with_a_text_that_is_not_utf_8_is_parked(
    stage: Stage, column: str, packed: str | None
) -> None:
    stage.insert("before")
    stage.insert("poison", packed=None)
    stage.sql(
        f"UPDATE rqc_inbox SET packed = {packed or 'NULL'}, {column} = {NOT_UTF_8} WHERE job_id = 'poison'"
    )
    stage.insert("behind")

    stage.hand_over()

    assert stage.drain() == ["before", "behind"]
    assert stage.parked() == {"poison": f"{column} is not UTF-8"}
    assert stage.rows() == []


def test_two_rows_with_the_same_row_id_can_both_be_parked(stage: Stage) -> None:
    """Checks an id that the database gives twice, as after an operator has emptied the inbox."""
    for job in ("a", "b"):
        stage.insert(job, id=7, args="{")
        stage.hand_over()
    assert sorted(stage.parked()) == ["a", "b"]


def test_a_row_that_was_altered_while_its_batch_was_being_sent_is_parked(stage: Stage) -> None:
    """Checks packed data that the relay cannot read, as in a row of a later release."""
    stage.insert("a", "b", "c")

    def fail() -> None:
        raise QueueFull(queue=QUEUE)

    with stage.relay(at("send", 1, fail)) as relay, pytest.raises(QueueFull):
        relay.turn(QUEUE)
    stage.sql("UPDATE rqc_inbox SET packed = '{\"new\":1}' WHERE job_id = 'b'")
    stage.age_batches()

    with stage.relay(at("send", 1, fail)) as relay, pytest.raises(QueueFull):
        relay.turn(QUEUE)
    ((job, why),) = stage.parked().items()
    assert (job, "does not know: 'new'" in why) == ("b", True)
    # A person puts it back at once: it is handed over, although its old batch is not ended.
    stage.sql(
        "INSERT INTO rqc_inbox (queue, id, task, job_id, packed)"
        " SELECT queue, id, task, job_id, '{}' FROM rqc_inbox_parked"
    )
    stage.age_batches()
    stage.hand_over()
    assert stage.drain() == ["a", "b", "c"]
    assert stage.rows() == []
