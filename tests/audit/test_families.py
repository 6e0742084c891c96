"""Verify and children's results that their parents save (I24, I25). A true log is accepted, and each lie is found."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
from sqlalchemy import Connection, text

from rq_core.connections.client import Client
from rq_core.model.durable.children import child_id, pack_queues
from rq_core.model.job import Claim, NewJob, profile, ties_of
from rq_core.model.result_encoding import pack_result
from rq_core.protocol.calls import claims
from rq_core.protocol.calls.boxes import Saving
from rq_core.protocol.calls.boxes import save as save_call
from sql_audit.mirror.redis_access import Outbox
from sql_audit.mirror.turn import Mirror
from sql_audit.proof.child_logs import MARGIN_MS, WholeLogs
from sql_audit.proof.result import LogVerdict
from sql_audit.proof.verify import verify
from sql_audit.store.connection.database import Database
from tests.kit import auditlog
from tests.kit.liar import forge_chain, lying

LIFE = "9f3a0b1c22aa0001"
PARENTS, PARTS, MORE = "parents", "parts", "more"


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


def found(database: Database, *, goes_on: bool = True) -> list[tuple[str, Any]]:
    """Return the violations. ``goes_on``: judge as if all logs went on for two margins after their last event."""
    honest = WholeLogs.whole_upto

    def whole_upto(self: WholeLogs, connection: Connection, queue: str) -> int | None:
        upto_ms = honest(self, connection, queue)
        return upto_ms and upto_ms + 2 * MARGIN_MS * goes_on

    with mock.patch.object(WholeLogs, "whole_upto", whole_upto):
        return [(each.invariant, each.says) for each in verify(database).violations]


@pytest.mark.slow
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


@pytest.mark.parametrize("says", ["7", "8"])
def test_verify_judges_results_of_children_that_a_fork_copied_from_its_origin(
    client: Client, database: Database, says: str
) -> None:
    mirror(client, database)  # From now on, the log keeps values.
    run_family(client, "7", "7")
    held, box = claimed(client, PARENTS, "a.f1"), "9f3a0b1c22aa0002"
    launched = pack_result(pack_queues([PARTS], LIFE), "full")
    records = [
        Saving(held.id, held.fence, box, "save", 1, "map:pages", launched),
        Saving(held.id, held.fence, box, "save", 2, "pages=0", pack_result(says)),
    ]
    assert not client.run(save_call(PARENTS, "w-1", records))
    mirror(client, database)

    told = found(database)

    assert ["I24"] * (says == "8") == [invariant for invariant, _ in told]
    assert all(f"child {child_id(LIFE, 'pages', 0)} did not succeed" in each for _, each in told)


def test_verify_finds_a_saved_result_of_a_child_that_has_not_succeeded(
    client: Client, database: Database
) -> None:
    claimed(client, PARTS, child_id(LIFE, "pages", 0), ties_of(keep_ms=60_000))
    save(client, claimed(client, PARENTS, "a"), "7")
    mirror(client, database)
    assert [] == found(database, goes_on=False)  # The child's end may not be mirrored yet.

    ((invariant, says),) = found(database)

    assert "I24" == invariant
    assert "which did not succeed" in says


@pytest.mark.parametrize(("margins", "told"), [(0.9, []), (1.1, [True])])
def test_verify_notes_a_result_that_is_older_than_the_success_of_its_child(
    client: Client, database: Database, margins: float, told: list[bool]
) -> None:
    run_family(client, "7", "7")
    mirror(client, database)
    with lying(database) as liar:
        late = (
            "UPDATE job_event SET at_ms = at_ms + :late WHERE queue = :queue AND type = 'succeeded'"
        )
        liar.execute(text(late), {"late": int(margins * MARGIN_MS), "queue": PARTS})
    forge_chain(database)

    notes = [note.says for queue in verify(database).queues.values() for note in queue.notes]
    assert told == ["succeeded" in says for says in notes]


def test_verify_does_not_judge_the_result_of_a_child_with_an_incomplete_log(
    client: Client, database: Database
) -> None:
    run_family(client, "7", "8")
    mirror(client, database)
    with lying(database) as liar:
        liar.execute(text("DELETE FROM mirror_epoch WHERE queue = :queue"), {"queue": PARTS})
    forge_chain(database)

    assert "I24" not in {each for each, _ in found(database)}


@pytest.mark.parametrize("kept", ["digest", "full"])
def test_verify_finds_a_success_that_is_missing_in_the_saved_end_of_a_map_over_several_queues(
    client: Client, database: Database, kept: str
) -> None:
    queues = [PARTS, MORE]
    for index, queue in enumerate(queues):
        child = claimed(client, queue, child_id(LIFE, "pages", index), ties_of(keep_ms=60_000))
        client.run(claims.complete(queue, "w-1", [(child.id, child.fence)], {1: pack_result("7")}))
    held = claimed(client, PARENTS, "a")
    values = {"map:pages": pack_queues(queues), "pages=0": "7", "pages=join": "{}"}
    records = [
        Saving(held.id, held.fence, LIFE, "save", number, name, pack_result(value, kept))
        for number, (name, value) in enumerate(values.items(), 1)
    ]
    assert not client.run(save_call(PARENTS, "w-1", records))
    mirror(client, database)
    assert [] == found(database)  # The log of the other queue is not in the database.
    auditlog.drain(Mirror(Outbox(client), database, MORE))

    left_out = child_id(LIFE, "pages", 1)
    says = f"leaves out the result of child {left_out}, which has succeeded"
    assert [("I25", says)] == found(database)
