"""Limits that an operator changes while workers run."""

from __future__ import annotations

from typing import Any

import pytest

from rq_core import App, Cap, CapConflict, InvalidOption, Limit, NothingDeclared, Rate, UnknownScope
from rq_core.protocol.calls.caps import CapChange
from tests.app.caps.tasks import claim, events, send


async def test_a_live_change_of_a_cap_takes_effect_at_once_and_is_logged(app: App) -> None:
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


def test_applying_the_settings_keeps_a_limit_that_an_operator_set(app: App) -> None:
    app.task(queue="mail", caps=[Cap(1)])(send)
    app.apply_settings()
    app.set_cap("mail", "task=send", 7)

    app.apply_settings()

    assert app.client.run(app.client.calls.caps.stored("mail"))["task=send"].limit == Limit(7)


def test_set_cap_with_the_value_code_restores_the_limit_that_the_newest_code_declared(
    app: App, redis_url: str
) -> None:
    """Checks two versions of the code. The old code declares its limit again after the newer code. The newer limit is
    restored all the same."""
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


def test_set_cap_with_the_value_code_removes_the_limit_of_one_key(app: App) -> None:
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
def test_set_cap_with_the_value_code_is_refused_if_the_code_declares_no_limit(
    app: App, other: App, scope: str
) -> None:
    app.task(queue="mail", caps=[Cap(2, per="tenant")])(send)
    app.client.run(app.client.calls.caps.register("mail", app.declared.policies("mail")))
    other.set_cap("mail", scope, 5)
    before = (
        app.client.run(app.client.calls.reads.snapshot("mail"))["caps"],
        len(events(app, "cap_changed")),
    )

    with pytest.raises(NothingDeclared, match=f"worker declares a limit for {scope} in queue"):
        other.set_cap("mail", scope, "code")

    assert (
        app.client.run(app.client.calls.reads.snapshot("mail"))["caps"],
        len(events(app, "cap_changed")),
    ) == before


def test_a_cap_that_the_code_no_longer_declares_is_kept_and_reported(
    app: App, redis_url: str
) -> None:
    """Checks that the stored cap still limits new jobs. A warning names the cap."""
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


def test_set_cap_with_an_old_version_raises_a_conflict(app: App) -> None:
    assert app.set_cap("mail", "queue", 5, version=0).version == 1
    app.set_cap("mail", "queue", 6)

    with pytest.raises(CapConflict, match="it is 6 now, version 2") as caught:
        app.set_cap("mail", "queue", 7, version=1)
    assert caught.value.facts == {
        "queue": "mail", "scope": "queue", "limit": Limit(6), "version": 2
    }  # fmt: skip
    assert app.set_cap("mail", "queue", 7, version=2).version == 3


def test_set_cap_tries_again_if_another_client_changed_the_cap_first(app: App, other: App) -> None:
    app.set_cap("mail", "queue", 5)
    client = app.client
    plan = client.calls.caps.change("mail", "queue", 9)
    step = next(plan)
    replies = client._transport.exchange(step.commands)  # type: ignore[union-attr]
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
def test_set_cap_refuses_an_unknown_scope(app: App, scope: str) -> None:
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
def test_set_cap_refuses_invalid_limits(app: App, scope: str, limit: Any) -> None:
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


def test_set_cap_accepts_a_scope_that_only_a_registered_policy_names(app: App, other: App) -> None:
    """Checks a scope without a stored limit. A task's registered policy names it."""
    app.task(queue="mail", caps=[Cap(1, per="tenant", name="tenant")])(send)
    client = app.client
    client.run(client.calls.caps.register("mail", app.declared.policies("mail")))

    assert other.set_cap("mail", "tenant=acme", 5).limit == Limit(5)


def test_set_cap_for_a_rate_reads_a_plain_number_as_the_number_of_jobs_per_window(app: App) -> None:
    app.task(queue="mail", caps=[Rate(10, per_seconds=60, per="tenant", name="tenant", burst=4)])(
        send
    )
    app.apply_settings()

    assert app.set_cap("mail", "tenant@60s", 20).limit == Limit(20, 60_000, 4)
    assert app.set_cap("mail", "tenant@60s=acme", 5).limit == Limit(5, 60_000, 4)
    assert app.set_cap("mail", "tenant@60s=acme", 0).limit == Limit(0)
    assert app.set_cap("mail", "tenant@60s=acme", Limit(2, 60_000, 1)).limit == Limit(2, 60_000, 1)
