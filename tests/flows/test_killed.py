"""Flows on a real server: their workers are killed (SIGKILL) at each of their calls to Redis, and an operator uses the
command line."""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
import redis
from click.testing import CliRunner

from rq_core import App, FlowRun, RetryPolicy
from rq_core.app.durable import children
from rq_core.cli.root import root
from rq_core.connections.client import Client
from rq_core.worker import Worker, WorkerOptions
from rq_core.worker.execution.saver import Saver
from tests.kit.servers import RedisServer
from tests.kit.wait import wait_until
from tests.rigs.parks.log import Log

HOME: Final = "flows"
WORK: Final = "work"
WITNESS: Final = "witness-of-flows"
LIVES_MAX: Final = 40
_FORKED: Final = multiprocessing.get_context("fork")


def _app(url: str) -> tuple[App, Any]:
    """Return an app, and a task that counts its runs."""
    app = App(url)
    app.enable_flows()
    for queue in (HOME, WORK):
        app.queue(queue, lease=0.5)
    control: Any = redis.Redis.from_url(url, decode_responses=True)

    @app.task(name="work", queue=WORK, retry=RetryPolicy(max_attempts=1))
    async def work(name: str, got: Any = None) -> Any:
        control.hincrby(WITNESS, name, 1)
        if control.sismember("bad", name):
            raise ValueError(f"{name} is bad")
        return [name, got]

    return app, work


async def _work(url: str, queue: str, kill_at: int, *, is_after: bool) -> None:
    logging.getLogger("rq_core").setLevel(logging.CRITICAL)
    children.LOOK_MIN_S = 0.3  # type: ignore[misc]
    count = 0

    def killing(call: Any) -> Any:
        async def called(*args: Any) -> Any:
            nonlocal count
            count += 1
            is_last = count == kill_at
            if is_last and not is_after:
                os.kill(os.getpid(), signal.SIGKILL)
            found = await call(*args)
            if is_last:
                os.kill(os.getpid(), signal.SIGKILL)
            return found

        return called

    for name in ("ask", "load", "save"):
        setattr(Saver, name, killing(getattr(Saver, name)))
    app, _ = _app(url)
    await Worker(app, WorkerOptions(queues=(queue,), concurrency=10)).run()


def _run_worker(url: str, queue: str, kill_at: int, is_after: bool) -> None:
    asyncio.run(_work(url, queue, kill_at, is_after=is_after))


@contextmanager
def working(url: str, queue: str, kill_at: int = 0, *, is_after: bool = False) -> Iterator[Any]:
    process = _FORKED.Process(target=_run_worker, args=(url, queue, kill_at, is_after))
    process.start()
    try:
        yield process
    finally:
        process.kill()
        process.join()


def diamond(app: App, work: Any) -> FlowRun[Any]:
    with app.flow("diamond") as flow:
        a = flow.add(work.call("a"), name="a")
        b = flow.add(work.call("b", a.value), name="b")
        c = flow.map([work.call(f"c{n}") for n in range(3)], after=a, name="c")
        flow.add(work.call("d", [b.value, c.values]), name="d")
    return flow.enqueue(queue=HOME, max_losses=1_000)


@pytest.mark.slow
@pytest.mark.parametrize("is_after", [False, True])
def test_each_node_runs_once_though_the_worker_of_the_flow_is_killed_at_every_call(
    valkey: RedisServer, tmp_path: Path, is_after: bool
) -> None:
    """The first worker is killed at its first call, the second worker at its second call, and so on. With ``is_after``,
    Redis has carried out the call before the worker is killed."""
    app, work = _app(valkey.url)
    app.apply_settings()
    lives = 0

    with (
        Client(valkey.url) as client,
        Log(client, tmp_path, HOME) as log,
        Log(client, tmp_path, WORK, of=log) as parts,
        working(valkey.url, WORK),
    ):
        run = diamond(app, work)
        while run.state() != "succeeded":
            lives += 1
            assert lives < LIVES_MAX
            with working(valkey.url, HOME, lives, is_after=is_after) as process:
                wait_until(
                    lambda: not process.is_alive() or run.state() == "succeeded",
                    "the worker is killed, or the flow ends",
                    timeout=60,
                )
                assert process.is_alive() or process.exitcode == -signal.SIGKILL
        log.follow()
        parts.follow()
        assert [] == log.problems()
        assert {1} == set(parts.count("succeeded").values())

    with valkey.client(decode_responses=True) as control:
        assert dict.fromkeys(["a", "b", "c0", "c1", "c2", "d"], "1") == control.hgetall(WITNESS)
    assert ["d", [["b", ["a", None]], [[f"c{n}", None] for n in range(3)]]] == run.result(0)
    assert lives > 5
    app.close()


@pytest.mark.slow
def test_a_requeue_by_the_command_line_runs_only_what_failed(valkey: RedisServer) -> None:
    app, work = _app(valkey.url)
    app.apply_settings()
    run = diamond(app, work)

    def command(*words: str) -> str:
        done = CliRunner().invoke(root, [*words, "--redis", valkey.url])
        assert done.exit_code == 0, done.output
        return done.output

    with valkey.client(decode_responses=True) as control:
        control.sadd("bad", "c1")
        with working(valkey.url, WORK), working(valkey.url, HOME):
            wait_until(lambda: run.state() == "dead", "the flow is dead", timeout=60)
            shown = command("children", run.id)
            assert ["a", "b", "c"] == [name for name in "abcd" if f"{name}" in shown.split()]
            control.srem("bad", "c1")
            command("requeue", run.id)
            wait_until(lambda: run.state() == "succeeded", "the flow has ended", timeout=60)
        assert {"a": "1", "b": "1", "c0": "1", "c1": "2", "c2": "1", "d": "1"} == control.hgetall(
            WITNESS
        )
    app.close()
