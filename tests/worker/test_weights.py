"""Queues share a worker's places by weight, on one server as in a cluster."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from click.testing import CliRunner

from rq_core.app.app import App
from rq_core.cli.worker import worker as command
from rq_core.errors import InvalidOption
from rq_core.worker import Worker, WorkerOptions


async def test_busy_queues_get_places_by_weight(valkey_url: str) -> None:
    """And who has nothing left leaves its share to the other: the light queue's last jobs do not crawl."""
    app = App(valkey_url)
    ran: list[str] = []

    @app.task(queue="mail")
    async def note(queue: str) -> None:
        ran.append(queue)
        await asyncio.sleep(0.001)

    for queue in ("mail", "reports"):
        app.enqueue_many(note.with_options(queue=queue).job(queue=queue) for _ in range(120))
    options = WorkerOptions(
        queues=("mail", "reports"), weights={"mail": 3}, concurrency=8, burst=True
    )
    async with asyncio.timeout(30):
        await Worker(app, options).run()
    await app.connections.aclose()

    assert {"mail": 120, "reports": 120} == Counter(ran)
    first = Counter(ran[:120])
    assert 80 <= first["mail"] <= 100, first


async def test_no_queue_starves_for_one_place(valkey_url: str) -> None:
    app = App(valkey_url)
    ran: list[str] = []

    @app.task(queue="mail")
    async def note(queue: str) -> None:
        ran.append(queue)

    for queue in ("mail", "reports"):
        app.enqueue_many(note.with_options(queue=queue).job(queue=queue) for _ in range(40))
    options = WorkerOptions(
        queues=("mail", "reports"), weights={"mail": 9}, concurrency=1, burst=True
    )
    async with asyncio.timeout(30):
        await Worker(app, options).run()
    await app.connections.aclose()

    assert 3 <= Counter(ran[:40])["reports"] <= 5


@pytest.mark.parametrize("weights", [{"mail": 0}, {"mail": 1_001}, {"other": 2}])
def test_weights_that_mean_nothing_are_refused(weights: dict[str, int]) -> None:
    with pytest.raises(InvalidOption, match="must be from 1 to 1000"):
        WorkerOptions(queues=("mail",), weights=weights)


@pytest.mark.parametrize("given", ["mail=", "mail=x", "mail=-1", "mail=1.5"])
def test_weight_that_is_no_number_is_refused_on_the_command_line(given: str) -> None:
    result = CliRunner().invoke(command, ["tasks:app", "--queues", given])

    assert result.exit_code == 2
    assert "must read QUEUE or QUEUE=WEIGHT" in result.output
