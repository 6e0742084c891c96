"""A relay on PostgreSQL: late commits, locks, poolers, many relays at once, and query plans."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import event

from sql_audit.inbox.sending import CALL_ROWS
from sql_audit.inbox.service import RelayService, run_relay
from sql_audit.inbox.session import Session
from sql_audit.inbox.statements import STATEMENTS
from tests.kit.inbox import QUEUE, Stage, finish
from tests.kit.pgbouncer import pgbouncer
from tests.kit.servers import PostgresServer
from tests.kit.wait import wait_until


def test_a_relay_hands_over_a_row_whose_transaction_commits_late(on_postgres: Stage) -> None:
    """Checks a row with a lower id than rows that the relay has already handed over."""
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


def test_a_row_that_a_transaction_is_deleting_is_not_handed_over(on_postgres: Stage) -> None:
    stage = on_postgres
    stage.insert("cancelled", "a")
    user = Session(stage.database_url)
    with user.transaction() as transaction:
        transaction.run("DELETE FROM rqc_inbox WHERE job_id = 'cancelled'")
        stage.hand_over()
    user.close()
    assert stage.drain() == ["a"]


def test_a_relay_holds_no_lock_while_it_sends_a_batch(
    on_postgres: Stage,
) -> None:
    stage = on_postgres
    jobs = [f"j-{n:03}" for n in range(CALL_ROWS + 1)]
    stage.insert(*jobs)
    seen: list[Any] = []

    def look(step: str) -> None:
        if step != "send":
            return
        seen.append(stage.sql(
            "SELECT a.state, (SELECT count(*) FROM pg_locks l WHERE l.pid = a.pid AND l.locktype <> 'virtualxid')"
            " FROM pg_stat_activity a WHERE a.application_name = 'rq-core inbox' AND a.pid <> pg_backend_pid()"
        ))  # fmt: skip

    statements: list[str] = []
    with stage.relay(look) as relay:
        engine: Any = relay._session.engine
        event.listen(
            engine,
            "before_cursor_execute",
            lambda *given: statements.append(given[2]),
        )
        finish(relay)
    assert [list(map(tuple, each)) for each in seen] == [[("idle", 0)]] * 2, "at each call"
    assert statements
    for text in statements:
        assert not text.startswith(("SET ", "LISTEN", "PREPARE", "DECLARE"))
        assert "advisory" not in text
    assert stage.drain() == jobs


def test_a_relay_works_through_a_pooler_that_shares_one_connection_among_clients(
    postgres_server: PostgresServer, postgres_url: str, valkey_url: str
) -> None:
    """Checks PgBouncer in transaction mode, with two relays and the test on one connection to the server."""
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


@pytest.mark.slow
@pytest.mark.parametrize("at_start", [True, False])
def test_a_relay_tries_again_after_a_lock_timeout(
    on_postgres: Stage, caplog: pytest.LogCaptureFixture, at_start: bool
) -> None:
    """Checks a relay with a `lock_timeout` while a migration of the application locks the table."""
    stage = on_postgres
    url = f"{stage.database_url}?options=-c%20lock_timeout%3D20"
    stop = threading.Event()
    args = (stage.redis_url, "rqc", url)
    relay = threading.Thread(target=run_relay, args=args, kwargs={"stop": stop})
    user = Session(stage.database_url)
    try:
        if not at_start:
            relay.start()
            stage.insert("first")
            wait_until(lambda: stage.rows() == [], "the row was handed over")
        stage.insert("a")
        with user.transaction() as transaction:
            transaction.run("LOCK TABLE rqc_inbox, rqc_inbox_place IN ACCESS EXCLUSIVE MODE")
            if at_start:
                relay.start()
            wait_until(lambda: "due to lock timeout" in caplog.text, "the relay says so")
        wait_until(lambda: stage.rows() == [], "the rows were handed over")
    finally:
        stop.set()
        relay.join(10)
        user.close()
    assert "a" in stage.drain()


def test_eight_relays_on_five_queues_hand_each_row_over_once(on_postgres: Stage) -> None:
    stage = on_postgres
    queues = [f"q-{n}" for n in range(5)]
    stop = threading.Event()

    def relays(_: int) -> None:
        with stage.relay() as relay:
            service = RelayService(relay._session, relay._client, relay)
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
def test_no_statement_of_a_relay_reads_parked_rows_or_a_whole_table(
    kind: str, request: pytest.FixtureRequest
) -> None:
    stage: Stage = request.getfixturevalue({"sqlite": "stage", "postgresql": "on_postgres"}[kind])
    said = STATEMENTS[kind]
    ids = said.ids([1, 2])
    hot: dict[str, tuple[Any, ...]] = {
        "queues": (), "lock": ("q",), "look": ("q",), "exists": ("q",), "choose": ("q", 0, 250),
        "load": ("q", *ids), "begin": ("s", 1, "[1]", "r", 0, 0, 0, "q"), "take": ("r", "q"),
        "end": (1, 0, 0, "q"), "delete": ("q", *ids), "pack": ("j", "{}", "{}", "q", 1),
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


def test_a_relay_reads_a_batch_by_an_index_even_if_the_statistics_of_postgresql_are_outdated(
    on_postgres: Stage,
) -> None:
    """Checks the query plan. Without the index, PostgreSQL sorted all rows of the queue for each batch: 10 ms for
    30,000 rows."""
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
        plan = [row[0] for row in transaction.run(choose, QUEUE, 0, 250)]
        ids = [row.id for row in transaction.choose(QUEUE, 250)]
        delete = explain + STATEMENTS["postgresql"].delete
        deletes = [
            row[0] for row in transaction.run(delete, QUEUE, *STATEMENTS["postgresql"].ids(ids))
        ]
    read = [line for line in plan if "Index Scan using rqc_inbox_pkey" in line]
    assert read, plan
    assert "rows=250" in read[0], plan
    # A row each: the index of the jobs' ids would be read to its end.
    assert any("Index Scan using rqc_inbox_pkey" in each for each in deletes), deletes
    assert not any("Removed by Filter" in each for each in deletes), deletes
