"""Commands that enqueue, show, change and examine jobs and queues, on a real server."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from rq_core import App, RetryPolicy
from rq_core.cli.commands.change import parse_assignment
from rq_core.cli.options import actor
from rq_core.connections.client import Client
from rq_core.embedded.server import ServerStatus
from rq_core.model.job import NewJob, profile, ties_of
from rq_core.model.keys import NAME_PATTERN, queue_keys
from rq_core.model.lib.text import printable
from rq_core.model.table.machine import LEFT_OPEN
from rq_core.protocol.calls import claims
from rq_core.views.text import ago, span, utc
from tests.cli.conftest import CommandLine
from tests.kit.servers import RedisServer
from tests.kit.snapshots import lines_of

Kill = Callable[..., None]


def last_event(client: Client, queue: str) -> dict[str, str]:
    fields: dict[str, str] = client.run(client.calls.reads.snapshot(queue))["outbox"][-1][1]
    return fields


# --- enqueue ------------------------------------------------------------------------------------


def test_the_enqueue_command_prints_the_id_of_the_new_job(cli: CommandLine, client: Client) -> None:
    job_id = cli.ok("enqueue", "mail", "send", "--json-args", '{"to": "ä@b.c", "n": 1}').strip()

    found = client.run(client.calls.reads.job(job_id))
    assert found is not None
    assert found.state == "ready"
    spec = json.loads(found.spec or "")
    assert (spec["task"], spec["args"]) == ("send", {"to": "ä@b.c", "n": 1})


def test_enqueue_from_the_command_line_uses_the_options_that_workers_registered_for_the_task(
    cli: CommandLine, client: Client
) -> None:
    """Checks a task with one attempt. The command line does not have the task's code."""
    with App(cli.url) as app:

        @app.task(queue="bn", retry=RetryPolicy(max_attempts=1), priority="high", max_losses=7)
        def pay() -> None: ...

        app.apply_settings()

    job_ids = cli.ok("enqueue", "bn", "pay").strip(), cli.ok("enqueue", "bn", "odd").strip()

    known, unknown = (client.run(client.calls.reads.job(each)) for each in job_ids)
    assert known is not None
    assert unknown is not None
    assert known.fields["priority"] == "high"
    events = client.run(client.calls.audit.read_outbox("bn", "-", 100))
    told = [json.loads(fields["jobs"])[0] for _, fields in events if fields["type"] == "enqueued"]
    assert [each[3:7] for each in told] == [
        ["pay", "high", 1, 7],
        ["odd", "normal", LEFT_OPEN, LEFT_OPEN],
    ]


def test_enqueue_options_reach_the_job(cli: CommandLine) -> None:
    given = ("--id", "mine", "--delay", "1.5", "--priority", "HIGH", "--max-attempts", "7")

    assert cli.json("enqueue", "mail", "send", *given) == {
        "id": "mine",
        "queue": "mail",
        "task": "send",
        "duplicate": False,
        "discarded": False,
        "replaced": None,
    }
    found = cli.json("job", "mine")
    assert found["state"] == "scheduled"
    assert found["priority"] == "high"
    assert found["max_attempts"] == 7
    assert found["due_ms"] - found["since_ms"] == 1500


def test_the_enqueue_command_reads_arguments_from_standard_input(cli: CommandLine) -> None:
    cli.ok("enqueue", "mail", "send", "--id", "x", "--json-args", "-", stdin='{"to": "a"}')

    assert cli.json("job", "x")["args"] == {"to": "a"}


def test_an_enqueue_with_the_id_of_a_live_job_enqueues_nothing_and_says_so(
    cli: CommandLine, client: Client
) -> None:
    cli.ok("enqueue", "mail", "send", "--id", "x")
    before = lines_of(client.run(client.calls.reads.snapshot("mail")))

    result = cli("enqueue", "mail", "other", "--id", "x")

    assert result.exit_code == 0
    assert result.stdout == "x\n"
    assert result.stderr == ("nothing was enqueued: job x is live\n")
    assert before == lines_of(client.run(client.calls.reads.snapshot("mail")))


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Write a module with an app into the current directory."""
    name = f"tasks_of_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(
        "from rq_core import App, RetryPolicy, Unique\n"
        "app = App(redis='redis://localhost:1/0', prefix='own')\n"
        "empty = App()\n"
        "@app.task(retry=RetryPolicy(max_attempts=9))\n"
        "def send(to: str, n: int = 1) -> None: ...\n"
        "@app.task(queue='mail', unique=Unique(per='to'))\n"
        "def first(to: str) -> None: ...\n"
        "@app.task(queue='mail', unique=Unique(per='to', on_duplicate='replace'))\n"
        "def last(to: str) -> None: ...\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return name


@pytest.mark.parametrize("task", ["first", "last"])
def test_an_enqueue_with_a_held_unique_name_reports_the_job_that_holds_the_name(
    cli: CommandLine, module: str, task: str
) -> None:
    """Checks two rules for names: the existing job is kept, or it is replaced. No answer mentions a remembered id."""
    words = (
        "--app", f"{module}:app", "--redis", cli.url, "--prefix", "rqc", "--json-args", '{"to": "a"}',
    )  # fmt: skip
    held = cli.ok("enqueue", "mail", task, *words).strip()

    facts = cli("enqueue", "mail", task, *words, "--json")
    said = cli("enqueue", "mail", task, *words)

    told = json.loads(facts.stdout)
    if task == "first":
        assert (told["id"], told["duplicate"], told["replaced"]) == (held, True, None)
        assert said.stderr == (
            f"nothing was enqueued: job {held} has the unique name of this call\n"
        )
    else:
        assert (told["id"] != held, told["duplicate"], told["replaced"]) == (True, False, held)
        assert said.stderr == ""


def test_the_enqueue_command_with_the_option_app_applies_the_options_of_the_task(
    cli: CommandLine, module: str
) -> None:
    words = ("--app", f"{module}:app", "--redis", cli.url, "--prefix", "rqc")

    cli.ok("enqueue", "mail", "send", "--id", "x", "--json-args", '{"to": "a"}', *words)

    assert cli.json("job", "x")["max_attempts"] == 9


def test_the_enqueue_command_with_an_app_refuses_arguments_that_do_not_fit(
    cli: CommandLine, module: str
) -> None:
    said = cli.line(
        2, "enqueue", "mail", "send", "--app", module, "--json-args", '{"to": "a", "n": "many"}'
    )

    assert said.startswith("arguments of task 'send' are not valid: n: ")
    assert "--json-args" not in said


def test_the_error_of_a_missing_argument_names_the_option_that_takes_it(
    cli: CommandLine, module: str
) -> None:
    said = cli.line(2, "enqueue", "mail", "send", "--app", module)

    assert "'send' are not valid: to: is required: the task's arguments go into --json-args" in said


def test_the_enqueue_command_refuses_a_task_that_the_app_lacks(
    cli: CommandLine, module: str
) -> None:
    assert cli.line(2, "enqueue", "mail", "sned", "--app", module) == (
        "no task 'sned' here: known are first, last, send."
    )
    assert cli.line(2, "enqueue", "mail", "sned", "--app", f"{module}:empty") == (
        "no task 'sned' here: known are none."
    )


def test_the_error_of_a_key_function_that_raises_is_one_line(
    cli: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sharded.py").write_text(
        "from rq_core import App, Cap\n"
        "app = App()\n"
        "def shard_of(to): raise LookupError('no shard')\n"
        "@app.task(queue='mail', caps=[Cap(1, per=shard_of)])\n"
        "def send(to): ...\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    words = ("--app", "sharded", "--redis", cli.url, "--json-args", '{"to": "a"}')

    said = cli.line(2, "enqueue", "mail", "send", *words)

    assert said.startswith(
        "the function shard_of, which makes the key 'send.shard_of' of task 'send',"
    )
    assert "raised LookupError: no shard" in said


def test_commands_use_the_server_of_the_app_unless_the_option_redis_names_another(
    cli: CommandLine, module: str
) -> None:
    """Checks the option ``--app`` without the option ``--redis``."""
    said = cli.line(1, "enqueue", "mail", "send", "--app", module, "--json-args", '{"to": "a"}')

    assert "no answer from Redis at redis://localhost:1/0" in said


# --- looking ------------------------------------------------------------------------------------


def test_the_queues_command_lists_queues_with_their_counts(cli: CommandLine, kill: Kill) -> None:
    kill("mail", "d1")
    cli.ok("enqueue", "mail", "send")
    cli.ok("enqueue", "mail", "send", "--priority", "high")
    cli.ok("enqueue", "mail", "send", "--delay", "60")
    cli.ok("pause", "mail")
    cli.ok("enqueue", "sms", "send")

    mail, sms = cli.json("queues")
    assert (mail["queue"], sms["queue"]) == ("mail", "sms")
    assert (
        sum(mail["ready"].values()),
        mail["scheduled"],
        mail["running"],
        mail["dead"],
    ) == (2, 1, 0, 1)
    assert mail["paused"] is True
    table = cli.ok("queues")
    assert re.search(r"mail +2 +1 +0 +0 +1 +off +0 +\d+ s +paused; 1 high", table)
    assert re.search(r"sms +1 +0 +0 +0 +0 +off +0 +\d+ s", table)


def test_the_queues_command_lists_other_queues_beside_an_unreadable_queue(
    cli: CommandLine, client: Client, valkey: RedisServer
) -> None:
    cli.ok("enqueue", "mail", "send")
    cli.ok("enqueue", "sms", "send")
    with valkey.client() as control:
        control.set("rqc:{mail}:dead", "x")

    result = cli("queues")

    assert result.exit_code == 1
    assert "sms" in result.stdout
    assert "mail" not in result.stdout
    assert result.stderr.startswith(
        "rq-core: queue mail cannot be read: key rqc:{mail}:dead: WRONGTYPE"
    )


def test_the_queues_command_on_an_empty_server_is_not_an_error(cli: CommandLine) -> None:
    assert cli.ok("queues") == "no queues yet: the first job of a queue makes it\n"
    assert cli.json("queues") == []


def test_commands_show_only_queues_of_their_prefix(cli: CommandLine) -> None:
    cli.ok("enqueue", "mail", "send", "--prefix", "other")

    assert cli.json("queues") == []
    assert len(cli.json("queues", "--prefix", "other")) == 1


def test_the_job_command_shows_the_worker_of_a_running_job_and_its_start(
    cli: CommandLine, client: Client
) -> None:
    cli.ok("enqueue", "mail", "send", "--id", "x", "--json-args", '{"to": "a"}')
    client.run(claims.claim("mail", "w-1", 1))

    said = cli.ok("job", "x", "--queue", "mail")
    found = cli.json("job", "x")
    assert re.search(
        r"^state +running, since \d s ago \(20\d\d-\d\d-\d\d \d\d:\d\d:\d\d UTC\)$",
        said,
        re.MULTILINE,
    )
    assert re.search(r"^worker +w-1$", said, re.MULTILINE)
    assert re.search(r"^claims +1$", said, re.MULTILINE)
    assert re.search(r'^arguments +{"to": "a"}$', said, re.MULTILINE)
    assert (found["state"], found["worker"], found["claims"]) == ("running", "w-1", 1)


def test_the_job_command_shows_the_headers_of_a_job(cli: CommandLine, client: Client) -> None:
    job = NewJob("h", "mail", profile("send"), '{"to":"a"}', headers_json='{"request-id":"7"}')
    client.run(client.calls.enqueue.many([job, NewJob("none", "mail", profile("send"), "{}")]))

    assert re.search(r'^headers +{"request-id": "7"}$', cli.ok("job", "h"), re.MULTILINE)
    found = cli.json("job", "h")
    assert (found["args"], found["headers"]) == ({"to": "a"}, {"request-id": "7"})
    assert "headers" not in cli.ok("job", "none")
    assert cli.json("job", "none")["headers"] == {}


def test_the_dead_command_lists_the_newest_job_first(cli: CommandLine, kill: Kill) -> None:
    kill("mail", "d1", "d2", "d3")

    assert [job["id"] for job in cli.json("dead", "mail")] == ["d3", "d2", "d1"]
    said = cli.ok("dead", "mail", "--limit", "2")
    assert re.search(r"d3 +send +\d s ago +gave_up +1 +0", said)
    assert "2 of 3; --limit shows more" in said
    cli.ok("prune", "--queue", "mail", "--state", "dead", "--yes")
    assert cli.ok("dead", "mail") == "no dead jobs in mail\n"


def test_the_error_of_a_dead_job_is_one_line_without_control_characters(
    cli: CommandLine, kill: Kill
) -> None:
    error = json.dumps({"type": "ValueError", "message": "no\nuser \x1b[31m" + "x" * 200})
    # Both may die in one ms: then the later name comes first.
    kill("mail", "bare")
    kill("mail", "d1", error=error)

    listed, shown = cli.ok("dead", "mail"), cli.ok("job", "d1")

    assert re.search(r"d1 .* ValueError: no user \\x1b\[31mx{60,}… *$", listed, re.MULTILINE)
    assert re.search(r"^error +ValueError: no user \\x1b\[31mx{200}$", shown, re.MULTILINE)
    assert "\x1b" not in listed + shown
    found = json.loads(error) | {"traceback": None}
    assert [each["error"] for each in cli.json("dead", "mail")] == [found, None]
    assert cli.json("job", "d1")["error"] == found
    assert "error " not in cli.ok("job", "bare")


def test_the_commands_jobs_and_dead_break_no_word_on_a_narrow_terminal(
    cli: CommandLine, kill: Kill, monkeypatch: pytest.MonkeyPatch
) -> None:
    message = "mx.example.org refused ada@b.c: recipient unknown"
    kill("mail", "d" * 32, error=json.dumps({"type": "ConnectionError", "message": message}))
    cli.ok(
        "enqueue", "mail", "send", "--id", "w" * 32, "--delay", "86401", "--priority", "critical"
    )
    monkeypatch.setenv("COLUMNS", "80")

    dead, jobs = cli.ok("dead", "mail"), cli.ok("jobs", "mail")

    assert max(map(len, (dead + jobs).splitlines())) <= 80
    assert {"d" * 32, "gave_up,", "ConnectionError:", *message.split()} <= set(dead.split())
    assert {"w" * 32, "scheduled,", "critical", "priority"} <= set(jobs.split())


def test_the_commands_dead_and_job_show_where_an_error_was_raised(
    cli: CommandLine, kill: Kill
) -> None:
    lines = 'Traceback (most recent call last):\n  File "/srv/shop/tasks.py", line 7, in pay\nE: \x1b[31m'
    kill("mail", "d1", error=json.dumps({"type": "E", "message": "m", "traceback": lines}))

    assert re.search(r"d1 .* E: m \(shop/tasks.py:7\) *$", cli.ok("dead", "mail"), re.MULTILINE)
    assert cli.ok("job", "d1").endswith(
        "traceback\n  Traceback (most recent call last):\n"
        '    File "/srv/shop/tasks.py", line 7, in pay\n  E: \\x1b[31m\n'
    )


def test_the_job_command_shows_no_old_error_of_a_requeued_job(cli: CommandLine, kill: Kill) -> None:
    kill("mail", "d1", error='{"type":"ValueError","message":"no"}')
    cli.ok("requeue", "d1")

    assert cli.json("job", "d1")["error"] is None


def test_the_dead_command_reads_jobs_in_pages(
    cli: CommandLine, kill: Kill, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rq_core.protocol.reads.job_reads.PAGE", 2)
    kill("mail", *(f"d{n}" for n in range(5)))

    assert [job["id"] for job in cli.json("dead", "mail")] == ["d4", "d3", "d2", "d1", "d0"]
    assert len(cli.json("dead", "mail", "--limit", "3")) == 3


# --- changing -----------------------------------------------------------------------------------


def test_the_cancel_command_finds_jobs_in_any_queue(cli: CommandLine, client: Client) -> None:
    cli.ok("enqueue", "mail", "send", "--id", "a")
    client.run(claims.claim("mail", "w-1", 1))
    cli.ok("enqueue", "sms", "send", "--id", "b")

    said = cli.ok("cancel", "b", "a", "--by", "ada", "--reason", "not wanted")

    assert said == "b cancelled\na cancelling\n"
    event = last_event(client, "sms")
    assert (event["type"], event["by"], event["why"]) == ("cancelled", "ada", "not wanted")


def test_the_cancel_command_fails_only_for_an_unknown_job(
    cli: CommandLine,
) -> None:
    cli.ok("enqueue", "mail", "send", "--id", "a")

    result = cli("cancel", "a", "nobody")

    assert result.exit_code == 1
    assert result.stdout == "a cancelled\nnobody gone\n"
    assert result.stderr == (
        "rq-core: 1 of 2 jobs not cancelled: nobody (gone: not in Redis, perhaps finished)\n"
    )


def test_the_edit_command_changes_jobs_in_any_queue(cli: CommandLine, client: Client) -> None:
    cli.ok("enqueue", "mail", "send", "--id", "a", "--delay", "60")
    cli.ok("enqueue", "sms", "send", "--id", "b")

    said = cli.ok("edit", "b", "a", "--now", "--priority", "high", "--by", "ada", "--reason", "now")

    assert said == "b edited\na edited\n"
    for queue in ("mail", "sms"):
        event = last_event(client, queue)
        assert (event["type"], event["by"], event["why"]) == ("edited", "ada", "now")
    shown = cli.json("job", "a")
    assert (shown["state"], shown["priority"]) == ("ready", "high")
    assert cli.ok("edit", "a", "--priority", "high") == "a same\n"


def test_the_edit_command_says_why_a_job_was_not_edited(cli: CommandLine, client: Client) -> None:
    cli.ok("enqueue", "mail", "send", "--id", "runs")
    client.run(claims.claim("mail", "w-1", 1))
    cli.ok("enqueue", "mail", "send", "--id", "waits", "--expires", "60")

    assert cli.line(1, "edit", "runs", "--now", "--json") == (
        "1 of 1 job not edited: runs (it is running)"
    )
    assert cli.line(1, "edit", "waits", "--delay", "60", "--json") == (
        "1 of 1 job not edited: waits (never: it would become ready at its deadline or later)"
    )
    line = cli.json("job", "waits")["line"]
    assert cli.line(1, "edit", "waits", "--delay", "5", "--if-line", f"{line}0", "--json") == (
        "1 of 1 job not edited: waits (changed: its state line is another one by now)"
    )
    assert cli.ok("edit", "waits", "--delay", "5", "--if-line", line) == "waits edited\n"
    assert "expires" in cli.ok("job", "waits")


def test_the_edit_command_refuses_missing_and_conflicting_options(cli: CommandLine) -> None:
    cli.ok("enqueue", "mail", "send", "--id", "a")

    assert "nothing to change" in cli.line(2, "edit", "a")
    assert "does not go with delay" in cli.line(2, "edit", "a", "--now", "--delay", "5")


def test_the_unique_command_shows_and_frees_a_name(cli: CommandLine, client: Client) -> None:
    held = NewJob("a", "mail", profile("t"), "{}", ties=ties_of(unique="keep"), name="t/user=7")
    client.run(client.calls.enqueue.one(held))

    (shown,) = cli.json("unique", "mail", "t/user=7")
    assert ("t/user=7", "a", "ready") == (shown["name"], shown["id"], shown["job"]["state"])
    freed = cli.ok("unique", "mail", "free", "t/user=7", "--reason", "stuck", "--by", "ada")
    assert "t/user=7 is free; job a lives on without it\n" == freed
    told = last_event(client, "mail")
    assert ("freed", "ada", "stuck") == (told["type"], told["by"], told["why"])
    assert cli.json("unique", "mail") == []
    says = cli.line(1, "unique", "mail", "free", "t/user=7")
    assert "no job of mail holds the name t/user=7" == says


def test_the_unique_command_lists_no_more_names_than_its_limit(
    cli: CommandLine, client: Client
) -> None:
    """Checks the limit. Once, a list of 100,000 names took half a minute."""
    ties = ties_of(unique="keep")
    named = [
        NewJob(f"j-{n}", "mail", profile("t"), "{}", ties=ties, name=f"t/user={n}")
        for n in range(5)
    ]
    client.run(client.calls.enqueue.many(named))

    assert 2 == len(cli.json("unique", "mail", "--limit", "2"))
    assert "2 of them; --limit shows more" in cli.ok("unique", "mail", "--limit", "2")
    assert "--limit" not in cli.ok("unique", "mail", "--limit", "5")


@pytest.mark.parametrize("words", [("free",), ("a/b", "c/d"), ("free", "a/b", "c/d")])
def test_the_unique_command_refuses_invalid_arguments(
    cli: CommandLine, words: tuple[str, ...]
) -> None:
    assert "give a name, or: free NAME" in cli("unique", "mail", *words).stderr


def test_the_commands_requeue_and_prune_take_ids_or_a_filter(
    cli: CommandLine, client: Client, kill: Kill
) -> None:
    kill("mail", "d1", "d2", "d3", "d4")

    assert cli.json("requeue", "d2") == {"d2": "requeued"}
    assert cli.json("prune", "d1", "--queue", "mail") == {"d1": "pruned"}
    assert cli.line(1, "requeue", "d2", "--json") == "1 of 1 job not requeued: d2 (it is ready)"
    dead = ("--queue", "mail", "--state", "dead")
    assert cli.ok("requeue", *dead, "--dry-run") == "2 jobs match: 2 dead\n"
    assert cli.json("requeue", *dead, "--yes")["outcomes"] == {"requeued": 2}
    assert cli.ok("requeue", *dead, "--yes").startswith("0 jobs requeued, bulk ")
    assert client.run(client.calls.reads.snapshot("mail"))["ready:2"] == ["d2", "d3", "d4"]


def test_pause_and_resume_are_logged(cli: CommandLine, client: Client) -> None:
    cli.ok("enqueue", "mail", "send")

    assert cli.ok("pause", "mail", "--by", "ada", "--reason", "upgrade") == "mail paused\n"
    event = last_event(client, "mail")
    assert (event["type"], event["by"], event["why"]) == ("paused", "ada", "upgrade")
    assert cli.ok("pause", "mail") == "mail was paused already\n"
    assert client.run(client.calls.reads.counts("mail")).paused
    assert cli.json("resume", "mail") == {"queue": "mail", "paused": "changed"}
    assert cli.ok("resume", "mail") == "mail was not paused\n"
    assert not client.run(client.calls.reads.counts("mail")).paused


def test_the_set_command_shows_and_changes_settings_in_seconds(
    cli: CommandLine, client: Client
) -> None:
    cli.ok("enqueue", "mail", "send")

    said = cli.ok("set", "mail", "lease=2.5", "backlog-max-jobs=1000", "dead_retention=60")

    assert (
        said == "mail lease changed\nmail backlog-max-jobs changed\nmail dead-retention changed\n"
    )
    assert cli.ok("set", "mail", "lease=2.5") == "mail lease is the same\n"
    assert cli.ok("set", "mail").splitlines() == [
        "lease=2.5", "dead-retention=60", "backlog-max-jobs=1000", "backlog-max-bytes=536870912", "results-max=1000000",
        "results-max-bytes=536870912", "kept-max-bytes=134217728",
    ]  # fmt: skip
    assert cli.json("set", "mail")["lease_ms"] == 2500
    assert last_event(client, "mail")["type"] == "policy_changed"


def test_the_default_actor_is_always_a_valid_name(monkeypatch: pytest.MonkeyPatch) -> None:
    for user in ("ada", "Ada Lovelace", "äda", "DOMAIN\\ada", "x" * 300, ""):
        monkeypatch.setattr("getpass.getuser", lambda user=user: user)

        assert re.fullmatch(NAME_PATTERN, actor(None))


# --- doctor -------------------------------------------------------------------------------------


def test_the_doctor_command_reports_and_repairs_a_difference(
    cli: CommandLine, client: Client
) -> None:
    cli.ok("enqueue", "mail", "send", "--id", "a")
    cli.ok("enqueue", "sms", "send")
    server, *said = cli.ok("doctor").splitlines()
    assert server.startswith("server: persistence: it keeps nothing on disk")
    assert said == ["mail: all agrees", "sms: all agrees"]
    client.run(client.calls.delivery.ask([["DEL", queue_keys("mail")("ready:2")]]))

    result = cli("doctor", "mail")
    assert result.exit_code == 1
    assert "\nmail: index: job a is ready: `ready:2` lacks it\n" in result.stdout
    assert re.fullmatch(
        r"rq-core: \d findings?; --repair mends what can be mended\n", result.stderr
    )
    found = json.loads(cli("doctor", "mail", "--json").stdout)[1]["found"]
    assert [["ready:2"]] == [f["keys"] for f in found if f["job"] == "a"]

    assert cli.ok("doctor", "--repair").endswith("mail: mended, all agrees\nsms: all agrees\n")
    server, mail = cli.json("doctor", "mail")
    assert (None, ["persistence"]) == (server["queue"], [f["kind"] for f in server["found"]])
    assert mail == {
        "queue": "mail",
        "error": None,
        "found": [],
        "left": [],
        "unknown": [],
    }


def test_the_doctor_command_reports_differences_that_it_cannot_repair(
    cli: CommandLine, client: Client
) -> None:
    cli.ok("enqueue", "mail", "send", "--id", "a", "--delay", "60")
    client.run(client.calls.delivery.ask([["HDEL", queue_keys("mail")("jobs"), "a"]]))

    result = cli("doctor", "mail", "--repair")

    assert result.exit_code == 1
    assert "mail: left: no_spec: job a is scheduled and has no arguments" in result.stdout
    assert result.stderr == "rq-core: 1 finding\n"


def test_the_doctor_command_examines_other_queues_after_an_unreadable_queue(
    cli: CommandLine, client: Client
) -> None:
    cli.ok("enqueue", "a", "send")
    cli.ok("enqueue", "b", "send")
    key = queue_keys("a")("leases")
    client.run(client.calls.delivery.ask([["SET", key, "?"]]))

    result = cli("doctor")

    assert result.exit_code == 1
    assert f"a: queue 'a' is damaged: key {key} is not a zset" in result.stdout
    assert "b: all agrees" in result.stdout


# --- words --------------------------------------------------------------------------------------


def test_server_status_says_1_client_in_the_singular(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checks that the command does not print "1 clients"."""
    found = ServerStatus(directory=Path("data"), running=True, pid=7, version="9.0", clients=1)
    monkeypatch.setattr("rq_core.embedded.server.server_status", lambda _: found)

    assert ", process 7, 1 client, " in cli.ok("server", "status")


@pytest.mark.parametrize(
    ("words", "url", "directory"),
    [
        ((), "embedded://here", "here"),
        ((), "embedded:///a/b%20c?idle=5", "/a/b c"),
        ((), "embedded://", ".rq-core"),
        ((), "redis://localhost", ".rq-core"),
        (("--dir", "there"), "embedded://here", "there"),
    ],
)
@pytest.mark.parametrize("command", ["status", "stop"])
def test_server_commands_use_the_folder_that_the_environment_names(
    command: str,
    words: tuple[str, ...],
    url: str,
    directory: str,
    cli: CommandLine,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Checks RQ_CORE_REDIS_URL, which all commands use. A URL without a folder means the folder .rq-core."""
    monkeypatch.chdir(tmp_path)

    result = cli("server", command, *words, url=url)

    expected = (
        f"no server runs for {tmp_path / directory}; --dir names the server of another folder\n"
    )
    assert (result.exit_code, result.stdout) == (1 if command == "status" else 0, expected)


def test_durations_and_times_are_printed_in_readable_units() -> None:
    assert span(0) == "0 s"
    assert span(59_999) == "59 s"
    assert span(3_700_000) == "1 h 1 min"
    assert span(2 * 86_400_000 + 5_000) == "2 d 5 s"
    assert utc(0) == "1970-01-01 00:00:00 UTC"
    assert ago(0, 5_000) == "5 s ago (1970-01-01 00:00:00 UTC)"
    assert ago(5_000, 0) == "in 5 s (1970-01-01 00:00:05 UTC)"
    assert utc(1e20) == "100000000000000000000 ms"


def test_texts_from_redis_print_no_control_characters() -> None:
    assert printable("a\x1b[31mb\nc\udcff") == "a\\x1b[31mb\\nc\\udcff"


def test_the_set_command_reads_times_in_seconds() -> None:
    assert parse_assignment("lease=0.5") == ("lease_ms", 500)
    assert parse_assignment("dead_retention=1") == ("dead_retention_ms", 1000)
    assert parse_assignment("backlog-max-bytes=5") == ("backlog_max_bytes", 5)
