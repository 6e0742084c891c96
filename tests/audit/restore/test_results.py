"""Kept results after a loss: a restored job still has its result, and the log has each result that Redis forgot."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import text

from rq_core.connections.client import Client
from rq_core.model.job import ties_of
from rq_core.model.outcome import Kept, Succeeded
from rq_core.model.result_encoding import FULL, pack_result
from rq_core.model.unique_names import digest_of
from rq_core.protocol.calls import claims
from rq_core.protocol.calls.audit import Restored
from rq_core.protocol.engine.plan import Plan
from rq_core.protocol.reads.result_reads import Absent
from sql_audit.proof.compare.drift import compare
from sql_audit.proof.result import LogVerdict
from sql_audit.queries.endings import LogEndings
from sql_audit.store.connection.database import Database
from sql_audit.upkeep.restore import PAIRS_MAX, restore_jobs
from tests.audit.epochs.test_failover import Pair
from tests.audit.restore.jobs import HOUR_MS, claim, flush, job, mirroring
from tests.kit.agreement import assert_agree, drain
from tests.kit.fleet import QUEUE
from tests.kit.liar import lying
from tests.kit.servers import RedisServer

KEPT = ties_of(keep_ms=HOUR_MS, audit_result=FULL)


def succeed(client: Client, value: str) -> list[str]:
    """Claim all waiting jobs, settle each job with this result, and return the job ids."""
    held = claim(client, 100)
    values = dict.fromkeys(range(1, len(held) + 1), pack_result(value, FULL))
    assert {} == client.run(claims.complete(QUEUE, "w-1", list(held.items()), values))
    return list(held)


def test_restore_keeps_results_and_wakes_a_caller_that_waits_for_a_restored_job(
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


@pytest.mark.slow
def test_verify_accepts_the_result_of_the_first_of_two_jobs_with_one_id_if_redis_lost_the_second_job(
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


REMEMBERED = ties_of(keep_ms=HOUR_MS, remember_ms=HOUR_MS, audit_result=FULL)


def test_a_restore_puts_back_the_result_of_a_job_whose_end_redis_forgot(
    start_redis: Callable[..., RedisServer], database: Database
) -> None:
    """Checks a promoted replica on which one job is alive again, and another one is missing. Both have succeeded.

    A durable job whose children these are would otherwise get no result of theirs, and be dead for good.
    """
    pair = Pair(start_redis)
    with Client(pair.first.url) as old, Client(pair.second.url) as new:
        old.run(old.calls.enqueue.many([job("revived", ties=REMEMBERED, call="=")]))
        drain(old, database)
        pair.follow(pair.second, pair.first)
        pair.promote(pair.second)
        old.run(old.calls.enqueue.many([job("missing", ties=REMEMBERED, call="=")]))
        assert ["revived", "missing"] == succeed(old, "[1]")
        before = old.run(old.calls.reads.snapshot(QUEUE))
        drain(old, database)
        pair.first.kill()
        new.run(new.calls.delivery.handshake(QUEUE))
        with mirroring(pair.second.url, database):
            done = restore_jobs(new, database, QUEUE, by="ada")

        assert (done.restored, done.removed, done.remembered) == (0, 1, 2)
        ids = ["revived", "missing"]
        look = new.run(new.calls.endings.look(QUEUE, ids))
        assert {i: Succeeded(i, Kept("[1]", "task"), None) for i in ids} == look
        after = new.run(new.calls.reads.snapshot(QUEUE))
        for key in ("results", "returned", "kept"):
            assert before[key] == after[key]
        assert (before["meta"]["kept_bytes"], before["meta"]["results_bytes"]) == (
            after["meta"]["kept_bytes"],
            after["meta"]["results_bytes"],
        )
        drain(new, database)
        assert compare(new, database, QUEUE) == ([], [])


def test_a_parent_never_sees_an_ended_child_as_missing_while_a_restore_removes_the_child_from_the_live_jobs(
    start_redis: Callable[..., RedisServer], database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checks revived jobs that fill more than one call: after each call, each job is alive or has its result."""
    pair = Pair(start_redis)
    ids = [f"c-{n}" for n in range(2 * PAIRS_MAX - 1)]
    with Client(pair.first.url) as old, Client(pair.second.url) as new:
        old.run(old.calls.enqueue.many([job(each, ties=REMEMBERED, call="=") for each in ids]))
        drain(old, database)
        pair.follow(pair.second, pair.first)
        pair.promote(pair.second)
        for _ in range(3):
            succeed(old, "[1]")
        drain(old, database)
        pair.first.kill()
        new.run(new.calls.delivery.handshake(QUEUE))
        restore = new.calls.audit.restore
        counts: list[int] = []

        def looked(*args: Any, **options: Any) -> Plan[Restored]:
            answer = yield from restore(*args, **options)
            found = yield from new.calls.endings.look(QUEUE, ids)
            counts.append(len([end for end in found.values() if isinstance(end, Succeeded)]))
            assert len(found) == counts[-1]
            return answer

        monkeypatch.setattr(new.calls.audit, "restore", looked)
        with mirroring(pair.second.url, database):
            done = restore_jobs(new, database, QUEUE, by="ada")

        assert (done.removed, done.remembered) == (len(ids), len(ids))
        assert [PAIRS_MAX, len(ids)] == counts


def test_a_restore_puts_results_back_after_redis_lost_everything(
    client: Client, database: Database
) -> None:
    client.run(client.calls.delivery.handshake(QUEUE))
    drain(client, database)
    client.run(client.calls.enqueue.many([job("done", ties=REMEMBERED, call="=")]))
    assert ["done"] == succeed(client, "[1]")
    drain(client, database)
    flush(client)
    drain(client, database)

    assert 1 == restore_jobs(client, database, QUEUE, by="ada").remembered

    look = client.calls.endings.look
    assert {"done": Succeeded("done", Kept("[1]", "task"), None)} == client.run(
        look(QUEUE, ["done"])
    )
    drain(client, database)
    assert_agree(client, database, LogVerdict.HOLDS)


def test_a_restore_does_not_put_back_a_result_that_a_person_has_changed_in_the_log(
    client: Client, database: Database
) -> None:
    client.run(client.calls.delivery.handshake(QUEUE))
    drain(client, database)
    client.run(client.calls.enqueue.many([job("done", ties=REMEMBERED, call="=")]))
    assert ["done"] == succeed(client, "[1]")
    drain(client, database)
    flush(client)
    drain(client, database)
    with lying(database) as connection:
        connection.execute(
            text(
                "UPDATE job_event SET detail = REPLACE(REPLACE(detail, :was, :is), '[1]', '[2]') "
                "WHERE type = 'succeeded'"
            ),
            {"was": digest_of("[1]"), "is": digest_of("[2]")},
        )

    assert 1 == restore_jobs(client, database, QUEUE, by="ada").remembered

    known = client.run(client.calls.endings.look(QUEUE, ["done"]))["done"]
    assert isinstance(known, Succeeded)
    assert known.kept is None
