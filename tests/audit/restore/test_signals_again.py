"""Signals that Redis lost, and that clients send a second time. Verify accepts the log."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from rq_core.connections.client import Client
from rq_core.protocol.calls.boxes import Saving, Sent, refusals, save
from sql_audit.proof.compare.drift import compare
from sql_audit.proof.result import LogVerdict
from sql_audit.store.connection.database import Database
from sql_audit.upkeep.restore import restore_jobs
from tests.audit.restore.jobs import claim, complete, flush, job
from tests.audit.restore.test_waits import LIFE, boxes, delete_boxes, signal
from tests.kit.agreement import assert_agree, drain
from tests.kit.fleet import QUEUE
from tests.kit.servers import RedisServer

VALUES = {"k-1": '"one"', "k-2": '"two"'}
"""The values of two signals, by their keys."""


def take(client: Client, fence: str, names: Sequence[str]) -> list[str | None]:
    """Let the job wait for signals of these names, and return their values."""
    life = next(name for name in boxes(client) if len(name) == len(LIFE))
    waits = [Saving("order", fence, life, "wait", n, name) for n, name in enumerate(names, 1)]
    assert {} == refusals(client.run(save(QUEUE, "w-1", waits)))
    box = client.run(client.calls.reads.box(QUEUE, "order", fence, "w-1"))
    assert box is not None
    return [entry.value for entry in box.entries]


@pytest.mark.parametrize("lose", [flush, delete_boxes])
@pytest.mark.parametrize("keyed", [True, False])
def test_signals_that_a_restore_could_not_put_back_are_sent_again_in_any_order(
    client: Client,
    database: Database,
    lose: Callable[[Client], None],
    keyed: bool,
) -> None:
    def send(key: str) -> Sent:
        return signal(client, "approval", VALUES[key], key if keyed else "", is_logged=False)

    client.run(client.calls.enqueue.many([job("order")]))
    drain(client, database)
    for key in VALUES:
        assert "sent" == send(key).outcome
    drain(client, database)
    lose(client)
    drain(client, database)
    assert ["order"] == restore_jobs(client, database, QUEUE, by="ada").signals_lost
    drain(client, database)
    assert ([], []) == compare(client, database, QUEUE)

    assert [Sent("sent", 3), Sent("sent", 4)] == [send(key) for key in reversed(VALUES)]

    fence = claim(client, 1)["order"]
    expected = [VALUES[key] for key in reversed(VALUES)]
    assert expected == take(client, fence, ["approval", "approval#2"])
    complete(client, {"order": fence})
    assert_agree(client, database, LogVerdict.HOLDS)


def test_a_second_restore_does_not_report_a_lost_signal_again(
    client: Client, database: Database
) -> None:
    client.run(client.calls.enqueue.many([job("order")]))
    drain(client, database)
    signal(client, "approval", '"one"', is_logged=False)
    for lost in (["order"], []):
        drain(client, database)
        delete_boxes(client)
        drain(client, database)
        assert lost == restore_jobs(client, database, QUEUE, by="ada").signals_lost
    drain(client, database)
    assert ([], []) == compare(client, database, QUEUE)
    assert_agree(client, database, LogVerdict.HOLDS)


@pytest.mark.parametrize("keyed", [True, False])
@pytest.mark.parametrize("is_box_lost", [True, False])
def test_signals_that_a_failover_forgot_are_sent_again_in_any_order(
    start_redis: Callable[..., RedisServer],
    database: Database,
    keyed: bool,
    is_box_lost: bool,
) -> None:
    """Checks a server that returns with an older state. In one case the box is lost too, and a restore puts it back."""
    server = start_redis()
    with Client(server.url) as client:

        def send(key: str) -> Sent:
            return signal(client, "approval", VALUES[key], key if keyed else "")

        client.run(client.calls.enqueue.many([job("order")]))
        drain(client, database)
        signal(client, "refusal", "0")
        drain(client, database)
        with server.client() as control:
            control.save()
        for key in VALUES:
            assert "sent" == send(key).outcome
        drain(client, database)
        server.kill()
        server.start()
        client.run(client.calls.delivery.handshake(QUEUE))
        drain(client, database)
        if is_box_lost:
            delete_boxes(client)
            assert restore_jobs(client, database, QUEUE, by="ada").complete
            drain(client, database)
            assert ([], []) == compare(client, database, QUEUE)

        for key in reversed(VALUES):
            send(key)

        drain(client, database)
        assert ([], []) == compare(client, database, QUEUE)
        fence = claim(client, 1)["order"]
        assert [VALUES["k-1"] if is_box_lost else VALUES["k-2"]] == take(
            client, fence, ["approval"]
        )
        complete(client, {"order": fence})
        assert_agree(client, database, LogVerdict.HOLDS)
