"""The API refuses names, numbers and arguments that Redis or SQL cannot store."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rq_core import App, Cap, Rate
from rq_core.errors import (
    ArgumentsInvalid,
    BadArguments,
    InvalidName,
    InvalidOption,
    PayloadTooLarge,
    UsageError,
)
from rq_core.model.job import NewJob, profile
from rq_core.model.limits.scopes import scope
from rq_core.protocol.calls import claims
from sql_audit.mirror.redis_access import Outbox
from sql_audit.mirror.turn import Mirror
from sql_audit.proof.result import LogVerdict
from sql_audit.proof.verify import verify
from sql_audit.store.connection.database import Database
from tests.kit import auditlog

NAMES = {
    "CR and LF": "a\r\nb", "braces": "a{}b", "a hash tag": "{q}", "NUL": "a\0b", "nothing": "",
    "a lone surrogate": "a\ud83d", "a blank": "a b", "an emoji": "\U0001f40d", "too long": "x" * 129,
    "a separator": "a|b", "a quote": 'a"b', "an escape": "a\\b", "a number": 5, "None": None,
}  # fmt: skip


NUMBERS = {
    "2^53+1": 2**53 + 1, "2^63": 2**63, "-2^63-1": -(2**63) - 1, "10^400": 10**400,
    "NaN": float("nan"), "infinity": float("inf"), "minus infinity": float("-inf"), "text": "5",
}  # fmt: skip


@pytest.fixture
def app(valkey_url: str) -> Iterator[App]:
    app = App(valkey_url)

    @app.task(queue="q", caps=[Cap(5, per="tenant")])
    def send(tenant: str, x: Any = None) -> None: ...

    yield app
    app.close()


def enqueue_as(app: App, queue: Any, task: Any, job_id: Any, tenant: Any = "acme") -> Any:
    return app.enqueue(queue, task, {"tenant": tenant}, id=job_id)


ASKED: dict[str, Callable[[App, Any], object]] = {
    "a queue": lambda app, name: enqueue_as(app, name, "send", "a"),
    "a task": lambda app, name: enqueue_as(app, "q", name, "a"),
    "a task of one's own": lambda app, name: app.task(name=name or "")(lambda: None),
    "the queue of a task": lambda app, name: app.task(queue=name, name="t")(lambda: None),
    "a person": lambda app, name: app.set_cap("q", "task=send", 3, by=name or "\n"),
    "a job that is cancelled": lambda app, name: app.client.run(
        app.client.calls.admin.cancel("q", [name])
    ),
    "a scope": lambda app, name: app.set_cap("q", f"send.tenant={name}|", 3),
    "a family": lambda app, name: app.set_cap("q", f"{name} ", 3),
}


def outbox(app: App) -> list[Any]:
    return list(app.client.run(app.client.calls.audit.read_outbox("q", "-", 1000)))


@pytest.mark.parametrize("ask", ASKED.values(), ids=ASKED)
def test_an_invalid_name_is_refused_and_changes_nothing(
    ask: Callable[[App, Any], object], app: App
) -> None:
    enqueue_as(app, "q", "send", "first")
    before, queues = outbox(app), app.client.run(app.client.calls.reads.queues())

    for kind, name in NAMES.items():
        with pytest.raises(UsageError) as caught:
            ask(app, name)
        # It can be printed, in a line.
        assert "\n" not in str(caught.value), kind
        assert str(caught.value).encode(), kind

    assert (outbox(app), app.client.run(app.client.calls.reads.queues())) == (before, queues)


def test_an_invalid_job_id_is_refused(app: App) -> None:
    for name in NAMES.values():
        if name is not None:
            with pytest.raises(InvalidName, match="job name"):
                enqueue_as(app, "q", "send", name)

    assert app.client.run(app.client.calls.reads.queues()) == []


@pytest.mark.parametrize(
    "name",
    [n for kind, n in NAMES.items() if kind != "None"],
    ids=[k for k in NAMES if k != "None"],
)
def test_an_invalid_job_id_from_the_ids_option_is_refused(valkey_url: str, name: Any) -> None:
    with App(valkey_url, ids=lambda: name) as app:
        send = app.task(queue="q", name="send")(lambda: None)
        for ask in (send.enqueue, lambda: app.enqueue("q", "send"), lambda: app.enqueue("q", "t")):
            with pytest.raises(InvalidName, match="job name"):
                ask()
        assert app.client.run(app.client.calls.reads.queues()) == []


IDS_OF_OTHER_CLIENTS = {
    **{k: n for k, n in NAMES.items() if isinstance(n, str) and k != "a lone surrogate"},
    "digits and a line end": "0123456789abcdef0123456789abcdef\n",
    "a blank and digits": " 0123456789abcdef0123456789abcdef",
    "digits, a NUL and a line end": "0123456789abcdef0123456789abcdef\0\n",
    "too many digits": "a" * 129,
}


@pytest.mark.parametrize("name", IDS_OF_OTHER_CLIENTS.values(), ids=IDS_OF_OTHER_CLIENTS)
@pytest.mark.parametrize(
    "beside", [(), ("0123456789abcdef0123456789abcdef",)], ids=["alone", "beside another"]
)
def test_the_enqueue_script_refuses_an_invalid_job_id_of_any_client(
    app: App, name: str, beside: tuple[str, ...]
) -> None:
    """Checks that the script appends no event with an invalid id. The mirror would quarantine all events of the
    call."""
    enqueue = app.client.calls.enqueue.many
    app.client.run(enqueue([NewJob("first", "q", profile("send"), "{}")]))
    before = outbox(app)

    jobs = [NewJob(each, "q", profile("send"), "{}") for each in (*beside, name)]
    with pytest.raises(BadArguments, match="arguments id"):
        app.client.run(enqueue(jobs))

    assert outbox(app) == before
    app.client.run(
        enqueue(
            [
                NewJob("Ok_1.2:3-4", "q", profile("send"), "{}"),
                NewJob("b" * 128, "q", profile("send"), "{}"),
            ]
        )
    )
    assert len(outbox(app)) == len(before) + 1


COUNTED: dict[str, Callable[[App, Any], object]] = {
    "a cap": lambda _, number: Cap(number),
    "a rate": lambda _, number: Rate(number, per_seconds=1),
    "a rate's time": lambda _, number: Rate(1, per_seconds=number),
    "a burst": lambda _, number: Rate(1, per_seconds=1, burst=number),
    "a cap set live": lambda app, number: app.set_cap("q", "task=send", number),
    "a delay": lambda app, number: app.enqueue("q", "send", {"tenant": "a"}, delay=number),
    "attempts": lambda _, number: profile("send", max_attempts=number),
    "losses": lambda _, number: profile("send", max_losses=number),
    "a timeout": lambda app, number: app.task(name="t", timeout=number)(lambda: None),
    "a setting": lambda app, number: app.client.run(
        app.client.calls.admin.configure("q", {"lease_ms": number})
    ),
}


@pytest.mark.parametrize("ask", COUNTED.values(), ids=COUNTED)
def test_numbers_that_redis_or_sql_cannot_store_are_refused(
    ask: Callable[[App, Any], object], app: App
) -> None:
    enqueue_as(app, "q", "send", "first")
    before = outbox(app)

    for number in NUMBERS.values():
        with pytest.raises(InvalidOption, match="is not valid: must be"):
            ask(app, number)

    assert outbox(app) == before


@pytest.mark.parametrize("what", ["half \ud83d", "nul \0", "x" * 10_000_000, 5, None])
def test_a_reason_that_is_too_long_or_invalid_is_refused(what: Any, app: App) -> None:
    enqueue_as(app, "q", "send", "first")
    before = outbox(app)

    for ask in (
        lambda: app.client.run(app.client.calls.admin.cancel("q", ["first"], why=what)),
        lambda: app.set_cap("q", "task=send", 3, reason=what),
        lambda: app.client.run(app.client.calls.admin.configure("q", {"lease_ms": 5000}, why=what)),
    ):
        with pytest.raises(InvalidOption, match="at most 4,000 characters"):
            ask()

    assert outbox(app) == before


@pytest.mark.parametrize("value", ["a%b", "a%2fb", "%", "%2"])
def test_a_scope_that_is_only_partly_encoded_is_refused(value: str, app: App) -> None:
    """Checks a scope that no job can have, so that its limit would be without effect."""
    with pytest.raises(InvalidOption, match="percent-encoded"):
        app.set_cap("q", f"send.tenant={value}", 3)

    assert app.set_cap("q", "send.tenant=a%25b", 3).outcome == "changed"


@pytest.mark.slow
def test_arguments_that_are_not_json_are_refused(app: App) -> None:
    for value in (
        float("nan"),
        float("-inf"),
        [float("inf")],
        "half \ud83d",
        {"\udc00": 1},
        object(),
    ):
        for ask in (app.tasks["send"].enqueue, lambda **a: app.enqueue("q", "send", a)):
            with pytest.raises(ArgumentsInvalid):
                ask(tenant="acme", x=value)
    with pytest.raises(PayloadTooLarge, match="max_payload"):
        app.enqueue("q", "send", {"tenant": "acme", "x": "x" * 10_000_000})

    assert app.client.run(app.client.calls.reads.queues()) == []


WHOLE_NUMBERS = [2**53 - 1, 2**53, 2**53 + 1, 2**63 - 1, 2**63, -(2**63) - 1, 10**400]


TEXTS = [text for text in NAMES.values() if isinstance(text, str) and "\ud83d" not in text]


@pytest.mark.slow
def test_accepted_values_are_kept_unchanged(app: App, database: Database) -> None:
    """Checks key values, arguments and reasons, in the claims of workers and in SQL."""
    values = [*TEXTS, *WHOLE_NUMBERS]
    sent = [
        app.enqueue(
            "q", "send", {"tenant": value if isinstance(value, str) else "n", "x": value}
        ).id
        for value in values
    ]
    claimed = app.client.run(claims.claim("q", "w-1", 100)).jobs
    got = {claim.id: json.loads(claim.spec)["args"]["x"] for claim in claimed}
    lanes = {claim.id: claim.lane for claim in claimed}
    for job_id, value in zip(sent, values, strict=True):
        app.client.run(
            app.client.calls.admin.cancel("q", [job_id], why=str(value).replace("\0", "NUL"))
        )
    mirror = Mirror(Outbox(app.client), database, "q")
    auditlog.drain(mirror)

    assert [got[job_id] for job_id in sent if job_id in got] == [
        value for job_id, value in zip(sent, values, strict=True) if job_id in got
    ]
    assert len(got) > len(TEXTS)
    for job_id, value in zip(sent, values, strict=True):
        if job_id in lanes and isinstance(value, str):
            assert lanes[job_id].endswith(scope("send.tenant", value))
    asked = [e for e in auditlog.events(database, "q") if e["type"].startswith("cancel")]
    told = {e["job_id"]: json.loads(e["detail"]).get("why", "") for e in asked}
    assert told == {
        job_id: str(value).replace("\0", "NUL") for job_id, value in zip(sent, values, strict=True)
    }
    assert auditlog.rows(database, "SELECT * FROM quarantine") == []
    assert verify(database).verdict is LogVerdict.HOLDS
