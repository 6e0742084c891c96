"""`rq-core children`, and how `job`, `requeue` and `cancel` treat the children of a durable job."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import pytest
from click.testing import CliRunner

from rq_core import App, RetryPolicy, durable
from rq_core.cli.root import root
from rq_core.worker import Worker, WorkerOptions

ONCE = RetryPolicy(max_attempts=1)


@pytest.fixture
def app(valkey_url: str) -> Iterator[App]:
    made = App(valkey_url)
    runs: list[int] = []

    @made.task(name="part", queue="parts", retry=ONCE)
    async def part(n: int) -> int:
        runs.append(n)
        if n == 1 and runs.count(1) == 1:
            raise ValueError("no")
        return n

    @made.task(name="whole", queue="home", retry=ONCE)
    async def whole() -> int:
        return sum((await durable().map("parts", [part.call(n) for n in range(3)])).values())

    yield made
    made.close()


def run(app: App, *queues: str) -> None:
    """Run a worker until these queues have no job that may run."""

    async def burst() -> None:
        try:
            await Worker(app, WorkerOptions(queues=queues, burst=True)).run()
        finally:
            # A handler may have used the app's client of this loop.
            await app.aclose()

    app.apply_settings()
    asyncio.run(burst())


def shell(app: App, *words: str) -> str:
    return CliRunner().invoke(root, [*words, "--redis", app.redis_url]).output


def test_the_children_command_shows_which_child_has_failed(
    app: App,
) -> None:
    job_id = app.enqueue("home", "whole", {}).id
    run(app, "home")

    assert "its children parts (0 of 3 saved) until " in shell(app, "job", job_id)
    run(app, "home", "parts")
    all_of_them = json.loads(shell(app, "children", job_id, "--json"))
    failed = shell(app, "children", job_id, "--failed")
    assert ["saved", "dead (attempts_spent)", "saved"] == [each["state"] for each in all_of_them]
    assert 1 == failed.count("f-")
    assert "dead (attempts_spent)" in failed
    assert "ValueError: no" in failed
    assert [None, "ValueError: no", None] == [each["error"] for each in all_of_them]
    assert f"{job_id} requeued" in shell(app, "requeue", job_id)
    run(app, "home", "parts")

    ended = app.client.run(app.client.calls.reads.job(all_of_them[1]["id"], ["parts"]))
    assert ended is None
    assert f"`rq-core result {job_id} --audit URL`" in shell(app, "children", job_id)


def test_the_children_command_says_how_an_ended_job_with_a_kept_result_has_ended(app: App) -> None:
    job_id = app.tasks["part"].with_options(keep_result=60).enqueue(0).id
    run(app, "parts")

    for words in (["--failed"], ["--again"]):
        told = shell(app, "children", job_id, *words)
        assert f"job {job_id} has ended (succeeded)" in told
        assert "`rq-core dead QUEUE` lists the children that died" in told


def test_a_cancel_of_the_parent_cancels_its_children(app: App) -> None:
    job_id = app.enqueue("home", "whole", {}).id
    run(app, "home")
    children = json.loads(shell(app, "children", job_id, "--json"))
    assert ["alive"] * 3 == [each["state"] for each in children]

    assert f"{job_id} cancelled" in shell(app, "cancel", job_id)

    ids = [each["id"] for each in children]
    found = app.client.run(app.client.calls.endings.look("parts", ids))
    assert {"Cancelled"} == {type(each).__name__ for each in found.values()}
    assert 3 == len(found)


def test_a_worker_cancels_the_children_that_a_cancelled_parent_enqueues(app: App) -> None:
    ran: list[str] = []

    @app.task(name="page", queue="parts", retry=ONCE)
    async def page() -> None:
        ran.append("page")

    @app.task(name="late", queue="home", retry=ONCE)
    async def late() -> None:
        ran.append(await handle.cancel_async())
        await durable().map("pages", [page.call(), page.call()])

    handle = late.enqueue()
    run(app, "home")
    run(app, "parts")

    assert ["cancelling"] == ran


def test_the_children_command_with_the_option_again_wakes_a_parent_whose_children_ended_unreported(
    app: App,
) -> None:
    job_id = app.enqueue("home", "whole", {}).id
    run(app, "home")
    ids = [each["id"] for each in json.loads(shell(app, "children", job_id, "--json"))]
    # An operator cancels them, so no worker reports their ends.
    assert 3 == shell(app, "cancel", *ids).count(" cancelled")
    run(app, "home")
    assert "parked" in shell(app, "job", job_id)

    words = ("--by", "ann", "--reason", "cancelled by hand")
    woken = json.loads(shell(app, "children", job_id, "--again", "--json", *words))

    assert {"queue": "home", "outcome": "woken"} == woken
    assert f"{job_id} is ready, not parked: it looks when a worker claims it" in (
        shell(app, "children", job_id, "--again")
    )
    run(app, "home")
    assert "0 of 3 children succeeded, 3 must" in shell(app, "job", job_id)
    assert f"is dead and waits for no child, so it cannot look: run `rq-core requeue {job_id}`" in (
        shell(app, "children", job_id, "--again")
    )
    assert "no live job x in" in shell(app, "children", "x", "--again")
