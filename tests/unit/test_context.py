"""The current job of a handler, and how a handler learns that it should stop."""

import asyncio
import contextvars
import threading
import time

import pytest

from rq_core import HandlerTimeout, JobCancelled, LeaseLost, NoCurrentJob, current_job, testing
from rq_core.app.handlers.context import running


def test_outside_a_handler_there_is_no_current_job() -> None:
    with pytest.raises(NoCurrentJob, match=r"rq_core\.testing\.job_running"):
        current_job()


def test_the_function_job_running_sets_the_current_job_within_its_block() -> None:
    with testing.job_running(id="a", claim=2) as outer:
        assert current_job() is outer
        with testing.job_running(id="b"):
            assert current_job().id == "b"
        assert (current_job().id, current_job().claim) == ("a", 2)
    with pytest.raises(NoCurrentJob):
        current_job()


async def test_concurrent_asyncio_tasks_have_their_own_current_job() -> None:
    both = asyncio.Barrier(2)

    async def handler(name: str) -> str:
        with testing.job_running(id=name):
            await both.wait()
            return current_job().id

    assert list(await asyncio.gather(handler("a"), handler("b"))) == ["a", "b"]


def test_a_thread_that_copies_the_context_sees_the_current_job() -> None:
    seen: list[str] = []

    def work() -> None:
        seen.append(current_job().id)

    with testing.job_running(id="a"):
        thread = threading.Thread(target=contextvars.copy_context().run, args=(work,))
        thread.start()
        thread.join()

    assert seen == ["a"]


def test_a_handler_that_should_stop_learns_the_first_reason_for_the_stop() -> None:
    with testing.job_running() as job:
        job.raise_if_cancelled()
        assert not job.wait_cancelled(0)

        job.tell(HandlerTimeout(seconds=3.0))
        job.tell(LeaseLost())

        assert job.cancelled
        assert job.wait_cancelled(60)
        with pytest.raises(HandlerTimeout):
            job.raise_if_cancelled()


def test_a_handler_sees_that_its_timeout_has_passed() -> None:
    with testing.job_running() as job:
        job.limit(0.5, time.monotonic() + 0.5)
        assert not job.cancelled
        job.raise_if_too_late()

        assert job.wait_cancelled(60)
        assert job.cancelled
        for ask in (job.raise_if_cancelled, job.raise_if_too_late):
            with pytest.raises(HandlerTimeout, match=r"0\.5 s"):
                ask()


def test_a_handlers_wait_ends_as_soon_as_its_job_is_cancelled() -> None:
    with testing.job_running() as job:
        timer = threading.Timer(0.01, job.tell, [JobCancelled()])
        timer.start()

        assert job.wait_cancelled(60)
        timer.join()


def test_the_current_job_is_reset_when_the_handler_raises() -> None:
    with testing.job_running() as job:
        pass
    with pytest.raises(KeyError), running(job):
        raise KeyError
    with pytest.raises(NoCurrentJob):
        current_job()
