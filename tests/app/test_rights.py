"""Users with the rights of `rq-core acl ROLE`. Each user can do the work of the role, and no work of other roles."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from click.testing import CliRunner

from rq_core import App, Cap, DeadJob, GiveUp, Rate, RetryPolicy, ServerUnsuitable
from rq_core.cli.root import root
from rq_core.connections.client import Client
from rq_core.model.job import NewJob, profile
from rq_core.model.keys import inbox_key, queue_keys
from rq_core.protocol.calls import claims
from rq_core.protocol.engine import acl_roles
from rq_core.scripts.script import names
from rq_core.worker import Worker, WorkerOptions
from sql_audit.mirror.redis_access import open_source
from sql_audit.mirror.service import run_mirror
from tests.app.conftest import As
from tests.kit.seed import Seed
from tests.kit.servers import RedisServer


def denied(control: Any) -> list[tuple[str, str]]:
    """Return each command that Redis refused, as (user, name of the command).

    Three commands are left out, since the roles can work without them. Clients send CLIENT SETINFO to introduce
    themselves, FUNCTION LOAD for missing functions, and CONFIG GET for facts about the server.
    """
    tried = {"client|setinfo", "function|load", "config|get"}
    log = [(entry["username"], entry["object"]) for entry in control.acl_log()]
    return [each for each in log if each[1] not in tried]


def app_at(url: str, told: list[str]) -> App:
    app = App(url)
    quick = RetryPolicy(max_attempts=2, base=0.01, jitter=False)

    @app.task(queue="mail", caps=[Cap(5), Cap(1, per="to"), Rate(1000, per_seconds=1, burst=9)])
    def send(to: str) -> None:
        told.append(to)

    async def bury(job: DeadJob) -> None:
        told.append(f"dead {job.id}")

    @app.task(queue="mail", retry=quick, on_dead=bury)
    async def fail(how: str) -> None:
        await send.enqueue_async("from a handler")
        raise (GiveUp("no") if how == "give up" else ValueError(how))

    @app.task(queue="mail", timeout=0.05)
    async def slow() -> None:
        await asyncio.sleep(60)

    return app


def enqueue_all(app: App) -> list[Any]:
    send, fail, slow = (app.tasks[name] for name in ("send", "fail", "slow"))
    handles: list[Any] = [send.enqueue(to=to) for to in ("a", "b", "b")]
    handles += [send.with_options(delay=60).enqueue(to="later"), fail.enqueue("give up")]
    handles += [fail.enqueue("again"), slow.enqueue(), app.enqueue("mail", "send", {"to": "named"})]
    return handles


async def test_the_rights_of_each_role_suffice_for_its_work(
    control: Any, as_: As, audit_url: str
) -> None:
    told: list[str] = []
    worker_url, mirror_url, producer_url = (as_(r) for r in ("worker", "mirror", "producer"))
    stop = threading.Event()

    def mirrored() -> int:
        source = open_source(mirror_url, "rqc")
        try:
            return run_mirror(source, audit_url, stop=stop, once=True).events
        finally:
            source.close()

    producer = app_at(producer_url, told)
    handles = enqueue_all(producer)
    assert mirrored() > 0
    later = handles[3]
    assert later.state() == "scheduled"
    later.edit(priority="high", now=True, expires=60, why="a test")
    assert later.cancel() == "cancelled"
    worker_app = app_at(worker_url, told)
    deadline = asyncio.timeout(60)
    async with deadline:
        while sum(each.startswith("dead") for each in told) < 2:
            await Worker(worker_app, WorkerOptions(queues=("mail",), burst=True)).run()
    await producer.aclose()
    await worker_app.aclose()
    assert mirrored() > 0
    producer.wake_relay("mail")
    with Client(worker_url) as relaying:
        assert relaying.wait_token(inbox_key(), 30) == "mail"
    producer.close()

    assert {"a", "b", "named", "from a handler"} < set(told)
    assert denied(control) == []


def test_the_rights_of_a_producer_suffice_to_store_schedules(control: Any, as_: As) -> None:
    """Checks each value of `overlap`. The values "queue" and "replace" need a cap, which only an operator may store."""
    operator = as_("operator")
    with app_at(as_("producer"), []) as app:
        job = app.tasks["send"].job("x")
        with pytest.raises(ServerUnsuitable, match="an operator: `rq-core cap mail tick 1`"):
            app.schedule_many([("s", job, {"every": 60, "overlap": "queue"})])
        result = CliRunner().invoke(root, ["cap", "mail", "tick", "1", "--redis", operator])
        assert result.exit_code == 0, result.output
        control.acl_log_reset()
        options: Any = [{"every": 60, "overlap": o} for o in ("skip", "allow", "queue", "replace")]
        stored = app.schedule_many((f"s{n}", job, each) for n, each in enumerate(options))
        assert len(stored.changed) == 4
        for what in (app.pause_schedule, app.resume_schedule, app.remove_schedule):
            assert what("mail", "s0").outcome == "changed"

    assert denied(control) == []


async def test_the_rights_of_a_worker_suffice_to_declare_and_serve_schedules(
    control: Any, as_: As
) -> None:
    app = app_at(as_("worker"), [])
    for n, overlap in enumerate(("skip", "allow", "queue", "replace")):
        app.schedule(f"s{n}", app.tasks["send"].job("x"), every=1, overlap=overlap)  # type: ignore[arg-type]
    async with asyncio.timeout(60):
        worker = Worker(app, WorkerOptions(queues=("mail",)))
        running = asyncio.create_task(worker.run())
        while True:
            found = await app.async_client().run(app.client.calls.schedules.stored("mail"))
            if len(found) == 4 and all(each.last_ms for each in found.values()):
                break
            await asyncio.sleep(0.05)
        worker.stop()
        await running
    await app.aclose()

    assert denied(control) == []


@pytest.mark.slow
def test_the_rights_of_an_operator_suffice_for_the_work_of_an_operator(
    control: Any, as_: As, audit_url: str
) -> None:
    url = as_("operator")
    with App(url) as app:
        handles = enqueue_all(app_at(url, []))
        client = app.client
        held = client.run(claims.claim("mail", "w-1", 2)).jobs
        records = [(held[0].id, held[0].fence, "final", 0, "gave_up", "null")]
        client.run(claims.fail("mail", "w-1", records))
        source = open_source(url, "rqc")
        run_mirror(source, audit_url, stop=threading.Event(), once=True)
        source.close()
        control.delete(queue_keys("mail")("scheduled"), queue_keys("mail")("leases"))
        control.delete(queue_keys("mail")("open"), queue_keys("mail")("holders"))

    def cli(*words: str) -> str:
        result = CliRunner().invoke(root, [*words, "--redis", url])
        assert result.exit_code == 0, (words, result.output)
        return result.stdout

    cli("doctor", "--repair")
    cli("doctor", "mail")
    cli("queues")
    cli("workers")
    cli("top", "--once")
    for handle in handles:
        cli("job", handle.id)
    cli("dead", "mail")
    cli("requeue", held[0].id)
    cli("edit", handles[3].id, "--now", "--priority", "low")
    cli("cancel", handles[3].id)
    cli("pause", "mail")
    cli("resume", "mail")
    cli("set", "mail", "lease=60")
    cli("cap", "mail", "task=send", "7", "--force")
    cli("cap", "mail", "task=send", "none")
    cli("caps", "mail")
    cli("enqueue", "mail", "send", "--json-args", '{"to": "x"}')
    schedule = ("mail", "nightly")
    cli("schedule", "set", *schedule, "--every", "60", "--task", "fail", "--overlap", "queue")
    cli("schedule", "set", *schedule, "--every", "90", "--overlap", "queue")
    cli("schedules", "mail")
    for what in ("pause", "run", "resume", "next", "remove"):
        cli("schedule", what, *schedule)
    cli("audit", "verify", "--audit", audit_url)
    cli("audit", "restore", "--audit", audit_url)
    cli("audit", "off", "mail", "--audit", audit_url)

    assert denied(control) == []


def test_a_viewer_may_read_everything_and_change_nothing(
    control: Any, as_: As, redis_server: RedisServer
) -> None:
    with App(redis_server.url) as app:
        handles = enqueue_all(app_at(redis_server.url, []))
        app.client.run(claims.claim("mail", "w-1", 2))
    url = as_("viewer")

    for words in (
        ("queues",),
        ("workers",),
        ("top", "--once"),
        ("caps", "mail"),
        (
            "jobs",
            "mail",
            "--state",
            "ready",
            "--state",
            "dead",
            "--state",
            "scheduled",
            "--state",
            "running",
        ),
        ("dead", "mail"),
        ("metrics", "--once"),
        *(("job", handle.id) for handle in handles),
    ):
        result = CliRunner().invoke(root, [*words, "--redis", url])
        assert result.exit_code == 0, (words, result.output)
    assert "rqc_up 1.0" in CliRunner().invoke(root, ["metrics", "--once", "--redis", url]).stdout
    assert denied(control) == []

    before = control.dbsize()
    for command in (["HSET", "rqc:{mail}:meta", "paused", 1], ["SADD", "rqc:queues", "x"]):
        with Client(url) as client, pytest.raises(ServerUnsuitable):
            client.run(client.calls.delivery.ask([command]))
    result = CliRunner().invoke(root, ["pause", "mail", "--redis", url])
    assert result.exit_code == 1
    assert control.dbsize() == before
    assert control.hget("rqc:{mail}:meta", "paused") in (None, "0")


@pytest.mark.parametrize("role", ["producer", "viewer", "worker", "operator"])
def test_a_role_that_may_read_jobs_may_follow_their_progress_and_chunks(
    control: Any, as_: As, redis_url: str, role: str
) -> None:
    with Seed(redis_url, queue="mail", real_clock=True) as seed:
        claim = seed.running("a")
        seed.show(claim, says="1/2 half", chunks=[(1, "one")])
        seed.fail(claim, verdict="final")
    control.acl_log_reset()
    url = as_(role)
    with App(url) as app:
        handle = app.handle_by_id("mail", "a")
        assert [each.text for each in handle.watch()] == ["half"]
        assert [each.text for each in handle.stream()] == ["one"]
    if role in ("viewer", "operator"):
        for command, status in (("job", 0), ("watch", 1)):  # the job is dead
            result = CliRunner().invoke(root, [command, "a", "--redis", url])
            assert result.exit_code == status, result.output
    assert not denied(control)


def test_a_viewer_of_one_queue_may_read_that_queue_though_other_queues_exist(
    control: Any, as_: As, redis_url: str
) -> None:
    """The commands `queues`, `workers` and `job` say that they leave out the other queue. No command reports the other
    queue as damaged."""
    with App(redis_url) as app:
        held = app.enqueue("mail", "send", {})
        app.enqueue("images", "send", {})
    url = as_("viewer", "--queue", "mail")

    for words in (
        ["queues"],
        ["workers"],
        ["job", held.id],
        ["top", "--once"],
        ["metrics", "--once"],
    ):
        done = CliRunner().invoke(root, [*words, "--redis", url])
        assert done.exit_code == 0, (words, done.output)
        said = "left out, since this user may not read them: images\n" in done.stderr
        assert said is (words[0] not in ("top", "metrics"))
        assert "Unreadable" not in done.stdout
        assert 'unreadable{queue="images"}' not in done.stdout
    other = CliRunner().invoke(root, ["workers", "--queue", "images", "--redis", url])
    assert other.exit_code == 1


@pytest.mark.parametrize("rules", [["+info"], ["+info", "+time", "+smembers", "%R~rqc:queues"]])
def test_the_error_of_a_user_without_rights_does_not_report_redis_as_down(
    control: Any, redis_url: str, rules: list[str]
) -> None:
    """Checks that `metrics --once` and `top` fail. No alert says that Redis is silent."""
    with App(redis_url) as app:
        app.enqueue("mail", "send", {})
    control.execute_command(
        "ACL", "SETUSER", "nobody", "reset", "on", ">PASSWORD", "+select", *rules
    )
    url = redis_url.replace("redis://", "redis://nobody:PASSWORD@")

    for words in (
        ["top", "--once"],
        ["top", "--json"],
        ["metrics", "--once"],
        ["queues"],
        ["workers"],
    ):
        done = CliRunner().invoke(root, [*words, "--redis", url])
        assert done.exit_code == 1, (words, done.output)
        assert "RqCoreRedisDown" not in done.output
        assert words[0] != "top" or "RqCoreRedisRefuses" in done.output
        assert words[0] != "metrics" or {"rqc_up 1.0", "rqc_refused 1.0"} <= set(
            done.output.splitlines()
        )


@pytest.mark.parametrize("role", [name for name, role in acl_roles.ROLES.items() if role.scripts])
def test_redis_lets_each_role_call_only_its_own_scripts_and_the_listed_exceptions(
    control: Any, as_: As, role: str
) -> None:
    """Asks Redis, for each script, whether the role may use the script's keys and commands."""
    with Client(as_(role, "--queue", "mail*")) as client:
        client.run(client.calls.delivery.handshake("mail"))
        may = {n for n in names() if not client.run(acl_roles.lacking(client.prefix, n, "mail"))}

    assert may == {*acl_roles.ROLES[role].scripts, *acl_roles.beyond(role)}


NOT_ITS_OWN = [
    ("producer", "claim"),
    ("producer", "complete"),
    ("producer", "fail"),
    ("producer", "rollback"),
    ("producer", "extend"),
    ("producer", "requeue"),
    ("producer", "prune"),
    ("producer", "register"),
    ("producer", "attach"),
    ("producer", "trim"),
    ("worker", "attach"),
    ("worker", "trim"),
    ("mirror", "enqueue"),
    ("mirror", "claim"),
    ("mirror", "complete"),
    ("mirror", "cancel"),
    ("mirror", "edit"),
    ("mirror", "repair"),
]


@pytest.mark.parametrize("role, name", NOT_ITS_OWN)
def test_the_table_of_roles_gives_no_role_a_script_of_another_role(role: str, name: str) -> None:
    assert name not in acl_roles.ROLES[role].scripts
    assert name not in acl_roles.beyond(role)


def test_a_producer_cannot_settle_a_claim(control: Any, as_: As, redis_url: str) -> None:
    """Checks a producer that knows the fence of a claim. The producer lacks the right to the keys."""
    url = as_("producer")
    with Client(redis_url) as owner, Client(url) as producer:
        owner.run(owner.calls.enqueue.many([NewJob("a", "mail", profile("send"), "{}")]))
        (held,) = owner.run(claims.claim("mail", "w-1", 1)).jobs
        before = owner.run(owner.calls.reads.snapshot("mail"))
        settle = claims.complete("mail", "w-1", [(held.id, held.fence)])

        with pytest.raises(ServerUnsuitable) as caught:
            producer.run(settle)

        assert owner.run(owner.calls.reads.snapshot("mail")) == before
        assert owner.run(claims.complete("mail", "w-1", settle.each)) == {}
    assert "~rqc:{mail}:leases" in str(caught.value)


def test_a_role_may_use_only_its_queues(as_: As) -> None:
    url = as_("producer", "--queue", "mail*")
    with App(url) as app:
        assert app.enqueue("mail-2", "send", {}).state() == "ready"
        with pytest.raises(ServerUnsuitable, match=r"lacks the right ~rqc:\{images\}:tasks;"):
            app.enqueue("images", "send", {})


@pytest.mark.parametrize("right", ["+hset", "+xadd", "+info", "~rqc:{*}:jobs", "+sadd", "+zcard"])
def test_the_error_for_a_missing_acl_right_names_the_right(as_: As, right: str) -> None:
    """Checks each right on a new queue. A refused call may have done a part of its work."""
    with App(as_("producer", without=right)) as app, pytest.raises(ServerUnsuitable) as caught:
        app.enqueue("mail", "send", {})

    assert right.removeprefix("+").replace("*", "mail") in str(caught.value).replace("'", " ")
    assert "rq-core acl" in str(caught.value)


def test_an_invalid_pattern_of_a_roles_queues_is_refused() -> None:
    result = CliRunner().invoke(root, ["acl", "producer", "--queue", "a}b"])

    assert result.exit_code != 0
    assert "must be a queue's name" in result.stderr


def test_redis_knows_every_command_that_scripts_send(control: Any) -> None:
    known = set(control.command())

    assert {c for name in names() for c in acl_roles.commands_of_script(name)} <= known
