"""Enqueues by name from producers without the tasks' code. Redis stores which caps apply to each task."""

from __future__ import annotations

from typing import Any

import pytest

from rq_core import App, Cap, KeyNeeded
from rq_core.protocol.engine.plan import Plan
from tests.app.caps.tasks import claim, send
from tests.kit.snapshots import lines_of


async def test_a_job_that_is_enqueued_by_name_gets_the_scopes_of_its_task(
    app: App, other: App
) -> None:
    task = app.task(queue="mail", caps=[Cap(5), Cap(1, per="tenant", on_full="discard")])(send)
    app.apply_settings()

    here = task.job("a b")
    there = other.job("mail", "send", {"tenant": "a b"})
    later = await other.job_async("mail", "send", {"tenant": "a b"})

    assert there.lane == "2+task=send+send.tenant=a%20b"
    assert (there.lane, there.full) == (later.lane, later.full) == (here.lane, here.full)
    assert not other.enqueue("mail", "send", {"tenant": "x"}).discarded
    assert (await other.enqueue_async("mail", "send", {"tenant": "x"})).discarded
    await other.aclose()


async def test_enqueue_async_by_name_reads_the_policy_without_the_blocking_client(
    app: App, other: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    app.task(queue="mail", caps=[Cap(1, per="tenant")])(send)
    app.apply_settings()

    def blocking() -> Any:
        raise AssertionError("it would hold up the event loop")

    monkeypatch.setattr(other.connections, "make_client", blocking)
    handle = await other.enqueue_async("mail", "send", {"tenant": "a"})
    await other.connections.async_client().close()
    other.connections._async_clients.clear()

    assert (
        lines_of(app.client.run(app.client.calls.reads.snapshot("mail")))[handle.id].count(
            "lane=2+send.tenant=a"
        )
        == 1
    )


def test_enqueue_by_name_needs_keys_if_a_function_computes_the_key_of_a_cap(
    app: App, other: App
) -> None:
    app.task(queue="mail", caps=[Cap(1, per=lambda tenant, **_: tenant, name="tenant")])(send)
    app.apply_settings()

    with pytest.raises(KeyNeeded, match="keys="):
        other.enqueue("mail", "send", {"tenant": "a"})
    assert app.client.run(app.client.calls.reads.snapshot("mail"))["jobs"] == {}
    other.enqueue("mail", "send", {"tenant": "a"}, keys={"tenant": "a"})
    assert [c.lane for c in claim(app)] == ["2+tenant=a"]


def test_a_producer_caches_the_policy_of_a_task(
    other: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    other.enqueue("mail", "send", {"tenant": "a"})
    asked = []
    real = other.client.calls.caps.policy

    def policy(queue: str, task: str) -> Plan[str | None]:
        asked.append((queue, task))
        return real(queue, task)

    monkeypatch.setattr(other.client.calls.caps, "policy", policy)

    for _ in range(5):
        other.enqueue("mail", "send", {"tenant": "a"})
        other.enqueue("mail", "bill", {"tenant": "a"})

    assert asked == [("mail", "bill")]
