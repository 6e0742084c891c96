"""How handlers end, and how their dependencies are exited, checked against the table of docs/how-to/handlers.md."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from rq_core.app.app import App
from rq_core.connections.client import Client
from rq_core.model.lib.url import REDIS_URL_VARIABLE
from tests.kit import crew, handling
from tests.kit.processes import worker
from tests.kit.wait import wait_until_async
from tests.kit.witness import WITNESS
from tests.worker.conftest import RunWorker, event_types, lose


@pytest.fixture
def app(valkey_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[App]:
    """Yield the app whose tasks have dependencies, on an empty server. Processes of isolated handlers use this server,
    too."""
    monkeypatch.setenv(REDIS_URL_VARIABLE, valkey_url)
    handling.app.connect_to(valkey_url)
    yield handling.app
    handling.app.close()


TASKS: dict[str, Any] = {
    "async": handling.on_loop,
    "thread": handling.in_thread,
    "process": handling.apart,
    "process, async": handling.apart_async,
}
ALL = pytest.mark.parametrize("kind", sorted(TASKS))


def left(witness: crew.Witness, claim: int = 1) -> list[tuple[str, str | None, str]]:
    """Return the exited dependencies, each with the error that it got and the state of its job at the exit."""
    lines = [line for line in witness.lines("left") if line["claim"] == claim]
    return [(line["name"], line["error"], line["state"]) for line in lines]


def both(error: str | None, state: str) -> list[tuple[str, str | None, str]]:
    """Return the expected exits of both dependencies, the inner one first, with this error and this state of the
    job."""
    return [("session", error, state), ("around", error, state)]


async def ended(client: Client, job: Any) -> None:
    def settled() -> bool:
        found = client.run(client.calls.reads.job(job.id))
        return found is None or found.state == "dead"

    await wait_until_async(settled, "its claim is settled", timeout=20)


@pytest.mark.slow
@ALL
async def test_dependencies_are_exited_before_the_worker_reports_a_success(
    app: App, client: Client, run_worker: RunWorker, witness: crew.Witness, kind: str
) -> None:
    async with run_worker():
        jobs = [TASKS[kind].enqueue("succeed") for _ in range(3)]
        for job in jobs:
            await ended(client, job)

    assert sorted(left(witness), key=str) == sorted(both(None, "running") * 3, key=str)
    opened = {line["pid"]: line for line in witness.lines("opened")}
    assert len(witness.lines("opened")) == len(opened), "once per process"
    assert opened.keys() == {line["pid"] for line in witness.lines("begin")}
    # Also in the processes of isolated handlers, which are asked to end.
    assert sorted(opened) == sorted(line["pid"] for line in witness.lines("closed"))


@pytest.mark.slow
@ALL
async def test_dependencies_are_exited_before_the_worker_reports_a_failure(
    app: App, client: Client, run_worker: RunWorker, witness: crew.Witness, kind: str
) -> None:
    async with run_worker():
        job = TASKS[kind].enqueue("fail")
        await ended(client, job)

    for claim in (1, 2, 3):
        assert left(witness, claim) == both("ValueError", "running")
    assert event_types(client, job.id)[-1] == "died"


@pytest.mark.parametrize(
    ("kind", "how", "expected"),
    [
        ("async", "wait", both("CancelledError", "running")),
        # It is reported at its timeout, and its thread leaves when it returns, later or…
        ("thread", "deaf", both("HandlerTimeout", "dead")),
        ("thread", "wait", both("HandlerTimeout", "any")),
        # A process is killed at its timeout.
        ("process", "wait", []),
        ("process, async", "wait", []),
    ],
)
@pytest.mark.slow
async def test_dependencies_are_exited_after_a_timeout(
    app: App,
    client: Client,
    run_worker: RunWorker,
    witness: crew.Witness,
    kind: str,
    how: str,
    expected: Any,
) -> None:
    async with run_worker() as running:
        # A process has to start first, and to import the app: that is part of its time.
        timeout = 5 if kind.startswith("process") else 0.5
        job = TASKS[kind].with_options(max_attempts=1, timeout=timeout).enqueue(how)
        await wait_until_async(lambda: witness.lines("begin"), "it has begun", timeout=20)
        await ended(client, job)
        await wait_until_async(
            lambda: not running._handlers.executor.running, "its place is free", timeout=20
        )

    found = left(witness)
    if ("session", "HandlerTimeout", "any") in expected:
        # …at the same time, if it looks whether it should stop.
        found = [(name, error, "any") for name, error, _ in found]
    assert found == expected
    assert len(witness.lines("entered")) == 2
    assert len(witness.lines("closed")) == (0 if kind.startswith("process") else 1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("async", "CancelledError"),
        ("thread", "JobCancelled"),
        ("process", "JobCancelled"),
        ("process, async", "CancelledError"),
    ],
)
async def test_dependencies_are_exited_before_a_cancellation_is_settled(
    app: App, client: Client, run_worker: RunWorker, witness: crew.Witness, kind: str, error: str
) -> None:
    async with run_worker():
        job = TASKS[kind].enqueue("wait")
        await wait_until_async(lambda: witness.lines("begin"), "it has begun", timeout=20)
        job.cancel()
        await ended(client, job)

    assert left(witness) == both(error, "cancelling")
    assert event_types(client, job.id)[-1] == "cancelled"


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("async", "CancelledError"),
        ("thread", "LeaseLost"),
        ("process", "LeaseLost"),
        ("process, async", "CancelledError"),
    ],
)
async def test_dependencies_are_exited_when_the_lease_is_lost(
    app: App, client: Client, run_worker: RunWorker, witness: crew.Witness, kind: str, error: str
) -> None:
    async with run_worker() as worker:
        job = TASKS[kind].enqueue("wait")
        await wait_until_async(lambda: witness.lines("begin"), "it has begun", timeout=20)
        (running,) = worker._handlers.executor.running.values()
        lose(client, worker, job.id, running.claim.fence)
        await wait_until_async(
            lambda: not worker._handlers.executor.running, "its place is free", timeout=20
        )

    assert left(witness) == both(error, "ready")
    assert event_types(client, job.id) == ["enqueued", "claimed", "rolled_back"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("async", "CancelledError"),
        ("thread", "WorkerStopping"),
        ("process", "WorkerStopping"),
        ("process, async", "CancelledError"),
    ],
)
async def test_dependencies_are_exited_before_a_stopping_worker_gives_the_job_back(
    app: App, client: Client, run_worker: RunWorker, witness: crew.Witness, kind: str, error: str
) -> None:
    async with run_worker(grace=0.0):
        job = TASKS[kind].enqueue("wait")
        await wait_until_async(lambda: witness.lines("begin"), "it has begun", timeout=20)

    assert left(witness) == both(error, "running")
    assert event_types(client, job.id) == ["enqueued", "claimed", "rolled_back"]
    # And then what lives as long as the process.
    whats = [line["what"] for line in witness.lines()]
    assert whats[-3:] == ["left", "left", "closed"]


@ALL
@pytest.mark.slow
async def test_a_killed_process_exits_no_dependency(
    app: App,
    client: Client,
    run_worker: RunWorker,
    witness: crew.Witness,
    kind: str,
    valkey_url: str,
) -> None:
    """Checks two kills: of the worker's process, and of an isolated handler's process."""
    job = TASKS[kind].enqueue("kill")
    if not kind.startswith("process"):
        with worker(
            "tests.kit.handling:app",
            ["crew"],
            valkey_url,
            log=witness.path.with_suffix(".log"),
            variables={WITNESS: str(witness.path)},
        ) as first:
            first.wait(20)
    async with run_worker():
        await ended(client, job)

    (killed, _) = [line["pid"] for line in witness.lines("begin")]
    assert [line for line in witness.lines("left") if line["pid"] == killed] == []
    assert [line["pid"] for line in witness.lines("closed")] == [
        line["pid"] for line in witness.lines("opened") if line["pid"] != killed
    ]
    assert left(witness, 2) == both(None, "running")


async def test_asyncio_tasks_that_an_isolated_handler_leaves_running_are_cancelled(
    app: App, client: Client, run_worker: RunWorker, witness: crew.Witness
) -> None:
    async with run_worker(concurrency=1):
        for _ in range(2):
            await ended(client, handling.apart_forgetful.enqueue())

    whats = [line["what"] for line in witness.lines() if line["what"] not in ("entered", "left")]
    assert whats == ["opened", "begin", "rest cancelled", "begin", "rest cancelled", "closed"]
    assert [line["left"] for line in witness.lines("begin")] == [1, 1]


@pytest.mark.parametrize("way", ["timeout", "cancel"])
@pytest.mark.parametrize(
    "task", [handling.slow_to_begin, handling.slow_to_begin_in_thread], ids=["async", "thread"]
)
async def test_a_handler_does_not_begin_if_its_dependencies_are_not_entered_in_time(
    app: App, client: Client, run_worker: RunWorker, witness: crew.Witness, task: Any, way: str
) -> None:
    """Checks that the timeout of an attempt includes the entry of the dependencies."""
    options = {"timeout": 0.3} if way == "timeout" else {}
    async with run_worker() as running:
        job = task.with_options(max_attempts=1, **options).enqueue()
        await wait_until_async(lambda: witness.lines("entering"), "it enters")
        if way == "cancel":
            job.cancel()
        await ended(client, job)
        await wait_until_async(lambda: not running._handlers.executor.running, "its place is free")

    assert witness.lines("begin") == []
    assert [name for name, _, _ in left(witness)] == ["session", "around"]
    assert event_types(client, job.id)[-1] == ("died" if way == "timeout" else "cancelled")


@pytest.mark.parametrize(
    "task",
    [handling.headers_on_loop, handling.headers_in_thread, handling.headers_apart],
    ids=["async", "thread", "process"],
)
async def test_a_handler_in_a_worker_sees_the_headers_of_its_job(
    app: App, client: Client, run_worker: RunWorker, witness: crew.Witness, task: Any
) -> None:
    async with run_worker(concurrency=1):
        for headers in ({"request-id": "01é", "x": '"}'}, {}):
            await ended(client, task.with_options(headers=headers).enqueue())

    assert [line["found"] for line in witness.lines("headers")] == [
        {"request-id": "01é", "x": '"}'},
        {},
    ]
