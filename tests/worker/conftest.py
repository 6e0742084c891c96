"""Fixtures: workers in this process and in separate processes, on a real server."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from rq_core.app.app import App
from rq_core.connections.client import Client
from rq_core.connections.transport import AsyncTransport
from rq_core.model.events import Entry, decode
from rq_core.protocol.calls import claims
from rq_core.worker import Worker, WorkerOptions
from tests.kit import crew
from tests.kit.servers import engines
from tests.kit.witness import WITNESS
from tests.kit.working import working

RunWorker = Callable[..., AbstractAsyncContextManager[Worker]]

one_engine = pytest.mark.parametrize("engine", engines()[:1], ids=lambda each: each.name)
"""Run the test on one engine only, since the behaviour of a worker without its server does not depend on the engine."""


@pytest.fixture
def witness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> crew.Witness:
    path = tmp_path / "witness.jsonl"
    monkeypatch.setenv(WITNESS, str(path))
    return crew.Witness(path)


@pytest.fixture
def own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the workers of a test a separate directory for their health files."""
    place = tmp_path / "tmp"
    place.mkdir()
    monkeypatch.setenv("TMPDIR", str(place))
    monkeypatch.setattr("tempfile.tempdir", str(place))


@pytest.fixture
def app(valkey_url: str) -> Iterator[App]:
    """Yield the app of the crew (the tasks of these tests), on an empty server."""
    crew.app.connect_to(valkey_url)
    yield crew.app
    crew.app.close()


@pytest.fixture
def client(app: App) -> Iterator[Client]:
    client = app.client
    yield client
    # A worker that ends closes it with the app; who looks at what is left opens it again.
    client.close()


@pytest.fixture
def run_worker(app: App) -> RunWorker:
    """Run a worker during the block: ``async with run_worker(concurrency=2) as worker``.

    Asserts that the worker ends when the block has stopped it.
    """
    return functools.partial(working, app, queues=("crew",), grace=5.0)


def events(client: Client, job_id: str, queue: str = "crew") -> list[tuple[Entry, dict[str, Any]]]:
    """Return the events of a job in the outbox, oldest first."""
    return [
        (entry, event.fields)
        for entry in log_of(client, queue)
        for event in entry.jobs
        if event.job_id == job_id
    ]


def event_types(client: Client, job_id: str, queue: str = "crew") -> list[str]:
    return [str(entry.event) for entry, _ in events(client, job_id, queue)]


def gone(client: Client, *ids: str) -> Callable[[], bool]:
    """Return a condition for `wait_until`: these jobs have left Redis."""
    return lambda: all(client.run(client.calls.reads.job(i, ["crew"])) is None for i in ids)


def emptied(client: Client, *queues: str) -> Callable[[], bool]:
    """Return a condition for `wait_until`: these queues (by default the crew's queue) have no jobs."""
    snapshot = client.calls.reads.snapshot
    return lambda: not any(client.run(snapshot(each))["jobs"] for each in queues or ("crew",))


def attached(client: Client) -> Callable[[], bool]:
    """Return a condition for `wait_until`: a mirror reads the crew's queue."""
    return lambda: bool(client.run(client.calls.reads.counts("crew")).audit)


def mirrored(client: Client) -> Callable[[], bool]:
    """Return a condition for `wait_until`: the mirror has read all events of the crew's queue."""
    return lambda: client.run(client.calls.reads.counts("crew")).backlog == 0


def log_of(client: Client, queue: str = "crew") -> list[Entry]:
    """Return all entries in the outbox of a queue."""
    read = client.calls.audit.read_outbox(queue, "-", 10_000)
    return [decode(entry_id, raw) for entry_id, raw in client.run(read)]


def begin(
    url: str, *, transport: AsyncTransport | None = None, **options: Any
) -> tuple[Worker, asyncio.Task[bool]]:
    """Start a worker for the crew's queue. Return the worker and its asyncio task.

    The caller stops the worker and awaits the asyncio task.
    """
    crew.app.connect_to(url)
    worker = Worker(crew.app, WorkerOptions(queues=("crew",), **options), transport=transport)
    return worker, asyncio.create_task(worker.run())


def lose(client: Client, worker: Worker, job_id: str, fence: str) -> None:
    """End the claim of a running job, and pause the queue, so that no worker claims the job again."""
    client.run(client.calls.admin.configure("crew", {"paused": 1}))
    call = claims.rollback("crew", worker.name, [(job_id, fence, "lost", "null", "", 0)])
    assert client.run(call) == {job_id: "ready"}
