"""Verify and children's results that their parents save (I24). A true log is accepted, and each lie is found."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import text

from rq_core.connections.client import Client
from rq_core.model.durable.children import child_id
from rq_core.model.job import Claim, NewJob, profile, ties_of
from rq_core.model.result_encoding import pack_result
from rq_core.protocol.calls import claims
from rq_core.protocol.calls.boxes import Saving
from rq_core.protocol.calls.boxes import save as save_call
from sql_audit.mirror.redis_access import Outbox
from sql_audit.mirror.turn import Mirror
from sql_audit.proof.families import MARGIN_MS
from sql_audit.proof.result import LogVerdict
from sql_audit.proof.verify import verify
from sql_audit.store.connection.database import Database
from tests.kit import auditlog
from tests.kit.liar import forge_chain, lying

LIFE = "9f3a0b1c22aa0001"
PARENTS, PARTS = "parents", "parts"


def claimed(client: Client, queue: str, job_id: str, ties: str = "") -> Claim:
    job = NewJob(job_id, queue, profile("send"), "{}", ties=ties)
    client.run(client.calls.enqueue.many([job]))
    (held,) = client.run(claims.claim(queue, "w-1", 1)).jobs
    return held


def save(client: Client, held: Claim, saved: str) -> None:
    """Let the parent save a result of its child 0."""
    records = [
        Saving(held.id, held.fence, LIFE, "save", 1, "pages", pack_result("{}")),
        Saving(held.id, held.fence, LIFE, "save", 2, "pages=0", pack_result(saved)),
        # A step of a user, whose name is alike.
        Saving(held.id, held.fence, LIFE, "save", 3, "pages=9", pack_result("9")),
    ]
    assert not client.run(save_call(PARENTS, "w-1", records))


def run_family(client: Client, child_returns: str, saved: str) -> None:
    """Run a child that returns a value, and let its parent save a value as the child's result."""
    child = claimed(client, PARTS, child_id(LIFE, "pages", 0), ties_of(keep_ms=60_000))
    held = [(child.id, child.fence)]
    client.run(claims.complete(PARTS, "w-1", held, {1: pack_result(child_returns)}))
    save(client, claimed(client, PARENTS, "a"), saved)


def mirror(client: Client, database: Database) -> None:
    for queue in (PARENTS, PARTS):
        auditlog.drain(Mirror(Outbox(client), database, queue))


def found(database: Database) -> list[tuple[str, Any]]:
    return [(each.invariant, each.says) for each in verify(database).violations]


def test_verify_accepts_the_saved_result_of_a_child(client: Client, database: Database) -> None:
    run_family(client, "7", "7")
    mirror(client, database)

    result = verify(database)

    assert [] == result.violations
    assert result.verdict is LogVerdict.HOLDS


def test_verify_finds_a_saved_result_that_the_child_did_not_return(
    client: Client, database: Database
) -> None:
    run_family(client, "7", "8")
    mirror(client, database)

    told = found(database)

    assert ["I24"] == [invariant for invariant, _ in told]
    assert f"child {child_id(LIFE, 'pages', 0)} did not succeed with it" in told[0][1]


def test_verify_finds_a_saved_result_of_a_child_that_has_not_succeeded(
    client: Client, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    claimed(client, PARTS, child_id(LIFE, "pages", 0), ties_of(keep_ms=60_000))
    save(client, claimed(client, PARENTS, "a"), "7")
    mirror(client, database)
    assert [] == found(database)  # The child's end may not be mirrored yet.

    monkeypatch.setattr("sql_audit.proof.families.MARGIN_MS", -MARGIN_MS)
    ((invariant, says),) = found(database)

    assert "I24" == invariant
    assert "which did not succeed" in says


def test_verify_does_not_judge_the_result_of_a_child_with_an_incomplete_log(
    client: Client, database: Database
) -> None:
    run_family(client, "7", "8")
    mirror(client, database)
    with lying(database) as liar:
        liar.execute(text("DELETE FROM mirror_epoch WHERE queue = :queue"), {"queue": PARTS})
    forge_chain(database)

    assert "I24" not in {each for each, _ in found(database)}
