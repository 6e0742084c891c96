"""Rows in Redis by which workers show that they are present. The row of a vanished worker is removed."""

import functools
import json
from collections.abc import Callable
from typing import Any

import pytest
import redis

from rq_core import App
from rq_core.connections.client import Client
from rq_core.doctor import examine
from rq_core.model.keys import queue_keys
from rq_core.protocol.reads import worker_registry
from rq_core.protocol.reads.queue_load import QueueOverview
from rq_core.protocol.reads.worker_registry import Presence
from rq_core.worker.liveness import presence as attendance
from rq_core.worker.liveness.presence import Attendance, code_digest
from tests.kit import crew
from tests.kit.crew import worker_process
from tests.kit.servers import RedisServer, free_port
from tests.kit.wait import wait_until, wait_until_async
from tests.kit.working import working

KEY = queue_keys("crew")("workers")


def look(client: Client) -> QueueOverview:
    (found,) = client.run(client.calls.reads.looks(["crew"]))[0]
    return found


def attending(client: Client, name: str = "w-1", **how: Any) -> Attendance:
    given = {"tasks": crew.app.tasks, "queues": lambda: ["crew"], "places": 4, "busy": lambda: 1}
    return Attendance(client, name, **(given | how))


async def test_an_idle_worker_is_listed_until_it_has_stopped(app: App, client: Client) -> None:
    async with working(app, queues=("crew",), concurrency=7) as worker:
        (seen,) = await wait_until_async(lambda: look(client).present, "it says that it is there")
        assert (seen.worker, seen.says.places, seen.says.busy) == (worker.name, 7, 0)
        assert (seen.says.queues, seen.says.code) == (("crew",), code_digest(app.tasks))

    assert look(client).workers == ()


async def test_a_worker_reports_how_many_of_its_places_are_in_use(
    app: App, client: Client, monkeypatch: pytest.MonkeyPatch, witness: crew.Witness
) -> None:
    monkeypatch.setattr(attendance, "TELL_EVERY_S", 0.02)
    async with working(app, queues=("crew",), concurrency=3, grace=0.0):
        for _ in range(2):
            await app.tasks["sleeping"].enqueue_async(60)

        def busy() -> list[int]:
            return [each.says.busy for each in look(client).present]

        await wait_until_async(lambda: busy() == [2], "two places are taken")


def test_the_row_in_redis_that_announces_a_worker_creates_no_queue(client: Client) -> None:
    attending(client).tell()

    assert client.run(client.calls.reads.queues()) == []
    assert client.run(client.calls.reads.counts("crew")).epoch == 0


def test_the_doctor_reports_no_finding_for_the_list_of_workers(client: Client, app: App) -> None:
    app.enqueue("crew", "coroutine", {})
    attending(client).tell()

    snapshot = client.run(client.calls.reads.snapshot("crew"))

    assert [*snapshot["workers"]] == ["w-1", f"code|{code_digest(crew.app.tasks)}"]
    assert examine(snapshot) == []


def test_the_presence_row_of_a_worker_that_was_silent_for_an_hour_is_removed(
    client: Client, valkey: RedisServer
) -> None:
    attending(client, "w-killed").tell()
    with valkey.client(decode_responses=True) as control:
        row = control.hget(KEY, "w-killed")
        now, _ = control.time()
        for name, age_s in (("w-killed", 31), ("w-long-ago", 3_601)):
            control.hset(KEY, name, f"{int(now) - age_s} {row.partition(' ')[2]}")
        control.hset(KEY, "w-unreadable", "x")
        control.hset(KEY, "code|0ld", '["send"]')
        found = look(client)

        assert [(each.worker, each.gone) for each in found.workers] == [
            ("w-killed", True),
            ("w-long-ago", True),
        ]
        assert found.present == ()
        attending(client).tell()
        here = f"code|{code_digest(crew.app.tasks)}"
        assert set(control.hkeys(KEY)) == {"w-1", "w-killed", here}


def test_the_tasks_of_a_worker_are_known_while_it_is_listed(client: Client) -> None:
    known = client.run(client.calls.reads.known_tasks("crew"))
    assert (known.workers, known.knows("coroutine")) == (0, None)

    attending(client, "w-1").tell()
    attending(client, "w-2", tasks={"other": crew.app.tasks["coroutine"]}).tell()

    known = client.run(client.calls.reads.known_tasks("crew"))
    assert known.workers == 2
    assert [known.knows(task) for task in ("coroutine", "other", "nonesuch")] == [True, True, False]


def test_no_task_counts_as_unknown_while_a_workers_task_list_is_unreadable(
    client: Client, valkey: RedisServer
) -> None:
    attending(client).tell()
    with valkey.client() as control:
        control.hdel(KEY, f"code|{code_digest(crew.app.tasks)}")

    assert client.run(client.calls.reads.known_tasks("crew")).knows("nonesuch") is None


def test_a_full_server_accepts_the_presence_rows_of_workers(
    client: Client, valkey: RedisServer
) -> None:
    with valkey.client() as control:
        control.config_set("maxmemory", "1")
        with pytest.raises(redis.OutOfMemoryError):
            control.set("x", "y")
        attending(client).tell()
        control.config_set("maxmemory", "0")

    assert [each.worker for each in look(client).present] == ["w-1"]


def test_writing_a_presence_row_to_an_unreachable_server_raises_no_error() -> None:
    with Client(f"redis://127.0.0.1:{free_port()}/0") as away:
        one = attending(away)
        one.tell()
        one.leave()

    assert one.due > 0


def test_a_worker_writes_no_presence_row_to_a_server_that_failed_to_answer_its_heartbeat(
    client: Client,
) -> None:
    attending(client).tell(failed={client.place("crew")})

    assert look(client).workers == ()


def test_a_worker_row_of_another_version_is_ignored() -> None:
    says = Presence("h", 1, "9", "c", ("q",), 1, 0, 5)
    row = json.dumps({"host": "h", "unheard_of": 1})

    assert worker_registry.read_row("w", f"5 {row}", 6_000) is None
    assert worker_registry.read_row("w", f"5 {json.dumps(_dict(says))}", 6_000)


LIES = {
    "host": [5, None, "x" * 1_000_000],
    "pid": ["1", -1, 1.5, True, 2**60],
    "version": [[]],
    "code": [{}, []],
    "queues": ["mail", [5], {"a": 1}, None],
    "places": ["many", -3, float("nan"), None],
    "busy": [1e308, [1]],
    "since_ms": ["now", None],
}
"""Invalid values for the fields of a worker's row. Any client with the rights of a worker can write such values."""


@pytest.mark.parametrize(("name", "value"), [(n, v) for n, values in LIES.items() for v in values])
def test_a_worker_row_with_an_invalid_field_is_ignored(name: str, value: object) -> None:
    says = _dict(Presence("h", 1, "9", "c", ("q",), 1, 0, 5))
    assert worker_registry.read_row("w", f"5 {json.dumps(says)}", 6_000)

    assert worker_registry.read_row("w", f"5 {json.dumps(says | {name: value})}", 6_000) is None


@pytest.mark.parametrize(
    "row", ["", "5", "5 []", "5 7", "5 null", f"{'9' * 5_000} {{}}", "5 " + "[" * 9_999]
)
def test_a_malformed_worker_row_is_ignored(row: str) -> None:
    assert worker_registry.read_row("w", row, 6_000) is None


def test_a_worker_row_with_a_time_in_the_future_is_ignored(
    client: Client, valkey: RedisServer
) -> None:
    """Checks a forged row, or a row from before the clock of Redis was set back. The worker of the row is not
    listed."""
    attending(client, "w-killed").tell()
    with valkey.client(decode_responses=True) as control:
        row = control.hget(KEY, "w-killed")
        control.hset(KEY, "w-killed", f"9999999999 {row.partition(' ')[2]}")

        assert look(client).present == ()
        attending(client).tell()
        assert set(control.hkeys(KEY)) == {"w-1", f"code|{code_digest(crew.app.tasks)}"}


def _dict(says: Presence) -> dict[str, Any]:
    return {name: getattr(says, name) for name in Presence.__slots__}


def test_tasks_with_different_code_have_different_digests() -> None:
    def app_with(handler: Callable[..., Any]) -> App:
        app = App()
        app.task(handler, name="t")
        return app

    def one() -> int:
        return 1

    def same() -> int:
        return 1

    def two() -> int:
        return 2

    digests = [code_digest(app_with(handler).tasks) for handler in (one, same, two)]

    assert digests[0] == digests[1] != digests[2]


def test_a_change_in_a_decorated_handler_changes_the_digest() -> None:
    def logged(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapper(*args: Any) -> Any:
            return function(*args)

        return wrapper

    def app_with(handler: Callable[..., Any]) -> App:
        app = App()
        app.task(logged(handler), name="t")
        return app

    def one() -> int:
        return 1

    def two() -> int:
        return 2

    assert code_digest(app_with(one).tasks) != code_digest(app_with(two).tasks)


def test_a_change_of_a_set_literal_changes_the_digest() -> None:
    def app_with(handler: Callable[..., Any]) -> App:
        app = App()
        app.task(handler, name="t")
        return app

    def one(plan: str) -> bool:
        return plan in {"gold", "silver"}

    def same(plan: str) -> bool:
        return plan in {"silver", "gold"}

    def two(plan: str) -> bool:
        return plan in {"gold", "bronze"}

    digests = [code_digest(app_with(handler).tasks) for handler in (one, same, two)]

    assert digests[0] == digests[1] != digests[2]


@pytest.mark.slow
def test_a_killed_worker_counts_as_gone_once_it_is_silent(
    app: App,
    client: Client,
    witness: crew.Witness,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with worker_process(app.redis_url, witness) as process:
        (seen,) = wait_until(lambda: look(client).present, "it says that it is there", timeout=20)
        assert seen.says.pid == process.pid
        process.kill()
        process.wait(10)

    monkeypatch.setattr(worker_registry, "SILENT_MS", 200)
    wait_until(lambda: not look(client).present, "the killed worker counts as gone")

    assert [each.worker for each in look(client).workers] == [seen.worker]
