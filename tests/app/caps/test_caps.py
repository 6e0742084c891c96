"""Caps of an app on a real server: the stored limits, the claims that they allow, and the jobs that they reject."""

from __future__ import annotations

from typing import Any

import pytest

from rq_core import App, Cap, Rate, ScopeFull
from rq_core.protocol.calls import claims
from rq_core.protocol.calls.enqueue import Accepted
from tests.app.caps.tasks import claim, events, send


def test_applying_the_settings_twice_stores_a_declared_limit_once(app: App) -> None:
    app.task(queue="mail", caps=[Cap(2), Cap(1, per="tenant"), Rate(9, per_seconds=60)])(send)
    app.queue("mail", cap=50, fair="tenant", weights={"acme": 3}, lease=5)

    app.apply_settings()
    app.apply_settings()

    stored = app.client.run(app.client.calls.caps.stored("mail"))
    assert {name: (str(e.limit), e.version, e.source) for name, e in stored.items()} == {
        "queue": ("50", 1, "code"),
        "send.tenant": ("1", 1, "code"),
        "task=send": ("2", 1, "code"),
        "task@60s=send": ("9/60000ms/1", 1, "code"),
        "weight=acme": ("3", 1, "code"),
    }
    assert (
        app.client.run(app.client.calls.caps.policy("mail", "send"))
        == app.declared.policies("mail")["send"]
    )
    assert app.client.run(app.client.calls.reads.snapshot("mail"))["meta"]["fair"] == "1"
    assert len(events(app, "cap_changed")) == 5


def test_registering_a_task_without_caps_clears_its_policy(app: App, redis_url: str) -> None:
    app.task(queue="mail")(send)
    app.queue("mail", lease=5)
    app.apply_settings()
    assert app.client.run(app.client.calls.caps.policy("mail", "send")) == '{"scopes":[]}'

    with App(redis_url) as capped:
        capped.task(queue="mail", caps=[Cap(1)])(send)
        capped.apply_settings()
    assert app.client.run(app.client.calls.caps.policy("mail", "send")) != '{"scopes":[]}'
    app.apply_settings()
    assert app.client.run(app.client.calls.caps.policy("mail", "send")) == '{"scopes":[]}'


def test_a_claim_respects_both_the_cap_of_a_task_and_the_cap_of_a_key(app: App) -> None:
    task = app.task(queue="mail", caps=[Cap(2), Cap(1, per="tenant")])(send)
    app.apply_settings()
    for tenant in ("a", "a", "b", "c"):
        task.enqueue(tenant)

    held = claim(app)

    assert [c.lane for c in held] == ["2+task=send+send.tenant=a", "2+task=send+send.tenant=b"]
    client = app.client
    client.run(claims.complete("mail", "w-1", [(held[1].id, held[1].fence)]))
    # Tenant a is full; c may.
    assert [c.lane for c in claim(app)] == ["2+task=send+send.tenant=c"]


@pytest.mark.parametrize("policy", ["discard", "reject"])
async def test_a_full_scope_discards_or_rejects_a_new_job(app: App, policy: Any) -> None:
    task = app.task(queue="mail", caps=[Cap(1, per="tenant", on_full=policy)])(send)
    await app.apply_settings_async()

    assert not task.enqueue("a").discarded
    if policy == "discard":
        assert task.enqueue("a").discarded
        assert (await task.enqueue_async("a")).discarded
        assert app.enqueue("mail", "send", {"tenant": "a"}).discarded
        assert (await app.enqueue_async("mail", "send", {"tenant": "a"})).discarded
    else:
        with pytest.raises(ScopeFull, match=r"scope send\.tenant=a is full") as caught:
            task.enqueue("a")
        assert caught.value.facts["queue"] == "mail"
        with pytest.raises(ScopeFull):
            await task.enqueue_async("a")
        with pytest.raises(ScopeFull):
            app.enqueue("mail", "send", {"tenant": "a"})
        with pytest.raises(ScopeFull):
            await app.enqueue_async("mail", "send", {"tenant": "a"})
    jobs = [task.with_options(id=f"j-{n}").job(tenant) for n, tenant in enumerate("abb")]
    lost = (("j-0", "send.tenant=a"), ("j-2", "send.tenant=b"))
    expected = (
        Accepted(("j-1",), (), lost) if policy == "discard" else Accepted(("j-1",), (), (), lost)
    )
    assert app.enqueue_many(jobs) == expected
    await app.aclose()
    # A refusal changes nothing; what is dropped is in the log.
    assert len(events(app, "discarded")) == (5 if policy == "discard" else 0)
    assert app.client.run(app.client.calls.reads.counts("mail")).running == 0
    assert len(app.client.run(app.client.calls.reads.snapshot("mail"))["jobs"]) == 2


def test_a_lane_rejects_a_new_job_once_max_waiting_jobs_wait_in_it(app: App) -> None:
    task = app.task(queue="mail", caps=[Cap(1, per="tenant", max_waiting=2)])(send)
    app.apply_settings()

    for tenant in ("a", "a", "b"):
        task.enqueue(tenant)
    with pytest.raises(ScopeFull, match=r"as many wait in its lane 2\+send\.tenant=a as its cap's"):
        task.enqueue("a")
    assert task.with_options(priority="high").enqueue("a").state() == "ready"
