"""Rows that a relay reads. The relay turns ordinary and unusual rows into jobs, and parks or counts invalid rows."""

from __future__ import annotations

from typing import Any

import pytest

from rq_core import App, Cap, Unique
from rq_core.errors import QueueFull
from rq_core.model.keys import queue_keys
from rq_core.model.packed_job import pack
from sql_audit.inbox import sending
from sql_audit.inbox.relay import MISMATCH
from tests.kit.inbox import QUEUE, Stage, at


def line(stage: Stage, job: str, queue: str = QUEUE) -> str:
    """Return the state line of a job in Redis, or its value in the key ``jobs`` if it has none."""
    keys = queue_keys(queue)
    ask = stage.client.calls.delivery.ask
    found = stage.client.run(
        ask([["HGET", keys("state"), job], ["HGET", keys("jobs"), job]], queue)
    )
    return str(found[0] or found[1])


def test_a_relay_applies_the_options_of_a_row_that_an_sql_insert_wrote(
    stage: Stage,
) -> None:
    stage.insert("a", args='{"to": "x"}', options='{"priority": "high", "max_attempts": 2}')
    long_ago = "2020-01-01T00:00:00.000Z"
    stage.insert("late", options='{"delay": 60}', created_at=long_ago)
    stage.insert("soon", options='{"delay": 3600, "timeout": 5}')

    stage.hand_over()

    assert "priority=high attempts=2" in line(stage, "a")
    assert line(stage, "a").endswith('"task":"send","args":{"to":"x"}}')
    assert "due=" not in line(stage, "late").partition("\n")[0]
    assert line(stage, "soon").startswith("scheduled")
    assert stage.drain() == ["a", "late"]


def test_a_row_without_packed_data_gets_its_lane_from_the_registered_policy(
    stage: Stage,
) -> None:
    with App(stage.redis_url) as app:

        @app.task(queue=QUEUE, name="send", caps=[Cap(1, per="tenant")])
        def send(tenant: str) -> None: ...

        app.apply_settings()
    stage.insert("a", "b", args='{"tenant": "acme"}', packed=None)
    stage.hand_over()

    assert "lane=2+send.tenant=acme" in line(stage, "a")
    assert stage.drain() == ["a", "b"]


@pytest.mark.parametrize(
    ("columns", "why"),
    [
        ({"args": "[1]"}, "args is not a JSON object"),
        ({"args": "{"}, "args is not JSON"),
        ({"args": '{"a": 1, "a": 2}'}, "args names a key twice"),
        ({"args": '{"a": NaN}'}, "args has NaN"),
        ({"args": '{"a": "' + "x" * 1_100_000 + '"}'}, "max_payload is"),
        ({"options": '{"delay": "soon"}'}, "delay"),
        ({"options": '{"at": "soon"}'}, "which is no time"),
        ({"options": '{"at": "2026-12-01T08:00:00"}'}, "without its offset"),
        ({"options": '{"dely": 1}'}, "options has 'dely': it may have delay, "),
        ({"options": '{"id": "x"}'}, "belongs into the column job_id"),
        ({"options": '{"keys": 7}'}, "keys"),
        ({"packed": "{}", "args": "{"}, "args is not JSON"),
        ({"packed": '{"lane":"x"}'}, "packed has an invalid lane"),
        ({"task": "no task"}, "task name"),
        ({"queue": "no queue"}, "queue name"),
    ],
    ids=lambda value: value[:20] if isinstance(value, str) else None,
)  # fmt: skip
def test_an_unreadable_row_is_parked_with_the_reason(
    stage: Stage, columns: dict[str, Any], why: str
) -> None:
    stage.insert("before")
    stage.insert("poison", **{"packed": None, **columns})
    stage.insert("behind")

    stage.hand_over()

    assert stage.drain() == ["before", "behind"]
    ((job, reason),) = stage.parked().items()
    assert job == "poison"
    assert why in reason
    assert stage.rows() == []


def test_a_row_with_an_invalid_job_id_is_parked(stage: Stage) -> None:
    stage.insert("no id", "a")
    stage.hand_over()
    assert stage.drain() == ["a"]
    assert "job name 'no id' is not valid" in stage.parked()["no id"]


def test_a_row_is_parked_if_no_producer_would_learn_that_its_job_was_rejected(stage: Stage) -> None:
    with App(stage.redis_url) as app:

        @app.task(queue=QUEUE, name="send", caps=[Cap(1, on_full="reject")])
        def send() -> None: ...

        app.apply_settings()
    stage.insert("a", packed=None)
    stage.hand_over()
    assert "no producer would hear of that" in stage.parked()["a"]


def test_a_relay_counts_duplicates_and_held_names_and_parks_a_row_whose_arguments_do_not_match_its_key(
    stage: Stage,
) -> None:
    with App(stage.redis_url) as app:

        @app.task(queue=QUEUE, name="send")
        def send(to: str) -> None: ...

        @app.task(queue=QUEUE, name="once", unique=Unique())
        def once() -> None: ...

        send.with_options(id="live").enqueue(to="x")
        other = send.with_options(idempotency_key="other").enqueue(to="y")
        mismatch = send.with_options(idempotency_key="other").job(to="z")
        held = once.enqueue()
        named = once.job()
    stage.insert("live", args='{"to":"x"}', packed="{}")
    stage.insert(mismatch.id, args=mismatch.args_json, packed=pack(mismatch))
    stage.insert("named", task="once", args="{}", packed=pack(named))
    stage.insert("new")

    stage.hand_over()

    row = stage.relay_row()
    assert (row.relayed, row.held, row.duplicate) == (1, 1, 1)
    assert stage.parked() == {other.id: MISMATCH}
    assert stage.drain() == sorted(["live", other.id, held.id, "new"])


def test_rows_with_one_idempotency_key_become_one_job(
    stage: Stage,
) -> None:
    stage.insert("a", "b", options='{"idempotency_key": "order-7"}')
    stage.hand_over()
    stage.insert("c", options='{"idempotency_key": "order-7"}')
    (ran,) = stage.drain()
    stage.hand_over()
    assert stage.drain() == []
    assert stage.enqueued() == {ran: 1}


def test_large_rows_are_sent_in_calls_of_limited_size(stage: Stage) -> None:
    jobs = [f"j-{n}" for n in range(12)]
    stage.insert(*jobs, args='{"a": "' + "x" * 900_000 + '"}')
    batches: list[int] = []

    def on_step(step: str) -> None:
        if step == "send":
            batches.append(len(stage.relay_row().ids or ()))

    stage.hand_over(on_step)
    assert max(batches) <= 5
    assert stage.drain() == sorted(jobs)


@pytest.mark.parametrize("gone", [0, 3])
def test_a_relay_notices_a_flush_between_two_calls_of_a_batch_even_if_rows_of_a_call_were_deleted(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, gone: int
) -> None:
    """Checks a batch of four calls that is sent again, after all rows of its first or last call were deleted."""
    monkeypatch.setattr(sending, "CALL_ROWS", rows := 5)
    jobs = [f"j-{n:02}" for n in range(4 * rows)]
    stage.insert(*jobs)

    def fail() -> None:
        raise QueueFull(queue=QUEUE)

    with stage.relay(at("send", 1, fail)) as relay, pytest.raises(QueueFull):
        relay.turn(QUEUE)
    for job in jobs[gone * rows : (gone + 1) * rows]:
        stage.sql("DELETE FROM rqc_inbox WHERE job_id = ?", job)
    left = stage.rows()
    stage.age_batches()
    flush = stage.client.calls.delivery.ask([["FLUSHALL"]])
    stage.hand_over(at("send", 3, lambda: stage.client.run(flush)))
    assert len(left) == 3 * rows
    assert stage.drain() == left
