"""Handlers in the worker's executor, without a server. An async handler runs in one asyncio task."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import threading
from typing import Any

import pytest
from pythonjsonlogger.json import JsonFormatter

from rq_core import App, NoCurrentJob, RetryPolicy, current_job
from rq_core.app.handlers.result_types import Returned
from rq_core.model.job import Claim, profile
from rq_core.model.lib import logs
from rq_core.signals import JobCancelled, LeaseLost
from rq_core.worker.execution import executor
from rq_core.worker.execution.executor import Executor
from rq_core.worker.execution.running import Running
from rq_core.worker.settlement import Settlement
from tests.kit.wait import wait_until_async

variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="nothing")


class Runs:
    """Runs jobs with one handler in an executor, and records their settlements."""

    def __init__(
        self,
        handler: Any,
        *,
        timeout: float | None = None,
        jobs: int = 1,
        spec: str = '{"task":"handler","args":{}}',
        retry: RetryPolicy | None = None,
    ) -> None:
        self.settlements: dict[str, Settlement] = {}
        self.free: list[str] = []
        self.app = App()
        self.app.task(name="handler", timeout=timeout, retry=retry)(handler)
        self.executor = Executor(
            self.app.tasks,
            worker="w-1",
            threads=4,
            timeout=None,
            on_settlement=self._settled,
            on_free=lambda running: self.free.append(running.claim.id),
            surroundings=self.app.surroundings,
        )
        self.running: list[Running | None] = [
            self.executor.start(Claim("default", f"j{n}", "1-1", 1, 0, 0, spec))
            for n in range(jobs)
        ]

    def _settled(self, settlement: Settlement) -> None:
        assert settlement.claim.id not in self.settlements, "a claim is settled once"
        self.settlements[settlement.claim.id] = settlement

    async def verdicts(self) -> list[tuple[str, str]]:
        await wait_until_async(lambda: len(self.free) == len(self.running), "all have ended")
        assert self.executor.running == {}
        assert self.executor.close()
        return [(s.verdict, s.reason) for _, s in sorted(self.settlements.items())]


COMPLETE = ("complete", "error")


@pytest.mark.parametrize(("losses", "said"), [(2, COMPLETE), (3, ("final", "poison"))])
async def test_a_worker_takes_max_losses_from_the_task_if_the_job_has_none(
    losses: int, said: tuple[str, str]
) -> None:
    runs = Runs(lambda: None, jobs=0)
    spec = profile("handler", max_losses=None).spec_parts[0] + "{}}"

    runs.running = [runs.executor.start(Claim("default", "j", "1-1", 4, 0, losses, spec))]

    if losses == 3:
        runs.free.append("j")
    assert await runs.verdicts() == [said]


@pytest.mark.parametrize(
    ("failures", "verdict"),
    [
        (0, "retry in 12.0 s, attempt 2 of 3"),
        (2, "dead, attempts_spent, after attempt 3 of 3"),
    ],
)
async def test_the_log_record_of_a_failure_has_its_traceback_and_the_next_step(
    caplog: pytest.LogCaptureFixture, failures: int, verdict: str
) -> None:
    def handler() -> None:
        raise ValueError("there is no month 13")

    runs = Runs(handler, jobs=0, retry=RetryPolicy(backoff="fixed", base=12, jitter=False))
    claim = Claim("default", "j", "1-1", 1, failures, 0, '{"task":"handler","args":{}}')
    runs.running = [runs.executor.start(claim)]
    await runs.verdicts()

    (record,) = caplog.records
    assert record.verdict == verdict  # type: ignore[attr-defined]
    for formatter in (logs.TextFormatter(), logging.Formatter("%(message)s"), JsonFormatter()):
        said = formatter.format(record).replace("\\n", "\n")
        assert "job failed: ValueError: there is no month 13" in said
        assert 'raise ValueError("there is no month 13")' in said.replace('\\"', '"')
        assert "rq_core/worker" not in said, "frames of rq-core itself only hide the handler's"


async def test_a_handler_runs_all_its_steps_in_one_asyncio_task() -> None:
    seen: list[asyncio.Task[Any] | None] = []

    async def handler() -> None:
        seen.append(asyncio.current_task())
        await asyncio.sleep(0)
        seen.append(asyncio.current_task())

    runs = Runs(handler, jobs=2)
    assert await runs.verdicts() == [COMPLETE, COMPLETE]

    assert None not in seen
    assert sorted(map(id, seen)) == sorted([id(seen[0]), id(seen[1])] * 2)
    assert seen[0] is not seen[1]


async def test_handlers_that_never_wait_have_their_own_asyncio_tasks() -> None:
    seen: list[asyncio.Task[Any] | None] = []

    async def handler() -> None:
        seen.append(asyncio.current_task())

    assert await Runs(handler, jobs=3).verdicts() == [COMPLETE] * 3
    assert len(set(seen)) == 3


async def test_asyncio_timeout_works_in_the_first_step_of_a_handler() -> None:
    caught = []

    async def handler() -> None:
        try:
            async with asyncio.timeout(0.01):
                await asyncio.Event().wait()
        except TimeoutError:
            caught.append("timeout")
        await asyncio.sleep(0)

    assert await Runs(handler).verdicts() == [COMPLETE]
    assert caught == ["timeout"]


async def test_a_task_group_works_in_the_first_step_of_a_handler() -> None:
    ran = []

    async def part(name: str) -> None:
        assert current_job().id == "j0"
        await asyncio.sleep(0)
        ran.append(name)

    async def handler() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(part("a"))
            group.create_task(part("b"))

    assert await Runs(handler).verdicts() == [COMPLETE]
    assert sorted(ran) == ["a", "b"]


async def test_a_job_fails_once_if_a_task_in_its_task_group_fails() -> None:
    async def part() -> None:
        raise ValueError("no")

    async def handler() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(part())
            await asyncio.Event().wait()

    ((verdict, _),) = await Runs(handler).verdicts()
    assert verdict == "retry"


async def test_context_variables_of_a_handler_do_not_reach_the_next_handler() -> None:
    seen = []

    async def handler() -> None:
        seen.append((current_job().id, variable.get()))
        variable.set(current_job().id)
        await asyncio.sleep(0)
        seen.append((current_job().id, variable.get()))

    assert await Runs(handler, jobs=2).verdicts() == [COMPLETE, COMPLETE]

    assert sorted(seen) == [("j0", "j0"), ("j0", "nothing"), ("j1", "j1"), ("j1", "nothing")]
    assert variable.get() == "nothing"
    with pytest.raises(NoCurrentJob):
        current_job()


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(1), asyncio.CancelledError()])
@pytest.mark.parametrize("steps", [0, 1])
async def test_an_error_in_any_step_is_a_failure_of_the_job(
    error: BaseException, steps: int
) -> None:
    async def handler() -> None:
        for _ in range(steps):
            await asyncio.sleep(0)
        raise error

    ((verdict, reason),) = await Runs(handler).verdicts()
    assert (verdict, reason) == ("retry", "failed")


async def test_a_handler_that_cancels_itself_does_not_affect_other_handlers() -> None:
    async def handler() -> None:
        if current_job().id == "j0":
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
        else:
            await asyncio.sleep(0)

    verdicts = await Runs(handler, jobs=2).verdicts()
    assert verdicts == [COMPLETE, COMPLETE]


async def test_the_timeout_ends_a_handler_that_waits_in_its_first_step() -> None:
    async def handler() -> None:
        await asyncio.Event().wait()

    ((verdict, _),) = await Runs(handler, timeout=0.02).verdicts()
    assert verdict == "retry"


@pytest.mark.parametrize(
    ("why", "expected"),
    [(None, ("retry", "failed")), (JobCancelled(), ("final", "cancelled"))],
    ids=["timeout", "cancelled"],
)
async def test_a_handler_that_ignores_its_cancellation_occupies_a_place_of_the_worker_but_loses_its_claim(
    monkeypatch: pytest.MonkeyPatch, why: JobCancelled | None, expected: tuple[str, str]
) -> None:
    """The worker settles the claim soon, although the handler still runs. So the log does not count a lost worker.

    The handler keeps its place in the worker until it ends.
    """
    monkeypatch.setattr(executor, "END_GRACE_S", 0.05)
    release, begun = asyncio.Event(), asyncio.Event()

    async def handler() -> None:
        begun.set()
        while not release.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await release.wait()

    runs = Runs(handler, timeout=0.02 if why is None else None)
    (running,) = runs.running
    assert running is not None
    await begun.wait()
    if why is not None:
        runs.executor.end(running, why)
    await wait_until_async(lambda: runs.settlements, "it is settled")
    assert (runs.free, list(runs.executor.running.values())) == ([], [running])
    release.set()

    assert await runs.verdicts() == [expected]


async def test_a_handler_that_is_cancelled_before_its_first_step_is_settled() -> None:
    """The worker settles the job, although the asyncio task has run no step."""

    async def handler() -> None:
        await asyncio.Event().wait()

    runs = Runs(handler)
    (running,) = runs.running
    assert running is not None
    runs.executor.end(running, JobCancelled())

    assert await runs.verdicts() == [("final", "cancelled")]


async def test_a_handler_that_ignores_the_loss_of_its_lease_still_reports_its_outcome(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Redis will refuse the outcome. The log then shows that the handler ran."""
    monkeypatch.setattr(executor, "END_GRACE_S", 0.01)
    release, begun = asyncio.Event(), asyncio.Event()

    async def handler() -> None:
        begun.set()
        try:
            await release.wait()
        except asyncio.CancelledError:
            await release.wait()

    runs = Runs(handler, timeout=0.02)
    (running,) = runs.running
    assert running is not None
    await begun.wait()
    runs.executor.end(running, LeaseLost())
    loop = asyncio.get_running_loop()
    after = loop.time() + 0.1
    await wait_until_async(lambda: loop.time() > after, "all limits are over")
    assert runs.settlements == {}
    release.set()

    assert await runs.verdicts() == [COMPLETE]


async def test_a_handler_may_call_itself_and_other_tasks() -> None:
    depth = []

    async def handler() -> None:
        depth.append(current_job().id)
        if len(depth) < 5:
            await handler()

    assert await Runs(handler).verdicts() == [COMPLETE]
    assert depth == ["j0"] * 5


async def test_a_job_is_given_back_to_its_queue_if_its_thread_cannot_be_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def handler() -> None:
        raise AssertionError("it must not run")

    def no_thread(_thread: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("threading.Thread.start", no_thread)
    assert await Runs(handler).verdicts() == [("rollback", "not_started")]


async def returns_in_a_task() -> int:
    return 5


def returns_in_a_thread() -> int:
    return 5


@pytest.mark.parametrize("handler", [returns_in_a_task, returns_in_a_thread])
async def test_no_job_fails_because_the_serializer_panics(
    handler: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A panic in pydantic's Rust code raises an exception that is no subclass of Exception."""

    def panic(*_: object) -> str:
        raise BaseException("panicked")  # noqa: TRY002 - what a panic is derived from

    monkeypatch.setattr(Returned, "dump", panic)
    runs = Runs(handler, spec='{"keep":1,"task":"handler","args":{}}')

    assert await runs.verdicts() == [COMPLETE]
    assert "!unfinished" == runs.settlements["j0"].value


async def test_a_thread_that_runs_beyond_the_lease_and_the_timeout_still_reports_its_outcome(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Redis will refuse the outcome. The log then shows that the handler ran to its end."""
    begun, may_end = threading.Event(), threading.Event()

    def handler() -> None:
        begun.set()
        assert may_end.wait(10)

    runs = Runs(handler, timeout=0.05)
    (running,) = runs.running
    assert running is not None
    await wait_until_async(begun.is_set, "the handler runs")
    runs.executor.end(running, LeaseLost())
    said = [record.getMessage() for record in caplog.records]
    loop = asyncio.get_running_loop()
    after = loop.time() + 0.1
    await wait_until_async(lambda: loop.time() > after, "its timeout is over")
    assert runs.settlements == {}
    may_end.set()

    assert await runs.verdicts() == [COMPLETE]
    assert said == ["lease lost, the handler is asked to stop"]
