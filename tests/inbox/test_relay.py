"""A relay: its call numbers, its batches, databases that were set back or copied, and the relay as a service."""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest

from rq_core.errors import BadArguments, QueueFull
from sql_audit.errors import InboxCopied, InboxError
from sql_audit.inbox import database, place, sending
from sql_audit.inbox.relay import EXPIRED, RelayOutcome
from sql_audit.inbox.sending import CALL_ROWS
from sql_audit.inbox.service import RelayService, run_relay
from tests.kit.inbox import QUEUE, Stage, at, finish
from tests.kit.wait import wait_until

# Numbers.


def test_each_relay_uses_its_own_call_slot_and_a_new_slot_each_day(stage: Stage) -> None:
    now = [1_000_000.0]
    slots: list[tuple[str | None, int | None]] = []
    for _ in range(2):
        with stage.relay(clock=lambda: now[0]) as relay:
            for day in range(2):
                now[0] += day * 86_400
                stage.insert(f"j-{len(slots)}")
                finish(relay)
                row = stage.relay_row()
                slots.append((row.slot, row.number))
    assert len({slot for slot, _ in slots}) == 4
    assert [number for _, number in slots] == [1, 1, 1, 1]
    assert all(slot and slot.startswith("inbox.") and len(slot) == 38 for slot, _ in slots)


def test_a_call_number_whose_commit_failed_is_not_used_again(stage: Stage) -> None:
    """Checks a commit with an error that may have written the batch. Another relay may send that batch under its
    number."""
    stage.insert("a")

    def fail() -> None:
        raise QueueFull(queue=QUEUE)

    with stage.relay(at("commit", 1, fail)) as relay:
        with pytest.raises(QueueFull):
            relay.turn(QUEUE)
        finish(relay)
    assert stage.relay_row().number == 2
    assert stage.drain() == ["a"]


def test_another_relay_sends_a_batch_that_has_had_no_answer_for_five_seconds(
    stage: Stage,
) -> None:
    stage.insert("a")

    def fail() -> None:
        raise QueueFull(queue=QUEUE)

    with stage.relay(at("send", 1, fail)) as relay, stage.relay() as other:
        with pytest.raises(QueueFull):
            relay.turn(QUEUE)
        before = stage.relay_row()
        assert other.turn(QUEUE) is RelayOutcome.HELD
        stage.age_batches(6)
        finish(other)
        after = stage.relay_row()
        assert (after.slot, after.number) == (before.slot, before.number)
        assert relay.turn(QUEUE) is RelayOutcome.IDLE
    assert stage.drain() == ["a"]


def test_a_late_answer_to_one_batch_does_not_end_the_next_batch(stage: Stage) -> None:
    """Checks a relay that is suspended after Redis has answered. Another relay ends this batch, and sends the
    next one."""
    stage.insert("a")

    def fail() -> None:
        raise QueueFull(queue=QUEUE)

    with stage.relay() as relay, stage.relay(at("send", 1, fail)) as other:
        assert relay.turn(QUEUE) is RelayOutcome.MOVED
        answer = relay._queues[QUEUE].answer
        relay.turn(QUEUE)
        stage.insert("b")
        with pytest.raises(QueueFull):
            finish(other)
        relay._queues[QUEUE].answer = answer

        assert relay.turn(QUEUE) is RelayOutcome.HELD

        assert stage.rows() == ["b"]
        stage.age_batches()
        finish(other)
    assert stage.drain() == ["a", "b"]


def test_a_program_can_write_into_sqlite_while_a_batch_is_sent(stage: Stage) -> None:
    stage.insert("a")
    inserted: list[int] = []

    def insert(step: str) -> None:
        if step == "send" and not inserted:
            path = stage.session.address.database or ""
            with contextlib.closing(sqlite3.connect(path, timeout=0)) as program, program:
                program.execute(
                    "INSERT INTO rqc_inbox (queue, task, job_id) VALUES ('mail', 't', 'b')"
                )
            inserted.append(1)

    stage.hand_over(insert)
    assert inserted
    assert stage.drain() == ["a", "b"]


def test_a_batch_without_an_answer_for_29_days_is_parked(stage: Stage) -> None:
    stage.insert("a", "b")

    def fail() -> None:
        raise QueueFull(queue=QUEUE)

    with stage.relay(at("send", 1, fail)) as relay, pytest.raises(QueueFull):
        relay.turn(QUEUE)
    stage.age_batches(28 * 86_400)
    stage.insert("c")
    stage.hand_over()
    assert (stage.drain(), stage.parked()) == ([], {}), (
        "a relay may be stopped for a day before it sends"
    )
    stage.age_batches(29 * 86_400)
    stage.hand_over()
    assert stage.parked() == {"a": EXPIRED, "b": EXPIRED}
    assert stage.drain() == ["c"]


def test_a_relay_that_was_suspended_for_a_day_does_not_send_its_batch(stage: Stage) -> None:
    now = [1_000_000.0]
    stage.insert("a")
    sent: list[str] = []

    def on_step(step: str) -> None:
        if step == "committed":
            now[0] += 86_400
        elif step == "send":
            sent.append(step)

    with stage.relay(on_step, clock=lambda: now[0]) as relay:
        relay.turn(QUEUE)
        assert not sent
    stage.age_batches()
    stage.hand_over()
    assert stage.drain() == ["a"]


def test_only_the_refused_row_of_a_refused_call_is_parked(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.insert("a", "b", "c")
    with stage.relay() as relay:
        client: Any = relay._client
        run = client.run

        def refusing(call: Any) -> Any:
            if getattr(call, "script", "") == "enqueue" and "b" in call.ids:
                raise BadArguments(queue=QUEUE, what="digest")
            return run(call)

        monkeypatch.setattr(client, "run", refusing)
        finish(relay)
    assert list(stage.parked()) == ["b"]
    assert stage.drain() == ["a", "c"]


def test_if_redis_refuses_one_call_of_a_batch_only_its_rows_stay_for_another_batch(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checks a batch of three calls. Redis refuses the second call once."""
    monkeypatch.setattr(sending, "CALL_ROWS", rows := 10)
    jobs = [f"j-{n:03}" for n in range(2 * rows + 3)]
    stage.insert(*jobs)
    refused: list[int] = []
    with stage.relay() as relay:
        client: Any = relay._client
        run = client.run

        def refusing(call: Any) -> Any:
            if getattr(call, "script", "") == "enqueue" and jobs[rows] in call.ids:
                refused.append(len(call.ids))
                if len(refused) == 1:
                    raise BadArguments(queue=QUEUE, what="digest")
            return run(call)

        monkeypatch.setattr(client, "run", refusing)
        relay.turn(QUEUE)
        relay.turn(QUEUE)
        assert stage.rows() == jobs[rows : 2 * rows]
        assert relay._queues[QUEUE].single == rows, "one row after the other finds the refused one"
        finish(relay)
    assert refused == [rows, 1]
    assert stage.drain() == jobs
    assert (stage.relay_row().relayed, stage.parked()) == (len(jobs), {})


# Redis and the database go back.


def test_a_flush_between_the_calls_of_a_batch_neither_loses_nor_duplicates_a_job(
    stage: Stage,
) -> None:
    """Checks a Redis that loses all data between the answer to the first call and the second call."""
    jobs = [f"j-{n:03}" for n in range(CALL_ROWS + 2)]
    stage.insert(*jobs)
    flush = stage.client.calls.delivery.ask([["FLUSHALL"]])
    stage.hand_over(at("send", 2, lambda: stage.client.run(flush)))
    assert stage.drain() == jobs
    assert stage.enqueued() == dict.fromkeys(jobs, 1)
    assert stage.relay_row().relayed == len(jobs)


@pytest.mark.parametrize("step", ["committed", "send"])
def test_a_flush_before_the_call_neither_loses_nor_duplicates_a_job(
    stage: Stage, step: str
) -> None:
    stage.insert("a", "b")
    flush = stage.client.calls.delivery.ask([["FLUSHALL"]])
    stage.hand_over(at(step, 1, lambda: stage.client.run(flush)))
    assert stage.drain() == ["a", "b"]
    assert stage.enqueued() == {"a": 1, "b": 1}


def test_a_relay_uses_new_call_numbers_for_rows_of_a_database_that_was_set_back_to_an_older_state(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    stage.insert("a", "b")
    with stage.relay() as relay:
        set_back = stage.saved()
        finish(relay)
        number = stage.relay_row().number
        assert stage.drain() == ["a", "b"]
        stage.insert("c")
        set_back()
        with caplog.at_level(logging.WARNING, "rq_core.inbox"):
            finish(relay)
        after = stage.relay_row()
    assert (after.number or 0) > (number or 0)
    assert "2 rows that were handed over are in it again" in caplog.text
    assert stage.drain() == ["a", "b"], "their jobs had ended, and the log says so"


def test_a_batch_with_an_outdated_call_number_is_refused_and_its_rows_are_sent_again(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    """Checks a batch with an old call number. Redis never carries out a call with an old number."""
    saved: list[Any] = []
    stage.insert("a", "b")
    with stage.relay(at("committed", 1, lambda: saved.append(stage.saved()))) as relay:
        finish(relay)
        stage.insert("c")
        finish(relay)
        saved[0]()
    stage.age_batches()
    with caplog.at_level(logging.WARNING, "rq_core.inbox"):
        stage.hand_over()
    assert "2 rows that were handed over are in it again" in caplog.text
    assert stage.relay_row().duplicate == 2
    assert stage.drain() == ["a", "b", "c"]
    assert stage.rows() == []


def test_a_relay_refuses_a_copied_inbox_until_an_operator_decides(
    stage: Stage,
) -> None:
    stage.insert("a", "b")
    stage.sql("UPDATE rqc_inbox_place SET place = 'file 1/1'")
    with pytest.raises(InboxCopied, match="is a copy, or it was moved"):
        stage.hand_over()
    assert stage.client.run(stage.client.calls.delivery.ask([["KEYS", "*"]])) == [[]]
    (before,) = stage.sql("SELECT inbox_id FROM rqc_inbox_place")

    settled = place.fork_inbox(stage.session)

    assert settled.parked == 2
    assert stage.parked() == {"a": place.COPIED, "b": place.COPIED}
    assert settled.inbox_id != before[0]
    stage.insert("c")
    stage.hand_over()
    assert stage.drain() == ["c"]


def test_a_relay_hands_over_the_rows_of_an_inbox_that_was_moved(stage: Stage) -> None:
    stage.insert("a")
    stage.sql("UPDATE rqc_inbox_place SET place = 'file 1/1'")
    place.move_inbox(stage.session)
    stage.hand_over()
    assert stage.drain() == ["a"]


# The service.


def test_a_wake_token_that_names_a_queue_lets_the_relay_serve_the_queue_without_a_search_for_queues(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checks also a token with an unknown queue name, which any client of Redis may push. No row is created for this
    queue."""
    with stage.relay() as relay:
        service = RelayService(relay._session, relay._client, relay)
        assert not service._turn_of(QUEUE)
        assert stage.sql("SELECT * FROM rqc_relay") == []
        stage.insert("a")
        while service.round():
            pass
        stage.insert("b", "c")
        monkeypatch.setattr(relay, "queues", lambda: pytest.fail("a look for queues"))

        assert service._turn_of(QUEUE)
        assert not service._turn_of(QUEUE), "all queues are next"

    assert stage.drain() == ["a", "b", "c"]


def test_a_relay_serves_other_queues_while_it_waits_for_a_full_queue(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stage.insert("a")
    stage.insert("b", queue="other")
    with stage.relay() as relay:
        send = relay._sender.send
        refused: list[str] = []

        def full(name: str, *given: Any) -> Any:
            if name == QUEUE and len(refused) < 3:
                refused.append(name)
                raise QueueFull(queue=name)
            return send(name, *given)

        monkeypatch.setattr(relay._sender, "send", full)
        now = [0.0]
        service = RelayService(relay._session, relay._client, relay, clock=lambda: now[0])
        pauses = []
        with caplog.at_level(logging.INFO, "rq_core.inbox"):
            while service.round():
                pass
            assert stage.drain("other") == ["b"]
            for _ in range(3):
                pauses.append(service._pauses[QUEUE].not_before - now[0])
                now[0] += 5.0
                while service.round():
                    pass
    assert pauses == pytest.approx([0.1, 0.2, 0.4])
    assert caplog.text.count("its rows wait") == 1, "a reason is logged once"
    assert stage.drain() == ["a"]


@pytest.mark.parametrize("wakes", ["a token", "the file"])
def test_a_running_relay_finds_a_new_row_at_once(stage: Stage, wakes: str) -> None:
    stop = threading.Event()
    args = (stage.redis_url, "rqc", stage.database_url)
    relay = threading.Thread(target=run_relay, args=args, kwargs={"stop": stop})
    relay.start()
    try:
        stage.insert("a")
        if wakes == "a token":
            stage.client.run(stage.client.calls.delivery.ask([["RPUSH", "rqc:inbox", "1"]]))
        wait_until(lambda: stage.rows() == [], "the row was handed over")
    finally:
        stop.set()
        relay.join(10)
    assert stage.drain() == ["a"]


def test_a_relay_that_starts_waits_for_another_writer_of_the_file(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(database, "BUSY_TIMEOUT_S", 0.01)
    stage.insert("a")
    stop = threading.Event()
    args = (stage.redis_url, "rqc", stage.database_url)
    relay = threading.Thread(target=run_relay, args=args, kwargs={"stop": stop})
    try:
        with caplog.at_level(logging.INFO, "rq_core.inbox"), stage.session.transaction():
            relay.start()
            wait_until(lambda: "database is locked" in caplog.text, "the relay says so")
            with pytest.raises(InboxError):
                run_relay(*args, stop=stop, once=True)
        wait_until(lambda: stage.rows() == [], "the row was handed over")
    finally:
        stop.set()
        relay.join(10)
    assert caplog.text.count("waiting for a lock of another connection") == 1
    assert stage.drain() == ["a"]


def test_a_relay_that_waits_for_a_lock_can_be_stopped(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(database, "BUSY_TIMEOUT_S", 0.01)
    stop = threading.Event()
    args = (stage.redis_url, "rqc", stage.database_url)
    relay = threading.Thread(target=run_relay, args=args, kwargs={"stop": stop})
    with stage.session.transaction():
        relay.start()
        wait_until(lambda: "database is locked" in caplog.text, "the relay says so")
        stop.set()
        relay.join(10)
    assert not relay.is_alive()


def test_a_running_relay_notices_that_its_sqlite_file_was_replaced(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    """Checks a backup that an operator moves over the file. Only the relay still has the old file open."""
    stop = threading.Event()
    path = Path(stage.session.address.database or "")
    args = (stage.redis_url, "rqc", stage.database_url)
    relay = threading.Thread(target=run_relay, args=args, kwargs={"stop": stop})
    relay.start()
    try:
        stage.insert("a")
        wait_until(lambda: stage.rows() == [], "the row was handed over")
        stage.session.close()
        backup = path.with_suffix(".backup")
        with contextlib.closing(sqlite3.connect(path)) as connection:
            connection.execute("VACUUM INTO ?", (str(backup),))
        backup.replace(path)
        wait_until(lambda: "is a copy" in caplog.text, "the relay says so")
        stage.insert("b")
        assert stage.rows() == ["b"]
        place.move_inbox(stage.session)
        wait_until(lambda: stage.rows() == [], "the row was handed over")
    finally:
        stop.set()
        relay.join(10)
    assert stage.drain() == ["a", "b"]
