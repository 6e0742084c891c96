"""Claims that are cancelled or lost while the handler runs. The worker informs the handler, and settles no lost
claim."""

from __future__ import annotations

import pytest

from rq_core.app.app import App
from rq_core.connections.client import Client
from rq_core.errors import QueueDamaged
from rq_core.protocol.calls import claims
from rq_core.signals import LeaseLost
from rq_core.worker.liveness.heartbeat import LeaseKeeper
from tests.kit import crew
from tests.kit.wait import wait_until, wait_until_async
from tests.worker.conftest import RunWorker, event_types, gone, lose


@pytest.mark.alone
async def test_cancelling_a_running_async_job_stops_it_within_two_heartbeats(
    client: Client, run_worker: RunWorker, witness: crew.Witness
) -> None:
    handle = crew.sleeping.enqueue(60)
    async with run_worker():
        await wait_until_async(lambda: witness.lines("begin"), "the job runs")
        assert handle.cancel(why="no longer wanted") == "cancelling"
        assert handle.state() == "cancelling"
        await wait_until_async(gone(client, handle.id), "it stopped", timeout=crew.LEASE)

    assert witness.lines("end") == []
    assert event_types(client, handle.id) == [
        "enqueued", "claimed", "cancel_requested", "cancelled",
    ]  # fmt: skip


@pytest.mark.alone
async def test_a_sync_handler_sees_that_its_job_is_cancelled(
    client: Client, run_worker: RunWorker, witness: crew.Witness
) -> None:
    handle = crew.dozing.enqueue(60)
    async with run_worker():
        await wait_until_async(lambda: witness.lines("begin"), "the job runs")
        handle.cancel()
        await wait_until_async(gone(client, handle.id), "it stopped", timeout=crew.LEASE)

    assert event_types(client, handle.id)[-1] == "cancelled"


@pytest.mark.slow
async def test_a_handler_that_blocks_the_event_loop_keeps_its_lease(
    client: Client, run_worker: RunWorker, witness: crew.Witness
) -> None:
    """Checks that the heartbeat uses neither the event loop nor the thread of the job."""
    handle = crew.hogging.enqueue(2.5 * crew.LEASE)
    async with run_worker(), run_worker():
        await wait_until_async(gone(client, handle.id), "the job is done")

    assert len(witness.lines("begin")) == 1
    assert event_types(client, handle.id) == ["enqueued", "claimed", "succeeded"]


@pytest.mark.slow
async def test_jobs_that_run_for_ten_leases_are_claimed_once(
    client: Client, run_worker: RunWorker, witness: crew.Witness
) -> None:
    """Checks a handler on the event loop and one in a thread, while a second worker looks for expired leases."""
    handles = [crew.sleeping.enqueue(10 * crew.LEASE), crew.deaf.enqueue(10 * crew.LEASE)]
    async with run_worker(), run_worker():
        await wait_until_async(gone(client, *(h.id for h in handles)), "both are done", timeout=30)

    for handle in handles:
        assert event_types(client, handle.id) == ["enqueued", "claimed", "succeeded"]


async def test_an_async_handler_whose_lease_is_lost_is_cancelled_and_settles_nothing(
    client: Client, run_worker: RunWorker, witness: crew.Witness
) -> None:
    """Checks that the handler does not do work that another worker now repeats."""
    handle = crew.tidying.enqueue(0.0)
    async with run_worker() as worker:
        await wait_until_async(lambda: witness.lines("begin"), "it runs")
        (running,) = worker._handlers.executor.running.values()
        lose(client, worker, handle.id, running.claim.fence)
        await wait_until_async(lambda: witness.lines("tidied"), "it was cancelled")
        await wait_until_async(lambda: not worker._handlers.executor.running, "its place is free")

    assert isinstance(running.ending, LeaseLost)
    # It was given back by somebody else; this worker has said nothing.
    assert event_types(client, handle.id)[:3] == ["enqueued", "claimed", "rolled_back"]
    assert "settlement_refused" not in event_types(client, handle.id)


async def test_a_sync_handler_whose_lease_is_lost_is_cancelled(
    client: Client, run_worker: RunWorker, witness: crew.Witness
) -> None:
    handle = crew.dozing.enqueue(60)
    async with run_worker() as worker:
        await wait_until_async(lambda: witness.lines("begin"), "it runs")
        (running,) = worker._handlers.executor.running.values()
        lose(client, worker, handle.id, running.claim.fence)
        await wait_until_async(lambda: running.context.cancelled, "it is told")
        await wait_until_async(lambda: not worker._handlers.executor.running, "its place is free")

    assert isinstance(running.ending, LeaseLost)
    assert witness.lines("end") == []


def test_no_lease_is_extended_beyond_the_time_limit_of_its_claim(client: Client, app: App) -> None:
    """Checks a handler that ignores its cancellation. Its job and its places in caps become free again."""
    now = [100.0]
    client.run(client.calls.delivery.handshake("crew"))
    client.run(client.calls.enqueue.many([crew.sleeping.job(1.0) for _ in range(2)]))
    limited, free = client.run(claims.claim("crew", "w-1", 2)).jobs
    keeper = LeaseKeeper(client, "w-1", on_lost=_never, on_cancelling=_never, clock=lambda: now[0])
    keeper.hold(limited, 101.0)
    keeper.hold(free, None)

    moved = []
    for now[0] in (100.5, 101.5):
        before = client.run(client.calls.reads.snapshot("crew"))["leases"]
        began = client.run(client.calls.delivery.handshake("crew")).now_ms
        wait_until(
            lambda began=began: client.run(client.calls.delivery.handshake("crew")).now_ms > began,
            "time passes",
        )  # type: ignore[misc]
        keeper.beat()
        after = client.run(client.calls.reads.snapshot("crew"))["leases"]
        moved.append([after[each.id] > before[each.id] for each in (limited, free)])

    assert moved == [[True, True], [False, True]]


def test_the_worker_counts_an_extended_lease_from_the_sending_of_the_heartbeat(
    client: Client, app: App
) -> None:
    """Checks a process that is suspended between a heartbeat and its answer. The lease may have expired meanwhile."""
    now = [100.0]
    client.run(client.calls.delivery.handshake("crew"))
    client.run(client.calls.enqueue.many([crew.sleeping.job(1.0)]))
    (claim,) = client.run(claims.claim("crew", "w-1", 1)).jobs

    def stopped(*_: str) -> None:
        now[0] = 160.0

    keeper = LeaseKeeper(client, "w-1", on_lost=stopped, on_cancelling=_never, clock=lambda: now[0])
    keeper.hold(claim._replace(fence="1-1"), None)
    keeper.beat()

    assert (now[0], keeper.last_success) == (160.0, 100.0)


def test_a_new_claim_of_a_job_ends_an_older_claim_that_the_same_worker_still_holds(
    client: Client, app: App
) -> None:
    """Checks a lease that expired before the heartbeat. The heartbeat extends the lease of the new claim only."""
    lost: list[tuple[str, ...]] = []
    client.run(client.calls.delivery.handshake("crew"))
    client.run(client.calls.enqueue.many([crew.sleeping.job(1.0)]))
    (old,) = client.run(claims.claim("crew", "w-1", 1)).jobs
    client.run(claims.rollback("crew", "w-1", [(old.id, old.fence, "late", "null", "", 0)]))
    (new,) = client.run(claims.claim("crew", "w-1", 1)).jobs
    keeper = LeaseKeeper(
        client, "w-1", on_lost=lambda *each: lost.append(each), on_cancelling=_never
    )

    for _ in range(2):
        keeper.hold(old, None)
    assert [] == lost
    keeper.hold(new, None)
    assert [("crew", old.id, old.fence)] == lost
    keeper.drop(old)
    keeper.beat()
    assert [("crew", old.id, old.fence)] == lost


def test_a_worker_ends_leases_by_its_own_clock_if_redis_does_not_extend_them(
    client: Client, app: App
) -> None:
    """Checks a damaged queue and a sound one. The heartbeat extends only the leases of the sound queue, and raises an
    error."""
    now, queues = [100.0], ("crew", "other")
    for queue in queues:
        client.run(client.calls.delivery.handshake(queue))
        client.run(client.calls.enqueue.many([crew.sleeping.job(1.0)._replace(queue=queue)]))
    held = [client.run(claims.claim(queue, "w-1", 1)).jobs[0] for queue in queues]
    keeper = LeaseKeeper(client, "w-1", on_lost=_never, on_cancelling=_never, clock=lambda: now[0])
    keeper.hold_all([(claim, None) for claim in held])
    ask = client.calls.delivery.ask

    def extended_at() -> list[float]:
        return [keeper.extended_at(queue) for queue in queues]

    keeper.beat()
    client.run(ask([["RENAME", "rqc:{crew}:leases", "rqc:{crew}:spare"]]))
    client.run(ask([["SET", "rqc:{crew}:leases", "damaged"]]))
    for now[0] in (110.0, 120.0):
        with pytest.raises(QueueDamaged):
            keeper.beat()
        assert [100.0, now[0]] == extended_at()
    client.run(ask([["DEL", "rqc:{crew}:leases"]]))
    client.run(ask([["RENAME", "rqc:{crew}:spare", "rqc:{crew}:leases"]]))
    now[0] = 130.0
    keeper.beat()
    assert [130.0, 130.0] == extended_at()


def _never(*_: str) -> None:
    raise AssertionError
