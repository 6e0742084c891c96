"""Kept results after a loss: a restored job still has its result, and the log has each result that Redis forgot."""

from __future__ import annotations

from collections.abc import Callable

from rq_core.connections.client import Client
from rq_core.model.job import ties_of
from rq_core.model.outcome import Kept, Succeeded
from rq_core.model.result_encoding import FULL, pack_result
from rq_core.protocol.calls import claims
from rq_core.protocol.reads.result_reads import Absent
from sql_audit.proof.compare.drift import compare
from sql_audit.proof.result import LogVerdict
from sql_audit.queries.endings import LogEndings
from sql_audit.store.connection.database import Database
from sql_audit.upkeep.restore import restore_jobs
from tests.audit.epochs.test_failover import Pair
from tests.audit.restore.jobs import HOUR_MS, claim, flush, job
from tests.kit.agreement import assert_agree, drain
from tests.kit.fleet import QUEUE
from tests.kit.servers import RedisServer

KEPT = ties_of(keep_ms=HOUR_MS, audit_result=FULL)


def succeed(client: Client, value: str) -> list[str]:
    """Claim all waiting jobs, settle each job with this result, and return the job ids."""
    held = claim(client, 100)
    values = dict.fromkeys(range(1, len(held) + 1), pack_result(value, FULL))
    assert {} == client.run(claims.complete(QUEUE, "w-1", list(held.items()), values))
    return list(held)


def test_a_restored_job_keeps_its_result_and_wakes_the_waiting_caller(
    client: Client, database: Database
) -> None:
    client.run(client.calls.delivery.handshake(QUEUE))
    drain(client, database)
    client.run(client.calls.enqueue.many([job("done", ties=KEPT)]))
    assert ["done"] == succeed(client, "[1]")
    client.run(client.calls.enqueue.many([job("lost", ties=KEPT)]))
    drain(client, database)
    flush(client)
    drain(client, database)

    done = restore_jobs(client, database, QUEUE, by="ada")
    look = client.calls.endings.look
    assert 1 == done.restored
    assert {"done"} == client.run(look(QUEUE, ["done", "lost"])).keys()
    assert isinstance(client.run(look(QUEUE, ["done"]))["done"], Absent)
    assert ["lost"] == succeed(client, "[2]")
    drain(client, database)

    assert {"lost": Succeeded("lost", Kept("[2]", "task"), None)} == client.run(
        look(QUEUE, ["lost"])
    )
    reader = LogEndings(database.address.render_as_string(hide_password=False))
    found = reader.read(QUEUE, {"done": (0, 0), "lost": (0, 0)})
    reader.close()
    assert {"done": "[1]", "lost": "[2]"} == {i: each.kept.json for i, each in found.items()}  # type: ignore[attr-defined]
    assert_agree(client, database, LogVerdict.HOLDS)


def test_verify_accepts_the_result_of_a_job_whose_successor_redis_forgot(
    start_redis: Callable[..., RedisServer], database: Database
) -> None:
    """Checks a promoted replica that has only the first job with an id.

    Only the lost primary had the second job with this id. SQL has both jobs.
    """
    pair = Pair(start_redis)
    with Client(pair.first.url) as old, Client(pair.second.url) as new:
        old.run(old.calls.enqueue.many([job("twice", ties=KEPT)]))
        assert ["twice"] == succeed(old, "[1]")
        drain(old, database)
        pair.follow(pair.second, pair.first)
        pair.promote(pair.second)
        longer = ties_of(keep_ms=2 * HOUR_MS, remember_ms=HOUR_MS)
        old.run(old.calls.enqueue.many([job("twice", ties=longer, call="=")]))
        assert ["twice"] == succeed(old, "[2]")
        drain(old, database)
        pair.first.kill()
        new.run(new.calls.enqueue.many([job("afterwards")]))
        drain(new, database)

        assert compare(new, database, QUEUE) == ([], [])
        look = new.run(new.calls.endings.look(QUEUE, ["twice"]))
        assert {"twice": Succeeded("twice", Kept("[1]", "task"), None)} == look
