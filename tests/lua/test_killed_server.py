"""The server is killed during calls of all kinds. After the restart, each script has run completely or not at all."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

import pytest

from rq_core import errors
from rq_core.connections.client import Client
from rq_core.doctor import examine
from rq_core.model.ids import JobIds
from rq_core.model.job import NewJob, profile
from rq_core.protocol.calls import claims
from rq_core.protocol.engine.plan import Patience
from tests.kit.consistency import assert_consistent
from tests.kit.servers import RedisServer
from tests.kit.wait import wait_until

NO_PATIENCE = Patience(unsent=0.0, unknown=0.0)
MINE = profile("task", max_attempts=2)
ids = JobIds()


class Load:
    """Producers, and workers that run no handlers. Each thread makes calls until the server is gone."""

    def __init__(self, url: str, seed: int) -> None:
        self.url = url
        self.random = random.Random(seed)
        self.acknowledged: set[str] = set()
        self.calls = 0
        self.threads = [
            threading.Thread(target=self._until_it_is_gone, args=(step,))
            for step in (self._produce, self._produce, self._work, self._work)
        ]
        for thread in self.threads:
            thread.start()

    def _until_it_is_gone(self, step: Callable[[Client], None]) -> None:
        with Client(self.url, patience=NO_PATIENCE) as client:
            try:
                while True:
                    step(client)
                    self.calls += 1
            except (errors.ServerUnavailable, errors.OutcomeUnknown):
                return

    def _produce(self, client: Client) -> None:
        delays = [0, 0, 0, 5]
        batch = [NewJob(ids(), "q", MINE, "{}", self.random.choice(delays)) for _ in range(7)]
        self.acknowledged.update(client.run(client.calls.enqueue.many(batch)).ids)

    def _work(self, client: Client) -> None:
        name = client.calls.delivery.name
        claimed = client.run(claims.claim("q", name, 5))
        calls = []
        for kind, job in zip(("done", "bad", "back", "done", "done"), claimed.jobs, strict=False):
            held = (job.id, job.fence)
            if kind == "bad":
                failed = [(*held, "retry", 1, "error", "null")]
                calls.append(claims.fail("q", name, failed))
            elif kind == "back":
                calls.append(claims.rollback("q", name, [(*held, "shutdown", "null", "", 0)]))
            else:
                calls.append(claims.complete("q", name, [held]))
        client.run(client.calls.delivery.carry_out(calls))


@pytest.mark.slow
def test_a_killed_server_restarts_with_all_acknowledged_calls(
    start_redis: Callable[..., RedisServer],
) -> None:
    """The setting is ``appendfsync always``. No script may have run in part, and no acknowledged call may be lost (I1,
    I8)."""
    server = start_redis(appendonly="yes", appendfsync="always")
    with Client(server.url) as client:
        # An attached log is kept whole; without a mirror it would be a ring.
        client.run(client.calls.audit.attach("q", "test"))
    acknowledged: set[str] = set()
    for round_ in range(3):
        load = Load(server.url, seed=round_)
        wait_until(lambda load=load: load.calls > 200, "there is load", timeout=30)  # type: ignore[misc]
        server.kill()
        for thread in load.threads:
            thread.join(20)
        acknowledged |= load.acknowledged
        server.start()

        with Client(server.url) as client:
            client.run(client.calls.delivery.handshake("q"))
            snapshot = client.run(client.calls.reads.snapshot("q"))
        assert_consistent(snapshot)
        assert examine(snapshot) == []
        told = _enqueued(snapshot)
        assert acknowledged <= told
        ended = told - set(snapshot["jobs"])
        assert ended <= _ended(snapshot)


@pytest.mark.parametrize("cut", [1, 40, 150, 400])
def test_a_half_written_call_in_the_append_only_file_is_never_carried_out(
    start_redis: Callable[..., RedisServer], cut: int
) -> None:
    """The server is started several times, since Redis would carry out the call at its second start
    (docs/how-to/servers.md)."""
    server = start_redis(appendonly="yes", appendfsync="always")
    late = NewJob("late", "q", MINE, "{}", 60_000)
    with Client(server.url) as client:
        client.run(client.calls.enqueue.many([NewJob("whole", "q", MINE, "{}")]))
        client.run(client.calls.enqueue.many([NewJob("half", "q", MINE, "{}"), late]))
    server.kill()
    (file,) = (server.directory / "appendonlydir").glob("*.incr.aof")
    content = file.read_bytes()
    file.write_bytes(content[:-cut])
    server.mend_append_only_file()
    for name in ("next", "last"):
        server.start()
        with Client(server.url) as client:
            client.run(client.calls.enqueue.many([NewJob(name, "q", MINE, "{}")]))
        server.kill()
    server.start()
    with Client(server.url) as client:
        snapshot = client.run(client.calls.reads.snapshot("q"))

    assert {"whole", "next", "last"} == set(snapshot["jobs"])
    assert_consistent(snapshot)
    assert examine(snapshot) == []


def _enqueued(snapshot: dict[str, object]) -> set[str]:
    return _ids(snapshot, {"enqueued"})


def _ended(snapshot: dict[str, object]) -> set[str]:
    return _ids(snapshot, {"succeeded", "cancelled", "pruned"})


def _ids(snapshot: dict[str, object], types: set[str]) -> set[str]:
    from rq_core.model.events import decode

    entries = [decode(i, raw) for i, raw in snapshot["outbox"]]  # type: ignore[attr-defined]
    return {event.job_id for entry in entries if entry.event in types for event in entry.jobs}
