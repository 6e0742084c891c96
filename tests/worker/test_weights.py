"""Weights of queues, by which queues share the places of a worker. Invalid weights are refused at the start."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from click.testing import CliRunner

from rq_core.app.app import App
from rq_core.cli.commands.worker import worker as command
from rq_core.errors import InvalidOption
from rq_core.worker import Worker, WorkerOptions


async def ran(url: str, jobs: int, weight: int, places: int, lasts_s: float = 0) -> list[str]:
    """Run ``jobs`` jobs in the queue mail and ``jobs`` jobs in the queue reports. Return the queue of each job, in
    order.

    ``weight`` is the weight of the queue mail.
    """
    app = App(url)
    ran: list[str] = []

    @app.task(queue="mail")
    async def note(queue: str) -> None:
        ran.append(queue)
        await asyncio.sleep(lasts_s)

    queues = ("mail", "reports")
    for queue in queues:
        app.enqueue_many(note.with_options(queue=queue).job(queue=queue) for _ in range(jobs))
    options = WorkerOptions(queues=queues, weights={"mail": weight}, concurrency=places, burst=True)
    async with asyncio.timeout(30):
        await Worker(app, options).run()
    await app.connections.aclose()
    return ran


async def test_busy_queues_get_places_by_weight(valkey_url: str) -> None:
    """Checks that all jobs run. About three quarters of the first 120 jobs belong to the queue with the weight 3."""
    queues = await ran(valkey_url, jobs=120, weight=3, places=8, lasts_s=0.001)

    assert {"mail": 120, "reports": 120} == Counter(queues)
    first = Counter(queues[:120])
    assert 80 <= first["mail"] <= 100, first


async def test_no_queue_starves_on_a_worker_with_one_place(valkey_url: str) -> None:
    queues = await ran(valkey_url, jobs=40, weight=9, places=1)

    assert 3 <= Counter(queues[:40])["reports"] <= 5


@pytest.mark.parametrize("weights", [{"mail": 0}, {"mail": 1_001}, {"other": 2}])
def test_invalid_weights_are_refused(weights: dict[str, int]) -> None:
    with pytest.raises(InvalidOption, match="must be from 1 to 1000"):
        WorkerOptions(queues=("mail",), weights=weights)


@pytest.mark.parametrize("given", ["mail=", "mail=x", "mail=-1", "mail=1.5"])
def test_a_weight_that_is_not_a_number_is_refused_on_the_command_line(given: str) -> None:
    result = CliRunner().invoke(command, ["tasks:app", "--queues", given])

    assert result.exit_code == 2
    assert "must read QUEUE or QUEUE=WEIGHT" in result.output
