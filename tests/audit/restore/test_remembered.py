"""Remembered ids after a loss: the job of a repeated call runs once, whatever data Redis forgot."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import text

from rq_core.connections.client import Client
from rq_core.model.idempotency import read_result
from rq_core.model.job import NewJob, ties_of
from rq_core.protocol.calls import claims
from rq_core.protocol.calls.enqueue import Accepted
from sql_audit.proof.result import LogVerdict
from sql_audit.store.connection.database import Database
from sql_audit.upkeep.restore import restore_jobs
from sql_audit.upkeep.survey import survey
from tests.audit.epochs.test_failover import Pair
from tests.audit.restore.jobs import HOUR_MS, claim, complete, flush, invoke, job, run_all
from tests.kit.agreement import assert_agree, drain, states
from tests.kit.fleet import QUEUE
from tests.kit.liar import lying
from tests.kit.servers import RedisServer

CALL = "=" + "70c5" * 8


def order(job_id: str = "order-42", **options: Any) -> NewJob:
    return job(job_id, ties=ties_of(remember_ms=24 * HOUR_MS), call=CALL, **options)


def enqueue(client: Client, *jobs: NewJob) -> Accepted:
    return client.run(client.calls.enqueue.many(jobs))


def results(client: Client) -> dict[str, str]:
    found: dict[str, str] = client.run(client.calls.reads.snapshot(QUEUE))["results"]
    return found


@pytest.mark.slow
def test_a_job_that_a_producer_enqueued_again_after_a_failover_runs_once(
    start_redis: Callable[..., RedisServer], database: Database
) -> None:
    """Checks a job that the failover lost.

    Its producer repeats the call on the new primary, where the job runs. A later restore does not enqueue the job
    again.
    """
    pair = Pair(start_redis)
    with Client(pair.first.url) as old, Client(pair.second.url) as new:
        enqueue(old, order("before"), job("plain"))
        ran = run_all(old)
        drain(old, database)
        pair.follow(pair.second, pair.first)
        pair.promote(pair.second)
        assert ("order-42",) == enqueue(old, order(), order("lost")).ids[:1]
        drain(old, database)
        pair.first.kill()
        assert ("order-42",) == enqueue(new, order()).ids
        assert ("before",) == enqueue(new, order("before")).duplicates
        ran += run_all(new)
        drain(new, database)

        done = restore_jobs(new, database, QUEUE, by="ada")

        assert (1, 0, 0) == (done.restored, done.removed, done.remembered)
        ran += run_all(new)
        assert ("order-42", "lost") == enqueue(new, order(), order("lost")).duplicates
        assert_agree(new, database, LogVerdict.HOLDS)
    assert sorted(["before", "plain", "order-42", "lost"]) == sorted(ran)


def test_restore_skips_a_job_that_a_producer_enqueued_again_after_a_failover(
    start_redis: Callable[..., RedisServer], database: Database
) -> None:
    pair = Pair(start_redis)
    with Client(pair.first.url) as old, Client(pair.second.url) as new:
        enqueue(old, job("plain"))
        drain(old, database)
        pair.follow(pair.second, pair.first)
        pair.promote(pair.second)
        enqueue(old, order())
        drain(old, database)
        pair.first.kill()
        enqueue(new, order())
        drain(new, database)
        done = restore_jobs(new, database, QUEUE, by="ada")

        assert 0 == done.restored
        assert sorted(["order-42", "plain"]) == sorted(run_all(new))


def test_a_job_whose_end_a_failover_lost_is_remembered_and_does_not_run_again(
    start_redis: Callable[..., RedisServer], database: Database
) -> None:
    """Checks two ended jobs after a failover. On the promoted replica one job is still alive, and the other is
    missing."""
    pair = Pair(start_redis)
    with Client(pair.first.url) as old, Client(pair.second.url) as new:
        enqueue(old, order("revived"))
        drain(old, database)
        pair.follow(pair.second, pair.first)
        pair.promote(pair.second)
        enqueue(old, order("unheard-of"), order("unclaimed"))
        held = claim(old, 2)
        complete(old, held)
        old.run(old.calls.admin.cancel(QUEUE, ["unclaimed"]))
        drain(old, database)
        pair.first.kill()
        drain(new, database)

        done = restore_jobs(new, database, QUEUE, by="ada")

        assert (0, 1, 2) == (done.restored, done.removed, done.remembered)
        told = {i: read_result(i, line) for i, line in results(new).items()}
        assert held == {i: result.fence for i, result in told.items()}
        assert {("succeeded", CALL[1:])} == {(r.outcome, r.call) for r in told.values()}
        found = enqueue(new, order("revived"), order("unheard-of"), order("unclaimed"))
        assert ("unclaimed",) == found.ids
        assert ("revived", "unheard-of") == found.duplicates
        assert ["unclaimed"] == run_all(new)
        assert_agree(new, database, LogVerdict.HOLDS)


def test_remembered_ids_are_restored_after_a_flush(
    client: Client, database: Database, redis_url: str
) -> None:
    gone = ["done", "over", "dead", "stopped", "stopped-too"]
    short = ties_of(remember_ms=1)
    enqueue(client, *(order(i) for i in gone if i != "over"), job("over", ties=short, call=CALL))
    held = claim(client, 4 + 1)
    complete(client, {i: held[i] for i in ("done", "over")})
    final = [("dead", held["dead"], "final", 0, "final", "null")]
    retry = [(i, held[i], "retry", HOUR_MS, "final", "null") for i in ("stopped", "stopped-too")]
    client.run(claims.fail(QUEUE, "w-1", [*final, *retry]))
    client.run(client.calls.admin.prune(QUEUE, ["dead"]))
    client.run(client.calls.admin.cancel(QUEUE, ["stopped", "stopped-too"]))
    enqueue(client, order("never"))
    client.run(client.calls.admin.cancel(QUEUE, ["never"]))
    drain(client, database)
    before = results(client)
    flush(client)
    drain(client, database)

    assert 4 == survey(client, database, QUEUE).forgotten
    listed = invoke(database, redis_url)
    assert "4 ids of jobs that have ended must be remembered" in listed.output
    done = invoke(database, redis_url, "--apply")
    drain(client, database)

    assert "4 ids of jobs that have ended are remembered again" in done.output
    after = results(client)
    assert before.keys() - {"over"} == after.keys()
    for job_id, line in after.items():
        assert read_result(job_id, before[job_id])._replace(fence=None) == read_result(job_id, line)
    assert 0 == survey(client, database, QUEUE).forgotten
    assert ("never",) == enqueue(client, *(order(i) for i in ("done", "never", "dead"))).ids
    assert "succeeded" == states(database)["done"]
    assert_agree(client, database, LogVerdict.HOLDS)
    restore_jobs(client, database, QUEUE, by="ada")
    assert after == results(client)


def test_remembered_ids_from_before_the_queue_was_deleted_are_not_restored(
    client: Client, database: Database
) -> None:
    enqueue(client, order("done"))
    run_all(client)
    drain(client, database)
    deletion = client.calls.deletion
    assert "waits" == client.run(deletion.delete(QUEUE))
    drain(client, database)
    assert "deleted" == client.run(deletion.delete(QUEUE))
    assert ("done",) == enqueue(client, order("done")).ids
    client.run(client.calls.admin.cancel(QUEUE, ["done"]))
    enqueue(client, order("since"))
    run_all(client)
    drain(client, database)
    flush(client)
    drain(client, database)

    assert 1 == restore_jobs(client, database, QUEUE, by="ada").remembered
    assert {"since"} == results(client).keys()


def test_restore_remembers_an_id_again_after_a_second_loss(
    start_redis: Callable[..., RedisServer], database: Database
) -> None:
    """Checks a job that the first restore removed. Its end is only in the events that the first failover lost."""
    pair = Pair(start_redis)
    with Client(pair.first.url) as old, Client(pair.second.url) as new:
        enqueue(old, order("revived"))
        drain(old, database)
        pair.follow(pair.second, pair.first)
        pair.promote(pair.second)
        run_all(old)
        drain(old, database)
        pair.first.kill()
        drain(new, database)
        assert 1 == restore_jobs(new, database, QUEUE, by="ada").removed
        drain(new, database)
        flush(new)
        drain(new, database)

        assert 1 == restore_jobs(new, database, QUEUE, by="ada").remembered
        assert ("revived",) == enqueue(new, order("revived")).duplicates


@pytest.mark.parametrize("damaged", ["removed", "enqueued"])
def test_restore_ends_with_one_error_if_a_row_is_damaged(
    damaged: str, start_redis: Callable[..., RedisServer], database: Database
) -> None:
    """Checks that restore does not treat a damaged row as an empty row. A job might then run again."""
    pair = Pair(start_redis)
    with Client(pair.first.url) as old, Client(pair.second.url) as new:
        enqueue(old, order("revived"))
        drain(old, database)
        pair.follow(pair.second, pair.first)
        pair.promote(pair.second)
        run_all(old)
        drain(old, database)
        pair.first.kill()
        drain(new, database)
        restore_jobs(new, database, QUEUE, by="ada")
        enqueue(new, order("lost"))
        drain(new, database)
        flush(new)
        drain(new, database)
        with lying(database) as connection:
            lie = text("UPDATE job_event SET detail = '{' WHERE type = :type")
            connection.execute(lie, {"type": damaged})

        done = invoke(database, pair.second.url, "--apply")

        assert isinstance(done.exception, SystemExit)
        assert done.exit_code == 1
        assert f"queue {QUEUE}: the details of event " in done.output
        assert "cannot be read: `rq-core audit verify --queue q`" in done.output
