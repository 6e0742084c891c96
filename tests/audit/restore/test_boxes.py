"""Restoring the saved steps of durable jobs after a loss. The log must have the value of each step."""

from __future__ import annotations

import pytest

from rq_core.connections.client import Client
from rq_core.doctor.finding import Kind
from rq_core.doctor.repair import diagnose, repair
from rq_core.errors import QueueDamaged
from rq_core.model.durable.boxes import StepEntry
from rq_core.model.keys import queue_keys
from rq_core.model.result_encoding import pack_result
from rq_core.protocol.calls import claims
from rq_core.protocol.calls.boxes import (
    BATCH_MAX,
    Saving,
    Sending,
    Sent,
    refusals,
    save,
    send_signals,
)
from sql_audit.proof.compare.drift import compare
from sql_audit.proof.result import LogVerdict
from sql_audit.store.connection.database import Database
from sql_audit.upkeep.restore import restore_jobs
from sql_audit.upkeep.survey import lost_jobs, survey
from tests.audit.restore.jobs import ERROR, claim, complete, flush, invoke, job
from tests.kit.agreement import assert_agree, drain
from tests.kit.fleet import QUEUE

LIFE = "9f3a0b1c22aa0001"
STEPS = BATCH_MAX + 10


def durable_job(client: Client, database: Database, *, kept: str = "full", steps: int = 3) -> None:
    """Enqueue a job and claim it once. The claim saves ``steps`` steps, begins one more step, and fails."""
    client.run(client.calls.enqueue.many([job("order")]))
    drain(client, database)  # Values are logged once a mirror reads the queue.
    fence = claim(client, 1)["order"]
    records = [
        Saving("order", fence, LIFE, "save", n, f"s{n}", pack_result(f'"é{n}"', kept))
        for n in range(1, steps)
    ]
    records.append(Saving("order", fence, LIFE, "save", steps, f"s{steps}", "!too_large"))
    records.append(Saving("order", fence, LIFE, "begin", steps + 1, "begun"))
    for begin in range(0, len(records), BATCH_MAX):
        chunk = records[begin : begin + BATCH_MAX]
        assert not refusals(client.run(save(QUEUE, "w-1", chunk)))
    client.run(claims.fail(QUEUE, "w-1", [("order", fence, "retry", 0, "failed", ERROR)]))


def loaded(client: Client, fence: str) -> list[StepEntry]:
    box = client.run(client.calls.reads.box(QUEUE, "order", fence, "w-1"))
    assert box is not None
    assert box.life == LIFE
    return list(box.entries)


def boxes(client: Client) -> dict[str, str]:
    found: dict[str, str] = client.run(client.calls.reads.snapshot(QUEUE))["boxes"]
    return found


def lose(client: Client, what: str) -> None:
    """Delete data from Redis: "everything", "the box" of the job, or one entry of its box."""
    boxes = queue_keys(QUEUE, client.prefix)("boxes")
    commands = {"everything": ["FLUSHALL"], "the box": ["DEL", boxes]}
    client.run(client.calls.delivery.ask([commands.get(what, ["HDEL", boxes, f"{LIFE}|2"])]))


@pytest.mark.parametrize("what", ["everything", "the box", "one step"])
@pytest.mark.parametrize("steps", [3, STEPS])
def test_the_steps_of_a_job_are_put_back_after_a_loss(
    client: Client, database: Database, what: str, steps: int
) -> None:
    durable_job(client, database, steps=steps)
    drain(client, database)
    before = boxes(client)
    lose(client, what)
    drain(client, database)
    if what != "everything":
        assert [Kind.NO_BOX] == [each.kind for each in diagnose(client, QUEUE)]

    done = restore_jobs(client, database, QUEUE, by="ada")

    assert ([], what == "everything") == (done.steps_lost, done.restored == 1)
    assert before == boxes(client)
    drain(client, database)
    again = restore_jobs(client, database, QUEUE, by="ada")
    assert (0, 0, []) == (again.restored, again.boxes, again.steps_lost)
    drain(client, database)
    assert [] == diagnose(client, QUEUE)
    assert ([], []) == compare(client, database, QUEUE)
    held = claim(client, 1)
    found = loaded(client, held["order"])
    assert [f"s{n}" for n in range(1, steps + 1)] == [each.name for each in found[:-1]]
    assert [f'"é{n}"' for n in range(1, steps)] == [each.value for each in found[:-2]]
    assert ("too_large", None, False) == (found[-2].note, found[-2].value, found[-1].is_saved)
    last = Saving("order", held["order"], LIFE, "save", steps + 1, "begun", pack_result("7"))
    assert not refusals(client.run(save(QUEUE, "w-1", [last])))
    complete(client, held)
    drain(client, database)
    assert_agree(client, database, LogVerdict.HOLDS)


@pytest.mark.parametrize("what", ["everything", "the box"])
def test_a_job_whose_steps_are_missing_in_the_log_fails_at_its_next_step(
    client: Client, database: Database, what: str
) -> None:
    """Checks that no step runs a second time after the restore and the doctor's repair."""
    durable_job(client, database, kept="digest")
    drain(client, database)
    if what == "everything":
        flush(client)
    else:
        client.run(client.calls.delivery.ask([["DEL", queue_keys(QUEUE, client.prefix)("boxes")]]))
    drain(client, database)

    found = survey(client, database, QUEUE)
    assert what == "everything" or found.boxes == {"order": False}
    done = restore_jobs(client, database, QUEUE, by="ada")
    drain(client, database)

    assert (["order"], False) == (done.steps_lost, done.complete)
    assert "steps lost: order" in invoke(database, client.url, "--apply").output
    for findings in (
        diagnose(client, QUEUE),
        repair(client, QUEUE, diagnose(client, QUEUE), by="ada"),
    ):
        assert [Kind.NO_BOX] == [each.kind for each in findings]
    fence = claim(client, 1)["order"]
    with pytest.raises(QueueDamaged, match="has lost what its steps had saved"):
        loaded(client, fence)


def test_restore_does_not_put_back_the_saved_steps_of_a_running_job(
    client: Client, database: Database
) -> None:
    durable_job(client, database)
    fence = claim(client, 1)["order"]
    drain(client, database)
    client.run(client.calls.delivery.ask([["DEL", queue_keys(QUEUE, client.prefix)("boxes")]]))

    restore_jobs(client, database, QUEUE, by="ada")

    assert {} == boxes(client)
    complete(client, {"order": fence})


def test_restored_steps_that_belong_to_no_live_job_are_removed_after_an_hour(
    client: Client, database: Database
) -> None:
    durable_job(client, database)
    drain(client, database)
    flush(client)
    drain(client, database)
    records = [
        record
        for lost, found in lost_jobs(database, QUEUE, ["order"])
        for record in found
        if lost.job_id == "order" and record.kind == "entry"
    ]
    after = client.run(
        client.calls.delivery.ask(
            [["HGET", queue_keys(QUEUE, client.prefix)("meta"), "restored"]], QUEUE
        )
    )[0]

    client.run(client.calls.audit.restore(QUEUE, records, after=after or "-", by="ada"))

    marks = client.run(client.calls.reads.snapshot(QUEUE))["expiring"]
    assert f"box|{LIFE}" in marks
    assert 5 == len(boxes(client))


def test_verify_accepts_a_signal_that_is_sent_again_after_a_restore(
    client: Client, database: Database
) -> None:
    durable_job(client, database)
    send = send_signals(QUEUE, [Sending("order", "approval", "k", "7")], by="ann")
    assert [Sent("sent", 1)] == client.run(send)
    drain(client, database)
    lose(client, "the box")
    drain(client, database)
    assert ["order"] == restore_jobs(client, database, QUEUE, by="ada").signals_lost

    assert [Sent("sent", 2)] == client.run(send)

    held = claim(client, 1)
    wait = Saving("order", held["order"], LIFE, "wait", 5, "approval", "")
    assert not refusals(client.run(save(QUEUE, "w-1", [wait])))
    complete(client, held)
    drain(client, database)
    assert_agree(client, database, LogVerdict.HOLDS)
