"""Costs in SQL. The mirror writes costs, verify uses costs to prove claims, and `audit why` shows costs.

A restored job has its cost again.
"""

from __future__ import annotations

import pytest

from rq_core.connections.client import Client
from rq_core.model.job import ties_of
from rq_core.protocol.calls import claims
from sql_audit.proof.result import LogVerdict
from sql_audit.queries.history import under
from sql_audit.queries.occupancy import cost_under, ms_spent
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


def test_a_restored_job_has_its_cost_again_and_takes_it_from_the_rate(
    client: Client, database: Database
) -> None:
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
    assert claim(client, 5) == {}  # What the first job took is in use again.
    client.run(client.calls.caps.set(QUEUE, [("ask@60s:tokens", "1000/60000ms/2000", -1)]))
    assert list(claim(client, 5)) == ["b"]
    assert_agree(client, database, LogVerdict.HOLDS)
    costs = auditlog.rows(database, "SELECT job_id, cost FROM job ORDER BY job_id")
    assert {(row["job_id"], row["cost"]) for row in costs} == {
        (each, "tokens:700") for each in "abc"
    }


def test_the_view_of_costs_sums_what_claims_have_really_taken(
    client: Client, database: Database
) -> None:
    client.run(client.calls.caps.set(QUEUE, [("ask@60s:tokens", "10000/60000ms/10000", -1)]))
    other = "ask@60s:points=gpt"
    two = job("both", lane=f"2+{other}+{SCOPE}", ties=ties_of(cost="points:4,tokens:100"))
    client.run(client.calls.caps.set(QUEUE, [("ask@60s:points", "100/60000ms/100", -1)]))
    enqueue(client, "a", "b", "c")
    client.run(client.calls.enqueue.many([two]))
    held = claim(client, 5)
    told = {"a": "tokens:300", "both": "points:9,tokens:0"}
    records = [(job_id, held[job_id], costs, "") for job_id, costs in told.items()]
    assert client.run(claims.spend(QUEUE, "w-1", records)) == {}
    complete(client, held)
    assert_agree(client, database, LogVerdict.HOLDS)

    found = auditlog.rows(
        database,
        "SELECT scope, unit, lane, claims, estimated, taken, settled FROM scope_cost ORDER BY scope, claims",
    )

    assert [tuple(row.values()) for row in found] == [
        (other, "points", f"2+{other}+{SCOPE}", 1, 4, 9, 1),
        (SCOPE, "tokens", f"2+{other}+{SCOPE}", 1, 100, 0, 1),
        (SCOPE, "tokens", f"2+{SCOPE}", 3, 2_100, 1_700, 1),
    ]


def limit(client: Client, text: str) -> None:
    client.run(client.calls.caps.set(QUEUE, [("ask@60s:tokens", text, -1)]))


@pytest.mark.parametrize("later", ["none", "1000/60000ms/1000"])
def test_a_job_that_was_claimed_while_its_rate_had_no_limit_may_report_its_cost_later(
    client: Client, database: Database, later: str
) -> None:
    """Checks a rate whose limit an operator set to none. The claim does not list this rate."""
    limit(client, "none")
    enqueue(client, "a", "b")
    held = claim(client, 2)
    limit(client, later)
    records = [("a", held["a"], "tokens:3", ""), ("b", held["b"], "tokens:9", f"{SCOPE}|5")]

    assert client.run(claims.spend(QUEUE, "w-1", records)) == {}

    complete(client, held)
    assert_agree(client, database, LogVerdict.HOLDS)


def test_a_restore_keeps_a_debt_that_was_reported_after_a_change_of_the_limit(
    client: Client, database: Database
) -> None:
    """The log does not show what was in use when the limit changed. It shows what the job took after that."""
    limit(client, "1000/60000ms/1000")
    enqueue(client, "a", "b")
    held = claim(client, 1)
    limit(client, "1000/60000ms/2000")
    assert client.run(claims.spend(QUEUE, "w-1", [("a", held["a"], "tokens:5000", "")])) == {}
    complete(client, held)
    assert claim(client, 1) == {}
    drain(client, database)
    flush(client)
    drain(client, database)

    assert restore_jobs(client, database, QUEUE, by="ada").scopes == [SCOPE]

    limit(client, "1000/60000ms/2000")
    assert claim(client, 1) == {}
    assert_agree(client, database, LogVerdict.HOLDS)


def test_the_scopes_of_a_claim_are_shown_with_their_unit() -> None:
    limits = [[SCOPE, 90_000, 60_000, 90_000, 1_500], ["ask@60s=gpt", 100, 60_000, 1]]

    assert (
        under(limits) == f"{SCOPE} ≤ 90000 tokens per 60 s, takes 1,500, ask@60s=gpt ≤ 100 per 60 s"
    )


def test_a_job_cannot_begin_until_its_rate_has_regained_the_cost_of_the_job() -> None:
    """Checks a rate of 100 units per 1,000 ms with a burst of 10, after a claim that took 30 units.

    The debt of 20 units is paid after 200 ms. Each further unit takes 10 ms.
    """
    limit = [100, 1_000, 10]
    spent = [(1_000, cost_under([*limit, 30]))]

    assert ms_spent(spent, limit, 1_000, 5_000) == 210
    assert ms_spent(spent, limit, 1_000, 5_000, 4) == 240
    assert ms_spent(spent, limit, 1_000, 5_000, 500) == 300
    assert ms_spent(spent, limit, 1_000, 1_100, 4) == 100
    assert cost_under(limit) == 1
