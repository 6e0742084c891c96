"""The files of docs/examples. Each example does what its page says."""

import asyncio
import contextlib
import inspect
import json
import re
import sqlite3
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import django
import pytest
from click.testing import CliRunner
from django.conf import settings
from django.db import connections
from django.test import RequestFactory
from fastapi.testclient import TestClient

from rq_core import testing
from rq_core.cli.root import root
from rq_core.errors import (
    IdempotencyMismatch,
    QueueFull,
    ServerUnavailable,
    UniqueHeld,
    WaitTimeout,
)
from rq_core.worker import Worker, WorkerOptions
from tests.docs.conftest import Load
from tests.docs.transcript import DOCS, EXAMPLES
from tests.kit.servers import RedisServer


def test_every_example_appears_on_a_page_and_in_a_test() -> None:
    pages = "".join(page.read_text() for page in DOCS.rglob("*.md"))
    tests = "".join(test.read_text() for test in Path(__file__).parent.glob("test_*.py"))
    names = {example.stem for example in EXAMPLES.glob("*.py")}
    played = set(re.findall(r'title="\w+\.py"\n--8<-- "(\w+)\.py"', pages))

    assert names == {name for name in names if f'--8<-- "{name}.py"' in pages}
    assert names == played | {name for name in names if f'"{name}"' in tests}


def test_the_examples_of_enqueueing_enqueue_a_job(
    load: Load, capsys: pytest.CaptureFixture[str]
) -> None:
    example = load("enqueueing")
    with testing.fake(example.app) as fake:
        example.enqueue_in_every_way([("acme", "x@b.c"), ("umbrella", "y@b.c")])
        asyncio.run(example.enqueue_in_an_event_loop())
        first = example.let_a_job_go_first()
        states = example.look_after_a_job()
        delayed = [job for job in fake.enqueued("mail") if job.delay]
        ran = fake.drain()

    assert ["ready", "cancelled", "gone"] == states
    assert "ready" == first
    assert ["high", "normal"] == [job.priority for job in delayed]
    assert 60 == delayed[0].delay
    assert 9 == len(ran)
    assert 9 == len(capsys.readouterr().out.splitlines())


def test_the_unique_job_example_keeps_or_replaces_the_earlier_job(load: Load) -> None:
    example = load("once")
    with testing.fake(example.app) as fake:
        first, second = example.ask_twice()
        reminded_again = example.remind_twice()
        replaced = example.change_twice(), example.render_twice()
        waiting = [job.arguments for job in fake.enqueued("reports")]
        ran = fake.drain("reports")
        again = example.ask_twice()

    assert first == second
    assert reminded_again
    assert None not in replaced
    assert [
        {"tenant": "acme", "month": "now"},
        {"user": "ada"},
        {"page": "home", "text": "new words"},
        {"url": "/home?b", "version": 2},
    ] == waiting
    assert ["succeeded"] * 4 == [each.outcome for each in ran]
    assert again[0] != first


def test_the_example_of_a_batch_handler_stores_the_good_events_and_fails_the_others(
    load: Load,
) -> None:
    """Checks an event that the handler fails, and an event whose row the database refuses."""
    example = load("batches")
    with testing.fake(example.app) as fake:
        for n in range(20):
            example.count(f"https://shop.example/{n}")
        example.count("ftp://elsewhere.example")
        example.store.enqueue(example.Event("clicks", "https://shop.example/never", 0))
        ran = fake.drain()
        stored = example.database.execute("SELECT count(*) FROM clicks").fetchone()

    assert (20,) == stored
    assert 20 == [each.outcome for each in ran].count("succeeded")
    assert {
        None,
        "MemberFailed: not a page of ours",
        "IntegrityError: CHECK constraint failed: seconds > 0",
    } == {each.error for each in ran}


def test_the_example_of_steps_charges_an_order_once(
    load: Load, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    example = load("steps")
    fails = [True]

    async def ship(order_id: int) -> str:
        if fails and fails.pop():
            raise ConnectionError("no courier")
        return f"parcel-{order_id}"

    with testing.fake(example.app) as fake:
        example.order.enqueue(13)
        (ran,) = fake.drain()
        assert (ran.outcome, ran.error) == (
            "dead",
            "GiveUp: order 13 is not in stock, 1250 cents are refunded",
        )
        assert ["charge order 13", "refund ch_13"] == [
            line.partition(",")[0] for line in capsys.readouterr().out.splitlines()
        ]
        monkeypatch.setattr(example, "ship", ship)
        example.order.enqueue(7)
        assert ["scheduled", "succeeded"] == [ran.outcome for ran in fake.drain()]
        assert 1 == capsys.readouterr().out.count("charge order 7")


def test_the_example_of_progress_shows_the_progress_and_the_stream_of_a_job(
    load: Load, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    example = load("progress")
    monkeypatch.setattr(example, "STORE_S", 0)
    with testing.fake(example.app) as fake:
        job = example.import_rows.enqueue(["a", "b", "c"])
        (ran,) = fake.drain()
        first = example.follow(job.id)
        again = example.follow(job.id, after=2)

    assert "succeeded" == ran.outcome
    assert (3, 3) == (first, again)
    said = capsys.readouterr().out.splitlines()
    assert ["a is stored", "b is stored", "c is stored", "c is stored"] == said


def test_the_example_of_waits_undoes_the_charge_of_an_order_that_is_not_approved(
    load: Load, capsys: pytest.CaptureFixture[str]
) -> None:
    example = load("waits")

    with testing.fake(example.app) as fake:
        approved = example.order.enqueue(7)
        example.order.enqueue(8)
        assert ["parked", "parked"] == [ran.outcome for ran in fake.drain()]
        fake.advance(86_400)
        assert ["parked", "parked"] == [ran.outcome for ran in fake.drain()]
        example.approve(approved)
        assert ["succeeded"] == [ran.outcome for ran in fake.drain()]
        fake.advance(86_400)
        assert ["dead"] == [ran.outcome for ran in fake.drain()]
        says = capsys.readouterr().out.splitlines()
        assert ["charge order 7", "charge order 8", "refund ch_8"] == says


def test_the_example_of_children_reports_the_failed_part_and_joins_the_others(
    load: Load, capsys: pytest.CaptureFixture[str]
) -> None:
    example = load("children")

    with testing.fake(example.app) as fake:
        example.import_all.with_options(max_attempts=1).enqueue(600)
        ended = fake.drain()[-1]
        assert ("dead", True) == (
            ended.outcome,
            "5 of 6 children succeeded, 6 must" in str(ended.error),
        )
        example.import_all.enqueue(1_000)
        assert "succeeded" == fake.drain()[-1].outcome
        says = capsys.readouterr().out.splitlines()[-2:]
        assert says[0].startswith("part 3 failed: job f-")
        assert "900 rows are there" == says[1]


def test_the_example_of_flows_passes_results_on_and_continues_without_a_failed_page(
    load: Load,
) -> None:
    example = load("flows")

    with testing.fake(example.app) as fake:
        runs = [
            example.report_in_order("2026-11"),
            example.report_of_parts([1, 2]),
            example.monthly("2026-11"),
        ]
        fake.drain()

        assert ["sent: page 1 of 3 rows", "sent: 5 pages", "sent: 9 pages"] == [
            run.result(0) for run in runs
        ]


def test_the_example_of_a_repeated_call_runs_its_job_once(load: Load) -> None:
    example = load("repeated")
    with testing.fake(example.app) as fake:
        said = [example.order_arrives(42, "a@b.example") for _ in range(2)]
        ran = fake.drain("mail")
        said.append(example.order_arrives(42, "a@b.example"))
        other = example.order_arrives_with_another_address(42)

    assert ["accepted", "known", "known"] == said
    assert 1 == len(ran)
    assert "another call with this key was accepted before" == other


def test_the_example_of_a_wait_prints_how_jobs_ended(load: Load) -> None:
    example = load("waiting")
    with testing.fake(example.app) as fake:
        assert example.total_now("2026-11") is None
        good, bad = example.total.enqueue("2026-11"), example.total.enqueue("November")
        assert "is still at work" in example.tell(good)
        fake.drain()
        told = [example.tell(good), example.tell(bad)]
        value = good.result(0)
        with pytest.raises(WaitTimeout, match="12 of the jobs have not ended"):
            example.total_year(2026)

    assert ["total: 12.50", "failed: ValueError: November is no month"] == told
    assert Decimal("12.50") == value


async def test_the_example_of_a_web_server_answers_with_the_id_of_an_unfinished_job(
    load: Load,
) -> None:
    example = load("waiting")
    with testing.fake(example.app) as fake:
        status, job_id = await example.answer("2026-11")
        (waiting,) = fake.enqueued("reports")
        early = await example.answer_again(job_id)
        await fake.drain_async()
        late = await example.answer_again(job_id)
        unknown, _ = await example.answer_again("unknown")

    assert (202, waiting.id) == (status, job_id) == early
    assert (200, "12.50") == late
    assert 404 == unknown


def test_the_hook_of_the_retry_example_is_called_when_a_job_is_dead(
    load: Load, capsys: pytest.CaptureFixture[str]
) -> None:
    example = load("retries")
    with testing.fake(example.app) as fake:
        for account in ("unknown", "busy", "down", "ada", "closed"):
            example.charge.enqueue(account=account, cents=100)
        ran = fake.drain("payments")
    charges = [each for each in ran if each.task == "charge"]
    outcomes = {n: [each.outcome for each in charges if each.claim == n] for n in (1, 5)}

    first = ["dead", "scheduled", "scheduled", "succeeded", "scheduled"]
    assert {1: first, 5: ["dead", "dead"]} == outcomes
    said = capsys.readouterr().out
    assert "charged 100 in claim 1" in said
    assert said.count(" is dead: ") == 3


def test_the_hook_of_the_retry_example_prints_the_dead_job(
    load: Load, capsys: pytest.CaptureFixture[str]
) -> None:
    from rq_core import DeadJob

    job = DeadJob("j", "payments", "charge", {"cents": 1}, "gave_up", 1, 1, 0, 0, "0-0")
    load("retries").tell_support(job)

    assert "charge {'cents': 1} is dead: gave_up after 1 failures\n" == capsys.readouterr().out


def test_the_example_of_caps_declares_its_caps(load: Load) -> None:
    app = load("caps").app
    with testing.fake(app):
        app.set_cap("mail", "task=send", 20, reason="more servers")
        limits = {status.scope: str(status.limit) for status in app.caps("mail")}

    assert limits == {
        "queue": "50",
        "task=send": "20",
        "send.tenant": "1",
        "shard": "5",
        "send.tenant@60s": "100/60000ms/5",
        "weight=acme": "3",
    }


def test_the_example_of_costs_pauses_a_busy_model_and_then_settles_its_cost(
    load: Load, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    example = load("costs")
    with testing.fake(example.app) as fake:
        example.ask.enqueue("busy", "Say hello")
        original, answers = example.complete, iter(["busy", "small"])
        monkeypatch.setattr(example, "complete", lambda _, prompt: original(next(answers), prompt))
        ran = fake.drain()

    assert [each.outcome for each in ran] == ["scheduled", "succeeded"]
    assert capsys.readouterr().out == "small says hello\n"


def test_the_example_of_breakers_pauses_an_ill_host_and_an_operator_resumes_it(
    load: Load,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    valkey: RedisServer,
) -> None:
    """Checks the example with a worker. A page that is missing does not count as a failure of its host.

    The retries come an hour later. With the example's policy a retry comes after a random time from 0 to 5 s: it may
    come during the test, and its job would wait for the host, too.
    """
    monkeypatch.setenv("RQ_CORE_REDIS_URL", valkey.url)
    example = load("breakers")
    example.read.retry = replace(example.read.retry, base=3_600, jitter="none")
    with example.app as app:
        app.enqueue_many([example.read.job("ill", page) for page in ("missing", *"abcde")])
        example.read.enqueue("well", "index")
        asyncio.run(Worker(app, WorkerOptions(queues=("pages",), burst=True, concurrency=1)).run())
        (ill,) = (each for each in app.caps("pages") if each.scope.endswith("=ill"))
        example.resume("ill")
        paused = [each.scope for each in app.caps("pages") if each.use.standing == "paused"]
        example.maintain("well")
        (well,) = (each for each in app.caps("pages") if each.scope.endswith("=well"))

    assert capsys.readouterr().out == "index of well\n"
    assert (ill.use.standing, ill.waiting) == ("paused", 2)
    assert paused == []
    assert well.use.standing == "paused"
    assert well.use.by is not None


def test_the_examples_on_the_page_about_testing_pass(load: Load) -> None:
    example = load("own_tests")
    tests = [function for name, function in vars(example).items() if name.startswith("test_")]
    for test in tests:
        if inspect.iscoroutinefunction(test):
            asyncio.run(test())
        else:
            test()

    assert 5 == len(tests)


def refusing(monkeypatch: pytest.MonkeyPatch, example: Any, name: str, error: Exception) -> None:
    async def refuse_async(**_: object) -> None:
        raise error

    def refuse(**_: object) -> None:
        raise error

    monkeypatch.setattr(
        example.send, name, refuse_async if name.endswith("_async") else refuse, raising=False
    )


ERRORS = [
    (QueueFull(queue="mail"), 503),
    (ServerUnavailable(url="redis://x", why="refused"), 503),
    (UniqueHeld(queue="mail", name="send/to=b", id="j-2", holder="j-1"), 409),
    (IdempotencyMismatch(queue="mail", id="j-1", task="send"), 409),
]


def test_the_fastapi_example_answers_with_the_job_or_the_refusal(
    load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    example = load("web_fastapi")
    with testing.fake(example.jobs), TestClient(example.api) as client:
        asked = client.post("/mails", params={"tenant": "acme", "to": "a@b.c"})
        state = client.get(f"/mails/{asked.json()['job']}")
        answers = []
        for error, _ in ERRORS:
            refusing(monkeypatch, example, "enqueue_async", error)
            answers.append(client.post("/mails", params={"tenant": "a", "to": "b"}).status_code)

    assert (202, {"state": "ready"}) == (asked.status_code, state.json())
    assert [status for _, status in ERRORS] == answers


@pytest.mark.slow
def test_the_inbox_example_commits_an_order_and_its_job_together(
    load: Load, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, valkey: RedisServer
) -> None:
    monkeypatch.setenv("SHOP_DATABASE", str(tmp_path / "shop.db"))
    monkeypatch.setenv("RQ_CORE_REDIS_URL", valkey.url)
    example = load("inbox_fastapi")
    inbox = example.jobs.inbox_url
    assert CliRunner().invoke(root, ["inbox", "migrate", inbox]).exit_code == 0
    with TestClient(example.api) as client:
        refused = client.post("/orders", params={"to": "nobody"})
        made = client.post("/orders", params={"to": "a@b.c"})
        before = client.get(f"/mails/{made.json()['job']}")
        relayed = CliRunner().invoke(root, ["inbox", "run", inbox, "--once"])
        after = client.get(f"/mails/{made.json()['job']}")
        page = client.get("/queues/queues/mail", headers={"x-user": "ann"})
        unknown = client.get("/queues/queues/mail")
        assert client.portal is not None
        client.portal.call(example.engine.dispose)
        # The example looks into the inbox on a thread of the loop's own.
        client.portal.call(shut_down_executor)

    with contextlib.closing(sqlite3.connect(tmp_path / "shop.db")) as shop:
        assert [("a@b.c",)] == shop.execute('SELECT "to" FROM orders').fetchall()
        assert [] == shop.execute("SELECT * FROM rqc_inbox").fetchall()
    assert page.status_code == 200
    assert "mail" in page.text
    assert unknown.status_code in {401, 403}
    assert (422, 202, 0) == (refused.status_code, made.status_code, relayed.exit_code)
    assert ({"state": "inbox"}, {"state": "ready"}) == (before.json(), after.json())


def set_up_django() -> None:
    if not settings.configured:
        memory = {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}
        settings.configure(DATABASES={"default": memory}, ALLOWED_HOSTS=["testserver"])
        django.setup()


def test_the_inbox_example_with_django_commits_an_order_and_its_job_together(
    load: Load,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    valkey: RedisServer,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = str(tmp_path / "shop.db")
    monkeypatch.setenv("RQ_CORE_INBOX_URL", path)
    monkeypatch.setenv("RQ_CORE_REDIS_URL", valkey.url)
    set_up_django()
    monkeypatch.setitem(connections.settings["default"], "NAME", path)
    connections["default"].close()
    del connections["default"]
    example = load("inbox_django")
    assert CliRunner().invoke(root, ["inbox", "migrate", path]).exit_code == 0
    try:
        with connections["default"].schema_editor() as editor:
            editor.create_model(example.Order)

        def post(to: str) -> Any:
            return example.post_order(RequestFactory().post("/orders", {"to": to}))

        def state(job: str) -> Any:
            return json.loads(example.get_mail(RequestFactory().get("/mails"), job).content)

        refused, made = post("nobody"), post("a@b.c")
        job = json.loads(made.content)["job"]
        before = state(job)
        relayed = CliRunner().invoke(root, ["inbox", "run", path, "--once"])
        after = state(job)
        with connections["default"].cursor() as cursor:
            orders = cursor.execute("SELECT id FROM shop_order").fetchall()
            rows = cursor.execute("SELECT * FROM rqc_inbox").fetchall()
        example.send(orders[0][0])
    finally:
        connections["default"].close()
        del connections["default"]
        example.jobs.close()

    assert (1, []) == (len(orders), rows)
    assert (422, 202, 0) == (refused.status_code, made.status_code, relayed.exit_code)
    assert ({"state": "inbox"}, {"state": "ready"}) == (before, after)
    assert "to a@b.c: thank you for order" in capsys.readouterr().out


async def shut_down_executor() -> None:
    await asyncio.get_running_loop().shutdown_default_executor()


def test_the_flask_example_answers_with_the_job_or_the_refusal(
    load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    example = load("web_flask")
    client = example.web.test_client()
    with testing.fake(example.jobs) as fake:
        asked = client.post("/mails", data={"tenant": "acme", "to": "a@b.c"})
        (job,) = fake.enqueued("mail")
        answers = []
        for error, _ in ERRORS:
            refusing(monkeypatch, example, "enqueue", error)
            answers.append(client.post("/mails", data={"tenant": "a", "to": "b"}).status_code)

    assert (202, job.id) == (asked.status_code, asked.json["job"])
    assert [status for _, status in ERRORS] == answers


def test_the_django_example_enqueues_after_the_commit(
    load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_up_django()
    example = load("web_django")
    data = {"tenant": "acme", "to": "a@b.c"}
    try:
        with testing.fake(example.jobs) as fake:
            asked = example.post_mail(RequestFactory().post("/mails", data))
            (job,) = fake.enqueued("mail")
            answers = []
            for error, _ in ERRORS:
                refusing(monkeypatch, example, "enqueue", error)
                refused = example.post_mail(RequestFactory().post("/mails", data))
                answers.append(refused.status_code)
    finally:
        connections.close_all()

    assert 202 == asked.status_code
    assert job.id in asked.content.decode()
    assert [status for _, status in ERRORS] == answers
