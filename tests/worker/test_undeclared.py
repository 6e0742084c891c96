"""Queues that an app does not declare. A worker reports such a queue, and creates nothing in Redis for it."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from rq_core import App
from rq_core.cli.root import root
from rq_core.protocol.engine import server_check
from rq_core.worker import Worker, WorkerOptions
from tests.kit import processes
from tests.kit.servers import RedisServer
from tests.kit.wait import wait_until_async
from tests.kit.witness import WITNESS
from tests.kit.working import working


def app_at(url: str, ran: list[str]) -> App:
    app = App(url)

    @app.task(queue="mail")
    async def send(to: str) -> None:
        ran.append(to)

    app.queue("reports", lease=9)
    return app


def keys(valkey: RedisServer) -> set[str]:
    with valkey.client(decode_responses=True) as control:
        return set(control.keys("*"))


@pytest.fixture(autouse=True)
def _looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rq_core.worker.startup.LOOK_S_MAX", 0.05)


async def test_a_worker_creates_no_queue_that_its_app_does_not_declare(
    valkey: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    app = app_at(valkey.url, [])
    caplog.set_level("INFO")

    async with working(app, queues=("default",)) as worker:
        await wait_until_async(lambda: "worker started" in caplog.text, "it works")
        worker._handlers.leases._attendance.tell()  # type: ignore[union-attr]

        made = keys(valkey)

    assert {key for key in (made | keys(valkey)) if "default" in key} == set()
    (said,) = [r.getMessage() for r in caplog.records if "queue default" in r.getMessage()]
    assert "declares tasks of: mail, reports" in said
    assert "does not create it" in said


async def test_a_worker_serves_an_undeclared_queue_once_a_producer_has_created_it(
    valkey: RedisServer,
) -> None:
    ran: list[str] = []
    app = app_at(valkey.url, ran)

    async with working(app, queues=("mail", "bulk")) as worker:
        await app.enqueue_async("mail", "send", {"to": "a"})
        await wait_until_async(lambda: ran == ["a"], "the declared queue is worked for")
        assert not any("bulk" in key for key in keys(valkey))

        await app.tasks["send"].with_options(queue="bulk").enqueue_async(to="b")
        await wait_until_async(lambda: ran == ["a", "b"], "so is the other")
        worker._handlers.leases._attendance.tell()  # type: ignore[union-attr]
        assert any("{bulk}:workers" in key for key in keys(valkey))


@pytest.mark.parametrize("queues", [("default",), ("default", "mail")])
async def test_a_burst_ends_though_a_queue_does_not_exist(
    valkey: RedisServer, queues: tuple[str, ...]
) -> None:
    app = app_at(valkey.url, [])

    assert await Worker(app, WorkerOptions(queues=queues, burst=True)).run()
    await app.aclose()

    assert not any("default" in key for key in keys(valkey))


TARGET = "tests.kit.crew:app"


@pytest.fixture(autouse=True)
def _nobody_overrules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(server_check.FORCE_VARIABLE, "0")


def run(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(root, ["worker", TARGET, "--burst", *words])
    return result.exit_code, result.stderr


@pytest.mark.slow
@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_worker_without_a_declared_queue_is_refused_unless_the_operator_forces_it(
    valkey: RedisServer, processes: str
) -> None:
    words = ("-p", processes, "--redis", valkey.url, "--queues", "mail,other")

    status, said = run(*words)
    assert status == 2
    assert "must name a queue that the app declares (crew" in said
    assert keys(valkey) == set()

    status, said = run(*words, "--force")
    assert status == 0
    assert not any("{mail}" in key or "{other}" in key for key in keys(valkey))


@pytest.mark.slow
@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_worker_without_the_option_queues_serves_the_declared_queues(
    valkey: RedisServer, processes: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(WITNESS, str(tmp_path / "witness"))
    with App(valkey.url) as app:
        job = app.enqueue("crew", "coroutine")
        assert run("-p", processes, "--redis", valkey.url)[0] == 0

        assert job.state() == "gone"
    assert not any("default" in key for key in keys(valkey))


@pytest.mark.slow
def test_a_worker_is_refused_if_its_app_declares_no_queue(tmp_path: Path) -> None:
    (tmp_path / "tasks.py").write_text("from rq_core import App\napp = App()\n")

    ran = processes.rq_core("worker", "tasks", "--burst", cwd=tmp_path)

    assert ran.returncode == 2
    assert "must name a queue: the app declares none" in ran.stderr


def test_a_worker_is_not_refused_if_one_of_its_queues_is_declared(
    valkey: RedisServer,
) -> None:
    assert run("--redis", valkey.url, "--queues", "crew,other")[0] == 0
    assert {key for key in keys(valkey) if "other" in key} == set()
