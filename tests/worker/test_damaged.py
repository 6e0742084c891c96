"""Damaged jobs and queues. The damage affects no other job and no other queue."""

from __future__ import annotations

import time

import pytest
from click.testing import CliRunner

from rq_core.app.app import App
from rq_core.cli.root import root
from rq_core.connections.client import Client
from rq_core.errors import QueueDamaged
from rq_core.protocol.calls import claims
from tests.kit import crew
from tests.kit.crew import worker_process
from tests.kit.processes import worker
from tests.kit.wait import wait_until, wait_until_async
from tests.kit.witness import WITNESS
from tests.worker.conftest import RunWorker, event_types, gone


@pytest.mark.parametrize("field", ["failed=x", "lost=-"])
async def test_a_job_with_unreadable_counters_delays_no_other_job(
    app: App, client: Client, run_worker: RunWorker, witness: crew.Witness, field: str
) -> None:
    """Checks that all readable jobs of the claim begin at once, and not after their leases have expired."""
    bad = crew.coroutine.enqueue(1)
    state, line = (
        "rqc:{crew}:state",
        f"ready task={crew.coroutine.name} claim=1 {field} seq=1 since=1",
    )
    client.run(client.calls.delivery.ask([["HSET", state, bad.id, line]]))
    good = [crew.coroutine.enqueue(n) for n in range(2, 5)]
    async with run_worker():
        await wait_until_async(gone(client, *(each.id for each in good)), "the others have run")
        await wait_until_async(lambda: bad.state() == "dead", "the bad one is dead")

    assert sorted(line["n"] for line in witness.lines("coroutine")) == [2, 3, 4]
    for each in good:
        assert event_types(client, each.id) == ["enqueued", "claimed", "succeeded"]


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("--processes", "2")], ids=["alone", "supervised"])
def test_a_worker_starts_though_one_of_its_queues_is_damaged(
    app: App, client: Client, witness: crew.Witness, options: tuple[str, ...]
) -> None:
    handle = crew.function.enqueue()
    client.run(client.calls.delivery.handshake("broken"))
    client.run(client.calls.delivery.ask([["DEL", "rqc:{broken}:meta"]]))
    client.run(client.calls.delivery.ask([["SET", "rqc:{broken}:meta", "no hash"]]))
    log = witness.path.with_suffix(".log")
    command = ("tests.kit.crew:app", ["broken", "crew"], app.redis_url, *options)
    with worker(*command, log=log, variables={WITNESS: str(witness.path)}) as process:
        wait_until(gone(client, handle.id), "the job of the other queue has run", timeout=30)
        process.terminate()
        assert process.wait(20) == 0

    assert "no jobs of queue broken are run until it is repaired" in witness.log()


@pytest.mark.slow
def test_a_worker_with_only_damaged_queues_does_not_start(
    app: App, client: Client, witness: crew.Witness
) -> None:
    client.run(client.calls.delivery.ask([["SET", "rqc:{crew}:meta", "no hash"]]))
    with worker_process(app.redis_url, witness) as process:
        assert process.wait(20) == 1

    assert "queue 'crew' is damaged" in witness.log()


def test_the_error_of_a_damaged_number_names_its_field(app: App, client: Client) -> None:
    """Checks the error of a call. The command `rq-core queues` must not fail."""
    crew.function.enqueue()
    client.run(client.calls.delivery.ask([["HSET", "rqc:{crew}:meta", "tombstones", "many"]]))

    with pytest.raises(
        QueueDamaged, match="field tombstones of its key meta must be a number, not 'many'"
    ):
        client.run(client.calls.reads.counts("crew"))
    done = CliRunner().invoke(root, ["queues", "--redis", app.redis_url])
    assert done.exception is None or isinstance(done.exception, SystemExit)


def test_a_long_state_line_without_spaces_is_read_quickly(app: App, client: Client) -> None:
    """Checks a state line of 200,000 letters. Once, a line of 60,000 letters blocked the server for 17 s."""
    bad = crew.function.enqueue()
    line = "running " + "x" * 200_000
    client.run(client.calls.delivery.ask([["HSET", "rqc:{crew}:state", bad.id, line]]))

    began = time.monotonic()
    client.run(claims.extend("crew", "w-1", [(bad.id, "1-1")]))
    assert time.monotonic() - began < 2.0
