"""Calls that change jobs create no queue. In an unknown queue they find no job."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rq_core.connections.client import Client
from rq_core.model.job import NewJob, profile
from rq_core.model.keys import queue_keys
from rq_core.protocol.calls.admin import DELETED, Change
from rq_core.protocol.calls.boxes import Sending, Sent

QUEUE = "nobody"
CALLS: dict[str, Callable[[Client], Any]] = {
    "cancel": lambda c: c.run(c.calls.admin.cancel(QUEUE, ["a"])),
    "edit": lambda c: c.run(c.calls.admin.edit(QUEUE, ["a"], Change("high"))),
    "requeue": lambda c: c.run(c.calls.admin.requeue(QUEUE, ["a"])),
    "prune": lambda c: c.run(c.calls.admin.prune(QUEUE, ["a"])),
    "free": lambda c: c.run(c.calls.names.free(QUEUE, ["t/n=1"])),
    "signal": lambda c: c.run(c.calls.mail.signal(QUEUE, Sending("a", "go", "", "null"))),
    "signal of a child": lambda c: c.run(
        c.calls.mail.signal(QUEUE, Sending("a", "rq_core.child.1.0", "", "null", "b-1"))
    ),
    "look again": lambda c: c.run(c.calls.mail.look_again(QUEUE, ["a"], by="ann", why="")),
}
NOTHING: dict[str, Any] = {
    "free": {"t/n=1": None},
    "signal": Sent("gone", None),
    "signal of a child": Sent("gone", None),
    "look again": None,
}
each_call = pytest.mark.parametrize("call", CALLS)


@pytest.fixture
def client(redis_url: str) -> Iterator[Client]:
    with Client(redis_url) as client:
        yield client


def keys(client: Client) -> list[str]:
    (found,) = client.run(client.calls.delivery.ask([["KEYS", "rqc:*"]]))
    return sorted(found)


def enqueue(client: Client, job_id: str, **options: Any) -> None:
    job = NewJob(job_id, QUEUE, profile("t"), "{}", **options)
    client.run(client.calls.enqueue.many([job]))


@each_call
def test_a_change_of_jobs_in_an_unknown_queue_creates_no_queue(client: Client, call: str) -> None:
    for _ in range(2):
        assert CALLS[call](client) == NOTHING.get(call, {"a": "gone"})

    assert keys(client) == []


@each_call
def test_a_change_of_jobs_in_a_deleted_queue_creates_no_queue(
    client: Client, redis_url: str, call: str
) -> None:
    """Checks a client that has used the queue before its deletion."""
    enqueue(client, "a")
    client.run(client.calls.admin.cancel(QUEUE, ["a"]))
    with Client(redis_url) as other:
        assert other.run(other.calls.deletion.delete(QUEUE)) == DELETED

    assert CALLS[call](client) == NOTHING.get(call, {"a": "gone"})
    assert keys(client) == []
    enqueue(client, "b")
    assert client.run(client.calls.admin.cancel(QUEUE, ["b"])) == {"b": "cancelled"}


def test_a_job_can_be_cancelled_though_the_redis_key_meta_of_its_queue_is_missing(
    client: Client,
) -> None:
    enqueue(client, "a")
    client.run(client.calls.delivery.ask([["DEL", queue_keys(QUEUE)("meta")]]))

    assert CALLS["cancel"](client) == {"a": "cancelled"}
