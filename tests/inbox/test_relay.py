"""What a relay makes of rows: of plain ones and odd ones, in full queues, in databases that were set back or copied."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import event

from rq_core import App, Cap, Unique
from rq_core.errors import BadArguments, QueueFull
from rq_core.model.keys import queue_keys
from rq_core.model.packed_job import pack
from sql_audit.errors import InboxCopied
from sql_audit.inbox import place
from sql_audit.inbox.relay import EXPIRED, MISMATCH, TurnOutcome
from sql_audit.inbox.service import Service, run_relay
from sql_audit.inbox.session import Session
from sql_audit.inbox.statements import STATEMENTS
from tests.kit.inbox import QUEUE, Stage, at, finish
from tests.kit.pgbouncer import pgbouncer
from tests.kit.servers import PostgresServer
from tests.kit.wait import wait_until


@pytest.fixture
def stage(sqlite_url: str, valkey_url: str) -> Iterator[Stage]:
    made = Stage(sqlite_url, valkey_url)
    yield made
    made.close()


@pytest.fixture
def on_postgres(postgres_url: str, valkey_url: str) -> Iterator[Stage]:
    made = Stage(postgres_url, valkey_url)
    yield made
    made.close()


def line(stage: Stage, job: str, queue: str = QUEUE) -> str:
    """A job's line in Redis."""
    keys = queue_keys(queue)
    ask = stage.client.calls.delivery.ask
    found = stage.client.run(
        ask([["HGET", keys("state"), job], ["HGET", keys("jobs"), job]], queue)
    )
    return str(found[0] or found[1])


# Rows.


def test_options_of_a_plain_row_hold_and_a_delay_counts_from_the_insert(stage: Stage) -> None:
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


def test_a_plain_row_gets_the_lane_of_the_policy_that_workers_registered(stage: Stage) -> None:
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
        ({"options": '{"dely": 1}'}, "dely"),
        ({"options": '{"id": "x"}'}, "belongs into the column job_id"),
        ({"options": '{"keys": 7}'}, "keys"),
        ({"packed": "{}", "args": "{"}, "args is not JSON"),
        ({"packed": '{"lane":"x"}'}, "packed has an invalid lane"),
        ({"task": "no task"}, "task name"),
        ({"queue": "no queue"}, "queue name"),
    ],
    ids=lambda value: value[:20] if isinstance(value, str) else None,
)  # fmt: skip
def test_a_row_that_cannot_be_read_is_parked_with_the_reason_and_blocks_nothing(
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


def test_a_job_id_that_is_no_name_is_parked(stage: Stage) -> None:
    stage.insert("no id", "a")
    stage.hand_over()
    assert stage.drain() == ["a"]
    assert "job name 'no id' is not valid" in stage.parked()["no id"]


def test_rows_whose_rejection_nobody_would_hear_are_parked(stage: Stage) -> None:
    with App(stage.redis_url) as app:

        @app.task(queue=QUEUE, name="send", caps=[Cap(1, on_full="reject")])
        def send() -> None: ...

        app.apply_settings()
    stage.insert("a", packed=None)
    stage.hand_over()
    assert "nobody would hear that" in stage.parked()["a"]


def test_duplicates_and_held_names_leave_and_are_counted_and_a_mismatch_is_parked(
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


def test_a_row_with_an_idempotency_key_becomes_one_job_however_often_it_was_inserted(
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


# Numbers.


def test_each_relay_draws_a_slot_of_its_own_and_another_one_each_day(stage: Stage) -> None:
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


def test_a_number_whose_commit_failed_is_not_used_again(stage: Stage) -> None:
    """Whether it was written is unknown: another relay may send it."""
    stage.insert("a")

    def fail() -> None:
        raise QueueFull(queue=QUEUE)

    with stage.relay(at("commit", 1, fail)) as relay:
        with pytest.raises(QueueFull):
            relay.turn(QUEUE)
        finish(relay)
    assert stage.relay_row().number == 2
    assert stage.drain() == ["a"]


def test_a_batch_that_nobody_answered_is_sent_by_another_relay_after_five_seconds(
    stage: Stage,
) -> None:
    stage.insert("a")

    def fail() -> None:
        raise QueueFull(queue=QUEUE)

    with stage.relay(at("send", 1, fail)) as relay, stage.relay() as other:
        with pytest.raises(QueueFull):
            relay.turn(QUEUE)
        before = stage.relay_row()
        assert other.turn(QUEUE) is TurnOutcome.HELD
        stage.age_batches(6)
        finish(other)
        after = stage.relay_row()
        assert (after.slot, after.number) == (before.slot, before.number)
        assert relay.turn(QUEUE) is TurnOutcome.IDLE
    assert stage.drain() == ["a"]


def test_a_batch_that_was_on_its_way_for_29_days_is_parked(stage: Stage) -> None:
    stage.insert("a", "b")

    def fail() -> None:
        raise QueueFull(queue=QUEUE)

    with stage.relay(at("send", 1, fail)) as relay, pytest.raises(QueueFull):
        relay.turn(QUEUE)
    stage.age_batches(29 * 86_400)
    stage.insert("c")
    stage.hand_over()
    assert stage.parked() == {"a": EXPIRED, "b": EXPIRED}
    assert stage.drain() == ["c"]


def test_a_relay_that_was_stopped_for_a_day_does_not_send_its_batch(stage: Stage) -> None:
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


def test_a_call_that_redis_refuses_is_sent_row_by_row_until_the_refused_one_is_parked(
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


# Redis and the database go back.


@pytest.mark.parametrize("step", ["committed", "send"])
def test_a_flush_before_the_call_loses_nothing_and_doubles_nothing(stage: Stage, step: str) -> None:
    stage.insert("a", "b")
    flush = stage.client.calls.delivery.ask([["FLUSHALL"]])
    stage.hand_over(at(step, 1, lambda: stage.client.run(flush)))
    assert stage.drain() == ["a", "b"]
    assert stage.enqueued() == {"a": 1, "b": 1}


def test_a_database_that_was_set_back_is_noticed_and_its_rows_are_sent_under_new_numbers(
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


def test_a_batch_of_a_database_that_was_set_back_is_answered_as_too_late_and_sent_anew(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    """The batch has an old number of a slot: Redis carries it out under no circumstances."""
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


def test_a_copied_inbox_is_refused_until_a_person_says_what_it_is(stage: Stage) -> None:
    stage.insert("a", "b")
    stage.sql("UPDATE rqc_inbox_place SET place = 'file 1/1'")
    with pytest.raises(InboxCopied, match="is a copy, or it was moved"):
        stage.hand_over()
    assert stage.client.run(stage.client.calls.delivery.ask([["KEYS", "*"]])) == [[]]
    (before,) = stage.sql("SELECT inbox_id FROM rqc_inbox_place")

    settled = place.fork(stage.session)

    assert settled.parked == 2
    assert stage.parked() == {"a": place.COPIED, "b": place.COPIED}
    assert settled.inbox_id != before[0]
    stage.insert("c")
    stage.hand_over()
    assert stage.drain() == ["c"]


def test_a_moved_inbox_goes_on_with_its_rows(stage: Stage) -> None:
    stage.insert("a")
    stage.sql("UPDATE rqc_inbox_place SET place = 'file 1/1'")
    place.move(stage.session)
    stage.hand_over()
    assert stage.drain() == ["a"]


# The service.


def test_a_full_queue_waits_with_growing_pauses_while_the_others_go_on(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stage.insert("a")
    stage.insert("b", queue="other")
    with stage.relay() as relay:
        send = relay._send
        refused: list[str] = []

        def full(name: str, batch: Any) -> Any:
            if name == QUEUE and len(refused) < 3:
                refused.append(name)
                raise QueueFull(queue=name)
            return send(name, batch)

        monkeypatch.setattr(relay, "_send", full)
        now = [0.0]
        service = Service(relay._session, relay._client, relay, clock=lambda: now[0])
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
def test_a_running_relay_finds_a_row_at_once(stage: Stage, wakes: str) -> None:
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


# On PostgreSQL.


def test_a_commit_that_comes_late_is_not_skipped(on_postgres: Stage) -> None:
    """Its rows have lower ids than rows that were handed over before."""
    stage = on_postgres
    late = Session(stage.database_url)
    with stage.relay() as relay:
        with late.transaction() as transaction:
            transaction.run(
                "INSERT INTO rqc_inbox (queue, task, job_id) VALUES ('mail', 't', 'late')"
            )
            stage.insert("a", "b")
            finish(relay)
            assert stage.rows() == []
        finish(relay)
    late.close()
    assert stage.drain() == ["a", "b", "late"]


def test_a_row_that_is_being_deleted_is_not_handed_over(on_postgres: Stage) -> None:
    stage = on_postgres
    stage.insert("cancelled", "a")
    user = Session(stage.database_url)
    with user.transaction() as transaction:
        transaction.run("DELETE FROM rqc_inbox WHERE job_id = 'cancelled'")
        stage.hand_over()
    user.close()
    assert stage.drain() == ["a"]


def test_nothing_is_locked_while_a_batch_is_sent_and_no_session_state_stays(
    on_postgres: Stage,
) -> None:
    stage = on_postgres
    stage.insert("a", "b")
    seen: list[Any] = []

    def look() -> None:
        seen.append(stage.sql(
            "SELECT a.state, (SELECT count(*) FROM pg_locks l WHERE l.pid = a.pid AND l.locktype <> 'virtualxid')"
            " FROM pg_stat_activity a WHERE a.application_name = 'rq-core inbox' AND a.pid <> pg_backend_pid()"
        ))  # fmt: skip

    statements: list[str] = []
    with stage.relay(at("send", 1, look)) as relay:
        engine: Any = relay._session.engine
        event.listen(
            engine,
            "before_cursor_execute",
            lambda *given: statements.append(given[2]),
        )
        finish(relay)
    assert [(state, locks) for state, locks in seen[0]] == [("idle", 0)]
    assert statements
    for text in statements:
        assert not text.startswith(("SET ", "LISTEN", "PREPARE", "DECLARE"))
        assert "advisory" not in text
    assert stage.drain() == ["a", "b"]


def test_a_relay_works_through_a_pooler_that_gives_its_connection_away(
    postgres_server: PostgresServer, postgres_url: str, valkey_url: str
) -> None:
    """PgBouncer in transaction mode, with one connection for a user, two relays and the tests."""
    with pgbouncer(postgres_server.port) as port:
        stage = Stage(postgres_url.replace(f":{postgres_server.port}/", f":{port}/"), valkey_url)
        jobs = [f"j-{n}" for n in range(600)]
        stage.insert(*jobs)
        with stage.relay() as one, stage.relay() as two:
            while stage.rows():
                one.turn(QUEUE)
                two.turn(QUEUE)
        assert stage.drain() == sorted(jobs)
        stage.close()


def test_eight_relays_on_five_queues_hand_each_row_over_once(on_postgres: Stage) -> None:
    stage = on_postgres
    queues = [f"q-{n}" for n in range(5)]
    stop = threading.Event()

    def relays(_: int) -> None:
        with stage.relay() as relay:
            service = Service(relay._session, relay._client, relay)
            while not stop.is_set():
                if not service.round():
                    stop.wait(0.02)

    with ThreadPoolExecutor(8) as pool:
        done = [pool.submit(relays, n) for n in range(8)]
        for n in range(20):
            for queue in queues:
                stage.insert(*(f"{queue}-{n}-{i}" for i in range(10)), queue=queue)
        wait_until(
            lambda: not stage.sql("SELECT 1 FROM rqc_inbox LIMIT 1"), "all rows left", timeout=30
        )
        stop.set()
        for each in done:
            each.result()
    for queue in queues:
        jobs = sorted(f"{queue}-{n}-{i}" for n in range(20) for i in range(10))
        assert stage.drain(queue) == jobs
        assert stage.enqueued(queue) == dict.fromkeys(jobs, 1)


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_no_statement_of_a_turn_reads_parked_rows_or_a_whole_table(
    kind: str, request: pytest.FixtureRequest
) -> None:
    stage: Stage = request.getfixturevalue({"sqlite": "stage", "postgresql": "on_postgres"}[kind])
    said = STATEMENTS[kind]
    ids = said.ids([1, 2])
    hot: dict[str, tuple[Any, ...]] = {
        "queues": (), "lock": ("q",), "look": ("q",), "exists": ("q",), "choose": ("q", 250),
        "load": ("q", ids), "begin": ("s", 1, "[1]", "r", 0, 0, 0, "q"), "take": ("r", "q"),
        "end": (1, 0, 0, "q"), "delete": ("q", ids), "pack": ("j", "{}", "{}", "q", 1),
        "has_id": ("j", "q", 1),
    }  # fmt: skip
    explain = "EXPLAIN QUERY PLAN " if kind == "sqlite" else "EXPLAIN (COSTS OFF) "
    with stage.session.transaction() as transaction:
        if kind == "postgresql":
            transaction.run("SET LOCAL enable_seqscan = off")
        for name, values in hot.items():
            statement = getattr(said, name)
            assert "parked" not in statement
            plan = "\n".join(str(row) for row in transaction.run(explain + statement, *values))
            assert "parked" not in plan
            if name != "queues":
                assert "SCAN rqc_inbox" not in plan.replace("SCAN rqc_inbox USING", "")
                assert "Seq Scan on rqc_inbox" not in plan, f"{name}\n{plan}"


def test_a_batch_is_read_by_the_index_although_the_statistics_say_that_the_table_is_empty(
    on_postgres: Stage,
) -> None:
    """PostgreSQL read and sorted all rows of the queue for each batch: 10 ms for 30,000 rows."""
    stage = on_postgres
    stage.sql("ANALYZE rqc_inbox")
    stage.sql(
        "INSERT INTO rqc_inbox (queue, task, packed) SELECT 'mail', 't', '{}' FROM generate_series(1, 5000)"
    )
    stage.sql("INSERT INTO rqc_relay (queue) VALUES ('mail')")
    with stage.session.transaction() as transaction:
        transaction.lock(QUEUE)
        explain = "EXPLAIN (ANALYZE, BUFFERS OFF, COSTS OFF, TIMING OFF, SUMMARY OFF) "
        choose = explain + STATEMENTS["postgresql"].choose
        plan = [row[0] for row in transaction.run(choose, QUEUE, 250)]
    read = [line for line in plan if "Index Scan using rqc_inbox_pkey" in line]
    assert read, plan
    assert "rows=250" in read[0], plan
