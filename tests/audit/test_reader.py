"""Sums of the log for metrics. A sum includes events that Redis forgot, and never decreases."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from rq_core.connections.client import Client
from rq_core.model.job import NewJob, profile
from rq_core.model.plugins import LogOverview
from rq_core.model.table.effects import CLAIM_ENDS
from rq_core.protocol.calls import claims
from scripts.measure.once import ten_million
from sql_audit.errors import AuditEmpty, AuditUnavailable
from sql_audit.mirror.redis_access import Outbox
from sql_audit.mirror.turn import Mirror
from sql_audit.proof.record import record_proofs
from sql_audit.proof.verify import verify
from sql_audit.queries import reader as reader_module
from sql_audit.queries.reader import SETTLED_MS, MetricsReader, open_metrics_reader
from sql_audit.store.connection.database import Database
from tests.audit.epochs.forgetting import START_MS, enqueue, timed_client
from tests.kit import auditlog
from tests.kit.agreement import drain
from tests.kit.clock import Clock
from tests.kit.fleet import QUEUE, Fleet
from tests.kit.servers import RedisServer, free_port


def address(database: Database) -> str:
    return database.address.render_as_string(hide_password=False)


def logged(database: Database) -> Counter[tuple[str, str, str]]:
    """Count the ends of claims in all events, including events that Redis forgot."""
    words = ", ".join(f"'{event}'" for event in CLAIM_ENDS)
    found = auditlog.rows(
        database,
        "SELECT queue, COALESCE(task, '') AS task, type FROM job_event "
        f"WHERE claim IS NOT NULL AND type IN ({words})",
    )
    return Counter((row["queue"], row["task"], row["type"]) for row in found)


def counted(found: LogOverview) -> Counter[tuple[str, str, str]]:
    return Counter({(c.queue, c.task, c.outcome): c.claims for c in found.claims})


def complete(client: Client, worker: str, limit: int) -> None:
    held = client.run(claims.claim(QUEUE, worker, limit)).jobs
    client.run(claims.complete(QUEUE, worker, [(each.id, each.fence) for each in held]))


def test_the_metrics_reader_counts_the_same_ended_claims_as_the_log(
    client: Client, database: Database
) -> None:
    fleet, reader = Fleet(client, 7), open_metrics_reader(address(database))
    for _ in range(5):
        fleet.run(60)
        drain(client, database)

        found = reader.look()

        assert counted(found) == logged(database)
        (queue,) = found.queues
        assert queue.events == len(auditlog.events(database, QUEUE))
        assert (queue.losses, queue.gaps, queue.quarantined, queue.proven_events) == (0, 0, 0, None)
    waited = auditlog.one(database, "SELECT SUM(waited_ms) AS ms FROM claim_minute")["ms"]
    assert sum(each.waited_ms for each in found.claims) == int(waited)
    reader.close()


def test_the_metrics_reader_reads_the_claims_of_each_past_minute_only_once(
    start_redis: Callable[..., RedisServer], database: Database
) -> None:
    server = start_redis()
    reader, statements = MetricsReader(address(database)), []
    with timed_client(server) as client, server.client(decode_responses=True) as control:
        clock = Clock(control, START_MS, running=True)
        for n in range(4):
            enqueue(client, *(f"j{n}-{m}" for m in range(3)))
            complete(client, "w-1", 3)
            drain(client, database)

            assert counted(reader.look()) == Counter({(QUEUE, "task", "succeeded"): 3 * (n + 1)})
            clock.advance(2 * SETTLED_MS)
        kept = reader._counted[QUEUE]
        reader._database.on_statement = statements.append
        reader.look()

    assert sum(sums[0] for sums in kept.settled.values()) == 9
    assert [each for each in statements if "claim_minute" in each] == []
    reader.close()


def test_totals_keep_orphaned_claims_after_a_loss(
    start_redis: Callable[..., RedisServer], database: Database
) -> None:
    server = start_redis()
    with Client(server.url) as client:
        reader = MetricsReader(address(database))
        enqueue(client, *(f"j{n}" for n in range(9)))
        complete(client, "w-1", 3)
        drain(client, database)
        with server.client() as control:
            control.save()
        complete(client, "w-1", 4)
        drain(client, database)
        before = counted(reader.look())
        server.kill()
        server.start()
        complete(client, "w-2", 2)
        drain(client, database)

        after = reader.look()

    assert before == Counter({(QUEUE, "task", "succeeded"): 7})
    assert counted(after) == Counter({(QUEUE, "task", "succeeded"): 9}) == logged(database)
    other = MetricsReader(address(database))
    assert counted(other.look()) == counted(after)
    other.close()
    (queue,) = after.queues
    assert (queue.losses, queue.orphaned_events) == (1, 8)
    reader.close()


def test_claims_that_redis_forgot_are_found_by_the_index_of_events(database: Database) -> None:
    """Checks that the query uses the index. Without the index, PostgreSQL read eleven million events in half a
    minute."""
    asked = {"queue": QUEUE, "after_epoch": 1, "after_seq": 5, "before_epoch": 2}

    def ask(database: Database) -> object:
        with database.readers.connect() as connection:
            return connection.execute(reader_module._FORGOTTEN, asked).all()

    plans = ten_million.plans_of(database, ten_million.Question("forgotten", ask), no_scans=True)

    wanted = {"sqlite": "(epoch,seq)>(?,?)", "postgresql": "ROW(epoch, seq) > ROW("}
    (plan,) = plans
    found = [each for each in plan if wanted[database.dialect] in each]
    assert all("SEARCH" in each or "Index Cond" in each for each in found)
    assert len(found) >= 1
    assert ten_million.full_scans(database, plans) == []


def test_the_metrics_reader_reads_the_recent_minutes_of_each_queue_separately(
    start_redis: Callable[..., RedisServer], database: Database
) -> None:
    """Checks three queues whose last ends are hours apart. The reader reads the minutes of each queue separately."""
    server = start_redis()
    asked: list[str] = []
    with timed_client(server) as client, server.client(decode_responses=True) as control:
        clock = Clock(control, START_MS, running=True)
        for queue in (QUEUE, "other", "third"):
            client.run(
                client.calls.enqueue.many(
                    NewJob(f"{queue}-{n}", queue, profile("task"), "{}") for n in range(3)
                )
            )
            held = client.run(claims.claim(queue, "w-1", 3)).jobs
            client.run(claims.complete(queue, "w-1", [(each.id, each.fence) for each in held]))
            auditlog.drain(Mirror(Outbox(client), database, queue))
            clock.advance(5 * 3_600_000)
    reader = MetricsReader(address(database))
    reader._database.on_statement = asked.append

    found = counted(reader.look())

    reader.close()
    assert found == logged(database)
    assert sum(found.values()) == 9
    assert sum("minute_ms >=" in each for each in asked) == 3


@pytest.mark.parametrize("statement", ["mirror_epoch", "claim_minute", "FROM orphaned_range WHERE"])
def test_a_loss_that_is_mirrored_during_a_read_is_counted_once(
    start_redis: Callable[..., RedisServer], database: Database, statement: str
) -> None:
    """Checks a mirror that records a loss between two statements of one read."""
    server = start_redis()
    reader = MetricsReader(address(database))
    with Client(server.url) as client:
        enqueue(client, *(f"j{n}" for n in range(9)))
        complete(client, "w-1", 3)
        drain(client, database)
        with server.client() as control:
            control.save()
        complete(client, "w-1", 4)
        drain(client, database)
        if "orphaned_range" not in statement:
            reader.look()
        enqueue(client, "more")
        drain(client, database)
        server.kill()
        server.start()
        complete(client, "w-2", 2)
        mirrored: list[str] = []

        def mirror_now(asked: str) -> None:
            if statement in asked and not mirrored:
                mirrored.append(asked)
                drain(client, database)

        reader._database.on_statement = mirror_now
        reader.look()
        found = counted(reader.look())
    reader.close()

    assert mirrored
    assert found == logged(database) == Counter({(QUEUE, "task", "succeeded"): 9})


def test_totals_do_not_fall_after_a_prune(database: Database) -> None:
    reader = MetricsReader(address(database))
    key = (QUEUE, "send", "succeeded")

    shown = [reader._never_falling({key: (n, n, n)})[key][0] for n in (5, 9, 7, 8, 12)]

    assert shown == [5, 9, 9, 10, 14]
    reader.close()


def test_a_recorded_proof_states_how_many_events_it_covers(
    client: Client, database: Database
) -> None:
    enqueue(client, "a", "b")
    drain(client, database)
    record_proofs(database, verify(database))
    enqueue(client, "c")
    drain(client, database)
    reader = MetricsReader(address(database))

    (queue,) = reader.look().queues

    assert queue.proven_events is not None
    assert queue.events - queue.proven_events == 1
    assert queue.proven_at_ms is not None
    reader.close()


def test_an_unreachable_database_raises_audit_unavailable() -> None:
    reader = open_metrics_reader(f"postgresql://nobody@127.0.0.1:{free_port()}/none")

    with pytest.raises(AuditUnavailable):
        reader.look()
    reader.close()


def test_the_metrics_reader_refuses_a_database_without_tables(audit_url: str) -> None:
    reader = open_metrics_reader(audit_url)

    with pytest.raises(AuditEmpty):
        reader.look()
    reader.close()
