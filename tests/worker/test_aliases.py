"""Aliases: a renamed task also runs the jobs that were enqueued under its old names."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from rq_core import App, Cap, GiveUp, InvalidTask, RetryPolicy, current_job
from rq_core.connections.client import Client
from sql_audit.mirror.redis_access import Outbox
from sql_audit.mirror.turn import Mirror
from sql_audit.proof.result import LogVerdict
from sql_audit.proof.verify import verify
from sql_audit.store import migrate
from sql_audit.store.connection.database import Database
from tests.kit import auditlog
from tests.kit.wait import wait_until_async
from tests.kit.working import working
from tests.worker.conftest import event_types, events

ONCE = RetryPolicy(max_attempts=1)


@pytest.fixture
def make_app(valkey_url: str) -> Iterator[Callable[[], App]]:
    with ExitStack() as stack:
        yield lambda: stack.enter_context(App(valkey_url))


def renamed(app: App, ran: list[tuple[str, str]], **options: Any) -> None:
    """Add the task ``send``, whose old name was ``send_email``, to the app."""

    async def send(tenant: str) -> None:
        ran.append((current_job().task, tenant))

    app.task(queue="mail", aliases=["send_email"], **options)(send)


def is_gone(client: Client, job_id: str) -> Callable[[], bool]:
    return lambda: client.run(client.calls.reads.job(job_id, ["mail"])) is None


async def test_jobs_that_were_enqueued_under_an_alias_run_under_that_alias(
    make_app: Callable[[], App],
) -> None:
    """Checks that the log and the handler have the name under which the job was enqueued."""
    old, new, ran = make_app(), make_app(), []

    @old.task(queue="mail")
    def send_email(tenant: str) -> None: ...

    job = send_email.enqueue("acme")
    by_name = old.enqueue("mail", "send_email", {"tenant": "by name"})
    renamed(new, ran)
    async with working(new, queues=("mail",)):
        await new.tasks["send"].enqueue_async("new")
        await wait_until_async(lambda: len(ran) == 3, "all have run")

    assert sorted(ran) == [("send", "new"), ("send_email", "acme"), ("send_email", "by name")]
    for each in (job, by_name):
        ((_, enqueued), *_) = events(old.client, each.id, "mail")
        assert enqueued["task"] == "send_email"


def test_a_producer_with_the_new_code_may_enqueue_by_the_alias(
    make_app: Callable[[], App],
) -> None:
    app, ran = make_app(), []
    renamed(app, ran, caps=[Cap(1, per="tenant")])

    job = app.job("mail", "send_email", {"tenant": "acme"})

    assert (job.profile.task, job.lane) == ("send_email", "2+send.tenant=acme")
    assert app.tasks["send_email"] is app.tasks["send"]


async def test_jobs_of_an_alias_share_the_caps_of_the_new_name(
    make_app: Callable[[], App],
) -> None:
    """Checks jobs in the lanes of the old name. The worker moves them into the lanes of the new name."""
    old, new, other = make_app(), make_app(), make_app()
    gate, running, most = asyncio.Event(), [], []

    @old.task(queue="mail", caps=[Cap(1, per="tenant")])
    def send_email(tenant: str) -> None: ...

    @new.task(queue="mail", aliases=["send_email"], caps=[Cap(1, per="tenant")])
    async def send(tenant: str) -> None:
        running.append(current_job().id)
        most.append(len(running))
        await gate.wait()
        running.remove(current_job().id)

    first = send_email.enqueue("acme")
    assert events(old.client, first.id, "mail")[0][1]["lane"] == "2+send_email.tenant=acme"
    async with working(new, queues=("mail",), grace=5.0):
        await wait_until_async(lambda: running == [first.id], "the old job runs")
        second = await send.enqueue_async("acme")
        third = other.enqueue("mail", "send_email", {"tenant": "acme"})
        assert third.id not in running
        gate.set()
        for each in (first, second, third):
            await wait_until_async(is_gone(old.client, each.id), "it has run")

    assert max(most) == 1
    assert event_types(old.client, first.id, "mail") == [
        "enqueued", "claimed", "rolled_back", "claimed", "succeeded",
    ]  # fmt: skip
    (_, enqueued), *_ = events(old.client, third.id, "mail")
    assert (enqueued["task"], enqueued["lane"]) == ("send_email", "2+send.tenant=acme")


async def test_a_stored_cap_of_the_old_name_still_counts_jobs_of_the_alias(
    make_app: Callable[[], App], sqlite_url: str
) -> None:
    """Checks jobs of both names while the cap of the old name is stored.

    `audit verify` proves the log. SQL has each job under the name with which it was enqueued.
    """
    old, new = make_app(), make_app()
    ran: list[tuple[str, str]] = []

    @old.task(queue="mail", caps=[Cap(1)])
    def send_email(tenant: str) -> None: ...

    old.apply_settings()
    jobs = [send_email.enqueue(f"t{n}") for n in range(3)]
    renamed(new, ran, caps=[Cap(2, name="sending")])
    async with working(new, queues=("mail",)):
        jobs.append(await new.tasks["send"].enqueue_async("t3"))
        for job in jobs:
            await wait_until_async(is_gone(old.client, job.id), "it has run")

    database = Database(sqlite_url)
    migrate.ensure_schema(database)
    auditlog.drain(Mirror(Outbox(old.client), database, "mail"))
    result = verify(database)
    told = auditlog.rows(database, "SELECT job_id, task FROM job")
    database.close()
    assert (result.verdict, result.violations) == (LogVerdict.HOLDS, [])
    assert {row["job_id"]: row["task"] for row in told} == {
        **{job.id: "send_email" for job in jobs[:3]},
        jobs[3].id: "send",
    }


async def test_the_hook_for_dead_jobs_runs_for_jobs_that_were_enqueued_under_an_alias(
    make_app: Callable[[], App],
) -> None:
    app = make_app()
    told = []

    async def mourn(job: Any) -> None:
        told.append((job.task, job.id))

    async def send(tenant: str) -> None:
        raise GiveUp(tenant)

    app.task(queue="mail", aliases=["send_email"], on_dead=mourn, retry=ONCE)(send)
    async with working(app, queues=("mail",)):
        job = await app.enqueue_async("mail", "send_email", {"tenant": "acme"})
        await wait_until_async(lambda: told, "the hook was told")

    assert told == [("send_email", job.id)]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"aliases": "send_email"}, "aliases must be a list of names"),
        ({"aliases": ["send"]}, "'send' twice"),
        ({"aliases": ["a", "a"]}, "'a' twice"),
        ({"aliases": ["other"]}, "alias 'other' is a name of another task"),
        ({"aliases": ["old"]}, "alias 'old' is a name of another task"),
        ({"aliases": ["a"], "caps": [Cap(4)]}, r"add name=, like Cap\(4, name='send'\)"),
    ],
)
def test_invalid_aliases_are_refused(options: dict[str, Any], words: str) -> None:
    app = App()

    def send() -> None: ...

    def other() -> None: ...

    app.task(aliases=["old"])(other)

    with pytest.raises(InvalidTask, match=words):
        app.task(**options)(send)
    with pytest.raises(InvalidTask, match="has a task of that name"):
        app.task(name="old")(send)

    assert [*app.tasks] == ["other", "old"]
