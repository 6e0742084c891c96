"""Waits that end when Redis publishes the end of the job. With the fixture ``rare``, waits poll only once an hour."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis

from rq_core import (
    App,
    Cancelled,
    Expired,
    Failed,
    Gone,
    JobHandle,
    Replaced,
    Succeeded,
    Unique,
    WaitTimeout,
)
from rq_core.connections import wait_thread
from rq_core.connections.end_subscriptions import HearingConnection, Listener
from rq_core.connections.wait_thread import Waiter
from rq_core.errors import RqCoreError
from rq_core.model.keys import queue_keys
from rq_core.protocol.calls import claims
from rq_core.protocol.calls.audit import take_out
from rq_core.protocol.reads import wait_schedule
from tests.app.conftest import As
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
from tests.kit.proxy import Mode, Proxy
from tests.kit.servers import RedisServer
from tests.kit.wait import wait_until
from tests.kit.waits import FOREVER_S, in_thread, listens

LONG_S = 20.0
CHANNEL = queue_keys(QUEUE).channel


@pytest.fixture
def rare(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wait_schedule, "HEARD_S", (3600.0,))


@pytest.fixture
def control(redis_server: RedisServer) -> Iterator[Any]:
    with redis_server.client(decode_responses=True) as client:
        yield client


def listeners(control: Any) -> int:
    """Return how many connections are subscribed to the queue's channel."""
    count: int = control.execute_command("PUBSUB", "SHARDNUMSUB", CHANNEL)[1]
    return count


def is_cancelled_while_it_runs(app: App, handle: JobHandle[Any]) -> None:
    (held,) = take(app)
    handle.cancel()
    fail(app, held)


def expires(app: App, handle: JobHandle[Any]) -> None:
    handle.edit(expires=0.05)
    wait_until(lambda: not take(app, 0) and handle.state() != "ready", "its deadline is over")


def is_poison(app: App, handle: JobHandle[Any]) -> None:
    app.client.run(app.client.calls.admin.configure(QUEUE, {"lease_ms": 200}))

    def died() -> bool:
        take(app)
        return handle.state() == "dead"

    wait_until(died, "its worker is lost for the last time", timeout=LONG_S)


def dies_unknown(app: App, handle: JobHandle[Any]) -> None:
    (held,) = take(app)
    record = (held.id, held.fence, "unknown_task", "null", "", 0)
    app.client.run(claims.rollback(QUEUE, "w-1", [record], unknown_max=1))


def is_replaced(app: App, handle: JobHandle[Any]) -> None:
    app.tasks["one"].enqueue(1)


def is_taken_out(app: App, handle: JobHandle[Any]) -> None:
    """Remove a revived job (one that had ended before a loss of Redis) as `audit restore` does."""
    client = app.client
    line = client.run(client.calls.delivery.ask([["HGET", queue_keys(QUEUE)("jobs"), handle.id]]))[
        0
    ]
    record = take_out(handle.id, "ready " + line.partition("\n")[0], "succeeded")
    client.run(client.calls.audit.restore(QUEUE, [record], after="-"))


ENDS = {
    "succeeds": (succeeds, Gone),
    "dies": (dies, Failed),
    "cancelled": (is_cancelled, Gone),
    "cancelled-while-it-runs": (is_cancelled_while_it_runs, Gone),
    "expires": (expires, Gone),
    "poison": (is_poison, Failed),
    "rollback-that-dies": (dies_unknown, Failed),
    "replaced": (is_replaced, Gone),
    "restore": (is_taken_out, Gone),
}
KEPT = {
    "succeeds": Succeeded,
    "cancelled": Cancelled,
    "expires": Expired,
    "replaced": Replaced,
}
"""The outcome that the wait returns if the job's result is kept, by kind of end."""


@pytest.mark.usefixtures("rare")
@pytest.mark.parametrize("how", ENDS)
def test_each_kind_of_end_sends_a_message_that_wakes_a_waiting_caller(app: App, how: str) -> None:
    end, kind = ENDS[how]
    task = app.tasks["note"]
    if how == "replaced":
        task = app.task(queue=QUEUE, name="one", unique=Unique(on_duplicate="replace"))(note)
    kept = KEPT.get(how)
    handle = (task.with_options(keep_result=True) if kept else task).enqueue(1)
    waiting = in_thread(handle, app)

    end(app, handle)

    assert (kept or kind) is type(waiting.result(LONG_S))


@pytest.mark.slow
@pytest.mark.usefixtures("rare")
def test_a_thousand_waits_share_one_subscribed_connection_and_leave_no_subscription(
    app: App, control: Any
) -> None:
    before = len(control.client_list())
    handles = app.enqueue_many(app.tasks["note"].job(n) for n in range(1_000)).handles
    seen: list[tuple[int, int]] = []

    def end_all() -> None:
        listens(app)
        seen.append((listeners(control), len(control.client_list()) - before))
        while held := take(app, 250):
            succeed(app, *held)

    thread = threading.Thread(target=end_all)
    thread.start()
    ended = list(app.as_completed(handles, FOREVER_S))
    thread.join(LONG_S)

    assert {h.id for h in handles} == {h.id for h in ended}
    assert [(1, 2)] == seen  # the app's own connection, and the waiter's
    wait_until(lambda: listeners(control) == 0, "nothing is listened to")


@pytest.mark.usefixtures("rare")
def test_a_listener_whose_connection_was_killed_subscribes_again_and_checks_every_awaited_job(
    app: App, control: Any
) -> None:
    """Checks a job that ends while the listener has no subscription. The wait ends when the listener subscribes
    again."""
    handle = app.tasks["note"].enqueue(1)
    waiting = in_thread(handle, app)
    control.execute_command("CLIENT", "PAUSE", 300, "ALL")
    control_ended = ThreadPoolExecutor(1).submit(dies, app, handle)
    control.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
    control_ended.result(LONG_S)

    assert Failed is type(waiting.result(LONG_S))
    wait_until(lambda: listeners(control) == 0, "nothing is listened to")


@pytest.mark.usefixtures("rare")
def test_a_listener_whose_connection_was_killed_receives_later_messages(
    app: App, control: Any
) -> None:
    handle = app.tasks["note"].enqueue(1)
    waiting = in_thread(handle, app)
    for _ in range(5):
        control.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
        wait_until(lambda: listeners(control) == 1, "it listens again")
        listens(app)
    dies(app, handle)

    assert Failed is type(waiting.result(LONG_S))


def test_a_wait_without_the_right_to_subscribe_polls_and_logs_one_warning(
    as_: As, redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    url = as_("producer", without="&rqc:{*}:ended")
    with App(url) as app, App(redis_server.url) as owner, caplog.at_level(logging.WARNING):
        app.task(queue=QUEUE)(note)
        for _ in range(3):
            handle = app.tasks["note"].enqueue(1)
            waiting = ThreadPoolExecutor(1).submit(handle.wait, LONG_S)
            dies(owner, handle)
            assert Failed is type(waiting.result(LONG_S))

    said = [r.getMessage() for r in caplog.records if "&rqc:{notes}:ended" in r.getMessage()]
    assert 1 == len(said)
    assert "`rq-core acl producer` prints" in said[0]


def test_waits_poll_and_log_one_warning_if_workers_may_not_publish(
    app: App,
    as_: As,
    redis_server: RedisServer,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(wait_schedule, "HEARD_S", (0.25,))
    url = as_("worker", without="&rqc:{*}:ended")
    with App(url) as worker, caplog.at_level(logging.WARNING):
        for n in range(3):
            handle = app.tasks["note"].enqueue(n)
            waiting = ThreadPoolExecutor(1).submit(handle.wait, LONG_S)
            if n == 0:
                listens(app)
            dies(worker, handle)
            assert Failed is type(waiting.result(LONG_S))

    said = [r.getMessage() for r in caplog.records if "&rqc:{notes}:ended" in r.getMessage()]
    assert 1 == len(said)
    assert "the user of a worker may lack" in said[0]


def test_roles_that_wait_for_jobs_may_subscribe_to_the_messages_about_ended_jobs(
    as_: As, control: Any, rare: None
) -> None:
    """Checks the rights of `rq-core acl`: producers may subscribe, and workers may publish."""
    with App(as_("producer")) as app, App(as_("worker")) as worker:
        app.task(queue=QUEUE)(note)
        handle = app.tasks["note"].enqueue(1)
        control.execute_command("ACL", "LOG", "RESET")
        waiting = in_thread(handle, app)
        dies(worker, handle)

        assert Failed is type(waiting.result(LONG_S))
    log = [entry["object"] for entry in control.acl_log()]
    assert not {"listen", "ssubscribe", "spublish", "sunsubscribe", "hello", CHANNEL} & set(log)
    assert not [each for each in log if "ended" in each]


@pytest.mark.usefixtures("rare")
def test_waits_for_several_queues_subscribe_to_each_queue(app: App, control: Any) -> None:
    task = app.tasks["note"]
    handles = [task.enqueue(1), task.with_options(queue="other").enqueue(2)]
    found: list[JobHandle[Any]] = []

    def collect() -> None:
        found.extend(app.as_completed(handles, FOREVER_S))

    thread = threading.Thread(target=collect)
    thread.start()
    listens(app)
    handles[1].cancel()
    wait_until(lambda: len(found) == 1, "the other queue's job has ended")
    dies(app, handles[0])
    thread.join(LONG_S)

    assert [handles[1], handles[0]] == found


@pytest.mark.slow
def test_a_wait_gives_up_a_subscribed_connection_that_receives_nothing(
    redis_server: RedisServer, app: App
) -> None:
    """Checks a connection that the network dropped silently. The next poll gets neither a message nor an answer."""
    with Proxy(redis_server.port) as proxy, App(proxy.url) as far:
        far.task(queue=QUEUE)(note)
        handle = far.tasks["note"].enqueue(1)
        waiting = in_thread(handle, far)
        with proxy.doing(Mode.BLACK_HOLE):
            dies(app, handle)

        assert Failed is type(waiting.result(LONG_S))


@pytest.mark.usefixtures("rare")
def test_a_wait_polls_a_server_that_does_not_speak_resp3(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checks a server that refuses RESP3. Some proxies speak only RESP2."""

    def connect(connection: HearingConnection, within: float | None = None) -> None:
        raise redis.ConnectionError("it does not speak RESP3: NOPROTO unsupported protocol version")

    monkeypatch.setattr(HearingConnection, "connect", connect)
    handle = app.tasks["note"].enqueue(1)
    with pytest.raises(WaitTimeout):
        handle.wait(0.2)
    dies(app, handle)

    assert Failed is type(handle.wait(LONG_S))


@pytest.mark.usefixtures("rare")
def test_each_of_several_waits_that_begin_together_wakes_the_wait_thread(app: App) -> None:
    """Checks the second of two waits. Without a wake-up, the thread would sleep until its next poll."""
    task = app.tasks["note"]
    in_thread(task.enqueue(0), app)
    handles = [task.enqueue(n) for n in range(2)]
    ended = ThreadPoolExecutor(1).submit(lambda: set(app.as_completed(handles, LONG_S)))
    waits: Any = app.connections.waiter._waits
    wait_until(lambda: sum(w.looks > 0 for w in waits.all()) == 3, "they are looked at")
    for claim in take(app, 3):
        fail(app, claim)

    assert set(handles) == ended.result(LONG_S)


@pytest.mark.usefixtures("rare")
def test_the_next_wait_starts_a_new_wait_thread_after_an_error_ended_the_last_one(
    app: App, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Checks that later waits are polled as before."""
    handle = app.tasks["note"].enqueue(1)
    waiting = in_thread(handle, app)
    sleep = Waiter._sleep

    def cannot(*_: Any) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(Waiter, "_sleep", staticmethod(cannot))
    with pytest.raises(WaitTimeout):
        handle.wait(0)  # wakes it
    with pytest.raises(
        RqCoreError, match=f"{handle.id} broke off.*Too many open files.*Wait again"
    ):
        waiting.result(LONG_S)
    monkeypatch.setattr(Waiter, "_sleep", staticmethod(sleep))
    again = in_thread(handle, app)
    dies(app, handle)

    assert Failed is type(again.result(LONG_S))
    assert "the thread that checks the jobs of waits has failed" in caplog.text


@pytest.mark.usefixtures("rare")
def test_a_message_that_arrives_during_an_unsubscribe_of_another_queue_ends_its_wait(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checks a message that the thread reads together with the answer to its unsubscribe."""
    monkeypatch.setattr(wait_thread, "QUIET_S", 0.0)
    task = app.tasks["note"]
    lasting, short = task.enqueue(1), task.with_options(queue="other").enqueue(2)
    leave = Listener.leave

    def leave_late(listener: Listener, queues: list[str]) -> None:
        if "other" in queues:
            dies(app, lasting)
        leave(listener, queues)

    monkeypatch.setattr(Listener, "leave", leave_late)
    waiting = in_thread(lasting, app)
    with pytest.raises(WaitTimeout):
        short.wait(0.1)

    assert Failed is type(waiting.result(LONG_S))


def test_a_missing_right_is_logged_once_for_all_wait_threads(
    as_: As, redis_server: RedisServer, caplog: pytest.LogCaptureFixture, control: Any
) -> None:
    """Checks a second thread. The thread logs no warning, and Redis' ACL log gets no second refusal."""
    url = as_("producer", without="&rqc:{*}:ended")
    control.execute_command("ACL", "LOG", "RESET")
    with App(url) as app, App(redis_server.url) as owner, caplog.at_level(logging.WARNING):
        app.task(queue=QUEUE)(note)
        app.connections.waiter._linger = 0.0
        for _ in range(3):
            handle = app.tasks["note"].enqueue(1)
            waiting = ThreadPoolExecutor(1).submit(handle.wait, LONG_S)
            dies(owner, handle)
            assert Failed is type(waiting.result(LONG_S))
            wait_until(lambda: app.connections.waiter._thread is None, "the thread ends")

    assert 1 == caplog.text.count("&rqc:{notes}:ended")
    (noted,) = [entry for entry in control.acl_log() if entry["object"] == CHANNEL]
    assert "1" == str(noted["count"])


def test_the_command_that_grants_a_missing_right_includes_the_apps_prefix(
    as_: As, caplog: pytest.LogCaptureFixture
) -> None:
    url = as_("producer", "--prefix", "mine", without="&mine:{*}:ended")
    with App(url, prefix="mine") as app:
        app.task(queue=QUEUE)(note)
        with pytest.raises(WaitTimeout):
            app.tasks["note"].enqueue(1).wait(0.1)

    assert "`rq-core acl producer --prefix mine` prints" in caplog.text


def test_the_end_of_a_job_without_subscribers_is_not_logged_as_a_missing_right(
    app: App, control: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checks a wait whose subscription Redis has forgotten, as after a long suspension of the process."""
    monkeypatch.setattr(wait_schedule, "HEARD_S", (0.25,))
    handle = app.tasks["note"].enqueue(1)
    waiting = in_thread(handle, app)
    control.hdel(queue_keys(QUEUE)("meta"), "awaited", "v")
    dies(app, handle)

    assert Failed is type(waiting.result(LONG_S))
    assert "may lack the right" not in caplog.text
    assert app.connections.waiter._deaf.until == {}
