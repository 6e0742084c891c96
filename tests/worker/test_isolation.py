"""Handlers that run in a process of their own. A handler that crashes or never returns does not affect the worker."""

from __future__ import annotations

import contextlib
import importlib
import json
import multiprocessing
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from rq_core import App, InvalidOption, InvalidTask
from rq_core.connections.client import Client
from rq_core.errors import RqCoreError
from rq_core.worker import Worker, WorkerOptions
from rq_core.worker.execution import process_pool
from rq_core.worker.execution.isolated_steps import PipeQuestions
from rq_core.worker.execution.process_pool import IsolationPool
from tests.kit import crew
from tests.kit.crew import worker_process
from tests.kit.processes import command_of, lives
from tests.kit.wait import wait_until, wait_until_async
from tests.kit.working import working
from tests.worker.conftest import RunWorker, event_types, events, gone


async def died(client: Client, handle: Any) -> tuple[str, dict[str, Any]]:
    """Return the reason and the error of a dead job."""
    await wait_until_async(lambda: handle.state() == "dead", "it is dead", timeout=40)
    fields = events(client, handle.id)[-1][1]
    return fields["reason"], fields["error"]


async def begun_apart(client: Client) -> None:
    """Run one job to start the process for isolated handlers. Timeouts of later jobs then do not include this start."""
    first = crew.apart.enqueue(n=0)
    await wait_until_async(gone(client, first.id), "it runs", timeout=20)


async def test_processes_of_isolated_handlers_are_reused(
    client: Client, run_worker: RunWorker, witness: crew.Witness, app: App
) -> None:
    app.enqueue_many(crew.apart.job(n=n) for n in range(40))
    async with run_worker(concurrency=2):
        await wait_until_async(lambda: len(witness.lines("apart")) == 40, "all ran", timeout=40)

    pids = {line["pid"] for line in witness.lines("apart")}
    assert 1 <= len(pids) <= 2
    assert os.getpid() not in pids
    await wait_until_async(lambda: not any(map(lives, pids)), "they end with the worker")


@pytest.mark.slow
async def test_an_isolated_handler_that_hangs_is_killed_at_its_timeout(
    client: Client, run_worker: RunWorker, witness: crew.Witness
) -> None:
    """Checks a handler in native code. Meanwhile no thread and no signal handler of Python can run."""
    async with run_worker(concurrency=1):
        await begun_apart(client)
        handle = crew.apart_hanging.with_options(max_attempts=1).enqueue()
        reason, error = await died(client, handle)
        (line,) = witness.lines("begin")
        assert not lives(line["pid"])
        after = crew.apart.enqueue(n=1)
        await wait_until_async(gone(client, after.id), "its place is free", timeout=20)

    assert reason == "attempts_spent"
    assert error["type"] == "HandlerTimeout"
    assert event_types(client, handle.id) == ["enqueued", "claimed", "died"]


async def test_the_timeout_of_an_isolated_handler_includes_the_start_of_its_process(
    valkey_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checks an import that blocks for 60 s. With a timeout of 0.5 s the job is dead within 10 s."""
    (tmp_path / "slow_to_import.py").write_text(
        "import multiprocessing, time\n"
        "from rq_core import App\n"
        "if multiprocessing.parent_process() is not None:\n"
        "    time.sleep(60)\n"
        "app = App()\n"
        "@app.task(queue='crew', isolation='process', timeout=0.5)\n"
        "def work() -> None: ...\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("slow_to_import")
    module.app.connect_to(valkey_url)
    with module.app as app:
        handle = module.work.with_options(max_attempts=1).enqueue()
        async with working(app, queues=("crew",), grace=5.0):
            began = time.monotonic()
            _, error = await died(app.client, handle)

    assert time.monotonic() - began < 10
    assert error["type"] == "HandlerTimeout"
    assert "was not ready within its timeout of 0.5 s" in error["message"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "kind", "words"),
    [
        (crew.apart_crashing, "HandlerDied", "the process of the handler ended by signal 11."),
        (crew.apart_greedy, "MemoryError", ""),
    ],
    ids=["native crash", "memory"],
)
async def test_a_crash_of_an_isolated_handler_counts_as_a_failure_and_not_as_a_lost_worker(
    client: Client, run_worker: RunWorker, witness: crew.Witness, task: Any, kind: str, words: str
) -> None:
    handle = task.with_options(max_attempts=2).enqueue()
    async with run_worker(concurrency=1) as worker:
        reason, error = await died(client, handle)
        after = crew.apart.enqueue(n=1)
        await wait_until_async(gone(client, after.id), "work goes on", timeout=20)

    assert (reason, error["type"], error["message"]) == ("attempts_spent", kind, words)
    assert worker.stats.failed == 2
    assert "lease_expired" not in event_types(client, handle.id)
    assert len(witness.lines("begin")) == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "attempts", "reason", "error"),
    [
        ("key", 1, "gave_up", ("KeyError", "'key'")),
        ("give_up", 1, "gave_up", ("GiveUp", "no use")),
        ("value", 5, "attempts_spent", ("ValueError", "value")),
    ],
)
async def test_an_exception_of_an_isolated_handler_follows_its_tasks_retry_policy(
    client: Client,
    run_worker: RunWorker,
    witness: crew.Witness,
    kind: str,
    attempts: int,
    reason: str,
    error: tuple[str, str],
) -> None:
    handle = crew.apart_raising.enqueue(kind)
    async with run_worker():
        found, said = await died(client, handle)

    assert (found, (said["type"], said["message"])) == (reason, error)
    assert [line["failures"] for line in witness.lines("raising")] == list(range(attempts))
    assert "in apart_raising" in said["traceback"]


@pytest.mark.slow
async def test_an_isolated_async_handler_is_cancelled_and_its_process_is_kept(
    client: Client, run_worker: RunWorker, witness: crew.Witness
) -> None:
    handle = crew.apart_sleeping.enqueue(60)
    async with run_worker(concurrency=1):
        await wait_until_async(lambda: witness.lines("begin"), "it runs", timeout=20)
        handle.cancel()
        await wait_until_async(gone(client, handle.id), "it is cancelled")
        after = crew.apart.enqueue(n=1)
        await wait_until_async(gone(client, after.id), "work goes on")

    assert event_types(client, handle.id)[-1] == "cancelled"
    pids = {line["pid"] for line in witness.lines()}
    assert (len(witness.lines("cancelled")), len(pids)) == (1, 1)


@pytest.mark.slow
async def test_an_isolated_handler_that_ignores_a_cancellation_or_a_stop_is_killed(
    client: Client, run_worker: RunWorker, witness: crew.Witness
) -> None:
    cancelled, given_back = crew.apart_deaf.enqueue(60), crew.apart_deaf.enqueue(60)
    async with run_worker(concurrency=2, grace=0.0):
        await wait_until_async(lambda: len(witness.lines("begin")) == 2, "both run", timeout=20)
        cancelled.cancel()
        await wait_until_async(gone(client, cancelled.id), "it is cancelled")

    assert given_back.state() == "ready"
    assert events(client, given_back.id)[-1][1]["reason"] == "shutdown"
    pids = [line["pid"] for line in witness.lines("begin")]
    await wait_until_async(lambda: not any(map(lives, pids)), "both are gone")
    assert witness.lines("end") == []


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM"])
def test_a_signal_to_all_processes_of_a_worker_costs_an_isolated_handler_no_attempt(
    client: Client, app: App, witness: crew.Witness, number: signal.Signals
) -> None:
    """Checks a signal during the start of a handler's process."""
    handle = crew.apart_sleeping.enqueue(0.5)
    with worker_process(app.redis_url, witness, "--grace", "20") as worker:
        me = psutil.Process(worker.pid)
        wait_until(
            lambda: any("spawn_main" in command_of(each.pid) for each in me.children()),
            "its process is starting",
            timeout=20,
        )
        os.killpg(worker.pid, number)
        assert worker.wait(30) == 0

    assert event_types(client, handle.id) == ["enqueued", "claimed", "succeeded"]


@pytest.mark.parametrize("crashes", [False, True], ids=["killed at its timeout", "crashed"])
async def test_a_program_that_an_isolated_handler_started_ends_when_the_handler_ends(
    client: Client, run_worker: RunWorker, witness: crew.Witness, crashes: bool
) -> None:
    async with run_worker(concurrency=1):
        await begun_apart(client)
        handle = crew.apart_starting.with_options(max_attempts=1).enqueue(crashes)
        await died(client, handle)
        (line,) = witness.lines("begin")
        await wait_until_async(lambda: not lives(line["started"]), "the program has ended")


@pytest.mark.slow
def test_a_program_that_an_isolated_handler_started_ends_when_the_worker_is_killed(
    client: Client, app: App, witness: crew.Witness
) -> None:
    crew.apart_starting.with_options(timeout=60).enqueue(False)
    with worker_process(app.redis_url, witness) as worker:
        wait_until(lambda: witness.lines("begin"), "it runs", timeout=20)
        (line,) = witness.lines("begin")
        os.kill(worker.pid, signal.SIGKILL)
        wait_until(lambda: not lives(line["started"]), "the program has ended", timeout=10)


@pytest.mark.slow
def test_the_isolated_handlers_of_a_killed_worker_end(
    client: Client, app: App, witness: crew.Witness
) -> None:
    crew.apart_deaf.enqueue(60)
    with worker_process(app.redis_url, witness) as worker:
        wait_until(lambda: witness.lines("begin"), "it runs", timeout=20)
        (line,) = witness.lines("begin")
        assert line["pid"] != worker.pid
        os.kill(worker.pid, signal.SIGKILL)
        began = time.monotonic()
        wait_until(lambda: not lives(line["pid"]), "its process has ended", timeout=10)

    assert time.monotonic() - began < 10


async def test_a_task_that_another_process_cannot_import_is_refused_at_the_start(
    valkey_url: str,
) -> None:
    with App(valkey_url) as app:

        @app.task(isolation="process")
        def hidden() -> None: ...

        with pytest.raises(InvalidTask, match="a function at the top of a module"):
            await Worker(app, WorkerOptions()).run()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"isolation": "thread"}, 'must be "process" or None'),
        ({"max_memory": 1 << 30}, 'needs isolation="process"'),
        ({"isolation": "process", "max_memory": 5}, "must be a number of bytes from 67,108,864"),
    ],
)
def test_invalid_options_of_isolation_are_refused(options: dict[str, Any], expected: str) -> None:
    with pytest.raises(InvalidOption, match=expected):
        App().task(name="t", **options)


async def test_an_isolated_handler_gets_an_answer_although_an_unforeseen_error_occurs_in_the_worker() -> (
    None
):
    """Checks the two ends of a pipe, without a process. rq-core does not know the error, as with a driver."""

    class Failing:
        async def answer(self, *_: Any) -> Any:
            raise OSError("the database is away")

    running: Any = SimpleNamespace(context=SimpleNamespace(id="j-1", queue="crew"))
    saver: Any = Failing()
    here, there = multiprocessing.Pipe()
    asking, pool = PipeQuestions(there.send_bytes), IsolationPool(saver)
    child = process_pool._Child(multiprocessing.current_process(), here)
    with ThreadPoolExecutor(1) as threads, here, there, contextlib.closing(pool):
        asked = threads.submit(asking.ask, "load", 1)
        await wait_until_async(here.poll, "the handler asks")
        question = json.loads(here.recv_bytes())
        with contextlib.suppress(OSError):
            await pool._answer(child, running, question)
        no_answer = {"answer": question["ask"], "found": None}
        asking.answered(json.loads(there.recv_bytes()) if there.poll() else no_answer)
        with pytest.raises(RqCoreError, match="OSError: the database is away"):
            asked.result()
