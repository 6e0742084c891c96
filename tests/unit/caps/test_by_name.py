"""Enqueues by the name of a task. The producer needs the task's caps, and a worker corrects a job with too few
scopes."""

from __future__ import annotations

from typing import Any

import pytest

from rq_core import App, Cap, InvalidOption, KeyNeeded, QueueDamaged, Rate, RetryPolicy, Unique
from rq_core.app.limits.lane_assignment import CACHED_MAX, CACHED_S, PolicyCache, registered_placing
from tests.unit.caps.tasks import lane, send, tenant_of


def registered(app: App, task: str, queue: str = "default") -> App:
    """Return an app without the task. It knows the policy of the task as a worker stores it."""
    other = App("redis://nowhere.invalid")
    other.connections.policies.put(
        registered_placing(task, queue, app.declared.policies(queue)[task])
    )
    return other


def test_a_job_that_is_enqueued_by_name_gets_the_options_of_its_task(app: App) -> None:
    retry = RetryPolicy(max_attempts=1)
    task = app.task(
        priority="high",
        retry=retry,
        max_losses=9,
        keep_result=60,
        audit_result="full",
        unique=Unique(),
    )(send)
    other = registered(app, "send")

    here, there = task.job("a"), other.job("default", "send", {"tenant": "a"})
    asked = other.job("default", "send", {"tenant": "a"}, max_attempts=4, priority="low")

    assert (here.profile, here.ties) == (there.profile, there.ties)
    assert (asked.profile.max_attempts, asked.profile.priority) == (4, "low")
    assert asked.profile.max_losses == 9


def test_a_job_enqueued_by_name_gets_the_lane_and_the_rules_of_its_task(app: App) -> None:
    task = app.task(
        caps=[
            Cap(9, max_waiting=7),
            Cap(1, per="tenant", on_full="discard"),
            Rate(1, per_seconds=60, per="n"),
            Cap(2, name="gpu"),
        ]
    )(send)
    app.queue("default", fair="tenant")
    other = registered(app, "send")

    for arguments in ({"tenant": "a b"}, {"tenant": "x", "n": 3}, {"tenant": "x", "n": None}):
        here, there = task.job(**arguments), other.job("default", "send", arguments)
        assert (here.lane, here.full) == (there.lane, there.full)
    with pytest.raises(InvalidOption, match="does not go with caps"):
        registered_with_rules = registered(app, "send")
        registered_with_rules.job("default", "send", {"tenant": "a"}, delay=1)


def test_enqueue_by_name_requires_each_key_that_a_function_of_the_task_computes(
    app: App,
) -> None:
    app.task(
        caps=[
            Cap(1, per=tenant_of, name="tenant"),
            Rate(1, per_seconds=60, per=tenant_of, name="tenant"),
        ]
    )(send)
    other = registered(app, "send")

    with pytest.raises(
        KeyNeeded, match=r"makes its key 'tenant' with a function.* Pass the key: in Python keys="
    ):
        other.job("default", "send", {"tenant": "a"})
    job = other.job("default", "send", {"tenant": "a"}, keys={"tenant": "B c"})
    assert job.lane == "2+tenant=B%20c+tenant@60s=B%20c"
    # The code itself does not need it, but takes it.
    assert lane(app.job("default", "send", {"tenant": "a"})) == "2+tenant=A+tenant@60s=A"
    assert lane(app.job("default", "send", {"tenant": "a"}, keys={"tenant": "x"})) == (
        "2+tenant=x+tenant@60s=x"
    )


@pytest.mark.parametrize("keys", [{"other": "x"}, {"send.to": "x"}, {"tenant": 5}, ["tenant"]])
def test_enqueue_by_name_refuses_unexpected_keys(app: App, keys: Any) -> None:
    app.task(caps=[Cap(1, per=tenant_of, name="tenant"), Cap(1, per="to")])(send)

    with pytest.raises(InvalidOption, match="keys"):
        app.job("default", "send", {"tenant": "a"}, keys=keys)


def test_enqueue_by_name_accepts_keys_before_a_worker_registered_the_task(app: App) -> None:
    app.connections.policies.put(app.declared.unregistered("send", "q"))

    assert lane(app.job("q", "send", {}, keys={"tenant": "a b"})) == "2+tenant=a%20b"
    for keys in ({"task": "x"}, {"fair": "x"}, {"a b": "x"}):
        with pytest.raises(InvalidOption):
            app.job("q", "send", {}, keys=keys)


def test_unknown_fields_of_a_policy_of_a_later_release_are_ignored() -> None:
    policy = '{"scopes":[{"family":"task","scope":"task=send","colour":"red"}],"more":1}'

    assert registered_placing("send", "q", policy).lane(0, {}) == ("0+task=send", "")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"scopes":[5]}', '{"scopes":[{}]}'])
def test_an_invalid_stored_policy_is_reported_as_damage(text: str) -> None:
    with pytest.raises(QueueDamaged, match="the policy of task send cannot be read"):
        registered_placing("send", "q", text)


def test_the_cache_of_policies_has_a_limited_size_and_its_entries_expire() -> None:
    now = [100.0]
    cache = PolicyCache(clock=lambda: now[0])
    placing = cache.put(registered_placing("send", "q", '{"scopes":[]}'))

    now[0] += CACHED_S - 0.01
    assert cache.get("q", "send") is placing
    assert cache.get("other", "send") is None
    now[0] += 0.02
    assert cache.get("q", "send") is None
    for n in range(CACHED_MAX + 1):
        cache.put(registered_placing(f"t-{n}", "q", '{"scopes":[]}'))
    assert cache.get("q", f"t-{CACHED_MAX}") is not None
    assert len(cache._found) <= CACHED_MAX


@pytest.mark.parametrize(
    ("was", "belongs"),
    [
        ("", "2+task=send+send.tenant=acme"),
        ("1+task=send", "1+task=send+send.tenant=acme"),
        ("1+task=send+send.tenant=other", "1+task=send+send.tenant=acme"),
        ("2+task=send+send.tenant=acme", None),
        ("2+task=send+gone=x+send.tenant=acme", None),
    ],
)
def test_a_worker_moves_a_job_to_another_lane_if_the_current_lane_lacks_a_scope_of_the_task(
    app: App, was: str, belongs: str | None
) -> None:
    task = app.task(caps=[Cap(10), Cap(1, per="tenant")])(send)

    assert task.lane_of_claim("default", was, {"tenant": "acme"}) == belongs
    # And once it is there, it stays.
    assert belongs is None or task.lane_of_claim("default", belongs, {"tenant": "acme"}) is None


def test_a_worker_keeps_the_key_that_a_producer_gave_a_job(app: App) -> None:
    """The task's key function may return another value at each call, and must not replace the key."""
    task = app.task(caps=[Cap(1, per=tenant_of, name="tenant"), Cap(1)])(send)

    assert task.lane_of_claim("default", "2+task=send+tenant=given", {"tenant": "a"}) is None
    assert (
        task.lane_of_claim("default", "2+tenant=given", {"tenant": "a"})
        == "2+task=send+tenant=given"
    )
    assert task.lane_of_claim("default", "2+task=send", {"tenant": "a"}) == "2+task=send+tenant=A"


def test_a_worker_gives_no_lane_to_a_job_of_a_task_without_caps(app: App) -> None:
    assert app.task(send).lane_of_claim("default", "", {"tenant": "a"}) is None
    assert app.tasks["send"].lane_of_claim("elsewhere", "", {"tenant": "a"}) is None
