"""A process whose work is done ends, even if its handlers left threads or asyncio tasks that still run.

The supervisor reports a suspended process.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import textwrap

import pytest
from click.testing import CliRunner

from rq_core.app.app import App
from rq_core.cli.root import root
from rq_core.connections.client import Client
from rq_core.process import process_exit
from tests.kit import crew
from tests.kit.crew import worker_process
from tests.kit.processes import ROOT
from tests.kit.wait import wait_until
from tests.worker.conftest import event_types, gone

LEAVES = {
    "nothing": ("", ""),
    "a thread": ("threading.Thread(target=time.sleep, args=(60,), name='left').start()", "thread left in "),
    "an executor": ("ThreadPoolExecutor(thread_name_prefix='pool').submit(time.sleep, 60)", "thread pool_0 in "),
    "an exit function that hangs": ("atexit.register(time.sleep, 60)", "the main thread"),
}  # fmt: skip


def _ends(
    *lines: str, now: bool = False, force_after: float = 0.3
) -> subprocess.CompletedProcess[str]:
    """Run these lines in a process that then ends with status 3. Return the ended process."""
    script = textwrap.dedent(f"""
        import asyncio, atexit, logging, sys, threading, time
        from concurrent.futures import ThreadPoolExecutor
        from rq_core.process import process_exit

        process_exit.FORCE_AFTER_S = {force_after}
        logging.basicConfig(level="INFO")
        atexit.register(print, "exit functions are called")
    """)
    end = "process_exit.begin(3)\n" + ("process_exit.end_now(3)" if now else "sys.exit(3)")
    return subprocess.run(
        [sys.executable, "-c", "\n".join([script, *lines, end])],
        check=False,
        capture_output=True,
        text=True,
        timeout=20,
        cwd=ROOT,
    )


@pytest.mark.slow
@pytest.mark.parametrize("now", [False, True], ids=["in order", "at once"])
@pytest.mark.parametrize("left", LEAVES)
def test_a_finished_process_ends_though_threads_or_exit_functions_hang(
    left: str, *, now: bool
) -> None:
    """Checks a thread and an exit function that never end. The process ends itself by force."""
    line, named = LEAVES[left]
    by_force = bool(line) and (not now or "exit function" in left)
    # One that ends in order may take its time on a busy machine.
    done = _ends(line, now=now, force_after=0.3 if by_force else 60)

    assert done.returncode == 3, done.stderr
    assert done.stdout == "exit functions are called\n" or "exit function" in left
    assert ("ending it by force" in done.stderr) is by_force, done.stderr
    if by_force:
        assert named in done.stderr


@pytest.mark.parametrize(
    "breaks",
    [
        "logging.getLogger('rq_core.process.process_exit').addFilter(broken)",
        "logging.root.handlers[0].close = broken",
    ],
    ids=["a filter", "the end of a handler"],
)
def test_a_process_ends_by_force_though_its_log_handler_raises(breaks: str) -> None:
    """Checks that the error of the log handler does not stop the thread that ends the process."""
    done = _ends(
        "def broken(*_): raise KeyError('no')",
        breaks,
        LEAVES["a thread"][0],
    )

    assert done.returncode == 3, done.stderr
    assert done.stdout == "exit functions are called\n"


def test_a_process_ends_though_an_asyncio_task_ignores_its_cancellation() -> None:
    done = _ends("""
async def stubborn():
    while True:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            pass

async def main():
    task = asyncio.create_task(stubborn(), name="left")
    await asyncio.sleep(0.01)
    process_exit.begin(4)

asyncio.run(main())
""")

    assert done.returncode == 4, done.stderr
    assert "task left in stubborn " in done.stderr
    assert done.stdout == "exit functions are called\n"


def test_a_worker_ends_though_a_handler_left_a_thread_running(
    app: App, client: Client, witness: crew.Witness
) -> None:
    """Checks a thread that sleeps past the timeout of its job."""
    handle = crew.leaving.with_options(max_attempts=1).enqueue(600)
    with worker_process(app.redis_url, witness, "--grace", "1") as process:
        wait_until(lambda: handle.state() == "dead", "its timeout is reported", timeout=20)
        process.terminate()
        assert process.wait(process_exit.FORCE_AFTER_S + 10) == 0

    assert re.search(r"by force after 5 s. It is held by thread \w+ in ", witness.log())


@pytest.mark.slow
def test_retired_workers_are_replaced_though_handlers_left_threads_running(
    app: App, client: Client, witness: crew.Witness
) -> None:
    """Checks two workers that retire while threads of their handlers never end."""
    jobs = [crew.leaving.with_options(max_attempts=1).job(600) for _ in range(2)]
    app.enqueue_many(jobs)
    options = ("--processes", "2", "--max-jobs", "1", "--concurrency", "1", "--grace", "0")
    with worker_process(app.redis_url, witness, *options) as process:
        wait_until(lambda: len(witness.lines("begin")) == 2, "both have had their job", timeout=20)
        last = crew.function.enqueue()
        wait_until(gone(client, last.id), "another has taken its place", timeout=30)
        process.terminate()
        assert process.wait(30) == 0

    assert "restarting" not in witness.log()


@pytest.mark.slow
def test_a_process_that_cannot_end_itself_is_killed_and_replaced(
    app: App, client: Client, witness: crew.Witness
) -> None:
    """Checks a handler that holds the GIL. No other thread of the process can run."""
    first = crew.clinging.enqueue(600)
    with worker_process(app.redis_url, witness, "--max-jobs", "1") as process:
        (line,) = wait_until(lambda: witness.lines("begin"), "the first job runs", timeout=20)
        last = crew.function.enqueue()
        wait_until(gone(client, last.id), "another has taken its place", timeout=30)
        process.terminate()
        assert process.wait(30) == 0

    log = witness.log()
    assert f"the work of worker process 0 ({line['pid']}) is over, but it does not end" in log
    assert "restarting" not in log
    assert event_types(client, first.id) == ["enqueued", "claimed", "succeeded"]


@pytest.mark.slow
@pytest.mark.usefixtures("own_directory")
def test_the_supervisor_reports_a_worker_that_is_suspended_longer_than_a_lease(
    app: App, client: Client, witness: crew.Witness
) -> None:
    """Checks that a suspended worker does not count as working. Other workers run its jobs."""
    crew.sleeping.enqueue(0.1)
    with worker_process(app.redis_url, witness, "--processes", "2") as process:
        (line,) = wait_until(lambda: witness.lines("begin"), "it runs", timeout=20)
        pid = line["pid"]
        assert _health(process.pid)[pid] is False
        os.kill(pid, signal.SIGSTOP)
        try:
            process.wait_said(f"(process {pid}) has been stopped (SIGSTOP) for ")
            assert _health(process.pid)[pid] is True
        finally:
            os.kill(pid, signal.SIGCONT)
        process.wait_said(f"(process {pid}) goes on after a stop")
        late = r"the heartbeat is \d+\.\d s late: this process was stopped"
        wait_until(lambda: re.search(late, process.said()), "the worker says so itself")

    assert process.said().count("has been stopped (SIGSTOP)") == 1


def _health(supervisor: int) -> dict[int, bool]:
    """Return whether `rq-core health` reports each of the supervisor's workers as stopped, by process id."""
    done = CliRunner().invoke(root, ["health", "--json"])
    workers = [each for each in json.loads(done.stdout)["workers"] if each["parent"] == supervisor]
    assert (done.exit_code == 0) is not any(each["stopped"] for each in workers)
    return {each["pid"]: each["stopped"] for each in workers}
