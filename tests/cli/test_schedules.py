"""The commands `rq-core schedules` and `rq-core schedule`."""

from typing import Any

import pytest

from rq_core.app.app import App
from rq_core.cli.commands import schedules
from rq_core.connections.client import Client
from tests.cli.conftest import CommandLine

NIGHTLY = {"cron": "30 2 * * *", "tz": "Europe/Berlin"}


@pytest.fixture
def app(valkey_url: str) -> Any:
    made = App(valkey_url)

    @made.task(queue="mail")
    def send(to: str = "a") -> None: ...

    made.schedule("nightly", send.job(), **NIGHTLY)
    made.schedule("beat", send.job(), every=10, spread=5, overlap="allow")
    made.apply_settings()
    yield made
    made.close()


def test_the_schedules_command_shows_the_rule_and_the_state_of_each_schedule(
    cli: CommandLine, app: App
) -> None:
    table = cli.ok("schedules")
    nightly = next(each for each in cli.json("schedules", "mail") if each["name"] == "nightly")

    assert "30 2 * * * Europe/Berlin" in table
    assert "every 10 s" in table or "every 10s" in table
    assert "overlap: allow" in table
    assert ("mail", "on", 1, "code") == tuple(
        nightly[key] for key in ("queue", "state", "version", "source")
    )
    assert {"cron": "30 2 * * *", "tz": "Europe/Berlin"}.items() <= nightly["rule"].items()
    assert nightly["next_ms"] == nightly["due_ms"]


def test_the_schedules_command_says_that_a_queue_has_no_schedules(
    cli: CommandLine, app: App
) -> None:
    app.enqueue("other", "send")

    assert "no schedules" in cli.ok("schedules", "other")


def test_schedule_next_shows_the_next_instants_with_their_utc_offsets(
    cli: CommandLine, app: App
) -> None:
    lines = cli.ok("schedule", "next", "mail", "nightly", "-n", "400").splitlines()

    assert 400 == len(lines)
    assert 365 < sum(" 02:30:00 +0" in line for line in lines) < 400
    # The night without a 02:30, and the one that has it twice.
    assert 1 <= sum(" 03:00:00 +0200" in line for line in lines) <= 2
    assert 5 == len(cli.json("schedule", "next", "mail", "beat"))
    assert "later)" in cli.ok("schedule", "next", "mail", "beat")


def test_schedule_next_shows_the_instants_from_a_given_time(cli: CommandLine, app: App) -> None:
    where = ("schedule", "next", "mail", "nightly")

    night = cli.ok(*where, "--from", "2026-03-28 01:30", "-n", "3").splitlines()

    # An instant at that very time counts; the night without a 02:30 follows.
    assert [
        "Sat 2026-03-28 02:30:00 +0100  (2026-03-28 01:30:00 UTC)",
        "Sun 2026-03-29 03:00:00 +0200  (2026-03-29 01:00:00 UTC)",
        "Mon 2026-03-30 02:30:00 +0200  (2026-03-30 00:30:00 UTC)",
    ] == night
    (first,) = cli.json(*where, "--from", "1793064600000", "-n", "1")
    assert 1793064600000 == first["nominal_ms"]
    cli.ok("schedule", "pause", "mail", "nightly")
    assert night == cli.ok(*where, "--from", "2026-03-28T02:30+01:00", "-n", "3").splitlines()
    assert "'soon' is not a time" in cli(*where, "--from", "soon").stderr
    assert "fires no more: the next instant would lie after the year 2285" in cli.ok(
        *where, "--from", "2299-01-01"
    )
    assert [] == cli.json(*where, "--from", "2299-01-01")


def test_the_schedule_commands_pause_resume_set_run_and_remove_a_schedule(
    cli: CommandLine, app: App
) -> None:
    where = ("mail", "nightly")

    assert "nightly is paused (version 2)\n" == cli.ok("schedule", "pause", *where, "--reason", "x")
    assert "nightly is paused already\n" == cli.ok("schedule", "pause", *where)
    assert "nightly is on again (version 3), next at 20" in cli.ok("schedule", "resume", *where)
    assert "nightly is on already\n" == cli.ok("schedule", "resume", *where)
    assert "nightly is set (version 4)\n" == cli.ok("schedule", "set", *where, "--every", "60")
    assert "nightly is enqueued\n" == cli.ok("schedule", "run", *where)
    assert "is in its place" in cli.line(1, "schedule", "run", *where)
    assert {"outcome": "changed", "version": 5}.items() <= cli.json(
        "schedule", "remove", *where
    ).items()
    assert "nightly of queue mail is removed" in cli.line(1, "schedule", "run", *where)
    assert "nightly of queue mail is removed" in cli.line(1, "schedule", "next", *where)
    assert "`rq-core schedule resume mail nightly`" in cli.line(1, "schedule", "pause", *where)
    assert "queue mail has no schedule none" == cli.line(1, "schedule", "pause", "mail", "none")
    made = cli.line(1, "schedule", "set", "mail", "none", "--every", "60")
    assert "queue mail has no schedule none: --task makes one" == made
    assert "queue mail has no schedule none" == cli.line(1, "schedule", "next", "mail", "none")


def test_schedule_release_gives_a_schedule_back_to_the_code(cli: CommandLine, app: App) -> None:
    where = ("mail", "nightly")
    cli.ok("schedule", "set", *where, "--every", "60")

    assert "nightly is given back to code (version 3): " in cli.ok("schedule", "release", *where)

    assert "released" in cli.ok("schedules", "mail")
    app.apply_settings()
    nightly = next(each for each in cli.json("schedules", "mail") if each["name"] == "nightly")
    assert ("code", "30 2 * * *") == (nightly["source"], nightly["rule"]["cron"])
    cli.ok("schedule", "set", "mail", "hand", "--task", "send", "--every", "60")
    assert "no code declares it" in cli.line(1, "schedule", "release", "mail", "hand")


def test_schedule_set_creates_a_schedule_from_the_name_of_a_task(
    cli: CommandLine, app: App, client: Client
) -> None:
    told = cli.json(
        "schedule", "set", "mail", "hand", "--task", "send", "--json-args", '{"to":"b"}',
        "--cron", "@daily", "--overlap", "queue",
    )  # fmt: skip
    keys = "rqc:{mail}:schedules"
    (job,) = client.run(client.calls.delivery.ask([["HGET", keys, "hand|job"]]))

    assert {"outcome": "changed", "version": 1}.items() <= told.items()
    assert job.endswith('{"task":"send","args":{"to":"b"}}')
    assert "tick=hand" in job
    assert "conflict" in cli.line(
        1, "schedule", "set", "mail", "hand", "--every", "60", "--version", "7"
    )


def test_schedule_set_warns_of_a_task_that_no_worker_has_registered(
    cli: CommandLine, app: App
) -> None:
    where = ("schedule", "set", "mail", "hand", "--every", "60")

    said = cli(*where, "--task", "sned")

    assert (0, "hand is set (version 1)\n") == (said.exit_code, said.stdout)
    assert (
        "rq-core: warning: no worker has registered the task sned in queue mail, so its jobs wait until a worker"
        " with this task runs. Registered: send\n"
    ) == said.stderr
    assert "" == cli(*where, "--task", "send").stderr
    assert "" == cli(*where).stderr
    nowhere = cli("schedule", "set", "new", "hand", "--every", "60", "--task", "send", "--json")
    assert "Registered: none" in nowhere.stderr
    assert '"outcome"' in nowhere.stdout


def test_schedule_set_without_a_task_keeps_a_job_that_another_client_has_just_changed(
    cli: CommandLine, app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checks a command that changes only the rule of a schedule, while another client changes the schedule's job."""
    with_stored_job = schedules._with_stored_job
    other = app.tasks["send"].job("b")

    def slow(*args: Any) -> Any:
        made = with_stored_job(*args)
        app.schedule_many([("nightly", other, {"every": 90})])
        return made

    monkeypatch.setattr(schedules, "_with_stored_job", slow)

    said = cli.line(1, "schedule", "set", "mail", "nightly", "--every", "60")

    assert "nightly is not changed: conflict, version 2 is stored" == said


def test_schedule_run_reports_that_the_stored_job_is_damaged(
    cli: CommandLine, app: App, client: Client
) -> None:
    key = "rqc:{mail}:schedules"
    client.run(client.calls.delivery.ask([["HSET", key, "nightly|job", "rubbish"]]))

    said = cli.line(1, "schedule", "run", "mail", "nightly")

    assert "nightly is not enqueued: its stored job cannot be read; `rq-core schedule set" in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--cron", "0 0 30 2 *"], "has the day-of-month '30'"),
        (["--every", "0.1"], "must be seconds"),
        (["--cron", "@daily", "--tz", "Mars/Olympus"], "pip install tzdata"),
        (["--every", "60", "--task", "send", "--json-args", "x"], "must be a JSON object"),
        (["--every", "60", "--task", "send", "--json-args", "[]"], "must be a JSON object"),
        (["--every", "60", "--overlap", "queue"], "--overlap needs --task"),
        ([], "must be given, or every"),
    ],
)
def test_schedule_set_reports_an_invalid_rule_in_one_line(
    cli: CommandLine, app: App, words: list[str], said: str
) -> None:
    result = cli("schedule", "set", "mail", "nightly", *words)

    assert result.exit_code in (1, 2)
    assert said in result.stderr


def test_schedule_commands_report_an_unknown_queue_by_its_name(cli: CommandLine, app: App) -> None:
    assert "nowhere" in cli.line(2, "schedule", "pause", "nowhere", "x")
    assert "nowhere" in cli.line(2, "schedules", "nowhere")
