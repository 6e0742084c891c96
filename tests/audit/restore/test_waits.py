"""Restoring parked durable jobs after a loss: the ends of their sleeps, and the signals that no wait has taken."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rq_core.connections.client import Client
from rq_core.doctor.repair import diagnose
from rq_core.model.keys import queue_keys
from rq_core.model.result_encoding import pack_result
from rq_core.model.unique_names import digest_of
from rq_core.protocol.calls import claims
from rq_core.protocol.calls.boxes import (
    BATCH_MAX,
    NotSaved,
    Saving,
    Sending,
    Sent,
    refusals,
    save,
    send_signals,
)
from sql_audit.proof.result import LogVerdict
from sql_audit.store.connection.database import Database
from sql_audit.upkeep.restore import restore_jobs
from tests.audit.restore.jobs import claim, complete, flush, invoke, job, lines
from tests.kit.agreement import assert_agree, drain
from tests.kit.fleet import QUEUE
from tests.kit.servers import RedisServer

LIFE = "9f3a0b1c22aa0001"
UNTIL = 9_000_000_000_000


def wait(
    client: Client, fence: str, entry: int, name: str, what: Any = "wait", about: str = ""
) -> dict[int, NotSaved]:
    record = Saving("order", fence, LIFE, what, entry, name, "", about)
    return refusals(client.run(save(QUEUE, "w-1", [record])))


def signal(client: Client, name: str, value: str, key: str = "", *, is_logged: bool = True) -> Sent:
    record = Sending("order", name, key, value)
    call = send_signals(QUEUE, [record], by="ann", value_max=100 if is_logged else 0)
    return client.run(call)[0]


def park(client: Client, fence: str, waits: str) -> None:
    record = ("order", fence, waits, LIFE, "")
    assert client.run(claims.park(QUEUE, "w-1", [record])) == {"order": "parked"}


def parked(client: Client, database: Database, *, is_logged: bool = True) -> dict[str, str]:
    """Park a job that has taken a signal. It sleeps and waits for `approval`. Two other signals are kept for it.

    Returns the box of the job.
    """
    client.run(client.calls.enqueue.many([job("order")]))
    drain(client, database)
    fence = claim(client, 1)["order"]
    wait(client, fence, 1, "first")
    signal(client, "first", '"taken"', "k-1")
    assert not wait(client, fence, 1, "first")
    wait(client, fence, 2, "nap", "sleep", str(UNTIL))
    wait(client, fence, 3, "approval")
    signal(client, "refusal", '"é"', "k-2", is_logged=is_logged)
    signal(client, "refusal", "2")
    park(client, fence, "2,3")
    drain(client, database)
    return boxes(client)


def boxes(client: Client) -> dict[str, str]:
    found: dict[str, str] = client.run(client.calls.reads.snapshot(QUEUE))["boxes"]
    return found


def delete_boxes(client: Client) -> None:
    client.run(client.calls.delivery.ask([["DEL", queue_keys(QUEUE, client.prefix)("boxes")]]))


@pytest.mark.parametrize("lose", [flush, delete_boxes])
def test_a_parked_job_is_restored_with_its_waits_and_untaken_signals(
    client: Client, database: Database, lose: Any
) -> None:
    before = parked(client, database)
    lose(client)
    drain(client, database)

    done = restore_jobs(client, database, QUEUE, by="ada")

    assert done.complete
    assert before == boxes(client)
    assert [] == diagnose(client, QUEUE)
    if lose is delete_boxes:
        assert lines(client)["order"].startswith("parked ")
        assert "woken" == signal(client, "approval", "true").outcome
        fence = claim(client, 1)["order"]
    else:
        # It runs again, and parks again until the same moment.
        fence = claim(client, 1)["order"]
        assert {0: NotSaved("waits", UNTIL)} == wait(client, fence, 2, "nap", "sleep", "+5000")
        park(client, fence, "2,3")
        assert f" due={UNTIL} " in lines(client)["order"]
        assert "woken" == signal(client, "approval", "true").outcome
        fence = claim(client, 1)["order"]
    assert Sent("known", 2) == signal(client, "refusal", "7", "k-2")
    for entry, name in ((3, "approval"), (4, "refusal"), (5, "refusal#2")):
        assert not wait(client, fence, entry, name)
    box = client.run(client.calls.reads.box(QUEUE, "order", fence, "w-1"))
    assert box is not None
    assert ["true", '"é"', "2"] == [each.value for each in box.entries[2:]]
    complete(client, {"order": fence})
    assert_agree(client, database, LogVerdict.HOLDS)


def test_a_signal_whose_value_the_log_lacks_must_be_sent_again_after_a_loss(
    client: Client, database: Database
) -> None:
    parked(client, database, is_logged=False)
    flush(client)
    drain(client, database)

    assert "must be sent again" in invoke(database, client.url).output
    done = restore_jobs(client, database, QUEUE, by="ada")

    assert (["order"], [], False) == (done.signals_lost, done.steps_lost, done.complete)
    found = boxes(client)
    assert (f"{LIFE}=k-2" in found, found[f"{LIFE}>refusal"]) == (False, "3")
    assert "\n" not in found[f"{LIFE}>2"]
    assert [] == diagnose(client, QUEUE)
    assert Sent("sent", 4) == signal(client, "refusal", '"é"', "k-2")
    assert_agree(client, database, LogVerdict.HOLDS)


@pytest.mark.parametrize("steps", [BATCH_MAX + 10, 10])
def test_a_signal_that_is_sent_during_a_restore_does_not_prevent_the_restore(
    client: Client, database: Database, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    """The box is restored by two calls, and the signal is sent between them. The second call writes what is last in the
    box: an entry or a signal."""
    client.run(client.calls.enqueue.many([job("order")]))
    drain(client, database)
    fence = claim(client, 1)["order"]
    saved = [
        Saving("order", fence, LIFE, "save", n, f"s{n}", pack_result("1", "full"))
        for n in range(1, steps + 1)
    ]
    for begin in range(0, steps, BATCH_MAX):
        assert not refusals(client.run(save(QUEUE, "w-1", saved[begin : begin + BATCH_MAX])))
    wait(client, fence, steps + 1, "approval")
    for n in range(BATCH_MAX - 10):
        signal(client, "refusal", str(n), f"k-{n}")
    park(client, fence, str(steps + 1))
    drain(client, database)
    before = boxes(client)
    delete_boxes(client)
    restore, between = client.calls.audit.restore, list[Sent]()

    def restore_slowly(*args: Any, **options: Any) -> Any:
        if boxes(client):
            between.append(signal(client, "refusal", "7"))
        return restore(*args, **options)

    monkeypatch.setattr(client.calls.audit, "restore", restore_slowly)
    done = restore_jobs(client, database, QUEUE, by="ada")

    assert {Sent("lost", None)} == set(between)
    assert (True, 1) == (done.complete, done.boxes)
    assert before == boxes(client)


def test_if_the_saved_steps_of_a_job_change_during_a_restore_they_are_reported_as_lost(
    client: Client, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    parked(client, database)
    header = boxes(client)[LIFE]
    delete_boxes(client)
    restore = client.calls.audit.restore

    def change_first(*args: Any, **options: Any) -> Any:
        other = ["HSET", queue_keys(QUEUE, client.prefix)("boxes"), LIFE, f"{header}1"]
        client.run(client.calls.delivery.ask([other]))
        return restore(*args, **options)

    monkeypatch.setattr(client.calls.audit, "restore", change_first)
    done = restore_jobs(client, database, QUEUE, by="ada")

    assert (0, ["order"], False) == (done.boxes, done.steps_lost, done.complete)
    assert "rq-core doctor q --audit URL --repair" in done.why_lost["order"]


def test_restore_puts_back_the_signals_of_a_job_that_has_never_run(
    client: Client, database: Database
) -> None:
    client.run(client.calls.enqueue.many([job("order")]))
    drain(client, database)
    signal(client, "approval", "true", "k-1")
    drain(client, database)
    before = boxes(client)
    flush(client)
    drain(client, database)

    assert restore_jobs(client, database, QUEUE, by="ada").complete

    assert before == boxes(client)
    assert digest_of("true") in before[next(name for name in before if name.endswith(">1"))]
    complete(client, claim(client, 1))
    assert_agree(client, database, LogVerdict.HOLDS)


@pytest.mark.parametrize("is_restored", [False, True])
def test_restore_puts_back_signals_and_steps_together_though_the_signals_arrived_after_redis_lost_the_steps(
    start_redis: Callable[..., RedisServer], database: Database, *, is_restored: bool
) -> None:
    """Redis forgets the box of a running job, and a signal begins another box before the next save."""
    server = start_redis()
    with Client(server.url) as client:
        client.run(client.calls.enqueue.many([job("order")]))
        fence = claim(client, 1)["order"]
        drain(client, database)
        with server.client() as control:
            control.save()
        step = Saving("order", fence, LIFE, "save", 1, "charge", pack_result("7", "full"))
        assert not refusals(client.run(save(QUEUE, "w-1", [step])))
        drain(client, database)
        server.kill()
        server.start()
        client.run(client.calls.delivery.handshake(QUEUE))
        assert Sent("sent", 1) == signal(client, "approval", "true", "k")
        assert Sent("sent", 2) == signal(client, "approval", "false")
        drain(client, database)
        assert_agree(client, database, LogVerdict.HOLDS)

        move = Saving("order", fence, LIFE, "move", 0, "")
        assert {0: NotSaved("other", None)} == refusals(client.run(save(QUEUE, "w-1", [step])))
        assert not refusals(client.run(save(QUEUE, "w-1", [move])))
        assert not refusals(client.run(save(QUEUE, "w-1", [step])))
        assert not wait(client, fence, 2, "approval")
        assert Sent("known", 1) == signal(client, "approval", "true", "k")
        drain(client, database)
        assert_agree(client, database, LogVerdict.HOLDS)
        before = boxes(client)
        assert LIFE in before
        if is_restored:
            flush(client)
            drain(client, database)
            assert restore_jobs(client, database, QUEUE, by="ada").complete
            assert before == boxes(client)
            fence = claim(client, 1)["order"]
        assert not wait(client, fence, 3, "approval#2")
        box = client.run(client.calls.reads.box(QUEUE, "order", fence, "w-1"))
        assert box is not None
        assert ["7", "true", "false"] == [entry.value for entry in box.entries]
        complete(client, {"order": fence})
        drain(client, database)
        assert_agree(client, database, LogVerdict.HOLDS)


def taken_and_forgotten(client: Client, database: Database, server: RedisServer) -> None:
    """Let a job take the signal `approval` and save a step. Then set Redis back: the job waits for `approval` again."""
    client.run(client.calls.enqueue.many([job("order")]))
    drain(client, database)
    fence = claim(client, 1)["order"]
    wait(client, fence, 1, "approval")
    park(client, fence, "1")
    drain(client, database)
    with server.client() as control:
        control.save()
    signal(client, "approval", "true")
    fence = claim(client, 1)["order"]
    assert not wait(client, fence, 1, "approval")
    saving = Saving("order", fence, LIFE, "save", 2, "charge", pack_result("7", "full"))
    assert not refusals(client.run(save(QUEUE, "w-1", [saving])))
    drain(client, database)
    server.kill()
    server.start()
    client.run(client.calls.delivery.handshake(QUEUE))
    drain(client, database)


@pytest.mark.parametrize("name", ["refusal", "approval"])
def test_a_new_signal_with_the_number_of_a_lost_signal_is_restored_as_not_yet_taken_by_a_wait(
    start_redis: Callable[..., RedisServer], database: Database, name: str
) -> None:
    server = start_redis()
    with Client(server.url) as client:
        taken_and_forgotten(client, database, server)
        outcome = "woken" if name == "approval" else "sent"
        assert Sent(outcome, 1) == signal(client, name, "false")
        drain(client, database)
        before = boxes(client)
        flush(client)
        drain(client, database)

        assert restore_jobs(client, database, QUEUE, by="ada").complete

        found = boxes(client)
        for member in ("|1", ">1", f">{name}"):
            assert before[LIFE + member] == found[LIFE + member]
        assert " waits " in found[f"{LIFE}|1"]
        assert found[f"{LIFE}|2"].startswith("charge saved "), "it has happened"
        fence = claim(client, 1)["order"]
        entry = 1 if name == "approval" else 3
        assert not wait(client, fence, entry, name)
        box = client.run(client.calls.reads.box(QUEUE, "order", fence, "w-1"))
        assert box is not None
        assert "false" == box.entries[entry - 1].value
        complete(client, {"order": fence})
        drain(client, database)
        assert_agree(client, database, LogVerdict.HOLDS)


def test_a_signal_that_was_sent_again_after_a_loss_is_restored_as_taken_if_a_wait_has_taken_it(
    start_redis: Callable[..., RedisServer], database: Database
) -> None:
    """Checks a signal that was sent twice under the same number. The log has its value once."""
    server = start_redis()
    with Client(server.url) as client:
        taken_and_forgotten(client, database, server)
        assert Sent("woken", 1) == signal(client, "approval", "true", is_logged=False)
        fence = claim(client, 1)["order"]
        assert not wait(client, fence, 1, "approval")
        drain(client, database)
        before = boxes(client)
        flush(client)
        drain(client, database)

        assert restore_jobs(client, database, QUEUE, by="ada").complete

        found = boxes(client)
        assert before[f"{LIFE}|1"] == found[f"{LIFE}|1"]
        assert (before[f"{LIFE}>1"], False) == (found[f"{LIFE}>1"], f"{LIFE}>approval" in found)
