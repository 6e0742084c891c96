"""The lane of a job, which its caps and the fair key of its queue determine."""

from __future__ import annotations

import datetime as dt
import enum
from typing import Any
from uuid import UUID

import pytest

from rq_core import App, ArgumentsInvalid, Cap, InvalidOption, Rate
from rq_core.app.limits.lane_assignment import registered_placing
from tests.unit.caps.tasks import lane, send, tenant_of


def test_a_task_without_caps_has_no_lane(app: App) -> None:
    job = app.task(send).job("acme")

    assert (job.lane, job.full) == ("", "")


def test_each_kind_of_cap_counts_jobs_in_its_own_scope(app: App) -> None:
    task = app.task(
        caps=[
            Rate(100, per_seconds=60, per="tenant", name="tenant", burst=5),
            Cap(1, per="tenant"),
            Cap(10),
            Cap(2, per="to", name="address"),
            Cap(3, per=tenant_of),
            Cap(4, name="gpu"),
            Rate(5, per_seconds=0.5),
        ]
    )(send)

    assert lane(task.job("acme", "a b+c|d")).split("+") == [
        "2", "task=send", "address=a%20b%2Bc%7Cd", "gpu=", "send.tenant=acme", "send.tenant_of=ACME", "task@0.5s=send",
        "tenant@60s=acme",
    ]  # fmt: skip
    assert {name: str(limit) for name, limit in app.declared.limits("default").items()} == {
        "tenant@60s": "100/60000ms/5",
        "send.tenant": "1",
        "task=send": "10",
        "address": "2",
        "send.tenant_of": "3",
        "gpu": "4",
        "task@0.5s=send": "5/500ms/1",
    }


@pytest.mark.parametrize(("priority", "rank"), [("critical", 0), ("high", 1), ("low", 3)])
def test_the_lane_of_a_job_has_its_priority(app: App, priority: Any, rank: int) -> None:
    task = app.task(caps=[Cap(1)])(send)

    assert lane(task.with_options(priority=priority).job("a")) == f"{rank}+task=send"
    assert (
        lane(app.job("default", "send", {"tenant": "a"}, priority=priority)) == f"{rank}+task=send"
    )


class Colour(enum.Enum):
    RED = "red"


class Name(enum.StrEnum):
    ADA = "ada"


@pytest.mark.parametrize(
    ("hint", "value", "key"),
    [
        (str, "acme", "acme"),
        (str, "", ""),
        (str, "ä/b", "%C3%A4%2Fb"),
        (int, 7, "7"),
        (int, -7, "-7"),
        (float, 1, "1.0"),
        (bool, True, "true"),
        (UUID, UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (dt.date, dt.date(2026, 11, 21), "2026-11-21"),
        (Colour, Colour.RED, "red"),
        (Name, Name.ADA, "ada"),
        (Any, "x", "x"),
    ],
)
def test_the_key_in_a_lane_is_the_argument_as_json_encodes_it(
    app: App, hint: Any, value: Any, key: str
) -> None:
    def work(x: Any) -> None: ...

    work.__annotations__["x"] = hint
    task = app.task(caps=[Cap(1, per="x")])(work)
    job = task.job(value)

    assert lane(job) == f"2+work.x={key}"
    # The worker finds the same from the job itself.
    assert task.lane_of_claim("default", job.lane, task.arguments.load(job.args_json)) is None


@pytest.mark.parametrize("value", [["a"], {"a": 1}])
def test_a_key_that_is_a_list_or_dict_is_refused(app: App, value: Any) -> None:
    def work(x: Any) -> None: ...

    task = app.task(caps=[Cap(1, per="x")])(work)

    with pytest.raises(
        ArgumentsInvalid, match=r"x: a cap's key must be one value.* use per= a function"
    ):
        task.job(value)


def test_a_key_longer_than_the_limit_is_refused(app: App) -> None:
    task = app.task(caps=[Cap(1, per="tenant")])(send)

    assert task.job("x" * 256)
    for long in ("x" * 257, "é" * 43):
        with pytest.raises(
            ArgumentsInvalid, match="tenant: a cap's key takes at most 256 characters"
        ):
            task.job(long)


def test_a_cap_on_a_key_does_not_count_a_job_without_that_key(app: App) -> None:
    task = app.task(
        caps=[Cap(1, per="n", on_full="reject"), Cap(2, per=lambda **_: None, name="x")]
    )(send)

    assert (task.job("a").lane, task.job("a").full) == ("", "")
    assert lane(task.job("a", n=1)) == "2+send.n=1"


def test_the_default_value_of_an_argument_is_used_as_a_key(app: App) -> None:
    """The JSON of the arguments omits default values."""

    def work(tenant: str = "acme") -> None: ...

    task = app.task(caps=[Cap(1, per="tenant")])(work)
    by_name = registered_placing("work", "default", app.declared.policies("default")["work"])

    assert lane(task.job()) == "2+work.tenant=acme"
    assert by_name.lane(2, {})[0] == "2+work.tenant=acme"


def test_a_key_function_receives_the_arguments_that_the_task_would_receive(app: App) -> None:
    seen: list[dict[str, Any]] = []

    def key(**arguments: Any) -> str:
        seen.append(arguments)
        return "k"

    app.task(caps=[Cap(1, per=key)])(send).job("a", n=5)

    assert seen == [{"tenant": "a", "to": "", "n": 5}]


def test_a_job_carries_the_rules_for_full_scopes(app: App) -> None:
    task = app.task(
        caps=[
            Cap(9, max_waiting=7),
            Cap(1, per="tenant", on_full="discard"),
            Cap(1, per="to", on_full="reject"),
            Cap(1, per="n", max_waiting=5),
        ]
    )(send)

    assert task.job("a", "b").full == "discard|send.tenant=a|1 reject|send.to=b|1 most|7"
    assert task.job("a", "b", 1).full.endswith(" most|5")


def test_every_job_of_a_fair_queue_has_a_lane_that_names_the_fair_key(app: App) -> None:
    first = app.task(queue="mail")(send)
    prepared = first.with_options(priority="high")
    app.queue("mail", cap=50, fair="tenant", weights={"a b": 3})

    @app.task(queue="mail", caps=[Cap(1)])
    def bill(amount: int) -> None: ...

    assert lane(first.job("a b")) == "2+fair=a%20b"
    assert lane(prepared.job("acme")) == "1+fair=acme"
    assert lane(bill.job(1)) == "2+task=bill+fair="
    app.connections.policies.put(app.declared.unregistered("elsewhere", "mail"))
    assert lane(app.job("mail", "elsewhere", {"tenant": "acme"})) == "2+fair=acme"
    assert lane(app.job("mail", "elsewhere", {})) == "2+fair="
    assert app.settings["mail"] == {"fair": 1}
    assert {n: str(x) for n, x in app.declared.limits("mail").items()} == {
        "queue": "50",
        "weight=a%20b": "3",
        "task=bill": "1",
    }

    app.queue("mail", fair=False)
    assert lane(first.job("acme")) == ""
    assert app.settings["mail"] == {"fair": 0}


def test_jobs_without_a_fair_key_share_one_lane_of_a_fair_queue(app: App) -> None:
    def work(tenant: str | None = None) -> None: ...

    app.queue("mail", fair="tenant")
    task = app.task(queue="mail")(work)

    assert [lane(task.job()), lane(task.job(None))] == ["2+fair=", "2+fair="]


def test_a_job_enqueued_into_another_queue_gets_the_fair_lane_of_that_queue(
    app: App,
) -> None:
    app.queue("mail", fair="tenant")
    task = app.task(queue="other")(send)

    assert lane(task.job("a")) == ""
    assert lane(task.with_options(queue="mail").job("a")) == "2+fair=a"
    assert task.lane_of_claim("mail", "", {"tenant": "a"}) == "2+fair=a"


@pytest.mark.parametrize(
    "options",
    [
        {"cap": -1},
        {"cap": True},
        {"fair": "a b"},
        {"fair": 5},
        {"fair": True},
        {"weights": {"acme": 2}},
        {"fair": "tenant", "weights": {"acme": 0}},
        {"fair": "tenant", "weights": {"acme": 1.5}},
        {"fair": False, "weights": {"acme": 1}},
    ],
)
def test_invalid_options_of_a_queue_are_refused_and_change_nothing(
    app: App, options: dict[str, Any]
) -> None:
    with pytest.raises(InvalidOption):
        app.queue("mail", **options)
    assert dict(app.settings) == {}
    assert app.declared.limits("mail") == {}
