"""The method ``wait`` of a handle, on real servers. A wait returns when the job has ended, in whatever way."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Annotated, Any

import pytest
from pydantic import AfterValidator

from rq_core import (
    App,
    Cancelled,
    Expired,
    Failed,
    Gone,
    JobFailed,
    JobGone,
    JobHandle,
    JobReplaced,
    JobWasCancelled,
    NoResult,
    Outcome,
    Replaced,
    ResultUnavailable,
    Succeeded,
    Unique,
    WaitRefused,
    WaitTimeout,
    testing,
)
from rq_core.app.handlers.result_types import Returned
from rq_core.app.handles import awaiting
from rq_core.connections.wait_thread import Waiter
from rq_core.errors import InvalidOption
from rq_core.model.job import JobError
from rq_core.model.keys import queue_keys
from rq_core.model.result_encoding import pack_result
from rq_core.protocol.reads.wait_schedule import TOGETHER_MAX, Waits
from tests.app.waiting.conftest import (
    QUEUE,
    dies,
    fail,
    is_cancelled,
    note,
    succeed,
    succeeds,
    take,
)
from tests.kit.forked import forked
from tests.kit.servers import RedisServer
from tests.kit.wait import wait_until
from tests.kit.waits import listens, meanwhile

LONG_S = 20.0

Mirror = Callable[[], Any]


ENDS: list[tuple[Callable[[App, JobHandle[Any]], None], type[Outcome[Any]]]] = [
    (succeeds, Succeeded),
    (dies, Failed),
    (is_cancelled, Cancelled),
]


@pytest.mark.parametrize("end, kind", ENDS)
@pytest.mark.parametrize("before", [True, False], ids=["ended before", "ends meanwhile"])
def test_a_wait_returns_the_outcome_when_the_job_ends(
    app: App,
    audited: Mirror,
    end: Callable[[App, JobHandle[Any]], None],
    kind: type[Outcome[Any]],
    before: bool,
) -> None:
    handle = app.tasks["note"].enqueue(1)
    if before:
        end(app, handle)
        audited()
        outcome = handle.wait(LONG_S)
    else:
        waiting = meanwhile(handle, LONG_S)
        end(app, handle)
        audited()
        outcome = waiting.result(LONG_S)

    assert kind is type(outcome)
    assert handle.id == outcome.id


def test_a_wait_returns_the_error_of_a_dead_job_without_an_audit_database(app: App) -> None:
    handle = app.tasks["note"].enqueue(1)
    dies(app, handle)

    outcome = handle.wait(LONG_S)

    assert Failed(handle.id, "gave_up", JobError("ValueError", "no such user")) == outcome
    with pytest.raises(JobFailed, match=r"gave_up \(ValueError: no such user\)") as caught:
        outcome.value  # noqa: B018 - it raises
    assert isinstance(caught.value, NoResult)


def test_a_wait_ends_when_its_job_expires(app: App, audited: Mirror) -> None:
    handle = app.tasks["note"].with_options(expires=0.05).enqueue(1)
    waiting = meanwhile(handle, LONG_S)
    wait_until(lambda: not take(app, 0) and handle.state() == "gone", "its deadline is over")
    audited()

    assert Expired(handle.id) == waiting.result(LONG_S)


def test_a_wait_for_a_replaced_job_returns_the_id_of_the_new_job(app: App, audited: Mirror) -> None:
    task = app.task(queue=QUEUE, name="one", unique=Unique(on_duplicate="replace"))(note)
    old = task.enqueue(1)
    waiting = meanwhile(old, LONG_S)
    new = task.enqueue(1)
    audited()

    outcome = waiting.result(LONG_S)

    assert new.replaced == old.id
    assert Replaced(old.id, by=new.id) == outcome
    with pytest.raises(JobReplaced, match=new.id):
        outcome.value  # noqa: B018 - it raises


def test_a_wait_for_a_pruned_job_returns_its_reason_and_error(app: App, audited: Mirror) -> None:
    handle = app.tasks["note"].enqueue(1)
    dies(app, handle)
    app.client.run(app.client.calls.admin.prune(QUEUE, [handle.id]))
    audited()

    expected = Failed(handle.id, "gave_up", JobError("ValueError", "no such user"))
    assert expected == handle.wait(LONG_S)


def test_without_an_audit_database_a_job_that_left_redis_is_reported_as_gone(
    app: App,
) -> None:
    handle = app.tasks["note"].enqueue(1)
    succeeds(app, handle)

    outcome = handle.wait(LONG_S)

    assert Gone(handle.id) == outcome
    with pytest.raises(JobGone, match="keep_result"):
        outcome.value  # noqa: B018 - it raises


def test_the_error_for_a_result_that_was_not_kept_names_the_option_keep_result(
    app: App, audited: Mirror
) -> None:
    handle = app.tasks["note"].enqueue(1)
    succeeds(app, handle)
    audited()

    with pytest.raises(
        ResultUnavailable, match=r"the task has no keep_result, or no worker .*keep_result=True"
    ) as caught:
        handle.wait(LONG_S).value  # noqa: B018 - it raises

    assert "not_kept" == caught.value.reason  # type: ignore[attr-defined]


def test_a_wait_that_times_out_does_not_change_its_job(app: App) -> None:
    handle = app.tasks["note"].enqueue(1)

    with pytest.raises(TimeoutError, match=f"job {handle.id} has not ended within 0.2 s") as caught:
        handle.wait(timedelta(seconds=0.2))

    assert isinstance(caught.value, WaitTimeout)
    assert "ready" == handle.state()


def test_a_wait_with_a_timeout_of_0_checks_the_job_once(app: App) -> None:
    handle = app.tasks["note"].enqueue(1)
    with pytest.raises(WaitTimeout):
        handle.wait(0)
    dies(app, handle)

    assert Failed is type(handle.wait(0))


def test_a_handle_that_returned_an_outcome_returns_the_same_outcome_again(app: App) -> None:
    handle = app.tasks["note"].enqueue(1)
    dies(app, handle)
    outcome = handle.wait(LONG_S)
    app.client.run(app.client.calls.admin.requeue(QUEUE, [handle.id]))

    assert outcome is handle.wait(0)
    with pytest.raises(WaitTimeout):
        app.handle_by_id(QUEUE, handle.id).wait(0)


def test_a_wait_continues_until_the_mirror_has_copied_the_end(app: App, audited: Mirror) -> None:
    """Checks a job that has just left Redis. The wait returns neither "gone" nor the older state in SQL."""
    handle = app.tasks["note"].enqueue(1)
    audited()
    waiting = meanwhile(handle, LONG_S)
    succeeds(app, handle)
    with pytest.raises(WaitTimeout, match="the audit database did not tell how"):
        app.handle_by_id(QUEUE, handle.id).wait(0.3)
    audited()

    assert Succeeded(handle.id) == waiting.result(LONG_S)


def test_a_wait_for_a_job_with_a_reused_id_returns_the_outcome_of_that_job(
    app: App, audited: Mirror
) -> None:
    """Checks that the wait reads the log only when the log has the end of the second job."""
    task = app.tasks["note"].with_options(id="again")
    first = task.enqueue(1)
    succeeds(app, first)
    audited()
    second = task.enqueue(2)
    second.cancel()

    with pytest.raises(WaitTimeout):
        second.wait(0.2)
    audited()

    assert Cancelled("again") == second.wait(LONG_S)
    with pytest.raises(JobWasCancelled):
        second.wait(0).value  # noqa: B018 - it raises


def test_a_thousand_waits_share_one_connection(app: App, redis_server: RedisServer) -> None:
    with redis_server.client() as control:
        before = len(control.client_list())
        handles = app.enqueue_many(app.tasks["note"].job(n) for n in range(1_000)).handles
        ended = []
        seen: list[int] = []

        def end_all() -> None:
            wait_until(lambda: len(control.client_list()) > before + 1, "the waiter has connected")
            seen.append(len(control.client_list()) - before)
            while held := take(app, 250):
                succeed(app, *held)

        thread = threading.Thread(target=end_all)
        thread.start()
        ended = list(app.as_completed(handles, LONG_S))
        thread.join()

    assert {h.id for h in handles} == {h.id for h in ended}
    # The app's own, and the waiter's; a second one of the waiter reads while its subscription is not answered in time.
    assert seen in ([2], [3])


def test_as_completed_polls_the_first_jobs_before_all_jobs_are_registered(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checks more than twice TOGETHER_MAX jobs. The first poll comes as soon as TOGETHER_MAX jobs are registered."""
    taken: list[int] = []
    look = Waiter._look

    def counted(waiter: Waiter, waits: Waits, listener: Any) -> None:
        taken.append(len(waits.all()))
        look(waiter, waits, listener)

    monkeypatch.setattr(Waiter, "_look", counted)
    handles = [app.handle_by_id(QUEUE, f"no-{n}") for n in range(2 * TOGETHER_MAX + 1)]
    ended = list(app.as_completed(handles, LONG_S))

    assert TOGETHER_MAX == taken[0]
    assert {Gone} == {type(handle.seen) for handle in ended}
    assert len(handles) == len(ended)


def test_a_wait_reports_that_its_timeout_was_too_short_to_check_all_jobs(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    over = threading.Event()
    looks: list[int] = []
    look = Waiter._look

    def looks_once(waiter: Waiter, waits: Waits, listener: Any) -> None:
        looks.append(1)
        if len(looks) > 1:
            assert over.wait(LONG_S)
        look(waiter, waits, listener)

    monkeypatch.setattr(Waiter, "_look", looks_once)
    monkeypatch.setattr(awaiting, "GRACE_S", LONG_S)
    handles = [app.handle_by_id(QUEUE, f"no-{n}") for n in range(TOGETHER_MAX + 1)]
    found = []
    try:
        with pytest.raises(WaitTimeout, match="no time to look at all jobs"):
            for handle in app.as_completed(handles, 0):
                found.append(handle)
                if len(found) == TOGETHER_MAX:
                    monkeypatch.setattr(awaiting, "GRACE_S", 0.0)
    finally:
        over.set()

    assert TOGETHER_MAX == len(found)


async def test_async_waits_do_not_block_the_event_loop(app: App) -> None:
    handles = [await app.tasks["note"].enqueue_async(n) for n in range(50)]
    waits = asyncio.gather(*(handle.wait_async(LONG_S) for handle in handles))
    await asyncio.sleep(0)
    for held in take(app, 50):
        fail(app, held)

    outcomes = await waits
    await app.aclose()

    assert {Failed} == {type(outcome) for outcome in outcomes}
    assert [handle.id for handle in handles] == [outcome.id for outcome in outcomes]


async def test_a_cancelled_wait_does_not_poll_its_job_again(app: App) -> None:
    handle = await app.tasks["note"].enqueue_async(1)
    waiting = asyncio.create_task(handle.wait_async(LONG_S))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await app.aclose()

    assert handle.seen is None


async def test_as_completed_yields_handles_as_their_jobs_end(app: App) -> None:
    first, second = [await app.tasks["note"].enqueue_async(n) for n in range(2)]
    one, other = take(app, 2)
    fail(app, other)
    seen = []
    async for handle in app.as_completed_async([first, second], LONG_S):
        seen.append((handle, type(handle.seen)))
        if len(seen) == 1:
            fail(app, one)
    await app.aclose()

    assert [(second, Failed), (first, Failed)] == seen


def test_the_timeout_of_as_completed_covers_all_jobs(app: App) -> None:
    handles = app.enqueue_many(app.tasks["note"].job(n) for n in range(3))
    fail(app, *take(app))
    ended = app.as_completed(handles, 0.3)

    assert Failed is type(next(ended).seen)
    with pytest.raises(WaitTimeout, match="2 of the jobs have not ended"):
        next(ended)


def test_enqueue_many_returns_a_handle_for_each_new_or_existing_job(app: App) -> None:
    task = app.tasks["note"]
    known = task.with_options(id="known").enqueue(0)
    other = task.with_options(queue="other")

    accepted = app.enqueue_many([task.job(1), task.with_options(id="known").job(2), other.job(3)])

    told = {(handle.id, handle.queue, handle.duplicate) for handle in accepted.handles}
    assert ("known", QUEUE, True) in told
    assert {QUEUE, "other"} == {queue for _, queue, _ in told}
    assert {known.id, *accepted.ids} == {job_id for job_id, _, _ in told}


def test_a_wait_in_a_handler_is_refused_without_allow_in_handler(app: App) -> None:
    handle = app.tasks["note"].enqueue(1)
    dies(app, handle)
    with testing.job_running():
        with pytest.raises(WaitRefused, match="allow_in_handler=True"):
            handle.wait(1)
        with pytest.raises(WaitRefused, match="a handler that waits keeps its place"):
            app.as_completed([handle], 1)
        outcome = handle.wait(1, allow_in_handler=True)

    assert Failed is type(outcome)


async def test_a_blocking_wait_in_an_event_loop_is_refused(app: App) -> None:
    handle = app.handle_by_id(QUEUE, "a")
    with pytest.raises(WaitRefused, match="_async"):
        handle.wait(1)
    with pytest.raises(WaitRefused, match="_async"):
        app.as_completed([handle], 1)


def test_a_forked_child_waits_on_its_own_connection(app: App) -> None:
    handle = app.tasks["note"].enqueue(1)
    with pytest.raises(WaitTimeout):
        handle.wait(0)
    waiting = meanwhile(handle, LONG_S)
    child = ThreadPoolExecutor(1).submit(lambda: forked(lambda: type(handle.wait(LONG_S)).__name__))
    dies(app, handle)

    assert "Failed" == child.result(LONG_S)
    assert Failed is type(waiting.result(LONG_S))


def test_as_completed_continues_in_a_forked_child(app: App) -> None:
    """Checks that the child process starts a thread for its polls. The parent's thread does not exist there."""
    handles = [app.tasks["note"].enqueue(n) for n in range(3)]
    first, second, third = take(app, 3)
    ended = app.as_completed(handles, LONG_S / 4)
    fail(app, first)
    next(ended)
    fail(app, second)

    def rest() -> str:
        return " ".join(handle.id for handle in ended)

    with ThreadPoolExecutor(1) as pool:
        child = pool.submit(forked, rest)
        fail(app, third)
        found = child.result(LONG_S)

    assert {second.id, third.id} == set(found.split())
    assert {second.id, third.id} == {handle.id for handle in ended}


def test_as_completed_async_continues_in_a_forked_child(app: App) -> None:
    handles = [app.tasks["note"].enqueue(n) for n in range(2)]
    first, second = take(app, 2)
    fail(app, first)
    loop = asyncio.new_event_loop()
    ended = app.as_completed_async(handles, LONG_S / 4)
    loop.run_until_complete(anext(ended))
    fail(app, second)

    async def rest() -> list[str]:
        return [handle.id async for handle in ended]

    child = forked(lambda: " ".join(asyncio.run(rest())))
    here = loop.run_until_complete(rest())
    loop.close()

    assert [second.id] == child.split() == here


def test_closing_the_app_ends_waits(app: App) -> None:
    handle = app.tasks["note"].enqueue(1)
    waiting = meanwhile(handle, LONG_S)
    wait_until(lambda: app.connections.waiter._thread is not None, "the wait has begun")
    app.close()

    with pytest.raises(NoResult, match="the app was closed"):
        waiting.result(LONG_S)
    dies(app, handle)
    assert Failed is type(handle.wait(LONG_S))


def test_a_wait_continues_after_an_outage(start_redis: Callable[..., RedisServer]) -> None:
    server = start_redis(appendonly="yes")
    with App(server.url) as app:
        app.task(queue=QUEUE)(note)
        handle = app.tasks["note"].enqueue(1)
        waiting = meanwhile(handle, LONG_S)
        server.kill()
        server.start()
        dies(app, handle)

        assert Failed is type(waiting.result(LONG_S))


@pytest.mark.slow
def test_the_timeout_error_of_a_wait_names_an_unreachable_server(
    start_redis: Callable[..., RedisServer],
) -> None:
    server = start_redis()
    with App(server.url) as app:
        handle = app.handle_by_id(QUEUE, "a")
        server.kill()
        began = time.monotonic()
        with pytest.raises(WaitTimeout, match="no answer from Redis"):
            handle.wait(0.5)

        assert time.monotonic() - began < 5


async def test_closing_the_app_does_not_end_a_wait_that_begins_after_the_close(app: App) -> None:
    """Checks a wait that begins while the thread of earlier waits still ends."""
    handle = await app.tasks["note"].enqueue_async(1)
    for _ in range(20):
        with pytest.raises(WaitTimeout):
            await handle.wait_async(0)
        await app.aclose()
    fail(app, *take(app))

    assert Failed is type(await handle.wait_async(LONG_S))
    await app.aclose()


def test_a_wait_can_start_the_wait_thread_although_an_earlier_start_failed(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checks that a later wait starts another thread."""
    handle = app.tasks["note"].enqueue(1)
    begin = threading.Thread.start

    def cannot(thread: threading.Thread) -> None:
        if thread.name == "rq-core-waiter":
            raise RuntimeError("can't start new thread")
        begin(thread)

    monkeypatch.setattr(threading.Thread, "start", cannot)
    with pytest.raises(RuntimeError):
        handle.wait(LONG_S)
    monkeypatch.undo()
    dies(app, handle)

    assert Failed is type(handle.wait(LONG_S))


def test_a_wait_thread_ends_if_a_keyboard_interrupt_arrived_while_it_was_started(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checks also that a later close of the app ends the waits of the next thread."""
    handle = app.tasks["note"].enqueue(1)
    begun: list[threading.Thread] = []
    begin = threading.Thread.start

    def interrupted(thread: threading.Thread) -> None:
        begin(thread)
        if thread.name == "rq-core-waiter":
            begun.append(thread)
            raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        handle.wait(LONG_S)
    monkeypatch.undo()
    begun[0].join(LONG_S / 4)

    assert not begun[0].is_alive()
    waiting = meanwhile(handle, LONG_S)
    wait_until(lambda: app.connections.waiter._thread is not None, "the wait has begun")
    app.close()
    with pytest.raises(NoResult, match="the app was closed"):
        waiting.result(LONG_S)


def test_as_completed_yields_ended_jobs_before_it_times_out(app: App) -> None:
    handles = [app.tasks["note"].enqueue(n) for n in range(5)]
    for claim in take(app, 5)[1:]:
        fail(app, claim)
    found = []

    with pytest.raises(WaitTimeout, match=f"job {handles[0].id} has not ended"):
        for handle in app.as_completed(handles, 0):
            found.append(handle)  # noqa: PERF402 - it ends with an error

    assert set(handles[1:]) == set(found)


def test_as_completed_refuses_handles_of_another_app(app: App, redis_url: str) -> None:
    """Checks that the call raises an error. Jobs of another app must not be reported as gone."""
    handle = app.tasks["note"].enqueue(1)
    with App(redis_url) as other, pytest.raises(InvalidOption, match="handles of this app"):
        next(other.as_completed([handle], 1))

    assert handle.seen is None


@pytest.mark.slow
def test_the_timeout_error_of_a_wait_names_a_server_that_hangs(
    app: App, start_redis: Callable[..., RedisServer]
) -> None:
    server = start_redis()
    with App(server.url) as far:
        handle = far.task(queue=QUEUE)(note).enqueue(1)
        waiting = ThreadPoolExecutor(1).submit(handle.wait, 1.0)
        listens(far)
        server.freeze()
        try:
            error = waiting.exception(LONG_S)
        finally:
            server.thaw()

    assert isinstance(error, WaitTimeout)
    assert "no answer from Redis" in str(error) or "Redis has not answered" in str(error)
    assert error.__cause__ is not None


def test_the_method_result_is_refused_at_once_for_a_task_without_keep_result(
    app: App,
) -> None:
    handle = app.tasks["note"].with_options(delay=100).enqueue(1)

    with pytest.raises(ResultUnavailable) as raised:
        handle.result(LONG_S)

    assert "succeeded" not in str(raised.value)
    assert "keep_result=True" in str(raised.value)


def test_a_result_value_that_redis_lost_is_reported_as_lost(
    app: App, redis_server: RedisServer
) -> None:
    handle = app.tasks["note"].with_options(keep_result=True).enqueue(1)
    succeed(app, *take(app), values={1: pack_result("1")})
    with redis_server.client() as control:
        control.delete(queue_keys(QUEUE)("returned"))

    outcome = handle.wait(LONG_S)

    assert isinstance(outcome, Succeeded)
    assert "lost" == outcome.missing


@pytest.mark.parametrize("error", [KeyError("x"), ZeroDivisionError()])
def test_a_stored_result_that_the_validator_of_the_task_refuses_is_reported_with_the_reason_not_json(
    app: App, error: Exception
) -> None:
    def refuse(_: int) -> int:
        raise error

    def noted(n: int = 0) -> int:
        return n

    # As written it could not be resolved, since the validator is a local name.
    noted.__annotations__["return"] = Annotated[int, AfterValidator(refuse)]
    handle = app.task(queue=QUEUE, name="noted", keep_result=True)(noted).enqueue(1)
    succeed(app, *take(app), values={1: pack_result("1")})
    outcome = handle.wait(LONG_S)

    assert isinstance(outcome, Succeeded)
    assert "not_json" == outcome.missing


class LooksLikeAList(Sequence[int]):
    """A value that claims to be a list and never ends."""

    def __len__(self) -> int:
        return 10**12

    def __getitem__(self, _: Any) -> Any:
        return 1


class LooksLikeADict(Mapping[str, int]):
    def __len__(self) -> int:
        return 10**12

    def __iter__(self) -> Iterator[str]:
        return itertools.repeat("a")

    def __getitem__(self, _: str) -> int:
        return 1


def untyped():  # type: ignore[no-untyped-def]  # it is only looked at
    ...


def a_sequence() -> Sequence[int]: ...  # type: ignore[empty-body]


def a_list() -> list[int]: ...  # type: ignore[empty-body]


def a_mapping() -> Mapping[str, int]: ...  # type: ignore[empty-body]


@pytest.mark.parametrize("function", [untyped, a_sequence, a_list, a_mapping])
@pytest.mark.parametrize("value", [LooksLikeAList(), LooksLikeADict()], ids=["list", "dict"])
def test_a_result_that_only_imitates_a_list_or_dict_is_not_kept(
    function: Callable[[], Any], value: Any
) -> None:
    assert "!not_json" == Returned("lazy", function).dump(value)


def test_a_result_that_is_a_generator_is_not_iterated() -> None:
    def count() -> Iterator[int]:
        yield from range(10**12)

    def endless():  # type: ignore[no-untyped-def]
        return count()

    assert "!not_json" == Returned("endless", endless).dump(count())
