"""Durable jobs on real servers. Workers are killed between steps, or suspended within a step for longer than a
lease."""

from __future__ import annotations

import os
import signal

import pytest

from rq_core.app.app import App
from rq_core.connections.client import Client
from rq_core.doctor import diagnose
from tests.kit import crew
from tests.kit.crew import worker_process
from tests.kit.wait import wait_until
from tests.worker.conftest import RunWorker, emptied, event_types, events

STEPS, KILLS = 6, 3


@pytest.mark.slow
def test_a_saved_step_is_not_done_again_after_its_worker_was_killed(
    client: Client, witness: crew.Witness, app: App
) -> None:
    handle = crew.steps_and_kills.enqueue(STEPS, KILLS)
    for _ in range(KILLS):
        with worker_process(app.redis_url, witness) as doomed:
            assert doomed.wait(30) == -signal.SIGKILL
    with worker_process(app.redis_url, witness):
        wait_until(lambda: witness.lines("end"), "the job ends", timeout=20)
        wait_until(emptied(client), "it is gone", timeout=20)

    assert list(range(STEPS)) == [line["n"] for line in witness.lines("effect")]
    saved = [
        facts for entry, facts in events(client, handle.id) if str(entry.event) == "step_saved"
    ]
    assert list(range(1, STEPS + 1)) == [facts["entry"] for facts in saved]
    assert KILLS + 1 == len({facts["fence"] for facts in saved})
    assert KILLS == event_types(client, handle.id).count("lease_expired")


@pytest.mark.slow
def test_redis_refuses_to_save_a_step_for_a_worker_whose_lease_has_expired(
    client: Client, witness: crew.Witness, app: App
) -> None:
    """Checks a worker that resumes after its lease has expired. Redis refuses the save, and no further step begins."""
    handle = crew.stopping_in_a_step.enqueue()
    with worker_process(app.redis_url, witness) as zombie:
        wait_until(lambda: zombie.is_stopped, "it is stopped in the step", timeout=20)
        with worker_process(app.redis_url, witness):
            wait_until(
                lambda: "succeeded" in event_types(client, handle.id),
                "another worker has done the job",
                timeout=20,
            )
            before = len(witness.lines("effect"))
            os.kill(zombie.pid, signal.SIGCONT)
            zombie.send_signal(signal.SIGTERM)
            zombie.wait(20)

    assert before == len(witness.lines("effect"))
    saved = [
        facts for entry, facts in events(client, handle.id) if str(entry.event) == "step_saved"
    ]
    assert ["stops", "behind"] == [facts["name"] for facts in saved]
    assert 1 == len({facts["fence"] for facts in saved})


@pytest.mark.slow
async def test_steps_of_several_handlers_are_saved_in_one_call(
    client: Client, witness: crew.Witness, app: App, run_worker: RunWorker
) -> None:
    handles = [crew.steps_and_kills.enqueue(4, 0) for _ in range(20)]
    async with run_worker(concurrency=20):
        for handle in handles:
            await _ended(client, handle.id)

    assert 80 == len(witness.lines("effect"))
    entries = [e for e, _ in events(client, handles[0].id) if str(e.event) == "step_saved"]
    assert any(len(entry.jobs) > 1 for entry in entries)
    assert not diagnose(client, "crew", sleep=lambda _: None)


async def _ended(client: Client, job_id: str) -> None:
    from tests.kit.wait import wait_until_async

    await wait_until_async(
        lambda: "succeeded" in event_types(client, job_id), "it has succeeded", timeout=30
    )
