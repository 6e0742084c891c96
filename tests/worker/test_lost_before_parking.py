"""Durable jobs whose saved steps a failover takes before their claims end: they park, fail or are given back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rq_core import GiveUp, RetryPolicy, Snooze, current_job, durable, durable_sync
from rq_core.app.app import App
from rq_core.app.durable.parking import ParkingSteps
from rq_core.connections.client import Client
from rq_core.errors import AuditBacklogFull, QueueDamaged
from rq_core.model.keys import queue_keys
from rq_core.protocol.calls.boxes import Sending, send_signals
from rq_core.worker import turns
from rq_core.worker.execution import lost_entries
from rq_core.worker.execution.parked_boxes import ParkedBoxes
from rq_core.worker.execution.saver import LoopHome, Saver, ThreadHome
from tests.kit import crew
from tests.kit.wait import wait_until_async
from tests.kit.working import working
from tests.worker.conftest import event_types, events

QUEUE = "crew"
ONCE = RetryPolicy(max_attempts=1)
OTHER = "f" * 16


@pytest.fixture(autouse=True)
def _boxes_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each claim read its job's box, as after a failover. These tests set Redis back within one epoch, in which a
    worker would take over the box of a job that it has parked."""
    monkeypatch.setattr(ParkedBoxes, "take", lambda _self, _context: None)


class Replica:
    """The line of one job, and the boxes, that a replica has received. A failover sets them back in Redis."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._keys = queue_keys(QUEUE)
        self._line, self._boxes = "", list[str]()
        self.job_id = ""
        self.failovers = 0
        self.then: Callable[[], Any] = lambda: None
        """A function to call after the first failover."""

    def ask(self, *command: Any) -> Any:
        return self._client.run(self._client.calls.delivery.ask([list(command)]))[0]

    def receive(self) -> None:
        """Receive what Redis has now."""
        self.job_id = current_job().id
        self._line = self.ask("HGET", self._keys("state"), self.job_id)
        fields = self.ask("HGETALL", self._keys("boxes"))
        self._boxes = (
            fields
            if isinstance(fields, list)
            else [part for each in fields.items() for part in each]
        )

    def take_over(self) -> None:
        self.failovers += 1
        self.ask("HSET", self._keys("state"), self.job_id, self._line)
        self.ask("DEL", self._keys("boxes"))
        if self._boxes:
            self.ask("HSET", self._keys("boxes"), *self._boxes)
        if self.failovers == 1:
            self.then()


@pytest.fixture
def replica(client: Client, monkeypatch: pytest.MonkeyPatch) -> Replica:
    """Return a replica that takes over before a job parks for the first time."""
    made = Replica(client)
    for home in (LoopHome, ThreadHome):
        park = home.park

        async def after_failover(self: Any, entry: int, park: Any = park) -> None:
            if not made.failovers:
                made.take_over()
            await park(self, entry)

        monkeypatch.setattr(home, "park", after_failover)
    return made


@pytest.fixture
def did() -> list[Any]:
    return []


@pytest.fixture
def own(app: App) -> Iterator[App]:
    """Yield a separate app for this test, on the same server as the crew's app."""
    made = App(app.redis_url)
    made.queue(QUEUE, lease=crew.LEASE)
    yield made
    made.close()


async def until(client: Client, job_id: str, event: str) -> None:
    await wait_until_async(lambda: event in event_types(client, job_id), event, timeout=20)


def claims_of(client: Client, job_id: str) -> int:
    return event_types(client, job_id).count("claimed")


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_a_step_that_a_failover_lost_is_not_run_again_after_its_job_has_parked(
    own: App, client: Client, replica: Replica, did: list[Any], kind: str
) -> None:
    def charge() -> int:
        did.append("charged")
        return 7

    async def charge_later() -> int:
        return charge()

    async def order() -> None:
        replica.receive()
        did.append(await durable().step("charge", charge_later))
        did.append(await durable().wait("approval", str))

    def order_in_a_thread() -> None:
        replica.receive()
        did.append(durable_sync().step("charge", charge))
        did.append(durable_sync().wait("approval", str))

    handler: Any = order if kind == "async" else order_in_a_thread
    handle = own.task(name="order", queue=QUEUE, retry=ONCE)(handler).enqueue()
    async with working(own, queues=(QUEUE,), grace=5.0) as worker:
        await until(client, handle.id, "parked")
        await own.signal_async(handle, "approval", "yes")
        await until(client, handle.id, "succeeded")
        assert 1 == worker.stats.parked

    assert ["charged", 7, 7, "yes"] == did
    assert (1, 2) == (replica.failovers, claims_of(client, handle.id))
    saved = [
        facts["name"] for entry, facts in events(client, handle.id) if entry.event == "step_saved"
    ]
    assert ["charge", "charge", "approval"] == saved


class Trouble(Exception):
    """Raised by a handler to fail."""


ENDS: dict[str, Exception] = {
    "retried": Trouble(),
    "rolled_back": Snooze(0),
    "died": GiveUp(),
}


@pytest.mark.parametrize("kind", ["async", "sync"])
@pytest.mark.parametrize("end", ENDS)
async def test_a_step_that_a_failover_lost_is_not_run_again_after_its_run_has_failed(
    own: App, client: Client, replica: Replica, did: list[Any], end: str, kind: str
) -> None:
    """The next run of a dead job begins when an operator requeues the job."""

    def charge() -> int:
        did.append("charged")
        return 7

    async def charge_later() -> int:
        return charge()

    def fail_once() -> None:
        if not replica.failovers:
            replica.take_over()
            raise ENDS[end]

    async def order() -> None:
        replica.receive()
        did.append(await durable().step("charge", charge_later))
        fail_once()

    def order_in_a_thread() -> None:
        replica.receive()
        did.append(durable_sync().step("charge", charge))
        fail_once()

    handler: Any = order if kind == "async" else order_in_a_thread
    retry = RetryPolicy(max_attempts=2, base=0.01)
    handle = own.task(name="order", queue=QUEUE, retry=retry)(handler).enqueue()
    async with working(own, queues=(QUEUE,), grace=5.0):
        if end == "died":
            await until(client, handle.id, "died")
            client.run(client.calls.admin.requeue(QUEUE, [handle.id]))
        await until(client, handle.id, "succeeded")

    assert ["charged", 7, 7] == did
    assert (2, 1) == (claims_of(client, handle.id), event_types(client, handle.id).count(end))


async def test_costs_are_reported_once_although_redis_lacks_steps_of_the_job(
    own: App, client: Client, replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported = list[Any]()
    spends = turns.spends_of

    def noting(worker: str, settlements: Any) -> Any:
        reported.extend((each.verdict, each.taken) for each in settlements)
        return spends(worker, settlements)

    monkeypatch.setattr(turns, "spends_of", noting)

    @own.task(queue=QUEUE, retry=ONCE)
    async def order() -> None:
        replica.receive()
        await durable().step("charge", charge)
        current_job().taken = {"tokens": 7}
        await durable().wait("approval", str)

    async def charge() -> None:
        pass

    handle = order.enqueue()
    async with working(own, queues=(QUEUE,), grace=5.0):
        await until(client, handle.id, "parked")

    assert [("park", "tokens:7"), ("park", "")] == reported


async def test_a_failed_run_is_settled_although_its_lost_steps_cannot_be_saved_again(
    own: App, client: Client, replica: Replica, did: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refused(*_: Any) -> None:
        did.append("refused")
        raise QueueDamaged(queue=QUEUE, why="the entries are other ones")

    monkeypatch.setattr(ParkingSteps, "save_again", refused)

    @own.task(queue=QUEUE, retry=ONCE)
    async def order() -> None:
        replica.receive()
        await durable().step("charge", charge)
        replica.take_over()
        raise Trouble

    async def charge() -> None:
        did.append("charged")

    handle = order.enqueue()
    async with working(own, queues=(QUEUE,), grace=5.0):
        await until(client, handle.id, "died")

    assert ["charged", "refused"] == did


async def test_a_parent_whose_saved_steps_a_failover_lost_before_it_parked_enqueues_no_second_children(
    own: App, client: Client, replica: Replica, did: list[Any]
) -> None:
    may_end = asyncio.Event()

    @own.task(queue=QUEUE, retry=ONCE)
    async def child(n: int) -> int:
        await may_end.wait()
        did.append(n)
        return n

    @own.task(queue=QUEUE, retry=ONCE)
    async def parent() -> None:
        replica.receive()
        items = await durable().map("parts", [child.call(n) for n in range(2)])
        did.append(items.values())

    handle = parent.enqueue()
    async with working(own, queues=(QUEUE,), grace=5.0, concurrency=4):
        await until(client, handle.id, "parked")
        may_end.set()
        await until(client, handle.id, "succeeded")

    assert [0, 1, [0, 1]] == sorted(did, key=str)
    assert 1 == replica.failovers


async def test_the_lost_value_of_a_step_is_saved_again_before_its_job_parks(
    own: App, client: Client, replica: Replica, did: list[Any]
) -> None:
    """Checks a replica that has all entries of a job, and lacks the value of one of them."""

    async def charge() -> int:
        did.append("charged")
        await wait_until_async(lambda: "wait" in kinds(client, replica.job_id), "it waits")
        replica.receive()
        return 7

    @own.task(queue=QUEUE, retry=ONCE)
    async def order() -> None:
        replica.receive()
        step = asyncio.create_task(durable().options(begin=True).step("charge", charge))
        await wait_until_async(
            lambda: "charged" in did or claims_of(client, replica.job_id) > 1, "step"
        )
        did.append(await durable().wait("approval", str))
        did.append(await step)

    handle = order.enqueue()
    # The job parks after the end of its step, and the failover comes between the two.
    replica.failovers = 1
    parked = LoopHome._park

    def after_failover(self: LoopHome) -> None:
        if claims_of(client, handle.id) == 1:
            replica.take_over()
        parked(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LoopHome, "_park", after_failover)
        async with working(own, queues=(QUEUE,), grace=5.0):
            await until(client, handle.id, "parked")
            await own.signal_async(handle, "approval", "yes")
            await until(client, handle.id, "succeeded")

    assert ["charged", "yes", 7] == did
    assert 2 == replica.failovers


def kinds(client: Client, job_id: str) -> list[Any]:
    """Return the kinds of the waits and sleeps that the job has begun."""
    return [
        facts.get("kind") for entry, facts in events(client, job_id) if entry.event == "step_begun"
    ]


async def test_a_job_can_park_after_a_failover_lost_its_steps_although_a_signal_has_arrived_since(
    own: App, client: Client, replica: Replica, did: list[Any]
) -> None:
    @own.task(queue=QUEUE, retry=ONCE)
    async def order() -> None:
        replica.receive()
        did.append(await durable().step("charge", charge))
        did.append(await durable().wait("approval", str))

    async def charge() -> int:
        did.append("charged")
        return 7

    handle = order.enqueue()
    replica.then = lambda: client.run(
        send_signals(QUEUE, [Sending(handle.id, "approval", "k", '"yes"')], by="ann")
    )
    async with working(own, queues=(QUEUE,), grace=5.0):
        await until(client, handle.id, "succeeded")

    assert ["charged", 7, 7, "yes"] == did


async def test_lost_steps_are_saved_again_once_redis_has_room_for_them(
    own: App, client: Client, replica: Replica, did: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checks a log that is too far behind at the first attempt. The claim stays in force meanwhile."""
    refused, sent = list[str](), Saver._sent

    async def full_once(self: Saver, queue: str, records: Any) -> Any:
        if replica.failovers and not refused:
            refused.append(queue)
            raise AuditBacklogFull(queue=queue, backlog=2, bound=1)
        return await sent(self, queue, records)

    monkeypatch.setattr(Saver, "_sent", full_once)
    monkeypatch.setattr(lost_entries, "PAUSE_S", 0.01)

    @own.task(queue=QUEUE, retry=ONCE)
    async def order() -> None:
        replica.receive()
        await durable().step("charge", charge)
        await durable().wait("approval", str)

    async def charge() -> None:
        did.append("charged")

    handle = order.enqueue()
    async with working(own, queues=(QUEUE,), grace=5.0):
        await until(client, handle.id, "parked")

    assert (["charged"], [QUEUE]) == (did, refused)
    assert 1 == claims_of(client, handle.id)


async def test_a_job_whose_lost_steps_cannot_be_saved_again_is_given_back_to_its_queue(
    own: App, client: Client, replica: Replica, did: list[Any]
) -> None:
    """Checks a box of another id, which has an entry, as a person may have put it there."""
    state, boxes = queue_keys(QUEUE)("state"), queue_keys(QUEUE)("boxes")

    @own.task(queue=QUEUE, retry=ONCE)
    async def order() -> None:
        replica.receive()
        await durable().step("charge", charge)
        if len(did) == 1:
            await durable().wait("approval", str)

    async def charge() -> None:
        did.append("charged")

    def damage() -> None:
        line = replica.ask("HGET", state, handle.id)
        replica.ask("HSET", state, handle.id, line.replace(" claim=", f" life={OTHER} claim="))
        replica.ask("HSET", boxes, OTHER, f"job={handle.id} entries=1 bytes=0")
        replica.ask("HSET", boxes, f"{OTHER}|1", "begins begun at=1 fence=1-1")

    replica.then = damage
    handle = order.enqueue()
    async with working(own, queues=(QUEUE,), grace=5.0):
        await until(client, handle.id, "succeeded")

    (back,) = (facts for entry, facts in events(client, handle.id) if entry.event == "rolled_back")
    assert "steps_lost" == back["reason"]
    assert ["charged", "charged"] == did


async def test_a_worker_that_ends_while_it_saves_lost_steps_again_gives_the_job_back_to_the_queue(
    own: App, client: Client, replica: Replica, did: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = Saver._sent

    async def full(self: Saver, queue: str, records: Any) -> Any:
        if replica.failovers:
            did.append("full")
            raise AuditBacklogFull(queue=queue, backlog=2, bound=1)
        return await sent(self, queue, records)

    monkeypatch.setattr(Saver, "_sent", full)
    monkeypatch.setattr("rq_core.worker.shutdown.SAVE_WAIT_S", 0.05)

    @own.task(queue=QUEUE, retry=ONCE)
    async def order() -> None:
        replica.receive()
        await durable().wait("approval", str)

    handle = order.enqueue()
    async with working(own, queues=(QUEUE,), grace=0.05):
        await wait_until_async(lambda: did, "it saves the wait again", timeout=20)

    assert ["rolled_back"] == event_types(client, handle.id)[-1:]
    assert "lease_expired" not in event_types(client, handle.id)


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_a_stopping_worker_saves_lost_steps_again_before_it_gives_the_job_back_to_the_queue(
    own: App, client: Client, replica: Replica, did: list[Any], kind: str
) -> None:
    """Checks a failover just before the worker stops a handler, whose grace is over."""

    def charge() -> int:
        did.append("charged")
        return 7

    async def charge_later() -> int:
        return charge()

    async def order() -> None:
        replica.receive()
        did.append(await durable().step("charge", charge_later))
        await wait_until_async(
            lambda: claims_of(client, replica.job_id) > 1, "it is claimed again", timeout=20
        )

    def order_in_a_thread() -> None:
        replica.receive()
        did.append(durable_sync().step("charge", charge))
        while claims_of(client, replica.job_id) == 1:
            current_job().raise_if_cancelled()
            current_job().wait_cancelled(0.01)

    handler: Any = order if kind == "async" else order_in_a_thread
    handle = own.task(name="order", queue=QUEUE, retry=ONCE)(handler).enqueue()
    async with working(own, queues=(QUEUE,), grace=0.05):
        await wait_until_async(lambda: 7 in did, "the step is saved", timeout=20)
        replica.take_over()

    assert ["rolled_back"] == event_types(client, handle.id)[-1:]
    async with working(own, queues=(QUEUE,), grace=5.0):
        await until(client, handle.id, "succeeded")
    assert ["charged", 7, 7] == did
