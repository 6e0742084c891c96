"""Handlers that report the real cost of their jobs, and that pause a scope."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from rq_core import (
    App,
    Batch,
    Cap,
    InvalidOption,
    Job,
    PauseScope,
    Rate,
    RetryPolicy,
    UsageError,
    current_job,
    testing,
)
from rq_core.connections.client import Client
from rq_core.model.events import decode
from tests.kit.wait import wait_until_async
from tests.kit.working import working

QUEUE = "paid"


def asks() -> list[Rate]:
    return [
        Rate(10_000, per_seconds=600, per="model", cost="tokens", burst=10_000),
        Rate(1_000, per_seconds=1, per="model", burst=1_000),
    ]


@pytest.fixture
def app(valkey_url: str) -> Iterator[App]:
    made = App(valkey_url)
    yield made
    made.close()


def log_of(client: Client, kind: str, queue: str = QUEUE) -> list[dict[str, Any]]:
    """Return the fields of all events of this type."""
    read = client.run(client.calls.audit.read_outbox(queue, "-", 10_000))
    entries = [decode(entry_id, raw) for entry_id, raw in read]
    return [job.fields for entry in entries if entry.event == kind for job in entry.jobs]


async def test_the_last_cost_that_a_handler_reports_is_settled_however_the_handler_ends(
    app: App,
) -> None:
    @app.task(queue=QUEUE, name="ask", caps=asks(), retry=RetryPolicy(max_attempts=1))
    async def ask(model: str, tokens: int, fails: bool = False) -> None:
        current_job().cost("tokens", 1)
        current_job().cost("tokens", tokens // 2)
        if fails:
            raise ValueError("no answer")

    @app.task(queue=QUEUE, name="ask_sync", caps=asks())
    def ask_sync(model: str, tokens: int) -> None:
        current_job().cost("tokens", 0)

    app.enqueue_many([ask.job("a", 100), ask.job("a", 200, fails=True), ask_sync.job("b", 50)])
    async with working(app, queues=[QUEUE]):
        await wait_until_async(
            lambda: len(log_of(app.client, "cost_settled")) == 3, "costs settled"
        )

    assert sorted(each["taken"] for each in log_of(app.client, "cost_settled")) == [
        "tokens:0", "tokens:100", "tokens:50",
    ]  # fmt: skip
    assert len(log_of(app.client, "settlement_refused")) == 0


async def test_the_first_cost_on_a_server_that_lacks_the_script_for_costs_is_settled(
    app: App,
) -> None:
    """Checks a server without the script for costs. The server has all other scripts that settle jobs."""

    @app.task(queue=QUEUE, name="plain")
    async def plain() -> None: ...

    @app.task(queue=QUEUE, name="ask", caps=asks())
    async def ask(model: str, tokens: int) -> None:
        current_job().cost("tokens", 7)

    async with working(app, queues=[QUEUE]) as worker:
        for n in range(2):
            app.enqueue_many([plain.job()])
            await wait_until_async(lambda n=n: worker.stats.completed > n, "a plain job is done")
        libraries = app.client.run(app.client.calls.delivery.ask([["FUNCTION", "LIST"]]))[0]
        for library in libraries:
            named = (
                dict(zip(library[::2], library[1::2], strict=True))
                if type(library) is list
                else library
            )
            if "spend" in named["library_name"]:
                asking = [["FUNCTION", "DELETE", named["library_name"]]]
                app.client.run(app.client.calls.delivery.ask(asking))
        app.enqueue_many([ask.job("a", 100)])
        await wait_until_async(lambda: worker.stats.completed == 3, "the job is done")

    assert [each["taken"] for each in log_of(app.client, "cost_settled")] == ["tokens:7"]


async def test_a_pause_of_a_key_holds_back_all_its_jobs_and_uses_no_attempt(app: App) -> None:
    answers: list[tuple[str, int]] = []
    asked = asyncio.Event()

    @app.task(queue=QUEUE, name="ask", caps=asks())
    async def ask(model: str, tokens: int) -> None:
        job = current_job()
        answers.append((model, job.attempt))
        if model == "busy":
            asked.set()
            raise PauseScope("model", after=30)

    app.enqueue_many([ask.job("busy", 10) for _ in range(3)])
    async with working(app, queues=[QUEUE], concurrency=1):
        await asked.wait()
        ask.enqueue("free", 10)
        await wait_until_async(lambda: ("free", 1) in answers, "the other key runs")

    read = app.client.run(app.client.calls.audit.read_outbox(QUEUE, "-", 10_000))
    log = [(str(e.event), e.jobs) for e in (decode(entry_id, raw) for entry_id, raw in read)]
    kinds = [kind for kind, _ in log]
    late = [
        job
        for kind, jobs in log[kinds.index("scope_paused") :]
        if kind == "claimed"
        for job in jobs
    ]
    assert [job.fields["scopes"][0][0] for job in late] == ["ask.model@1s=free"]
    assert {each["scope"] for each in log_of(app.client, "scope_paused")} == {
        "ask.model@600s:tokens=busy", "ask.model@1s=busy",
    }  # fmt: skip
    reasons = {each["reason"] for each in log_of(app.client, "rolled_back")}
    assert reasons == {"scope_paused"}
    assert log_of(app.client, "retried") == []


async def test_an_invalid_cost_or_pause_raises_an_error_in_the_handler(app: App) -> None:
    found: list[BaseException] = []

    @app.task(queue=QUEUE, name="ask", caps=asks())
    async def ask(model: str, tokens: int) -> None:
        job: Any = current_job()
        for call in (
            lambda: job.cost("pages", 3),
            lambda: job.cost("tokens", -1),
            lambda: job.cost("tokens", "many"),
            lambda: job.cost("tokens", 10**12),
            lambda: PauseScope("tenant"),
            lambda: PauseScope("model", after=-1),
        ):
            try:
                call()
            except Exception as error:
                found.append(error)

    ask.enqueue("a", 5)
    async with working(app, queues=[QUEUE]):
        await wait_until_async(lambda: len(found) == 6, "the handler has run")

    assert [type(error) for error in found] == [
        InvalidOption, InvalidOption, InvalidOption, InvalidOption, UsageError, InvalidOption,
    ]  # fmt: skip
    assert "must be a unit that a rate of the job counts: tokens" in str(found[0])
    assert "it has model. Declare Rate(…, per='tenant')" in str(found[4])


@dataclass
class Question:
    model: str
    tokens: int


async def test_each_job_of_a_batch_reports_its_own_cost(app: App) -> None:
    refused: list[UsageError] = []

    @app.task(queue="batches", name="ask_many", caps=asks(), batch=Batch(10))
    async def ask_many(jobs: list[Job[Question]]) -> None:
        for job in jobs:
            job.context.cost("tokens", 7)
        for call in (lambda: current_job().cost("tokens", 1), lambda: PauseScope("model")):
            try:
                call()
            except UsageError as error:
                refused.append(error)

    app.enqueue_many([ask_many.job(Question("a", 50)) for _ in range(3)])
    async with working(app, queues=["batches"]):
        await wait_until_async(
            lambda: len(log_of(app.client, "cost_settled", "batches")) == 3, "costs settled"
        )

    assert "say job.context.cost" in str(refused[0])
    assert "PauseScope('model') is not for a batch" in str(refused[1])
    told = [each["taken"] for each in log_of(app.client, "cost_settled", "batches")]
    assert told == ["tokens:7"] * 3


def test_the_fake_server_settles_costs_and_pauses_scopes(app: App) -> None:
    @app.task(queue=QUEUE, name="ask", caps=asks())
    def ask(model: str, tokens: int) -> None:
        current_job().cost("tokens", 3)
        if model == "busy" and current_job().claim == 1:
            raise PauseScope("model", after=30)

    with testing.fake(app) as fake:
        ask.enqueue("busy", 10)
        ask.enqueue("free", 10)
        outcomes = [ran.outcome for ran in fake.drain()]
        settled = [each["taken"] for each in log_of(app.client, "cost_settled")]
        paused = log_of(app.client, "scope_paused")

    assert outcomes == ["scheduled", "succeeded", "succeeded"]
    assert settled == ["tokens:3"] * 3
    assert len(paused) == 2


@pytest.mark.parametrize("made", ["here", "elsewhere"])
async def test_a_job_that_pauses_a_rate_without_a_limit_is_given_back_to_its_queue(
    app: App, made: str
) -> None:
    """Checks that the job does not begin again at once. A rate without a limit cannot be paused."""
    elsewhere = PauseScope("model", after=30)
    begun = 0

    @app.task(queue=QUEUE, name="ask", caps=asks())
    async def ask(model: str, tokens: int) -> None:
        nonlocal begun
        begun += 1
        raise PauseScope("model", after=30) if made == "here" else elsewhere

    ask.enqueue("a", 10)
    async with working(app, queues=[QUEUE]):
        await wait_until_async(lambda: begun == 1, "the job has run")
        await wait_until_async(lambda: log_of(app.client, "rolled_back") != [], "given back")
    paused = {each["scope"] for each in log_of(app.client, "scope_paused")}
    assert paused == {"ask.model@600s:tokens=a", "ask.model@1s=a"}

    for family in ("ask.model@600s:tokens", "ask.model@1s"):
        app.client.run(app.client.calls.caps.change(QUEUE, family, None, by="ada"))
    ask.enqueue("b", 10)
    async with working(app, queues=[QUEUE]):
        await wait_until_async(lambda: begun == 2, "the other job has run")
        await wait_until_async(lambda: len(log_of(app.client, "rolled_back")) == 2, "given back")
        ask.enqueue("c", 10)
        await wait_until_async(lambda: begun == 3, "a third job has run")

    assert begun == 3


async def test_pausing_a_key_that_has_only_a_cap_is_an_error(app: App) -> None:
    @app.task(
        queue=QUEUE, name="ask", caps=[Cap(5, per="model")], retry=RetryPolicy(max_attempts=1)
    )
    async def ask(model: str) -> None:
        raise elsewhere

    elsewhere = PauseScope("model")
    ask.enqueue("a")
    async with working(app, queues=[QUEUE]):
        await wait_until_async(lambda: log_of(app.client, "died") != [], "the job is dead")

    (died,) = log_of(app.client, "died")
    assert "needs a rate or a breaker of the job: it has none" in str(died["error"])
