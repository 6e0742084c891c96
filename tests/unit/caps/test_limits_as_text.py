"""Limits and policies in their text form."""

from __future__ import annotations

import json

import pytest

from rq_core import App, Cap, InvalidOption
from rq_core.model.limits.limit import Limit, read_limit, shown
from rq_core.protocol.calls.caps import KeptLimit
from tests.unit.caps.tasks import send


@pytest.mark.parametrize(
    ("text", "limit", "as_shown"),
    [
        ("10", Limit(10), "10"),
        ("0", Limit(0), "0"),
        ("none", Limit(None), "none"),
        ("100/60s", Limit(100, 60_000, 1), "100/60s"),
        ("100/0.5s/5", Limit(100, 500, 5), "100/0.5s/5"),
        ("100/60000ms/1", Limit(100, 60_000, 1), "100/60s"),
    ],
)
def test_a_printed_limit_is_read_back_as_the_same_limit(
    text: str, limit: Limit, as_shown: str
) -> None:
    assert read_limit(text) == limit
    assert shown(limit) == as_shown
    assert read_limit(as_shown) == limit


@pytest.mark.parametrize(
    "text",
    ["", "-1", "ten", "1.5", "0/60s", "5/0s", "5/60s/0", "5/60", "9999999999", "5/60000ms/0"],
)
def test_an_invalid_limit_is_refused(text: str) -> None:
    with pytest.raises(InvalidOption, match="must be a number from 0"):
        read_limit(text)


def test_the_message_about_a_limit_that_redis_keeps_names_the_command_that_sets_the_declared_limit() -> (
    None
):
    kept = KeptLimit("mail", "task=send", Limit(10), Limit(5))

    assert str(kept) == (
        "queue mail keeps task=send at 5; this code declares 10, which"
        " `rq-core cap mail task=send 10` would set"
    )


def test_a_registered_policy_omits_defaults(app: App) -> None:
    app.task(caps=[Cap(1), Cap(1, per="tenant", on_full="reject")])(send)

    assert json.loads(app.declared.policies("default")["send"]) == {
        "scopes": [
            {"family": "task", "scope": "task=send"},
            {"family": "send.tenant", "argument": "tenant", "on_full": "reject", "most": 1},
        ]
    }
