"""Costs in SQL: the mirror writes them, verify proves claims with them, `audit why` shows them, and a restored job has
its cost again."""

from __future__ import annotations

from rq_core.connections.client import Client
from rq_core.model.job import ties_of
from sql_audit.proof.result import LogVerdict
from sql_audit.queries.history import under
from sql_audit.queries.waits import why
from sql_audit.store.connection.database import Database
from sql_audit.upkeep.restore import restore_jobs
from tests.audit.restore.jobs import claim, complete, flush, job, lines
from tests.kit import auditlog
from tests.kit.agreement import assert_agree, drain
from tests.kit.fleet import QUEUE

SCOPE = "ask@60s:tokens=gpt"


def enqueue(client: Client, *ids: str) -> None:
    made = [job(each, lane=f"2+{SCOPE}", ties=ties_of(cost="tokens:700")) for each in ids]
    client.run(client.calls.enqueue.many(made))


def test_a_restored_job_has_its_cost_again_and_takes_it(client: Client, database: Database) -> None:
    client.run(client.calls.caps.set(QUEUE, [("ask@60s:tokens", "1000/60000ms/1000", -1)]))
    enqueue(client, "a", "b")
    held = claim(client, 5)
    assert list(held) == ["a"]
    complete(client, held)
    drain(client, database)
    flush(client)
    drain(client, database)

    assert restore_jobs(client, database, QUEUE, by="ada").restored == 1
    client.run(client.calls.caps.set(QUEUE, [("ask@60s:tokens", "1000/60000ms/1000", -1)]))
    enqueue(client, "c")

    assert " cost=tokens:700 " in lines(client)["b"]
    assert list(claim(client, 5)) == ["b"]
    assert_agree(client, database, LogVerdict.HOLDS)
    costs = auditlog.rows(database, "SELECT job_id, cost FROM job ORDER BY job_id")
    assert {(row["job_id"], row["cost"]) for row in costs} == {
        (each, "tokens:700") for each in "abc"
    }
    (answer,) = why(database.readers, "c")
    (in_front,) = answer.waits[-1].in_front
    assert (in_front.scope, in_front.limit) == (SCOPE, "1000 tokens per 60 s")
    assert in_front.full_ms == answer.waits[-1].waited_ms


def test_the_scopes_of_a_claim_are_shown_with_their_unit() -> None:
    limits = [[SCOPE, 90_000, 60_000, 90_000, 1_500], ["ask@60s=gpt", 100, 60_000, 1]]

    assert (
        under(limits) == f"{SCOPE} ≤ 90000 tokens per 60 s, takes 1,500, ask@60s=gpt ≤ 100 per 60 s"
    )
