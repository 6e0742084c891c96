"""Forks of durable jobs on a real server: a worker that is killed while it copies the origin's steps, an origin that is
gone, signals that come first, and handlers in their own processes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from rq_core import NotCopied, RetryPolicy, current_job, durable, durable_sync
from rq_core.app.app import App
from rq_core.connections.client import Client
from rq_core.model.durable.forks import ForkOrigin, origin_header
from rq_core.model.headers import FORK_HEADER
from rq_core.model.job import Claim
from rq_core.model.result_encoding import pack_result
from rq_core.protocol.calls import claims
from rq_core.protocol.calls.boxes import Saving, save
from rq_core.worker.execution import forks
from tests.kit import crew
from tests.kit.wait import wait_until_async
from tests.kit.working import working
from tests.worker.conftest import RunWorker, event_types, events

QUEUE = "crew"
LIFE, OTHER = "9f3a0b1c22aa0001", "9f3a0b1c22aa0002"


@pytest.fixture
def did() -> list[Any]:
    return []


@pytest.fixture
def own(app: App, did: list[Any]) -> Iterator[App]:
    """Yield a separate app on the crew's server, with a task of five steps."""
    made = App(app.redis_url)
    made.queue(QUEUE, lease=crew.LEASE)

    def note(n: int) -> int:
        did.append(n)
        return n

    @made.task(name="five", queue=QUEUE, retry=RetryPolicy(max_attempts=2, base=0.01))
    def five() -> None:
        job = durable_sync()
        did.append([job.step("note", note, n) for n in range(5)])

    yield made
    made.close()


def claimed(client: Client, worker: str) -> Claim:
    (held,) = client.run(claims.claim(QUEUE, worker, 1)).jobs
    return held


def save_steps(
    client: Client, held: Claim, worker: str, values: Sequence[str], name: str, life: str = LIFE
) -> None:
    records = [
        Saving(held.id, held.fence, life, "save", n, name if n == 1 else f"{name}#{n}", pack_result(value))
        for n, value in enumerate(values, 1)
    ]  # fmt: skip
    for first in range(0, len(records), 250):
        assert not client.run(save(QUEUE, worker, records[first : first + 250]))


def dead(client: Client, job: Any, values: Sequence[str], name: str = "note") -> None:
    """Enqueue a job, and let it die behind steps that returned these values."""
    client.run(client.calls.enqueue.many([job]))
    held = claimed(client, "w-0")
    save_steps(client, held, "w-0", values, name)
    client.run(claims.fail(QUEUE, "w-0", [(held.id, held.fence, "final", 0, "gave_up", "null")]))


async def over(client: Client, job_id: str) -> None:
    await wait_until_async(
        lambda: {"succeeded", "died"} & set(event_types(client, job_id)), "it has ended", timeout=20
    )


def saved(client: Client, job_id: str) -> list[tuple[int, str, str]]:
    return [
        (facts["entry"], facts["name"], facts["digest"])
        for entry, facts in events(client, job_id)
        if str(entry.event) == "step_saved"
    ]


async def test_the_next_worker_copies_the_remaining_steps_of_a_fork_after_a_worker_was_killed(
    own: App, client: Client, did: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checks a kill after two of four entries, a signal to the fork before the next claim, and a fork of it."""
    monkeypatch.setattr(forks, "BATCH_MAX", 1)
    own.apply_settings()
    dead(client, own.tasks["five"].with_options(id="o-1").job(), ["10", "11", "12", "13"])
    made = own.fork("o-1")
    save_steps(client, claimed(client, "w-1"), "w-1", ["10", "11"], "note", OTHER)
    own.signal(made, "approval", 1)
    with pytest.raises(NotCopied, match="a fork that has not taken over all steps of o-1"):
        own.fork(made.id)

    async with working(own, queues=(QUEUE,), grace=5.0):
        await over(client, made.id)

    assert [4, [10, 11, 12, 13, 4]] == did
    assert ["claimed", "lease_expired", "claimed", "succeeded"] == [
        each for each in event_types(client, made.id) if each in ("claimed", "lease_expired", "succeeded")
    ]  # fmt: skip
    assert saved(client, "o-1") == saved(client, made.id)[:4]
    assert "died" == event_types(client, "o-1")[-1]


async def test_a_fork_gets_the_steps_of_its_origin_although_a_signal_arrived_before_the_copy(
    own: App, client: Client, did: list[Any]
) -> None:
    dead(client, own.tasks["five"].with_options(id="o-1").job(), ["10", "11"])
    made = own.fork("o-1", from_step="note#2")
    own.signal(made, "approval", 1)

    async with working(own, queues=(QUEUE,), grace=5.0):
        await over(client, made.id)

    assert [1, 2, 3, 4, [10, 1, 2, 3, 4]] == did


async def test_failures_of_a_fork_before_the_copy_of_its_steps_do_not_count_towards_max_attempts(
    own: App, client: Client, did: list[Any]
) -> None:
    @own.task(name="base", queue=QUEUE, retry=RetryPolicy(max_attempts=2, base=0.01))
    async def base() -> None:
        did.append((await durable().step("note", int, 5), current_job().base))

    dead(client, base.with_options(id="o-1").job(), ["10"])
    made = own.fork("o-1")
    held = claimed(client, "w-1")
    client.run(claims.fail(QUEUE, "w-1", [(held.id, held.fence, "retry", 0, "failed", "null")]))

    async with working(own, queues=(QUEUE,), grace=5.0):
        await over(client, made.id)

    assert [(10, 1)] == did


async def test_a_fork_whose_origin_has_left_redis_dies_and_runs_no_step(
    own: App, client: Client, did: list[Any]
) -> None:
    dead(client, own.tasks["five"].with_options(id="o-1").job(), ["10", "11"])
    made = own.fork("o-1")
    client.run(client.calls.admin.prune(QUEUE, ["o-1"]))
    # A claim empties the box.
    (held,) = client.run(claims.claim(QUEUE, "w-1", 1)).jobs
    client.run(claims.rollback(QUEUE, "w-1", [(held.id, held.fence, "lost", "null", "", 0)]))

    async with working(own, queues=(QUEUE,), grace=5.0):
        await over(client, made.id)

    found = client.run(client.calls.reads.job(made.id, [QUEUE]))
    assert found is not None
    assert [] == did
    assert 2 == event_types(client, made.id).count("claimed")
    assert "steps of job o-1, which have left Redis, and this worker has no audit log" in str(found)


async def test_the_option_audit_result_decides_whether_the_steps_of_an_isolated_handler_are_logged_with_values(
    app: App, client: Client, run_worker: RunWorker, witness: crew.Witness
) -> None:
    client.run(client.calls.audit.attach(QUEUE, "db-1"))
    made = crew.durable_apart.with_options(keep_result=60, audit_result="full").enqueue(1)
    async with run_worker():
        await over(client, made.id)

    kept = [
        facts["value"] for entry, facts in events(client, made.id) if entry.event == "step_saved"
    ]
    assert [0] == [line["n"] for line in witness.lines("effect")]
    assert 1 == len(kept)
    assert kept[0] is not None


async def test_a_forked_job_in_an_isolated_process_does_not_repeat_the_saved_steps_of_its_origin(
    app: App, client: Client, run_worker: RunWorker, witness: crew.Witness
) -> None:
    dead(client, crew.durable_apart.with_options(id="o-1").job(4), ["0"], "effect")
    made = app.fork("o-1")
    async with run_worker():
        await over(client, made.id)

    assert [1, 2, 3] == sorted(line["n"] for line in witness.lines("effect"))
    assert [1, 2, 3, 4] == [number for number, *_ in saved(client, made.id)]


async def test_a_job_with_a_forged_fork_header_gets_no_steps_of_another_job(
    own: App, client: Client, did: list[Any]
) -> None:
    dead(client, own.tasks["five"].with_options(id="o-1").job(), ["10", "11"])
    header = origin_header(ForkOrigin("o-2", LIFE, 3, 2))
    made = own.tasks["five"].with_options(headers={FORK_HEADER: header}).enqueue()

    async with working(own, queues=(QUEUE,), grace=5.0):
        await over(client, made.id)

    assert [] == did
    assert "died" == event_types(client, made.id)[-1]


@pytest.mark.parametrize(
    "header", ["", f"{LIFE} 3 2", f"{LIFE} 99999 2 o-1", f"{LIFE} 3 2 a\0b", f"{LIFE} 3 2 o-1 more"]
)
async def test_a_fork_whose_header_cannot_be_read_dies_and_runs_no_step(
    own: App, client: Client, did: list[Any], header: str
) -> None:
    """Otherwise a fork whose header a later version has written, or a person has changed, would repeat all steps."""
    dead(client, own.tasks["five"].with_options(id="o-1").job(), ["10", "11"])
    made = own.tasks["five"].with_options(headers={FORK_HEADER: header}).enqueue()

    async with working(own, queues=(QUEUE,), grace=5.0):
        await over(client, made.id)

    found = client.run(client.calls.reads.job(made.id, [QUEUE]))
    assert [] == did
    assert 1 == event_types(client, made.id).count("claimed")
    assert "the header rq-core-fork of this job names no steps of another job" in str(found)
