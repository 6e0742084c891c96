"""Caps and rates in code: what is refused at once, and which lane a job gets. Nothing here needs a server."""

from __future__ import annotations

import asyncio
import datetime as dt
import enum
import json
from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

import pytest

from rq_core import (
    App,
    ArgumentsInvalid,
    Cap,
    InvalidName,
    InvalidOption,
    InvalidTask,
    KeyFailed,
    KeyNeeded,
    NewJob,
    QueueDamaged,
    Rate,
    ScopeFull,
)
from rq_core.app.handle import handle_of
from rq_core.app.placing import CACHED_MAX, CACHED_S, PolicyCache, registered_placing
from rq_core.connections.async_client import AsyncClient
from rq_core.model.job import profile
from rq_core.model.limits import Limit, read_limit, shown
from rq_core.protocol.caps import Kept
from rq_core.protocol.enqueue import Accepted


@pytest.fixture
def app() -> Iterator[App]:
    with App("redis://nowhere.invalid") as made:
        yield made


def send(tenant: str, to: str = "", n: int | None = None) -> None: ...


async def later(tenant: str, **_: Any) -> str:
    return tenant


def lane(job: NewJob) -> str:
    return job.lane


# --- What is refused when it is written ------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Cap(-1), "n=-1 is not valid: must be a whole number from 0"),
        (lambda: Cap(True), "n=True is not valid: must be a whole number"),
        (lambda: Cap(1.0), "must be a whole number"),  # type: ignore[arg-type]
        (lambda: Cap(10**10), "must be a whole number from 0 to 1,000,000,000"),
        (lambda: Cap(1, per=5), "must be the name of an argument, or a function"),  # type: ignore[arg-type]
        (lambda: Cap(1, per="a b"), "pass name="),
        (lambda: Cap(1, per=""), "pass name="),
        (lambda: Cap(1, per=lambda **_: "x"), "pass name="),
        (lambda: Cap(1, per=later), "must not be async"),
        (lambda: Cap(1, name="queue"), "must not be one of fair, queue, task, weight"),
        (lambda: Cap(1, per="x", name="task"), "must not be one of"),
        (lambda: Cap(1, on_full="drop"), "must be one of wait, discard, reject"),  # type: ignore[arg-type]
        (
            lambda: Cap(1, max_waiting=0),
            "max_waiting=0 is not valid: must be a whole number from 1",
        ),
        (lambda: Cap(1, max_waiting=True), "must be a whole number"),
        (lambda: Cap(1, on_full="reject", max_waiting=5), "belongs to on_full='wait'"),
        (lambda: Rate(0, per_seconds=1), "to stop a scope for now, set its limit to 0"),
        (lambda: Rate(-1, per_seconds=1), "must be a whole number from 1"),
        (lambda: Rate(False, per_seconds=1), "must be a whole number from 1"),
        (lambda: Rate(1, per_seconds=0), "per_seconds=0 is not valid"),
        (lambda: Rate(1, per_seconds=-1), "per_seconds=-1 is not valid"),
        (lambda: Rate(1, per_seconds=True), "per_seconds=True is not valid"),
        (lambda: Rate(1, per_seconds=dt.timedelta(days=400)), "must be 366 days or less"),
        (lambda: Rate(1, per_seconds=1, burst=0), "burst=0 is not valid"),
        (lambda: Rate(1, per_seconds=1, per=lambda **_: "x"), "pass name="),
    ],
)
def test_caps_that_make_no_sense_are_refused(make: Callable[[], object], says: str) -> None:
    with pytest.raises(InvalidOption, match="is not valid") as caught:
        make()
    assert says in str(caught.value)


def test_a_key_function_that_raises_is_named(app: App) -> None:
    def shard_of(**_: Any) -> str:
        raise LookupError("no shard for a")

    task = app.task(caps=[Cap(1, per=shard_of)])(send)

    with pytest.raises(KeyFailed) as caught:
        task.job("a")
    assert str(caught.value).startswith(
        "the function shard_of gives the key 'send.shard_of' of task 'send', and raised LookupError: no shard for a:"
    )
    assert isinstance(caught.value.__cause__, LookupError)


def test_a_name_has_the_characters_of_names() -> None:
    for name in ("a b", "a=b", "a@1s", "a+b", "a|b", ""):
        with pytest.raises(InvalidName):
            Cap(1, per="tenant", name=name)


def no_such_arguments(host: str) -> str:
    return host


@pytest.mark.parametrize(
    ("caps", "says"),
    [
        ([Cap(1, per="tennant")], "it has no such argument: it has tenant, to, n"),
        ([Cap(1, per=no_such_arguments)], "cannot be called with its arguments by name"),
        ([Cap(1), Cap(2)], "two of its caps count task"),
        ([Cap(1, per="to"), Cap(1, per="to")], "two of its caps count send.to"),
        ([Rate(1, per_seconds=1), Rate(9, per_seconds=1)], "two of its caps count task@1s"),
        ([5], "must hold Cap(…) and Rate(…), not 5"),
        (Cap(1), "caps must be a list"),
        ([Cap(1, per="tenant", name=f"{'x' * 128}"), Cap(1, per="to")], None),
    ],
)
def test_caps_that_the_task_cannot_have_are_refused(app: App, caps: Any, says: str | None) -> None:
    if says is None:
        app.task(caps=caps)(send)
        return
    with pytest.raises(InvalidTask) as caught:
        app.task(caps=caps)(send)
    assert says in str(caught.value)

    # It left no trace: the name is free, and no limit is declared.
    assert app.declared.limits("default") == {}
    app.task(send)


def test_a_family_that_would_be_too_long_asks_for_a_name(app: App) -> None:
    with pytest.raises(InvalidTask, match="pass name="):
        app.task(name="t" * 125, caps=[Cap(1, per="tenant")])(send)


def test_a_name_belongs_to_one_queue(app: App) -> None:
    app.task(queue="mail", caps=[Cap(1, per="tenant", name="tenant")])(send)

    with pytest.raises(
        InvalidTask, match=r"belongs to queue 'mail'.* choose another name for 'sms'"
    ):
        app.task(queue="sms", name="other", caps=[Cap(1, per="tenant", name="tenant")])(send)


def test_a_name_has_one_limit(app: App) -> None:
    app.task(caps=[Cap(1, per="tenant", name="tenant")])(send)

    with pytest.raises(InvalidTask, match="limits tenant to 2, and task 'send' to 1"):
        app.task(name="other", caps=[Cap(2, per="to", name="tenant")])(send)
    app.task(name="other", caps=[Cap(1, per="to", name="tenant")])(send)
    assert app.declared.limits("default") == {"tenant": Limit(1)}


def test_a_capped_task_stays_in_its_queue(app: App) -> None:
    """Caps count within a queue: elsewhere its jobs would run uncounted."""
    task = app.task(queue="mail", caps=[Cap(1)])(send)

    with pytest.raises(InvalidOption, match="must be 'mail'"):
        task.with_options(queue="other")
    with pytest.raises(InvalidOption, match="must be 'mail'"):
        app.job("other", "send", {"tenant": "a"})


@pytest.mark.parametrize(
    "cap", [Cap(1, on_full="discard"), Cap(1, on_full="reject"), Cap(1, max_waiting=1)]
)
def test_what_is_decided_at_enqueue_refuses_delays(app: App, cap: Cap) -> None:
    task = app.task(caps=[cap])(send)

    with pytest.raises(
        InvalidOption, match=r"delay=2.0 is not valid: does not go with caps of task 'send'"
    ):
        task.with_options(delay=2)
    with pytest.raises(InvalidOption, match="does not go with caps"):
        app.job("default", "send", {"tenant": "a"}, delay=2)
    assert task.with_options(delay=0).job("a").full


def test_a_cap_that_waits_takes_delays(app: App) -> None:
    job = app.task(caps=[Cap(1)])(send).with_options(delay=2).job("a")

    assert (job.delay_ms, job.lane, job.full) == (2_000, "2+task=send", "")


# --- Which lane ------------------------------------------------------------------------------------


def test_a_task_without_caps_has_no_lane(app: App) -> None:
    job = app.task(send).job("acme")

    assert (job.lane, job.full) == ("", "")


def tenant_of(tenant: str, **_: Any) -> str:
    return tenant.upper()


def test_every_kind_of_cap_has_its_scope(app: App) -> None:
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
        "2",
        "task=send",
        "address=a%20b%2Bc%7Cd",
        "gpu=",
        "send.tenant=acme",
        "send.tenant_of=ACME",
        "task@0.5s=send",
        "tenant@60s=acme",
    ]
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
def test_the_priority_is_part_of_the_lane(app: App, priority: Any, rank: int) -> None:
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
def test_a_key_is_as_in_the_arguments_json(app: App, hint: Any, value: Any, key: str) -> None:
    def work(x: Any) -> None: ...

    work.__annotations__["x"] = hint
    task = app.task(caps=[Cap(1, per="x")])(work)
    job = task.job(value)

    assert lane(job) == f"2+work.x={key}"
    # The worker finds the same from the job itself.
    assert task.lane_of_claim("default", job.lane, task.arguments.load(job.args_json)) is None


@pytest.mark.parametrize("value", [["a"], {"a": 1}, ("a",)])
def test_a_key_of_several_values_is_refused(app: App, value: Any) -> None:
    def work(x: Any) -> None: ...

    task = app.task(caps=[Cap(1, per="x")])(work)

    with pytest.raises(
        ArgumentsInvalid, match=r"x: a cap's key must be one value.* use per= a function"
    ):
        task.job(value)


def test_a_key_may_be_as_long_as_the_limit_and_no_longer(app: App) -> None:
    task = app.task(caps=[Cap(1, per="tenant")])(send)

    assert task.job("x" * 256)
    for long in ("x" * 257, "é" * 43):
        with pytest.raises(
            ArgumentsInvalid, match="tenant: a cap's key takes at most 256 characters"
        ):
            task.job(long)


def test_none_is_counted_by_no_one(app: App) -> None:
    task = app.task(
        caps=[Cap(1, per="n", on_full="reject"), Cap(2, per=lambda **_: None, name="x")]
    )(send)

    assert (task.job("a").lane, task.job("a").full) == ("", "")
    assert lane(task.job("a", n=1)) == "2+send.n=1"


def test_a_default_is_a_key(app: App) -> None:
    """It is left out of the JSON, and counts all the same."""

    def work(tenant: str = "acme") -> None: ...

    task = app.task(caps=[Cap(1, per="tenant")])(work)
    by_name = registered_placing("work", "default", app.declared.policies("default")["work"])

    assert lane(task.job()) == "2+work.tenant=acme"
    assert by_name.lane(2, {})[0] == "2+work.tenant=acme"


def test_a_function_gets_the_arguments_as_the_task_would(app: App) -> None:
    seen: list[dict[str, Any]] = []

    def key(**arguments: Any) -> str:
        seen.append(arguments)
        return "k"

    app.task(caps=[Cap(1, per=key)])(send).job("a", n=5)

    assert seen == [{"tenant": "a", "to": "", "n": 5}]


def test_what_happens_at_a_full_scope_travels_with_the_job(app: App) -> None:
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


# --- Fair queues -----------------------------------------------------------------------------------


def test_every_job_of_a_fair_queue_has_a_fair_lane(app: App) -> None:
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


def test_a_job_without_its_key_is_fair_to_nobody(app: App) -> None:
    def work(tenant: str | None = None) -> None: ...

    app.queue("mail", fair="tenant")
    task = app.task(queue="mail")(work)

    assert [lane(task.job()), lane(task.job(None))] == ["2+fair=", "2+fair="]


def test_a_task_that_visits_a_fair_queue_is_fair_there(app: App) -> None:
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
def test_bad_options_of_a_queue_are_refused_and_change_nothing(
    app: App, options: dict[str, Any]
) -> None:
    with pytest.raises(InvalidOption):
        app.queue("mail", **options)
    assert dict(app.settings) == {}
    assert app.declared.limits("mail") == {}


# --- By name ---------------------------------------------------------------------------------------


def registered(app: App, task: str, queue: str = "default") -> App:
    """Another app, which does not have the task and has read its policy."""
    other = App("redis://nowhere.invalid")
    other.connections.policies.put(
        registered_placing(task, queue, app.declared.policies(queue)[task])
    )
    return other


def test_a_producer_by_name_finds_the_same_lane_and_rules(app: App) -> None:
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


def test_a_key_of_a_function_must_be_given_by_name(app: App) -> None:
    app.task(
        caps=[
            Cap(1, per=tenant_of, name="tenant"),
            Rate(1, per_seconds=60, per=tenant_of, name="tenant"),
        ]
    )(send)
    other = registered(app, "send")

    with pytest.raises(
        KeyNeeded, match=r"takes its key 'tenant' from a function.* give the key with keys="
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
def test_keys_that_are_not_wanted_are_refused(app: App, keys: Any) -> None:
    app.task(caps=[Cap(1, per=tenant_of, name="tenant"), Cap(1, per="to")])(send)

    with pytest.raises(InvalidOption, match="keys"):
        app.job("default", "send", {"tenant": "a"}, keys=keys)


def test_keys_may_be_given_before_any_worker_was_there(app: App) -> None:
    app.connections.policies.put(app.declared.unregistered("send", "q"))

    assert lane(app.job("q", "send", {}, keys={"tenant": "a b"})) == "2+tenant=a%20b"
    for keys in ({"task": "x"}, {"fair": "x"}, {"a b": "x"}):
        with pytest.raises(InvalidOption):
            app.job("q", "send", {}, keys=keys)


def test_a_policy_of_a_later_release_is_read_as_far_as_it_is_known() -> None:
    policy = '{"scopes":[{"family":"task","scope":"task=send","colour":"red"}],"more":1}'

    assert registered_placing("send", "q", policy).lane(0, {}) == ("0+task=send", "")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"scopes":[5]}', '{"scopes":[{}]}'])
def test_what_is_no_policy_is_damage(text: str) -> None:
    with pytest.raises(QueueDamaged, match="the policy of task send cannot be read"):
        registered_placing("send", "q", text)


def test_policies_are_remembered_for_a_few_seconds_and_not_without_end() -> None:
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


# --- What a worker corrects ------------------------------------------------------------------------


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
def test_a_claim_whose_lane_lacks_a_scope_belongs_elsewhere(
    app: App, was: str, belongs: str | None
) -> None:
    task = app.task(caps=[Cap(10), Cap(1, per="tenant")])(send)

    assert task.lane_of_claim("default", was, {"tenant": "acme"}) == belongs
    # And once it is there, it stays.
    assert belongs is None or task.lane_of_claim("default", belongs, {"tenant": "acme"}) is None


def test_a_key_that_a_producer_gave_stands(app: App) -> None:
    """A function's answer does not replace it, not even one that changes from call to call."""
    task = app.task(caps=[Cap(1, per=tenant_of, name="tenant"), Cap(1)])(send)

    assert task.lane_of_claim("default", "2+task=send+tenant=given", {"tenant": "a"}) is None
    assert (
        task.lane_of_claim("default", "2+tenant=given", {"tenant": "a"})
        == "2+task=send+tenant=given"
    )
    assert task.lane_of_claim("default", "2+task=send", {"tenant": "a"}) == "2+task=send+tenant=A"


def test_a_task_without_caps_is_not_looked_at(app: App) -> None:
    assert app.task(send).lane_of_claim("default", "", {"tenant": "a"}) is None
    assert app.tasks["send"].lane_of_claim("elsewhere", "", {"tenant": "a"}) is None


# --- Outcomes --------------------------------------------------------------------------------------


def outcome(app: App, accepted: Accepted) -> Any:
    return handle_of(app, NewJob("x", "mail", profile("send"), "{}"), accepted)


def test_a_handle_says_what_became_of_the_job(app: App) -> None:
    taken = outcome(app, Accepted(("x",)))
    assert (taken.duplicate, taken.discarded) == (False, False)
    assert outcome(app, Accepted((), ("x",))).duplicate
    dropped = outcome(app, Accepted((), (), (("x", "task=send"),)))
    assert (dropped.duplicate, dropped.discarded) == (False, True)
    assert repr(dropped) == "<job x of send in mail, discarded>"


@pytest.mark.parametrize(
    ("scope", "says"),
    [
        ("tenant=a", "scope tenant=a is full, and its cap says reject"),
        ("2+task=send+tenant=a", "as its cap's max_waiting allows"),
    ],
)
def test_a_rejected_job_is_an_error_with_its_facts(app: App, scope: str, says: str) -> None:
    with pytest.raises(ScopeFull, match="queue 'mail' did not take job x") as caught:
        outcome(app, Accepted((), (), (), (("x", scope),)))
    assert says in str(caught.value)
    assert caught.value.facts == {"scope": scope, "queue": "mail", "id": "x"}


class Scripted(AsyncClient):
    """Answers an enqueue by the jobs' ids: dup-…, drop-…, full-… are not accepted."""

    def __init__(self) -> None:
        super().__init__("redis://nowhere.invalid")
        self.sent: list[list[str]] = []
        self.open: list[str] = []
        self.calls.enqueue.many = lambda jobs: [job.id for job in jobs]  # type: ignore[method-assign]

    async def run(self, what: Any) -> Any:
        ids: list[str] = what
        known = {i for call in self.sent for i in call}
        self.sent.append(ids)
        self.open += ids
        # Else a second job of an id might overtake the first.
        assert len(set(self.open)) == len(self.open)
        await asyncio.sleep(0)
        self.open = [i for i in self.open if i not in ids]
        return Accepted(
            tuple(i for i in ids if i[:4] not in ("drop", "full") and i not in known),
            tuple(i for i in ids if i in known),
            tuple((i, "task=send") for i in ids if i.startswith("drop")),
            tuple((i, "tenant=a") for i in ids if i.startswith("full")),
        )


async def test_callers_that_share_a_call_each_get_their_own_outcome() -> None:
    client = Scripted()
    wanted = [f"{kind}-{n}" for n in range(20) for kind in ("ok", "drop", "full")] + ["ok-0"]

    found = await asyncio.gather(
        *(client.enqueue_one(NewJob(i, "q", profile("send"), "{}")) for i in wanted)
    )
    await client.close()

    assert len(client.sent) < len(wanted)
    for job_id, accepted in zip(wanted[:-1], found[:-1], strict=True):
        assert (
            accepted
            == {
                "ok": Accepted((job_id,)),
                "dr": Accepted((), (), ((job_id, "task=send"),)),
                "fu": Accepted((), (), (), ((job_id, "tenant=a"),)),
            }[job_id[:2]]
        )
    assert found[-1] == Accepted((), ("ok-0",))


async def test_many_from_an_asynchronous_generator_report_every_outcome(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Scripted()
    monkeypatch.setattr(app, "async_client", lambda: client)

    async def jobs() -> Any:
        for job_id in ("ok-1", "drop-1", "full-1"):
            yield NewJob(job_id, "q", profile("send"), "{}")

    assert await app.enqueue_many_async(jobs()) == Accepted(
        ("ok-1",), (), (("drop-1", "task=send"),), (("full-1", "tenant=a"),)
    )
    await client.close()


# --- Limits as text --------------------------------------------------------------------------------


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
def test_limits_are_read_as_they_are_written(text: str, limit: Limit, as_shown: str) -> None:
    assert read_limit(text) == limit
    assert shown(limit) == as_shown
    assert read_limit(as_shown) == limit


@pytest.mark.parametrize(
    "text",
    ["", "-1", "ten", "1.5", "0/60s", "5/0s", "5/60s/0", "5/60", "9999999999", "5/60000ms/0"],
)
def test_what_is_no_limit_is_refused(text: str) -> None:
    with pytest.raises(InvalidOption, match="must be a number from 0"):
        read_limit(text)


def test_a_limit_that_is_kept_is_told_with_the_command_that_changes_it() -> None:
    kept = Kept("mail", "task=send", Limit(10), Limit(5))

    assert str(kept) == (
        "queue mail keeps task=send at 5; this code declares 10, which"
        " `rq-core cap mail task=send 10` would set"
    )


def test_policies_say_only_what_is_not_usual(app: App) -> None:
    app.task(caps=[Cap(1), Cap(1, per="tenant", on_full="reject")])(send)

    assert json.loads(app.declared.policies("default")["send"]) == {
        "scopes": [
            {"family": "task", "scope": "task=send"},
            {"family": "send.tenant", "argument": "tenant", "on_full": "reject", "most": 1},
        ]
    }
