"""The box of a job that a worker has parked: when the worker's next claim of the job reads it again."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from rq_core import RetryPolicy, durable, durable_sync
from rq_core.app.app import App
from rq_core.app.handlers.context import JobContext
from rq_core.connections.client import Client
from rq_core.errors import OutcomeUnknown
from rq_core.model.durable.boxes import StepEntry
from rq_core.protocol.reads.box_reads import Box, BoxReads
from rq_core.worker.execution.parked_boxes import ENTRY_BYTES, ParkedBoxes
from rq_core.worker.execution.saver import Saver
from tests.kit import crew
from tests.kit.wait import wait_until_async
from tests.kit.working import working
from tests.worker.conftest import event_types

QUEUE = "crew"
LIFE = "a" * 16
ONCE = RetryPolicy(max_attempts=1)
CHARGE = StepEntry("charge", True, 0, "1000-7", "digest", '"ch_1"')


def claimed(claim: int = 2, fence: str = "1000-9", life: str | None = LIFE, **more: Any) -> Any:
    facts: dict[str, Any] = {
        "id": "j",
        "queue": QUEUE,
        "task": "t",
        "failures": 0,
        "losses": 0,
        "worker": "w",
    }
    return JobContext(**facts | {"claim": claim, "fence": fence, "life": life} | more)


def parked(entry: StepEntry = CHARGE, bytes_max: int = 10_000) -> ParkedBoxes:
    boxes = ParkedBoxes(bytes_max)
    boxes.keep(claimed(1, "1000-7"), Box(LIFE, (entry,)))
    return boxes


def test_the_next_claim_of_a_job_gets_the_saved_steps_that_the_worker_kept_when_it_parked_the_job() -> (
    None
):
    boxes = parked()

    box = boxes.take(claimed())

    assert box is not None
    assert (box.life, box.entries[0]._replace(at_ms=0)) == (LIFE, CHARGE)
    assert box.entries[0].at_ms > 0, "children are looked at less and less often after this time"
    assert boxes.take(claimed()) is None, "the handler may change what it has got"


@pytest.mark.parametrize(
    "context",
    [
        pytest.param(claimed(claim=3), id="another worker had a claim in between"),
        pytest.param(claimed(claim=1), id="a failover took the claim that parked the job"),
        pytest.param(claimed(fence="1001-9"), id="a failover has begun another epoch"),
        pytest.param(claimed(life="b" * 16), id="another job has the same id"),
        pytest.param(claimed(life=None), id="the job has no box"),
        pytest.param(claimed(queue="other"), id="a job of another queue has the same id"),
    ],
)
def test_the_steps_that_a_worker_kept_of_a_parked_job_are_not_used_if_the_claim_may_have_other_steps(
    context: Any,
) -> None:
    assert parked().take(context) is None


def test_a_worker_that_keeps_too_many_steps_first_forgets_the_steps_of_the_job_that_it_parked_first() -> (
    None
):
    boxes = ParkedBoxes(4 * (ENTRY_BYTES + 100))
    entry = CHARGE._replace(value="x" * 100)
    for number in range(5):
        boxes.keep(claimed(1, id=f"j{number}"), Box(LIFE, (entry,)))

    kept = [number for number in range(5) if boxes.take(claimed(id=f"j{number}")) is not None]

    assert kept == [1, 2, 3, 4]


def test_a_worker_does_not_keep_steps_that_take_a_quarter_of_the_memory_limit() -> None:
    assert parked(CHARGE._replace(value="x" * 2_001)).take(claimed()) is None


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


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The ids of the jobs whose boxes workers have read."""
    found: list[str] = []
    box = BoxReads.box

    def noted(self: BoxReads, queue: str, job_id: str, *args: Any, **more: Any) -> Any:
        found.append(job_id)
        return box(self, queue, job_id, *args, **more)

    monkeypatch.setattr(BoxReads, "box", noted)
    return found


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_a_worker_that_parks_and_continues_the_same_job_never_reads_its_steps_from_redis(
    own: App, client: Client, did: list[Any], reads: list[str], kind: str
) -> None:
    if kind == "async":

        async def note(what: str) -> None:
            did.append(what)

        @own.task(queue=QUEUE, retry=ONCE)
        async def asks() -> None:
            job = durable()
            await job.step("charge", note, "charged")
            did.append(await job.wait("first", str))
            did.append(await job.wait("second", str))

    else:

        @own.task(queue=QUEUE, retry=ONCE)
        def asks() -> None:
            job = durable_sync()
            job.step("charge", did.append, "charged")
            did.append(job.wait("first", str))
            did.append(job.wait("second", str))

    handle = asks.enqueue()
    async with working(own, queues=(QUEUE,), grace=5.0):
        for number, name in enumerate(("first", "second"), 1):
            await wait_until_async(
                lambda n=number: event_types(client, handle.id).count("parked") == n,  # type: ignore[misc]
                "it is parked",
            )
            await own.signal_async(handle, name, name)
        await wait_until_async(
            lambda: "succeeded" in event_types(client, handle.id), "its handler has ended"
        )

    assert did == ["charged", "first", "first", "second"]
    assert reads == []


async def test_the_next_run_of_a_job_has_a_step_that_was_cancelled_while_redis_saved_the_step(
    own: App, client: Client, did: list[Any], reads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    save, may_answer, is_saved = Saver.save, asyncio.Event(), asyncio.Event()

    async def slow(saver: Saver, context: Any, records: Any) -> Any:
        answer = await save(saver, context, records)
        if records[0].name == "charge":
            is_saved.set()
            await may_answer.wait()
        return answer

    monkeypatch.setattr(Saver, "save", slow)

    async def charge() -> str:
        did.append("charged")
        return "ch_1"

    @own.task(queue=QUEUE, retry=ONCE)
    async def stops_a_step() -> None:
        job = durable()
        charging = asyncio.ensure_future(job.step("charge", charge))
        if not is_saved.is_set():
            await is_saved.wait()
            charging.cancel()
            await asyncio.wait([charging])
            asyncio.get_running_loop().call_soon(may_answer.set)
        else:
            did.append(await charging)
        await job.sleep("nap", 0.01)

    handle = stops_a_step.enqueue()
    async with working(own, queues=(QUEUE,), grace=5.0):
        await wait_until_async(
            lambda: {"succeeded", "died"} & {*event_types(client, handle.id)},
            "its handler has ended",
        )

    assert did == ["charged", "ch_1"]
    assert event_types(client, handle.id)[-1] == "succeeded"
    assert reads == []


async def test_the_run_after_a_failed_save_reads_the_steps_from_redis(
    own: App, client: Client, did: list[Any], reads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The handler goes on after an error that does not say whether Redis has saved the step."""
    save, has_failed = Saver.save, asyncio.Event()

    async def fails(saver: Saver, context: Any, records: Any) -> Any:
        if records[0].name == "note" and not has_failed.is_set():
            has_failed.set()
            raise OutcomeUnknown("no reply came")
        return await save(saver, context, records)

    monkeypatch.setattr(Saver, "save", fails)

    async def note() -> None:
        did.append("noted")

    @own.task(queue=QUEUE, retry=ONCE)
    async def goes_on() -> None:
        job = durable()
        with contextlib.suppress(OutcomeUnknown):
            await job.step("note", note)
        await job.sleep("nap", 0.01)

    handle = goes_on.enqueue()
    async with working(own, queues=(QUEUE,), grace=5.0):
        await wait_until_async(
            lambda: {"succeeded", "died"} & {*event_types(client, handle.id)},
            "its handler has ended",
        )

    assert reads == [handle.id]
