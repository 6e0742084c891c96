"""Waits that a worker saves again: a failover took them from Redis, with the signals that they had taken.

The claim of the worker is older than the failover. The worker gives Redis the signals' numbers, and their values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from rq_core.connections.client import Client
from rq_core.doctor.repair import diagnose, repair
from rq_core.model.result_encoding import pack_result
from rq_core.protocol.calls.boxes import Saving, Sent, refusals, save
from sql_audit.proof.result import LogVerdict
from sql_audit.store.connection.database import Database
from sql_audit.upkeep.restore import restore_jobs
from tests.audit.restore.jobs import claim, complete, flush, job
from tests.audit.restore.test_waits import LIFE, boxes, signal, wait
from tests.kit.agreement import assert_agree, drain
from tests.kit.fleet import QUEUE
from tests.kit.servers import RedisServer

Start = Callable[..., RedisServer]

VALUES = {1: '"one"', 2: '"two"', 3: '"three"'}
"""The values of the signals that the failover takes from Redis, by number. Signal 2 is not taken."""


@contextmanager
def running(start: Start, database: Database) -> Iterator[tuple[Client, RedisServer, str]]:
    """Start a server, and let a job save a step there. Yield a client, the server, and the fence of the claim."""
    server = start()
    with Client(server.url) as client:
        client.run(client.calls.enqueue.many([job("order")]))
        drain(client, database)  # From the first turn of a mirror on, the log has values.
        fence = claim(client, 1)["order"]
        step = Saving("order", fence, LIFE, "save", 1, "charge", pack_result("7", "full"))
        assert not refusals(client.run(save(QUEUE, "w-1", [step])))
        drain(client, database)
        with server.client() as control:
            control.save()
        yield client, server, fence


def fail_over(client: Client, server: RedisServer) -> None:
    """Set Redis back to its state at the last `SAVE`."""
    server.kill()
    server.start()
    client.run(client.calls.delivery.handshake(QUEUE))


def take_again(client: Client, fence: str, entry: int, name: str, number: int) -> None:
    """Let the worker save again an entry that had taken a signal."""
    value = pack_result(VALUES[number])
    take = Saving("order", fence, LIFE, "take", entry, name, value, str(number))
    assert not refusals(client.run(save(QUEUE, "w-1", [take])))


def take_with_falling_numbers(client: Client, server: RedisServer, fence: str) -> None:
    """Let a job take signal 3 before signal 1. Redis forgets both, and the worker saves the two waits again."""
    for number, name in enumerate(("approval", "receipt", "refusal"), 1):
        assert Sent("sent", number) == signal(client, name, VALUES[number])
    takes = ((2, "refusal", 3), (3, "approval", 1))
    for entry, name, _ in takes:
        assert not wait(client, fence, entry, name)
    fail_over(client, server)
    for entry, name, number in takes:
        take_again(client, fence, entry, name, number)


def test_verify_accepts_the_log_after_a_worker_has_saved_lost_waits_again_out_of_the_order_of_their_signals(
    start_redis: Start, database: Database
) -> None:
    with running(start_redis, database) as (client, server, fence):
        take_with_falling_numbers(client, server, fence)
        assert Sent("sent", 4) == signal(client, "receipt", '"two"')
        assert not wait(client, fence, 4, "receipt")
        complete(client, {"order": fence})

        assert_agree(client, database, LogVerdict.HOLDS)


def test_the_doctor_keeps_a_signal_though_a_failover_lost_an_earlier_signal_of_the_job(
    start_redis: Start, database: Database
) -> None:
    """Redis lacks signal 2: no wait had taken it before the failover."""
    with running(start_redis, database) as (client, server, fence):
        take_with_falling_numbers(client, server, fence)
        assert Sent("sent", 4) == signal(client, "receipt", '"two"', "k-2")
        before = boxes(client)

        found = diagnose(client, QUEUE)
        assert [] == repair(client, QUEUE, found, by="ada")

        assert before == boxes(client)
        assert [] == found


@pytest.mark.parametrize("value", ["false", '"one"'])
def test_a_wait_that_was_saved_again_is_restored_though_a_new_signal_has_the_number_of_its_lost_signal(
    start_redis: Start, database: Database, value: str
) -> None:
    """Another signal has the number of the forgotten one when the worker saves the wait again. Then Redis loses all."""
    with running(start_redis, database) as (client, server, fence):
        signal(client, "approval", '"one"')
        assert not wait(client, fence, 2, "approval")
        drain(client, database)
        fail_over(client, server)
        assert Sent("sent", 1) == signal(client, "refusal", value, "k")
        take_again(client, fence, 2, "approval", 1)
        drain(client, database)
        before = boxes(client)
        flush(client)
        drain(client, database)

        assert restore_jobs(client, database, QUEUE, by="ada").complete

        assert before == boxes(client)
        held = claim(client, 1)
        assert not wait(client, held["order"], 3, "refusal")
        box = client.run(client.calls.reads.box(QUEUE, "order", held["order"], "w-1"))
        assert box is not None
        assert ["7", '"one"', value] == [entry.value for entry in box.entries]
        complete(client, held)
        assert_agree(client, database, LogVerdict.HOLDS)
