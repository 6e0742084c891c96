"""Caps from the app into a real server: policies, outcomes, producers by name, and live changes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from rq_core import (
    App,
    Cap,
    CapConflict,
    InvalidOption,
    KeyNeeded,
    Limit,
    NothingDeclared,
    Rate,
    ScopeFull,
    UnknownScope,
)
from rq_core.model.job import Claim
from rq_core.protocol import claims
from rq_core.protocol.caps import CapChange
from rq_core.protocol.enqueue import Accepted
from rq_core.protocol.plan import Plan


def send(tenant: str, to: str = "") -> None: ...


@pytest.fixture
def app(redis_url: str) -> Iterator[App]:
    with App(redis_url) as made:
        yield made


@pytest.fixture
def other(redis_url: str) -> Iterator[App]:
    """A producer that has no code."""
    with App(redis_url) as made:
        yield made


def claim(app: App, limit: int = 10, queue: str = "mail") -> list[Claim]:
    client = app.client
    return list(client.run(claims.claim(queue, "w-1", limit)).jobs)


def events(app: App, event: str, queue: str = "mail") -> list[dict[str, str]]:
    found = app.client.run(app.client.calls.audit.read_outbox(queue, "-", 1_000))
    return [fields for _, fields in found if fields["type"] == event]


def test_what_code_declares_is_stored_once(app: App) -> None:
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


def test_a_task_without_caps_is_registered_only_if_it_had_some(app: App, redis_url: str) -> None:
    app.task(queue="mail")(send)
    app.queue("mail", lease=5)
    app.apply_settings()
    assert app.client.run(app.client.calls.reads.snapshot("mail"))["tasks"] == {}

    with App(redis_url) as capped:
        capped.task(queue="mail", caps=[Cap(1)])(send)
        capped.apply_settings()
    assert app.client.run(app.client.calls.caps.policy("mail", "send")) != '{"scopes":[]}'
    app.apply_settings()
    assert app.client.run(app.client.calls.caps.policy("mail", "send")) == '{"scopes":[]}'


def test_caps_of_the_task_and_the_key_hold_together(app: App) -> None:
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
async def test_a_full_scope_discards_or_rejects(app: App, policy: Any) -> None:
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
    assert len(app.client.run(app.client.calls.reads.snapshot("mail"))["state"]) == 2


def test_no_more_wait_in_a_lane_than_max_waiting(app: App) -> None:
    task = app.task(queue="mail", caps=[Cap(1, per="tenant", max_waiting=2)])(send)
    app.apply_settings()

    for tenant in ("a", "a", "b"):
        task.enqueue(tenant)
    with pytest.raises(ScopeFull, match=r"as many wait in its lane 2\+send\.tenant=a as its cap's"):
        task.enqueue("a")
    assert task.with_options(priority="high").enqueue("a").state() == "ready"


# --- By name ---------------------------------------------------------------------------------------


async def test_a_producer_by_name_gets_the_same_scopes(app: App, other: App) -> None:
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


async def test_enqueue_async_by_name_does_not_use_the_blocking_client(
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
        app.client.run(app.client.calls.reads.snapshot("mail"))["state"][handle.id].count(
            "lane=2+send.tenant=a"
        )
        == 1
    )


def test_a_key_from_a_function_is_refused_by_name_or_given(app: App, other: App) -> None:
    app.task(queue="mail", caps=[Cap(1, per=lambda tenant, **_: tenant, name="tenant")])(send)
    app.apply_settings()

    with pytest.raises(KeyNeeded, match="keys="):
        other.enqueue("mail", "send", {"tenant": "a"})
    assert app.client.run(app.client.calls.reads.snapshot("mail"))["state"] == {}
    other.enqueue("mail", "send", {"tenant": "a"}, keys={"tenant": "a"})
    assert [c.lane for c in claim(app)] == ["2+tenant=a"]


def test_a_policy_is_asked_for_once_in_a_while(other: App, monkeypatch: pytest.MonkeyPatch) -> None:
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


# --- Live changes ----------------------------------------------------------------------------------


async def test_a_live_change_holds_at_once_and_is_logged(app: App) -> None:
    task = app.task(queue="mail", caps=[Cap(1)])(send)
    app.apply_settings()
    for _ in range(5):
        task.enqueue("a")
    assert len(claim(app)) == 1

    made = app.set_cap("mail", "task=send", 3, by="ada", reason="more servers")

    assert made == CapChange("changed", 2, Limit(3))
    assert len(claim(app)) == 2
    assert await app.set_cap_async("mail", "task=send", 0) == CapChange("changed", 3, Limit(0))
    assert app.set_cap("mail", "task=send", None).limit == Limit(None)
    assert len(claim(app)) == 2
    await app.aclose()
    (_, raised, *_) = events(app, "cap_changed")
    assert (raised["by"], raised["why"]) == ("ada", "more servers")
    assert raised["data"] == '["task=send","1","3",2]'


def test_old_code_does_not_bring_its_value_back(app: App) -> None:
    app.task(queue="mail", caps=[Cap(1)])(send)
    app.apply_settings()
    app.set_cap("mail", "task=send", 7)

    app.apply_settings()

    assert app.client.run(app.client.calls.caps.stored("mail"))["task=send"].limit == Limit(7)


def test_a_live_limit_is_given_back_to_what_code_declared_last(app: App, redis_url: str) -> None:
    """Also to what was declared while the live limit held, and not to what an old worker says."""
    app.task(queue="mail", caps=[Cap(1)])(send)
    app.apply_settings()
    app.set_cap("mail", "task=send", 7, by="ada")
    with App(redis_url) as newer:
        newer.task(queue="mail", caps=[Cap(2)])(send)
        newer.apply_settings()
    app.apply_settings()
    stored = app.client.run(app.client.calls.caps.stored("mail"))["task=send"]
    assert (stored.limit, stored.declared, stored.by) == (Limit(7), Limit(2), "ada")

    made = app.set_cap("mail", "task=send", "code", by="bob", reason="the rush is over")

    assert made == CapChange("changed", 3, Limit(2))
    stored = app.client.run(app.client.calls.caps.stored("mail"))["task=send"]
    assert (stored.source, stored.limit, stored.by) == ("code", Limit(2), None)
    last = events(app, "cap_changed")[-1]
    assert (last["by"], last["why"]) == ("bob", "the rush is over")
    assert last["data"] == '["task=send","7","2",3]'
    assert app.set_cap("mail", "task=send", "code") == CapChange("same", 3, Limit(2))
    app.apply_settings()
    assert app.client.run(app.client.calls.caps.stored("mail"))["task=send"].limit == Limit(2)


def test_a_key_is_given_back_to_its_family_and_follows_it_again(app: App) -> None:
    task = app.task(queue="mail", caps=[Cap(2, per="tenant")])(send)
    app.apply_settings()
    app.set_cap("mail", "send.tenant=a", 0)
    task.enqueue("a")
    task.enqueue("a")
    assert claim(app) == []

    made = app.set_cap("mail", "send.tenant=a", "code")

    assert made == CapChange("changed", 0, Limit(2))
    assert "send.tenant=a" not in app.client.run(app.client.calls.caps.stored("mail"))
    assert events(app, "cap_changed")[-1]["data"] == '["send.tenant=a","0",null,2]'
    assert len(claim(app)) == 2
    assert app.set_cap("mail", "send.tenant=a", "code") == CapChange("same", 0, Limit(2))
    app.set_cap("mail", "send.tenant", 3)
    task.enqueue("a")
    task.enqueue("a")
    assert len(claim(app)) == 1


@pytest.mark.parametrize("scope", ["queue", "task=send", "send.tenant", "weight=a"])
def test_what_code_does_not_declare_is_not_given_back(app: App, other: App, scope: str) -> None:
    app.task(queue="mail", caps=[Cap(2, per="tenant")])(send)
    app.client.run(app.client.calls.caps.register("mail", app.declared.policies("mail")))
    other.set_cap("mail", scope, 5)
    before = (
        app.client.run(app.client.calls.reads.snapshot("mail"))["caps"],
        len(events(app, "cap_changed")),
    )

    with pytest.raises(
        NothingDeclared, match=f"has declared a limit for {scope}, so there is none"
    ):
        other.set_cap("mail", scope, "code")

    assert (
        app.client.run(app.client.calls.reads.snapshot("mail"))["caps"],
        len(events(app, "cap_changed")),
    ) == before


def test_a_cap_that_code_no_longer_declares_is_kept_and_told(app: App, redis_url: str) -> None:
    """It held on, also for jobs of the new code, and nobody was told."""
    app.task(queue="mail", caps=[Cap(1)])(send)
    app.apply_settings()
    with App(redis_url) as newer:
        task = newer.task(queue="mail")(send)
        newer.task(queue="mail", name="other")(send)
        newer.set_cap("mail", "task=other", 3)
        client = newer.client

        told = client.run(newer.declaration(client.calls, "mail"))

        (sentence,) = told
        assert sentence == (
            "queue mail keeps task=send at 1; this code declares none, which"
            " `rq-core cap mail task=send none` would set"
        )
        task.enqueue("a")
        task.enqueue("b")
        assert len(claim(newer)) == 1
        newer.set_cap("mail", "task=send", None)
        assert len(claim(newer)) == 1
        assert client.run(newer.declaration(client.calls, "mail")) == []


def test_a_change_from_an_old_version_is_a_conflict(app: App) -> None:
    assert app.set_cap("mail", "queue", 5, version=0).version == 1
    app.set_cap("mail", "queue", 6)

    with pytest.raises(CapConflict, match="it is 6 now, version 2") as caught:
        app.set_cap("mail", "queue", 7, version=1)
    assert caught.value.facts == {
        "queue": "mail", "scope": "queue", "limit": Limit(6), "version": 2
    }  # fmt: skip
    assert app.set_cap("mail", "queue", 7, version=2).version == 3


def test_a_change_that_was_overtaken_is_made_again(app: App, other: App) -> None:
    app.set_cap("mail", "queue", 5)
    client = app.client
    plan = app._change_of(client.calls, "mail", "queue", 9, "", None, None)
    step = next(plan)
    replies = client._wire.exchange(step.commands)  # type: ignore[union-attr]
    # Between its reading and its writing:
    other.set_cap("mail", "queue", 6)

    def rest() -> Any:
        following = yield plan.send(replies)
        while True:
            try:
                following = yield plan.send(following)
            except StopIteration as end:
                return end.value

    assert client.run(rest()) == CapChange("changed", 3, Limit(9))


@pytest.mark.parametrize(
    "scope", ["tennant", "tennant=a", "send", "task", "queue=x", "task@9s=send", "weight"]
)
def test_an_unknown_scope_is_refused(app: App, scope: str) -> None:
    app.task(queue="mail", caps=[Cap(1, per="tenant", name="tenant")])(send)
    app.apply_settings()

    with pytest.raises(UnknownScope, match="Known are queue, task=NAME, tenant") as caught:
        app.set_cap("mail", scope, 1)
    assert caught.value.facts["scope"] == scope
    assert set(app.client.run(app.client.calls.caps.stored("mail"))) == {"tenant"}


@pytest.mark.parametrize(
    ("scope", "limit"),
    [
        ("fair=a", 1),
        ("tenant=a b", 1),
        ("tenant=a", -1),
        ("tenant=a", True),
        ("tenant=a", "1"),
        ("tenant=a", Limit(1, 60_000)),
        ("weight=a", 0),
        ("tenant@60s", Limit(1, 1_000)),
        # It would admit nobody, and ask again for ever.
        ("tenant@60s", Limit(1, 60_000, burst=0)),
    ],
)
def test_bad_limits_are_refused(app: App, scope: str, limit: Any) -> None:
    app.task(
        queue="mail",
        caps=[
            Cap(1, per="tenant", name="tenant"),
            Rate(1, per_seconds=60, per="to", name="tenant"),
        ],
    )(send)
    app.apply_settings()

    with pytest.raises(InvalidOption):
        app.set_cap("mail", scope, limit)


def test_what_a_registered_policy_names_is_known(app: App, other: App) -> None:
    """Its stored limit may be gone; the scope is counted all the same."""
    app.task(queue="mail", caps=[Cap(1, per="tenant", name="tenant")])(send)
    client = app.client
    client.run(client.calls.caps.register("mail", app.declared.policies("mail")))

    assert other.set_cap("mail", "tenant=acme", 5).limit == Limit(5)


def test_a_number_for_a_rate_is_per_its_window(app: App) -> None:
    app.task(queue="mail", caps=[Rate(10, per_seconds=60, per="tenant", name="tenant", burst=4)])(
        send
    )
    app.apply_settings()

    assert app.set_cap("mail", "tenant@60s", 20).limit == Limit(20, 60_000, 4)
    assert app.set_cap("mail", "tenant@60s=acme", 5).limit == Limit(5, 60_000, 4)
    assert app.set_cap("mail", "tenant@60s=acme", 0).limit == Limit(0)
    assert app.set_cap("mail", "tenant@60s=acme", Limit(2, 60_000, 1)).limit == Limit(2, 60_000, 1)


# --- How scopes stand ------------------------------------------------------------------------------


async def test_caps_shows_who_holds_and_who_waits(app: App) -> None:
    task = app.task(queue="mail", caps=[Cap(5), Cap(1, per="tenant"), Rate(1, per_seconds=3600)])(
        send
    )
    app.apply_settings()
    app.set_cap("mail", "task@3600s=send", None)
    app.set_cap("mail", "send.tenant=b", 2)
    for tenant in ("a", "a", "a", "b", "b", "b", "c"):
        task.enqueue(tenant)
    assert len(claim(app)) == 4

    found = {status.scope: status for status in app.caps("mail")}
    shown = {scope: (str(s.limit), s.source, s.holders, s.waiting) for scope, s in found.items()}

    assert shown == {
        "send.tenant": ("1", "code", 4, 3),
        "send.tenant=b": ("2", "live", 2, 1),
        "task=send": ("5", "code", 4, 0),
        "task@3600s=send": ("none", "live", 0, 0),
        "send.tenant=a": ("1", "family", 1, 2),
        "send.tenant=c": ("1", "family", 1, 0),
    }
    assert found["send.tenant=a"].oldest_wait_ms is not None
    assert found["send.tenant=c"].oldest_wait_ms is None
    assert [s.scope for s in await app.caps_async("mail", limit=2)] == [
        "send.tenant",
        "send.tenant=b",
    ]
    await app.aclose()


def test_caps_lists_many_keys_in_bounded_steps(app: App) -> None:
    task = app.task(queue="mail", caps=[Cap(1, per="tenant", name="k")])(send)
    app.apply_settings()
    app.enqueue_many(task.job(f"t{n:04}") for n in range(1_200) for _ in range(2))
    held = 0
    while batch := claim(app, 1_200):  # A call looks at so many lanes and no more.
        held += len(batch)
    assert held == 1_200

    everything = app.caps("mail", limit=5_000)
    some = app.caps("mail", limit=10)

    assert sum(s.scope.startswith("k=") for s in everything) == 1_200
    assert len({s.scope for s in everything}) == len(everything)
    assert {(s.holders, s.waiting) for s in everything if s.scope.startswith("k=t")} == {(1, 1)}
    assert (everything[0].scope, everything[0].holders, everything[0].waiting) == (
        "k",
        1_200,
        1_200,
    )
    assert len(some) == 10


def test_a_spent_rate_says_when_it_resumes(app: App) -> None:
    task = app.task(queue="mail", caps=[Rate(1, per_seconds=3600)])(send)
    app.apply_settings()
    for _ in range(3):
        task.enqueue("a")
    assert len(claim(app)) == 1

    (status,) = app.caps("mail")

    assert (status.scope, str(status.limit), status.waiting) == (
        "task@3600s=send", "1/3600000ms/1", 2
    )  # fmt: skip
    now_s, _ = app.client.run(app.client.calls.delivery.ask([["TIME"]]))[0]
    assert status.resumes_ms is not None
    assert 0 < status.resumes_ms / 1000 - int(now_s) <= 3601


def test_caps_counts_what_waits_for_a_full_queue(app: App) -> None:
    """A queue's cap holds up jobs of all lists and lanes, and none of them is blocked on it."""
    plain = app.task(queue="mail", name="plain")(send)
    capped = app.task(queue="mail", name="capped", caps=[Cap(9)])(send)
    app.apply_settings()
    app.set_cap("mail", "queue", 2)
    for task in (plain, capped):
        task.enqueue("a")
        task.with_options(priority="low").enqueue("a")

    (queue,) = [status for status in app.caps("mail") if status.scope == "queue"]
    assert (queue.holders, queue.waiting, queue.oldest_wait_ms) == (0, 0, None)

    assert len(claim(app)) == 2
    (queue,) = [status for status in app.caps("mail") if status.scope == "queue"]
    assert (queue.holders, queue.waiting) == (2, 2)
    assert queue.oldest_wait_ms is not None
    app.set_cap("mail", "queue", None)
    (queue,) = [status for status in app.caps("mail") if status.scope == "queue"]
    assert (queue.holders, queue.waiting) == (2, 0)
